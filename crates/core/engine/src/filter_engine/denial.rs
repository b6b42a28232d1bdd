//! Ends of calls by a filter's verdict.

use provost_datapath::{Body, Context, EncodedBody, Ports, Step, message_offset};
use provost_wire::metadata::{self, STATUS_MESSAGE};

use super::waiting::CallBeginning;
use super::{DIRECTIONS, FilterEngine, QueueDirection, queues};
use crate::filter::{Denial, Ended, Filter};
use crate::{Code, Parts, Side};

/// The trailing metadata by which a client is told when to try again (gRPC A6).
const RETRY_PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Who denies a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeniedBy {
    /// The filter, and so it knows.
    Filter,
    /// The filter engine, because of a bound.
    FilterEngine,
}

/// The denial of a call that would need more room than [`HELD_STEPS_MAX`] leaves.
pub(super) fn too_many_wait(kind: &str) -> Denial {
    let reason = format!("too many calls wait at a policy of the kind {kind}: try again later");
    Denial::new(Code::ResourceExhausted, reason)
}

impl<F: Filter> FilterEngine<F> {
    /// Ends the call of a step that must not go on.
    pub(super) fn deny(
        &mut self,
        queue_direction: QueueDirection,
        step: Step,
        denial: &Denial,
        by: DeniedBy,
        ports: &mut Ports<'_>,
        context: &mut Context<'_>,
    ) {
        let (call, parts) = (step.call, step.parts);
        self.parts.datapath_context.verdicts.denied(denial.code);
        step.body.discard(context);
        let waited = self.drop_held(queue_direction, call, context) == CallBeginning::No;
        let begins = parts.contains(Parts::BEGIN) || waited;
        let ends = parts.intersects(Parts::STATUS | Parts::CANCEL);
        self.end_denied(
            queue_direction,
            call,
            denial,
            begins && by == DeniedBy::Filter,
            context,
        );
        let is_all = match queue_direction {
            QueueDirection::Tx => begins && parts.contains(Parts::END),
            QueueDirection::Rx => ends || begins && parts.contains(Parts::END),
        };
        if !is_all {
            self.denied.add(call);
        }
        // Whom the step was for has not heard of a call that it begins; for who ends a call it is over.
        let (from, to) = (queue_direction.opposite(), queue_direction);
        if !ends {
            self.send_cancellation(from, call, denial, ports, context);
        }
        if !begins {
            self.send_cancellation(to, call, denial, ports, context);
        }
    }

    fn end_denied(
        &mut self,
        queue_direction: QueueDirection,
        call: u64,
        denial: &Denial,
        filter_refused_it: bool,
        context: &mut Context<'_>,
    ) {
        let Some(known) = self.calls.remove(call) else {
            return;
        };
        if filter_refused_it {
            self.parts.filter.forget(known.state);
            return;
        }
        let end = Ended {
            code: denial.code,
            at: context.now,
            cancelled: true,
            direction: self.direction(queue_direction),
        };
        self.parts.filter.ended(known.state, &end);
    }

    /// Sends a cancellation down a queue direction.
    fn send_cancellation(
        &mut self,
        queue_direction: QueueDirection,
        call: u64,
        denial: &Denial,
        ports: &mut Ports<'_>,
        context: &mut Context<'_>,
    ) {
        let to_client =
            (queue_direction == QueueDirection::Rx) == (self.parts.datapath_context.side == Side::Client);
        let step = if to_client {
            refusal(call, denial, context)
        } else {
            // The server only learns that the call is no longer wanted.
            Step::cancel(call, Code::Cancelled)
        };
        let pending = &mut self.pending[queue_direction as usize];
        let output = queues(queue_direction, ports).1;
        if !pending.is_empty() {
            pending.push_back(step);
        } else if let Err(full) = output.push(step) {
            pending.push_back(full.0);
        }
    }

    /// Sends the cancellations that found no room.
    pub(super) fn send_pending(&mut self, ports: &mut Ports<'_>) -> usize {
        let mut moved = 0;
        for queue_direction in DIRECTIONS {
            let output = queues(queue_direction, ports).1;
            while !output.is_full()
                && let Some(step) = self.pending[queue_direction as usize].pop_front()
            {
                let _ = output.push(step);
                moved += 1;
            }
        }
        moved
    }
}

/// What the client of a denied call gets.
fn refusal(call: u64, denial: &Denial, context: &mut Context<'_>) -> Step {
    let mut buffer = context.buffers.take();
    // What does not fit is left out; the code says the most of it.
    let _ = metadata::append(&mut buffer.bytes, STATUS_MESSAGE, denial.reason.as_bytes());
    if let Some(milliseconds) = denial.retry_pushback_ms {
        let milliseconds = milliseconds.to_string();
        let _ = metadata::append(&mut buffer.bytes, RETRY_PUSHBACK, milliseconds.as_bytes());
    }
    let metadata_bytes = buffer.bytes.len() as u32;
    buffer.bytes.resize(message_offset(metadata_bytes), 0);
    Step {
        body: Body::Encoded(EncodedBody::plain(buffer, metadata_bytes, 0)),
        ..Step::cancel(call, denial.code)
    }
}
