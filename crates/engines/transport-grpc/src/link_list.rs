//! The links of a transport as other threads see them: between which addresses they are, and what was counted on them.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use provost_grpc::{CallCounts, CountedCalls};
use rustix::net::{SocketAddrAny, getpeername, getsockname};

/// One end of a link; none where the system does not say it, or not yet.
pub type LinkEnd = Option<SocketAddrAny>;

/// Numbers of links, over all transports of the process.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// See the module's documentation. It changes when a link comes or goes, and never while calls pass.
#[derive(Debug, Default)]
pub struct LinkList(Mutex<ListedLinks>);

#[derive(Debug, Default)]
struct ListedLinks {
    open: Vec<ListedLink>,
    /// What was counted on links that are gone.
    gone: CountedCalls,
}

#[derive(Debug)]
struct ListedLink {
    place: usize,
    number: u64,
    counts: Arc<CallCounts>,
    local: LinkEnd,
    remote: LinkEnd,
}

/// A link, as it is told.
#[derive(Clone, Debug)]
pub struct LinkSnapshot {
    /// No other link of the process has it.
    pub number: u64,
    pub counted: CountedCalls,
    pub local: LinkEnd,
    pub remote: LinkEnd,
}

/// The links that there are, and what was counted on all that there have been.
#[derive(Clone, Debug, Default)]
pub struct ListSnapshot {
    pub links: Vec<LinkSnapshot>,
    pub counted: CountedCalls,
}

impl LinkList {
    /// What there is now.
    #[must_use]
    pub fn now(&self) -> ListSnapshot {
        let listed = self.lock();
        let links: Vec<LinkSnapshot> = listed.open.iter().map(ListedLink::told).collect();
        let counted = links.iter().fold(listed.gone, |sum, link| sum.plus(link.counted));
        ListSnapshot { links, counted }
    }

    /// Lists a link; where its calls are counted.
    pub(crate) fn add(&self, place: usize, socket: BorrowedFd<'_>) -> Arc<CallCounts> {
        let counts = Arc::<CallCounts>::default();
        let (local, remote) = ends(socket);
        self.lock().open.push(ListedLink {
            place,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            counts: Arc::clone(&counts),
            local,
            remote,
        });
        counts
    }

    /// The server of a link has answered: only now may the system say where it is.
    pub(crate) fn meet(&self, place: usize, socket: BorrowedFd<'_>) {
        let mut listed = self.lock();
        if let Some(link) = listed.open.iter_mut().find(|link| link.place == place) {
            (link.local, link.remote) = ends(socket);
        }
    }

    pub(crate) fn remove(&self, place: usize) {
        let mut listed = self.lock();
        if let Some(at) = listed.open.iter().position(|link| link.place == place) {
            let gone = listed.open.swap_remove(at);
            listed.gone = listed.gone.plus(gone.counts.now());
        }
    }

    fn lock(&self) -> MutexGuard<'_, ListedLinks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ListedLink {
    fn told(&self) -> LinkSnapshot {
        LinkSnapshot {
            number: self.number,
            counted: self.counts.now(),
            local: self.local.clone(),
            remote: self.remote.clone(),
        }
    }
}

fn ends(socket: BorrowedFd<'_>) -> (LinkEnd, LinkEnd) {
    (getsockname(socket).ok(), getpeername(socket).ok().flatten())
}
