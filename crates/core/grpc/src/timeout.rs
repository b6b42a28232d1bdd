//! The field `grpc-timeout`: how long a call may take, from when its request was sent.

/// Digits of a value at most (PROTOCOL-HTTP2, Requests: TimeoutValue).
const DIGITS_MAX: usize = 8;
/// The first number that has more digits.
const COUNT_END: u64 = 100_000_000;
/// Units from the finest on, in nanoseconds (PROTOCOL-HTTP2, Requests: TimeoutUnit).
const UNITS: [(u8, u64); 6] = [
    (b'n', 1),
    (b'u', 1_000),
    (b'm', 1_000_000),
    (b'S', 1_000_000_000),
    (b'M', 60_000_000_000),
    (b'H', 3_600_000_000_000),
];

/// The nanoseconds that a value says, as many as a `u64` holds; None if it is malformed.
///
/// ```
/// assert_eq!(provost_grpc::read_timeout(b"250m"), Some(250_000_000));
/// assert_eq!(provost_grpc::read_timeout(b"250"), None);
/// ```
#[must_use]
pub fn read_timeout(value: &[u8]) -> Option<u64> {
    let (unit, digits) = value.split_last()?;
    let is_number = (1..=DIGITS_MAX).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    let (_, unit_ns) = UNITS.iter().find(|(name, _)| name == unit)?;
    let count = || {
        digits
            .iter()
            .fold(0_u64, |count, digit| count * 10 + u64::from(digit - b'0'))
    };
    is_number.then(|| count().saturating_mul(*unit_ns))
}

/// The value for a timeout, in the finest unit that has room for it; what that unit cannot tell is rounded up. There is no value
/// for no time at all: it becomes a nanosecond.
#[must_use]
pub fn write_timeout(timeout_ns: u64) -> String {
    let fits = |unit_ns: u64| timeout_ns.div_ceil(unit_ns) < COUNT_END;
    let hours = UNITS[UNITS.len() - 1];
    let (name, unit_ns) = UNITS
        .into_iter()
        .find(|(_, unit_ns)| fits(*unit_ns))
        .unwrap_or(hours);
    let count = timeout_ns.div_ceil(unit_ns).clamp(1, COUNT_END - 1);
    format!("{count}{}", char::from(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// PROTOCOL-HTTP2, Requests: each TimeoutUnit.
    #[test]
    fn requests_all_units_of_timeouts() {
        let expected = [
            (&b"7n"[..], 7),
            (b"7u", 7_000),
            (b"7m", 7_000_000),
            (b"7S", 7_000_000_000),
            (b"7M", 420_000_000_000),
            (b"7H", 25_200_000_000_000),
        ];
        for (value, timeout_ns) in expected {
            assert_eq!(read_timeout(value), Some(timeout_ns));
        }
        assert_eq!(read_timeout(b"99999999H"), Some(u64::MAX));
    }

    /// PROTOCOL-HTTP2, Requests: TimeoutValue has at most 8 digits, and a unit follows.
    #[test]
    fn requests_malformed_timeouts() {
        for value in [
            "",
            "S",
            "1",
            "1 S",
            "-1S",
            "+1S",
            "1.5S",
            "1s",
            "123456789n",
            "1Sx",
        ] {
            assert_eq!(read_timeout(value.as_bytes()), None, "{value}");
        }
    }

    proptest! {
        /// What is read is no less than what was written, and at most a unit more.
        #[test]
        fn timeouts_are_read_as_written(bits in any::<u64>(), shift in 0_u32..64) {
            let timeout_ns = bits >> shift;
            let value = write_timeout(timeout_ns);
            let read_ns = read_timeout(value.as_bytes()).unwrap();
            prop_assert!(read_ns >= timeout_ns);
            prop_assert!(read_ns - timeout_ns <= 1 + timeout_ns / 100_000, "{timeout_ns} is {value}");
        }

        #[test]
        fn any_value_is_read_or_refused(value in proptest::collection::vec(any::<u8>(), 0..12)) {
            let _ = read_timeout(&value);
        }
    }
}
