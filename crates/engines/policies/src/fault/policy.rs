//! The policy once it is attached: the numbers of the calls, and what was counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use provost_engine::{
    AttachError, ConfigError, Counter, DatapathContext, Environment, FilterPolicy, MetricDescription,
    MetricSink, MetricType, SameNodeCalls, SharedState,
};

use super::config::{EXAMPLE, FaultConfig, FaultRules};
use super::draw::CallDraws;
use super::filter::FaultFilter;

/// Version of the form of the shared state.
const STATE_VERSION: u32 = 1;

static ABORTS: MetricDescription = MetricDescription {
    name: "provost_fault_aborts_injected_total",
    help: "Calls that were aborted, by what was: their request or their response.",
    kind: MetricType::Counter,
    unit: "{call}",
};
static DELAYS: MetricDescription = MetricDescription {
    name: "provost_fault_delays_injected_total",
    help: "Calls that were delayed, by what was: their request or their response.",
    kind: MetricType::Counter,
    unit: "{call}",
};
static ACTIVE: MetricDescription = MetricDescription {
    name: "provost_fault_active_faults",
    help: "Calls that are being delayed.",
    kind: MetricType::Gauge,
    unit: "{call}",
};
static OVERFLOW: MetricDescription = MetricDescription {
    name: "provost_fault_faults_overflow_total",
    help: "Delays that were left out as max_active_faults others were under way.",
    kind: MetricType::Counter,
    unit: "{call}",
};

/// What the engines of a fault share.
pub(crate) struct Fault(Arc<FaultShared>);

pub(crate) struct FaultShared {
    pub(crate) rules: FaultRules,
    number: AtomicU64,
    active: AtomicU64,
    pub(crate) request: FaultCounts,
    pub(crate) response: FaultCounts,
    overflow: Counter,
}

/// How often something happened to one end of the calls.
#[derive(Default)]
pub(crate) struct FaultCounts {
    pub(crate) aborts: Counter,
    pub(crate) delays: Counter,
}

/// One delay that is under way.
pub(crate) struct ActiveDelay(Arc<FaultShared>);

impl Drop for ActiveDelay {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

impl FaultShared {
    /// The draws of the next call that matches.
    pub(crate) fn next(&self) -> CallDraws {
        self.draw(self.number.fetch_add(1, Ordering::Relaxed))
    }

    /// The draws of the call with this number.
    pub(crate) fn draw(&self, number: u64) -> CallDraws {
        CallDraws {
            seed: self.rules.seed,
            number,
        }
    }

    /// Begins a delay, unless too many are under way.
    pub(crate) fn begin(self: &Arc<FaultShared>, datapath_context: &DatapathContext) -> Option<ActiveDelay> {
        let one_more = |active| (active < self.rules.active_max).then_some(active + 1);
        if self
            .active
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .is_err()
        {
            self.overflow.add(datapath_context, 1);
            return None;
        }
        Some(ActiveDelay(Arc::clone(self)))
    }

    /// Goes on with a delay that began before this policy took over.
    pub(crate) fn go_on(self: &Arc<FaultShared>) -> ActiveDelay {
        self.active.fetch_add(1, Ordering::Relaxed);
        ActiveDelay(Arc::clone(self))
    }
}

impl FilterPolicy for Fault {
    const KIND: &'static str = "fault";
    const SAME_NODE_CALLS: SameNodeCalls = SameNodeCalls::Once;
    const SUMMARY: &'static str = "delays and aborts calls by percentage and match, from a seed";
    const EXAMPLE: &'static str = EXAMPLE;
    const METRICS: &'static [&'static MetricDescription] = &[&ABORTS, &DELAYS, &ACTIVE, &OVERFLOW];
    type Config = FaultConfig;
    type Filter = FaultFilter;

    fn configure(
        config: FaultConfig,
        environment: &Environment,
        shared: Option<&SharedState>,
    ) -> Result<Fault, ConfigError> {
        let told = environment.with_place(format!("aborted on purpose by policy {:?}", environment.policy));
        let rules = config.check(&told)?;
        // Another seed is another sequence.
        let number = match shared.and_then(|shared| shared.numbers(STATE_VERSION)) {
            Some([seed, number]) if seed == rules.seed => number,
            _ => 0,
        };
        Ok(Fault(Arc::new(FaultShared {
            rules,
            number: AtomicU64::new(number),
            active: AtomicU64::new(0),
            request: FaultCounts::default(),
            response: FaultCounts::default(),
            overflow: Counter::new(),
        })))
    }

    fn filter(&self, _datapath_context: &DatapathContext) -> Result<FaultFilter, AttachError> {
        Ok(FaultFilter::new(Arc::clone(&self.0)))
    }

    fn save(&self) -> SharedState {
        let number = self.0.number.load(Ordering::Relaxed);
        SharedState::of_numbers(STATE_VERSION, [self.0.rules.seed, number])
    }

    fn metrics(&self, sink: &mut dyn MetricSink) {
        let shared = &*self.0;
        for (on, counts) in [("request", &shared.request), ("response", &shared.response)] {
            counts.aborts.report(&ABORTS, &[("on", on)], sink);
            counts.delays.report(&DELAYS, &[("on", on)], sink);
        }
        let active = shared.active.load(Ordering::Relaxed);
        sink.number(&ACTIVE, &[], active as f64);
        shared.overflow.report(&OVERFLOW, &[], sink);
    }
}
