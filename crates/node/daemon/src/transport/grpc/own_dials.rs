//! What this process has dialled of late, so that a connection of its own that a rule redirects back to it is known when it comes.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use provost_net::transparent::set_mark;

/// For how long one is remembered. What comes back comes at once; its addresses may be another's later.
const REMEMBERED: Duration = Duration::from_secs(10);
/// Dials that are remembered, at most: the latest.
const DIALS_MAX: usize = 16_384;

/// A connection that this process has begun.
#[derive(Debug)]
struct OwnDial {
    at: Instant,
    local: SocketAddr,
    remote: SocketAddr,
}

static DIALS: Mutex<VecDeque<OwnDial>> = Mutex::new(VecDeque::new());

/// Makes a socket ready to be dialled with.
pub(super) fn prepare(socket: &impl AsFd, mark: Option<u32>) -> io::Result<()> {
    let Some(mark) = mark else {
        return Ok(());
    };
    set_mark(socket, mark).map_err(|error| {
        let message =
            format!("cannot mark the connection with grpc.mark, which needs CAP_NET_ADMIN: {error}");
        io::Error::new(error.kind(), message)
    })
}

/// Notes a connection that was begun, before anything is sent on it.
pub(super) fn note(stream: &TcpStream, remote: SocketAddr) {
    let Ok(local) = stream.local_addr() else {
        return;
    };
    let (at, mut dials) = (Instant::now(), dials());
    forget_old(&mut dials, at);
    if dials.len() >= DIALS_MAX {
        dials.pop_front();
    }
    dials.push_back(OwnDial { at, local, remote });
}

/// Whether a connection that has come is one that this process has begun.
pub(crate) fn is_own_dial(local: SocketAddr, remote: SocketAddr) -> bool {
    let mut dials = dials();
    forget_old(&mut dials, Instant::now());
    let is_it = |dial: &OwnDial| dial.local == local && dial.remote == remote;
    dials.iter().any(is_it)
}

fn forget_old(dials: &mut VecDeque<OwnDial>, now: Instant) {
    let is_old = |dial: &OwnDial| now.saturating_duration_since(dial.at) > REMEMBERED;
    while dials.front().is_some_and(is_old) {
        dials.pop_front();
    }
}

fn dials() -> MutexGuard<'static, VecDeque<OwnDial>> {
    DIALS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn what_was_dialled_is_known_by_both_its_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = listener.local_addr().unwrap();
        let stream = TcpStream::connect(remote).unwrap();
        let local = stream.local_addr().unwrap();
        assert!(!is_own_dial(local, remote));
        note(&stream, remote);
        assert!(is_own_dial(local, remote));
        assert!(!is_own_dial(local, SocketAddr::new(remote.ip(), 1)));
        assert!(!is_own_dial(remote, local));
    }
}
