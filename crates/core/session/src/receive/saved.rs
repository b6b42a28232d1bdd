//! The receiving half as bytes: where in the stream it stands.

use provost_datapath::{FieldReader, FieldWriter, RestoreError};
use provost_wire::frame::HEADER_BYTES;
use provost_wire::limits::CHUNK_BYTES_MAX;

use super::{FrameParser, ParserState};
use crate::calls::OpenCalls;
use crate::handshake::REASON_BYTES_MAX;

/// A frame's body is a chunk, with metadata before it at most.
const BODY_BYTES_MAX: u32 = CHUNK_BYTES_MAX + provost_wire::limits::METADATA_BYTES_MAX;

mod state {
    pub(super) const HEADER: u8 = 0;
    pub(super) const BODY: u8 = 1;
    pub(super) const SKIP: u8 = 2;
    pub(super) const TEXT: u8 = 3;
}

impl FrameParser {
    pub(crate) fn highest(&self) -> u64 {
        self.highest
    }

    /// Where a connection stands that reads no more.
    pub(crate) fn at_the_end(&self) -> FrameParser {
        FrameParser {
            highest: self.highest,
            ..FrameParser::new()
        }
    }

    pub(crate) fn save(&self, out: &mut FieldWriter) {
        out.u64(self.highest);
        out.run(&self.header[..self.header_filled]);
        out.run(&self.text);
        match self.state {
            ParserState::Header => out.u8(state::HEADER),
            ParserState::Body { slot, wire, left } => {
                out.u8(state::BODY);
                out.u32(slot);
                out.u64(wire);
                out.u32(left);
            }
            ParserState::Skip { left } => {
                out.u8(state::SKIP);
                out.u32(left);
            }
            ParserState::Text { left, status } => {
                out.u8(state::TEXT);
                out.u32(left);
                out.u32(status);
            }
        }
    }

    pub(crate) fn restore(fields: &mut FieldReader<'_>) -> Result<FrameParser, RestoreError> {
        let mut parser = FrameParser::new();
        parser.highest = fields.u64()?;
        let header = fields.run()?;
        if header.len() >= HEADER_BYTES {
            return Err(fields.damaged("a header that is whole was not read"));
        }
        parser.header[..header.len()].copy_from_slice(header);
        parser.header_filled = header.len();
        parser.text = fields.run()?.to_vec();
        parser.state = match fields.u8()? {
            state::HEADER => ParserState::Header,
            state::BODY => ParserState::Body {
                slot: fields.u32()?,
                wire: fields.u64()?,
                left: fields.u32()?,
            },
            state::SKIP => ParserState::Skip { left: fields.u32()? },
            state::TEXT => ParserState::Text {
                left: fields.u32()?,
                status: fields.u32()?,
            },
            other => return Err(fields.damaged(format!("a parser in the unknown state {other}"))),
        };
        let left = match parser.state {
            ParserState::Header => 1,
            ParserState::Body { left, .. } | ParserState::Skip { left } => left,
            ParserState::Text { left, .. } => left.saturating_add(parser.text.len() as u32),
        };
        let left_max = match parser.state {
            ParserState::Text { .. } => REASON_BYTES_MAX as u32,
            _ => BODY_BYTES_MAX,
        };
        let in_text = matches!(parser.state, ParserState::Text { .. });
        if !(1..=left_max).contains(&left)
            || (parser.header_filled > 0 && !matches!(parser.state, ParserState::Header))
            || (!in_text && !parser.text.is_empty())
        {
            return Err(fields.damaged("a parser that stands where it cannot stand"));
        }
        Ok(parser)
    }

    /// Counts what the calls have of messages in part, and makes sure that the frame that is coming in is of one of them.
    pub(crate) fn join(
        &mut self,
        calls: &mut OpenCalls,
        fields: &FieldReader<'_>,
    ) -> Result<(), RestoreError> {
        let (receiving_bytes, held_bytes) = calls.receiving_bytes();
        self.receiving_bytes = receiving_bytes;
        self.held.set_bytes(held_bytes);
        if self.receiving_bytes > 0 {
            // Their times begin anew.
            self.next_expiry = 0;
        }
        let ParserState::Body { slot, wire, left } = self.state else {
            return Ok(());
        };
        let partial = calls.same_mut(slot, wire).and_then(|call| call.partial.as_ref());
        match partial {
            Some(partial) if partial.has_room_for(left) => Ok(()),
            _ => Err(fields.damaged("the frame that is coming in is of no message")),
        }
    }
}
