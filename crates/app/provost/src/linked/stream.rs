//! Calls with streams, as a transport that the program links carries them: what their ends do, and how clients and
//! handlers hold one.

use std::sync::Arc;
use std::task::{Context, Poll};

use provost_shm::now_ns;
use provost_wire::Code;

use super::{Inbound, Outbound, Transport};
use crate::call::{Ended, Step};
use crate::call_limits::{CallLimits, resolve_deadline};
use crate::link::OutgoingMessage;
use crate::message::Message;
use crate::metadata::MetadataMap;
use crate::reactor::{Reactor, Timer};
use crate::status::Status;

/// A call with a stream to make.
#[derive(Debug)]
pub struct OutboundStream {
    /// Index of the method.
    pub method: u16,
    /// When it must end, in nanoseconds of CLOCK_MONOTONIC; 0 for never.
    pub deadline_ns: u64,
    /// The metadata that precedes the requests.
    pub metadata: MetadataMap,
}

/// One end of a call with a stream. Whatever happens, [`Arrival::Ended`] is the last that arrives.
pub trait StreamEnd: Send + Sync {
    /// What has arrived next; the task is woken when there is something.
    fn poll_arrival(&self, context: &mut Context<'_>) -> Poll<Arrival>;
    /// Waits until the stream's window lets another message pass. The error says that the call is over.
    fn poll_window(&self, context: &mut Context<'_>) -> Poll<Result<(), CallOver>>;
    /// Sends something, after all that was sent before. For messages, [`StreamEnd::poll_window`] says when.
    fn send(&self, egress_event: EgressEvent);
    /// Nobody asks for the call any more.
    fn cancel(&self, code: Code);
}

/// What arrives of a call.
#[derive(Debug)]
pub enum Arrival {
    /// What precedes the messages.
    Metadata(MetadataMap),
    /// A message.
    Message(Inbound),
    /// The client sends no more.
    EndOfRequests,
    /// How the call ended: with what followed its messages, or why it failed. Nothing else arrives after this.
    Ended(Result<MetadataMap, Status>),
}

/// What is sent of a call.
#[derive(Debug)]
pub enum EgressEvent {
    /// What precedes the messages.
    Metadata(MetadataMap),
    /// A message.
    Message(Outbound),
    /// There are no more requests.
    EndOfRequests,
}

/// The call ended; how is told by what arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOver;

/// A client's call with a stream. Dropping it before it is over cancels it.
pub(crate) struct LinkedStream {
    end: Arc<dyn StreamEnd>,
    late: Option<Timer>,
    /// When the call must end; 0 for never.
    deadline_ns: u64,
    is_over: bool,
    cancel_code: Code,
    /// The session stays as long as its calls.
    _transport: Arc<dyn Transport>,
}

impl LinkedStream {
    pub(crate) fn begin(
        transport: &Arc<dyn Transport>,
        (method, metadata): (u16, MetadataMap),
        limits: CallLimits,
    ) -> Result<LinkedStream, Status> {
        let deadline_ns = resolve_deadline(limits);
        let late = match deadline_ns {
            0 => None,
            deadline_ns => {
                Reactor::get()?;
                Some(Timer::at(deadline_ns))
            }
        };
        let call = OutboundStream {
            method,
            deadline_ns,
            metadata,
        };
        Ok(LinkedStream {
            end: transport.stream(call),
            late,
            deadline_ns,
            is_over: false,
            cancel_code: Code::Cancelled,
            _transport: transport.clone(),
        })
    }

    pub(crate) fn end(&self) -> &Arc<dyn StreamEnd> {
        &self.end
    }

    /// The next step; the error is how the call ended without one.
    pub(crate) fn poll_step<T: Message>(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Step<T>, Status>> {
        if let Poll::Ready(arrival) = self.end.poll_arrival(context) {
            self.is_over = matches!(arrival, Arrival::Ended(_));
            // A stream that always has a message ends at its deadline too.
            if !self.is_over && self.deadline_ns != 0 && now_ns() >= self.deadline_ns {
                return Poll::Ready(Err(self.exceed()));
            }
            return Poll::Ready(step_of(arrival));
        }
        match self.late.as_mut().map(|timer| timer.poll(context)) {
            Some(Poll::Ready(())) => Poll::Ready(Err(self.exceed())),
            _ => Poll::Pending,
        }
    }

    /// The deadline has passed: dropping the call says so to the other end.
    fn exceed(&mut self) -> Status {
        self.cancel_code = Code::DeadlineExceeded;
        Status::deadline_exceeded("the deadline passed")
    }
}

impl Drop for LinkedStream {
    fn drop(&mut self) {
        if !self.is_over {
            self.end.cancel(self.cancel_code);
        }
    }
}

/// What arrived, as a step of a call.
pub(crate) fn step_of<T: Message>(arrival: Arrival) -> Result<Step<T>, Status> {
    let mut step = Step {
        metadata: None,
        message: None,
        is_end: false,
        status: None,
    };
    match arrival {
        Arrival::Metadata(metadata) => step.metadata = Some(metadata),
        Arrival::Message(message) => step.message = Some(message.received()?),
        Arrival::EndOfRequests => step.is_end = true,
        Arrival::Ended(result) => step.status = Some(Ended { result }),
    }
    Ok(step)
}

/// Sends a message for which [`StreamEnd::poll_window`] said that it may pass.
pub(crate) fn send_message(end: &dyn StreamEnd, outgoing: OutgoingMessage) -> Result<(), Status> {
    let message = Outbound::new(outgoing);
    message.message_bytes_max()?;
    end.send(EgressEvent::Message(message));
    Ok(())
}
