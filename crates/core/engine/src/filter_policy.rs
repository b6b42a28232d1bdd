//! Policies whose engines are filters: one trait for those that are built in and those that are loaded.

use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::{
    AttachError, ConfigError, Environment, Filter, MetricSink, Policy, PolicyKind, SharedState, Sieve,
    SieveParts, Site, Start, parse_config,
};

/// A policy that judges by filters. [`kind_of`] makes a built-in kind of it, [`crate::export_engine!`] a library to load.
pub trait FilterPolicy: Send + Sync + Sized + 'static {
    /// Name of the kind, as configurations have it: lower-case letters, digits and `-`.
    const KIND: &'static str;
    /// Version of the code: what an operator upgrades from and to.
    const VERSION: u32 = 1;
    /// What it does, in one line.
    const SUMMARY: &'static str;
    /// A commented configuration with every key and its default, in TOML.
    const EXAMPLE: &'static str;
    /// The versions of a filter's saved state that [`Filter::restore`] reads. Another one is refused before.
    const STATE_VERSIONS: RangeInclusive<u32> = 0..=1;

    /// Its configuration; with `#[serde(deny_unknown_fields)]`, so that a misspelt key is an error.
    type Config: serde::de::DeserializeOwned;
    /// What judges on one datapath.
    type Filter: Filter + 'static;

    /// Checks a configuration completely and makes a policy of it; see [`PolicyKind::configure`].
    fn configure(
        config: Self::Config,
        environment: &Environment,
        shared: Option<&SharedState>,
    ) -> Result<Self, ConfigError>;

    /// A filter for a datapath; what is slow happens here.
    fn filter(&self, site: &Site) -> Result<Self::Filter, AttachError>;

    /// What a policy that takes its place may continue from.
    fn save(&self) -> SharedState {
        SharedState::default()
    }

    /// Reports its metrics.
    fn metrics(&self, _sink: &mut dyn MetricSink) {}
}

/// The kind of a policy that is built in.
#[must_use]
pub fn kind_of<P: FilterPolicy>() -> Arc<dyn PolicyKind> {
    Arc::new(Kind::<P>(PhantomData))
}

struct Kind<P>(PhantomData<fn() -> P>);

impl<P: FilterPolicy> PolicyKind for Kind<P> {
    fn name(&self) -> &'static str {
        P::KIND
    }

    fn version(&self) -> u32 {
        P::VERSION
    }

    fn summary(&self) -> &'static str {
        P::SUMMARY
    }

    fn example(&self) -> &'static str {
        P::EXAMPLE
    }

    fn configure(
        &self,
        config: &toml::Table,
        environment: &Environment,
        shared: Option<&SharedState>,
    ) -> Result<Arc<dyn Policy>, ConfigError> {
        let policy = P::configure(parse_config(config)?, environment, shared)?;
        Ok(Arc::new(Configured(policy)))
    }
}

struct Configured<P>(P);

impl<P: FilterPolicy> Policy for Configured<P> {
    fn prepare(&self, site: &Site) -> Result<Start, AttachError> {
        let parts = SieveParts {
            kind: P::KIND,
            version: P::VERSION,
            site: site.clone(),
            filter: self.0.filter(site)?,
        };
        Ok(Box::new(move |saved| Ok(Box::new(Sieve::start(parts, saved)?))))
    }

    fn save(&self) -> SharedState {
        self.0.save()
    }

    fn metrics(&self, sink: &mut dyn MetricSink) {
        self.0.metrics(sink);
    }
}
