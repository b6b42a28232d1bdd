//! The compiled form.

use std::sync::Arc;

use provost_marshal::FieldPath;
use regex::Regex;

use super::constant::{Constant, ConstantSet};
use super::network::AddressNetwork;
use super::time::{ClockOffset, DayPart};
use super::value::Val;
use crate::access::lists::ValueList;

/// An expression whose types were checked.
#[derive(Debug)]
pub(crate) enum CheckedNode {
    Constant(Constant),
    /// A field of one value.
    Field(Box<FieldOf>, AbsentValue),
    Present(Box<FieldOf>, PresenceTest),
    /// The value or the message that a quantifier is at.
    Variable(u8),
    Metadata(Box<str>),
    HasMetadata(Box<str>),
    Not(Box<CheckedNode>),
    And(Box<[CheckedNode; 2]>),
    Or(Box<[CheckedNode; 2]>),
    If(Box<[CheckedNode; 3]>),
    Compare(ComparisonOperator, Box<[CheckedNode; 2]>),
    Arithmetic(ArithmeticOperator, Box<[CheckedNode; 2]>),
    Negate(Box<CheckedNode>),
    Convert(Conversion, Box<CheckedNode>),
    Text(TextTest, Box<[CheckedNode; 2]>),
    Matches(Box<CheckedNode>, Arc<Regex>),
    /// Of a string in characters, of bytes in bytes.
    Length(Box<CheckedNode>),
    /// Elements of a list, pairs of a map, or bytes of a bytes field: known without looking at any of them.
    Count(Box<FieldOf>),
    /// Whether an address lies in a network.
    InNetwork(Box<CheckedNode>, AddressNetwork),
    /// Whether it is now that part of the day.
    InDayPart(DayPart),
    /// The day of the week.
    Weekday(ClockOffset),
    /// Seconds since 1970.
    UnixTime,
    InConstants(Box<CheckedNode>, ConstantSet),
    InValues(Box<CheckedNode>, Box<[CheckedNode]>),
    InValueList(Box<CheckedNode>, Arc<ValueList>),
    InElements(Box<CheckedNode>, Box<FieldOf>),
    InKeys(Box<CheckedNode>, Box<FieldOf>),
    /// The element of a list, or the value of a map, if that is one value.
    Element(Box<PathEntry>),
    Quantified(Box<Quantified>),
}

/// A field of a message that is found first.
#[derive(Debug)]
pub(crate) struct FieldOf {
    pub(crate) base: PathBase,
    pub(crate) path: FieldPath,
}

/// Where a path begins.
#[derive(Debug)]
pub(crate) enum PathBase {
    /// At the message that is judged.
    Message,
    /// At the message that a quantifier is at.
    Variable(u8),
    /// At an element of a list or a value of a map.
    Entry(Box<PathEntry>),
}

/// One of a list or of a map.
#[derive(Debug)]
pub(crate) struct PathEntry {
    pub(crate) collection: FieldOf,
    pub(crate) key: CheckedNode,
    pub(crate) by: EntryKey,
}

/// How an entry is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKey {
    Index,
    Key,
}

/// What a field has when it is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AbsentValue {
    False,
    Int,
    Uint,
    Double,
    String,
    Bytes,
}

impl AbsentValue {
    pub(crate) fn val(self) -> Val<'static> {
        match self {
            AbsentValue::False => Val::Bool(false),
            AbsentValue::Int => Val::Int(0),
            AbsentValue::Uint => Val::Uint(0),
            AbsentValue::Double => Val::Double(0.0),
            AbsentValue::String => Val::String(""),
            AbsentValue::Bytes => Val::Bytes(b""),
        }
    }
}

