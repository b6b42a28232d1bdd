//! Counting connections, of the node and of each app, for as long as they live.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use crate::config::LimitsConfig;

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
        let (own_max, too_many) = match app.bound.get() {
            Some(bound) if bound < bounds.per_app => (bound, TooMany::Table(bound)),
            _ => (bounds.per_app, TooMany::App(bounds.per_app)),
        };
        if !raise(&app.app, own_max) {
            self.all.fetch_sub(1, Ordering::Relaxed);
            app.user.fetch_sub(1, Ordering::Relaxed);
            return Err(too_many);
        }
        Ok(Permit {
            counted: self.counted(app),
        })
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
