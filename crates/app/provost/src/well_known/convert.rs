//! The well-known types from and to those of the standard library.

use std::time::SystemTime;

use super::value::Kind;
use super::{
    BoolValue, BytesValue, DoubleValue, Duration, Empty, FieldMask, FloatValue, Int32Value, Int64Value,
    ListValue, NullValue, StringValue, Struct, Timestamp, UInt32Value, UInt64Value, Value,
};
use crate::shared::{Box, Bytes, Optional, String};

const NANOS_PER_SECOND: i32 = 1_000_000_000;
/// The longest duration that protobuf has: ten thousand years.
const SECONDS_MAX: u64 = 315_576_000_000;

/// A time or a duration is not one that the standard library has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TimeError {
    /// A time is before or after all that the system knows.
    #[error("the time is before or after all times that the system knows")]
    OutOfRange,
    /// A duration is negative.
    #[error("the duration is negative")]
    Negative,
    /// The nanoseconds are not less than a second, or are negative where they must not be.
    #[error("{0} nanoseconds are no part of a second")]
    Nanos(i32),
}

impl Timestamp {
    /// The time now, as the system's clock has it.
    #[must_use]
    pub fn now() -> Timestamp {
        SystemTime::now().into()
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Timestamp {
        match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => Timestamp {
                seconds: since.as_secs() as i64,
                nanos: since.subsec_nanos() as i32,
            },
            Err(before) => {
                // Nanoseconds count forwards, also before 1970.
                let before = before.duration();
                let nanos = before.subsec_nanos() as i32;
                Timestamp {
                    seconds: -(before.as_secs() as i64) - i64::from(nanos > 0),
                    nanos: if nanos > 0 { NANOS_PER_SECOND - nanos } else { 0 },
                }
            }
        }
    }
}

impl TryFrom<&Timestamp> for SystemTime {
    type Error = TimeError;

    fn try_from(time: &Timestamp) -> Result<SystemTime, TimeError> {
        let nanos = u32::try_from(time.nanos)
            .ok()
            .filter(|nanos| *nanos < NANOS_PER_SECOND.unsigned_abs());
        let nanos = std::time::Duration::from_nanos(nanos.ok_or(TimeError::Nanos(time.nanos))?.into());
        let seconds = std::time::Duration::from_secs(time.seconds.unsigned_abs());
        let second = if time.seconds >= 0 {
            SystemTime::UNIX_EPOCH.checked_add(seconds)
        } else {
            SystemTime::UNIX_EPOCH.checked_sub(seconds)
        };
        let time = second.and_then(|second| second.checked_add(nanos));
        time.ok_or(TimeError::OutOfRange)
    }
}

impl TryFrom<Timestamp> for SystemTime {
    type Error = TimeError;

    fn try_from(time: Timestamp) -> Result<SystemTime, TimeError> {
        SystemTime::try_from(&time)
    }
}

/// What is longer than protobuf's longest duration, ten thousand years, becomes that.
impl From<std::time::Duration> for Duration {
    fn from(duration: std::time::Duration) -> Duration {
        match duration.as_secs() {
            seconds @ ..SECONDS_MAX => Duration {
                seconds: seconds as i64,
                nanos: duration.subsec_nanos() as i32,
            },
            _ => Duration {
                seconds: SECONDS_MAX as i64,
                nanos: 0,
            },
        }
    }
}

impl TryFrom<&Duration> for std::time::Duration {
    type Error = TimeError;

    fn try_from(duration: &Duration) -> Result<std::time::Duration, TimeError> {
        let seconds = u64::try_from(duration.seconds).map_err(|_| TimeError::Negative)?;
        match u32::try_from(duration.nanos) {
            Ok(nanos) if nanos < NANOS_PER_SECOND.unsigned_abs() => {
                Ok(std::time::Duration::new(seconds, nanos))
            }
            Err(_) if duration.nanos > -NANOS_PER_SECOND && seconds == 0 => Err(TimeError::Negative),
            _ => Err(TimeError::Nanos(duration.nanos)),
        }
    }
}

impl TryFrom<Duration> for std::time::Duration {
    type Error = TimeError;

    fn try_from(duration: Duration) -> Result<std::time::Duration, TimeError> {
        std::time::Duration::try_from(&duration)
    }
}

impl From<SystemTime> for Optional<Box<Timestamp>> {
    fn from(time: SystemTime) -> Self {
        Timestamp::from(time).into()
    }
}

impl From<std::time::Duration> for Optional<Box<Duration>> {
    fn from(duration: std::time::Duration) -> Self {
        Duration::from(duration).into()
    }
}

