//! A timer that is exact to microseconds; the runtime's own are exact to milliseconds.

use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use crate::failure::{Doing, ProbeFailure};

pub(crate) struct ExactTimer(AsyncFd<OwnedFd>);

impl ExactTimer {
    pub(crate) fn new() -> Result<ExactTimer, ProbeFailure> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).doing(|| "make a timer".into())?;
        #[expect(
            deprecated,
            reason = "what the unsafe constructor asks for, that the descriptor stays open, is true of every `OwnedFd`"
        )]
        let timer = AsyncFd::new(timer).doing(|| "wait for a timer".into())?;
        Ok(ExactTimer(timer))
    }

    /// Waits so long; not at all if the time is nothing.
    pub(crate) async fn wait_ns(&self, nanoseconds: u64) -> Result<(), ProbeFailure> {
        if nanoseconds == 0 {
            return Ok(());
        }
        let once = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: Timespec {
                tv_sec: (nanoseconds / 1_000_000_000).cast_signed(),
                tv_nsec: (nanoseconds % 1_000_000_000).cast_signed(),
            },
        };
        timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &once)
            .doing(|| "set a timer".into())?;
        let mut ready = self.0.readable().await.doing(|| "wait for a timer".into())?;
        let mut expirations = [0; 8];
        // It has expired, or will be waited for no longer; nobody else reads it.
        let _ = rustix::io::read(self.0.get_ref(), &mut expirations);
        ready.clear_ready();
        Ok(())
    }
}
