//! A key-value store as memcached's: items in chunks of one size, a table of chains, the item used least recently gives way. It serves the calls of the
//! simulated hosts, and what its operations take is measured on the machine that runs the bench.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use provost_random::{SeededRandom, fraction};

/// Keys of the store.
const STORE_KEYS: usize = 200_000;
/// Of 100 operations, so many read (memcached's usual mix).
const READS_PERCENT: u64 = 95;
/// The skew of keys, where they are skewed (Zipf's exponent; YCSB's and Dagger's).
const SKEW: f64 = 0.99;
/// An item that is read is made the newest once in so many seconds, as in memcached.
const TOUCH_SECONDS: u32 = 60;
/// Locks, each of a part of the buckets, as in memcached.
const LOCKS: usize = 1024;
/// Where no item is: in a bucket, or beside the last of a list.
const NOBODY: u32 = u32::MAX;

const GET: u8 = 1;
const SET: u8 = 2;
const DONE: u8 = 0;
const NOT_FOUND: u8 = 1;

/// Keys and values of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKeys {
    /// Keys and values of 8 bytes each, all asked for alike.
    Tiny,
    /// Keys of 16 bytes, values of 32.
    Small,
    /// Keys and values of 8 bytes, some of which are asked for far more often than others.
    TinySkewed,
}

impl StoreKeys {
    pub(crate) const ALL: [StoreKeys; 3] = [StoreKeys::Tiny, StoreKeys::Small, StoreKeys::TinySkewed];

    pub(crate) fn name(self) -> &'static str {
        match self {
            StoreKeys::Tiny => "tiny",
            StoreKeys::Small => "small",
            StoreKeys::TinySkewed => "tiny, skewed",
        }
    }

    fn bytes(self) -> (usize, usize) {
        match self {
            StoreKeys::Tiny | StoreKeys::TinySkewed => (8, 8),
            StoreKeys::Small => (16, 32),
        }
    }

    /// Bytes of the longest request or response.
    pub(crate) fn payload_bytes_max(self) -> usize {
        let (key_bytes, value_bytes) = self.bytes();
        2 + key_bytes + value_bytes
    }

    /// The number of a key, from a drawn number below 1.
    fn draw(self, drawn: f64) -> usize {
        let keys = STORE_KEYS as f64;
        let rank = match self {
            // The inverse of the continuous form of Zipf's law.
            StoreKeys::TinySkewed => {
                let exponent = 1.0 - SKEW;
                ((keys.powf(exponent) - 1.0) * drawn + 1.0).powf(1.0 / exponent) - 1.0
            }
            _ => drawn * keys,
        };
        // Neighbours in rank are none in memory.
        (rank as usize).min(STORE_KEYS - 1).wrapping_mul(7_919) % STORE_KEYS
    }

    fn key(self, number: usize) -> Vec<u8> {
        let mut key = (number as u64).to_le_bytes().to_vec();
        key.resize(self.bytes().0, 0x5a);
        key
    }

    /// The value that a key always has.
    fn value(self, number: usize) -> Vec<u8> {
        let number = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        number.iter().copied().cycle().take(self.bytes().1).collect()
    }

    /// What a call asks for: the key's number, and whether it reads.
    fn operation(self, tag: u64) -> (usize, bool) {
        let mut random = SeededRandom::new(tag);
        let number = self.draw(fraction(random.number()));
        (number, random.below(100) < READS_PERCENT)
    }

    /// Whether a call reads.
    pub(crate) fn reads(self, tag: u64) -> bool {
        self.operation(tag).1
    }

    /// A call's request: what is to be done, the key's bytes, the key, and the value that is put.
    pub(crate) fn request(self, tag: u64) -> Vec<u8> {
        let (number, reads) = self.operation(tag);
        self.request_for(number, reads)
    }

    fn request_for(self, number: usize, reads: bool) -> Vec<u8> {
        let key = self.key(number);
        let head = [if reads { GET } else { SET }, key.len() as u8];
        let value = if reads { Vec::new() } else { self.value(number) };
        [&head, &key[..], &value].concat()
    }

    /// What the store must say to it.
    pub(crate) fn response(self, tag: u64) -> Vec<u8> {
        let (number, reads) = self.operation(tag);
        let value = if reads { self.value(number) } else { Vec::new() };
        [&[DONE], &value[..]].concat()
    }
}

/// What the store knows of an item, beside its key and value.
#[derive(Clone, Copy)]
struct ItemHead {
    hash: u32,
    next_in_bucket: u32,
    newer: u32,
    older: u32,
    touched_s: u32,
    key_bytes: u8,
    value_bytes: u8,
}

pub(crate) struct SlabStore {
    buckets: Vec<u32>,
    heads: Vec<ItemHead>,
    /// Keys and values, each item's in a chunk of its own.
    chunks: Vec<u8>,
    chunk_bytes: usize,
    items_max: usize,
    newest: u32,
    oldest: u32,
    locks: Vec<Mutex<()>>,
    began: Instant,
}

