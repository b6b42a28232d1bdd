//! A member on an endpoint of the datagram transport.
//!
//! ```text
//!   client ── Client call ──► leader ── Peer call: append ──► followers
//!          ◄── answer ──────         ◄── response: appended ──
//! ```
//!
//! Members call each other; what a call brings about for its caller goes back in the response, so that replicating an
//! entry takes one round trip and no packet more. Whoever opens a session says first which member it is, and shows that
//! it knows the key of the cluster.

use std::collections::HashMap;

use provost_datagram::{
    Address, Call, CallError, Completion, Endpoint, Event, MsgBuf, RequestHandle, SessionId,
};
use raft::SnapshotStatus;
use raft::prelude::{Message, MessageType};

use crate::journal::JournalMedium;
use crate::member::{Member, MemberError, MemberOutbox};
use crate::operation::RequestAnswer;
use crate::peer_message;

/// The methods that members serve.
pub(crate) mod method {
    /// A client's request; the response is the answer.
    pub(crate) const CLIENT: u16 = 1;
    /// A member says who it is: the key of the cluster, and its number.
    pub(crate) const GREET: u16 = 2;
    /// Messages of a member that has greeted; the response is messages to it.
    pub(crate) const PEER: u16 = 3;
}

pub(crate) const STATUS_OK: u16 = 0;
const STATUS_REFUSED: u16 = 1;

/// Calls to one member that are on their way. What there is no room for is lost, and the library sends it again.
const PEER_CALLS_MAX: usize = 64;
/// Bytes of messages in a response.
const RESPONSE_BYTES_MAX: usize = 4 << 10;
/// Buffers that are kept for later calls to one member.
const SPARE_BUFFERS_MAX: usize = 16;
/// How long a member waits before it tries to reach another one again, in ticks.
const RECONNECT_TICKS: u64 = 4;
const GREETING_BYTES: usize = 24;

/// What a member on an endpoint is told.
#[derive(Clone, Debug)]
pub struct ReplicaConfig<A> {
    /// Where the other members are.
    pub peers: Vec<(u64, A)>,
    /// What all members know and nobody else.
    pub key: [u8; 16],
    /// The library's unit of time, in nanoseconds. A leader is missed after ten to twenty of them.
    pub tick_ns: u64,
}

/// A member on an endpoint.
pub struct Replica<A, M: JournalMedium> {
    member: Member<M>,
    config: ReplicaConfig<A>,
    peers: Vec<ReplicaPeer<A>>,
    /// Sessions of members that have greeted.
    greeted: HashMap<SessionId, u64>,
    /// Calls of members that are answered at the end of the turn.
    calls: Vec<(u64, RequestHandle)>,
    /// Requests of clients that wait for their answer, by ticket.
    requests: HashMap<u64, RequestHandle>,
    tickets: u64,
    outbox: MemberOutbox,
    next_tick_ns: Option<u64>,
    failure: Option<MemberError>,
}

struct ReplicaPeer<A> {
    id: u64,
    address: A,
    link: PeerLink,
    calls: usize,
    spare: Vec<(MsgBuf, MsgBuf)>,
    waiting: Vec<Message>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerLink {
    Down { retry_at_ns: u64 },
    Opening(SessionId),
    Greeting(SessionId),
    Up(SessionId),
}

impl PeerLink {
    fn session(self) -> Option<SessionId> {
        match self {
            PeerLink::Down { .. } => None,
            PeerLink::Opening(session) | PeerLink::Greeting(session) | PeerLink::Up(session) => Some(session),
        }
    }
}

/// What a call's tag says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
enum CallSort {
    Greeting = 0,
    Messages = 1,
    Snapshot = 2,
}

impl<A: Address, M: JournalMedium> Replica<A, M> {
    /// A member that will call the others.
    pub fn new(member: Member<M>, config: ReplicaConfig<A>) -> Self {
        let peer = |(id, address): &(u64, A)| ReplicaPeer {
            id: *id,
            address: *address,
            link: PeerLink::Down { retry_at_ns: 0 },
            calls: 0,
            spare: Vec::new(),
            waiting: Vec::new(),
        };
        Self {
            peers: config.peers.iter().map(peer).collect(),
            member,
            config,
            greeted: HashMap::new(),
            calls: Vec::new(),
            requests: HashMap::new(),
            tickets: 0,
            outbox: MemberOutbox::default(),
            next_tick_ns: None,
            failure: None,
        }
    }

    #[must_use]
    pub fn member(&self) -> &Member<M> {
        &self.member
    }

    /// Why the member has stopped, if it has. It then answers nothing any more.
    pub fn failure(&mut self) -> Option<MemberError> {
        self.failure.take()
    }

