//! What can go wrong while a proxy is measured.

use std::io;

/// Why something was not measured.
#[derive(Debug, thiserror::Error)]
pub enum ProbeFailure {
    /// The system refused something.
    #[error("{doing}: {source}")]
    System {
        doing: String,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel does not grant a method here.
    #[error("{what}: {why}; {remedy}")]
    Refused {
        what: String,
        /// What the kernel said.
        why: String,
        /// What the operator can do.
        remedy: String,
    },
    /// A proxy ended, or never served.
    #[error("proxy: {0}")]
    Proxy(String),
    #[error("load: {0}")]
    Load(String),
    /// The operator wanted it to end; by which signal.
    #[error("stopped by {0}")]
    Stopped(&'static str),
    /// What was asked for is not to be had here.
    #[error("{0}")]
    Unavailable(String),
    /// What was asked for makes no sense.
    #[error("{0}")]
    Invalid(String),
}

/// Says what was tried when the system refuses it.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, ProbeFailure>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, ProbeFailure> {
        self.map_err(|error| ProbeFailure::System {
            doing: what(),
            source: error.into(),
        })
    }
}
