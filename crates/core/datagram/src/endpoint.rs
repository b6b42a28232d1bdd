//! An endpoint: all sessions of one thread over one wire. (The paper calls it `Rpc`.)
//!
//! ```text
//!   call, respond, connect ──►  sessions  ──► queue, timing wheel ──► poll_transmit
//!   receive ─────────────────►     │
//!   handle_timers ───────────►     └────────► events ──────────────► receive, poll_event
//! ```

mod hot_restart;
mod management;
#[cfg(test)]
mod ownership;

use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;

use provost_registered::One;

use crate::buffer::MsgBuf;
use crate::checksum::Checking;
use crate::client::ClientSession;
use crate::config::{Config, ConfigError};
use crate::event::{Call, CallError, CallRefused, EndReason, Event, EventHandler, RequestHandle, SessionId};
use crate::handshake::MarkUse;
use crate::packet::{
    ArrivedData, Body, CheckedHead, DATA_HEADER_BYTES, DataHead, HEADER_BYTES, Header, Kind,
    MESSAGE_PACKETS_MAX, Malformed, Piece, Prefix,
};
use crate::seal::{Broken, KEY_BYTES, LossProof};
use crate::server::{self, ResponseParts, ServerSession};
use crate::shared::{Control, Outgoing, Shared, What, WholeOutgoing};
use crate::statistics::Statistics;

/// What an address on a wire must be able to do.
pub trait Address: Copy + Eq + Hash + Debug {}

impl<A: Copy + Eq + Hash + Debug> Address for A {}

/// What the wire said of a packet, beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Nothing.
    None,
    /// It met congestion (ECN's CE).
    Congested,
}

/// A packet to hand to the wire: its head, then its payload. Both are the wire's until the next call of the endpoint.
#[derive(Debug)]
pub struct Transmit<'e, A> {
    /// Where to.
    pub to: A,
    /// What goes first.
    pub head: CheckedHead,
    /// What follows, where the application put it.
    pub payload: &'e [u8],
}

/// A response that was not taken.
#[derive(Debug)]
pub struct ResponseRefused {
    /// Why: the request's session is over, or the response is too large.
    pub error: CallError,
    /// The response.
    pub response: MsgBuf,
}

/// Packets of session management get this part of a turn before those of calls do; the others follow if there is room.
const CONTROL_SHARE: usize = 4;

/// All sessions of one thread over one wire.
///
/// It reads no clock: every call that needs the time is told it, in nanoseconds that never run backwards.
#[derive(Debug)]
pub struct Endpoint<A> {
    shared: Shared<A>,
    sessions: Vec<Session<A>>,
    /// Numbers of ended sessions, the longest unused first.
    free: VecDeque<u16>,
    /// Sessions of clients, so that a repeated Open does not make another.
    opened: HashMap<PeerSession<A>, u16>,
    /// Sessions of this end's, by what their servers call them.
    connected: HashMap<PeerSession<A>, u16>,
    /// Sealed sessions of clients, by the client's public key: who repeats what a client said gets no session by it.
    exchanged: HashMap<[u8; KEY_BYTES], u16>,
    ring_packets_taken: u32,
    /// The packet of session management that went out last.
    current: Option<Control<A>>,
    /// A sealed session of a predecessor's, whose client is told that it is lost.
    disowned: Option<Disowned<A>>,
}

/// Where the other end of a session is, and the number and token that it gave the session.
type PeerSession<A> = (A, u16, u32);

/// A sealed session that only a predecessor of this endpoint knew.
#[derive(Clone, Copy, Debug)]
struct Disowned<A> {
    client: A,
    session: SessionId,
    proof: LossProof,
}

/// Keeps what has happened.
struct LastEvent<'p>(Option<Event<'p>>);

impl<'p, A> EventHandler<'p, A> for LastEvent<'p> {
    fn handle(&mut self, _: &mut Endpoint<A>, _: u64, event: Event<'p>) {
        self.0 = Some(event);
    }
}

/// Whether what a packet of a sealed session carries has been unsealed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unsealed {
    NotYet,
    Already,
}

