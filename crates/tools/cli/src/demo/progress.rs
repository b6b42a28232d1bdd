//! Progress on standard error: one line that is written over on a terminal, one line a phase elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often the line is written at most.
const INTERVAL: Duration = Duration::from_millis(100);
/// Cells of the bar.
const BAR_CELLS: u64 = 30;

/// Whether progress is shown at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    Progress,
    Nothing,
}

/// Shows how far the demonstration is.
pub(crate) struct Progress {
    place: Place,
    written: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Terminal,
    Lines,
    Nowhere,
}

impl Progress {
    pub(crate) fn new(show: Show) -> Progress {
        let place = match show {
            Show::Nothing => Place::Nowhere,
            Show::Progress if std::io::stderr().is_terminal() => Place::Terminal,
            Show::Progress => Place::Lines,
        };
        Progress { place, written: None }
    }

    /// A phase is so far.
    pub(crate) fn at(&mut self, phase: &str, done: u64, total: u64) {
        let due = self.written.is_none_or(|written| written.elapsed() >= INTERVAL);
        if self.place == Place::Terminal && due {
            self.written = Some(Instant::now());
            write_line(&format!("\r\x1b[K  {}", bar(phase, done, total)));
        }
    }

    /// A phase is done, with this outcome.
    pub(crate) fn done(&mut self, phase: &str, outcome: &str) {
        self.written = None;
        match self.place {
            Place::Terminal => write_line(&format!("\r\x1b[K  {phase:<8} {outcome}\n")),
            Place::Lines => write_line(&format!("  {phase:<8} {outcome}\n")),
            Place::Nowhere => {}
        }
    }

    /// How many calls there were so far, and how many of them failed.
    pub(crate) fn failures(&mut self, calls: u64, failed: u64) {
        if self.place == Place::Terminal {
            write_line(&format!("\r\x1b[K  {calls} calls, {failed} failed"));
        }
    }

    /// Removes an unfinished line.
    pub(crate) fn clear(&mut self) {
        if self.place == Place::Terminal {
            write_line("\r\x1b[K");
        }
    }
}

fn bar(phase: &str, done: u64, total: u64) -> String {
    let cells = (done.min(total) * BAR_CELLS).checked_div(total).unwrap_or(0);
    let full = "█".repeat(cells as usize);
    let empty = "░".repeat((BAR_CELLS - cells) as usize);
    let percent = (done.min(total) * 100).checked_div(total).unwrap_or(0);
    format!("{phase:<8} {full}{empty} {percent:>3} %")
}

fn write_line(text: &str) {
    // Progress that cannot be shown is no reason to fail.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::bar;

    #[test]
    fn the_bar_fills_and_survives_an_empty_phase() {
        assert!(bar("load", 0, 0).ends_with("  0 %"));
        assert!(bar("load", 5, 10).ends_with(" 50 %"));
        assert!(bar("load", 20, 10).ends_with("100 %"));
    }
}
