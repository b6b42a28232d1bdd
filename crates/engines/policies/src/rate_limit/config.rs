//! The configuration: what an operator writes, and what is made of it.

use std::fmt;

use provost_engine::{ConfigError, check_range};
use provost_wire::metadata;
use serde::Deserialize;
use serde::de::{Deserializer, Visitor};

use crate::rate_limit::bucket::{BucketShape, TICKS_PER_SECOND, Ticks};

/// Fastest rate, in calls a second.
pub const REQUESTS_PER_SECOND_MAX: f64 = 1e9;
/// Slowest rate: a call in about a quarter of an hour.
pub const REQUESTS_PER_SECOND_MIN: f64 = 0.001;
/// Largest burst, in calls.
pub const BURST_MAX: u64 = 1_000_000_000;
/// How long an empty bucket may take to fill, in seconds: a day.
pub const FILL_SECONDS_MAX: u64 = 86_400;
/// Calls that may wait for one bucket, at most.
pub const QUEUE_CALLS_MAX: u64 = 1_000_000;
/// Buckets of one policy, at most (16 bytes each).
pub const BUCKETS_MAX: u32 = 1 << 24;
/// Parts of a key, at most.
pub const PER_MAX: usize = 8;

/// The configuration of a rate limit, with every key and its default.
pub(crate) const EXAMPLE: &str = r#"# Calls that may begin in a second, 0.001 to 1e9, in the long run; "unlimited" (or inf) for any number.
requests_per_second = "unlimited"
# Calls that may begin at once after a pause, 1 to 1e9; 0: as many as a second gives, at least 1.
burst = 0
# Which calls share a bucket: those that are alike in all of these. [] is one bucket for all. Of
# "app" (its name), "user" (its uid), "method", "peer" (identity or address), "peer.app", "peer.user", "peer.node",
# "peer.identity", "metadata:KEY", "message:FIELD.FIELD".
per = []
# What happens to a call over the limit: "reject" (RESOURCE_EXHAUSTED, with grpc-retry-pushback-ms) or "queue".
on_limit = "reject"
# Calls that wait for one bucket at most, with "queue": 1 to 1e6. One more is rejected, and so is at once a call whose
# deadline comes before its turn.
queue_calls_max = 1000
# Buckets that are kept, 1 to 2^24, 16 bytes each; rounded up to a power of two.
buckets_max = 65536
# true: a rejection says when to try again, and names neither the policy nor what shares a bucket nor the file.
hide_rule = false
"#;

/// What an operator writes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RateLimitConfig {
    pub(crate) requests_per_second: CallRate,
    pub(crate) burst: u64,
    pub(crate) per: Vec<String>,
    pub(crate) on_limit: OnLimit,
    pub(crate) queue_calls_max: u64,
    pub(crate) buckets_max: u32,
    pub(crate) hide_rule: bool,
}

impl Default for RateLimitConfig {
    fn default() -> RateLimitConfig {
        RateLimitConfig {
            requests_per_second: CallRate::Unlimited,
            burst: 0,
            per: Vec::new(),
            on_limit: OnLimit::Reject,
            queue_calls_max: 1000,
            buckets_max: 65_536,
            hide_rule: false,
        }
    }
}

/// Calls in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum CallRate {
    Unlimited,
    PerSecond(f64),
}

/// What happens to a call over the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnLimit {
    Reject,
    Queue,
}

/// A configuration that was checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LimitRules {
    /// `None`: unlimited.
    pub(crate) limit: Option<BucketShape>,
    pub(crate) per: Vec<KeyPart>,
    /// How long a call may wait for its turn; `None` to reject it.
    pub(crate) wait_max: Option<Ticks>,
    pub(crate) buckets: usize,
    pub(crate) disclosure: RuleDisclosure,
}

/// Whether a client is told which limit its call is over, and where that stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleDisclosure {
    Named,
    Hidden,
}

/// What calls that share a bucket have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KeyPart {
    App,
    User,
    Method,
    Peer,
    PeerApp,
    PeerUser,
    PeerNode,
    PeerIdentity,
    Metadata(String),
    Message(String),
}

