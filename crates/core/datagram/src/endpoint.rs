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
mod receiving;
mod sending;

use std::collections::{HashMap, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;

use provost_registered::One;

pub(crate) use sending::PacketSink;

use crate::buffer::{MsgBuf, SpareMemory};
use crate::client::{CALL_LINES, ClientSession};
use crate::config::{Config, ConfigError};
use crate::event::{Call, CallError, CallRefused, EndReason, Event, EventHandler, RequestHandle, SessionId};
use crate::handshake::MarkUse;
use crate::packet::{Body, CheckedHead, Header, Kind};
use crate::seal::{KEY_BYTES, LossProof};
use crate::server::{self, ResponseParts, ServerSession};
use crate::shared::{Control, Outgoing, Shared};
use crate::statistics::Statistics;

/// What an address on a wire must be able to do.
pub trait Address: Copy + Eq + Hash + Debug {}

impl<A: Copy + Eq + Hash + Debug> Address for A {}

/// What the wire said of a packet, beside its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketOrigin<A> {
    /// Where it came from.
    pub(crate) from: A,
    pub(crate) mark: Mark,
}

/// Whether the network marked a packet.
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
            // The number is that of the place where it was found.
            Some(Session::Client(client)) if client.id.token == session.token => {
                client.fetch(1..CALL_LINES);
                client.call(&mut self.shared, call)
            }
            _ => Err((CallError::NoSession, call)),
        };
        taken.map_err(|(error, call)| Box::new(CallRefused { error, call }))
    }

    /// Bytes of the largest request that the server of a client's session takes.
    #[must_use]
    pub fn request_bytes_max(&self, session: SessionId) -> Option<usize> {
        match self.sessions.get(usize::from(session.number)) {
            Some(Session::Client(client)) if client.id == session => Some(client.message_bytes_max as usize),
            _ => None,
        }
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
        let Some(server) = server_of(&mut self.sessions, handle.session) else {
            return Err(ResponseRefused {
                error: CallError::NoSession,
                response,
            });
        };
        let payload_bytes = server.sizes.full;
        if response.len() as u64 > server.response_bytes_max() {
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
        let parts = slot.response_parts(response.len(), payload_bytes);
        slot.respond(status, response);
        server.queue_response(&mut self.shared, &handle, parts);
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
        let server = server_of(&mut self.sessions, handle.session).ok_or(CallError::NoSession)?;
        let payload_bytes = server.sizes.full;
        let slot = server.executing(&handle).ok_or(CallError::NoSession)?;
        let parts = slot.response_parts(response.len(), payload_bytes);
        if !slot.respond_inline(status, response, capacity) {
            return Err(CallError::ResponseTooLarge);
        }
        server.queue_response(&mut self.shared, &handle, parts);
        Ok(())
    }

    fn client_of(&self, id: SessionId) -> Option<&ClientSession<A>> {
        match self.sessions.get(usize::from(id.number)) {
            Some(Session::Client(client)) if client.id == id => Some(client),
            _ => None,
        }
    }

    /// Gives back the buffer of a request of several packets, or of a response that was lent. Until then it counts against
    /// `assembly_bytes_max`.
    pub fn recycle(&mut self, buffer: MsgBuf) {
        self.shared.pool.give_back(buffer);
    }

    /// Gives back memory of queues that have grown and are empty. They grow again when they must: for an endpoint that has come to rest.
    pub fn shrink_queues(&mut self) {
        self.shared.shrink_queues();
    }

    /// Takes these spares in place of those that the endpoint has. Their buffers count against `assembly_bytes_max` as its own would.
    pub fn exchange_spares(&mut self, spares: &mut SpareMemory) {
        std::mem::swap(&mut self.shared.pool.spares, spares);
    }

    /// Returns, as [`Event::ResponseReturned`], the buffers of responses of a server's session that its client is known to have, as
    /// `is_known` says: the next call of their slots, which returns them otherwise, may be long in coming. They are not sent again.
    pub fn return_responses(&mut self, session: SessionId, is_known: impl Fn(&[u8]) -> bool) {
        if let Some(Session::Server(server)) = self.sessions.get_mut(usize::from(session.number))
            && server.local_token == session.token
        {
            server.return_responses(&mut self.shared, is_known);
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

/// The server's end of a session.
#[inline]
fn server_of<A>(sessions: &mut [Session<A>], id: SessionId) -> Option<&mut ServerSession<A>> {
    match sessions.get_mut(usize::from(id.number)) {
        Some(Session::Server(server)) if server.local_token == id.token => Some(server),
        _ => None,
    }
}
