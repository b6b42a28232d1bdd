//! How streams and connections end.

use super::{DRAIN_PING, DrainState, Http2Connection, PendingEvent, ResetCause};
use crate::config::EndpointRole;
use crate::error::{ConnectionError, ErrorCode, SendError};
use crate::floods::FloodKind;
use crate::frame::{FrameKind, NUMBER_MAX};
use crate::output::DataChunk;
use crate::streams::{HalfState, StreamEnding};

impl<C: DataChunk> Http2Connection<C> {
    /// Ends a stream before its time (RFC 9113, section 6.4). What waits in its queue is dropped.
    ///
    /// # Errors
    /// There is no such stream.
    pub fn reset(&mut self, id: u32, code: ErrorCode, now_ns: u64) -> Result<(), SendError> {
        if self.streams.get(id).is_none() {
            return Err(SendError::NoStream);
        }
        self.begin_output(now_ns);
        self.reset_frame(id, code);
        self.forget(id, StreamEnding::ResetByUs);
        Ok(())
    }

    /// Ends the connection in good order: open streams go on. A server first tells that it will end, and takes what comes until
    /// the client knows; a client opens no more.
    pub fn drain(&mut self, now_ns: u64) {
        if self.drain != DrainState::No || self.failed.is_some() {
            return;
        }
        self.begin_output(now_ns);
        if self.role == EndpointRole::Client {
            self.drain = DrainState::Final { last_stream: 0 };
            self.goaway_frame(0, ErrorCode::NO_ERROR, "");
            return;
        }
        self.drain = DrainState::Announced { since_ns: now_ns };
        self.goaway_frame(NUMBER_MAX, ErrorCode::NO_ERROR, "");
        self.output
            .frame(FrameKind::Ping, 0, 0, &DRAIN_PING.to_be_bytes());
    }

    /// The client knows: streams above the highest one are not taken.
    pub(super) fn drain_finally(&mut self) {
        if !matches!(self.drain, DrainState::Announced { .. }) {
            return;
        }
        let last_stream = self.highest_stream;
        self.drain = DrainState::Final { last_stream };
        self.goaway_frame(last_stream, ErrorCode::NO_ERROR, "");
    }

    /// Ends the connection at once, with this code. All streams are gone.
    pub fn close(&mut self, code: ErrorCode, now_ns: u64) {
        self.fail(ConnectionError::new(code, "closed by this end"), now_ns);
    }

    /// RFC 9113, section 5.4.1: GOAWAY, then the end.
    pub(super) fn fail(&mut self, error: ConnectionError, now_ns: u64) {
        if self.failed.is_some() {
            return;
        }
        self.begin_output(now_ns);
        self.goaway_frame(self.last_taken(), error.code, error.reason);
        self.failed = Some(error);
    }

    /// What ended the connection, if it did not end in good order.
    #[must_use]
    pub fn failure(&self) -> Option<ConnectionError> {
        self.failed
    }

    fn goaway_frame(&mut self, last_stream: u32, code: ErrorCode, reason: &str) {
        let mut payload = Vec::with_capacity(8 + reason.len());
        payload.extend_from_slice(&last_stream.to_be_bytes());
        payload.extend_from_slice(&code.0.to_be_bytes());
        payload.extend_from_slice(reason.as_bytes());
        self.output.frame(FrameKind::GoAway, 0, 0, &payload);
    }

    pub(super) fn reset_frame(&mut self, id: u32, code: ErrorCode) {
        self.output
            .frame(FrameKind::ResetStream, 0, id, &code.0.to_be_bytes());
    }

    /// The peer broke a rule of one stream (RFC 9113, section 5.4.2). A stream that is idle cannot be reset, so the connection
    /// ends then.
    pub(super) fn fault(&mut self, id: u32, code: ErrorCode, now_ns: u64) -> Result<(), ConnectionError> {
        if self.is_idle(id) {
            return Err(ConnectionError::new(
                code,
                "a frame of an idle stream breaks a rule",
            ));
        }
        self.charge(FloodKind::ProvokedReset, now_ns)?;
        self.reset_for(id, code);
        Ok(())
    }

    /// Whether frames on a stream that ended so are no fault of the peer. A client that resets its streams brings them about:
    /// its server has sent them before it knows.
    pub(super) fn excuses_late(&self, ending: StreamEnding) -> bool {
        let was_reset = matches!(
            ending,
            StreamEnding::ResetByUs | StreamEnding::ResetByPeer | StreamEnding::Forgotten
        );
        was_reset && self.role == EndpointRole::Client
    }

    /// What a client answers to such frames: nothing, but after the peer's own RST_STREAM that the stream is closed (RFC 9113,
    /// section 5.1).
    pub(super) fn answer_late(&mut self, id: u32, ending: StreamEnding) {
        if ending == StreamEnding::ResetByPeer {
            self.reset_for(id, ErrorCode::STREAM_CLOSED);
        }
    }

    /// Resets a stream, and tells the application if it knew the stream.
    pub(super) fn reset_for(&mut self, id: u32, code: ErrorCode) {
        self.reset_frame(id, code);
        if self.streams.get(id).is_none() {
            self.closed.remember(id, StreamEnding::ResetByUs);
            return;
        }
        self.forget(id, StreamEnding::ResetByUs);
        self.events.push_back(PendingEvent::Reset {
            stream: id,
            code,
            cause: ResetCause::Fault,
        });
    }

    /// Takes a stream out, with what waits in its queue.
    pub(super) fn forget(&mut self, id: u32, ending: StreamEnding) {
        let Some(stream) = self.streams.remove(id) else {
            return;
        };
        if stream.is_scheduled {
            self.round.retain(|scheduled| *scheduled != id);
        }
        if stream.is_update_queued {
            self.updates.retain(|queued| *queued != id);
        }
        self.closed.remember(id, ending);
    }

    /// A stream that both ends have ended is closed.
    pub(super) fn close_if_ended(&mut self, id: u32) {
        if self.streams.get(id).is_some_and(|stream| stream.is_closed()) {
            self.forget(id, StreamEnding::Ended);
            self.floods.honest_stream(&self.config.floods);
        }
    }

    /// Streams that rest longer than they may.
    pub(super) fn check_streams(&mut self, now_ns: u64) {
        let time_limits = self.config.time_limits;
        let is_server = self.role == EndpointRole::Server;
        let overdue =
            |active_ns: u64, limit_ns: u64| limit_ns > 0 && now_ns.saturating_sub(active_ns) >= limit_ns;
        let resting: Vec<(u32, ErrorCode)> = self
            .streams
            .values()
            .filter_map(|stream| {
                let is_answered = is_server && stream.local == HalfState::Ended;
                if is_answered && overdue(stream.active_ns, time_limits.half_closed_ns) {
                    // RFC 9113, section 8.1: the response is complete, the rest of the request is not needed.
                    return Some((stream.id, ErrorCode::NO_ERROR));
                }
                overdue(stream.active_ns, time_limits.stream_idle_ns)
                    .then_some((stream.id, ErrorCode::CANCEL))
            })
            .collect();
        resting
            .into_iter()
            .for_each(|(id, code)| self.reset_for(id, code));
    }
}
