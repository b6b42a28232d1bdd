//! Frames (RFC 9113, sections 4.1 and 6): nine bytes of header, and the payloads of the ten types.

use crate::error::{ConnectionError, ErrorCode};

/// Bytes of a frame's header.
pub const FRAME_HEADER_BYTES: usize = 9;
/// The smallest limit of a frame's payload that an end may have, and the first one (RFC 9113, section 4.2).
pub const FRAME_BYTES_MIN: u32 = 1 << 14;
/// The largest limit of a frame's payload that an end may have.
pub const FRAME_BYTES_MAX: u32 = (1 << 24) - 1;
/// What a client sends first (RFC 9113, section 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The largest number of a stream, and the largest window.
pub const NUMBER_MAX: u32 = (1 << 31) - 1;

/// Flags of frames. Those that a type does not define are ignored.
pub mod flags {
    pub const END_STREAM: u8 = 0x1;
    pub const ACK: u8 = 0x1;
    pub const END_HEADERS: u8 = 0x4;
    pub const PADDED: u8 = 0x8;
    pub const PRIORITY: u8 = 0x20;
}

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameKind {
    Data,
    Headers,
    Priority,
    ResetStream,
    Settings,
    PushPromise,
    Ping,
    GoAway,
    WindowUpdate,
    Continuation,
    /// A type that RFC 9113 does not define: ignored.
    Unknown(u8),
}

impl FrameKind {
    const KNOWN: [FrameKind; 10] = [
        FrameKind::Data,
        FrameKind::Headers,
        FrameKind::Priority,
        FrameKind::ResetStream,
        FrameKind::Settings,
        FrameKind::PushPromise,
        FrameKind::Ping,
        FrameKind::GoAway,
        FrameKind::WindowUpdate,
        FrameKind::Continuation,
    ];

    fn from_byte(byte: u8) -> FrameKind {
        let known = FrameKind::KNOWN.get(usize::from(byte)).copied();
        known.unwrap_or(FrameKind::Unknown(byte))
    }

    fn byte(self) -> u8 {
        match self {
            FrameKind::Unknown(byte) => byte,
            known => FrameKind::KNOWN
                .iter()
                .position(|kind| *kind == known)
                .unwrap_or_default() as u8,
        }
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of the payload, of which there are fewer than 2²⁴.
    pub length: u32,
    pub kind: FrameKind,
    pub flags: u8,
    /// 0 for the connection.
    pub stream: u32,
}

impl FrameHeader {
    /// Reads a header. The reserved bit is ignored (RFC 9113, section 4.1).
    #[must_use]
    pub fn read(bytes: [u8; FRAME_HEADER_BYTES]) -> FrameHeader {
        let [a, b, c, kind, flags, stream @ ..] = bytes;
        FrameHeader {
            length: u32::from_be_bytes([0, a, b, c]),
            kind: FrameKind::from_byte(kind),
            flags,
            stream: u32::from_be_bytes(stream) & NUMBER_MAX,
        }
    }

    /// The header as it stands on the wire.
    #[must_use]
    pub fn bytes(self) -> [u8; FRAME_HEADER_BYTES] {
        let [_, a, b, c] = self.length.to_be_bytes();
        let [d, e, f, g] = self.stream.to_be_bytes();
        [a, b, c, self.kind.byte(), self.flags, d, e, f, g]
    }

    /// Whether this flag is set.
    #[must_use]
    pub fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// What of a frame's length and stream is wrong already, before its payload has come (RFC 9113, section 6).
    ///
    /// # Errors
    /// No end may send such a frame; the connection is over.
    pub fn check(self) -> Result<(), ConnectionError> {
        match self.kind {
            FrameKind::Data => self.check_stream("DATA belongs to a stream"),
            FrameKind::Headers => self.check_stream("HEADERS belong to a stream"),
            FrameKind::Priority => self.check_stream("PRIORITY belongs to a stream"),
            FrameKind::Continuation => self.check_stream("CONTINUATION belongs to a stream"),
            FrameKind::PushPromise => self.check_stream("PUSH_PROMISE belongs to a stream"),
            FrameKind::ResetStream => {
                self.check_length(4, "RST_STREAM has four bytes")?;
                self.check_stream("RST_STREAM belongs to a stream")
            }
            FrameKind::WindowUpdate => self.check_length(4, "WINDOW_UPDATE has four bytes"),
            FrameKind::Ping => {
                self.check_length(8, "PING has eight bytes")?;
                self.check_connection("PING belongs to the connection")
            }
            FrameKind::GoAway => {
                self.check_connection("GOAWAY belongs to the connection")?;
                self.check_size(self.length >= 8, "GOAWAY has eight bytes or more")
            }
            FrameKind::Settings => {
                self.check_connection("SETTINGS belong to the connection")?;
                let is_empty_ack = !self.has(flags::ACK) || self.length == 0;
                self.check_size(is_empty_ack, "an acknowledgement of SETTINGS is empty")?;
                self.check_size(self.length.is_multiple_of(6), "SETTINGS have six bytes each")
            }
            FrameKind::Unknown(_) => Ok(()),
        }
    }

