//! One service of a schema with what it reaches, in canonical order.

use std::collections::HashMap;

use crate::{EnumId, Message, MessageId, Schema, SchemaHash, Service, Slot, Type};

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
        let reached = Reached::from(self, &service);
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
        self.for_service(full_name).map(|schema| SchemaHash::of(&schema))
    }
}

/// The types that a service reaches, in canonical order, with their new numbers.
#[derive(Default)]
struct Reached {
    messages: Vec<MessageId>,
    message_ids: HashMap<MessageId, MessageId>,
    enums: Vec<EnumId>,
    enum_ids: HashMap<EnumId, EnumId>,
}

impl Reached {
    /// Walks depth first, with a stack of its own: a chain of messages may be as long as a schema has messages.
    fn from(schema: &Schema, service: &Service) -> Self {
        let mut reached = Reached::default();
        let roots = service
            .methods
            .iter()
            .flat_map(|method| [method.input, method.output]);
        for root in roots {
            let mut stack = vec![Type::Message(root)];
            while let Some(ty) = stack.pop() {
                if let Some(id) = reached.visit(ty) {
                    let mut fields: Vec<_> = schema.message(id).fields().collect();
                    fields.sort_by_key(|field| std::cmp::Reverse(field.number));
                    stack.extend(fields.into_iter().map(|field| field.ty));
                }
            }
        }
        reached
    }

    /// Numbers a type that is met for the first time; returns it when it is a message.
    fn visit(&mut self, ty: Type) -> Option<MessageId> {
        match ty {
            Type::Message(id) if !self.message_ids.contains_key(&id) => {
                self.message_ids.insert(id, MessageId(self.messages.len() as u32));
                self.messages.push(id);
                Some(id)
            }
            Type::Enum(id) if !self.enum_ids.contains_key(&id) => {
                self.enum_ids.insert(id, EnumId(self.enums.len() as u32));
                self.enums.push(id);
                None
            }
            _ => None,
        }
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
        match ty {
            Type::Message(id) => *id = self.message_ids[id],
            Type::Enum(id) => *id = self.enum_ids[id],
            _ => {}
        }
    }
}
