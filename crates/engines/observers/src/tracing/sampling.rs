//! Who is sampled, and random ids.

use std::hash::{BuildHasher, RandomState};

use provost_engine::TraceContext;
use provost_random::SeededRandom;

#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceSampler {
    /// Trace ids whose low 63 bits are below this, as OpenTelemetry's `TraceIdRatioBased` has it.
    below: u64,
    parent_based: bool,
}

impl TraceSampler {
    pub(crate) fn new(ratio: f64, parent_based: bool) -> TraceSampler {
        let all = (1u64 << 63) as f64;
        TraceSampler {
            below: (ratio * all) as u64,
            parent_based,
        }
    }

    /// Whether the decision of a caller counts.
    pub(crate) fn is_parent_based(&self) -> bool {
        self.parent_based
    }

    pub(crate) fn samples(&self, trace_id: u128, parent: Option<&TraceContext>) -> bool {
        match parent {
            Some(parent) if self.parent_based => parent.is_sampled,
            _ => (trace_id as u64 >> 1) < self.below,
        }
    }
}

/// Random ids, of the kind that does not matter when it is guessed.
#[derive(Debug)]
pub(crate) struct Ids(SeededRandom);

impl Ids {
    pub(crate) fn new() -> Ids {
        Ids(SeededRandom::new(RandomState::new().hash_one(0u64)))
    }

    /// Not 0.
    pub(crate) fn next(&mut self) -> u64 {
        self.0.number().max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_kept_and_a_parent_decides() {
        let mut ids = Ids::new();
        let sampler = TraceSampler::new(0.25, true);
        let of = |sampler: &TraceSampler, ids: &mut Ids| {
            (0..20_000)
                .filter(|_| sampler.samples(u128::from(ids.next()), None))
                .count()
        };
        assert!((4_500..5_500).contains(&of(&sampler, &mut ids)));
        assert_eq!(of(&TraceSampler::new(0.0, true), &mut ids), 0);
        assert_eq!(of(&TraceSampler::new(1.0, true), &mut ids), 20_000);
        let mut parent = TraceContext {
            trace_id: 1,
            span_id: 1,
            is_sampled: true,
        };
        assert!(TraceSampler::new(0.0, true).samples(1, Some(&parent)));
        assert!(!TraceSampler::new(0.0, false).samples(1, Some(&parent)));
        parent.is_sampled = false;
        assert!(!TraceSampler::new(1.0, true).samples(1, Some(&parent)));
    }
}
