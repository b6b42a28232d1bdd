//! The bytes of a connection, in order and exactly once, over the calls of one session.
//!
//! Of the eight slots of a session, a client uses four for segments of its own and four for requests for a segment, of which the server
//! answers each with a segment of its own when it has one, no longer than the request says. A request with a segment is answered when the
//! segment was taken: so who takes nothing gets no more than these.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::UdpSocket;

use provost_datagram::SessionId;
use provost_nic::MESSAGE_PACKETS_MAX;
use provost_nic_host::{HostEvent, MessageBounds, RequestTag};
use provost_transport::Role;

use crate::segment::{self, HEAD_BYTES, IncomingSegment, SegmentEnd};
use crate::wired::{NicStartError, PACKET_BYTES, SocketReading, WireLost, WiredNic};

mod saved;
#[cfg(test)]
mod tests;

/// Bytes of the connection in one segment at most: what the packets of a message have room for behind their headers and prefixes and the
/// segment's head. Ends that agreed on smaller messages have smaller segments.
pub(crate) const SEGMENT_BYTES_MAX: usize =
    MESSAGE_PACKETS_MAX * (PACKET_BYTES as usize - provost_datagram::packet::DATA_HEADER_BYTES) - HEAD_BYTES;
/// Segments of a client on their way.
const DATA_CALLS: usize = 4;
/// Requests for a segment that a client leaves with its server.
const POLL_CALLS: usize = 4;
/// Segments that have come and were not taken, at which a client asks for no more.
const UNTAKEN_MAX: usize = 8;
/// Methods: a segment, and a request for one.
const METHOD_SEGMENT: u16 = 1;
const METHOD_POLL: u16 = 2;
/// Rounds of one poll: what one event makes happen at this end needs fewer.
const ROUNDS_MAX: usize = 4;

/// Where a stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamState {
    Opening,
    Open(SessionId, MessageBounds),
    Ended,
}

/// A request for a segment that waits at a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeldPoll {
    request: RequestTag,
    /// Bytes of the response that its client reads at most.
    response_bytes_max: usize,
}

/// Whether this end has said that it says nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FinishState {
    NotAsked,
    Waiting,
    Sent,
}

/// What a call of the client is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallUse {
    Segment,
    Poll,
}

/// What a stream gives whoever reads it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NextSegment<'a> {
    Bytes(&'a [u8]),
    Nothing,
    /// The peer has said that nothing more comes.
    Finished,
}

/// A segment, and the request that is answered when it was taken.
#[derive(Debug)]
struct UntakenSegment {
    segment: IncomingSegment,
    request: Option<RequestTag>,
}

/// One end of a stream.
#[derive(Debug)]
pub(crate) struct NicStream {
    role: Role,
    nic: WiredNic,
    state: StreamState,
    finish: FinishState,
    peer_finished: bool,
    /// What is added to the time that is told, so that it goes on when somebody else tells it.
    offset_ns: Option<u64>,
    now_ns: u64,
    sent: u64,
    received: u64,
    ready: VecDeque<UntakenSegment>,
    /// Segments that have overtaken others: fewer than a session has slots.
    ahead: BTreeMap<u64, UntakenSegment>,
    calls: HashMap<u64, CallUse>,
    calls_made: u64,
    /// Requests for segments that wait at a server, the eldest first.
    held: VecDeque<HeldPoll>,
}

impl NicStream {
    /// A client's, to whoever is at the other end of the socket.
    pub(crate) fn open(socket: UdpSocket) -> Result<NicStream, NicStartError> {
        let mut stream = NicStream::new(Role::Client, socket)?;
        stream.nic.connect()?;
        Ok(stream)
    }

    /// A server's, whose client asks for a session by this packet.
    pub(crate) fn serve(socket: UdpSocket, opening: &[u8]) -> Result<NicStream, NicStartError> {
        let mut stream = NicStream::new(Role::Server, socket)?;
        stream.nic.inject(opening);
        Ok(stream)
    }

    fn new(role: Role, socket: UdpSocket) -> Result<NicStream, NicStartError> {
        Ok(NicStream::of(role, WiredNic::start(socket)?))
    }

