//! A descriptor set on its way to schemas: checked, and then compiled, which takes time and so happens without a lock.

use std::sync::{Arc, OnceLock};

use provost_marshal::Tables;
use provost_schema::{Schema, SchemaHash};
use provost_wire::limits::SCHEMA_BYTES_MAX;

use super::{BoundSchema, StoreError};

/// A set whose services are told apart, and of which no tables were made yet.
pub(super) struct CheckedSet {
    pub(super) schema: Schema,
    pub(super) hashes: Vec<SchemaHash>,
}

impl CheckedSet {
    pub(super) fn check(descriptor_set: &[u8], services_max: usize) -> Result<CheckedSet, StoreError> {
        if descriptor_set.len() > SCHEMA_BYTES_MAX {
            return Err(StoreError::TooLarge {
                bytes: descriptor_set.len(),
            });
        }
        let schema = Schema::from_descriptor_set(descriptor_set)?;
        match schema.services.len() {
            0 => return Err(StoreError::NoService),
            services if services > services_max => {
                return Err(StoreError::Services {
                    services,
                    bound: services_max,
                });
            }
            _ => {}
        }
        let hashes = schema.service_hashes().map_err(StoreError::Reach)?;
        Ok(CheckedSet { schema, hashes })
    }

    pub(super) fn compile(self, descriptor_set: &[u8]) -> Result<Vec<BoundSchema>, StoreError> {
        let tables = Arc::new(Tables::compile(&self.schema)?);
        let (schema, descriptor_set) = (Arc::new(self.schema), Arc::<[u8]>::from(descriptor_set));
        let services = schema.services.iter().zip(self.hashes);
        let bind = |(service, hash): (&provost_schema::Service, SchemaHash)| BoundSchema {
            service: service.full_name.clone(),
            hash,
            schema: Arc::clone(&schema),
            tables: Arc::clone(&tables),
            descriptor_set: Arc::clone(&descriptor_set),
            methods: OnceLock::new(),
        };
        Ok(services.map(bind).collect())
    }
}

/// The schemas of all services of a descriptor set.
pub(crate) fn compile(descriptor_set: &[u8]) -> Result<Vec<BoundSchema>, StoreError> {
    CheckedSet::check(descriptor_set, usize::MAX)?.compile(descriptor_set)
}
