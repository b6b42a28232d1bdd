//! A step, as a filter sees it.

mod local;

use provost_compression::CompressionFault;
use provost_marshal::{DecodeError, FieldPath, ReadError, Value, View};
use provost_wire::metadata::{self, MetadataError};

use crate::abi::RemoteStep;
use crate::{Code, DatapathContext, Direction, MethodContext, Nanos, Parts};
pub(crate) use local::LocalStep;

/// A step that is to be judged. What is read through it is what goes on: an app cannot change it any more.
pub struct StepView<'a> {
    pub(crate) source: StepSource<'a>,
    pub(crate) datapath_context: &'a DatapathContext,
    pub(crate) now: Nanos,
    pub(crate) direction: Direction,
    pub(crate) method: u16,
    pub(crate) begun_at: Nanos,
    pub(crate) held_since: Option<Nanos>,
}

/// Where the step is.
pub(crate) enum StepSource<'a> {
    /// In this program.
    Local(LocalStep<'a>),
    /// In the service that has loaded this library.
    Remote(RemoteStep<'a>),
}

/// Metadata could not be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetadataFull {
    /// The step goes towards the app, or has a body of another kind: nothing can be added to it.
    #[error("metadata can only be added to a step on its way to the wire, or to one that begins a call")]
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
    /// Its message in the native layout; `None` without one, and of one that is protobuf and was not decoded
    /// ([`StepView::make_whole`]).
    pub message: Option<View<'a>>,
    /// Its message in protobuf, if it is in that form and was not decoded. Nothing of it was checked. `None` too of one that came
    /// compressed and that nobody has read ([`StepView::decompress`]).
    pub protobuf: Option<&'a [u8]>,
    /// Whether there is a message that came compressed, and neither of the two others.
    pub is_compressed: bool,
}

