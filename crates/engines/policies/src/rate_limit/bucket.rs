//! A token bucket in one word: the generic cell rate algorithm (ITU-T I.371, as ATM networks police their cells).
//!
//! The word is the *theoretical arrival time* of the next call, were all to come at the rate and none faster. A call
//! moves it on by one interval. A bucket of `burst` tokens lets it run ahead of the clock by `burst` intervals; how far
//! it is ahead is what is missing in the bucket. One that is not ahead of the clock is full, whatever its word is, so a
//! bucket is filled by nobody and a word that was never used is a full bucket.

use crate::rate_limit::atomic::{AtomicU64, Ordering};

/// Times in this module, in sixteenths of a nanosecond on the runtimes' clock: fine enough for a thousand million calls
/// a second, and 36 years long.
pub(crate) type Ticks = u64;

const TICKS_PER_NANO: u64 = 16;
/// Ticks in a second.
pub(crate) const TICKS_PER_SECOND: u64 = 1_000_000_000 * TICKS_PER_NANO;

/// A time of a runtime's clock in ticks.
pub(crate) const fn ticks(nanos: u64) -> Ticks {
    nanos.saturating_mul(TICKS_PER_NANO)
}

/// The first nanosecond that is not before a time.
pub(crate) const fn nanos(ticks: Ticks) -> u64 {
    ticks.div_ceil(TICKS_PER_NANO)
}

/// The shape of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketShape {
    /// Ticks in which one token comes in.
    pub(crate) interval: Ticks,
    /// Ticks in which an empty bucket becomes full.
    pub(crate) capacity: Ticks,
}

/// What a bucket says of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChargeAnswer {
    /// It was charged, and may begin at this time, which is not before `now`.
    At(Ticks),
    /// It was not charged: its turn would be at this time, which is too late.
    Over(Ticks),
}

impl BucketShape {
    /// Takes one token, in advance if it is there before `latest` (which is `now` for a call that does not wait).
    pub(crate) fn charge(&self, bucket: &AtomicU64, now: Ticks, latest: Ticks) -> ChargeAnswer {
        let mut time = bucket.load(Ordering::Relaxed);
        loop {
            let next = time.max(now).saturating_add(self.interval);
            let turn = next.saturating_sub(self.capacity).max(now);
            if turn > latest {
                return ChargeAnswer::Over(turn);
            }
            // Read-modify-writes of one word follow each other, so nothing is lost. Release pairs with the Acquire of
            // `BucketSlot::is_idle`: who sees the charge sees whose bucket it is.
            match bucket.compare_exchange_weak(time, next, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return ChargeAnswer::At(turn),
                // Whoever was faster has made progress.
                Err(changed) => time = changed,
            }
        }
    }

    /// Gives a token back that was taken in advance and not used.
    pub(crate) fn refund(&self, bucket: &AtomicU64) {
        let less = |time: u64| Some(time.saturating_sub(self.interval));
        let _ = bucket.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// The time of a bucket of this shape from which as many tokens are missing as from one of another shape at this
    /// time, but at most all.
    pub(crate) fn adapt(&self, from_interval: Ticks, time: Ticks, now: Ticks) -> Ticks {
        let missing = u128::from(time.saturating_sub(now));
        let scaled = missing * u128::from(self.interval) / u128::from(from_interval.max(1));
        let scaled = u64::try_from(scaled).unwrap_or(u64::MAX);
        now.saturating_add(scaled.min(self.capacity))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn limit(interval: Ticks, burst: u64) -> BucketShape {
        BucketShape {
            interval,
            capacity: interval * burst,
        }
    }

    #[test]
    fn a_burst_passes_at_once_and_then_one_call_an_interval() {
        let (limit, bucket) = (limit(100, 3), AtomicU64::new(0));
        for _ in 0..3 {
            assert_eq!(limit.charge(&bucket, 1000, 1000), ChargeAnswer::At(1000));
        }
        assert_eq!(limit.charge(&bucket, 1000, 1000), ChargeAnswer::Over(1100));
        assert_eq!(limit.charge(&bucket, 1099, 1099), ChargeAnswer::Over(1100));
        assert_eq!(limit.charge(&bucket, 1100, 1100), ChargeAnswer::At(1100));
        assert_eq!(limit.charge(&bucket, 1100, 1100), ChargeAnswer::Over(1200));
    }

    #[test]
    fn who_may_wait_gets_a_turn_behind_the_others_and_can_give_it_back() {
        let (limit, bucket) = (limit(100, 1), AtomicU64::new(0));
        assert_eq!(limit.charge(&bucket, 50, 250), ChargeAnswer::At(50));
        assert_eq!(limit.charge(&bucket, 50, 250), ChargeAnswer::At(150));
        assert_eq!(limit.charge(&bucket, 50, 250), ChargeAnswer::At(250));
        assert_eq!(limit.charge(&bucket, 50, 250), ChargeAnswer::Over(350));
        limit.refund(&bucket);
        assert_eq!(limit.charge(&bucket, 50, 250), ChargeAnswer::At(250));
    }

    #[test]
    fn a_new_shape_keeps_how_many_tokens_are_missing() {
        let (slow, fast) = (limit(1000, 10), limit(10, 100));
        assert_eq!(fast.adapt(slow.interval, 50_000 + 7 * 1000, 50_000), 50_070);
        assert_eq!(slow.adapt(fast.interval, 50_000 + 7 * 10, 50_000), 57_000);
        // More than the bucket holds cannot be missing, and a full one stays full.
        assert_eq!(slow.adapt(fast.interval, 50_000 + 70 * 10, 50_000), 60_000);
        assert_eq!(slow.adapt(fast.interval, 20, 50_000), 50_000);
    }

    #[test]
    fn no_time_overflows() {
        let limit = limit(u64::MAX / 4, 2);
        let bucket = AtomicU64::new(u64::MAX - 3);
        assert!(matches!(limit.charge(&bucket, 5, 5), ChargeAnswer::Over(_)));
        assert_eq!(nanos(ticks(u64::MAX)), u64::MAX.div_ceil(TICKS_PER_NANO));
    }

    proptest! {
        /// The same verdicts as a bucket that really is filled and emptied.
        #[test]
        fn it_is_a_token_bucket(interval in 1u64..1000, burst in 1u64..20, gaps in prop::collection::vec(0u64..3000, 1..200)) {
            let (limit, bucket) = (limit(interval, burst), AtomicU64::new(0));
            let (mut now, mut level) = (1u64, limit.capacity);
            for gap in gaps {
                now += gap;
                level = (level + gap).min(limit.capacity);
                let passes = level >= interval;
                let charged = limit.charge(&bucket, now, now);
                prop_assert_eq!(charged == ChargeAnswer::At(now), passes);
                match charged {
                    ChargeAnswer::At(_) => level -= interval,
                    ChargeAnswer::Over(turn) => prop_assert_eq!(turn - now, interval - level),
                }
            }
        }
    }
}
