//! Value lists: exact membership among millions of values, in little memory.
//!
//! A list is a table of slots, three quarters full at most, that is probed from the slot to which a seeded hash points. A
//! list of ints has the values themselves in its slots: 10.7 bytes for each. A list of strings has a place in one run of
//! text and 32 bits of the hash: 10.7 bytes for each and its own length plus one to five bytes. A value that is not in
//! the list costs about one cache miss, one that is in it two. There are no false positives: what the hash finds is
//! compared.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use crate::access::expression::{ExpressionKind, Val};

/// Values of a list, at most.
pub const LIST_VALUES_MAX: usize = 16 << 20;
/// Bytes of a list's text, at most.
pub const LIST_BYTES_MAX: usize = 1 << 30;

/// What a list holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ListType {
    #[default]
    String,
    /// Integers of 64 bits.
    Int,
}

/// A list of values that an operator named.
#[derive(Debug)]
pub struct ValueList {
    state: RandomState,
    values: ListValues,
    count: usize,
}

#[derive(Debug)]
enum ListValues {
    Strings {
        slots: Box<[StringSlot]>,
        text: Box<[u8]>,
    },
    /// `has_empty` says whether the value that marks empty slots is one of the list.
    Ints { slots: Box<[i64]>, has_empty: bool },
}

/// Of a list of strings.
#[derive(Clone, Copy, Debug)]
struct StringSlot {
    /// Where its length and its text are.
    at: u32,
    /// Bits of its hash.
    tag: u32,
}

const EMPTY: StringSlot = StringSlot { at: u32::MAX, tag: 0 };
/// A slot without an int.
const EMPTY_INT: i64 = i64::MIN;

/// What is wrong with a list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// A line that is not a value of the list's type.
    #[error("line {line}: {found:?} is not an integer of 64 bits")]
    Int {
        /// From 1.
        line: usize,
        found: String,
    },
    /// A line that is not text.
    #[error("line {line} is not UTF-8")]
    Text {
        /// From 1.
        line: usize,
    },
    #[error("a list has at most {LIST_VALUES_MAX} values and {LIST_BYTES_MAX} bytes: split it")]
    TooLarge,
}

impl ValueList {
    /// A list of the lines of a text: one value in each, without the white space around it. Lines that are empty or
    /// begin with `#` are left out.
    pub fn parse(holds: ListType, text: &[u8]) -> Result<ValueList, ListError> {
        if text.len() > LIST_BYTES_MAX {
            return Err(ListError::TooLarge);
        }
        let lines = || {
            (1..)
                .zip(text.split(|byte| *byte == b'\n'))
                .filter_map(|(line, value)| {
                    let value = value.trim_ascii();
                    (!value.is_empty() && !value.starts_with(b"#")).then_some((line, value))
                })
        };
        let decode = |(line, value)| match std::str::from_utf8(value) {
            Ok(value) => Ok((line, value)),
            Err(_) => Err(ListError::Text { line }),
        };
        let count = lines().count();
        match holds {
            ListType::String => {
                let mut builder = StringsBuilder::new(count, text.len())?;
                for value in lines().map(decode) {
                    builder.add(value?.1);
                }
                Ok(builder.finish())
            }
            ListType::Int => {
                let parse = |value: Result<(usize, &str), ListError>| {
                    let (line, value) = value?;
                    let found = || value.chars().take(40).collect();
                    value.parse().map_err(|_| ListError::Int { line, found: found() })
                };
                ValueList::ints(count, lines().map(decode).map(parse))
            }
        }
    }

