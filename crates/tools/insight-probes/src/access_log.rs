//! Reads what Envoy's access log says of the calls of a slice.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use provost_insight::access_log::{LogLineError, LoggedCall};

use crate::failure::{Doing, ProbeFailure};
use crate::stop::StopSignal;

/// Envoy writes what it has logged at least so often, unless it is told otherwise.
const FLUSH_TIME: Duration = Duration::from_secs(10);
/// How long lines are waited for.
const PATIENCE: Duration = FLUSH_TIME.saturating_add(Duration::from_secs(5));
/// How often is looked for more.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// Bytes that are read of the lines of one slice.
const SLICE_BYTES_MAX: u64 = 64 << 20;

/// A log that grows while calls are made.
pub(crate) struct GrowingLog {
    path: PathBuf,
    file: File,
}

/// What the log says of a slice: means over the middle half of the calls, by their time in the proxy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LoggedSlice {
    /// Time in the proxy, request and response, in microseconds.
    pub(crate) proxy_us: f64,
    /// From the end of the request to the begin of the response, in microseconds.
    pub(crate) upstream_us: f64,
    /// Lines that tell it, and those that do not.
    pub(crate) calls: usize,
    pub(crate) untold: usize,
}

impl GrowingLog {
    /// Opens a log, to read what comes from now on.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn from_now(path: &Path) -> Result<GrowingLog, ProbeFailure> {
        let mut file = File::open(path).doing(|| format!("read the access log {}", path.display()))?;
        file.seek(SeekFrom::End(0))
            .doing(|| format!("read the access log {}", path.display()))?;
        let path = path.to_owned();
        Ok(GrowingLog { path, file })
    }

    /// Waits until so many calls were logged, and reads the last ones: what came before may be of calls that were made before.
    ///
    /// # Errors
    /// If there are no lines, or none that tells what they should, or somebody asks to stop.
    pub(crate) fn read_slice(mut self, calls: usize, stop: &StopSignal) -> Result<LoggedSlice, ProbeFailure> {
        let began = Instant::now();
        let mut text = Vec::new();
        loop {
            let left = SLICE_BYTES_MAX.saturating_sub(text.len() as u64);
            (&mut self.file)
                .take(left)
                .read_to_end(&mut text)
                .doing(|| format!("read the access log {}", self.path.display()))?;
            let lines = text.iter().filter(|byte| **byte == b'\n').count();
            if lines >= calls || began.elapsed() > PATIENCE || text.len() as u64 >= SLICE_BYTES_MAX {
                break;
            }
            stop.check()?;
            std::thread::sleep(LOOK_INTERVAL);
        }
        let mut lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
        // What follows the last end of a line is nothing, or a part of a line.
        lines.pop();
        let last = &lines[lines.len().saturating_sub(calls)..];
        logged_slice(last).map_err(|why| ProbeFailure::Unavailable(format!("{}: {why}", self.path.display())))
    }
}

fn logged_slice(lines: &[&[u8]]) -> Result<LoggedSlice, String> {
    let mut calls = Vec::new();
    let mut first_error: Option<LogLineError> = None;
    for line in lines {
        match LoggedCall::parse(line) {
            Ok(call) => calls.push(call),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    if calls.is_empty() {
        let seconds = PATIENCE.as_secs();
        return Err(first_error.map_or_else(
            || {
                format!(
                    "no line came within {seconds} s of the calls: is it this proxy's access log of every call?"
                )
            },
            |error| {
                format!(
                    "no line of {} tells how long a call took in the proxy; the first: {error}; see docs/insight-measuring.md for what \
                     Envoy has to log",
                    lines.len()
                )
            },
        ));
    }
    calls.sort_unstable_by_key(LoggedCall::proxy_ns);
    let quarter = calls.len() / 4;
    let middle = &calls[quarter..calls.len() - quarter];
    let mean_us = |time: fn(&LoggedCall) -> u64| {
        let sum: u64 = middle.iter().map(time).sum();
        sum as f64 / 1e3 / middle.len() as f64
    };
    Ok(LoggedSlice {
        proxy_us: mean_us(LoggedCall::proxy_ns),
        upstream_us: mean_us(|call| call.upstream_ns),
        calls: calls.len(),
        untold: lines.len() - calls.len(),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn line(request_ns: &str, response_ns: u64) -> String {
        format!("{{\"request_ns\":{request_ns},\"upstream_ns\":50000,\"response_ns\":{response_ns}}}\n")
    }

    #[test]
    fn the_last_calls_of_a_log_count_by_their_middle_half() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(line("1", 1).as_bytes()).unwrap();
        let log = GrowingLog::from_now(file.path()).unwrap();
        // One of an earlier load comes late, and the end of the last line is not written yet.
        let lines = ["7", "900000", "40000", "20000", "30000", "\"-\""].map(|time| line(time, 2000));
        file.write_all(lines.concat().as_bytes()).unwrap();
        file.write_all(b"{\"request_ns\"").unwrap();
        let slice = log.read_slice(5, &StopSignal::never()).unwrap();
        let expected = LoggedSlice {
            proxy_us: 37.0,
            upstream_us: 50.0,
            calls: 4,
            untold: 1,
        };
        assert_eq!(slice, expected);
    }

    #[test]
    fn a_log_of_another_form_is_refused_with_what_to_do() {
        let refused = logged_slice(&[b"GET / 200".as_slice()]).unwrap_err();
        assert!(
            refused.contains("request_ns") && refused.contains("docs/insight-measuring.md"),
            "{refused}"
        );
        assert!(logged_slice(&[]).unwrap_err().contains("no line came"));
        let missing = GrowingLog::from_now(Path::new("/nowhere/log"))
            .err()
            .unwrap()
            .to_string();
        assert!(missing.contains("read the access log /nowhere/log"), "{missing}");
    }
}
