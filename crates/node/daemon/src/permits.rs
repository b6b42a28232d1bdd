//! Counting connections, of the node and of each app, for as long as they live.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The node's bounds on connections.
pub(crate) struct Permits {
    all: Arc<AtomicUsize>,
    all_max: Cell<usize>,
    per_app_max: Cell<usize>,
}

/// Connections of one app.
#[derive(Clone, Default)]
pub(crate) struct AppConnections(Arc<AtomicUsize>);

/// One connection that is counted until this is dropped.
pub(crate) struct Permit {
    counted: [Arc<AtomicUsize>; 2],
}

/// Too many connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TooMany {
    #[error("the node has as many connections as limits.connections = {0} allows")]
    OfNode(usize),
    #[error("the app has as many connections as limits.connections_per_app = {0} allows")]
    OfApp(usize),
}

impl Permits {
    pub(crate) fn new(all_max: usize, per_app_max: usize) -> Permits {
        Permits {
            all: Arc::default(),
            all_max: Cell::new(all_max),
            per_app_max: Cell::new(per_app_max),
        }
    }

    /// Other bounds, for connections that come from now on.
    pub(crate) fn set_bounds(&self, all_max: usize, per_app_max: usize) {
        self.all_max.set(all_max);
        self.per_app_max.set(per_app_max);
    }

    /// Counts one more connection of an app.
    pub(crate) fn take(&self, app: &AppConnections) -> Result<Permit, TooMany> {
        if !raise(&self.all, self.all_max.get()) {
            return Err(TooMany::OfNode(self.all_max.get()));
        }
        if !raise(&app.0, self.per_app_max.get()) {
            self.all.fetch_sub(1, Ordering::Relaxed);
            return Err(TooMany::OfApp(self.per_app_max.get()));
        }
        Ok(Permit {
            counted: [Arc::clone(&self.all), Arc::clone(&app.0)],
        })
    }
}

impl Permits {
    /// Counts a connection of an app that is there already, whatever the bounds are by now.
    pub(crate) fn count(&self, app: &AppConnections) -> Permit {
        let counted = [Arc::clone(&self.all), Arc::clone(&app.0)];
        for counter in &counted {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        Permit { counted }
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
    fn both_bounds_hold_and_dropping_a_permit_gives_its_place_back() {
        let permits = Permits::new(3, 2);
        let (one, other) = (AppConnections::default(), AppConnections::default());
        let first = permits.take(&one).unwrap();
        let _second = permits.take(&one).unwrap();
        assert_eq!(permits.take(&one).err(), Some(TooMany::OfApp(2)));
        let _third = permits.take(&other).unwrap();
        assert_eq!(permits.take(&other).err(), Some(TooMany::OfNode(3)));
        drop(first);
        assert!(permits.take(&other).is_ok());
    }
}
