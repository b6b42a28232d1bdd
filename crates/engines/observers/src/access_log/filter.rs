//! What happens on the data path: a few numbers for each call, and one record when it ends.

use std::sync::Arc;

use provost_datapath::FieldReader;
use provost_engine::{
    CallState, Code, Direction, Ended, Filter, Inlet, Nanos, Parts, RestoreError, StepView, TRACEPARENT,
    TraceContext, Verdict, Watch,
};

use crate::access_log::KIND;
use crate::access_log::line::ContextPart;

/// Which calls are logged, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallSelection {
    pub(crate) statuses: [bool; Code::ALL.len()],
    pub(crate) duration_min_ns: Nanos,
    pub(crate) trace_context: bool,
}

/// Logs the calls of one datapath.
pub struct LogFilter {
    records: Inlet<LogRecord>,
    datapath_context: Arc<ContextPart>,
    selection: CallSelection,
}

impl LogFilter {
    pub(crate) fn new(
        records: Inlet<LogRecord>,
        datapath_context: Arc<ContextPart>,
        selection: CallSelection,
    ) -> LogFilter {
        LogFilter {
            records,
            datapath_context,
            selection,
        }
    }
}

/// What is kept of a call in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoggedCall {
    pub(crate) call: u64,
    pub(crate) method: u16,
    pub(crate) began_at: Nanos,
    /// 0 without one.
    pub(crate) deadline: Nanos,
    /// When the first step of the response came; 0 before.
    pub(crate) answered_at: Nanos,
    /// Of requests, and of responses.
    pub(crate) messages: [u32; 2],
    pub(crate) bytes: [u64; 2],
    /// 0 where there is none.
    pub(crate) trace_id: u128,
    pub(crate) span_id: u64,
}

/// A call that has ended.
#[derive(Debug)]
pub(crate) struct LogRecord {
    pub(crate) datapath_context: Arc<ContextPart>,
    pub(crate) call: LoggedCall,
    pub(crate) ended: Ended,
}

impl Filter for LogFilter {
    type Call = LoggedCall;

    fn watch(&self) -> Watch {
        Watch {
            requests: Parts::BEGIN | Parts::MESSAGE,
            responses: Parts::HEADERS | Parts::MESSAGE | Parts::STATUS,
            calls: true,
        }
    }

    fn judge(&mut self, call: &mut LoggedCall, step: &mut StepView<'_>) -> Verdict {
        let parts = step.parts();
        if parts.contains(Parts::BEGIN) {
            self.began(call, step);
        }
        let direction = step.direction();
        if direction == Direction::Response && call.answered_at == 0 {
            call.answered_at = step.now();
        }
        if parts.contains(Parts::MESSAGE) {
            let at = direction as usize;
            call.messages[at] = call.messages[at].saturating_add(1);
            call.bytes[at] += u64::from(step.message_bytes());
        }
        Verdict::Pass
    }

    fn ended(&mut self, call: LoggedCall, ended: &Ended) {
        let duration = ended.at.saturating_sub(call.began_at);
        let CallSelection {
            statuses,
            duration_min_ns,
            ..
        } = self.selection;
        if !statuses[ended.code as usize] || duration < duration_min_ns {
            return;
        }
        self.records.push(LogRecord {
            datapath_context: Arc::clone(&self.datapath_context),
            call,
            ended: *ended,
        });
    }
}

impl LogFilter {
    fn began(&self, call: &mut LoggedCall, step: &mut StepView<'_>) {
        call.call = step.call();
        call.method = step.method_index();
        call.began_at = step.begun_at();
        call.deadline = step.deadline();
        if self.selection.trace_context
            && let Some(context) = step.metadata(TRACEPARENT).and_then(TraceContext::parse)
        {
            call.trace_id = context.trace_id;
            call.span_id = context.span_id;
        }
    }
}

impl CallState for LoggedCall {
    fn save(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.method.to_le_bytes());
        for word in [self.call, self.began_at, self.deadline, self.answered_at] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for direction in 0..2 {
            out.extend_from_slice(&self.messages[direction].to_le_bytes());
            out.extend_from_slice(&self.bytes[direction].to_le_bytes());
        }
        out.extend_from_slice(&self.trace_id.to_le_bytes());
        out.extend_from_slice(&self.span_id.to_le_bytes());
    }

    fn load(saved: &[u8]) -> Option<LoggedCall> {
        let mut fields = FieldReader::new(KIND, saved);
        let call = load(&mut fields).ok()?;
        fields.is_at_end().then_some(call)
    }
}

fn load(fields: &mut FieldReader<'_>) -> Result<LoggedCall, RestoreError> {
    let mut call = LoggedCall {
        method: fields.u16()?,
        call: fields.u64()?,
        began_at: fields.u64()?,
        deadline: fields.u64()?,
        answered_at: fields.u64()?,
        ..LoggedCall::default()
    };
    for direction in 0..2 {
        call.messages[direction] = fields.u32()?;
        call.bytes[direction] = fields.u64()?;
    }
    call.trace_id = u128::from_le_bytes(fields.array()?);
    call.span_id = fields.u64()?;
    Ok(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_in_flight_comes_back_as_it_was_saved() {
        let call = LoggedCall {
            call: 1,
            method: 2,
            began_at: 3,
            deadline: 4,
            answered_at: 5,
            messages: [6, 7],
            bytes: [8, 9],
            trace_id: 10,
            span_id: 11,
        };
        let mut saved = Vec::new();
        call.save(&mut saved);
        assert_eq!(LoggedCall::load(&saved), Some(call));
        assert_eq!(LoggedCall::load(&saved[1..]), None);
    }
}
