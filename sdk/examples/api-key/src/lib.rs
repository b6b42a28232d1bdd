//! Only calls that bring a known key in their metadata pass.
#![forbid(unsafe_code)]

use provost_engine::*;
use std::collections::HashSet;
use std::sync::Arc;

export_engine!(ApiKey);

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Config {
    keys: HashSet<String>,
}

struct ApiKey(Arc<HashSet<String>>);

impl FilterPolicy for ApiKey {
    const KIND: &'static str = "api-key";
    const SUMMARY: &'static str = "denies calls without a known key in the metadata `x-api-key`";
    const EXAMPLE: &'static str = "keys = [\"secret\"]  # who knows one of them may call";
    type Config = Config;
    type Filter = Judge;

    fn configure(config: Config, _: &Environment, _: Option<&SharedState>) -> Result<ApiKey, ConfigError> {
        if config.keys.is_empty() {
            Err(ConfigError::new("keys", "give at least one"))
        } else {
            Ok(ApiKey(Arc::new(config.keys)))
        }
    }

    fn filter(&self, _: &DatapathContext) -> Result<Judge, AttachError> {
        Ok(Judge(Arc::clone(&self.0)))
    }
}

struct Judge(Arc<HashSet<String>>);

impl Filter for Judge {
    type Call = ();

    fn watch(&self) -> Watch {
        Watch::BEGINNINGS
    }

    fn judge(&mut self, _: &mut (), step: &mut StepView<'_>) -> Verdict {
        let key = step
            .metadata("x-api-key")
            .and_then(|key| std::str::from_utf8(key).ok());
        if key.is_some_and(|key| self.0.contains(key)) {
            Verdict::Pass
        } else {
            Verdict::Deny(Denial::new(Code::Unauthenticated, "bring a key in x-api-key"))
        }
    }
}

#[cfg(test)]
mod tests;
