//! Every interleaving and ordering that loom knows, of a bucket and of a table of two slots. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p provost-policies --release`.

use loom::sync::Arc;
use loom::thread;

use crate::rate_limit::atomic::{AtomicU64, Ordering};
use crate::rate_limit::bucket::{BucketShape, ChargeAnswer};
use crate::rate_limit::table::BucketTable;

const NOW: u64 = 1000;
const BURST: u64 = 2;
const LIMIT: BucketShape = BucketShape {
    interval: 100,
    capacity: 100 * BURST,
};

fn passes(bucket: &AtomicU64) -> u64 {
    u64::from(LIMIT.charge(bucket, NOW, NOW) == ChargeAnswer::At(NOW))
}

/// Runs the same on two threads and adds up what both say.
fn on_two_threads<T: Send + Sync + 'static>(shared: &Arc<T>, run: fn(&T, usize) -> u64) -> u64 {
    let theirs = Arc::clone(shared);
    let other = thread::spawn(move || run(&theirs, 1));
    run(shared, 0) + other.join().expect("the thread ends")
}

#[test]
fn a_bucket_lets_pass_exactly_what_it_has() {
    loom::model(|| {
        let bucket = Arc::new(AtomicU64::new(0));
        let passed = on_two_threads(&bucket, |bucket, _| passes(bucket) + passes(bucket));
        assert_eq!(passed, BURST);
        assert_eq!(bucket.load(Ordering::Relaxed), NOW + LIMIT.capacity);
    });
}

#[test]
fn turns_are_given_out_once_each_and_a_refund_is_one_token() {
    loom::model(|| {
        let bucket = Arc::new(AtomicU64::new(NOW + LIMIT.capacity));
        let turns = on_two_threads(&bucket, |bucket, _| match LIMIT.charge(bucket, NOW, u64::MAX) {
            ChargeAnswer::At(turn) => turn,
            ChargeAnswer::Over(_) => 0,
        });
        assert_eq!(turns, 2 * NOW + LIMIT.interval + 2 * LIMIT.interval);
        on_two_threads(&bucket, |bucket, _| {
            LIMIT.refund(bucket);
            0
        });
        assert_eq!(bucket.load(Ordering::Relaxed), NOW + LIMIT.capacity);
    });
}

/// Two threads bring the same new key.
#[test]
fn a_new_key_that_two_threads_bring_ends_up_with_one_bucket() {
    loom::model(|| {
        let table = Arc::new(BucketTable::new(2));
        let passed = on_two_threads(&table, |table, _| {
            passes(table.bucket(7, NOW)) + passes(table.bucket(7, NOW))
        });
        assert_eq!(passed, BURST);
        let after = passes(table.bucket(7, NOW)) + passes(table.bucket(7, NOW));
        assert_eq!(after, 0);
    });
}

/// Two threads bring different keys into a table whose slots are in use: nothing is refilled.
#[test]
fn a_slot_that_changes_hands_keeps_what_is_missing() {
    loom::model(|| {
        let table = Arc::new(BucketTable::new(2));
        for key in [2, 4] {
            let bucket = table.bucket(key, NOW);
            assert_eq!(passes(bucket) + passes(bucket), BURST);
        }
        let passed = on_two_threads(&table, |table, thread| {
            passes(table.bucket(6 + 2 * thread as u64, NOW))
        });
        assert_eq!(passed, 0);
        assert_eq!(table.used(NOW).count(), 2);
    });
}

/// Two threads bring the same new key where all slots are in use: they win at most what is left in the slots.
#[test]
fn a_new_key_among_used_slots_gets_what_is_left_in_them() {
    loom::model(|| {
        let table = Arc::new(BucketTable::new(2));
        for key in [2, 4] {
            assert_eq!(passes(table.bucket(key, NOW)), 1);
        }
        let passed = on_two_threads(&table, |table, _| passes(table.bucket(6, NOW)));
        let after = passes(table.bucket(6, NOW)) + passes(table.bucket(6, NOW));
        assert!(
            (1..=2).contains(&passed) && passed + after <= 2,
            "{passed}, then {after}"
        );
    });
}
