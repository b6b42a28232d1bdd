//! What clones of large bytes and texts cost, and that nobody notices that they share their memory. A file of its own, because it measures the memory of the whole process.

use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};

use proptest::prelude::*;
use provost::shared::{Bytes, String, heap_bytes_used};
use provost_allocations::{CountingAllocator, made_by_thread};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const LARGE_BYTES: usize = 8 << 20;
const CLONES: usize = 1000;

/// One test after the other: the send heap is the process's.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn clones_of_large_bytes_take_no_memory_and_copy_nothing() {
    let _alone = alone();
    let original = Bytes::zeroed(LARGE_BYTES);
    let mut clones = Vec::with_capacity(CLONES);
    let (used, made) = (heap_bytes_used(), made_by_thread());
    clones.extend((0..CLONES).map(|_| original.clone()));
    assert_eq!(heap_bytes_used(), used);
    assert_eq!(made_by_thread(), made);
    assert!(clones.iter().all(|clone| clone.as_ptr() == original.as_ptr()));
    // A copy of each would have been of 8 GB: more than the heap has room for.
    drop(original);
    assert_eq!(heap_bytes_used(), used);
    let last = clones.pop().unwrap();
    drop(clones);
    assert_eq!((heap_bytes_used(), last.len()), (used, LARGE_BYTES));
    drop(last);
    assert!(heap_bytes_used() + LARGE_BYTES as u64 <= used);
}

#[test]
fn clones_of_large_texts_take_no_memory() {
    let _alone = alone();
    let original = String::from("x".repeat(LARGE_BYTES));
    let used = heap_bytes_used();
    let clone = original.clone();
    assert_eq!((heap_bytes_used(), clone.as_ptr()), (used, original.as_ptr()));
    assert_eq!(clone, original);
}

#[test]
fn a_clone_that_is_written_to_is_copied_once() {
    let _alone = alone();
    let original = Bytes::zeroed(LARGE_BYTES);
    let used = heap_bytes_used();
    let mut clone = original.clone();
    clone[7] = 1;
    let copied = heap_bytes_used();
    assert!(copied >= used + LARGE_BYTES as u64);
    clone[8] = 2;
    clone.extend_from_slice(b"");
    assert_eq!(heap_bytes_used(), copied);
    assert_eq!((original[7], clone[7]), (0, 1));
    // The memory of the original is its own again, so that it is written in place.
    let place = original.as_ptr();
    let mut original = original;
    original[7] = 3;
    assert_eq!((original.as_ptr(), clone[7]), (place, 1));
}

#[test]
fn threads_that_drop_and_write_clones_at_once_give_the_memory_back() {
    const THREADS: usize = 4;
    let _alone = alone();
    let used = heap_bytes_used();
    for round in 0..200_u8 {
        let original = Bytes::from(vec![round; 8192]);
        let begin = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            let spawn = |thread: usize| {
                let (mut clone, begin) = (original.clone(), &begin);
                scope.spawn(move || {
                    begin.wait();
                    let again = clone.clone();
                    if thread.is_multiple_of(2) {
                        clone[0] = !round;
                    }
                    assert!(again.iter().all(|byte| *byte == round));
                })
            };
            let threads: Vec<_> = (0..THREADS).map(spawn).collect();
            // Joined, because a scope ends before its threads have given back what they kept for themselves.
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert!(original.iter().all(|byte| *byte == round));
    }
    assert_eq!(heap_bytes_used(), used);
}

#[derive(Clone, Debug)]
enum BytesStep {
    Clone(usize),
    Drop(usize),
    Write(usize, usize),
    Push(usize),
    Append(usize, usize),
    Truncate(usize, usize),
    Clear(usize),
}

fn bytes_step() -> impl Strategy<Value = BytesStep> {
    prop_oneof![
        6 => any::<usize>().prop_map(BytesStep::Clone),
        2 => any::<usize>().prop_map(BytesStep::Drop),
        3 => (any::<usize>(), any::<usize>()).prop_map(|(which, at)| BytesStep::Write(which, at)),
        2 => any::<usize>().prop_map(BytesStep::Push),
        2 => (any::<usize>(), 0..5000_usize).prop_map(|(which, count)| BytesStep::Append(which, count)),
        2 => (any::<usize>(), 0..20_000_usize).prop_map(|(which, len)| BytesStep::Truncate(which, len)),
        1 => any::<usize>().prop_map(BytesStep::Clear),
    ]
}

/// Does a step to one of several bytes, and to the vectors that they must be like.
fn do_bytes_step(all: &mut Vec<Bytes>, models: &mut Vec<Vec<u8>>, step: BytesStep) {
    let index = |which: usize| which % models.len();
    match step {
        BytesStep::Clone(which) => {
            let which = index(which);
            all.push(all[which].clone());
            models.push(models[which].clone());
        }
        BytesStep::Drop(which) if models.len() > 1 => {
            let which = index(which);
            all.swap_remove(which);
            models.swap_remove(which);
        }
        BytesStep::Drop(_) => {}
        BytesStep::Write(which, at) => {
            let which = index(which);
            if !models[which].is_empty() {
                let at = at % models[which].len();
                all[which][at] ^= 0x55;
                models[which][at] ^= 0x55;
            }
        }
        BytesStep::Push(which) => {
            let which = index(which);
            all[which].push(9);
            models[which].push(9);
        }
        BytesStep::Append(which, count) => {
            let which = index(which);
            all[which].extend_from_slice(&vec![3; count]);
            models[which].extend_from_slice(&vec![3; count]);
        }
        BytesStep::Truncate(which, len) => {
            let which = index(which);
            all[which].truncate(len);
            models[which].truncate(len);
        }
        BytesStep::Clear(which) => {
            let which = index(which);
            all[which].clear();
            models[which].clear();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn clones_of_bytes_are_like_clones_of_vectors(
        len in 0..20_000_usize,
        steps in prop::collection::vec(bytes_step(), 0..40),
    ) {
        let _alone = alone();
        let (mut all, mut models) = (vec![Bytes::from(vec![1; len])], vec![vec![1; len]]);
        for step in steps {
            do_bytes_step(&mut all, &mut models, step);
            prop_assert_eq!(&all, &models);
        }
    }
}
