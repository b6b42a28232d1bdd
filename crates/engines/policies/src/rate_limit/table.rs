//! The buckets of all keys, in a table of fixed size that any number of threads use without a lock.
//!
//! A slot is two words: the key, and the bucket's time. A key has two *homes* of [`WAYS`] slots each, a cache line
//! each, in independent places, and is in one of those slots or nowhere. A key that is not there takes a slot:
//!
//! - one whose bucket is full, which nobody can tell from a slot that was never used;
//! - if all are in use, the one from which least is missing, **with what is missing**. Nothing is ever refilled by a
//!   change of owner, so that keys which somebody makes up cannot win tokens: whatever comes, no more calls pass than
//!   as many buckets as the table has slots would let pass. The price is paid by the new key, which finds its bucket
//!   partly used, and by the old one, which finds another bucket when it comes back.
//!
//! So only two things ever happen to a slot: its time moves on by a charge (or back by a refund of one), and its key
//! changes by a compare-exchange. A thread that charges a slot while another gives it to a new key charges the new
//! key: the sum stays right. Two threads that bring the same new key at the same time end up with one bucket where slots
//! are free; where none is, they may take two, and use both until each has looked again: still no more than was left
//! in them.

use crate::rate_limit::atomic::{AtomicU64, Ordering};
use crate::rate_limit::bucket::Ticks;

/// Slots of a home.
const WAYS: usize = if cfg!(loom) { 1 } else { 4 };
/// How often a key tries to get a slot while others take them away, before it shares one.
const TRIES_MAX: usize = 4;

/// A bounded table of buckets.
pub(crate) struct BucketTable {
    sets: Box<[BucketSet]>,
    /// How often a key took a slot that was in use.
    evictions: AtomicU64,
}

#[repr(align(64))]
struct BucketSet([BucketSlot; WAYS]);

struct BucketSlot {
    /// 0: never used.
    key: AtomicU64,
    time: AtomicU64,
}

impl BucketSlot {
    fn is_idle(&self, now: Ticks) -> bool {
        self.time() <= now
    }

    /// Acquire: who finds a slot in use, and takes another one, then sees the key if it has come meanwhile.
    fn time(&self) -> Ticks {
        self.time.load(Ordering::Acquire)
    }
}

impl BucketTable {
    /// A table of at least so many buckets, all full.
    pub(crate) fn new(buckets: usize) -> BucketTable {
        let slot = || BucketSlot {
            key: AtomicU64::new(0),
            time: AtomicU64::new(0),
        };
        let sets = buckets.div_ceil(WAYS).next_power_of_two().max(2);
        BucketTable {
            sets: (0..sets)
                .map(|_| BucketSet(std::array::from_fn(|_| slot())))
                .collect(),
            evictions: AtomicU64::new(0),
        }
    }

    /// The bucket of a key, which takes one if it has none. (A key is a hash, and never 0.)
    pub(crate) fn bucket(&self, key: u64, now: Ticks) -> &AtomicU64 {
        match self.find(key) {
            Some(bucket) => bucket,
            None => self.take(key, now),
        }
    }

    /// The bucket of a key that has one.
    pub(crate) fn find(&self, key: u64) -> Option<&AtomicU64> {
        self.candidates(key)
            .find(|slot| slot.key.load(Ordering::Relaxed) == key)
            .map(|slot| &slot.time)
    }

    /// Key and time of each slot whose bucket is not full at this time.
    pub(crate) fn used(&self, now: Ticks) -> impl Iterator<Item = (u64, Ticks)> {
        let slots = self.sets.iter().flat_map(|set| &set.0);
        slots
            .map(|slot| {
                (
                    slot.key.load(Ordering::Relaxed),
                    slot.time.load(Ordering::Relaxed),
                )
            })
            .filter(move |(key, time)| *key != 0 && *time > now)
    }

