//! Callers that are no apps, once their predecessor has left.

use std::rc::Rc;

use crate::control_plane::ControlPlane;
use crate::grpc::ResumedClient;
use crate::relay::NodeRelay;

/// Those who go on calling.
#[derive(Default)]
pub(crate) struct ResumedCallers {
    /// Clients that speak gRPC.
    pub(super) clients: Vec<ResumedClient>,
    /// Other nodes whose calls are passed on.
    pub(super) relays: Vec<Rc<NodeRelay>>,
}

impl ResumedCallers {
    /// Goes on with all of them, once their listeners serve.
    pub(crate) fn resume(self, plane: &ControlPlane) {
        plane.relays.resume(self.relays);
        let grpc = Rc::clone(&plane.grpc);
        tokio::task::spawn_local(async move { grpc.resume(self.clients).await });
    }
}
