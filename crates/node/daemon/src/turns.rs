//! Turns at something that few can do at once: of an app, of a user, and of the node. Whoever has as many as it may wait
//! for its own to end, behind nobody else's.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::runtime::AppId;

/// How many turns there are at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnBounds {
    pub(crate) node: usize,
    pub(crate) per_user: usize,
    pub(crate) per_app: usize,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnOwner {
    /// The node itself, for what an operator wants.
    Node,
    /// An app of a user.
    App { app: AppId, user: u32 },
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct TurnQueue {
    bounds: TurnBounds,
    node: Arc<Semaphore>,
    users: OwnTurns<u32>,
    apps: OwnTurns<AppId>,
}

/// The turns of each who has one or waits for one.
#[derive(Debug)]
struct OwnTurns<K>(Mutex<HashMap<K, Weak<Semaphore>>>);

/// A turn, until it is dropped.
#[derive(Debug)]
pub(crate) struct WorkTurn {
    _held: [Option<OwnedSemaphorePermit>; 3],
}

impl TurnQueue {
    pub(crate) fn new(bounds: TurnBounds) -> TurnQueue {
        TurnQueue {
            bounds,
            node: Arc::new(Semaphore::new(bounds.node)),
            users: OwnTurns(Mutex::default()),
            apps: OwnTurns(Mutex::default()),
        }
    }

    /// Waits for a turn.
    pub(crate) async fn turn(&self, owner: TurnOwner) -> WorkTurn {
        let mut held = [None, None, None];
        // None of the semaphores is ever closed.
        if let TurnOwner::App { app, user } = owner {
            let of_app = self.apps.of(app, self.bounds.per_app);
            held[0] = of_app.acquire_owned().await.ok();
            let of_user = self.users.of(user, self.bounds.per_user);
            held[1] = of_user.acquire_owned().await.ok();
        }
        held[2] = Arc::clone(&self.node).acquire_owned().await.ok();
        WorkTurn { _held: held }
    }
}

impl<K: Copy + Eq + Hash> OwnTurns<K> {
    fn of(&self, key: K, count: usize) -> Arc<Semaphore> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        // Bounded by those who have or want a turn.
        all.retain(|_, turns| turns.strong_count() > 0);
        let new = Arc::new(Semaphore::new(count));
        all.insert(key, Arc::downgrade(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const WAITS: Duration = Duration::from_millis(5);

    #[tokio::test]
    async fn whoever_wants_many_turns_does_not_go_before_others() {
        let queue = TurnQueue::new(TurnBounds {
            node: 2,
            per_user: 1,
            per_app: 1,
        });
        let of = |app, user| queue.turn(TurnOwner::App { app, user });
        let running = of(1, 1).await;
        let mut same_app = Box::pin(of(1, 1));
        let mut same_user = Box::pin(of(2, 1));
        assert!(tokio::time::timeout(WAITS, &mut same_app).await.is_err());
        assert!(tokio::time::timeout(WAITS, &mut same_user).await.is_err());
        let other_user = tokio::time::timeout(WAITS * 200, of(3, 2)).await.unwrap();
        assert!(
            tokio::time::timeout(WAITS, queue.turn(TurnOwner::Node))
                .await
                .is_err()
        );
        drop((running, other_user));
        let _node = queue.turn(TurnOwner::Node).await;
        let _next = same_user.await;
    }
}
