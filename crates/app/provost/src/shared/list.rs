//! [`List`], the contiguous growable array that the other containers are made of.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::{ptr, slice};

use super::heap::{self, HeapFull};

/// A growable array in shared memory: what `Vec<T>` is in private memory, and `repeated` in a schema.
///
/// It dereferences to a slice. It has no field for its capacity: the allocator knows it.
///
/// # Panics
///
/// As with `Vec`, methods that may need memory panic when there is none (here: when the send heap is full) or when a
/// length does not fit `u32`. The methods that begin with `try_` return the error instead.
///
/// ```
/// use provost::shared::List;
///
/// let mut list: List<u32> = [3, 1, 2].into_iter().collect();
/// list.push(9);
/// list.sort();
/// assert_eq!(list, [1, 2, 3, 9]);
/// ```
#[repr(C)]
pub struct List<T> {
    at: u32,
    len: u32,
    elements: PhantomData<T>,
}

impl<T> List<T> {
    const LAYOUT_FITS: () = assert!(
        size_of::<T>() != 0 && align_of::<T>() <= 8,
        "elements of shared memory have a size and are aligned to at most 8 bytes"
    );

    /// An empty list. Takes no memory.
    #[must_use]
    pub const fn new() -> List<T> {
        List {
            at: 0,
            len: 0,
            elements: PhantomData,
        }
    }

    /// An empty list with room for `capacity` elements.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> List<T> {
        Self::try_with_capacity(capacity).unwrap_or_else(|full| full.panic())
    }

    /// As [`List::with_capacity`], but says when the heap is full.
    pub fn try_with_capacity(capacity: usize) -> Result<List<T>, HeapFull> {
        let mut list = List::new();
        list.try_reserve(capacity)?;
        Ok(list)
    }

    /// How many elements fit without another allocation.
    #[must_use]
    pub fn capacity(&self) -> usize {
        heap::usable_bytes(self.at) / size_of::<T>()
    }

    /// Makes room for `additional` more elements.
    pub fn reserve(&mut self, additional: usize) {
        self.try_reserve(additional).unwrap_or_else(|full| full.panic());
    }

    /// As [`List::reserve`], but says when the heap is full.
    pub fn try_reserve(&mut self, additional: usize) -> Result<(), HeapFull> {
        let needed = self.len().saturating_add(additional);
        if needed <= self.capacity() {
            return Ok(());
        }
        self.grow_to(
            needed
                .max(self.capacity().saturating_mul(2))
                .max(Self::CAPACITY_MIN),
            needed,
        )
    }

    /// The first allocation of a list that grows by pushes has at least 16 bytes and one element.
    const CAPACITY_MIN: usize = if size_of::<T>() >= 16 {
        1
    } else {
        16 / size_of::<T>()
    };

    #[cold]
    fn grow_to(&mut self, wanted: usize, needed: usize) -> Result<(), HeapFull> {
        let () = Self::LAYOUT_FITS;
        let bytes = |count: usize| {
            count
                .checked_mul(size_of::<T>())
                .filter(|_| u32::try_from(count).is_ok())
        };
        let grown = match bytes(wanted).map(heap::allocate) {
            Some(Ok(at)) => at,
            _ => heap::allocate(bytes(needed).ok_or(HeapFull { bytes: usize::MAX })?)?,
        };
        // SAFETY: both blocks hold at least `len` elements, are distinct, and aligned to 8. The elements move to the
        // new block, so the old one is freed without dropping them.
        unsafe {
            ptr::copy_nonoverlapping(self.as_ptr(), heap::address(grown).cast::<T>(), self.len());
            heap::free(self.at);
        }
        self.at = grown;
        Ok(())
    }

    /// Appends an element.
    pub fn push(&mut self, element: T) {
        self.try_push(element).unwrap_or_else(|full| full.panic());
    }

    /// As [`List::push`], but says when the heap is full (and drops the element).
    pub fn try_push(&mut self, element: T) -> Result<(), HeapFull> {
        self.try_reserve(1)?;
        // SAFETY: there is room for one more element past `len`, in a block that this list owns.
        unsafe { self.as_mut_ptr().add(self.len()).write(element) };
        self.len += 1;
        Ok(())
    }

    /// Removes the last element and returns it.
    pub fn pop(&mut self) -> Option<T> {
        let last = self.len.checked_sub(1)?;
        self.len = last;
        // SAFETY: the element was initialized, and with the shorter length nobody reads or drops it again.
        Some(unsafe { self.as_ptr().add(last as usize).read() })
    }

    /// Inserts an element before the one at `index`; elements after it move.
    pub fn insert(&mut self, index: usize, element: T) {
        assert!(
            index <= self.len(),
            "index {index} is past the end of a list of {}",
            self.len()
        );
        self.reserve(1);
        // SAFETY: there is room for one more element, and `index` is not past the end.
        unsafe {
            let place = self.as_mut_ptr().add(index);
            ptr::copy(place, place.add(1), self.len() - index);
            place.write(element);
        }
        self.len += 1;
    }

    /// Removes the element at `index` and returns it; elements after it move.
    pub fn remove(&mut self, index: usize) -> T {
        assert!(
            index < self.len(),
            "index {index} is not in a list of {}",
            self.len()
        );
        self.len -= 1;
        // SAFETY: `index` is in the list; the elements after it close the gap that reading it leaves.
        unsafe {
            let place = self.as_mut_ptr().add(index);
            let element = place.read();
            ptr::copy(place.add(1), place, self.len() - index);
            element
        }
    }

    /// Drops the elements from `len` on.
    pub fn truncate(&mut self, len: usize) {
        if len >= self.len() {
            return;
        }
        let excess = self.len() - len;
        self.len = len as u32;
        // SAFETY: these elements were initialized and are past the new length, so nobody else drops them.
        unsafe { ptr::drop_in_place(ptr::slice_from_raw_parts_mut(self.as_mut_ptr().add(len), excess)) };
    }

    /// Drops all elements and keeps the memory.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Of neighbours that are the same, keeps the last.
    pub(super) fn keep_last_of_equals(&mut self, is_same: impl Fn(&T, &T) -> bool) {
        let mut kept = 0;
        for next in 1..self.len() {
            kept += usize::from(!is_same(&self[kept], &self[next]));
            self.swap(kept, next);
        }
        self.truncate(kept + 1);
    }

    /// All elements as a slice.
    #[must_use]
    pub fn as_slice(&self) -> &[T] {
        self
    }

    /// All elements as a mutable slice.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        self
    }

    /// Where the elements are in the window; 0 when there never was one.
    pub(super) fn offset(&self) -> u32 {
        self.at
    }

    fn as_ptr(&self) -> *const T {
        self.as_mut_ptr().cast_const()
    }

    fn as_mut_ptr(&self) -> *mut T {
        if self.at == 0 {
            return ptr::NonNull::dangling().as_ptr();
        }
        heap::address(self.at).cast()
    }
}

