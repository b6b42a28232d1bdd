//! What there is: apps and datapaths.

use provost_admin::v1;
use tonic::Status;

use super::desk::Desk;

/// The apps that are attached, by number.
pub(crate) async fn apps(desk: &Desk) -> Result<v1::ListAppsResponse, Status> {
    let shared = &desk.shared;
    let connections = shared.connections.borrow();
    let mut apps: Vec<_> = shared
        .apps
        .borrow()
        .iter()
        .map(|(id, app)| v1::App {
            id: *id,
            name: app.identity.name.to_string(),
            runtime: app.runtime as u32,
            serves: shared.services.served_by(*id),
            connections: connections.values().filter(|one| one.app == *id).count() as u32,
            ..v1::App::default()
        })
        .collect();
    apps.sort_by_key(|app| app.id);
    Ok(v1::ListAppsResponse { apps })
}

/// The datapaths that were asked for, by connection.
pub(crate) async fn datapaths(
    _desk: &Desk,
    _asked: &v1::ListDatapathsRequest,
) -> Result<v1::ListDatapathsResponse, Status> {
    Err(Status::unimplemented(
        "ListDatapaths is not in this version of the service",
    ))
}
