//! The tap policy: sampled calls with their messages, redacted by field, in bounded memory.
//!
//! ```text
//! engine (runtime's thread): copies the steps of a sampled call ─► ring of records, the oldest is overwritten
//!                                                                      │ taken by the first reader that asks
//! readers (control plane) ◄── samples, as JSON with the schema's names ◄┘
//! ```

mod config;
mod disclosure;
mod filter;
mod history;
mod json;
mod message;
mod pool;
mod redaction;
mod repeated;

use std::sync::Arc;

use provost_engine::{
    AttachError, CallDisclosure, ConfigError, DatapathContext, Environment, FilterPolicy, MetricDescription,
    MetricSink, MetricType, SampleBatch, SampleSource, SharedState,
};

pub use filter::{TapFilter, TappedCall};

use config::{SampleSelection, TapConfig};
use history::SampleHistory;
use pool::{RecordPool, SampleCounts};
use redaction::RedactionRules;

const KIND: &str = "tap";
/// Version of what is saved.
const STATE_VERSION: u32 = 1;

static SAMPLES: MetricDescription = MetricDescription {
    name: "provost_tap_samples_total",
    help: "Calls that were sampled to their end.",
    kind: MetricType::Counter,
    unit: "{call}",
};
static OVERWRITTEN: MetricDescription = MetricDescription {
    name: "provost_tap_overwritten_total",
    help: "Samples that made room for newer ones before anybody read them.",
    kind: MetricType::Counter,
    unit: "{call}",
};
static DROPPED: MetricDescription = MetricDescription {
    name: "provost_tap_dropped_total",
    help: "Calls that were to be sampled while as many as there is room for were under way.",
    kind: MetricType::Counter,
    unit: "{call}",
};
static BYTES: MetricDescription = MetricDescription {
    name: "provost_tap_bytes",
    help: "Memory that holds metadata and messages of samples.",
    kind: MetricType::Gauge,
    unit: "By",
};

/// A policy that samples.
pub(crate) struct TapPolicy {
    selection: SampleSelection,
    rules: RedactionRules,
    pool: Arc<RecordPool>,
    history: SampleHistory,
}

impl FilterPolicy for TapPolicy {
    const KIND: &'static str = KIND;
    const SUMMARY: &'static str = "shows sampled calls, redacted by field";
    const EXAMPLE: &'static str = config::EXAMPLE;
    const METRICS: &'static [&'static MetricDescription] = &[&SAMPLES, &OVERWRITTEN, &DROPPED, &BYTES];
    type Config = TapConfig;
    type Filter = TapFilter;

    fn configure(
        config: TapConfig,
        environment: &Environment,
        shared: Option<&SharedState>,
    ) -> Result<TapPolicy, ConfigError> {
        config.check()?;
        let pool = Arc::new(RecordPool::new(config.bounds(), restore(shared)?));
        Ok(TapPolicy {
            selection: config.selection()?,
            rules: config.rules(),
            history: SampleHistory::new(
                Arc::clone(&pool),
                Arc::clone(&environment.policy),
                config.bounds(),
            ),
            pool,
        })
    }

    fn filter(&self, datapath_context: &DatapathContext) -> Result<TapFilter, AttachError> {
        let redaction = self.rules.compile(datapath_context).map_err(AttachError::new)?;
        let (pool, selection) = (Arc::clone(&self.pool), self.selection.clone());
        Ok(TapFilter::new(pool, selection, datapath_context, redaction))
    }

    fn save(&self) -> SharedState {
        SharedState::of_numbers(STATE_VERSION, self.pool.counts.read())
    }

    fn metrics(&self, sink: &mut dyn MetricSink) {
        let [samples, overwritten, dropped] = self.pool.counts.read();
        sink.number(&SAMPLES, &[], samples as f64);
        sink.number(&OVERWRITTEN, &[], overwritten as f64);
        sink.number(&DROPPED, &[], dropped as f64);
        sink.number(&BYTES, &[], (self.pool.bytes() + self.history.bytes()) as f64);
    }

    fn samples(&self) -> Option<&dyn SampleSource> {
        Some(self)
    }

    fn disclosure(&self, datapath_context: &DatapathContext) -> Option<CallDisclosure> {
        let redaction = self.rules.compile(datapath_context).ok()?;
        let sampled = self.selection.methods_of(datapath_context);
        Some(disclosure::of_service(&redaction, datapath_context, &sampled))
    }
}

fn restore(saved: Option<&SharedState>) -> Result<SampleCounts, ConfigError> {
    let Some(saved) = saved.filter(|saved| !saved.bytes.is_empty()) else {
        return Ok(SampleCounts::default());
    };
    let counts = saved.numbers(STATE_VERSION).map(SampleCounts::of);
    counts.ok_or_else(|| ConfigError::new("", "the predecessor's counters cannot be read"))
}

impl SampleSource for TapPolicy {
    fn read(&self, from: u64, samples_max: usize) -> SampleBatch {
        self.history.read(from, samples_max)
    }

    fn next(&self) -> u64 {
        self.history.next()
    }
}
