//! Sessions and calls as an event loop wants them, over the host's half of a NIC.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use provost_datagram::{
    Call, CallError, CallRefused, Completion, ConnectError, EndReason, Event, MsgBuf, Payload, Refusal,
    RequestHandle, ResponseRefused, SessionId,
};
use provost_datagram_rpc::CallCarrier;
use provost_nic::{Board, EntryError, RingError};
use provost_nic_host::{HostError, HostEvent, NicHost, RequestTag};

/// Calls of a session that wait for a slot at most.
const BACKLOG_MAX: usize = 1024;
/// How long a peer may take to open a session.
const OPENING_NS: u64 = 5_000_000_000;

/// Where a session of this end stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionStage {
    /// Until this time, in nanoseconds.
    Opening(u64),
    Open,
    /// It ends with its last call.
    Draining,
}

#[derive(Debug)]
struct NicSession {
    stage: SessionStage,
    /// Calls that wait for a slot.
    backlog: VecDeque<Call>,
    /// Calls that the NIC has.
    under_way: usize,
}

/// The calls of an event loop, carried by the NIC on a board.
pub struct NicCarrier<B> {
    pub(crate) board: B,
    pub(crate) host: NicHost,
    sessions: HashMap<SessionId, NicSession>,
    /// Sessions whose calls wait, in the order of their turns. A call of one may wait for the calls of others: the flow has as many as it may.
    turns: VecDeque<SessionId>,
    /// Calls that the NIC has, by what it calls them.
    calls: HashMap<u64, (SessionId, Call)>,
    calls_made: u64,
    /// Requests that wait for their responses.
    requests: HashMap<RequestHandle, RequestTag>,
    events: VecDeque<Event<'static>>,
    packet_payload_bytes: usize,
    message_bytes_max: usize,
    /// Something was written that the NIC has not seen.
    pub(crate) is_touched: bool,
}

impl<B> std::fmt::Debug for NicCarrier<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NicCarrier")
            .field("sessions", &self.sessions.len())
            .field("calls", &self.calls.len())
            .finish_non_exhaustive()
    }
}

impl<B: Board> NicCarrier<B> {
    /// Carries calls over a board that the host has started, in packets and messages of so many bytes of payload.
    pub fn new(
        board: B,
        host: NicHost,
        (packet_payload_bytes, message_bytes_max): (usize, usize),
    ) -> NicCarrier<B> {
        NicCarrier {
            board,
            host,
            sessions: HashMap::new(),
            turns: VecDeque::new(),
            calls: HashMap::new(),
            calls_made: 0,
            requests: HashMap::new(),
            events: VecDeque::new(),
            packet_payload_bytes,
            message_bytes_max,
            is_touched: true,
        }
    }

