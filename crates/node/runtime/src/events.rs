//! What a runtime tells the control plane.

use std::collections::VecDeque;

use provost_datapath::ConnectionEnd;
use provost_frontend::AppFault;
use provost_frontend_grpc::{NodeEvent, WantedService};
use provost_wire::Code;

use crate::ids::{AppId, ConnectionId};
use crate::orders::EngineFailed;

/// What a runtime tells the control plane.
#[derive(Debug)]
pub enum RuntimeEvent {
    /// An app did what only a broken or hostile library does. Its connections are ending.
    Faulted { app: AppId, fault: AppFault },
    /// Nothing of an app is left.
    Detached { app: AppId },
    Closed {
        /// Its number at the control plane.
        id: ConnectionId,
        app: AppId,
        /// Its number at the app.
        connection: u32,
        end: ConnectionEnd,
    },
    /// A gRPC client calls a service that it has not called before ([`crate::RuntimeCommand::AnswerService`]).
    ServiceWanted {
        /// Which client, by its number.
        app: AppId,
        /// The service and the method that it calls.
        wanted: WantedService,
    },
    /// A gRPC client calls a service that the node answers itself ([`crate::RuntimeCommand::AnswerNodeCall`]).
    NodeCall {
        /// Which client, by its number.
        app: AppId,
        /// What it asks, or that it asks no more.
        event: NodeEvent,
    },
    /// A gRPC client's connection has ended. The connections behind it are ending.
    CallerEnded {
        /// Which client, by its number.
        app: AppId,
        /// Why the connection has ended.
        reason: String,
    },
    /// An engine failed, and something else has taken its place.
    EngineFailed(Box<EngineFailed>),
}

impl RuntimeEvent {
    /// The end of a connection of which its transport said nothing.
    pub(crate) fn silent_end() -> ConnectionEnd {
        ConnectionEnd {
            code: Code::Unavailable,
            reason: "the connection was dropped".to_owned(),
        }
    }
}

/// Where a runtime's events go: a bounded queue of the control plane.
pub trait EventSink: Send {
    /// Takes an event if there is room. Called on the runtime's thread: it must not block.
    ///
    /// # Errors
    /// The event comes back when the queue is full; it is offered again later.
    fn try_send(&mut self, event: RuntimeEvent) -> Result<(), EventRefused>;
}

/// Why an event was not taken.
#[derive(Debug)]
pub enum EventRefused {
    /// The queue is full.
    Full(RuntimeEvent),
    /// Nobody listens any more: the service is going away.
    Closed,
}

/// Events for the control plane, kept while its queue is full. Each app and connection has few in its life, which
/// bounds them.
pub(crate) struct EventQueue {
    sink: Box<dyn EventSink>,
    unsent: VecDeque<RuntimeEvent>,
}

impl EventQueue {
    pub(crate) fn new(sink: Box<dyn EventSink>) -> EventQueue {
        EventQueue {
            sink,
            unsent: VecDeque::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.unsent.is_empty()
    }

    pub(crate) fn send(&mut self, event: RuntimeEvent) {
        self.unsent.push_back(event);
        self.flush();
    }

    pub(crate) fn flush(&mut self) {
        while let Some(event) = self.unsent.pop_front() {
            match self.sink.try_send(event) {
                Ok(()) => {}
                Err(EventRefused::Full(event)) => {
                    self.unsent.push_front(event);
                    return;
                }
                Err(EventRefused::Closed) => self.unsent.clear(),
            }
        }
    }
}
