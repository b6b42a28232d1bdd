//! A timing wheel (Carousel, SIGCOMM '17): things that become due at some time, in buckets of equal width.
//!
//! Putting in and taking out cost the same however many there are. What lies beyond the wheel's horizon becomes due at
//! the horizon. Things of one bucket come out in the order in which they went in. A wheel for few things keeps them in order
//! instead, by the same rules: that takes a hundredth of the memory.

/// No node.
const NONE: u32 = u32::MAX;
/// Wheels for no more things than this keep them in order. Putting one in moves half of the others, 6 KB at most.
const SORTED_ITEMS_MAX: usize = 512;

/// Things of type `T` that become due.
#[derive(Debug)]
pub(crate) struct Wheel<T> {
    /// The width of a bucket, as a power of two of nanoseconds.
    width_shift: u32,
    /// The number, since time zero, of the first bucket that may hold anything.
    cursor: u64,
    /// BucketLists from the cursor to the horizon.
    span: u64,
    items: WheelItems<T>,
    items_max: usize,
    length: usize,
    /// No bucket before this one holds anything, so that most looks end here.
    earliest: u64,
}

/// What is in a wheel, by the numbers of buckets.
#[derive(Debug)]
enum WheelItems<T> {
    Bucketed(BucketLists<T>),
    /// The last is due first.
    Sorted(Vec<(u64, T)>),
}

/// The wheel holds as many things as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WheelFull;

impl<T: Copy> Wheel<T> {
    /// A wheel of `buckets` (a power of two, 64 at least) that are `width_ns` wide (a power of two), for at most
    /// `items_max` things.
    pub(crate) fn new(width_ns: u64, buckets: usize, items_max: usize) -> Self {
        assert!(width_ns.is_power_of_two(), "the wheel divides by shifts");
        let items = if items_max <= SORTED_ITEMS_MAX {
            WheelItems::Sorted(Vec::new())
        } else {
            WheelItems::Bucketed(BucketLists::new(buckets))
        };
        Self {
            width_shift: width_ns.trailing_zeros(),
            cursor: 0,
            span: buckets as u64 - 1,
            items,
            items_max: items_max.min(NONE as usize),
            length: 0,
            earliest: u64::MAX,
        }
    }

    /// Gives back memory that nothing is in, where it is few things that it is for.
    pub(crate) fn shrink(&mut self) {
        if let WheelItems::Sorted(items) = &mut self.items {
            items.shrink_to_fit();
        }
    }

    /// Whether nothing is in it.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// How far ahead of its cursor it reaches.
    pub(crate) fn horizon_ns(&self) -> u64 {
        self.span << self.width_shift
    }

    /// Puts something in that becomes due at `at_ns`, or at the next end of a bucket after that.
    pub(crate) fn insert(&mut self, now_ns: u64, at_ns: u64, item: T) -> Result<(), WheelFull> {
        if self.length >= self.items_max {
            return Err(WheelFull);
        }
        if self.length == 0 {
            self.cursor = self.cursor.max(now_ns >> self.width_shift);
            self.earliest = u64::MAX;
        }
        let round_up_ns = (1 << self.width_shift) - 1;
        let bucket = (at_ns.saturating_add(round_up_ns) >> self.width_shift)
            .clamp(self.cursor, self.cursor + self.span);
        match &mut self.items {
            WheelItems::Bucketed(buckets) => buckets.push(bucket, item),
            WheelItems::Sorted(items) => {
                let place = items.partition_point(|(other, _)| *other > bucket);
                items.insert(place, (bucket, item));
            }
        }
        self.length += 1;
        self.earliest = self.earliest.min(bucket);
        Ok(())
    }

    /// The same, for what must not be refused: the wheel takes more than it was made for if it has to.
    pub(crate) fn insert_or_grow(&mut self, now_ns: u64, at_ns: u64, item: T) {
        self.items_max = self.items_max.max(self.length + 1);
        let inserted = self.insert(now_ns, at_ns, item);
        debug_assert!(inserted.is_ok(), "there is room for one more");
    }

