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
pub(crate) enum Node {
    Constant(Constant),
    /// A field of one value.
    Field(Box<FieldOf>, Absent),
    Present(Box<FieldOf>, Presence),
    /// The value or the message that a quantifier is at.
    Variable(u8),
    Metadata(Box<str>),
    HasMetadata(Box<str>),
    Not(Box<Node>),
    And(Box<[Node; 2]>),
    Or(Box<[Node; 2]>),
    If(Box<[Node; 3]>),
    Compare(Comparison, Box<[Node; 2]>),
    Arithmetic(Operation, Box<[Node; 2]>),
    Negate(Box<Node>),
    Convert(Conversion, Box<Node>),
    Text(TextTest, Box<[Node; 2]>),
    Matches(Box<Node>, Box<Regex>),
    /// Of a string in characters, of bytes in bytes.
    Length(Box<Node>),
    /// Elements of a list, pairs of a map, or bytes of a bytes field: known without looking at any of them.
    Count(Box<FieldOf>),
    /// Whether an address lies in a network.
    InNetwork(Box<Node>, AddressNetwork),
    /// Whether it is now that part of the day.
    InDayPart(DayPart),
    /// The day of the week.
    Weekday(ClockOffset),
    /// Seconds since 1970.
    UnixTime,
    InConstants(Box<Node>, ConstantSet),
    InValues(Box<Node>, Box<[Node]>),
    InValueList(Box<Node>, Arc<ValueList>),
    InElements(Box<Node>, Box<FieldOf>),
    InKeys(Box<Node>, Box<FieldOf>),
    /// The element of a list, or the value of a map, if that is one value.
    Element(Box<Entry>),
    Quantified(Box<Quantified>),
}

/// A field of a message that is found first.
#[derive(Debug)]
pub(crate) struct FieldOf {
    pub(crate) base: Base,
    pub(crate) path: FieldPath,
}

/// Where a path begins.
#[derive(Debug)]
pub(crate) enum Base {
    /// At the message that is judged.
    Message,
    /// At the message that a quantifier is at.
    Variable(u8),
    /// At an element of a list or a value of a map.
    Entry(Box<Entry>),
}

/// One of a list or of a map.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) collection: FieldOf,
    pub(crate) key: Node,
    pub(crate) by: By,
}

/// How an entry is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Index,
    Key,
}

/// What a field has when it is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    False,
    Int,
    Uint,
    Double,
    String,
    Bytes,
}

impl Absent {
    pub(crate) fn val(self) -> Val<'static> {
        match self {
            Absent::False => Val::Bool(false),
            Absent::Int => Val::Int(0),
            Absent::Uint => Val::Uint(0),
            Absent::Double => Val::Double(0.0),
            Absent::String => Val::String(""),
            Absent::Bytes => Val::Bytes(b""),
        }
    }
}

/// What `has` means for a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// It has presence, and is present.
    Set,
    /// It has none, and is not its default.
    NotDefault(Absent),
    /// It is a list or a map with elements.
    NotEmpty,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
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
    pub(crate) over: Over,
    /// The variable that the body reads.
    pub(crate) slot: u8,
    pub(crate) body: Node,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantifier {
    All,
    Exists,
    ExistsOne,
}

/// What a quantifier goes over.
#[derive(Debug)]
pub(crate) enum Over {
    Elements(FieldOf),
    Messages(FieldOf),
    Keys(FieldOf),
    Values(Box<[Node]>),
}

impl Node {
    pub(crate) fn constant(&self) -> Option<Val<'_>> {
        match self {
            Node::Constant(constant) => Some(constant.val()),
            _ => None,
        }
    }

    /// Whether it reads nothing of a call, so that it always has the same value.
    pub(crate) fn is_fixed(&self) -> bool {
        let all = |nodes: &[Node]| nodes.iter().all(Node::is_fixed);
        match self {
            Node::Constant(_) | Node::Variable(_) => true,
            Node::Field(..) | Node::Present(..) | Node::Metadata(_) | Node::HasMetadata(_) => false,
            Node::InDayPart(_) | Node::Weekday(_) | Node::UnixTime => false,
            Node::InNetwork(of, _) => of.is_fixed(),
            Node::Count(_) | Node::InElements(..) | Node::InKeys(..) | Node::Element(_) => false,
            Node::Not(of) | Node::Negate(of) | Node::Convert(_, of) | Node::Length(of) => of.is_fixed(),
            Node::Matches(of, _) | Node::InConstants(of, _) | Node::InValueList(of, _) => of.is_fixed(),
            Node::And(of) | Node::Or(of) | Node::Compare(_, of) => all(&**of),
            Node::Arithmetic(_, of) | Node::Text(_, of) => all(&**of),
            Node::If(of) => all(&**of),
            Node::InValues(of, values) => of.is_fixed() && all(values),
            Node::Quantified(of) => match &of.over {
                Over::Values(values) => all(values) && of.body.is_fixed(),
                _ => false,
            },
        }
    }
}
