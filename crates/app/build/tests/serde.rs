//! Generated messages with serde (feature `serde` of the library), beside the library's own JSON, which `codec.rs` holds to the
//! mapping.

#[allow(dead_code, reason = "the other test uses all of it")]
mod json_cases;

/// Each of the kinds of fields.
#[allow(missing_docs)]
mod everything {
    include!("golden/generated/golden.everything.rs");
}
/// Each of the well-known types.
#[allow(missing_docs)]
mod known {
    include!("golden/generated/golden.known.rs");
}

use everything::Everything;
use json_cases::{AcceptedText, EVERYTHING, EVERYTHING_REFUSED, KNOWN, KNOWN_REFUSED};
use known::Known;
use provost::codegen::{Deserialize, Serialize};
use provost::{JsonFormat, MessageCodec};

/// A type of the program with a message in it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct CacheEntry {
    key: String,
    message: Everything,
    others: Vec<Known>,
}

/// Whether the default format reads the text, and serde the same message from it; what is wrong, if that is not so.
fn difference<T>(json: &str) -> Option<String>
where
    T: MessageCodec + Serialize + for<'de> Deserialize<'de>,
{
    let ours = JsonFormat::new().read::<T>(json);
    let theirs = serde_json::from_str::<T>(json);
    let (ours, theirs) = match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => (ours, theirs),
        (Err(_), Err(_)) => return None,
        (ours, theirs) => return Some(format!("{json}: {:?} and {:?}", ours.err(), theirs.err())),
    };
    let bytes = |message: &T| message.encode().expect("what was read is encoded");
    if bytes(&ours) != bytes(&theirs) {
        return Some(format!("{json}: serde reads another message"));
    }
    let written = serde_json::to_string(&theirs).expect("what was read is written");
    let again = T::from_json(&written).expect("what serde wrote is read");
    (bytes(&again) != bytes(&ours)).then(|| format!("{json}: serde writes {written}"))
}

/// Without its feature `float_roundtrip`, serde_json reads the number beside the one that this is.
const INEXACT_IN_SERDE_JSON: &str = r#"{"floatField":1.175494e-38,"doubleField":2.22507e-308}"#;

#[test]
fn serde_reads_and_writes_what_the_mapping_has() {
    let everything = EVERYTHING.iter().map(|AcceptedText(json, ..)| *json);
    let everything = everything.chain(EVERYTHING_REFUSED.iter().map(|(json, _)| *json));
    let known = KNOWN.iter().map(|AcceptedText(json, ..)| *json);
    let known = known.chain(KNOWN_REFUSED.iter().map(|(json, _)| *json));
    let everything = everything.filter(|json| *json != INEXACT_IN_SERDE_JSON);
    let mut differences: Vec<String> = everything.filter_map(difference::<Everything>).collect();
    differences.extend(known.filter_map(difference::<Known>));
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn messages_stand_within_types_of_the_program() {
    let entry = CacheEntry {
        key: "a".to_owned(),
        message: Everything::from_json(
            r#"{"int32Field":-1,"color":"COLOR_RED","uint64Field":"18446744073709551615"}"#,
        )
        .unwrap(),
        others: vec![Known::from_json(r#"{"time":"2023-11-14T22:13:20.5Z"}"#).unwrap()],
    };
    let json = serde_json::to_string(&entry).unwrap();
    assert_eq!(
        json,
        concat!(
            r#"{"key":"a","message":{"int32Field":-1,"uint64Field":"18446744073709551615","color":"COLOR_RED"},"#,
            r#""others":[{"time":"2023-11-14T22:13:20.500Z"}]}"#
        )
    );
    assert_eq!(serde_json::from_str::<CacheEntry>(&json).unwrap(), entry);
    let value = serde_json::to_value(&entry).unwrap();
    assert_eq!(serde_json::from_value::<CacheEntry>(value).unwrap(), entry);
}

#[test]
fn numbers_keep_their_value_and_their_sign() {
    for json in [
        r#"{"doubleField":-0.0}"#,
        r#"{"doubleField":1e300}"#,
        r#"{"doubleField":0.1,"floatField":0.1}"#,
        r#"{"doubleField":"NaN"}"#,
        r#"{"doubleField":9007199254740993}"#,
    ] {
        assert_eq!(difference::<Everything>(json), None);
    }
}

#[test]
fn errors_name_the_place_in_the_message() {
    let error = serde_json::from_str::<Everything>(r#"{"leaf":{"value":"x"}}"#).unwrap_err();
    assert!(
        error.to_string().starts_with("leaf.value: `x` is no integer"),
        "{error}"
    );
    let deep = format!("{}1{}", "[".repeat(120), "]".repeat(120));
    assert!(serde_json::from_str::<Everything>(&deep).is_err());
}
