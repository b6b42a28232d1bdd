//! The endpoint's time: the time that it is told, less the time in which nobody polled it.
//!
//! A process that the scheduler took off its core for milliseconds comes back to timers that have all expired and to
//! packets that arrived long ago. Neither says anything about the network. So time stands still in such a gap, and
//! what arrives right after it is not used to measure.

/// Between two absences that only packets told of, in lengths of the shortest stall.
const ABSENCES_APART_STALLS: u64 = 5;

/// Time as the protocol sees it, in nanoseconds.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The latest time told.
    told_ns: u64,
    /// The same, in the protocol's time.
    now_ns: u64,
    /// How much of it was taken out.
    forgiven_ns: u64,
    /// A time told that is later than this ends a stall: so long after the latest time told, or after the time before which nobody
    /// need poll, because nothing would be due.
    polled_until_ns: u64,
    /// A gap longer than this is a stall.
    stall_ns: u64,
    /// What is received now arrived no earlier, in the protocol's time.
    arrived_ns: u64,
    /// When the last stall ended, in the protocol's time.
    stalled_at_ns: u64,
    stalls: u64,
}

impl Clock {
    pub(crate) fn new(stall_ns: u64) -> Self {
        Self {
            told_ns: 0,
            now_ns: 0,
            forgiven_ns: 0,
            polled_until_ns: u64::MAX,
            stall_ns,
            arrived_ns: 0,
            stalled_at_ns: 0,
            stalls: 0,
        }
    }

    /// The protocol's time at this moment.
    #[inline]
    pub(crate) fn advance(&mut self, now_ns: u64) -> u64 {
        if now_ns > self.told_ns {
            if now_ns > self.polled_until_ns {
                self.stall(now_ns);
            }
            self.told_ns = now_ns;
            self.now_ns = now_ns - self.forgiven_ns;
            self.polled_until_ns = now_ns + self.stall_ns;
        }
        self.now_ns
    }

    /// Packets are taken from the wire at this moment; at `since_ns` nothing waited there. So a packet may have waited as long
    /// as this, which says nothing about the network. A longer gap than a stall is no gap between polls: the host slept until
    /// a packet came.
    #[inline]
    pub(crate) fn arrive(&mut self, now_ns: u64, since_ns: u64) {
        let gap_ns = now_ns.saturating_sub(since_ns).min(self.stall_ns);
        self.arrived_ns = self.advance(now_ns).saturating_sub(gap_ns);
    }

    /// The earliest time at which what is received now can have arrived.
    #[inline]
    pub(crate) fn arrived_ns(&self) -> u64 {
        self.arrived_ns
    }

    /// The latest time that was told.
    #[inline]
    pub(crate) fn told_ns(&self) -> u64 {
        self.told_ns
    }

    #[cold]
    fn stall(&mut self, now_ns: u64) {
        // At least one stall's length passes, so that a host that is always late still gets to its timers. What it slept
        // by promise passes too: else a host that wakes late from each sleep would wait for a dead peer for ever.
        let gap_ns = now_ns - (self.polled_until_ns - self.stall_ns);
        self.forgiven_ns += gap_ns - self.stall_ns;
        self.stalled_at_ns = now_ns - self.forgiven_ns;
        self.stalls += 1;
    }

    /// Notes that this end was kept from polling though it cannot tell by the time, for it was to sleep until a packet came:
    /// it got at one time what its peer had sent at two. Where it is the network that doubles packets, that must not hide
    /// all round trips, so it counts only now and then.
    #[cold]
    pub(crate) fn note_absence(&mut self) {
        let now_ns = self.now_ns();
        if self.stalls == 0 || now_ns - self.stalled_at_ns > ABSENCES_APART_STALLS * self.stall_ns {
            self.stalled_at_ns = now_ns;
            self.stalls += 1;
        }
    }

    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Whether there was a stall since the beginning.
    #[inline(always)]
    pub(crate) fn has_stalled(&self) -> bool {
        self.stalls > 0
    }

    /// Notes that the host may sleep until then, and says when that is in the host's time.
    pub(crate) fn promise(&mut self, at_ns: Option<u64>) -> Option<u64> {
        let host_ns = at_ns.map(|at_ns| at_ns.saturating_add(self.forgiven_ns));
        let promised_ns = host_ns.unwrap_or(u64::MAX).max(self.told_ns);
        self.polled_until_ns = promised_ns.saturating_add(self.stall_ns);
        host_ns
    }

    /// Whether what arrives now may have waited for us rather than travelled.
    #[inline]
    pub(crate) fn is_catching_up(&self) -> bool {
        self.stalls > 0 && self.now_ns() - self.stalled_at_ns <= self.stall_ns / 2
    }

    /// Whether a stall lies between then and now.
    #[inline]
    pub(crate) fn stalled_since(&self, then_ns: u64) -> bool {
        self.stalls > 0 && self.stalled_at_ns >= then_ns
    }

    pub(crate) fn stalls(&self) -> u64 {
        self.stalls
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_nobody_polled_in_is_forgiven_but_for_one_stall() {
        let mut clock = Clock::new(100);
        clock.advance(1_000);
        assert_eq!(clock.advance(1_100), 1_100);
        assert_eq!(clock.advance(9_100), 1_200);
        assert!(clock.is_catching_up() && clock.stalled_since(1_100));
        assert_eq!(clock.advance(9_160), 1_260);
        assert!(!clock.is_catching_up());
    }

    #[test]
    fn what_is_received_may_have_waited_since_nothing_did_but_no_longer_than_a_stall() {
        let mut clock = Clock::new(100);
        clock.arrive(1_000, 1_000);
        assert_eq!(clock.arrived_ns(), 1_000);
        clock.arrive(1_060, 1_000);
        assert_eq!((clock.arrived_ns(), clock.now_ns()), (1_000, 1_060));
        clock.promise(None);
        clock.arrive(9_000, 1_060);
        assert_eq!((clock.arrived_ns(), clock.now_ns()), (8_900, 9_000));
    }

    #[test]
    fn sleep_until_what_was_promised_is_no_stall() {
        let mut clock = Clock::new(100);
        clock.advance(1_000);
        assert_eq!(clock.promise(Some(5_000)), Some(5_000));
        assert_eq!(clock.advance(5_050), 5_050);
        assert_eq!(clock.promise(None), None);
        assert_eq!(clock.advance(1_000_000), 1_000_000);
        assert_eq!(clock.promise(Some(1_000_500)), Some(1_000_500));
        assert_eq!(clock.advance(1_003_000), 1_000_600);
        assert_eq!(clock.promise(Some(1_000_900)), Some(1_003_300));
    }

    #[test]
    fn a_host_that_wakes_late_from_each_sleep_still_sees_what_it_slept_pass() {
        let mut clock = Clock::new(100);
        let mut now_ns = 1_000;
        clock.advance(now_ns);
        for sleep in 1..=10 {
            clock.promise(Some(clock.now_ns() + 5_000));
            now_ns += 5_000 + 300;
            assert_eq!(clock.advance(now_ns), 1_000 + sleep * 5_100);
        }
        assert_eq!(clock.stalls(), 10);
    }
}
