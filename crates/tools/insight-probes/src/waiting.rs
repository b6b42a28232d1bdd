//! A program for tests that look at one that runs.

use std::path::Path;
use std::process::{Child, Command};

/// A program that waits; it ends with this.
pub(crate) struct WaitingProgram(Child);

impl WaitingProgram {
    /// Copies one to a path, and runs it.
    pub(crate) fn at(path: &Path) -> WaitingProgram {
        std::fs::copy("/bin/sleep", path).unwrap();
        WaitingProgram(Command::new(path).arg("1000").spawn().unwrap())
    }

    /// The number of its process.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for WaitingProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
