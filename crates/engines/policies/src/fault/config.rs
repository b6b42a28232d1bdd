//! The configuration: what an operator writes, and what is made of it.

use std::collections::BTreeMap;
use std::fmt;

use provost_engine::{Code, ConfigError, Nanos, check_range};
use provost_wire::metadata;
use serde::Deserialize;
use serde::de::{Deserializer, Visitor};

use crate::fault::draw::Chance;

/// Longest delay, in milliseconds: an hour.
pub const DELAY_MS_MAX: f64 = 3_600_000.0;
/// Faults under way at once, at most.
pub const ACTIVE_FAULTS_MAX: u64 = 1_000_000;
/// Metadata entries to match, at most.
pub const MATCH_MAX: usize = 16;
/// Longest message of an abort, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 1024;

const NANOS_PER_MILLISECOND: f64 = 1e6;

/// The configuration of a fault, with every key and its default.
pub(crate) const EXAMPLE: &str = r#"# What the faults are drawn from: the same seed and the same sequence of calls gives the same faults.
seed = 0
# Calls that are being delayed at once, 1 to 1e6; a further one is let alone.
max_active_faults = 1000

# Which calls: those with all of these metadata values. "*" stands for any value.
[match]
# "x-user" = "ada"

# Holds so many calls back when they begin.
[delay]
# Of those that match, 0 to 100.
percentage = 0.0
# For how long, up to an hour.
fixed_delay_ms = 0.0
# If more: for any time between the two, uniformly.
max_delay_ms = 0.0

# Ends so many calls when they begin (after their delay, if they have one).
[abort]
percentage = 0.0
# By name or number; not "OK".
grpc_status = "UNAVAILABLE"
# What the client is told; "" names the policy and its configuration.
message = ""

# Holds the end of so many calls' responses back.
[response_delay]
percentage = 0.0
fixed_delay_ms = 0.0
max_delay_ms = 0.0

# Puts another end in the place of so many calls', after the handler ran.
[response_abort]
percentage = 0.0
grpc_status = "UNAVAILABLE"
message = ""
"#;

/// What an operator writes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct FaultConfig {
    pub(crate) seed: u64,
    pub(crate) max_active_faults: u64,
    #[serde(rename = "match")]
    pub(crate) matches: BTreeMap<String, String>,
    pub(crate) delay: DelayConfig,
    pub(crate) abort: AbortConfig,
    pub(crate) response_delay: DelayConfig,
    pub(crate) response_abort: AbortConfig,
}

