//! How callers leave a runtime, and what gRPC clients and the control plane have to say to each other.

use provost_datapath::Nanos;
use provost_frontend_grpc::ServiceRefusal;
use provost_wire::Code;

use crate::blocked_steps::BlockedSteps;
use crate::call_port::CallPort;
use crate::caller_port::CallerPort;
use crate::command::{CallerAnswer, CallerEnding, NewCaller, ServiceAnswer};
use crate::events::RuntimeEvent;
use crate::ids::{AppId, WaitMode};
use crate::platform::RuntimePlatform;
use crate::poll_token::{KIND_APP, token};
use crate::worker::{BATCH_SUBMISSIONS, RuntimeWorker};

/// How long the connections of an app that is gone may take to end.
const DETACH_LINGER_NS: Nanos = 3_000_000_000;

impl<P: RuntimePlatform> RuntimeWorker<P> {
    pub(crate) fn attach_caller(&mut self, new: NewCaller) {
        self.attach_port(new.app, CallerPort::of_calls(new.port), WaitMode::Sleeps);
    }

    pub(crate) fn answer_service(&mut self, answer: ServiceAnswer) {
        let Some(number) = self.app_numbers.get(&answer.app).copied() else {
            return;
        };
        let now = self.now;
        if let Some(app) = self.apps.get_mut(number) {
            let mut left = None;
            let found = answer.found.and_then(|binding| {
                let connection = binding.connection;
                let path = app.path(connection).and_then(|path| self.paths.get_mut(path));
                match path {
                    Some(path) if path.told_going_away && path.datapath.link().drain_requested() => {
                        left = Some(connection);
                    }
                    Some(_) => {}
                    None if app.was_drained(connection) => left = Some(connection),
                    // Its end was told when nobody knew of it.
                    None => return Err(ended_meanwhile(&answer.service)),
                }
                Ok(binding)
            });
            let Some(port) = app.port.calls() else {
                return;
            };
            port.answer_service(&answer.service, found, now);
            if let Some(connection) = left {
                // This node has drained it before anybody knew of it, as the service's schema came: another is asked for.
                port.going_away(connection);
            }
            app.heat(number, &mut self.hot_apps, now);
            app.touch(number, &mut self.touched);
        }
    }

    pub(crate) fn answer_node_call(&mut self, answer: CallerAnswer) {
        let now = self.now;
        self.change_caller(answer.app, |port| port.answer_node(answer.answer, now));
    }

    pub(crate) fn drain_caller(&mut self, app: AppId) {
        let now = self.now;
        self.change_caller(app, |port| port.drain(now));
    }

    pub(crate) fn end_caller(&mut self, ending: &CallerEnding) {
        let now = self.now;
        self.change_caller(ending.app, |port| port.end(&ending.refusal, now));
    }

    fn change_caller(&mut self, app: AppId, change: impl FnOnce(&mut dyn CallPort)) {
        let Some(number) = self.app_numbers.get(&app).copied() else {
            return;
        };
        if let Some(app) = self.apps.get_mut(number)
            && let Some(port) = app.port.calls()
        {
            change(port);
            app.heat(number, &mut self.hot_apps, self.now);
            app.touch(number, &mut self.touched);
        }
    }

    /// Tells the control plane what a gRPC client wants, and that it has gone. Of an app there is nothing to be told.
    pub(crate) fn send_caller_events(&mut self, number: u32) {
        let Some(app) = self.apps.get_mut(number) else {
            return;
        };
        let (id, is_blocked) = (app.id, !app.blocked.is_empty());
        let Some(port) = app.port.calls() else {
            return;
        };
        while let Some(wanted) = port.take_wanted() {
            self.events.send(RuntimeEvent::ServiceWanted { app: id, wanted });
        }
        while let Some(event) = port.take_node_event() {
            self.events.send(RuntimeEvent::NodeCall { app: id, event });
        }
        if let Some(reason) = port.ended().filter(|_| !is_blocked) {
            let reason = reason.to_owned();
            self.events.send(RuntimeEvent::CallerEnded { app: id, reason });
            self.leave(number);
        }
    }

    pub(crate) fn detach(&mut self, app: AppId) {
        let Some(number) = self.app_numbers.get(&app).copied() else {
            return;
        };
        let capacity = provost_wire::limits::RING_SLOTS_MAX as usize;
        let rounds = capacity / BATCH_SUBMISSIONS;
        // What the app submitted before it left is carried out, as far as there is room for it now.
        for _ in 0..rounds {
            // What is long in copying is not waited for: others have calls under way.
            if !self.poll_app(number) || self.buffers.has_copied_enough(self.now) {
                break;
            }
            self.poll_paths();
        }
        self.leave(number);
    }

    /// The app's connections end from now on; nothing more is read from it or told to it.
    pub(crate) fn leave(&mut self, number: u32) {
        let Some(app) = self.apps.get_mut(number) else {
            return;
        };
        if app.leaving.is_some() {
            return;
        }
        app.leaving = Some(self.now + DETACH_LINGER_NS);
        if app.port.calls().is_some() {
            // What it says from now on wakes nobody.
            app.port.unwatch(&mut self.platform);
        }
        app.blocked = BlockedSteps::default();
        self.timers
            .add(self.now + DETACH_LINGER_NS, token(KIND_APP, number));
        app.touch(number, &mut self.touched);
        for path in app.connections.iter().filter_map(|place| place.path) {
            if let Some(open) = self.paths.get_mut(path) {
                open.is_closing = true;
                open.heat(path, &mut self.hot_paths, self.now);
            }
        }
    }
}

/// A connection that has ended before the client's calls were told of it.
fn ended_meanwhile(service: &str) -> ServiceRefusal {
    ServiceRefusal {
        code: Code::Unavailable,
        message: format!("the connection to {service} ended as it was opened: call again"),
    }
}
