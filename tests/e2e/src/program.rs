//! A process of a test: start it, signal it, wait for it, see what it uses. It never outlives the test.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, Signal, kill_process};

use crate::driver::WAIT_MAX;

/// How much of a program's log a failed test shows, in lines.
const LOG_LINES_SHOWN: usize = 30;
/// How often a condition is looked at while it is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A running program. Killed when dropped; when the test has failed, the end of its log is shown.
#[derive(Debug)]
pub struct Program {
    name: String,
    process: Child,
    log: PathBuf,
}

/// What a process uses, as the kernel tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub descriptors: usize,
    /// Shared memory (memfds) that it has mapped, in bytes.
    pub shared_bytes: u64,
    /// Resident memory, in bytes.
    pub resident_bytes: u64,
    pub threads: usize,
}

impl Program {
    /// Starts `command`; its standard error goes to `<name>.log` in `directory`.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub fn start(name: &str, mut command: Command, directory: &Path) -> Program {
        let log = directory.join(format!("{name}.log"));
        let log_file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .expect("a log file");
        let process = command
            .env("E2E_PARENT", std::process::id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log_file)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name} ({command:?}): {error}"));
        Program {
            name: name.to_owned(),
            process,
            log,
        }
    }

    /// What the test calls it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Its standard input and output, once.
    pub(crate) fn take_pipes(&mut self) -> (ChildStdin, ChildStdout) {
        let input = self.process.stdin.take().expect("the input was not taken before");
        let output = self
            .process
            .stdout
            .take()
            .expect("the output was not taken before");
        (input, output)
    }

    /// Sends a signal.
    ///
    /// # Panics
    ///
    /// When there is no such process.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.id() as i32).expect("a process has a number");
        kill_process(pid, signal).unwrap_or_else(|error| panic!("{}: {error}", self.name));
    }

    /// Kills it as `kill -9` does, and waits until it is gone.
    pub fn kill(&mut self) {
        // Both fail only when it is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// How it ended, if it ends within `limit`.
    pub fn ends_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let begin = Instant::now();
        while begin.elapsed() < limit {
            if let Ok(Some(status)) = self.process.try_wait() {
                return Some(status);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        None
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// How many bytes it has logged.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        std::fs::metadata(&self.log).map_or(0, |log| log.len())
    }

    /// What it has logged behind so many bytes. A test that looks often reads no more than that again and again.
    #[must_use]
    pub fn log_from(&self, bytes: u64) -> String {
        let mut text = String::new();
        let read = File::open(&self.log).and_then(|mut log| {
            log.seek(SeekFrom::Start(bytes))?;
            log.read_to_string(&mut text)
        });
        read.map(|_| text).unwrap_or_default()
    }

    /// All that it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it has logged a text: what it does it may log only after others have seen it.
    ///
    /// # Panics
    ///
    /// When that does not come.
    pub fn wait_for_log(&self, text: &str) {
        eventually(&format!("{} logs {text:?}", self.name), WAIT_MAX, || {
            self.log().contains(text)
        });
    }

    /// Prints the end of what it has logged.
    pub fn show_log(&self) {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        eprintln!("--- the end of the log of {}:", self.name);
        for line in &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..] {
            eprintln!("{line}");
        }
    }

    /// What it uses now.
    ///
    /// # Panics
    ///
    /// When it does not run.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.try_usage()
            .unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    fn try_usage(&self) -> io::Result<Usage> {
        usage_of(self.id())
    }

    /// Processor time that it has used so far, in all its threads, those that have ended included.
    ///
    /// # Panics
    ///
    /// When it does not run.
    #[must_use]
    pub fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id()))
            .unwrap_or_else(|error| panic!("{}: {error}", self.name));
        // The second field is the program's name, in parentheses; the 14th and 15th are what is wanted (proc(5)).
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let ticks: u64 = fields
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<u64>().ok())
            .sum();
        Duration::from_secs(ticks) / clock_ticks_per_second() as u32
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            self.show_log();
        }
    }
}

/// What a process uses now.
pub fn usage_of(process: u32) -> io::Result<Usage> {
    let process = PathBuf::from(format!("/proc/{process}"));
    let status = std::fs::read_to_string(process.join("status"))?;
    let maps = std::fs::read_to_string(process.join("maps"))?;
    Ok(Usage {
        descriptors: std::fs::read_dir(process.join("fd"))?.count(),
        shared_bytes: maps
            .lines()
            .filter(|line| line.contains("/memfd:"))
            .map(mapped_bytes)
            .sum(),
        resident_bytes: status_number(&status, "VmRSS:") * 1024,
        threads: status_number(&status, "Threads:") as usize,
    })
}

/// Waits until `condition` holds.
///
/// # Panics
///
/// When it does not within `limit`; `what` says what was waited for.
pub fn eventually(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < limit, "waited {limit:?} in vain: {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}

fn mapped_bytes(line: &str) -> u64 {
    let range = line.split(' ').next().and_then(|range| range.split_once('-'));
    let (first, end) = range.unwrap_or_default();
    let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
    number(end) - number(first)
}

/// The most memory that a process had resident at once so far, in bytes.
pub fn resident_peak_of(process: u32) -> io::Result<u64> {
    memory_of(process, "VmHWM:")
}

/// What the kernel says of a process's memory under a name such as `RssAnon:`, in bytes (proc_pid_status(5)).
pub fn memory_of(process: u32, name: &str) -> io::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    Ok(status_number(&status, name) * 1024)
}

fn status_number(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_what_a_process_uses_and_drop_ends_it() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo begun >&2; while :; do :; done"]);
        let program = Program::start("loop", command, directory.path());
        eventually("the program logs", Duration::from_secs(10), || {
            program.log() == "begun\n"
        });
        let usage = program.usage();
        assert!(
            usage.descriptors >= 3 && usage.resident_bytes > 0 && usage.threads == 1,
            "{usage:?}"
        );
        eventually("the program uses the processor", Duration::from_secs(10), || {
            program.processor_time() > Duration::from_millis(5)
        });
        let id = program.id();
        drop(program);
        assert!(!Path::new(&format!("/proc/{id}")).exists());
    }

    #[test]
    fn mapped_ranges_are_measured() {
        assert_eq!(
            mapped_bytes("7f0000001000-7f0000003000 rw-s 0 00:01 7 /memfd:x"),
            0x2000
        );
        assert_eq!(mapped_bytes("nonsense"), 0);
    }
}