impl RateLimitConfig {
    pub(crate) fn check(&self) -> Result<LimitRules, ConfigError> {
        let limit = self.limit()?;
        check_range("queue_calls_max", self.queue_calls_max, 1..=QUEUE_CALLS_MAX)?;
        check_range("buckets_max", self.buckets_max, 1..=BUCKETS_MAX)?;
        let wait_max = limit.map_or(0, |limit| limit.interval.saturating_mul(self.queue_calls_max));
        Ok(LimitRules {
            limit,
            per: self.key_parts()?,
            wait_max: (self.on_limit == OnLimit::Queue).then_some(wait_max),
            buckets: self.buckets_max as usize,
            disclosure: if self.hide_rule {
                RuleDisclosure::Hidden
            } else {
                RuleDisclosure::Named
            },
        })
    }

    fn limit(&self) -> Result<Option<BucketShape>, ConfigError> {
        check_range("burst", self.burst, 0..=BURST_MAX)?;
        let CallRate::PerSecond(rate) = self.requests_per_second else {
            return Ok(None);
        };
        if !(REQUESTS_PER_SECOND_MIN..=REQUESTS_PER_SECOND_MAX).contains(&rate) {
            let problem = format!(
                "{rate} is not between {REQUESTS_PER_SECOND_MIN} and {REQUESTS_PER_SECOND_MAX}: give a rate between them, \
                 or \"unlimited\""
            );
            return Err(ConfigError::new("requests_per_second", problem));
        }
        let interval = (TICKS_PER_SECOND as f64 / rate).round() as Ticks;
        let burst = match self.burst {
            0 => (rate.ceil() as u64).max(1),
            burst => burst,
        };
        let capacity = interval.saturating_mul(burst);
        if capacity > FILL_SECONDS_MAX * TICKS_PER_SECOND {
            let problem = format!(
                "a bucket of {burst} calls takes {:.0} s to fill at {rate} calls a second, {FILL_SECONDS_MAX} s is the \
                 most: give a smaller burst or a higher rate",
                burst as f64 / rate
            );
            return Err(ConfigError::new("burst", problem));
        }
        Ok(Some(BucketShape { interval, capacity }))
    }

    fn key_parts(&self) -> Result<Vec<KeyPart>, ConfigError> {
        if self.per.len() > PER_MAX {
            let problem = format!("{} parts, {PER_MAX} are the most: leave some out", self.per.len());
            return Err(ConfigError::new("per", problem));
        }
        let mut parts = Vec::new();
        for (index, text) in self.per.iter().enumerate() {
            let part =
                KeyPart::parse(text).map_err(|problem| ConfigError::new(format!("per[{index}]"), problem))?;
            if parts.contains(&part) {
                let problem = format!("{text:?} is there twice: leave one out");
                return Err(ConfigError::new(format!("per[{index}]"), problem));
            }
            parts.push(part);
        }
        // In whichever order they are written, they name the same buckets.
        parts.sort();
        Ok(parts)
    }
}

impl KeyPart {
    fn parse(text: &str) -> Result<KeyPart, String> {
        match (text, text.split_once(':')) {
            ("app", _) => Ok(KeyPart::App),
            ("user", _) => Ok(KeyPart::User),
            ("method", _) => Ok(KeyPart::Method),
            ("peer", _) => Ok(KeyPart::Peer),
            ("peer.app", _) => Ok(KeyPart::PeerApp),
            ("peer.user", _) => Ok(KeyPart::PeerUser),
            ("peer.node", _) => Ok(KeyPart::PeerNode),
            ("peer.identity", _) => Ok(KeyPart::PeerIdentity),
            (_, Some(("metadata", key))) => match metadata::entry_bytes(key, b"") {
                Ok(_) => Ok(KeyPart::Metadata(key.to_owned())),
                Err(_) => Err(format!(
                    "{key:?} is no metadata key: use lower-case letters, digits, '_', '-' and '.'"
                )),
            },
            (_, Some(("message", path))) if !path.is_empty() => Ok(KeyPart::Message(path.to_owned())),
            _ => Err(format!(
                "{text:?} is unknown: use \"app\", \"user\", \"method\", \"peer\", \"peer.app\", \"peer.user\", \"peer.node\", \
                 \"peer.identity\", \"metadata:KEY\" or \"message:FIELD.FIELD\""
            )),
        }
    }
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyPart::App => f.write_str("app"),
            KeyPart::User => f.write_str("user"),
            KeyPart::Method => f.write_str("method"),
            KeyPart::Peer => f.write_str("peer"),
            KeyPart::PeerApp => f.write_str("peer.app"),
            KeyPart::PeerUser => f.write_str("peer.user"),
            KeyPart::PeerNode => f.write_str("peer.node"),
            KeyPart::PeerIdentity => f.write_str("peer.identity"),
            KeyPart::Metadata(key) => write!(f, "metadata:{key}"),
            KeyPart::Message(path) => write!(f, "message:{path}"),
        }
    }
}

