//! Whose turn it is to have a schema compiled. It takes a processor for as long as the schema is large, so it is done for
//! few at once, and whoever brings many waits behind those who bring one.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::turns::{TurnBounds, TurnOwner, TurnQueue, WorkTurn};

/// A descriptor set of at most so many bytes does not wait for larger ones.
pub(crate) const SMALL_BYTES_MAX: u64 = 64 << 10;
/// Schemas of apps that are compiled at once, of each of the two sizes.
const AT_ONCE: TurnBounds = TurnBounds {
    node: 1,
    per_user: 1,
    per_app: 1,
};
/// Threads that the turns of apps take at most.
pub(crate) const COMPILING_THREADS_MAX: usize = 2 * AT_ONCE.node;
/// Schemas of peers that are read at once.
const PEERS_AT_ONCE_MAX: usize = 2;
/// How often a peer that waits is looked after.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The turns of apps.
#[derive(Debug)]
pub(crate) struct SchemaWork {
    small: TurnQueue,
    large: TurnQueue,
}

impl SchemaWork {
    pub(crate) fn new() -> SchemaWork {
        SchemaWork {
            small: TurnQueue::new(AT_ONCE),
            large: TurnQueue::new(AT_ONCE),
        }
    }

    /// Waits for a turn, for a descriptor set of so many bytes.
    pub(crate) async fn turn(&self, owner: TurnOwner, bytes: u64) -> WorkTurn {
        let queue = if bytes <= SMALL_BYTES_MAX {
            &self.small
        } else {
            &self.large
        };
        queue.turn(owner).await
    }
}

/// The turns of peers whose schemas are read in handshakes, on the threads of those: one for each address.
#[derive(Debug, Default)]
pub(crate) struct PeerWork {
    under_way: Mutex<HashSet<IpAddr>>,
    changed: Condvar,
}

/// No turn came in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node reads schemas of other peers: connect again")]
pub(crate) struct WorkBusy;

/// A peer's turn, until it is dropped.
#[derive(Debug)]
pub(crate) struct PeerTurn<'a> {
    work: &'a PeerWork,
    peer: IpAddr,
}

impl PeerWork {
    /// Waits for a turn of a peer, unless it is given up.
    pub(crate) fn turn(
        &self,
        peer: IpAddr,
        deadline: Instant,
        is_given_up: &AtomicBool,
    ) -> Result<PeerTurn<'_>, WorkBusy> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        while under_way.len() >= PEERS_AT_ONCE_MAX || under_way.contains(&peer) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || is_given_up.load(Ordering::Relaxed) {
                return Err(WorkBusy);
            }
            let waited = self.changed.wait_timeout(under_way, left.min(LOOK_EVERY));
            under_way = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        under_way.insert(peer);
        Ok(PeerTurn { work: self, peer })
    }
}

impl Drop for PeerTurn<'_> {
    fn drop(&mut self) {
        let mut under_way = self.work.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.remove(&self.peer);
        self.work.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_has_one_turn_and_all_have_few() {
        let work = PeerWork::default();
        let address = |last| IpAddr::from([127, 0, 0, last]);
        let stays = AtomicBool::new(false);
        let turn = |last| {
            let soon = Instant::now() + Duration::from_millis(20);
            work.turn(address(last), soon, &stays)
        };
        let first = turn(1).unwrap();
        assert!(turn(1).is_err());
        let _second = turn(2).unwrap();
        assert!(turn(3).is_err());
        let late = Instant::now() + Duration::from_secs(3600);
        assert!(work.turn(address(3), late, &AtomicBool::new(true)).is_err());
        drop(first);
        assert!(turn(3).is_ok());
    }
}
