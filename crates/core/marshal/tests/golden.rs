//! The golden vectors: what any implementation of the native layout must produce, accept and refuse.
//!
//! With `PROVOST_BLESS` set the bytes in `vectors/vectors.json` are written anew from the JSON of each message.

mod sampling;

use std::path::PathBuf;

use prost_reflect::DynamicMessage;
use prost_reflect::prost::Message as _;
use provost_marshal::{Leaf, Scratch};
use provost_schema::MessageId;
use sampling::Subject;
use sampling::app_heap::AppHeap;
use serde::{Deserialize, Serialize};

const PROTO: &str = include_str!("vectors/vectors.proto");
const LAYOUT: &str = include_str!("../../../../docs/layout.md");
const MESSAGE_BYTES_MAX: u32 = 1 << 20;
/// Bytes of a line of hexadecimal digits.
const LINE_BYTES: usize = 16;

#[derive(Serialize, Deserialize)]
struct Vectors {
    /// Messages in all their forms; the native one is canonical.
    vectors: Vec<Vector>,
    /// Native messages that are not canonical, but well formed.
    accepted: Vec<Accepted>,
    /// Native messages that are not well formed.
    refused: Vec<Refused>,
}

#[derive(Serialize, Deserialize)]
struct Vector {
    name: String,
    why: String,
    message: String,
    json: serde_json::Value,
    protobuf: String,
    native: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Accepted {
    name: String,
    why: String,
    message: String,
    native: Vec<String>,
    /// The vector that is the same message.
    same_as: String,
}

#[derive(Serialize, Deserialize)]
struct Refused {
    name: String,
    why: String,
    message: String,
    native: Vec<String>,
}

impl Vectors {
    fn path() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/vectors.json")
    }

    fn load() -> Vectors {
        let text = std::fs::read_to_string(Vectors::path()).expect("the vectors are there");
        serde_json::from_str(&text).expect("the vectors are as described above")
    }

    fn save(&self) {
        let text = serde_json::to_string_pretty(self).expect("vectors have a JSON form");
        std::fs::write(Vectors::path(), text + "\n").expect("the vectors can be written");
    }
}

fn lines(bytes: &[u8]) -> Vec<String> {
    bytes.chunks(LINE_BYTES).map(hex).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(digits: &str) -> Vec<u8> {
    let digits: Vec<char> = digits.chars().filter(|digit| !digit.is_whitespace()).collect();
    let byte =
        |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).expect("hexadecimal digits");
    digits.chunks(2).map(byte).collect()
}

fn from_json(subject: &Subject, id: MessageId, json: &serde_json::Value) -> DynamicMessage {
    DynamicMessage::deserialize(subject.descriptor(id), json).expect("the JSON is of the message")
}

fn decode(subject: &Subject, id: MessageId, protobuf: &[u8]) -> Vec<u8> {
    let mut native = vec![];
    subject
        .tables
        .decode(
            id,
            protobuf,
            &mut native,
            MESSAGE_BYTES_MAX,
            &mut Scratch::default(),
        )
        .unwrap();
    native
}

fn encode(subject: &Subject, id: MessageId, native: &[u8]) -> Vec<u8> {
    let mut protobuf = vec![];
    subject.tables.encode(id, native, &mut protobuf).unwrap();
    protobuf
}

