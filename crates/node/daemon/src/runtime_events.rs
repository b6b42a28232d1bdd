//! What the control plane does when runtimes tell it something.

use tokio::sync::mpsc;

use crate::control_plane::ControlPlane;
use crate::log::{self, EventSubject};
use crate::runtime::RuntimeEvent;

/// Where it comes from.
pub(crate) type EventsOfRuntimes = mpsc::Receiver<RuntimeEvent>;

/// Hears what runtimes have to tell.
pub(crate) async fn apply_events(plane: ControlPlane, mut events: EventsOfRuntimes) {
    while let Some(event) = events.recv().await {
        match event {
            RuntimeEvent::Faulted { app, fault } => {
                if let Some(attached) = plane.apps.find(app) {
                    if log::may_log_of(app, attached.uid()) {
                        tracing::warn!(app, name = attached.name(), %fault, "detaching an app that is at fault");
                    }
                    attached.given_up.notify_one();
                }
            }
            RuntimeEvent::Detached { app } => {
                plane.connections.forget_app(app);
                let client = plane.grpc.forget(app);
                plane.relays.forget(app);
                if let Some(attached) = plane.apps.remove(app) {
                    plane.runtimes[attached.endpoint.runtime].remove_app();
                    if log::may_log(EventSubject::User(attached.endpoint.identity.uid)) {
                        tracing::info!(app, name = attached.name(), "detached");
                    }
                } else if let Some(client) = client {
                    plane.runtimes[client.runtime].remove_app();
                }
            }
            RuntimeEvent::Closed { id, app, end, .. } => {
                let spec = plane.connections.forget(id);
                // One that is forgotten already has been told of.
                if spec.is_some_and(|spec| log::may_log_of(app, spec.app.identity.uid)) {
                    tracing::info!(
                        app,
                        connection = id,
                        code = %end.code,
                        reason = &*log::cut(&end.reason),
                        "connection closed"
                    );
                }
            }
            RuntimeEvent::ServiceWanted { app, wanted } if plane.relays.has(app) => {
                plane.relays.look_for(app, wanted.service);
            }
            RuntimeEvent::ServiceWanted { app, wanted } => plane.grpc.look_for(app, wanted),
            RuntimeEvent::NodeCall { app, event } => plane.grpc.answer_node_call(app, event),
            RuntimeEvent::CallerEnded { app, reason } => {
                plane.grpc.connection_ended(app, &reason);
                plane.relays.connection_ended(app, &reason);
            }
            RuntimeEvent::EngineFailed(failed) => plane.changes.engine_failed(*failed),
        }
    }
}
