//! Expressions: CEL text, parsed by the `cel` library, checked against a service's schema, and compiled to a small tree
//! that is evaluated over messages in the native layout.
//!
//! ```text
//! text ──Source::parse──► syntax tree ──Source::compile(Scope)──► Expression ──evaluate(Inputs)──► true, false, Failure
//!        (at configure)                 (at attach, per method)               (on the data path)
//! ```
//!
//! The library's own interpreter is not used: it works on boxed values of the whole message, and finds a misspelt field
//! only when a call comes.

mod check;
mod constant;
mod error;
mod evaluate;
mod function;
mod kind;
mod network;
mod node;
mod scope;
mod source;
mod time;
mod value;

pub use error::ExpressionError;
pub use evaluate::{Failure, Inputs, STEPS_MAX};
pub use scope::Scope;
pub use source::{EXPRESSION_BYTES_MAX, EXPRESSION_DEPTH_MAX, Source};
pub use value::Val;

pub(crate) use kind::ExpressionKind;
use node::CheckedNode;

/// A condition, compiled for one method.
#[derive(Debug)]
pub struct Expression {
    root: CheckedNode,
    uses: Uses,
}

/// What an expression reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// Fields of the request.
    pub request: bool,
    /// Fields of the response.
    pub response: bool,
    /// The time of day, or the day.
    pub time: bool,
    /// These metadata keys, each once.
    pub metadata: Vec<Box<str>>,
}

impl Expression {
    #[must_use]
    pub fn uses(&self) -> &Uses {
        &self.uses
    }

    /// Its value, if that was known when it was compiled.
    #[must_use]
    pub fn constant(&self) -> Option<bool> {
        match self.root.constant() {
            Some(Val::Bool(value)) => Some(value),
            _ => None,
        }
    }

    pub fn evaluate(&self, inputs: &Inputs<'_>) -> Result<bool, Failure> {
        evaluate::condition(&self.root, inputs)
    }
}
