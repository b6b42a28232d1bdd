//! Fields of protobuf bytes by their paths, rule by rule of proto3's encoding.

mod sampling;

use provost_marshal::{DecodeError, Scratch, Value};
use sampling::Subject;

const PROTO: &str = r#"
syntax = "proto3";
message Inner { int32 number = 1; repeated uint32 list = 2; optional string name = 3; }
message Outer {
  sint64 signed = 1;
  string text = 2;
  optional uint32 maybe = 3;
  Inner inner = 4;
  oneof choice { Inner chosen = 5; string word = 6; }
  repeated fixed32 fixed = 7;
  map<string, uint32> index = 8;
  repeated string words = 9;
  Outer next = 10;
}
"#;

/// What is read at a path, as text.
fn read(path: &str, protobuf: &[u8]) -> String {
    match try_read(path, protobuf) {
        Ok(text) => text,
        Err(error) => panic!("{path}: {error}"),
    }
}

fn try_read(path: &str, protobuf: &[u8]) -> Result<String, DecodeError> {
    let subject = Subject::from_source(PROTO);
    let found = subject.tables.field_path(subject.id("Outer"), path).unwrap();
    let read = subject
        .tables
        .read_protobuf(&found, protobuf, &mut Scratch::default())?;
    Ok(read.map_or("absent".into(), |value| match value {
        Value::Int(number) => number.to_string(),
        Value::Uint(number) => number.to_string(),
        Value::String(text) => format!("{text:?}"),
        other => format!("{other:?}"),
    }))
}

#[test]
fn the_last_value_wins() {
    let twice = [8, 2, 18, 1, b'a', 8, 5, 18, 1, b'b'];
    assert_eq!(read("signed", &twice), "-3");
    assert_eq!(read("text", &twice), "\"b\"");
}

#[test]
fn defaults_and_presence() {
    assert_eq!(read("signed", &[]), "0");
    assert_eq!(read("text", &[]), "\"\"");
    assert_eq!(read("maybe", &[]), "absent");
    assert_eq!(read("maybe", &[24, 0]), "0");
    assert_eq!(read("inner", &[]), "absent");
    assert_eq!(read("inner.number", &[]), "absent");
    assert_eq!(read("inner", &[34, 0]), "Message");
    assert_eq!(read("inner.number", &[34, 0]), "0");
    assert_eq!(read("inner.list", &[34, 0]), "List(0)");
    assert_eq!(read("inner.name", &[34, 0]), "absent");
    assert_eq!(read("next.next.text", &[82, 2, 82, 0]), "\"\"");
}

#[test]
fn messages_in_pieces_merge() {
    let pieces = [34, 2, 8, 7, 34, 3, 26, 1, b'n', 34, 2, 16, 1];
    assert_eq!(read("inner.number", &pieces), "7");
    assert_eq!(read("inner.name", &pieces), "\"n\"");
    assert_eq!(read("inner.list", &pieces), "List(1)");
}

#[test]
fn another_member_of_a_oneof_takes_the_place() {
    let (chosen, word) = ([42, 2, 8, 7], [50, 1, b'w']);
    let again = [&chosen[..], &word, &[42, 3, 26, 1, b'n']].concat();
    assert_eq!(read("chosen.number", &chosen), "7");
    assert_eq!(read("chosen.number", &[&chosen[..], &word].concat()), "absent");
    assert_eq!(read("word", &[&word[..], &chosen].concat()), "absent");
    assert_eq!(read("chosen.number", &again), "0");
    assert_eq!(read("chosen.name", &again), "\"n\"");
    // What was malformed in the member that is gone is nobody's affair.
    let gone = [&[42, 1, 8][..], &word].concat();
    assert_eq!(read("chosen.number", &gone), "absent");
    assert_eq!(read("word", &gone), "\"w\"");
}

#[test]
fn lists_packed_and_not() {
    assert_eq!(read("inner.list", &[34, 7, 16, 1, 18, 3, 1, 0x80, 1]), "List(3)");
    let fixed = [58, 8, 0, 0, 0, 0, 0, 0, 0, 0, 61, 0, 0, 0, 0];
    assert_eq!(read("fixed", &fixed), "List(3)");
    assert_eq!(read("words", &[74, 0, 74, 1, b'a']), "List(2)");
    assert_eq!(
        try_read("fixed", &[58, 3, 0, 0, 0]),
        Err(DecodeError::Truncated { at: 0 })
    );
}

#[test]
fn maps_count_their_keys_once() {
    let pair = |key: u8| [66, 3, 10, 1, key];
    let pairs = [pair(b'a'), pair(b'b'), pair(b'a')].concat();
    assert_eq!(read("index", &pairs), "List(2)");
    assert_eq!(read("index", &[]), "List(0)");
}

#[test]
fn fields_of_another_type_are_unknown() {
    assert_eq!(read("signed", &[8, 2, 10, 1, 9]), "1");
    assert_eq!(read("text", &[16, 1]), "\"\"");
    assert_eq!(read("inner.number", &[32, 1]), "absent");
}

#[test]
fn what_the_path_touches_is_judged() {
    assert_eq!(try_read("text", &[18, 1, 0xff]), Err(DecodeError::Utf8 { at: 2 }));
    assert_eq!(
        try_read("inner.number", &[34, 1, 8]),
        Err(DecodeError::Truncated { at: 3 })
    );
    // The same bytes, at another path.
    assert_eq!(read("signed", &[34, 1, 8]), "0");
    assert_eq!(read("text", &[18, 1, 0xff, 18, 1, b'a']), "\"a\"");
}

#[test]
fn a_walk_is_bounded_and_reads_the_same_within_its_bound() {
    let subject = Subject::from_source(PROTO);
    let read_within = |records_max, path: &str, protobuf: &[u8]| {
        let found = subject.tables.field_path(subject.id("Outer"), path).unwrap();
        Scratch::of_thread(|scratch| {
            let read = subject
                .tables
                .read_protobuf_within(records_max, &found, protobuf, scratch);
            read.map(|value| format!("{value:?}"))
        })
    };
    let words = [0x4a, 1, b'w'].repeat(100);
    assert_eq!(read_within(100, "words", &words), Ok("Some(List(100))".into()));
    assert_eq!(read_within(99, "words", &words), Err(DecodeError::TooFragmented));
    assert_eq!(read_within(99, "signed", &words), Err(DecodeError::TooFragmented));
    // What is walked within one record counts as well: a group, a map's pair, packed numbers.
    let group = [&[0xa3, 0x06][..], &[8, 2].repeat(100), &[0xa4, 0x06]].concat();
    let pair = [&[0x42, 200, 1][..], &[0x0a, 0].repeat(100)].concat();
    let inner = [&[0x12, 100][..], &[1; 100]].concat();
    let packed = [&[0x22, 102][..], &inner].concat();
    for (path, protobuf) in [("signed", &group), ("index", &pair), ("inner.list", &packed)] {
        assert!(read_within(60, path, protobuf).is_ok(), "{path}");
        assert_eq!(
            read_within(20, path, protobuf),
            Err(DecodeError::TooFragmented),
            "{path}"
        );
    }
}
