//! [`Received`]: a message that somebody sent to this app, read where it lies.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use super::heap;

/// A received message. It dereferences to the message, which is read-only; dropping it gives the memory back.
///
/// To keep or change the message beyond that, clone it: `T::clone(&received)` or [`Received::to_owned`].
pub struct Received<T> {
    root: u32,
    message: PhantomData<T>,
}

impl<T> Received<T> {
    /// A copy of the message in the send heap.
    #[must_use]
    pub fn to_owned(&self) -> T
    where
        T: Clone,
    {
        T::clone(self)
    }
}

impl<T> Deref for Received<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the service validated the message as a `T` (contract of `Message`) before it published the block,
        // the block lies in read-only memory that stays mapped until `self` is dropped.
        unsafe { &*heap::address(self.root).cast::<T>() }
    }
}

impl<T: fmt::Debug> fmt::Debug for Received<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, f)
    }
}

impl<T: PartialEq> PartialEq for Received<T> {
    fn eq(&self, other: &Received<T>) -> bool {
        T::eq(self, other)
    }
}

impl<T: PartialEq> PartialEq<T> for Received<T> {
    fn eq(&self, other: &T) -> bool {
        T::eq(self, other)
    }
}
