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
mod admission;
mod app_process;
mod app_registry;
mod apps;
mod at_rest;
mod attempts;
mod audit_log;
mod authority;
mod callers;
mod certificates;
mod client_schema;
mod compose;
pub mod config;
mod configuration;
mod connect;
mod connection_ends;
mod connections;
mod control_plane;
pub mod core_dumps;
mod counts;
mod endpoint_health;
mod enforcement;
mod foreign_text;
mod fresh_sockets;
pub mod fuzzing;
mod grpc;
mod grpc_certificates;
pub mod hot_restart;
mod http_server;
mod inspect;
mod listen;
mod live_change;
pub mod log;
mod migration;
mod name_lookup;
mod node;
pub mod notify;
pub mod observe;
mod page;
mod page_token;
mod peer_shares;
mod peers;
mod permits;
mod places;
mod plurals;
pub mod policies;
mod preflight;
mod quiesce_barrier;
mod reflection_messages;
mod refusal;
mod relay;
mod reload;
pub mod runtime;
mod runtime_events;
mod runtimes;
mod schema_learning;
pub mod schemas;
mod segments;
mod services;
mod sockets;
mod start_error;
mod stream_listener;
mod suggestion;
mod table_counts;
mod thread_pool;
mod transport;
mod turns;
mod upgrade;
mod user_names;
mod workload_api;

pub use admin::{Denied, Role};
pub use config::{AdminConfig, Config};
pub use grpc::NotListening;
pub use grpc_certificates::GrpcTlsError;
pub use node::{Node, NodeEnd, NodeParts, Shutdown};
pub use preflight::read_configuration;
pub use reload::{ReloadError, Reloaded};
pub use start_error::StartError;
pub use transport::TransportKind;
