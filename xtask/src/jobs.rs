//! Programs that run side by side, each with its output in one piece, and what their tests say in the end.

use std::collections::{BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex};
use std::time::Instant;

use crate::Complaints;
use crate::workspace::{show, start_error};

/// With this begins a line of a test that does not run here; the reason follows.
const SKIPPED: &str = "skipped: ";

/// So many programs of a run may fail at first and pass when repeated. With more, none is repeated.
const UNSTABLE_MAX: usize = 2;

/// A command with the name that the log calls it.
pub(crate) struct TestJob {
    pub(crate) name: String,
    /// What has to be done before, if anything.
    pub(crate) before: Option<Command>,
    pub(crate) command: Command,
    pub(crate) repeat: JobRepeat,
    pub(crate) builds: JobBuilds,
}

impl TestJob {
    /// A job that builds nothing and whose failure is the run's.
    pub(crate) fn new(name: impl Into<String>, command: Command) -> Self {
        TestJob {
            name: name.into(),
            before: None,
            command,
            repeat: JobRepeat::Never,
            builds: JobBuilds::Nothing,
        }
    }

    /// The same job after another command: where that fails, this one is not run, and the job has failed.
    pub(crate) fn after(mut self, before: Command) -> Self {
        self.before = Some(before);
        self
    }

    /// The same job, which has cargo build something in the target folder.
    pub(crate) fn that_builds(mut self) -> Self {
        self.builds = JobBuilds::InTarget;
        self
    }
}

/// What a job has cargo build. Cargo locks a folder that it builds in, so a second job would wait there and a core with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobBuilds {
    /// Nothing, or in a folder of its own.
    Nothing,
    /// Something in the target folder: one such job runs at a time.
    InTarget,
}

/// What a failure of a job means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobRepeat {
    /// The run has failed.
    Never,
    /// The job starts processes, whose pace depends on what else runs: it is tried once more, alone, and listed as unstable if
    /// it passes then.
    OnceAlone,
}

/// What the tests of all jobs came to.
#[derive(Default)]
pub(crate) struct RunTally {
    passed: u64,
    failed: u64,
    skipped: BTreeSet<String>,
    unstable: Vec<String>,
    complaints: Complaints,
    /// What failed and is to be repeated.
    to_repeat: Vec<(TestJob, JobReport)>,
}

impl RunTally {
    /// Runs these jobs, so many at a time, in this order. Those after one that fails run all the same.
    pub(crate) fn run(&mut self, jobs: Vec<TestJob>, at_once: usize) {
        let queue = JobQueue::new(jobs);
        let tally = Mutex::new(std::mem::take(self));
        std::thread::scope(|scope| {
            for _ in 0..at_once {
                scope.spawn(|| {
                    while let Some(mut job) = queue.take() {
                        let report = run(&mut job);
                        queue.give_back(job.builds);
                        tally.lock().expect("no job panics").add(job, report);
                    }
                });
            }
        });
        *self = tally.into_inner().expect("no job panics");
    }

    /// Runs those that failed and may be repeated once more, one at a time, and counts how they end now.
    pub(crate) fn repeat_alone(&mut self) {
        let to_repeat = std::mem::take(&mut self.to_repeat);
        if to_repeat.len() > UNSTABLE_MAX {
            to_repeat.iter().for_each(|(_, report)| self.conclude_job(report));
            return;
        }
        for (mut job, _) in to_repeat {
            let again = run(&mut job);
            eprint!("{}", again.shown());
            if again.complaint.is_none() {
                self.unstable.push(job.name);
            }
            self.conclude_job(&again);
        }
    }

    /// Prints a report and counts what it says, now or when the job has been repeated.
    fn add(&mut self, job: TestJob, report: JobReport) {
        // In one piece, for others print theirs.
        eprint!("{}", report.shown());
        if report.complaint.is_some() && job.repeat == JobRepeat::OnceAlone {
            self.to_repeat.push((job, report));
        } else {
            self.conclude_job(&report);
        }
    }

    fn conclude_job(&mut self, report: &JobReport) {
        for line in &report.lines {
            self.count(&report.name, line);
        }
        self.complaints.extend(report.complaint.clone());
    }

    fn count(&mut self, name: &str, line: &str) {
        if let Some(result) = line.strip_prefix("test result: ") {
            self.passed += counted(result, "passed");
            self.failed += counted(result, "failed");
        }
        // In the midst of a line as well, where the harness has begun one.
        if let Some((before, reason)) = line.split_once(SKIPPED) {
            let what = if before.starts_with("test ") { "" } else { before };
            self.skipped.insert(format!("{name}: {what}{reason}"));
        }
    }

