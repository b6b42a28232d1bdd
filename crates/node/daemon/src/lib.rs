//! The managed RPC service of a node

pub mod config;