    /// All that wait, in no order that means anything.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> Box<dyn Iterator<Item = &T> + '_> {
        match &self.items {
            WheelItems::Bucketed(buckets) => Box::new(buckets.iter()),
            WheelItems::Sorted(items) => Box::new(items.iter().map(|(_, item)| item)),
        }
    }

    /// Something that is due, the earliest first.
    #[inline(always)]
    pub(crate) fn pop_due(&mut self, now_ns: u64) -> Option<T> {
        if self.length == 0 {
            return None;
        }
        let now = now_ns >> self.width_shift;
        if now < self.earliest {
            // Nothing lies before, so the horizon can move on.
            self.cursor = self.cursor.max(now);
            return None;
        }
        self.pop_first(now)
    }

    #[inline(never)]
    fn pop_first(&mut self, now: u64) -> Option<T> {
        let Some(bucket) = self.first_occupied() else {
            self.earliest = u64::MAX;
            return None;
        };
        self.earliest = bucket;
        if bucket > now {
            self.cursor = self.cursor.max(now);
            return None;
        }
        self.cursor = bucket;
        self.length -= 1;
        match &mut self.items {
            WheelItems::Bucketed(buckets) => Some(buckets.pop(bucket)),
            WheelItems::Sorted(items) => items.pop().map(|(_, item)| item),
        }
    }

    /// When the next thing becomes due.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        (self.length > 0)
            .then(|| self.first_occupied())
            .flatten()
            .map(|bucket| bucket << self.width_shift)
    }

    /// The first bucket from the cursor on that holds something.
    fn first_occupied(&self) -> Option<u64> {
        match &self.items {
            WheelItems::Bucketed(buckets) => buckets.first_occupied(self.cursor),
            WheelItems::Sorted(items) => items.last().map(|(bucket, _)| *bucket),
        }
    }
}

/// Lists of things, one for each bucket. A bucket's place is its number's remainder.
#[derive(Debug)]
struct BucketLists<T> {
    buckets: Box<[Bucket]>,
    /// One bit for each bucket that holds something.
    occupied: Box<[u64]>,
    nodes: Vec<Node<T>>,
    free: u32,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    first: u32,
    last: u32,
}

#[derive(Debug)]
struct Node<T> {
    item: T,
    next: u32,
}

impl<T: Copy> BucketLists<T> {
    fn new(buckets: usize) -> Self {
        assert!(
            buckets.is_power_of_two() && buckets >= 64,
            "buckets fill words of a bitmap"
        );
        let empty = Bucket {
            first: NONE,
            last: NONE,
        };
        Self {
            buckets: vec![empty; buckets].into_boxed_slice(),
            occupied: vec![0; buckets / 64].into_boxed_slice(),
            nodes: Vec::new(),
            free: NONE,
        }
    }

    fn push(&mut self, bucket: u64, item: T) {
        let node = self.node(item);
        let index = self.index(bucket);
        match self.buckets[index].last {
            NONE => {
                self.buckets[index].first = node;
                self.occupied[index / 64] |= 1 << (index % 64);
            }
            last => self.nodes[last as usize].next = node,
        }
        self.buckets[index].last = node;
    }

    #[cfg(test)]
    fn iter(&self) -> impl Iterator<Item = &T> {
        let of_bucket = |bucket: &Bucket| {
            let node_at = |at: u32| self.nodes.get(at as usize);
            std::iter::successors(node_at(bucket.first), move |node| node_at(node.next))
        };
        self.buckets.iter().flat_map(of_bucket).map(|node| &node.item)
    }

    fn index(&self, bucket: u64) -> usize {
        bucket as usize & (self.buckets.len() - 1)
    }

    fn node(&mut self, item: T) -> u32 {
        let node = Node { item, next: NONE };
        if self.free != NONE {
            let at = self.free;
            self.free = self.nodes[at as usize].next;
            self.nodes[at as usize] = node;
            return at;
        }
        self.nodes.push(node);
        self.nodes.len() as u32 - 1
    }

    /// The first thing of a bucket that holds something.
    fn pop(&mut self, bucket: u64) -> T {
        let index = self.index(bucket);
        let at = self.buckets[index].first;
        let next = self.nodes[at as usize].next;
        self.buckets[index].first = next;
        if next == NONE {
            self.buckets[index].last = NONE;
            self.occupied[index / 64] &= !(1 << (index % 64));
        }
        self.nodes[at as usize].next = self.free;
        self.free = at;
        self.nodes[at as usize].item
    }

