//! What the policy counts. Each runtime counts for itself, so that none waits for another; a scrape adds up.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use provost_engine::{MetricDescription, MetricSink, MetricType, SharedState, Tally};

/// Version of the saved form.
const STATE_VERSION: u32 = 1;
const KINDS: usize = 5;

/// What is counted of each rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleCount {
    Allowed = 0,
    Denied = 1,
    ShadowAllowed = 2,
    ShadowDenied = 3,
    Errors = 4,
}

static DESCRIBED: [MetricDescription; KINDS] = [
    MetricDescription {
        name: "provost_access_allowed_total",
        help: "Judgements that let a call or a message of a stream pass, by the rule that decided.",
        kind: MetricType::Counter,
        unit: "{judgement}",
    },
    MetricDescription {
        name: "provost_access_denied_total",
        help: "Calls that were denied, by the rule that decided.",
        kind: MetricType::Counter,
        unit: "{call}",
    },
    MetricDescription {
        name: "provost_access_shadow_allowed_total",
        help: "Judgements in shadow mode that would have let a call or a message pass, by the rule that decided.",
        kind: MetricType::Counter,
        unit: "{judgement}",
    },
    MetricDescription {
        name: "provost_access_shadow_denied_total",
        help: "Judgements in shadow mode that would have denied a call, by the rule that decided.",
        kind: MetricType::Counter,
        unit: "{judgement}",
    },
    MetricDescription {
        name: "provost_access_errors_total",
        help: "Evaluations that had no value, such as of a missing metadata key, by rule.",
        kind: MetricType::Counter,
        unit: "{evaluation}",
    },
];

/// All metrics of this policy.
pub(crate) const METRICS: &[&MetricDescription] = &[
    &DESCRIBED[0],
    &DESCRIBED[1],
    &DESCRIBED[2],
    &DESCRIBED[3],
    &DESCRIBED[4],
];

type RuleNumbers = [u64; KINDS];

/// The counts of a policy.
pub(crate) struct RuleCounts {
    /// Of the rules, and last of the default.
    names: Vec<Arc<str>>,
    /// Counted by the policy in whose place this one came.
    before: Vec<RuleNumbers>,
    shards: Mutex<BTreeMap<usize, Arc<CountShard>>>,
}

/// The counts of one runtime, whose thread alone adds to them.
pub(crate) struct CountShard(Box<[[Tally; KINDS]]>);

impl CountShard {
    pub(crate) fn add(&self, rule: usize, count: RuleCount) {
        if let Some(of) = self.0.get(rule) {
            of[count as usize].add(1);
        }
    }
}

impl RuleCounts {
    pub(crate) fn new(names: Vec<Arc<str>>, shared: Option<&SharedState>) -> RuleCounts {
        let saved = shared.map(load).unwrap_or_default();
        let before = names
            .iter()
            .map(|name| saved.get(&**name).copied().unwrap_or_default())
            .collect();
        RuleCounts {
            names,
            before,
            shards: Mutex::default(),
        }
    }

    /// Where a runtime counts.
    pub(crate) fn shard(&self, runtime: usize) -> Arc<CountShard> {
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            Arc::new(CountShard(
                self.names.iter().map(|_| Default::default()).collect(),
            ))
        };
        Arc::clone(shards.entry(runtime).or_insert_with(new))
    }

    fn totals(&self) -> Vec<RuleNumbers> {
        let mut totals = self.before.clone();
        let shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        for shard in shards.values() {
            for (total, of) in totals.iter_mut().zip(&shard.0) {
                for (total, count) in total.iter_mut().zip(of) {
                    *total += count.get();
                }
            }
        }
        totals
    }

    pub(crate) fn report(&self, sink: &mut dyn MetricSink) {
        let totals = self.totals();
        for (kind, metric) in DESCRIBED.iter().enumerate() {
            for (name, numbers) in self.names.iter().zip(&totals) {
                sink.number(metric, &[("rule", name)], numbers[kind] as f64);
            }
        }
    }

    // Form 1, little-endian, for each rule: length of its name u16, the name, five counts u64.
    pub(crate) fn save(&self) -> SharedState {
        let mut bytes = Vec::new();
        for (name, numbers) in self.names.iter().zip(self.totals()) {
            bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
            bytes.extend_from_slice(name.as_bytes());
            for number in numbers {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
        }
        SharedState {
            version: STATE_VERSION,
            bytes,
        }
    }
}

/// What was counted before. Of a form that is not known, nothing: counts may begin anew, a policy must not fail for them.
fn load(state: &SharedState) -> BTreeMap<String, RuleNumbers> {
    let mut counts = BTreeMap::new();
    if state.version != STATE_VERSION {
        return counts;
    }
    let mut rest = state.bytes.as_slice();
    while let Some((name, numbers, after)) = load_one(rest) {
        counts.insert(name, numbers);
        rest = after;
    }
    counts
}

fn load_one(bytes: &[u8]) -> Option<(String, RuleNumbers, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (name, mut rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    let mut numbers = RuleNumbers::default();
    for number in &mut numbers {
        let (bytes, after) = rest.split_first_chunk()?;
        *number = u64::from_le_bytes(*bytes);
        rest = after;
    }
    Some((String::from_utf8(name.to_vec()).ok()?, numbers, rest))
}
