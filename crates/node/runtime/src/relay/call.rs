//! What the port knows of a call.

use std::collections::VecDeque;

use provost_datapath::Step;
use provost_frontend::MethodShape;
use provost_wire::descriptor::Parts;
use provost_wire::limits::STREAM_WINDOW_BYTES;

/// The ends of a call, in the order in which they are saved.
pub(super) const RELAY_ENDS: [RelayEnd; 2] = [RelayEnd::Caller, RelayEnd::Server];

/// The two ends of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RelayEnd {
    /// Behind the connection that the port serves.
    Caller,
    /// Behind the connection on which it calls.
    Server,
}

impl RelayEnd {
    pub(super) fn other(self) -> RelayEnd {
        match self {
            RelayEnd::Caller => RelayEnd::Server,
            RelayEnd::Server => RelayEnd::Caller,
        }
    }
}

/// A call that is passed on.
#[derive(Debug)]
pub(super) struct RelayCall {
    /// Its method's place in the service.
    pub(super) method: u16,
    pub(super) shape: MethodShape,
    /// The connection on which it was begun anew, and its number there.
    pub(super) begun: Option<(u32, u64)>,
    /// What ends it is among the steps for its caller: the server knows it no more.
    pub(super) has_end: bool,
    to_caller: RelayQueue,
    to_server: RelayQueue,
}

/// What goes to one end of a call.
#[derive(Debug)]
pub(super) struct RelayQueue {
    /// Steps that wait. They were received by the window of the other end's stream, which bounds them.
    pub(super) steps: VecDeque<Step>,
    /// What may be sent into the stream.
    pub(super) send_window: i64,
    /// What the end's own stream gets back, as its messages were passed on.
    pub(super) window_due: u32,
    /// Whether any number of messages goes there.
    pub(super) is_streaming: bool,
    /// It is among those that are looked at next.
    pub(super) is_ready: bool,
}

impl RelayQueue {
    fn new(is_streaming: bool) -> RelayQueue {
        RelayQueue {
            steps: VecDeque::new(),
            send_window: i64::from(STREAM_WINDOW_BYTES),
            window_due: 0,
            is_streaming,
            is_ready: false,
        }
    }

    /// Whether the stream's window lets the first step pass.
    fn has_passable_step(&self) -> bool {
        let first = self.steps.front();
        first.is_some_and(|step| {
            let is_streamed = self.is_streaming && step.parts.contains(Parts::MESSAGE);
            !is_streamed || self.send_window > 0
        })
    }
}

impl RelayCall {
    pub(super) fn new(method: u16, shape: MethodShape) -> RelayCall {
        RelayCall {
            method,
            shape,
            begun: None,
            has_end: false,
            to_caller: RelayQueue::new(shape.server_streaming),
            to_server: RelayQueue::new(shape.client_streaming),
        }
    }

    pub(super) fn queue(&mut self, to: RelayEnd) -> &mut RelayQueue {
        match to {
            RelayEnd::Caller => &mut self.to_caller,
            RelayEnd::Server => &mut self.to_server,
        }
    }

    /// What waits for an end.
    pub(super) fn waiting(&self, to: RelayEnd) -> &RelayQueue {
        match to {
            RelayEnd::Caller => &self.to_caller,
            RelayEnd::Server => &self.to_server,
        }
    }

    /// Whether an end knows the call.
    pub(super) fn is_known_at(&self, end: RelayEnd) -> bool {
        match end {
            RelayEnd::Caller => true,
            RelayEnd::Server => self.begun.is_some() && !self.has_end,
        }
    }

    /// Whether there is a step for an end. One that begins the call needs `may_begin`.
    pub(super) fn has_step(&mut self, to: RelayEnd, may_begin: bool) -> bool {
        let (is_known, is_begun) = (self.is_known_at(to), self.begun.is_some());
        let queue = self.queue(to);
        let may_pass = to == RelayEnd::Caller || is_begun || may_begin;
        (is_known && queue.window_due > 0) || (may_pass && queue.has_passable_step())
    }
}
