//! How what is restored takes its place in the new process, once all connections have been made.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use provost_shm::PacketSocket;
use tokio::sync::Notify;

use super::callers::ResumedCallers;
use super::restore::{NotRestored, RestoredApps, RestoringApp, RestoringParty};
use crate::app_process::{AppProcess, SavedProcess};
use crate::app_registry::{AttachedApp, GoneSignal};
use crate::control_plane::ControlPlane;
use crate::runtime::{AdoptedApp, AdoptedConnection, AdoptedPort, NewApp, WaitMode};

/// Every connection has been made: the apps are put down, and what is to be polled is given out.
pub(super) fn finish(
    plane: &ControlPlane,
    apps: Vec<RestoringApp>,
    connections: Vec<Option<Vec<AdoptedConnection>>>,
    unattached: Vec<PacketSocket>,
) -> Result<RestoredApps, NotRestored> {
    let mut restored = RestoredApps {
        adopted: plane.runtimes.iter().map(|_| Vec::new()).collect(),
        resumed: Vec::with_capacity(apps.len()),
        unattached,
        callers: ResumedCallers::default(),
        made_as_they_came: 0,
        read: Vec::with_capacity(apps.len()),
    };
    for (mut app, connections) in apps.into_iter().zip(connections) {
        // The end of its control socket tells an app that is left out.
        let Some(connections) = connections else {
            plane.runtimes[app.endpoint.runtime].remove_app();
            continue;
        };
        restored.read.push(std::mem::take(&mut app.parts));
        let runtime = app.endpoint.runtime;
        let (places, stuck) = (std::mem::take(&mut app.state.places), app.stuck.take());
        let leaving = Some(app.state.leaving_ns).filter(|until| *until != 0);
        restored.adopted[runtime].push(AdoptedApp {
            new: enter(plane, app, &mut restored.resumed, &mut restored.callers),
            places,
            stuck,
            leaving,
            connections,
        });
    }
    Ok(restored)
}

/// Puts an app or a client down; what its runtime polls of it.
fn enter(
    plane: &ControlPlane,
    app: RestoringApp,
    resumed: &mut Vec<Rc<AttachedApp>>,
    callers: &mut ResumedCallers,
) -> AdoptedPort {
    let (control, doorbell, port) = match app.party {
        RestoringParty::App {
            control,
            doorbell,
            port,
        } => (control, doorbell, port),
        RestoringParty::Client(client) => {
            let (client, caller) = plane.grpc.enter(*client, app.connections);
            callers.clients.push(client);
            return AdoptedPort::Caller(caller);
        }
        RestoringParty::Relay(relay) => {
            let (relay, caller) = plane.relays.enter(*relay, app.connections);
            callers.relays.push(relay);
            return AdoptedPort::Caller(caller);
        }
    };
    let mut port = port.into_inner();
    port.end_claims();
    let requests = app.requests.into_iter();
    let requests = requests.map(|request| (plane.apps.new_request(), request));
    let saved = SavedProcess {
        pid: app.state.pid,
        uid: app.state.uid,
        gid: app.state.gid,
        program: &app.state.program,
    };
    let attached = Rc::new(AttachedApp {
        endpoint: app.endpoint,
        process: AppProcess::of_saved(control.as_fd(), saved),
        control: Some(control),
        requests: RefCell::new(requests.collect::<BTreeMap<_, _>>()),
        takes_regions: app.state.takes_regions,
        connections: app.connections,
        destination: None,
        given_up: Notify::new(),
        gone: GoneSignal::default(),
    });
    if app.state.leaving_ns != 0 {
        // What it was at fault for was told to the process before, which had come to rest.
        attached.given_up.notify_one();
    }
    plane.apps.insert(Rc::clone(&attached));
    resumed.push(Rc::clone(&attached));
    AdoptedPort::App(Box::new(NewApp {
        app: attached.id(),
        port,
        doorbell,
        waiting: if app.state.busy_poll {
            WaitMode::BusyPolls
        } else {
            WaitMode::Sleeps
        },
    }))
}
