//! What happens because time passes.

use super::{DrainState, Http2Connection, KEEPALIVE_PING};
use crate::config::{KeepalivePolicy, OUTPUT_BYTES_MAX};
use crate::error::{ConnectionError, ErrorCode};
use crate::frame::FrameKind;
use crate::output::DataChunk;

/// What is judged so much too late is judged anew: this process stood still, and looked at nothing that the peer has done meanwhile.
const LATE_NS: u64 = 1_000_000_000;
/// Streams are looked at so often within the shortest time that one may rest.
const STREAM_CHECKS: u64 = 4;

impl<C: DataChunk> Http2Connection<C> {
    /// When [`Http2Connection::on_time`] has to be called next, if nothing comes before.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        if self.failed.is_some() {
            return None;
        }
        [
            self.settings_deadline(),
            self.block_deadline(),
            self.output_deadline(),
            self.keepalive_deadline(),
            self.drain_deadline(),
            self.streams_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Does what is due at this time.
    ///
    /// # Errors
    /// The peer did not do in time what it must: the connection is over.
    pub fn on_time(&mut self, now_ns: u64) -> Result<(), ConnectionError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        match self.overdue(now_ns) {
            Some((due_ns, error)) if now_ns.saturating_sub(due_ns) < LATE_NS => {
                self.fail(error, now_ns);
                return Err(error);
            }
            Some(_) => self.wait_anew(now_ns),
            None => {}
        }
        let is_due = |deadline: Option<u64>| deadline.is_some_and(|deadline| deadline <= now_ns);
        self.begin_output(now_ns);
        if self.keepalive.pinged_ns.is_none() && is_due(self.keepalive_deadline()) {
            self.keepalive.pinged_ns = Some(now_ns);
            self.output
                .frame(FrameKind::Ping, 0, 0, &KEEPALIVE_PING.to_be_bytes());
        }
        if is_due(self.drain_deadline()) {
            self.drain_finally();
        }
        if is_due(self.streams_deadline()) {
            self.check_streams(now_ns);
            self.streams_check_ns = now_ns.saturating_add(self.stream_limit_ns() / STREAM_CHECKS);
        }
        Ok(())
    }

    /// Pings a silent peer by this policy from now on, or no more: some servers take pings only while streams are open. Its silence
    /// counts from `since_ns`. A ping that it has not answered stays one.
    pub fn set_keepalive(&mut self, policy: Option<KeepalivePolicy>, since_ns: u64) {
        self.config.keepalive = policy;
        self.keepalive.heard_ns = since_ns;
    }

    /// This end takes nothing of what the peer says now, for reasons of its own: the peer's silence, and what it takes to answer a
    /// ping, count from now on.
    pub fn note_unread(&mut self, now_ns: u64) {
        self.keepalive.heard_ns = now_ns;
    }

    /// What the peer has not done in time, and when it was due.
    fn overdue(&self, now_ns: u64) -> Option<(u64, ConnectionError)> {
        let calm = ConnectionError::calm;
        let silent = |reason| ConnectionError::new(ErrorCode::NO_ERROR, reason);
        let unsettled = |reason| ConnectionError::new(ErrorCode::SETTINGS_TIMEOUT, reason);
        let answer_deadline = self.keepalive.pinged_ns.and_then(|_| self.keepalive_deadline());
        [
            (
                self.settings_deadline(),
                unsettled("the peer does not acknowledge SETTINGS"),
            ),
            (self.block_deadline(), calm("a field block does not end")),
            (self.output_deadline(), calm("the peer does not read")),
            (answer_deadline, silent("the peer does not answer PING")),
        ]
        .into_iter()
        .find_map(|(due_ns, error)| Some((due_ns.filter(|due_ns| *due_ns <= now_ns)?, error)))
    }

    /// What the peer must do counts from now on.
    fn wait_anew(&mut self, now_ns: u64) {
        self.began_ns = now_ns;
        for (_, sent_ns) in &mut self.unacknowledged {
            *sent_ns = now_ns;
        }
        if let Some(block) = &mut self.open_block {
            block.since_ns = now_ns;
        }
        self.output_ns = now_ns;
        self.keepalive.heard_ns = now_ns;
    }

    fn settings_deadline(&self) -> Option<u64> {
        let limit_ns = self.config.time_limits.settings_ns;
        if !self.has_peer_settings {
            return Some(self.began_ns.saturating_add(limit_ns));
        }
        let sent = self.unacknowledged.front();
        sent.map(|(_, sent_ns)| sent_ns.saturating_add(limit_ns))
    }

    fn block_deadline(&self) -> Option<u64> {
        let limit_ns = self.config.time_limits.field_block_ns;
        self.open_block
            .map(|block| block.since_ns.saturating_add(limit_ns))
    }

    fn output_deadline(&self) -> Option<u64> {
        let waits = self.output.bytes() > 0;
        waits.then(|| self.output_ns.saturating_add(self.config.time_limits.output_ns))
    }

    fn keepalive_deadline(&self) -> Option<u64> {
        let policy = self.config.keepalive?;
        let heard_ns = self.keepalive.heard_ns;
        Some(match self.keepalive.pinged_ns {
            // Anything that the peer says shows that it lives.
            Some(pinged_ns) => pinged_ns.max(heard_ns).saturating_add(policy.timeout_ns),
            None if self.output.bytes() >= OUTPUT_BYTES_MAX => return None,
            None => heard_ns.saturating_add(policy.interval_ns),
        })
    }

    fn drain_deadline(&self) -> Option<u64> {
        match self.drain {
            DrainState::Announced { since_ns } => {
                Some(since_ns.saturating_add(self.config.time_limits.drain_ns))
            }
            DrainState::No | DrainState::Final { .. } => None,
        }
    }

    fn streams_deadline(&self) -> Option<u64> {
        let limit_ns = self.stream_limit_ns();
        (!self.streams.is_empty() && limit_ns > 0).then_some(self.streams_check_ns)
    }

    /// The shortest time that a stream may rest; 0 if all may for ever.
    fn stream_limit_ns(&self) -> u64 {
        let time_limits = self.config.time_limits;
        let limits = [time_limits.half_closed_ns, time_limits.stream_idle_ns];
        limits.into_iter().filter(|limit| *limit > 0).min().unwrap_or(0)
    }
}
