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
pub(crate) enum PeerParty {
    /// Whoever has proved to be this.
    Proved(Arc<str>),
    /// Whoever proves nothing, by network.
    Network(IpAddr),
    /// What has another kind of address.
    Named(Arc<str>),
}

impl PeerParty {
    /// Whose connections those with a peer are; nobody's for one on this node.
    pub(crate) fn of(peer: &PeerEndpoint) -> Option<PeerParty> {
        let is_remote = peer.app.is_none();
        is_remote.then(|| PeerParty::at(&peer.identity, &peer.address))
    }

    /// Whose connections those of another node are that has proved to be this, at this address.
    pub(crate) fn at(identity: &str, address: &str) -> PeerParty {
        if !identity.is_empty() {
            return PeerParty::Proved(identity.into());
        }
        match address.parse::<SocketAddr>() {
            Ok(address) => PeerParty::Network(network_of(address.ip())),
            Err(_) => PeerParty::Named(address.into()),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(identity: &str, address: &str) -> PeerEndpoint {
        PeerEndpoint {
            identity: identity.into(),
            address: address.into(),
            app: None,
            attested: None,
        }
    }

    #[test]
    fn all_connections_of_a_peer_to_an_app_have_one_share() {
        let shares = PeerShares::default();
        let of = |app, identity: &str, address: &str| shares.share(app, &peer(identity, address));
        let same = |one: &Option<Arc<PrivateBytes>>, other: &Option<Arc<PrivateBytes>>| {
            let (one, other) = (one.as_ref().expect("a share"), other.as_ref().expect("a share"));
            Arc::ptr_eq(one, other)
        };
        let first = of(1, "", "10.0.0.1:1");
        assert!(same(&first, &of(1, "", "10.0.0.1:2")));
        assert!(!same(&first, &of(1, "", "10.0.0.2:1")));
        assert!(!same(&first, &of(2, "", "10.0.0.1:1")));
        // Whoever proves who it is has its own, wherever it calls from.
        let proved = of(1, "node-a", "10.0.0.1:1");
        assert!(!same(&first, &proved));
        assert!(same(&proved, &of(1, "node-a", "10.9.9.9:1")));
        // A network of IPv6 is one peer.
        let of_network = of(1, "", "[2001:db8::1]:1");
        assert!(same(&of_network, &of(1, "", "[2001:db8::2]:1")));
    }

    #[test]
    fn shares_that_no_connection_has_any_more_are_forgotten() {
        let shares = PeerShares::default();
        let kept = shares.share(1, &peer("", "10.0.0.1:1"));
        for number in 0..100_000 {
            drop(shares.share(1, &peer(&format!("node-{number}"), "")));
        }
        assert!(shares.shares.borrow().len() <= 4 * KEPT_MIN);
        let again = shares.share(1, &peer("", "10.0.0.1:2"));
        assert!(Arc::ptr_eq(&kept.expect("a share"), &again.expect("a share")));
    }
}
