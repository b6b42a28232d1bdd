//! One service of a schema with what it reaches, in canonical order.

use std::collections::HashMap;

use provost_wire::limits::SCHEMA_REACH_MAX;

use crate::bounds::too_many;
use crate::{EnumId, Message, MessageId, Schema, SchemaErrorKind, SchemaHash, Service, Slot, Type};

impl Schema {
    /// The service of this full name.
    pub fn service(&self, full_name: &str) -> Option<&Service> {
        self.services
            .iter()
            .find(|service| service.full_name == full_name)
    }

    /// A schema of this service alone and the types that it reaches. Its types are numbered in the order in which
    /// a depth-first walk first meets them: methods in source order, a request before its response, a message
    /// before its fields, fields by ascending number. Two nodes with the same schema thus have the same numbers.
    pub fn for_service(&self, full_name: &str) -> Option<Schema> {
        let mut service = self.service(full_name)?.clone();
        let reached = Reached::by(self, &service, &mut { usize::MAX })?;
        for method in &mut service.methods {
            method.input = reached.message_ids[&method.input];
            method.output = reached.message_ids[&method.output];
        }
        let mut messages: Vec<Message> = reached
            .messages
            .iter()
            .map(|id| self.message(*id).clone())
            .collect();
        messages.iter_mut().for_each(|message| reached.renumber(message));
        let enums = reached
            .enums
            .iter()
            .map(|id| self.enumeration(*id).clone())
            .collect();
        Some(Schema {
            messages,
            enums,
            services: vec![service],
        })
    }

    /// The hash of [`Schema::for_service`]: over names, numbers, types, cardinality, packing, oneofs, methods and
    /// their streaming, not over comments, files or the order of declarations other than methods.
    pub fn service_hash(&self, full_name: &str) -> Option<SchemaHash> {
        let service = self.service(full_name)?;
        let reached = Reached::by(self, service, &mut { usize::MAX })?;
        Some(SchemaHash::of(self, service, &reached))
    }

    /// The hash of each service, in their order. Each takes time in proportion to what its service reaches, and a schema
    /// can have all its services reach all its types: one where that sums up to more than
    /// [`SCHEMA_REACH_MAX`] is refused, before more than that was looked at.
    pub fn service_hashes(&self) -> Result<Vec<SchemaHash>, SchemaErrorKind> {
        let mut left = SCHEMA_REACH_MAX;
        // All are walked before the first is hashed, which takes far longer.
        let reached: Option<Vec<_>> = self
            .services
            .iter()
            .map(|service| Reached::by(self, service, &mut left))
            .collect();
        let reached = reached.ok_or(too_many(
            "types, fields and values that services reach, counted for each service",
            SCHEMA_REACH_MAX,
        ))?;
        let services = self.services.iter().zip(&reached);
        Ok(services
            .map(|(service, reached)| SchemaHash::of(self, service, reached))
            .collect())
    }
}

/// The types that a service reaches, in canonical order, with their new numbers.
#[derive(Default)]
pub(crate) struct Reached {
    pub(crate) messages: Vec<MessageId>,
    message_ids: HashMap<MessageId, MessageId>,
    pub(crate) enums: Vec<EnumId>,
    enum_ids: HashMap<EnumId, EnumId>,
}

impl Reached {
    /// Walks depth first, with a stack of its own: a chain of messages may be as long as a schema has messages. Each
    /// method, message, field, enum and value is taken off `left`; `None` when that is not enough.
    fn by(schema: &Schema, service: &Service, left: &mut usize) -> Option<Self> {
        let mut reached = Reached::default();
        *left = left.checked_sub(1 + service.methods.len())?;
        let roots = service
            .methods
            .iter()
            .flat_map(|method| [method.input, method.output]);
        for root in roots {
            let mut stack = vec![Type::Message(root)];
            while let Some(ty) = stack.pop() {
                match ty {
                    Type::Message(id) if reached.is_new_message(id) => {
                        let mut fields: Vec<_> = schema.message(id).fields().collect();
                        *left = left.checked_sub(1 + fields.len())?;
                        fields.sort_by_key(|field| std::cmp::Reverse(field.number));
                        stack.extend(fields.into_iter().map(|field| field.ty));
                    }
                    Type::Enum(id) if reached.is_new_enum(id) => {
                        *left = left.checked_sub(1 + schema.enumeration(id).values.len())?;
                    }
                    _ => {}
                }
            }
        }
        Some(reached)
    }

    /// Numbers a message that is met for the first time.
    fn is_new_message(&mut self, id: MessageId) -> bool {
        let is_new = !self.message_ids.contains_key(&id);
        if is_new {
            self.message_ids.insert(id, MessageId(self.messages.len() as u32));
            self.messages.push(id);
        }
        is_new
    }

    /// Numbers an enum that is met for the first time.
    fn is_new_enum(&mut self, id: EnumId) -> bool {
        let is_new = !self.enum_ids.contains_key(&id);
        if is_new {
            self.enum_ids.insert(id, EnumId(self.enums.len() as u32));
            self.enums.push(id);
        }
        is_new
    }

    fn renumber(&self, message: &mut Message) {
        for slot in &mut message.slots {
            match slot {
                Slot::Field(field) => self.renumber_type(&mut field.ty),
                Slot::Oneof(oneof) => {
                    oneof
                        .members
                        .iter_mut()
                        .for_each(|member| self.renumber_type(&mut member.ty));
                }
            }
        }
    }

    fn renumber_type(&self, ty: &mut Type) {
        *ty = self.renumbered(*ty);
    }

    /// A type that the service reaches, by its canonical number.
    pub(crate) fn renumbered(&self, ty: Type) -> Type {
        match ty {
            Type::Message(id) => Type::Message(self.message_ids[&id]),
            Type::Enum(id) => Type::Enum(self.enum_ids[&id]),
            scalar => scalar,
        }
    }

    /// The canonical number of a message that the service reaches.
    pub(crate) fn message_number(&self, id: MessageId) -> u32 {
        self.message_ids[&id].0
    }
}