    /// Takes from the rings what the NIC has written, and does what is due.
    ///
    /// # Errors
    /// If the NIC does nothing.
    pub fn poll(&mut self, now_ns: u64) -> Result<(), HostError> {
        self.host.poll(&mut self.board, now_ns)?;
        while let Some(event) = self.host.poll_event() {
            self.take(now_ns, event);
        }
        self.send_backlogs(now_ns);
        let late =
            |session: &NicSession| matches!(session.stage, SessionStage::Opening(until) if until < now_ns);
        let late: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|(_, session)| late(session))
            .map(|(id, _)| *id)
            .collect();
        for session in late {
            self.end(now_ns, session, EndReason::PeerTimeout);
        }
        Ok(())
    }

    /// What has happened next.
    pub fn event(&mut self) -> Option<Event<'static>> {
        self.events.pop_front()
    }

    fn take(&mut self, now_ns: u64, event: HostEvent) {
        match event {
            HostEvent::Connected(id) => {
                if let Some(session) = self.sessions.get_mut(&id) {
                    if session.stage != SessionStage::Draining {
                        session.stage = SessionStage::Open;
                    }
                    self.events.push_back(Event::Connected(id));
                    self.end_if_drained(now_ns, id);
                }
            }
            HostEvent::Accepted(id) => {
                self.sessions.insert(id, NicSession::new(SessionStage::Open));
                self.events.push_back(Event::Accepted(id));
            }
            HostEvent::Ended(id) => self.forget(id, EndReason::Closed),
            HostEvent::Refused(id, reason) => {
                self.forget(id, EndReason::Refused(Refusal::from_number(reason)));
            }
            HostEvent::Request {
                session,
                request,
                method,
                payload,
                ..
            } => {
                let handle = RequestHandle::new(session, request.slot(), request.call());
                self.requests.insert(handle, request);
                self.events.push_back(Event::Request {
                    handle,
                    method,
                    payload: Payload::Owned(MsgBuf::from_slice(&payload)),
                });
            }
            HostEvent::Completed { tag, outcome } => self.complete(now_ns, tag, outcome),
        }
    }

    fn complete(&mut self, now_ns: u64, tag: u64, outcome: Result<(u16, Vec<u8>), EntryError>) {
        // One whose session has ended has completed then.
        let Some((id, mut call)) = self.calls.remove(&tag) else {
            return;
        };
        if let Some(session) = self.sessions.get_mut(&id) {
            session.under_way -= 1;
        }
        let outcome = match outcome {
            Ok((status, response)) if call.response.fill(&response) => Ok(status),
            Ok(_) | Err(EntryError::TooLarge) => Err(CallError::ResponseTooLarge),
            Err(EntryError::Busy) => return self.wait(id, call),
            Err(EntryError::Timeout) => Err(CallError::Ended(EndReason::PeerTimeout)),
            Err(_) => Err(CallError::Ended(EndReason::Reset)),
        };
        self.events.push_back(completed(id, call, outcome));
        match outcome {
            // Who does not answer one call answers none.
            Err(CallError::Ended(why)) => self.end(now_ns, id, why),
            _ => self.end_if_drained(now_ns, id),
        }
    }

    /// The NIC has as many calls as it may: this one is the next.
    fn wait(&mut self, id: SessionId, call: Call) {
        match self.sessions.get_mut(&id) {
            Some(session) => session.backlog.push_front(call),
            None => self
                .events
                .push_back(completed(id, call, Err(CallError::NoSession))),
        }
        self.wait_for_turn(id);
    }

    fn wait_for_turn(&mut self, id: SessionId) {
        if !self.turns.contains(&id) {
            self.turns.push_back(id);
        }
    }

    /// Hands calls that have waited to the NIC, as many as it takes: one of each session in turn.
    fn send_backlogs(&mut self, now_ns: u64) {
        let mut refused = 0;
        while refused < self.turns.len() {
            let Some(id) = self.turns.pop_front() else {
                return;
            };
            let waiting = self.sessions.get_mut(&id);
            let Some(call) = waiting.and_then(|session| session.backlog.pop_front()) else {
                continue;
            };
            self.turns.push_back(id);
            match self.hand_over(id, call) {
                Ok(()) => refused = 0,
                Err((None, call)) => {
                    refused += 1;
                    if let Some(session) = self.sessions.get_mut(&id) {
                        session.backlog.push_front(call);
                    }
                }
                Err((Some(error), call)) => {
                    self.events.push_back(completed(id, call, Err(error)));
                    self.end_if_drained(now_ns, id);
                }
            }
        }
    }

    fn end_if_drained(&mut self, now_ns: u64, id: SessionId) {
        let is_drained = self.sessions.get(&id).is_some_and(|session| {
            session.stage == SessionStage::Draining && session.under_way == 0 && session.backlog.is_empty()
        });
        if is_drained {
            self.end(now_ns, id, EndReason::Closed);
        }
    }

    /// Has the NIC make a call. It comes back with an error, or with none if it can be made later.
    fn hand_over(&mut self, id: SessionId, call: Call) -> Result<(), (Option<CallError>, Call)> {
        let tag = self.calls_made;
        let handed = self
            .host
            .call(&mut self.board, id, tag, call.method, &call.request);
        match handed {
            Ok(()) => {
                self.is_touched = true;
                self.calls_made += 1;
                self.calls.insert(tag, (id, call));
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.under_way += 1;
                }
                Ok(())
            }
            // A session that is not open yet, as those that are over are not here any more.
            Err(HostError::Busy | HostError::NoSession | HostError::Ring(RingError::Full)) => {
                Err((None, call))
            }
            Err(_) => Err((Some(CallError::RequestTooLarge), call)),
        }
    }

    /// Ends a session of this end's own accord.
    fn end(&mut self, now_ns: u64, id: SessionId, why: EndReason) {
        if self.sessions.contains_key(&id) {
            self.is_touched = true;
            // A NIC that does nothing shows at the next poll.
            let _ = self.host.disconnect(&mut self.board, now_ns, id);
            self.forget(id, why);
        }
    }

    /// Completes what was asked for on a session that is over.
    fn forget(&mut self, id: SessionId, why: EndReason) {
        let Some(session) = self.sessions.remove(&id) else {
            return;
        };
        let mut tags: Vec<u64> = self
            .calls
            .iter()
            .filter(|(_, (of, _))| *of == id)
            .map(|(tag, _)| *tag)
            .collect();
        tags.sort_unstable();
        let handed = tags.into_iter().filter_map(|tag| self.calls.remove(&tag));
        let ended: Vec<Call> = handed.map(|(_, call)| call).chain(session.backlog).collect();
        for call in ended {
            self.events
                .push_back(completed(id, call, Err(CallError::Ended(why))));
        }
        self.requests.retain(|handle, _| handle.session() != id);
        self.events.push_back(Event::Ended(id, why));
    }
}