    fn check_stream(self, reason: &'static str) -> Result<(), ConnectionError> {
        if self.stream == 0 {
            return Err(ConnectionError::protocol(reason));
        }
        Ok(())
    }

    fn check_connection(self, reason: &'static str) -> Result<(), ConnectionError> {
        if self.stream != 0 {
            return Err(ConnectionError::protocol(reason));
        }
        Ok(())
    }

    fn check_length(self, length: u32, reason: &'static str) -> Result<(), ConnectionError> {
        self.check_size(self.length == length, reason)
    }

    fn check_size(self, is_right: bool, reason: &'static str) -> Result<(), ConnectionError> {
        if is_right {
            return Ok(());
        }
        Err(ConnectionError::new(ErrorCode::FRAME_SIZE_ERROR, reason))
    }
}

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameBody<'a> {
    Data(&'a [u8]),
    /// A block's first fragment. Priorities are read over: they are deprecated (RFC 9113, section 5.3).
    Headers(&'a [u8]),
    /// None: of a length that is an error of the stream (RFC 9113, section 6.3).
    Priority(Option<[u8; 5]>),
    ResetStream(ErrorCode),
    /// The settings, of six bytes each.
    Settings(&'a [[u8; 6]]),
    PushPromise {
        promised: u32,
        fragment: &'a [u8],
    },
    Ping([u8; 8]),
    GoAway {
        last_stream: u32,
        code: ErrorCode,
        debug: &'a [u8],
    },
    WindowUpdate(u32),
    Continuation(&'a [u8]),
    Unknown,
}

impl<'a> FrameBody<'a> {
    /// Reads the payload that came behind this header.
    ///
    /// # Errors
    /// The frame breaks a rule of RFC 9113, section 6.
    pub fn read(header: FrameHeader, payload: &'a [u8]) -> Result<FrameBody<'a>, ConnectionError> {
        header.check()?;
        let short = ConnectionError::new(ErrorCode::FRAME_SIZE_ERROR, "a frame is too short for its type");
        Ok(match header.kind {
            FrameKind::Data => FrameBody::Data(unpadded(header, payload)?),
            FrameKind::Headers => {
                let mut fragment = unpadded(header, payload)?;
                if header.has(flags::PRIORITY) {
                    fragment = fragment.get(5..).ok_or(short)?;
                }
                FrameBody::Headers(fragment)
            }
            FrameKind::Priority => FrameBody::Priority(payload.try_into().ok()),
            FrameKind::ResetStream => FrameBody::ResetStream(ErrorCode(number(payload).ok_or(short)?)),
            FrameKind::Settings => FrameBody::Settings(payload.as_chunks().0),
            FrameKind::PushPromise => {
                let payload = unpadded(header, payload)?;
                FrameBody::PushPromise {
                    promised: number(payload).ok_or(short)? & NUMBER_MAX,
                    fragment: &payload[4..],
                }
            }
            FrameKind::Ping => FrameBody::Ping(payload.try_into().map_err(|_| short)?),
            FrameKind::GoAway => FrameBody::GoAway {
                last_stream: number(payload).ok_or(short)? & NUMBER_MAX,
                code: ErrorCode(payload.get(4..).and_then(number).ok_or(short)?),
                debug: &payload[8..],
            },
            FrameKind::WindowUpdate => FrameBody::WindowUpdate(number(payload).ok_or(short)? & NUMBER_MAX),
            FrameKind::Continuation => FrameBody::Continuation(payload),
            FrameKind::Unknown(_) => FrameBody::Unknown,
        })
    }
}

/// The first four bytes as a number.
fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().copied().map(u32::from_be_bytes)
}

/// The payload without its padding. Padding is not looked at: RFC 9113 allows it to be anything.
fn unpadded(header: FrameHeader, payload: &[u8]) -> Result<&[u8], ConnectionError> {
    if !header.has(flags::PADDED) {
        return Ok(payload);
    }
    let (padding_bytes, rest) = payload.split_first().ok_or(ConnectionError::new(
        ErrorCode::FRAME_SIZE_ERROR,
        "a padded frame has no length of its padding",
    ))?;
    let end = rest.len().checked_sub(usize::from(*padding_bytes));
    let end = end.ok_or(ConnectionError::protocol(PADDING_TOO_LONG))?;
    Ok(&rest[..end])
}

pub(crate) const PADDING_TOO_LONG: &str = "a frame's padding is longer than the frame";

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: FrameKind, length: u32, flags: u8, stream: u32) -> FrameHeader {
        FrameHeader {
            length,
            kind,
            flags,
            stream,
        }
    }

    /// RFC 9113, section 4.1: the reserved bit is ignored; everything else is read as it was written.
    #[test]
    fn rfc9113_4_1_headers_are_read_as_written() {
        for kind in FrameKind::KNOWN.into_iter().chain([FrameKind::Unknown(0xfa)]) {
            let written = header(kind, 0x12_3456, 0xa5, 0x7fff_fffe);
            let mut bytes = written.bytes();
            assert_eq!(FrameHeader::read(bytes), written);
            bytes[5] |= 0x80;
            assert_eq!(FrameHeader::read(bytes), written);
        }
    }

    /// RFC 9113, sections 6.1 and 6.2: padding as long as the payload or longer is a PROTOCOL_ERROR.
    #[test]
    fn rfc9113_6_1_padding_longer_than_the_frame_is_refused() {
        let padded = |payload: &'static [u8]| {
            let header = header(FrameKind::Data, payload.len() as u32, flags::PADDED, 1);
            FrameBody::read(header, payload).map_err(|error| error.code)
        };
        assert_eq!(padded(&[2, b'a', 0, 0]), Ok(FrameBody::Data(b"a")));
        assert_eq!(padded(&[3, 0, 0, 0]), Ok(FrameBody::Data(b"")));
        assert_eq!(padded(&[4, 0, 0, 0]), Err(ErrorCode::PROTOCOL_ERROR));
        assert_eq!(padded(&[]), Err(ErrorCode::FRAME_SIZE_ERROR));
    }

    /// RFC 9113, section 6: lengths and streams that no frame of a type may have.
    #[test]
    fn rfc9113_6_lengths_and_streams_of_each_type() {
        use FrameKind::*;
        let wrong = [
            (Data, 0, 0, 0, ErrorCode::PROTOCOL_ERROR),
            (Headers, 0, 0, 0, ErrorCode::PROTOCOL_ERROR),
            (Priority, 5, 0, 0, ErrorCode::PROTOCOL_ERROR),
            (ResetStream, 4, 0, 0, ErrorCode::PROTOCOL_ERROR),
            (ResetStream, 3, 0, 1, ErrorCode::FRAME_SIZE_ERROR),
            (Settings, 6, 0, 1, ErrorCode::PROTOCOL_ERROR),
            (Settings, 6, flags::ACK, 0, ErrorCode::FRAME_SIZE_ERROR),
            (Settings, 7, 0, 0, ErrorCode::FRAME_SIZE_ERROR),
            (PushPromise, 4, 0, 0, ErrorCode::PROTOCOL_ERROR),
            (Ping, 8, 0, 1, ErrorCode::PROTOCOL_ERROR),
            (Ping, 7, 0, 0, ErrorCode::FRAME_SIZE_ERROR),
            (GoAway, 8, 0, 1, ErrorCode::PROTOCOL_ERROR),
            (GoAway, 7, 0, 0, ErrorCode::FRAME_SIZE_ERROR),
            (WindowUpdate, 5, 0, 0, ErrorCode::FRAME_SIZE_ERROR),
            (Continuation, 1, 0, 0, ErrorCode::PROTOCOL_ERROR),
        ];
        for (kind, length, flags, stream, code) in wrong {
            let error = header(kind, length, flags, stream).check().unwrap_err();
            assert_eq!(error.code, code, "{kind:?} {length} {stream}");
        }
    }
}