    /// Takes what the endpoint tells.
    pub fn handle(&mut self, endpoint: &mut Endpoint<A>, now_ns: u64, event: Event<'_>) {
        match event {
            Event::Connected(session) => self.greet(endpoint, now_ns, session),
            Event::Request {
                handle,
                method,
                payload,
            } => {
                self.handle_request(endpoint, now_ns, (handle, method), &payload);
                if let provost_datagram::Payload::Owned(buffer) = payload {
                    endpoint.recycle(buffer);
                }
            }
            Event::Completed(completion) => self.complete(completion, endpoint, now_ns),
            Event::Ended(session, _) => self.end(now_ns, session),
            Event::Accepted(_) | Event::ResponseReturned(_) => {}
        }
    }

    fn handle_request(
        &mut self,
        endpoint: &mut Endpoint<A>,
        now_ns: u64,
        (handle, method): (RequestHandle, u16),
        payload: &[u8],
    ) {
        match method {
            method::CLIENT => self.take_request(endpoint, now_ns, handle, payload),
            method::GREET => {
                let status = match self.greeting_of(payload) {
                    Some(id) => {
                        self.greeted.insert(handle.session(), id);
                        STATUS_OK
                    }
                    None => STATUS_REFUSED,
                };
                respond(endpoint, now_ns, handle, status, &[]);
            }
            method::PEER => {
                let messages = self
                    .greeted
                    .get(&handle.session())
                    .and_then(|from| Some((*from, peer_message::decode_all(payload)?)));
                let Some((from, messages)) = messages else {
                    return respond(endpoint, now_ns, handle, STATUS_REFUSED, &[]);
                };
                self.step(from, messages);
                self.calls.push((from, handle));
            }
            _ => respond(endpoint, now_ns, handle, STATUS_REFUSED, &[]),
        }
    }

    fn greeting_of(&self, payload: &[u8]) -> Option<u64> {
        let (key, id) = payload.split_at_checked(self.config.key.len())?;
        let id = u64::from_le_bytes(id.try_into().ok()?);
        // All bytes are looked at, so that the time that it takes tells nothing of the key.
        let difference = key
            .iter()
            .zip(&self.config.key)
            .fold(0, |all, (told, known)| all | (told ^ known));
        (difference == 0 && self.peers.iter().any(|peer| peer.id == id)).then_some(id)
    }

    /// Takes messages in which a member speaks of itself, to this one.
    fn step(&mut self, from: u64, messages: Vec<Message>) {
        let to = self.member.id();
        for message in messages {
            if message.from == from && message.to == to {
                self.member.step(message);
            }
        }
    }

    fn take_request(
        &mut self,
        endpoint: &mut Endpoint<A>,
        now_ns: u64,
        handle: RequestHandle,
        payload: &[u8],
    ) {
        self.tickets += 1;
        match self.member.submit(self.tickets, payload) {
            Some(now) => answer(endpoint, now_ns, handle, &now),
            None => drop(self.requests.insert(self.tickets, handle)),
        }
    }

    /// Whether the member has something to keep before it can go on: what it has asked the endpoint to send should go out, and then
    /// [`Replica::idle`] be called again at once.
    #[must_use]
    pub fn is_sync_due(&self) -> bool {
        self.failure.is_none() && self.member.is_sync_due()
    }

    /// Has time pass, does what is due, and sends it. To be called when all events have been handled; says when it is to
    /// be called again at the latest.
    pub fn idle(&mut self, endpoint: &mut Endpoint<A>, now_ns: u64) -> Option<u64> {
        if self.failure.is_some() {
            return None;
        }
        let tick_ns = self.config.tick_ns;
        let due_ns = *self.next_tick_ns.get_or_insert(now_ns + tick_ns);
        if now_ns >= due_ns {
            // A member that was off its core for long has not heard others in that time; it counts once.
            self.next_tick_ns = Some((due_ns + tick_ns).max(now_ns + tick_ns / 2));
            self.member.tick();
            self.connect(endpoint, now_ns);
        }
        let mut outbox = std::mem::take(&mut self.outbox);
        let done = if self.member.is_sync_due() {
            self.member.sync(&mut outbox)
        } else {
            self.member.advance(&mut outbox)
        };
        if let Err(failure) = done {
            self.failure = Some(failure);
            return None;
        }
        self.send(endpoint, now_ns, &mut outbox);
        self.outbox = outbox;
        if self.member.is_sync_due() {
            Some(now_ns)
        } else {
            self.next_tick_ns
        }
    }

