//! The managed RPC service of a node

pub mod access;
pub mod config;
pub mod log;
pub mod notify;
pub mod runtime;
pub mod schemas;
