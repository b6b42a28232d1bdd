//! Saved state: what an engine leaves behind when another version takes its place, in this process or in another.
//!
//! An engine saves itself through a [`Saver`] and is made again through a [`Restorer`]. What is its own memory goes
//! into the state's bytes ([`FieldWriter`], [`FieldReader`]). What is not goes beside them:
//!
//! | the state names | same process | another process |
//! |---|---|---|
//! | a block of the receive heap, [`BlockContent::Movable`] | the same block | a fresh block with a copy of what was filled |
//! | a block of the receive heap, [`BlockContent::Fixed`] | the same block | the same place in the app's window: the old segment, which the successor reads and frees but never writes |
//! | memory of the app's send heap | kept by [`Saver::keep_foreign`] | copied by [`Saver::foreign`] |
//! | a token | given back by the successor | the same |
//! | a time ([`crate::Nanos`]) | as it is | as it is: the monotonic clock is the host's |
//! | a socket | a duplicate, [`crate::TransportEngine::descriptors`] | the same |
//!
//! A state may come from another version of the program, so nothing in it is believed: a reader checks everything, and
//! a block or a kept range can be had of a [`Restorer`] once and only if the [`Saver`] was told of it.

use std::collections::HashMap;

use crate::{FieldReader, FieldWriter, ForeignBytes, ReceivedBlock};

/// The saved state of one engine: its own versioned form, never the live type. It may hold secrets (a TLS session's) and
/// what people say to each other, so it is shown without its bytes, and goes to the successor alone.
#[derive(Clone, PartialEq, Eq)]
pub struct SavedState {
    /// [`crate::Engine::kind`] of the engine that saved it.
    pub kind: String,
    /// Version of the form of `bytes`; each kind counts its own.
    pub version: u32,
    pub bytes: Vec<u8>,
}

impl std::fmt::Debug for SavedState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let SavedState { kind, version, bytes } = self;
        write!(f, "SavedState({kind}, version {version}, {} bytes)", bytes.len())
    }
}

impl SavedState {
    /// A state of this kind: what was written, in this version of its form.
    #[must_use]
    pub fn new(kind: &str, version: u32, written: FieldWriter) -> SavedState {
        SavedState {
            kind: kind.to_owned(),
            version,
            bytes: written.bytes,
        }
    }

    /// Begins to read a state of this kind, of any version from 1 to `newest`.
    pub fn open(&self, kind: &'static str, newest: u32) -> Result<FieldReader<'_>, RestoreError> {
        if self.kind != kind {
            return Err(RestoreError::Kind {
                expected: kind,
                found: self.kind.clone(),
            });
        }
        if !(1..=newest).contains(&self.version) {
            return Err(RestoreError::Version {
                kind,
                found: self.version,
                newest,
            });
        }
        Ok(FieldReader::new(kind, &self.bytes))
    }
}

/// Where an engine saves what is not its own memory.
pub trait Saver {
    /// Where the successor is.
    fn successor(&self) -> Successor {
        Successor::OtherProcess
    }

    /// The newest form of the state of a kind of engine that the successor reads, where that matters: of a kind whose older forms
    /// say less. A successor in another process that has not said so reads the first.
    fn newest_form(&self, _kind: &str) -> u32 {
        match self.successor() {
            Successor::SameProcess => u32::MAX,
            Successor::OtherProcess => 1,
        }
    }

    /// Appends a copy of foreign bytes to `out`, exactly as many as the range has.
    fn foreign(&mut self, bytes: &ForeignBytes, out: &mut Vec<u8>);

    /// Keeps a range for a successor in the same process, which gets it by this number ([`Restorer::foreign`]). `None`:
    /// the successor is in another process, copy it.
    fn keep_foreign(&mut self, _bytes: &ForeignBytes) -> Option<u32> {
        None
    }

    /// Notes that the saved state names this block of the app's receive heap.
    fn block(&mut self, block: &ReceivedBlock, content: BlockContent);
}

/// Where a successor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Successor {
    /// In this process: what is not bytes is kept for it.
    SameProcess,
    /// In another process. Every runtime rests while the engines are saved.
    OtherProcess,
}

