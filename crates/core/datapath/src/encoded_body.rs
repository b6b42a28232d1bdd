//! Messages as protobuf in private memory, compressed or not.

use provost_compression::{CompressionFault, MessageEncoding};

use crate::{Buffer, BufferPool, FieldReader, FieldWriter, RestoreError, SavedField, message_offset};

/// Metadata padded to 8 bytes and then a message in protobuf, in one private buffer. Nobody but the service can write it, so that
/// what a policy reads of it is what goes on. Nothing of the message was checked.
#[derive(Debug)]
pub struct EncodedBody {
    /// The bytes.
    pub buffer: Buffer,
    /// Bytes of metadata at the start of the buffer.
    pub metadata_bytes: u32,
    /// Length of the message as it is in the buffer (0 without `MESSAGE`).
    pub message_bytes: u32,
    /// How the message is compressed, if it is.
    pub compression: Option<Box<MessageCompression>>,
}

/// How a message is compressed that passes as it came.
#[derive(Debug)]
pub struct MessageCompression {
    pub encoding: MessageEncoding,
    /// The most bytes that it may have when it is decompressed, as the end says where it came in.
    pub plain_bytes_max: u32,
    /// What it is without compression, since somebody has read it.
    plain: Option<Buffer>,
}

/// Where the plain form of a message comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainCopy {
    /// It was decompressed now.
    Made,
    /// The message is plain, or somebody has read it before.
    Found,
}

impl MessageCompression {
    /// Of a message that nobody has read; none where it is not compressed at all.
    #[must_use]
    pub fn new(encoding: MessageEncoding, plain_bytes_max: u32) -> Option<Box<MessageCompression>> {
        let plain = None;
        (encoding != MessageEncoding::Identity).then(|| {
            Box::new(MessageCompression {
                encoding,
                plain_bytes_max,
                plain,
            })
        })
    }
}

impl EncodedBody {
    /// Metadata and the protobuf message behind it, in a buffer that has room for both in one run.
    #[must_use]
    pub fn of(metadata: &[u8], protobuf: &[u8], mut buffer: Buffer) -> EncodedBody {
        let offset = message_offset(metadata.len() as u32);
        buffer.bytes.reserve(offset + protobuf.len());
        buffer.bytes.extend_from_slice(metadata);
        buffer.bytes.resize(offset, 0);
        buffer.bytes.extend_from_slice(protobuf);
        EncodedBody::plain(buffer, metadata.len() as u32, protobuf.len() as u32)
    }

    /// A message that is not compressed, which has its place in a buffer.
    #[must_use]
    pub fn plain(buffer: Buffer, metadata_bytes: u32, message_bytes: u32) -> EncodedBody {
        EncodedBody {
            buffer,
            metadata_bytes,
            message_bytes,
            compression: None,
        }
    }

    /// The metadata; nothing, if its length does not add up.
    #[must_use]
    pub fn metadata(&self) -> &[u8] {
        let bytes = self.buffer.bytes.get(..self.metadata_bytes as usize);
        bytes.unwrap_or_default()
    }

    /// The message as it came, compressed or not; none, if its length does not add up.
    #[must_use]
    pub fn message(&self) -> Option<&[u8]> {
        let behind = self.buffer.bytes.get(message_offset(self.metadata_bytes)..)?;
        behind.get(..self.message_bytes as usize)
    }

    /// The message in protobuf; none, if its length does not add up, or if it is compressed and nobody has had it
    /// [decompressed](EncodedBody::decompress).
    #[must_use]
    pub fn protobuf(&self) -> Option<&[u8]> {
        match &self.compression {
            None => self.message(),
            Some(compression) => compression.plain.as_ref().map(|plain| &plain.bytes[..]),
        }
    }

    /// How the message is compressed.
    #[must_use]
    pub fn encoding(&self) -> MessageEncoding {
        let compression = self.compression.as_ref();
        compression.map_or(MessageEncoding::Identity, |compression| compression.encoding)
    }

    /// Has [`EncodedBody::protobuf`] beside a message that is compressed. What goes on stays what came. The copy counts in the share
    /// that the message counts in.
    ///
    /// # Errors
    /// The message is damaged, or has more bytes than it may.
    pub fn decompress(&mut self) -> Result<PlainCopy, CompressionFault> {
        self.decompress_within(u32::MAX)
    }

    /// As [`EncodedBody::decompress`], for who has no use for a message of more bytes than these.
    ///
    /// # Errors
    /// The message is damaged, or has more bytes than it may, or than these.
    pub fn decompress_within(&mut self, bytes_max: u32) -> Result<PlainCopy, CompressionFault> {
        if self.protobuf().is_some() {
            return Ok(PlainCopy::Found);
        }
        let bytes = self.decompressed(bytes_max)?;
        let charge = self.buffer.charge.as_ref();
        let charge = charge.map(|charge| charge.another(bytes.capacity() as u64));
        if let Some(compression) = &mut self.compression {
            let plain = compression.plain.insert(Buffer::from(bytes));
            plain.charge = charge;
        }
        Ok(PlainCopy::Made)
    }

