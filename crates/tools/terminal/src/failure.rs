//! Why a command did not do what was asked, and the exit status that says so.

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;

use tonic::Code;

use crate::table::clean;

/// What is said of a method that a daemon does not have.
const OLDER_DAEMON: &str = "the daemon there does not know this request: it is of an earlier version than this command, which \
                            `provost status` tells; have it replaced by `provost daemon upgrade`";

/// What a status's number is added to.
const ENDED_BASE: u8 = 64;

/// What scripts learn of a command by its exit status. `provost --help` and `docs/operations.md` list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It failed otherwise than below.
    Failed,
    /// The command line makes no sense.
    Usage,
    /// The daemon cannot be reached, or is ending.
    Unreachable,
    /// The caller may not do this.
    Denied,
    /// What was asked for is not possible or not valid; nothing was changed.
    Refused,
    /// It was tried, did not work out, and was undone.
    Undone,
    /// There was no answer in time; whether it was done is not known.
    TimedOut,
    /// A call that `provost call` made ended with this status.
    Ended(Code),
}

impl Exit {
    /// The exit status of the program.
    pub fn code(self) -> u8 {
        match self {
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Unreachable => 3,
            Exit::Denied => 4,
            Exit::Refused => 5,
            Exit::Undone => 6,
            Exit::TimedOut => 7,
            Exit::Ended(code) => ENDED_BASE + code as u8,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub exit: Exit,
    /// What failed, where, and what to do.
    pub message: String,
}

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Failure {
        let message = message.into();
        Failure { exit, message }
    }

    pub fn failed(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Failed, message)
    }

    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, message)
    }

    /// What a daemon answered; `place` says which daemon.
    pub fn answered(place: &str, status: &tonic::Status) -> Failure {
        let exit = match status.code() {
            Code::PermissionDenied | Code::Unauthenticated => Exit::Denied,
            Code::Unavailable => Exit::Unreachable,
            // The connection broke: the status is the client library's own.
            _ if is_broken(status) => Exit::Unreachable,
            Code::DeadlineExceeded | Code::Cancelled => Exit::TimedOut,
            Code::Aborted => Exit::Undone,
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::ResourceExhausted
            | Code::Unimplemented => Exit::Refused,
            _ => Exit::Failed,
        };
        let hint = match exit {
            Exit::Unreachable if is_being_replaced(status) => {
                " in a moment, or look at its log if this goes on"
            }
            Exit::Unreachable => ": is provostd ending? Look at its log, or try again",
            Exit::TimedOut => ": it may still be done; look, or allow more time with --timeout",
            _ => "",
        };
        let said = match status.message() {
            // A method that is not there is answered without a word.
            "" if status.code() == Code::Unimplemented => OLDER_DAEMON,
            said => said,
        };
        Failure::new(exit, format!("{place}: {said}{hint}"))
    }

    /// The failure before it, with what it was part of.
    pub fn within(self, what: &str) -> Failure {
        Failure::new(self.exit, format!("{what}: {}", self.message))
    }

    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.exit.code())
    }
}

/// Whether a node refuses a change before it has begun, as a new process is about to take over.
pub(crate) fn is_being_replaced(status: &tonic::Status) -> bool {
    status.code() == Code::Unavailable && status.message() == "the service is being replaced: ask again"
}

/// Whether a status was made here, because the connection to the daemon has gone.
pub(crate) fn is_broken(status: &tonic::Status) -> bool {
    causes(status).any(|cause| cause.is::<tonic::transport::Error>() || cause.is::<std::io::Error>())
}

/// Whether a status was made here, because the time that its call was given is over: gRPC's library counts it too, and calls that
/// CANCELLED.
pub fn is_expired(status: &tonic::Status) -> bool {
    causes(status).any(|cause| cause.is::<tonic::TimeoutExpired>())
}

fn causes(status: &tonic::Status) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(status.source(), |cause| Error::source(*cause))
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

/// Reports how a program's command ended, and returns its exit status.
pub fn conclude(ended: Result<(), Failure>) -> ExitCode {
    let Err(failure) = ended else {
        return ExitCode::SUCCESS;
    };
    let is_json = std::env::args().any(|argument| argument == "--json");
    report(&failure, is_json);
    failure.exit_code()
}

/// To standard error, for people; with `--json` as one object.
fn report(failure: &Failure, is_json: bool) {
    if is_json {
        let error =
            serde_json::json!({ "error": { "exit": failure.exit.code(), "message": failure.message } });
        complain(&error.to_string());
    } else {
        complain(&format!("provost: {}", clean_lines(&failure.message)));
    }
}

/// Writes to standard error. Whether somebody reads that changes nothing.
pub fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// A message of a node or a peer has no control characters, but may have lines.
fn clean_lines(message: &str) -> String {
    let lines: Vec<_> = message.lines().map(clean).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_become_exit_codes_and_say_where() {
        let failure = |status| Failure::answered("/run/a.sock", &status);
        let denied = failure(tonic::Status::permission_denied("needs operate"));
        assert_eq!(denied.exit, Exit::Denied);
        assert_eq!(denied.message, "/run/a.sock: needs operate");
        assert_eq!(failure(tonic::Status::aborted("x")).exit.code(), 6);
        assert_eq!(failure(tonic::Status::not_found("x")).exit.code(), 5);
        assert_eq!(failure(tonic::Status::internal("x")).exit.code(), 1);
        let unknown = failure(tonic::Status::unimplemented(""));
        assert!(unknown.exit == Exit::Refused && unknown.message.contains("an earlier version"));
        assert!(
            !failure(tonic::Status::unimplemented("x"))
                .message
                .contains("version")
        );
        assert_eq!(Exit::Ended(Code::NotFound).code(), 69);
        assert!(
            failure(tonic::Status::deadline_exceeded("x"))
                .message
                .contains("--timeout")
        );
        let replaced = failure(tonic::Status::unavailable(
            "the service is being replaced: ask again",
        ));
        let said = "/run/a.sock: the service is being replaced: ask again in a moment, or look at its log if this goes on";
        assert_eq!((replaced.exit, &*replaced.message), (Exit::Unreachable, said));
    }
}
