//! Who calls a server.

use std::sync::Arc;

use provost_wire::control::{PeerApp as AppDescription, PeerDescription};

/// The other end of the connection by which a call has come, as the node's service knows it. Nothing here is the caller's
/// own word: metadata is.
#[derive(Clone, Debug, PartialEq)]
pub struct Peer(Arc<PeerDescription>);

/// The app that calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerApp<'a> {
    /// The name with which it has attached. On a node without `[[app]]` tables it chooses that itself.
    pub name: &'a str,
    /// The name of its user on its node; empty where the number has none.
    pub user: &'a str,
    /// The number of its user on its node.
    pub uid: u32,
    /// Its workload identity, such as a SPIFFE id; empty without one.
    pub workload: &'a str,
}

impl Peer {
    pub(crate) fn new(description: PeerDescription) -> Peer {
        Peer(Arc::new(description))
    }

    /// An app of this process, which nobody vouches for.
    pub(crate) fn in_process(app: PeerApp<'_>) -> Peer {
        Peer::new(PeerDescription {
            transport: "in-process".to_owned(),
            app: Some(AppDescription {
                name: app.name.to_owned(),
                user: app.user.to_owned(),
                uid: app.uid,
                workload: app.workload.to_owned(),
            }),
            ..PeerDescription::default()
        })
    }

    /// What the certificate of the other node proves, such as a SPIFFE id; empty without mutual TLS, and on the same node.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.0.identity
    }

    /// Where the other node is, such as `192.0.2.7:4000`; empty on the same node.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// What carries the connection: `local`, `tcp`, `datagram`.
    #[must_use]
    pub fn transport(&self) -> &str {
        &self.0.transport
    }

    /// The name of the node of the app that calls; empty where it is not known.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.0.node
    }

    /// The app that calls: on the same node, and on another one whose word on its apps the operator takes.
    #[must_use]
    pub fn app(&self) -> Option<PeerApp<'_>> {
        self.0.app.as_ref().map(|app| PeerApp {
            name: &app.name,
            user: &app.user,
            uid: app.uid,
            workload: &app.workload,
        })
    }
}