#[derive(Debug)]
enum Session<A> {
    Free,
    Client(One<ClientSession<A>>),
    Server(One<ServerSession<A>>),
}

impl<A: Address> Endpoint<A> {
    /// An endpoint without sessions.
    ///
    /// # Errors
    /// If an option is out of its range.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            shared: Shared::new(config),
            sessions: Vec::new(),
            free: VecDeque::new(),
            opened: HashMap::new(),
            connected: HashMap::new(),
            exchanged: HashMap::new(),
            ring_packets_taken: 0,
            current: None,
            disowned: None,
        })
    }

    /// Makes a call. It goes out with the next packets, or waits for one of the session's slots.
    ///
    /// # Errors
    /// If it cannot be taken; the buffers come back with the reason.
    #[inline(always)]
    pub fn call(&mut self, now_ns: u64, session: SessionId, call: Call) -> Result<(), Box<CallRefused>> {
        self.shared.clock.advance(now_ns);
        let taken = match self.sessions.get_mut(usize::from(session.number)) {
            Some(Session::Client(client)) if client.id == session => client.call(&mut self.shared, call),
            _ => Err((CallError::NoSession, call)),
        };
        taken.map_err(|(error, call)| Box::new(CallRefused { error, call }))
    }

    /// Asks the peer of a client's session whether it is there; any packet of its answers. In a sealed session only the peer
    /// itself can answer.
    pub fn ask(&mut self, now_ns: u64, session: SessionId) {
        self.shared.clock.advance(now_ns);
        if let Some(Session::Client(client)) = self.sessions.get_mut(usize::from(session.number))
            && client.id == session
        {
            client.ask(&mut self.shared);
        }
    }

    /// Answers a request with a buffer, which comes back as [`Event::ResponseReturned`].
    ///
    /// # Errors
    /// If the request waits no longer, or the response is too large for it; the buffer comes back.
    pub fn respond(
        &mut self,
        now_ns: u64,
        handle: RequestHandle,
        status: u16,
        response: MsgBuf,
    ) -> Result<(), ResponseRefused> {
        self.shared.clock.advance(now_ns);
        let Some(server) = self.server_of(handle.session) else {
            return Err(ResponseRefused {
                error: CallError::NoSession,
                response,
            });
        };
        let parts = server.response_parts(response.len());
        if response.len() as u64 > u64::from(server.payload_bytes) * u64::from(MESSAGE_PACKETS_MAX) {
            return Err(ResponseRefused {
                error: CallError::ResponseTooLarge,
                response,
            });
        }
        let Some(slot) = server.executing(&handle) else {
            return Err(ResponseRefused {
                error: CallError::NoSession,
                response,
            });
        };
        slot.respond(status, response);
        self.queue_response(handle, parts);
        Ok(())
    }

    /// Answers a request with a few bytes, which go into the buffer that the request's slot has of its own.
    ///
    /// # Errors
    /// If the request waits no longer, or the buffer is too small.
    #[inline(always)]
    pub fn respond_inline(
        &mut self,
        now_ns: u64,
        handle: RequestHandle,
        status: u16,
        response: &[u8],
    ) -> Result<(), CallError> {
        self.shared.clock.advance(now_ns);
        let capacity = self.shared.config.inline_response_bytes;
        let server = self.server_of(handle.session).ok_or(CallError::NoSession)?;
        let parts = server.response_parts(response.len());
        let slot = server.executing(&handle).ok_or(CallError::NoSession)?;
        if !slot.respond_inline(status, response, capacity) {
            return Err(CallError::ResponseTooLarge);
        }
        self.queue_response(handle, parts);
        Ok(())
    }

    #[inline(always)]
    fn queue_response(&mut self, handle: RequestHandle, parts: ResponseParts) {
        let (call, session, slot) = (handle.call, handle.session.number, handle.slot);
        let flags = crate::packet::Flags::NONE;
        match parts {
            ResponseParts::Whole => self.shared.answer_whole(WholeOutgoing {
                call,
                session,
                slot,
                flags,
            }),
            ResponseParts::Several => self.shared.answer(Outgoing {
                call,
                session,
                packet: 0,
                slot,
                what: What::Response,
                flags,
            }),
        }
    }

    #[inline]
    fn server_of(&mut self, id: SessionId) -> Option<&mut ServerSession<A>> {
        match self.sessions.get_mut(usize::from(id.number)) {
            Some(Session::Server(server)) if server.local_token == id.token => Some(server),
            _ => None,
        }
    }

    fn client_of(&self, id: SessionId) -> Option<&ClientSession<A>> {
        match self.sessions.get(usize::from(id.number)) {
            Some(Session::Client(client)) if client.id == id => Some(client),
            _ => None,
        }
    }

    /// Gives back the buffer of a request of several packets. Until then it counts against `assembly_bytes_max`.
    pub fn recycle(&mut self, buffer: MsgBuf) {
        self.shared.pool.give_back(buffer);
    }

    /// Takes a packet from the wire, which has not waited there. All that have arrived should be taken before
    /// [`Endpoint::handle_timers`].
    #[inline]
    pub fn receive<'p>(&mut self, now_ns: u64, from: A, mark: Mark, bytes: &'p [u8]) -> Option<Event<'p>> {
        self.begin_receiving(now_ns, now_ns);
        self.receive_next(from, mark, bytes)
    }

    /// Tells the time at which the next packets are taken from the wire, and when nothing waited there last. What this end
    /// left packets waiting for in between is no part of their round trips.
    #[inline]
    pub fn begin_receiving(&mut self, now_ns: u64, since_ns: u64) {
        self.shared.clock.arrive(now_ns, since_ns);
    }

    /// Takes a packet of those that [`Endpoint::begin_receiving`] has told the time of.
    #[inline]
    pub fn receive_next<'p>(&mut self, from: A, mark: Mark, bytes: &'p [u8]) -> Option<Event<'p>> {
        let mut last = LastEvent(None);
        self.receive_to(from, mark, bytes, &mut last);
        last.0
    }

    /// The same, but hands over what has happened instead of returning it. Requests and responses of one packet come
    /// first: each is built where it is handled.
    #[inline(always)]
    pub(crate) fn receive_to<'p>(
        &mut self,
        from: A,
        mark: Mark,
        bytes: &'p [u8],
        handler: &mut impl EventHandler<'p, A>,
    ) {
        let told_ns = self.shared.clock.told_ns();
        self.shared.statistics.packets_received += 1;
        let marked = mark == Mark::Congested;
        if let Some((head, payload)) = DataHead::read(bytes) {
            let arrival = ArrivedData {
                from,
                head,
                payload,
                marked,
            };
            match self.sessions.get_mut(head.session()) {
                Some(Session::Server(server)) => {
                    if let Some(request) = server.take_expected(&mut self.shared, &arrival) {
                        return handler.request(self, told_ns, request);
                    }
                }
                Some(Session::Client(client)) => {
                    if let Some(completion) = client.take_expected(&mut self.shared, &arrival) {
                        return handler.completed(self, told_ns, completion);
                    }
                }
                _ => {}
            }
        }
        self.receive_unexpected((from, marked, bytes), handler);
    }

    /// Takes a packet that is not what a slot most likely gets next.
    #[inline(never)]
    fn receive_unexpected<'p>(
        &mut self,
        (from, marked, bytes): (A, bool, &'p [u8]),
        handler: &mut dyn EventHandler<'p, A>,
    ) {
        let event = match Header::read(bytes, self.shared.config.checking) {
            Ok((header, rest)) => self.dispatch(from, marked, header, rest, Unsealed::NotYet),
            Err(malformed) => return self.count_malformed(malformed),
        };
        if let Some(event) = event {
            handler.handle(self, self.shared.clock.told_ns(), event);
        }
    }

    /// Hands over what has happened beside what was received.
    #[inline(never)]
    pub(crate) fn hand_over_events(&mut self, handler: &mut dyn EventHandler<'_, A>) {
        while let Some(event) = self.shared.events.pop_front() {
            handler.handle(self, self.shared.clock.told_ns(), event);
        }
    }

    /// Whether any packet waits to be sent.
    #[inline(always)]
    pub(crate) fn is_any_packet(&self) -> bool {
        !self.shared.whole.is_empty() || self.shared.is_any_outgoing() || !self.shared.control.is_empty()
    }

    /// Whether anything has happened beside what was received.
    #[inline(always)]
    pub(crate) fn is_any_event(&self) -> bool {
        !self.shared.events.is_empty()
    }

    /// To the session that the packet is for.
    #[inline(never)]
    fn dispatch<'p>(
        &mut self,
        from: A,
        marked: bool,
        header: Header,
        rest: &'p [u8],
        unsealed: Unsealed,
    ) -> Option<Event<'p>> {
        let now_ns = self.shared.clock.now_ns();
        match self.sessions.get_mut(usize::from(header.session)) {
            Some(Session::Server(server)) if server.local_token == header.token && server.remote == from => {
                if server.seal.is_some() && unsealed == Unsealed::NotYet {
                    return self.receive_sealed(from, marked, header, rest);
                }
                server.heard_ns = now_ns;
                match (header.kind, Prefix::read(rest)) {
                    (Kind::Request, Ok((prefix, payload))) => {
                        let piece = Piece {
                            header,
                            prefix,
                            payload,
                            marked,
                        };
                        server.receive_request(&mut self.shared, piece)
                    }
                    _ => self.receive_rare_as_server(header, rest),
                }
            }
            Some(Session::Client(client)) if client.id.token == header.token && client.remote == from => {
                if client.seal.is_some() && unsealed == Unsealed::NotYet {
                    return self.receive_sealed(from, marked, header, rest);
                }
                match (header.kind, Prefix::read(rest)) {
                    (Kind::Response, Ok((prefix, payload))) if client.is_open() => {
                        client.heard_ns = now_ns;
                        let piece = Piece {
                            header,
                            prefix,
                            payload,
                            marked,
                        };
                        client.receive_response(&mut self.shared, piece)
                    }
                    _ => self.receive_rare_as_client(header, rest, marked),
                }
            }
            _ => self.receive_without_session(from, &header, rest),
        }
    }

    /// A packet for a sealed session, which takes nothing else.
    #[inline(never)]
    fn receive_sealed(
        &mut self,
        from: A,
        marked: bool,
        header: Header,
        rest: &[u8],
    ) -> Option<Event<'static>> {
        let seal = match self.sessions.get_mut(usize::from(header.session)) {
            Some(Session::Server(server)) => server.seal.as_deref_mut(),
            Some(Session::Client(client)) => client.seal.as_deref_mut(),
            _ => None,
        };
        let mut body = std::mem::take(&mut self.shared.sealing);
        body.clear();
        body.extend_from_slice(rest);
        let event = match seal?.unseal(&header.encode(), &mut body) {
            Ok(range) => self
                .dispatch(from, marked, header, &body[range], Unsealed::Already)
                .map(|event| event.owned(&mut self.shared.pool)),
            Err(Broken::Forged) => {
                self.shared.statistics.dropped.forged += 1;
                None
            }
            Err(Broken::Replayed) => {
                self.shared.statistics.dropped.replayed += 1;
                None
            }
        };
        self.shared.sealing = body;
        event
    }

    #[cold]
    fn count_malformed(&mut self, malformed: Malformed) {
        let dropped = &mut self.shared.statistics.dropped;
        match malformed {
            Malformed::Short | Malformed::Length => dropped.length += 1,
            Malformed::Check => dropped.check += 1,
            Malformed::Kind => dropped.kind += 1,
        }
    }

    #[inline(never)]
    fn receive_rare_as_server(&mut self, header: Header, rest: &[u8]) -> Option<Event<'static>> {
        if let Err(malformed) = Body::read(header.kind, rest) {
            self.count_malformed(malformed);
            return None;
        }
        let Some(Session::Server(server)) = self.sessions.get_mut(usize::from(header.session)) else {
            return None;
        };
        if header.kind != Kind::RequestForResponse {
            return self.receive_management_as_server(&header);
        }
        server.receive_request_for_response(&mut self.shared, &header);
        None
    }

    #[inline(never)]
    fn receive_rare_as_client(
        &mut self,
        header: Header,
        rest: &[u8],
        marked: bool,
    ) -> Option<Event<'static>> {
        let body = match Body::read(header.kind, rest) {
            Ok(body) => body,
            Err(malformed) => {
                self.count_malformed(malformed);
                return None;
            }
        };
        match (self.sessions.get_mut(usize::from(header.session)), body) {
            (Some(Session::Client(client)), Body::Bitmap(bitmap)) if client.is_open() => {
                client.heard_ns = self.shared.clock.now_ns();
                client.receive_credit_return(&mut self.shared, &header, bitmap, marked);
                None
            }
            _ => self.receive_management_as_client(&header, body),
        }
    }

    #[cold]
    fn receive_without_session(&mut self, from: A, header: &Header, rest: &[u8]) -> Option<Event<'static>> {
        match Body::read(header.kind, rest) {
            Err(malformed) => {
                self.count_malformed(malformed);
                None
            }
            Ok(Body::Control(payload)) if header.kind == Kind::Open => self.receive_open(from, payload),
            Ok(_) if header.kind == Kind::Unknown => self.receive_unknown(from, header, rest),
            Ok(_) => self.receive_for_nobody(from, header),
        }
    }

    /// Does what is due. Call it when no packet is left to be received.
    #[inline(always)]
    pub fn handle_timers(&mut self, now_ns: u64) {
        let now_ns = self.shared.clock.advance(now_ns);
        if self.shared.timers.may_be_due(now_ns) {
            self.fire_timers(now_ns);
        }
    }

    #[inline(never)]
    fn fire_timers(&mut self, now_ns: u64) {
        while let Some(number) = self.shared.timers.pop_due(now_ns) {
            self.shared.statistics.timers_fired += 1;
            self.expire(number);
        }
    }

    /// Something that has happened, beside what [`Endpoint::receive`] has returned.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event<'static>> {
        self.shared.events.pop_front()
    }

    /// A packet to send. Call it until there is none.
    #[inline]
    pub fn poll_transmit(&mut self, now_ns: u64) -> Option<Transmit<'_, A>> {
        let now_ns = self.shared.clock.advance(now_ns);
        if let Some(control) = self.shared.control.pop_front() {
            self.shared.statistics.packets_sent += 1;
            return Some(self.transmit_control(control));
        }
        loop {
            // What has a short way goes the usual one, too.
            let whole = self.shared.whole.pop();
            let outgoing = match whole {
                Some(whole) => whole_outgoing(&self.sessions, whole),
                None => self.shared.next_outgoing(now_ns)?,
            };
            if let Some(leaving) = leaving(&mut self.shared, &mut self.sessions, &outgoing) {
                self.shared.statistics.packets_sent += 1;
                let Leaving { to, head, source } = leaving;
                let payload = payload_of(&self.shared, &self.sessions, &outgoing, source);
                return Some(Transmit { to, head, payload });
            }
        }
    }

    /// Hands over up to so many packets to send, each with where it goes, what goes first and what follows; says how
    /// many there were. The same as [`Endpoint::poll_transmit`], for less.
    pub fn transmit(
        &mut self,
        now_ns: u64,
        packets_max: usize,
        send_packet: impl FnMut(A, &[u8], &[u8]),
    ) -> usize {
        self.transmit_to(now_ns, packets_max, send_packet)
    }

    /// The same, to a sink.
    #[inline(always)]
    pub(crate) fn transmit_to(
        &mut self,
        now_ns: u64,
        packets_max: usize,
        mut sink: impl PacketSink<A>,
    ) -> usize {
        self.shared.clock.advance(now_ns);
        let mut packets = 0;
        if !self.shared.control.is_empty() {
            let share = packets_max.div_ceil(CONTROL_SHARE);
            packets = self.transmit_controls(share, &mut sink);
        }
        let (shared, sessions) = (&mut self.shared, &mut self.sessions[..]);
        while packets < packets_max
            && let Some(whole) = shared.whole.pop()
        {
            packets += usize::from(send_whole(shared, sessions, whole, &mut sink));
        }
        if packets < packets_max && shared.is_any_outgoing() {
            packets += transmit_parts(shared, sessions, packets_max - packets, &mut sink);
        }
        if packets < packets_max && !self.shared.control.is_empty() {
            packets += self.transmit_controls(packets_max - packets, &mut sink);
        }
        self.shared.statistics.packets_sent += packets as u64;
        packets
    }

    #[cold]
    fn transmit_controls(&mut self, packets_max: usize, sink: &mut dyn PacketSink<A>) -> usize {
        let mut packets = 0;
        while packets < packets_max
            && let Some(control) = self.shared.control.pop_front()
        {
            let control = self.transmit_control(control);
            sink.packet(control.to, control.head.bytes(), control.payload);
            packets += 1;
        }
        packets
    }

    #[cold]
    fn transmit_control(&mut self, control: Control<A>) -> Transmit<'_, A> {
        let control = self.current.insert(control);
        let payload = &control.payload[..control.payload_bytes];
        let head = control.head.seal(payload, self.shared.config.checking);
        Transmit {
            to: control.to,
            head,
            payload,
        }
    }

    /// Until when nothing is due, in the time that the endpoint is told; `None`: until a packet comes or something is
    /// asked for. The owner may sleep so long: that does not count as a stall.
    pub fn wake_at(&mut self) -> Option<u64> {
        let shared = &mut self.shared;
        let now_ns = shared.clock.now_ns();
        let busy = !shared.outgoing.is_empty()
            || !shared.whole.is_empty()
            || !shared.control.is_empty()
            || !shared.events.is_empty();
        let due_ns = [shared.timers.next_due_ns(), shared.pacing.next_due_ns()]
            .into_iter()
            .flatten()
            .min();
        let due_ns = if busy {
            Some(now_ns)
        } else {
            due_ns.map(|due_ns| due_ns.max(now_ns))
        };
        shared.clock.promise(due_ns)
    }

    /// What was counted.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let mut statistics = self.shared.statistics;
        statistics.stalls = self.shared.clock.stalls();
        statistics
    }

    /// How fast a client session sends now, in bytes per nanosecond.
    #[must_use]
    pub fn rate(&self, session: SessionId) -> Option<f64> {
        Some(self.client_of(session)?.rate())
    }

    /// Whether the peer of a session, once that has begun, heeds the network's marks of congestion, or tells who does: packets to it
    /// may say that they can be marked (RFC 3168: ECT).
    #[must_use]
    pub fn peer_marks(&self, session: SessionId) -> MarkUse {
        match self.sessions.get(usize::from(session.number)) {
            Some(Session::Server(server)) if server.local_token == session.token => server.marks,
            Some(Session::Client(client)) if client.id == session => client.marks,
            _ => MarkUse::Unread,
        }
    }

    /// The smoothed round trip of a client session, in nanoseconds; zero before the first.
    #[must_use]
    pub fn round_trip_ns(&self, session: SessionId) -> Option<u64> {
        Some(self.client_of(session)?.round_trip_ns())
    }

    /// Packets of the receive ring that no session has taken.
    #[must_use]
    pub fn ring_packets_free(&self) -> u32 {
        self.shared.config.receive_ring_packets - self.ring_packets_taken
    }

    /// Bytes of a message that one packet of this endpoint can carry.
    #[must_use]
    pub fn packet_payload_bytes(&self) -> usize {
        self.shared.config.packet_bytes_max - self.shared.config.overhead_bytes()
    }
}

