//! Which method each open call is of: only the step that begins a call says so.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use provost_wire::limits::CALLS_IN_FLIGHT_MAX;

use crate::saved::Record;

/// Calls that a new table has room for.
const CALLS_AT_START: usize = 64;

/// The open calls of a connection.
#[derive(Debug)]
pub(crate) struct Calls {
    methods: HashMap<u64, u16, Seeded>,
}

/// More than [`CALLS_IN_FLIGHT_MAX`] calls are open.
#[derive(Debug)]
pub(crate) struct TooMany;

impl Calls {
    pub(crate) fn new() -> Calls {
        Calls {
            methods: HashMap::with_capacity_and_hasher(CALLS_AT_START, Seeded::new()),
        }
    }

    pub(crate) fn begin(&mut self, call: u64, method: u16) -> Result<(), TooMany> {
        if self.methods.len() >= CALLS_IN_FLIGHT_MAX {
            return Err(TooMany);
        }
        self.methods.insert(call, method);
        Ok(())
    }

    pub(crate) fn method(&self, call: u64) -> Option<u16> {
        self.methods.get(&call).copied()
    }

    pub(crate) fn end(&mut self, call: u64) {
        self.methods.remove(&call);
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = Record> {
        self.methods
            .iter()
            .map(|(&call, &method)| Record::Call { call, method })
    }
}

/// Hashes a call's number by one multiplication with a secret, so that a peer cannot choose numbers that collide.
#[derive(Clone, Copy, Debug)]
struct Seeded(u64);

impl Seeded {
    fn new() -> Seeded {
        Seeded(RandomState::new().hash_one(0u64))
    }
}

impl BuildHasher for Seeded {
    type Hasher = Folded;

    fn build_hasher(&self) -> Folded {
        Folded(self.0)
    }
}

struct Folded(u64);

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        /// Odd, with about as many ones as zeros (2^64 divided by the golden ratio).
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let product = u128::from(number ^ self.0) * u128::from(self.0.rotate_left(32) ^ SPREAD | 1);
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_calls_is_bounded() {
        let mut calls = Calls::new();
        for call in 0..CALLS_IN_FLIGHT_MAX as u64 {
            calls.begin(call, 0).unwrap();
        }
        assert!(calls.begin(u64::MAX, 0).is_err());
        calls.end(0);
        assert!(calls.begin(u64::MAX, 0).is_ok());
    }
}
