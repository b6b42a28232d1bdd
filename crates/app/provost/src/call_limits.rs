//! How long a call may take, how long its messages may be, and what holds it to that.

use std::task::Poll;
use std::time::Duration;

use crate::context::{deadline_in, inherited_deadline_ns};
use crate::link::OutgoingMessage;
use crate::message::Message;
use crate::reactor::Timer;
use crate::status::Status;

/// How long a call may take, how long its messages may be, and what it does when there is no connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallLimits {
    pub(crate) timeout: Option<Duration>,
    /// In nanoseconds of CLOCK_MONOTONIC; 0 for none.
    pub(crate) deadline_ns: u64,
    /// `None`: what the channel has for all calls.
    pub(crate) readiness: Option<Readiness>,
    pub(crate) messages: MessageBounds,
}

/// How long messages may be, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageBounds {
    pub(crate) request_bytes_max: u32,
    pub(crate) response_bytes_max: u32,
}

impl Default for MessageBounds {
    fn default() -> MessageBounds {
        MessageBounds {
            request_bytes_max: u32::MAX,
            response_bytes_max: u32::MAX,
        }
    }
}

/// Refuses a received message that is longer than it may be.
pub(crate) fn check_received<T: Message>(message: &T, bytes_max: u32) -> Result<(), Status> {
    // Measuring takes a walk through the message.
    if bytes_max == u32::MAX {
        return Ok(());
    }
    match message.measure() {
        bytes if bytes <= bytes_max as usize => Ok(()),
        bytes => Err(Status::resource_exhausted(format!(
            "a message of {bytes} bytes was received: at most {bytes_max} are taken"
        ))),
    }
}

/// What a program says as a number of bytes.
pub(crate) fn bytes_max(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// What a call does when there is no connection to the service now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Readiness {
    /// It fails at once with `UNAVAILABLE`.
    #[default]
    FailFast,
    /// It waits for a connection as long as its deadline allows.
    Wait,
}

/// Refuses a message that the service would refuse.
pub(crate) fn check_size(outgoing: &OutgoingMessage, bytes_max: u32) -> Result<(), Status> {
    let bytes = outgoing.window_bytes();
    if bytes > bytes_max {
        let message = format!("a message of {bytes} bytes: at most {bytes_max} are sent");
        return Err(Status::resource_exhausted(message));
    }
    Ok(())
}

/// Runs `future`, at most until the deadline (0 for none).
pub(crate) async fn within<T>(deadline_ns: u64, future: impl Future<Output = T>) -> Result<T, Status> {
    let mut late = (deadline_ns != 0).then(|| Timer::at(deadline_ns));
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        match late.as_mut().map(|timer| timer.poll(context)) {
            Some(Poll::Ready(())) => Poll::Ready(Err(deadline_passed())),
            _ => Poll::Pending,
        }
    })
    .await
}

pub(crate) fn deadline_passed() -> Status {
    Status::deadline_exceeded("the deadline passed before the call began")
}

/// When the call must end: its own timeout, or what is left to the handler that it is made in.
pub(crate) fn resolve_deadline(limits: CallLimits) -> u64 {
    let own_ns = limits.timeout.map_or(u64::MAX, deadline_in);
    let fixed_ns = if limits.deadline_ns == 0 {
        u64::MAX
    } else {
        limits.deadline_ns
    };
    match own_ns
        .min(fixed_ns)
        .min(inherited_deadline_ns().unwrap_or(u64::MAX))
    {
        u64::MAX => 0,
        deadline_ns => deadline_ns,
    }
}
