//! What differs between two configurations, and what of it takes effect without a restart.

use std::collections::BTreeMap;

use super::Config;

/// Keys that a reload changes, by their beginning. The rest waits for a restart, or for a replacement of the daemon.
const LIVE: [&str; 21] = [
    "app",
    "control.allow_",
    "engines",
    "grpc",
    "limits.apps",
    "limits.connections",
    "limits.receive_heap_bytes",
    "limits.ring_slots",
    "limits.send_heap_bytes",
    "log.level",
    "policies",
    "policy",
    "route",
    "runtime.allow_app_busy_poll",
    "timeouts.connect_ms",
    "timeouts.drain_ms",
    "timeouts.handshake_ms",
    "timeouts.hot_restart_ms",
    "tls.allow_peers",
    "tls.attesting_peers",
    "tls.server_identities",
];
/// Lists whose entries are told apart by this key of theirs.
const NAMED: [(&str, &str); 4] = [
    ("app", "name"),
    ("grpc.listener", "name"),
    ("policy", "name"),
    ("route", "service"),
];
/// Those of them whose order means nothing.
const UNORDERED: [&str; 2] = ["grpc.listener", "route"];

/// One key that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigChange {
    /// Such as `limits.apps`, `policy.limit-gets.config.rate`.
    pub key: String,
    /// Its value, in TOML; empty where it was not set.
    pub before: String,
    /// Its new value; empty where it is not set any more.
    pub after: String,
    /// When it takes effect.
    pub takes_effect: TakesEffect,
}

/// When a change of a key takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakesEffect {
    Live,
    /// When the daemon is started again or replaced.
    Restarted,
}

/// What differs, by key.
#[must_use]
pub fn diff(old: &Config, new: &Config) -> Vec<ConfigChange> {
    let (before, after) = (leaves(old), leaves(new));
    let mut keys: Vec<&String> = before.keys().chain(after.keys()).collect();
    keys.sort();
    keys.dedup();
    let value = |leaves: &BTreeMap<String, String>, key: &str| leaves.get(key).cloned().unwrap_or_default();
    let change = |key: &String| ConfigChange {
        key: key.clone(),
        before: value(&before, key),
        after: value(&after, key),
        takes_effect: takes_effect(key),
    };
    let differs = |key: &&String| before.get(*key) != after.get(*key);
    keys.into_iter().filter(differs).map(change).collect()
}

fn takes_effect(key: &str) -> TakesEffect {
    if LIVE.iter().any(|live| key.starts_with(live)) {
        TakesEffect::Live
    } else {
        TakesEffect::Restarted
    }
}

impl Config {
    /// This configuration with those keys of another one that take effect by a reload.
    #[must_use]
    pub fn with_live_keys_of(&self, other: &Config) -> Config {
        let mut next = self.clone();
        next.control.allow_uids.clone_from(&other.control.allow_uids);
        next.control.allow_gids.clone_from(&other.control.allow_gids);
        next.control.allow_any_user = other.control.allow_any_user;
        next.control.allow_app_addresses = other.control.allow_app_addresses;
        next.apps.clone_from(&other.apps);
        next.engines.clone_from(&other.engines);
        next.grpc.clone_from(&other.grpc);
        next.places.clone_from(&other.places);
        next.limits.apps = other.limits.apps;
        next.limits.connections = other.limits.connections;
        next.limits.apps_per_user = other.limits.apps_per_user;
        next.limits.connections_per_app = other.limits.connections_per_app;
        next.limits.connections_per_user = other.limits.connections_per_user;
        next.limits.receive_heap_bytes = other.limits.receive_heap_bytes;
        next.limits.ring_slots = other.limits.ring_slots;
        next.limits.send_heap_bytes = other.limits.send_heap_bytes;
        next.log.level.clone_from(&other.log.level);
        next.policies.clone_from(&other.policies);
        next.attachments.clone_from(&other.attachments);
        next.routes.clone_from(&other.routes);
        next.runtime.allow_app_busy_poll = other.runtime.allow_app_busy_poll;
        next.timeouts.connect_ms = other.timeouts.connect_ms;
        next.timeouts.drain_ms = other.timeouts.drain_ms;
        next.timeouts.hot_restart_ms = other.timeouts.hot_restart_ms;
        next.timeouts.handshake_ms = other.timeouts.handshake_ms;
        if let (Some(tls), Some(other)) = (&mut next.tls, &other.tls) {
            tls.allow_peers.clone_from(&other.allow_peers);
            tls.attesting_peers.clone_from(&other.attesting_peers);
            tls.server_identities.clone_from(&other.server_identities);
        }
        next
    }
}

/// Every key with its value. Entries of named lists have their name in the key, and the list its order.
fn leaves(config: &Config) -> BTreeMap<String, String> {
    let mut leaves = BTreeMap::new();
    // A configuration came from TOML, and can be written as such.
    if let Ok(toml::Value::Table(table)) = toml::Value::try_from(config) {
        add_table(&mut leaves, "", &table);
    }
    leaves
}

