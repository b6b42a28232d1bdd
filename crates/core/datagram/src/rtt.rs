//! Round-trip times and the retransmission time-out made of them (RFC 6298).

/// How often the time-out doubles at most.
const BACK_OFF_MAX: u8 = 10;

/// The least time-out is far above round trips that would make one of this part of it; so long is also the pause between two
/// that are measured then.
const FAR_ABOVE: u64 = 16;

/// What is known of a session's round trips.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundTrips {
    smoothed_ns: u64,
    variation_ns: u64,
    timeout_ns: u64,
    /// How often it is doubled, as what was sent has timed out since a round trip was measured.
    backed_off: u8,
    timeout_ns_min: u64,
    timeout_ns_max: u64,
    /// When the next one is worth measuring.
    next_sample_ns: u64,
}

impl RoundTrips {
    pub(crate) fn new(initial_ns: u64, timeout_ns_min: u64, timeout_ns_max: u64) -> Self {
        Self {
            smoothed_ns: 0,
            variation_ns: 0,
            timeout_ns: initial_ns.min(timeout_ns_max),
            backed_off: 0,
            timeout_ns_min,
            timeout_ns_max,
            next_sample_ns: 0,
        }
    }

    /// Whether one was measured just now: of the packets of a batch, one tells as much as all; and where the time-out is the least
    /// that there can be and far above all round trips, one now and then does.
    #[inline(always)]
    pub(crate) fn is_sampled(&self, now_ns: u64) -> bool {
        now_ns < self.next_sample_ns
    }

    #[inline]
    pub(crate) fn sample(&mut self, now_ns: u64, rtt_ns: u64) {
        if self.smoothed_ns == 0 {
            self.smoothed_ns = rtt_ns.max(1);
            self.variation_ns = rtt_ns / 2;
        } else {
            let error_ns = self.smoothed_ns.abs_diff(rtt_ns);
            self.variation_ns = self.variation_ns - self.variation_ns / 4 + error_ns / 4;
            self.smoothed_ns = (self.smoothed_ns - self.smoothed_ns / 8 + rtt_ns / 8).max(1);
        }
        let timeout_ns = self.smoothed_ns + 4 * self.variation_ns;
        self.timeout_ns = timeout_ns.clamp(self.timeout_ns_min, self.timeout_ns_max);
        self.backed_off = 0;
        let is_far_above = timeout_ns.max(rtt_ns) * FAR_ABOVE <= self.timeout_ns_min;
        let pause_ns = if is_far_above {
            self.timeout_ns_min / FAR_ABOVE
        } else {
            1
        };
        self.next_sample_ns = now_ns + pause_ns;
    }

    /// Something has timed out, so often in a row. What is sent again measures nothing, so round trips that have become longer than the
    /// time-out would never be measured if what is sent next had the old one (RFC 6298 section 5, Karn's algorithm).
    #[inline]
    pub(crate) fn back_off(&mut self, in_a_row: u8) {
        self.backed_off = self.backed_off.max(in_a_row.min(BACK_OFF_MAX));
        self.next_sample_ns = 0;
    }

    /// The smoothed round trip, zero before the first.
    #[inline]
    pub(crate) fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns
    }

    /// The time-out of what was sent for the first time.
    #[inline(always)]
    pub(crate) fn first_timeout_ns(&self) -> u64 {
        self.timeout_ns(0)
    }

    /// The time-out after so many in a row.
    #[inline(always)]
    pub(crate) fn timeout_ns(&self, in_a_row: u8) -> u64 {
        let doubled = in_a_row.min(BACK_OFF_MAX).max(self.backed_off);
        (self.timeout_ns << doubled).min(self.timeout_ns_max)
    }

    /// The longest time-out.
    #[inline]
    pub(crate) fn timeout_ns_max(&self) -> u64 {
        self.timeout_ns_max
    }

    /// How long a packet may stay behind one sent later before it counts as lost: a quarter of a round trip, as in
    /// RACK (RFC 8985 section 6.2), but no less than the jitter of a host.
    #[inline]
    pub(crate) fn reordering_ns(&self, reordering_ns_min: u64) -> u64 {
        (self.smoothed_ns / 4).max(reordering_ns_min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_out_follows_the_round_trips_within_its_bounds() {
        let mut trips = RoundTrips::new(5_000, 100, 1_000_000);
        assert_eq!(trips.timeout_ns(0), 5_000);
        assert_eq!(trips.first_timeout_ns(), 5_000);
        assert_eq!(RoundTrips::new(5_000, 100, 4_000).first_timeout_ns(), 4_000);
        for _ in 0..200 {
            trips.sample(1, 1_000);
        }
        assert!((900..1_200).contains(&trips.timeout_ns(0)), "{trips:?}");
        let steady_ns = trips.timeout_ns(0);
        trips.sample(2, 9_000);
        assert!(trips.timeout_ns(0) > 4 * steady_ns);
        assert_eq!(trips.timeout_ns(1), 2 * trips.timeout_ns(0));
        assert_eq!(trips.timeout_ns(200), 1_000_000);
    }

    #[test]
    fn round_trips_that_have_become_longer_than_the_time_out_are_measured() {
        let mut trips = RoundTrips::new(5_000, 100, 1_000_000);
        trips.sample(0, 100);
        let before_ns = trips.first_timeout_ns();
        for in_a_row in 1..=4 {
            trips.back_off(in_a_row);
        }
        assert_eq!(
            trips.first_timeout_ns(),
            before_ns << 4,
            "what is sent next has time to arrive"
        );
        assert_eq!(trips.timeout_ns(2), before_ns << 4, "doubled once for each");
        trips.back_off(1);
        assert_eq!(trips.first_timeout_ns(), before_ns << 4);
        assert!(!trips.is_sampled(0), "the next one counts");
        trips.sample(1, 3_000);
        assert!((3_000..4_000).contains(&trips.first_timeout_ns()), "{trips:?}");
        assert_eq!(trips.timeout_ns(1), 2 * trips.first_timeout_ns());
    }
}
