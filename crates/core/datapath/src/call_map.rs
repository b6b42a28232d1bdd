//! Tables of calls by their number.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// A table by call number.
pub type CallMap<T> = HashMap<u64, T, CallHash>;

/// Hashes a call's number by one multiplication with a secret, so that a peer cannot choose numbers that collide.
#[derive(Clone, Copy, Debug)]
pub struct CallHash(u64);

impl Default for CallHash {
    fn default() -> CallHash {
        CallHash(RandomState::new().hash_one(0u64))
    }
}

impl CallHash {
    #[inline]
    pub(crate) fn of(self, number: u64) -> u64 {
        /// Odd, with about as many ones as zeros (2^64 divided by the golden ratio).
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let product = u128::from(number ^ self.0) * u128::from(self.0.rotate_left(32) ^ SPREAD | 1);
        product as u64 ^ (product >> 64) as u64
    }
}

impl BuildHasher for CallHash {
    type Hasher = CallHasher;

    fn build_hasher(&self) -> CallHasher {
        CallHasher(self.0)
    }
}

/// See [`CallHash`].
#[derive(Debug)]
pub struct CallHasher(u64);

impl Hasher for CallHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = CallHash(self.0).of(number);
    }
}
