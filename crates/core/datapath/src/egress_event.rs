//! Steps that have left the service, as engines that count are told of them.

use provost_wire::descriptor::Parts;

use crate::{Nanos, Step};

/// A step that the service has handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EgressEvent {
    /// Index of its call's method in the app's own schema.
    pub method: u16,
    /// Which parts it had.
    pub parts: Parts,
    /// When the service took it; 0 where that is not known ([`Step::taken_at`]).
    pub taken_at: Nanos,
}

impl EgressEvent {
    /// Of a step that goes now.
    #[must_use]
    pub fn of(step: &Step) -> EgressEvent {
        EgressEvent {
            method: step.method,
            parts: step.parts,
            taken_at: step.taken_at,
        }
    }
}

/// Steps that left the service in one round of their runtime.
#[derive(Clone, Copy, Debug)]
pub struct EgressEvents<'a> {
    /// Those that the transport took.
    pub to_wire: &'a [EgressEvent],
    /// Those that the app was given.
    pub to_app: &'a [EgressEvent],
    /// The time after the round.
    pub now: Nanos,
}

impl EgressEvents<'_> {
    /// How long the service had a step; `None` where that is not known.
    #[must_use]
    pub fn waited(&self, egress_event: &EgressEvent) -> Option<Nanos> {
        (egress_event.taken_at != 0).then(|| self.now.saturating_sub(egress_event.taken_at))
    }
}
