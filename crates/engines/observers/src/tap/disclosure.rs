//! Which fields of a service's calls a tap shows, and which it hides, as far as the schema tells.

use std::collections::BTreeSet;

use provost_engine::{CallDisclosure, DatapathContext, RecordedField};
use provost_schema::{Field, MessageId, Schema, Type};

use crate::tap::redaction::{CompiledRedaction, HiddenFields};

/// Messages of one service that are looked at, at most: each once for each way in which its fields are hidden.
const MESSAGES_MAX: usize = 4096;

/// What a tap records of a service's methods; `sampled` says for each of them whether it samples its calls.
pub(crate) fn of_service(
    redaction: &CompiledRedaction,
    datapath_context: &DatapathContext,
    sampled: &[bool],
) -> CallDisclosure {
    let mut survey = FieldSurvey {
        schema: &datapath_context.schema,
        redaction,
        visited: BTreeSet::new(),
        found: CallDisclosure {
            hidden_metadata: redaction.metadata.clone(),
            ..CallDisclosure::default()
        },
    };
    let methods = datapath_context.methods.iter().zip(&*datapath_context.scope);
    for ((method, is_in_scope), is_sampled) in methods.zip(sampled) {
        if *is_in_scope && *is_sampled {
            survey.visit(method.input, &format!("the request of {}", method.path));
            survey.visit(method.output, &format!("the response of {}", method.path));
        }
    }
    survey.found
}

struct FieldSurvey<'a> {
    schema: &'a Schema,
    redaction: &'a CompiledRedaction,
    /// Messages that were looked at, each with what is hidden in it. (A message may have itself in it.)
    visited: BTreeSet<(u32, Vec<usize>)>,
    found: CallDisclosure,
}

impl FieldSurvey<'_> {
    /// Looks at all fields below a request or a response.
    fn visit(&mut self, root: MessageId, whose: &str) {
        let mut pending = vec![(root, HiddenFields::of_root(self.redaction, root), String::new())];
        while let Some((message, hidden, path)) = pending.pop() {
            let is_new = self.visited.insert((message.0, hidden.identities()));
            if !is_new || self.visited.len() > MESSAGES_MAX {
                continue;
            }
            for field in self.schema.message(message).fields() {
                let recorded = self.recorded(message, field, &format!("{path}{} in {whose}", field.name));
                let Some(inside) = hidden.of_field(self.redaction, field) else {
                    self.found.hidden.insert(recorded);
                    continue;
                };
                if let Type::Message(inner) = field.ty {
                    pending.push((inner, inside, format!("{path}{}.", field.name)));
                }
                if self.is_readable(field) {
                    self.found.shown.insert(recorded);
                }
            }
        }
    }

    fn recorded(&self, message: MessageId, field: &Field, place: &str) -> RecordedField {
        RecordedField {
            message: self.schema.message(message).full_name.clone(),
            name: field.name.clone(),
            type_name: self.type_name(field.ty),
            place: place.to_owned(),
        }
    }

    fn type_name(&self, field_type: Type) -> String {
        match field_type {
            Type::Message(message) => self.schema.message(message).full_name.clone(),
            Type::Enum(enumeration) => self.schema.enumeration(enumeration).full_name.clone(),
            scalar => format!("{scalar:?}").to_ascii_lowercase(),
        }
    }

    /// Whether a value that is shown tells something: one that is shown by its length does not.
    fn is_readable(&self, field: &Field) -> bool {
        match field.ty {
            Type::Bool => false,
            Type::Bytes => !self.redaction.bytes,
            _ => true,
        }
    }
}
