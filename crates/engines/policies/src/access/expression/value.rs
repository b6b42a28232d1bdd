//! Values, as evaluation meets them: all are copies of a few words, and strings stay where they are.

use std::cmp::Ordering;

use provost_marshal::{StructPlace, Value};

#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Val<'a> {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(&'a str),
    Bytes(&'a [u8]),
    /// A message within the one that is judged.
    Message(StructPlace),
}

impl<'a> Val<'a> {
    /// Of a field that was read; lists and messages have no value.
    pub(crate) fn of(value: Value<'a>) -> Option<Val<'a>> {
        Some(match value {
            Value::Bool(value) => Val::Bool(value),
            Value::Int(value) => Val::Int(value),
            Value::Uint(value) => Val::Uint(value),
            Value::Float(value) => Val::Double(f64::from(value)),
            Value::Double(value) => Val::Double(value),
            Value::Enum(value) => Val::Int(i64::from(value)),
            Value::String(value) => Val::String(value),
            Value::Bytes(value) => Val::Bytes(value),
            Value::Message | Value::List(_) => return None,
        })
    }

    /// How it is ordered to another: numbers by what they are, whatever their types; strings by code points. `None`
    /// where there is no order: not a number, or different types.
    #[must_use]
    pub fn order(&self, other: &Val<'_>) -> Option<Ordering> {
        match (*self, *other) {
            (Val::String(a), Val::String(b)) => Some(a.as_bytes().cmp(b.as_bytes())),
            (Val::Bytes(a), Val::Bytes(b)) => Some(a.cmp(b)),
            (Val::Bool(a), Val::Bool(b)) => Some(a.cmp(&b)),
            (Val::Double(a), Val::Double(b)) => a.partial_cmp(&b),
            (Val::Double(a), b) => order_double(a, b.integer()?),
            (a, Val::Double(b)) => order_double(b, a.integer()?).map(Ordering::reverse),
            (a, b) => Some(a.integer()?.cmp(&b.integer()?)),
        }
    }

    /// Whether both are the same value.
    #[must_use]
    pub fn equals(&self, other: &Val<'_>) -> bool {
        match (*self, *other) {
            // The most frequent case, without an order.
            (Val::String(a), Val::String(b)) => a == b,
            _ => self.order(other) == Some(Ordering::Equal),
        }
    }

    /// An integer of either sign.
    pub(crate) fn integer(&self) -> Option<i128> {
        match *self {
            Val::Int(value) => Some(i128::from(value)),
            Val::Uint(value) => Some(i128::from(value)),
            _ => None,
        }
    }
}

/// How a double is ordered to an integer, without rounding either.
fn order_double(double: f64, integer: i128) -> Option<Ordering> {
    if double.is_nan() {
        return None;
    }
    // Saturates far outside of what 64 bits hold, which keeps the order.
    let whole = double.trunc();
    Some(
        (whole as i128)
            .cmp(&integer)
            .then_with(|| double.partial_cmp(&whole).unwrap_or(Ordering::Equal)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_ordered_by_what_they_are() {
        let ascending = [
            Val::Double(f64::NEG_INFINITY),
            Val::Int(i64::MIN),
            Val::Double(-1.5),
            Val::Int(-1),
            Val::Double(-0.5),
            Val::Uint(0),
            Val::Double(0.5),
            Val::Int(1),
            Val::Int(i64::MAX),
            Val::Double(9_223_372_036_854_775_808.0),
            Val::Uint(u64::MAX),
            Val::Double(f64::INFINITY),
        ];
        for (i, a) in ascending.iter().enumerate() {
            for (j, b) in ascending.iter().enumerate() {
                assert_eq!(a.order(b), Some(i.cmp(&j)), "{a:?} {b:?}");
            }
            assert_eq!(a.order(&Val::Double(f64::NAN)), None);
            assert!(!a.equals(&Val::String("1")));
        }
        assert!(Val::Int(1).equals(&Val::Uint(1)) && Val::Double(1.0).equals(&Val::Uint(1)));
        assert!(Val::Double(-0.0).equals(&Val::Int(0)));
    }
}
