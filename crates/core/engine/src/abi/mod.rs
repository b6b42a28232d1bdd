//! The C ABI between a service and an engine that was built apart, and the library's side of it in Rust.
//!
//! `include/provost_engine.h` is the same for C; a test compares the two. A library exports one symbol, [`SYMBOL`], of
//! the type [`EngineDescription`]. Everything that the service asks of the library goes through the functions in it,
//! everything that the library asks goes through [`Host`]. Structs are laid out as C does, integers are the machine's
//! own, text is UTF-8 and not terminated. What is lent in a call is valid until it returns, unless it says otherwise.
//!
//! A change that an older side would not notice as such gets another [`ENGINE_ABI`].

mod datapath_context;
mod export;
mod remote;
mod types;

pub use datapath_context::ContextForm;
pub use export::description;
pub(crate) use remote::RemoteStep;
pub use types::*;
