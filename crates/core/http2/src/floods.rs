//! Frames that cost this end work and bring the peer no further. Each kind has a bucket that empties with time and with
//! honest frames; a peer whose bucket runs over loses the connection with ENHANCE_YOUR_CALM.
//!
//! | kind | what it stops |
//! |---|---|
//! | `ping`, `settings` | floods of frames that must be answered (CVE-2019-9512, CVE-2019-9515) |
//! | `reset` | rapid reset (CVE-2023-44487): streams that are opened and taken back, but for those that have rested for [`RAPID_RESET_NS`] |
//! | `provoked_reset` | MadeYouReset (CVE-2025-8671): streams that this end is made to reset, by windows that overflow or do not grow, lengths, lists over the limit, wrong states |
//! | `empty` | DATA, HEADERS and CONTINUATION that carry nothing (CVE-2019-9518) |
//! | `window` | windows that open by tiny steps |
//! | `other` | PRIORITY, unknown types, frames on streams that ended (CVE-2019-9513) |
//!
//! A client does not count frames on streams that were reset: it is its own resets that make them late.
//!
//! CONTINUATION floods (CVE-2024-27316 and others) end at
//! [`CONTINUATION_FRAMES_MAX`](crate::config::CONTINUATION_FRAMES_MAX) and at the bound of a block's bytes.

use crate::error::ConnectionError;

/// Pings: programs that measure a path's bandwidth send one with each flight of data.
pub const PING_LIMIT: FloodLimit = FloodLimit::new(1_000, 100, 1);
/// SETTINGS: an honest peer sends a few in a connection's life.
pub const SETTINGS_LIMIT: FloodLimit = FloodLimit::new(100, 2, 0);
/// Streams that the peer takes back. One that ends as it should pays for one that does not.
pub const RESET_LIMIT: FloodLimit = FloodLimit::new(1_000, 200, 1);
/// A stream that nothing came or went on for so long before it was taken back was not opened to be taken back: a client whose calls
/// are not answered gives them up when their deadlines pass. As many as may be open can be so in such a time. (Envoy tells premature
/// resets from others by the same time.)
pub const RAPID_RESET_NS: u64 = SECOND_NS;
/// Streams that this end has to reset for the peer's faults.
pub const PROVOKED_RESET_LIMIT: FloodLimit = FloodLimit::new(100, 10, 0);
/// Frames that carry nothing.
pub const EMPTY_LIMIT: FloodLimit = FloodLimit::new(200, 20, 1);
/// WINDOW_UPDATE: some readers send one for each kilobyte of a frame, on both levels.
pub const WINDOW_LIMIT: FloodLimit = FloodLimit::new(10_000, 1_000, 32);
/// Frames that are read over.
pub const OTHER_LIMIT: FloodLimit = FloodLimit::new(1_000, 100, 1);

const SECOND_NS: u64 = 1_000_000_000;

/// How much of one kind a peer may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloodLimit {
    /// So many at once.
    pub burst: u32,
    /// So many more each second.
    pub per_second: u32,
    /// So many more for each honest frame, or honest stream where streams are counted.
    pub per_honest: u32,
}

impl FloodLimit {
    /// A limit of these numbers.
    #[must_use]
    pub const fn new(burst: u32, per_second: u32, per_honest: u32) -> FloodLimit {
        FloodLimit {
            burst,
            per_second,
            per_honest,
        }
    }
}

/// The limits of all kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloodLimits {
    pub ping: FloodLimit,
    pub settings: FloodLimit,
    pub reset: FloodLimit,
    pub provoked_reset: FloodLimit,
    pub empty: FloodLimit,
    pub window: FloodLimit,
    pub other: FloodLimit,
}

impl Default for FloodLimits {
    fn default() -> FloodLimits {
        FloodLimits {
            ping: PING_LIMIT,
            settings: SETTINGS_LIMIT,
            reset: RESET_LIMIT,
            provoked_reset: PROVOKED_RESET_LIMIT,
            empty: EMPTY_LIMIT,
            window: WINDOW_LIMIT,
            other: OTHER_LIMIT,
        }
    }
}

/// A kind of frames or streams that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FloodKind {
    Ping,
    Settings,
    Reset,
    ProvokedReset,
    Empty,
    Window,
    Other,
}

