//! What a service mesh costs an application: profiles of proxies, annotated call graphs, and predictions from both.
//!
//! The library performs no I/O: texts go in, values and texts come out. What measures (probes, loads) and what reads files
//! lives elsewhere, and hands over a [`Profile`](profile::Profile).
#![forbid(unsafe_code)]

pub mod access_log;
pub mod acg;
pub mod change;
pub mod fit;
pub mod forest;
mod ladder;
mod lost;
pub mod model;
pub mod pacing;
mod partial;
pub mod predict;
pub mod profile;
pub mod random;
mod regression;
pub mod report;
pub mod synthetic;
pub mod traces;
pub mod validation;
pub mod workload;