    fn connect(&mut self, endpoint: &mut Endpoint<A>, now_ns: u64) {
        let again_ns = now_ns + RECONNECT_TICKS * self.config.tick_ns;
        for peer in &mut self.peers {
            if let PeerLink::Down { retry_at_ns } = peer.link
                && retry_at_ns <= now_ns
            {
                peer.link = match endpoint.connect(now_ns, peer.address) {
                    Ok(session) => PeerLink::Opening(session),
                    Err(_) => PeerLink::Down {
                        retry_at_ns: again_ns,
                    },
                };
            }
        }
    }

    fn greet(&mut self, endpoint: &mut Endpoint<A>, now_ns: u64, session: SessionId) {
        let mut greeting = self.config.key.to_vec();
        greeting.extend_from_slice(&self.member.id().to_le_bytes());
        let Some((at, peer)) = self.peer_of(session) else {
            return;
        };
        peer.link = PeerLink::Greeting(session);
        let (mut request, response) = buffers(peer, GREETING_BYTES);
        let _ = request.fill(&greeting);
        if call(
            endpoint,
            now_ns,
            peer,
            (at, CallSort::Greeting),
            (request, response),
        )
        .is_err()
        {
            endpoint.reset(now_ns, session);
        }
    }

    fn peer_of(&mut self, session: SessionId) -> Option<(usize, &mut ReplicaPeer<A>)> {
        let mut peers = self.peers.iter_mut().enumerate();
        peers.find(|(_, peer)| peer.link.session() == Some(session))
    }

    fn complete(&mut self, completion: Completion, endpoint: &mut Endpoint<A>, now_ns: u64) {
        let at = (completion.tag >> 8) as usize;
        let sort = completion.tag & 0xff;
        let Some(peer) = self.peers.get_mut(at) else {
            return;
        };
        let (id, is_of_link) = (peer.id, peer.link.session() == Some(completion.session));
        peer.calls -= 1;
        let messages = match completion.outcome {
            Ok(STATUS_OK) => peer_message::decode_all(&completion.response),
            _ => None,
        };
        if peer.spare.len() < SPARE_BUFFERS_MAX && completion.request.capacity() <= RESPONSE_BYTES_MAX {
            peer.spare.push((completion.request, completion.response));
        }
        if is_of_link && sort == CallSort::Greeting as u64 {
            if messages.is_some() {
                peer.link = PeerLink::Up(completion.session);
            } else {
                endpoint.reset(now_ns, completion.session);
            }
        } else if sort == CallSort::Snapshot as u64 {
            let status = if messages.is_some() {
                SnapshotStatus::Finish
            } else {
                SnapshotStatus::Failure
            };
            self.member.report_snapshot(id, status);
        } else if messages.is_none() {
            self.member.report_unreachable(id);
            // A member that has begun anew does not know the session's greeting.
            if is_of_link && matches!(completion.outcome, Ok(_) | Err(CallError::NoSession)) {
                endpoint.reset(now_ns, completion.session);
            }
        }
        self.step(id, messages.unwrap_or_default());
    }

    fn end(&mut self, now_ns: u64, session: SessionId) {
        self.greeted.remove(&session);
        let retry_at_ns = now_ns + RECONNECT_TICKS * self.config.tick_ns;
        if let Some((_, peer)) = self.peer_of(session) {
            peer.link = PeerLink::Down { retry_at_ns };
        }
    }

    fn send(&mut self, endpoint: &mut Endpoint<A>, now_ns: u64, outbox: &mut MemberOutbox) {
        for message in outbox.messages.drain(..) {
            if let Some(peer) = self.peers.iter_mut().find(|peer| peer.id == message.to) {
                peer.waiting.push(message);
            }
        }
        // What a member's call has brought about may be said only when it is kept; until then the call waits.
        let calls = if self.member.is_sync_due() {
            Vec::new()
        } else {
            std::mem::take(&mut self.calls)
        };
        for at in 0..self.peers.len() {
            let id = self.peers[at].id;
            let mut handles = calls.iter().filter(|(from, _)| *from == id);
            if let Some((_, handle)) = handles.next() {
                self.respond_with_messages(endpoint, now_ns, at, *handle);
            }
            for (_, handle) in handles {
                respond(endpoint, now_ns, *handle, STATUS_OK, &[]);
            }
            self.call_with_messages(endpoint, now_ns, at);
        }
        if !calls.is_empty() {
            self.calls = calls;
            self.calls.clear();
        }
        for (ticket, what) in outbox.answers.drain(..) {
            if let Some(handle) = self.requests.remove(&ticket) {
                answer(endpoint, now_ns, handle, &what);
            }
        }
    }