/// Takes packets to send: each with where it goes, what goes first and what follows. The bytes are the endpoint's again when it
/// returns. Every such closure is one.
pub(crate) trait PacketSink<A> {
    /// Takes a packet of whatever kind.
    fn packet(&mut self, to: A, head: &[u8], payload: &[u8]);

    /// Takes the only packet of a message: the same, which may be done for less where it is so common.
    #[inline(always)]
    fn whole(&mut self, to: A, head: &[u8; DATA_HEADER_BYTES], payload: &[u8]) {
        self.packet(to, head, payload);
    }
}

impl<A, F: FnMut(A, &[u8], &[u8])> PacketSink<A> for F {
    #[inline]
    fn packet(&mut self, to: A, head: &[u8], payload: &[u8]) {
        self(to, head, payload);
    }
}

/// Hands over the only packet of a message; says whether its call has not moved on.
#[inline(always)]
fn send_whole<A: Address>(
    shared: &mut Shared<A>,
    sessions: &mut [Session<A>],
    whole: WholeOutgoing,
    sink: &mut impl PacketSink<A>,
) -> bool {
    let leaving = match sessions.get_mut(usize::from(whole.session)) {
        Some(Session::Client(client)) => client.transmit_whole(shared, whole),
        Some(Session::Server(server)) => server.transmit_whole(shared, whole),
        _ => None,
    };
    let Some((to, head, payload)) = leaving else {
        return false;
    };
    sink.whole(to, &head.bytes(), payload);
    true
}

