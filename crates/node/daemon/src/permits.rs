//! Counting connections, of the node and of each app, for as long as they live.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use crate::config::LimitsConfig;

/// Of what an app, or a user, may have, one peer may have so many times as many as it leaves to others; one in any case.
const SHARE_OF_ROOM: usize = 2;
/// Of so few no share is taken: each would be too large a part of them.
const SHARED_MIN: usize = 16;

/// The node's bounds on connections.
pub(crate) struct Permits {
    all: Arc<AtomicUsize>,
    /// Those of each user who has apps.
    users: RefCell<HashMap<u32, Weak<AtomicUsize>>>,
    bounds: Cell<ConnectionBounds>,
}

/// How many connections there may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionBounds {
    pub(crate) node: usize,
    pub(crate) per_app: usize,
    pub(crate) per_user: usize,
}

impl From<&LimitsConfig> for ConnectionBounds {
    fn from(limits: &LimitsConfig) -> ConnectionBounds {
        ConnectionBounds {
            node: limits.connections,
            per_app: limits.connections_per_app,
            per_user: limits.connections_per_user,
        }
    }
}

/// Connections of one app, and of all apps of its user.
#[derive(Default)]
pub(crate) struct AppConnections {
    app: Arc<AtomicUsize>,
    user: Arc<AtomicUsize>,
    /// How many the app's own table allows; none: as many as any app.
    bound: Cell<Option<usize>>,
}

impl AppConnections {
    /// Another bound of this app alone, for connections that come from now on.
    pub(crate) fn set_bound(&self, bound: Option<usize>) {
        self.bound.set(bound);
    }
}

/// One connection that is counted until this is dropped.
pub(crate) struct Permit {
    counted: [Arc<AtomicUsize>; 3],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TooMany {
    #[error("the node has as many connections as limits.connections = {0} allows")]
    Node(usize),
    #[error("the apps of this user have as many connections as limits.connections_per_user = {0} allows")]
    User(usize),
    #[error("the app has as many connections as limits.connections_per_app = {0} allows")]
    App(usize),
    #[error("the app has as many connections as connections = {0} of its [[app]] allows")]
    Table(usize),
    #[error(
        "the peer has {of_peer} of the {of_app} connections that the app may have: the rest is for other peers"
    )]
    Peer { of_peer: usize, of_app: usize },
}

impl Permits {
    pub(crate) fn new(bounds: ConnectionBounds) -> Permits {
        Permits {
            all: Arc::default(),
            users: RefCell::default(),
            bounds: Cell::new(bounds),
        }
    }

    /// Other bounds, for connections that come from now on.
    pub(crate) fn set_bounds(&self, bounds: ConnectionBounds) {
        self.bounds.set(bounds);
    }

    /// Counts the connections of an app of this user.
    pub(crate) fn of_app(&self, user: u32) -> AppConnections {
        let mut users = self.users.borrow_mut();
        let known = users.get(&user).and_then(Weak::upgrade);
        let user = known.unwrap_or_else(|| {
            users.retain(|_, count| count.strong_count() > 0);
            let new = Arc::default();
            users.insert(user, Arc::downgrade(&new));
            new
        });
        AppConnections {
            app: Arc::default(),
            user,
            bound: Cell::new(None),
        }
    }

    /// Counts one more connection of an app.
    pub(crate) fn take(&self, app: &AppConnections) -> Result<Permit, TooMany> {
        let bounds = self.bounds.get();
        if !raise(&self.all, bounds.node) {
            return Err(TooMany::Node(bounds.node));
        }
        if !raise(&app.user, bounds.per_user) {
            self.all.fetch_sub(1, Ordering::Relaxed);
            return Err(TooMany::User(bounds.per_user));
        }
        let (own_max, too_many) = self.bound_of(app);
        if !raise(&app.app, own_max) {
            self.all.fetch_sub(1, Ordering::Relaxed);
            app.user.fetch_sub(1, Ordering::Relaxed);
            return Err(too_many);
        }
        Ok(Permit {
            counted: self.counted(app),
        })
    }

    /// How many connections an app may have, and what is said of one more.
    fn bound_of(&self, app: &AppConnections) -> (usize, TooMany) {
        let per_app = self.bounds.get().per_app;
        match app.bound.get() {
            Some(bound) if bound < per_app => (bound, TooMany::Table(bound)),
            _ => (per_app, TooMany::App(per_app)),
        }
    }

