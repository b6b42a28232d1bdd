//! Bounds of the histograms, and histograms that one thread counts in.

use provost_engine::Tally;

/// Upper bounds of latencies in seconds, those of gRPC (A66) from 10 microseconds on, with more below a millisecond. What
/// is longer has the bound infinity.
pub const LATENCY_SECONDS: [f64; 40] = [
    0.000_01, 0.000_02, 0.000_03, 0.000_05, 0.000_075, 0.000_1, 0.000_15, 0.000_2, 0.000_3, 0.000_6, 0.000_8,
    0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.013, 0.016, 0.02, 0.025, 0.03, 0.04, 0.05,
    0.065, 0.08, 0.1, 0.13, 0.16, 0.2, 0.25, 0.4, 0.5, 1.0, 2.0, 5.0, 20.0, 100.0,
];

/// Upper bounds of sizes in bytes: those of gRPC (A66) from 64 bytes to the largest message, and one beyond for streams.
/// What is larger has the bound infinity.
pub const SIZE_BYTES: [f64; 13] = [
    64.0,
    256.0,
    1024.0,
    2048.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
    1_073_741_824.0,
];

const fn scaled<const N: usize>(bounds: [f64; N], scale: f64) -> [u64; N] {
    let mut out = [0; N];
    let mut at = 0;
    while at < N {
        // Half a unit more: no bound falls to the number below it.
        out[at] = (bounds[at] * scale + 0.5) as u64;
        at += 1;
    }
    out
}

const LATENCY_NS: [u64; LATENCY_SECONDS.len()] = scaled(LATENCY_SECONDS, 1e9);
const SIZES: [u64; SIZE_BYTES.len()] = scaled(SIZE_BYTES, 1.0);

pub(crate) const LATENCIES: usize = LATENCY_NS.len() + 1;
pub(crate) const SIZE_CLASSES: usize = SIZES.len() + 1;

/// The bucket of a latency: the first that such a long number can be in, or one of the few behind it.
#[inline]
pub(crate) fn latency_bucket(duration_ns: u64) -> usize {
    const FIRST: [u8; BIT_LENGTHS] = firsts(&LATENCY_NS);
    let first = usize::from(FIRST[bit_length(duration_ns)]);
    let beyond = LATENCY_NS[first..]
        .iter()
        .take_while(|bound| **bound < duration_ns);
    first + beyond.count()
}

/// The bucket of a size, whose bounds are powers of two: how long the number is says it all.
#[inline]
pub(crate) fn size_bucket(bytes: u64) -> usize {
    const FIRST: [u8; BIT_LENGTHS] = firsts(&SIZES);
    // The next power of two has one bit more than the number below this one, and is in the same bucket.
    let length = bit_length(bytes.saturating_sub(1)) + 1;
    usize::from(FIRST[length.min(BIT_LENGTHS - 1)])
}

const _: () = {
    let mut at = 0;
    while at < SIZES.len() {
        assert!(SIZES[at].is_power_of_two());
        at += 1;
    }
};

/// Lengths of a number in bits, with that of zero.
const BIT_LENGTHS: usize = u64::BITS as usize + 1;

fn bit_length(number: u64) -> usize {
    (u64::BITS - number.leading_zeros()) as usize
}

/// For each length in bits, the first bucket that a number of that length can be in.
const fn firsts<const N: usize>(bounds: &[u64; N]) -> [u8; BIT_LENGTHS] {
    let mut out = [0; BIT_LENGTHS];
    let mut length = 1;
    while length < BIT_LENGTHS {
        let least = 1 << (length - 1);
        let mut bucket = 0;
        while bucket < N && bounds[bucket] < least {
            bucket += 1;
        }
        out[length] = bucket as u8;
        length += 1;
    }
    out
}

/// A histogram that one thread alone counts in.
#[derive(Debug)]
pub(crate) struct TallyHistogram<const BUCKETS: usize> {
    buckets: [Tally; BUCKETS],
    sum: Tally,
}

impl<const BUCKETS: usize> Default for TallyHistogram<BUCKETS> {
    fn default() -> Self {
        TallyHistogram {
            buckets: std::array::from_fn(|_| Tally::default()),
            sum: Tally::default(),
        }
    }
}

