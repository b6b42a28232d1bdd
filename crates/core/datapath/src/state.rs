//! Saved state: what an engine leaves behind when another version takes its place.

use crate::{ForeignBytes, ReceivedBlock};

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

/// Where an engine saves what is not its own memory.
pub trait Saver {
    /// Appends a copy of foreign bytes to `out`.
    fn foreign(&mut self, bytes: &ForeignBytes, out: &mut Vec<u8>);

    /// Notes that the saved state names this block of the app's receive heap, by its place. `filled` bytes from its
    /// start on matter to the successor.
    fn block(&mut self, block: &ReceivedBlock, filled: u32);
}

/// Saves for a successor in the same process: blocks stay where they are. How foreign bytes are copied is up to those
/// who may read them.
pub struct InPlace<F: FnMut(&ForeignBytes, &mut Vec<u8>)>(pub F);

impl<F: FnMut(&ForeignBytes, &mut Vec<u8>)> Saver for InPlace<F> {
    fn foreign(&mut self, bytes: &ForeignBytes, out: &mut Vec<u8>) {
        self.0(bytes, out);
    }

    fn block(&mut self, _block: &ReceivedBlock, _filled: u32) {}
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
