//! The most that a process uses of anything while something goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use provost_e2e::Usage;
use provost_e2e::program::usage_of;

/// How often it is looked: what lasts shorter is not seen.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Looks at a process until it is stopped.
#[derive(Debug)]
pub struct PeakWatch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Usage>,
}

impl PeakWatch {
    /// Begins to look at a process that has this number and uses this much.
    #[must_use]
    pub fn start(process: u32, first: Usage) -> PeakWatch {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut peak = first;
            while !told.load(Ordering::Relaxed) {
                // A process that has ended uses nothing more.
                let Ok(now) = usage_of(process) else { break };
                peak = most_of(peak, now);
                std::thread::sleep(LOOK_EVERY);
            }
            peak
        });
        PeakWatch { stop, thread }
    }

    /// The most that was seen of each thing.
    ///
    /// # Panics
    ///
    /// When the thread that looked has.
    #[must_use]
    pub fn stop(self) -> Usage {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the thread that looks")
    }
}

fn most_of(one: Usage, other: Usage) -> Usage {
    Usage {
        descriptors: one.descriptors.max(other.descriptors),
        shared_bytes: one.shared_bytes.max(other.shared_bytes),
        resident_bytes: one.resident_bytes.max(other.resident_bytes),
        threads: one.threads.max(other.threads),
    }
}
