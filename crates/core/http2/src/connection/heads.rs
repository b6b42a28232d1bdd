//! Field blocks that are complete: requests, responses, trailers, and those that nobody wants.

use super::{DrainState, HeadKind, Http2Connection, OpenBlock, StreamEnd};
use crate::config::EndpointRole;
use crate::error::{ConnectionError, ErrorCode};
use crate::fields::FieldList;
use crate::floods::FloodKind;
use crate::hpack::DecodedBlock;
use crate::output::DataChunk;
use crate::streams::{HalfState, Http2Stream, StreamEnding};
use crate::validate::{HeadFacts, HeadFault, check_request, check_response, check_trailers};
use crate::windows::{ReceiveWindow, SendWindow};

/// A head for the application; its fields are the decoder's.
pub(super) struct CompletedHead {
    pub(super) stream: u32,
    pub(super) kind: HeadKind,
    pub(super) end: StreamEnd,
}

/// The status of a request whose list of fields is over the limit (RFC 6585, section 5).
const TOO_LARGE_STATUS: &[u8] = b"431";

impl<C: DataChunk> Http2Connection<C> {
    /// A block was decoded; the tables are in step whatever is done with its fields.
    pub(super) fn block(
        &mut self,
        block: OpenBlock,
        decoded: DecodedBlock,
        now_ns: u64,
    ) -> Result<Option<CompletedHead>, ConnectionError> {
        if let Some(stream) = self.streams.get_mut(block.stream) {
            stream.active_ns = now_ns;
            let remote = stream.remote;
            return self.block_of_open_stream(block, decoded, remote, now_ns);
        }
        if self.is_idle(block.stream) {
            return self.first_block(block, decoded, now_ns);
        }
        self.late_block(block, now_ns).map(|()| None)
    }

    /// A block on a stream that ended (RFC 9113, section 5.1).
    fn late_block(&mut self, block: OpenBlock, now_ns: u64) -> Result<(), ConnectionError> {
        let ending = self.closed.ending(block.stream);
        if self.excuses_late(ending) {
            self.answer_late(block.stream, ending);
            return Ok(());
        }
        self.charge(FloodKind::Other, now_ns)?;
        match ending {
            StreamEnding::ResetByUs => Ok(()),
            StreamEnding::Ended => Err(ConnectionError::new(
                ErrorCode::STREAM_CLOSED,
                "HEADERS on a stream that both ends have ended",
            )),
            StreamEnding::Skipped => Err(ConnectionError::protocol(
                "a new stream has a lower number than one before it",
            )),
            StreamEnding::ResetByPeer | StreamEnding::Forgotten => {
                self.fault(block.stream, ErrorCode::STREAM_CLOSED, now_ns)
            }
        }
    }

    /// A stream is opened (RFC 9113, section 5.1.1).
    fn first_block(
        &mut self,
        block: OpenBlock,
        decoded: DecodedBlock,
        now_ns: u64,
    ) -> Result<Option<CompletedHead>, ConnectionError> {
        let id = block.stream;
        if self.role == EndpointRole::Client {
            return Err(ConnectionError::protocol("HEADERS on an idle stream"));
        }
        if !Self::is_stream_number(id) {
            return Err(ConnectionError::protocol("a client's stream has an even number"));
        }
        let expected = if self.highest_stream == 0 {
            1
        } else {
            self.highest_stream + 2
        };
        if id > expected {
            self.closed.skip(expected, id - 2);
        }
        self.highest_stream = id;
        if !self.takes_stream(id) {
            // After the last GOAWAY: nothing is done with it (section 6.8).
            self.closed.remember(id, StreamEnding::ResetByUs);
            return Ok(None);
        }
        if self.streams.len() >= self.config.streams_max as usize {
            return self.refuse(id, now_ns).map(|()| None);
        }
        if decoded == DecodedBlock::OverLimit {
            return self.refuse_large(block, now_ns).map(|()| None);
        }
        let facts = check_request(self.decoder.fields()).and_then(|facts| facts.checked_end(block.is_end));
        match facts {
            Ok(facts) => {
                self.accept(block, &facts, now_ns);
                Ok(Some(self.completed(block, HeadKind::Request)))
            }
            Err(_) => self.fault(id, ErrorCode::PROTOCOL_ERROR, now_ns).map(|()| None),
        }
    }

    fn accept(&mut self, block: OpenBlock, facts: &HeadFacts, now_ns: u64) {
        let mut stream = self.new_stream(block.stream, now_ns);
        stream.is_head_method = facts.is_head_method;
        stream.body_left = facts.content_length;
        stream.remote = if block.is_end {
            HalfState::Ended
        } else {
            HalfState::Body
        };
        self.streams.insert(block.stream, stream);
        self.floods.honest_frame(&self.config.floods);
    }

