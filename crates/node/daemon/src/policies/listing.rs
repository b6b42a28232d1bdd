//! Changes and tables as text, for reports and the audit log.

use serde::Serialize;

use super::attachment::Attachment;
use super::change::{Change, Mode, Reach};
use super::table::{Entry, Table};
use crate::plurals::counted;

/// What two tables do not have in common, each as TOML.
pub(crate) fn differences(old: &Table, next: &Table) -> (String, String) {
    let listing = |one: &Table, other: &Table| {
        let is_other = |entry: &&Entry| {
            let same = other.find(&entry.attachment.name);
            same.is_none_or(|same| !is_same(same, entry))
        };
        let attachments: Vec<Attachment> = one
            .entries
            .iter()
            .filter(is_other)
            .map(|entry| entry.live.attachment.clone())
            .collect();
        let names = |table: &Table| -> Vec<String> {
            let names = table.entries.iter();
            names.map(|entry| entry.attachment.name.clone()).collect()
        };
        let mut text = String::new();
        if attachments.is_empty() && names(one) != names(other) {
            text = format!("order = {:?}\n", names(one));
        }
        if one.transports != other.transports {
            for (engine, version) in one.transports.all_current() {
                text.push_str(&format!("{engine} = {version}\n"));
            }
        }
        text + &to_toml(attachments)
    };
    (listing(old, next), listing(next, old))
}

fn is_same(one: &Entry, other: &Entry) -> bool {
    let tags = |entry: &Entry| -> Vec<_> { entry.instances().map(|instance| instance.tag).collect() };
    tags(one) == tags(other)
}

/// Attachments as they stand in a configuration.
pub(crate) fn to_toml(attachments: Vec<Attachment>) -> String {
    #[derive(Serialize)]
    struct Listing {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        policy: Vec<Attachment>,
    }
    // Attachments came from TOML, or have passed through it: they can be written.
    toml::to_string(&Listing { policy: attachments }).unwrap_or_default()
}

/// From which version to which each engine goes from one table to the next, such as `from version 1 to 2`.
pub(crate) fn version_moves(old: &Table, next: &Table) -> String {
    let before: Vec<(&str, u32)> = old.transports.all_current().collect();
    let transports = next.transports.all_current().filter_map(|(engine, to)| {
        let (_, from) = before.iter().find(|(other, _)| *other == engine)?;
        Some((engine, *from, to))
    });
    let policies = next.entries.iter().filter_map(|entry| {
        let from = old.find(&entry.attachment.name)?.live.kind.version();
        Some((entry.attachment.name.as_str(), from, entry.live.kind.version()))
    });
    let moved: Vec<_> = transports
        .chain(policies)
        .filter(|(_, from, to)| from != to)
        .collect();
    match moved.as_slice() {
        [(_, from, to)] => format!(" from version {from} to {to}"),
        moved => {
            let told = moved
                .iter()
                .map(|(name, from, to)| format!(" {name} from version {from} to {to}"));
            told.collect::<Vec<_>>().join(",")
        }
    }
}

/// What a change did, in one line; `moves` is what [`version_moves`] says of it.
pub(crate) fn summary(change: &Change, mode: Mode, datapaths: usize, moves: &str) -> String {
    let (done, would) = deed(change, moves);
    let text = match mode {
        Mode::Apply => done,
        Mode::DryRun => would,
    };
    let on = counted(datapaths, "datapath", "datapaths");
    format!("{text} on {on}")
}

/// What a change is about to do, such as `attach limit-gets`.
pub(crate) fn attempt(change: &Change) -> String {
    let (_, would) = deed(change, "");
    would.trim_start_matches(WOULD).to_owned()
}

/// What begins the sentence about a change that is not made.
const WOULD: &str = "would ";

/// What a change has done, and what it would do.
fn deed(change: &Change, moves: &str) -> (String, String) {
    match change {
        Change::Attach { attachment, .. } => (
            format!("attached {}", attachment.name),
            format!("would attach {}", attachment.name),
        ),
        Change::Detach { name } => (format!("detached {name}"), format!("would detach {name}")),
        Change::Set { name, .. } => (format!("set {name}"), format!("would set {name}")),
        Change::Order { .. } => ("ordered policies".into(), "would order policies".into()),
        Change::Upgrade(upgrade) => {
            let what = upgrade.policy.as_ref().unwrap_or(&upgrade.kind);
            let to = match (upgrade.version, moves) {
                (Some(version), "") => format!(" to version {version}"),
                (None, "") => " to its newest version".to_owned(),
                (_, moves) => moves.to_owned(),
            };
            let of = match &upgrade.reach {
                Reach::All => String::new(),
                Reach::App(app) => format!(" of app {app}"),
                Reach::Connection(connection) => format!(" of connection {connection}"),
            };
            (
                format!("upgraded {what}{of}{to}"),
                format!("would upgrade {what}{of}{to}"),
            )
        }
        Change::Rollback { engine } => (
            format!("rolled {engine} back{}", rolled_back(moves)),
            format!("would roll {engine} back{}", rolled_back(moves)),
        ),
        Change::Apply { attachments } => {
            let policies = counted(attachments.len(), "policy", "policies");
            (
                format!("applied a table of {policies}"),
                format!("would apply a table of {policies}"),
            )
        }
    }
}

fn rolled_back(moves: &str) -> &str {
    match moves {
        "" => ": connections and apps that had another version have the common one",
        moves => moves,
    }
}
