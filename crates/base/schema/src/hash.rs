//! The identity of a service's schema: SHA-256 over a canonical serialization of the service and what it reaches.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::prune::Reached;
use crate::{Cardinality, Enum, Field, Message, Schema, Service, Slot, Type};

/// What the hashed bytes begin with; another serialization gets another.
const DOMAIN: &[u8] = b"provost schema 1\n";

/// What two nodes compare to know that they speak of the same service in the same layout.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SchemaHash(pub [u8; 32]);

impl SchemaHash {
    /// Hashes a service and what it reaches, as [`Schema::for_service`] has them, without making that.
    pub(crate) fn of(schema: &Schema, service: &Service, reached: &Reached) -> SchemaHash {
        let mut serializer = Serializer {
            digest: Sha256::new_with_prefix(DOMAIN),
            reached,
        };
        serializer.list(&[service], |serializer, service| serializer.service(service));
        serializer.list(&reached.messages, |serializer, id| {
            serializer.message(schema.message(*id));
        });
        serializer.list(&reached.enums, |serializer, id| {
            serializer.enumeration(schema.enumeration(*id));
        });
        SchemaHash(serializer.digest.finalize().into())
    }

    /// Its bytes, as in the handshake.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Text or bytes that are no schema hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HashError {
    /// The wrong number of bytes.
    #[error("a schema hash has 32 bytes (64 hexadecimal digits), not {0}; copy it whole")]
    Length(usize),
    /// Something that is not a hexadecimal digit.
    #[error("a schema hash is written in hexadecimal digits; the one at place {0} is not")]
    Digit(usize),
}

impl fmt::Display for SchemaHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for SchemaHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SchemaHash({self})")
    }
}

impl TryFrom<&[u8]> for SchemaHash {
    type Error = HashError;

    fn try_from(bytes: &[u8]) -> Result<Self, HashError> {
        <[u8; 32]>::try_from(bytes)
            .map(SchemaHash)
            .map_err(|_| HashError::Length(bytes.len()))
    }
}

impl FromStr for SchemaHash {
    type Err = HashError;

    fn from_str(text: &str) -> Result<Self, HashError> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(HashError::Length(digits.len() / 2));
        }
        let mut bytes = [0; 32];
        for (place, digit) in digits.iter().enumerate() {
            let value = char::from(*digit).to_digit(16).ok_or(HashError::Digit(place))?;
            bytes[place / 2] = bytes[place / 2] << 4 | value as u8;
        }
        Ok(SchemaHash(bytes))
    }
}

/// Writes what means the same in every file order: words are little-endian `u32`, texts and lists follow their length.
struct Serializer<'a> {
    digest: Sha256,
    /// The canonical numbers of types.
    reached: &'a Reached,
}

impl Serializer<'_> {
    fn word(&mut self, word: u32) {
        self.digest.update(word.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.word(text.len() as u32);
        self.digest.update(text);
    }

    fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.word(items.len() as u32);
        items.iter().for_each(|item| write(self, item));
    }

    fn service(&mut self, service: &Service) {
        self.text(&service.full_name);
        self.list(&service.methods, |serializer, method| {
            serializer.text(&method.name);
            serializer.word(serializer.reached.message_number(method.input));
            serializer.word(serializer.reached.message_number(method.output));
            serializer.word(u32::from(method.client_streaming) | u32::from(method.server_streaming) << 1);
        });
    }

    fn enumeration(&mut self, enumeration: &Enum) {
        self.text(&enumeration.full_name);
        let mut values: Vec<_> = enumeration
            .values
            .iter()
            .map(|value| (value.number, &value.name))
            .collect();
        values.sort();
        self.list(&values, |serializer, (number, name)| {
            serializer.word(*number as u32);
            serializer.text(name);
        });
    }

    fn message(&mut self, message: &Message) {
        self.text(&message.full_name);
        self.list(&message.slots, |serializer, slot| match slot {
            Slot::Field(field) => {
                serializer.word(0);
                serializer.field(field);
            }
            Slot::Oneof(oneof) => {
                serializer.word(1);
                serializer.text(&oneof.name);
                serializer.list(&oneof.members, Self::field);
            }
        });
    }

    fn field(&mut self, field: &Field) {
        self.text(&field.name);
        self.word(field.number);
        self.ty(field.ty);
        match &field.cardinality {
            Cardinality::Implicit => self.word(0),
            Cardinality::Optional { .. } => self.word(1),
            Cardinality::Repeated { packed } => self.word(2 + u32::from(*packed)),
            Cardinality::Map(pair) => {
                self.word(4);
                self.ty(pair.key);
            }
            Cardinality::OneofMember => self.word(5),
        }
    }

    /// Writes a type as its number in `descriptor.proto`, and its index if it has one.
    fn ty(&mut self, ty: Type) {
        let (number, index) = match self.reached.renumbered(ty) {
            Type::Double => (1, None),
            Type::Float => (2, None),
            Type::Int64 => (3, None),
            Type::Uint64 => (4, None),
            Type::Int32 => (5, None),
            Type::Fixed64 => (6, None),
            Type::Fixed32 => (7, None),
            Type::Bool => (8, None),
            Type::String => (9, None),
            Type::Message(id) => (11, Some(id.0)),
            Type::Bytes => (12, None),
            Type::Uint32 => (13, None),
            Type::Enum(id) => (14, Some(id.0)),
            Type::Sfixed32 => (15, None),
            Type::Sfixed64 => (16, None),
            Type::Sint32 => (17, None),
            Type::Sint64 => (18, None),
        };
        self.word(number);
        if let Some(index) = index {
            self.word(index);
        }
    }
}
