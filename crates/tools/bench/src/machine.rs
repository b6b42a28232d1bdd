//! The machine under the benchmark: which cores it uses, who else uses them, and what processes cost.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::CpuSet;

use crate::failure::{Doing, Failure};

/// The kernel counts the time of a whole core in ticks of this many a second (`USER_HZ`, fixed by the kernel's ABI).
const TICKS_PER_SECOND: f64 = 100.0;

/// Keeps this process, and all that it starts, on these cores.
pub(crate) fn pin(cores: &[usize]) -> Result<(), Failure> {
    let mut set = CpuSet::new();
    let online = std::thread::available_parallelism().map_or(1, usize::from);
    for core in cores {
        if *core >= CpuSet::MAX_CPU {
            return Err(Failure::Unavailable(format!(
                "core {core} of --cores is past what the kernel counts"
            )));
        }
        set.set(*core);
    }
    rustix::thread::sched_setaffinity(None, &set)
        .doing(|| format!("--cores {cores:?} (this machine has {online} to give)"))
}

/// CPU seconds that a process has used, to the nanosecond: the sum over its threads. Threads that have ended are not
/// in it, so every role keeps its threads while it is measured.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let spent = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok());
    spent
        .filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok())
        .sum::<u64>() as f64
        / 1e9
}

/// What threads have spent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spent {
    pub(crate) cpu_us: f64,
    /// Context switches, of their own will or not.
    pub(crate) switches: f64,
}

impl Spent {
    /// What has been spent since, for each of so many.
    pub(crate) fn since(self, before: Spent, count: usize) -> Spent {
        let each = |now: f64, before: f64| (now - before).max(0.0) / count.max(1) as f64;
        Spent {
            cpu_us: each(self.cpu_us, before.cpu_us),
            switches: each(self.switches, before.switches),
        }
    }
}

/// What a node's threads have spent that are none of its runtimes'.
pub(crate) fn control_plane(pid: u32) -> Spent {
    let mut spent = Spent::default();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        if read("comm").starts_with("runtime-") {
            continue;
        }
        // Nanoseconds on a core, nanoseconds waiting for one, and how often it got one.
        let schedstat = read("schedstat");
        let mut fields = schedstat
            .split_whitespace()
            .map(|field| field.parse().unwrap_or(0.0));
        spent.cpu_us += fields.next().unwrap_or(0.0) / 1e3;
        spent.switches += fields.nth(1).unwrap_or(0.0);
    }
    spent
}

/// Seconds that these cores have been busy. Niced time is left out: it is that of [`LoadedCores::background`].
pub(crate) fn busy_seconds(cores: &[usize]) -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ours = |line: &&str| cores.iter().any(|core| line.starts_with(&format!("cpu{core} ")));
    text.lines().filter(ours).map(busy_ticks).sum::<f64>() / TICKS_PER_SECOND
}

/// user, system, irq and softirq of a line `cpuN user nice system idle iowait irq softirq …`.
fn busy_ticks(line: &str) -> f64 {
    let ticks: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .filter_map(|field| field.parse().ok())
        .collect();
    [0, 2, 5, 6].iter().filter_map(|at| ticks.get(*at)).sum()
}

/// Waits until the cores are otherwise idle, at most `limit`.
pub(crate) fn wait_quiet(cores: &[usize], limit: Duration) {
    const SAMPLE: Duration = Duration::from_millis(150);
    let end = Instant::now() + limit;
    while Instant::now() < end {
        let before = busy_seconds(cores);
        std::thread::sleep(SAMPLE);
        if (busy_seconds(cores) - before) / SAMPLE.as_secs_f64() <= provost_figures::QUIET_CORES_MAX {
            return;
        }
    }
}

/// Memory of a process: resident, and its proportional share of that, in MiB.
pub(crate) fn memory_mib(pid: u32) -> Option<(f64, f64)> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let field = |name: &str| {
        let line = rollup.lines().find(|line| line.starts_with(name))?;
        Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
    };
    Some((field("Rss:")?, field("Pss:")?))
}

/// Model of the processor and release of the kernel, for the head of a table.
pub(crate) fn describe() -> String {
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{}, Linux {}",
        model.map_or("unknown processor", |(_, model)| model),
        kernel.trim()
    )
}

/// Loops beside what is measured, one on each core. They end when this is dropped.
#[derive(Default)]
pub(crate) struct LoadedCores(Vec<Child>);

impl LoadedCores {
    /// Loops of the idle class: anything else preempts them, and the cores never halt, as `idle=poll` would do.
    pub(crate) fn background(cores: &[usize]) -> Result<LoadedCores, Failure> {
        LoadedCores::start(cores, &["nice", "-n", "19", "chrt", "--idle", "0"])
    }

    /// Ordinary loops, as a neighbour would run that computes without pause.
    pub(crate) fn busy(cores: &[usize]) -> Result<LoadedCores, Failure> {
        LoadedCores::start(cores, &[])
    }

    fn start(cores: &[usize], before: &[&str]) -> Result<LoadedCores, Failure> {
        let mut loaded = LoadedCores::default();
        for core in cores {
            let core = core.to_string();
            let line = [
                before,
                &["taskset", "-c", &core, "sh", "-c", "while :; do :; done"],
            ]
            .concat();
            let child = Command::new(line[0])
                .args(&line[1..])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn();
            let child = child.doing(|| format!("start {} (util-linux) for a loop beside the calls", line[0]));
            loaded.0.push(child?);
        }
        Ok(loaded)
    }
}

impl Drop for LoadedCores {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that has ended by itself needs no end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A port of the loopback interface that nobody listens on at the moment.
pub(crate) fn free_port() -> Result<u16, Failure> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").doing(|| "bind a loopback port".into())?;
    Ok(listener
        .local_addr()
        .doing(|| "name a loopback port".into())?
        .port())
}

/// Whether a program stands at this path.
pub(crate) fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_work_is_counted() {
        let before = cpu_seconds(std::process::id());
        let began = Instant::now();
        while cpu_seconds(std::process::id()) <= before {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "no CPU time was counted"
            );
        }
    }

    #[test]
    fn busy_time_leaves_out_idle_and_niced_time() {
        assert_eq!(busy_ticks("cpu0 1 1000 2 1000 1000 4 8 0 0 0"), 15.0);
    }

    #[test]
    fn what_threads_spend_is_read_and_shared_out() {
        let before = control_plane(std::process::id());
        assert!(before.cpu_us > 0.0 && before.switches >= 1.0);
        let spent = Spent {
            cpu_us: before.cpu_us + 100.0,
            switches: before.switches + 6.0,
        };
        let each = spent.since(before, 2);
        assert!((each.cpu_us - 50.0).abs() < 1.0 && (each.switches - 3.0).abs() < 0.1);
    }

    #[test]
    fn own_memory_is_read() {
        let (rss, pss) = memory_mib(std::process::id()).unwrap();
        assert!(rss >= pss && pss > 0.0);
    }
}