macro_rules! wrappers {
    ($($wrapper:ident: $ty:ty;)*) => {
        $(impl From<$ty> for $wrapper {
            fn from(value: $ty) -> $wrapper {
                $wrapper { value }
            }
        }

        impl From<$wrapper> for $ty {
            fn from(wrapper: $wrapper) -> $ty {
                wrapper.value
            }
        }

        impl From<$ty> for Optional<Box<$wrapper>> {
            fn from(value: $ty) -> Self {
                $wrapper { value }.into()
            }
        })*
    };
}
wrappers! {
    BoolValue: bool;
    Int32Value: i32;
    Int64Value: i64;
    UInt32Value: u32;
    UInt64Value: u64;
    FloatValue: f32;
    DoubleValue: f64;
    StringValue: String;
    BytesValue: Bytes;
}

impl From<&str> for StringValue {
    fn from(value: &str) -> StringValue {
        StringValue { value: value.into() }
    }
}

impl From<&[u8]> for BytesValue {
    fn from(value: &[u8]) -> BytesValue {
        BytesValue { value: value.into() }
    }
}

impl From<()> for Empty {
    fn from((): ()) -> Empty {
        Empty::default()
    }
}

impl<P: Into<String>> FromIterator<P> for FieldMask {
    fn from_iter<I: IntoIterator<Item = P>>(paths: I) -> FieldMask {
        FieldMask {
            paths: paths.into_iter().map(Into::into).collect(),
        }
    }
}

impl Value {
    /// JSON's `null`. (`Value::default()` is no value at all.)
    #[must_use]
    pub fn null() -> Value {
        Kind::NullValue(NullValue::NULL_VALUE).into()
    }
}

impl From<Kind> for Value {
    fn from(kind: Kind) -> Value {
        Value { kind }
    }
}

macro_rules! values {
    ($($ty:ty, $value:ident => $kind:expr;)*) => {
        $(impl From<$ty> for Value {
            fn from($value: $ty) -> Value {
                $kind.into()
            }
        })*
    };
}
values! {
    bool, value => Kind::BoolValue(value);
    f64, value => Kind::NumberValue(value);
    i32, value => Kind::NumberValue(value.into());
    u32, value => Kind::NumberValue(value.into());
    &str, value => Kind::StringValue(value.into());
    String, value => Kind::StringValue(value);
    std::string::String, value => Kind::StringValue(value.into());
    Struct, value => Kind::StructValue(value.into());
    ListValue, value => Kind::ListValue(value.into());
}

impl<V: Into<Value>> FromIterator<V> for ListValue {
    fn from_iter<I: IntoIterator<Item = V>>(values: I) -> ListValue {
        ListValue {
            values: values.into_iter().map(Into::into).collect(),
        }
    }
}

impl<N: Into<String>, V: Into<Value>> FromIterator<(N, V)> for Struct {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(fields: I) -> Struct {
        Struct {
            fields: fields
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_go_there_and_back_also_before_1970() {
        let epoch = SystemTime::UNIX_EPOCH;
        let nanos = std::time::Duration::from_nanos;
        for time in [
            epoch,
            epoch + nanos(1),
            epoch - nanos(1),
            epoch - nanos(1_000_000_000),
            epoch - nanos(1_500_000_000),
        ] {
            let stamp = Timestamp::from(time);
            assert!((0..NANOS_PER_SECOND).contains(&stamp.nanos), "{stamp:?}");
            assert_eq!(SystemTime::try_from(stamp), Ok(time));
        }
        assert_eq!(
            Timestamp::from(epoch - nanos(1)),
            Timestamp {
                seconds: -1,
                nanos: 999_999_999
            }
        );
        let stamp = |seconds, nanos| SystemTime::try_from(Timestamp { seconds, nanos });
        assert_eq!(stamp(0, -1), Err(TimeError::Nanos(-1)));
        assert_eq!(
            stamp(0, NANOS_PER_SECOND),
            Err(TimeError::Nanos(NANOS_PER_SECOND))
        );
        assert_eq!(stamp(i64::MAX, 999_999_999).is_ok(), stamp(i64::MAX, 0).is_ok());
    }

    #[test]
    fn durations_go_there_and_back() {
        let duration = std::time::Duration::new(3, 5);
        assert_eq!(
            std::time::Duration::try_from(Duration::from(duration)),
            Ok(duration)
        );
        let longest = Duration::from(std::time::Duration::MAX);
        assert_eq!((longest.seconds, longest.nanos), (315_576_000_000, 0));
        let of = |seconds, nanos| std::time::Duration::try_from(Duration { seconds, nanos });
        assert_eq!(of(-1, 0), Err(TimeError::Negative));
        assert_eq!(of(0, -1), Err(TimeError::Negative));
        assert_eq!(of(1, -1), Err(TimeError::Nanos(-1)));
        assert_eq!(of(1, NANOS_PER_SECOND), Err(TimeError::Nanos(NANOS_PER_SECOND)));
    }
}