/// What a block that a state names is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockContent {
    /// Its first `filled` bytes matter, and nothing in them depends on where they are: metadata, and a message that was
    /// not relocated yet, whole or in part. The successor may have them in another block, which it fills further.
    Movable {
        /// Bytes from its start that have come.
        filled: u32,
    },
    /// All of it matters, and references in it were relocated to its place in the app's window. It stays there, and is
    /// not written any more: it is published or freed.
    Fixed,
}

/// Where a successor gets what its saved state names.
pub trait Restorer {
    /// The block to use for one that the state names, of the same length. Each can be had once.
    fn block(&mut self, saved: ReceivedBlock) -> Result<ReceivedBlock, NotSaved>;

    /// The range that was kept by [`Saver::keep_foreign`] under this number. Each can be had once.
    fn foreign(&mut self, kept: u32) -> Result<ForeignBytes, NotSaved>;
}

/// A state names what was not saved with it, or names it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSaved {
    /// A block of the receive heap.
    #[error("block {at} was not saved, or is named twice")]
    Block {
        /// Its place in the window, in units of 8 bytes.
        at: u32,
    },
    /// A range of the send heap.
    #[error("memory number {kept} was not kept, or is named twice")]
    Foreign { kept: u32 },
    /// The receive heap has no room for the copy of a block.
    #[error("the receive heap has no room for a copy of block {at}")]
    Full {
        /// Its place in the old window, in units of 8 bytes.
        at: u32,
    },
}

/// Saves for a successor in the same process: blocks and foreign memory stay where they are. How foreign bytes are read
/// is up to those who may (`provost_marshal::copy_foreign`); few are, those that are in frames already.
pub struct InPlace<F: FnMut(&ForeignBytes, &mut Vec<u8>)> {
    copy: F,
    kept: KeptMemory,
}

/// What [`InPlace`] saved beside the states, for their successors.
#[derive(Debug, Default)]
pub struct KeptMemory {
    blocks: HashMap<u32, u32>,
    foreign: Vec<Option<ForeignBytes>>,
}

impl<F: FnMut(&ForeignBytes, &mut Vec<u8>)> InPlace<F> {
    /// A saver for one engine or for several of one app.
    pub fn new(copy: F) -> InPlace<F> {
        InPlace {
            copy,
            kept: KeptMemory::default(),
        }
    }

    #[must_use]
    pub fn into_restorer(self) -> KeptMemory {
        self.kept
    }
}

impl<F: FnMut(&ForeignBytes, &mut Vec<u8>)> Saver for InPlace<F> {
    fn successor(&self) -> Successor {
        Successor::SameProcess
    }

    fn foreign(&mut self, bytes: &ForeignBytes, out: &mut Vec<u8>) {
        (self.copy)(bytes, out);
    }

    fn keep_foreign(&mut self, bytes: &ForeignBytes) -> Option<u32> {
        let number = u32::try_from(self.kept.foreign.len()).ok()?;
        self.kept.foreign.push(Some(bytes.clone()));
        Some(number)
    }

    fn block(&mut self, block: &ReceivedBlock, _content: BlockContent) {
        self.kept.blocks.insert(block.at, block.bytes);
    }
}

impl Restorer for KeptMemory {
    fn block(&mut self, saved: ReceivedBlock) -> Result<ReceivedBlock, NotSaved> {
        match self.blocks.remove(&saved.at) {
            Some(bytes) if bytes == saved.bytes => Ok(saved),
            _ => Err(NotSaved::Block { at: saved.at }),
        }
    }

    fn foreign(&mut self, kept: u32) -> Result<ForeignBytes, NotSaved> {
        let range = self.foreign.get_mut(kept as usize).and_then(Option::take);
        range.ok_or(NotSaved::Foreign { kept })
    }
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
        kind: &'static str,
        /// What it was given.
        found: u32,
        /// The newest that it reads.
        newest: u32,
    },
    /// Its bytes do not make sense.
    #[error("{kind}: saved state is damaged: {reason}")]
    Damaged { kind: &'static str, reason: String },
}
