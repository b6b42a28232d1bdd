//! Types of expressions.

use std::fmt;
use std::sync::Arc;

use provost_schema::{Cardinality, EnumId, Field, MessageId, Schema, Type};

/// The type of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    /// A number, with names for some of them.
    Enum(EnumId, Arc<str>),
    Message(MessageId, Arc<str>),
    List(Box<Kind>),
    Map(Box<Kind>, Box<Kind>),
    /// A list of values that the operator named.
    ValueList,
    /// Something that has members but is no value: `peer`, `app`, `lists`.
    Namespace(&'static str),
}

impl Kind {
    /// Of a value, or of an element.
    pub(crate) fn of(ty: Type, schema: &Schema) -> Kind {
        match ty {
            Type::Bool => Kind::Bool,
            Type::Int32 | Type::Sint32 | Type::Sfixed32 => Kind::Int,
            Type::Int64 | Type::Sint64 | Type::Sfixed64 => Kind::Int,
            Type::Uint32 | Type::Fixed32 | Type::Uint64 | Type::Fixed64 => Kind::Uint,
            Type::Float | Type::Double => Kind::Double,
            Type::String => Kind::String,
            Type::Bytes => Kind::Bytes,
            Type::Enum(id) => Kind::Enum(id, schema.enumeration(id).full_name.as_str().into()),
            Type::Message(id) => Kind::message(id, schema),
        }
    }

    pub(crate) fn message(id: MessageId, schema: &Schema) -> Kind {
        Kind::Message(id, schema.message(id).full_name.as_str().into())
    }

    pub(crate) fn of_field(field: &Field, schema: &Schema) -> Kind {
        let value = Kind::of(field.ty, schema);
        match &field.cardinality {
            Cardinality::Repeated { .. } => Kind::List(Box::new(value)),
            Cardinality::Map(pair) => Kind::Map(Box::new(Kind::of(pair.key, schema)), Box::new(value)),
            _ => value,
        }
    }

    pub(crate) fn is_number(&self) -> bool {
        matches!(self, Kind::Int | Kind::Uint | Kind::Double | Kind::Enum(..))
    }

    /// Of one value that can be compared.
    pub(crate) fn is_scalar(&self) -> bool {
        self.is_number() || matches!(self, Kind::Bool | Kind::String | Kind::Bytes)
    }

    /// Whether values of both can be compared: numbers of all types with each other, others with their like.
    pub(crate) fn is_comparable(&self, other: &Kind) -> bool {
        (self.is_number() && other.is_number()) || (self.is_scalar() && self == other)
    }

    /// With its article, for people.
    pub(crate) fn a(&self) -> String {
        match self {
            Kind::Int | Kind::Enum(..) => format!("an {self}"),
            _ => format!("a {self}"),
        }
    }

    /// The type as which arithmetic treats it.
    pub(crate) fn arithmetic(&self) -> Kind {
        match self {
            Kind::Enum(..) => Kind::Int,
            other => other.clone(),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Bool => f.write_str("bool"),
            Kind::Int => f.write_str("int"),
            Kind::Uint => f.write_str("uint"),
            Kind::Double => f.write_str("double"),
            Kind::String => f.write_str("string"),
            Kind::Bytes => f.write_str("bytes"),
            Kind::Enum(_, name) => write!(f, "enum {name}"),
            Kind::Message(_, name) => write!(f, "message {name}"),
            Kind::List(element) => write!(f, "list({element})"),
            Kind::Map(key, value) => write!(f, "map({key}, {value})"),
            Kind::ValueList => f.write_str("value list"),
            Kind::Namespace(name) => write!(f, "namespace {name}"),
        }
    }
}