impl SlabStore {
    /// An empty store with room for so many items of so many bytes, key and value together.
    fn new(items_max: usize, chunk_bytes: usize) -> SlabStore {
        SlabStore {
            buckets: vec![NOBODY; items_max.next_power_of_two()],
            heads: Vec::with_capacity(items_max),
            chunks: vec![0; items_max * chunk_bytes],
            chunk_bytes,
            items_max,
            newest: NOBODY,
            oldest: NOBODY,
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
            began: Instant::now(),
        }
    }

    /// A store that has all keys.
    pub(crate) fn filled(keys: StoreKeys) -> SlabStore {
        let (key_bytes, value_bytes) = keys.bytes();
        let mut store = SlabStore::new(STORE_KEYS, key_bytes + value_bytes);
        for number in 0..STORE_KEYS {
            store.put(&keys.key(number), &keys.value(number));
        }
        store
    }

    /// Does what a request asks for.
    pub(crate) fn serve(&mut self, request: &[u8]) -> Vec<u8> {
        let Some((&[what, key_bytes], rest)) = request.split_first_chunk() else {
            return vec![NOT_FOUND];
        };
        match (what, rest.split_at_checked(key_bytes.into())) {
            (GET, Some((key, _))) => match self.get(key) {
                Some(value) => [&[DONE], value].concat(),
                None => vec![NOT_FOUND],
            },
            (SET, Some((key, value))) if key.len() + value.len() <= self.chunk_bytes => {
                self.put(key, value);
                vec![DONE]
            }
            _ => vec![NOT_FOUND],
        }
    }

    fn get(&mut self, key: &[u8]) -> Option<&[u8]> {
        let hash = hash_of(key);
        let at = {
            let _locked = self.locks[hash as usize % LOCKS]
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            self.find(hash, key)?
        };
        let now_s = self.began.elapsed().as_secs() as u32;
        if now_s - self.heads[at as usize].touched_s >= TOUCH_SECONDS {
            self.unlink(at);
            self.link_newest(at, now_s);
        }
        let head = self.heads[at as usize];
        let begin = at as usize * self.chunk_bytes + usize::from(head.key_bytes);
        Some(&self.chunks[begin..begin + usize::from(head.value_bytes)])
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        let hash = hash_of(key);
        let now_s = self.began.elapsed().as_secs() as u32;
        let found = {
            let _locked = self.locks[hash as usize % LOCKS]
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            self.find(hash, key)
        };
        let at = match found {
            Some(at) => at,
            None => self.add(hash),
        };
        if found.is_some() {
            self.unlink(at);
        }
        self.link_newest(at, now_s);
        let head = &mut self.heads[at as usize];
        head.key_bytes = key.len() as u8;
        head.value_bytes = value.len() as u8;
        let begin = at as usize * self.chunk_bytes;
        self.chunks[begin..begin + key.len()].copy_from_slice(key);
        self.chunks[begin + key.len()..begin + key.len() + value.len()].copy_from_slice(value);
    }

    fn key_of(&self, at: u32) -> &[u8] {
        let begin = at as usize * self.chunk_bytes;
        &self.chunks[begin..begin + usize::from(self.heads[at as usize].key_bytes)]
    }

    fn find(&self, hash: u32, key: &[u8]) -> Option<u32> {
        let mut at = self.buckets[self.bucket(hash)];
        while at != NOBODY {
            let head = &self.heads[at as usize];
            if head.hash == hash && self.key_of(at) == key {
                return Some(at);
            }
            at = head.next_in_bucket;
        }
        None
    }

    fn bucket(&self, hash: u32) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// A chunk for a new item, in its bucket and in no order yet: a free one, or that of the item used least recently.
    fn add(&mut self, hash: u32) -> u32 {
        let at = if self.heads.len() < self.items_max {
            self.heads.len() as u32
        } else {
            let at = self.oldest;
            self.unlink(at);
            self.leave_bucket(at);
            at
        };
        let bucket = self.bucket(hash);
        let head = ItemHead {
            hash,
            next_in_bucket: self.buckets[bucket],
            newer: NOBODY,
            older: NOBODY,
            touched_s: 0,
            key_bytes: 0,
            value_bytes: 0,
        };
        match self.heads.get_mut(at as usize) {
            Some(place) => *place = head,
            None => self.heads.push(head),
        }
        self.buckets[bucket] = at;
        at
    }

    fn leave_bucket(&mut self, leaving: u32) {
        let next = self.heads[leaving as usize].next_in_bucket;
        let bucket = self.bucket(self.heads[leaving as usize].hash);
        if self.buckets[bucket] == leaving {
            self.buckets[bucket] = next;
            return;
        }
        let mut at = self.buckets[bucket];
        while at != NOBODY {
            if self.heads[at as usize].next_in_bucket == leaving {
                self.heads[at as usize].next_in_bucket = next;
                return;
            }
            at = self.heads[at as usize].next_in_bucket;
        }
    }

