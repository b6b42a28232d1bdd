//! Ends what a configuration does not allow any more, when it takes effect.

use std::rc::Rc;
use std::sync::Arc;

use provost_engine::Side;

use crate::app_registry::AttachedApp;
use crate::authority::{AppAction, AskingApp, may_bind, may_connect, openness, owner};
use crate::config::Config;
use crate::control_plane::ControlPlane;

/// Ends what the configuration in effect does not allow any more: apps whose names are not theirs, services that they may
/// not bind, connections that they may not make.
pub(crate) fn enforce(plane: &ControlPlane) {
    let live = plane.config.live();
    report_open(&live);
    if live.apps.is_empty() {
        // Tables that are gone bound nothing any more.
        let all = plane.apps.all();
        return all.values().for_each(|app| app.connections.set_bound(None));
    }
    let mut apps: Vec<Rc<AttachedApp>> = plane.apps.all().values().cloned().collect();
    apps.sort_by_key(|app| app.id());
    for app in apps {
        match owner(&live, app.name(), &app.process) {
            Ok(table) => {
                app.connections
                    .set_bound(table.and_then(|table| table.connections));
                end_bindings(plane, &live, &app);
                end_connections(plane, &live, &app);
            }
            Err(denial) => {
                let denial = plane.authority.placed(denial);
                plane
                    .authority
                    .record(AppAction::Attach, AskingApp::of(&app), "", &denial);
                tracing::warn!(
                    app = app.id(),
                    name = app.name(),
                    reason = denial.reason,
                    "detaching an app"
                );
                app.detach_because(denial.into());
            }
        }
    }
}

fn end_bindings(plane: &ControlPlane, live: &Config, app: &AttachedApp) {
    for service in plane.services.served_by(app.id()) {
        let Err(denial) = may_bind(live, app.name(), &service) else {
            continue;
        };
        let denial = plane.authority.placed(denial);
        plane.services.unbind(app.id(), &service);
        drain(plane, app, &service, Side::Server);
        plane
            .authority
            .record(AppAction::Bind, AskingApp::of(app), &service, &denial);
        tracing::warn!(
            app = app.id(),
            service,
            reason = denial.reason,
            "unbound a service"
        );
        app.send_unbound(&service, &denial.into());
    }
}

fn end_connections(plane: &ControlPlane, live: &Config, app: &AttachedApp) {
    let mut services: Vec<Arc<str>> = Vec::new();
    plane.connections.each_of_app(app.id(), |connection| {
        if connection.context.side == Side::Client {
            services.push(Arc::clone(&connection.context.service));
        }
    });
    services.sort();
    services.dedup();
    for service in services {
        let Err(denial) = may_connect(live, app.name(), &service) else {
            continue;
        };
        let denial = plane.authority.placed(denial);
        drain(plane, app, &service, Side::Client);
        plane
            .authority
            .record(AppAction::Connect, AskingApp::of(app), &service, &denial);
        tracing::warn!(app = app.id(), %service, reason = denial.reason, "ending connections");
    }
}

/// Has an app's connections to a service finish their calls and end.
fn drain(plane: &ControlPlane, app: &AttachedApp, service: &str, side: Side) {
    plane.connections.each_of_app(app.id(), |connection| {
        let context = &connection.context;
        if context.side == side && *context.service == *service {
            connection.drain();
        }
    });
}

/// Says that apps may do everything, if they may.
fn report_open(live: &Config) {
    if let Some(open) = openness(live) {
        tracing::warn!("{open}");
    }
}