/// What `has` means for a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PresenceTest {
    /// It has presence, and is present.
    Set,
    /// It has none, and is not its default.
    NotDefault(AbsentValue),
    /// It is a list or a map with elements.
    NotEmpty,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ComparisonOperator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArithmeticOperator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conversion {
    Int,
    Uint,
    Double,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextTest {
    StartsWith,
    EndsWith,
    Contains,
}

/// `all`, `exists` and `exists_one`.
#[derive(Debug)]
pub(crate) struct Quantified {
    pub(crate) quantifier: Quantifier,
    pub(crate) over: QuantifierRange,
    /// The variable that the body reads.
    pub(crate) slot: u8,
    /// What the body costs for each element, without what it goes over itself.
    pub(crate) steps: u32,
    pub(crate) body: CheckedNode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantifier {
    All,
    Exists,
    ExistsOne,
}

/// What a quantifier goes over.
#[derive(Debug)]
pub(crate) enum QuantifierRange {
    Elements(FieldOf),
    Messages(FieldOf),
    Keys(FieldOf),
    Values(Box<[CheckedNode]>),
}

impl CheckedNode {
    pub(crate) fn constant(&self) -> Option<Val<'_>> {
        match self {
            CheckedNode::Constant(constant) => Some(constant.val()),
            _ => None,
        }
    }

    /// Whether it reads nothing of a call, so that it always has the same value.
    pub(crate) fn is_fixed(&self) -> bool {
        let all = |nodes: &[CheckedNode]| nodes.iter().all(CheckedNode::is_fixed);
        match self {
            CheckedNode::Constant(_) | CheckedNode::Variable(_) => true,
            CheckedNode::Field(..)
            | CheckedNode::Present(..)
            | CheckedNode::Metadata(_)
            | CheckedNode::HasMetadata(_) => false,
            CheckedNode::InDayPart(_) | CheckedNode::Weekday(_) | CheckedNode::UnixTime => false,
            CheckedNode::InNetwork(of, _) => of.is_fixed(),
            CheckedNode::Count(_)
            | CheckedNode::InElements(..)
            | CheckedNode::InKeys(..)
            | CheckedNode::Element(_) => false,
            CheckedNode::Not(of)
            | CheckedNode::Negate(of)
            | CheckedNode::Convert(_, of)
            | CheckedNode::Length(of) => of.is_fixed(),
            CheckedNode::Matches(of, _)
            | CheckedNode::InConstants(of, _)
            | CheckedNode::InValueList(of, _) => of.is_fixed(),
            CheckedNode::And(of) | CheckedNode::Or(of) | CheckedNode::Compare(_, of) => all(&**of),
            CheckedNode::Arithmetic(_, of) | CheckedNode::Text(_, of) => all(&**of),
            CheckedNode::If(of) => all(&**of),
            CheckedNode::InValues(of, values) => of.is_fixed() && all(values),
            CheckedNode::Quantified(of) => match &of.over {
                QuantifierRange::Values(values) => all(values) && of.body.is_fixed(),
                _ => false,
            },
        }
    }

    /// How many values, fields and operators it is made of, each of which may be looked at in an evaluation. What quantifiers in it
    /// do for each element is not among them.
    pub(crate) fn parts(&self) -> u32 {
        let all = |nodes: &[CheckedNode]| nodes.iter().map(CheckedNode::parts).sum::<u32>();
        let within = match self {
            CheckedNode::Constant(_)
            | CheckedNode::Variable(_)
            | CheckedNode::Metadata(_)
            | CheckedNode::HasMetadata(_)
            | CheckedNode::InDayPart(_)
            | CheckedNode::Weekday(_)
            | CheckedNode::UnixTime => 0,
            CheckedNode::Field(field, _) | CheckedNode::Present(field, _) | CheckedNode::Count(field) => {
                field.parts()
            }
            CheckedNode::Element(entry) => entry.parts(),
            CheckedNode::InElements(of, field) | CheckedNode::InKeys(of, field) => of.parts() + field.parts(),
            CheckedNode::Not(of)
            | CheckedNode::Negate(of)
            | CheckedNode::Convert(_, of)
            | CheckedNode::Length(of)
            | CheckedNode::InNetwork(of, _)
            | CheckedNode::Matches(of, _)
            | CheckedNode::InValueList(of, _) => of.parts(),
            CheckedNode::InConstants(of, set) => of.parts() + set.comparisons(),
            CheckedNode::And(of) | CheckedNode::Or(of) | CheckedNode::Compare(_, of) => all(&**of),
            CheckedNode::Arithmetic(_, of) | CheckedNode::Text(_, of) => all(&**of),
            CheckedNode::If(of) => all(&**of),
            CheckedNode::InValues(of, values) => of.parts() + all(values),
            CheckedNode::Quantified(of) => match &of.over {
                QuantifierRange::Values(values) => all(values),
                QuantifierRange::Elements(field)
                | QuantifierRange::Messages(field)
                | QuantifierRange::Keys(field) => field.parts(),
            },
        };
        1 + within
    }
}

impl FieldOf {
    fn parts(&self) -> u32 {
        match &self.base {
            PathBase::Message | PathBase::Variable(_) => 0,
            PathBase::Entry(entry) => entry.parts(),
        }
    }
}

impl PathEntry {
    fn parts(&self) -> u32 {
        self.collection.parts() + self.key.parts()
    }
}
