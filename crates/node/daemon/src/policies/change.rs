//! What an operator can change about policies and engines while calls go on, and what comes of it.

use std::time::Duration;

use provost_engine::ConfigError;

use super::attachment::Attachment;
use super::registry::NoSuchKind;
use crate::transport::TransportKind;

/// A change: all of it happens, or nothing does.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    Attach {
        /// What, and to what.
        attachment: Attachment,
        /// Where in the order.
        at: Position,
    },
    /// Takes a policy away.
    Detach { name: String },
    /// Gives a policy another configuration.
    Set {
        name: String,
        /// The kind's own keys, all of them.
        config: toml::Table,
    },
    /// Puts the policies into another order.
    Order {
        /// The names of all attachments, the first that an outgoing call meets first.
        names: Vec<String>,
    },
    /// Puts another version of an engine in the place of the one that runs, with its saved state.
    Upgrade(Upgrade),
    /// Undoes the last upgrade of a kind of engine.
    Rollback {
        /// The kind, such as `rate-limit` or `transport-tcp`; or the name of an attachment.
        engine: String,
    },
    /// Puts a whole table in the place of the one that is: what is the same in both is not touched.
    Apply {
        /// In order.
        attachments: Vec<Attachment>,
    },
}

impl Change {
    /// Whether a policy is configured anew for it, which may be slow.
    pub(crate) fn configures_policies(&self) -> bool {
        match self {
            Change::Detach { .. } | Change::Order { .. } => false,
            Change::Upgrade(upgrade) => {
                upgrade.policy.is_some() || TransportKind::upgradable(&upgrade.kind).is_none()
            }
            Change::Rollback { engine } => TransportKind::upgradable(engine).is_none(),
            Change::Attach { .. } | Change::Set { .. } | Change::Apply { .. } => true,
        }
    }
}

/// Where in the order a policy comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Position {
    /// Behind all others: next to the wire.
    #[default]
    Last,
    /// So many come before it.
    At(usize),
}

/// Another version of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgrade {
    /// The kind, such as `rate-limit` or `transport-tcp`.
    pub kind: String,
    /// Which version; the newest without.
    pub version: Option<u32>,
    /// Of a policy's kind: only that of this attachment.
    pub policy: Option<String>,
    pub reach: Reach,
}

/// Datapaths that an upgrade is for.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reach {
    /// All of them, and those to come.
    All,
    /// Those of the apps of this name, and those to come.
    App(String),
    Connection(u64),
}

impl std::fmt::Display for Reach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reach::All => write!(f, "all"),
            Reach::App(app) => write!(f, "app {app}"),
            Reach::Connection(connection) => write!(f, "connection {connection}"),
        }
    }
}

/// Whether a change is to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Apply,
    /// Everything is prepared for every live datapath, and nothing is changed.
    DryRun,
}

/// What came of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of the change on this node; 0 of a dry run.
    pub number: u64,
    /// In one line.
    pub summary: String,
    /// Datapaths whose engines were changed.
    pub datapaths: usize,
    /// Steps that engines held and that were given to their successors to be judged again.
    pub steps_released: usize,
    /// How long a datapath stood still: the middle of all, in nanoseconds.
    pub pause_ns_p50: u64,
    /// How long the one stood still that did the longest, in nanoseconds.
    pub pause_ns_max: u64,
    /// From the request to its end.
    pub took: Duration,
    /// The attachments concerned as they were, in TOML.
    pub before: String,
    /// And as they are now.
    pub after: String,
}

/// Why nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// There is no attachment of that name.
    #[error("no policy is attached under the name \"{name}\"{}", listed(.known))]
    NoSuchPolicy {
        /// What was asked for.
        name: String,
        /// The names that are attached.
        known: Vec<String>,
    },
    /// The name is taken.
    #[error(
        "a policy is attached under the name \"{name}\" already: detach it, set it, or choose another name"
    )]
    NameTaken { name: String },
    /// The attachment contradicts itself.
    #[error("policy \"{policy}\": {key}: {problem}")]
    Invalid {
        policy: String,
        /// The key that is at fault.
        key: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// Its kind is not known.
    #[error("policy \"{policy}\": {error}")]
    Kind { policy: String, error: NoSuchKind },
    /// Its kind does not take its configuration.
    #[error("policy \"{policy}\": config: {error}")]
    Config { policy: String, error: ConfigError },
    /// There would be too many.
    #[error("{found} policies are more than the {most} that a node takes")]
    TooMany {
        /// How many there would be.
        found: usize,
        most: usize,
    },
    /// The new order does not name each policy once.
    #[error("the order must name each attached policy once: {problem}")]
    Order {
        /// What is missing or too much.
        problem: String,
    },
    /// No engine of that kind can be upgraded.
    #[error("{problem}")]
    NothingToUpgrade {
        /// What was not found.
        problem: String,
    },
    /// There is no version before.
    #[error("\"{engine}\" was not upgraded, or was rolled back already: there is nothing to go back to")]
    NothingBefore {
        /// What was asked for.
        engine: String,
    },
    /// A policy does not fit a datapath, or could not be prepared for it.
    #[error("policy \"{policy}\" does not fit connection {connection} (app \"{app}\", {service}): {problem}")]
    Unfit {
        policy: String,
        connection: u64,
        app: String,
        service: String,
        problem: String,
    },
    /// An engine did not take over on a datapath. What had been changed before was changed back.
    #[error(
        "{engine} did not take over on connection {connection} (app \"{app}\", {service}): {problem}; nothing has \
         changed"
    )]
    Undone {
        /// Which attachment or transport.
        engine: String,
        connection: u64,
        app: String,
        service: String,
        problem: String,
    },
    /// It failed, and datapaths that had been changed before could not be changed back.
    #[error(
        "{cause}. It could not be changed back on: {}. These connections take no new call and end with their last one: their apps \
         connect anew",
        connections.join("; ")
    )]
    NotUndone {
        /// Why the change failed.
        cause: String,
        /// The connections, each with the reason; of many, the first ones and how many more.
        connections: Vec<String>,
    },
    /// A runtime took no commands.
    #[error("a runtime thread takes no commands: the node is overloaded; nothing has changed")]
    Overloaded,
    /// Another process has taken over while the change waited for its turn.
    #[error("the service is being replaced: ask again")]
    Replaced,
    /// The node is ending or is being replaced.
    #[error("the service is ending or is being replaced: nothing has changed")]
    Ending,
}

impl ChangeError {
    /// What went wrong, without what became of the change.
    pub(crate) fn reason(&self) -> String {
        let text = self.to_string();
        let outcome = |text: &str| text.strip_suffix("nothing has changed").map(str::to_owned);
        match outcome(&text) {
            Some(reason) => reason.trim_end_matches([' ', ';', ':']).to_owned(),
            None => text,
        }
    }

    /// Likewise, of a change of one connection that is named beside it.
    pub(crate) fn reason_there(&self) -> String {
        match self {
            ChangeError::Unfit { problem, .. } | ChangeError::Undone { problem, .. } => problem.clone(),
            other => other.reason(),
        }
    }
}

fn listed(known: &[String]) -> String {
    match known {
        [] => "; none is attached".to_owned(),
        known => format!("; attached are {}", known.join(", ")),
    }
}
