//! How an end waits: it polls for a while, then sleeps on its doorbell, and notices that the peer is gone.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use provost_ring::{AdaptiveSpin, ContentionBackoff};
use provost_shm::{Doorbell, PacketSocket, Ringer, now_ns, yield_now};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::thread::{MembarrierCommand, membarrier};

use crate::greeting::Barriers;

/// How long an end that has nothing to do polls before it sleeps.
const POLL_NS: u64 = 50_000;
/// Looks between two times that the core is given up.
const LOOKS_PER_YIELD: u32 = 32;

/// What an end sleeps on.
#[derive(Debug)]
pub(crate) struct Waiting {
    doorbell: Doorbell,
    alarm: Arc<Alarm>,
    /// Nothing is sent over it any more; the kernel hangs it up when the peer ends, however it ends.
    socket: PacketSocket,
    adaptive_spin: AdaptiveSpin,
    contention_backoff: ContentionBackoff,
}

/// By which other threads of this process end a wait.
#[derive(Debug)]
struct Alarm {
    /// For an end that polls.
    is_raised: AtomicBool,
    /// For an end that sleeps: the other end of its own doorbell.
    ringer: Ringer,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Pairs with the Acquire swaps of `Waiting`: who is woken sees why.
        if !self.is_raised.swap(true, Ordering::Release) {
            // The doorbell lives as long as the wire; afterwards nobody waits.
            let _ = self.ringer.ring();
        }
    }
}

/// What came of polling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    Found,
    /// Nothing is, and so much of the time is left.
    Nothing {
        left: Option<Duration>,
    },
}

/// What ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// The doorbell, or time.
    Usual,
    /// The peer is gone.
    PeerGone,
}

impl Waiting {
    /// The ringer is the other end of the doorbell.
    pub(crate) fn new(doorbell: Doorbell, ringer: Ringer, socket: PacketSocket) -> Waiting {
        let is_raised = AtomicBool::new(false);
        Waiting {
            doorbell,
            alarm: Arc::new(Alarm { is_raised, ringer }),
            socket,
            adaptive_spin: AdaptiveSpin::new(POLL_NS),
            contention_backoff: ContentionBackoff::default(),
        }
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.alarm))
    }

    /// Polls until something is there or it no longer pays.
    pub(crate) fn poll(
        &mut self,
        at_most: Option<Duration>,
        mut is_there: impl FnMut() -> io::Result<bool>,
    ) -> io::Result<Polled> {
        let began_ns = now_ns();
        let at_most_ns = at_most.map_or(u64::MAX, nanoseconds);
        let until_ns = began_ns.saturating_add(self.adaptive_spin.spin_ns().min(at_most_ns));
        loop {
            for _ in 0..LOOKS_PER_YIELD {
                let is_raised = self.alarm.is_raised.load(Ordering::Relaxed);
                if is_there()? || (is_raised && self.alarm.is_raised.swap(false, Ordering::Acquire)) {
                    return Ok(Polled::Found);
                }
                std::hint::spin_loop();
            }
            let at_ns = now_ns();
            if at_ns >= until_ns || self.contention_backoff.is_contended(at_ns) {
                let polled = Duration::from_nanos(at_ns - began_ns);
                let left = at_most.map(|at_most| at_most.saturating_sub(polled));
                return Ok(Polled::Nothing { left });
            }
            yield_now();
            if let Some(contention_backoff) = self.contention_backoff.after_yield(at_ns, now_ns()) {
                self.contention_backoff = contention_backoff;
            }
        }
    }

    /// Sleeps until the doorbell rings, the peer is gone, or so long.
    pub(crate) fn sleep(&mut self, at_most: Option<Duration>) -> io::Result<Woken> {
        let began_ns = now_ns();
        let woken = self.look(at_most)?;
        self.doorbell.drain()?;
        // Who raised the alarm before this is heard now, and who does so after it rings again.
        self.alarm.is_raised.swap(false, Ordering::Acquire);
        let gap_ns = POLL_NS.saturating_add(now_ns().saturating_sub(began_ns));
        self.adaptive_spin.woken_after(gap_ns);
        Ok(woken)
    }

    /// Whether the peer is gone already.
    pub(crate) fn is_peer_gone(&self) -> io::Result<bool> {
        Ok(self.look(Some(Duration::ZERO))? == Woken::PeerGone)
    }

    fn look(&self, at_most: Option<Duration>) -> io::Result<Woken> {
        let timeout = at_most.map(|at_most| Timespec {
            tv_sec: at_most.as_secs().min(i32::MAX as u64) as i64,
            tv_nsec: at_most.subsec_nanos().into(),
        });
        // Of the socket only what is always told: that the peer has hung up.
        let mut watched = [
            PollFd::new(&self.doorbell, PollFlags::IN),
            PollFd::new(&self.socket, PollFlags::empty()),
        ];
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) if !watched[1].revents().is_empty() => Ok(Woken::PeerGone),
            Ok(_) | Err(Errno::INTR) => Ok(Woken::Usual),
            Err(error) => Err(error.into()),
        }
    }
}

/// Asks the kernel to interrupt this process with barriers that other processes ask for.
pub(crate) fn register_barriers() -> Barriers {
    match membarrier(MembarrierCommand::RegisterGlobalExpedited) {
        // The peer may have to ask for one, so both commands must be there.
        Ok(()) if barrier().is_ok() => Barriers::Kernel,
        _ => Barriers::Own,
    }
}

/// A memory barrier in every process that has registered.
pub(crate) fn barrier() -> io::Result<()> {
    Ok(membarrier(MembarrierCommand::GlobalExpedited)?)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
