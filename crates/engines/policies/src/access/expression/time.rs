//! Times of day and days of the week, in UTC or at an offset from it. Nothing here knows of daylight saving time.

/// Minutes of a day.
const DAY_MINUTES: i64 = 24 * 60;
/// Largest offset from UTC, in minutes.
const OFFSET_MINUTES_MAX: i64 = 14 * 60;
/// By their number since the first day of 1970, a Thursday.
const WEEKDAYS: [&str; 7] = [
    "thursday",
    "friday",
    "saturday",
    "sunday",
    "monday",
    "tuesday",
    "wednesday",
];

/// How far a clock is ahead of UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClockOffset {
    minutes: i64,
}

/// A part of each day. One that ends before it begins goes on past midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DayPart {
    from_minute: i64,
    to_minute: i64,
    offset: ClockOffset,
}

impl ClockOffset {
    /// Reads `+02:00`, `-05:30` or `Z`.
    pub(crate) fn parse(text: &str) -> Option<ClockOffset> {
        if text == "Z" {
            return Some(ClockOffset::default());
        }
        let (sign, time) = match text.split_at_checked(1)? {
            ("+", time) => (1, time),
            ("-", time) => (-1, time),
            _ => return None,
        };
        let minutes = minute_of_day(time).filter(|minutes| *minutes <= OFFSET_MINUTES_MAX)?;
        Some(ClockOffset {
            minutes: sign * minutes,
        })
    }

    fn minute(self, unix_s: i64) -> i64 {
        unix_s.div_euclid(60).saturating_add(self.minutes)
    }

    /// The day of the week at a time.
    pub(crate) fn weekday(self, unix_s: i64) -> &'static str {
        let day = self.minute(unix_s).div_euclid(DAY_MINUTES);
        WEEKDAYS[day.rem_euclid(7) as usize]
    }
}

impl DayPart {
    /// Reads two times of day, such as `08:00` and `18:30`. `24:00` is the end of a day.
    pub(crate) fn parse(from: &str, to: &str, offset: ClockOffset) -> Option<DayPart> {
        Some(DayPart {
            from_minute: minute_of_day(from)?,
            to_minute: minute_of_day(to)?,
            offset,
        })
    }

    /// Whether a time is in it: at its beginning, and not any more at its end.
    pub(crate) fn contains(self, unix_s: i64) -> bool {
        let minute = self.offset.minute(unix_s).rem_euclid(DAY_MINUTES);
        if self.from_minute <= self.to_minute {
            (self.from_minute..self.to_minute).contains(&minute)
        } else {
            !(self.to_minute..self.from_minute).contains(&minute)
        }
    }
}

/// Reads a time of day, `HH:MM`.
fn minute_of_day(text: &str) -> Option<i64> {
    let [h, g, b':', m, n] = text.as_bytes() else {
        return None;
    };
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| i64::from(byte - b'0'));
    let (hours, minutes) = (digit(h)? * 10 + digit(g)?, digit(m)? * 10 + digit(n)?);
    let minute = hours * 60 + minutes;
    (minutes < 60 && minute <= DAY_MINUTES).then_some(minute)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-21 10:51 UTC, a Saturday.
    const SATURDAY: i64 = 1_795_258_260;

    fn is_in(from: &str, to: &str, offset: &str, at: i64) -> bool {
        let offset = ClockOffset::parse(offset).unwrap();
        DayPart::parse(from, to, offset).unwrap().contains(at)
    }

    #[test]
    fn a_part_of_a_day_begins_and_ends_to_the_minute() {
        assert!(is_in("10:51", "10:52", "Z", SATURDAY));
        assert!(!is_in("10:00", "10:51", "Z", SATURDAY));
        assert!(is_in("12:51", "12:52", "+02:00", SATURDAY));
        assert!(is_in("05:21", "05:22", "-05:30", SATURDAY));
        assert!(is_in("00:00", "24:00", "Z", SATURDAY));
        assert!(!is_in("10:51", "10:51", "Z", SATURDAY));
    }

    #[test]
    fn one_that_ends_before_it_begins_goes_on_past_midnight() {
        let night = |hour: i64| is_in("22:00", "06:00", "Z", SATURDAY + (hour - 10) * 3600);
        let hours: Vec<i64> = (0..24).filter(|hour| night(*hour)).collect();
        assert_eq!(hours, [0, 1, 2, 3, 4, 5, 22, 23]);
    }

    #[test]
    fn days_of_the_week_begin_at_midnight_of_the_clock() {
        let at = |offset: &str, unix_s| ClockOffset::parse(offset).unwrap().weekday(unix_s);
        assert_eq!(at("Z", SATURDAY), "saturday");
        assert_eq!(at("+14:00", SATURDAY), "sunday");
        assert_eq!(at("-11:00", SATURDAY), "friday");
        assert_eq!(at("Z", 0), "thursday");
        assert_eq!(at("Z", -1), "wednesday");
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in ["8:00", "24:01", "12:60", "1200", "", "ab:cd", "-1:00"] {
            assert_eq!(minute_of_day(text), None, "{text}");
        }
        for text in ["", "02:00", "+2", "+15:00", "UTC", "é"] {
            assert_eq!(ClockOffset::parse(text), None, "{text}");
        }
    }
}
