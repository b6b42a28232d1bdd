//! Times and durations as texts: RFC 3339, and seconds with an `s`.

use time::{Date, Month, Time, UtcDateTime};

/// The first second of the year 1, and the last of the year 9999, since 1970.
const SECONDS_MIN: i64 = -62_135_596_800;
const SECONDS_MAX: i64 = 253_402_300_799;
/// Ten thousand years of 365.25 days.
const DURATION_SECONDS_MAX: i64 = 315_576_000_000;
const NANOS_PER_SECOND: i32 = 1_000_000_000;

/// A time in RFC 3339; `None` outside of the years 1 to 9999.
pub(super) fn timestamp_text(seconds: i64, nanos: i32) -> Option<String> {
    if !(SECONDS_MIN..=SECONDS_MAX).contains(&seconds) || !(0..NANOS_PER_SECOND).contains(&nanos) {
        return None;
    }
    let time = UtcDateTime::from_unix_timestamp(seconds).ok()?;
    let (year, month, day) = time.to_calendar_date();
    let (hour, minute, second) = time.as_hms();
    let month = u8::from(month);
    Some(format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{}Z",
        fraction_text(nanos)
    ))
}

/// The time of a text in RFC 3339.
pub(super) fn timestamp_of(text: &str) -> Option<(i64, i32)> {
    let (date, time) = text.split_once('T')?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let offset_at = time.find(['Z', '+', '-'])?;
    let (time, offset) = time.split_at(offset_at);
    let (clock, fraction) = time
        .split_once('.')
        .map_or((time, None), |(clock, fraction)| (clock, Some(fraction)));
    let [hour, minute, second] = numbers(clock, ':', [2, 2, 2])?;
    let month = Month::try_from(u8::try_from(month).ok()?).ok()?;
    let date = Date::from_calendar_date(year, month, u8::try_from(day).ok()?).ok()?;
    let [hour, minute, second] = [hour, minute, second].map(u8::try_from);
    let clock = Time::from_hms(hour.ok()?, minute.ok()?, second.ok()?).ok()?;
    let seconds = UtcDateTime::new(date, clock).unix_timestamp() - offset_seconds(offset)?;
    let nanos = fraction.map_or(Some(0), nanos_of)?;
    (SECONDS_MIN..=SECONDS_MAX)
        .contains(&seconds)
        .then_some((seconds, nanos))
}

/// A duration; `None` past ten thousand years, or when the signs of its parts contradict each other.
pub(super) fn duration_text(seconds: i64, nanos: i32) -> Option<String> {
    let is_contradictory = seconds > 0 && nanos < 0 || seconds < 0 && nanos > 0;
    let is_small = nanos.unsigned_abs() < NANOS_PER_SECOND.unsigned_abs();
    if is_contradictory || !is_small || seconds.unsigned_abs() > DURATION_SECONDS_MAX.unsigned_abs() {
        return None;
    }
    let sign = if seconds < 0 || nanos < 0 { "-" } else { "" };
    Some(format!(
        "{sign}{}{}s",
        seconds.unsigned_abs(),
        fraction_text(nanos.abs())
    ))
}

/// The duration of a text.
pub(super) fn duration_of(text: &str) -> Option<(i64, i32)> {
    let digits = text.strip_suffix('s')?;
    let (sign, digits) = digits
        .strip_prefix('-')
        .map_or((1, digits), |digits| (-1, digits));
    let (whole, fraction) = digits
        .split_once('.')
        .map_or((digits, None), |(whole, part)| (whole, Some(part)));
    let seconds = number(whole)?;
    let nanos = fraction.map_or(Some(0), nanos_of)?;
    (seconds <= DURATION_SECONDS_MAX).then_some((sign * seconds, sign as i32 * nanos))
}

/// A fraction of a second in 0, 3, 6 or 9 digits.
fn fraction_text(nanos: i32) -> String {
    match nanos {
        0 => String::new(),
        millis if millis % 1_000_000 == 0 => format!(".{:03}", millis / 1_000_000),
        micros if micros % 1_000 == 0 => format!(".{:06}", micros / 1_000),
        nanos => format!(".{nanos:09}"),
    }
}

/// The nanoseconds of one to nine digits behind the point.
fn nanos_of(digits: &str) -> Option<i32> {
    let missing = 9_usize.checked_sub(digits.len())?;
    let value = number(digits)?;
    i32::try_from(value * 10_i64.pow(missing as u32)).ok()
}

/// The seconds of `Z` or `+hh:mm`.
fn offset_seconds(offset: &str) -> Option<i64> {
    let sign = match offset.bytes().next()? {
        b'Z' => return (offset == "Z").then_some(0),
        b'-' => -1,
        _ => 1,
    };
    let [hours, minutes] = numbers(&offset[1..], ':', [2, 2])?;
    (hours <= 23 && minutes <= 59).then_some(sign * i64::from(hours * 3600 + minutes * 60))
}

/// As many numbers as lengths, each of so many digits, between separators.
fn numbers<const N: usize>(text: &str, separator: char, lengths: [usize; N]) -> Option<[i32; N]> {
    let mut parts = text.split(separator);
    let mut values = [0; N];
    for (value, length) in values.iter_mut().zip(lengths) {
        let value_text = parts.next().filter(|part| part.len() == length)?;
        *value = i32::try_from(number(value_text)?).ok()?;
    }
    parts.next().is_none().then_some(values)
}

/// A number of digits alone.
fn number(digits: &str) -> Option<i64> {
    let is_number = digits.bytes().all(|digit| digit.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (SECONDS_MIN, "0001-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (SECONDS_MAX, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(timestamp_text(seconds, 0).as_deref(), Some(text));
            assert_eq!(timestamp_of(text), Some((seconds, 0)));
        }
        for outside in [SECONDS_MIN - 1, SECONDS_MAX + 1] {
            assert_eq!(timestamp_text(outside, 0), None);
        }
        for wrong in [
            "0000-12-31T23:59:59Z",
            "2100-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:60Z",
            "0001-01-01T00:00:00+00:01",
        ] {
            assert_eq!(timestamp_of(wrong), None, "{wrong}");
        }
    }
}
