//! Clients that speak gRPC and know nothing of this service: where they come in (`[[grpc.listener]]`), and how the node
//! opens connections for them as it does for apps.
//!
//! ```text
//! socket ─► silent: keeps a place and a port at a runtime ──first call──► admitted: an app among the others ──► ended
//!               └──others have come──► ended                └──refused──► silent
//! ```
//!
//! A client is an app whose identity its listener, or the kernel, gives: policies, authority, shares and status see it as
//! such. It has no control socket. What it calls it is asked for by its runtime
//! ([`RuntimeEvent::ServiceWanted`](crate::runtime::RuntimeEvent)), and each service gets a connection of the node, like that
//! of any app, that its port is told of.

mod carried;
mod clients;
mod listeners;
mod node_services;
mod redirection;
mod secure;
mod socket;

use std::rc::Rc;

use provost_frontend::SendHeap;
use provost_shm::{Memfd, ShmError};

use crate::app_registry::AppRegistry;
use crate::authority::AppAuthority;
use crate::configuration::Configuration;
use crate::connect::Connector;
use crate::quiesce_barrier::QuiesceBarrier;
use crate::runtimes::Runtimes;

pub(crate) use carried::{
    CarriedClient, CarriedListeners, CarriedPort, CarriedWatch, ClientNotRestored, RestoredClient,
    ResumedClient,
};
use clients::ClientRegistry;
pub(crate) use clients::{CarriedClients, attached};
pub use listeners::NotListening;
use listeners::OpenListeners;
pub(crate) use listeners::{GrpcSockets, InheritedSocket, open_all};
use node_services::{HealthWatches, ReflectionTurns};
use secure::SecureArrivals;

/// See the module's documentation.
pub(crate) struct GrpcAccess {
    config: Rc<Configuration>,
    apps: Rc<AppRegistry>,
    runtimes: Rc<Runtimes>,
    authority: Rc<AppAuthority>,
    connector: Rc<Connector>,
    /// Before clients are let in: it is closed while another process takes over.
    barrier: QuiesceBarrier,
    clients: ClientRegistry,
    listeners: OpenListeners,
    watches: HealthWatches,
    reflection_turns: ReflectionTurns,
    secure: SecureArrivals,
    /// Memory of which a client uses nothing: it has no heap to share.
    no_heap: SendHeap,
}

impl GrpcAccess {
    /// Lets nobody in yet.
    pub(crate) fn new(connector: &Rc<Connector>) -> Result<GrpcAccess, ShmError> {
        Ok(GrpcAccess {
            config: Rc::clone(&connector.config),
            apps: Rc::clone(&connector.apps),
            runtimes: Rc::clone(&connector.runtimes),
            authority: Rc::clone(&connector.authority),
            connector: Rc::clone(connector),
            barrier: QuiesceBarrier::new(),
            clients: ClientRegistry::new(),
            listeners: OpenListeners::default(),
            watches: HealthWatches::default(),
            reflection_turns: ReflectionTurns::default(),
            secure: SecureArrivals::new(connector.config.started.limits.handshakes),
            no_heap: SendHeap::map(Memfd::create("provost-no-heap", 1)?)?,
        })
    }
}
