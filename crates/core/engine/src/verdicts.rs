//! What policies say of calls, counted by the engine around each of them: alike for all kinds, built in or loaded.
//!
//! ```text
//! filter engines of one runtime ──► Verdicts (that thread alone writes) ─┐
//! filter engines of another     ──► Verdicts                            ─┴─► VerdictLedger of an attachment ──► scrape
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use provost_datapath::{FieldReader, FieldWriter, RestoreError};

use crate::{Code, MetricDescription, MetricSink, MetricType, Nanos, Tally};

/// Stands for a runtime of a process before this one, among [`VerdictLedger::runtimes`].
const EARLIER: usize = usize::MAX;

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
/// Methods whose waits are told apart on one runtime, at most. Those of others count for the policy as a whole alone.
const METHODS_MAX: usize = 1024;
const NANOS_PER_SECOND: f64 = 1e9;
/// Numbers of one group that any version saves, at most.
const GROUP_MAX: usize = 256;

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
    passed: Tally,
    held: Tally,
    denied: [Tally; Code::ALL.len()],
    held_times: [Tally; HELD_NS.len() + 1],
    held_ns: Tally,
    /// Waits that are over, by path of the method. The runtime's thread takes the lock once a call has waited, which has taken
    /// far longer; the control plane takes it to copy the table.
    by_method: Mutex<HashMap<Arc<str>, HeldTime>>,
}

impl Verdicts {
    /// Where what is counted goes nowhere: of datapath contexts that no policy judges by.
    #[must_use]
    pub fn of_nobody() -> Arc<Verdicts> {
        static OF_NOBODY: LazyLock<Arc<Verdicts>> = LazyLock::new(Arc::default);
        Arc::clone(&OF_NOBODY)
    }

    /// All numbers, in the order in which they are saved.
    fn groups(&self) -> [&[Tally]; 5] {
        let single = std::slice::from_ref;
        [
            single(&self.passed),
            single(&self.held),
            &self.denied,
            &self.held_times,
            single(&self.held_ns),
        ]
    }

    fn cells(&self) -> impl Iterator<Item = &Tally> {
        self.groups().into_iter().flatten()
    }

    /// A call went on past its beginning.
    #[inline]
    pub(crate) fn passed(&self) {
        self.passed.add(1);
    }

    pub(crate) fn held(&self) {
        self.held.add(1);
    }

    /// A step of a call of this method that waited for so long went on, or its call ended.
    pub(crate) fn waited(&self, method: Option<&Arc<str>>, time: Nanos) {
        self.held_times[HELD_NS.partition_point(|bound| *bound < time)].add(1);
        self.held_ns.add(time);
        let Some(method) = method else { return };
        // Whoever panicked with the lock has left nothing half done.
        let mut by_method = self.by_method.lock().unwrap_or_else(PoisonError::into_inner);
        if by_method.len() >= METHODS_MAX && !by_method.contains_key(method) {
            return;
        }
        let so_far = by_method.entry(Arc::clone(method)).or_default();
        *so_far = so_far.and(HeldTime {
            waits: 1,
            held_ns: time,
        });
    }

    /// A call was ended.
    pub(crate) fn denied(&self, code: Code) {
        self.denied[code as usize].add(1);
    }
}

/// How often a policy kept calls waiting until they went on or ended, and for how long in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldTime {
    /// Waits that are over.
    pub waits: u64,
    /// What they took together.
    pub held_ns: Nanos,
}

impl HeldTime {
    /// What came after an earlier look.
    #[must_use]
    pub fn since(self, earlier: HeldTime) -> HeldTime {
        HeldTime {
            waits: self.waits.saturating_sub(earlier.waits),
            held_ns: self.held_ns.saturating_sub(earlier.held_ns),
        }
    }

    fn and(self, more: HeldTime) -> HeldTime {
        HeldTime {
            waits: self.waits + more.waits,
            held_ns: self.held_ns + more.held_ns,
        }
    }
}

