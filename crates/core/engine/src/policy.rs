//! Kinds of policies, and policies that an operator has attached.

use std::sync::Arc;

use provost_datapath::{Engine, FieldReader, FieldWriter, RestoreError, SavedState};

use crate::{
    CallDisclosure, DatapathContext, EventSink, MethodCalls, MetricDescription, MetricSink, SampleSource,
};

/// A kind of policy, in one version of its code.
pub trait PolicyKind: Send + Sync {
    /// Its name, as configurations have it, such as `rate-limit`.
    fn name(&self) -> &'static str;

    /// Which version of its code this is: what an operator upgrades from and to.
    fn version(&self) -> u32 {
        1
    }

    /// Which ends of a call between two apps of this node it judges, where it is attached to both.
    fn same_node_calls(&self) -> SameNodeCalls {
        SameNodeCalls::AtEachEnd
    }

    /// Whether its engines judge calls, so that their verdicts are counted; else they do something else with them, such as order
    /// them.
    fn judges_calls(&self) -> bool {
        true
    }

    /// What it does, in one line.
    fn summary(&self) -> &'static str;

    /// A commented configuration with every key and its default, in TOML: what `provost policy` shows as help.
    fn example(&self) -> &'static str;

    /// All metrics that its policies report, as far as they are known beforehand.
    fn metrics(&self) -> &'static [&'static MetricDescription] {
        &[]
    }

    /// Checks a configuration completely and makes a policy of it. `shared` is what another policy in whose place it
    /// comes has left (its configuration may be another one, its version too): what can be kept of it is kept, such as
    /// what is in a bucket.
    fn configure(
        &self,
        config: &toml::Table,
        environment: &Environment,
        shared: Option<&SharedState>,
    ) -> Result<Arc<dyn Policy>, ConfigError>;
}

/// Which ends of a call between two apps of one node a policy judges that is attached to both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameNodeCalls {
    /// Both, as on two nodes: to judge a call again does no harm, or each end is to be told of.
    AtEachEnd,
    /// The client's alone: what it does to a call would be done twice.
    Once,
}

/// A policy that was attached: what its engines on all datapaths of the node share.
pub trait Policy: Send + Sync {
    /// Gets an engine for a datapath ready; what is slow happens here. An error (such as an expression over fields that
    /// the service does not have) keeps the policy from that datapath, and so from being attached.
    fn prepare(&self, datapath_context: &DatapathContext) -> Result<Start, AttachError>;

    /// What a policy that takes its place may continue from.
    fn save(&self) -> SharedState {
        SharedState::default()
    }

    /// Reports its metrics. Called for each scrape.
    fn metrics(&self, _sink: &mut dyn MetricSink) {}

    /// The calls that it samples, if that is what it does.
    fn samples(&self) -> Option<&dyn SampleSource> {
        None
    }

    /// What it records of the fields and metadata of a service's calls, and what it hides, if it records them. It may be slow.
    fn disclosure(&self, _datapath_context: &DatapathContext) -> Option<CallDisclosure> {
        None
    }

    /// What it has counted of the calls of each app and method, if that is what it does.
    fn calls(&self) -> Option<Vec<MethodCalls>> {
        None
    }

    /// Why what it records is not taken where it is to go, while that is so: told to operators.
    fn failure(&self) -> Option<String> {
        None
    }
}

/// Starts a prepared engine on its runtime, between two polls: with the saved state of the engine whose place it
/// takes, or fresh. It does not block.
pub type Start = Box<dyn FnOnce(Option<&SavedState>) -> Result<Box<dyn Engine>, RestoreError> + Send>;

/// What the engines of a policy share, saved. Version and form are each kind's own; empty is always allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedState {
    /// Version of the form of `bytes`.
    pub version: u32,
    /// The state.
    pub bytes: Vec<u8>,
}

impl SharedState {
    /// A state that is nothing but numbers, such as counts.
    #[must_use]
    pub fn of_numbers<const N: usize>(version: u32, numbers: [u64; N]) -> SharedState {
        let mut out = FieldWriter::new();
        numbers.into_iter().for_each(|number| out.u64(number));
        SharedState {
            version,
            bytes: out.bytes,
        }
    }

    /// The numbers of a state that [`SharedState::of_numbers`] made in this version; `None` of another one.
    #[must_use]
    pub fn numbers<const N: usize>(&self, version: u32) -> Option<[u64; N]> {
        if self.version != version {
            return None;
        }
        let mut fields = FieldReader::new("policy", &self.bytes);
        let mut numbers = [0; N];
        for number in &mut numbers {
            *number = fields.u64().ok()?;
        }
        fields.is_at_end().then_some(numbers)
    }
}

/// What a node lends its policies.
#[derive(Clone)]
pub struct Environment {
    /// The node's name.
    pub node: Arc<str>,
    /// The name under which the operator attached the policy: unique on the node, label of its metrics.
    pub policy: Arc<str>,
    /// The configuration in which it stands, as operators know it (a file); empty for one that was attached at run time. Loaded
    /// libraries are not told.
    pub place: Arc<str>,
    /// Where events go.
    pub events: Arc<dyn EventSink>,
}

impl Environment {
    /// What a client is told of a denial, followed by the configuration in which the policy stands, if it stands in one.
    #[must_use]
    pub fn with_place(&self, told: String) -> String {
        match &*self.place {
            "" => told,
            place => format!("{told} ({place})"),
        }
    }
}

/// Why a configuration was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}", if key.is_empty() { String::new() } else { format!("{key}: ") })]
pub struct ConfigError {
    /// The key that is at fault, with dots; empty for the whole.
    pub key: String,
    /// What is wrong with it and what to do.
    pub problem: String,
}

impl ConfigError {
    /// A problem with a key.
    #[must_use]
    pub fn new(key: impl Into<String>, problem: impl Into<String>) -> ConfigError {
        let (key, problem) = (key.into(), problem.into());
        ConfigError { key, problem }
    }
}

/// Refuses the value of a key that is not in a range.
pub fn check_range<T: PartialOrd + std::fmt::Display>(
    key: impl Into<String>,
    value: T,
    range: std::ops::RangeInclusive<T>,
) -> Result<(), ConfigError> {
    if range.contains(&value) {
        return Ok(());
    }
    let problem = format!(
        "{value} is not between {} and {}: give a number between them",
        range.start(),
        range.end()
    );
    Err(ConfigError::new(key, problem))
}

/// Why a policy cannot be attached to a datapath.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct AttachError {
    /// What is wrong and what to do.
    pub problem: String,
}

impl AttachError {
    /// A problem.
    #[must_use]
    pub fn new(problem: impl Into<String>) -> AttachError {
        let problem = problem.into();
        AttachError { problem }
    }
}

/// Reads a configuration into a type of the policy's own (with `#[serde(deny_unknown_fields)]`, so that a misspelt key
/// is an error).
pub fn parse_config<T: serde::de::DeserializeOwned>(config: &toml::Table) -> Result<T, ConfigError> {
    T::deserialize(toml::Value::Table(config.clone())).map_err(|error| {
        let text = error.to_string();
        ConfigError::new(key_in(&text), error.message())
    })
}

/// The key whose value is of another type, as the parser's text names it behind its message; empty where it names none.
fn key_in(text: &str) -> &str {
    let mut lines = text.lines();
    let key = lines.find_map(|line| line.strip_prefix("in `")?.strip_suffix('`'));
    key.unwrap_or_default()
}
