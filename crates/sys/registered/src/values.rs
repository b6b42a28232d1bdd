//! Values in blocks.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::{BLOCK_BYTES_MIN, Block};

/// A few values of one type, next to each other.
pub struct Array<T> {
    /// Begins with `length` values, which it owns.
    block: Block,
    length: usize,
    values: PhantomData<T>,
}

pub struct One<T>(Array<T>);

impl<T> Array<T> {
    const FITS: () = assert!(align_of::<T>() <= BLOCK_BYTES_MIN);

    /// Values, as many as there are.
    #[must_use]
    pub fn new(values: impl ExactSizeIterator<Item = T>) -> Array<T> {
        let () = Self::FITS;
        let room = values.len();
        let mut array = Array {
            block: Block::piece(room * size_of::<T>()),
            length: 0,
            values: PhantomData,
        };
        for value in values.take(room) {
            // SAFETY: the block has room for `room` values, of which fewer have been written, and begins on a cache line,
            // which is aligned for any `T` that fits.
            unsafe {
                array
                    .block
                    .address
                    .as_ptr()
                    .cast::<T>()
                    .add(array.length)
                    .write(value)
            };
            array.length += 1;
        }
        array
    }
}

impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        let values: *mut [T] = &mut **self;
        // SAFETY: nobody sees them again, and the block forgets nothing but bytes.
        unsafe { values.drop_in_place() }
    }
}

impl<T> Deref for Array<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: so many values were written there, and a block's address, also that of an empty one, is aligned to a
        // cache line.
        unsafe { std::slice::from_raw_parts(self.block.address.as_ptr().cast(), self.length) }
    }
}

impl<T> DerefMut for Array<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.block.address.as_ptr().cast(), self.length) }
    }
}

impl<T> Default for Array<T> {
    fn default() -> Array<T> {
        Array::new(std::iter::empty())
    }
}

impl<T: fmt::Debug> fmt::Debug for Array<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> One<T> {
    #[must_use]
    pub fn new(value: T) -> One<T> {
        One(Array::new(std::iter::once(value)))
    }

    /// The value, taken out.
    #[must_use]
    pub fn into_inner(mut self) -> T {
        self.0.length = 0;
        // SAFETY: it was written when this was made, and is no longer counted as being there.
        unsafe { self.0.block.address.as_ptr().cast::<T>().read() }
    }
}

impl<T> Deref for One<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the value was written when this was made, to where it is aligned.
        unsafe { &*self.0.block.address.as_ptr().cast() }
    }
}

impl<T> DerefMut for One<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.0.block.address.as_ptr().cast() }
    }
}

impl<T: fmt::Debug> fmt::Debug for One<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn values_are_dropped_once_and_can_be_taken_out() {
        let counted = Rc::new(());
        let mut array = Array::new((0..5).map(|_| Rc::clone(&counted)));
        assert_eq!((array.len(), Rc::strong_count(&counted)), (5, 6));
        array[4] = Rc::new(());
        assert_eq!(Rc::strong_count(&counted), 5);
        drop(array);
        let one = One::new(Rc::clone(&counted));
        assert_eq!(Rc::strong_count(&one), 2);
        let taken = one.into_inner();
        assert_eq!(Rc::strong_count(&counted), 2);
        drop(taken);
        drop(One::new(Rc::clone(&counted)));
        assert_eq!(Rc::strong_count(&counted), 1);
    }

    #[test]
    fn values_are_aligned_and_none_needs_no_memory() {
        #[repr(align(64))]
        struct Aligned(u8);
        let mut array = Array::new((0..3).map(Aligned));
        array[1].0 += 1;
        assert_eq!([array[0].0, array[1].0, array[2].0], [0, 2, 2]);
        assert_eq!(array.as_ptr() as usize % 64, 0);
        assert!(Array::<Aligned>::default().is_empty());
        assert_eq!(Array::new([(); 7].into_iter()).len(), 7);
    }
}
