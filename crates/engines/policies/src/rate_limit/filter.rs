//! The filter of one datapath.

use std::sync::Arc;

use provost_engine::{CallState, Code, Denial, Filter, Parts, StepView, Verdict, Watch};

use crate::rate_limit::atomic::Ordering;
use crate::rate_limit::bucket::{ChargeAnswer, Ticks, nanos, ticks};
use crate::rate_limit::key::KeyPlan;
use crate::rate_limit::policy::{LimitShared, latest};

const NANOS_PER_MILLISECOND: u64 = 1_000_000;

/// Charges the calls of one datapath as they begin.
pub(crate) struct LimitFilter(Option<Limited>);

struct Limited {
    shared: Arc<LimitShared>,
    keys: KeyPlan,
}

impl LimitFilter {
    pub(crate) fn unlimited() -> LimitFilter {
        LimitFilter(None)
    }

    pub(crate) fn new(shared: Arc<LimitShared>, keys: KeyPlan) -> LimitFilter {
        LimitFilter(Some(Limited { shared, keys }))
    }
}

impl Filter for LimitFilter {
    type Call = QueuedCall;

    fn watch(&self) -> Watch {
        match &self.0 {
            None => Watch {
                requests: Parts::NONE,
                ..Watch::BEGINNINGS
            },
            // A call that waits can be given up, and then its token goes back.
            Some(limited) => Watch {
                calls: limited.shared.wait_max.is_some(),
                ..Watch::BEGINNINGS
            },
        }
    }

    fn judge(&mut self, call: &mut QueuedCall, step: &mut StepView<'_>) -> Verdict {
        match &self.0 {
            None => Verdict::Pass,
            Some(limited) => limited.judge(call, step),
        }
    }
}

impl Limited {
    fn judge(&self, call: &mut QueuedCall, step: &mut StepView<'_>) -> Verdict {
        let now = ticks(step.now());
        if let Some(verdict) = call.turn(step, now) {
            return verdict;
        }
        let Limited { shared, keys } = self;
        let Ok(key) = keys.key(step) else {
            // It is charged to nobody: what is around the filter ends a call whose message was read in vain.
            return Verdict::Pass;
        };
        shared.note_time(step.datapath_context(), now);
        let latest = match shared.wait_max {
            None => now,
            Some(wait_max) => latest(wait_max, now, step.deadline()),
        };
        match shared.charge(key, now, latest) {
            ChargeAnswer::At(turn) if turn <= now => {
                shared.ok.add(step.datapath_context(), 1);
                Verdict::Pass
            }
            ChargeAnswer::At(turn) => {
                shared.queued.add(step.datapath_context(), 1);
                *call = QueuedCall::until(turn, key, shared);
                Verdict::Hold { until: nanos(turn) }
            }
            ChargeAnswer::Over(turn) => {
                shared.rejected.add(step.datapath_context(), 1);
                self.reject(turn - latest.min(turn))
            }
        }
    }

    #[cold]
    fn reject(&self, wait: Ticks) -> Verdict {
        let milliseconds = nanos(wait).div_ceil(NANOS_PER_MILLISECOND).max(1);
        let reason = self.shared.rejection.with_wait(milliseconds);
        let denial = Denial::new(Code::ResourceExhausted, reason);
        Verdict::Deny(Denial {
            retry_pushback_ms: Some(i64::try_from(milliseconds).unwrap_or(i64::MAX)),
            ..denial
        })
    }
}

/// A call that may wait for its turn. The token that it took in advance goes back unless it has its turn: when it is
/// given up, and also when another engine takes over, which charges the call again.
#[derive(Default)]
pub(crate) struct QueuedCall(Option<AdvanceToken>);

struct AdvanceToken {
    turn: Ticks,
    key: u64,
    shared: Arc<LimitShared>,
    use_of_token: BucketUse,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BucketUse {
    Outstanding,
    Spent,
}

impl QueuedCall {
    fn until(turn: Ticks, key: u64, shared: &Arc<LimitShared>) -> QueuedCall {
        shared.waiting.fetch_add(1, Ordering::Relaxed);
        QueuedCall(Some(AdvanceToken {
            turn,
            key,
            shared: Arc::clone(shared),
            use_of_token: BucketUse::Outstanding,
        }))
    }

    /// What becomes of the call if it waits.
    fn turn(&mut self, step: &StepView<'_>, now: Ticks) -> Option<Verdict> {
        let advance = self.0.as_ref()?;
        if advance.turn > now {
            let until = nanos(advance.turn);
            return Some(Verdict::Hold { until });
        }
        let mut advance = self.0.take()?;
        advance.use_of_token = BucketUse::Spent;
        let since = step.held_since().unwrap_or(step.begun_at());
        advance.shared.waits.observe(step.now().saturating_sub(since));
        Some(Verdict::Pass)
    }
}

impl Drop for AdvanceToken {
    fn drop(&mut self) {
        self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
        if self.use_of_token == BucketUse::Outstanding {
            self.shared.refund(self.key);
        }
    }
}

/// Nothing is saved: the successor charges what still waits.
impl CallState for QueuedCall {}
