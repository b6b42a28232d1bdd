//! The identity of a service's schema: SHA-256 over a canonical serialization of the service and what it reaches.

use std::fmt;
use std::str::FromStr;

/// What two nodes compare to know that they speak of the same service in the same layout.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SchemaHash(pub [u8; 32]);

impl SchemaHash {
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