impl NicSession {
    fn new(stage: SessionStage) -> NicSession {
        NicSession {
            stage,
            backlog: VecDeque::new(),
            under_way: 0,
        }
    }
}

fn completed(session: SessionId, call: Call, outcome: Result<u16, CallError>) -> Event<'static> {
    Event::Completed(Completion {
        session,
        tag: call.tag,
        outcome,
        request: call.request,
        response: call.response,
    })
}

impl<B: Board> CallCarrier<SocketAddr> for NicCarrier<B> {
    fn connect(&mut self, now_ns: u64, to: SocketAddr) -> Result<SessionId, ConnectError> {
        let remote = remote_of(to).ok_or(ConnectError::Unreachable)?;
        let id = self
            .host
            .connect(now_ns, remote)
            .map_err(|_| ConnectError::TooManySessions)?;
        self.is_touched = true;
        self.sessions
            .insert(id, NicSession::new(SessionStage::Opening(now_ns + OPENING_NS)));
        Ok(id)
    }

    fn disconnect(&mut self, now_ns: u64, session: SessionId) {
        if let Some(state) = self.sessions.get_mut(&session) {
            state.stage = SessionStage::Draining;
            self.end_if_drained(now_ns, session);
        }
    }

    fn reset(&mut self, now_ns: u64, session: SessionId) {
        self.end(now_ns, session, EndReason::ResetHere);
    }

    fn call(&mut self, _: u64, id: SessionId, call: Call) -> Result<(), Box<CallRefused>> {
        let refused = |error, call| Err(Box::new(CallRefused { error, call }));
        let Some(session) = self
            .sessions
            .get(&id)
            .filter(|session| session.stage != SessionStage::Draining)
        else {
            return refused(CallError::NoSession, call);
        };
        if call.request.len() > self.message_bytes_max {
            return refused(CallError::RequestTooLarge, call);
        }
        let is_next = session.backlog.is_empty();
        if session.backlog.len() >= BACKLOG_MAX {
            return refused(CallError::BacklogFull, call);
        }
        let waits = if is_next {
            self.hand_over(id, call)
        } else {
            Err((None, call))
        };
        match waits {
            Ok(()) => Ok(()),
            Err((Some(error), call)) => refused(error, call),
            Err((None, call)) => {
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.backlog.push_back(call);
                }
                self.wait_for_turn(id);
                Ok(())
            }
        }
    }

    fn respond(
        &mut self,
        _: u64,
        request: RequestHandle,
        status: u16,
        response: MsgBuf,
    ) -> Result<(), ResponseRefused> {
        let error = match self.requests.get(&request).copied() {
            None => CallError::NoSession,
            Some(_) if response.len() > self.response_bytes_max(request.session()) => {
                CallError::ResponseTooLarge
            }
            Some(tag) => {
                self.host.respond(&mut self.board, tag, status, &response);
                self.is_touched = true;
                self.requests.remove(&request);
                self.events.push_back(Event::ResponseReturned(response));
                return Ok(());
            }
        };
        Err(ResponseRefused { error, response })
    }

    fn packet_payload_bytes(&self) -> usize {
        self.packet_payload_bytes
    }

    fn message_bytes_max(&self) -> usize {
        self.message_bytes_max
    }

    fn poll_event(&mut self) -> Option<Event<'static>> {
        self.event()
    }
}

impl<B: Board> NicCarrier<B> {
    fn response_bytes_max(&mut self, session: SessionId) -> usize {
        let bounds = self.host.message_bounds(session);
        bounds.map_or(0, |bounds| bounds.response_bytes_max)
    }
}

/// What a NIC calls an address: 32 bits of IPv4, 16 of the port.
pub(crate) fn remote_of(address: SocketAddr) -> Option<u64> {
    match address.ip() {
        IpAddr::V4(ip) => Some(u64::from(ip.to_bits()) << 16 | u64::from(address.port())),
        IpAddr::V6(_) => None,
    }
}

/// The address that a NIC calls so.
pub(crate) fn address_of(remote: u64) -> SocketAddr {
    let ip = Ipv4Addr::from_bits((remote >> 16) as u32);
    SocketAddr::new(ip.into(), remote as u16)
}
