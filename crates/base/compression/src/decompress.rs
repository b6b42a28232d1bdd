//! Decompressing within bounds: of the bytes that come out, and of the work that those which go in can ask for.
//!
//! A block of a compressed message begins with tables that its reader builds, which takes microseconds, and can bring a byte or none: one of
//! deflate has ten bits then, one of zstd ten bytes. So blocks are counted.

use std::io::Read;

use flate2::Crc;
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::{
    TINFL_FLAG_PARSE_ZLIB_HEADER, TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY,
};
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::{CompressionFault, MessageEncoding};

/// Blocks that every message may have, whatever its size. The libraries that speak gRPC compress a message at once, in blocks of tens of
/// kilobytes. Whoever writes one in pieces of 16 bytes, and flushes each (two blocks of deflate), comes to 38 KiB with so many.
const BLOCKS_MIN: usize = 4_096;
/// Bytes of a message, as it came and decompressed taken together, for each of which it may have one block more. So a message of any
/// size may be written in pieces of 160 bytes that are flushed each, and the worst one costs ten times what an ordinary one of its size
/// costs: blocks without text, of which as many come as there is room for, cost four hundred times as much.
const BYTES_PER_BLOCK: usize = 128;
/// How far back deflate can refer (RFC 1951, section 2).
const DEFLATE_WINDOW_BYTES: usize = 32 << 10;
/// The window that a message in zstd may ask for, whatever it decompresses to: what every decoder is to
/// take by RFC 8878, section 3.1.1.1.2.
const ZSTD_WINDOW_BYTES_MAX: u64 = 8 << 20;

/// A message that is decompressed.
pub(crate) struct MessageDecompression<'a> {
    encoding: MessageEncoding,
    compressed: &'a [u8],
    /// What of it was not read.
    rest: &'a [u8],
    pub(crate) message: Vec<u8>,
    bytes_max: u32,
    blocks: usize,
}

/// What inflating works with, for one stream after the other.
struct DeflateReader {
    state: Box<DecompressorOxide>,
    /// The last bytes that came out, in a circle.
    window: Vec<u8>,
}

impl<'a> MessageDecompression<'a> {
    pub(crate) fn new(
        encoding: MessageEncoding,
        compressed: &'a [u8],
        bytes_max: u32,
    ) -> MessageDecompression<'a> {
        MessageDecompression {
            encoding,
            compressed,
            rest: compressed,
            message: Vec::new(),
            bytes_max,
            blocks: 0,
        }
    }

    /// Decompresses all of it.
    pub(crate) fn run(&mut self) -> Result<(), CompressionFault> {
        match self.encoding {
            MessageEncoding::Identity => {
                self.message.extend_from_slice(self.compressed);
                self.check_size()
            }
            MessageEncoding::Gzip => self.members(),
            MessageEncoding::Deflate => self.inflate(&mut DeflateReader::new(), TINFL_FLAG_PARSE_ZLIB_HEADER),
            MessageEncoding::Zstd => self.frame(),
        }
    }

    fn read_bytes(&self) -> usize {
        self.compressed.len() - self.rest.len()
    }

    fn malformed(&self) -> CompressionFault {
        CompressionFault::Malformed(self.encoding)
    }

    fn check_size(&self) -> Result<(), CompressionFault> {
        if self.message.len() > self.bytes_max as usize {
            return Err(CompressionFault::TooLarge {
                bytes_max: self.bytes_max,
            });
        }
        Ok(())
    }

    /// Counts a block that is next.
    fn count_block(&mut self) -> Result<(), CompressionFault> {
        self.blocks += 1;
        let bytes = self.read_bytes() + self.message.len();
        if self.blocks > BLOCKS_MIN + bytes / BYTES_PER_BLOCK {
            return Err(CompressionFault::TooManyBlocks(self.encoding));
        }
        Ok(())
    }

    /// Members of gzip, one behind the other (RFC 1952, section 2.2).
    fn members(&mut self) -> Result<(), CompressionFault> {
        let mut reader = DeflateReader::new();
        loop {
            let from = self.message.len();
            self.rest = behind_gzip_header(self.rest).ok_or(self.malformed())?;
            self.inflate(&mut reader, 0)?;
            let (trailer, behind) = self.rest.split_first_chunk().ok_or(self.malformed())?;
            let mut crc = Crc::new();
            crc.update(self.message.get(from..).unwrap_or_default());
            if *trailer != gzip_trailer(&crc) {
                return Err(self.malformed());
            }
            self.rest = behind;
            if behind.is_empty() {
                return Ok(());
            }
        }
    }

    /// One stream of deflate; what stands behind it is left.
    fn inflate(&mut self, reader: &mut DeflateReader, flags: u32) -> Result<(), CompressionFault> {
        let (flags, mut at) = (flags | TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY, 0);
        reader.state.init();
        self.count_block()?;
        loop {
            let window = &mut reader.window;
            let (status, taken, came) = decompress(&mut reader.state, self.rest, window, at, flags);
            self.rest = self.rest.get(taken..).unwrap_or_default();
            self.message
                .extend_from_slice(window.get(at..at + came).unwrap_or_default());
            at = (at + came) % DEFLATE_WINDOW_BYTES;
            self.check_size()?;
            match status {
                TINFLStatus::Done => return Ok(()),
                TINFLStatus::BlockBoundary => self.count_block()?,
                TINFLStatus::HasMoreOutput => {}
                _ => return Err(self.malformed()),
            }
        }
    }

    /// A frame of zstd (RFC 8878, section 3.1.1).
    fn frame(&mut self) -> Result<(), CompressionFault> {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(ZSTD_WINDOW_BYTES_MAX);
        let begun = decoder.init(&mut self.rest);
        begun.map_err(|_| self.malformed())?;
        while !decoder.is_finished() {
            self.count_block()?;
            let one = BlockDecodingStrategy::UptoBlocks(1);
            let decoded = decoder.decode_blocks(&mut self.rest, one);
            decoded.map_err(|_| self.malformed())?;
            if decoder.can_collect() > 0 {
                let room = u64::from(self.bytes_max) + 1 - self.message.len() as u64;
                let collected = decoder.by_ref().take(room).read_to_end(&mut self.message);
                collected.map_err(|_| self.malformed())?;
                self.check_size()?;
            }
        }
        Ok(())
    }
}

