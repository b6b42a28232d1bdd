//! The parts of the control plane, which all run on one thread. Each owns its state; what works with some of them takes
//! those ([`Connector`], [`LiveChanges`]), and only what concerns the node as a whole
//! (the admin API, metrics, a hot restart, a reload) takes all.

use std::rc::Rc;
use std::sync::Arc;

use crate::app_registry::AppRegistry;
use crate::audit_log::AuditLog;
use crate::authority::AppAuthority;
use crate::configuration::Configuration;
use crate::connect::Connector;
use crate::connections::ConnectionRegistry;
use crate::counts::Counts;
use crate::grpc::GrpcAccess;
use crate::live_change::LiveChanges;
use crate::peers::PeerAccess;
use crate::policies::Policies;
use crate::policies::warnings::CheckedPolicies;
use crate::quiesce_barrier::QuiesceBarrier;
use crate::relay::RelayAccess;
use crate::runtimes::Runtimes;
use crate::services::Services;
use crate::upgrade::RestartDesk;

/// See the module's documentation.
#[derive(Clone)]
pub(crate) struct ControlPlane {
    pub(crate) config: Rc<Configuration>,
    pub(crate) apps: Rc<AppRegistry>,
    pub(crate) connections: Rc<ConnectionRegistry>,
    pub(crate) runtimes: Rc<Runtimes>,
    pub(crate) services: Arc<Services>,
    pub(crate) policies: Rc<Policies>,
    pub(crate) changes: Rc<LiveChanges>,
    pub(crate) connector: Rc<Connector>,
    /// Clients that speak gRPC.
    pub(crate) grpc: Rc<GrpcAccess>,
    /// Calls of other nodes that go on to gRPC servers.
    pub(crate) relays: Rc<RelayAccess>,
    pub(crate) peers: Rc<PeerAccess>,
    /// Before everything that is done for apps, and that they or peers can notice.
    pub(crate) quiesce_barrier: Rc<QuiesceBarrier>,
    pub(crate) restarts: Rc<RestartDesk>,
    /// What was done to the node as a whole.
    pub(crate) counts: Rc<Counts>,
    pub(crate) authority: Rc<AppAuthority>,
    /// Where policies and the admin API account for what they do.
    pub(crate) audit: Arc<AuditLog>,
}

impl ControlPlane {
    /// The policies that are attached, with the schemas that they are checked against.
    pub(crate) fn checked_policies(&self) -> CheckedPolicies {
        CheckedPolicies::of(&self.policies, |attachment| {
            self.connector.schemas_for(attachment)
        })
    }
}