    fn unlink(&mut self, at: u32) {
        let ItemHead { newer, older, .. } = self.heads[at as usize];
        match self.heads.get_mut(newer as usize) {
            Some(head) => head.older = older,
            None => self.newest = older,
        }
        match self.heads.get_mut(older as usize) {
            Some(head) => head.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link_newest(&mut self, at: u32, now_s: u32) {
        let older = self.newest;
        match self.heads.get_mut(older as usize) {
            Some(head) => head.newer = at,
            None => self.oldest = at,
        }
        let head = &mut self.heads[at as usize];
        head.newer = NOBODY;
        head.older = older;
        head.touched_s = now_s;
        self.newest = at;
    }
}

/// The hash of a key (Appleby's Murmur3 of 32 bits, as memcached has it, by words of four bytes; a key's rest is padded).
fn hash_of(key: &[u8]) -> u32 {
    let mut hash = key.len() as u32;
    for word in key.chunks(4) {
        let mut bytes = [0; 4];
        bytes[..word.len()].copy_from_slice(word);
        let mixed = u32::from_le_bytes(bytes)
            .wrapping_mul(0xcc9e_2d51)
            .rotate_left(15);
        hash ^= mixed.wrapping_mul(0x1b87_3593);
        hash = hash.rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    hash ^= hash >> 16;
    hash = hash.wrapping_mul(0x85eb_ca6b);
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

/// What an operation takes, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OperationTimes {
    pub(crate) read_ns: f64,
    pub(crate) write_ns: f64,
}

/// Measures operations of the store on this machine, with the request read and the response written.
pub(crate) fn measure_store(keys: StoreKeys, operations: usize) -> OperationTimes {
    let mut store = SlabStore::filled(keys);
    let mut random = SeededRandom::new(1);
    let mut measure = |reads| {
        let asked: Vec<Vec<u8>> = (0..operations)
            .map(|_| keys.request_for(keys.draw(fraction(random.number())), reads))
            .collect();
        let began = Instant::now();
        let done = asked
            .iter()
            .filter(|request| store.serve(request)[0] == DONE)
            .count();
        let ns = began.elapsed().as_nanos() as f64;
        assert_eq!(done, operations, "keys that were put are found");
        ns / operations as f64
    };
    OperationTimes {
        read_ns: measure(true),
        write_ns: measure(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skewed_keys_are_some_keys_mostly_and_others_are_all_alike() {
        let most_frequent = |keys: StoreKeys| {
            let mut random = SeededRandom::new(3);
            let mut counts = vec![0; STORE_KEYS];
            (0..100_000).for_each(|_| counts[keys.draw(fraction(random.number()))] += 1);
            counts.into_iter().max().unwrap_or(0)
        };
        assert!(most_frequent(StoreKeys::Tiny) < 20);
        assert!(most_frequent(StoreKeys::TinySkewed) > 2_000);
    }

    #[test]
    fn calls_get_what_their_keys_have_and_one_in_twenty_puts() {
        for keys in StoreKeys::ALL {
            let mut store = SlabStore::filled(keys);
            let mut reads = 0;
            for tag in 0..2_000 {
                assert_eq!(
                    store.serve(&keys.request(tag)),
                    keys.response(tag),
                    "{keys:?} {tag}"
                );
                reads += u64::from(keys.reads(tag));
            }
            assert!((1_850..1_950).contains(&reads), "{reads}");
        }
    }

    /// The store has what a list of all puts says, and of more keys than it has room for those that were put last.
    #[test]
    fn what_was_put_last_stays_and_what_was_put_first_gives_way() {
        const ROOM: usize = 64;
        let mut store = SlabStore::new(ROOM, 16);
        let mut random = SeededRandom::new(5);
        let mut newest: Vec<(u64, u64)> = Vec::new();
        for version in 0..5_000_u64 {
            let key = random.below(100);
            store.put(&key.to_le_bytes(), &version.to_le_bytes());
            newest.retain(|(of, _)| *of != key);
            newest.push((key, version));
            if newest.len() > ROOM {
                newest.remove(0);
            }
            let asked = random.below(100);
            let kept = newest.iter().find(|(of, _)| *of == asked);
            let kept = kept.map(|(_, version)| version.to_le_bytes().to_vec());
            assert_eq!(
                store.get(&asked.to_le_bytes()).map(<[u8]>::to_vec),
                kept,
                "{version}"
            );
        }
        assert_eq!(store.heads.len(), ROOM);
    }

    #[test]
    fn requests_that_make_no_sense_find_nothing() {
        let mut store = SlabStore::new(4, 16);
        let long = [&[SET, 8][..], &[1; 40]].concat();
        for request in [&[][..], &[GET], &[GET, 9, 1], &[7, 1, 1], &[GET, 1, 1], &long] {
            assert_eq!(store.serve(request), [NOT_FOUND], "{request:?}");
        }
    }
}
