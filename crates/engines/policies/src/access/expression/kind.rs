//! Types of expressions.

use std::fmt;
use std::sync::Arc;

use provost_schema::{Cardinality, EnumId, Field, MessageId, Schema, Type};

/// The type of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExpressionKind {
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    /// A number, with names for some of them.
    Enum(EnumId, Arc<str>),
    Message(MessageId, Arc<str>),
    List(Box<ExpressionKind>),
    Map(Box<ExpressionKind>, Box<ExpressionKind>),
    /// A list of values that the operator named.
    ValueList,
    /// Something that has members but is no value: `peer`, `app`, `lists`.
    Namespace(&'static str),
}

impl ExpressionKind {
    /// Of a value, or of an element.
    pub(crate) fn of(ty: Type, schema: &Schema) -> ExpressionKind {
        match ty {
            Type::Bool => ExpressionKind::Bool,
            Type::Int32 | Type::Sint32 | Type::Sfixed32 => ExpressionKind::Int,
            Type::Int64 | Type::Sint64 | Type::Sfixed64 => ExpressionKind::Int,
            Type::Uint32 | Type::Fixed32 | Type::Uint64 | Type::Fixed64 => ExpressionKind::Uint,
            Type::Float | Type::Double => ExpressionKind::Double,
            Type::String => ExpressionKind::String,
            Type::Bytes => ExpressionKind::Bytes,
            Type::Enum(id) => ExpressionKind::Enum(id, schema.enumeration(id).full_name.as_str().into()),
            Type::Message(id) => ExpressionKind::message(id, schema),
        }
    }

    pub(crate) fn message(id: MessageId, schema: &Schema) -> ExpressionKind {
        ExpressionKind::Message(id, schema.message(id).full_name.as_str().into())
    }

    pub(crate) fn of_field(field: &Field, schema: &Schema) -> ExpressionKind {
        let value = ExpressionKind::of(field.ty, schema);
        match &field.cardinality {
            Cardinality::Repeated { .. } => ExpressionKind::List(Box::new(value)),
            Cardinality::Map(pair) => {
                ExpressionKind::Map(Box::new(ExpressionKind::of(pair.key, schema)), Box::new(value))
            }
            _ => value,
        }
    }

    pub(crate) fn is_number(&self) -> bool {
        matches!(
            self,
            ExpressionKind::Int | ExpressionKind::Uint | ExpressionKind::Double | ExpressionKind::Enum(..)
        )
    }

    /// Of one value that can be compared.
    pub(crate) fn is_scalar(&self) -> bool {
        self.is_number()
            || matches!(
                self,
                ExpressionKind::Bool | ExpressionKind::String | ExpressionKind::Bytes
            )
    }

    /// Whether values of both can be compared: numbers of all types with each other, others with their like.
    pub(crate) fn is_comparable(&self, other: &ExpressionKind) -> bool {
        (self.is_number() && other.is_number()) || (self.is_scalar() && self == other)
    }

    /// With its article, for people.
    pub(crate) fn a(&self) -> String {
        match self {
            ExpressionKind::Int | ExpressionKind::Enum(..) => format!("an {self}"),
            _ => format!("a {self}"),
        }
    }

    /// The type as which arithmetic treats it.
    pub(crate) fn arithmetic(&self) -> ExpressionKind {
        match self {
            ExpressionKind::Enum(..) => ExpressionKind::Int,
            other => other.clone(),
        }
    }
}

impl fmt::Display for ExpressionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExpressionKind::Bool => f.write_str("bool"),
            ExpressionKind::Int => f.write_str("int"),
            ExpressionKind::Uint => f.write_str("uint"),
            ExpressionKind::Double => f.write_str("double"),
            ExpressionKind::String => f.write_str("string"),
            ExpressionKind::Bytes => f.write_str("bytes"),
            ExpressionKind::Enum(_, name) => write!(f, "enum {name}"),
            ExpressionKind::Message(_, name) => write!(f, "message {name}"),
            ExpressionKind::List(element) => write!(f, "list({element})"),
            ExpressionKind::Map(key, value) => write!(f, "map({key}, {value})"),
            ExpressionKind::ValueList => f.write_str("value list"),
            ExpressionKind::Namespace(name) => write!(f, "namespace {name}"),
        }
    }
}
