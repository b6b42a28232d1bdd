//! Counters at rest: what shards add up to, and how that is saved.

use std::collections::BTreeMap;
use std::sync::Arc;

use provost_datapath::{FieldReader, FieldWriter};
use provost_engine::{Code, RestoreError, Side};

use crate::metrics::KIND;
use crate::metrics::buckets::{Histogram, LATENCIES, SIZE_CLASSES};
use crate::metrics::ledger::LedgerId;
use crate::metrics::shard::{OwnerShard, ShardOwner};

/// A status as a place in a table; [`Code::ALL`]'s length for those that were put together.
pub(crate) type StatusPlace = u8;
/// See [`StatusPlace`].
pub(crate) const STATUS_OTHER: StatusPlace = Code::ALL.len() as StatusPlace;

/// A method of an owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct MethodKey {
    pub(crate) owner: ShardOwner,
    pub(crate) method: Arc<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) methods: BTreeMap<MethodKey, MethodTotals>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MethodTotals {
    pub(crate) started: u64,
    pub(crate) ended: BTreeMap<StatusPlace, SeriesTotals>,
    /// How long steps were in the service, by their direction.
    pub(crate) queued: [Histogram<LATENCIES>; 2],
}

/// Of one method and status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SeriesTotals {
    pub(crate) latency: Histogram<LATENCIES>,
    pub(crate) sent: Histogram<SIZE_CLASSES>,
    pub(crate) received: Histogram<SIZE_CLASSES>,
}

impl SeriesTotals {
    fn merge(&mut self, other: &SeriesTotals) {
        self.latency.merge(&other.latency);
        self.sent.merge(&other.sent);
        self.received.merge(&other.received);
    }
}

impl Totals {
    /// How many owners there are.
    pub(crate) fn owners(&self) -> impl Iterator<Item = &ShardOwner> {
        self.methods.keys().map(|key| &key.owner)
    }

    /// Adds what a shard has counted.
    pub(crate) fn add(&mut self, shard: &OwnerShard) {
        // What ended is read before what began: there are never more ends than beginnings.
        for (method, code, series) in shard.ended() {
            let read = SeriesTotals {
                latency: series.latency.read(),
                sent: series.sent.read(),
                received: series.received.read(),
            };
            if read.latency.count() == 0 {
                continue;
            }
            let status = code.map_or(STATUS_OTHER, |code| code as StatusPlace);
            let of_method = self.methods.entry(key(shard, method)).or_default();
            of_method.ended.entry(status).or_default().merge(&read);
        }
        for (method, times) in shard.queued_times() {
            let queued = &mut self.methods.entry(key(shard, method)).or_default().queued;
            for (total, more) in queued.iter_mut().zip(times) {
                total.merge(&more.read());
            }
        }
        for (method, count) in shard.started() {
            self.methods.entry(key(shard, method)).or_default().started += count;
        }
    }
}

fn key(shard: &OwnerShard, method: Arc<str>) -> MethodKey {
    MethodKey {
        owner: shard.owner.clone(),
        method,
    }
}

// Saved form, version 1:
//   id: 2 u64
//   methods: count u32, each: app, service, method (texts), side u8 (0 client, 1 server), started u64,
//     series: count u32, each: status u8, latency, sent, received (each: buckets count u32, each u64; sum u64)
//   for each of these methods: the times in the service of requests and of responses (each as above). What was saved before
//     they were counted ends here, and who does not know them leaves them.
impl Totals {
    pub(crate) fn save(&self, id: LedgerId) -> Vec<u8> {
        let mut out = FieldWriter::new();
        id.0.into_iter().for_each(|word| out.u64(word));
        out.count(self.methods.len());
        for (key, method) in &self.methods {
            out.text(&key.owner.app);
            out.text(&key.owner.service);
            out.text(&key.method);
            out.flag(key.owner.side == Side::Server);
            out.u64(method.started);
            out.count(method.ended.len());
            for (status, series) in &method.ended {
                out.u8(*status);
                save_histogram(&series.latency, &mut out);
                save_histogram(&series.sent, &mut out);
                save_histogram(&series.received, &mut out);
            }
        }
        let queued = self.methods.values().flat_map(|method| &method.queued);
        queued.for_each(|times| save_histogram(times, &mut out));
        out.bytes
    }

    /// Reads what [`Totals::save`] wrote.
    pub(crate) fn load(bytes: &[u8]) -> Option<(LedgerId, Totals)> {
        load(&mut FieldReader::new(KIND, bytes)).ok()
    }
}

fn load(reader: &mut FieldReader<'_>) -> Result<(LedgerId, Totals), RestoreError> {
    let id = LedgerId([reader.u64()?, reader.u64()?]);
    let mut totals = Totals::default();
    let mut keys = Vec::new();
    for _ in 0..reader.u32()? {
        let (app, service, method) = (reader.text()?, reader.text()?, reader.text()?);
        let owner = ShardOwner {
            app: app.into(),
            service: service.into(),
            side: if reader.flag()? {
                Side::Server
            } else {
                Side::Client
            },
        };
        let key = MethodKey {
            owner,
            method: method.into(),
        };
        keys.push(key.clone());
        let of_method = totals.methods.entry(key).or_default();
        of_method.started = reader.u64()?;
        for _ in 0..reader.u32()? {
            let status = reader.u8()?.min(STATUS_OTHER);
            let series = SeriesTotals {
                latency: load_histogram(reader)?,
                sent: load_histogram(reader)?,
                received: load_histogram(reader)?,
            };
            of_method.ended.entry(status).or_default().merge(&series);
        }
    }
    if reader.is_at_end() {
        return Ok((id, totals));
    }
    for key in keys {
        let queued = &mut totals.methods.entry(key).or_default().queued;
        for times in queued {
            *times = load_histogram(reader)?;
        }
    }
    Ok((id, totals))
}

fn save_histogram<const BUCKETS: usize>(histogram: &Histogram<BUCKETS>, out: &mut FieldWriter) {
    out.count(BUCKETS);
    histogram.buckets.iter().for_each(|bucket| out.u64(*bucket));
    out.u64(histogram.sum);
}

/// Another version may have had other bounds: then only how many there were is known, and how much.
fn load_histogram<const BUCKETS: usize>(
    reader: &mut FieldReader<'_>,
) -> Result<Histogram<BUCKETS>, RestoreError> {
    let mut histogram = Histogram::default();
    let count = reader.u32()? as usize;
    for at in 0..count {
        let bucket = reader.u64()?;
        let to = if count == BUCKETS { at } else { BUCKETS - 1 };
        histogram.buckets[to] = histogram.buckets[to].wrapping_add(bucket);
    }
    histogram.sum = reader.u64()?;
    Ok(histogram)
}
