//! `bench syscalls`: system calls and context switches of each process for each call, counted by the kernel's
//! tracepoints (`perf stat`), which unlike a tracer leave the timing as it is.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::Serialize;

use crate::arguments::Syscalls;
use crate::failure::{Doing, Failure};
use crate::plan::{Measure, Setup};
use crate::regime;
use crate::report::{Load, Traffic, Watched};
use crate::stack::Stack;

/// Load before counting begins.
const WARMUP_SECONDS: f64 = 0.5;
/// How long is counted: nearly all the time over which the client's rate is, so that the two belong together.
const WINDOW_SECONDS: f64 = 3.0;
const WINDOW_SECONDS_QUICK: f64 = 1.0;
/// So much longer load goes on, while the counters are set up.
const SETUP_SECONDS: f64 = 0.5;
/// What is counted by name; `all` has the rest as well. (Each counter takes time to set up, so not every system call.)
const NAMED: [&str; 16] = [
    "read",
    "write",
    "readv",
    "writev",
    "recvfrom",
    "recvmsg",
    "sendto",
    "sendmsg",
    "poll",
    "ppoll",
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_ctl",
    "futex",
    "sched_yield",
];
/// System calls that are rarer than this for each call are not listed.
const LISTED_PER_CALL_MIN: f64 = 0.005;

/// What a process did for each call.
#[derive(Serialize)]
struct Counted {
    setup: &'static str,
    load: String,
    process: String,
    /// System calls by name, all of them, and context switches.
    per_call: BTreeMap<String, f64>,
}

/// Counts for every setup whose processes the bench starts itself, in each regime.
pub(crate) fn run(options: &Syscalls) -> Result<(), Failure> {
    regime::measure_each(&options.run, |regime, cores| {
        println!("cores {cores:?}, {}", regime.description());
        count_all(options, cores)
    })
}

fn count_all(options: &Syscalls, cores: &[usize]) -> Result<Vec<Counted>, Failure> {
    let mut counted = Vec::new();
    for setup in Setup::ALL
        .into_iter()
        .filter(|setup| !setup.starts_from_client())
        .filter(|setup| options.setups.has(setup.name()))
    {
        match count(setup, cores, options.window_seconds()) {
            Ok(more) => counted.extend(more),
            Err(Failure::Unavailable(why)) => println!("no figure for {}: {why}", setup.name()),
            Err(failure) => return Err(failure),
        }
    }
    Ok(counted)
}

impl Syscalls {
    fn window_seconds(&self) -> f64 {
        if self.run.quick {
            WINDOW_SECONDS_QUICK
        } else {
            WINDOW_SECONDS
        }
    }
}

fn count(setup: Setup, cores: &[usize], window_seconds: f64) -> Result<Vec<Counted>, Failure> {
    let folder = tempfile::tempdir().doing(|| "make a temporary folder".into())?;
    let stack = Stack::start(setup, folder.path())?;
    let mut all = Vec::new();
    for measure in [Measure::latency(), Measure::rate(64, 1)] {
        let client = stack.start_client(load(&measure, cores, window_seconds + SETUP_SECONDS))?;
        std::thread::sleep(Duration::from_secs_f64(WARMUP_SECONDS));
        let watched = [stack.watched(), vec![client.watched()]].concat();
        let counters = watched
            .iter()
            .map(|process| Ok((process, Counter::start(process, window_seconds)?)));
        let counters = counters.collect::<Result<Vec<_>, Failure>>()?;
        let events = counters
            .into_iter()
            .map(|(process, counter)| Ok((process.name.clone(), counter.finish()?)));
        let events = events.collect::<Result<Vec<_>, Failure>>()?;
        let calls = Stack::report(client)?.rps * window_seconds;
        all.extend(events.into_iter().map(|(process, events)| {
            Counted {
                setup: setup.name(),
                load: measure.what.to_string(),
                process,
                per_call: events
                    .into_iter()
                    .map(|(name, count)| (name, count / calls))
                    .collect(),
            }
        }));
    }
    all.iter().for_each(Counted::print);
    Ok(all)
}

fn load(measure: &Measure, cores: &[usize], seconds: f64) -> Load {
    Load {
        size_bytes: measure.size_bytes,
        calls_in_flight: measure.calls_in_flight,
        interval_us: 0,
        connections: measure.connections,
        warmup_seconds: WARMUP_SECONDS,
        seconds,
        watched: Vec::new(),
        cores: cores.to_vec(),
        traffic: Traffic::Plain,
    }
}

impl Counted {
    fn print(&self) {
        let listed: Vec<String> = self
            .per_call
            .iter()
            .filter(|(_, per_call)| **per_call >= LISTED_PER_CALL_MIN)
            .map(|(name, per_call)| format!("{name} {per_call:.2}"))
            .collect();
        println!(
            "{:16} {:10} {:8} {}",
            self.setup,
            self.load,
            self.process,
            listed.join(", ")
        );
    }
}

/// `perf stat` on one process.
struct Counter(Child);

impl Counter {
    fn start(process: &Watched, window_seconds: f64) -> Result<Counter, Failure> {
        let mut command = Command::new("perf");
        command.args([
            "stat",
            "-x",
            ",",
            "-e",
            "context-switches",
            "-e",
            "raw_syscalls:sys_enter",
        ]);
        command.args(
            NAMED
                .iter()
                .flat_map(|name| ["-e".into(), format!("syscalls:sys_enter_{name}")]),
        );
        command.args([
            "-p",
            &process.pid.to_string(),
            "--",
            "sleep",
            &window_seconds.to_string(),
        ]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let started = command.env("LC_ALL", "C").spawn();
        started
            .map(Counter)
            .map_err(|error| Failure::Unavailable(format!("perf cannot be started: {error}")))
    }

    fn finish(self) -> Result<BTreeMap<String, f64>, Failure> {
        let output = self.0.wait_with_output().doing(|| "wait for perf".into())?;
        let text = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            let why = text.lines().next().unwrap_or("it said nothing");
            return Err(Failure::Unavailable(format!(
                "perf cannot count system calls: {why}"
            )));
        }
        Ok(text.lines().filter_map(event).collect())
    }
}

/// A line `count,,event,…`.
fn event(line: &str) -> Option<(String, f64)> {
    let mut fields = line.split(',');
    let (count, _unit, name) = (fields.next()?, fields.next()?, fields.next()?);
    let name = match name {
        "raw_syscalls:sys_enter" => "all",
        "context-switches" => "switches",
        name => name.strip_prefix("syscalls:sys_enter_").unwrap_or(name),
    };
    Some((name.to_string(), count.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::event;

    #[test]
    fn lines_of_perf_are_read() {
        let line = "1444,,syscalls:sys_enter_read,1004262366,100.00,,";
        assert_eq!(event(line), Some(("read".into(), 1444.0)));
        assert_eq!(event("<not counted>,,context-switches,0,0.00,,"), None);
        assert_eq!(event(""), None);
    }
}