    /// A list of strings.
    pub fn strings<'a>(values: impl Iterator<Item = &'a str> + Clone) -> Result<ValueList, ListError> {
        let (count, bytes) = values
            .clone()
            .fold((0, 0), |(count, bytes), value| (count + 1, bytes + value.len()));
        let mut builder = StringsBuilder::new(count, bytes)?;
        values.for_each(|value| builder.add(value));
        Ok(builder.finish())
    }

    /// A list of at most `count_max` ints.
    pub fn ints(
        count_max: usize,
        values: impl Iterator<Item = Result<i64, ListError>>,
    ) -> Result<ValueList, ListError> {
        if count_max > LIST_VALUES_MAX {
            return Err(ListError::TooLarge);
        }
        let state = RandomState::new();
        let mut slots = vec![EMPTY_INT; slot_count(count_max)].into_boxed_slice();
        let (mut has_empty, mut count) = (false, 0);
        for value in values {
            let value = value?;
            let mut at = slot_of(state.hash_one(value), slots.len());
            if value == EMPTY_INT {
                count += usize::from(!has_empty);
                has_empty = true;
                continue;
            }
            while slots[at] != EMPTY_INT && slots[at] != value {
                at = next(at, slots.len());
            }
            count += usize::from(slots[at] == EMPTY_INT);
            slots[at] = value;
        }
        let values = ListValues::Ints { slots, has_empty };
        Ok(ValueList { state, values, count })
    }

    /// Values in it, each counted once.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        match &self.values {
            ListValues::Strings { slots, text } => std::mem::size_of_val(&**slots) + text.len(),
            ListValues::Ints { slots, .. } => std::mem::size_of_val(&**slots),
        }
    }

    /// Whether a value is in it.
    #[must_use]
    pub fn contains(&self, val: &Val<'_>) -> bool {
        match (&self.values, val) {
            (ListValues::Strings { slots, text }, Val::String(value)) => {
                let hash = self.state.hash_one(value.as_bytes());
                find_string(slots, text, hash, value.as_bytes()).is_ok()
            }
            (ListValues::Ints { slots, has_empty }, val) => {
                let Some(value) = val.integer().and_then(|value| i64::try_from(value).ok()) else {
                    return false;
                };
                if value == EMPTY_INT {
                    return *has_empty;
                }
                let mut at = slot_of(self.state.hash_one(value), slots.len());
                while slots[at] != EMPTY_INT {
                    if slots[at] == value {
                        return true;
                    }
                    at = next(at, slots.len());
                }
                false
            }
            (ListValues::Strings { .. }, _) => false,
        }
    }

    /// Whether values of a type can be in it.
    pub(crate) fn holds(&self, kind: &ExpressionKind) -> bool {
        match self.values {
            ListValues::Strings { .. } => *kind == ExpressionKind::String,
            ListValues::Ints { .. } => matches!(
                kind,
                ExpressionKind::Int | ExpressionKind::Uint | ExpressionKind::Enum(..)
            ),
        }
    }

    /// What it holds, for people.
    pub(crate) fn kind(&self) -> &'static str {
        match self.values {
            ListValues::Strings { .. } => "string",
            ListValues::Ints { .. } => "int",
        }
    }
}

/// Slots for so many values: a third more, and always one that is empty.
fn slot_count(values: usize) -> usize {
    values + values / 3 + 1
}

/// The slot to which a hash points: its upper bits, spread over all slots.
fn slot_of(hash: u64, slots: usize) -> usize {
    ((u128::from(hash) * slots as u128) >> 64) as usize
}

fn next(at: usize, slots: usize) -> usize {
    match at + 1 {
        at if at == slots => 0,
        at => at,
    }
}

/// The slot of a string, or the empty one where it would be.
fn find_string(slots: &[StringSlot], text: &[u8], hash: u64, value: &[u8]) -> Result<usize, usize> {
    let mut at = slot_of(hash, slots.len());
    let tag = hash as u32;
    while slots[at].at != EMPTY.at {
        if slots[at].tag == tag && text_at(text, slots[at].at) == value {
            return Ok(at);
        }
        at = next(at, slots.len());
    }
    Err(at)
}

/// The text whose length, seven bits in a byte, is at a place.
fn text_at(text: &[u8], at: u32) -> &[u8] {
    let mut rest = text.get(at as usize..).unwrap_or_default();
    let (mut length, mut shift) = (0_usize, 0);
    while let Some((byte, after)) = rest.split_first() {
        length |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        rest = after;
        if byte & 0x80 == 0 {
            break;
        }
    }
    rest.get(..length).unwrap_or_default()
}

struct StringsBuilder {
    state: RandomState,
    slots: Box<[StringSlot]>,
    text: Vec<u8>,
    count: usize,
}

