//! The standard details of errors, `google.rpc`'s, and how a [`Status`](crate::Status) carries them.
//!
//! A status has any number of details, each a message: one of these, or one of a schema of one's own. They travel as gRPC
//! has it (`grpc-status-details-bin`), so that gRPC's libraries read them, and a client reads those of any gRPC server.
//!
//! ```
//! use std::time::Duration;
//! use provost::error_details::{BadRequest, ErrorInfo, RetryInfo};
//! use provost::Status;
//!
//! let status = Status::invalid_argument("the entry is no good")
//!     .with_detail(&BadRequest::from_iter([("entry.key", "is empty")]))
//!     .with_detail(&ErrorInfo::new("EMPTY_KEY", "kv.example.org"));
//!
//! let bad: BadRequest = status.detail().expect("the server says which field");
//! assert_eq!(bad.field_violations[0].field, "entry.key");
//! assert_eq!(status.detail::<RetryInfo>(), None);
//! assert_eq!(Status::unavailable("later").with_detail(&RetryInfo::after(Duration::from_secs(3))).retry_delay(), Some(Duration::from_secs(3)));
//! ```
//!
//! | detail | with the codes | says |
//! |---|---|---|
//! | [`ErrorInfo`] | all | the cause, for programs |
//! | [`BadRequest`] | `INVALID_ARGUMENT` | which fields are wrong |
//! | [`RetryInfo`] | `UNAVAILABLE`, `RESOURCE_EXHAUSTED` | when to try again |
//! | [`QuotaFailure`] | `RESOURCE_EXHAUSTED` | which quotas are used up |
//! | [`PreconditionFailure`] | `FAILED_PRECONDITION` | what has to be put right first |
//! | [`ResourceInfo`] | `NOT_FOUND`, `ALREADY_EXISTS`, `PERMISSION_DENIED` | what it was about |
//! | [`RequestInfo`] | all | by what the server's logs know the request |
//! | [`Help`] | all | where to read on |
//! | [`LocalizedMessage`] | all | a message for the user |
//! | [`DebugInfo`] | `INTERNAL` | where it went wrong in the server; not for everybody's eyes |

mod status;

use crate::shared::String;

include!("generated.rs");

impl ErrorInfo {
    /// A cause, and who gives such causes.
    #[must_use]
    pub fn new(reason: impl Into<String>, domain: impl Into<String>) -> ErrorInfo {
        ErrorInfo {
            reason: reason.into(),
            domain: domain.into(),
            ..ErrorInfo::default()
        }
    }
}

impl RetryInfo {
    /// Says to wait for so long.
    #[must_use]
    pub fn after(delay: std::time::Duration) -> RetryInfo {
        RetryInfo {
            retry_delay: delay.into(),
        }
    }
}

/// From paths of fields, with what is wrong with each.
impl<F: Into<String>, D: Into<String>> FromIterator<(F, D)> for BadRequest {
    fn from_iter<I: IntoIterator<Item = (F, D)>>(violations: I) -> BadRequest {
        let violation = |(field, description): (F, D)| bad_request::FieldViolation {
            field: field.into(),
            description: description.into(),
            ..bad_request::FieldViolation::default()
        };
        BadRequest {
            field_violations: violations.into_iter().map(violation).collect(),
        }
    }
}

/// From subjects, with what each has used up.
impl<S: Into<String>, D: Into<String>> FromIterator<(S, D)> for QuotaFailure {
    fn from_iter<I: IntoIterator<Item = (S, D)>>(violations: I) -> QuotaFailure {
        let violation = |(subject, description): (S, D)| quota_failure::Violation {
            subject: subject.into(),
            description: description.into(),
            ..quota_failure::Violation::default()
        };
        QuotaFailure {
            violations: violations.into_iter().map(violation).collect(),
        }
    }
}

/// From descriptions of pages, with their addresses.
impl<D: Into<String>, U: Into<String>> FromIterator<(D, U)> for Help {
    fn from_iter<I: IntoIterator<Item = (D, U)>>(links: I) -> Help {
        let link = |(description, url): (D, U)| help::Link {
            description: description.into(),
            url: url.into(),
        };
        Help {
            links: links.into_iter().map(link).collect(),
        }
    }
}
