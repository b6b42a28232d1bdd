//! No test hangs: a test's body runs on a thread of its own, and has a limit.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// How long a test may take. A test that works takes a few seconds at most.
pub const TEST_LIMIT: Duration = Duration::from_secs(60);

/// Runs a test's body.
///
/// # Panics
///
/// When the body does, or takes longer than [`TEST_LIMIT`].
pub fn watched(body: impl FnOnce() + Send + 'static) {
    let (done, ended) = sync_channel(1);
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        body();
        // The watcher waits for this as long as the limit is not over; after that nobody cares.
        let _ = done.send(());
    });
    let thread = thread.expect("a thread for the test");
    match ended.recv_timeout(TEST_LIMIT) {
        Err(RecvTimeoutError::Timeout) => panic!("the test hangs: it is not done after {TEST_LIMIT:?}"),
        Ok(()) | Err(RecvTimeoutError::Disconnected) => {
            if let Err(panicked) = thread.join() {
                std::panic::resume_unwind(panicked);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::watched;

    #[test]
    #[should_panic(expected = "as it should")]
    fn a_panic_of_the_body_fails_the_test() {
        watched(|| panic!("as it should"));
    }
}
