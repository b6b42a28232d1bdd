//! What policies are written against.
//!
//! An operator attaches a *policy*: a kind (such as `rate-limit`), a configuration, and where it applies. The node
//! makes one [`Policy`] of it, which holds what all its datapaths share, and asks it for one engine for each datapath
//! to which it applies. Most policies are a [`Filter`], which judges one step of a call at a time; [`FilterEngine`] makes an
//! engine of it: queues, held and denied calls, saved state.
//!
//! ```text
//! PolicyKind ──configure──► Policy (shared by the node) ──prepare──► Start ──on the runtime──► engine of one datapath
//! ```
//!
//! Preparing may be slow (it compiles expressions against the schema) and happens on the control plane; starting
//! happens between two polls of a live datapath, with the saved state of the engine whose place it takes.
#![warn(missing_docs)]
#![deny(unsafe_code)]

#[allow(unsafe_code)]
pub mod abi;
mod backlog;
mod calls;
#[cfg(feature = "rig")]
pub mod cost;
mod counter;
mod datapath_context;
mod disclosure;
mod event;
mod filter;
mod filter_engine;
mod filter_policy;
mod metric;
mod policy;
#[cfg(feature = "rig")]
pub mod rig;
mod sample;
mod trace_context;
mod verdicts;
mod view;
mod wall;

pub use backlog::{Backlog, BacklogCounts, Drain, DrainOptions, Inlet};
pub use calls::MethodCalls;
pub use counter::{Counter, Tally, TimeHistogram};
pub use datapath_context::{
    AppIdentity, AttestedApp, DatapathContext, MethodContext, PeerApp, PeerIdentity, Side,
};
pub use disclosure::{CallDisclosure, RecordedField};
pub use event::{AuditEvent, EventSink, NoEvents};
pub use filter::{CallState, Denial, Direction, Ended, Filter, FilterState, Verdict, Watch};
pub use filter_engine::{FilterEngine, FilterEngineParts, HELD_STEPS_MAX};
pub use filter_policy::{DeclaredEngine, FilterPolicy, PolicyEngine, kind_of};
pub use metric::{MetricDescription, MetricSink, MetricType};
pub use policy::{
    AttachError, ConfigError, Environment, Policy, PolicyKind, SameNodeCalls, SharedState, Start,
    check_range, parse_config,
};
pub use sample::{Sample, SampleBatch, SampleSource, SampledStep};
pub use trace_context::{TRACEPARENT, TRACEPARENT_BYTES, TRACESTATE, TraceContext};
pub use verdicts::{HeldTime, VERDICT_METRICS, VerdictLedger, Verdicts};
pub use view::{Contents, MetadataFull, StepView, UnreadableMessage};
pub use wall::{WallClock, rfc3339};

pub use provost_datapath::{
    Context, EgressEvent, EgressEvents, Engine, FlowHints, Nanos, Ports, Progress, Queue, RestoreError,
    SavedState, Saver, Step,
};
pub use provost_marshal::{FieldPath, Tables, Value, View};
pub use provost_wire::Code;
pub use provost_wire::descriptor::Parts;