/// Hands over up to so many packets of other messages, and those whose time has come; says how many there were.
#[inline(never)]
fn transmit_parts<A: Address>(
    shared: &mut Shared<A>,
    sessions: &mut [Session<A>],
    packets_max: usize,
    sink: &mut dyn PacketSink<A>,
) -> usize {
    let now_ns = shared.clock.now_ns();
    let mut packets = 0;
    while packets < packets_max
        && let Some(outgoing) = shared.next_outgoing(now_ns)
    {
        if let Some(Leaving { to, head, source }) = leaving(shared, sessions, &outgoing) {
            sink.packet(to, head.bytes(), payload_of(shared, sessions, &outgoing, source));
            packets += 1;
        }
    }
    packets
}

/// A packet that goes out now, but for its payload.
struct Leaving<A> {
    to: A,
    head: CheckedHead,
    /// The part of the message; `None` if the packet was sealed.
    source: Option<std::ops::Range<usize>>,
}

/// What goes before the packet, and where its payload is; `None` if whatever it was about has moved on.
#[inline(never)]
fn leaving<A: Address>(
    shared: &mut Shared<A>,
    sessions: &mut [Session<A>],
    outgoing: &Outgoing,
) -> Option<Leaving<A>> {
    let (to, head, source, whole, seal) = match sessions.get_mut(usize::from(outgoing.session))? {
        Session::Client(client) => {
            let (head, source) = client.transmit(shared, outgoing)?;
            let to = client.remote;
            let (whole, seal) = client.request_and_seal(outgoing.slot);
            (to, head, source, whole, seal)
        }
        Session::Server(server) => {
            let (head, source) = server.transmit(shared, outgoing)?;
            let to = server.remote;
            let (whole, seal) = server.response_and_seal(outgoing.slot);
            (to, head, source, whole, seal)
        }
        Session::Free => return None,
    };
    let payload = whole.get(source.clone()).unwrap_or_default();
    let checking = shared.config.checking;
    let Some(seal) = seal else {
        let head = head.seal(payload, checking);
        let source = Some(source);
        return Some(Leaving { to, head, source });
    };
    let (header, prefix) = head.bytes().split_at(HEADER_BYTES);
    shared.sealing.clear();
    seal.seal(header, prefix, payload, &mut shared.sealing);
    let head = head.header_alone().seal(&shared.sealing, checking);
    let source = None;
    Some(Leaving { to, head, source })
}

/// The only packet of a message, as one of several is named.
fn whole_outgoing<A>(sessions: &[Session<A>], whole: WholeOutgoing) -> Outgoing {
    let what = match sessions.get(usize::from(whole.session)) {
        Some(Session::Server(_)) => What::Response,
        _ => What::Request,
    };
    Outgoing {
        call: whole.call,
        session: whole.session,
        packet: 0,
        slot: whole.slot,
        what,
        flags: whole.flags,
    }
}

/// The payload of a packet that goes out now.
#[inline]
fn payload_of<'e, A: Address>(
    shared: &'e Shared<A>,
    sessions: &'e [Session<A>],
    outgoing: &Outgoing,
    source: Option<std::ops::Range<usize>>,
) -> &'e [u8] {
    let Some(source) = source else {
        return &shared.sealing;
    };
    let whole = match sessions.get(usize::from(outgoing.session)) {
        Some(Session::Client(client)) => client.request(outgoing.slot),
        Some(Session::Server(server)) => server.response(outgoing.slot),
        _ => &[],
    };
    whole.get(source).unwrap_or_default()
}
