//! An alarm of the kernel's, finer than the event loop's own timers: those go by milliseconds.

use std::io;
use std::os::fd::OwnedFd;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

/// One alarm at a time.
#[derive(Debug)]
pub(crate) struct PreciseTimer {
    fd: AsyncFd<OwnedFd>,
}

impl PreciseTimer {
    pub(crate) fn new() -> io::Result<PreciseTimer> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[expect(
            deprecated,
            reason = "what takes its place is unsafe; an owned descriptor is one all along"
        )]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(PreciseTimer { fd })
    }

    /// Waits until a time has come.
    pub(crate) async fn sleep_until(&self, due: Instant) -> io::Result<()> {
        const NO_TIME: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let once = Itimerspec {
                it_interval: NO_TIME,
                it_value: Timespec {
                    tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                    tv_nsec: left.subsec_nanos().into(),
                },
            };
            timerfd_settime(self.fd.get_ref(), TimerfdTimerFlags::empty(), &once)?;
            let mut ready = self.fd.readable().await?;
            // There is nothing to read where the alarm was set anew; then this waits again.
            let _ = rustix::io::read(self.fd.get_ref(), &mut [0_u8; 8]);
            ready.clear_ready();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn an_alarm_does_not_come_before_its_time_and_can_be_set_again() {
        let timer = PreciseTimer::new().unwrap();
        for microseconds in [0, 50, 3_000, 200] {
            let due = Instant::now() + Duration::from_micros(microseconds);
            // One that is given up leaves nothing for the next.
            let given_up = tokio::time::timeout(Duration::ZERO, timer.sleep_until(due)).await;
            let _ = given_up;
            timer.sleep_until(due).await.unwrap();
            assert!(Instant::now() >= due);
        }
    }
}
