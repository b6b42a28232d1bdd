//! Processes of a setup: this program again in another role, or another program, each dying with the bench.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions};

use crate::failure::{Doing, Failure};
use crate::link::Host;
use crate::report::Watched;
use crate::roles::Role;

/// How long a process may take to say that it is ready.
const READY_TIME_MAX: Duration = Duration::from_secs(15);
/// How long a process may take to end after SIGTERM.
const END_TIME_MAX: Duration = Duration::from_secs(5);
/// What a role prints, before where it can be reached, when it is ready.
const READY: &str = "ready ";

/// Variables of a process's environment.
pub(crate) type Environment = BTreeMap<String, PathBuf>;

/// A running process of a setup; it is ended when this is dropped.
pub(crate) struct Process {
    name: String,
    child: Child,
    output: BufReader<ChildStdout>,
    /// What those that replace it are called with.
    successors: Option<PathBuf>,
}

impl Process {
    /// Starts this program in a role.
    pub(crate) fn start(name: &str, role: &Role) -> Result<Process, Failure> {
        Process::start_in(name, role, &Environment::new())
    }

    /// Starts this program in a role, with more in its environment.
    pub(crate) fn start_in(name: &str, role: &Role, environment: &Environment) -> Result<Process, Failure> {
        let program = std::env::current_exe().doing(|| "find this program".into())?;
        let role = serde_json::to_string(role).map_err(|error| Failure::role(name, error.to_string()))?;
        let mut command = Command::new(program);
        command
            .args(["role", &role])
            .envs(environment)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = command.spawn().doing(|| format!("start {name}"))?;
        let output = child
            .stdout
            .take()
            .ok_or_else(|| Failure::role(name, "has no output"))?;
        Ok(Process {
            name: name.into(),
            child,
            output: BufReader::new(output),
            successors: None,
        })
    }

    /// Starts this program in a role and waits until it says where it can be reached.
    pub(crate) fn start_ready(name: &str, role: &Role) -> Result<(Process, String), Failure> {
        Process::start_ready_in(name, role, &Environment::new())
    }

    /// As [`Process::start_ready`], with more in its environment.
    pub(crate) fn start_ready_in(
        name: &str,
        role: &Role,
        environment: &Environment,
    ) -> Result<(Process, String), Failure> {
        let mut process = Process::start_in(name, role, environment)?;
        let line = process.line()?;
        match line.strip_prefix(READY) {
            Some(address) => Ok((process, address.to_string())),
            None => Err(Failure::role(
                name,
                format!("said '{line}' instead of being ready"),
            )),
        }
    }

    /// Starts another program on a host, its output into `log`.
    pub(crate) fn start_program(
        name: &str,
        host: &Host,
        program: &Path,
        arguments: &[String],
        log: &Path,
    ) -> Result<Process, Failure> {
        let role = Role::Program {
            host: host.clone(),
            program: program.into(),
            arguments: arguments.to_vec(),
            log: log.into(),
        };
        Process::start(name, &role)
    }

    /// Ends, when this is dropped, also those that have replaced it and have this argument ([`adopt_orphans`]).
    pub(crate) fn end_with_it(&mut self, argument: &Path) {
        self.successors = Some(argument.into());
    }

