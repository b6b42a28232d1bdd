//! Access control: rules in CEL over typed message fields, metadata, method and peer.
//!
//! An operator writes rules; the first that matches a call allows or denies it. Expressions are checked against the
//! service's schema when the policy is attached, and evaluated over the message where it lies: nothing is parsed again,
//! and what was read is what is sent, or what the app gets. `docs/policies/access.md` has the language and examples.
//!
//! ```text
//! configure: Config, Source, ValueList ──prepare, for each method──► Program ──judge──► Pass or Deny
//! ```
#![forbid(unsafe_code)]

mod config;
mod counts;
pub mod expression;
mod filter;
mod lists;
mod program;

use std::sync::Arc;

use provost_engine::{
    AttachError, ConfigError, Environment, MetricSink, Policy, PolicyKind, SharedState, Sieve, SieveParts,
    Site, Start,
};

pub use config::{LISTS_MAX, RULES_MAX};
pub use lists::{LIST_BYTES_MAX, LIST_VALUES_MAX, ListError, ListType, ValueList};

use config::{Config, DEFAULT_RULE};
use counts::Counts;
use filter::{Access, Mode, Reasons, Shared};
use program::Program;

/// Name of the kind, and of its engines.
pub const KIND: &str = "access";
/// Version of this code.
pub const VERSION: u32 = 1;

/// Access control.
#[derive(Clone, Copy, Debug, Default)]
pub struct AccessKind;

impl PolicyKind for AccessKind {
    fn name(&self) -> &'static str {
        KIND
    }

    fn version(&self) -> u32 {
        VERSION
    }

    fn summary(&self) -> &'static str {
        "allows or denies calls by rules over message fields, metadata, method and peer"
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
        let config = Config::read(config)?;
        let names = || config.rules.iter().map(|rule| Arc::clone(&rule.name));
        let counts = Counts::new(names().chain([Arc::from(DEFAULT_RULE)]).collect(), shared);
        let reasons = names().map(Some).chain([None]);
        let shared = Shared {
            policy: Arc::clone(&environment.policy),
            events: Arc::clone(&environment.events),
            mode: match config.enforce {
                true => Mode::Enforce,
                false => Mode::Shadow,
            },
            on_error: config.on_error,
            reasons: reasons
                .map(|rule| reasons_of(&environment.policy, rule.as_deref(), &config))
                .collect(),
        };
        Ok(Arc::new(AccessPolicy {
            shared: Arc::new(shared),
            config,
            counts,
        }))
    }
}

fn reasons_of(policy: &str, rule: Option<&str>, config: &Config) -> Reasons {
    let told = match rule {
        Some(rule) => format!("denied by policy {policy:?}, rule {rule:?}"),
        None => format!("denied by policy {policy:?}: no rule allows it"),
    };
    Reasons {
        audit: match rule {
            Some(rule) => format!("rule {rule:?}").into(),
            None => "no rule allows it".into(),
        },
        status: match config.hide_rule {
            true => "denied by policy".into(),
            false => told.into(),
        },
        is_hidden: config.hide_rule,
    }
}

struct AccessPolicy {
    shared: Arc<Shared>,
    config: Config,
    counts: Counts,
}

impl Policy for AccessPolicy {
    fn prepare(&self, site: &Site) -> Result<Start, AttachError> {
        let in_scope = |index: usize| site.scope.get(index).copied().unwrap_or_default();
        let programs: Result<Box<[Program]>, AttachError> = site
            .methods
            .iter()
            .enumerate()
            .map(|(index, method)| match in_scope(index) {
                true => Program::compile(&self.config, site, method),
                false => Ok(Program::default()),
            })
            .collect();
        let filter = Access {
            shared: Arc::clone(&self.shared),
            shard: self.counts.shard(site.runtime),
            tables: Arc::clone(&site.tables),
            programs: programs?,
            peer: peer_name(site),
        };
        let parts = SieveParts {
            kind: KIND,
            version: VERSION,
            site: site.clone(),
            filter,
        };
        Ok(Box::new(move |saved| Ok(Box::new(Sieve::start(parts, saved)?))))
    }

    fn save(&self) -> SharedState {
        self.counts.save()
    }

    fn metrics(&self, sink: &mut dyn MetricSink) {
        self.counts.report(sink);
    }
}

/// Who is at the other end: by what it has proved, else by where it is.
fn peer_name(site: &Site) -> Arc<str> {
    match (&site.peer.app, site.peer.identity.is_empty()) {
        (_, false) => Arc::clone(&site.peer.identity),
        (Some(app), true) => Arc::clone(&app.name),
        (None, true) => Arc::clone(&site.peer.address),
    }
}
