//! Answers to commands.

/// Takes the answer to a command, once. The control plane makes it of whatever channel it waits on.
///
/// A reply that is dropped without an answer drops what it was made of, so that a channel's receiver finds that none comes:
/// the runtime ended, or what the command was about is gone.
pub struct Reply<T>(Box<dyn FnOnce(T) + Send>);

impl<T: 'static> Reply<T> {
    /// A reply that calls this with the answer, on the runtime's thread: it must neither block nor panic.
    #[must_use]
    pub fn new(take: impl FnOnce(T) + Send + 'static) -> Reply<T> {
        Reply(Box::new(take))
    }

    /// A reply for whoever does not want the answer.
    #[must_use]
    pub fn ignored() -> Reply<T> {
        Reply::new(drop)
    }

    pub(crate) fn send(self, answer: T) {
        (self.0)(answer);
    }
}

impl<T> std::fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reply")
    }
}