    /// How often a key took a slot that was in use.
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    #[cold]
    fn take(&self, key: u64, now: Ticks) -> &AtomicU64 {
        for _ in 0..TRIES_MAX {
            let (slot, owner) = self.place(key, now);
            if slot
                .key
                .compare_exchange(owner, key, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            {
                if !slot.is_idle(now) {
                    self.evictions.fetch_add(1, Ordering::Relaxed);
                }
                // Another thread may have brought the key at the same time: the first slot is the key's.
                return self.find(key).unwrap_or(&slot.time);
            }
            if let Some(bucket) = self.find(key) {
                return bucket;
            }
        }
        // Others want the same slots so much that it is fair to share one.
        &self.place(key, now).0.time
    }

    /// The slot that a new key takes, and whose it is.
    fn place(&self, key: u64, now: Ticks) -> (&BucketSlot, u64) {
        let [first, second] = self.homes_of(key).map(|home| &self.sets[home].0);
        let idle = |home: &[BucketSlot; WAYS]| home.iter().filter(|slot| slot.is_idle(now)).count();
        // Where more is free, so that both homes fill evenly and far fewer keys find all slots in use ("power of two
        // choices").
        let (nearer, farther) = if idle(second) > idle(first) {
            (second, first)
        } else {
            (first, second)
        };
        let slots = || nearer.iter().chain(farther);
        let slot = slots().find(|slot| slot.is_idle(now)).or_else(|| {
            // The least that is missing, at the moment.
            slots().min_by_key(|slot| slot.time())
        });
        let slot = slot.unwrap_or(&first[0]);
        (slot, slot.key.load(Ordering::Relaxed))
    }

    fn candidates(&self, key: u64) -> impl Iterator<Item = &BucketSlot> {
        let homes = self.homes_of(key).map(|home| &self.sets[home].0);
        homes.into_iter().flatten()
    }

    fn homes_of(&self, key: u64) -> [usize; 2] {
        let mask = self.sets.len() - 1;
        let first = key as usize & mask;
        // Never the same place: they differ by a number that is not 0.
        [first, first ^ (((key >> 32) as usize & mask) | 1)]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys(count: u64) -> impl Iterator<Item = u64> {
        (1..=count).map(|number| {
            let mut hasher = siphasher::sip::SipHasher13::new();
            std::hash::Hasher::write_u64(&mut hasher, number);
            std::hash::Hasher::finish(&hasher)
        })
    }

    fn use_until(table: &BucketTable, key: u64, now: Ticks, time: Ticks) {
        table.bucket(key, now).fetch_max(time, Ordering::Relaxed);
    }

    #[test]
    fn each_key_has_a_bucket_of_its_own_and_keeps_it() {
        let table = BucketTable::new(4096);
        for (number, key) in keys(200).enumerate() {
            use_until(&table, key, 10, 1000 + number as u64);
        }
        for (number, key) in keys(200).enumerate() {
            let time = table.bucket(key, 10).load(Ordering::Relaxed);
            assert_eq!(time, 1000 + number as u64);
        }
        assert_eq!((table.used(10).count(), table.evictions()), (200, 0));
        assert_eq!(table.used(1100).count(), 99);
    }

    #[test]
    fn a_full_bucket_gives_way_to_a_new_key_and_a_used_one_hands_on_what_is_missing() {
        let table = BucketTable::new(1);
        let slots = table.sets.len() * WAYS;
        for (number, key) in keys(slots as u64).enumerate() {
            use_until(&table, key, 0, 100 + number as u64);
        }
        assert_eq!((table.used(0).count(), table.evictions()), (slots, 0));
        let newcomer = u64::MAX;
        assert_eq!(table.bucket(newcomer, 0).load(Ordering::Relaxed), 100);
        assert_eq!(table.evictions(), 1);
        // At 150 all are full again: nobody is disturbed.
        assert!(table.bucket(u64::MAX - 1, 150).load(Ordering::Relaxed) < 150);
        assert_eq!(table.evictions(), 1);
    }

    /// Of 6,000 keys in 8,192 slots nearly all find one that is free.
    #[test]
    fn two_choices_leave_few_keys_without_a_slot() {
        let table = BucketTable::new(8192);
        keys(6000).for_each(|key| use_until(&table, key, 0, 1000));
        assert!(table.evictions() < 60, "{}", table.evictions());
    }

    proptest! {
        /// Whatever keys come and go, no more passes than all slots together allow.
        #[test]
        fn keys_that_come_and_go_win_nothing(
            burst in 1u64..4,
            picks in prop::collection::vec((0u64..64, 0u64..40), 1..600),
        ) {
            let limit = crate::rate_limit::bucket::BucketShape { interval: 100, capacity: 100 * burst };
            let table = BucketTable::new(8);
            let slots = (table.sets.len() * WAYS) as u64;
            let (mut now, mut passed) = (1, 0);
            let keys: Vec<u64> = keys(64).collect();
            for (pick, gap) in picks {
                now += gap;
                let bucket = table.bucket(keys[pick as usize], now);
                passed += u64::from(matches!(limit.charge(bucket, now, now), crate::rate_limit::bucket::ChargeAnswer::At(_)));
                prop_assert!(passed <= slots * (burst + now / limit.interval));
            }
        }
    }
}
