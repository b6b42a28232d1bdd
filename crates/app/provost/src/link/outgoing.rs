//! What a step carries out of this process, and who owns it until the service has read it.

use crate::message::Message;
use crate::metadata::MetadataMap;
use crate::shared::{self, Bytes, HeapFull};

/// Message and metadata of one step, in the send heap. Dropping it frees them.
#[derive(Default)]
pub struct OutgoingMessage {
    message: Option<OwnedMessage>,
    metadata: Bytes,
}

/// A message whose type is forgotten but for how to drop it.
struct OwnedMessage {
    root: u32,
    /// What the message counts as in its stream's window.
    window_bytes: u32,
    data: usize,
    release: unsafe fn(usize),
}

impl OutgoingMessage {
    /// Moves a message's root struct to the send heap.
    pub(crate) fn message<T: Message>(message: T) -> Result<OutgoingMessage, HeapFull> {
        let window_bytes = u32::try_from(message.measure()).unwrap_or(u32::MAX);
        let root = shared::Box::try_new(message)?.into_offset();
        let message = OwnedMessage {
            root,
            window_bytes,
            data: root as usize,
            release: release_box::<T>,
        };
        Ok(OutgoingMessage {
            message: Some(message),
            metadata: Bytes::new(),
        })
    }

    /// A message that others hold too.
    pub(crate) fn prepared<T: Message>(message: &shared::Prepared<T>) -> OutgoingMessage {
        let (root, window_bytes, data) = message.share();
        OutgoingMessage {
            message: Some(OwnedMessage {
                root,
                window_bytes,
                data,
                release: shared::Prepared::<T>::release,
            }),
            metadata: Bytes::new(),
        }
    }

    /// Metadata without a message.
    pub(crate) fn of_metadata(metadata: &MetadataMap) -> Result<OutgoingMessage, HeapFull> {
        let mut outgoing = OutgoingMessage::default();
        outgoing.set_metadata(metadata)?;
        Ok(outgoing)
    }

    /// Has metadata beside the message.
    pub(crate) fn set_metadata(&mut self, metadata: &MetadataMap) -> Result<(), HeapFull> {
        if !metadata.is_empty() {
            self.metadata = Bytes::try_from_slice(metadata.as_block())?;
        }
        Ok(())
    }

    /// A metadata block that may hold reserved keys, without a message.
    pub(crate) fn of_block(block: &[u8]) -> Result<OutgoingMessage, HeapFull> {
        Ok(OutgoingMessage {
            message: None,
            metadata: Bytes::try_from_slice(block)?,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.message.is_none() && self.metadata.is_empty()
    }

    pub(crate) fn root(&self) -> u32 {
        self.message.as_ref().map_or(0, |message| message.root)
    }

    pub(crate) fn window_bytes(&self) -> u32 {
        self.message.as_ref().map_or(0, |message| message.window_bytes)
    }

    pub(crate) fn metadata_block(&self) -> &[u8] {
        &self.metadata
    }

    /// Offset and length of the metadata block.
    pub(crate) fn metadata(&self) -> (u32, u32) {
        (self.metadata.offset(), self.metadata.len() as u32)
    }
}

impl Drop for OwnedMessage {
    fn drop(&mut self) {
        // SAFETY: `release` was stored with the data that it takes, and runs once.
        unsafe { (self.release)(self.data) };
    }
}

/// # Safety
///
/// `data` must be the offset of a box of this type that was given up by `into_offset`, and is taken back only here.
unsafe fn release_box<T>(data: usize) {
    // SAFETY: the caller's promise.
    drop(unsafe { shared::Box::<T>::from_offset(data as u32) });
}

/// Parcels on their way, by the token that comes back when the service has read them.
pub(crate) struct Outstanding {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

#[derive(Default)]
struct Entry {
    generation: u32,
    outgoing: Option<OutgoingMessage>,
}

/// Parcels for which there is room from the start; for more, the tables grow.
const OUTSTANDING_AT_START: usize = 256;

impl Default for Outstanding {
    fn default() -> Outstanding {
        Outstanding {
            entries: Vec::with_capacity(OUTSTANDING_AT_START),
            free: Vec::with_capacity(OUTSTANDING_AT_START),
        }
    }
}

impl Outstanding {
    /// Keeps a outgoing; its token is never 0.
    pub(crate) fn keep(&mut self, outgoing: OutgoingMessage) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry::default());
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1).max(1);
        entry.outgoing = Some(outgoing);
        u64::from(entry.generation) << 32 | u64::from(index)
    }

    /// Gives a outgoing back; `None` for a token that is not out.
    pub(crate) fn take(&mut self, token: u64) -> Option<OutgoingMessage> {
        let index = token as u32;
        let entry = self.entries.get_mut(index as usize)?;
        if u64::from(entry.generation) != token >> 32 {
            return None;
        }
        let outgoing = entry.outgoing.take()?;
        self.free.push(index);
        Some(outgoing)
    }

    /// Gives all outgoing messages back: nobody will read them any more.
    pub(crate) fn take_all(&mut self) -> Vec<OutgoingMessage> {
        self.free.clear();
        let entries = std::mem::take(&mut self.entries);
        entries.into_iter().filter_map(|entry| entry.outgoing).collect()
    }
}
