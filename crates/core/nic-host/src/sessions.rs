//! Sessions and calls of a host with a NIC.

mod accepting;

use std::collections::{HashMap, VecDeque};

use provost_datagram::handshake::{Accept, MarkUse, Open, PacketFallback, Secrets, VERSION};
use provost_datagram::packet::{Body, DATA_HEADER_BYTES, Kind, NO_SESSION, Packet};
use provost_datagram::{Checking, PACKET_BYTES_MIN, SessionId};
use provost_nic::{
    Board, COMMAND_CLOSE, COMMAND_LOAD, CONTROL_CHECKING, CONTROL_ENABLE, ConnectionLine, ConnectionRole,
    EntryError, EntryHead, EntryKind, IDENTITY, LINE_BYTES, MESSAGE_PACKETS_MAX, MessagePart, Received,
    RingDriver, RingError, SLOTS_MAX, line_bytes, registers,
};

use crate::await_command;
use crate::config::{HostConfig, HostError, TIMEOUT_TICKS_MAX, TRIES_LIMIT};
use crate::handshake::{control, read_accept, read_challenge, session_id};
use crate::messages::{HostCall, LongRequest, MessageBounds, message_part};

/// Marks the tag of a request's further packet, so that it is no call's: slot and call follow in the lower bits.
const FRAGMENT_TAG: u64 = 1 << 63;
/// Nanoseconds of a tick of the NIC.
const TICK_NS: u64 = 64;
/// Entries that one poll takes from a ring at most.
const BATCH_ENTRIES: usize = 64;
/// Closes that a client sends at most: a server that has answered none of them is gone.
const CLOSES_MAX: u32 = 16;
/// Packets that wait for room in a transmit ring, beyond which nothing waits that its receiver asks for again.
const WAITING_MAX: usize = 256;

/// A request that waits for its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestTag {
    connection: u16,
    tag: u64,
}

impl RequestTag {
    /// The connection that it came by, and what the NIC calls it.
    #[must_use]
    pub fn to_parts(self) -> (u16, u64) {
        (self.connection, self.tag)
    }

    /// The request of which these are the parts. A response to one that is not waiting is refused by the NIC.
    #[must_use]
    pub fn from_parts((connection, tag): (u16, u64)) -> RequestTag {
        RequestTag { connection, tag }
    }

    /// The slot of its session.
    #[must_use]
    pub fn slot(self) -> u8 {
        (self.tag >> 32) as u8 & 7
    }

