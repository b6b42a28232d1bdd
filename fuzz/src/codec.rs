//! What a program reads of its own accord: messages as protobuf's bytes and as JSON.

use provost::error_details::{BadRequest, QuotaFailure, Status};
use provost::well_known::{Any, Duration, Struct, Timestamp, Type, Value};
use provost::{JsonFormat, MessageCodec};

/// Bytes that are taken are the same message after a turn through each format.
pub(crate) fn bytes(data: &[u8]) {
    turn::<Value>(data);
    turn::<Status>(data);
    turn::<QuotaFailure>(data);
    turn::<Type>(data);
}

/// A text that is taken is the same message after another turn.
pub(crate) fn json(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    reread::<Value>(text);
    reread::<Any>(text);
    reread::<Timestamp>(text);
    reread::<Duration>(text);
    reread::<Type>(text);
}

fn format() -> JsonFormat {
    JsonFormat::new().any::<BadRequest>()
}

fn turn<T: MessageCodec>(data: &[u8]) {
    let Ok(message) = T::decode(data) else {
        return;
    };
    let encoded = message.encode().expect("what decodes encodes");
    let again = T::decode(&encoded).expect("what was encoded decodes");
    assert_eq!(
        again.encode().as_ref(),
        Ok(&encoded),
        "a message is the same after a turn"
    );
    if let Ok(text) = format().write(&message) {
        reread::<T>(&text);
    }
}

fn reread<T: MessageCodec>(text: &str) {
    let Ok(message) = format().read::<T>(text) else {
        return;
    };
    let written = format().write(&message).expect("what was read is written");
    let again: T = format().read(&written).expect("what was written is read");
    assert_eq!(
        again.encode(),
        message.encode(),
        "a text is the same message after a turn"
    );
}

pub(crate) fn bytes_seeds() -> Vec<Vec<u8>> {
    let status = provost::Status::unknown("text").with_detail(&BadRequest::from_iter([("a", "b")]));
    let quota = QuotaFailure::from_iter([("a", "b"), ("c", "d")]);
    let value: Value = Struct::from_iter([("a", Value::null()), ("b", 1.5.into())]).into();
    let encoded = [quota.encode(), value.encode()];
    let encoded = encoded.into_iter().filter_map(Result::ok);
    encoded.chain([status.details().to_vec()]).collect()
}

pub(crate) fn json_seeds() -> Vec<Vec<u8>> {
    let texts = [
        r#"{"a":[1,-2.5e3,"\u00e9\ud83d\ude00",null,true],"b":{}}"#,
        r#"{"@type":"type.googleapis.com/google.rpc.BadRequest","fieldViolations":[{"field":"a"}]}"#,
        r#"{"@type":"type.googleapis.com/google.protobuf.Any","value":{}}"#,
        r#""2023-11-14T22:13:20.5+01:00""#,
        r#""-1.000000001s""#,
        r#"{"name":"a","fields":[{"kind":"TYPE_BOOL","number":1}],"syntax":"SYNTAX_PROTO3","oneofs":["b"]}"#,
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}
