//! What happens on the data path: a few plain stores for each step of a call.

use std::sync::Arc;

use provost_datapath::{FieldReader, FieldWriter};
use provost_engine::{
    CallState, DatapathContext, Direction, EgressEvents, Ended, Filter, FilterState, Nanos, Parts,
    RestoreError, Side, StepView, Verdict, Watch,
};

use crate::metrics::KIND;
use crate::metrics::ledger::Gauge;
use crate::metrics::shard::{EndedCall, OwnerShard};

/// Version of what the filter saves of a datapath.
const STATE_VERSION: u32 = 1;
/// Steps whose time in the service is counted: those with any of these parts, so that a call with one message each way has one
/// of each direction. What only gives room back to a stream, or a call up, is none.
const TIMED: Parts = Parts(Parts::BEGIN.0 | Parts::MESSAGE.0 | Parts::STATUS.0);

/// Counts the calls of one datapath.
pub struct MetricsFilter {
    shard: Arc<OwnerShard>,
    gauge: Arc<Gauge>,
    side: Side,
    /// For each method: whether its calls are counted.
    scope: Arc<[bool]>,
}

impl MetricsFilter {
    pub(crate) fn new(
        shard: Arc<OwnerShard>,
        gauge: Arc<Gauge>,
        datapath_context: &DatapathContext,
    ) -> MetricsFilter {
        MetricsFilter {
            shard,
            gauge,
            side: datapath_context.side,
            scope: Arc::clone(&datapath_context.scope),
        }
    }
}

/// What is kept of a call in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallTally {
    method: u16,
    began_at: Nanos,
    sent_bytes: u64,
    received_bytes: u64,
}

impl Filter for MetricsFilter {
    type Call = CallTally;

    fn watch(&self) -> Watch {
        Watch {
            requests: Parts::BEGIN | Parts::MESSAGE,
            responses: Parts::MESSAGE,
            calls: true,
        }
    }

    fn judge(&mut self, call: &mut CallTally, step: &mut StepView<'_>) -> Verdict {
        if step.parts().contains(Parts::BEGIN) {
            call.method = step.method_index();
            call.began_at = step.begun_at();
            self.shard.call_began(call.method);
            self.gauge.began(call.method);
        }
        let bytes = u64::from(step.message_bytes());
        match (step.direction(), self.side) {
            (Direction::Request, Side::Client) | (Direction::Response, Side::Server) => {
                call.sent_bytes += bytes
            }
            _ => call.received_bytes += bytes,
        }
        Verdict::Pass
    }

    fn ended(&mut self, call: CallTally, end: &Ended) {
        self.gauge.ended(call.method);
        self.shard.call_ended(&EndedCall {
            method: call.method,
            code: end.code,
            duration_ns: end.at.saturating_sub(call.began_at),
            sent_bytes: call.sent_bytes,
            received_bytes: call.received_bytes,
        });
    }

    fn on_egress(&mut self, egress_events: &EgressEvents<'_>) {
        let (to_wire, to_app) = match self.side {
            Side::Client => (Direction::Request, Direction::Response),
            Side::Server => (Direction::Response, Direction::Request),
        };
        for (direction, steps) in [(to_wire, egress_events.to_wire), (to_app, egress_events.to_app)] {
            for step in steps.iter().filter(|step| step.parts.intersects(TIMED)) {
                let in_scope = self.scope.get(usize::from(step.method));
                if let Some(waited) = egress_events.waited(step)
                    && in_scope.is_some_and(|in_scope| *in_scope)
                {
                    self.shard.queued(step.method, direction, waited);
                }
            }
        }
    }

    fn save(&self) -> FilterState {
        let mut out = FieldWriter::new();
        let in_flight: Vec<u32> = self.gauge.read().collect();
        out.count(in_flight.len());
        in_flight.into_iter().for_each(|count| out.u32(count));
        FilterState {
            version: STATE_VERSION,
            bytes: out.bytes,
        }
    }

    fn restore(&mut self, state: &FilterState) -> Result<(), RestoreError> {
        if state.version != STATE_VERSION {
            return Err(RestoreError::Version {
                kind: KIND,
                found: state.version,
                newest: STATE_VERSION,
            });
        }
        let mut fields = FieldReader::new(KIND, &state.bytes);
        let count = fields.count(usize::from(u16::MAX) + 1)?;
        for method in 0..count {
            self.gauge.set(method, fields.u32()?);
        }
        fields.end()
    }
}

impl CallState for CallTally {
    fn save(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.method.to_le_bytes());
        for word in [self.began_at, self.sent_bytes, self.received_bytes] {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }

    fn load(saved: &[u8]) -> Option<CallTally> {
        let mut fields = FieldReader::new(KIND, saved);
        let mut read = || -> Result<CallTally, RestoreError> {
            Ok(CallTally {
                method: fields.u16()?,
                began_at: fields.u64()?,
                sent_bytes: fields.u64()?,
                received_bytes: fields.u64()?,
            })
        };
        let tally = read().ok()?;
        fields.is_at_end().then_some(tally)
    }
}
