//! Values that are known when an expression is compiled.

use std::sync::Arc;

use super::value::Val;

/// Constants that are compared one after the other; more of them are searched by halves.
const LINEAR_MAX: usize = 4;

/// A value that an expression holds itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Constant {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Arc<str>),
    Bytes(Arc<[u8]>),
}

impl Constant {
    pub(crate) fn val(&self) -> Val<'_> {
        match self {
            Constant::Bool(value) => Val::Bool(*value),
            Constant::Int(value) => Val::Int(*value),
            Constant::Uint(value) => Val::Uint(*value),
            Constant::Double(value) => Val::Double(*value),
            Constant::String(value) => Val::String(value),
            Constant::Bytes(value) => Val::Bytes(value),
        }
    }

    /// `None` of a message, which is within a message that is not known yet.
    pub(crate) fn of(val: Val<'_>) -> Option<Constant> {
        Some(match val {
            Val::Bool(value) => Constant::Bool(value),
            Val::Int(value) => Constant::Int(value),
            Val::Uint(value) => Constant::Uint(value),
            Val::Double(value) => Constant::Double(value),
            Val::String(value) => Constant::String(value.into()),
            Val::Bytes(value) => Constant::Bytes(value.into()),
            Val::Message(_) => return None,
        })
    }
}

/// Constants in which a value is looked for.
#[derive(Debug)]
pub(crate) enum ConstantSet {
    Few(Box<[Constant]>),
    Strings(Box<[Arc<str>]>),
    Integers(Box<[i128]>),
}

impl ConstantSet {
    pub(crate) fn new(constants: Vec<Constant>) -> ConstantSet {
        let is_string = |constant: &Constant| matches!(constant, Constant::String(_));
        let integers: Option<Vec<i128>> = constants
            .iter()
            .map(|constant| constant.val().integer())
            .collect();
        match integers {
            _ if constants.len() <= LINEAR_MAX => ConstantSet::Few(constants.into()),
            Some(mut integers) => {
                integers.sort_unstable();
                ConstantSet::Integers(integers.into())
            }
            None if constants.iter().all(is_string) => {
                let text = |constant| match constant {
                    Constant::String(text) => Some(text),
                    _ => None,
                };
                let mut strings: Vec<Arc<str>> = constants.into_iter().filter_map(text).collect();
                strings.sort_unstable();
                ConstantSet::Strings(strings.into())
            }
            None => ConstantSet::Few(constants.into()),
        }
    }

    pub(crate) fn contains(&self, val: &Val<'_>) -> bool {
        match (self, val) {
            (ConstantSet::Strings(all), Val::String(text)) => {
                all.binary_search_by(|known| (**known).cmp(text)).is_ok()
            }
            // Only what is whole can be among them. (What `i128` does not hold is none of theirs, and saturates.)
            (ConstantSet::Integers(all), Val::Double(value)) => {
                value.trunc() == *value && all.binary_search(&(*value as i128)).is_ok()
            }
            (ConstantSet::Integers(all), val) => val
                .integer()
                .is_some_and(|number| all.binary_search(&number).is_ok()),
            (ConstantSet::Few(all), val) => all.iter().any(|known| known.val().equals(val)),
            (ConstantSet::Strings(_), _) => false,
        }
    }

    /// How many constants a value is compared with, at most.
    pub(crate) fn comparisons(&self) -> u32 {
        let halves = |count: usize| (count + 1).ilog2() + 1;
        match self {
            ConstantSet::Few(all) => u32::try_from(all.len()).unwrap_or(u32::MAX),
            ConstantSet::Strings(all) => halves(all.len()),
            ConstantSet::Integers(all) => halves(all.len()),
        }
    }
}
