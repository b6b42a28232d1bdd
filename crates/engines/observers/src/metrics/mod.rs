//! The metrics policy: counts and histograms of calls by app, service, method, side and status.
//!
//! ```text
//! engine (one thread) ─► Shard of its app, service and runtime: plain stores to atomics that it alone writes
//!                              ▲ read by each scrape, merged by labels
//!                           Ledger ── saved and restored, so that counters go on where a predecessor left them
//! ```

mod buckets;
mod filter;
mod ledger;
mod report;
mod shard;
mod totals;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use provost_engine::{
    AttachError, ConfigError, DatapathContext, Environment, FilterPolicy, MethodCalls, MetricDescription,
    MetricSink, SharedState, check_range,
};
use serde::Deserialize;

pub use buckets::{LATENCY_SECONDS, SIZE_BYTES};
pub use filter::{CallTally, MetricsFilter};

use ledger::{LedgerId, MetricsLedger};
use totals::Totals;

const KIND: &str = "metrics";
/// Version of what is saved.
const STATE_VERSION: u32 = 1;
/// Apps and services that may have series of their own, at most.
const SERVICES_MAX: usize = 4096;

/// The ledgers of this process's policies, so that a policy that takes another's place goes on counting in the same one:
/// nothing is lost between the moment when the old one was saved and the last call that it sees.
static LIVE: Mutex<BTreeMap<LedgerId, Weak<MetricsLedger>>> = Mutex::new(BTreeMap::new());

/// Every key with its default.
const EXAMPLE: &str = "\
# How many pairs of an app and a service have series of their own (1 to 4096). Further ones are counted
# together, with \"other\" as their app, service and method.
services_max = 256
";

/// What an operator can set.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct MetricsConfig {
    services_max: usize,
}

impl Default for MetricsConfig {
    fn default() -> MetricsConfig {
        MetricsConfig { services_max: 256 }
    }
}

/// A policy that counts.
pub(crate) struct MetricsPolicy {
    ledger: Arc<MetricsLedger>,
    services_max: usize,
}

impl FilterPolicy for MetricsPolicy {
    const KIND: &'static str = KIND;
    const SUMMARY: &'static str =
        "counts calls by app, service, method, side and status, with latency and size histograms";
    const EXAMPLE: &'static str = EXAMPLE;
    const METRICS: &'static [&'static MetricDescription] = report::METRICS;
    type Config = MetricsConfig;
    type Filter = MetricsFilter;

    fn configure(
        config: MetricsConfig,
        _environment: &Environment,
        shared: Option<&SharedState>,
    ) -> Result<MetricsPolicy, ConfigError> {
        check_range("services_max", config.services_max, 1..=SERVICES_MAX)?;
        Ok(MetricsPolicy {
            ledger: ledger(shared)?,
            services_max: config.services_max,
        })
    }

    fn filter(&self, datapath_context: &DatapathContext) -> Result<MetricsFilter, AttachError> {
        let shard = self.ledger.shard(datapath_context, self.services_max);
        let gauge = self.ledger.gauge(&shard, datapath_context.methods.len());
        Ok(MetricsFilter::new(shard, gauge, datapath_context))
    }

    fn save(&self) -> SharedState {
        SharedState {
            version: STATE_VERSION,
            bytes: self.ledger.totals().save(self.ledger.id()),
        }
    }

    fn metrics(&self, sink: &mut dyn MetricSink) {
        report::report(&self.ledger.totals(), &self.ledger.in_flight(), sink);
    }

    fn calls(&self) -> Option<Vec<MethodCalls>> {
        Some(report::method_calls(
            &self.ledger.totals(),
            &self.ledger.in_flight(),
        ))
    }
}

/// The ledger to count in: that of the predecessor, if it is in this process, else one that begins with what the
/// predecessor saved.
fn ledger(shared: Option<&SharedState>) -> Result<Arc<MetricsLedger>, ConfigError> {
    let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    live.retain(|_, ledger| ledger.strong_count() > 0);
    let saved = shared.filter(|shared| !shared.bytes.is_empty());
    let (id, totals) = match saved {
        None => (None, Totals::default()),
        Some(saved) if saved.version == STATE_VERSION => {
            let (id, totals) = Totals::load(&saved.bytes)
                .ok_or_else(|| ConfigError::new("", "what the predecessor counted cannot be read"))?;
            (Some(id), totals)
        }
        Some(newer) => {
            let problem = format!(
                "what the predecessor counted has version {}, this one reads {STATE_VERSION}",
                newer.version
            );
            return Err(ConfigError::new("", problem));
        }
    };
    if let Some(shared) = id.and_then(|id| live.get(&id)).and_then(Weak::upgrade) {
        return Ok(shared);
    }
    let id = LedgerId([RandomState::new().hash_one(0), RandomState::new().hash_one(1)]);
    let ledger = Arc::new(MetricsLedger::new(id, totals));
    live.insert(id, Arc::downgrade(&ledger));
    Ok(ledger)
}