impl DeflateReader {
    fn new() -> DeflateReader {
        DeflateReader {
            state: Box::default(),
            window: vec![0; DEFLATE_WINDOW_BYTES],
        }
    }
}

/// What stands behind the header of a member, if there is one (RFC 1952, section 2.3).
fn behind_gzip_header(member: &[u8]) -> Option<&[u8]> {
    const HEADER_CRC: u8 = 1 << 1;
    const EXTRA: u8 = 1 << 2;
    const NAME: u8 = 1 << 3;
    const COMMENT: u8 = 1 << 4;
    const RESERVED: u8 = 0b1110_0000;

    let (&[31, 139, 8, flags, ..], mut behind) = member.split_first_chunk::<10>()? else {
        return None;
    };
    if flags & RESERVED != 0 {
        return None;
    }
    if flags & EXTRA != 0 {
        let (length, after) = behind.split_first_chunk()?;
        behind = after.get(usize::from(u16::from_le_bytes(*length))..)?;
    }
    for text in [NAME, COMMENT] {
        if flags & text != 0 {
            let end = behind.iter().position(|byte| *byte == 0)?;
            behind = behind.get(end + 1..)?;
        }
    }
    if flags & HEADER_CRC != 0 {
        let mut crc = Crc::new();
        crc.update(member.get(..member.len() - behind.len())?);
        let (said, after) = behind.split_first_chunk()?;
        behind = after;
        if u16::from_le_bytes(*said) != crc.sum() as u16 {
            return None;
        }
    }
    Some(behind)
}

