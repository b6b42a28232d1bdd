//! A refusal with standard details, as Provost's library writes and reads it, and as a program that has `google.rpc`'s messages from
//! prost does.

use std::time::Duration;

use prost::Message;
use provost::error_details::{BadRequest, RetryInfo};
use provost::{Code, Status};

const MESSAGE: &str = "no good";
const FIELD: &str = "entry.key";
const DESCRIPTION: &str = "is empty";
const RETRY_SECONDS: u64 = 7;

#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

#[derive(Clone, PartialEq, Message)]
struct RpcBadRequest {
    #[prost(message, repeated, tag = "1")]
    field_violations: Vec<RpcFieldViolation>,
}

#[derive(Clone, PartialEq, Message)]
struct RpcFieldViolation {
    #[prost(string, tag = "1")]
    field: String,
    #[prost(string, tag = "2")]
    description: String,
}

#[derive(Clone, PartialEq, Message)]
struct RpcRetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<prost_types::Duration>,
}

/// The refusal of a program that uses the library.
pub(crate) fn librarys() -> Status {
    Status::invalid_argument(MESSAGE)
        .with_detail(&BadRequest::from_iter([(FIELD, DESCRIPTION)]))
        .with_detail(&RetryInfo::after(Duration::from_secs(RETRY_SECONDS)))
}

/// What the library finds in the details that came.
pub(crate) fn assert_library_reads(details: Vec<u8>) {
    let status = Status::with_details(Code::InvalidArgument, MESSAGE, details);
    let bad: BadRequest = status.detail().expect("a BadRequest");
    let violation = &bad.field_violations[0];
    assert_eq!((&*violation.field, &*violation.description), (FIELD, DESCRIPTION));
    assert_eq!(status.retry_delay(), Some(Duration::from_secs(RETRY_SECONDS)));
}

/// The details of the same refusal of a program that knows nothing of Provost.
pub(crate) fn others() -> Vec<u8> {
    let any = |name: &str, value: Vec<u8>| prost_types::Any {
        type_url: format!("type.googleapis.com/google.rpc.{name}"),
        value,
    };
    let bad = RpcBadRequest {
        field_violations: vec![RpcFieldViolation {
            field: FIELD.to_owned(),
            description: DESCRIPTION.to_owned(),
        }],
    };
    let retry = RpcRetryInfo {
        retry_delay: Some(prost_types::Duration {
            seconds: RETRY_SECONDS as i64,
            nanos: 0,
        }),
    };
    let status = RpcStatus {
        code: Code::InvalidArgument.number() as i32,
        message: MESSAGE.to_owned(),
        details: vec![
            any("BadRequest", bad.encode_to_vec()),
            any("RetryInfo", retry.encode_to_vec()),
        ],
    };
    status.encode_to_vec()
}

/// What such a program finds in the details that came: all that it would have written itself.
pub(crate) fn assert_others_read(details: &[u8]) {
    let read = RpcStatus::decode(details).expect("a google.rpc.Status");
    let own = RpcStatus::decode(&*others()).expect("what was encoded");
    assert_eq!(read, own);
}