    /// Answers a member's call with what is to be told to it, if that fits.
    fn respond_with_messages(
        &mut self,
        endpoint: &mut Endpoint<A>,
        now_ns: u64,
        at: usize,
        handle: RequestHandle,
    ) {
        let peer = &mut self.peers[at];
        let mut bytes = Vec::new();
        let is_small = peer.waiting.iter().all(|message| {
            if message.get_msg_type() != MessageType::MsgSnapshot && bytes.len() <= RESPONSE_BYTES_MAX {
                peer_message::encode(message, &mut bytes);
                true
            } else {
                false
            }
        });
        if is_small && bytes.len() <= RESPONSE_BYTES_MAX {
            peer.waiting.clear();
            respond(endpoint, now_ns, handle, STATUS_OK, &bytes);
        } else {
            respond(endpoint, now_ns, handle, STATUS_OK, &[]);
        }
    }

    fn call_with_messages(&mut self, endpoint: &mut Endpoint<A>, now_ns: u64, at: usize) {
        let peer = &mut self.peers[at];
        if peer.waiting.is_empty() {
            return;
        }
        let has_snapshot = |message: &Message| message.get_msg_type() == MessageType::MsgSnapshot;
        let waiting = std::mem::take(&mut peer.waiting);
        let snapshots = waiting.iter().filter(|message| has_snapshot(message)).count();
        if !matches!(peer.link, PeerLink::Up(_)) || peer.calls + 1 + snapshots > PEER_CALLS_MAX {
            let id = peer.id;
            self.member.report_unreachable(id);
            if snapshots > 0 {
                self.member.report_snapshot(id, SnapshotStatus::Failure);
            }
            return;
        }
        let (large, small): (Vec<Message>, Vec<Message>) = waiting.into_iter().partition(has_snapshot);
        let mut bytes = Vec::new();
        small
            .iter()
            .for_each(|message| peer_message::encode(message, &mut bytes));
        if !bytes.is_empty() {
            // What is not taken now is as good as lost on its way.
            let _ = send_call(endpoint, now_ns, peer, (at, CallSort::Messages), &bytes);
        }
        for message in large {
            bytes.clear();
            peer_message::encode(&message, &mut bytes);
            let sent = send_call(
                endpoint,
                now_ns,
                &mut self.peers[at],
                (at, CallSort::Snapshot),
                &bytes,
            );
            if sent.is_err() {
                // The library sends this member nothing until it knows what became of the snapshot.
                self.member.report_snapshot(message.to, SnapshotStatus::Failure);
            }
        }
    }
}

fn send_call<A: Address>(
    endpoint: &mut Endpoint<A>,
    now_ns: u64,
    peer: &mut ReplicaPeer<A>,
    tag: (usize, CallSort),
    bytes: &[u8],
) -> Result<(), CallError> {
    let (mut request, response) = buffers(peer, bytes.len());
    let _ = request.fill(bytes);
    call(endpoint, now_ns, peer, tag, (request, response))
}

/// Buffers for a request of so many bytes and its response.
fn buffers<A>(peer: &mut ReplicaPeer<A>, request_bytes: usize) -> (MsgBuf, MsgBuf) {
    let spare = (request_bytes <= RESPONSE_BYTES_MAX)
        .then(|| peer.spare.pop())
        .flatten();
    spare.unwrap_or_else(|| {
        let request = MsgBuf::with_capacity(request_bytes.max(RESPONSE_BYTES_MAX));
        (request, MsgBuf::with_capacity(RESPONSE_BYTES_MAX))
    })
}

fn call<A: Address>(
    endpoint: &mut Endpoint<A>,
    now_ns: u64,
    peer: &mut ReplicaPeer<A>,
    (at, sort): (usize, CallSort),
    (request, response): (MsgBuf, MsgBuf),
) -> Result<(), CallError> {
    let session = peer.link.session().ok_or(CallError::NoSession)?;
    let method = if sort == CallSort::Greeting {
        method::GREET
    } else {
        method::PEER
    };
    let call = Call {
        method,
        tag: (at as u64) << 8 | sort as u64,
        request,
        response,
    };
    endpoint
        .call(now_ns, session, call)
        .map_err(|refused| refused.error)?;
    peer.calls += 1;
    Ok(())
}

fn answer<A: Address>(
    endpoint: &mut Endpoint<A>,
    now_ns: u64,
    handle: RequestHandle,
    answer: &RequestAnswer,
) {
    respond(endpoint, now_ns, handle, STATUS_OK, &answer.encode());
}

/// Answers a call. One that cannot be answered any more needs no answer.
fn respond<A: Address>(
    endpoint: &mut Endpoint<A>,
    now_ns: u64,
    handle: RequestHandle,
    status: u16,
    bytes: &[u8],
) {
    if endpoint.respond_inline(now_ns, handle, status, bytes) == Err(CallError::ResponseTooLarge) {
        let _ = endpoint.respond(now_ns, handle, status, MsgBuf::from_slice(bytes));
    }
}
