//! How large messages are, for the windows of streams.

use provost_wire::limits::BLOCK_ALIGN_BYTES;

use super::{Box, Bytes, List, Map, Optional, String};

/// What a field refers to outside of its own struct, in bytes. Numbers, bools and enums refer to nothing.
///
/// Every block counts with its padding: the service takes a message that counts itself smaller than it is on its way
/// as one that goes past the stream's window.
///
/// Generated messages and oneofs implement it by adding up their fields.
pub trait Measure {
    /// Bytes of all that the value refers to, not of the value itself.
    fn referenced_bytes(&self) -> usize {
        0
    }
}

/// Length of a block with its padding.
fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(BLOCK_ALIGN_BYTES)
}

macro_rules! refers_to_nothing {
    ($($ty:ty),*) => { $(impl Measure for $ty {})* };
}
refers_to_nothing!(bool, i32, u32, i64, u64, f32, f64);

impl Measure for String {
    fn referenced_bytes(&self) -> usize {
        padded(self.len())
    }
}

impl Measure for Bytes {
    fn referenced_bytes(&self) -> usize {
        padded(self.len())
    }
}

impl<T: Measure> Measure for List<T> {
    fn referenced_bytes(&self) -> usize {
        padded(size_of_val(self.as_slice())) + self.iter().map(T::referenced_bytes).sum::<usize>()
    }
}

impl<K: Measure, V: Measure> Measure for Map<K, V> {
    fn referenced_bytes(&self) -> usize {
        let pair =
            |(key, value): (&K, &V)| size_of::<(K, V)>() + key.referenced_bytes() + value.referenced_bytes();
        padded(self.iter().map(pair).sum())
    }
}

impl<T: Measure> Measure for Box<T> {
    fn referenced_bytes(&self) -> usize {
        padded(size_of::<T>()) + T::referenced_bytes(self)
    }
}

impl<T: Measure> Measure for Optional<T> {
    fn referenced_bytes(&self) -> usize {
        self.as_ref().map_or(0, T::referenced_bytes)
    }
}
