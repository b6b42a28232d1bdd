//! What an operator can set.

use std::collections::BTreeMap;

use provost_engine::{Code, ConfigError, DatapathContext, MethodContext, check_range};
use serde::Deserialize;

use crate::tap::redaction::RedactionRules;

/// Samples that are kept, at most.
const SAMPLES_MAX: usize = 65_536;
/// Memory for samples, at most.
const BYTES_MAX: usize = 1 << 30;
/// Steps of one sample, at most.
const STEPS_MAX: usize = 1024;

/// Every key with its default.
pub(crate) const EXAMPLE: &str = "\
# Which share of the calls is sampled, in per cent.
percentage = 100.0
# Only calls of these methods, such as [\"Get\", \"/kv.Kv/Get\", \"/shop.*\"]; empty: all.
methods = []
# Only calls that ended with one of these statuses, such as [\"UNAVAILABLE\"]; empty: all.
status = []
# Only calls that bring these values in their metadata, such as { \"x-user\" = \"ann\" }; \"*\" is any value.
metadata = {}
# Fields that are not shown: a path from a request or response message, such as \"user.password\", through lists and
# maps too; or with the message's full name, wherever it occurs: \".shop.Card.number\".
redact = []
# Whether values of type bytes, and of metadata that ends in -bin, are shown by their length alone.
redact_bytes = true
# Metadata that is not shown.
redact_metadata = [\"authorization\", \"proxy-authorization\", \"cookie\", \"set-cookie\", \"x-api-key\"]
# Samples that are kept, the newest (1 to 65536).
samples_max = 256
# Steps of one call that are kept, the first (1 to 1024).
steps_max = 16
# Metadata and messages of one call that are kept, in bytes; a message beyond is left out whole.
sample_bytes_max = 65536
# Memory for all samples, in bytes (up to 1073741824): those that wait to be read, and again those that were read.
bytes_max = 8388608
";

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TapConfig {
    percentage: f64,
    methods: Vec<String>,
    status: Vec<String>,
    metadata: BTreeMap<String, String>,
    redact: Vec<String>,
    redact_bytes: bool,
    redact_metadata: Vec<String>,
    samples_max: usize,
    steps_max: usize,
    sample_bytes_max: usize,
    bytes_max: usize,
}

impl Default for TapConfig {
    fn default() -> TapConfig {
        let metadata = [
            "authorization",
            "proxy-authorization",
            "cookie",
            "set-cookie",
            "x-api-key",
        ];
        TapConfig {
            percentage: 100.0,
            methods: Vec::new(),
            status: Vec::new(),
            metadata: BTreeMap::new(),
            redact: Vec::new(),
            redact_bytes: true,
            redact_metadata: metadata.map(str::to_owned).to_vec(),
            samples_max: 256,
            steps_max: 16,
            sample_bytes_max: 65_536,
            bytes_max: 8 << 20,
        }
    }
}

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TapBounds {
    pub(crate) samples: usize,
    pub(crate) steps: usize,
    pub(crate) sample_bytes: usize,
    pub(crate) bytes: usize,
}

/// Which calls are sampled.
#[derive(Clone, Debug)]
pub(crate) struct SampleSelection {
    /// Random numbers below this.
    pub(crate) below: u64,
    pub(crate) statuses: [bool; Code::ALL.len()],
    pub(crate) metadata: Vec<(String, WantedValue)>,
    methods: Vec<String>,
}

/// What a metadata value must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WantedValue {
    Any,
    Exactly(String),
}

impl TapConfig {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        check_range("samples_max", self.samples_max, 1..=SAMPLES_MAX)?;
        check_range("steps_max", self.steps_max, 1..=STEPS_MAX)?;
        check_range("bytes_max", self.bytes_max, 1..=BYTES_MAX)?;
        check_range("sample_bytes_max", self.sample_bytes_max, 1..=self.bytes_max)?;
        check_range("percentage", self.percentage, 0.0..=100.0)?;
        if let Some(path) = self.redact.iter().find(|path| path.trim_matches('.').is_empty()) {
            let problem = format!("\"{path}\" names no field");
            return Err(ConfigError::new("redact", problem));
        }
        Ok(())
    }

    pub(crate) fn bounds(&self) -> TapBounds {
        TapBounds {
            samples: self.samples_max,
            steps: self.steps_max,
            sample_bytes: self.sample_bytes_max,
            bytes: self.bytes_max,
        }
    }

    pub(crate) fn rules(&self) -> RedactionRules {
        RedactionRules {
            fields: self.redact.clone(),
            bytes: self.redact_bytes,
            metadata: self
                .redact_metadata
                .iter()
                .map(|key| key.to_ascii_lowercase())
                .collect(),
        }
    }

    pub(crate) fn selection(&self) -> Result<SampleSelection, ConfigError> {
        let wanted = |value: &String| match value.as_str() {
            "*" => WantedValue::Any,
            value => WantedValue::Exactly(value.to_owned()),
        };
        Ok(SampleSelection {
            // 100 per cent saturate.
            below: (self.percentage / 100.0 * u64::MAX as f64) as u64,
            statuses: crate::statuses(&self.status)?,
            metadata: self
                .metadata
                .iter()
                .map(|(key, value)| (key.to_ascii_lowercase(), wanted(value)))
                .collect(),
            methods: self.methods.clone(),
        })
    }
}

impl SampleSelection {
    /// For each method of a datapath context whether its calls may be sampled.
    pub(crate) fn methods_of(&self, datapath_context: &DatapathContext) -> Box<[bool]> {
        let is_meant = |method: &MethodContext| {
            self.methods.is_empty() || self.methods.iter().any(|pattern| matches(pattern, method))
        };
        datapath_context.methods.iter().map(is_meant).collect()
    }
}

/// Whether a pattern describes a method: its path, if it begins as paths do, else its name alone, as where a policy is attached.
fn matches(pattern: &str, method: &MethodContext) -> bool {
    let text = if pattern.starts_with('/') {
        &method.path
    } else {
        &method.name
    };
    match pattern.strip_suffix('*') {
        Some(prefix) => text.starts_with(prefix),
        None => **text == *pattern,
    }
}
