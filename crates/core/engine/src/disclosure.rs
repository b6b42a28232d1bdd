//! What a policy that records calls shows of their fields and metadata, and what it hides: so that the node can tell an operator, when
//! the policy is attached, where a hidden value is shown all the same.

use std::collections::BTreeSet;

/// What a policy records of the calls of one service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallDisclosure {
    /// Fields whose values it leaves out.
    pub hidden: BTreeSet<RecordedField>,
    /// Fields whose values it records.
    pub shown: BTreeSet<RecordedField>,
    /// Metadata keys that it leaves out; it records all others.
    pub hidden_metadata: BTreeSet<String>,
}

/// A field of a request or a response, at one of the places where it occurs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordedField {
    /// The full name of its message.
    pub message: String,
    /// Its name, as in the `.proto`.
    pub name: String,
    /// The name of its type, as in the `.proto`.
    pub type_name: String,
    /// Where it occurs, for people: `Login: request.user.password`.
    pub place: String,
}

impl RecordedField {
    /// Whether the two are the same field of the same message, wherever they occur.
    #[must_use]
    pub fn is_same_field(&self, other: &RecordedField) -> bool {
        self.message == other.message && self.name == other.name
    }

    /// Whether the two have the same name and type, so that they are likely to hold the same value.
    #[must_use]
    pub fn is_alike(&self, other: &RecordedField) -> bool {
        self.name == other.name && self.type_name == other.type_name
    }
}
