//! The policy once it is attached: the numbers of the calls, and what was counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use provost_datapath::{FieldReader, FieldWriter};
use provost_engine::{
    AttachError, Counter, MetricDescription, MetricSink, MetricType, Policy, SharedState, Sieve, SieveParts,
    Site, Start,
};

use crate::config::Rules;
use crate::draw::Draw;
use crate::filter::FaultFilter;
use crate::{KIND, VERSION};

/// Version of the form of the shared state.
const STATE_VERSION: u32 = 1;

const ABORTS: MetricDescription = MetricDescription {
    name: "provost_fault_aborts_injected_total",
    help: "Calls that were aborted, by what was: their request or their response.",
    kind: MetricType::Counter,
    unit: "{call}",
};
const DELAYS: MetricDescription = MetricDescription {
    name: "provost_fault_delays_injected_total",
    help: "Calls that were delayed, by what was: their request or their response.",
    kind: MetricType::Counter,
    unit: "{call}",
};
const ACTIVE: MetricDescription = MetricDescription {
    name: "provost_fault_active_faults",
    help: "Calls that are being delayed.",
    kind: MetricType::Gauge,
    unit: "{call}",
};
const OVERFLOW: MetricDescription = MetricDescription {
    name: "provost_fault_faults_overflow_total",
    help: "Delays that were left out as max_active_faults others were under way.",
    kind: MetricType::Counter,
    unit: "{call}",
};

/// What the engines of a fault share.
pub(crate) struct Fault(Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) rules: Rules,
    /// Calls that matched.
    number: AtomicU64,
    active: AtomicU64,
    pub(crate) request: Counts,
    pub(crate) response: Counts,
    overflow: Counter,
}

/// How often something happened to one end of the calls.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) aborts: Counter,
    pub(crate) delays: Counter,
}

/// One delay that is under way.
pub(crate) struct Active(Arc<Shared>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    /// The draws of the next call that matches.
    pub(crate) fn next(&self) -> Draw {
        self.draw(self.number.fetch_add(1, Ordering::Relaxed))
    }

    /// The draws of the call with this number.
    pub(crate) fn draw(&self, number: u64) -> Draw {
        Draw {
            seed: self.rules.seed,
            number,
        }
    }

    /// Begins a delay, unless too many are under way.
    pub(crate) fn begin(self: &Arc<Shared>, site: &Site) -> Option<Active> {
        let one_more = |active| (active < self.rules.active_max).then_some(active + 1);
        if self
            .active
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .is_err()
        {
            self.overflow.add(site, 1);
            return None;
        }
        Some(Active(Arc::clone(self)))
    }

    /// Goes on with a delay that began before this policy took over.
    pub(crate) fn go_on(self: &Arc<Shared>) -> Active {
        self.active.fetch_add(1, Ordering::Relaxed);
        Active(Arc::clone(self))
    }
}

impl Fault {
    pub(crate) fn new(rules: Rules, shared: Option<&SharedState>) -> Fault {
        // Another seed is another sequence.
        let number = shared
            .and_then(read)
            .filter(|(seed, _)| *seed == rules.seed)
            .map_or(0, |(_, number)| number);
        Fault(Arc::new(Shared {
            rules,
            number: AtomicU64::new(number),
            active: AtomicU64::new(0),
            request: Counts::default(),
            response: Counts::default(),
            overflow: Counter::new(),
        }))
    }
}

impl Policy for Fault {
    fn prepare(&self, site: &Site) -> Result<Start, AttachError> {
        let parts = SieveParts {
            kind: KIND,
            version: VERSION,
            site: site.clone(),
            filter: FaultFilter::new(Arc::clone(&self.0)),
        };
        Ok(Box::new(move |saved| Ok(Box::new(Sieve::start(parts, saved)?))))
    }

    fn save(&self) -> SharedState {
        let mut out = FieldWriter::new();
        out.u64(self.0.rules.seed);
        out.u64(self.0.number.load(Ordering::Relaxed));
        SharedState {
            version: STATE_VERSION,
            bytes: out.bytes,
        }
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

/// Seed and number of a saved state, if it makes sense.
fn read(state: &SharedState) -> Option<(u64, u64)> {
    if state.version != STATE_VERSION {
        return None;
    }
    let mut fields = FieldReader::new(KIND, &state.bytes);
    let read = (fields.u64().ok()?, fields.u64().ok()?);
    fields.end().ok()?;
    Some(read)
}