impl<T: Copy> List<T> {
    /// Appends copies of all elements of `other` at once.
    pub fn extend_from_slice(&mut self, other: &[T]) {
        self.try_extend_from_slice(other)
            .unwrap_or_else(|full| full.panic());
    }

    /// As [`List::extend_from_slice`], but says when the heap is full.
    pub fn try_extend_from_slice(&mut self, other: &[T]) -> Result<(), HeapFull> {
        self.try_reserve(other.len())?;
        // SAFETY: there is room for all of `other` past `len`; `other` cannot lie in room that nobody has read yet.
        unsafe { ptr::copy_nonoverlapping(other.as_ptr(), self.as_mut_ptr().add(self.len()), other.len()) };
        self.len += other.len() as u32;
        Ok(())
    }
}

impl List<u8> {
    /// `len` zero bytes.
    pub(super) fn try_zeroed(len: usize) -> Result<List<u8>, HeapFull> {
        let mut list = List::<u8>::try_with_capacity(len)?;
        // SAFETY: the block has room for `len` bytes, and zero is a byte.
        unsafe { list.as_mut_ptr().write_bytes(0, len) };
        list.len = len as u32;
        Ok(list)
    }

    /// The same bytes: in the same block if it is large, else copied. Whoever writes to either calls
    /// [`List::try_own_alone`] first.
    pub(super) fn share(&self) -> List<u8> {
        if self.len() >= heap::SHARED_BYTES_MIN && heap::add_owner(self.at) {
            return List {
                at: self.at,
                len: self.len,
                elements: PhantomData,
            };
        }
        self.clone()
    }

    /// Copies the bytes if others have them too, with room for `additional` more, so that they can be written to.
    pub(super) fn try_own_alone(&mut self, additional: usize) -> Result<(), HeapFull> {
        if !heap::has_other_owners(self.at) {
            return Ok(());
        }
        let needed = self.len().saturating_add(additional);
        self.grow_to(needed, needed)
    }
}

impl<T> Deref for List<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: `at` is the block that this list owns (or a validated range of a received message, which stays
        // mapped while `self` can be borrowed), with `len` initialized elements.
        unsafe { slice::from_raw_parts(heap::address(self.at).cast(), self.len as usize) }
    }
}

