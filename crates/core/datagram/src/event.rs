//! What an endpoint is asked for, and what it tells.

use std::ops::Deref;

use crate::buffer::{MsgBuf, Pool};
use crate::endpoint::Endpoint;
use crate::server::ServerSlot;

/// A session of an endpoint. It names that one for ever; numbers are used again, tokens are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId {
    pub(crate) number: u16,
    pub(crate) token: u32,
}

impl SessionId {
    /// It as a number, to be written down.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        u64::from(self.number) << 32 | u64::from(self.token)
    }

    /// The session that [`SessionId::to_bits`] gave this number for.
    #[must_use]
    pub fn from_bits(bits: u64) -> SessionId {
        SessionId {
            number: (bits >> 32) as u16,
            token: bits as u32,
        }
    }
}

/// A call to make.
#[derive(Debug)]
pub struct Call {
    /// Which method of the server.
    pub method: u16,
    /// What the completion is to carry, so that the caller knows which call it was.
    pub tag: u64,
    /// The request.
    pub request: MsgBuf,
    /// Where the response goes; its capacity is the most that it can have.
    pub response: MsgBuf,
}

/// A call that was not taken, with the reason.
#[derive(Debug)]
pub struct CallRefused {
    /// Why.
    pub error: CallError,
    /// The call, with its buffers.
    pub call: Call,
}

/// The end of a call. Both buffers are the caller's again.
#[derive(Debug)]
pub struct Completion {
    /// The session it was made on.
    pub session: SessionId,
    /// What the caller called it.
    pub tag: u64,
    /// The status that the server gave, or why there is none.
    pub outcome: Result<u16, CallError>,
    /// The request, as it was handed in.
    pub request: MsgBuf,
    /// The response, where there is one.
    pub response: MsgBuf,
}

/// Why a call has no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The session is over.
    #[error("no such session, or no longer")]
    NoSession,
    /// As many calls wait as may.
    #[error("too many calls wait for a slot of the session; try again when some have ended")]
    BacklogFull,
    /// The request is larger than the server takes, or than the wire can carry.
    #[error("the request is larger than the server takes")]
    RequestTooLarge,
    /// The response did not fit its buffer.
    #[error("the response is larger than its buffer")]
    ResponseTooLarge,
    /// The session ended before the response was there. The call may have been executed, once at most.
    #[error("the session ended: {0}")]
    Ended(EndReason),
}

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum EndReason {
    /// Either end said goodbye.
    #[error("it was closed")]
    Closed,
    /// The peer ended it abruptly, or knows nothing of it.
    #[error("the peer reset it")]
    Reset,
    /// This end ended it abruptly.
    #[error("it was reset here")]
    ResetHere,
    /// The peer was silent for too long.
    #[error("the peer did not answer in time")]
    PeerTimeout,
    /// The peer refused it.
    #[error("the peer refused it: {0}")]
    Refused(Refusal),
}

/// Why a server takes no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u16)]
pub enum Refusal {
    /// It speaks no version that the client speaks.
    #[error("no version in common")]
    Version = 1,
    /// Its receive ring has no room for the session's credits.
    #[error("its receive ring is taken")]
    RingFull = 2,
    /// It has as many sessions as it can have.
    #[error("it has too many sessions")]
    TooManySessions = 3,
    /// What the client asked for cannot be.
    #[error("it cannot work with these parameters")]
    Parameters = 4,
    /// A reason that this version does not know.
    #[error("for a reason unknown here")]
    Other = 5,
    /// One end seals its sessions and the other does not, or their keys differ.
    #[error("one end seals its sessions and the other does not, or they do not have the same key")]
    Security = 6,
}

impl Refusal {
    /// The reason with this number in a Refuse.
    #[must_use]
    pub fn from_number(number: u16) -> Refusal {
        match number {
            1 => Refusal::Version,
            2 => Refusal::RingFull,
            3 => Refusal::TooManySessions,
            4 => Refusal::Parameters,
            6 => Refusal::Security,
            _ => Refusal::Other,
        }
    }
}

/// Why a session could not even be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// This end's receive ring has no room for the session's credits.
    #[error("the receive ring has no room for another session's credits")]
    RingFull,
    /// This end has as many sessions as it can have.
    #[error("too many sessions")]
    TooManySessions,
    /// What carries the calls has no such addresses, as a NIC has none of IPv6.
    #[error("there is no way to such an address from here")]
    Unreachable,
}

/// A request that waits for its response. It can be kept, for as long as it takes, and be answered once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestHandle {
    pub(crate) session: SessionId,
    pub(crate) slot: u8,
    pub(crate) call: u32,
}

impl RequestHandle {
    /// The request of a slot of this session, for those who carry calls in an endpoint's place.
    #[must_use]
    pub fn new(session: SessionId, slot: u8, call: u32) -> RequestHandle {
        RequestHandle { session, slot, call }
    }

    /// The session that it came by.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session
    }
}

/// The bytes of a request.
#[derive(Debug)]
pub enum Payload<'p> {
    /// Of one packet: still where the wire put them, or where they were unsealed. Whoever wants them for longer copies them.
    Borrowed(&'p [u8]),
    /// Of several packets, put together, or of a sealed session, where [`Endpoint::receive`](crate::Endpoint::receive) returns it.
    /// [`Endpoint::recycle`](crate::Endpoint::recycle) takes the buffer back.
    Owned(MsgBuf),
}

impl Deref for Payload<'_> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        match self {
            Payload::Borrowed(bytes) => bytes,
            Payload::Owned(buffer) => buffer,
        }
    }
}

