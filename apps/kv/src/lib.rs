//! A key-value service and its client, the project's demonstration.
//!
//! [`proto`] is generated from `proto/kv.proto`. [`service::KvService`] implements the server over a [`store::Store`];
//! [`data`] reads the files of entries that a client loads.
#![forbid(unsafe_code)]

pub mod data;
pub mod service;
pub mod store;

/// Generated from `proto/kv.proto`: messages, `kv_client`, `kv_server`.
pub mod proto {
    provost::include_proto!("kv");
}