impl<const BUCKETS: usize> TallyHistogram<BUCKETS> {
    pub(crate) fn count(&self, bucket: usize, value: u64) {
        self.sum.add(value);
        self.buckets[bucket].add(1);
    }

    pub(crate) fn read(&self) -> Histogram<BUCKETS> {
        Histogram {
            buckets: std::array::from_fn(|at| self.buckets[at].get()),
            sum: self.sum.get(),
        }
    }
}

/// A histogram at rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Histogram<const BUCKETS: usize> {
    pub(crate) buckets: [u64; BUCKETS],
    pub(crate) sum: u64,
}

impl<const BUCKETS: usize> Default for Histogram<BUCKETS> {
    fn default() -> Self {
        Histogram {
            buckets: [0; BUCKETS],
            sum: 0,
        }
    }
}

impl<const BUCKETS: usize> Histogram<BUCKETS> {
    pub(crate) fn merge(&mut self, other: &Self) {
        for (to, from) in self.buckets.iter_mut().zip(&other.buckets) {
            *to = to.wrapping_add(*from);
        }
        self.sum = self.sum.wrapping_add(other.sum);
    }

    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// As Prometheus has it: for each bound, how many observations were at most that.
    pub(crate) fn cumulative(&self, bounds: &[f64]) -> Vec<(f64, u64)> {
        let bounds = bounds.iter().copied().chain([f64::INFINITY]);
        let mut count = 0;
        let up_to = self.buckets.iter().map(|bucket| {
            count += bucket;
            count
        });
        bounds.zip(up_to).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bounds_ascend_and_belong_to_the_bucket_below_them() {
        assert!(LATENCY_NS.is_sorted_by(|a, b| a < b) && SIZES.is_sorted_by(|a, b| a < b));
        assert_eq!(LATENCY_NS[0], 10_000);
        assert_eq!(
            (latency_bucket(0), latency_bucket(10_000), latency_bucket(10_001)),
            (0, 0, 1)
        );
        assert_eq!(latency_bucket(u64::MAX), LATENCIES - 1);
        assert_eq!(
            (size_bucket(64), size_bucket(65), size_bucket(u64::MAX)),
            (0, 1, SIZE_CLASSES - 1)
        );
    }

    #[test]
    fn buckets_are_those_that_a_search_finds() {
        let near = |bound: &u64| [bound - 1, *bound, bound + 1];
        let powers = (0..64).flat_map(|power| near(&(1 << power))).chain([0, u64::MAX]);
        for value in powers.chain(LATENCY_NS.iter().flat_map(near)) {
            let latency = LATENCY_NS.partition_point(|bound| *bound < value);
            let size = SIZES.partition_point(|bound| *bound < value);
            assert_eq!(
                (latency_bucket(value), size_bucket(value)),
                (latency, size),
                "{value}"
            );
        }
    }

    fn of(values: &[u64]) -> Histogram<LATENCIES> {
        let cells = TallyHistogram::<LATENCIES>::default();
        for value in values {
            cells.count(latency_bucket(*value), *value);
        }
        cells.read()
    }

    proptest! {
        #[test]
        fn merging_parts_is_counting_all(
            values in proptest::collection::vec(0u64..200_000_000_000, 0..200),
            split in any::<proptest::sample::Index>(),
        ) {
            let (left, right) = values.split_at(split.index(values.len() + 1));
            let mut one_way = of(left);
            one_way.merge(&of(right));
            let mut other_way = of(right);
            other_way.merge(&of(left));
            prop_assert_eq!(&one_way, &of(&values));
            prop_assert_eq!(&one_way, &other_way);
            prop_assert_eq!(one_way.count(), values.len() as u64);
            let cumulative = one_way.cumulative(&LATENCY_SECONDS);
            prop_assert!(cumulative.is_sorted_by_key(|(_, count)| *count));
            prop_assert_eq!(cumulative.last().map(|(_, count)| *count), Some(values.len() as u64));
            for (bound, count) in &cumulative {
                let exact = values.iter().filter(|value| **value as f64 <= bound * 1e9 + 0.5).count();
                prop_assert_eq!(*count, exact as u64);
            }
        }
    }
}