impl Default for FaultConfig {
    fn default() -> FaultConfig {
        FaultConfig {
            seed: 0,
            max_active_faults: 1000,
            matches: BTreeMap::new(),
            delay: DelayConfig::default(),
            abort: AbortConfig::default(),
            response_delay: DelayConfig::default(),
            response_abort: AbortConfig::default(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DelayConfig {
    pub(crate) percentage: f64,
    pub(crate) fixed_delay_ms: f64,
    pub(crate) max_delay_ms: f64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AbortConfig {
    pub(crate) percentage: f64,
    pub(crate) grpc_status: StatusName,
    pub(crate) message: String,
}

impl Default for AbortConfig {
    fn default() -> AbortConfig {
        AbortConfig {
            percentage: 0.0,
            grpc_status: StatusName(Code::Unavailable),
            message: String::new(),
        }
    }
}

/// A status code, by name or by number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StatusName(pub(crate) Code);

/// A configuration that was checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FaultRules {
    pub(crate) seed: u64,
    pub(crate) active_max: u64,
    /// Key, and the value that it must have; `None` for any.
    pub(crate) matches: Vec<(String, Option<String>)>,
    pub(crate) request: EndFaults,
    pub(crate) response: EndFaults,
}

/// What can happen to one end of a call; `None` if it never does.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EndFaults {
    pub(crate) delay: Option<Delay>,
    pub(crate) abort: Option<Abort>,
}

impl EndFaults {
    pub(crate) fn is_empty(&self) -> bool {
        self.delay.is_none() && self.abort.is_none()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Delay {
    pub(crate) chance: Chance,
    pub(crate) least: Nanos,
    /// How much longer it may be.
    pub(crate) spread: Nanos,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Abort {
    pub(crate) chance: Chance,
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl FaultConfig {
    /// Checks it. `told` is what clients are told of an abort whose message is empty.
    pub(crate) fn check(self, told: &str) -> Result<FaultRules, ConfigError> {
        check_range("max_active_faults", self.max_active_faults, 1..=ACTIVE_FAULTS_MAX)?;
        Ok(FaultRules {
            seed: self.seed,
            active_max: self.max_active_faults,
            matches: checked_matches(self.matches)?,
            request: EndFaults {
                delay: self.delay.check("delay")?,
                abort: self.abort.check("abort", told)?,
            },
            response: EndFaults {
                delay: self.response_delay.check("response_delay")?,
                abort: self.response_abort.check("response_abort", told)?,
            },
        })
    }
}

impl DelayConfig {
    fn check(&self, table: &str) -> Result<Option<Delay>, ConfigError> {
        let chance = chance(table, self.percentage)?;
        let time = |key: &str, milliseconds: f64| {
            check_range(format!("{table}.{key}"), milliseconds, 0.0..=DELAY_MS_MAX)?;
            Ok((milliseconds * NANOS_PER_MILLISECOND) as Nanos)
        };
        let least = time("fixed_delay_ms", self.fixed_delay_ms)?;
        let most = time("max_delay_ms", self.max_delay_ms)?;
        if most != 0 && most < least {
            return Err(ConfigError::new(
                format!("{table}.max_delay_ms"),
                format!(
                    "{} is less than fixed_delay_ms, which is {}: give more, or 0 for a delay that is always the same",
                    self.max_delay_ms, self.fixed_delay_ms
                ),
            ));
        }
        let Some(chance) = chance else {
            return Ok(None);
        };
        if least.max(most) == 0 {
            return Err(ConfigError::new(
                format!("{table}.fixed_delay_ms"),
                "a delay of 0 ms is none: give a time, or the percentage 0",
            ));
        }
        Ok(Some(Delay {
            chance,
            least,
            spread: most.saturating_sub(least),
        }))
    }
}

impl AbortConfig {
    fn check(self, table: &str, told: &str) -> Result<Option<Abort>, ConfigError> {
        let chance = chance(table, self.percentage)?;
        if self.grpc_status.0 == Code::Ok {
            return Err(ConfigError::new(
                format!("{table}.grpc_status"),
                "OK is no fault: give another code",
            ));
        }
        if self.message.len() > MESSAGE_BYTES_MAX {
            return Err(ConfigError::new(
                format!("{table}.message"),
                format!(
                    "{} bytes, {MESSAGE_BYTES_MAX} are the most: shorten it",
                    self.message.len()
                ),
            ));
        }
        Ok(chance.map(|chance| Abort {
            chance,
            code: self.grpc_status.0,
            message: match self.message.as_str() {
                "" => told.to_owned(),
                _ => self.message,
            },
        }))
    }
}

fn chance(table: &str, percentage: f64) -> Result<Option<Chance>, ConfigError> {
    check_range(format!("{table}.percentage"), percentage, 0.0..=100.0)?;
    Ok((percentage > 0.0).then(|| Chance::of_percentage(percentage)))
}

fn checked_matches(matches: BTreeMap<String, String>) -> Result<Vec<(String, Option<String>)>, ConfigError> {
    if matches.len() > MATCH_MAX {
        let problem = format!(
            "{} entries, {MATCH_MAX} are the most: leave some out",
            matches.len()
        );
        return Err(ConfigError::new("match", problem));
    }
    let check = |(key, value): (String, String)| match metadata::entry_bytes(&key, value.as_bytes()) {
        Ok(_) => Ok((key, (value != "*").then_some(value))),
        Err(error) => Err(ConfigError::new(
            format!("match.{key}"),
            format!("{error}: no call has such an entry"),
        )),
    };
    matches.into_iter().map(check).collect()
}

impl<'de> Deserialize<'de> for StatusName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<StatusName, D::Error> {
        deserializer.deserialize_any(StatusVisitor)
    }
}

struct StatusVisitor;

impl Visitor<'_> for StatusVisitor {
    type Value = StatusName;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a status code by its name, such as \"UNAVAILABLE\", or number, 1 to 16")
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<StatusName, E> {
        let code = Code::ALL
            .into_iter()
            .find(|code| i64::from(*code as u8) == number);
        code.map(StatusName)
            .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Signed(number), &self))
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<StatusName, E> {
        let code = Code::ALL.into_iter().find(|code| code.name() == name);
        code.map(StatusName)
            .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(name), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use provost_engine::parse_config;
    use provost_engine::rig::config;

    fn checked(text: &str) -> Result<FaultRules, String> {
        let parsed: FaultConfig = parse_config(&config(text)).map_err(|error| error.to_string())?;
        parsed.check("injected").map_err(|error| error.to_string())
    }

    #[test]
    fn the_example_shows_every_key_and_its_default() {
        let example = config(EXAMPLE);
        let parsed: FaultConfig = parse_config(&example).unwrap();
        assert_eq!(parsed, FaultConfig::default());
        assert_eq!(example.len(), 7);
        for table in ["delay", "abort", "response_delay", "response_abort"] {
            assert_eq!(example[table].as_table().unwrap().len(), 3, "{table}");
        }
        let rules = parsed.check("injected").unwrap();
        assert!(rules.request.is_empty() && rules.response.is_empty());
    }

    #[test]
    fn delays_and_aborts_are_what_was_written() {
        let rules = checked(
            "[delay]\npercentage = 10\nfixed_delay_ms = 0.5\nmax_delay_ms = 2.0
             [response_abort]\npercentage = 100\ngrpc_status = 4\nmessage = 'too late'",
        )
        .unwrap();
        let delay = rules.request.delay.unwrap();
        assert_eq!((delay.least, delay.spread), (500_000, 1_500_000));
        let abort = rules.response.abort.unwrap();
        assert_eq!(
            (abort.code, abort.message.as_str()),
            (Code::DeadlineExceeded, "too late")
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_its_key() {
        for (text, expected) in [
            ("sede = 1", "unknown field `sede`"),
            ("max_active_faults = 0", "max_active_faults: 0 is not between 1"),
            (
                "[delay]\npercentage = 101",
                "delay.percentage: 101 is not between 0 and 100",
            ),
            ("[abort]\npercentage = nan", "abort.percentage: NaN is not"),
            (
                "[delay]\npercentage = 1",
                "delay.fixed_delay_ms: a delay of 0 ms is none",
            ),
            (
                "[response_delay]\nfixed_delay_ms = 5\nmax_delay_ms = 4",
                "response_delay.max_delay_ms: 4 is less than fixed_delay_ms",
            ),
            (
                "[delay]\nfixed_delay_ms = 4e6",
                "delay.fixed_delay_ms: 4000000 is not between",
            ),
            ("[abort]\ngrpc_status = 'OK'", "abort.grpc_status: OK is no fault"),
            ("[abort]\ngrpc_status = 17", "1 to 16"),
            ("[abort]\ngrpc_status = 'GONE'", "such as \"UNAVAILABLE\""),
            ("[match]\n'X-User' = 'a'", "match.X-User: metadata key"),
        ] {
            let error = checked(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
