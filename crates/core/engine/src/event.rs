//! What policies tell people, beside metrics.

use std::sync::Arc;

use crate::Code;

/// Takes events from the data path. It never blocks: what finds no room is dropped and counted by the sink.
pub trait EventSink: Send + Sync {
    /// Offers an event for the audit log.
    fn audit(&self, event: AuditEvent);
}

/// A sink for tests and tools that keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoEvents;

impl EventSink for NoEvents {
    fn audit(&self, _event: AuditEvent) {}
}

/// A policy decided something that must be accounted for, such as denying a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEvent {
    /// The policy, by the name under which it was attached.
    pub policy: Arc<str>,
    /// What it did, such as `deny`.
    pub action: &'static str,
    /// The app on this node.
    pub app: Arc<str>,
    /// Such as `/kv.Kv/Get`.
    pub method: Arc<str>,
    /// Identity or address of the peer.
    pub peer: Arc<str>,
    /// The call on its connection.
    pub call: u64,
    /// The status that the call got.
    pub code: Code,
    /// Why, for people.
    pub reason: Arc<str>,
}
