//! Saved state: what an engine leaves behind when another version takes its place.

/// The saved state of one engine: its own versioned form, never the live type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedState {
    /// [`crate::Engine::kind`] of the engine that saved it.
    pub kind: String,
    /// Version of the form of `bytes`; each kind counts its own.
    pub version: u32,
    /// The state.
    pub bytes: Vec<u8>,
}

/// Why a saved state was not restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// It belongs to another kind of engine.
    #[error("the saved state is of a {found} engine, not of {expected}")]
    Kind {
        /// What this engine restores.
        expected: &'static str,
        /// What it was given.
        found: String,
    },
    /// Its version is one that this engine does not read.
    #[error("{kind}: saved state has version {found}, this engine reads up to {newest}")]
    Version {
        /// Which engine.
        kind: &'static str,
        /// What it was given.
        found: u32,
        /// The newest that it reads.
        newest: u32,
    },
    /// Its bytes do not make sense.
    #[error("{kind}: saved state is damaged: {reason}")]
    Damaged {
        /// Which engine.
        kind: &'static str,
        /// What is wrong.
        reason: String,
    },
}
