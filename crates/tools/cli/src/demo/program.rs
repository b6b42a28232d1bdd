//! A program that the demonstration started: talk to it, and stop it.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command as Process};
use tokio::time::{sleep, timeout};

use super::DemoError;
use super::progress::Progress;
use super::wire::{Command, Event};

/// How long a program may take to get ready.
const READY_WITHIN: Duration = Duration::from_secs(10);
/// How long a program may take for one command.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);
/// How long a program may take to end when it is asked to.
const END_WITHIN: Duration = Duration::from_secs(5);
/// How often it is looked whether a process that is not a child has ended.
const SUCCESSOR_POLL: Duration = Duration::from_millis(10);
/// How much of a failed program's log is shown, in lines.
const LOG_LINES_SHOWN: usize = 12;

/// How a program is asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// By the end of its input.
    EndOfInput,
    /// By SIGTERM, as an operator ends `provostd`.
    Terminate,
}

pub(crate) struct Role<'a> {
    /// What people call the program.
    pub(crate) name: &'static str,
    /// Arguments of this executable that make it that program.
    pub(crate) arguments: Vec<OsString>,
    pub(crate) ending: Ending,
    /// Environment variables to set.
    pub(crate) environment: Vec<(&'static str, &'a Path)>,
}

pub(crate) struct Program {
    name: &'static str,
    process: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
    ending: Ending,
    /// The process that has taken the place of the one that was started, and is nobody's child.
    successor: Option<Pid>,
    /// Where it listens, if it does.
    pub(crate) address: Option<String>,
}

impl Program {
    /// Starts a program and waits until it is ready. Its log goes to a file in `directory`.
    pub(crate) async fn start(role: Role<'_>, directory: &Path) -> Result<Program, DemoError> {
        let name = role.name;
        let log = directory.join(format!("{}.log", name.replace(' ', "-")));
        let mut program = Self::spawn(role, log).map_err(|source| DemoError::Start { name, source })?;
        match timeout(READY_WITHIN, program.next_event()).await {
            Ok(Ok(Event::Ready { address })) => program.address = address,
            Ok(Ok(Event::Failed { message })) => return Err(DemoError::Failed { name, message }),
            Ok(Ok(other)) => {
                return Err(DemoError::Answer {
                    name,
                    got: format!("{other:?}"),
                });
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(program.slow("get ready")),
        }
        Ok(program)
    }

    fn spawn(role: Role<'_>, log: PathBuf) -> io::Result<Program> {
        let mut process = Process::new(std::env::current_exe()?)
            .args(role.arguments)
            .envs(role.environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            // A group of its own: Ctrl-C on the terminal is for the demonstration, which then ends its programs.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let input = process.stdin.take();
        let output = process.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Program {
            name: role.name,
            process,
            input,
            output: BufReader::new(output).lines(),
            log,
            ending: role.ending,
            successor: None,
            address: None,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        match self.successor {
            Some(successor) => successor.as_raw_pid() as u32,
            None => self.process.id().unwrap_or(0),
        }
    }

    /// Another process has taken its place.
    pub(crate) fn was_replaced_by(&mut self, successor: Option<u32>) {
        self.successor = successor.and_then(|pid| Pid::from_raw(pid as i32));
    }

    /// Has the program carry out a command; shows its progress as `phase`.
    pub(crate) async fn ask(
        &mut self,
        command: Command,
        phase: &str,
        progress: &mut Progress,
    ) -> Result<Event, DemoError> {
        match timeout(ANSWER_WITHIN, self.exchange(command, phase, progress)).await {
            Ok(answer) => answer,
            Err(_) => Err(self.slow(phase)),
        }
    }

    async fn exchange(
        &mut self,
        command: Command,
        phase: &str,
        progress: &mut Progress,
    ) -> Result<Event, DemoError> {
        self.send(command).await?;
        loop {
            match self.next_event().await? {
                Event::Progress { done, total } => progress.at(phase, done, total),
                Event::Failed { message } => {
                    return Err(DemoError::Failed {
                        name: self.name,
                        message,
                    });
                }
                event => return Ok(event),
            }
        }
    }

    async fn send(&mut self, command: Command) -> Result<(), DemoError> {
        let mut line = serde_json::to_string(&command).map_err(|error| self.bad_line(&error))?;
        line.push('\n');
        let written = match &mut self.input {
            Some(input) => input.write_all(line.as_bytes()).await,
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        match written {
            Ok(()) => Ok(()),
            Err(_) => Err(self.died().await),
        }
    }

    async fn next_event(&mut self) -> Result<Event, DemoError> {
        match self.output.next_line().await {
            Ok(Some(line)) => serde_json::from_str(&line).map_err(|error| self.bad_line(&error)),
            Ok(None) | Err(_) => Err(self.died().await),
        }
    }

    fn bad_line(&self, error: &serde_json::Error) -> DemoError {
        DemoError::Answer {
            name: self.name,
            got: error.to_string(),
        }
    }

    fn slow(&self, what: &str) -> DemoError {
        DemoError::Slow {
            name: self.name,
            what: what.to_owned(),
            log: self.log_tail(),
        }
    }

    async fn died(&mut self) -> DemoError {
        let end = match timeout(END_WITHIN, self.process.wait()).await {
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "closed its output".to_owned(),
        };
        DemoError::Died {
            name: self.name,
            end,
            log: self.log_tail(),
        }
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let shown = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
        shown.iter().map(|line| format!("\n    {line}")).collect()
    }

    /// Ends the program the way it is meant to end, and by force when it does not.
    pub(crate) async fn stop(mut self) -> Result<(), DemoError> {
        drop(self.input.take());
        if self.ending == Ending::Terminate
            && let Some(pid) = Pid::from_raw(self.pid() as i32)
        {
            // When the process is gone already, waiting for it says so.
            let _ = kill_process(pid, Signal::TERM);
        }
        self.successor_ended().await?;
        match timeout(END_WITHIN, self.process.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(self.ended_badly(status)),
            Ok(Err(source)) => Err(DemoError::Start {
                name: self.name,
                source,
            }),
            Err(_) => {
                let error = self.slow("end");
                // It is gone or about to be: nothing to do about an error.
                let _ = self.process.kill().await;
                Err(error)
            }
        }
    }

    /// Waits for the end of the process that has taken the place, and ends it by force when it does not come.
    async fn successor_ended(&self) -> Result<(), DemoError> {
        let Some(successor) = self.successor else {
            return Ok(());
        };
        let end = Instant::now() + END_WITHIN;
        while test_kill_process(successor).is_ok() {
            if Instant::now() >= end {
                let _ = kill_process(successor, Signal::KILL);
                return Err(self.slow("end"));
            }
            sleep(SUCCESSOR_POLL).await;
        }
        Ok(())
    }

    fn ended_badly(&self, status: ExitStatus) -> DemoError {
        DemoError::Died {
            name: self.name,
            end: status.to_string(),
            log: self.log_tail(),
        }
    }
}
