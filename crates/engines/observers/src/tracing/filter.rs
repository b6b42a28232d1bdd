//! What happens on the data path: a call's context is read and handed on, its moments are noted.

use std::sync::Arc;

use provost_datapath::FieldReader;
use provost_engine::{
    CallState, Direction, Ended, Filter, Inlet, Nanos, Parts, RestoreError, StepView, TRACEPARENT,
    TRACESTATE, TraceContext, Verdict, Watch,
};

use crate::tracing::KIND;
use crate::tracing::sampling::{Ids, TraceSampler};
use crate::tracing::span::SpanContextPart;

/// Traces the calls of one datapath.
pub struct TraceFilter {
    records: Inlet<SpanRecord>,
    datapath_context: Arc<SpanContextPart>,
    sampler: TraceSampler,
    ids: Ids,
}

impl TraceFilter {
    pub(crate) fn new(
        records: Inlet<SpanRecord>,
        datapath_context: Arc<SpanContextPart>,
        sampler: TraceSampler,
    ) -> TraceFilter {
        TraceFilter {
            records,
            datapath_context,
            sampler,
            ids: Ids::new(),
        }
    }
}

/// What is kept of a call in flight; at rest for one that is not sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TracedCall {
    /// 0: not sampled.
    pub(crate) trace_id: u128,
    pub(crate) span_id: u64,
    /// 0: none.
    pub(crate) parent_id: u64,
    pub(crate) call: u64,
    pub(crate) method: u16,
    /// When the service took the client's first message; 0 before, and where that is not known. Not saved.
    pub(crate) taken_at: Nanos,
    pub(crate) began_at: Nanos,
    /// When the first message of the client was whole; 0 before.
    pub(crate) asked_at: Nanos,
    /// When the first step of the response came; 0 before.
    pub(crate) answered_at: Nanos,
    /// Of requests, and of responses.
    pub(crate) messages: [u32; 2],
    pub(crate) bytes: [u64; 2],
}

/// A call that has ended.
#[derive(Debug)]
pub(crate) struct SpanRecord {
    pub(crate) datapath_context: Arc<SpanContextPart>,
    pub(crate) call: TracedCall,
    pub(crate) ended: Ended,
}

impl Filter for TraceFilter {
    type Call = TracedCall;

    fn watch(&self) -> Watch {
        Watch {
            requests: Parts::BEGIN | Parts::MESSAGE,
            responses: Parts::HEADERS | Parts::MESSAGE | Parts::STATUS,
            calls: true,
        }
    }

    fn judge(&mut self, call: &mut TracedCall, step: &mut StepView<'_>) -> Verdict {
        let parts = step.parts();
        if parts.contains(Parts::BEGIN) {
            self.began(call, step);
        }
        if call.trace_id == 0 {
            return Verdict::Pass;
        }
        let direction = step.direction();
        if direction == Direction::Response && call.answered_at == 0 {
            call.answered_at = step.now();
        }
        if parts.contains(Parts::MESSAGE) {
            if direction == Direction::Request && call.asked_at == 0 {
                (call.asked_at, call.taken_at) = (step.now(), step.taken_at());
            }
            let at = direction as usize;
            call.messages[at] = call.messages[at].saturating_add(1);
            call.bytes[at] += u64::from(step.message_bytes());
        }
        Verdict::Pass
    }

    fn ended(&mut self, call: TracedCall, ended: &Ended) {
        if call.trace_id == 0 {
            return;
        }
        self.records.push(SpanRecord {
            datapath_context: Arc::clone(&self.datapath_context),
            call,
            ended: *ended,
        });
    }
}

impl TraceFilter {
    fn began(&mut self, call: &mut TracedCall, step: &mut StepView<'_>) {
        let header = step.metadata(TRACEPARENT);
        let parent = header.and_then(TraceContext::parse);
        if self.sampler.is_parent_based() && parent.as_ref().is_some_and(|parent| !parent.is_sampled) {
            // What is there already says so.
            return;
        }
        let trace_id = match &parent {
            Some(parent) => parent.trace_id,
            None => u128::from(self.ids.next()) << 64 | u128::from(self.ids.next()),
        };
        let is_sampled = self.sampler.samples(trace_id, parent.as_ref());
        let own = TraceContext {
            trace_id,
            span_id: self.ids.next(),
            is_sampled,
        };
        if parent.is_none() {
            // The trace begins anew (W3C Trace Context, section 4.3), so that what belongs to another one ends.
            step.remove_metadata(TRACESTATE);
        }
        carry_on(step, &own);
        if is_sampled {
            *call = TracedCall {
                trace_id,
                span_id: own.span_id,
                parent_id: parent.map_or(0, |parent| parent.span_id),
                call: step.call(),
                method: step.method_index(),
                began_at: step.begun_at(),
                ..TracedCall::default()
            };
        }
    }
}

/// The handler of a call that comes in learns of the context, and so does the peer of one that goes out, unless the metadata is full.
fn carry_on(step: &mut StepView<'_>, own: &TraceContext) {
    let header = own.header();
    if !step.overwrite_metadata(TRACEPARENT, &header) {
        // One of another length, which a later version may have, is not to stand beside it.
        step.remove_metadata(TRACEPARENT);
        let _ = step.append_metadata(TRACEPARENT, &header);
    }
}

impl CallState for TracedCall {
    fn save(&self, out: &mut Vec<u8>) {
        if self.trace_id == 0 {
            return;
        }
        out.extend_from_slice(&self.trace_id.to_le_bytes());
        out.extend_from_slice(&self.method.to_le_bytes());
        let words = [
            self.span_id,
            self.parent_id,
            self.call,
            self.began_at,
            self.asked_at,
            self.answered_at,
        ];
        words
            .into_iter()
            .for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        for direction in 0..2 {
            out.extend_from_slice(&self.messages[direction].to_le_bytes());
            out.extend_from_slice(&self.bytes[direction].to_le_bytes());
        }
    }

    fn load(saved: &[u8]) -> Option<TracedCall> {
        if saved.is_empty() {
            return Some(TracedCall::default());
        }
        let mut fields = FieldReader::new(KIND, saved);
        let call = load(&mut fields).ok()?;
        fields.is_at_end().then_some(call)
    }
}

fn load(fields: &mut FieldReader<'_>) -> Result<TracedCall, RestoreError> {
    let mut call = TracedCall {
        trace_id: u128::from_le_bytes(fields.array()?),
        method: fields.u16()?,
        span_id: fields.u64()?,
        parent_id: fields.u64()?,
        call: fields.u64()?,
        began_at: fields.u64()?,
        asked_at: fields.u64()?,
        answered_at: fields.u64()?,
        ..TracedCall::default()
    };
    for direction in 0..2 {
        call.messages[direction] = fields.u32()?;
        call.bytes[direction] = fields.u64()?;
    }
    Ok(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_in_flight_comes_back_as_it_was_saved() {
        let sampled = TracedCall {
            trace_id: 1 << 100,
            span_id: 2,
            parent_id: 3,
            call: 4,
            method: 5,
            taken_at: 0,
            began_at: 6,
            asked_at: 7,
            answered_at: 8,
            messages: [9, 10],
            bytes: [11, 12],
        };
        for call in [sampled, TracedCall::default()] {
            let mut saved = Vec::new();
            call.save(&mut saved);
            assert_eq!(TracedCall::load(&saved), Some(call));
        }
        assert_eq!(TracedCall::load(&[1]), None);
    }
}
