//! Protobuf bytes as a sequence of records.

use std::ops::Range;

use provost_wire::limits::NESTING_MAX;

use crate::DecodeError;
use crate::protobuf::WireType;

/// Bytes of the longest varint.
const VARINT_BYTES_MAX: u32 = 10;
/// Bytes of the longest tag: 32 bits. A longer one is refused whatever it says, as protobuf's conformance tests want it.
const TAG_BYTES_MAX: u32 = 5;

/// A range of the protobuf bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordContent {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl RecordContent {
    pub(crate) fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    pub(crate) fn len(self) -> u32 {
        self.end - self.start
    }
}

/// A field number and a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProtobufRecord {
    pub(crate) number: u32,
    pub(crate) wire: WireType,
    /// Where its tag begins.
    pub(crate) start: u32,
    /// Where its value is; the record ends with it.
    pub(crate) content: RecordContent,
    /// The value of a varint or of fixed bytes; the length of others.
    pub(crate) value: u64,
}

/// The records of a range, one after the other. Ends after an error.
pub(crate) struct Records<'a> {
    input: &'a [u8],
    at: u32,
    end: u32,
}

impl<'a> Records<'a> {
    /// `range` must be inside `input`.
    pub(crate) fn new(input: &'a [u8], range: RecordContent) -> Records<'a> {
        Records {
            input,
            at: range.start,
            end: range.end,
        }
    }
}

impl Iterator for Records<'_> {
    type Item = Result<ProtobufRecord, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.end {
            return None;
        }
        let record = record_at(self.input, self.at, self.end, 0);
        self.at = record.as_ref().map_or(self.end, |record| record.content.end);
        Some(record)
    }
}

/// The varint at a place and where it ends.
#[inline]
pub(crate) fn varint_at(input: &[u8], at: u32, end: u32) -> Result<(u64, u32), DecodeError> {
    let bytes = input.get(at as usize..end as usize).unwrap_or_default();
    match bytes.first() {
        Some(&byte) if byte < 0x80 => return Ok((u64::from(byte), at + 1)),
        _ => {}
    }
    let mut value = 0;
    for (place, &byte) in (0..VARINT_BYTES_MAX).zip(bytes) {
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            return Ok((value, at + place + 1));
        }
    }
    if bytes.len() < VARINT_BYTES_MAX as usize {
        Err(DecodeError::Truncated { at })
    } else {
        Err(DecodeError::Malformed { at })
    }
}

fn record_at(input: &[u8], start: u32, end: u32, depth: u32) -> Result<ProtobufRecord, DecodeError> {
    let malformed = DecodeError::Malformed { at: start };
    let (tag, at) = varint_at(input, start, end)?;
    let tag = u32::try_from(tag).map_err(|_| malformed)?;
    let wire = WireType::from_tag(tag).ok_or(malformed)?;
    let number = tag >> 3;
    let (value, content) = match wire {
        _ if number == 0 || at - start > TAG_BYTES_MAX => return Err(malformed),
        WireType::Varint => {
            let (value, end) = varint_at(input, at, end)?;
            (value, RecordContent { start: at, end })
        }
        WireType::Fixed32 => fixed_at::<4>(input, start, at, end)?,
        WireType::Fixed64 => fixed_at::<8>(input, start, at, end)?,
        WireType::Len => {
            let (bytes, at) = varint_at(input, at, end)?;
            if bytes > u64::from(end - at) {
                return Err(DecodeError::Truncated { at: start });
            }
            (
                bytes,
                RecordContent {
                    start: at,
                    end: at + bytes as u32,
                },
            )
        }
        WireType::GroupStart => {
            let end = group_end(input, number, at, end, depth + 1)?;
            (0, RecordContent { start: at, end })
        }
        WireType::GroupEnd if depth > 0 => (0, RecordContent { start: at, end: at }),
        WireType::GroupEnd => return Err(malformed),
    };
    Ok(ProtobufRecord {
        number,
        wire,
        start,
        content,
        value,
    })
}

fn fixed_at<const BYTES: usize>(
    input: &[u8],
    start: u32,
    at: u32,
    end: u32,
) -> Result<(u64, RecordContent), DecodeError> {
    let bytes = input
        .get(at as usize..end as usize)
        .and_then(|rest| rest.first_chunk::<BYTES>());
    let bytes = bytes.ok_or(DecodeError::Truncated { at: start })?;
    let value = bytes
        .iter()
        .rev()
        .fold(0, |value, byte| value << 8 | u64::from(*byte));
    let end = at + BYTES as u32;
    Ok((value, RecordContent { start: at, end }))
}

/// Skips the records of a group whose first one is at `at`. Where the group ends.
fn group_end(input: &[u8], number: u32, mut at: u32, end: u32, depth: u32) -> Result<u32, DecodeError> {
    if depth > NESTING_MAX {
        return Err(DecodeError::Nesting { at });
    }
    while at < end {
        let record = record_at(input, at, end, depth)?;
        at = record.content.end;
        match record.wire {
            WireType::GroupEnd if record.number == number => return Ok(at),
            WireType::GroupEnd => return Err(DecodeError::Malformed { at: record.start }),
            _ => {}
        }
    }
    Err(DecodeError::Truncated { at })
}
