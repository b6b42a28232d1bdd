//! `bench syscalls`: system calls and context switches of each process for each call, counted by the kernel's
//! tracepoints (`perf stat`), which unlike a tracer leave the timing as it is.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::failure::{Doing, Failure};
use crate::machine;
use crate::plan::{Measure, Setup};
use crate::report::{Load, Report, Traffic, Watched};
use crate::stack::Stack;

/// Load before counting begins.
const WARMUP_SECONDS: f64 = 0.5;
/// How long is counted: nearly all the time over which the client's rate is, so that the two belong together.
const WINDOW_SECONDS: f64 = 3.0;
/// Load goes on while the counters are set up.
const LOAD_SECONDS: f64 = 3.5;
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

/// Counts for every setup whose processes the bench starts itself.
pub(crate) fn run(cores: &[usize], only: &[String]) -> Result<(), Failure> {
    machine::pin(cores)?;
    let chosen = |setup: &Setup| only.is_empty() || only.iter().any(|part| setup.name().contains(part));
    for setup in Setup::ALL
        .into_iter()
        .filter(|setup| !setup.starts_from_client())
        .filter(chosen)
    {
        match count(setup, cores) {
            Ok(()) => {}
            Err(Failure::Unavailable(why)) => println!("no figure for {}: {why}", setup.name()),
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}

fn count(setup: Setup, cores: &[usize]) -> Result<(), Failure> {
    let folder = tempfile::tempdir().doing(|| "make a temporary folder".into())?;
    let stack = Stack::start(setup, folder.path())?;
    for measure in [Measure::latency(), Measure::rate(64, 1)] {
        let client = stack.start_client(load(&measure, cores))?;
        std::thread::sleep(Duration::from_secs_f64(WARMUP_SECONDS));
        let watched = [stack.watched(), vec![client.watched()]].concat();
        let counters = watched
            .iter()
            .map(|process| Ok((process, Counter::start(process)?)));
        let counters = counters.collect::<Result<Vec<_>, Failure>>()?;
        let counted = counters
            .into_iter()
            .map(|(process, counter)| Ok((process.name.clone(), counter.finish()?)));
        let counted = counted.collect::<Result<Vec<_>, Failure>>()?;
        let report = Stack::report(client)?;
        counted
            .iter()
            .for_each(|(name, events)| print(setup, &measure, name, events, &report));
    }
    Ok(())
}

fn load(measure: &Measure, cores: &[usize]) -> Load {
    Load {
        size_bytes: measure.size_bytes,
        calls_in_flight: measure.calls_in_flight,
        interval_us: 0,
        connections: measure.connections,
        warmup_seconds: WARMUP_SECONDS,
        seconds: LOAD_SECONDS,
        watched: Vec::new(),
        cores: cores.to_vec(),
        traffic: Traffic::Plain,
    }
}

fn print(setup: Setup, measure: &Measure, process: &str, events: &BTreeMap<String, f64>, report: &Report) {
    let calls = report.rps * WINDOW_SECONDS;
    let listed: Vec<String> = events
        .iter()
        .map(|(name, count)| (name, count / calls))
        .filter(|(_, per_call)| *per_call >= LISTED_PER_CALL_MIN)
        .map(|(name, per_call)| format!("{name} {per_call:.2}"))
        .collect();
    println!(
        "{:16} {:10} {process:8} {}",
        setup.name(),
        measure.what,
        listed.join(", ")
    );
}

/// `perf stat` on one process.
struct Counter(Child);

impl Counter {
    fn start(process: &Watched) -> Result<Counter, Failure> {
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
            &WINDOW_SECONDS.to_string(),
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
