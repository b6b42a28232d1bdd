//! What a program writes to its standard output, line by line, with a limit on the wait.

use std::io::{BufRead, BufReader};
use std::process::ChildStdout;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

/// Lines that nobody has read yet, at most; a program that writes more waits.
const LINES_MAX: usize = 1024;

/// Lines of a program, as they come.
#[derive(Debug)]
pub(crate) struct Lines {
    lines: Receiver<String>,
}

impl Lines {
    pub(crate) fn of(output: ChildStdout) -> Lines {
        let (send, lines) = sync_channel(LINES_MAX);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Lines { lines }
    }

    pub(crate) fn next_within(&self, limit: Duration) -> Option<String> {
        self.lines.recv_timeout(limit).ok()
    }
}
