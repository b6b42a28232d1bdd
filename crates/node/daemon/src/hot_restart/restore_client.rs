//! How the new process makes a gRPC client of the state.

use std::sync::Arc;

use provost_datapath::RestoreError;
use provost_frontend_grpc::ServiceBinding;

use super::restore::{
    Descriptors, NotRestored, RestoringApp, RestoringConnection, RestoringParty, failed_of_app, failed_state,
    stuck_step,
};
use super::state;
use crate::control_plane::ControlPlane;
use crate::grpc::{CarriedClient, CarriedListeners, CarriedPort, CarriedWatch, ClientNotRestored};

/// How many descriptors a caller that is no app has in the order of all.
pub(super) fn descriptors_of(caller: Option<&state::App>) -> u32 {
    let connections = caller.iter().flat_map(|app| &app.connections);
    let engines = connections.flat_map(|connection| &connection.engines);
    let of_port = caller.map_or(0, |app| app.port_descriptors);
    let counts = engines.map(|engine| engine.descriptors);
    counts.fold(of_port, u32::saturating_add)
}

/// Makes everything of a client but the engines of its connections.
pub(super) fn begin(
    plane: &ControlPlane,
    mut client: state::GrpcClient,
    descriptors: &mut Descriptors,
    listeners: &mut CarriedListeners,
) -> Result<RestoringApp, NotRestored> {
    let mut app = client.app.take().unwrap_or_default();
    let what = format!("gRPC client {} ({})", app.id, client.origin);
    let failed = |reason: &dyn std::fmt::Display| failed_of_app(&what, reason);
    let socket = descriptors.take(app.port_descriptors, &what)?.pop();
    let socket = socket.ok_or_else(|| failed(&"its socket is missing"))?;
    let connections = std::mem::take(&mut app.connections).into_iter();
    let parts = connections.map(|connection| RestoringConnection::begin(plane, connection, descriptors));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    let stuck = app.stuck.as_ref().map(stuck_step).transpose();
    let stuck = stuck.map_err(|error| failed_state(&what, &error))?;
    let binding_of = |number: u32| parts.iter().find_map(|part| binding_of(part, number));
    let carried = carried(&app, client);
    let state = std::mem::take(&mut app.port);
    let port = CarriedPort {
        state: &state,
        socket,
        binding_of: &binding_of,
    };
    let restored = plane.grpc.restore(app.id, carried, port, listeners);
    let restored = restored.map_err(|error| not_restored(&what, &error))?;
    Ok(RestoringApp {
        endpoint: plane.grpc.endpoint(&restored),
        party: RestoringParty::Client(Box::new(restored)),
        connections: plane.connections.permits.of_app(app.uid),
        requests: Vec::new(),
        parts,
        stuck,
        state: app,
    })
}

fn not_restored(what: &dyn std::fmt::Display, error: &ClientNotRestored) -> NotRestored {
    match error {
        ClientNotRestored::State(error @ RestoreError::Version { .. }) => failed_state(what, error),
        error => failed_of_app(what, error),
    }
}

/// Where calls go over a connection that has this number.
fn binding_of(connection: &RestoringConnection, number: u32) -> Option<ServiceBinding> {
    let state = &connection.state;
    if state.number != number {
        return None;
    }
    let schema = &connection.schema;
    Some(ServiceBinding {
        connection: number,
        tables: Arc::clone(&schema.tables),
        methods: Arc::clone(&schema.methods().bindings),
        methods_known: schema.methods_known(),
        message_bytes_max: state.message_bytes_max,
        compressed: state.compressed(),
    })
}

fn carried(app: &state::App, client: state::GrpcClient) -> CarriedClient {
    let watches = client.watches.into_iter().map(|watch| CarriedWatch {
        stream: watch.stream,
        service: watch.service,
        told: watch.told,
    });
    CarriedClient {
        name: app.name.clone(),
        listener: client.listener,
        pid: app.pid,
        uid: app.uid,
        gid: app.gid,
        program: app.program.clone(),
        proved: client.proved,
        origin: client.origin,
        is_admitted: client.is_admitted,
        is_told_to_go: client.is_told_to_go,
        watches: watches.collect(),
    }
}
