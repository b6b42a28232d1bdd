//! Messages in a stream of bytes: a flag, a length of four bytes, and the message (PROTOCOL-HTTP2, Requests:
//! Length-Prefixed-Message).

use provost_compression::{CompressionFault, MessageEncoding};

/// Bytes before each message.
pub const PREFIX_BYTES: usize = 5;

/// Whether a message's bytes are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageForm {
    Plain,
    /// By the encoding that the head of the request or the response named.
    Compressed,
}

/// A message as it came, or as it is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcMessage {
    pub form: MessageForm,
    pub bytes: Vec<u8>,
}

impl GrpcMessage {
    /// The message without compression, of at most so many bytes.
    ///
    /// # Errors
    /// The bytes are not of this encoding, or there are more.
    pub fn into_plain(self, encoding: MessageEncoding, bytes_max: u32) -> Result<Vec<u8>, CompressionFault> {
        match self.form {
            MessageForm::Plain => Ok(self.bytes),
            MessageForm::Compressed => encoding.decompress(&self.bytes, bytes_max),
        }
    }
}

/// Why a stream of bytes is no messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FramingFault {
    #[error("a message begins with the flag {0}: it is 0 or 1")]
    Flag(u8),
    #[error("a message is compressed, and the head names no encoding")]
    NoEncoding,
    #[error("a message of {bytes} bytes is over the limit of {bytes_max}")]
    TooLarge {
        /// What the prefix says.
        bytes: u32,
        /// The limit of this end.
        bytes_max: u32,
    },
    #[error("the stream ends within a message")]
    Truncated,
}

/// The prefix of a message.
#[must_use]
pub fn message_prefix(form: MessageForm, bytes: u32) -> [u8; PREFIX_BYTES] {
    let [a, b, c, d] = bytes.to_be_bytes();
    [u8::from(form == MessageForm::Compressed), a, b, c, d]
}

/// Reads messages from a stream that comes in pieces. Memory is taken as bytes come, not as a prefix announces them.
///
/// ```
/// use provost_grpc::{GrpcMessage, MessageForm, MessageReader};
///
/// let (mut reader, mut input) = (MessageReader::default(), &b"\0\0\0\0\x02hi\0\0"[..]);
/// let message = reader.read(&mut input, 1_000)?.expect("a whole message came");
/// assert_eq!(message, GrpcMessage { form: MessageForm::Plain, bytes: b"hi".to_vec() });
/// assert_eq!(reader.read(&mut input, 1_000)?, None);
/// assert!(reader.is_within_message() && input.is_empty());
/// # Ok::<(), provost_grpc::FramingFault>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageReader {
    pub(crate) prefix: [u8; PREFIX_BYTES],
    pub(crate) prefix_have: usize,
    pub(crate) bytes: Vec<u8>,
}

impl MessageReader {
    /// Takes bytes from the front of the input up to the end of a message, or all of them.
    ///
    /// # Errors
    /// The prefix is malformed, or the message is over the limit. The stream cannot go on.
    pub fn read(&mut self, input: &mut &[u8], bytes_max: u32) -> Result<Option<GrpcMessage>, FramingFault> {
        let part = take(input, PREFIX_BYTES - self.prefix_have);
        self.prefix[self.prefix_have..][..part.len()].copy_from_slice(part);
        self.prefix_have += part.len();
        if self.prefix_have < PREFIX_BYTES {
            return Ok(None);
        }
        let (form, bytes) = self.checked_prefix(bytes_max)?;
        let part = take(input, bytes as usize - self.bytes.len());
        self.make_room(part.len(), bytes as usize);
        self.bytes.extend_from_slice(part);
        if self.bytes.len() < bytes as usize {
            return Ok(None);
        }
        self.prefix_have = 0;
        let bytes = std::mem::take(&mut self.bytes);
        Ok(Some(GrpcMessage { form, bytes }))
    }

