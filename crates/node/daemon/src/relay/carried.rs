//! Calls of other nodes that a hot restart carries: what a process says of those of a connection, and how the next one goes on
//! with them.
//!
//! ```text
//! predecessor: carried ─► state ─► successor: restore ─► enter ─► (commit) ─► resume
//! ```

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use provost_datapath::{CompressedMessages, RestoreError};
use provost_runtime::{NewCaller, RelayPort};
use provost_shm::now_ns;

use super::{NodeRelay, RelayAccess};
use crate::app_process::AppProcess;
use crate::compose::AppEndpoint;
use crate::grpc::attached;
use crate::permits::AppConnections;
use crate::runtime::{AppId, ConnectionId};
use crate::schemas::BoundSchema;

/// What another process has to know of a relay beside its port and its connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CarriedRelay {
    pub(crate) name: String,
    /// Longest message that the other node takes, in bytes.
    pub(crate) message_bytes_max: u32,
    /// Whether the other node takes compressed messages.
    pub(crate) compressed: CompressedMessages,
}

/// Where the calls of a relay come from.
pub(crate) struct RelayOrigin {
    pub(crate) schema: Arc<BoundSchema>,
    /// The connection over which they come.
    pub(crate) serves: ConnectionId,
    pub(crate) peer: String,
}

/// A relay of another process of which everything is there but the engines of its connections.
pub(crate) struct RestoredRelay {
    pub(crate) endpoint: AppEndpoint,
    process: AppProcess,
    origin: RelayOrigin,
    message_bytes_max: u32,
    pub(crate) port: RefCell<RelayPort>,
}

impl RestoredRelay {
    pub(crate) fn service(&self) -> &str {
        &self.origin.schema.service
    }

    pub(crate) fn user(&self) -> u32 {
        self.process.credentials.uid
    }
}

impl RelayAccess {
    /// What another process has to know of a relay.
    pub(crate) fn carried(&self, id: AppId) -> Option<CarriedRelay> {
        let relay = self.find(id)?;
        Some(CarriedRelay {
            name: relay.app.name().to_owned(),
            message_bytes_max: relay.message_bytes_max,
            compressed: relay.app.endpoint.compressed,
        })
    }

    /// Makes a relay of what another process has said of it. Nothing that anybody can see is done.
    pub(crate) fn restore(
        &self,
        id: AppId,
        carried: CarriedRelay,
        origin: RelayOrigin,
        port: &[u8],
        has_connection: &dyn Fn(u32) -> bool,
    ) -> Result<RestoredRelay, RestoreError> {
        let process = AppProcess::unknown();
        let endpoint = self.endpoint(id, &carried.name, &process, carried.compressed);
        let message_bytes_max = carried.message_bytes_max;
        let parts = self.port_parts(&endpoint, &origin.schema, message_bytes_max);
        let port = RelayPort::restore(port, parts, has_connection, now_ns())?;
        self.connector.runtimes[endpoint.runtime].place_app();
        Ok(RestoredRelay {
            endpoint,
            process,
            origin,
            message_bytes_max,
            port: RefCell::new(port),
        })
    }

    /// Puts a restored relay among those that are there. Beside it comes what its runtime polls.
    pub(crate) fn enter(
        &self,
        restored: RestoredRelay,
        connections: AppConnections,
    ) -> (Rc<NodeRelay>, NewCaller) {
        let mut port = restored.port.into_inner();
        port.end_claims();
        let relay = Rc::new(NodeRelay {
            app: Rc::new(attached(restored.endpoint, restored.process, connections)),
            schema: restored.origin.schema,
            serves: restored.origin.serves,
            peer: restored.origin.peer,
            message_bytes_max: restored.message_bytes_max,
        });
        let app = relay.app.id();
        self.connector.apps.insert(Rc::clone(&relay.app));
        self.relays.borrow_mut().insert(app, Rc::clone(&relay));
        let port = Box::new(port);
        (relay, NewCaller { app, port })
    }

    /// Goes on with relays. Nodes whose calls came by routes that are exported no more are told to connect anew.
    pub(crate) fn resume(self: &Rc<Self>, relays: Vec<Rc<NodeRelay>>) {
        for relay in relays {
            tokio::task::spawn_local(Rc::clone(self).attend(relay));
        }
        self.follow_routes();
    }
}
