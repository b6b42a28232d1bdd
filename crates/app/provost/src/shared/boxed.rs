//! [`Box`], a value in a block of its own, and [`Optional`], a value that may be absent.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::heap::{self, HeapFull};

/// A value in a block of its own in shared memory. A field of message type is an `Optional<Box<T>>`, a member of a
/// oneof of message type a `Box<T>`.
///
/// ```
/// use provost::shared::Box;
///
/// let mut number = Box::new(41_u64);
/// *number += 1;
/// assert_eq!(*number, 42);
/// ```
#[repr(transparent)]
pub struct Box<T> {
    at: u32,
    value: PhantomData<T>,
}

impl<T> Box<T> {
    /// Moves a value to shared memory.
    #[must_use]
    pub fn new(value: T) -> Box<T> {
        Self::try_new(value).unwrap_or_else(|full| full.panic())
    }

    /// As [`Box::new`], but says when the heap is full (and drops the value).
    pub fn try_new(value: T) -> Result<Box<T>, HeapFull> {
        const { assert!(size_of::<T>() != 0 && align_of::<T>() <= 8) };
        let at = heap::allocate(size_of::<T>())?;
        // SAFETY: the block is new, aligned to 8 and large enough.
        unsafe { heap::address(at).cast::<T>().write(value) };
        Ok(Box {
            at,
            value: PhantomData,
        })
    }

    /// Moves the value out.
    #[must_use]
    pub fn into_inner(self) -> T {
        // SAFETY: the value is initialized, and freeing the block without dropping the value moves it out once.
        unsafe {
            let value = heap::address(self.at).cast::<T>().read();
            heap::free(self.at);
            std::mem::forget(self);
            value
        }
    }

    /// Where the block is, in the window; its owner frees it from now on.
    pub(crate) fn into_offset(self) -> u32 {
        let at = self.at;
        std::mem::forget(self);
        at
    }

    /// Where the block is, in the window.
    pub(crate) fn offset(&self) -> u32 {
        self.at
    }

    /// Takes a block back.
    ///
    /// # Safety
    ///
    /// `at` must have come from [`Box::into_offset`] of the same type, and be taken back once.
    pub(crate) unsafe fn from_offset(at: u32) -> Box<T> {
        Box {
            at,
            value: PhantomData,
        }
    }
}

impl<T> Deref for Box<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `at` is the block that this box owns (or a validated one of a received message), initialized.
        unsafe { &*heap::address(self.at).cast::<T>() }
    }
}

impl<T> DerefMut for Box<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; and nobody gets a mutable box in a received message.
        unsafe { &mut *heap::address(self.at).cast::<T>() }
    }
}

impl<T> Drop for Box<T> {
    fn drop(&mut self) {
        // SAFETY: the value is initialized and this box's alone; nobody uses the block after this.
        unsafe {
            heap::address(self.at).cast::<T>().drop_in_place();
            heap::free(self.at);
        }
    }
}

impl<T: Clone> Clone for Box<T> {
    fn clone(&self) -> Box<T> {
        Box::new(T::clone(self))
    }
}

impl<T: Default> Default for Box<T> {
    fn default() -> Box<T> {
        Box::new(T::default())
    }
}

impl<T> From<T> for Box<T> {
    fn from(value: T) -> Box<T> {
        Box::new(value)
    }
}

impl<T: fmt::Debug> fmt::Debug for Box<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, f)
    }
}

impl<T: PartialEq> PartialEq for Box<T> {
    fn eq(&self, other: &Box<T>) -> bool {
        T::eq(self, other)
    }
}

impl<T: PartialEq> PartialEq<T> for Box<T> {
    fn eq(&self, other: &T) -> bool {
        T::eq(self, other)
    }
}

impl<T: Eq> Eq for Box<T> {}

impl<T: std::hash::Hash> std::hash::Hash for Box<T> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        T::hash(self, state);
    }
}

/// A value that may be absent: what `Option<T>` is in private memory, with a fixed layout (a presence word, then the
/// value).
///
/// ```
/// use provost::shared::Optional;
///
/// let limit: Optional<u32> = Some(7).into();
/// if let Optional::Some(limit) = limit {
///     assert_eq!(limit, 7);
/// }
/// assert_eq!(limit.map(|limit| limit + 1), Some(8));
/// assert_eq!(limit.ok_or("none")?, 7);
/// assert_eq!(limit.as_ref(), Some(&7));
/// assert_eq!(limit.into_option(), Some(7));
/// assert!(Optional::<u32>::None.is_none());
/// # Ok::<(), &str>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(C, u32)]
pub enum Optional<T> {
    /// Absent.
    #[default]
    None = 0,
    /// Present.
    Some(T) = 1,
}

impl<T> Optional<T> {
    /// Whether the value is present.
    #[must_use]
    pub const fn is_some(&self) -> bool {
        matches!(self, Optional::Some(_))
    }