    fn of(role: Role, nic: WiredNic) -> NicStream {
        NicStream {
            role,
            nic,
            state: StreamState::Opening,
            finish: FinishState::NotAsked,
            peer_finished: false,
            offset_ns: Some(0),
            now_ns: 0,
            sent: 0,
            received: 0,
            ready: VecDeque::new(),
            ahead: BTreeMap::new(),
            calls: HashMap::new(),
            calls_made: 0,
            held: VecDeque::new(),
        }
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    pub(crate) fn socket(&self) -> &UdpSocket {
        self.nic.socket()
    }

    pub(crate) fn left_some(&self) -> bool {
        self.nic.left_some()
    }

    /// Lets somebody else tell the time from now on.
    pub(crate) fn change_clock(&mut self) {
        self.offset_ns = None;
    }

    /// When it wants to be polled, in the time of whoever polls it.
    pub(crate) fn wake_at(&self) -> u64 {
        match self.offset_ns {
            Some(offset_ns) => self.nic.wake_ns().wrapping_sub(offset_ns),
            None => 0,
        }
    }

    /// Bytes that a segment can have that is sent now; 0 if none can be.
    pub(crate) fn room(&self) -> usize {
        if self.finish == FinishState::NotAsked {
            self.message_room()
                .saturating_sub(HEAD_BYTES)
                .min(SEGMENT_BYTES_MAX)
        } else {
            0
        }
    }

    /// Bytes that the next message to the peer can have; 0 if it has no place now.
    fn message_room(&self) -> usize {
        let StreamState::Open(_, bounds) = self.state else {
            return 0;
        };
        match self.role {
            Role::Client if self.calls_for(CallUse::Segment) < DATA_CALLS => bounds.request_bytes_max,
            Role::Client => 0,
            Role::Server => self.held.front().map_or(0, |poll| poll.response_bytes_max),
        }
    }

    fn calls_for(&self, what: CallUse) -> usize {
        self.calls.values().filter(|found| **found == what).count()
    }

    /// Sends a segment: there must be so much room, and it goes with the next poll.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), WireLost> {
        self.send_segment(SegmentEnd::GoesOn, bytes)
    }

    fn send_segment(&mut self, end: SegmentEnd, bytes: &[u8]) -> Result<(), WireLost> {
        self.sent += 1;
        let payload = segment::encode(self.sent, end, bytes);
        match self.role {
            Role::Client => self.call(METHOD_SEGMENT, CallUse::Segment, &payload),
            Role::Server => {
                if let Some(poll) = self.held.pop_front() {
                    self.respond(poll.request, &payload);
                }
                Ok(())
            }
        }
    }

    fn call(&mut self, method: u16, what: CallUse, payload: &[u8]) -> Result<(), WireLost> {
        let StreamState::Open(session, _) = self.state else {
            return Ok(());
        };
        let tag = self.calls_made;
        self.nic.call(session, tag, method, payload)?;
        self.calls_made += 1;
        self.calls.insert(tag, what);
        Ok(())
    }

    fn respond(&mut self, request: RequestTag, payload: &[u8]) {
        self.nic.respond(request, payload);
    }

    /// Says that nothing more is sent, as soon as there is room.
    pub(crate) fn finish(&mut self) {
        if self.finish == FinishState::NotAsked {
            self.finish = FinishState::Waiting;
        }
    }