    /// Waits until something accepts connections, as long as the process lives.
    pub(crate) fn wait_for(
        &mut self,
        what: &str,
        mut reachable: impl FnMut() -> bool,
    ) -> Result<(), Failure> {
        let began = Instant::now();
        while !reachable() {
            let ended = self
                .child
                .try_wait()
                .doing(|| format!("wait for {}", self.name))?;
            if let Some(status) = ended {
                return Err(Failure::role(
                    &self.name,
                    format!("ended ({status}) before {what}"),
                ));
            }
            if began.elapsed() > READY_TIME_MAX {
                return Err(Failure::role(
                    &self.name,
                    format!("{what}: not within {READY_TIME_MAX:?}"),
                ));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The next line of its output.
    pub(crate) fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.output
            .read_line(&mut line)
            .doing(|| format!("read what {} says", self.name))?;
        if line.is_empty() {
            Err(Failure::role(&self.name, "ended without a word"))
        } else {
            Ok(line.trim_end_matches('\n').to_string())
        }
    }

    /// The rest of its output, once it has ended.
    pub(crate) fn finish(mut self) -> Result<String, Failure> {
        let mut text = String::new();
        self.output
            .read_to_string(&mut text)
            .doing(|| format!("read what {} says", self.name))?;
        let status = self.child.wait().doing(|| format!("wait for {}", self.name))?;
        if status.success() {
            Ok(text)
        } else {
            Err(Failure::role(&self.name, format!("failed ({status})")))
        }
    }

    /// Its name and id.
    pub(crate) fn watched(&self) -> Watched {
        Watched {
            name: self.name.clone(),
            pid: self.child.id(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
        if let Some(argument) = &self.successors {
            end_orphans_called_with(argument);
        }
    }
}

impl Process {
    fn end(&mut self) {
        if let Ok(Some(_)) = self.child.try_wait() {
            return;
        }
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            // It may have ended by itself since.
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
        let end = Instant::now() + END_TIME_MAX;
        while Instant::now() < end {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Has this process take in what its processes leave behind when they end, such as the daemon that has replaced one.
pub(crate) fn adopt_orphans() -> Result<(), Failure> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .doing(|| "take in processes that others leave behind".into())
}

/// Ends the children of this process that were started with an argument: those that [`adopt_orphans`] has taken in.
fn end_orphans_called_with(argument: &Path) {
    let is_called_so = |pid: &Pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0)
            .any(|word| word == argument.as_os_str().as_bytes())
    };
    for pid in children().into_iter().filter(is_called_so) {
        // It may have ended by itself since.
        let _ = rustix::process::kill_process(pid, Signal::TERM);
        let end = Instant::now() + END_TIME_MAX;
        while let Ok(None) = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG) {
            if Instant::now() >= end {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
                let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn children() -> Vec<Pid> {
    let own = rustix::process::getpid().to_string();
    let names = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = names.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    let is_child = |pid: &Pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // `pid (name) state parent …`, and the name may be anything.
        let parent = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(1));
        parent == Some(&own)
    };
    pids.filter(is_child).collect()
}

/// Says, in a role's process, where it can be reached.
pub(crate) fn say_ready(address: impl std::fmt::Display) {
    println!("{READY}{address}");
}

/// Asks the kernel to end this process with the one that started it.
pub(crate) fn die_with_parent() -> Result<(), Failure> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .doing(|| "ask to die with the bench".into())
}

pub(crate) fn become_program(program: &Path, arguments: &[String], log: &Path) -> Result<(), Failure> {
    let output = std::fs::File::create(log).doing(|| format!("write {}", log.display()))?;
    let errors = output.try_clone().doing(|| format!("write {}", log.display()))?;
    let error = Command::new(program)
        .args(arguments)
        .stdout(output)
        .stderr(errors)
        .exec();
    Err(error).doing(|| format!("start {}", program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_leaves_behind_is_ended() {
        adopt_orphans().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let argument = folder.path().join("orphan");
        let status = Command::new("sh")
            .args(["-c", "sh -c 'while sleep 0.1; do :; done' \"$0\" & exit 0"])
            .arg(&argument)
            .status();
        assert!(status.unwrap().success());
        let orphans = || {
            let is_ours = |pid: &Pid| {
                let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                let text = String::from_utf8_lossy(&line).into_owned();
                text.contains(&*argument.to_string_lossy())
            };
            children().into_iter().filter(is_ours).count()
        };
        let began = Instant::now();
        while orphans() == 0 {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "no orphan was taken in"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        end_orphans_called_with(&argument);
        assert_eq!(orphans(), 0);
    }
}
