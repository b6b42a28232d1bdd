//! Times and durations as texts: RFC 3339, and seconds with an `s`.

/// The first second of the year 1, and the last of the year 9999, since 1970.
const SECONDS_MIN: i64 = -62_135_596_800;
const SECONDS_MAX: i64 = 253_402_300_799;
/// Ten thousand years of 365.25 days.
const DURATION_SECONDS_MAX: i64 = 315_576_000_000;
const NANOS_PER_SECOND: i32 = 1_000_000_000;
const SECONDS_PER_DAY: i64 = 86_400;

/// A time in RFC 3339; `None` outside of the years 1 to 9999.
pub(super) fn timestamp_text(seconds: i64, nanos: i32) -> Option<String> {
    if !(SECONDS_MIN..=SECONDS_MAX).contains(&seconds) || !(0..NANOS_PER_SECOND).contains(&nanos) {
        return None;
    }
    let (year, month, day) = date_of(seconds.div_euclid(SECONDS_PER_DAY));
    let second = seconds.rem_euclid(SECONDS_PER_DAY);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
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
    let is_date = year >= 1 && (1..=12).contains(&month) && (1..=days_of(year, month)).contains(&day);
    if !is_date || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let local = days_before(year, month, day) * SECONDS_PER_DAY + hour * 3600 + minute * 60 + second;
    let seconds = local - offset_seconds(offset)?;
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
    (hours <= 23 && minutes <= 59).then_some(sign * (hours * 3600 + minutes * 60))
}

/// As many numbers as lengths, each of so many digits, between separators.
fn numbers<const N: usize>(text: &str, separator: char, lengths: [usize; N]) -> Option<[i64; N]> {
    let mut parts = text.split(separator);
    let mut values = [0; N];
    for (value, length) in values.iter_mut().zip(lengths) {
        *value = number(parts.next().filter(|part| part.len() == length)?)?;
    }
    parts.next().is_none().then_some(values)
}

/// A number of digits alone.
fn number(digits: &str) -> Option<i64> {
    let is_number = digits.bytes().all(|digit| digit.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_of(year: i64, month: i64) -> i64 {
    match month {
        2 => 28 + i64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days of the Gregorian calendar from 1970-01-01 to a date. The year begins in March, so that the leap day is its last.
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
}

/// The date of so many days after 1970-01-01.
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year_of_era + i64::from(month >= 10);
    (year, if month < 10 { month + 3 } else { month - 9 }, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_has_its_date() {
        let mut expected = (1, 1, 1);
        for days in SECONDS_MIN / SECONDS_PER_DAY..=SECONDS_MAX / SECONDS_PER_DAY {
            assert_eq!(date_of(days), expected);
            let (year, month, day) = expected;
            assert_eq!(days_before(year, month, day), days);
            expected = match (day == days_of(year, month), month) {
                (false, _) => (year, month, day + 1),
                (true, 12) => (year + 1, 1, 1),
                (true, _) => (year, month + 1, 1),
            };
        }
        assert_eq!(expected, (10_000, 1, 1));
    }
}