    /// Whether the peer has everything that a client has sent, or a server has answered with its end.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.finish == FinishState::Sent && self.calls_for(CallUse::Segment) == 0
    }

    /// Whether the peer has said that nothing more comes, and all before was taken.
    pub(crate) fn peer_finished(&self) -> bool {
        self.peer_finished
    }

    /// Whether something waits for [`NicStream::next`].
    pub(crate) fn has_next(&self) -> bool {
        !self.ready.is_empty()
    }

    /// What has come next. Then [`NicStream::taken`] tells that it was taken.
    pub(crate) fn next(&self) -> NextSegment<'_> {
        match self.ready.front() {
            None => NextSegment::Nothing,
            Some(untaken) if untaken.segment.finished => NextSegment::Finished,
            Some(untaken) => NextSegment::Bytes(&untaken.segment.bytes),
        }
    }

    pub(crate) fn taken(&mut self) {
        let Some(untaken) = self.ready.pop_front() else {
            return;
        };
        self.peer_finished |= untaken.segment.finished;
        if let Some(request) = untaken.request {
            self.respond(request, &[]);
        }
    }

    /// Puts bytes before those that come.
    pub(crate) fn put_back(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            let segment = IncomingSegment {
                number: 0,
                finished: false,
                bytes: bytes.to_vec(),
            };
            self.ready.push_front(UntakenSegment {
                segment,
                request: None,
            });
        }
    }

    /// Has the NIC do what there is to do; says whether anything moved.
    pub(crate) fn poll(&mut self, now_ns: u64, reading: SocketReading) -> Result<bool, WireLost> {
        let last_ns = self.now_ns;
        let offset_ns = *self.offset_ns.get_or_insert_with(|| last_ns.wrapping_sub(now_ns));
        self.now_ns = now_ns.wrapping_add(offset_ns).max(last_ns);
        let mut moved = false;
        for _ in 0..ROUNDS_MAX {
            self.begin()?;
            let mut round_moved = self.nic.poll(self.now_ns, reading)?;
            while let Some(event) = self.nic.poll_event() {
                self.handle(event)?;
                round_moved = true;
            }
            if !round_moved {
                break;
            }
            moved = true;
        }
        Ok(moved)
    }

    /// What this end begins on its own: requests for segments, and its end.
    fn begin(&mut self) -> Result<(), WireLost> {
        let StreamState::Open(session, bounds) = self.state else {
            return Ok(());
        };
        if self.role == Role::Client && !self.peer_finished {
            let untaken = self.ready.len() + self.ahead.len();
            let free = self.nic.free_slots(session);
            let polls = POLL_CALLS
                .min(UNTAKEN_MAX.saturating_sub(untaken))
                .min(free + self.calls_for(CallUse::Poll));
            let poll = segment::encode_poll(bounds.response_bytes_max);
            for _ in self.calls_for(CallUse::Poll)..polls {
                self.call(METHOD_POLL, CallUse::Poll, &poll)?;
            }
        }
        if self.finish == FinishState::Waiting && self.message_room() >= HEAD_BYTES {
            self.finish = FinishState::Sent;
            self.send_segment(SegmentEnd::Finished, &[])?;
        }
        Ok(())
    }

    fn handle(&mut self, event: HostEvent) -> Result<(), WireLost> {
        match event {
            HostEvent::Connected(session) | HostEvent::Accepted(session) => {
                let bounds = self
                    .nic
                    .message_bounds(session)
                    .ok_or_else(|| WireLost("the NIC has ended the session that it opened".into()))?;
                self.state = StreamState::Open(session, bounds);
            }
            HostEvent::Refused(_, reason) => {
                return Err(WireLost(format!(
                    "the peer's NIC refuses a session, for reason {reason}"
                )));
            }
            HostEvent::Ended(session) if self.is_session(session) => {
                self.state = StreamState::Ended;
                return Err(WireLost("the peer's NIC has ended the session".into()));
            }
            HostEvent::Ended(_) => {}
            HostEvent::Request {
                request,
                method,
                payload,
                ..
            } => match method {
                METHOD_POLL if self.held.len() < POLL_CALLS => self.hold(request, &payload)?,
                METHOD_SEGMENT => self.arrive(&payload, Some(request))?,
                _ => {
                    return Err(WireLost(format!(
                        "the peer calls method {method}, which a stream has not"
                    )));
                }
            },
            HostEvent::Completed { tag, outcome } => {
                let what = self.calls.remove(&tag);
                let (_, payload) = outcome.map_err(|error| WireLost(format!("a call failed: {error}")))?;
                if what == Some(CallUse::Poll) {
                    self.arrive(&payload, None)?;
                }
            }
        }
        Ok(())
    }

    fn is_session(&self, session: SessionId) -> bool {
        matches!(self.state, StreamState::Open(own, _) if own == session)
    }

    /// Keeps a client's request for a segment until there is one.
    fn hold(&mut self, request: RequestTag, payload: &[u8]) -> Result<(), WireLost> {
        let StreamState::Open(_, bounds) = self.state else {
            return Ok(());
        };
        let asked = segment::decode_poll(payload, bounds.packet_bytes);
        let asked = asked.filter(|bytes| *bytes > HEAD_BYTES);
        let asked =
            asked.ok_or_else(|| WireLost("the peer asks for a segment of a length that cannot be".into()))?;
        self.held.push_back(HeldPoll {
            request,
            response_bytes_max: asked.min(bounds.response_bytes_max),
        });
        Ok(())
    }

    /// Puts a segment into its place.
    fn arrive(&mut self, payload: &[u8], request: Option<RequestTag>) -> Result<(), WireLost> {
        let malformed = || WireLost("the peer sent what is no segment, or one twice".into());
        let segment = segment::decode(payload).ok_or_else(malformed)?;
        let number = segment.number;
        let is_possible = (self.received + 1..=self.received + UNTAKEN_MAX as u64).contains(&number);
        if !is_possible || self.ahead.contains_key(&number) {
            return Err(malformed());
        }
        self.ahead.insert(number, UntakenSegment { segment, request });
        while let Some(untaken) = self.ahead.remove(&(self.received + 1)) {
            self.received += 1;
            self.ready.push_back(untaken);
        }
        Ok(())
    }
}
