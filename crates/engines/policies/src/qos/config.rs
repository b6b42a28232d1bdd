//! The configuration: what an operator writes, and what is made of it.

use std::collections::BTreeMap;

use provost_engine::{ConfigError, Nanos, check_range};
use serde::Deserialize;

/// Largest message, and so largest threshold, in bytes.
pub const SMALL_BYTES_MAX: u32 = 64 << 20;
/// Least that the large messages of one runtime move in a poll, in bytes.
pub const BULK_BYTES_MIN: u32 = 16 << 10;
/// Most of it: what a transport moves without this policy.
pub const BULK_BYTES_MAX: u32 = 512 << 10;
/// Longest times, in microseconds: ten seconds.
pub const TIME_US_MAX: u64 = 10_000_000;
pub const WEIGHT_MAX: u32 = 100;
/// Apps with a weight of their own, at most.
pub const WEIGHTS_MAX: usize = 1024;

const NANOS_PER_MICROSECOND: u64 = 1000;

/// The configuration, with every key and its default.
pub(crate) const EXAMPLE: &str = r#"# A message of at most so many bytes is small, 0 to 64 MiB.
small_bytes = 4096
# While small messages come and go on a runtime, the large ones of all its other apps move at most so many bytes between
# two looks at the small ones, and keep half of that in the queues of the wire: 16 KiB to 512 KiB.
bulk_bytes = 65536
# For how long after its last message an app counts as one of small or of large messages, in microseconds, 1 to 1e7.
linger_us = 50000
# A large message waits at most so long behind others, in microseconds, 1 to 1e7.
starvation_bound_us = 1000
# Shares of apps among those with large messages, 1 to 100.
default_weight = 1

# The same for single apps, by name.
[weights]
# "backup" = 1
# "reports" = 4
"#;

/// What an operator writes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct QosConfig {
    pub(crate) small_bytes: u32,
    pub(crate) bulk_bytes: u32,
    pub(crate) linger_us: u64,
    pub(crate) starvation_bound_us: u64,
    pub(crate) default_weight: u32,
    pub(crate) weights: BTreeMap<String, u32>,
}

impl Default for QosConfig {
    fn default() -> QosConfig {
        QosConfig {
            small_bytes: 4096,
            bulk_bytes: 65_536,
            linger_us: 50_000,
            starvation_bound_us: 1000,
            default_weight: 1,
            weights: BTreeMap::new(),
        }
    }
}

/// A configuration that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QosRules {
    pub(crate) small_bytes: u32,
    pub(crate) bulk_bytes: u32,
    pub(crate) linger: Nanos,
    pub(crate) starvation_bound: Nanos,
    default_weight: u32,
    weights: BTreeMap<String, u32>,
}

impl QosRules {
    pub(crate) fn weight(&self, app: &str) -> u32 {
        self.weights.get(app).copied().unwrap_or(self.default_weight)
    }
}

impl QosConfig {
    pub(crate) fn check(self) -> Result<QosRules, ConfigError> {
        check_range("small_bytes", self.small_bytes, 0..=SMALL_BYTES_MAX)?;
        check_range("bulk_bytes", self.bulk_bytes, BULK_BYTES_MIN..=BULK_BYTES_MAX)?;
        check_range("linger_us", self.linger_us, 1..=TIME_US_MAX)?;
        check_range("starvation_bound_us", self.starvation_bound_us, 1..=TIME_US_MAX)?;
        let weight = |key: &str, weight: u32| check_range(key, weight, 1..=WEIGHT_MAX);
        weight("default_weight", self.default_weight)?;
        if self.weights.len() > WEIGHTS_MAX {
            let problem = format!(
                "{} apps, {WEIGHTS_MAX} are the most: leave some out",
                self.weights.len()
            );
            return Err(ConfigError::new("weights", problem));
        }
        for (app, of_app) in &self.weights {
            weight(&format!("weights.{app}"), *of_app)?;
        }
        Ok(QosRules {
            small_bytes: self.small_bytes,
            bulk_bytes: self.bulk_bytes,
            linger: self.linger_us * NANOS_PER_MICROSECOND,
            starvation_bound: self.starvation_bound_us * NANOS_PER_MICROSECOND,
            default_weight: self.default_weight,
            weights: self.weights,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use provost_engine::parse_config;
    use provost_engine::rig::config;

    fn checked(text: &str) -> Result<QosRules, String> {
        let parsed: QosConfig = parse_config(&config(text)).map_err(|error| error.to_string())?;
        parsed.check().map_err(|error| error.to_string())
    }

    #[test]
    fn the_example_shows_every_key_and_its_default() {
        let example = config(EXAMPLE);
        let parsed: QosConfig = parse_config(&example).unwrap();
        assert_eq!(parsed, QosConfig::default());
        assert_eq!(example.len(), 6);
    }

    #[test]
    fn apps_have_their_weight_or_the_default() {
        let rules = checked("default_weight = 2\n[weights]\nbackup = 1\nreports = 40").unwrap();
        assert_eq!(
            ["backup", "reports", "web"].map(|app| rules.weight(app)),
            [1, 40, 2]
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_its_key() {
        for (text, expected) in [
            ("small_byte = 1", "unknown field `small_byte`"),
            (
                "small_bytes = 67108865",
                "small_bytes: 67108865 is not between 0 and",
            ),
            (
                "bulk_bytes = 1000",
                "bulk_bytes: 1000 is not between 16384 and 524288",
            ),
            ("linger_us = 0", "linger_us: 0 is not between 1"),
            (
                "starvation_bound_us = 10000001",
                "starvation_bound_us: 10000001 is not",
            ),
            ("default_weight = 0", "default_weight: 0 is not between 1 and 100"),
            (
                "[weights]\nweb = 101",
                "weights.web: 101 is not between 1 and 100",
            ),
        ] {
            let error = checked(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
