//! How the new process makes calls of another node, which this one passes on, of the state.

use std::sync::Arc;

use provost_datapath::CompressedMessages;

use super::restore::{
    Descriptors, NotRestored, RestoringApp, RestoringConnection, RestoringParty, failed_of_app, failed_state,
    stuck_step,
};
use super::state;
use crate::control_plane::ControlPlane;
use crate::relay::{CarriedRelay, RelayOrigin};

/// Makes everything of a relay but the engines of its connections.
pub(super) fn begin(
    plane: &ControlPlane,
    relay: state::SavedRelay,
    descriptors: &mut Descriptors,
) -> Result<RestoringApp, NotRestored> {
    let carried = CarriedRelay {
        message_bytes_max: relay.message_bytes_max,
        compressed: if relay.takes_compressed {
            CompressedMessages::Passed
        } else {
            CompressedMessages::Decompressed
        },
        name: relay
            .app
            .as_ref()
            .map_or_else(String::new, |app| app.name.clone()),
    };
    let mut app = relay.app.unwrap_or_default();
    let what = format!("calls of another node ({}, app {})", app.name, app.id);
    // A port of an earlier or later version may have some.
    descriptors.take(app.port_descriptors, &what)?;
    let connections = std::mem::take(&mut app.connections).into_iter();
    let parts = connections.map(|connection| RestoringConnection::begin(plane, connection, descriptors));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    let stuck = app.stuck.as_ref().map(stuck_step).transpose();
    let stuck = stuck.map_err(|error| failed_state(&what, &error))?;
    let serving = parts.iter().find(|part| part.state.serves);
    let serving =
        serving.ok_or_else(|| failed_of_app(&what, &"the connection over which they come is missing"))?;
    let origin = RelayOrigin {
        schema: Arc::clone(&serving.schema),
        serves: serving.state.id,
        peer: serving.state.peer_address.clone(),
    };
    let state = std::mem::take(&mut app.port);
    let has_connection = |number: u32| parts.iter().any(|part| part.state.number == number);
    let restored = plane
        .relays
        .restore(app.id, carried, origin, &state, &has_connection);
    let restored = restored.map_err(|error| failed_state(&what, &error))?;
    Ok(RestoringApp {
        endpoint: restored.endpoint.clone(),
        connections: plane.connections.permits.of_app(restored.user()),
        party: RestoringParty::Relay(Box::new(restored)),
        requests: Vec::new(),
        parts,
        stuck,
        state: app,
    })
}
