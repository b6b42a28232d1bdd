//! The heap against a model: a map of live blocks.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::{Heap, Hysteresis, NotAllocated, PAGE_BYTES, SMALL_BYTES_MAX, UNIT_BYTES};

const REGION_BYTES: u64 = 4 << 20;

#[derive(Clone, Debug)]
enum Action {
    Allocate(u32),
    /// Frees one of the live blocks.
    Free(prop::sample::Index),
    /// Frees an offset that is most likely wrong.
    FreeAnything(u32),
    Release,
}

fn action() -> impl Strategy<Value = Action> {
    let bytes = prop_oneof![
        6 => 0..300u32,
        3 => 300..SMALL_BYTES_MAX,
        2 => SMALL_BYTES_MAX..200_000,
        1 => Just(REGION_BYTES as u32 / 2),
    ];
    prop_oneof![
        10 => bytes.prop_map(Action::Allocate),
        8 => any::<prop::sample::Index>().prop_map(Action::Free),
        1 => (0..(REGION_BYTES / UNIT_BYTES) as u32 + 1000).prop_map(Action::FreeAnything),
        1 => Just(Action::Release),
    ]
}

/// The heap and what it must hold.
struct Checked {
    heap: Heap,
    /// Usable bytes of each live block.
    live: BTreeMap<u32, u32>,
}

impl Checked {
    fn new() -> Checked {
        Checked {
            heap: Heap::new(REGION_BYTES),
            live: BTreeMap::new(),
        }
    }

    fn allocate(&mut self, bytes: u32) {
        let Some(offset) = self.heap.allocate(bytes) else {
            return;
        };
        let usable = self.heap.usable_bytes(offset).expect("it is live");
        assert_ne!(offset, 0);
        assert!(usable >= bytes);
        let (start, end) = extent(offset, usable);
        assert!(end <= REGION_BYTES);
        if let Some((before, usable)) = self.live.range(..=offset).next_back() {
            assert!(extent(*before, *usable).1 <= start, "overlaps the block before");
        }
        if let Some((after, _)) = self.live.range(offset..).next() {
            assert!(u64::from(*after) * UNIT_BYTES >= end, "overlaps the block after");
        }
        self.live.insert(offset, usable);
    }

    fn free(&mut self, offset: u32) {
        let expected = self.live.remove(&offset).map(drop).ok_or(NotAllocated { offset });
        assert_eq!(self.heap.free(offset), expected);
        assert_eq!(
            self.heap.free(offset),
            Err(NotAllocated { offset }),
            "a second time"
        );
    }

    fn release(&mut self) {
        while let Some(range) = self.heap.release_next(Hysteresis {
            start_bytes: 0,
            keep_bytes: 0,
        }) {
            assert_eq!((range.start % PAGE_BYTES, range.end % PAGE_BYTES), (0, 0));
            let last = self
                .live
                .range(..range.end.div_ceil(UNIT_BYTES) as u32)
                .next_back();
            let live_before_end = last.map_or(0, |(offset, usable)| extent(*offset, *usable).1);
            assert!(live_before_end <= range.start, "{range:?} has a live block");
        }
        assert_eq!(self.heap.idle_bytes(), 0);
    }

    fn check_totals(&self) {
        assert_eq!(
            self.heap.used_bytes(),
            self.live.values().map(|usable| u64::from(*usable)).sum::<u64>()
        );
        assert_eq!(self.heap.is_empty(), self.live.is_empty());
        assert!(self.live.keys().all(|offset| self.heap.contains_live(*offset)));
    }
}

