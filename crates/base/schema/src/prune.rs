//! One service of a schema with what it reaches, in canonical order.

use crate::{Schema, SchemaHash, Service};

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
        let _ = full_name;
        todo!()
    }

    /// The hash of [`Schema::for_service`]: over names, numbers, types, cardinality, packing, oneofs, methods and
    /// their streaming, not over comments, files or the order of declarations other than methods.
    pub fn service_hash(&self, full_name: &str) -> Option<SchemaHash> {
        let _ = full_name;
        todo!()
    }
}
