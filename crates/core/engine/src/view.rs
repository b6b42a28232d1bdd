//! A step, as a filter sees it.

use provost_datapath::{Body, BufferPool, EncodedBody, ReceiveHeap, Step, message_offset};
use provost_marshal::{FieldPath, ReadError, Value, View, linearize};
use provost_wire::limits::{BLOCK_ALIGN_BYTES, METADATA_BYTES_MAX};
use provost_wire::metadata::{self, MetadataError};

use crate::{Code, Direction, MethodSite, Nanos, Parts, Site};

/// A step that is to be judged. What is read through it is what goes on: an app cannot change it any more.
pub struct StepView<'a> {
    pub(crate) step: &'a mut Step,
    pub(crate) receive: &'a mut (dyn ReceiveHeap + 'a),
    pub(crate) buffers: &'a mut BufferPool,
    pub(crate) site: &'a Site,
    pub(crate) now: Nanos,
    pub(crate) direction: Direction,
    pub(crate) method: u16,
    pub(crate) begun_at: Nanos,
    pub(crate) held_since: Option<Nanos>,
}

/// Metadata could not be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetadataFull {
    /// The step goes towards the app, or has a body of another kind: nothing can be added to it.
    #[error("metadata can only be added to a step on its way to the wire")]
    Inbound,
    /// The entry or the block would not be valid.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

/// What is in a step.
#[derive(Clone, Copy, Debug)]
pub struct Contents<'a> {
    /// Its metadata block.
    pub metadata: &'a [u8],
    /// Its message in the native layout; `None` without one.
    pub message: Option<View<'a>>,
}

