//! All that a policy has counted, on all datapaths and since before there was this process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
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
    services_max: AtomicUsize,
    /// What was counted before, by another process.
    before: Totals,
    open: Mutex<OpenGauges>,
}

#[derive(Default)]
struct OpenGauges {
    shards: Vec<Arc<OwnerShard>>,
    gauges: Vec<(ShardOwner, Weak<Gauge>)>,
}

/// Calls in flight on one datapath, by method. Only its runtime's thread writes it.
#[derive(Debug)]
pub(crate) struct Gauge {
    methods: Arc<[Arc<str>]>,
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
            services_max: AtomicUsize::new(1),
            before,
            open: Mutex::default(),
        }
    }

    pub(crate) fn id(&self) -> LedgerId {
        self.id
    }

    pub(crate) fn set_services_max(&self, services_max: usize) {
        self.services_max.store(services_max, Relaxed);
    }

    /// Where the calls of a datapath are counted: with those of all datapaths of the same app, service and runtime.
    pub(crate) fn shard(&self, datapath_context: &DatapathContext) -> Arc<OwnerShard> {
        let mut open = self.lock();
        let mut owner = ShardOwner::of(datapath_context);
        let mut methods = method_names(datapath_context);
        if !self.may_open(&open, &owner) {
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

    fn may_open(&self, open: &OpenGauges, owner: &ShardOwner) -> bool {
        let owners = open.shards.iter().map(|shard| &shard.owner);
        let owners: BTreeSet<_> = owners.chain(self.before.owners()).collect();
        owners.contains(owner) || owners.len() < self.services_max.load(Relaxed)
    }

    /// Where the calls in flight on a datapath are counted, for as long as its engine is there.
    pub(crate) fn gauge(&self, datapath_context: &DatapathContext) -> Arc<Gauge> {
        let gauge = Arc::new(Gauge {
            methods: method_names(datapath_context),
            in_flight: datapath_context
                .methods
                .iter()
                .map(|_| AtomicU32::new(0))
                .collect(),
        });
        let mut open = self.lock();
        open.gauges.retain(|(_, gauge)| gauge.strong_count() > 0);
        open.gauges
            .push((ShardOwner::of(datapath_context), Arc::downgrade(&gauge)));
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
        for (owner, gauge) in &self.lock().gauges {
            let Some(gauge) = gauge.upgrade() else { continue };
            for (method, count) in gauge.methods.iter().zip(gauge.read()) {
                let key = MethodKey {
                    owner: owner.clone(),
                    method: Arc::clone(method),
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
