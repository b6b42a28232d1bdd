//! The buckets, saved: what another version of the policy, or one with another configuration, continues from.
//!
//! Version 1, little-endian: seed 16 bytes, fingerprint of `per` u64, interval u64, time of saving u64, number of
//! buckets u32, each: key u64, time u64. Times are in sixteenths of a nanosecond on the host's monotonic clock.

use provost_datapath::{FieldReader, FieldWriter, RestoreError};
use provost_engine::SharedState;

use crate::rate_limit::KIND;
use crate::rate_limit::bucket::Ticks;
use crate::rate_limit::config::BUCKETS_MAX;
use crate::rate_limit::key::KeySeed;

const VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SavedBuckets {
    pub(crate) seed: KeySeed,
    /// Which parts the keys are made of.
    pub(crate) per: u64,
    pub(crate) interval: Ticks,
    pub(crate) now: Ticks,
    pub(crate) buckets: Vec<(u64, Ticks)>,
}

impl SavedBuckets {
    pub(crate) fn write(&self) -> SharedState {
        let mut out = FieldWriter::new();
        out.bytes.extend_from_slice(&self.seed.0);
        out.u64(self.per);
        out.u64(self.interval);
        out.u64(self.now);
        out.count(self.buckets.len());
        for (key, time) in &self.buckets {
            out.u64(*key);
            out.u64(*time);
        }
        SharedState {
            version: VERSION,
            bytes: out.bytes,
        }
    }

    /// Reads what any version up to this one has written; `None` for what makes no sense.
    pub(crate) fn read(state: &SharedState) -> Option<SavedBuckets> {
        match state.version {
            VERSION => SavedBuckets::fields(&state.bytes).ok(),
            _ => None,
        }
    }

    fn fields(bytes: &[u8]) -> Result<SavedBuckets, RestoreError> {
        let mut fields = FieldReader::new(KIND, bytes);
        let seed = KeySeed(fields.array()?);
        let (per, interval, now) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let count = fields.count(BUCKETS_MAX as usize)?;
        let buckets = (0..count).map(|_| Ok((fields.u64()?.max(1), fields.u64()?)));
        let saved = SavedBuckets {
            seed,
            per,
            interval,
            now,
            buckets: buckets.collect::<Result<_, RestoreError>>()?,
        };
        fields.end()?;
        Ok(saved)
    }
}