impl<T> DerefMut for List<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: as in `deref`; and nobody gets a mutable list in a received message, so the block is ours alone.
        unsafe { slice::from_raw_parts_mut(heap::address(self.at).cast(), self.len as usize) }
    }
}

impl<T> Drop for List<T> {
    fn drop(&mut self) {
        if self.at == 0 {
            return;
        }
        self.clear();
        // SAFETY: the block is this list's own and nobody uses it after this.
        unsafe { heap::free(self.at) };
    }
}

impl<T> Default for List<T> {
    fn default() -> List<T> {
        List::new()
    }
}

impl<T: Clone> Clone for List<T> {
    fn clone(&self) -> List<T> {
        let mut copy = List::with_capacity(self.len());
        copy.extend(self.iter().cloned());
        copy
    }
}

impl<T: fmt::Debug> fmt::Debug for List<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

impl<T: PartialEq> PartialEq for List<T> {
    fn eq(&self, other: &List<T>) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl<T: Eq> Eq for List<T> {}

impl<T: PartialOrd> PartialOrd for List<T> {
    fn partial_cmp(&self, other: &List<T>) -> Option<std::cmp::Ordering> {
        self.as_slice().partial_cmp(other.as_slice())
    }
}

impl<T: Ord> Ord for List<T> {
    fn cmp(&self, other: &List<T>) -> std::cmp::Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl<T: Hash> Hash for List<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_slice().hash(state);
    }
}

macro_rules! equals_slices {
    ($($(const $n:ident)? $other:ty),*) => {
        $(impl<T: PartialEq $(, const $n: usize)?> PartialEq<$other> for List<T> {
            fn eq(&self, other: &$other) -> bool {
                self.as_slice() == &other[..]
            }
        })*
    };
}
equals_slices!([T], &[T], Vec<T>, const N [T; N], const N &[T; N]);

impl<T> Extend<T> for List<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, elements: I) {
        let elements = elements.into_iter();
        self.reserve(elements.size_hint().0);
        elements.for_each(|element| self.push(element));
    }
}

impl<'a, T: Copy + 'a> Extend<&'a T> for List<T> {
    fn extend<I: IntoIterator<Item = &'a T>>(&mut self, elements: I) {
        self.extend(elements.into_iter().copied());
    }
}

impl<T> FromIterator<T> for List<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> List<T> {
        let mut list = List::new();
        list.extend(elements);
        list
    }
}

impl<T> From<Vec<T>> for List<T> {
    fn from(elements: Vec<T>) -> List<T> {
        elements.into_iter().collect()
    }
}

impl<T, const N: usize> From<[T; N]> for List<T> {
    fn from(elements: [T; N]) -> List<T> {
        elements.into_iter().collect()
    }
}

impl<T: Clone> From<&[T]> for List<T> {
    fn from(elements: &[T]) -> List<T> {
        elements.iter().cloned().collect()
    }
}

impl<T> IntoIterator for List<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;
    fn into_iter(self) -> IntoIter<T> {
        IntoIter {
            list: ManuallyDrop::new(self),
            next: 0,
        }
    }
}

impl<'a, T> IntoIterator for &'a List<T> {
    type Item = &'a T;
    type IntoIter = slice::Iter<'a, T>;
    fn into_iter(self) -> slice::Iter<'a, T> {
        self.iter()
    }
}

impl<'a, T> IntoIterator for &'a mut List<T> {
    type Item = &'a mut T;
    type IntoIter = slice::IterMut<'a, T>;
    fn into_iter(self) -> slice::IterMut<'a, T> {
        self.iter_mut()
    }
}

/// Owning iterator of a [`List`].
pub struct IntoIter<T> {
    list: ManuallyDrop<List<T>>,
    next: u32,
}

impl<T> Iterator for IntoIter<T> {
    type Item = T;
    fn next(&mut self) -> Option<T> {
        if self.next == self.list.len {
            return None;
        }
        // SAFETY: elements from `next` on are initialized and, as `next` moves past each, read only once.
        let element = unsafe { self.list.as_ptr().add(self.next as usize).read() };
        self.next += 1;
        Some(element)
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.list.len - self.next) as usize;
        (left, Some(left))
    }
}

impl<T> ExactSizeIterator for IntoIter<T> {}

impl<T> Drop for IntoIter<T> {
    fn drop(&mut self) {
        self.for_each(drop);
        self.list.len = 0;
        // SAFETY: the list is dropped once, here, with no element left in it.
        unsafe { ManuallyDrop::drop(&mut self.list) };
    }
}
