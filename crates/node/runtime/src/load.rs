//! How full the rings of a runtime's apps are, and how much memory their receive heaps have.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use provost_datapath::Nanos;
use provost_frontend::PortLoad;

/// For how long what was highest is told, at least; it is told for twice as long at most.
const WINDOW_NS: Nanos = 10_000_000_000;
/// What stands for a full ring.
const FULL: u32 = 1000;

/// How much the apps of a runtime have in their rings and heaps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RuntimeLoad {
    /// The fullest submission ring of the last seconds, from 0 to 1.
    pub submissions: f64,
    /// The fullest completion ring of the last seconds, from 0 to 1.
    pub completions: f64,
    /// Bytes of all segments of receive heaps.
    pub receive_heap_bytes: u64,
}

/// Written by the runtime's thread alone, with plain stores.
#[derive(Debug, Default)]
pub(crate) struct LoadCells {
    submissions: HighestLoad,
    completions: HighestLoad,
    receive_heap_bytes: AtomicU64,
}

/// The highest value of this window, and of the one before.
#[derive(Debug, Default)]
struct HighestLoad {
    began: AtomicU64,
    now: AtomicU32,
    before: AtomicU32,
}

impl HighestLoad {
    fn note(&self, value: u32, at: Nanos) {
        let age_ns = at.saturating_sub(self.began.load(Relaxed));
        if age_ns >= WINDOW_NS {
            let last = if age_ns < 2 * WINDOW_NS {
                self.now.load(Relaxed)
            } else {
                0
            };
            self.before.store(last, Relaxed);
            self.now.store(0, Relaxed);
            self.began.store(at, Relaxed);
        }
        if value > self.now.load(Relaxed) {
            self.now.store(value, Relaxed);
        }
    }

    fn read(&self, at: Nanos) -> f64 {
        let age_ns = at.saturating_sub(self.began.load(Relaxed));
        let now = self.now.load(Relaxed);
        let highest = match age_ns {
            _ if age_ns < WINDOW_NS => now.max(self.before.load(Relaxed)),
            _ if age_ns < 2 * WINDOW_NS => now,
            _ => 0,
        };
        f64::from(highest) / f64::from(FULL)
    }
}

impl LoadCells {
    /// An app's port was looked after.
    pub(crate) fn note(&self, load: &PortLoad, now: Nanos) {
        let share =
            |taken: u32, slots: u32| (u64::from(taken) * u64::from(FULL) / u64::from(slots.max(1))) as u32;
        self.submissions
            .note(share(load.submissions, load.submission_slots), now);
        self.completions
            .note(share(load.completions, load.completion_slots), now);
    }

    /// The receive heap of an app has another size than before.
    pub(crate) fn heap_resized(&self, before: u64, after: u64) {
        let bytes = self.receive_heap_bytes.load(Relaxed);
        self.receive_heap_bytes
            .store(bytes.wrapping_sub(before).wrapping_add(after), Relaxed);
    }

    pub(crate) fn read(&self, now: Nanos) -> RuntimeLoad {
        RuntimeLoad {
            submissions: self.submissions.read(now),
            completions: self.completions.read(now),
            receive_heap_bytes: self.receive_heap_bytes.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_is_told_for_one_window_to_two() {
        let highest = HighestLoad::default();
        let start = 5 * WINDOW_NS;
        highest.note(700, start);
        highest.note(100, start + 1);
        assert_eq!(highest.read(start + 2), 0.7);
        highest.note(100, start + WINDOW_NS);
        assert_eq!(highest.read(start + WINDOW_NS), 0.7);
        highest.note(100, start + 2 * WINDOW_NS);
        assert_eq!(highest.read(start + 2 * WINDOW_NS), 0.1);
        assert_eq!(highest.read(start + 3 * WINDOW_NS), 0.1);
        assert_eq!(highest.read(start + 4 * WINDOW_NS), 0.0);
    }

    #[test]
    fn heaps_of_all_apps_are_summed() {
        let cells = LoadCells::default();
        cells.heap_resized(0, 100);
        cells.heap_resized(0, 50);
        cells.heap_resized(100, 70);
        assert_eq!(cells.read(0).receive_heap_bytes, 120);
        cells.heap_resized(50, 0);
        assert_eq!(cells.read(0).receive_heap_bytes, 70);
    }
}
