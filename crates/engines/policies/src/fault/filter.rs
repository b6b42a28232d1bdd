//! The filter of one datapath.
//!
//! ```text
//! Fresh ─► Delayed until … ─► (aborted) ─► Begun ─► Delayed until … ─► (aborted) ─► over
//!    begins                                    its status comes
//! ```

use std::sync::Arc;

use provost_engine::{
    CallState, DatapathContext, Denial, Direction, Filter, Nanos, Parts, StepView, Verdict, Watch,
};

use crate::fault::config::{Abort, Delay, EndFaults};
use crate::fault::draw::{CallDraws, DrawPurpose};
use crate::fault::policy::{ActiveDelay, FaultCounts, FaultShared};

/// Draws faults for the calls of one datapath.
pub(crate) struct FaultFilter {
    shared: Arc<FaultShared>,
}

/// What is kept of a call.
#[derive(Default)]
pub(crate) struct DrawnFaults {
    /// Its number among those that match; `None` until it has begun, and of one that does not match.
    number: Option<u64>,
    /// Until when the step that is held waits.
    until: Option<Nanos>,
    active: Option<ActiveDelay>,
}

/// One end of a call, with its faults and what they are drawn with.
struct FaultEnd<'a> {
    faults: &'a EndFaults,
    counts: &'a FaultCounts,
    delay: DrawPurpose,
    delay_time: DrawPurpose,
    abort: DrawPurpose,
}

impl FaultFilter {
    pub(crate) fn new(shared: Arc<FaultShared>) -> FaultFilter {
        FaultFilter { shared }
    }

    fn end(&self, direction: Direction) -> FaultEnd<'_> {
        let shared = &*self.shared;
        match direction {
            Direction::Request => FaultEnd {
                faults: &shared.rules.request,
                counts: &shared.request,
                delay: DrawPurpose::Delay,
                delay_time: DrawPurpose::DelayTime,
                abort: DrawPurpose::Abort,
            },
            Direction::Response => FaultEnd {
                faults: &shared.rules.response,
                counts: &shared.response,
                delay: DrawPurpose::ResponseDelay,
                delay_time: DrawPurpose::ResponseDelayTime,
                abort: DrawPurpose::ResponseAbort,
            },
        }
    }

    fn matches(&self, step: &mut StepView<'_>) -> bool {
        self.shared.rules.matches.iter().all(|(key, expected)| {
            let found = step.metadata(key);
            match expected {
                Some(expected) => found == Some(expected.as_bytes()),
                None => found.is_some(),
            }
        })
    }

    /// When a step of a call may go on, if it is delayed.
    fn delay(
        &self,
        end: &FaultEnd<'_>,
        draw: CallDraws,
        step: &StepView<'_>,
    ) -> Option<(Nanos, ActiveDelay)> {
        let Delay {
            chance,
            least,
            spread,
        } = end.faults.delay.as_ref()?;
        if !draw.hits(*chance, end.delay) {
            return None;
        }
        let active = self.shared.begin(step.datapath_context())?;
        end.counts.delays.add(step.datapath_context(), 1);
        Some((step.now() + least + draw.time(*spread, end.delay_time), active))
    }

    fn abort(end: &FaultEnd<'_>, draw: CallDraws, datapath_context: &DatapathContext) -> Verdict {
        match &end.faults.abort {
            Some(Abort {
                chance,
                code,
                message,
            }) if draw.hits(*chance, end.abort) => {
                end.counts.aborts.add(datapath_context, 1);
                Verdict::Deny(Denial::new(*code, message.clone()))
            }
            _ => Verdict::Pass,
        }
    }
}

impl Filter for FaultFilter {
    type Call = DrawnFaults;

    fn watch(&self) -> Watch {
        let rules = &self.shared.rules;
        let watched = |faults: &EndFaults, parts| if faults.is_empty() { Parts::NONE } else { parts };
        Watch {
            // A call's number is drawn when it begins, whatever end of it has faults.
            requests: if rules.request.is_empty() && rules.response.is_empty() {
                Parts::NONE
            } else {
                Parts::BEGIN
            },
            responses: watched(&rules.response, Parts::STATUS),
            calls: rules.request.delay.is_some() || !rules.response.is_empty(),
        }
    }

    fn judge(&mut self, call: &mut DrawnFaults, step: &mut StepView<'_>) -> Verdict {
        let end = self.end(step.direction());
        let draw = match call.number {
            Some(number) => self.shared.draw(number),
            None if step.direction() == Direction::Request && self.matches(step) => self.shared.next(),
            None => return Verdict::Pass,
        };
        call.number = Some(draw.number);
        match call.until {
            // It waits, and perhaps the engine that began the delay is not this one.
            Some(until) if until > step.now() => {
                call.active.get_or_insert_with(|| self.shared.go_on());
                return Verdict::Hold { until };
            }
            Some(_) => (call.until, call.active) = (None, None),
            None => {
                if let Some((until, active)) = self.delay(&end, draw, step) {
                    (call.until, call.active) = (Some(until), Some(active));
                    return Verdict::Hold { until };
                }
            }
        }
        FaultFilter::abort(&end, draw, step.datapath_context())
    }
}

/// Saved: number u64, until u64 (0 for none); nothing of a call that does not match.
impl CallState for DrawnFaults {
    fn save(&self, out: &mut Vec<u8>) {
        if let Some(number) = self.number {
            out.extend_from_slice(&number.to_le_bytes());
            out.extend_from_slice(&self.until.unwrap_or(0).to_le_bytes());
        }
    }

    fn load(saved: &[u8]) -> Option<DrawnFaults> {
        if saved.is_empty() {
            return Some(DrawnFaults::default());
        }
        let (number, rest) = saved.split_first_chunk()?;
        let until = u64::from_le_bytes(rest.try_into().ok()?);
        Some(DrawnFaults {
            number: Some(u64::from_le_bytes(*number)),
            until: (until != 0).then_some(until),
            active: None,
        })
    }
}
