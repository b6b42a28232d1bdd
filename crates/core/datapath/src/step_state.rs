//! Steps as bytes: what waits in an engine or a queue when a successor takes over.
//!
//! A step is a nested record: its version, its fields, the form of its body, the body. A message that was gathered
//! keeps its token: the successor gives it back once it is done with the body, as its predecessor would have.

use provost_wire::Code;
use provost_wire::descriptor::Parts;

use crate::{
    BlockContent, Body, Buffer, EncodedBody, FieldReader, FieldWriter, ForeignBytes, Gathered,
    MessageCompression, Offsets, ReceivedBlock, ReceivedBody, RestoreError, Restorer, SavedField, Saver,
    Step, Untrusted, message_offset,
};

/// Version of a step's record.
const STEP_VERSION: u8 = 1;
/// Foreign ranges of one message, at most (those beyond `GATHER_SEGMENTS_MAX` are copied when it is gathered).
const RANGES_MAX: usize = provost_wire::limits::GATHER_SEGMENTS_MAX;

/// How a buffer was saved.
mod form {
    pub(super) const LINEAR: u8 = 0;
    pub(super) const KEPT: u8 = 1;
}

mod body {
    pub(super) const EMPTY: u8 = 0;
    pub(super) const UNTRUSTED: u8 = 1;
    pub(super) const GATHERED: u8 = 2;
    pub(super) const RECEIVED: u8 = 3;
    pub(super) const ENCODED: u8 = 4;
    /// As `ENCODED`, with how its message is compressed in front.
    pub(super) const COMPRESSED: u8 = 5;
}

impl Step {
    /// Appends the step to a saved state. The step stays as it is.
    pub fn save(&self, saver: &mut dyn Saver, out: &mut FieldWriter) {
        out.nested(|out| {
            out.u8(STEP_VERSION);
            out.u64(self.call);
            out.u8(self.parts.0);
            out.u16(self.method);
            out.u8(self.status as u8);
            out.u32(self.window_bytes);
            out.u64(self.deadline);
            self.body.save(saver, out);
        });
    }

    /// Reads what [`Step::save`] appended.
    pub fn restore(fields: &mut FieldReader<'_>, restorer: &mut dyn Restorer) -> Result<Step, RestoreError> {
        let mut fields = fields.nested()?;
        let version = fields.u8()?;
        if version != STEP_VERSION {
            return Err(fields.unknown_version(version.into(), STEP_VERSION.into()));
        }
        let step = Step {
            call: fields.u64()?,
            parts: Parts(fields.u8()?),
            method: fields.u16()?,
            status: fields.code()?,
            window_bytes: fields.u32()?,
            deadline: fields.u64()?,
            // Its way through this process is not the whole of it.
            taken_at: 0,
            body: Body::restore(&mut fields, restorer)?,
        };
        fields.end()?;
        Ok(step)
    }

    /// Appends a number of steps, the first one first.
    pub fn save_all<'a>(
        steps: impl ExactSizeIterator<Item = &'a Step>,
        saver: &mut dyn Saver,
        out: &mut FieldWriter,
    ) {
        out.count(steps.len());
        steps.for_each(|step| step.save(saver, out));
    }

    /// Reads what [`Step::save_all`] appended, at most `steps_max` steps.
    pub fn restore_all(
        fields: &mut FieldReader<'_>,
        restorer: &mut dyn Restorer,
        steps_max: usize,
    ) -> Result<Vec<Step>, RestoreError> {
        let count = fields.count(steps_max)?;
        (0..count).map(|_| Step::restore(fields, restorer)).collect()
    }
}

