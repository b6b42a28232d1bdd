//! Rates and latencies, read from the admin API's Watch for as long as somebody looks at the page.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use provost_admin::v1::admin_server::Admin;
use provost_admin::v1::{Snapshot, WatchRequest};
use tokio::sync::watch;
use tonic::Status;

use crate::admin::{Caller, Server};

/// What rates are over.
const INTERVAL_MS: u32 = 1000;
/// Nobody looks any more when nobody has asked for so long.
const WATCHED_FOR: Duration = Duration::from_secs(15);
/// How long one who is the first to look waits for the first interval to end.
const FIRST_MAX: Duration = Duration::from_secs(5);

/// See the module's documentation.
pub(super) struct TrafficFollower {
    admin: Rc<Server>,
    latest: watch::Sender<Option<Snapshot>>,
    asked_at: Cell<Instant>,
    is_following: Cell<bool>,
}

impl TrafficFollower {
    pub(super) fn new(admin: Rc<Server>) -> Rc<TrafficFollower> {
        Rc::new(TrafficFollower {
            admin,
            latest: watch::Sender::new(None),
            asked_at: Cell::new(Instant::now()),
            is_following: Cell::new(false),
        })
    }

    /// What came in the last whole interval. `None` where that takes too long.
    pub(super) async fn latest(self: &Rc<Self>, caller: &Caller) -> Result<Option<Snapshot>, Status> {
        self.asked_at.set(Instant::now());
        if !self.is_following.replace(true) {
            self.latest.send_replace(None);
            let watched = self.admin.watch(caller.request(WatchRequest {
                interval_ms: INTERVAL_MS,
            }));
            let mut snapshots = match watched.await {
                Ok(snapshots) => snapshots.into_inner(),
                Err(status) => {
                    self.is_following.set(false);
                    return Err(status);
                }
            };
            let follower = Rc::clone(self);
            tokio::task::spawn_local(async move {
                while follower.asked_at.get().elapsed() < WATCHED_FOR
                    && let Some(Ok(snapshot)) = snapshots.next().await
                {
                    follower.latest.send_replace(Some(snapshot));
                }
                follower.is_following.set(false);
            });
        }
        let mut latest = self.latest.subscribe();
        let first = tokio::time::timeout(FIRST_MAX, latest.wait_for(Option::is_some)).await;
        Ok(first
            .ok()
            .and_then(Result::ok)
            .and_then(|snapshot| snapshot.clone()))
    }
}
