//! [`Received`]: a message that somebody sent to this app, read where it lies.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use crate::link::Link;
use crate::message::Message;
use crate::shared::heap;

/// A received message. It dereferences to the message, which is read-only; dropping it gives the memory back.
///
/// To keep or change the message beyond that, clone it: `T::clone(&received)` or [`Received::to_owned`].
pub struct Received<T> {
    /// The root struct in the window.
    root: u32,
    /// The block that is given back.
    block: u32,
    /// Keeps the memory mapped; `None` for a block of the send heap, which stays.
    link: Option<Arc<Link>>,
    message: PhantomData<T>,
}

impl<T: Message> Received<T> {
    /// # Safety
    ///
    /// The service must have published `block`, with a message at `root` that it validated as a `T`, on `link`, and the block
    /// must not be given back by anybody else.
    pub(crate) unsafe fn new(link: Arc<Link>, block: u32, root: u32) -> Received<T> {
        Received {
            root,
            block,
            link: Some(link),
            message: PhantomData,
        }
    }

    /// # Safety
    ///
    /// `block` must have come from [`heap::allocate`], begin with a message that was validated as a `T` and relocated to
    /// there, be written by nobody, and be freed by nobody else.
    pub(crate) unsafe fn in_send_heap(block: u32) -> Received<T> {
        Received {
            root: block,
            block,
            link: None,
            message: PhantomData,
        }
    }
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
        // SAFETY: by the promise of `new`, a valid `T` lies there (contract of `Message`), in memory that nobody writes
        // to until the block is given back and that stays mapped as long as `link` lives, or for ever.
        unsafe { &*heap::address(self.root).cast::<T>() }
    }
}

impl<T> Drop for Received<T> {
    fn drop(&mut self) {
        // The message itself is not dropped: what it refers to lies in the block too, and was never allocated here.
        match &self.link {
            Some(link) => link.reclaim(self.block),
            // SAFETY: by the promise of `in_send_heap`, the block is ours.
            None => unsafe { heap::free(self.block) },
        }
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
