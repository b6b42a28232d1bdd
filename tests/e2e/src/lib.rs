//! End-to-end tests with real processes: what they run in ([`World`]), the programs that they start (one binary,
//! `e2e-role`, that is a node's service, a server or an agent), and how they talk to them.
//!
//! A test says what it wants of an [`driver::Agent`] (a client process), kills, stops or starves whom it likes, and then
//! looks at three things: the status that the caller got, what the services still hold, and that another client is
//! served all the same.
#![forbid(unsafe_code)]

pub mod agent;
mod blocking_agent;
pub mod built;
pub mod driver;
pub mod interop_client;
pub mod interop_server;
mod lines;
pub mod node;
pub mod other_schemas;
pub mod peer;
pub mod program;
pub mod scrape;
pub mod script;
pub mod server;
pub mod successor;
pub mod watch;
pub mod world;

pub use driver::Agent;
pub use program::{Program, Usage, eventually, memory_of, resident_peak_of};
pub use script::{Answer, Ask};
pub use watch::watched;
pub use world::{Node, NodeOptions, Replacement, Server, Setting, World};

/// Generated from `proto/probe.proto`.
#[allow(missing_docs, clippy::all)]
pub mod probe {
    provost::include_proto!("probe");
}

/// Generated from `proto/interop.proto`: the services of gRPC's interoperability tests.
#[allow(missing_docs, clippy::all)]
pub mod interop {
    provost::include_proto!("grpc.testing");
}

/// Generated from `proto/load_reports.proto`: what those tests read of a server's load.
#[allow(missing_docs, clippy::all)]
pub mod load_reports {
    provost::include_proto!("xds.service.orca.v3");
}

/// Generated from `schemas/compatible/probe.proto`.
#[allow(missing_docs, clippy::all)]
pub mod probe_compatible {
    include!(concat!(env!("OUT_DIR"), "/compatible/probe.rs"));
}

/// Code that is generated from `schemas/larger/probe.proto`.
#[allow(missing_docs, clippy::all)]
pub mod probe_larger {
    include!(concat!(env!("OUT_DIR"), "/larger/probe.rs"));
}

/// Generated from `schemas/incompatible/probe.proto`.
#[allow(missing_docs, clippy::all)]
pub mod probe_incompatible {
    include!(concat!(env!("OUT_DIR"), "/incompatible/probe.rs"));
}
