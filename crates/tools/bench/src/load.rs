//! The client's side of a measurement: load threads, and a window in the middle of their load.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

pub(crate) use provost_figures::Latencies;

use crate::failure::Failure;
use crate::machine;
use crate::report::{Load, Report, Watched};

/// How long load threads may take to connect.
const READY_TIME_MAX: Duration = Duration::from_secs(10);

/// What load threads and the measuring thread share.
#[derive(Default)]
pub(crate) struct Run {
    ready: AtomicUsize,
    measuring: AtomicBool,
    stop: AtomicBool,
    errors: AtomicU64,
}

impl Run {
    /// Says that this thread's connection is open and its load begins.
    pub(crate) fn ready(&self) {
        self.ready.fetch_add(1, Relaxed);
    }

    /// Whether load shall end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Counts a call that ended well.
    pub(crate) fn record(&self, latencies: &mut Latencies, began: Instant) {
        if self.measuring.load(Relaxed) {
            latencies.record(began.elapsed());
        }
    }

    /// Counts calls that began and ended together, and ended well.
    pub(crate) fn record_batch(&self, latencies: &mut Latencies, took_ns: u64, calls: u64) {
        if self.measuring.load(Relaxed) {
            latencies.record_ns(took_ns, calls);
        }
    }

    /// Counts a call that failed, and says so for the first few.
    pub(crate) fn error(&self, why: &dyn std::fmt::Display) {
        const SHOWN: u64 = 3;
        if self.errors.fetch_add(1, Relaxed) < SHOWN {
            eprintln!("call failed: {why}");
        }
    }
}

/// Runs `connections` threads of load and measures them.
pub(crate) fn measure(
    load: &Load,
    thread: impl Fn(&Arc<Run>) -> Result<Latencies, Failure> + Sync,
) -> Result<Report, Failure> {
    let run = Arc::new(Run::default());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..load.connections)
            .map(|_| scope.spawn(|| thread(&run)))
            .collect();
        let window = Window::measure(&run, load, || threads.iter().any(|thread| thread.is_finished()));
        run.stop.store(true, Relaxed);
        let mut all = Latencies::default();
        for thread in threads {
            let latencies = thread
                .join()
                .map_err(|_| Failure::role("client", "a load thread panicked"))??;
            all.add(&latencies);
        }
        Ok(window?.report(load, &all, run.errors.load(Relaxed)))
    })
}

/// Measures processes while another program makes load, behind its warm-up. It is told whether that is now.
pub(crate) fn watch(load: &Load, client: u32, tell: impl FnMut(bool)) -> Window {
    std::thread::sleep(Duration::from_secs_f64(load.warmup_seconds));
    Window::over(load, client, tell)
}

/// What processes have taken in the time of a measurement.
pub(crate) struct Window {
    seconds: f64,
    cpu_seconds: BTreeMap<String, f64>,
    busy_seconds: f64,
}

impl Window {
    fn measure(run: &Run, load: &Load, ended_early: impl Fn() -> bool) -> Result<Window, Failure> {
        let began = Instant::now();
        while run.ready.load(Relaxed) < load.connections {
            if ended_early() || began.elapsed() > READY_TIME_MAX {
                return Err(Failure::role("client", "load threads did not connect"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_secs_f64(load.warmup_seconds));
        let tell = |is_measuring| run.measuring.store(is_measuring, Relaxed);
        Ok(Window::over(load, std::process::id(), tell))
    }

    fn over(load: &Load, client: u32, mut tell: impl FnMut(bool)) -> Window {
        let client = Watched {
            name: "client".into(),
            pid: client,
        };
        let watched: Vec<&Watched> = std::iter::once(&client).chain(&load.watched).collect();
        let snapshot = || -> Vec<f64> {
            watched
                .iter()
                .map(|process| machine::cpu_seconds(process.pid))
                .collect()
        };
        let (cpu_before, busy_before, began) =
            (snapshot(), machine::busy_seconds(&load.cores), Instant::now());
        tell(true);
        std::thread::sleep(Duration::from_secs_f64(load.seconds));
        tell(false);
        let (seconds, busy_after, cpu_after) = (
            began.elapsed().as_secs_f64(),
            machine::busy_seconds(&load.cores),
            snapshot(),
        );
        let spent = cpu_before
            .iter()
            .zip(&cpu_after)
            .map(|(before, after)| (after - before).max(0.0));
        let cpu_seconds = watched
            .iter()
            .map(|process| process.name.clone())
            .zip(spent)
            .collect();
        Window {
            seconds,
            cpu_seconds,
            busy_seconds: busy_after - busy_before,
        }
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.seconds
    }

    fn report(self, load: &Load, latencies: &Latencies, errors: u64) -> Report {
        let report = latencies.report(self.seconds, errors);
        self.beside(load, report)
    }

    /// Puts what processes have taken beside what calls came to.
    pub(crate) fn beside(self, load: &Load, report: Report) -> Report {
        let own_seconds: f64 = self.cpu_seconds.values().sum();
        Report {
            gbps: report.rps * load.size_bytes as f64 * 8.0 / 1e9,
            foreign_cores: (self.busy_seconds - own_seconds).max(0.0) / self.seconds,
            cpu_seconds: self.cpu_seconds,
            ..report
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_counts_calls_errors_and_cpu_time() {
        let load = Load {
            size_bytes: 64,
            calls_in_flight: 1,
            connections: 2,
            warmup_seconds: 0.01,
            seconds: 0.05,
            watched: Vec::new(),
            cores: vec![0],
            traffic: Default::default(),
            interval_us: 0,
        };
        let report = measure(&load, |run| {
            let mut latencies = Latencies::default();
            run.ready();
            run.error(&"one of each thread");
            while !run.is_stopped() {
                let began = Instant::now();
                std::hint::spin_loop();
                run.record(&mut latencies, began);
            }
            Ok(latencies)
        })
        .unwrap();
        assert!(report.count > 0 && report.rps > 0.0);
        assert_eq!(report.errors, 2);
        assert!(report.cpu_seconds["client"] > 0.0);
        assert!(report.p50_us <= report.p99_us);
    }

    #[test]
    fn a_thread_that_cannot_connect_fails_the_run() {
        let load = Load {
            size_bytes: 64,
            calls_in_flight: 1,
            connections: 1,
            warmup_seconds: 0.0,
            seconds: 0.0,
            watched: Vec::new(),
            cores: Vec::new(),
            traffic: Default::default(),
            interval_us: 0,
        };
        assert!(measure(&load, |_| Err(Failure::role("client", "nobody listens"))).is_err());
    }
}
