//! Attempts to reach other nodes: how many there are at once, and what each of them keeps.
//!
//! An attempt that waits for an answer keeps its socket and nothing else. Shaking hands blocks a thread, so that is done in
//! turn. Whoever drops an attempt closes its socket, which ends the handshake too.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use provost_wire::Code;

use crate::endpoint_health::EndpointHealth;
use crate::name_lookup::NameLookup;
use crate::refusal::Refusal;
use crate::runtime::AppId;
use crate::transport::{ConnectRequest, EstablishedPeer, NetworkTransport, StopHandshake};
use crate::turns::{TurnBounds, TurnOwner, TurnQueue};

/// Attempts of one app that are under way.
const ATTEMPTS_PER_APP_MAX: usize = 64;
/// Attempts of all apps of one user.
const ATTEMPTS_PER_USER_MAX: usize = 512;
/// Attempts of the node.
const ATTEMPTS_MAX: usize = 2048;
/// Handshakes of attempts at once.
const HANDSHAKES: TurnBounds = TurnBounds {
    node: 64,
    per_user: 32,
    per_app: 8,
};
/// Threads that they take at most.
pub(crate) const ATTEMPT_THREADS_MAX: usize = HANDSHAKES.node;
/// How long the peer of an attempt may take in the handshake, whatever the attempt's deadline is.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(20);

/// The attempts of a node.
pub(crate) struct ConnectAttempts {
    under_way: Rc<RefCell<UnderWay>>,
    handshakes: TurnQueue,
    pub(crate) lookup: NameLookup,
    pub(crate) health: EndpointHealth,
}

/// How many there are.
#[derive(Default)]
struct UnderWay {
    all: usize,
    by_app: HashMap<AppId, usize>,
    by_user: HashMap<u32, usize>,
}

/// An attempt that is counted until this is dropped.
pub(crate) struct ConnectAttempt {
    under_way: Rc<RefCell<UnderWay>>,
    app: AppId,
    user: u32,
}

impl ConnectAttempts {
    pub(crate) fn new() -> ConnectAttempts {
        ConnectAttempts {
            under_way: Rc::default(),
            handshakes: TurnQueue::new(HANDSHAKES),
            lookup: NameLookup::new(),
            health: EndpointHealth::default(),
        }
    }

    /// Counts an attempt of an app.
    pub(crate) fn begin(&self, app: AppId, user: u32) -> Result<ConnectAttempt, Refusal> {
        let mut under_way = self.under_way.borrow_mut();
        let of_app = under_way.by_app.get(&app).copied().unwrap_or(0);
        let of_user = under_way.by_user.get(&user).copied().unwrap_or(0);
        for (count, max, whose) in [
            (of_app, ATTEMPTS_PER_APP_MAX, "this app"),
            (of_user, ATTEMPTS_PER_USER_MAX, "the apps of this user"),
            (under_way.all, ATTEMPTS_MAX, "all apps"),
        ] {
            if count >= max {
                let message = format!("{whose} try to open {count} connections already, the most at once");
                return Err(Refusal::new(Code::ResourceExhausted, message));
            }
        }
        under_way.all += 1;
        *under_way.by_app.entry(app).or_default() += 1;
        *under_way.by_user.entry(user).or_default() += 1;
        Ok(ConnectAttempt {
            under_way: Rc::clone(&self.under_way),
            app,
            user,
        })
    }

    /// Reaches another node, and agrees with it.
    pub(crate) async fn reach(
        &self,
        network: &'static NetworkTransport,
        request: ConnectRequest,
        owner: TurnOwner,
    ) -> Result<EstablishedPeer, Refusal> {
        let endpoint = request.address.clone();
        let reached = self.try_to_reach(network, request, owner).await;
        let outcome = reached.as_ref().map(drop);
        self.health
            .note(&endpoint, outcome.map_err(|refusal| refusal.message.as_str()));
        reached
    }

    async fn try_to_reach(
        &self,
        network: &'static NetworkTransport,
        request: ConnectRequest,
        owner: TurnOwner,
    ) -> Result<EstablishedPeer, Refusal> {
        let deadline = request.deadline;
        let fail = |reason: &dyn std::fmt::Display| {
            let message = format!("{} at {}: {reason}", request.hello.service, request.address);
            Refusal::new(Code::Unavailable, message)
        };
        let addresses = self.lookup.resolve(&request.address, owner, deadline).await;
        let addresses = addresses.map_err(|error| fail(&error))?;
        let opened = (network.open)(addresses, &request).await;
        let opened = opened.map_err(|error| fail(&error))?;
        let mut stops = StopsWhenDropped(Some(opened.stop));
        let turn = tokio::time::timeout_at(deadline.into(), self.handshakes.turn(owner)).await;
        let turn = turn.map_err(|_| fail(&"too many other attempts wait for their peers"))?;
        let mut request = request;
        request.deadline = deadline.min(Instant::now() + HANDSHAKE_TIME_MAX);
        let span = tracing::Span::current();
        let shake_hands = move || {
            let _turn = turn;
            span.in_scope(|| (opened.handshake)(request))
        };
        let reached = tokio::task::spawn_blocking(shake_hands).await;
        stops.0 = None;
        match reached {
            Ok(reached) => Ok(reached?),
            Err(_) => Err(Refusal::new(
                Code::Internal,
                "the connection attempt was cut short",
            )),
        }
    }
}

/// Ends a handshake for which nobody waits any more.
struct StopsWhenDropped(Option<StopHandshake>);

impl Drop for StopsWhenDropped {
    fn drop(&mut self) {
        if let Some(stop) = self.0.take() {
            stop();
        }
    }
}

impl Drop for ConnectAttempt {
    fn drop(&mut self) {
        let mut under_way = self.under_way.borrow_mut();
        under_way.all -= 1;
        lower(&mut under_way.by_app, self.app);
        lower(&mut under_way.by_user, self.user);
    }
}

fn lower<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_app_a_user_and_the_node_have_so_many_attempts_at_once() {
        let attempts = ConnectAttempts::new();
        let begin = |app, user| attempts.begin(app, user);
        let mut held: Vec<_> = (0..ATTEMPTS_PER_APP_MAX).map(|_| begin(1, 1).ok()).collect();
        assert!(held.iter().all(Option::is_some));
        assert!(begin(1, 1).is_err() && begin(2, 1).is_ok());
        for app in 2..100 {
            held.extend((0..ATTEMPTS_PER_APP_MAX).map(|_| begin(app, 1).ok()));
        }
        assert_eq!(held.iter().flatten().count(), ATTEMPTS_PER_USER_MAX);
        assert!(begin(200, 1).is_err() && begin(200, 2).is_ok());
        let users = (ATTEMPTS_MAX / ATTEMPTS_PER_USER_MAX) as u32;
        for user in 2..=users {
            let of_user = |at| begin(1_000 * u64::from(user) + at as u64 / 10, user).ok();
            held.extend((0..ATTEMPTS_PER_USER_MAX).map(of_user));
        }
        assert_eq!(held.iter().flatten().count(), ATTEMPTS_MAX);
        let refused = begin(200, users + 1)
            .err()
            .expect("the node has as many as it may");
        assert!(refused.message.contains("all apps"), "{}", refused.message);
        held.clear();
        assert!(begin(1, 1).is_ok());
        let left = attempts.under_way.borrow();
        assert!(left.all == 0 && left.by_app.is_empty() && left.by_user.is_empty());
    }
}