#[test]
fn golden_vectors_hold_in_both_directions() {
    let subject = Subject::from_source(PROTO);
    let mut vectors = Vectors::load();
    if std::env::var_os("PROVOST_BLESS").is_some() {
        for vector in &mut vectors.vectors {
            let id = subject.id(&vector.message);
            let native = decode(
                &subject,
                id,
                &from_json(&subject, id, &vector.json).encode_to_vec(),
            );
            vector.protobuf = hex(&encode(&subject, id, &native));
            vector.native = lines(&native);
        }
        vectors.save();
    }
    assert!(vectors.vectors.len() >= 20);
    for vector in &vectors.vectors {
        let (name, id) = (&vector.name, subject.id(&vector.message));
        let (protobuf, native) = (unhex(&vector.protobuf), unhex(&vector.native.concat()));
        let message = from_json(&subject, id, &vector.json);
        let reflected = DynamicMessage::decode(subject.descriptor(id), &*protobuf).unwrap();
        assert_eq!(
            reflected.encode_to_vec().len(),
            message.encode_to_vec().len(),
            "{name}"
        );
        assert!(reflected == message, "{name}: protobuf and JSON say the same");
        assert_eq!(
            hex(&decode(&subject, id, &protobuf)),
            hex(&native),
            "{name}: protobuf to native"
        );
        assert_eq!(
            hex(&encode(&subject, id, &native)),
            hex(&protobuf),
            "{name}: native to protobuf"
        );
        assert_eq!(subject.tables.validate(id, &native), Ok(()), "{name}");
        let (mut relocated, window_at) = (native, 1_000_003);
        let tables = &subject.tables;
        let done = tables.validate_and_relocate(id, &mut relocated, window_at);
        assert_eq!(done, Ok(()), "{name}");
        let mut encoded = vec![];
        let done = tables.encode_in_window(id, &relocated, window_at, &mut encoded);
        assert_eq!(
            (done, hex(&encoded)),
            (Ok(()), hex(&protobuf)),
            "{name}: from a window"
        );
    }
}

#[test]
fn golden_vectors_gather_to_themselves() {
    let subject = Subject::from_source(PROTO);
    for vector in Vectors::load().vectors {
        let (id, native) = (subject.id(&vector.message), unhex(&vector.native.concat()));
        let heap = AppHeap::scatter(&subject.schema, id, &native, 99);
        let (mut head, mut leaves) = (vec![], Vec::<Leaf>::new());
        subject
            .tables
            .gather(
                id,
                heap.root,
                &heap.region(),
                &mut head,
                &mut leaves,
                MESSAGE_BYTES_MAX,
            )
            .unwrap();
        assert_eq!(hex(&head), hex(&native), "{}", vector.name);
        assert_eq!(leaves, []);
    }
}

#[test]
fn golden_messages_that_are_not_canonical_are_accepted() {
    let subject = Subject::from_source(PROTO);
    let vectors = Vectors::load();
    assert!(!vectors.accepted.is_empty());
    for accepted in &vectors.accepted {
        let (id, native) = (subject.id(&accepted.message), unhex(&accepted.native.concat()));
        assert_eq!(subject.tables.validate(id, &native), Ok(()), "{}", accepted.name);
        let same = vectors
            .vectors
            .iter()
            .find(|vector| vector.name == accepted.same_as)
            .expect("the name of a vector");
        assert_ne!(accepted.native, same.native, "{}", accepted.name);
        assert_eq!(
            hex(&encode(&subject, id, &native)),
            same.protobuf,
            "{}",
            accepted.name
        );
    }
}

#[test]
fn golden_malformed_messages_are_refused() {
    let subject = Subject::from_source(PROTO);
    let vectors = Vectors::load();
    assert!(!vectors.refused.is_empty());
    for refused in &vectors.refused {
        let (id, native) = (subject.id(&refused.message), unhex(&refused.native.concat()));
        let verdict = subject.tables.validate(id, &native);
        assert!(verdict.is_err(), "{}: {}", refused.name, refused.why);
        assert_eq!(
            subject.tables.validate_and_relocate(id, &mut native.clone(), 5),
            verdict,
            "{}",
            refused.name
        );
    }
}

/// The examples in the specification are dumps: an offset in hexadecimal, 16 bytes, and an explanation behind `|`,
/// under a line that names their vector.
#[test]
fn golden_vectors_are_those_in_the_specification() {
    let vectors = Vectors::load();
    let mut examples = 0;
    for part in LAYOUT.split("```dump ").skip(1) {
        let (name, rest) = part
            .split_once('\n')
            .expect("the name of a vector stands behind the fence");
        let (dump, _) = rest.split_once("```").expect("the fence is closed");
        let line = |line: &str| {
            line.split('|')
                .next()
                .and_then(|line| line.split_once(':'))
                .map(|(_, hex)| unhex(hex))
        };
        let bytes: Vec<u8> = dump.lines().filter_map(line).flatten().collect();
        let vector = vectors
            .vectors
            .iter()
            .find(|vector| vector.name == name.trim())
            .expect("the name of a vector");
        assert_eq!(lines(&bytes), vector.native, "{name}");
        examples += 1;
    }
    assert!(examples >= 4);
}
