//! For tests that cannot run everywhere: each says `skipped: <test>: <reason>` on the standard error, past what the test
//! harness captures, and returns.
//!
//! With `PROVOST_STRICT` in the environment, as continuous integration has it, a tool that is missing fails the test: it
//! can be installed. What the kernel forbids is skipped all the same.
#![forbid(unsafe_code)]

use std::fmt::Display;
use std::io::{Error, ErrorKind, Write};

/// With this in the environment, no test is skipped for want of a tool.
pub const STRICT: &str = "PROVOST_STRICT";

/// A program, a library or a file is missing that one can install or build.
///
/// # Panics
///
/// With [`STRICT`] in the environment.
pub fn missing(tool: &str, remedy: &str) {
    tool_missing(&format!("{tool} is missing ({remedy})"), strict_mode());
}

/// The kernel, or the rights of this process, do not allow what the test is about.
pub fn forbidden(reason: impl Display) {
    say(&reason.to_string());
}

/// An error of what the test needs: that of a kernel that refuses is a reason to skip, anything else is a tool that is
/// missing or does not work.
///
/// # Panics
///
/// With [`STRICT`] in the environment, unless the kernel refuses.
pub fn error(error: &Error) {
    if is_refusal(error) {
        forbidden(error);
    } else {
        tool_missing(&error.to_string(), strict_mode());
    }
}

/// Whether the kernel refused, rather than a tool being missing or broken.
fn is_refusal(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported)
}

fn tool_missing(reason: &str, strict_mode: StrictMode) {
    assert!(
        strict_mode == StrictMode::ToolsMayBeMissing,
        "{reason}, and {STRICT} is set"
    );
    say(reason);
}

/// What a run of the tests may lack.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StrictMode {
    ToolsMayBeMissing,
    ToolsMustBeThere,
}

fn strict_mode() -> StrictMode {
    match std::env::var_os(STRICT) {
        Some(value) if value != "0" => StrictMode::ToolsMustBeThere,
        _ => StrictMode::ToolsMayBeMissing,
    }
}

/// Written to the stream itself: the harness keeps what `eprintln` prints of a test that passes.
fn say(reason: &str) {
    let thread = std::thread::current();
    // The harness gives each test a thread with its name.
    let test = thread.name().unwrap_or("a thread of a test");
    // Nobody is left to tell when this fails.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "PROVOST_STRICT is set")]
    fn strictly_a_missing_tool_fails_the_test() {
        tool_missing("no such tool", StrictMode::ToolsMustBeThere);
    }

    #[test]
    fn only_the_kernel_refuses() {
        let refuses = |kind: ErrorKind| is_refusal(&Error::new(kind, "for this test"));
        assert!(refuses(ErrorKind::PermissionDenied) && refuses(ErrorKind::Unsupported));
        assert!(!refuses(ErrorKind::NotFound) && !refuses(ErrorKind::Other));
    }
}
