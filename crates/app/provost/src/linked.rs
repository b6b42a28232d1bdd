//! What transports are made of that a program links and runs itself, in place of the node's service. Applications have
//! no need to look here: `provost-datagram-rpc` is one.
//!
//! ```text
//!   client ─ Channel ─► Transport ══════► Offered ─► the place of a handler
//!                       (Codec::write)    (Codec::read)
//!   client ◄─ PendingCall ◄═════════════ Answering ◄── the handler's answer
//! ```
//!
//! Messages leave the send heap in one copy, to where the transport wants them, and arrive in it in one copy, where
//! they are checked.

mod codec;
mod inbound;
mod stream;

use std::sync::Arc;
use std::task::{Context, Poll};

use provost_wire::Code;
use provost_wire::metadata as block;

use crate::call_limits::{CallLimits, check_received, check_size, resolve_deadline};
use crate::descriptor::ServiceDescriptor;
use crate::link::OutgoingMessage;
use crate::message::Message;
use crate::metadata::MetadataMap;
use crate::reactor::{Reactor, Timer};
use crate::received::Received;
use crate::request::Response;
use crate::status::Status;

pub use codec::{Codec, Inbound, Outbound, Side};
pub use inbound::{Answer, Answering, InboundCall, Requests};
pub use stream::{Arrival, CallOver, EgressEvent, OutboundStream, StreamEnd};
pub(crate) use stream::{LinkedStream, send_message, step_of};

pub use crate::waker_list::wake;

/// Carries the calls of a channel.
pub trait Transport: Send + Sync + 'static {
    /// The service that it leads to.
    fn service(&self) -> &'static ServiceDescriptor;
    /// Begins a call. Whatever happens, the call becomes ready once.
    fn call(&self, call: OutboundCall) -> Arc<dyn PendingCall>;
    /// Begins a call with a stream.
    fn stream(&self, call: OutboundStream) -> Arc<dyn StreamEnd>;
}

/// A call to make.
#[derive(Debug)]
pub struct OutboundCall {
    /// Index of the method.
    pub method: u16,
    /// When it must end, in nanoseconds of CLOCK_MONOTONIC; 0 for never.
    pub deadline_ns: u64,
    /// The request, with its metadata.
    pub request: Outbound,
}

/// A call on its way.
pub trait PendingCall: Send + Sync {
    /// What it came to; the task is woken when that is known. It is told once.
    fn poll(&self, context: &mut Context<'_>) -> Poll<Result<InboundResponse, Status>>;
    /// Nobody asks for it any more.
    fn cancel(&self);
}

/// A response that has arrived.
#[derive(Debug)]
pub struct InboundResponse {
    /// What preceded the message.
    pub metadata: MetadataMap,
    /// The message.
    pub message: Inbound,
    /// What followed it.
    pub trailers: MetadataMap,
}

/// A metadata block that somebody sent.
///
/// # Errors
/// If it is malformed.
pub fn metadata_of(received: &[u8]) -> Result<MetadataMap, Status> {
    if received.is_empty() {
        return Ok(MetadataMap::new());
    }
    block::check(received).map_err(|error| Status::internal(format!("the peer's {error}")))?;
    Ok(MetadataMap::from_block(received))
}

/// A metadata block to send.
#[must_use]
pub fn block_of(metadata: &MetadataMap) -> &[u8] {
    metadata.as_block()
}

/// A status that somebody sent: its code, and the block with its message, details and metadata.
pub fn status_of(code: Code, received: &[u8]) -> Status {
    match metadata_of(received) {
        Ok(metadata) => crate::call::status_of(code, received, metadata),
        Err(malformed) => malformed,
    }
}

/// Makes a unary call.
pub(crate) async fn unary<Resp: Message>(
    transport: &dyn Transport,
    method: u16,
    outgoing: OutgoingMessage,
    limits: CallLimits,
) -> Result<Response<Received<Resp>>, Status> {
    check_size(&outgoing, limits.messages.request_bytes_max)?;
    let deadline_ns = resolve_deadline(limits);
    let mut late = match deadline_ns {
        0 => None,
        deadline_ns => {
            Reactor::get()?;
            Some(Timer::at(deadline_ns))
        }
    };
    let call = transport.call(OutboundCall {
        method,
        deadline_ns,
        request: Outbound::new(outgoing),
    });
    let mut call = CancelOnDrop(Some(call));
    let response = std::future::poll_fn(|context| {
        if let Poll::Ready(result) = call.poll(context) {
            return Poll::Ready(result);
        }
        match late.as_mut().map(|timer| timer.poll(context)) {
            Some(Poll::Ready(())) => Poll::Ready(Err(Status::deadline_exceeded("the deadline passed"))),
            _ => Poll::Pending,
        }
    })
    .await?;
    let message: Received<Resp> = response.message.received()?;
    check_received(&*message, limits.messages.response_bytes_max)?;
    Ok(Response::from_parts(
        message,
        response.metadata,
        response.trailers,
    ))
}

struct CancelOnDrop(Option<Arc<dyn PendingCall>>);

impl CancelOnDrop {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<InboundResponse, Status>> {
        let Some(call) = &self.0 else {
            return Poll::Ready(Err(Status::internal("a call was asked for twice")));
        };
        let polled = call.poll(context);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            call.cancel();
        }
    }
}
