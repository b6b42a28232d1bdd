//! One value from the event loop to a future.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use provost::linked::wake;

/// A way for one value.
pub(crate) fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Mutex::new(State::Waiting(None)));
    (
        Sender {
            shared: shared.clone(),
        },
        Receiver { shared },
    )
}

#[derive(Debug)]
enum State<T> {
    Waiting(Option<Waker>),
    There(T),
    /// It was taken, or will never come.
    Over,
}

/// Dropping it says that nothing comes.
#[derive(Debug)]
pub(crate) struct Sender<T> {
    shared: Arc<Mutex<State<T>>>,
}

#[derive(Debug)]
pub(crate) struct Receiver<T> {
    shared: Arc<Mutex<State<T>>>,
}

impl<T> Sender<T> {
    /// Another sender of the same value; the first that sends, or the last that is dropped, decides.
    pub(crate) fn again(&self) -> Sender<T> {
        Sender {
            shared: self.shared.clone(),
        }
    }

    /// Returns whether somebody waits for it. The value is dropped if not.
    pub(crate) fn send(self, value: T) -> bool {
        let mut state = lock(&self.shared);
        let State::Waiting(waker) = &mut *state else {
            return false;
        };
        let waker = waker.take();
        *state = State::There(value);
        drop(state);
        waker.into_iter().for_each(wake);
        true
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // The receiver has a count too, unless it is gone.
        let is_last = Arc::strong_count(&self.shared) <= 2;
        if is_last && matches!(*lock(&self.shared), State::Waiting(_)) {
            replace(&self.shared, State::Over);
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let before = std::mem::replace(&mut *lock(&self.shared), State::Over);
        // Dropped without the lock: it may be a value that does much then.
        drop(before);
    }
}

impl<T> Receiver<T> {
    /// The value; `None` if it never comes.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = lock(&self.shared);
        match &mut *state {
            State::Waiting(waker) => {
                let replaced = waker.replace(context.waker().clone());
                // Dropped without the lock: it may be the last owner of the task that has this.
                drop(state);
                drop(replaced);
                Poll::Pending
            }
            _ => match std::mem::replace(&mut *state, State::Over) {
                State::There(value) => Poll::Ready(Some(value)),
                _ => Poll::Ready(None),
            },
        }
    }
}

fn replace<T>(shared: &Mutex<State<T>>, with: State<T>) {
    let before = std::mem::replace(&mut *lock(shared), with);
    if let State::Waiting(Some(waker)) = before {
        wake(waker);
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sends_learns_whether_somebody_waits() {
        let (sender, receiver) = oneshot();
        drop(receiver);
        assert!(!sender.send(()));
        let value = Arc::new(());
        let (sender, receiver) = oneshot();
        assert!(sender.send(value.clone()));
        assert_eq!(Arc::strong_count(&value), 2);
        drop(receiver);
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
