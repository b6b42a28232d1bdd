//! Numbers as JSON writes them.

/// How many bytes of a text its number takes; 0 if it begins with none.
pub(super) fn number_bytes(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digits = |from: usize| {
        bytes[from.min(bytes.len())..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count()
    };
    let mut at = usize::from(bytes.first() == Some(&b'-'));
    at += match (digits(at), bytes.get(at)) {
        (0, _) => return 0,
        // No digit follows a zero in front.
        (_, Some(b'0')) => 1,
        (count, _) => count,
    };
    if bytes.get(at) == Some(&b'.') && digits(at + 1) > 0 {
        at += 1 + digits(at + 1);
    }
    if matches!(bytes.get(at), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
        let exponent = digits(at + 1 + sign);
        at += if exponent > 0 { 1 + sign + exponent } else { 0 };
    }
    at
}

/// Whether a text is a number from its beginning to its end.
pub(super) fn is_number(text: &str) -> bool {
    !text.is_empty() && number_bytes(text) == text.len()
}

/// The integer that a number is, however it is written (`100`, `1e2`, `100.0`); `None` if it is none, or has more than
/// 20 digits.
pub(super) fn integer_of(number: &str) -> Option<i128> {
    if !is_number(number) {
        return None;
    }
    let (is_negative, digits) = number
        .strip_prefix('-')
        .map_or((false, number), |digits| (true, digits));
    let (mantissa, exponent) = digits.split_once(['e', 'E']).unwrap_or((digits, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = [whole, fraction].concat();
    let significant = digits.trim_start_matches('0').trim_end_matches('0');
    if significant.is_empty() {
        return Some(0);
    }
    let zeros_behind = digits.len() - digits.trim_end_matches('0').len();
    // An exponent that does not fit is one that no integer of 64 bits has.
    let exponent = exponent.parse::<i64>().ok()?;
    let places = exponent
        .checked_add(zeros_behind as i64)?
        .checked_sub(fraction.len() as i64)?;
    let zeros = usize::try_from(places)
        .ok()
        .filter(|zeros| significant.len() + zeros <= 20)?;
    let magnitude: i128 = format!("{significant}{}", "0".repeat(zeros)).parse().ok()?;
    Some(if is_negative { -magnitude } else { magnitude })
}

/// A floating-point number as JSON writes it, in as few digits as give it back.
pub(super) fn float_text(shortest: String) -> String {
    match shortest.strip_suffix(".0") {
        Some(whole) => whole.to_owned(),
        None => shortest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_what_they_are_however_they_are_written() {
        let cases = [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("0.000e7", Some(0)),
            ("100000.000", Some(100_000)),
            ("1e5", Some(100_000)),
            ("2.147483647e9", Some(2_147_483_647)),
            ("12300e-2", Some(123)),
            ("-9223372036854775808", Some(-9_223_372_036_854_775_808)),
            ("18446744073709551615", Some(18_446_744_073_709_551_615)),
            ("0.5", None),
            ("12300e-3", None),
            ("1e21", None),
            ("1e99999999999999999999", None),
            ("1e-99999999999999999999", None),
            ("01", None),
            ("+1", None),
            ("1 ", None),
            ("", None),
            (".5", None),
            ("5.", None),
            ("0x10", None),
        ];
        for (text, expected) in cases {
            assert_eq!(integer_of(text), expected, "{text}");
        }
    }
}