fn extent(offset: u32, usable: u32) -> (u64, u64) {
    let start = u64::from(offset) * UNIT_BYTES;
    (start, start + u64::from(usable))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_the_model_and_everything_comes_back(actions in prop::collection::vec(action(), 1..400)) {
        let mut checked = Checked::new();
        for action in actions {
            match action {
                Action::Allocate(bytes) => checked.allocate(bytes),
                Action::Free(which) => {
                    let live: Vec<u32> = checked.live.keys().copied().collect();
                    if !live.is_empty() {
                        checked.free(*which.get(&live));
                    }
                }
                Action::FreeAnything(offset) => checked.free(offset),
                Action::Release => checked.release(),
            }
            checked.check_totals();
        }
        let live: Vec<u32> = checked.live.keys().copied().collect();
        live.into_iter().for_each(|offset| checked.free(offset));
        prop_assert!(checked.heap.is_empty());
        let whole = (REGION_BYTES - PAGE_BYTES) as u32;
        prop_assert!(checked.heap.allocate(whole).is_some(), "the region is in pieces");
    }
}

#[test]
fn every_small_size_gets_a_block_at_most_a_third_longer() {
    let mut heap = Heap::new(REGION_BYTES);
    for bytes in 1..=SMALL_BYTES_MAX + 1 {
        let offset = heap.allocate(bytes).expect("the heap is empty");
        let usable = heap.usable_bytes(offset).expect("it is live");
        assert!(
            usable >= bytes && usable <= (bytes + 15).max(bytes + bytes / 3),
            "{bytes}: {usable}"
        );
        heap.free(offset).expect("it is live");
    }
}

#[test]
fn a_full_heap_says_so_and_one_block_freed_is_one_block_found() {
    let mut heap = Heap::new(REGION_BYTES);
    let blocks: Vec<u32> = std::iter::from_fn(|| heap.allocate(1000)).collect();
    assert!(blocks.len() as u64 >= (REGION_BYTES - (64 << 10) - PAGE_BYTES) / 1024);
    assert_eq!(heap.allocate(1000), None);
    heap.free(blocks[blocks.len() / 2]).expect("it is live");
    assert_eq!(heap.allocate(1000), Some(blocks[blocks.len() / 2]));
}

#[test]
fn neighbours_coalesce_in_any_order() {
    let mut heap = Heap::new(REGION_BYTES);
    let third = ((REGION_BYTES - PAGE_BYTES) / 3 / PAGE_BYTES * PAGE_BYTES) as u32;
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let blocks: Vec<u32> = std::iter::from_fn(|| heap.allocate(third)).collect();
        assert_eq!(blocks.len(), 3);
        order
            .into_iter()
            .for_each(|at: usize| heap.free(blocks[at]).expect("it is live"));
        let whole = heap
            .allocate((REGION_BYTES - PAGE_BYTES) as u32)
            .expect("it coalesced");
        heap.free(whole).expect("it is live");
    }
}

#[test]
fn memory_is_given_back_between_two_marks() {
    let mut heap = Heap::new(REGION_BYTES);
    let marks = Hysteresis {
        start_bytes: 1 << 20,
        keep_bytes: 256 << 10,
    };
    let small = heap.allocate(512 << 10).expect("the heap is empty");
    heap.free(small).expect("it is live");
    assert_eq!(heap.release_next(marks), None, "too little lies idle");
    let large = heap.allocate(2 << 20).expect("the heap is empty");
    heap.free(large).expect("it is live");
    let released: u64 = std::iter::from_fn(|| heap.release_next(marks))
        .map(|range| range.end - range.start)
        .sum();
    assert!(released >= (2 << 20) - (256 << 10));
    assert!(heap.idle_bytes() <= 256 << 10);
}

#[test]
fn regions_too_small_for_a_page_hold_nothing() {
    for bytes in [0, 1, PAGE_BYTES, PAGE_BYTES + 1] {
        let mut heap = Heap::new(bytes);
        assert_eq!(heap.allocate(1), None);
        assert_eq!(heap.allocate(100_000), None);
        assert!(heap.free(0).is_err() && heap.free(u32::MAX).is_err());
    }
    assert_eq!(Heap::new(8 << 20).allocate(u32::MAX), None);
}
