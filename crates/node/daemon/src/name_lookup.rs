//! Looking names up. The system's resolver cannot be given up and has no deadline, so it runs on threads of which each
//! app, each user and the node have few; whoever asks waits no longer than it wants to.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::transport::PeerAddress;
use crate::turns::{TurnBounds, TurnOwner, TurnQueue};

/// Look-ups at once. One that the resolver does not end keeps its turn.
const LOOKUPS: TurnBounds = TurnBounds {
    node: 16,
    per_user: 8,
    per_app: 2,
};
/// Threads that they take at most.
pub(crate) const LOOKUP_THREADS_MAX: usize = LOOKUPS.node;
/// How long a look-up may take, whatever its asker's deadline is.
const LOOKUP_TIME_MAX: Duration = Duration::from_secs(10);
/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 16;

/// Looks names up, in turn.
#[derive(Debug)]
pub(crate) struct NameLookup(TurnQueue);

impl NameLookup {
    pub(crate) fn new() -> NameLookup {
        NameLookup(TurnQueue::new(LOOKUPS))
    }

    /// The addresses of `host:port`, or of a Unix socket, at most [`ADDRESSES_MAX`].
    pub(crate) async fn resolve(
        &self,
        endpoint: &str,
        owner: TurnOwner,
        deadline: Instant,
    ) -> io::Result<Vec<PeerAddress>> {
        if let Some(socket) = PeerAddress::unix(endpoint) {
            return Ok(vec![socket.map_err(io::Error::other)?]);
        }
        if let Ok(address) = endpoint.parse::<SocketAddr>() {
            return Ok(vec![address.into()]);
        }
        let deadline = deadline.min(Instant::now() + LOOKUP_TIME_MAX);
        let endpoint = endpoint.to_owned();
        let looked_up = async {
            let turn = self.0.turn(owner).await;
            let look_up = move || {
                let _turn = turn;
                let addresses = endpoint.to_socket_addrs()?;
                Ok(addresses.take(ADDRESSES_MAX).map(PeerAddress::from).collect())
            };
            let found = tokio::task::spawn_blocking(look_up).await;
            found.unwrap_or_else(|error| Err(io::Error::other(error)))
        };
        let in_time = tokio::time::timeout_at(deadline.into(), looked_up).await;
        in_time.unwrap_or_else(|_| {
            let reason = "the name was not looked up in time: check the system's resolver";
            Err(io::Error::new(io::ErrorKind::TimedOut, reason))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_need_no_look_up_and_names_get_theirs() {
        let lookup = NameLookup::new();
        let soon = Instant::now() + Duration::from_secs(10);
        let app = TurnOwner::App { app: 1, user: 1 };
        let _taken = [lookup.0.turn(app).await, lookup.0.turn(app).await];
        let past = Instant::now();
        let found = lookup.resolve("127.0.0.1:7", app, past).await.unwrap();
        let expected: SocketAddr = "127.0.0.1:7".parse().unwrap();
        assert_eq!(found, [expected.into()]);
        let socket = lookup.resolve("unix:/run/x", app, past).await.unwrap();
        assert_eq!(socket[0].to_string(), "unix:/run/x");
        let late = lookup.resolve("localhost:7", app, past).await.unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        let other = TurnOwner::App { app: 2, user: 1 };
        assert!(
            !lookup
                .resolve("localhost:7", other, soon)
                .await
                .unwrap()
                .is_empty()
        );
    }
}
