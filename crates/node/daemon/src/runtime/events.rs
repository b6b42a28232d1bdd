//! What a runtime tells the control plane.

use std::collections::VecDeque;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::command::RuntimeEvent;

/// Events for the control plane, kept while its queue is full. Each app and connection has few in its life, which
/// bounds them.
pub(super) struct Events {
    pub(super) to: mpsc::Sender<RuntimeEvent>,
    pub(super) unsent: VecDeque<RuntimeEvent>,
}

impl Events {
    pub(super) fn send(&mut self, event: RuntimeEvent) {
        self.unsent.push_back(event);
        self.flush();
    }

    pub(super) fn flush(&mut self) {
        while let Some(event) = self.unsent.pop_front() {
            match self.to.try_send(event) {
                Ok(()) => {}
                Err(TrySendError::Full(event)) => {
                    self.unsent.push_front(event);
                    return;
                }
                // Nobody listens any more: the service is going away.
                Err(TrySendError::Closed(_)) => self.unsent.clear(),
            }
        }
    }
}
