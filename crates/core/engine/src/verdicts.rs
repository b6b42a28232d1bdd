//! What policies say of calls, counted by the engine around each of them: alike for all kinds, built in or loaded.
//!
//! ```text
//! sieves of one runtime ──► Verdicts (that thread alone writes) ─┐
//! sieves of another     ──► Verdicts                            ─┴─► VerdictLedger of an attachment ──► scrape
//! ```

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Code, MetricDescription, MetricSink, MetricType, Nanos};

/// Upper bounds of the times that calls are held, in seconds. What is longer has the bound infinity.
const HELD_SECONDS: [f64; 15] = [
    0.000_01, 0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 20.0,
];
const HELD_NS: [Nanos; HELD_SECONDS.len()] = {
    let mut out = [0; HELD_SECONDS.len()];
    let mut at = 0;
    while at < out.len() {
        // Half a unit more: no bound falls to the number below it.
        out[at] = (HELD_SECONDS[at] * 1e9 + 0.5) as Nanos;
        at += 1;
    }
    out
};
const NANOS_PER_SECOND: f64 = 1e9;

/// All metrics that are counted around each policy.
pub const VERDICT_METRICS: [&MetricDescription; 2] = [&VERDICTS, &HELD];

static VERDICTS: MetricDescription = MetricDescription {
    name: "provost_policy_verdicts_total",
    help: "Calls that a policy let begin (passed), ended (denied), or kept waiting (held; each time that it did).",
    kind: MetricType::Counter,
    unit: "{call}",
};
static HELD: MetricDescription = MetricDescription {
    name: "provost_policy_held_seconds",
    help: "Time that a policy kept a call waiting, until it went on or ended.",
    kind: MetricType::Histogram,
    unit: "s",
};

/// What one policy has said of the calls on the datapaths of one runtime. That runtime's thread alone counts, without an
/// operation that would lock the memory bus.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Verdicts {
    passed: Cell,
    held: Cell,
    denied: [Cell; Code::ALL.len()],
    held_times: [Cell; HELD_NS.len() + 1],
    held_ns: Cell,
}

/// A number that one thread alone adds to, and any may read.
#[derive(Debug, Default)]
struct Cell(AtomicU64);

impl Cell {
    #[inline]
    fn add(&self, more: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(more), Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Verdicts {
    /// A call went on past its beginning.
    #[inline]
    pub(crate) fn passed(&self) {
        self.passed.add(1);
    }

    /// A step waits.
    pub(crate) fn held(&self) {
        self.held.add(1);
    }

    /// A step that waited for so long went on, or its call ended.
    pub(crate) fn waited(&self, time: Nanos) {
        self.held_times[HELD_NS.partition_point(|bound| *bound < time)].add(1);
        self.held_ns.add(time);
    }

    /// A call was ended.
    pub(crate) fn denied(&self, code: Code) {
        self.denied[code as usize].add(1);
    }
}

/// What one attachment has said, on all runtimes. What takes its place goes on with the same ledger.
#[derive(Debug, Default)]
pub struct VerdictLedger {
    /// By number of the runtime; only the control plane takes the lock.
    runtimes: Mutex<Vec<(usize, Arc<Verdicts>)>>,
}

impl VerdictLedger {
    /// Where what is said on one runtime is counted.
    #[must_use]
    pub fn of_runtime(&self, runtime: usize) -> Arc<Verdicts> {
        // Whoever panicked with the lock has left nothing half done.
        let mut runtimes = self.runtimes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = runtimes.iter().find(|(number, _)| *number == runtime) {
            return Arc::clone(known);
        }
        let fresh = Arc::new(Verdicts::default());
        runtimes.push((runtime, Arc::clone(&fresh)));
        fresh
    }

    /// Reports it.
    pub fn report(&self, sink: &mut dyn MetricSink) {
        let runtimes = self.runtimes.lock().unwrap_or_else(PoisonError::into_inner);
        let all = || runtimes.iter().map(|(_, verdicts)| &**verdicts);
        let sum = |of: &dyn Fn(&Verdicts) -> u64| all().map(of).fold(0, u64::wrapping_add);
        let (passed, held) = (sum(&|one| one.passed.get()), sum(&|one| one.held.get()));
        sink.number(&VERDICTS, &[("verdict", "passed")], passed as f64);
        sink.number(&VERDICTS, &[("verdict", "held")], held as f64);
        for code in Code::ALL {
            let denied = sum(&|one| one.denied[code as usize].get());
            if denied > 0 {
                let labels = [("verdict", "denied"), ("grpc_status", code.name())];
                sink.number(&VERDICTS, &labels, denied as f64);
            }
        }
        if held == 0 {
            // Most policies hold nothing, ever: no series of zeros for them.
            return;
        }
        let mut count = 0;
        let bounds = HELD_SECONDS.into_iter().chain([f64::INFINITY]).enumerate();
        let cumulative: Vec<(f64, u64)> = bounds
            .map(|(at, bound)| {
                count += sum(&|one| one.held_times[at].get());
                (bound, count)
            })
            .collect();
        let seconds = sum(&|one| one.held_ns.get()) as f64 / NANOS_PER_SECOND;
        sink.histogram(&HELD, &[], &cumulative, seconds, count);
    }
}