    pub(super) fn new_stream(&self, id: u32, now_ns: u64) -> Http2Stream<C> {
        let target = self.local.stream_window_bytes;
        Http2Stream::new(
            id,
            ReceiveWindow::new(target, target),
            SendWindow::new(self.peer.stream_window_bytes),
            now_ns,
        )
    }

    /// RFC 9113, section 5.1.2: more streams than this end allows. One that cannot know it yet is not to blame.
    fn refuse(&mut self, id: u32, now_ns: u64) -> Result<(), ConnectionError> {
        let knows_limit = self.local.streams_max != u32::MAX;
        if knows_limit {
            self.charge(FloodKind::ProvokedReset, now_ns)?;
        }
        self.reset_frame(id, ErrorCode::REFUSED_STREAM);
        self.closed.remember(id, StreamEnding::ResetByUs);
        Ok(())
    }

    /// A request whose list is over the limit: 431, and the rest of it is not read.
    fn refuse_large(&mut self, block: OpenBlock, now_ns: u64) -> Result<(), ConnectionError> {
        self.charge(FloodKind::ProvokedReset, now_ns)?;
        let mut fields = FieldList::new();
        fields.push(b":status", TOO_LARGE_STATUS);
        self.head_frames(block.stream, &fields, StreamEnd::Ends);
        if block.is_end {
            self.closed.remember(block.stream, StreamEnding::Ended);
        } else {
            self.reset_frame(block.stream, ErrorCode::NO_ERROR);
            self.closed.remember(block.stream, StreamEnding::ResetByUs);
        }
        Ok(())
    }

    /// A block on an open stream: a response or trailers.
    fn block_of_open_stream(
        &mut self,
        block: OpenBlock,
        decoded: DecodedBlock,
        remote: HalfState,
        now_ns: u64,
    ) -> Result<Option<CompletedHead>, ConnectionError> {
        let checked = match remote {
            HalfState::Ended => {
                return self
                    .fault(block.stream, ErrorCode::STREAM_CLOSED, now_ns)
                    .map(|()| None);
            }
            _ if decoded == DecodedBlock::OverLimit => {
                return self
                    .fault(block.stream, ErrorCode::ENHANCE_YOUR_CALM, now_ns)
                    .map(|()| None);
            }
            HalfState::Head => self.response(block),
            HalfState::Body => self.trailers(block),
        };
        match checked {
            Ok(kind) => {
                self.floods.honest_frame(&self.config.floods);
                let completed = self.completed(block, kind);
                self.close_if_ended(block.stream);
                Ok(Some(completed))
            }
            Err(_) => self
                .fault(block.stream, ErrorCode::PROTOCOL_ERROR, now_ns)
                .map(|()| None),
        }
    }

    fn response(&mut self, block: OpenBlock) -> Result<HeadKind, HeadFault> {
        let facts = check_response(self.decoder.fields())?;
        let stream = self.streams.get_mut(block.stream).ok_or(HeadFault::Sequence)?;
        if facts.status < 200 {
            // RFC 9113, section 8.1: an interim response ends nothing.
            return if block.is_end {
                Err(HeadFault::Sequence)
            } else {
                Ok(HeadKind::Interim)
            };
        }
        let has_body = !stream.is_head_method && facts.status != 304;
        if has_body {
            stream.body_left = facts.checked_end(block.is_end)?.content_length;
        }
        stream.remote = if block.is_end {
            HalfState::Ended
        } else {
            HalfState::Body
        };
        Ok(HeadKind::Response)
    }

    /// RFC 9113, section 8.1: trailers end their stream; and with them the body is complete.
    fn trailers(&mut self, block: OpenBlock) -> Result<HeadKind, HeadFault> {
        check_trailers(self.decoder.fields())?;
        let stream = self.streams.get_mut(block.stream).ok_or(HeadFault::Sequence)?;
        if !block.is_end {
            return Err(HeadFault::Sequence);
        }
        if stream.body_left.is_some_and(|left| left > 0) {
            return Err(HeadFault::BodyLength);
        }
        stream.remote = HalfState::Ended;
        Ok(HeadKind::Trailers)
    }

    fn completed(&self, block: OpenBlock, kind: HeadKind) -> CompletedHead {
        CompletedHead {
            stream: block.stream,
            kind,
            end: StreamEnd::of(block.is_end),
        }
    }

    /// The last stream that this end has taken or may have taken.
    pub(super) fn last_taken(&self) -> u32 {
        match (self.role, self.drain) {
            (EndpointRole::Client, _) => 0,
            (EndpointRole::Server, DrainState::Final { last_stream }) => last_stream,
            (EndpointRole::Server, _) => self.highest_stream,
        }
    }
}

impl HeadFacts {
    /// A message that ends with its head has no body, so none may be announced (RFC 9113, section 8.1.1).
    fn checked_end(self, is_end: bool) -> Result<HeadFacts, HeadFault> {
        if is_end && self.content_length.is_some_and(|length| length > 0) {
            return Err(HeadFault::BodyLength);
        }
        Ok(self)
    }
}
