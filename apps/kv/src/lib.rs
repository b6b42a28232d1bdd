//! A key-value service and its client, the project's demonstration.
#![forbid(unsafe_code)]

pub mod data;
