//! A node's service for integration tests of applications: [`TestNode`] starts a `provostd` of its own, in a temporary
//! directory, and ends it when the test does.
//!
//! ```no_run
//! let node = provost_test::TestNode::start()?;
//! let app = node.app()?;
//! // Server::builder().app(&app)…, Channel::builder(&SERVICE).app(&app)…
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! Tests of handlers alone need no node: see `Channel::in_process` of `provost`. Tests of what calls a service need no service:
//! see [`MockService`].
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod binary;
mod mock;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use provost::{App, Code, Status};
use tempfile::TempDir;

pub use mock::{MockAnswer, MockMessage, MockMethod, MockService};

/// How long a node may take to be ready.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// How often it is looked at until then.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Ends the process that its argument names, once its input ends: when the test is gone, however that came.
const WATCHDOG: &str = "cat >/dev/null; kill -KILL \"$0\" 2>/dev/null";

/// A node's service that serves this test alone, until it is dropped.
#[derive(Debug)]
pub struct TestNode {
    daemon: Child,
    watchdog: Child,
    directory: TempDir,
}

/// Says which program a [`TestNode`] runs, and how it is configured.
#[derive(Clone, Debug, Default)]
pub struct TestNodeBuilder {
    binary: Option<PathBuf>,
    tables: String,
}

/// Why there is no [`TestNode`].
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no program `provostd` in any of the usual places.
    #[error(
        "no provostd: name it by PROVOSTD_BIN, put it in PATH, or build it (cargo build --bins -p provostd)"
    )]
    NoBinary,
    /// A file could not be written, or a program could not be started.
    #[error("cannot start {what}: {error}")]
    Io {
        /// The file or the program.
        what: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// The node has ended, or is not ready in time.
    #[error("the node is not ready: {reason}\n{log}")]
    NotReady {
        /// What it came to.
        reason: String,
        /// All that it has logged.
        log: String,
    },
}

impl TestNode {
    /// Starts a node with the default configuration, and waits until apps can attach.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start() -> Result<TestNode, StartError> {
        TestNode::builder().start()
    }

    /// Says what to start.
    #[must_use]
    pub fn builder() -> TestNodeBuilder {
        TestNodeBuilder::default()
    }

    /// The socket that apps attach to: for `AppBuilder::socket`, or the variable `PROVOST_SOCKET` of programs that the test
    /// starts.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("node.sock")
    }

    /// The socket of the admin API: the variable `PROVOST_ADMIN_SOCKET` for the program `provost`.
    #[must_use]
    pub fn admin_socket(&self) -> PathBuf {
        self.directory.path().join("node.admin.sock")
    }

    /// A directory that goes with the node.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The number of the node's process.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.daemon.id()
    }

    /// Attaches another app.
    ///
    /// # Errors
    /// If the node refuses it.
    pub fn app(&self) -> Result<App, Status> {
        App::builder().socket(self.socket()).attach()
    }

    /// All that the node has logged.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("node.log")).unwrap_or_default()
    }

    /// Waits until apps can attach.
    fn wait(&mut self) -> Result<(), StartError> {
        let begin = Instant::now();
        loop {
            let refused = match self.app() {
                Ok(_) => return Ok(()),
                // It has [[app]] tables, and judges by them: so it serves.
                Err(status) if status.code() == Code::PermissionDenied => return Ok(()),
                Err(status) => status,
            };
            let ended = self.daemon.try_wait().ok().flatten();
            if ended.is_some() || begin.elapsed() > READY_WITHIN {
                return Err(StartError::NotReady {
                    reason: ended.map_or(refused.to_string(), |status| status.to_string()),
                    log: self.log(),
                });
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl TestNodeBuilder {
    /// The program to run. Without it: the one that `PROVOSTD_BIN` names, one that cargo has built beside the test, or one in
    /// `PATH`.
    #[must_use]
    pub fn binary(mut self, path: impl Into<PathBuf>) -> TestNodeBuilder {
        self.binary = Some(path.into());
        self
    }

    /// Further tables of its configuration, in TOML, such as `[[route]]` or `[[policy]]`.
    #[must_use]
    pub fn tables(mut self, tables: impl Into<String>) -> TestNodeBuilder {
        self.tables = tables.into();
        self
    }

    /// Starts the node, and waits until apps can attach.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(self) -> Result<TestNode, StartError> {
        let binary = self.binary.or_else(binary::find).ok_or(StartError::NoBinary)?;
        let directory = tempfile::Builder::new().prefix("provost-test-").tempdir();
        let directory = directory.map_err(|error| cannot_start("a directory", error))?;
        let (config, log) = (
            directory.path().join("node.toml"),
            directory.path().join("node.log"),
        );
        let text = format!(
            "[node]\nname = \"test\"\n[control]\nsocket = '{}'\n{}",
            directory.path().join("node.sock").display(),
            self.tables
        );
        std::fs::write(&config, text).map_err(|error| cannot_start("the configuration", error))?;
        let log = std::fs::File::create(&log).map_err(|error| cannot_start("the log", error))?;
        let mut daemon = Command::new(&binary);
        daemon.arg("--config").arg(&config);
        daemon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut daemon = daemon
            .spawn()
            .map_err(|error| cannot_start(&binary.display().to_string(), error))?;
        let watchdog = watchdog(daemon.id()).inspect_err(|_| end(&mut daemon))?;
        let mut node = TestNode {
            daemon,
            watchdog,
            directory,
        };
        node.wait()?;
        Ok(node)
    }
}

fn watchdog(process: u32) -> Result<Child, StartError> {
    let mut watchdog = Command::new("sh");
    watchdog.args(["-c", WATCHDOG, &process.to_string()]);
    watchdog
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    watchdog.spawn().map_err(|error| cannot_start("sh", error))
}

fn cannot_start(what: &str, error: std::io::Error) -> StartError {
    StartError::Io {
        what: what.to_owned(),
        error,
    }
}

/// Kills a process and waits until it is gone. Both fail only when it is gone already.
fn end(process: &mut Child) {
    let _ = process.kill();
    let _ = process.wait();
}

impl Drop for TestNode {
    fn drop(&mut self) {
        // The watchdog first: the number of the daemon may be another's once it is gone.
        end(&mut self.watchdog);
        end(&mut self.daemon);
        if std::thread::panicking() {
            eprintln!("--- log of the node:\n{}", self.log());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_ends_with_the_test_however_that_ends() {
        let mut daemon = Command::new("sleep").arg("600").spawn().unwrap();
        let mut watchdog = watchdog(daemon.id()).unwrap();
        assert!(daemon.try_wait().unwrap().is_none());
        // What the kernel does when the test is killed.
        drop(watchdog.stdin.take());
        assert!(!daemon.wait().unwrap().success());
        watchdog.wait().unwrap();
    }
}