    /// Which call of its slot it is.
    #[must_use]
    pub fn call(self) -> u32 {
        self.tag as u32
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostEvent {
    /// A session that was asked for is there.
    Connected(SessionId),
    /// A client has opened a session.
    Accepted(SessionId),
    /// A session is over.
    Ended(SessionId),
    /// A session that was asked for is refused.
    Refused(SessionId, u16),
    /// A request is to be handled.
    Request {
        session: SessionId,
        /// What the response names.
        request: RequestTag,
        method: u16,
        /// The flow whose ring it came by.
        flow: u8,
        payload: Vec<u8>,
    },
    /// A call has ended.
    Completed {
        /// What the caller called it.
        tag: u64,
        /// The status and the response, or why there is none.
        outcome: Result<(u16, Vec<u8>), EntryError>,
    },
}

/// Where a session stands.
///
/// ```text
///   Opening ──► Open ──► Closing ──► gone      (a server's begins as Open)
///                └─────► Leaving ─────┘
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
enum SessionState {
    Opening {
        nonce: u64,
        cookie: u64,
        again_ns: u64,
    },
    Open,
    Closing {
        again_ns: u64,
        closes_left: u32,
    },
    /// It is over, and the NIC has been told. Requests that came before may be on their way to the rings or in them, so no other session has its
    /// number until this time, and until the rings are empty.
    Leaving {
        until_ns: u64,
    },
}

#[derive(Clone, Debug)]
struct HostSession {
    role: ConnectionRole,
    state: SessionState,
    token: u32,
    remote: u64,
    remote_number: u16,
    remote_token: u32,
    slots: u8,
    credits: u16,
    packet_bytes: u16,
    /// Bytes of the largest request that the server takes.
    request_bytes_max: u32,
    nonce: u64,
    calls: u8,
    /// A bit for each area that a call has named whose end the host has not read.
    areas: u8,
    /// Of a server's session: a bit for each slot whose request waits for its response.
    requests: u8,
    /// Of a server's session: when its client was last of use.
    used_ns: u64,
    /// What was answered last in each slot: the call, and the response.
    responses: [Option<(u32, u16, Vec<u8>)>; SLOTS_MAX as usize],
}

/// The host's side of a NIC: sessions, calls, events.
#[derive(Debug)]
pub struct NicHost {
    config: HostConfig,
    rings: Vec<RingDriver>,
    secrets: Secrets,
    sessions: Vec<Option<HostSession>>,
    /// Sessions of clients, so that a repeated Open does not make another.
    opened: HashMap<(u64, u16, u32), u16>,
    calls: HashMap<u64, HostCall>,
    calls_made: u64,
    /// Raw packets and packets of messages that found their ring full. Beside [`WAITING_MAX`] of what is asked for again it has a response for
    /// each request at most.
    waiting: VecDeque<(usize, EntryHead, MessagePart, Vec<u8>)>,
    events: VecDeque<HostEvent>,
    /// When the host was polled last.
    polled_ns: u64,
}

impl NicHost {
    /// Starts the NIC.
    ///
    /// # Errors
    /// If there is none, or a flow cannot be.
    pub fn start(board: &mut impl Board, config: HostConfig) -> Result<NicHost, HostError> {
        let identity = board.read_register(registers::IDENTITY);
        if identity != IDENTITY {
            return Err(HostError::Identity(identity));
        }
        let line_bytes = line_bytes(board.read_register(registers::PARAMETERS));
        if line_bytes != LINE_BYTES {
            return Err(HostError::LineBytes(line_bytes));
        }
        let checking = match config.checking {
            Checking::Wire => 0,
            Checking::Packets => CONTROL_CHECKING,
            Checking::Crc32c => return Err(HostError::Checking(config.checking)),
        };
        let (timeout_ticks, tries_max) = (config.timeout_ticks, config.tries_max);
        if !(1..=TIMEOUT_TICKS_MAX).contains(&timeout_ticks) || tries_max > TRIES_LIMIT {
            return Err(HostError::Retries {
                timeout_ticks,
                tries_max,
            });
        }
        // It may still run as a host that is gone has left it.
        board.write_register(registers::CONTROL, 0);
        for flow in 0..registers::FLOW_SHAPE_COUNT {
            board.write_register(registers::flow_shape(flow), 0);
        }
        if let Some(areas) = config.areas
            && !areas.announce(board)
        {
            return Err(HostError::Areas(areas));
        }
        board.write_register(registers::TABLE_BASE, config.table_base);
        for line in 0..u32::from(config.sessions_max) {
            board.write_line(config.table_base + line, &ConnectionLine::CLOSED);
        }
        board.write_register(registers::TIMEOUT, config.timeout_ticks);
        board.write_register(registers::TRIES_MAX, config.tries_max);
        let mut rings = Vec::new();
        for shape in &config.flows {
            rings.push(RingDriver::start(board, *shape)?);
        }
        let first = config.flows.first().map_or(0, |shape| shape.flow);
        board.write_register(registers::CONTROL_FLOW, first.into());
        board.write_register(registers::CONTROL, CONTROL_ENABLE | checking);
        Ok(NicHost {
            secrets: Secrets::new(config.secret),
            sessions: vec![None; usize::from(config.sessions_max)],
            rings,
            opened: HashMap::new(),
            calls: HashMap::new(),
            calls_made: 0,
            waiting: VecDeque::new(),
            events: VecDeque::new(),
            polled_ns: 0,
            config,
        })
    }

    /// Asks for a session with whoever is at this address.
    ///
    /// # Errors
    /// If there are too many.
    pub fn connect(&mut self, now_ns: u64, remote: u64) -> Result<SessionId, HostError> {
        let number = self.number().ok_or(HostError::TooManySessions)?;
        let (token, nonce) = (self.secrets.draw() as u32, self.secrets.draw());
        let opening = SessionState::Opening {
            nonce,
            cookie: 0,
            again_ns: now_ns,
        };
        self.sessions[usize::from(number)] = Some(HostSession {
            role: ConnectionRole::Client,
            state: opening,
            token,
            remote,
            remote_number: 0,
            remote_token: 0,
            slots: SLOTS_MAX,
            credits: u16::from(SLOTS_MAX) * self.config.call_credits(),
            packet_bytes: self.config.packet_bytes_max,
            request_bytes_max: 0,
            nonce,
            calls: 0,
            areas: 0,
            requests: 0,
            used_ns: now_ns,
            responses: Default::default(),
        });
        Ok(session_id(number, token))
    }

    fn number(&self) -> Option<u16> {
        self.sessions
            .iter()
            .position(Option::is_none)
            .map(|number| number as u16)
    }

    fn session(&mut self, id: SessionId) -> Result<(u16, &mut HostSession), HostError> {
        let number = (id.to_bits() >> 32) as u16;
        let token = id.to_bits() as u32;
        let session = self
            .sessions
            .get_mut(usize::from(number))
            .and_then(Option::as_mut);
        session
            .filter(|session| session.token == token)
            .map(|session| (number, session))
            .ok_or(HostError::NoSession)
    }

    /// Makes a call; [`HostEvent::Completed`] with this tag follows.
    ///
    /// # Errors
    /// If it cannot be made now.
    pub fn call(
        &mut self,
        board: &mut impl Board,
        session: SessionId,
        tag: u64,
        method: u16,
        payload: &[u8],
    ) -> Result<(), HostError> {
        let (calls, calls_max) = (self.calls.len(), usize::from(self.rings[0].shape().calls_max));
        let packet_bytes = self.session(session)?.1.packet_bytes;
        let bytes_max = self.config.message_bytes_max(packet_bytes);
        let (number, open) = self.session(session)?;
        if open.state != SessionState::Open || open.role != ConnectionRole::Client {
            return Err(HostError::NoSession);
        }
        let bytes_max = bytes_max.min(open.request_bytes_max as usize);
        if payload.len() > bytes_max {
            return Err(HostError::TooLarge {
                bytes: payload.len(),
                bytes_max,
            });
        }
        if open.calls >= open.slots || calls >= calls_max {
            return Err(HostError::Busy);
        }
        let (packet_payload, token) = (usize::from(open.packet_bytes) - DATA_HEADER_BYTES, open.token);
        // There are as many areas as slots, so one is free.
        let area = open.areas.trailing_ones() as u8;
        let head = EntryHead {
            kind: EntryKind::Request,
            bytes: 0,
            connection: number,
            code: method,
            tag: self.calls_made,
            remote: 0,
        };
        let (part, first) = message_part(payload, 0, packet_payload);
        let part = MessagePart { area, ..part };
        let request = (first.len() < payload.len()).then(|| LongRequest {
            method,
            payload: payload.to_vec(),
            given_ns: [None; MESSAGE_PACKETS_MAX],
        });
        self.rings[0].send_part(board, &head, part, first)?;
        let call = HostCall {
            number,
            token,
            tag,
            area,
            request,
        };
        self.calls.insert(self.calls_made, call);
        self.calls_made += 1;
        if let Ok((_, open)) = self.session(session) {
            open.calls += 1;
            open.areas |= 1 << area;
        }
        Ok(())
    }

    /// Bytes of the largest message that the session carries: of a request, as its server takes it, and of a response, as far as both ends'
    /// packets go. None while the session is not open.
    pub fn message_bounds(&mut self, session: SessionId) -> Option<MessageBounds> {
        let packet_bytes = self.session(session).ok()?.1.packet_bytes;
        let own_bytes_max = self.config.message_bytes_max(packet_bytes);
        let (_, open) = self.session(session).ok()?;
        let request_bytes_max = match open.role {
            ConnectionRole::Client => own_bytes_max.min(open.request_bytes_max as usize),
            ConnectionRole::Server => own_bytes_max,
        };
        (open.state == SessionState::Open).then_some(MessageBounds {
            packet_bytes: usize::from(packet_bytes) - DATA_HEADER_BYTES,
            request_bytes_max,
            response_bytes_max: own_bytes_max,
        })
    }

    /// Calls that the session can take now.
    pub fn free_slots(&mut self, session: SessionId) -> u8 {
        match self.session(session) {
            Ok((_, open)) if open.state == SessionState::Open => open.slots - open.calls,
            _ => 0,
        }
    }

    /// Answers a request. The response is kept until the slot's next call, in case it gets lost.
    pub fn respond(&mut self, board: &mut impl Board, request: RequestTag, status: u16, payload: &[u8]) {
        let session = self
            .sessions
            .get_mut(usize::from(request.connection))
            .and_then(Option::as_mut);
        let Some(session) = session else {
            return;
        };
        session.requests &= !(1 << request.slot());
        session.used_ns = self.polled_ns;
        let kept = (request.call(), status, payload.to_vec());
        session.responses[usize::from(request.slot())] = Some(kept);
        let packet_payload = usize::from(session.packet_bytes) - DATA_HEADER_BYTES;
        let (part, first) = message_part(payload, 0, packet_payload);
        self.send_response(board, request, status, part, first);
    }

    fn send_response(
        &mut self,
        board: &mut impl Board,
        request: RequestTag,
        status: u16,
        part: MessagePart,
        payload: &[u8],
    ) {
        let head = EntryHead {
            kind: EntryKind::Response,
            bytes: 0,
            connection: request.connection,
            code: status,
            tag: request.tag,
            remote: 0,
        };
        let ring = usize::from(request.connection) % self.rings.len();
        self.send_or_wait(board, ring, head, part, payload.to_vec());
    }

    /// Whether so much waits for room that what its receiver asks for again is left out.
    fn is_crowded(&self) -> bool {
        self.waiting.len() >= WAITING_MAX
    }

    fn send_raw(&mut self, board: &mut impl Board, remote: u64, packet: Vec<u8>) {
        if self.is_crowded() {
            return;
        }
        let head = EntryHead {
            kind: EntryKind::Raw,
            bytes: 0,
            connection: 0,
            code: 0,
            tag: 0,
            remote,
        };
        let (whole, _) = message_part(&packet, 0, packet.len().max(1));
        self.send_or_wait(board, 0, head, whole, packet);
    }

    fn send_or_wait(
        &mut self,
        board: &mut impl Board,
        ring: usize,
        head: EntryHead,
        part: MessagePart,
        payload: Vec<u8>,
    ) {
        // What is too long for a slot would be so again: the client times out.
        if let Err(RingError::Full) = self.rings[ring].send_part(board, &head, part, &payload) {
            self.waiting.push_back((ring, head, part, payload));
        }
    }

    /// Ends a session of either direction. Its calls are to have ended.
    ///
    /// # Errors
    /// If there is none, or the NIC does nothing.
    pub fn disconnect(
        &mut self,
        board: &mut impl Board,
        now_ns: u64,
        session: SessionId,
    ) -> Result<(), HostError> {
        let (number, open) = self.session(session)?;
        match (&open.state, open.role) {
            (SessionState::Leaving { .. }, _) => {}
            (SessionState::Open, ConnectionRole::Client) => {
                open.state = SessionState::Closing {
                    again_ns: now_ns,
                    closes_left: CLOSES_MAX,
                };
                self.forget(board, number)?;
            }
            (SessionState::Open, ConnectionRole::Server) => self.reset(board, now_ns, number)?,
            (SessionState::Opening { .. } | SessionState::Closing { .. }, _) => self.remove(number),
        }
        Ok(())
    }

    /// Takes what the NIC has written, sends what has waited, and does what is due at this time.
    ///
    /// # Errors
    /// If the NIC does nothing.
    pub fn poll(&mut self, board: &mut impl Board, now_ns: u64) -> Result<(), HostError> {
        for _ in 0..self.waiting.len() {
            if let Some((ring, head, part, payload)) = self.waiting.pop_front() {
                self.send_or_wait(board, ring, head, part, payload);
            }
        }
        self.polled_ns = now_ns;
        let mut emptied = 0;
        for ring in 0..self.rings.len() {
            for _ in 0..BATCH_ENTRIES {
                let Some(received) = self.rings[ring].receive(board) else {
                    emptied += 1;
                    break;
                };
                let flow = self.rings[ring].shape().flow;
                self.handle(board, now_ns, flow, received)?;
            }
        }
        if emptied == self.rings.len() {
            self.free_numbers(now_ns);
        }
        self.handle_timers(board, now_ns);
        for ring in &mut self.rings {
            ring.flush(board);
        }
        Ok(())
    }

    /// Something that has happened.
    pub fn poll_event(&mut self) -> Option<HostEvent> {
        self.events.pop_front()
    }

    fn handle(
        &mut self,
        board: &mut impl Board,
        now_ns: u64,
        flow: u8,
        received: Received,
    ) -> Result<(), HostError> {
        let Some((code, payload)) = self.message(board, &received) else {
            // No NIC says so.
            return Ok(());
        };
        let head = received.head;
        let request = RequestTag {
            connection: head.connection,
            tag: head.tag,
        };
        match head.kind {
            EntryKind::Request => {
                let session = self.sessions.get_mut(usize::from(head.connection));
                let session = session.and_then(Option::as_mut);
                if let Some(session) = session.filter(|session| session.state == SessionState::Open) {
                    session.requests |= 1 << request.slot();
                    session.used_ns = now_ns;
                    self.events.push_back(HostEvent::Request {
                        session: session_id(head.connection, session.token),
                        request,
                        method: code,
                        flow,
                        payload,
                    });
                }
            }
            EntryKind::Repeat if self.is_crowded() => {}
            EntryKind::Repeat => self.give(board, now_ns, &head),
            EntryKind::Fragment => {}
            EntryKind::Response => self.complete(head.tag, Ok((code, payload))),
            EntryKind::Error => self.complete(head.tag, Err(EntryError::from(head.code))),
            EntryKind::Raw => return self.manage(board, now_ns, head.remote, &payload),
        }
        Ok(())
    }

    /// Code and payload of what has come, wherever it lies.
    fn message(&self, board: &mut impl Board, received: &Received) -> Option<(u16, Vec<u8>)> {
        let head = &received.head;
        let Some(stored) = received.stored else {
            return Some((head.code, received.payload.clone()));
        };
        let session = self.sessions.get(usize::from(head.connection))?.as_ref()?;
        let packet_payload = usize::from(session.packet_bytes) - DATA_HEADER_BYTES;
        self.config
            .areas?
            .read(board, head.connection, stored, packet_payload)
    }

    fn complete(&mut self, call: u64, outcome: Result<(u16, Vec<u8>), EntryError>) {
        // An error may be about a response that came too late, which is nobody's call.
        let Some(HostCall {
            number,
            token,
            tag,
            area,
            ..
        }) = self.calls.remove(&call)
        else {
            return;
        };
        // Its session may have ended, and another have its number.
        let session = self.sessions[usize::from(number)].as_mut();
        if let Some(session) = session.filter(|session| session.token == token) {
            session.calls -= 1;
            session.areas &= !(1 << area);
        }
        self.events.push_back(HostEvent::Completed { tag, outcome });
    }

    /// Gives the packets of a message for which the NIC asks.
    fn give(&mut self, board: &mut impl Board, now_ns: u64, head: &EntryHead) {
        let session = self
            .sessions
            .get(usize::from(head.connection))
            .and_then(Option::as_ref);
        match session.map(|session| session.role) {
            Some(ConnectionRole::Client) => self.give_request(board, now_ns, head),
            Some(ConnectionRole::Server) => self.give_response(board, head),
            None => {}
        }
    }

    /// The server has the request's packets before this one, and those behind it that the head's bits say.
    fn give_request(&mut self, board: &mut impl Board, now_ns: u64, head: &EntryHead) {
        let pause_ns = u64::from(self.config.timeout_ticks) * TICK_NS / 2;
        let Some(call) = self.calls.get_mut(&head.tag) else {
            return;
        };
        let Some(request) = call.request.as_mut() else {
            return;
        };
        let session = self.sessions[usize::from(call.number)].as_ref();
        let Some(session) = session.filter(|session| session.token == call.token) else {
            return;
        };
        let packet_payload = usize::from(session.packet_bytes) - DATA_HEADER_BYTES;
        let packets = request.wanted(head.code, head.bytes, packet_payload, now_ns, pause_ns);
        let (method, payload) = (request.method, request.payload.clone());
        let entry = EntryHead {
            kind: EntryKind::Fragment,
            bytes: 0,
            connection: head.connection,
            code: method,
            tag: FRAGMENT_TAG | head.remote,
            remote: 0,
        };
        for packet in packets {
            let (part, bytes) = message_part(&payload, packet, packet_payload);
            self.send_or_wait(board, 0, entry, part, bytes.to_vec());
        }
    }

    /// The client has not got packets of the response to a request: as many as the head says, from one on.
    fn give_response(&mut self, board: &mut impl Board, head: &EntryHead) {
        let request = RequestTag {
            connection: head.connection,
            tag: head.tag,
        };
        let Some(session) = self.sessions[usize::from(head.connection)].as_ref() else {
            return;
        };
        let packet_payload = usize::from(session.packet_bytes) - DATA_HEADER_BYTES;
        let Some((call, status, payload)) = session.responses[usize::from(request.slot())].clone() else {
            return;
        };
        let packets = payload.len().div_ceil(packet_payload).max(1) as u16;
        let wanted = head.code..packets.min(head.code.saturating_add(head.bytes));
        for packet in wanted.filter(|_| call == request.call()) {
            let (part, bytes) = message_part(&payload, packet, packet_payload);
            self.send_response(board, request, status, part, bytes);
        }
    }

    fn manage(
        &mut self,
        board: &mut impl Board,
        now_ns: u64,
        from: u64,
        bytes: &[u8],
    ) -> Result<(), HostError> {
        // The NIC has checked the check, and leaves it in the packet.
        let Ok(Packet { header, body }) = Packet::parse(bytes, self.config.checking) else {
            return Ok(());
        };
        if let (Kind::Open, Body::Control(payload)) = (header.kind, body) {
            return self.receive_open(board, now_ns, from, payload);
        }
        if header.kind == Kind::Unknown {
            return self.receive_unknown(board, now_ns, from, (header.session, header.token));
        }
        let number = header.session;
        let session = self
            .sessions
            .get_mut(usize::from(number))
            .and_then(Option::as_mut);
        let Some(session) = session.filter(|session| session.token == header.token && session.remote == from)
        else {
            // A client that has not heard that its session is closed asks again; it is told that there is none.
            if header.kind == Kind::Close {
                self.send_raw(board, from, control(Kind::Unknown, number, header.token, &[]));
            }
            return Ok(());
        };
        let id = session_id(number, header.token);
        match (header.kind, body, &mut session.state) {
            (
                Kind::Challenge,
                Body::Control(payload),
                SessionState::Opening {
                    nonce,
                    cookie,
                    again_ns,
                },
            ) => {
                if let Some((echo, baked)) = read_challenge(payload)
                    && echo == *nonce
                {
                    (*cookie, *again_ns) = (baked, now_ns);
                }
            }
            (Kind::Accept, Body::Control(payload), SessionState::Opening { nonce, .. }) => {
                if let Some(accept) = read_accept(payload).filter(|accept| accept.nonce == *nonce) {
                    return self.accepted(board, number, &accept);
                }
            }
            (Kind::Refuse, Body::Control(payload), SessionState::Opening { nonce, .. })
                if payload.len() >= 10 && payload[..8] == nonce.to_le_bytes() =>
            {
                let reason = u16::from_le_bytes([payload[8], payload[9]]);
                self.sessions[usize::from(number)] = None;
                self.events.push_back(HostEvent::Refused(id, reason));
            }
            (Kind::Close, _, SessionState::Open) if session.role == ConnectionRole::Server => {
                let closed = control(Kind::Closed, session.remote_number, session.remote_token, &[]);
                self.leave(board, now_ns, number)?;
                self.send_raw(board, from, closed);
            }
            (Kind::Reset, _, SessionState::Open) => self.leave(board, now_ns, number)?,
            (Kind::Closed, _, SessionState::Closing { .. }) => self.remove(number),
            _ => {}
        }
        Ok(())
    }

    /// A server says that it has no such session: whoever is not on the path cannot know number and token. Calls that are on their way
    /// end with their next time-out.
    fn receive_unknown(
        &mut self,
        board: &mut impl Board,
        now_ns: u64,
        from: u64,
        (number, token): (u16, u32),
    ) -> Result<(), HostError> {
        let is_it = |session: &HostSession| {
            session.role == ConnectionRole::Client
                && (session.remote, session.remote_number, session.remote_token) == (from, number, token)
        };
        let numbered = (0..).zip(&self.sessions);
        let mut known = numbered.filter_map(|(number, session)| Some((number, session.as_ref()?)));
        match known.find(|(_, session)| is_it(session)) {
            // Responses that came before may be in the ring.
            Some((number, session)) if session.state == SessionState::Open => {
                self.leave(board, now_ns, number)
            }
            Some((number, session)) if matches!(session.state, SessionState::Closing { .. }) => {
                self.remove(number);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn accepted(&mut self, board: &mut impl Board, number: u16, accept: &Accept) -> Result<(), HostError> {
        let Some(session) = self.sessions[usize::from(number)].as_mut() else {
            return Ok(());
        };
        let possible = accept.version == VERSION
            && (1..=SLOTS_MAX).contains(&accept.slots)
            && accept.credits > 0
            && (PACKET_BYTES_MIN as u16..=self.config.packet_bytes_max).contains(&accept.packet_bytes);
        if !possible {
            return Ok(());
        }
        session.state = SessionState::Open;
        // No more calls than credits for what they can take.
        let calls = (accept.credits / self.config.call_credits()).max(1);
        session.slots = accept.slots.min(calls.min(u16::from(SLOTS_MAX)) as u8);
        session.packet_bytes = accept.packet_bytes;
        session.request_bytes_max = accept.message_bytes_max;
        session.remote_number = accept.session;
        session.remote_token = accept.token;
        let id = session_id(number, session.token);
        self.load(board, number)?;
        self.events.push_back(HostEvent::Connected(id));
        Ok(())
    }

    /// Tells the NIC of a session that begins.
    fn load(&mut self, board: &mut impl Board, number: u16) -> Result<(), HostError> {
        let Some(session) = self.sessions[usize::from(number)].as_ref() else {
            return Ok(());
        };
        let line = ConnectionLine {
            role: session.role,
            slots: session.slots,
            balance: self.config.balance,
            bucket: 0,
            flows: self.config.serving,
            local_token: session.token,
            remote_token: session.remote_token,
            remote_number: session.remote_number,
            payload_bytes_max: session.packet_bytes - DATA_HEADER_BYTES as u16,
            remote: session.remote,
        };
        board.write_line(self.config.table_base + u32::from(number), &line.encode());
        self.command(board, COMMAND_LOAD, number)
    }

    /// Tells the NIC that a session is over. After the first command the NIC changes the line no more, so the host can clear it; the
    /// second has the NIC see that.
    fn forget(&mut self, board: &mut impl Board, number: u16) -> Result<(), HostError> {
        self.command(board, COMMAND_CLOSE, number)?;
        board.write_line(
            self.config.table_base + u32::from(number),
            &ConnectionLine::CLOSED,
        );
        self.command(board, COMMAND_LOAD, number)
    }

    fn command(&mut self, board: &mut impl Board, command: u32, number: u16) -> Result<(), HostError> {
        await_command(board)?;
        board.write_register(registers::CONNECTION, command | u32::from(number));
        await_command(board)
    }

    fn remove(&mut self, number: u16) {
        if let Some(session) = self.sessions[usize::from(number)].take() {
            self.opened
                .remove(&(session.remote, session.remote_number, session.remote_token));
            self.events
                .push_back(HostEvent::Ended(session_id(number, session.token)));
        }
    }

    fn handle_timers(&mut self, board: &mut impl Board, now_ns: u64) {
        let pause_ns = self.config.handshake_timeout_ns;
        let (mut packets, mut given_up) = (Vec::new(), Vec::new());
        for (number, session) in self.sessions.iter_mut().enumerate() {
            let Some(session) = session else {
                continue;
            };
            match &mut session.state {
                SessionState::Opening { cookie, again_ns, .. } if *again_ns <= now_ns => {
                    *again_ns = now_ns + pause_ns;
                    let open = Open {
                        versions: (VERSION, VERSION),
                        selective: true,
                        slots: session.slots,
                        session: number as u16,
                        token: session.token,
                        credits: session.credits,
                        packet_bytes: session.packet_bytes,
                        nonce: session.nonce,
                        cookie: *cookie,
                        cipher: 0,
                        marks: MarkUse::Unread,
                        fallback: PacketFallback::Off,
                    };
                    packets.push((session.remote, control(Kind::Open, NO_SESSION, 0, &open.encode())));
                }
                SessionState::Closing {
                    again_ns,
                    closes_left,
                } if *again_ns <= now_ns => {
                    if *closes_left == 0 {
                        given_up.push(number as u16);
                        continue;
                    }
                    *closes_left -= 1;
                    *again_ns = now_ns + pause_ns;
                    let close = control(Kind::Close, session.remote_number, session.remote_token, &[]);
                    packets.push((session.remote, close));
                }
                _ => {}
            }
        }
        for (remote, packet) in packets {
            self.send_raw(board, remote, packet);
        }
        for number in given_up {
            self.remove(number);
        }
    }
}