impl std::iter::Sum for HeldTime {
    fn sum<I: Iterator<Item = HeldTime>>(times: I) -> HeldTime {
        times.fold(HeldTime::default(), HeldTime::and)
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

    /// What was said so far, on all runtimes and before.
    fn sum(&self) -> Verdicts {
        let runtimes = self.runtimes.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = Verdicts::default();
        for (_, one) in runtimes.iter() {
            sum.cells()
                .zip(one.cells())
                .for_each(|(sum, more)| sum.add(more.get()));
        }
        sum
    }

    /// Calls of which something was said: those that went on, and those that were ended, a call that went on first as another one.
    /// While there are none of either, those that wait.
    #[must_use]
    pub fn calls_judged(&self) -> u64 {
        let sum = self.sum();
        let denied: u64 = sum.denied.iter().map(Tally::get).sum();
        match sum.passed.get() + denied {
            0 => sum.held.get(),
            judged => judged,
        }
    }

    /// How long it kept calls waiting.
    #[must_use]
    pub fn held_time(&self) -> HeldTime {
        let sum = self.sum();
        HeldTime {
            waits: sum.held_times.iter().map(Tally::get).sum(),
            held_ns: sum.held_ns.get(),
        }
    }

    /// The same by path of the method, since this process counts.
    #[must_use]
    pub fn held_by_method(&self) -> BTreeMap<Arc<str>, HeldTime> {
        let runtimes = self.runtimes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sums: BTreeMap<Arc<str>, HeldTime> = BTreeMap::new();
        for (_, one) in runtimes.iter() {
            let by_method = one.by_method.lock().unwrap_or_else(PoisonError::into_inner);
            for (method, held) in by_method.iter() {
                let sum = sums.entry(Arc::clone(method)).or_default();
                *sum = sum.and(*held);
            }
        }
        sums
    }

    /// Reports it.
    pub fn report(&self, sink: &mut dyn MetricSink) {
        let sum = self.sum();
        let held = sum.held.get();
        sink.number(&VERDICTS, &[("verdict", "passed")], sum.passed.get() as f64);
        sink.number(&VERDICTS, &[("verdict", "held")], held as f64);
        for code in Code::ALL {
            let denied = sum.denied[code as usize].get();
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
        let bounds = HELD_SECONDS.into_iter().chain([f64::INFINITY]);
        let cumulative: Vec<(f64, u64)> = bounds
            .zip(&sum.held_times)
            .map(|(bound, times)| {
                count += times.get();
                (bound, count)
            })
            .collect();
        let seconds = sum.held_ns.get() as f64 / NANOS_PER_SECOND;
        sink.histogram(&HELD, &[], &cumulative, seconds, count);
    }

    /// Appends what was said so far, for another process to go on from.
    pub fn save(&self, out: &mut FieldWriter) {
        let sum = self.sum();
        for cells in sum.groups() {
            out.count(cells.len());
            cells.iter().for_each(|cell| out.u64(cell.get()));
        }
    }

    /// Goes on from what another process has said, beside what was said here.
    pub fn go_on_from(&self, saved: &mut FieldReader<'_>) -> Result<(), RestoreError> {
        let earlier = Verdicts::default();
        for cells in earlier.groups() {
            let count = saved.count(GROUP_MAX)?;
            for at in 0..count {
                // What this version has no place for, such as a longer time, is with the last that it has.
                cells[at.min(cells.len() - 1)].add(saved.u64()?);
            }
        }
        let mut runtimes = self.runtimes.lock().unwrap_or_else(PoisonError::into_inner);
        runtimes.retain(|(number, _)| *number != EARLIER);
        runtimes.push((EARLIER, Arc::new(earlier)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Lines(Vec<String>);

    impl MetricSink for Lines {
        fn number(&mut self, metric: &'static MetricDescription, labels: &[(&str, &str)], value: f64) {
            self.0.push(format!("{} {labels:?} {value}", metric.name));
        }

        fn histogram(
            &mut self,
            metric: &'static MetricDescription,
            _labels: &[(&str, &str)],
            cumulative: &[(f64, u64)],
            sum: f64,
            count: u64,
        ) {
            self.0
                .push(format!("{} {cumulative:?} {sum} {count}", metric.name));
        }
    }

    fn reported(ledger: &VerdictLedger) -> Vec<String> {
        let mut lines = Lines::default();
        ledger.report(&mut lines);
        lines.0
    }

    #[test]
    fn calls_are_judged_that_went_on_ended_or_wait() {
        let ledger = VerdictLedger::default();
        assert_eq!(ledger.calls_judged(), 0);
        ledger.of_runtime(0).held();
        assert_eq!(ledger.calls_judged(), 1);
        ledger.of_runtime(0).passed();
        ledger.of_runtime(1).denied(Code::NotFound);
        assert_eq!(ledger.calls_judged(), 2);
    }

    #[test]
    fn waits_count_once_they_are_over_on_all_runtimes() {
        let ledger = VerdictLedger::default();
        ledger.of_runtime(0).held();
        assert_eq!(ledger.held_time(), HeldTime::default());
        ledger.of_runtime(0).waited(None, 3_000);
        let earlier = ledger.held_time();
        ledger.of_runtime(1).waited(None, 40_000_000_000);
        let since = ledger.held_time().since(earlier);
        assert_eq!((since.waits, since.held_ns), (1, 40_000_000_000));
    }

    #[test]
    fn waits_of_methods_are_told_apart_up_to_a_bound() {
        let ledger = VerdictLedger::default();
        let paths: Vec<Arc<str>> = (0..=METHODS_MAX)
            .map(|at| format!("/kv.Kv/{at}").into())
            .collect();
        for path in &paths {
            ledger.of_runtime(0).waited(Some(path), 1_000);
        }
        ledger.of_runtime(0).waited(Some(&paths[0]), 2_000);
        ledger.of_runtime(1).waited(Some(&paths[0]), 4_000);
        let by_method = ledger.held_by_method();
        assert_eq!(by_method.len(), METHODS_MAX);
        assert_eq!(
            by_method[&paths[0]],
            HeldTime {
                waits: 3,
                held_ns: 7_000
            }
        );
        assert!(!by_method.contains_key(&paths[METHODS_MAX]));
        assert_eq!(ledger.held_time().waits, METHODS_MAX as u64 + 3);
    }

    #[test]
    fn another_process_goes_on_from_what_was_said() {
        let before = VerdictLedger::default();
        for runtime in 0..2 {
            let verdicts = before.of_runtime(runtime);
            verdicts.passed();
            verdicts.held();
            verdicts.waited(None, 3_000_000);
            verdicts.denied(Code::PermissionDenied);
        }
        let mut saved = FieldWriter::new();
        before.save(&mut saved);
        let after = VerdictLedger::default();
        let mut fields = FieldReader::new("verdicts", &saved.bytes);
        after.go_on_from(&mut fields).unwrap();
        fields.end().unwrap();
        assert_eq!(reported(&after), reported(&before));
        for ledger in [&before, &after] {
            ledger.of_runtime(0).denied(Code::Unavailable);
        }
        assert_eq!(reported(&after), reported(&before));
        let cut = &saved.bytes[..saved.bytes.len() - 1];
        assert!(after.go_on_from(&mut FieldReader::new("verdicts", cut)).is_err());
        assert_eq!(reported(&after), reported(&before));
    }
}
