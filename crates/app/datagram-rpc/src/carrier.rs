//! What carries the calls of an event loop: the datagram protocol in software, or something that does its work elsewhere, such as a NIC.

use std::io;
use std::task::Waker;
use std::time::Duration;

use provost_datagram::{
    Address, Call, CallError, CallRefused, Clock, ConnectError, Driver, Endpoint, Event, EventHandler,
    MsgBuf, RequestHandle, ResponseRefused, SessionId, Turn,
};
use provost_packets::Wire;

/// Sessions and calls, as [`Endpoint`] has them, of whoever has them in its place.
///
/// Each call that is taken ends with one [`Event::Completed`], and each session with one [`Event::Ended`], after the calls on it.
pub trait CallCarrier<A> {
    /// Asks for a session with whoever is at this address. Calls can be made on it at once; they wait for it.
    ///
    /// # Errors
    /// If this end has no room for another session.
    fn connect(&mut self, now_ns: u64, to: A) -> Result<SessionId, ConnectError>;

    /// Ends a session that this end opened, when the calls that were made on it have ended.
    fn disconnect(&mut self, now_ns: u64, session: SessionId);

    /// Ends a session at once. Calls on it fail.
    fn reset(&mut self, now_ns: u64, session: SessionId);

    /// Makes a call, which waits while the session has no slot free.
    ///
    /// # Errors
    /// If it cannot be taken; it comes back.
    fn call(&mut self, now_ns: u64, session: SessionId, call: Call) -> Result<(), Box<CallRefused>>;

    /// Answers a request. [`Event::ResponseReturned`] gives the buffer back.
    ///
    /// # Errors
    /// If the request waits no longer, or the response is too large; it comes back.
    fn respond(
        &mut self,
        now_ns: u64,
        request: RequestHandle,
        status: u16,
        response: MsgBuf,
    ) -> Result<(), ResponseRefused>;

    /// Bytes of a message that one packet can carry.
    fn packet_payload_bytes(&self) -> usize;

    /// Bytes of the largest request, and of the largest response, as far as this end is concerned.
    fn message_bytes_max(&self) -> usize;

    /// What has happened next, outside of a turn.
    fn poll_event(&mut self) -> Option<Event<'static>>;
}

/// Takes the events of an [`RpcDriver`]; an event loop gives it.
pub trait EventSink<A>: for<'p> EventHandler<'p, A> {
    /// Something has happened at this time. The carrier may be asked for more.
    fn take(&mut self, carrier: &mut (dyn CallCarrier<A> + 'static), now_ns: u64, event: Event<'_>);
}

/// What an event loop turns: a carrier, its wire and its clock.
pub trait RpcDriver {
    /// What names an end of the wire.
    type Address: Address;

    /// This end's address, by which others reach it.
    fn address(&self) -> Self::Address;

    /// The time and the carrier, to ask something of it.
    fn carrier(&mut self) -> (u64, CarrierRef<'_, Self::Address>);

    /// Takes what has come, and sends; never sleeps.
    ///
    /// # Errors
    /// If the carrier is of no use any more.
    fn turn(&mut self, sink: &mut impl EventSink<Self::Address>) -> io::Result<Turn>;

    /// Sleeps until something is to be done, or so long.
    ///
    /// # Errors
    /// If the carrier is of no use any more.
    fn wait(&mut self, at_most: Duration) -> io::Result<()>;

    /// Ends an [`RpcDriver::wait`] from another thread: the one that goes on, or else the next.
    fn waker(&self) -> Option<Waker>;
}

impl<W: Wire, C: Clock> RpcDriver for Driver<W, C> {
    type Address = W::Address;

    fn address(&self) -> W::Address {
        self.wire().address()
    }

    #[inline]
    fn carrier(&mut self) -> (u64, CarrierRef<'_, W::Address>) {
        let (now_ns, endpoint) = self.endpoint();
        (now_ns, CarrierRef::Software(endpoint))
    }

    #[inline(always)]
    fn turn(&mut self, sink: &mut impl EventSink<W::Address>) -> io::Result<Turn> {
        self.turn_with(sink)
    }

    fn wait(&mut self, at_most: Duration) -> io::Result<()> {
        Driver::wait(self, at_most)
    }