    /// Checks that a peer of an app leaves enough to others with one connection more. `of_peer` counts those that it has, which takes
    /// time, and is asked only where few are left.
    pub(crate) fn check_peer(
        &self,
        app: &AppConnections,
        of_peer: impl FnOnce() -> usize,
    ) -> Result<(), TooMany> {
        let (of_app, _) = self.bound_of(app);
        let taken = app.app.load(Ordering::Relaxed);
        check_share(of_app, taken, of_peer).map_err(|of_peer| TooMany::Peer { of_peer, of_app })
    }

    /// How many connections the apps of an app's user may have, and how many they have.
    pub(crate) fn of_user(&self, app: &AppConnections) -> (usize, usize) {
        (self.bounds.get().per_user, app.user.load(Ordering::Relaxed))
    }

    /// Counts a connection of an app that is there already, whatever the bounds are by now.
    pub(crate) fn count(&self, app: &AppConnections) -> Permit {
        let counted = self.counted(app);
        for counter in &counted {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        Permit { counted }
    }

    fn counted(&self, app: &AppConnections) -> [Arc<AtomicUsize>; 3] {
        [Arc::clone(&self.all), Arc::clone(&app.user), Arc::clone(&app.app)]
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        for counter in &self.counted {
            counter.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Checks that a peer leaves enough to others with one more of what there may be so many of, `taken` of which are there. `of_peer` counts
/// those that are the peer's, and is asked only where few are left; what it said is the error.
pub(crate) fn check_share(most: usize, taken: usize, of_peer: impl FnOnce() -> usize) -> Result<(), usize> {
    if most < SHARED_MIN {
        return Ok(());
    }
    let Some(left) = most.checked_sub(taken + 1) else {
        // There is room for nobody, which is said instead.
        return Ok(());
    };
    let share = (SHARE_OF_ROOM * left).max(1);
    if taken < share {
        return Ok(());
    }
    match of_peer() {
        of_peer if of_peer < share => Ok(()),
        of_peer => Err(of_peer),
    }
}

fn raise(counter: &AtomicUsize, max: usize) -> bool {
    counter
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count < max).then_some(count + 1)
        })
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_leaves_some_of_an_apps_connections_to_others() {
        let permits = Permits::new(ConnectionBounds {
            node: 1000,
            per_app: 90,
            per_user: 1000,
        });
        let app = permits.of_app(7);
        let mut all = Vec::new();
        let mut of_peers = Vec::new();
        while all.len() < 90 {
            let mut of_peer = 0;
            while permits.check_peer(&app, || of_peer).is_ok()
                && let Ok(permit) = permits.take(&app)
            {
                all.push(permit);
                of_peer += 1;
            }
            of_peers.push(of_peer);
        }
        assert_eq!(of_peers[..4], [60, 20, 6, 2]);
        assert!(of_peers[4..].iter().all(|of_peer| *of_peer == 1), "{of_peers:?}");
        // Where there is room for nobody, that is what is said.
        assert!(permits.check_peer(&app, || 60).is_ok());
        assert_eq!(permits.take(&app).err(), Some(TooMany::App(90)));
        all.pop();
        let too_many = permits.check_peer(&app, || 60).err();
        assert_eq!(
            too_many,
            Some(TooMany::Peer {
                of_peer: 60,
                of_app: 90
            })
        );
    }

    #[test]
    fn one_peer_may_have_all_of_few_connections() {
        for per_app in 1..SHARED_MIN {
            let permits = Permits::new(ConnectionBounds {
                node: 1000,
                per_app,
                per_user: 1000,
            });
            let app = permits.of_app(7);
            let take = |of_peer| {
                permits.check_peer(&app, || of_peer)?;
                permits.take(&app)
            };
            let all: Vec<_> = (0..per_app).map(take).collect();
            assert!(all.iter().all(Result::is_ok), "{per_app}");
            assert_eq!(take(per_app).err(), Some(TooMany::App(per_app)));
        }
    }

    #[test]
    fn all_bounds_hold_and_dropping_a_permit_gives_its_place_back() {
        let permits = Permits::new(ConnectionBounds {
            node: 4,
            per_app: 2,
            per_user: 3,
        });
        let (one, other, third) = (permits.of_app(7), permits.of_app(7), permits.of_app(8));
        let first = permits.take(&one).unwrap();
        let _second = permits.take(&one).unwrap();
        assert_eq!(permits.take(&one).err(), Some(TooMany::App(2)));
        let _third = permits.take(&other).unwrap();
        assert_eq!(permits.take(&other).err(), Some(TooMany::User(3)));
        let _fourth = permits.take(&third).unwrap();
        assert_eq!(permits.take(&third).err(), Some(TooMany::Node(4)));
        drop(first);
        one.set_bound(Some(1));
        assert_eq!(permits.take(&one).err(), Some(TooMany::Table(1)));
        assert!(permits.take(&other).is_ok());
    }
}
