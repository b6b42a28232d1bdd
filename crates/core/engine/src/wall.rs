//! The calendar's time, for what people and collectors read. The data path knows the monotonic clock alone.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use time::UtcDateTime;

use crate::Nanos;

/// How the monotonic clock and the calendar's stood to each other at one moment.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    monotonic: Nanos,
    unix_ns: u64,
}

impl WallClock {
    /// As they stand now, when the monotonic clock shows `monotonic`.
    #[must_use]
    pub fn now(monotonic: Nanos) -> WallClock {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        WallClock {
            monotonic,
            unix_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// A time of the monotonic clock, in nanoseconds since 1970.
    #[must_use]
    pub fn unix_ns(&self, at: Nanos) -> u64 {
        match at.checked_sub(self.monotonic) {
            Some(later) => self.unix_ns.saturating_add(later),
            None => self.unix_ns.saturating_sub(self.monotonic - at),
        }
    }
}

/// A time in nanoseconds since 1970 as RFC 3339 has it, in UTC with microseconds: `2026-11-21T10:51:07.000123Z`.
#[must_use]
pub fn rfc3339(unix_ns: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_nanos(unix_ns);
    let time = UtcDateTime::from(time);
    let (year, month, day) = time.to_calendar_date();
    let (hour, minute, second, microsecond) = time.as_hms_micro();
    let month = u8::from(month);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{microsecond:06}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds: u64| rfc3339(seconds * 1_000_000_000 + 123_456);
        assert_eq!(at(0), "1970-01-01T00:00:00.000123Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59.000123Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000123Z");
        assert_eq!(at(951_868_800), "2000-03-01T00:00:00.000123Z");
        assert_eq!(at(1_767_225_599), "2025-12-31T23:59:59.000123Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.000123Z");
    }

    #[test]
    fn times_before_and_after_the_reading_are_told() {
        let wall = WallClock {
            monotonic: 100,
            unix_ns: 1_000_000,
        };
        assert_eq!((wall.unix_ns(90), wall.unix_ns(107)), (999_990, 1_000_007));
    }
}
