//! Details of statuses, beside the messages that gRPC's libraries make of the same bytes.

use std::time::Duration;

use prost::Message as _;
use provost::error_details::{
    BadRequest, DebugInfo, ErrorInfo, Help, LocalizedMessage, PreconditionFailure, QuotaFailure, RequestInfo,
    ResourceInfo, RetryInfo, precondition_failure,
};
use provost::well_known::StringValue;
use provost::{Code, Status};

/// `google.rpc.Status` and two of its details, as other programs declare them.
mod peer {
    use prost::Message;

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Status {
        #[prost(int32, tag = "1")]
        pub(super) code: i32,
        #[prost(string, tag = "2")]
        pub(super) message: String,
        #[prost(message, repeated, tag = "3")]
        pub(super) details: Vec<Any>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Any {
        #[prost(string, tag = "1")]
        pub(super) type_url: String,
        #[prost(bytes = "vec", tag = "2")]
        pub(super) value: Vec<u8>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct FieldViolation {
        #[prost(string, tag = "1")]
        pub(super) field: String,
        #[prost(string, tag = "2")]
        pub(super) description: String,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct BadRequest {
        #[prost(message, repeated, tag = "1")]
        pub(super) field_violations: Vec<FieldViolation>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Seconds {
        #[prost(int64, tag = "1")]
        pub(super) seconds: i64,
        #[prost(int32, tag = "2")]
        pub(super) nanos: i32,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct RetryInfo {
        #[prost(message, tag = "1")]
        pub(super) retry_delay: Option<Seconds>,
    }
}

fn refusal() -> Status {
    Status::invalid_argument("no good")
        .with_detail(&BadRequest::from_iter([
            ("entry.key", "is empty"),
            ("entry.value", "is too long"),
        ]))
        .with_detail(&RetryInfo::after(Duration::from_millis(2500)))
}

#[test]
fn others_read_the_details_that_are_set() {
    let status = refusal();
    let read = peer::Status::decode(status.details()).unwrap();
    // gRPC's library for Go refuses details whose code is another than the status's.
    assert_eq!(
        (read.code, read.message.as_str()),
        (Code::InvalidArgument.number() as i32, "no good")
    );
    let urls: Vec<&str> = read
        .details
        .iter()
        .map(|detail| detail.type_url.as_str())
        .collect();
    assert_eq!(
        urls,
        [
            "type.googleapis.com/google.rpc.BadRequest",
            "type.googleapis.com/google.rpc.RetryInfo"
        ]
    );
    let bad = peer::BadRequest::decode(&*read.details[0].value).unwrap();
    assert_eq!(bad.field_violations[1].field, "entry.value");
    assert_eq!(bad.field_violations[1].description, "is too long");
    let retry = peer::RetryInfo::decode(&*read.details[1].value).unwrap();
    assert_eq!(
        retry.retry_delay,
        Some(peer::Seconds {
            seconds: 2,
            nanos: 500_000_000
        })
    );
}

#[test]
fn details_that_others_set_are_read() {
    let detail = |name: &str, value: Vec<u8>| peer::Any {
        type_url: format!("type.googleapis.com/google.rpc.{name}"),
        value,
    };
    let violation = peer::FieldViolation {
        field: "a".into(),
        description: "b".into(),
    };
    let retry = peer::RetryInfo {
        retry_delay: Some(peer::Seconds { seconds: 7, nanos: 0 }),
    };
    let sent = peer::Status {
        code: 3,
        message: "no good".into(),
        details: vec![
            detail("Unheard", vec![1, 2, 3]),
            detail(
                "BadRequest",
                peer::BadRequest {
                    field_violations: vec![violation],
                }
                .encode_to_vec(),
            ),
            detail("RetryInfo", retry.encode_to_vec()),
            detail("ErrorInfo", vec![0xff]),
        ],
    };
    let status = Status::with_details(Code::InvalidArgument, "no good", sent.encode_to_vec());
    let bad: BadRequest = status.detail().unwrap();
    assert_eq!(
        (
            &*bad.field_violations[0].field,
            &*bad.field_violations[0].description
        ),
        ("a", "b")
    );
    assert_eq!(status.retry_delay(), Some(Duration::from_secs(7)));
    assert_eq!(status.details_list().unwrap().len(), 4);
    // What is not as its name says is no detail of that type.
    assert_eq!(status.detail::<ErrorInfo>(), None);
    let more = status.with_detail(&ErrorInfo::new("REASON", "example.org"));
    assert_eq!(more.details_list().unwrap().len(), 5);
    assert_eq!(more.detail::<BadRequest>(), Some(bad));
}

#[test]
fn every_standard_detail_comes_back() {
    macro_rules! there_and_back {
        ($($detail:expr;)*) => {
            $(let detail = $detail;
            let status = refusal().with_detail(&detail);
            assert_eq!(detail_of(&status, &detail), Some(detail));)*
        };
    }
    let violation = precondition_failure::Violation {
        r#type: "TOS".into(),
        subject: "example.org/ann".into(),
        description: "accept the terms".into(),
    };
    there_and_back! {
        ErrorInfo { metadata: [("zone".into(), "b".into())].into(), ..ErrorInfo::new("STOCKOUT", "example.org") };
        DebugInfo { stack_entries: ["inner", "outer"].map(Into::into).into(), detail: "x".into() };
        QuotaFailure::from_iter([("client:ann", "10 calls a day")]);
        PreconditionFailure { violations: [violation].into() };
        RequestInfo { request_id: "17".into(), serving_data: "y".into() };
        ResourceInfo { resource_type: "entry".into(), resource_name: "a".into(), ..ResourceInfo::default() };
        Help::from_iter([("Limits", "https://example.org/limits")]);
        LocalizedMessage { locale: "de-CH".into(), message: "Später".into() };
        StringValue::from("of no standard");
    }
}

fn detail_of<T: provost::codegen::Message + provost::MessageCodec>(status: &Status, _: &T) -> Option<T> {
    status.detail()
}

#[test]
fn details_of_another_form_have_no_types() {
    let status = Status::with_details(Code::Aborted, "", vec![0xff, 0xff]);
    assert!(status.details_list().is_err());
    assert_eq!(
        (status.detail::<BadRequest>(), status.retry_delay()),
        (None, None)
    );
    assert_eq!(Status::from_code(Code::Ok).detail::<BadRequest>(), None);
    assert_eq!(
        status
            .with_detail(&ErrorInfo::new("A", "b"))
            .details_list()
            .unwrap()
            .len(),
        1
    );
}
