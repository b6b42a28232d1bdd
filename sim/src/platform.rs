//! The machine on which simulated runtimes run: one clock, doorbells that are pipes as everywhere, and sockets that are ends
//! of simulated carriers.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use provost_conformance::simulated::{EndHandle, PipeHandle};
use provost_datapath::Nanos;
use provost_runtime::{RuntimePlatform, WatchedSource};
use provost_session::Role;
use provost_shm::{Interest, Poller, Wait};

use crate::carrier::SimSocket;

/// Numbers of simulated sockets begin here: no descriptor of the process is so high.
const FIRST_SOCKET: RawFd = 1 << 24;
/// How long a thread is away that gives its core up, in simulated nanoseconds.
const YIELD_NS: Nanos = 200;

/// The time of a whole simulation.
#[derive(Clone, Debug)]
pub(crate) struct SimClock(Arc<AtomicU64>);

impl SimClock {
    pub(crate) fn starting_at(now: Nanos) -> SimClock {
        SimClock(Arc::new(AtomicU64::new(now)))
    }

    pub(crate) fn now(&self) -> Nanos {
        self.0.load(Ordering::Relaxed)
    }

    /// Goes on to a time, unless it is past already.
    pub(crate) fn advance_to(&self, now: Nanos) {
        self.0.fetch_max(now, Ordering::Relaxed);
    }
}

/// The sockets of all simulated carriers, by number.
#[derive(Clone, Default)]
pub(crate) struct SimNetwork(Arc<Mutex<Vec<SocketEnd>>>);

/// What a socket number stands for.
struct SocketEnd {
    pipe: PipeHandle,
    role: Role,
    /// By which the successor of its transport finds it; none before it has one.
    transport: Option<EndHandle>,
}

impl SocketEnd {
    fn readable_at(&self) -> Option<Nanos> {
        self.pipe.readable_at(self.role)
    }

    fn ready_at(&self, interest: Interest) -> Option<Nanos> {
        let writable = interest != Interest::Readable && self.pipe.is_writable(self.role);
        if writable { Some(0) } else { self.readable_at() }
    }
}

impl SimNetwork {
    /// Gives one end of a carrier a number.
    pub(crate) fn open(&self, pipe: &PipeHandle, role: Role) -> SimSocket {
        let mut ends = self.lock();
        ends.push(SocketEnd {
            pipe: pipe.clone(),
            role,
            transport: None,
        });
        SimSocket {
            number: FIRST_SOCKET + (ends.len() - 1) as RawFd,
            pipe: pipe.clone(),
            role,
        }
    }

    /// Keeps by which the successor of this socket's transport finds it.
    pub(crate) fn register(&self, socket: &SimSocket, transport: EndHandle) {
        let mut ends = self.lock();
        if let Some(end) = ends.get_mut((socket.number - FIRST_SOCKET) as usize) {
            end.transport = Some(transport);
        }
    }

    /// The socket of this number.
    pub(crate) fn find(&self, number: RawFd) -> Option<(SimSocket, EndHandle)> {
        let ends = self.lock();
        let end = ends.get(number.checked_sub(FIRST_SOCKET)? as usize)?;
        let socket = SimSocket {
            number,
            pipe: end.pipe.clone(),
            role: end.role,
        };
        Some((socket, end.transport.clone()?))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SocketEnd>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The clock, poller and core that one simulated runtime has.
pub(crate) struct SimPlatform {
    clock: SimClock,
    network: SimNetwork,
    doorbells: Poller,
    sockets: BTreeMap<RawFd, (u64, Interest)>,
}

impl SimPlatform {
    pub(crate) fn new(clock: SimClock, network: SimNetwork) -> io::Result<SimPlatform> {
        Ok(SimPlatform {
            clock,
            network,
            doorbells: Poller::create()?,
            sockets: BTreeMap::new(),
        })
    }

    /// Whether a doorbell has been rung and not been drained.
    pub(crate) fn is_rung(&mut self) -> bool {
        let events = self.doorbells.wait(Wait::Now);
        events.is_ok_and(|mut events| events.next().is_some())
    }

    pub(crate) fn watched_sockets(&self) -> usize {
        self.sockets.len()
    }

    /// When the first of the watched sockets is ready, if anything is on its way to one.
    pub(crate) fn sockets_ready_at(&self) -> Option<Nanos> {
        let ends = self.network.lock();
        let ready = self.sockets.iter().filter_map(|(socket, (_, interest))| {
            let end = ends.get((socket - FIRST_SOCKET) as usize)?;
            end.ready_at(*interest)
        });
        ready.min()
    }
}

impl RuntimePlatform for SimPlatform {
    fn now_ns(&self) -> Nanos {
        self.clock.now()
    }

    fn yield_core(&mut self) {
        self.clock.advance_to(self.clock.now() + YIELD_NS);
    }

    fn watch(&mut self, source: WatchedSource<'_>, token: u64, interest: Interest) -> io::Result<()> {
        match source {
            WatchedSource::Doorbell(doorbell) => self.doorbells.add(doorbell, token, interest),
            WatchedSource::Socket(socket) => match self.sockets.insert(socket, (token, interest)) {
                None => Ok(()),
                Some(_) => Err(io::ErrorKind::AlreadyExists.into()),
            },
        }
    }

    fn watch_for(&mut self, source: WatchedSource<'_>, token: u64, interest: Interest) -> io::Result<()> {
        match source {
            WatchedSource::Doorbell(doorbell) => self.doorbells.modify(doorbell, token, interest),
            WatchedSource::Socket(socket) => {
                let watched = self.sockets.get_mut(&socket).ok_or(io::ErrorKind::NotFound)?;
                *watched = (token, interest);
                Ok(())
            }
        }
    }

    fn unwatch(&mut self, source: WatchedSource<'_>) {
        match source {
            WatchedSource::Doorbell(doorbell) => drop(self.doorbells.remove(doorbell)),
            WatchedSource::Socket(socket) => drop(self.sockets.remove(&socket)),
        }
    }

    /// Time passes elsewhere: whoever drives the worker calls this when its sleep is over.
    fn wait(&mut self, _wait: Wait, mut on_ready: impl FnMut(u64, Nanos)) {
        let now = self.clock.now();
        let mut ready: Vec<u64> = match self.doorbells.wait(Wait::Now) {
            Ok(events) => events.map(|event| event.token).collect(),
            Err(_) => Vec::new(),
        };
        // The kernel's order is not the simulation's.
        ready.sort_unstable();
        let ends = self.network.lock();
        for (socket, (token, interest)) in &self.sockets {
            let end = ends.get((socket - FIRST_SOCKET) as usize);
            if end
                .and_then(|end| end.ready_at(*interest))
                .is_some_and(|at| at <= now)
            {
                ready.push(*token);
            }
        }
        drop(ends);
        ready.into_iter().for_each(|token| on_ready(token, now));
    }
}