impl Body {
    fn save(&self, saver: &mut dyn Saver, out: &mut FieldWriter) {
        match self {
            Body::Empty => out.u8(body::EMPTY),
            Body::Untrusted(untrusted) => {
                out.u8(body::UNTRUSTED);
                out.u32(untrusted.root);
                out.u32(untrusted.metadata);
                out.u32(untrusted.metadata_bytes);
                out.u64(untrusted.token);
            }
            Body::Gathered(gathered) => {
                out.u8(body::GATHERED);
                out.u32(gathered.metadata_bytes);
                out.u32(gathered.message_bytes);
                out.u64(gathered.token);
                gathered.buffer.save(saver, out);
            }
            Body::Received(received) => {
                out.u8(body::RECEIVED);
                out.u32(received.metadata_bytes);
                out.u32(received.message_bytes);
                out.flag(received.offsets == Offsets::Window);
                let content = match received.offsets {
                    Offsets::Message => BlockContent::Movable {
                        filled: received.block.bytes,
                    },
                    Offsets::Window => BlockContent::Fixed,
                };
                received.block.save(content, saver, out);
            }
            Body::Encoded(encoded) => {
                match &encoded.compression {
                    None => out.u8(body::ENCODED),
                    Some(compression) => {
                        out.u8(body::COMPRESSED);
                        compression.save(out);
                    }
                }
                out.u32(encoded.metadata_bytes);
                out.u32(encoded.message_bytes);
                encoded.buffer.save(saver, out);
            }
        }
    }

    fn restore(fields: &mut FieldReader<'_>, restorer: &mut dyn Restorer) -> Result<Body, RestoreError> {
        Ok(match fields.u8()? {
            body::EMPTY => Body::Empty,
            body::UNTRUSTED => Body::Untrusted(Untrusted {
                root: fields.u32()?,
                metadata: fields.u32()?,
                metadata_bytes: fields.u32()?,
                token: fields.u64()?,
            }),
            body::GATHERED => Body::Gathered(Gathered::restore(fields, restorer)?),
            body::RECEIVED => Body::Received(ReceivedBody::restore(fields, restorer)?),
            body::ENCODED => Body::Encoded(EncodedBody::restore(fields, restorer)?),
            body::COMPRESSED => {
                let compression = Some(Box::new(MessageCompression::restore(fields)?));
                Body::Encoded(EncodedBody {
                    compression,
                    ..EncodedBody::restore(fields, restorer)?
                })
            }
            other => return Err(fields.damaged(format!("a body of the unknown form {other}"))),
        })
    }
}

impl Gathered {
    fn restore(fields: &mut FieldReader<'_>, restorer: &mut dyn Restorer) -> Result<Gathered, RestoreError> {
        let (metadata_bytes, message_bytes) = (fields.u32()?, fields.u32()?);
        let token = fields.u64()?;
        let buffer = Buffer::restore(fields, restorer)?;
        check_lengths(fields, metadata_bytes, message_bytes, buffer.linear_bytes())?;
        Ok(Gathered {
            buffer,
            metadata_bytes,
            message_bytes,
            token,
        })
    }
}

impl ReceivedBody {
    fn restore(
        fields: &mut FieldReader<'_>,
        restorer: &mut dyn Restorer,
    ) -> Result<ReceivedBody, RestoreError> {
        let (metadata_bytes, message_bytes) = (fields.u32()?, fields.u32()?);
        let offsets = if fields.flag()? {
            Offsets::Window
        } else {
            Offsets::Message
        };
        let block = ReceivedBlock::restore(fields, restorer)?;
        check_lengths(fields, metadata_bytes, message_bytes, u64::from(block.bytes))?;
        Ok(ReceivedBody {
            added: None,
            block,
            metadata_bytes,
            message_bytes,
            offsets,
        })
    }
}

impl EncodedBody {
    fn restore(
        fields: &mut FieldReader<'_>,
        restorer: &mut dyn Restorer,
    ) -> Result<EncodedBody, RestoreError> {
        let (metadata_bytes, message_bytes) = (fields.u32()?, fields.u32()?);
        let buffer = Buffer::restore(fields, restorer)?;
        check_lengths(fields, metadata_bytes, message_bytes, buffer.linear_bytes())?;
        Ok(EncodedBody::plain(buffer, metadata_bytes, message_bytes))
    }
}

/// The parts of a body lie inside of its memory. (Padding behind metadata without a message may be missing.)
fn check_lengths(
    fields: &FieldReader<'_>,
    metadata_bytes: u32,
    message_bytes: u32,
    room: u64,
) -> Result<(), RestoreError> {
    let needed = match message_bytes {
        0 => u64::from(metadata_bytes),
        _ => message_offset(metadata_bytes) as u64 + u64::from(message_bytes),
    };
    if needed <= room {
        Ok(())
    } else {
        Err(fields.damaged(format!("a body of {needed} bytes in memory of {room}")))
    }
}

