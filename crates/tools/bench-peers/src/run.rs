//! The window that a client measures in, as the bench says.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use provost_figures::Latencies;

use crate::PeerResult;

/// What load and whoever listens to the bench share.
#[derive(Clone, Default)]
pub(crate) struct LoadRun(Arc<RunState>);

#[derive(Default)]
struct RunState {
    measuring: AtomicBool,
    stopped: AtomicBool,
    /// The window, in nanoseconds.
    window_ns: AtomicU64,
}

impl LoadRun {
    /// Says that calls are about to begin.
    pub(crate) fn ready(&self) {
        let mut output = std::io::stdout().lock();
        // A bench that is gone says nothing either, and then the load ends.
        let _ = writeln!(output, "ready").and_then(|()| output.flush());
    }

    /// Whether load shall end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.0.stopped.load(Relaxed)
    }

    /// Counts a call that ended well.
    pub(crate) fn record(&self, latencies: &mut Latencies, began: Instant) {
        if self.0.measuring.load(Relaxed) {
            latencies.record(began.elapsed());
        }
    }

    /// Does what the lines say until they end or one of them says to stop.
    fn obey(&self, lines: impl BufRead) {
        let mut began = Instant::now();
        for line in lines.lines() {
            match line.as_deref() {
                Ok("measure") => {
                    began = Instant::now();
                    self.0.measuring.store(true, Relaxed);
                }
                Ok("stop") => {
                    self.0.measuring.store(false, Relaxed);
                    self.0.window_ns.store(began.elapsed().as_nanos() as u64, Relaxed);
                    break;
                }
                _ => break,
            }
        }
        self.0.stopped.store(true, Relaxed);
    }
}

/// Makes load and prints what it came to.
pub(crate) fn report(load: impl FnOnce(&LoadRun) -> PeerResult<Latencies>) -> PeerResult<()> {
    let run = LoadRun::default();
    let told = run.clone();
    std::thread::spawn(move || told.obey(std::io::stdin().lock()));
    let latencies = load(&run)?;
    let seconds = run.0.window_ns.load(Relaxed) as f64 / 1e9;
    let report = latencies.report(seconds, 0);
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_count_in_the_window_alone() {
        let run = LoadRun::default();
        let mut latencies = Latencies::default();
        run.record(&mut latencies, Instant::now());
        assert_eq!(latencies.count(), 0, "before the window");
        run.obey(&b"measure\n"[..]);
        run.record(&mut latencies, Instant::now());
        assert_eq!(latencies.count(), 1, "in the window");
        run.obey(&b"stop\n"[..]);
        run.record(&mut latencies, Instant::now());
        assert_eq!(latencies.count(), 1, "after the window");
        assert!(run.is_stopped() && run.0.window_ns.load(Relaxed) > 0);
    }

    #[test]
    fn load_ends_with_the_bench() {
        let run = LoadRun::default();
        run.obey(&b""[..]);
        assert!(run.is_stopped());
    }
}
