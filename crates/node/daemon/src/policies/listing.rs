//! Changes and tables as text, for reports and the audit log.

use serde::Serialize;

use super::attachment::Attachment;
use super::change::{Change, Mode, Reach};
use super::table::{Entry, Table};

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

/// What a change did, in one line.
pub(crate) fn summary(change: &Change, mode: Mode, datapaths: usize) -> String {
    let (done, would) = match change {
        Change::Attach { attachment, .. } => (
            format!("attached {}", attachment.name),
            format!("would attach {}", attachment.name),
        ),
        Change::Detach { name } => (format!("detached {name}"), format!("would detach {name}")),
        Change::Set { name, .. } => (format!("set {name}"), format!("would set {name}")),
        Change::Order { .. } => ("ordered policies".into(), "would order policies".into()),
        Change::Upgrade(upgrade) => {
            let what = upgrade.policy.as_ref().unwrap_or(&upgrade.kind);
            let to = match upgrade.version {
                Some(version) => format!("version {version}"),
                None => "its newest version".to_owned(),
            };
            let of = match &upgrade.reach {
                Reach::All => String::new(),
                Reach::App(app) => format!(" of app {app}"),
                Reach::Connection(connection) => format!(" of connection {connection}"),
            };
            (
                format!("upgraded {what}{of} to {to}"),
                format!("would upgrade {what}{of} to {to}"),
            )
        }
        Change::Rollback { engine } => (
            format!("rolled {engine} back"),
            format!("would roll {engine} back"),
        ),
        Change::Apply { attachments } => (
            format!("applied a table of {} policies", attachments.len()),
            format!("would apply a table of {} policies", attachments.len()),
        ),
    };
    let text = match mode {
        Mode::Apply => done,
        Mode::DryRun => would,
    };
    let on = match datapaths {
        1 => "1 datapath".to_owned(),
        count => format!("{count} datapaths"),
    };
    format!("{text} on {on}")
}
