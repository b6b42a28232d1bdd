//! Who is at the other end of the connections of servers. The service describes each at the control socket before the
//! completion that says that it was accepted.

use std::collections::HashMap;
use std::sync::Arc;

use provost_wire::control::PeerDescription;

use super::{Link, lock};
use crate::peer::Peer;

/// Descriptions that are kept, at most: those of connections that the service has not opened after all stay.
const DESCRIPTIONS_MAX: usize = 64 << 10;

#[derive(Default)]
pub(super) struct PeerTable {
    /// By the number that the completion has, too.
    described: HashMap<u64, Peer>,
    /// The numbers of the peers of open connections.
    accepted: HashMap<u32, u64>,
}

impl Link {
    /// Who is at the other end of a server's connection, while it is open.
    pub(crate) fn peer_of(&self, connection: u32) -> Option<Peer> {
        let find = || {
            let peers = lock(&self.peers);
            let number = peers.accepted.get(&connection)?;
            Some(peers.described.get(number).cloned())
        };
        find()?.or_else(|| {
            // It was sent before the connection was heard of. An end of the socket is found by the reactor, too.
            let _ = self.take_control();
            find()?
        })
    }

    pub(super) fn note_peer(&self, description: PeerDescription) {
        let mut peers = lock(&self.peers);
        if peers.described.len() < DESCRIPTIONS_MAX {
            peers.described.insert(description.number, Peer::new(description));
        }
    }

    /// A server's connection is open; 0 is the number of a service that describes nobody.
    pub(super) fn peer_accepted(&self, connection: u32, number: u64) {
        if number != 0 {
            lock(&self.peers).accepted.insert(connection, number);
        }
    }

    pub(super) fn forget_peer(&self, connection: u32) {
        let mut peers = lock(&self.peers);
        if let Some(number) = peers.accepted.remove(&connection) {
            peers.described.remove(&number);
        }
    }
}

/// Where a request looks its peer up when it is asked for it.
#[derive(Clone)]
pub(crate) enum PeerSource {
    /// With the node's service.
    Link { link: Arc<Link>, connection: u32 },
    /// The request was told.
    Known(Peer),
}

impl PeerSource {
    pub(crate) fn find(&self) -> Option<Peer> {
        match self {
            PeerSource::Link { link, connection } => link.peer_of(*connection),
            PeerSource::Known(peer) => Some(peer.clone()),
        }
    }
}

impl std::fmt::Debug for PeerSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PeerSource::Link { connection, .. } => write!(f, "connection {connection}"),
            PeerSource::Known(peer) => peer.fmt(f),
        }
    }
}
