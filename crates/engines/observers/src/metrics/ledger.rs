//! All that a policy has counted, on all datapaths and since before there was this process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use provost_engine::DatapathContext;

use crate::metrics::shard::{OwnerShard, ShardOwner};
use crate::metrics::totals::{MethodKey, Totals};

/// Names a ledger among those of a process, and tells it from those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LedgerId(pub(crate) [u64; 2]);

/// See the module. Only the control plane takes its lock.
pub(crate) struct MetricsLedger {
    id: LedgerId,
    /// What was counted before, by another process.
    before: Totals,
    open: Mutex<OpenGauges>,
}

#[derive(Default)]
struct OpenGauges {
    shards: Vec<Arc<OwnerShard>>,
    gauges: Vec<Weak<Gauge>>,
}

/// Calls in flight on one datapath, by method. Only its runtime's thread writes it.
#[derive(Debug)]
pub(crate) struct Gauge {
    /// Where the datapath's calls are counted, which says under which names.
    shard: Arc<OwnerShard>,
    in_flight: Box<[AtomicU32]>,
}

impl Gauge {
    pub(crate) fn began(&self, method: u16) {
        if let Some(count) = self.in_flight.get(usize::from(method)) {
            count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
        }
    }

    pub(crate) fn ended(&self, method: u16) {
        if let Some(count) = self.in_flight.get(usize::from(method)) {
            count.store(count.load(Relaxed).saturating_sub(1), Relaxed);
        }
    }

    pub(crate) fn read(&self) -> impl Iterator<Item = u32> {
        self.in_flight.iter().map(|count| count.load(Relaxed))
    }

    pub(crate) fn set(&self, method: usize, count: u32) {
        if let Some(to) = self.in_flight.get(method) {
            to.store(count, Relaxed);
        }
    }
}

impl MetricsLedger {
    pub(crate) fn new(id: LedgerId, before: Totals) -> MetricsLedger {
        MetricsLedger {
            id,
            before,
            open: Mutex::default(),
        }
    }

    pub(crate) fn id(&self) -> LedgerId {
        self.id
    }

    /// Where the calls of a datapath are counted: with those of all datapaths of the same app, service, methods and runtime.
    pub(crate) fn shard(&self, datapath_context: &DatapathContext, services_max: usize) -> Arc<OwnerShard> {
        let mut open = self.lock();
        let mut owner = ShardOwner::of(datapath_context);
        let mut methods = method_names(datapath_context);
        if !self.may_open(&open, (&owner, &*methods), services_max) {
            owner = ShardOwner::other(datapath_context.side);
            methods = Arc::default();
        }
        let is_it = |shard: &&Arc<OwnerShard>| {
            shard.owner == owner && shard.runtime == datapath_context.runtime && shard.methods == methods
        };
        if let Some(shard) = open.shards.iter().find(is_it) {
            return Arc::clone(shard);
        }
        let shard = Arc::new(OwnerShard::new(owner, datapath_context.runtime, methods));
        open.shards.push(Arc::clone(&shard));
        shard
    }

    /// Whether an owner may have series of its own for these methods. It counts once for each list of methods with which it was here, as
    /// an app may say of a service what it likes; and once if only another process has counted for it.
    fn may_open(&self, open: &OpenGauges, whose: (&ShardOwner, &[Arc<str>]), services_max: usize) -> bool {
        let shards = open.shards.iter();
        let here: BTreeSet<_> = shards.map(|shard| (&shard.owner, &*shard.methods)).collect();
        let owners_here: BTreeSet<_> = here.iter().map(|(owner, _)| *owner).collect();
        let before = self.before.owners().filter(|owner| !owners_here.contains(owner));
        let before: BTreeSet<_> = before.collect();
        here.contains(&whose) || before.contains(whose.0) || here.len() + before.len() < services_max
    }

    /// Where the calls in flight on a datapath of so many methods are counted, for as long as its engine is there.
    pub(crate) fn gauge(&self, shard: &Arc<OwnerShard>, methods: usize) -> Arc<Gauge> {
        let gauge = Arc::new(Gauge {
            shard: Arc::clone(shard),
            in_flight: (0..methods).map(|_| AtomicU32::new(0)).collect(),
        });
        let mut open = self.lock();
        open.gauges.retain(|gauge| gauge.strong_count() > 0);
        open.gauges.push(Arc::downgrade(&gauge));
        gauge
    }

    /// What was counted so far.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = self.before.clone();
        for shard in &self.lock().shards {
            totals.add(shard);
        }
        totals
    }

    /// Calls in flight now.
    pub(crate) fn in_flight(&self) -> BTreeMap<MethodKey, u64> {
        let mut in_flight = BTreeMap::new();
        for gauge in self.lock().gauges.iter().filter_map(Weak::upgrade) {
            for (method, count) in gauge.read().enumerate() {
                let key = MethodKey {
                    owner: gauge.shard.owner.clone(),
                    method: gauge.shard.method_name(method),
                };
                *in_flight.entry(key).or_default() += u64::from(count);
            }
        }
        in_flight
    }

    fn lock(&self) -> MutexGuard<'_, OpenGauges> {
        // Whoever panicked with the lock has left nothing half done.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn method_names(datapath_context: &DatapathContext) -> Arc<[Arc<str>]> {
    datapath_context
        .methods
        .iter()
        .map(|method| Arc::clone(&method.name))
        .collect()
}
