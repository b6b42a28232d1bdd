//! Memory at a place that the kernel is told of once, and may write whenever it is called.

use std::ptr::NonNull;

/// A boxed slice that stays where it is. Every access is by the one pointer that was made of the box, so that pointers
/// which are kept in other structures stay valid.
#[derive(Debug)]
pub(crate) struct Stable<T>(NonNull<[T]>);

// SAFETY: it owns its slice as a box does.
unsafe impl<T: Send> Send for Stable<T> {}
// SAFETY: it lends only what a box lends.
unsafe impl<T: Sync> Sync for Stable<T> {}

impl<T: Clone> Stable<T> {
    pub(crate) fn filled_with(value: T, length: usize) -> Stable<T> {
        Stable(NonNull::from(Box::leak(vec![value; length].into_boxed_slice())))
    }
}

impl<T> Stable<T> {
    /// Where item `at` is.
    pub(crate) fn place(&self, at: usize) -> *mut T {
        assert!(at < self.0.len());
        // SAFETY: it is within the slice.
        unsafe { self.0.cast::<T>().as_ptr().add(at) }
    }

    #[inline]
    pub(crate) fn items(&self) -> &[T] {
        // SAFETY: the slice is ours; the kernel writes to it only during calls that take `&mut` of its owner.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    pub(crate) fn items_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and nobody else has a reference.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for Stable<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a box, and this is the last use of it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
