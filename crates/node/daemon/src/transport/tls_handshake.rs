//! A TLS handshake on a thread that may wait.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::Instant;

use provost_tls::TlsStream;
use rustix::event::{PollFd, PollFlags, Timespec};

/// Waits until hands are shaken over a stream that does not block.
///
/// # Errors
/// The peer does not prove what it must, does not speak TLS, or takes too long ([`io::ErrorKind::TimedOut`]).
pub(crate) fn finish_handshake<S: Read + Write + AsFd>(
    stream: &mut TlsStream<S>,
    deadline: Instant,
) -> io::Result<()> {
    while !stream.shake_hands()? {
        let mut events = PollFlags::IN;
        events.set(PollFlags::OUT, stream.has_output());
        let left = deadline.saturating_duration_since(Instant::now());
        // It fits: nobody waits for hundreds of years.
        let timeout = Timespec::try_from(left).ok();
        let mut polled = [PollFd::new(stream, events)];
        match rustix::event::poll(&mut polled, timeout.as_ref()) {
            Ok(0) => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "TLS: the handshake took too long",
                ));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
