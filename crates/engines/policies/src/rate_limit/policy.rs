//! The policy once it is attached: the buckets that all datapaths share, and what was counted.

use std::sync::Arc;

use provost_engine::{
    AttachError, ConfigError, Counter, DatapathContext, Environment, FilterPolicy, MetricDescription,
    MetricSink, MetricType, Nanos, SameNodeCalls, SharedState, TimeHistogram,
};

use crate::rate_limit::KIND;
use crate::rate_limit::atomic::{AtomicU64, Ordering};
use crate::rate_limit::bucket::{BucketShape, ChargeAnswer, Ticks, ticks};
use crate::rate_limit::config::{EXAMPLE, LimitRules, RateLimitConfig, RuleDisclosure};
use crate::rate_limit::filter::LimitFilter;
use crate::rate_limit::key::{KeyPlan, KeySeed, fingerprint};
use crate::rate_limit::saved::SavedBuckets;
use crate::rate_limit::table::BucketTable;

/// Runtimes that note the time apart; those beyond share.
const CLOCKS: usize = 16;

static OK: MetricDescription = MetricDescription {
    name: "provost_rate_limit_ok_total",
    help: "Calls that began without waiting.",
    kind: MetricType::Counter,
    unit: "{call}",
};
static RATE_LIMITED: MetricDescription = MetricDescription {
    name: "provost_rate_limit_rate_limited_total",
    help: "Calls over the limit, by what happened to them.",
    kind: MetricType::Counter,
    unit: "{call}",
};
static QUEUED: MetricDescription = MetricDescription {
    name: "provost_rate_limit_queued",
    help: "Calls that wait for their turn.",
    kind: MetricType::Gauge,
    unit: "{call}",
};
static QUEUE_WAIT: MetricDescription = MetricDescription {
    name: "provost_rate_limit_queue_wait_seconds",
    help: "How long calls waited that were queued and had their turn.",
    kind: MetricType::Histogram,
    unit: "s",
};
static BUCKETS: MetricDescription = MetricDescription {
    name: "provost_rate_limit_buckets",
    help: "Buckets that are not full.",
    kind: MetricType::Gauge,
    unit: "{bucket}",
};
static EVICTIONS: MetricDescription = MetricDescription {
    name: "provost_rate_limit_evictions_total",
    help: "Keys that took over the bucket of another one as the table had no other: raise buckets_max.",
    kind: MetricType::Counter,
    unit: "{bucket}",
};

/// Upper bounds of the histogram of waits: 1 µs to 100 s.
const WAIT_BOUNDS_NS: &[Nanos] = &[
    1_000,
    10_000,
    100_000,
    1_000_000,
    5_000_000,
    10_000_000,
    50_000_000,
    100_000_000,
    500_000_000,
    1_000_000_000,
    5_000_000_000,
    10_000_000_000,
    100_000_000_000,
];

/// What the engines of a rate limit share.
pub(crate) struct RateLimit {
    rules: LimitRules,
    seed: KeySeed,
    shared: Option<Arc<LimitShared>>,
}

/// Buckets and counts of a limit that is not unlimited.
pub(crate) struct LimitShared {
    /// What a client is told of its call: which limit it is over, and where that stands.
    pub(crate) rejection: RejectionText,
    pub(crate) limit: BucketShape,
    pub(crate) wait_max: Option<Ticks>,
    buckets: Buckets,
    /// When each runtime last looked at its clock here.
    clocks: [SavedClock; CLOCKS],
    pub(crate) ok: Counter,
    pub(crate) rejected: Counter,
    pub(crate) queued: Counter,
    /// Calls that wait now.
    pub(crate) waiting: AtomicU64,
    pub(crate) waits: TimeHistogram,
}

enum Buckets {
    One(AtomicU64),
    Keyed(BucketTable),
}

/// What a client is told of a call over the limit, but for the time after which it may try again.
pub(crate) enum RejectionText {
    Named {
        policy: Arc<str>,
        /// What calls have in common that share a bucket, and the configuration in which the policy stands, as far as there are such.
        details: String,
    },
    /// The operator lets nobody know which limit it is.
    Hidden,
}

impl RejectionText {
    fn new(rules: &LimitRules, environment: &Environment) -> RejectionText {
        if rules.disclosure == RuleDisclosure::Hidden {
            return RejectionText::Hidden;
        }
        let per: Vec<String> = rules.per.iter().map(ToString::to_string).collect();
        let per = if per.is_empty() {
            String::new()
        } else {
            format!(" (per {})", per.join(", "))
        };
        RejectionText::Named {
            policy: Arc::clone(&environment.policy),
            details: environment.with_place(per),
        }
    }

    pub(crate) fn with_wait(&self, milliseconds: u64) -> String {
        match self {
            RejectionText::Named { policy, details } => {
                format!("rate limit {policy}: try again in {milliseconds} ms{details}")
            }
            RejectionText::Hidden => format!("over the rate limit: try again in {milliseconds} ms"),
        }
    }
}

#[derive(Default)]
#[repr(align(64))]
struct SavedClock(AtomicU64);

impl LimitShared {
    fn new(rules: &LimitRules, limit: BucketShape, rejection: RejectionText) -> LimitShared {
        LimitShared {
            rejection,
            limit,
            wait_max: rules.wait_max,
            buckets: if rules.per.is_empty() {
                Buckets::One(AtomicU64::new(0))
            } else {
                Buckets::Keyed(BucketTable::new(rules.buckets))
            },
            clocks: Default::default(),
            ok: Counter::new(),
            rejected: Counter::new(),
            queued: Counter::new(),
            waiting: AtomicU64::new(0),
            waits: TimeHistogram::new(WAIT_BOUNDS_NS),
        }
    }

