//! Structured logs to standard error. The data path never logs; what happens to apps and connections does.

use std::sync::OnceLock;

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
    match config.format {
        LogFormat::Text => {
            let builder = builder.with_ansi(false).with_filter_reloading();
            let handle = builder.reload_handle();
            if builder.try_init().is_ok() {
                keep(move |filter| drop(handle.reload(filter)));
            }
        }
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true).with_filter_reloading();
            let handle = builder.reload_handle();
            if builder.try_init().is_ok() {
                keep(move |filter| drop(handle.reload(filter)));
            }
        }
    }
    Ok(())
}

/// Whether the level can be read.
pub fn check(config: &LogConfig) -> Result<(), FilterError> {
    filter(config).map(drop)
}

/// Logs at another level from now on, where the logs were started here. A level that cannot be read changes nothing.
pub fn set_level(config: &LogConfig) {
    if let (Some(set), Ok(filter)) = (SET_FILTER.get(), filter(config)) {
        set(filter);
    }
}

/// Changes the filter of the process's logs.
static SET_FILTER: OnceLock<Box<dyn Fn(EnvFilter) + Send + Sync>> = OnceLock::new();

fn keep(set: impl Fn(EnvFilter) + Send + Sync + 'static) {
    // Logs are started once in a process.
    let _ = SET_FILTER.set(Box::new(set));
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