impl ReceivedBlock {
    /// Appends the block's place to a saved state, and tells the saver of it.
    pub fn save(&self, content: BlockContent, saver: &mut dyn Saver, out: &mut FieldWriter) {
        saver.block(self, content);
        out.u32(self.at);
        out.u32(self.bytes);
    }

    /// The block to use for one that [`ReceivedBlock::save`] named.
    pub fn restore(
        fields: &mut FieldReader<'_>,
        restorer: &mut dyn Restorer,
    ) -> Result<ReceivedBlock, RestoreError> {
        let saved = ReceivedBlock {
            at: fields.u32()?,
            bytes: fields.u32()?,
        };
        let bytes = saved.bytes;
        let block = restorer.block(saved).map_err(|error| fields.not_saved(error))?;
        if block.bytes == bytes {
            Ok(block)
        } else {
            Err(fields.damaged("a block of another length was given for a saved one"))
        }
    }
}

impl Buffer {
    /// Appends what the buffer describes to a saved state: in one run, or with the foreign ranges kept aside.
    pub fn save(&self, saver: &mut dyn Saver, out: &mut FieldWriter) {
        match self.keep_ranges(saver) {
            Some(kept) => {
                out.u8(form::KEPT);
                out.run(&self.bytes);
                out.count(kept.len());
                kept.into_iter().for_each(|number| out.u32(number));
            }
            None => {
                out.u8(form::LINEAR);
                out.nested(|out| {
                    out.bytes.extend_from_slice(&self.bytes);
                    self.copy_ranges(saver, &mut out.bytes);
                });
            }
        }
    }

    /// Reads what [`Buffer::save`] appended.
    pub fn restore(
        fields: &mut FieldReader<'_>,
        restorer: &mut dyn Restorer,
    ) -> Result<Buffer, RestoreError> {
        let kept = match fields.u8()? {
            form::LINEAR => false,
            form::KEPT => true,
            other => return Err(fields.damaged(format!("a buffer of the unknown form {other}"))),
        };
        let mut buffer = Buffer::from(fields.run()?.to_vec());
        if kept {
            for _ in 0..fields.count(RANGES_MAX)? {
                let number = fields.u32()?;
                let range = restorer
                    .foreign(number)
                    .map_err(|error| fields.not_saved(error))?;
                buffer.foreign.push(range);
            }
        }
        Ok(buffer)
    }

    /// Length of what the buffer describes: its bytes, then the foreign ranges, each but the last padded to 8 bytes.
    #[must_use]
    pub fn linear_bytes(&self) -> u64 {
        let mut length = self.bytes.len() as u64;
        for (at, range) in self.foreign.iter().enumerate() {
            length += u64::from(range.len()) + u64::from(self.padding_behind(at, range));
        }
        length
    }

    /// Numbers of the ranges if the saver keeps them; all or none.
    fn keep_ranges(&self, saver: &mut dyn Saver) -> Option<Vec<u32>> {
        if self.foreign.is_empty() || self.foreign.len() > RANGES_MAX {
            None
        } else {
            self.foreign
                .iter()
                .map(|range| saver.keep_foreign(range))
                .collect()
        }
    }

    fn copy_ranges(&self, saver: &mut dyn Saver, out: &mut Vec<u8>) {
        for (at, range) in self.foreign.iter().enumerate() {
            let whole = out.len() + range.len() as usize;
            saver.foreign(range, out);
            // The lengths of what follows depend on it.
            out.resize(whole, 0);
            out.resize(whole + self.padding_behind(at, range) as usize, 0);
        }
    }

    fn padding_behind(&self, at: usize, range: &ForeignBytes) -> u32 {
        if at + 1 == self.foreign.len() {
            0
        } else {
            range.len().wrapping_neg() % 8
        }
    }
}

impl FieldWriter {
    pub fn code(&mut self, code: Code) {
        self.u8(code as u8);
    }
}

impl FieldReader<'_> {
    pub fn code(&mut self) -> Result<Code, RestoreError> {
        let number = self.u8()?;
        let code = Code::ALL.get(usize::from(number)).copied();
        code.ok_or_else(|| self.damaged(format!("{number} is no status code")))
    }
}