pub(crate) const FLOOD_KINDS: usize = 7;

impl FloodKind {
    fn reason(self) -> &'static str {
        match self {
            FloodKind::Ping => "too many PINGs",
            FloodKind::Settings => "too many SETTINGS",
            FloodKind::Reset => "too many streams were opened and reset",
            FloodKind::ProvokedReset => "too many streams had to be reset",
            FloodKind::Empty => "too many frames that carry nothing",
            FloodKind::Window => "too many WINDOW_UPDATEs",
            FloodKind::Other => "too many frames that are of no use",
        }
    }

    fn limit(self, limits: &FloodLimits) -> FloodLimit {
        match self {
            FloodKind::Ping => limits.ping,
            FloodKind::Settings => limits.settings,
            FloodKind::Reset => limits.reset,
            FloodKind::ProvokedReset => limits.provoked_reset,
            FloodKind::Empty => limits.empty,
            FloodKind::Window => limits.window,
            FloodKind::Other => limits.other,
        }
    }
}

/// What of one kind has come and is not forgiven yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FloodBucket {
    pub(crate) count: u32,
    /// Time up to which it was emptied.
    pub(crate) since_ns: u64,
}

/// The buckets of a connection, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FloodGuard {
    pub(crate) buckets: [FloodBucket; FLOOD_KINDS],
}

impl FloodGuard {
    /// Counts one frame, or one stream, of a kind.
    pub(crate) fn charge(
        &mut self,
        kind: FloodKind,
        limits: &FloodLimits,
        now_ns: u64,
    ) -> Result<(), ConnectionError> {
        let (bucket, limit) = (&mut self.buckets[kind as usize], kind.limit(limits));
        bucket.empty(limit.per_second, now_ns);
        bucket.count = bucket.count.saturating_add(1);
        if bucket.count > limit.burst {
            return Err(ConnectionError::calm(kind.reason()));
        }
        Ok(())
    }

    /// A frame that carries something came or went.
    pub(crate) fn honest_frame(&mut self, limits: &FloodLimits) {
        for kind in [
            FloodKind::Ping,
            FloodKind::Empty,
            FloodKind::Window,
            FloodKind::Other,
        ] {
            self.forgive(kind, limits);
        }
    }

    /// A stream ended as it should.
    pub(crate) fn honest_stream(&mut self, limits: &FloodLimits) {
        self.forgive(FloodKind::Reset, limits);
    }

    fn forgive(&mut self, kind: FloodKind, limits: &FloodLimits) {
        let bucket = &mut self.buckets[kind as usize];
        bucket.count = bucket.count.saturating_sub(kind.limit(limits).per_honest);
    }
}

impl FloodBucket {
    fn empty(&mut self, per_second: u32, now_ns: u64) {
        if self.count == 0 || per_second == 0 {
            self.since_ns = now_ns;
            return;
        }
        let each_ns = SECOND_NS / u64::from(per_second);
        let forgiven = now_ns.saturating_sub(self.since_ns) / each_ns.max(1);
        self.since_ns = self.since_ns.saturating_add(forgiven.saturating_mul(each_ns));
        self.count = self
            .count
            .saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_runs_over_and_empties_with_time() {
        let (mut guard, limits) = (FloodGuard::default(), FloodLimits::default());
        let burst = limits.provoked_reset.burst;
        for _ in 0..burst {
            guard.charge(FloodKind::ProvokedReset, &limits, 0).unwrap();
        }
        let full = guard.clone();
        guard.charge(FloodKind::ProvokedReset, &limits, 0).unwrap_err();
        let mut guard = full;
        for _ in 0..limits.provoked_reset.per_second {
            guard
                .charge(FloodKind::ProvokedReset, &limits, SECOND_NS)
                .unwrap();
        }
        guard
            .charge(FloodKind::ProvokedReset, &limits, SECOND_NS)
            .unwrap_err();
    }

    #[test]
    fn honest_frames_forgive_pings() {
        let (mut guard, limits) = (FloodGuard::default(), FloodLimits::default());
        for _ in 0..limits.ping.burst * 3 {
            guard.charge(FloodKind::Ping, &limits, 0).unwrap();
            guard.honest_frame(&limits);
        }
    }
}
