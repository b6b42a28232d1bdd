//! Structured logs to standard error. The data path never logs; what happens to apps and connections does.

use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};

/// Environment variable whose filter goes before the configuration's.
pub const FILTER_VARIABLE: &str = "PROVOSTD_LOG";

/// A filter that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "{origin}: \"{filter}\" is not a log filter ({source}); use a level or something like \"info,provostd=debug\""
)]
pub struct FilterError {
    origin: &'static str,
    filter: String,
    source: tracing_subscriber::filter::ParseError,
}

/// Starts logging for the whole process. A process that logs already keeps its logs.
pub fn start(config: &LogConfig) -> Result<(), FilterError> {
    let builder = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(filter(config)?);
    // An error means that a subscriber is there: a test's, or that of the program around us.
    let _ = match config.format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    Ok(())
}

fn filter(config: &LogConfig) -> Result<EnvFilter, FilterError> {
    let (origin, filter) = match std::env::var(FILTER_VARIABLE) {
        Ok(filter) if !filter.is_empty() => (FILTER_VARIABLE, filter),
        _ => ("log.level", config.level.clone()),
    };
    EnvFilter::try_new(&filter).map_err(|source| FilterError {
        origin,
        filter,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_filters_are_taken_and_nonsense_is_named() {
        for level in ["warn", "info,provostd=debug"] {
            filter(&LogConfig {
                level: level.into(),
                format: LogFormat::Text,
            })
            .unwrap();
        }
        let error = filter(&LogConfig {
            level: "info,=,=".into(),
            format: LogFormat::Text,
        })
        .unwrap_err();
        assert!(error.to_string().contains("log.level"), "{error}");
    }
}