fn gzip_trailer(crc: &Crc) -> [u8; 8] {
    let [a, b, c, d] = crc.sum().to_le_bytes();
    let [e, f, g, h] = crc.amount().to_le_bytes();
    [a, b, c, d, e, f, g, h]
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use flate2::{Compression, GzBuilder};
    use proptest::collection::vec;
    use proptest::prelude::*;
    use provost_random::SeededRandom;

    const BYTES_MAX: u32 = 4 << 20;

    /// Bits, the first of a byte its lowest (RFC 1951, section 3.1.1).
    #[derive(Default)]
    struct BitWriter {
        bytes: Vec<u8>,
        bits: usize,
    }

    impl BitWriter {
        fn put(&mut self, value: u32, bits: usize) {
            for at in 0..bits {
                if self.bits.is_multiple_of(8) {
                    self.bytes.push(0);
                }
                *self.bytes.last_mut().unwrap() |= ((value >> at & 1) as u8) << (self.bits % 8);
                self.bits += 1;
            }
        }

        /// A block of fixed Huffman codes that has nothing but its end.
        fn empty_block(&mut self) {
            self.put(0b01 << 1, 3);
            self.put(0, 7);
        }

        /// A block that brings the last byte 259 times: the byte itself, and a copy of 258 (length code 285, distance 1).
        fn run_block(&mut self) {
            self.put(0b01 << 1, 3);
            self.put(0b0000_1100, 8);
            self.put(0b1010_0011, 8);
            self.put(0, 5);
            self.put(0, 7);
        }
    }

    /// What is read of this, and what comes of it.
    fn read_of(encoding: MessageEncoding, compressed: &[u8]) -> (usize, Result<Vec<u8>, CompressionFault>) {
        let mut decompression = MessageDecompression::new(encoding, compressed, BYTES_MAX);
        let result = decompression.run();
        let read = decompression.read_bytes();
        (read, result.map(|()| decompression.message))
    }

    fn gzip_of(deflated: &[u8]) -> Vec<u8> {
        [&[31, 139, 8, 0, 0, 0, 0, 0, 0, 255][..], deflated].concat()
    }

    fn zlib_of(deflated: &[u8]) -> Vec<u8> {
        [&[0x78, 0x01][..], deflated].concat()
    }

    /// Random bytes, which nothing compresses.
    fn noise(bytes: usize) -> Vec<u8> {
        SeededRandom::new(5).bytes(bytes)
    }

    fn words(bytes: usize) -> Vec<u8> {
        let mut random = SeededRandom::new(6);
        let words = (0..).flat_map(|at| format!("field {} of {at};", random.index(1_000)).into_bytes());
        words.take(bytes).collect()
    }

    #[test]
    fn blocks_without_text_are_refused_early() {
        let mut blocks = BitWriter::default();
        while blocks.bytes.len() < 64 << 10 {
            blocks.empty_block();
        }
        for (encoding, bomb) in [
            (MessageEncoding::Gzip, gzip_of(&blocks.bytes)),
            (MessageEncoding::Deflate, zlib_of(&blocks.bytes)),
        ] {
            let (read, result) = read_of(encoding, &bomb);
            assert_eq!(result, Err(CompressionFault::TooManyBlocks(encoding)));
            assert!((5_000..8 << 10).contains(&read), "{encoding:?}: {read} bytes");
        }
    }

    /// What text came does not pay for any number of blocks behind it.
    #[test]
    fn blocks_without_text_behind_much_text_are_refused_too() {
        let mut blocks = BitWriter::default();
        for _ in 0..10_000 {
            blocks.run_block();
        }
        let text_bytes = blocks.bytes.len();
        while blocks.bytes.len() < 1 << 20 {
            blocks.empty_block();
        }
        let (read, result) = read_of(MessageEncoding::Deflate, &zlib_of(&blocks.bytes));
        assert_eq!(
            result,
            Err(CompressionFault::TooManyBlocks(MessageEncoding::Deflate))
        );
        assert!(
            (text_bytes..text_bytes + (32 << 10)).contains(&read),
            "{read} bytes"
        );
    }

    #[test]
    fn empty_members_are_refused_early() {
        let member = GzEncoder::new(Vec::new(), Compression::fast()).finish().unwrap();
        let (read, result) = read_of(MessageEncoding::Gzip, &member.repeat(20_000));
        assert_eq!(
            result,
            Err(CompressionFault::TooManyBlocks(MessageEncoding::Gzip))
        );
        assert!(read < 110 << 10, "{read} bytes");
        let (_, result) = read_of(MessageEncoding::Gzip, &member.repeat(1_000));
        assert_eq!(result, Ok(Vec::new()));
    }

    /// A block with a Huffman table of 2,048 entries and a byte of text; one with nothing at all.
    #[test]
    fn small_blocks_of_zstd_are_refused_early() {
        let tables: &[u8] = &[60, 0, 0, 0b0001_0010, 0b1100_0000, 0, 128, 0xb0, 0b10, 0];
        for block in [tables, &[0, 0, 0]] {
            let head = [0x28, 0xb5, 0x2f, 0xfd, 0, 0x50];
            let (read, result) = read_of(
                MessageEncoding::Zstd,
                &[&head[..], &block.repeat(20_000)].concat(),
            );
            assert_eq!(
                result,
                Err(CompressionFault::TooManyBlocks(MessageEncoding::Zstd))
            );
            assert!(read < 50 << 10, "{read} bytes");
            let whole = [&head[..], &block.repeat(1_000), &[1, 0, 0]].concat();
            let (read, result) = read_of(MessageEncoding::Zstd, &whole);
            assert_eq!(read, whole.len());
            assert!(matches!(result.unwrap().len(), 0 | 1_000));
        }
    }

    /// As gzip and as deflate, by other encoders' levels, flushed after so many bytes.
    fn foreign(message: &[u8], level: u32, flushed: usize) -> [(MessageEncoding, Vec<u8>); 2] {
        let level = Compression::new(level);
        let (mut gzip, mut zlib) = (
            GzEncoder::new(Vec::new(), level),
            ZlibEncoder::new(Vec::new(), level),
        );
        for piece in message.chunks(flushed) {
            for encoder in [&mut gzip as &mut dyn Write, &mut zlib] {
                encoder.write_all(piece).unwrap();
                encoder.flush().unwrap();
            }
        }
        [
            (MessageEncoding::Gzip, gzip.finish().unwrap()),
            (MessageEncoding::Deflate, zlib.finish().unwrap()),
        ]
    }

    #[test]
    fn honest_messages_pass_however_they_are_written() {
        let whole = usize::MAX;
        for (message, flushed) in [
            (Vec::new(), whole),
            (noise(1 << 20), whole),
            (words(1 << 20), whole),
            (vec![0; 4 << 20], whole),
            (noise(30 << 10), 16),
            (words(30 << 10), 16),
            (noise(1 << 20), 160),
            (noise(4 << 20), 1_000),
            (words(1 << 20), 400),
        ] {
            for level in [0, 1, 6] {
                for (encoding, compressed) in foreign(&message, level, flushed) {
                    let (read, result) = read_of(encoding, &compressed);
                    assert!(result.as_ref() == Ok(&message), "{encoding:?} {level} {flushed}");
                    assert_eq!(read, compressed.len());
                }
            }
        }
    }

    #[test]
    fn headers_of_gzip_are_read_over() {
        let builder = || GzBuilder::new().mtime(7).operating_system(3);
        for builder in [
            builder(),
            builder().extra(&b"extra\0field"[..]),
            builder().filename(&b"a name"[..]).comment(&b"words"[..]),
            builder().extra(&b""[..]).comment(&b"words"[..]),
        ] {
            let mut encoder = builder.write(Vec::new(), Compression::fast());
            encoder.write_all(b"text").unwrap();
            let compressed = encoder.finish().unwrap();
            assert_eq!(read_of(MessageEncoding::Gzip, &compressed).1.unwrap(), b"text");
            let two = compressed.repeat(2);
            assert_eq!(read_of(MessageEncoding::Gzip, &two).1.unwrap(), b"texttext");
            let reserved = [&two[..3], &[two[3] | 0x20], &two[4..]].concat();
            assert!(read_of(MessageEncoding::Gzip, &reserved).1.is_err());
        }
    }

    #[test]
    fn checksums_are_checked() {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(b"text").unwrap();
        let deflated = encoder.finish().unwrap();
        let mut crc = Crc::new();
        crc.update(b"text");
        let header = [31, 139, 8, 2, 0, 0, 0, 0, 0, 255];
        let mut of_header = Crc::new();
        of_header.update(&header);
        let said = (of_header.sum() as u16).to_le_bytes();
        let whole = [&header[..], &said, &deflated, &gzip_trailer(&crc)].concat();
        assert_eq!(read_of(MessageEncoding::Gzip, &whole).1.unwrap(), b"text");
        let of_length = whole.len() - 4..whole.len();
        for at in (10..12).chain(whole.len() - 8..whole.len() - 4).chain(of_length) {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            assert!(read_of(MessageEncoding::Gzip, &damaged).1.is_err(), "byte {at}");
        }
        let [_, (_, mut zlib)] = foreign(b"text", 6, 9);
        *zlib.last_mut().unwrap() ^= 1;
        assert!(read_of(MessageEncoding::Deflate, &zlib).1.is_err());
    }

    /// What flate2 makes of the same.
    fn by_flate2(encoding: MessageEncoding, compressed: &[u8]) -> Option<Vec<u8>> {
        let mut message = Vec::new();
        let read = match encoding {
            MessageEncoding::Gzip => flate2::read::MultiGzDecoder::new(compressed).read_to_end(&mut message),
            _ => flate2::read::ZlibDecoder::new(compressed).read_to_end(&mut message),
        };
        read.ok().map(|_| message)
    }

    proptest! {
        #[test]
        fn what_is_written_in_any_way_is_read_as_flate2_reads_it(
            message in vec(any::<u8>(), 0..3_000),
            kinds in 1_u8..=255,
            level in 0_u32..10,
            flushed in 2_usize..500,
            damaged in any::<prop::sample::Index>(),
            by in any::<u8>(),
        ) {
            let message: Vec<u8> = message.iter().map(|byte| byte % kinds).collect();
            for (encoding, mut compressed) in foreign(&message, level, flushed) {
                prop_assert_eq!(read_of(encoding, &compressed).1, Ok(message.clone()));
                let at = damaged.index(compressed.len());
                compressed[at] ^= by;
                prop_assert_eq!(read_of(encoding, &compressed).1.ok(), by_flate2(encoding, &compressed));
                compressed.truncate(at);
                prop_assert_eq!(read_of(encoding, &compressed).1.ok(), by_flate2(encoding, &compressed));
            }
        }
    }
}
