//! The managed RPC service of a node: what `provostd` runs, and what tests and the demonstration run in their own
//! process.
//!
//! ```text
//! control plane (one thread, tokio): apps, schemas, bindings, connections     control.socket, [[listener]]
//! data plane (runtime threads): rings ─► datapaths (frontend, policies, marshalling, transport) ─► sockets
//! ```
#![forbid(unsafe_code)]

pub mod access;
mod admin;
mod apps;
mod compose;
pub mod config;
mod connect;
mod gate;
mod inspect;
mod listen;
pub mod log;
mod node;
pub mod notify;
pub mod observe;
mod permits;
pub mod policies;
mod reload;
mod remote;
pub mod runtime;
pub mod schemas;
mod segments;
mod services;
mod sockets;
mod switch;
pub mod takeover;

pub use admin::{AdminConfig, Denied, Role};
pub use config::Config;
pub use node::{Node, NodeEnd, NodeParts, Shutdown, StartError, check_policies};
pub use reload::{ReloadError, Reloaded};
