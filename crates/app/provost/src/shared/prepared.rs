//! [`Prepared`]: a message that is built once and sent many times.

use std::ops::Deref;
use std::sync::Arc;

use super::Box;
use crate::message::Message;

/// A message that is built once and sent many times: client functions take it in place of the message. Cloning it
/// counts a reference; nothing is copied. It cannot be changed any more.
pub struct Prepared<T> {
    message: Arc<Inner<T>>,
}

struct Inner<T> {
    message: Box<T>,
    window_bytes: u32,
}

impl<T: Message> Prepared<T> {
    /// Moves a message to where it stays.
    #[must_use]
    pub fn new(message: T) -> Prepared<T> {
        let window_bytes = u32::try_from(message.measure()).unwrap_or(u32::MAX);
        let message = Arc::new(Inner {
            message: Box::new(message),
            window_bytes,
        });
        Prepared { message }
    }

    /// Offset of the root, size, and a reference that [`Prepared::release`] takes back.
    pub(crate) fn share(&self) -> (u32, u32, usize) {
        let shared = Arc::into_raw(self.message.clone());
        (
            self.message.message.offset(),
            self.message.window_bytes,
            shared.expose_provenance(),
        )
    }

    /// # Safety
    ///
    /// `data` must have come from [`Prepared::share`] of the same type, and be taken back once.
    pub(crate) unsafe fn release(data: usize) {
        let shared = std::ptr::with_exposed_provenance::<Inner<T>>(data);
        // SAFETY: the caller's promise.
        drop(unsafe { Arc::from_raw(shared) });
    }
}

impl<T> Clone for Prepared<T> {
    fn clone(&self) -> Prepared<T> {
        Prepared {
            message: self.message.clone(),
        }
    }
}

impl<T> Deref for Prepared<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.message.message
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Prepared<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        T::fmt(self, f)
    }
}

impl<T: Message> From<T> for Prepared<T> {
    fn from(message: T) -> Prepared<T> {
        Prepared::new(message)
    }
}