    /// Notes what did not run here, and why.
    pub(crate) fn skip(&mut self, name: &str, reason: &str) {
        self.skipped.insert(format!("{name}: {reason}"));
    }

    /// Prints what was skipped, what passed only when repeated, what failed and, as the last line, the counts.
    pub(crate) fn conclude(self) -> Result<(), Complaints> {
        self.skipped
            .iter()
            .for_each(|skipped| eprintln!("{SKIPPED}{skipped}"));
        self.unstable
            .iter()
            .for_each(|name| eprintln!("unstable: {name} failed, and passed when it ran again, alone"));
        self.complaints
            .iter()
            .for_each(|complaint| eprintln!("{complaint}"));
        println!("{}", self.counts());
        if self.complaints.is_empty() {
            Ok(())
        } else {
            // They are printed already, and nothing may follow the counts.
            Err(Vec::new())
        }
    }

    fn counts(&self) -> String {
        let (passed, failed) = (self.passed, self.failed);
        // What failed without a test counts as one.
        let failed = failed.max(self.complaints.len() as u64);
        let skipped = self.skipped.len();
        format!("{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// The jobs that have not begun, in order, and whether one that builds is under way.
struct JobQueue {
    state: Mutex<QueueState>,
    given_back: Condvar,
}

struct QueueState {
    waiting: VecDeque<TestJob>,
    is_building: bool,
}

impl JobQueue {
    fn new(jobs: Vec<TestJob>) -> Self {
        let state = QueueState {
            waiting: jobs.into(),
            is_building: false,
        };
        JobQueue {
            state: Mutex::new(state),
            given_back: Condvar::new(),
        }
    }

    /// The first job that can begin, as soon as there is one; none when all have begun.
    fn take(&self) -> Option<TestJob> {
        let state = self.state.lock().expect("no job panics");
        let is_held_up = |state: &mut QueueState| !state.waiting.is_empty() && state.first_ready().is_none();
        let waited = self.given_back.wait_while(state, is_held_up);
        let mut state = waited.expect("no job panics");
        let ready = state.first_ready()?;
        let job = state.waiting.remove(ready)?;
        state.is_building |= job.builds == JobBuilds::InTarget;
        Some(job)
    }

    /// Notes that a job has ended which built this.
    fn give_back(&self, builds: JobBuilds) {
        if builds == JobBuilds::InTarget {
            self.state.lock().expect("no job panics").is_building = false;
            self.given_back.notify_all();
        }
    }
}

impl QueueState {
    fn first_ready(&self) -> Option<usize> {
        let is_ready = |job: &TestJob| job.builds == JobBuilds::Nothing || !self.is_building;
        self.waiting.iter().position(is_ready)
    }
}

/// How a job ended.
struct JobReport {
    name: String,
    seconds: u64,
    lines: Vec<String>,
    complaint: Option<String>,
}

impl JobReport {
    fn shown(&self) -> String {
        let outcome = self.complaint.as_deref().unwrap_or("ok");
        let (name, seconds) = (&self.name, self.seconds);
        let mut shown = format!("-- {name}: {outcome}, {seconds} s\n");
        for line in &self.lines {
            shown.push_str(line);
            shown.push('\n');
        }
        shown
    }
}

fn run(job: &mut TestJob) -> JobReport {
    let began = Instant::now();
    let lines = Mutex::new(Vec::new());
    let mut commands = job.before.iter_mut().chain([&mut job.command]);
    let complaint = commands.find_map(|command| run_command(&job.name, command, &lines));
    JobReport {
        name: job.name.clone(),
        seconds: began.elapsed().as_secs(),
        lines: lines.into_inner().expect("no reader panics"),
        complaint,
    }
}

/// Collects what a command of a job prints. Returns a complaint where it fails.
fn run_command(name: &str, command: &mut Command, lines: &Mutex<Vec<String>>) -> Option<String> {
    let outcome = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .and_then(|mut child| {
            let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
            std::thread::scope(|scope| {
                scope.spawn(|| stdout.map(|pipe| read_lines(pipe, lines)));
                scope.spawn(|| stderr.map(|pipe| read_lines(pipe, lines)));
            });
            child.wait()
        });
    match outcome {
        Ok(status) if status.success() => None,
        Ok(status) => Some(format!("failed ({status}): {name}: {}", show(command))),
        Err(source) => Some(start_error(command, source).to_string()),
    }
}

fn read_lines(pipe: impl Read, lines: &Mutex<Vec<String>>) {
    // Lossily: a test may print anything.
    for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        lines.lock().expect("no reader panics").push(line);
    }
}

/// The number before a word, as in `ok. 3 passed; 0 failed`.
fn counted(result: &str, word: &str) -> u64 {
    let words: Vec<&str> = result
        .split(|character: char| !character.is_alphanumeric())
        .collect();
    let number = words.windows(2).find(|pair| pair[1] == word).map(|pair| pair[0]);
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> TestJob {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        TestJob::new(name, command)
    }

    #[test]
    fn counts_and_skips_are_collected_from_all_jobs() {
        let mut tally = RunTally::default();
        let result = "echo 'test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out'";
        let skip = "echo 'test a ... skipped: a: no device' >&2";
        tally.run(
            vec![shell("one", result), shell("other", &format!("{result}; {skip}"))],
            2,
        );
        assert_eq!(tally.counts(), "4 passed, 0 failed, 1 skipped");
        assert_eq!(tally.skipped.iter().collect::<Vec<_>>(), ["other: a: no device"]);
        assert_eq!(tally.conclude(), Ok(()));
    }

    #[test]
    fn one_that_fails_fails_all_and_the_others_run() {
        let mut tally = RunTally::default();
        let passes = "echo 'test result: ok. 1 passed; 0 failed'";
        let fails = "echo 'test result: FAILED. 1 passed; 2 failed'; exit 101";
        tally.run(vec![shell("bad", fails), shell("good", passes)], 1);
        assert_eq!(tally.counts(), "2 passed, 2 failed, 0 skipped");
        assert_eq!(tally.complaints.len(), 1, "{:?}", tally.complaints);
        assert_eq!(tally.conclude(), Err(Vec::new()));
        let mut tally = RunTally::default();
        tally.run(vec![shell("killed", "kill -9 $$")], 1);
        assert_eq!(tally.counts(), "0 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn where_what_comes_before_fails_the_job_has_failed_and_does_not_run() {
        let passes = "echo 'test result: ok. 1 passed; 0 failed'";
        let after = |before: &str| shell("job", passes).after(shell("", before).command);
        let mut tally = RunTally::default();
        tally.run(vec![after("exit 0"), after("exit 3")], 1);
        assert_eq!(tally.counts(), "1 passed, 1 failed, 0 skipped");
        assert!(tally.complaints[0].contains("exit 3"), "{:?}", tally.complaints);
    }

    #[test]
    fn jobs_that_build_run_one_at_a_time_and_the_others_beside_them() {
        let queue = JobQueue::new(vec![
            shell("first build", "").that_builds(),
            shell("second build", "").that_builds(),
            shell("test", ""),
        ]);
        let taken = || queue.take().map(|job| job.name);
        assert_eq!(taken().as_deref(), Some("first build"));
        assert_eq!(taken().as_deref(), Some("test"));
        std::thread::scope(|scope| {
            let second = scope.spawn(taken);
            queue.give_back(JobBuilds::Nothing);
            std::thread::yield_now();
            assert!(!second.is_finished(), "two build at once");
            queue.give_back(JobBuilds::InTarget);
            assert_eq!(second.join().unwrap().as_deref(), Some("second build"));
        });
        assert_eq!(taken(), None);
    }

    /// Jobs that fail when they run for the first time in this folder.
    fn fail_at_first(folder: &std::path::Path, count: usize) -> Vec<TestJob> {
        let script = |job: usize| {
            let mark = folder.join(job.to_string());
            format!(
                "test -e {mark:?} && exec echo 'test result: ok. 1 passed; 0 failed'; touch {mark:?}; exit 101"
            )
        };
        let jobs = (0..count).map(|job| TestJob {
            repeat: JobRepeat::OnceAlone,
            ..shell(&format!("job {job}"), &script(job))
        });
        jobs.collect()
    }

    #[test]
    fn few_that_fail_beside_others_are_repeated_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut tally = RunTally::default();
        tally.run(fail_at_first(folder.path(), UNSTABLE_MAX), 2);
        tally.repeat_alone();
        assert_eq!(tally.counts(), "2 passed, 0 failed, 0 skipped");
        assert_eq!(tally.unstable.len(), UNSTABLE_MAX);
        assert_eq!(tally.conclude(), Ok(()));
        let folder = tempfile::tempdir().unwrap();
        let mut tally = RunTally::default();
        tally.run(fail_at_first(folder.path(), UNSTABLE_MAX + 1), 2);
        tally.repeat_alone();
        assert_eq!(tally.counts(), "0 passed, 3 failed, 0 skipped");
        let mut tally = RunTally::default();
        let mut job = shell("bad", "exit 101");
        job.repeat = JobRepeat::OnceAlone;
        tally.run(vec![job], 1);
        tally.repeat_alone();
        assert_eq!(tally.counts(), "0 passed, 1 failed, 0 skipped");
        assert_eq!(tally.conclude(), Err(Vec::new()));
    }
}