    /// Takes a token of a key's bucket, in advance if it is there before `latest`.
    pub(crate) fn charge(&self, key: u64, now: Ticks, latest: Ticks) -> ChargeAnswer {
        let bucket = match &self.buckets {
            Buckets::One(bucket) => bucket,
            Buckets::Keyed(table) => table.bucket(key, now),
        };
        self.limit.charge(bucket, now, latest)
    }

    /// Gives a token back that was taken in advance.
    pub(crate) fn refund(&self, key: u64) {
        let bucket = match &self.buckets {
            Buckets::One(bucket) => Some(bucket),
            // If another key has it now, that one has what was missing, and goes on with it.
            Buckets::Keyed(table) => table.find(key),
        };
        if let Some(bucket) = bucket {
            self.limit.refund(bucket);
        }
    }

    /// Notes the time, as only engines are told of it.
    pub(crate) fn note_time(&self, datapath_context: &DatapathContext, now: Ticks) {
        self.clocks[datapath_context.runtime % CLOCKS]
            .0
            .store(now, Ordering::Relaxed);
    }

    fn last_time(&self) -> Ticks {
        let times = self.clocks.iter().map(|clock| clock.0.load(Ordering::Relaxed));
        times.max().unwrap_or(0)
    }

    fn used(&self, now: Ticks) -> Vec<(u64, Ticks)> {
        match &self.buckets {
            Buckets::One(bucket) => vec![(1, bucket.load(Ordering::Relaxed))],
            Buckets::Keyed(table) => table.used(now).collect(),
        }
    }

    fn save(&self, seed: KeySeed, per: u64) -> SavedBuckets {
        let now = self.last_time();
        SavedBuckets {
            seed,
            per,
            interval: self.limit.interval,
            now,
            // Calls that wait are charged anew by whoever lets them begin.
            buckets: self
                .used(now)
                .into_iter()
                .map(|(key, time)| (key, time.min(now.saturating_add(self.limit.capacity))))
                .collect(),
        }
    }

    fn restore(&self, saved: &SavedBuckets) {
        self.clocks[0].0.store(saved.now, Ordering::Relaxed);
        for (key, time) in &saved.buckets {
            let time = self.limit.adapt(saved.interval, *time, saved.now);
            let bucket = match &self.buckets {
                Buckets::One(bucket) => bucket,
                Buckets::Keyed(table) => table.bucket(*key, saved.now),
            };
            // If several share a bucket of a smaller table, the emptiest counts.
            bucket.fetch_max(time, Ordering::Relaxed);
        }
    }
}

impl FilterPolicy for RateLimit {
    const KIND: &'static str = KIND;
    const VERSION: u32 = 2;
    const SAME_NODE_CALLS: SameNodeCalls = SameNodeCalls::Once;
    const SUMMARY: &'static str =
        "lets so many calls a second begin, for each app, method, peer or value of a field";
    const EXAMPLE: &'static str = EXAMPLE;
    const METRICS: &'static [&'static MetricDescription] =
        &[&OK, &RATE_LIMITED, &QUEUED, &QUEUE_WAIT, &BUCKETS, &EVICTIONS];
    type Config = RateLimitConfig;
    type Filter = LimitFilter;

    fn configure(
        config: RateLimitConfig,
        environment: &Environment,
        shared: Option<&SharedState>,
    ) -> Result<RateLimit, ConfigError> {
        let rules = config.check()?;
        // A state of a form that this version does not know is left out: every bucket begins full.
        let saved = shared.and_then(SavedBuckets::read);
        let seed = saved.as_ref().map_or_else(KeySeed::random, |saved| saved.seed);
        let shared = rules.limit.map(|limit| {
            let shared = LimitShared::new(&rules, limit, RejectionText::new(&rules, environment));
            if let Some(saved) = saved
                && saved.per == fingerprint(&rules.per, seed)
            {
                shared.restore(&saved);
            }
            Arc::new(shared)
        });
        Ok(RateLimit { rules, seed, shared })
    }

    fn filter(&self, datapath_context: &DatapathContext) -> Result<LimitFilter, AttachError> {
        let Some(shared) = &self.shared else {
            return Ok(LimitFilter::unlimited());
        };
        let keys = KeyPlan::new(&self.rules.per, self.seed, datapath_context)?;
        Ok(LimitFilter::new(Arc::clone(shared), keys))
    }

    fn save(&self) -> SharedState {
        let per = fingerprint(&self.rules.per, self.seed);
        match &self.shared {
            Some(shared) => shared.save(self.seed, per).write(),
            None => SharedState::default(),
        }
    }

    fn metrics(&self, sink: &mut dyn MetricSink) {
        let Some(shared) = &self.shared else { return };
        shared.ok.report(&OK, &[], sink);
        shared
            .rejected
            .report(&RATE_LIMITED, &[("action", "reject")], sink);
        shared.queued.report(&RATE_LIMITED, &[("action", "queue")], sink);
        let waiting = shared.waiting.load(Ordering::Relaxed);
        sink.number(&QUEUED, &[], waiting as f64);
        shared.waits.report(&QUEUE_WAIT, &[], sink);
        let now = shared.last_time();
        let used = shared.used(now).iter().filter(|(_, time)| *time > now).count();
        sink.number(&BUCKETS, &[], used as f64);
        if let Buckets::Keyed(table) = &shared.buckets {
            sink.number(&EVICTIONS, &[], table.evictions() as f64);
        }
    }
}

/// When a deadline lets a call begin at the latest.
pub(crate) fn latest(wait_max: Ticks, now: Ticks, deadline: Nanos) -> Ticks {
    let latest = now.saturating_add(wait_max);
    match deadline {
        0 => latest,
        _ => latest.min(ticks(deadline).saturating_sub(1)).max(now),
    }
}
