//! Watches the threads of client, proxy and server while a load runs, to tell what bounded its rate.

use std::collections::BTreeMap;
use std::time::Instant;

use provost_insight::profile::LoadPacing;

use crate::failure::ProbeFailure;
use crate::load::{LoadPace, LoadSlice};
use crate::machine::{self, BusyTime};

/// What the kernel has counted of a thread since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ThreadCounts {
    ran_ns: u64,
    /// It was ready to run, and another one had the core.
    waited_ns: u64,
    /// It was taken off its core for another one.
    preemptions: u64,
}

/// The counts of threads, as they were when the load began.
pub(crate) struct LoadWatch {
    began: Instant,
    busy: BusyTime,
    proxy: Vec<u32>,
    counts: BTreeMap<u32, ThreadCounts>,
}

impl LoadWatch {
    /// Begins to watch the proxy's processes, and this one, which has client and server.
    pub(crate) fn of(proxy: &[u32]) -> Result<LoadWatch, ProbeFailure> {
        let busy = BusyTime::now()?;
        Ok(LoadWatch {
            counts: counts(proxy)
                .into_iter()
                .chain(counts(&[std::process::id()]))
                .collect(),
            proxy: proxy.to_vec(),
            began: Instant::now(),
            busy,
        })
    }

    /// What was seen since.
    pub(crate) fn pacing(self, pace: LoadPace, slice: &LoadSlice) -> Result<LoadPacing, ProbeFailure> {
        let time_ns = self.began.elapsed().as_nanos() as f64;
        let own = std::process::id();
        let proxy = self.since(&self.proxy);
        let load = self.since(&[own]);
        let all = || proxy.iter().chain(&load);
        let share = |figure: fn(&ThreadCounts) -> u64| all().map(figure).sum::<u64>() as f64 / time_ns;
        let busiest = |threads: &[ThreadCounts]| {
            let most = threads.iter().map(|thread| thread.ran_ns).max();
            most.unwrap_or_default() as f64 / time_ns
        };
        let processes: Vec<u32> = self.proxy.iter().copied().chain([own]).collect();
        Ok(LoadPacing {
            asked_per_s: match pace {
                LoadPace::Saturating => None,
                LoadPace::PerSecond(rate) => Some(rate),
            },
            late_share: slice.late_share(),
            core_wait_share: share(|thread| thread.waited_ns),
            preemptions_per_call: all().map(|thread| thread.preemptions).sum::<u64>() as f64
                / slice.count().max(1) as f64,
            proxy_busy_share: busiest(&proxy),
            load_busy_share: busiest(&load),
            own_cores: share(|thread| thread.ran_ns),
            other_cores: self.busy.foreign_cores(&processes)?,
            cores: machine::online_cores()?.len() as u32,
        })
    }

    /// What threads that are there now have done since; one that was not there before, all of it.
    fn since(&self, processes: &[u32]) -> Vec<ThreadCounts> {
        let now = counts(processes);
        let threads = now.into_iter().map(|(thread, now)| {
            let before = self.counts.get(&thread).copied().unwrap_or_default();
            ThreadCounts {
                ran_ns: now.ran_ns.saturating_sub(before.ran_ns),
                waited_ns: now.waited_ns.saturating_sub(before.waited_ns),
                preemptions: now.preemptions.saturating_sub(before.preemptions),
            }
        });
        threads.collect()
    }
}

/// A thread that ends meanwhile is not there.
fn counts(processes: &[u32]) -> Vec<(u32, ThreadCounts)> {
    let counted = machine::threads(processes).into_iter().filter_map(|thread| {
        let schedule = machine::read(format!("/proc/{thread}/schedstat")).ok()?;
        let status = machine::read(format!("/proc/{thread}/status")).unwrap_or_default();
        Some((thread, thread_counts(&schedule, &status)?))
    });
    counted.collect()
}

/// From `schedstat` and `status` below `/proc/PID` (sched-stats.rst, proc_pid_status(5)).
fn thread_counts(schedule: &str, status: &str) -> Option<ThreadCounts> {
    let mut fields = schedule.split_whitespace().map(str::parse);
    let (ran_ns, waited_ns) = (fields.next()?.ok()?, fields.next()?.ok()?);
    let mut lines = status.lines();
    let preemptions = lines.find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    Some(ThreadCounts {
        ran_ns,
        waited_ns,
        preemptions: preemptions.map_or(Ok(0), |count| count.trim().parse()).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_counts_are_read_and_what_is_none_is_not() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t5\n";
        let expected = ThreadCounts {
            ran_ns: 300,
            waited_ns: 20,
            preemptions: 5,
        };
        assert_eq!(thread_counts("300 20 9\n", status), Some(expected));
        assert_eq!(thread_counts("300\n", status), None);
        assert_eq!(thread_counts("300 x 9\n", status), None);
        let own = counts(&[std::process::id()]);
        assert!(own.iter().any(|(_, counts)| counts.ran_ns > 0), "{own:?}");
    }
}
