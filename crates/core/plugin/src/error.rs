//! Why a library was refused.

use std::path::PathBuf;

/// Why a library was refused. Nothing has changed by the attempt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read, or is none.
    #[error("{}: {reason}", path.display())]
    Open {
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// Somebody who is neither root nor the service's own user could have written it.
    #[error("{}: {reason}: a library runs with the rights of the service", path.display())]
    Untrusted {
        /// The library, or a folder above it.
        path: PathBuf,
        /// Who may write it, and what to do.
        reason: String,
    },
    /// The dynamic linker refused it.
    #[error("{}: {reason}", path.display())]
    Link {
        path: PathBuf,
        /// What the linker said.
        reason: String,
    },
    /// It exports no engine.
    #[error("{}: not an engine of Provost: it has no symbol `{symbol}` (see `export_engine!`)", path.display())]
    NoSymbol {
        path: PathBuf,
        /// What was looked for.
        symbol: &'static str,
    },
    /// It was built for another version of the interface.
    #[error(
        "{}: built for version {found} of the engine ABI, this service has version {supported}: build it with the SDK of this release",
        path.display()
    )]
    Abi {
        path: PathBuf,
        /// What it was built for.
        found: u32,
        /// What the service has.
        supported: u32,
    },
    /// Its description makes no sense.
    #[error("{}: {reason}", path.display())]
    Description {
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
}