impl<'de> Deserialize<'de> for CallRate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CallRate, D::Error> {
        deserializer.deserialize_any(RateVisitor)
    }
}

struct RateVisitor;

impl Visitor<'_> for RateVisitor {
    type Value = CallRate;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("requests_per_second as a number of calls, or \"unlimited\"")
    }

    fn visit_i64<E: serde::de::Error>(self, rate: i64) -> Result<CallRate, E> {
        Ok(CallRate::PerSecond(rate as f64))
    }

    fn visit_u64<E: serde::de::Error>(self, rate: u64) -> Result<CallRate, E> {
        Ok(CallRate::PerSecond(rate as f64))
    }

    fn visit_f64<E: serde::de::Error>(self, rate: f64) -> Result<CallRate, E> {
        let unlimited = (rate == f64::INFINITY).then_some(CallRate::Unlimited);
        Ok(unlimited.unwrap_or(CallRate::PerSecond(rate)))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<CallRate, E> {
        match text {
            "unlimited" => Ok(CallRate::Unlimited),
            _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use provost_engine::parse_config;
    use provost_engine::rig::config;

    fn checked(text: &str) -> Result<LimitRules, String> {
        let parsed: RateLimitConfig = parse_config(&config(text)).map_err(|error| error.to_string())?;
        parsed.check().map_err(|error| error.to_string())
    }

    #[test]
    fn the_example_shows_every_key_and_its_default() {
        let example = config(EXAMPLE);
        let parsed: RateLimitConfig = parse_config(&example).unwrap();
        assert_eq!(parsed, RateLimitConfig::default());
        assert_eq!(example.len(), 7);
        assert_eq!(checked("").unwrap().limit, None);
        assert_eq!(checked("requests_per_second = inf").unwrap().limit, None);
    }

    #[test]
    fn rates_become_intervals_and_bursts_capacities() {
        let limit = |text: &str| checked(text).unwrap().limit.unwrap();
        let second = TICKS_PER_SECOND;
        assert_eq!(
            limit("requests_per_second = 100"),
            BucketShape {
                interval: second / 100,
                capacity: second
            }
        );
        assert_eq!(
            limit("requests_per_second = 0.5\nburst = 3"),
            BucketShape {
                interval: 2 * second,
                capacity: 6 * second
            }
        );
        assert_eq!(limit("requests_per_second = 0.5").capacity, 2 * second);
        assert_eq!(limit("requests_per_second = 1e9").interval, 16);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_key() {
        for (text, expected) in [
            ("requests_per_second = 0", "requests_per_second: 0 is not between"),
            ("requests_per_second = -1.5", "requests_per_second: -1.5 is not"),
            ("requests_per_second = nan", "requests_per_second: NaN is not"),
            ("requests_per_second = \"fast\"", "\"unlimited\""),
            ("request_per_second = 1", "unknown field `request_per_second`"),
            ("burst = 2000000000", "burst: 2000000000 is not between 0 and"),
            (
                "requests_per_second = 0.01\nburst = 1000",
                "burst: a bucket of 1000 calls takes 100000 s",
            ),
            ("queue_calls_max = 0", "queue_calls_max: 0 is not between 1"),
            ("buckets_max = 0", "buckets_max: 0 is not between 1"),
            ("on_limit = \"drop\"", "unknown variant `drop`"),
            ("per = [\"app\", \"tenant\"]", "per[1]: \"tenant\" is unknown"),
            ("per = [\"app\", \"app\"]", "per[1]: \"app\" is there twice"),
            (
                "per = [\"metadata:Upper\"]",
                "per[0]: \"Upper\" is no metadata key",
            ),
            ("per = [\"message:\"]", "per[0]: \"message:\" is unknown"),
        ] {
            let error = checked(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
