//! The tables, and how they are compiled from a schema.

use provost_schema::Schema;

use crate::TableError;

/// The op tables of one schema: immutable, to be shared by an `Arc`.
#[derive(Debug)]
pub struct Tables {}

impl Tables {
    /// Compiles the tables of a schema.
    pub fn compile(schema: &Schema) -> Result<Tables, TableError> {
        let _ = schema;
        Ok(Tables {})
    }
}
