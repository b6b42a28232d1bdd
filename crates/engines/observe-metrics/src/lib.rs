//! The metrics policy: counts and histograms of calls by app, service, method, side and status.
//!
//! ```text
//! engine (one thread) ─► Shard of its app, service and runtime: plain stores to atomics that it alone writes
//!                              ▲ read by each scrape, merged by labels
//!                           Ledger ── saved and restored, so that counters go on where a predecessor left them
//! ```
#![forbid(unsafe_code)]

mod buckets;
mod filter;
mod ledger;
mod metrics;
mod shard;
mod totals;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use provost_engine::{
    AttachError, ConfigError, Environment, MethodCalls, MetricSink, Policy, PolicyKind, SharedState, Sieve,
    SieveParts, Site, Start, parse_config,
};
use serde::Deserialize;

pub use buckets::{LATENCY_SECONDS, SIZE_BYTES};
pub use filter::{CallTally, MetricsFilter};
pub use metrics::METRICS;

use ledger::{Ledger, LedgerId};
use totals::Totals;

/// [`PolicyKind::name`] of this kind.
pub const KIND: &str = "metrics";
/// Version of this code.
const VERSION: u32 = 1;
/// Version of what is saved.
const STATE_VERSION: u32 = 1;
/// Apps and services that may have series of their own, at most.
const SERVICES_MAX: usize = 4096;

/// The kind. It knows the ledgers of its policies, so that a policy that takes another's place goes on counting in the
/// same one: nothing is lost between the moment when the old one was saved and the last call that it sees.
#[derive(Default)]
pub struct MetricsKind {
    live: Mutex<HashMap<LedgerId, Weak<Ledger>>>,
    random: RandomState,
}

/// What an operator can set.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    services_max: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config { services_max: 256 }
    }
}

impl PolicyKind for MetricsKind {
    fn name(&self) -> &'static str {
        KIND
    }

    fn version(&self) -> u32 {
        VERSION
    }

    fn summary(&self) -> &'static str {
        "counts calls by app, service, method, side and status, with latency and size histograms"
    }

    fn example(&self) -> &'static str {
        "# How many pairs of an app and a service have series of their own (1 to 4096). Further ones are counted\n\
         # together, with \"other\" as their app, service and method.\n\
         services_max = 256\n"
    }

    fn configure(
        &self,
        config: &toml::Table,
        _environment: &Environment,
        shared: Option<&SharedState>,
    ) -> Result<Arc<dyn Policy>, ConfigError> {
        let Config { services_max } = parse_config(config)?;
        if !(1..=SERVICES_MAX).contains(&services_max) {
            let problem = format!("{services_max} is out of range: 1 to {SERVICES_MAX}");
            return Err(ConfigError::new("services_max", problem));
        }
        let ledger = self.ledger(shared)?;
        ledger.set_services_max(services_max);
        Ok(Arc::new(MetricsPolicy { ledger }))
    }
}

impl MetricsKind {
    /// The ledger to count in: that of the predecessor, if it is in this process, else one that begins with what the
    /// predecessor saved.
    fn ledger(&self, shared: Option<&SharedState>) -> Result<Arc<Ledger>, ConfigError> {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
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
        let id = LedgerId([self.random.hash_one(live.len()), RandomState::new().hash_one(0)]);
        let ledger = Arc::new(Ledger::new(id, totals));
        live.insert(id, Arc::downgrade(&ledger));
        Ok(ledger)
    }
}

/// A policy that counts.
pub struct MetricsPolicy {
    ledger: Arc<Ledger>,
}

impl Policy for MetricsPolicy {
    fn prepare(&self, site: &Site) -> Result<Start, AttachError> {
        let filter = MetricsFilter::new(self.ledger.shard(site), self.ledger.gauge(site), site);
        let parts = SieveParts {
            kind: KIND,
            version: VERSION,
            site: site.clone(),
            filter,
        };
        Ok(Box::new(move |saved| Ok(Box::new(Sieve::start(parts, saved)?))))
    }

    fn save(&self) -> SharedState {
        SharedState {
            version: STATE_VERSION,
            bytes: self.ledger.totals().save(self.ledger.id()),
        }
    }

    fn metrics(&self, sink: &mut dyn MetricSink) {
        metrics::report(&self.ledger.totals(), &self.ledger.in_flight(), sink);
    }

    fn calls(&self) -> Option<Vec<MethodCalls>> {
        Some(metrics::method_calls(
            &self.ledger.totals(),
            &self.ledger.in_flight(),
        ))
    }
}
