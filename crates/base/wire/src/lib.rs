//! What crosses a boundary between two parties that do not trust each other: descriptors between an
//! application and its node's service, frames between two services, control messages, metadata, status codes,
//! and the named limits that bound all of them.
//!
//! Everything here is plain data: parsing checks, nothing performs I/O.
#![forbid(unsafe_code)]

pub mod control;
pub mod descriptor;
pub mod frame;
pub mod limits;
pub mod metadata;
pub mod region;
mod status;

pub use status::Code;
