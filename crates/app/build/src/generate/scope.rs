//! Names that are taken: two names of a schema may become one in Rust.

use std::collections::HashMap;

use crate::error::Error;
use crate::source::Sources;

/// The names of a Rust module (where types and modules share one space), struct, enum or trait.
pub(super) struct Scope {
    /// By identifier: what has it.
    taken: HashMap<String, String>,
}

impl Scope {
    pub(super) fn new() -> Self {
        Scope {
            taken: HashMap::new(),
        }
    }

    /// A package is a module here.
    pub(super) fn package(&mut self, module: &str, package: &str) {
        self.taken.insert(module.to_owned(), format!("package {package}"));
    }

    /// Takes a name for the element `full_name`.
    pub(super) fn take(&mut self, sources: &Sources, ident: &str, full_name: &str) -> Result<(), Error> {
        match self.taken.insert(ident.to_owned(), full_name.to_owned()) {
            None => Ok(()),
            Some(other) => {
                let message = format!(
                    "`{full_name}` and `{other}` would both be called `{ident}` in Rust; rename one of the two"
                );
                Err(sources.problem_at(full_name, message).into())
            }
        }
    }
}
