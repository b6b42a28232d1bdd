//! What a runtime tells the control plane.

use std::collections::VecDeque;

use crate::command::RuntimeEvent;

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
