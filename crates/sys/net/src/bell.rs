//! Ending a wait for a descriptor from other threads.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// Waits for a descriptor, until it has something to read, somebody has rung, or time is up.
#[derive(Clone, Debug)]
pub struct Bell(Arc<Rope>);

/// What rings it: an eventfd, that is readable once it has been written to.
#[derive(Debug)]
struct Rope(OwnedFd);

impl Wake for Rope {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // It fails only when it has been rung more often than it can count, and then it is readable.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl Bell {
    /// A bell that has not been rung.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new() -> io::Result<Bell> {
        let rope = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Bell(Arc::new(Rope(rope))))
    }

    /// Rings it: the wait that goes on ends, or else the next.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.0))
    }

    /// Waits.
    ///
    /// # Errors
    /// If the descriptor cannot be waited for.
    pub fn wait(&self, descriptor: BorrowedFd<'_>, at_most: Option<Duration>) -> io::Result<()> {
        let timeout = at_most.map(|at_most| Timespec {
            tv_sec: at_most.as_secs().min(i32::MAX as u64) as i64,
            tv_nsec: at_most.subsec_nanos().into(),
        });
        let mut both = [
            PollFd::from_borrowed_fd(descriptor, PollFlags::IN),
            PollFd::new(&self.0.0, PollFlags::IN),
        ];
        match poll(&mut both, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !both[1].revents().is_empty() {
            let mut count = [0; 8];
            rustix::io::read(&self.0.0, &mut count)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_wait_ends_by_the_descriptor_by_the_bell_and_by_time() {
        let bell = Bell::new().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let begin = Instant::now();
        let pause = Duration::from_millis(10);
        bell.wait(socket.as_fd(), Some(pause)).unwrap();
        assert!(begin.elapsed() >= pause);
        // Without a limit: these return only if what they wait for ends them.
        bell.waker().wake();
        bell.wait(socket.as_fd(), None).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| bell.waker().wake_by_ref());
            bell.wait(socket.as_fd(), None).unwrap();
        });
        socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        bell.wait(socket.as_fd(), None).unwrap();
        assert_eq!(socket.recv(&mut [0]).unwrap(), 1);
        let begin = Instant::now();
        bell.wait(socket.as_fd(), Some(pause)).unwrap();
        assert!(begin.elapsed() >= pause, "it was rung no longer");
    }
}
