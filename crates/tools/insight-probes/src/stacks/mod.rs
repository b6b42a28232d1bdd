//! Stacks of the proxy's own code, sampled by a timer: which part of its time goes to the codec, which to each filter.

mod code;
pub mod example;
mod names;
mod owner;
mod program;
mod sample;
mod walk;

pub(crate) use code::{UserCode, UserShares};
pub use program::{NamedFunctions, ProgramCode, UnreadableProgram};
pub(crate) use sample::StackSample;
pub use walk::frames_walked;