    /// Room for a part of a message of so many bytes: for all of it once a quarter has come, so that most grow once or twice, and
    /// a prefix takes no more than four times what comes.
    fn make_room(&mut self, part_bytes: usize, message_bytes: usize) {
        let have = self.bytes.len() + part_bytes;
        if have > self.bytes.capacity() && message_bytes <= 4 * have {
            self.bytes.reserve_exact(message_bytes - self.bytes.len());
        }
    }

    /// Whether a message has come in part.
    #[must_use]
    pub fn is_within_message(&self) -> bool {
        self.prefix_have > 0
    }

    /// The length of a message that has come in part, as its prefix says.
    #[must_use]
    pub fn announced_bytes(&self) -> Option<usize> {
        let [_, a, b, c, d] = self.prefix;
        let bytes = u32::from_be_bytes([a, b, c, d]) as usize;
        (self.prefix_have == PREFIX_BYTES).then_some(bytes)
    }

    /// Bytes of a message that has come in part.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.bytes.len()
    }

    fn checked_prefix(&self, bytes_max: u32) -> Result<(MessageForm, u32), FramingFault> {
        let [flag, a, b, c, d] = self.prefix;
        let form = match flag {
            0 => MessageForm::Plain,
            1 => MessageForm::Compressed,
            other => return Err(FramingFault::Flag(other)),
        };
        let bytes = u32::from_be_bytes([a, b, c, d]);
        if bytes > bytes_max {
            return Err(FramingFault::TooLarge { bytes, bytes_max });
        }
        Ok((form, bytes))
    }
}

fn take<'a>(input: &mut &'a [u8], bytes: usize) -> &'a [u8] {
    let (part, rest) = input.split_at(bytes.min(input.len()));
    *input = rest;
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// PROTOCOL-HTTP2, Requests: Compressed-Flag is 0 or 1.
    #[test]
    fn requests_flags_that_nobody_knows() {
        for flag in [2, 0x80, 255] {
            let refused = MessageReader::default().read(&mut &[flag, 0, 0, 0, 0][..], 10);
            assert_eq!(refused, Err(FramingFault::Flag(flag)));
        }
    }

    /// PROTOCOL-HTTP2, Requests: Message-Length. A limit is judged before a byte of the message has come.
    #[test]
    fn requests_lengths_over_the_limit() {
        let refused = MessageReader::default().read(&mut &[0, 0, 0, 0, 11][..], 10);
        let expected = FramingFault::TooLarge {
            bytes: 11,
            bytes_max: 10,
        };
        assert_eq!(refused, Err(expected));
        let mut reader = MessageReader::default();
        assert_eq!(reader.read(&mut &[0, 255, 255, 255, 255][..], u32::MAX), Ok(None));
        assert_eq!(reader.bytes.capacity(), 0);
    }

    proptest! {
        /// However the bytes are cut, the messages are those that were written.
        #[test]
        fn messages_are_read_as_written(
            messages in vec((any::<bool>(), vec(any::<u8>(), 0..50)), 0..20),
            cuts in vec(1_usize..20, 1..20),
        ) {
            let form = |is_compressed: bool| if is_compressed { MessageForm::Compressed } else { MessageForm::Plain };
            let expected: Vec<GrpcMessage> = messages
                .into_iter()
                .map(|(is_compressed, bytes)| GrpcMessage { form: form(is_compressed), bytes })
                .collect();
            let stream: Vec<u8> = expected
                .iter()
                .flat_map(|message| [&message_prefix(message.form, message.bytes.len() as u32)[..], &message.bytes].concat())
                .collect();
            let (mut reader, mut got, mut rest) = (MessageReader::default(), Vec::new(), &stream[..]);
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (mut piece, after) = rest.split_at((*cut).min(rest.len()));
                while let Some(message) = reader.read(&mut piece, 50).unwrap() {
                    got.push(message);
                }
                rest = after;
            }
            prop_assert_eq!(got, expected);
            prop_assert!(!reader.is_within_message());
        }
    }
}