    /// Drops what [`EncodedBody::decompress`] has made where there is no room to keep it for others: where it counts in no share, or
    /// in one that is used up.
    pub fn drop_plain_without_room(&mut self) {
        if let Some(compression) = &mut self.compression {
            let has_room = |plain: &mut Buffer| {
                plain
                    .charge
                    .as_ref()
                    .is_none_or(|charge| !charge.share_has_room())
            };
            compression.plain.take_if(has_room);
        }
    }

    /// Puts the message without compression in its place, for an end that does not take it as it came.
    ///
    /// # Errors
    /// The message is damaged, or has more bytes than it may.
    pub fn make_plain(&mut self, buffers: &mut BufferPool) -> Result<(), CompressionFault> {
        if self.compression.is_none() {
            return Ok(());
        }
        self.decompress()?;
        let metadata = self.metadata();
        let plain = self.protobuf().unwrap_or_default();
        let mut whole = EncodedBody::of(metadata, plain, buffers.take());
        if let Some(charge) = &self.buffer.charge {
            whole.buffer.charge = Some(charge.another(whole.buffer.bytes.capacity() as u64));
        }
        buffers.give(std::mem::replace(self, whole).buffer);
        Ok(())
    }

    fn decompressed(&self, bytes_max: u32) -> Result<Vec<u8>, CompressionFault> {
        let Some(compression) = &self.compression else {
            return Ok(Vec::new());
        };
        let message = self.message().unwrap_or_default();
        compression
            .encoding
            .decompress(message, compression.plain_bytes_max.min(bytes_max))
    }
}

impl SavedField for MessageCompression {
    fn save(&self, out: &mut FieldWriter) {
        self.encoding.save(out);
        out.u32(self.plain_bytes_max);
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<MessageCompression, RestoreError> {
        Ok(MessageCompression {
            encoding: MessageEncoding::restore(fields)?,
            plain_bytes_max: fields.u32()?,
            plain: None,
        })
    }
}

impl SavedField for MessageEncoding {
    fn save(&self, out: &mut FieldWriter) {
        out.text(self.name());
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<MessageEncoding, RestoreError> {
        let name = fields.text()?;
        MessageEncoding::named(name.as_bytes())
            .ok_or_else(|| fields.damaged(format!("the encoding {name:?} is not known")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PrivateBytes;

    const MESSAGE: &[u8] = &[7; 100_000];

    /// A message in gzip behind metadata, which counts in a share.
    fn compressed(share: &std::sync::Arc<PrivateBytes>) -> EncodedBody {
        let bytes = MessageEncoding::Gzip.compress(MESSAGE);
        let mut body = EncodedBody::of(b"four", &bytes, Buffer::default());
        body.compression = MessageCompression::new(MessageEncoding::Gzip, MESSAGE.len() as u32);
        body.buffer.charge = Some(share.charge(body.buffer.bytes.capacity() as u64));
        body
    }

    #[test]
    fn a_copy_that_is_read_counts_and_leaves_what_came() {
        let node = PrivateBytes::of_node();
        let share = PrivateBytes::of_attachment(&node);
        let mut body = compressed(&share);
        let (came, held) = (body.message().map(<[u8]>::to_vec), share.held());
        assert_eq!(body.protobuf(), None);
        assert_eq!(body.decompress(), Ok(PlainCopy::Made));
        assert_eq!(body.decompress(), Ok(PlainCopy::Found));
        assert_eq!((body.protobuf(), body.metadata()), (Some(MESSAGE), &b"four"[..]));
        assert_eq!(body.message().map(<[u8]>::to_vec), came);
        assert!(share.held() >= held + MESSAGE.len() as u64, "{}", share.held());
        body.drop_plain_without_room();
        assert!(body.protobuf().is_some(), "there is room");
        let others = share.charge(crate::ATTACHMENT_PRIVATE_BYTES_MAX);
        body.drop_plain_without_room();
        assert_eq!(body.protobuf(), None);
        drop((body, others));
        assert_eq!((share.held(), node.held()), (0, 0));
    }

    #[test]
    fn a_copy_that_counts_nowhere_is_not_kept() {
        let share = PrivateBytes::of_attachment(&PrivateBytes::of_node());
        let mut body = compressed(&share);
        body.buffer.charge = None;
        assert_eq!(body.decompress(), Ok(PlainCopy::Made));
        body.drop_plain_without_room();
        assert_eq!(body.protobuf(), None);
    }

    #[test]
    fn a_message_is_made_plain_in_its_place_within_its_bound() {
        let share = PrivateBytes::of_attachment(&PrivateBytes::of_node());
        let mut buffers = BufferPool::new();
        let mut body = compressed(&share);
        body.make_plain(&mut buffers).unwrap();
        assert_eq!((body.message(), body.metadata()), (Some(MESSAGE), &b"four"[..]));
        assert_eq!(body.encoding(), MessageEncoding::Identity);
        assert!((MESSAGE.len() as u64..2 * MESSAGE.len() as u64).contains(&share.held()));

        let mut bomb = compressed(&share);
        bomb.compression = MessageCompression::new(MessageEncoding::Gzip, 99_999);
        let bytes_max = 99_999;
        assert_eq!(
            bomb.make_plain(&mut buffers),
            Err(CompressionFault::TooLarge { bytes_max })
        );
        assert_eq!(bomb.decompress(), Err(CompressionFault::TooLarge { bytes_max }));
    }
}
