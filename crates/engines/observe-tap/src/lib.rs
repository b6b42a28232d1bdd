//! The tap policy: sampled calls with their messages, redacted by field, in bounded memory.
//!
//! ```text
//! engine (runtime's thread): copies the steps of a sampled call ─► ring of records, the oldest is overwritten
//!                                                                      │ taken by the first reader that asks
//! readers (control plane) ◄── samples, as JSON with the schema's names ◄┘
//! ```
#![forbid(unsafe_code)]

mod config;
mod filter;
mod history;
mod json;
mod message;
mod pool;
mod redaction;

use std::sync::Arc;

use provost_datapath::{FieldReader, FieldWriter};
use provost_engine::{
    AttachError, ConfigError, Environment, MetricDescription, MetricSink, MetricType, Policy, PolicyKind,
    RestoreError, SampleBatch, SampleSource, SharedState, Sieve, SieveParts, Site, Start,
};

pub use filter::{TapFilter, TappedCall};

use config::{Config, Selection};
use history::History;
use pool::{Counts, Pool};
use redaction::Rules;

/// [`PolicyKind::name`] of this kind.
pub const KIND: &str = "tap";
/// Version of this code.
const VERSION: u32 = 1;
/// Version of what is saved.
const STATE_VERSION: u32 = 1;

/// All metrics of this policy.
pub const METRICS: [MetricDescription; 4] = [
    MetricDescription {
        name: "provost_tap_samples_total",
        help: "Calls that were sampled to their end.",
        kind: MetricType::Counter,
        unit: "{call}",
    },
    MetricDescription {
        name: "provost_tap_overwritten_total",
        help: "Samples that made room for newer ones before anybody read them.",
        kind: MetricType::Counter,
        unit: "{call}",
    },
    MetricDescription {
        name: "provost_tap_dropped_total",
        help: "Calls that were to be sampled while as many as there is room for were under way.",
        kind: MetricType::Counter,
        unit: "{call}",
    },
    MetricDescription {
        name: "provost_tap_bytes",
        help: "Memory that holds metadata and messages of samples.",
        kind: MetricType::Gauge,
        unit: "By",
    },
];

static SAMPLES: MetricDescription = METRICS[0];
static OVERWRITTEN: MetricDescription = METRICS[1];
static DROPPED: MetricDescription = METRICS[2];
static BYTES: MetricDescription = METRICS[3];

/// The kind.
#[derive(Debug, Default)]
pub struct TapKind {}

impl PolicyKind for TapKind {
    fn name(&self) -> &'static str {
        KIND
    }

    fn version(&self) -> u32 {
        VERSION
    }

    fn summary(&self) -> &'static str {
        "shows sampled calls, redacted by field"
    }

    fn example(&self) -> &'static str {
        config::EXAMPLE
    }

    fn configure(
        &self,
        config: &toml::Table,
        environment: &Environment,
        shared: Option<&SharedState>,
    ) -> Result<Arc<dyn Policy>, ConfigError> {
        let config = Config::parse(config)?;
        let pool = Arc::new(Pool::new(config.bounds(), restore(shared)?));
        Ok(Arc::new(TapPolicy {
            selection: config.selection()?,
            rules: config.rules(),
            history: History::new(
                Arc::clone(&pool),
                Arc::clone(&environment.policy),
                config.bounds(),
            ),
            pool,
        }))
    }
}

fn restore(saved: Option<&SharedState>) -> Result<Counts, ConfigError> {
    let Some(saved) = saved.filter(|saved| !saved.bytes.is_empty()) else {
        return Ok(Counts::default());
    };
    let load = || -> Result<Counts, RestoreError> {
        let mut fields = FieldReader::new(KIND, &saved.bytes);
        let counts = Counts::of([fields.u64()?, fields.u64()?, fields.u64()?]);
        fields.end()?;
        Ok(counts)
    };
    match (saved.version, load()) {
        (STATE_VERSION, Ok(counts)) => Ok(counts),
        _ => Err(ConfigError::new("", "the predecessor's counters cannot be read")),
    }
}

/// A policy that samples.
pub struct TapPolicy {
    selection: Selection,
    rules: Rules,
    pool: Arc<Pool>,
    history: History,
}

impl Policy for TapPolicy {
    fn prepare(&self, site: &Site) -> Result<Start, AttachError> {
        let redaction = self.rules.compile(site).map_err(AttachError::new)?;
        let filter = TapFilter::new(Arc::clone(&self.pool), self.selection.clone(), site, redaction);
        let parts = SieveParts {
            kind: KIND,
            version: VERSION,
            site: site.clone(),
            filter,
        };
        Ok(Box::new(move |saved| Ok(Box::new(Sieve::start(parts, saved)?))))
    }

    fn save(&self) -> SharedState {
        let mut out = FieldWriter::new();
        self.pool
            .counts
            .read()
            .into_iter()
            .for_each(|count| out.u64(count));
        SharedState {
            version: STATE_VERSION,
            bytes: out.bytes,
        }
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
}

impl SampleSource for TapPolicy {
    fn read(&self, from: u64, samples_max: usize) -> SampleBatch {
        self.history.read(from, samples_max)
    }

    fn next(&self) -> u64 {
        self.history.next()
    }
}
