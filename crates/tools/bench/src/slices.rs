//! Ways to run a node, in alternating slices of one run: each is put into place in its turn while the same processes go
//! on calling, so that what a noisy minute does, it does to all. What is compared are the slices of one turn.

use std::time::Duration;

use provost_shm::now_ns;

use crate::failure::Failure;
use crate::machine;
use crate::report::{Report, Watched};
use crate::timeline::{Timeline, Window, quantiles};

/// What is usually left out after each change.
pub(crate) const SETTLE: Duration = Duration::from_millis(100);

/// What is put into place in turn.
pub(crate) trait Ways {
    /// How many there are.
    fn count(&self) -> usize;

    /// Puts one into place.
    fn enter(&mut self, way: usize) -> Result<(), Failure>;

    fn leave(&mut self, way: usize) -> Result<(), Failure>;
}

/// How often each way has its turn, and how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns {
    pub(crate) count: usize,
    pub(crate) slice: Duration,
    /// What is left out after each change.
    pub(crate) settle: Duration,
}

/// What is looked at meanwhile: cores, and processes that run from the first slice to the last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    pub(crate) cores: Vec<usize>,
    pub(crate) processes: Vec<Watched>,
}

#[derive(Clone, Debug)]
pub(crate) struct Slice {
    pub(crate) window: Window,
    /// CPU seconds of each process that is watched, by name.
    cpu_seconds: Vec<(String, f64)>,
    busy_seconds: f64,
}

impl Turns {
    /// How long all of it takes, without the changes themselves.
    pub(crate) fn time(self, ways: usize) -> Duration {
        (self.slice + self.settle) * (ways * self.count) as u32
    }

    /// Takes all turns. The slices come by way; those of one turn have the same place.
    pub(crate) fn take(self, ways: &mut dyn Ways, watch: &Watch) -> Result<Vec<Vec<Slice>>, Failure> {
        let count = ways.count();
        let mut slices = vec![Vec::with_capacity(self.count); count];
        for turn in 0..self.count {
            for at in 0..count {
                // Which one is first alternates too, for what drifts.
                let way = if turn % 2 == 0 { at } else { count - 1 - at };
                ways.enter(way)?;
                std::thread::sleep(self.settle);
                slices[way].push(watch.slice(self.slice));
                ways.leave(way)?;
            }
        }
        Ok(slices)
    }
}

impl Watch {
    /// Looks for so long.
    pub(crate) fn slice(&self, time: Duration) -> Slice {
        let cpu_seconds = || {
            self.processes
                .iter()
                .map(|process| machine::cpu_seconds(process.pid))
        };
        let cpu_before: Vec<f64> = cpu_seconds().collect();
        let busy_before = machine::busy_seconds(&self.cores);
        let from_ns = now_ns();
        std::thread::sleep(time);
        let to_ns = now_ns();
        let spent = cpu_seconds()
            .zip(cpu_before)
            .map(|(after, before)| after - before);
        let names = self.processes.iter().map(|process| process.name.clone());
        Slice {
            window: Window { from_ns, to_ns },
            cpu_seconds: names.zip(spent).collect(),
            busy_seconds: machine::busy_seconds(&self.cores) - busy_before,
        }
    }
}

/// What a timeline says of a slice, of calls with so many bytes.
pub(crate) fn report(timeline: &Timeline, slice: &Slice, size_bytes: usize) -> Report {
    let latencies_us = timeline.latencies_us(&[slice.window]);
    let (count, rps) = (latencies_us.len() as u64, timeline.rate(slice.window));
    let quantiles = quantiles(latencies_us);
    let figure = |value: Option<f64>| value.unwrap_or(f64::NAN);
    let seconds = (slice.window.to_ns - slice.window.from_ns) as f64 / 1e9;
    let own_seconds: f64 = slice.cpu_seconds.iter().map(|(_, seconds)| seconds).sum();
    Report {
        seconds,
        count,
        rps,
        gbps: rps * size_bytes as f64 * 8.0 / 1e9,
        mean_us: figure(quantiles.mean_us),
        p50_us: figure(quantiles.p50_us),
        p90_us: figure(quantiles.p90_us),
        p99_us: figure(quantiles.p99_us),
        p999_us: figure(quantiles.p999_us),
        cpu_seconds: slice.cpu_seconds.iter().cloned().collect(),
        foreign_cores: (slice.busy_seconds - own_seconds).max(0.0) / seconds,
        ..Report::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Journal(Vec<(&'static str, usize)>);

    impl Ways for Journal {
        fn count(&self) -> usize {
            3
        }

        fn enter(&mut self, way: usize) -> Result<(), Failure> {
            self.0.push(("enter", way));
            Ok(())
        }

        fn leave(&mut self, way: usize) -> Result<(), Failure> {
            self.0.push(("leave", way));
            Ok(())
        }
    }

    #[test]
    fn each_way_has_its_turn_and_the_first_is_last_in_the_next() {
        let turns = Turns {
            count: 2,
            slice: Duration::from_millis(1),
            settle: Duration::ZERO,
        };
        let mut journal = Journal::default();
        let slices = turns.take(&mut journal, &Watch::default()).unwrap();
        assert!(slices.len() == 3 && slices.iter().all(|slices| slices.len() == 2));
        let order: Vec<_> = journal.0.iter().map(|(_, way)| *way).collect();
        assert_eq!(order, [0, 0, 1, 1, 2, 2, 2, 2, 1, 1, 0, 0]);
        assert!(
            journal
                .0
                .chunks(2)
                .all(|pair| pair[0].0 == "enter" && pair[1].0 == "leave")
        );
        let first = |way: usize| slices[way][0].window;
        assert!(
            first(0).to_ns <= first(1).from_ns && slices[2][1].window.to_ns <= slices[0][1].window.from_ns
        );
    }
}
