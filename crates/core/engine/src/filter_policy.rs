//! How every policy and observer declares itself, whether it is built in or loaded: kind, configuration, what judges on a
//! datapath, metrics and saved state.

use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::sync::Arc;

use provost_datapath::{Engine, RestoreError, SavedState};

use crate::{
    AttachError, CallDisclosure, ConfigError, DatapathContext, Environment, Filter, FilterEngine,
    FilterEngineParts, MethodCalls, MetricDescription, MetricSink, Policy, PolicyKind, SameNodeCalls,
    SampleSource, SharedState, Start, parse_config,
};

/// A policy, declared. [`kind_of`] makes a built-in kind of it, [`crate::export_engine!`] a library to load.
pub trait FilterPolicy: Send + Sync + Sized + 'static {
    /// Name of the kind, as configurations have it: lower-case letters, digits and `-`.
    const KIND: &'static str;
    /// Version of the code: what an operator upgrades from and to.
    const VERSION: u32 = 1;
    /// Which ends of a call between two apps of this node it judges, where it is attached to both.
    const SAME_NODE_CALLS: SameNodeCalls = SameNodeCalls::AtEachEnd;
    /// What it does, in one line.
    const SUMMARY: &'static str;
    /// A commented configuration with every key and its default, in TOML.
    const EXAMPLE: &'static str;
    /// All metrics that it reports.
    const METRICS: &'static [&'static MetricDescription] = &[];
    /// The versions of a filter's saved state that [`Filter::restore`] reads. Another one is refused before.
    const STATE_VERSIONS: RangeInclusive<u32> = 0..=1;

    /// Its configuration; with `#[serde(deny_unknown_fields)]`, so that a misspelt key is an error.
    type Config: serde::de::DeserializeOwned;
    /// What judges on one datapath: a [`Filter`].
    type Filter: PolicyEngine;

    /// Checks a configuration completely and makes a policy of it; see [`PolicyKind::configure`].
    fn configure(
        config: Self::Config,
        environment: &Environment,
        shared: Option<&SharedState>,
    ) -> Result<Self, ConfigError>;

    /// A filter for a datapath; what is slow happens here.
    fn filter(&self, datapath_context: &DatapathContext) -> Result<Self::Filter, AttachError>;

    /// What a policy that takes its place may continue from.
    fn save(&self) -> SharedState {
        SharedState::default()
    }

    /// Reports its metrics.
    fn metrics(&self, _sink: &mut dyn MetricSink) {}

    /// The calls that it samples, if that is what it does. (Only those that are built in are asked.)
    fn samples(&self) -> Option<&dyn SampleSource> {
        None
    }

    /// What it records of the fields and metadata of a service's calls, and what it hides, if it records them. It may be slow.
    /// (Only those that are built in are asked.)
    fn disclosure(&self, _datapath_context: &DatapathContext) -> Option<CallDisclosure> {
        None
    }

    /// What it has counted of the calls of each app and method, if that is what it does. (Only those that are built in
    /// are asked.)
    fn calls(&self) -> Option<Vec<MethodCalls>> {
        None
    }

    /// Why what it records is not taken where it is to go, while that is so: told to operators. (Only those that are built in
    /// are asked.)
    fn failure(&self) -> Option<String> {
        None
    }
}

/// What becomes the engine of one datapath: every [`Filter`], by a [`FilterEngine`] around it. A built-in policy that
/// orders steps instead of judging them is an engine itself.
pub trait PolicyEngine: Send + 'static {
    /// Whether it judges calls; see [`PolicyKind::judges_calls`].
    const JUDGES_CALLS: bool;

    /// Starts the engine on its runtime; see [`Start`].
    fn start(
        self,
        declared: DeclaredEngine,
        saved: Option<&SavedState>,
    ) -> Result<Box<dyn Engine>, RestoreError>;
}

/// What the declaration of a policy says of its engine on one datapath.
pub struct DeclaredEngine {
    /// [`FilterPolicy::KIND`].
    pub kind: &'static str,
    /// [`FilterPolicy::VERSION`].
    pub version: u32,
    /// The datapath that the engine belongs to.
    pub datapath_context: DatapathContext,
}

impl<F: Filter + 'static> PolicyEngine for F {
    const JUDGES_CALLS: bool = true;

    fn start(
        self,
        declared: DeclaredEngine,
        saved: Option<&SavedState>,
    ) -> Result<Box<dyn Engine>, RestoreError> {
        let parts = FilterEngineParts {
            kind: declared.kind,
            version: declared.version,
            datapath_context: declared.datapath_context,
            filter: self,
        };
        Ok(Box::new(FilterEngine::start(parts, saved)?))
    }
}

/// The kind of a policy that is built in.
#[must_use]
pub fn kind_of<P: FilterPolicy>() -> Arc<dyn PolicyKind> {
    Arc::new(DeclaredKind::<P>(PhantomData))
}

struct DeclaredKind<P>(PhantomData<fn() -> P>);

impl<P: FilterPolicy> PolicyKind for DeclaredKind<P> {
    fn name(&self) -> &'static str {
        P::KIND
    }

    fn version(&self) -> u32 {
        P::VERSION
    }

    fn same_node_calls(&self) -> SameNodeCalls {
        P::SAME_NODE_CALLS
    }

    fn judges_calls(&self) -> bool {
        P::Filter::JUDGES_CALLS
    }

    fn summary(&self) -> &'static str {
        P::SUMMARY
    }

    fn example(&self) -> &'static str {
        P::EXAMPLE
    }

    fn metrics(&self) -> &'static [&'static MetricDescription] {
        P::METRICS
    }

    fn configure(
        &self,
        config: &toml::Table,
        environment: &Environment,
        shared: Option<&SharedState>,
    ) -> Result<Arc<dyn Policy>, ConfigError> {
        let policy = P::configure(parse_config(config)?, environment, shared)?;
        Ok(Arc::new(ConfiguredPolicy(policy)))
    }
}

struct ConfiguredPolicy<P>(P);

impl<P: FilterPolicy> Policy for ConfiguredPolicy<P> {
    fn prepare(&self, datapath_context: &DatapathContext) -> Result<Start, AttachError> {
        let filter = self.0.filter(datapath_context)?;
        let declared = DeclaredEngine {
            kind: P::KIND,
            version: P::VERSION,
            datapath_context: datapath_context.clone(),
        };
        Ok(Box::new(move |saved| filter.start(declared, saved)))
    }

    fn save(&self) -> SharedState {
        self.0.save()
    }

    fn metrics(&self, sink: &mut dyn MetricSink) {
        self.0.metrics(sink);
    }

    fn samples(&self) -> Option<&dyn SampleSource> {
        self.0.samples()
    }

    fn disclosure(&self, datapath_context: &DatapathContext) -> Option<CallDisclosure> {
        self.0.disclosure(datapath_context)
    }

    fn calls(&self) -> Option<Vec<MethodCalls>> {
        self.0.calls()
    }

    fn failure(&self) -> Option<String> {
        self.0.failure()
    }
}
