//! Access control: rules in CEL over typed message fields, metadata, method and peer.
//!
//! An operator writes rules; the first that matches a call allows or denies it. Expressions are checked against the
//! service's schema when the policy is attached, and evaluated over the message where it lies: nothing is parsed again,
//! and what was read is what is sent, or what the app gets. `docs/policies/access.md` has the language and examples.
//!
//! ```text
//! configure: Config, Source, ValueList ──prepare, for each method──► Program ──judge──► Pass or Deny
//! ```

mod config;
mod counts;
pub mod expression;
mod filter;
mod lists;
mod program;

use std::sync::Arc;

use provost_engine::{
    AttachError, ConfigError, DatapathContext, Environment, FilterPolicy, MetricDescription, MetricSink,
    SharedState,
};

pub use config::{LISTS_MAX, RULES_MAX};
pub use lists::{LIST_BYTES_MAX, LIST_VALUES_MAX, ListError, ListType, ValueList};

use config::{AccessConfig, DEFAULT_RULE, WrittenConfig};
use counts::{METRICS, RuleCounts};
use filter::{AccessFilter, AccessShared, DenialReasons, EnforcementMode};
use program::MethodProgram;

pub(crate) struct AccessPolicy {
    shared: Arc<AccessShared>,
    config: AccessConfig,
    counts: RuleCounts,
}

impl FilterPolicy for AccessPolicy {
    const KIND: &'static str = "access";
    const SUMMARY: &'static str =
        "allows or denies calls by rules over message fields, metadata, method and peer";
    const EXAMPLE: &'static str = config::EXAMPLE;
    const METRICS: &'static [&'static MetricDescription] = METRICS;
    type Config = WrittenConfig;
    type Filter = AccessFilter;

    fn configure(
        config: WrittenConfig,
        environment: &Environment,
        shared: Option<&SharedState>,
    ) -> Result<AccessPolicy, ConfigError> {
        let config = config.check()?;
        let names = || config.rules.iter().map(|rule| Arc::clone(&rule.name));
        let counts = RuleCounts::new(names().chain([Arc::from(DEFAULT_RULE)]).collect(), shared);
        let reasons = names().map(Some).chain([None]);
        let shared = AccessShared {
            policy: Arc::clone(&environment.policy),
            events: Arc::clone(&environment.events),
            mode: if config.enforce {
                EnforcementMode::Enforce
            } else {
                EnforcementMode::Shadow
            },
            on_error: config.on_error,
            reasons: reasons
                .map(|rule| reasons_of(environment, rule.as_deref(), &config))
                .collect(),
        };
        Ok(AccessPolicy {
            shared: Arc::new(shared),
            config,
            counts,
        })
    }

    fn filter(&self, datapath_context: &DatapathContext) -> Result<AccessFilter, AttachError> {
        let in_scope = |index: usize| datapath_context.scope.get(index).copied().unwrap_or_default();
        let programs: Result<Box<[MethodProgram]>, AttachError> = datapath_context
            .methods
            .iter()
            .enumerate()
            .map(|(index, method)| {
                if in_scope(index) {
                    MethodProgram::compile(&self.config, datapath_context, method)
                } else {
                    Ok(MethodProgram::default())
                }
            })
            .collect();
        Ok(AccessFilter {
            shared: Arc::clone(&self.shared),
            shard: self.counts.shard(datapath_context.runtime),
            tables: Arc::clone(&datapath_context.tables),
            programs: programs?,
            peer: peer_name(datapath_context),
        })
    }

    fn save(&self) -> SharedState {
        self.counts.save()
    }

    fn metrics(&self, sink: &mut dyn MetricSink) {
        self.counts.report(sink);
    }
}

fn reasons_of(environment: &Environment, rule: Option<&str>, config: &AccessConfig) -> DenialReasons {
    let policy = &environment.policy;
    let told = match rule {
        Some(rule) => format!("denied by policy {policy:?}, rule {rule:?}"),
        None => format!("denied by policy {policy:?}: no rule allows it"),
    };
    DenialReasons {
        audit: match rule {
            Some(rule) => format!("rule {rule:?}").into(),
            None => "no rule allows it".into(),
        },
        status: if config.hide_rule {
            "denied by policy".into()
        } else {
            environment.with_place(told).into()
        },
        is_hidden: config.hide_rule,
    }
}

/// Who is at the other end: by what it has proved, else by where it is. The app of another node stands before it.
fn peer_name(datapath_context: &DatapathContext) -> Arc<str> {
    let peer = &datapath_context.peer;
    match (&peer.app, &peer.attested, peer.identity.is_empty()) {
        (_, Some(app), _) => format!("app {:?} of {}", app.name, peer.identity).into(),
        (_, None, false) => Arc::clone(&peer.identity),
        (Some(app), None, true) => Arc::clone(&app.name),
        (None, None, true) => Arc::clone(&peer.address),
    }
}