    /// Whether the value is absent.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        matches!(self, Optional::None)
    }

    /// A borrow of the value.
    #[must_use]
    pub const fn as_ref(&self) -> Option<&T> {
        match self {
            Optional::None => None,
            Optional::Some(value) => Some(value),
        }
    }

    /// A mutable borrow of the value.
    #[must_use]
    pub const fn as_mut(&mut self) -> Option<&mut T> {
        match self {
            Optional::None => None,
            Optional::Some(value) => Some(value),
        }
    }

    /// A borrow of what the value dereferences to: `&str` of an optional string, `&T` of an optional message.
    #[must_use]
    pub fn as_deref(&self) -> Option<&T::Target>
    where
        T: Deref,
    {
        self.as_ref().map(T::deref)
    }

    /// A mutable borrow of what the value dereferences to.
    #[must_use]
    pub fn as_deref_mut(&mut self) -> Option<&mut T::Target>
    where
        T: DerefMut,
    {
        self.as_mut().map(T::deref_mut)
    }

    /// The value as an `Option`.
    #[must_use]
    pub fn into_option(self) -> Option<T> {
        self.into()
    }

    /// Takes the value out and leaves it absent.
    pub fn take(&mut self) -> Option<T> {
        std::mem::take(self).into()
    }

    /// Sets the value and returns the one it had.
    pub fn replace(&mut self, value: T) -> Option<T> {
        std::mem::replace(self, Optional::Some(value)).into()
    }

    /// Sets the value and returns a mutable borrow of it.
    pub fn insert(&mut self, value: T) -> &mut T {
        *self = Optional::Some(value);
        self.as_mut().expect("the value that was just set")
    }

    /// The value, after setting it with `value` when absent.
    pub fn get_or_insert_with(&mut self, value: impl FnOnce() -> T) -> &mut T {
        match self {
            Optional::Some(present) => present,
            absent => absent.insert(value()),
        }
    }

    /// Whether the value is present and as `wanted`.
    #[must_use]
    pub fn is_some_and(self, wanted: impl FnOnce(T) -> bool) -> bool {
        self.into_option().is_some_and(wanted)
    }

    /// What `change` makes of the value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Option<U> {
        self.into_option().map(change)
    }

    /// What `change` makes of the value, if anything.
    pub fn and_then<U>(self, change: impl FnOnce(T) -> Option<U>) -> Option<U> {
        self.into_option().and_then(change)
    }

    /// The value, or the error.
    ///
    /// # Errors
    /// If the value is absent.
    pub fn ok_or<E>(self, error: E) -> Result<T, E> {
        self.into_option().ok_or(error)
    }

    /// The value, or the error that `error` makes.
    ///
    /// # Errors
    /// If the value is absent.
    pub fn ok_or_else<E>(self, error: impl FnOnce() -> E) -> Result<T, E> {
        self.into_option().ok_or_else(error)
    }

    /// The value.
    ///
    /// # Panics
    /// If it is absent, with this message.
    #[track_caller]
    #[must_use]
    pub fn expect(self, message: &str) -> T {
        self.into_option().expect(message)
    }

    /// The value, or what `default` makes.
    #[must_use]
    pub fn unwrap_or_else(self, default: impl FnOnce() -> T) -> T {
        self.into_option().unwrap_or_else(default)
    }

    /// The value, if there is one, as an iterator.
    pub fn iter(&self) -> std::option::IntoIter<&T> {
        self.as_ref().into_iter()
    }

    /// The value, or `default`.
    #[must_use]
    pub fn unwrap_or(self, default: T) -> T {
        self.into_option().unwrap_or(default)
    }

    /// The value, or its type's default.
    #[must_use]
    pub fn unwrap_or_default(self) -> T
    where
        T: Default,
    {
        self.into_option().unwrap_or_default()
    }
}

impl<T> From<Option<T>> for Optional<T> {
    fn from(value: Option<T>) -> Optional<T> {
        value.map_or(Optional::None, Optional::Some)
    }
}

impl<T> From<Optional<T>> for Option<T> {
    fn from(value: Optional<T>) -> Option<T> {
        match value {
            Optional::None => None,
            Optional::Some(value) => Some(value),
        }
    }
}

impl<T> From<T> for Optional<T> {
    fn from(value: T) -> Optional<T> {
        Optional::Some(value)
    }
}

impl<T> From<T> for Optional<Box<T>> {
    fn from(value: T) -> Optional<Box<T>> {
        Optional::Some(Box::new(value))
    }
}

impl<T> From<Option<T>> for Optional<Box<T>> {
    fn from(value: Option<T>) -> Optional<Box<T>> {
        value.map_or(Optional::None, |value| Optional::Some(Box::new(value)))
    }
}

impl<T> IntoIterator for Optional<T> {
    type Item = T;
    type IntoIter = std::option::IntoIter<T>;
    fn into_iter(self) -> Self::IntoIter {
        self.into_option().into_iter()
    }
}

impl<'a, T> IntoIterator for &'a Optional<T> {
    type Item = &'a T;
    type IntoIter = std::option::IntoIter<&'a T>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: PartialEq> PartialEq<Option<T>> for Optional<T> {
    fn eq(&self, other: &Option<T>) -> bool {
        self.as_ref() == other.as_ref()
    }
}

const _: () = assert!(size_of::<Optional<Box<u64>>>() == 8 && align_of::<Optional<Box<u64>>>() == 4);
const _: () = assert!(size_of::<Optional<u64>>() == 16 && size_of::<Optional<bool>>() == 8);