impl Event<'_> {
    /// The same, with a copy of a request that is still where the wire put it.
    pub(crate) fn owned(self, pool: &mut Pool) -> Event<'static> {
        match self {
            Event::Request {
                handle,
                method,
                payload,
            } => Event::Request {
                handle,
                method,
                payload: Payload::Owned(payload.owned(pool)),
            },
            Event::Connected(session) => Event::Connected(session),
            Event::Accepted(session) => Event::Accepted(session),
            Event::Completed(completion) => Event::Completed(completion),
            Event::ResponseReturned(buffer) => Event::ResponseReturned(buffer),
            Event::Ended(session, reason) => Event::Ended(session, reason),
        }
    }
}

impl Payload<'_> {
    fn owned(self, pool: &mut Pool) -> MsgBuf {
        match self {
            Payload::Owned(buffer) => buffer,
            Payload::Borrowed(bytes) => {
                let mut buffer = pool.take_in_any_case(bytes.len());
                let filled = buffer.fill(bytes);
                debug_assert!(filled, "it was made for them");
                buffer
            }
        }
    }
}

/// Handles what an endpoint tells. Nearly all of it is requests and completed calls: a handler that takes these by methods of its own,
/// marked as always inlined, gets them in registers.
pub trait EventHandler<'p, A> {
    /// Something has happened at this time. The endpoint may be asked for more.
    fn handle(&mut self, endpoint: &mut Endpoint<A>, now_ns: u64, event: Event<'p>);

    /// A request of one packet has come, and the slot that its response goes into is at hand: whoever needs no more than the request to
    /// answer it does so here, for less, and returns what [`ResponseSlot::respond`] returned. With `None`, nothing is answered, and
    /// [`EventHandler::request`] is told of the request.
    #[inline(always)]
    fn answer(&mut self, _request: &ArrivedRequest<'p>, _slot: ResponseSlot<'_>) -> Option<ResponseGiven> {
        None
    }

    /// A request of one packet is to be handled: as [`Event::Request`].
    #[inline(always)]
    fn request(&mut self, endpoint: &mut Endpoint<A>, now_ns: u64, request: ArrivedRequest<'p>) {
        self.handle(endpoint, now_ns, request.into());
    }

    /// A call has ended: as [`Event::Completed`].
    #[inline(always)]
    fn completed(&mut self, endpoint: &mut Endpoint<A>, now_ns: u64, completion: Completion) {
        self.handle(endpoint, now_ns, Event::Completed(completion));
    }
}

impl<'p, A, F: FnMut(&mut Endpoint<A>, u64, Event<'p>)> EventHandler<'p, A> for F {
    #[inline]
    fn handle(&mut self, endpoint: &mut Endpoint<A>, now_ns: u64, event: Event<'p>) {
        self(endpoint, now_ns, event);
    }
}

/// Where the response to a request goes that has just come.
#[derive(Debug)]
pub struct ResponseSlot<'s> {
    slot: &'s mut ServerSlot,
    /// Bytes of the largest response that can be given here.
    bytes_max: usize,
}

/// Says that a request is answered.
#[derive(Debug)]
#[must_use = "`EventHandler::answer` is to return it"]
pub struct ResponseGiven(());

impl<'s> ResponseSlot<'s> {
    #[inline(always)]
    pub(crate) fn new(slot: &'s mut ServerSlot, bytes_max: usize) -> ResponseSlot<'s> {
        ResponseSlot { slot, bytes_max }
    }

    /// Answers with a few bytes, which go into the buffer that the slot has of its own. `None`, and nothing has happened, if they do not
    /// fit there, as at first, when it has none, or need several packets: [`Endpoint::respond_inline`] lets it grow.
    #[inline(always)]
    pub fn respond(self, status: u16, response: &[u8]) -> Option<ResponseGiven> {
        let is_given = response.len() <= self.bytes_max && self.slot.respond_at_hand(status, response);
        is_given.then_some(ResponseGiven(()))
    }
}

/// A request of one packet that is to be handled.
#[derive(Clone, Copy, Debug)]
pub struct ArrivedRequest<'p> {
    /// What to answer to.
    pub handle: RequestHandle,
    /// The number of the method that is called.
    pub method: u16,
    /// What was sent, where the wire put it or where it was unsealed. Whoever wants it for longer copies it.
    pub bytes: &'p [u8],
}

impl<'p> From<ArrivedRequest<'p>> for Event<'p> {
    #[inline(always)]
    fn from(request: ArrivedRequest<'p>) -> Event<'p> {
        Event::Request {
            handle: request.handle,
            method: request.method,
            payload: Payload::Borrowed(request.bytes),
        }
    }
}

/// What an endpoint tells its owner.
#[derive(Debug)]
pub enum Event<'p> {
    /// A session that was asked for is there.
    Connected(SessionId),
    /// A client has opened a session.
    Accepted(SessionId),
    /// A request is to be handled.
    Request {
        /// What to answer to.
        handle: RequestHandle,
        /// The number of the method that is called.
        method: u16,
        /// What was sent.
        payload: Payload<'p>,
    },
    /// A call has ended.
    Completed(Completion),
    /// A buffer that a response was given in is no longer needed.
    ResponseReturned(MsgBuf),
    /// A session is over. All its calls have been completed before.
    Ended(SessionId, EndReason),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_at_hand_is_no_longer_than_a_packet_however_large_the_slots_buffer_is() {
        let mut slot = ServerSlot::default();
        assert!(slot.respond_inline(7, &[1; 2000], 4096), "the buffer grows");
        assert!(
            ResponseSlot::new(&mut slot, 1448)
                .respond(7, &[1; 1449])
                .is_none()
        );
        assert!(
            ResponseSlot::new(&mut slot, 1448)
                .respond(7, &[1; 1448])
                .is_some()
        );
    }
}