impl StringsBuilder {
    fn new(count: usize, bytes: usize) -> Result<StringsBuilder, ListError> {
        if count > LIST_VALUES_MAX || bytes > LIST_BYTES_MAX {
            return Err(ListError::TooLarge);
        }
        Ok(StringsBuilder {
            state: RandomState::new(),
            slots: vec![EMPTY; slot_count(count)].into_boxed_slice(),
            text: Vec::with_capacity(bytes + count),
            count: 0,
        })
    }

    fn add(&mut self, value: &str) {
        let hash = self.state.hash_one(value.as_bytes());
        let Err(at) = find_string(&self.slots, &self.text, hash, value.as_bytes()) else {
            return;
        };
        self.slots[at] = StringSlot {
            at: self.text.len() as u32,
            tag: hash as u32,
        };
        let mut length = value.len();
        while length > 0x7f {
            self.text.push(length as u8 | 0x80);
            length >>= 7;
        }
        self.text.push(length as u8);
        self.text.extend_from_slice(value.as_bytes());
        self.count += 1;
    }

    fn finish(self) -> ValueList {
        ValueList {
            state: self.state,
            values: ListValues::Strings {
                slots: self.slots,
                text: self.text.into_boxed_slice(),
            },
            count: self.count,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_list_has_what_was_put_in_and_nothing_else(
            values in proptest::collection::vec("[a-c]{0,3}|.{120,140}", 0..80),
            strangers in proptest::collection::vec("[a-c]{0,3}", 0..80),
        ) {
            let list = ValueList::strings(values.iter().map(String::as_str)).unwrap();
            let expected: HashSet<&String> = values.iter().collect();
            prop_assert_eq!(list.len(), expected.len());
            for value in values.iter().chain(&strangers) {
                prop_assert_eq!(list.contains(&Val::String(value)), expected.contains(value));
            }
            prop_assert!(!list.contains(&Val::Int(0)));
        }

        #[test]
        fn ints_too(
            values in proptest::collection::vec(prop_oneof![-5_i64..5, any::<i64>(), Just(i64::MIN)], 0..80),
            strangers in proptest::collection::vec(-9_i64..9, 0..20),
        ) {
            let list = ValueList::ints(values.len(), values.iter().copied().map(Ok)).unwrap();
            let expected: HashSet<i64> = values.iter().copied().collect();
            prop_assert_eq!(list.len(), expected.len());
            for value in values.iter().chain(&strangers).chain(&[i64::MIN, i64::MAX]) {
                prop_assert_eq!(list.contains(&Val::Int(*value)), expected.contains(value));
                if let Ok(unsigned) = u64::try_from(*value) {
                    prop_assert_eq!(list.contains(&Val::Uint(unsigned)), expected.contains(value));
                }
            }
            prop_assert!(!list.contains(&Val::Uint(u64::MAX)));
        }

        #[test]
        fn any_bytes_are_a_list_or_an_error(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = ValueList::parse(ListType::String, &text);
            let _ = ValueList::parse(ListType::Int, &text);
        }
    }

    #[test]
    fn a_file_has_a_value_in_each_line() {
        let list =
            ValueList::parse(ListType::String, b"# blocked\r\n\n alpha\r\nbeta gamma \n#delta").unwrap();
        assert_eq!(list.len(), 2);
        assert!(list.contains(&Val::String("alpha")) && list.contains(&Val::String("beta gamma")));
        let ints = ValueList::parse(ListType::Int, b"1\n-2\n").unwrap();
        assert!(ints.contains(&Val::Int(-2)) && !ints.contains(&Val::Int(2)));
        let wrong = ValueList::parse(ListType::Int, b"1\n# two\ntwo").unwrap_err();
        assert_eq!(wrong.to_string(), "line 3: \"two\" is not an integer of 64 bits");
        let wrong = ValueList::parse(ListType::String, b"a\n\xff\n").unwrap_err();
        assert_eq!(wrong, ListError::Text { line: 2 });
    }

    #[test]
    fn a_large_list_takes_a_dozen_bytes_for_each_value_beside_its_text() {
        let text: String = (0..100_000).map(|i| format!("key-{i:012}\n")).collect();
        let list = ValueList::parse(ListType::String, text.as_bytes()).unwrap();
        assert_eq!(list.len(), 100_000);
        assert!(list.memory_bytes() <= 100_000 * (16 + 1 + 11));
    }
}
