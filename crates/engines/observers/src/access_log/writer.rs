//! The thread that makes lines of records and writes them.

use std::io;
use std::time::Duration;

use provost_engine::{Backlog, Drain, DrainOptions, WallClock};
use provost_shm::now_ns;

use crate::access_log::LogFile;
use crate::access_log::filter::LogRecord;
use crate::access_log::line::write_line;

/// Lines that are written at once, at most; as many of one engine wake the writer ahead of its time.
const BATCH_LINES: u16 = 1024;
const STACK_BYTES: usize = 256 << 10;

/// Starts it. A line waits so long for others at most.
pub(crate) fn start(
    backlog: Backlog<LogRecord>,
    mut file: LogFile,
    interval: Duration,
) -> io::Result<Drain<LogRecord>> {
    let options = DrainOptions {
        name: "access-log",
        stack_bytes: STACK_BYTES,
        batch_max: BATCH_LINES.into(),
        records_per_wake: BATCH_LINES.into(),
        interval,
    };
    let mut lines = String::new();
    Drain::start(backlog, options, move |records, _| {
        let wall = WallClock::now(now_ns());
        lines.clear();
        for record in records {
            write_line(record, &wall, &mut lines);
        }
        file.append(lines.as_bytes())
    })
}
