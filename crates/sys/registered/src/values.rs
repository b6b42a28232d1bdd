//! Values in blocks.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

use crate::{BLOCK_BYTES_MIN, Block, Origin, fetch_for_writing};

/// A few values of one type, next to each other. It is two words long.
pub struct Array<T> {
    /// Where a block's bytes begin, that has room for just these values.
    address: NonNull<T>,
    length: u32,
    origin: Origin,
    values: PhantomData<T>,
}

/// A value in a block of its own; two words long.
pub struct One<T>(Array<T>);

const _: () = assert!(size_of::<Array<u64>>() == 16);

// SAFETY: an array owns its values alone, and its block's bytes are valid from any thread.
unsafe impl<T: Send> Send for Array<T> {}
// SAFETY: as above; who shares an array shares its values, and no more.
unsafe impl<T: Sync> Sync for Array<T> {}

impl<T> Array<T> {
    const FITS: () = assert!(align_of::<T>() <= BLOCK_BYTES_MIN);

    /// Values, as many as there are.
    ///
    /// # Panics
    /// If the iterator has fewer values than it says, or more than 2³² - 1.
    #[must_use]
    pub fn new(values: impl ExactSizeIterator<Item = T>) -> Array<T> {
        let () = Self::FITS;
        let length = u32::try_from(values.len()).expect("an array has fewer than 2^32 values");
        let room = length as usize;
        let block = Block::piece(room * size_of::<T>());
        let address = block.address.cast::<T>();
        let mut written = 0;
        for value in values.take(room) {
            // SAFETY: the block has room for `room` values, of which fewer have been written, and begins on a cache line,
            // which is aligned for any `T` that fits.
            unsafe { address.add(written).write(value) };
            written += 1;
        }
        assert_eq!(written, room, "the iterator has fewer values than it said");
        let origin = ManuallyDrop::new(block).origin;
        Array {
            address,
            length,
            origin,
            values: PhantomData,
        }
    }

    /// The block that the values are in, which is the caller's from here on: who takes it sees to it that nobody sees them there again.
    fn take_block(&mut self) -> Block {
        Block {
            address: self.address.cast(),
            bytes: self.length as usize * size_of::<T>(),
            origin: self.origin,
        }
    }

    /// Has this core fetch these cache lines of the value with this number for writing, and goes on at once. There need be no such value.
    #[inline(always)]
    pub fn fetch(&self, index: usize, lines: Range<usize>) {
        if let Some(value) = self.get(index) {
            fetch_lines(value, lines);
        }
    }
}

/// Has this core fetch these cache lines of a value for writing.
#[inline(always)]
fn fetch_lines<T>(value: &T, lines: Range<usize>) {
    let first: *const T = value;
    for line in lines {
        fetch_for_writing(first.cast::<u8>().wrapping_add(line * BLOCK_BYTES_MIN));
    }
}

impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        let values: *mut [T] = &mut **self;
        // SAFETY: nobody sees them again.
        unsafe { values.drop_in_place() };
        drop(self.take_block());
    }
}

impl<T> Deref for Array<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: so many values were written there, and a block's address, also that of an empty one, is aligned to a
        // cache line.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.length as usize) }
    }
}

impl<T> DerefMut for Array<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.length as usize) }
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
    pub fn into_inner(self) -> T {
        // SAFETY: it was written when this was made, and is never seen there again: only its bytes are given back.
        let value = unsafe { self.0.address.read() };
        drop(ManuallyDrop::new(self).0.take_block());
        value
    }

    /// Has this core fetch these cache lines of the value for writing, and goes on at once.
    #[inline(always)]
    pub fn fetch(&self, lines: Range<usize>) {
        fetch_lines(&**self, lines);
    }
}

impl<T> Deref for One<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the value was written when this was made, to where it is aligned.
        unsafe { self.0.address.as_ref() }
    }
}

impl<T> DerefMut for One<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { self.0.address.as_mut() }
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
    fn what_is_fetched_need_not_be_there() {
        let array = Array::new(0..3u32);
        array.fetch(2, 0..1);
        array.fetch(3, 0..1);
        array.fetch(usize::MAX, 0..4);
        Array::<u64>::default().fetch(0, 0..1);
        One::new([7u64; 8]).fetch(0..3);
        assert_eq!(*array, [0, 1, 2]);
    }

    #[test]
    #[should_panic(expected = "fewer values than it said")]
    fn an_iterator_that_has_fewer_values_than_it_says_is_refused() {
        struct ShortIterator;
        impl Iterator for ShortIterator {
            type Item = u8;
            fn next(&mut self) -> Option<u8> {
                None
            }
            fn size_hint(&self) -> (usize, Option<usize>) {
                (3, Some(3))
            }
        }
        impl ExactSizeIterator for ShortIterator {}
        let _ = Array::new(ShortIterator);
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
