//! Shares of an app's room for messages that have come in part: one for each peer, however many connections it has.
//!
//! Between two apps of this node messages come whole, so that connections within it need none.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};

use provost_datapath::PrivateBytes;

use crate::compose::PeerEndpoint;
use crate::places::network_of;
use crate::runtime::AppId;

/// How many shares are kept before those are forgotten that no connection has any more.
const KEPT_MIN: usize = 64;

/// Whose connections count together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum PeerParty {
    /// Whoever has proved to be this.
    Proved(Arc<str>),
    /// Whoever proves nothing, by network.
    Network(IpAddr),
    /// What has another kind of address.
    Named(Arc<str>),
}

impl PeerParty {
    /// Whose connections those with a peer are; nobody's for one on this node.
    fn of(peer: &PeerEndpoint) -> Option<PeerParty> {
        if peer.app.is_some() {
            return None;
        }
        if !peer.identity.is_empty() {
            return Some(PeerParty::Proved(Arc::clone(&peer.identity)));
        }
        Some(match peer.address.parse::<SocketAddr>() {
            Ok(address) => PeerParty::Network(network_of(address.ip())),
            Err(_) => PeerParty::Named(Arc::clone(&peer.address)),
        })
    }
}

/// The shares that connections have.
#[derive(Debug, Default)]
pub(crate) struct PeerShares {
    shares: RefCell<HashMap<(AppId, PeerParty), Weak<PrivateBytes>>>,
}

impl PeerShares {
    /// The share of a connection of an app with a peer; none if it needs none.
    pub(crate) fn share(&self, app: AppId, peer: &PeerEndpoint) -> Option<Arc<PrivateBytes>> {
        let key = (app, PeerParty::of(peer)?);
        let mut shares = self.shares.borrow_mut();
        if let Some(share) = shares.get(&key).and_then(Weak::upgrade) {
            return Some(share);
        }
        if shares.len() >= KEPT_MIN && shares.len() == shares.capacity() {
            // Before the table grows, which it does ever more seldom.
            shares.retain(|_, share| share.strong_count() > 0);
        }
        let share = PrivateBytes::of_peer();
        shares.insert(key, Arc::downgrade(&share));
        Some(share)
    }
}
