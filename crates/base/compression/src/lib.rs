//! How the bytes of messages are compressed. Each message stands alone (PROTOCOL-HTTP2, Requests: Compressed-Flag).
#![forbid(unsafe_code)]

mod decompress;

use std::io::Write;

use decompress::MessageDecompression;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use provost_wire::Code;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

/// How compressed messages of one direction of a call are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MessageEncoding {
    #[default]
    Identity,
    /// As RFC 1952 has it.
    Gzip,
    /// RFC 1951 within the framing of RFC 1950, as gRPC has it.
    Deflate,
    /// As RFC 8878 has it.
    Zstd,
}

/// Why a message is not what its encoding makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompressionFault {
    #[error("the message is not {}: its bytes are damaged or cut", .0.name())]
    Malformed(MessageEncoding),
    #[error("the message has more than {bytes_max} bytes when it is decompressed")]
    TooLarge {
        /// The limit that the reader set.
        bytes_max: u32,
    },
    #[error(
        "the message has too many blocks of {} for its size: compress it at once, or flush less often",
        .0.name()
    )]
    TooManyBlocks(MessageEncoding),
}

impl CompressionFault {
    /// The status of a call with such a message (gRPC's status codes: "could not decompress", "message was larger than configured
    /// limit").
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            CompressionFault::Malformed(_) => Code::Internal,
            CompressionFault::TooLarge { .. } | CompressionFault::TooManyBlocks(_) => Code::ResourceExhausted,
        }
    }
}

impl MessageEncoding {
    /// All encodings, the one without compression first.
    pub const ALL: [MessageEncoding; 4] = [
        MessageEncoding::Identity,
        MessageEncoding::Gzip,
        MessageEncoding::Deflate,
        MessageEncoding::Zstd,
    ];

    /// As `grpc-encoding` says it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            MessageEncoding::Identity => "identity",
            MessageEncoding::Gzip => "gzip",
            MessageEncoding::Deflate => "deflate",
            MessageEncoding::Zstd => "zstd",
        }
    }

    /// The encoding of this number in frames of the native protocol and in saved state; None if it is not known here.
    #[must_use]
    pub fn of_number(number: u32) -> Option<MessageEncoding> {
        Self::ALL.into_iter().find(|encoding| encoding.number() == number)
    }

    /// Its number in frames of the native protocol and in saved state.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The encoding of this name; None if it is not known here.
    #[must_use]
    pub fn named(name: &[u8]) -> Option<MessageEncoding> {
        Self::ALL
            .into_iter()
            .find(|encoding| name.eq_ignore_ascii_case(encoding.name().as_bytes()))
    }

    /// The bytes of a message, compressed.
    #[must_use]
    pub fn compress(self, message: &[u8]) -> Vec<u8> {
        let written = match self {
            MessageEncoding::Identity => return message.to_vec(),
            MessageEncoding::Zstd => return compress_to_vec(message, CompressionLevel::Fastest),
            MessageEncoding::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
                encoder.write_all(message).and_then(|()| encoder.finish())
            }
            MessageEncoding::Deflate => {
                let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
                encoder.write_all(message).and_then(|()| encoder.finish())
            }
        };
        written.expect("a vector takes all bytes")
    }

    /// The bytes of a message that was compressed, at most as many as this. Memory is taken as they come.
    ///
    /// # Errors
    /// The bytes are not of this encoding, there are more, or they are in blocks so small that building their tables would take many times
    /// as long as reading a message of this size.
    pub fn decompress(self, compressed: &[u8], bytes_max: u32) -> Result<Vec<u8>, CompressionFault> {
        let mut decompression = MessageDecompression::new(self, compressed, bytes_max);
        decompression.run()?;
        Ok(decompression.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const COMPRESSED: [MessageEncoding; 3] = [
        MessageEncoding::Gzip,
        MessageEncoding::Deflate,
        MessageEncoding::Zstd,
    ];

    /// COMPRESSION: the names of encodings, and their numbers.
    #[test]
    fn encodings_by_name_and_number() {
        for encoding in MessageEncoding::ALL {
            assert_eq!(MessageEncoding::named(encoding.name().as_bytes()), Some(encoding));
            assert_eq!(MessageEncoding::of_number(encoding.number()), Some(encoding));
        }
        assert_eq!(MessageEncoding::named(b"snappy"), None);
        assert_eq!(MessageEncoding::of_number(4), None);
    }

    #[test]
    fn a_bomb_is_stopped_at_the_limit() {
        let zeros = vec![0; 8 << 20];
        for encoding in COMPRESSED {
            let bomb = encoding.compress(&zeros);
            assert!(bomb.len() < zeros.len() / 100, "{encoding:?}");
            let refused = encoding.decompress(&bomb, 1_000);
            assert_eq!(refused, Err(CompressionFault::TooLarge { bytes_max: 1_000 }));
            assert_eq!(encoding.decompress(&bomb, 8 << 20).as_deref(), Ok(&zeros[..]));
        }
    }

    /// RFC 8878, section 3.1.1.1.2: a frame that asks for a window of a gigabyte gets no memory.
    #[test]
    fn a_window_over_the_limit_is_refused() {
        // Magic number, a frame header descriptor without a content size, a window of 2^30 bytes, an empty last block.
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0, 20 << 3, 1, 0, 0];
        let refused = MessageEncoding::Zstd.decompress(&frame, u32::MAX);
        assert_eq!(refused, Err(CompressionFault::Malformed(MessageEncoding::Zstd)));
    }

    #[test]
    fn cut_messages_are_refused() {
        for encoding in COMPRESSED {
            let whole = encoding.compress(b"many bytes, many bytes, and many bytes");
            let cut = encoding.decompress(&whole[..whole.len() / 2], 1_000);
            assert_eq!(cut, Err(CompressionFault::Malformed(encoding)));
        }
    }

    proptest! {
        #[test]
        fn messages_are_decompressed_as_compressed(bytes in vec(any::<u8>(), 0..20_000), kinds in 1_u8..=255) {
            let message: Vec<u8> = bytes.iter().map(|byte| byte % kinds).collect();
            for encoding in MessageEncoding::ALL {
                let compressed = encoding.compress(&message);
                let bytes = message.len() as u32;
                prop_assert_eq!(encoding.decompress(&compressed, bytes).unwrap(), message.clone());
            }
        }

        #[test]
        fn any_bytes_are_decompressed_or_refused(bytes in vec(any::<u8>(), 0..200)) {
            for encoding in COMPRESSED {
                if let Ok(message) = encoding.decompress(&bytes, 5_000) {
                    prop_assert!(message.len() <= 5_000);
                }
            }
        }
    }
}
