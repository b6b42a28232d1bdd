//! What apps that come and go have the node log: no more than the share of their user.

mod support;

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use support::*;

/// Lines that a user has at once, and in a second.
const LINES_AT_ONCE: f64 = 400.0;
const LINES_PER_SECOND: f64 = 80.0;
/// Apps that each do one thing for which they are detached.
const APPS: usize = 900;

static LINES: AtomicUsize = AtomicUsize::new(0);

/// Counts the lines about faults.
struct FaultLines;

impl Write for FaultLines {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let line = String::from_utf8_lossy(line);
        LINES.fetch_add(usize::from(line.contains("detaching an app")), Ordering::Relaxed);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_app_that_attaches_anew_for_each_fault_has_its_users_share_of_the_log() {
    tracing_subscriber::fmt().with_writer(|| FaultLines).init();
    let node = TestNode::start();
    let began = Instant::now();
    for number in 0..APPS {
        let mut app = TestApp::attach(&node);
        if number % 2 == 0 {
            app.control.send(&[0xff; 30], &[]).expect("a packet");
        } else {
            // A descriptor of no kind.
            app.push([0; 8]);
        }
        assert!(app.is_detached());
    }
    let lines = LINES.load(Ordering::Relaxed) as f64;
    let most = LINES_AT_ONCE + LINES_PER_SECOND * began.elapsed().as_secs_f64();
    println!("{lines} of at most {most} lines");
    assert!(
        lines > 100.0 && lines <= most + 1.0,
        "{lines} of at most {most} lines"
    );
}
