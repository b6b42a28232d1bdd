//! Policies of simulated datapaths: one that keeps a ledger of its verdicts and denies what calls ask to be denied, and one
//! that fails.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use provost_engine::{
    CallState, Code, DatapathContext, Denial, Engine, Filter, FilterEngine, FilterEngineParts, Parts,
    RestoreError, SavedState, StepView, Verdict, Watch,
};

use crate::plan::{Answer, Plan};
use crate::sabotage::Sabotage;

/// What the policy that judges calls is called among engines.
pub(crate) const LEDGER_KIND: &str = "sim-ledger";
/// What stands in for it when it has failed.
pub(crate) const CLOSED_KIND: &str = "sim-closed";
/// What the policy that fails is called.
pub(crate) const FAILING_KIND: &str = "sim-failing";

/// What was decided about each call, and how often it was executed, on all nodes.
#[derive(Clone, Debug)]
pub(crate) struct CallLedger {
    records: Arc<Mutex<HashMap<u64, CallRecord>>>,
    /// How often a verdict is written down.
    verdicts_each: u32,
}

/// What is known of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallRecord {
    pub(crate) verdicts: u32,
    pub(crate) executions: u32,
}

impl CallLedger {
    pub(crate) fn new(sabotage: Option<Sabotage>) -> CallLedger {
        CallLedger {
            records: Arc::default(),
            verdicts_each: if sabotage == Some(Sabotage::SecondVerdict) {
                2
            } else {
                1
            },
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, CallRecord>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_verdict(&self, nonce: u64) {
        self.lock().entry(nonce).or_default().verdicts += self.verdicts_each;
    }

    /// A server was told of the beginning of a call.
    pub(crate) fn note_execution(&self, nonce: u64) {
        self.lock().entry(nonce).or_default().executions += 1;
    }

    /// Checks what holds for every call at any time, and says how many there were.
    pub(crate) fn check(&self) -> Result<usize, String> {
        let records = self.lock();
        for (nonce, record) in records.iter() {
            record
                .check()
                .map_err(|what| format!("call {nonce} of all: {what}"))?;
        }
        Ok(records.len())
    }

    /// Checks a call that has ended well.
    pub(crate) fn check_ended_well(&self, nonce: u64) -> Result<(), String> {
        match self.lock().get(&nonce) {
            Some(CallRecord {
                verdicts: 1,
                executions: 1,
            }) => Ok(()),
            other => Err(format!("call {nonce} of all ended well, with {other:?}")),
        }
    }
}

impl CallRecord {
    fn check(self) -> Result<(), String> {
        match self {
            CallRecord { executions: 2.., .. } => Err(format!("executed {} times", self.executions)),
            CallRecord { verdicts: 2.., .. } => Err(format!("judged {} times", self.verdicts)),
            CallRecord {
                verdicts: 0,
                executions: 1,
            } => Err("executed without a verdict".to_owned()),
            _ => Ok(()),
        }
    }
}

/// Counts its verdicts, each call's with it, so that what it keeps of calls is saved and restored as well.
struct LedgerFilter {
    ledger: CallLedger,
    judging: LedgerJudging,
}

/// Whether an engine of the ledger does its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LedgerJudging {
    Done,
    /// For so many steps; then the engine fails.
    FailsAfter(u32),
}

/// Steps of a call that the ledger has seen.
#[derive(Default)]
struct SeenSteps(u32);

impl CallState for SeenSteps {
    fn save(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_le_bytes());
    }

    fn load(saved: &[u8]) -> Option<SeenSteps> {
        Some(SeenSteps(u32::from_le_bytes(saved.try_into().ok()?)))
    }
}

impl Filter for LedgerFilter {
    type Call = SeenSteps;

    fn watch(&self) -> Watch {
        Watch::ALL
    }

    fn judge(&mut self, call: &mut SeenSteps, step: &mut StepView<'_>) -> Verdict {
        match &mut self.judging {
            LedgerJudging::Done => {}
            LedgerJudging::FailsAfter(0) => return Verdict::Fault(Cow::Borrowed("as it was made to")),
            LedgerJudging::FailsAfter(steps) => *steps -= 1,
        }
        call.0 += 1;
        if !step.parts().contains(Parts::BEGIN) {
            return Verdict::Pass;
        }
        let Some(plan) = step.metadata(crate::plan::KEY).and_then(Plan::from_value) else {
            return Verdict::Deny(Denial::new(Code::InvalidArgument, "a call without a plan"));
        };
        self.ledger.note_verdict(plan.nonce);
        if plan.answer == Answer::Denied {
            return Verdict::Deny(Denial::new(Code::PermissionDenied, "as the plan asks"));
        }
        Verdict::Pass
    }
}

/// Ends the calls that the ledger would judge.
struct ClosedFilter;

/// Whatever the failed filter kept of a call.
#[derive(Default)]
struct AnyState;

impl CallState for AnyState {
    fn load(_saved: &[u8]) -> Option<AnyState> {
        Some(AnyState)
    }
}

impl Filter for ClosedFilter {
    type Call = AnyState;

    fn watch(&self) -> Watch {
        Watch::ALL
    }

    fn judge(&mut self, _call: &mut AnyState, _step: &mut StepView<'_>) -> Verdict {
        Verdict::Deny(Denial::new(Code::Unavailable, "the policy has failed"))
    }
}

/// Passes so many steps, and then fails.
struct FailingFilter {
    passes: u32,
}

impl Filter for FailingFilter {
    type Call = AnyState;

    fn watch(&self) -> Watch {
        Watch::ALL
    }

    fn judge(&mut self, _call: &mut AnyState, _step: &mut StepView<'_>) -> Verdict {
        match self.passes.checked_sub(1) {
            Some(left) => {
                self.passes = left;
                Verdict::Pass
            }
            None => Verdict::Fault(Cow::Borrowed("as it was made to")),
        }
    }
}

/// An engine of the ledger, from what one of any version saved.
pub(crate) fn ledger(
    ledger: &CallLedger,
    judging: LedgerJudging,
    version: u32,
    context: &DatapathContext,
    saved: Option<&SavedState>,
) -> Result<Box<dyn Engine>, RestoreError> {
    let filter = LedgerFilter {
        ledger: ledger.clone(),
        judging,
    };
    Ok(Box::new(FilterEngine::start(
        parts(LEDGER_KIND, version, context, filter),
        saved,
    )?))
}

/// What stands in for a policy that has failed.
pub(crate) fn closed(
    context: &DatapathContext,
    saved: Option<&SavedState>,
) -> Result<Box<dyn Engine>, RestoreError> {
    let saved = saved.map(|saved| SavedState {
        kind: CLOSED_KIND.to_owned(),
        ..saved.clone()
    });
    let parts = || parts(CLOSED_KIND, 1, context, ClosedFilter);
    let engine = FilterEngine::start(parts(), saved.as_ref());
    Ok(Box::new(engine.unwrap_or_else(|_| FilterEngine::new(parts()))))
}

/// A policy that passes so many steps and then fails.
pub(crate) fn failing(
    passes: u32,
    context: &DatapathContext,
    saved: Option<&SavedState>,
) -> Result<Box<dyn Engine>, RestoreError> {
    let parts = parts(FAILING_KIND, 1, context, FailingFilter { passes });
    Ok(Box::new(FilterEngine::start(parts, saved)?))
}

fn parts<F: Filter>(
    kind: &'static str,
    version: u32,
    context: &DatapathContext,
    filter: F,
) -> FilterEngineParts<F> {
    FilterEngineParts {
        kind,
        version,
        datapath_context: context.clone(),
        filter,
    }
}