    fn waker(&self) -> Option<Waker> {
        self.wire().waker()
    }
}

/// What carries the calls, for as long as it is borrowed.
pub enum CarrierRef<'c, A> {
    /// The datagram protocol in software.
    Software(&'c mut Endpoint<A>),
    /// Whatever does its work elsewhere.
    Other(&'c mut (dyn CallCarrier<A> + 'static)),
}

impl<A> std::fmt::Debug for CarrierRef<'_, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            CarrierRef::Software(_) => "Software",
            CarrierRef::Other(_) => "Other",
        })
    }
}

impl<A: Address> CarrierRef<'_, A> {
    /// The same, for a shorter time.
    #[inline(always)]
    pub(crate) fn by_ref(&mut self) -> CarrierRef<'_, A> {
        match self {
            CarrierRef::Software(endpoint) => CarrierRef::Software(endpoint),
            CarrierRef::Other(other) => CarrierRef::Other(&mut **other),
        }
    }

    pub(crate) fn connect(&mut self, now_ns: u64, to: A) -> Result<SessionId, ConnectError> {
        match self {
            CarrierRef::Software(endpoint) => endpoint.connect(now_ns, to),
            CarrierRef::Other(other) => other.connect(now_ns, to),
        }
    }

    pub(crate) fn disconnect(&mut self, now_ns: u64, session: SessionId) {
        match self {
            CarrierRef::Software(endpoint) => endpoint.disconnect(now_ns, session),
            CarrierRef::Other(other) => other.disconnect(now_ns, session),
        }
    }

    pub(crate) fn reset(&mut self, now_ns: u64, session: SessionId) {
        match self {
            CarrierRef::Software(endpoint) => endpoint.reset(now_ns, session),
            CarrierRef::Other(other) => other.reset(now_ns, session),
        }
    }

    #[inline(always)]
    pub(crate) fn call(
        &mut self,
        now_ns: u64,
        session: SessionId,
        call: Call,
    ) -> Result<(), Box<CallRefused>> {
        match self {
            CarrierRef::Software(endpoint) => endpoint.call(now_ns, session, call),
            CarrierRef::Other(other) => other.call(now_ns, session, call),
        }
    }

    #[inline(always)]
    pub(crate) fn respond(
        &mut self,
        now_ns: u64,
        request: RequestHandle,
        status: u16,
        response: MsgBuf,
    ) -> Result<(), ResponseRefused> {
        match self {
            CarrierRef::Software(endpoint) => endpoint.respond(now_ns, request, status, response),
            CarrierRef::Other(other) => other.respond(now_ns, request, status, response),
        }
    }

    /// Answers with bytes that are copied, if there is room for them where the endpoint keeps such.
    #[inline(always)]
    pub(crate) fn respond_inline(
        &mut self,
        now_ns: u64,
        request: RequestHandle,
        status: u16,
        response: &[u8],
    ) -> Result<(), CallError> {
        match self {
            CarrierRef::Software(endpoint) => endpoint.respond_inline(now_ns, request, status, response),
            CarrierRef::Other(other) => other
                .respond(now_ns, request, status, MsgBuf::from_slice(response))
                .map_err(|refused| refused.error),
        }
    }

    /// Takes back the buffer of a request. Others than the endpoint have no pool.
    #[inline(always)]
    pub(crate) fn recycle(&mut self, buffer: MsgBuf) {
        if let CarrierRef::Software(endpoint) = self {
            endpoint.recycle(buffer);
        }
    }

    pub(crate) fn packet_payload_bytes(&self) -> usize {
        match self {
            CarrierRef::Software(endpoint) => endpoint.packet_payload_bytes(),
            CarrierRef::Other(other) => other.packet_payload_bytes(),
        }
    }

    /// Bytes of the largest request of a session that this end has opened.
    pub(crate) fn request_bytes_max(&self, session: SessionId) -> usize {
        match self {
            CarrierRef::Software(endpoint) => endpoint.request_bytes_max(session).unwrap_or(usize::MAX),
            CarrierRef::Other(other) => other.message_bytes_max(),
        }
    }

    /// Bytes of the largest response, where there is a bound beside the stubs' own.
    pub(crate) fn response_bytes_max(&self) -> usize {
        match self {
            CarrierRef::Software(_) => usize::MAX,
            CarrierRef::Other(other) => other.message_bytes_max(),
        }
    }

    pub(crate) fn poll_event(&mut self) -> Option<Event<'static>> {
        match self {
            CarrierRef::Software(endpoint) => endpoint.poll_event(),
            CarrierRef::Other(other) => other.poll_event(),
        }
    }
}