impl StepView<'_> {
    /// The datapath.
    #[must_use]
    pub fn site(&self) -> &Site {
        self.site
    }

    /// Which call of the datapath.
    #[must_use]
    pub fn call(&self) -> u64 {
        self.step.call
    }

    /// Its method.
    #[must_use]
    pub fn method(&self) -> Option<&MethodSite> {
        self.site.methods.get(usize::from(self.method))
    }

    /// Index of its method in the service.
    #[must_use]
    pub fn method_index(&self) -> u16 {
        self.method
    }

    /// Which parts the step has.
    #[must_use]
    pub fn parts(&self) -> Parts {
        self.step.parts
    }

    /// Which way it goes.
    #[must_use]
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// The time, on the monotonic clock.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// When the call's beginning reached the filter.
    #[must_use]
    pub fn begun_at(&self) -> Nanos {
        self.begun_at
    }

    /// Since when the step has been held by this filter, if it was.
    #[must_use]
    pub fn held_since(&self) -> Option<Nanos> {
        self.held_since
    }

    /// When the call must have ended; 0 for never. (Of a step that begins a call.)
    #[must_use]
    pub fn deadline(&self) -> Nanos {
        self.step.deadline
    }

    /// The status, of a step that ends a call.
    #[must_use]
    pub fn status(&self) -> Code {
        self.step.status
    }

    /// Length of the message in bytes; 0 without one.
    #[must_use]
    pub fn message_bytes(&self) -> u32 {
        match &self.step.body {
            Body::Gathered(body) => body.message_bytes,
            Body::Received(body) => body.message_bytes,
            Body::Encoded(body) => body.message_bytes,
            Body::Empty | Body::Alleged(_) => 0,
        }
    }

    /// The first value of a metadata key.
    #[must_use]
    pub fn metadata(&mut self, key: &str) -> Option<&[u8]> {
        let block = self.metadata_block();
        metadata::find(block, key).map(|place| &block[place])
    }

    /// All metadata of the step, in order.
    pub fn metadata_entries(&mut self) -> impl Iterator<Item = (&str, &[u8])> {
        metadata::entries(self.metadata_block())
    }

    /// The whole message in the native layout, to read fields of with [`Site::tables`]. `None` without one.
    /// (Large leaves that were still in the app's memory are copied: what is read is what is sent.)
    #[must_use]
    pub fn message(&mut self) -> Option<View<'_>> {
        if !self.step.parts.contains(Parts::MESSAGE) {
            return None;
        }
        if let Body::Gathered(body) = &mut self.step.body
            && !body.buffer.foreign.is_empty()
        {
            linearize(&mut body.buffer);
        }
        self.head()
    }

    /// A field of the message. `None` without a message, or when the field is absent.
    pub fn field(&mut self, path: &FieldPath) -> Result<Option<Value<'_>>, ReadError> {
        if !self.step.parts.contains(Parts::MESSAGE) {
            return Ok(None);
        }
        let tables = &*self.site.tables;
        // What is not in the head is in leaves that are not copied yet.
        let is_split = matches!(&self.step.body, Body::Gathered(body) if !body.buffer.foreign.is_empty());
        if is_split {
            let reads = self.head().is_some_and(|view| tables.read(path, view).is_ok());
            if !reads && let Body::Gathered(body) = &mut self.step.body {
                linearize(&mut body.buffer);
            }
        }
        let view = self.head().ok_or(ReadError)?;
        tables.read(path, view)
    }

    /// Metadata and message side by side, as far as they are in private memory: for filters that read several values at
    /// once. What is elsewhere cannot be read of the message (it is a [`ReadError`], never another value): then
    /// [`StepView::make_whole`] copies it.
    #[must_use]
    pub fn contents(&mut self) -> Contents<'_> {
        let (bytes, metadata_bytes, message_bytes, block) = match &self.step.body {
            Body::Gathered(body) => (&body.buffer.bytes[..], body.metadata_bytes, None, None),
            Body::Received(body) => {
                let bytes = self.receive.bytes(&body.block);
                (
                    bytes,
                    body.metadata_bytes,
                    Some(body.message_bytes),
                    Some(&body.block),
                )
            }
            Body::Encoded(body) => (&body.buffer.bytes[..], body.metadata_bytes, Some(0), None),
            Body::Empty | Body::Alleged(_) => (&[][..], 0, Some(0), None),
        };
        let offset = message_offset(metadata_bytes);
        let message = bytes.get(offset..).and_then(|rest| match message_bytes {
            Some(count) => rest.get(..count as usize),
            None => Some(rest),
        });
        let has_message = self.step.parts.contains(Parts::MESSAGE)
            && matches!(self.step.body, Body::Gathered(_) | Body::Received(_));
        Contents {
            metadata: bytes.get(..metadata_bytes as usize).unwrap_or_default(),
            message: message.filter(|_| has_message).map(|message| match block {
                Some(block) => View::relocated(message, block.at + (offset / BLOCK_ALIGN_BYTES) as u32),
                None => View::linear(message),
            }),
        }
    }

    /// Copies what is still in the app's memory, and says whether there was any: what is read is what is sent.
    pub fn make_whole(&mut self) -> bool {
        match &mut self.step.body {
            Body::Gathered(body) if !body.buffer.foreign.is_empty() => {
                linearize(&mut body.buffer);
                true
            }
            _ => false,
        }
    }

    /// Adds an entry to the metadata of a step on its way to the wire.
    pub fn append_metadata(&mut self, key: &str, value: &[u8]) -> Result<(), MetadataFull> {
        let entry_bytes = metadata::entry_bytes(key, value)?;
        if matches!(self.step.body, Body::Empty) {
            self.step.body = Body::Encoded(EncodedBody {
                buffer: self.buffers.take(),
                metadata_bytes: 0,
                message_bytes: 0,
            });
        }
        let (bytes, metadata_bytes) = match &mut self.step.body {
            Body::Gathered(body) => (&mut body.buffer.bytes, &mut body.metadata_bytes),
            Body::Encoded(body) => (&mut body.buffer.bytes, &mut body.metadata_bytes),
            _ => return Err(MetadataFull::Inbound),
        };
        let old_bytes = *metadata_bytes as usize;
        let new_bytes = old_bytes + entry_bytes;
        if new_bytes > METADATA_BYTES_MAX as usize {
            return Err(MetadataError::TooLong { bytes: new_bytes }.into());
        }
        let old_offset = message_offset(*metadata_bytes).min(bytes.len());
        let new_offset = message_offset(new_bytes as u32);
        let message = old_offset..bytes.len();
        bytes.resize(message.len() + new_offset, 0);
        bytes.copy_within(message, new_offset);
        metadata::write_entry(&mut bytes[old_bytes..new_bytes], key, value);
        bytes[new_bytes..new_offset].fill(0);
        *metadata_bytes = new_bytes as u32;
        Ok(())
    }

    /// Writes a value of the same length over the first value of a metadata key, in either direction, and says whether
    /// there was one of that length.
    pub fn overwrite_metadata(&mut self, key: &str, value: &[u8]) -> bool {
        if metadata::entry_bytes(key, value).is_err() {
            return false;
        }
        let block = self.metadata_block_mut();
        match metadata::find(block, key) {
            Some(place) if place.len() == value.len() => {
                block[place].copy_from_slice(value);
                true
            }
            _ => false,
        }
    }

    fn metadata_block(&mut self) -> &[u8] {
        match &self.step.body {
            Body::Received(body) => {
                let bytes = self.receive.bytes(&body.block);
                bytes.get(..body.metadata_bytes as usize).unwrap_or_default()
            }
            _ => self.metadata_block_mut(),
        }
    }

    fn metadata_block_mut(&mut self) -> &mut [u8] {
        let (bytes, metadata_bytes) = match &mut self.step.body {
            Body::Gathered(body) => (body.buffer.bytes.as_mut_slice(), body.metadata_bytes),
            Body::Encoded(body) => (body.buffer.bytes.as_mut_slice(), body.metadata_bytes),
            Body::Received(body) => (self.receive.bytes_mut(&mut body.block), body.metadata_bytes),
            Body::Empty | Body::Alleged(_) => return &mut [],
        };
        bytes.get_mut(..metadata_bytes as usize).unwrap_or_default()
    }

    /// The message as far as it is in private memory.
    fn head(&mut self) -> Option<View<'_>> {
        match &mut self.step.body {
            Body::Gathered(body) => {
                let message = body.buffer.bytes.get(message_offset(body.metadata_bytes)..)?;
                Some(View::linear(message))
            }
            Body::Received(body) => {
                let offset = message_offset(body.metadata_bytes);
                let window_at = body.block.at + (offset / BLOCK_ALIGN_BYTES) as u32;
                let bytes = self.receive.bytes(&body.block);
                let message = bytes.get(offset..offset + body.message_bytes as usize)?;
                Some(View::relocated(message, window_at))
            }
            // Protobuf is only on the wire's side of the marshalling engine, where no policy is.
            Body::Empty | Body::Alleged(_) | Body::Encoded(_) => None,
        }
    }
}
