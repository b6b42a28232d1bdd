//! Both ends of a connection on this node: no socket, and one copy between heaps. The two ends are made, and restored,
//! together.

use std::sync::Arc;

use provost_datapath::ConnectionSignals;
use provost_transport_local::{End, PeerWake};
pub(crate) use provost_transport_local::{
    KIND, LocalTransport, MethodMap, SavedEnd, connect, restore_alone, restore_pair, saved_pair,
};

use super::{TransportDescription, TransportRestore};
use crate::runtime::DatapathWaker;

pub(super) const DESCRIPTION: TransportDescription = TransportDescription {
    name: "local",
    engine: provost_transport_local::KIND,
    summary: "both ends on this node",
    versions: &[1],
    network: None,
    restore: TransportRestore::WithOtherEnd,
    state_form: None,
};

/// One end, woken by the other end's runtime.
struct LocalPeer(Arc<DatapathWaker>);

impl PeerWake for LocalPeer {
    fn wake(&self) {
        self.0.wake();
    }
}

/// What one end brings to a connection on this node.
pub(crate) fn end(signals: &Arc<ConnectionSignals>, waker: &Arc<DatapathWaker>) -> End {
    End {
        link: Arc::clone(signals),
        wake: Arc::new(LocalPeer(Arc::clone(waker))),
    }
}