    /// The first bucket from this one on that holds something.
    fn first_occupied(&self, cursor: u64) -> Option<u64> {
        let start = self.index(cursor);
        let words = self.occupied.len();
        let first = self.occupied[start / 64] >> (start % 64);
        if first != 0 {
            return Some(cursor + u64::from(first.trailing_zeros()));
        }
        let mut ahead = 64 - (start % 64) as u64;
        for step in 1..=words {
            let word = self.occupied[(start / 64 + step) % words];
            if word != 0 {
                return Some(cursor + ahead + u64::from(word.trailing_zeros()));
            }
            ahead += 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A wheel of either kind, with 64 buckets 8 ns wide.
    fn wheels(items_max: usize) -> [Wheel<u64>; 2] {
        let bucketed = Wheel {
            items: WheelItems::Bucketed(BucketLists::new(64)),
            ..Wheel::new(8, 64, items_max)
        };
        [bucketed, Wheel::new(8, 64, items_max)]
    }

    #[test]
    fn a_wheel_for_few_things_has_no_buckets() {
        let is_sorted = |wheel: Wheel<u8>| matches!(wheel.items, WheelItems::Sorted(_));
        assert!(is_sorted(Wheel::new(8, 64, SORTED_ITEMS_MAX)));
        assert!(!is_sorted(Wheel::new(8, 64, SORTED_ITEMS_MAX + 1)));
    }

    #[test]
    fn things_come_out_when_due_in_the_order_they_went_in() {
        for mut wheel in wheels(8) {
            for (at_ns, item) in [(35, 1), (12, 2), (11, 3), (0, 4)] {
                wheel.insert(0, at_ns, item).unwrap();
            }
            let mut due = |now_ns| std::iter::from_fn(|| wheel.pop_due(now_ns)).collect::<Vec<_>>();
            assert_eq!(due(0), [4]);
            assert_eq!(due(15), []);
            assert_eq!(due(16), [2, 3]);
            assert_eq!(due(1_000), [1]);
        }
    }

    #[test]
    fn a_full_wheel_says_so_and_what_is_too_far_comes_at_the_horizon() {
        for mut wheel in wheels(1) {
            wheel.insert(0, 1_000_000, 1).unwrap();
            assert_eq!(wheel.insert(0, 5, 2), Err(WheelFull));
            assert_eq!(wheel.next_due_ns(), Some(wheel.horizon_ns()));
            assert_eq!(wheel.pop_due(wheel.horizon_ns()), Some(1));
            assert_eq!(wheel.insert(504, 5, 2), Ok(()));
            wheel.insert_or_grow(504, 5, 3);
            assert_eq!((wheel.pop_due(504), wheel.pop_due(504)), (Some(2), Some(3)));
        }
    }

    proptest! {
        #[test]
        fn both_kinds_give_the_same_in_the_same_order(
            steps in prop::collection::vec((0u64..400, prop::option::of(0u64..900)), 1..200)
        ) {
            let [mut bucketed, mut sorted] = wheels(40);
            let mut now_ns = 0;
            for (number, (pause_ns, ahead_ns)) in (0..).zip(steps) {
                now_ns += pause_ns;
                match ahead_ns {
                    Some(ahead_ns) => prop_assert_eq!(
                        bucketed.insert(now_ns, now_ns + ahead_ns, number),
                        sorted.insert(now_ns, now_ns + ahead_ns, number)
                    ),
                    None => prop_assert_eq!(bucketed.pop_due(now_ns), sorted.pop_due(now_ns)),
                }
                prop_assert_eq!(bucketed.next_due_ns(), sorted.next_due_ns());
            }
        }

        #[test]
        fn nothing_is_early_lost_or_more_than_a_bucket_late(
            steps in prop::collection::vec((0u64..400, 0u64..480), 1..200)
        ) {
            let mut wheel = Wheel::new(8, 64, 1024);
            let (mut now_ns, mut waiting) = (0, Vec::new());
            for (pause_ns, ahead_ns) in steps {
                now_ns += pause_ns;
                while let Some(at_ns) = wheel.pop_due(now_ns) {
                    prop_assert!(at_ns <= now_ns);
                    let place = waiting.iter().position(|other| *other == at_ns);
                    waiting.swap_remove(place.unwrap());
                }
                prop_assert!(waiting.iter().all(|at_ns| at_ns + 8 > now_ns));
                wheel.insert(now_ns, now_ns + ahead_ns, now_ns + ahead_ns).unwrap();
                waiting.push(now_ns + ahead_ns);
            }
        }
    }
}
