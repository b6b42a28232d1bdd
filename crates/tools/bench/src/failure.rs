//! What can go wrong in a benchmark.

/// Why a benchmark, or one setup of it, gave no figure.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The system refused something.
    #[error("{doing}: {source}")]
    System {
        doing: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A process of a setup did not do its part.
    #[error("{role}: {what}")]
    Role {
        role: String,
        /// What it did, or did not.
        what: String,
    },
    /// A setup cannot run here; it is skipped.
    #[error("{0}")]
    Unavailable(String),
}

impl Failure {
    pub(crate) fn role(role: &str, what: impl Into<String>) -> Failure {
        Failure::Role {
            role: role.into(),
            what: what.into(),
        }
    }
}

/// Says what was tried when the system refuses it.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Failure>;
}

impl<T, E: Into<std::io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Failure> {
        self.map_err(|error| Failure::System {
            doing: what(),
            source: error.into(),
        })
    }
}