/// Why a message cannot be read that passes as it came.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableMessage {
    /// It is no protobuf of its type.
    #[error(transparent)]
    Protobuf(#[from] DecodeError),
    /// It is compressed, and damaged or too large.
    #[error(transparent)]
    Compressed(#[from] CompressionFault),
}

impl UnreadableMessage {
    /// The status of a call with such a message.
    pub(crate) fn code(&self) -> Code {
        match self {
            UnreadableMessage::Protobuf(_) => Code::Internal,
            UnreadableMessage::Compressed(fault) => fault.code(),
        }
    }
}

impl<'a> Contents<'a> {
    /// Metadata alone.
    #[must_use]
    pub fn without_message(metadata: &'a [u8]) -> Contents<'a> {
        Contents {
            metadata,
            message: None,
            protobuf: None,
            is_compressed: false,
        }
    }
}

impl StepView<'_> {
    /// The datapath.
    #[must_use]
    pub fn datapath_context(&self) -> &DatapathContext {
        self.datapath_context
    }

    /// Which call of the datapath.
    #[must_use]
    pub fn call(&self) -> u64 {
        match &self.source {
            StepSource::Local(local) => local.step.call,
            StepSource::Remote(remote) => remote.step.call,
        }
    }

    /// Its method.
    #[must_use]
    pub fn method(&self) -> Option<&MethodContext> {
        self.datapath_context.methods.get(usize::from(self.method))
    }

    /// Index of its method in the service.
    #[must_use]
    pub fn method_index(&self) -> u16 {
        self.method
    }

    /// Which parts the step has.
    #[must_use]
    pub fn parts(&self) -> Parts {
        match &self.source {
            StepSource::Local(local) => local.step.parts,
            StepSource::Remote(remote) => Parts(remote.step.parts),
        }
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

    /// When the service took the step, from the app or from its transport; 0 where that is not known, as in a loaded library.
    #[must_use]
    pub fn taken_at(&self) -> Nanos {
        match &self.source {
            StepSource::Local(local) => local.step.taken_at,
            StepSource::Remote(_) => 0,
        }
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
        match &self.source {
            StepSource::Local(local) => local.step.deadline,
            StepSource::Remote(remote) => remote.step.deadline,
        }
    }

    /// The status, of a step that ends a call.
    #[must_use]
    pub fn status(&self) -> Code {
        match &self.source {
            StepSource::Local(local) => local.step.status,
            StepSource::Remote(remote) => remote.status(),
        }
    }

    /// Length of the message in bytes, in the form in which it passes; 0 without one.
    #[must_use]
    pub fn message_bytes(&self) -> u32 {
        match &self.source {
            StepSource::Local(local) => local.message_bytes(),
            StepSource::Remote(remote) => remote.step.message_bytes,
        }
    }

    /// The first value of a metadata key.
    #[must_use]
    pub fn metadata(&mut self, key: &str) -> Option<&[u8]> {
        let block = self.contents().metadata;
        metadata::find(block, key).map(|place| &block[place])
    }

    /// All metadata of the step, in order.
    pub fn metadata_entries(&mut self) -> impl Iterator<Item = (&str, &[u8])> {
        metadata::entries(self.contents().metadata)
    }

    /// The whole message in the native layout, to read fields of with [`DatapathContext::tables`]. `None` without one.
    /// (Large leaves that were still in the app's memory are copied: what is read is what is sent. A message that is protobuf is
    /// decoded, for this filter alone; [`StepView::field`] costs less.)
    #[must_use]
    pub fn message(&mut self) -> Option<View<'_>> {
        self.make_whole();
        self.contents().message
    }

    /// A field of the message, which may be native or protobuf. `None` without a message, or when the field is absent.
    ///
    /// # Errors
    /// The message is malformed protobuf. The call ends then with a status that says so, whatever the filter's verdict is.
    pub fn field(&mut self, path: &FieldPath) -> Result<Option<Value<'_>>, ReadError> {
        if !self.parts().contains(Parts::MESSAGE) {
            return Ok(None);
        }
        let tables = &*self.datapath_context.tables;
        if self.is_protobuf() {
            return match &mut self.source {
                StepSource::Local(local) => local.protobuf_field(tables, path),
                StepSource::Remote(_) => Err(ReadError),
            };
        }
        // What is not in private memory is in leaves that are not copied yet.
        if self.is_split() {
            let reads = self
                .contents()
                .message
                .is_some_and(|view| tables.read(path, view).is_ok());
            if !reads {
                self.make_whole();
            }
        }
        tables.read(path, self.contents().message.ok_or(ReadError)?)
    }

    /// Metadata and message side by side, as far as they are in private memory: for filters that read several values at
    /// once. What is elsewhere cannot be read of the message (it is a [`ReadError`], never another value): then
    /// [`StepView::make_whole`] copies it.
    #[must_use]
    pub fn contents(&mut self) -> Contents<'_> {
        match &mut self.source {
            StepSource::Local(local) => local.contents(),
            StepSource::Remote(remote) => remote.contents(),
        }
    }

    /// Has the whole message in the native layout, and says whether it was not before: copies what is still in the app's memory
    /// (what is read is what is sent), and decodes protobuf, for this filter alone (what is sent is what came). If that is malformed,
    /// the call ends with a status that says so, whatever the filter's verdict is.
    pub fn make_whole(&mut self) -> bool {
        self.try_make_whole().unwrap_or_else(|error| {
            if let StepSource::Local(local) = &mut self.source {
                local.note_unreadable(error);
            }
            false
        })
    }

    /// As [`StepView::make_whole`], for filters that have a verdict of their own on malformed messages.
    ///
    /// # Errors
    /// The message is malformed protobuf.
    pub fn try_make_whole(&mut self) -> Result<bool, UnreadableMessage> {
        match &mut self.source {
            StepSource::Local(local) if local.is_protobuf() => {
                let message = self.datapath_context.message(self.method, self.direction);
                // Without a schema of it, there is nothing that could be read.
                message.map_or(Ok(false), |message| {
                    local.decode(&self.datapath_context.tables, message)
                })
            }
            StepSource::Local(local) => Ok(local.make_whole()),
            StepSource::Remote(remote) => Ok(remote.make_whole()),
        }
    }

    /// Has [`Contents::protobuf`] of a message that came compressed, and says whether it was not there before. What goes on is what
    /// came; other filters find the same copy.
    ///
    /// # Errors
    /// The message is damaged, or has more bytes than it may.
    pub fn decompress(&mut self) -> Result<bool, UnreadableMessage> {
        self.decompress_within(u32::MAX)
    }

    /// As [`StepView::decompress`], for filters that have no use for a message of more bytes than these.
    ///
    /// # Errors
    /// The message is damaged, or has more bytes than it may, or than these.
    pub fn decompress_within(&mut self, bytes_max: u32) -> Result<bool, UnreadableMessage> {
        match &mut self.source {
            StepSource::Local(local) => local.decompress_within(bytes_max),
            StepSource::Remote(_) => Ok(false),
        }
    }

    /// Whether the message came as protobuf and was not decoded: [`Contents::protobuf`] has it, unless it is compressed.
    #[must_use]
    pub fn is_protobuf(&self) -> bool {
        match &self.source {
            StepSource::Local(local) => local.is_protobuf(),
            StepSource::Remote(_) => false,
        }
    }

    /// What is the matter with the message, if somebody read it in vain.
    pub(crate) fn finish(self) -> Option<UnreadableMessage> {
        match self.source {
            StepSource::Local(local) => local.finish(),
            StepSource::Remote(_) => None,
        }
    }

    /// Whether the message is not whole in the native layout: large leaves are still in the app's memory, or it is protobuf. See
    /// [`StepView::make_whole`].
    #[must_use]
    pub fn is_split(&self) -> bool {
        match &self.source {
            StepSource::Local(local) => local.is_split(),
            StepSource::Remote(remote) => remote.is_split(),
        }
    }

    /// Adds an entry to the metadata of a step on its way to the wire, or of one that comes in and begins a call.
    pub fn append_metadata(&mut self, key: &str, value: &[u8]) -> Result<(), MetadataFull> {
        match &mut self.source {
            StepSource::Local(local) => local.append_metadata(key, value),
            StepSource::Remote(remote) => remote.append_metadata(key, value),
        }
    }

    /// Takes all entries of a key out of the metadata of such a step. A step that a library judges keeps them: the C interface has
    /// no function for it.
    pub fn remove_metadata(&mut self, key: &str) {
        if let StepSource::Local(local) = &mut self.source {
            local.remove_metadata(key);
        }
    }

    /// Writes a value of the same length over the first value of a metadata key, in either direction, and says whether
    /// there was one of that length.
    pub fn overwrite_metadata(&mut self, key: &str, value: &[u8]) -> bool {
        match &mut self.source {
            StepSource::Local(local) => local.overwrite_metadata(key, value),
            StepSource::Remote(remote) => remote.overwrite_metadata(key, value),
        }
    }
}