fn add_table(leaves: &mut BTreeMap<String, String>, prefix: &str, table: &toml::Table) {
    for (key, value) in table {
        let path = match prefix {
            "" => key.clone(),
            prefix => format!("{prefix}.{key}"),
        };
        match value {
            toml::Value::Table(table) => add_table(leaves, &path, table),
            toml::Value::Array(entries) if !add_named(leaves, &path, entries) => {
                leaves.insert(path, value.to_string());
            }
            toml::Value::Array(_) => {}
            value => drop(leaves.insert(path, value.to_string())),
        }
    }
}

/// The entries of a named list, each under its name, and their order. Says whether it is such a list.
fn add_named(leaves: &mut BTreeMap<String, String>, path: &str, entries: &[toml::Value]) -> bool {
    let Some((_, name)) = NAMED.iter().find(|(list, _)| *list == path) else {
        return false;
    };
    let mut names = Vec::new();
    for entry in entries.iter().filter_map(toml::Value::as_table) {
        let named = entry.get(*name).and_then(toml::Value::as_str).unwrap_or_default();
        names.push(named.to_owned());
        let mut rest = entry.clone();
        rest.remove(*name);
        add_table(leaves, &format!("{path}.{named}"), &rest);
    }
    if !UNORDERED.contains(&path) && !names.is_empty() {
        leaves.insert(path.to_owned(), format!("{names:?}"));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(text, "test").unwrap()
    }

    #[test]
    fn keys_are_named_with_both_values_and_when_they_take_effect() {
        let old = config(
            "[limits]\napps = 5\n[runtime]\nthreads = 1\n[[policy]]\nname = \"a\"\nkind = \"null\"\n[policy.config]\nx = 1\n",
        );
        let new = config(
            "[limits]\napps = 6\n[runtime]\nthreads = 2\n[[policy]]\nname = \"a\"\nkind = \"null\"\n[policy.config]\nx = 2\n\
             [[route]]\nservice = \"a.B\"\nendpoints = [\"h:1\"]\n",
        );
        let changes: Vec<_> = diff(&old, &new)
            .into_iter()
            .map(|change| (change.key, change.before, change.after, change.takes_effect))
            .collect();
        let expected = [
            ("limits.apps", "5", "6", TakesEffect::Live),
            ("policy.a.config.x", "1", "2", TakesEffect::Live),
            ("route.a.B.endpoints", "", "[\"h:1\"]", TakesEffect::Live),
            ("route.a.B.transport", "", "\"auto\"", TakesEffect::Live),
            ("runtime.threads", "1", "2", TakesEffect::Restarted),
        ];
        let expected = expected.map(|(key, before, after, effect)| {
            (key.to_owned(), before.to_owned(), after.to_owned(), effect)
        });
        assert_eq!(changes, expected);
        assert_eq!(diff(&new, &new), []);
    }

    #[test]
    fn an_order_is_a_change_too() {
        let policy = |name: &str| format!("[[policy]]\nname = \"{name}\"\nkind = \"null\"\n");
        let (one, other) = (policy("a") + &policy("b"), policy("b") + &policy("a"));
        let changes = diff(&config(&one), &config(&other));
        assert_eq!(changes.len(), 1);
        assert_eq!(
            (changes[0].key.as_str(), changes[0].after.as_str()),
            ("policy", "[\"b\", \"a\"]")
        );
    }

    /// A key that is said to be live and is not taken over, or the other way round, would be a promise broken.
    #[test]
    fn exactly_the_live_keys_are_taken_over() {
        let mut other = Config::default();
        other.node.name = "other".into();
        other.control.mode = "0600".into();
        other.control.allow_uids = vec![1.into()];
        other.control.allow_gids = vec![1.into()];
        other.control.allow_any_user = true;
        other.control.allow_app_addresses = Some(false);
        other.apps = vec![super::super::AppTable {
            name: "kv".into(),
            ..super::super::AppTable::default()
        }];
        other.engines = vec!["/e.so".into()];
        let listener = "[[grpc.listener]]\nname = \"web\"\naddress = \"127.0.0.1:1\"\napp = \"web\"\n";
        other.grpc = config(listener).grpc;
        other.limits.apps = 1;
        other.limits.connections = 2;
        other.limits.connections_per_app = 1;
        other.limits.calls_in_flight = 1;
        other.limits.message_bytes = 4096;
        other.limits.receive_heap_bytes = 1 << 21;
        other.limits.send_heap_bytes = 1 << 20;
        other.limits.ring_slots = 64;
        other.limits.handshakes = 1;
        other.limits.schemas = 1;
        other.log.level = "debug".into();
        other.log.format = super::super::LogFormat::Json;
        other.policies = vec!["null".into()];
        other.attachments = vec![crate::policies::Attachment::of_kind("null")];
        other.runtime.threads = 2;
        other.runtime.spin_us = 1;
        other.runtime.allow_app_busy_poll = true;
        other.timeouts.connect_ms = 1;
        other.timeouts.handshake_ms = 1;
        other.timeouts.drain_ms = 1;
        other.timeouts.hot_restart_ms = 10;
        other.timeouts.keepalive_interval_ms = 11;
        let next = Config::default().with_live_keys_of(&other);
        for change in diff(&next, &other) {
            assert_eq!(change.takes_effect, TakesEffect::Restarted, "{change:?}");
        }
        for change in diff(&Config::default(), &next) {
            assert_eq!(change.takes_effect, TakesEffect::Live, "{change:?}");
        }
    }
}
