//! Protobuf's bytes and JSON of generated messages, beside prost-reflect, which is an independent implementation, and by the
//! cases that the mapping's specification and protobuf's conformance tests name.

#[allow(dead_code, reason = "the other test uses more of it")]
#[path = "../../../core/marshal/tests/sampling/entropy.rs"]
mod entropy;
mod json_cases;
#[allow(dead_code, reason = "the other test uses more of it")]
#[path = "../../../core/marshal/tests/sampling/messages.rs"]
mod messages;

/// Every kind of field.
#[allow(missing_docs)]
mod everything {
    include!("golden/generated/golden.everything.rs");
}
/// Every well-known type.
#[allow(missing_docs)]
mod known {
    include!("golden/generated/golden.known.rs");
}

use std::path::Path;
use std::sync::LazyLock;

use entropy::Entropy;
use everything::Everything;
use json_cases::{AcceptedText, EVERYTHING, EVERYTHING_REFUSED, KNOWN, KNOWN_REFUSED, PeerVerdict};
use known::Known;
use proptest::prelude::*;
use prost_reflect::prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use provost::codec::DecodeErrorKind;
use provost::codegen::Message;
use provost::well_known::Any;
use provost::{JsonFormat, MessageCodec};

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/proto");
    let set = protox::compile(["everything.proto", "known.proto"], [protos]).expect("the sources compile");
    DescriptorPool::from_file_descriptor_set(set).expect("the descriptors are whole")
});

fn descriptor<T: Message>() -> MessageDescriptor {
    POOL.get_message_by_name(T::FULL_NAME)
        .expect("the message is in the sources")
}

fn format() -> JsonFormat {
    JsonFormat::new().any::<Everything>().any::<Known>()
}

/// The peer's message of a JSON text.
fn peer_json<T: Message>(json: &str) -> Result<DynamicMessage, String> {
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let message = DynamicMessage::deserialize(descriptor::<T>(), &mut deserializer);
    let ended = message.and_then(|message| deserializer.end().map(|()| message));
    ended.map_err(|error| error.to_string())
}

/// What a text says, with all numbers as `float`: `1` and `1.0` say the same, and so do two of the texts that are the shortest
/// of one number.
fn parsed(json: &str) -> serde_json::Value {
    fn floating(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Number(number) => *value = number.as_f64().map(|number| number as f32).into(),
            serde_json::Value::Array(values) => values.iter_mut().for_each(floating),
            serde_json::Value::Object(members) => members.values_mut().for_each(floating),
            _ => {}
        }
    }
    let mut value = serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"));
    floating(&mut value);
    value
}

/// The same without members that are −0, which are the default to the peer and not to protobuf.
fn comparable(json: &str) -> serde_json::Value {
    fn clear(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Array(values) => values.iter_mut().for_each(clear),
            serde_json::Value::Object(members) => {
                let is_minus_zero = |value: &serde_json::Value| {
                    value
                        .as_f64()
                        .is_some_and(|it| it == 0.0 && it.is_sign_negative())
                };
                members.retain(|_, value| !is_minus_zero(value));
                members.values_mut().for_each(clear);
            }
            _ => {}
        }
    }
    let mut value = parsed(json);
    clear(&mut value);
    value
}

/// What is not as the table says of a text that is accepted.
fn wrong<T: Message + MessageCodec>(AcceptedText(json, canonical, peer): &AcceptedText) -> Option<String> {
    let message: T = match format().read(json) {
        Ok(message) => message,
        Err(error) => return Some(format!("{json} is refused: {error}")),
    };
    let written = format().write(&message).expect("what was read is written");
    if parsed(&written) != parsed(canonical) {
        return Some(format!("{json} is written as {written}, not as {canonical}"));
    }
    let bytes = message.encode().expect("what was read is encoded");
    let again: T = format().read(canonical).expect("what was written is read");
    if again.encode().expect("it is encoded") != bytes {
        return Some(format!("{canonical} is another message than {json}"));
    }
    let agrees = peer_json::<T>(json).is_ok_and(|theirs| {
        let ours = DynamicMessage::decode(descriptor::<T>(), &*bytes).expect("the peer decodes it");
        parsed(&serde_json::to_string(&theirs).unwrap_or_default()) == parsed(canonical)
            && parsed(&serde_json::to_string(&ours).unwrap_or_default()) == parsed(canonical)
    });
    (agrees != (*peer == PeerVerdict::Agrees)).then(|| format!("{json}: the peer {:?}", peer_json::<T>(json)))
}

/// The same of a text that is refused.
fn wrongly_taken<T: Message + MessageCodec>((json, peer): &(&str, PeerVerdict)) -> Option<String> {
    if let Ok(message) = format().read::<T>(json) {
        let written = format().write(&message);
        return Some(format!("{json} is accepted, as {written:?}"));
    }
    let agrees = peer_json::<T>(json).is_err();
    (agrees != (*peer == PeerVerdict::Agrees)).then(|| format!("{json} is accepted by the peer: {}", !agrees))
}

#[test]
fn json_is_read_and_written_as_the_mapping_has_it() {
    let mut wrongs: Vec<String> = EVERYTHING.iter().filter_map(wrong::<Everything>).collect();
    wrongs.extend(KNOWN.iter().filter_map(wrong::<Known>));
    wrongs.extend(EVERYTHING_REFUSED.iter().filter_map(wrongly_taken::<Everything>));
    wrongs.extend(KNOWN_REFUSED.iter().filter_map(wrongly_taken::<Known>));
    assert!(wrongs.is_empty(), "{}", wrongs.join("\n"));
}

#[test]
fn formats_have_options() {
    let message = Everything::from_json(r#"{"int32Field":1,"color":"COLOR_RED","optionalInt32":0}"#).unwrap();
    let json = |format: JsonFormat| parsed(&format.write(&message).unwrap());
    let named = json(JsonFormat::new().proto_names().enum_numbers());
    assert_eq!(named, parsed(r#"{"int32_field":1,"color":1,"optional_int32":0}"#));
    let full = json(JsonFormat::new().defaults());
    let members = full.as_object().unwrap();
    // Fields with presence that are absent are not written: optional ones, messages, members of oneofs.
    assert!(
        members.contains_key("stringsByString")
            && members["uint64Field"] == "0"
            && members["bools"] == parsed("[]")
    );
    assert!(
        ["optionalBool", "leaf", "number", "off"]
            .iter()
            .all(|name| !members.contains_key(*name))
    );
    let loose = JsonFormat::new().ignore_unknown();
    let json =
        r#"{"unknown":{"a":[1]},"int32Field":1,"color":"COLOR_NEW","colors":["COLOR_NEW","COLOR_RED"]}"#;
    let message: Everything = loose.read(json).unwrap();
    assert_eq!(
        message.to_json().unwrap(),
        r#"{"int32Field":1,"colors":["COLOR_RED"]}"#
    );
}

#[test]
fn errors_name_the_place() {
    let cases = [
        ("{\n \"int32Field\": }", "line 2, column 16: a value is expected"),
        (r#"{"leaf":{"value":"x"}}"#, "leaf.value: `x` is no integer"),
        (
            r#"{"leaves":[{},{"value":-1}]}"#,
            "leaves[1].value: -1 does not fit the field's type",
        ),
        (
            r#"{"leavesByNumber":{"1":{"no":1}}}"#,
            "leavesByNumber[\"1\"].no: golden.everything.Leaf has no such field",
        ),
        (
            r#"{"number":1,"flag":true}"#,
            "flag: another member of the oneof `choice` is set already",
        ),
        (
            r#"{"color":"PINK"}"#,
            "color: golden.everything.Color has no such value",
        ),
        ("[]", "the message: an object is expected, and this is a list"),
    ];
    for (json, message) in cases {
        assert_eq!(Everything::from_json(json).unwrap_err().to_string(), message);
    }
    let late = Known::from_json(r#"{"time":"soon"}"#).unwrap_err();
    assert_eq!(
        late.to_string(),
        "time: `soon` is not a time such as \"2023-11-14T22:13:20.5Z\""
    );
    let mut message = Known::default();
    message.times.push(provost::well_known::Timestamp {
        seconds: 1 << 40,
        nanos: 0,
    });
    assert!(
        message
            .to_json()
            .unwrap_err()
            .to_string()
            .starts_with("times[0]: the time is not between")
    );
    message = Known::default();
    message.any = Any::pack(&Everything::default()).unwrap().into();
    assert!(
        message
            .to_json()
            .unwrap_err()
            .to_string()
            .contains("golden.everything.Everything` is not known")
    );
}

/// A message of `depth` levels below the first.
fn nested(depth: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..depth {
        let mut outer = vec![0xca, 0x02];
        prost_reflect::prost::encoding::encode_varint(bytes.len() as u64, &mut outer);
        outer.extend(&bytes);
        bytes = outer;
    }
    bytes
}

#[test]
fn nesting_ends_at_a_hundred_levels_in_both_formats() {
    let deepest = Known::decode(&nested(100)).unwrap();
    assert!(peer(&nested(100)).is_ok() && peer(&nested(101)).is_err());
    assert_eq!(deepest.encode().unwrap(), nested(100));
    let json = deepest.to_json().unwrap();
    assert_eq!(Known::from_json(&json).unwrap().encode().unwrap(), nested(100));
    assert!(Known::decode(&nested(101)).is_err());
    let deeper = Known {
        inner: [deepest].into(),
        ..Known::default()
    };
    assert!(deeper.encode().is_err() && deeper.to_json().is_err());
    assert!(Known::from_json(&format!("{{\"inner\":[{json}]}}")).is_err());
    // Groups are passed over, as deep as messages may nest.
    let group = |depth| [[0xa3, 0x3f].repeat(depth), [0xa4, 0x3f].repeat(depth)].concat();
    assert!(Known::decode(&group(100)).is_ok());
    assert!(Known::decode(&group(100_000)).is_err());
}

fn peer(bytes: &[u8]) -> Result<DynamicMessage, prost_reflect::prost::DecodeError> {
    DynamicMessage::decode(descriptor::<Known>(), bytes)
}

/// Bytes that protobuf's conformance tests name, with whether they are a message.
#[test]
fn bytes_are_taken_and_refused_as_protobuf_has_it() {
    let cases: &[(&str, &[u8], bool)] = &[
        ("nothing", &[], true),
        ("a field number of 0", &[0x00, 0x01], false),
        ("a wire type that does not exist", &[0x17, 0x00], false),
        (
            "a tag of more than 32 bits",
            &[0x90, 0x80, 0x80, 0x80, 0x80, 0x01, 0x00],
            false,
        ),
        ("a tag that ends", &[0x90], false),
        ("a varint that ends", &[0x10, 0x80], false),
        (
            "a varint of 10 bytes",
            &[0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            true,
        ),
        (
            "a varint of 65 bits",
            &[0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02],
            false,
        ),
        (
            "a varint of 11 bytes",
            &[
                0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01,
            ],
            false,
        ),
        (
            "a varint that is longer than it must be",
            &[0x10, 0x81, 0x00],
            true,
        ),
        ("32 bits that end", &[0x2d, 1, 2, 3], false),
        ("64 bits that end", &[0x51, 1, 2, 3, 4, 5, 6, 7], false),
        ("a length past the end", &[0x72, 0x02, b'a'], false),
        (
            "a length of 64 bits",
            &[0x72, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            false,
        ),
        ("a string that is no UTF-8", &[0x72, 0x02, 0xc0, 0x80], false),
        ("a surrogate in a string", &[0x72, 0x03, 0xed, 0xa0, 0x80], false),
        ("bytes that are no UTF-8", &[0x7a, 0x02, 0xc0, 0x80], true),
        (
            "a packed list without packing",
            &[0x80, 0x02, 0x01, 0x80, 0x02, 0x02],
            true,
        ),
        ("an unpacked list packed", &[0x8a, 0x02, 0x02, 0x02, 0x04], true),
        (
            "a packed list whose last element ends",
            &[0x82, 0x02, 0x02, 0x01, 0x80],
            false,
        ),
        ("an unknown group", &[0xa3, 0x3f, 0x08, 0x01, 0xa4, 0x3f], true),
        ("a group that does not end", &[0xa3, 0x3f, 0x08, 0x01], false),
        ("a group that ends as another", &[0xa3, 0x3f, 0xac, 0x3f], false),
        ("the end of a group alone", &[0xa4, 0x3f], false),
        (
            "a pair of a map without a key",
            &[0xca, 0x02, 0x02, 0x12, 0x00],
            true,
        ),
        (
            "a pair of a map with its value first",
            &[0xca, 0x02, 0x06, 0x12, 0x01, b'v', 0x0a, 0x01, b'k'],
            true,
        ),
    ];
    for (what, bytes, is_message) in cases {
        let ours = Everything::decode(bytes);
        assert_eq!(ours.is_ok(), *is_message, "{what}: {ours:?}");
        let theirs = DynamicMessage::decode(descriptor::<Everything>(), *bytes);
        assert_eq!(theirs.is_ok(), *is_message, "the peer, {what}: {theirs:?}");
        if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
            let ours = DynamicMessage::decode(descriptor::<Everything>(), &*ours.encode().unwrap()).unwrap();
            assert_eq!(
                parsed(&serde_json::to_string(&ours).unwrap()),
                parsed(&serde_json::to_string(&theirs).unwrap()),
                "{what}"
            );
        }
    }
    // A tag of more bytes than 32 bits need. The peer takes it.
    assert!(Everything::decode(&[0x90, 0x80, 0x80, 0x80, 0x00, 0x01]).is_ok());
    let error = Everything::decode(&[0x90, 0x80, 0x80, 0x80, 0x80, 0x00, 0x01]).unwrap_err();
    assert_eq!((error.kind(), error.offset()), (DecodeErrorKind::Tag, 0));
    let error = Everything::decode(&[0x72, 0x02, 0xc0, 0x80]).unwrap_err();
    assert_eq!(
        (error.to_string().as_str(), error.offset()),
        ("byte 1: a string is not UTF-8", 1)
    );
}

fn bytes_of_choices() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..1500)
}

/// Decodes what the peer encoded, and compares what both make of it.
fn same_by_both<T: Message + MessageCodec>(choices: &[u8]) {
    let entropy = &mut Entropy::new(choices);
    let mut protobuf = messages::sample(entropy, &descriptor::<T>()).encode_to_vec();
    // Two messages one after the other merge.
    if entropy.chance(3) {
        protobuf.extend(messages::sample(entropy, &descriptor::<T>()).encode_to_vec());
    }
    let theirs = DynamicMessage::decode(descriptor::<T>(), &*protobuf).expect("the peer decodes it");
    let ours = T::decode(&protobuf).expect("valid bytes decode");
    let encoded = ours.encode().expect("what decoded encodes");
    assert_eq!(
        DynamicMessage::decode(descriptor::<T>(), &*encoded).expect("the peer decodes ours"),
        theirs
    );
    assert_eq!(
        T::decode(&encoded)
            .expect("ours decodes")
            .encode()
            .expect("and encodes"),
        encoded
    );
    let (our_json, their_json) = (ours.to_json(), serde_json::to_string(&theirs));
    match (our_json, their_json) {
        (Ok(our_json), Ok(their_json)) => {
            assert_eq!(comparable(&our_json), comparable(&their_json));
            let read = T::from_json(&our_json).expect("what is written is read");
            // (JSON has one value of `NullValue`, and bytes have any number.)
            if T::FULL_NAME == Everything::FULL_NAME {
                assert_eq!(read.encode().expect("it encodes"), encoded);
            }
        }
        (Err(_), Err(_)) => {}
        // The peer writes a `Value` of no kind, times that wrapped around, and empty paths of masks.
        (Err(ours), Ok(_)) => {
            let reasons = ["has no kind", "the time", "the duration", "a path"];
            assert!(
                reasons.iter().any(|reason| ours.to_string().contains(reason)),
                "{ours}"
            );
        }
        // It wants a type of an empty `Any`, and no form of the JSON mapping's is left to it.
        (Ok(ours), Err(theirs)) => {
            assert!(
                theirs.to_string().contains("unsupported type url ''"),
                "{theirs}: {ours}"
            );
        }
    }
}

/// Whether a record of a map is no message: the peer reads it as one in any case, and ours, as protobuf's own libraries, passes it
/// over.
fn has_map_of_another_wire_type(of: &MessageDescriptor, mut bytes: &[u8]) -> bool {
    use prost_reflect::Kind;
    use prost_reflect::prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
    while let Ok((number, wire)) = decode_key(&mut bytes) {
        let field = of.get_field(number);
        if field
            .as_ref()
            .is_some_and(|field| field.is_map() && wire != WireType::LengthDelimited)
        {
            return true;
        }
        let mut content = bytes;
        if skip_field(wire, number, &mut bytes, DecodeContext::default()).is_err() {
            return false;
        }
        if let (Some(Kind::Message(inner)), WireType::LengthDelimited) =
            (field.map(|field| field.kind()), wire)
        {
            let length = decode_varint(&mut content).unwrap_or_default() as usize;
            if has_map_of_another_wire_type(&inner, &content[..length.min(content.len())]) {
                return true;
            }
        }
    }
    false
}

/// Of bytes that were changed, what the peer takes is taken, and what it refuses is refused.
fn judged_by_both<T: Message + MessageCodec>(choices: &[u8], changes: &[(u16, u8)]) {
    let entropy = &mut Entropy::new(choices);
    let mut protobuf = messages::sample(entropy, &descriptor::<T>()).encode_to_vec();
    for (place, value) in changes {
        if !protobuf.is_empty() {
            let place = usize::from(*place) % protobuf.len();
            protobuf[place] ^= value;
        }
    }
    for bytes in [&protobuf[..], choices] {
        let theirs = DynamicMessage::decode(descriptor::<T>(), bytes);
        if has_map_of_another_wire_type(&descriptor::<T>(), bytes) {
            continue;
        }
        match (T::decode(bytes), theirs) {
            (Ok(ours), Ok(theirs)) => {
                let ours = DynamicMessage::decode(descriptor::<T>(), &*ours.encode().expect("it encodes"));
                let json = |message| serde_json::to_string(&message).ok().map(|json| parsed(&json));
                assert_eq!(
                    json(ours.expect("the peer decodes it")),
                    json(theirs),
                    "{bytes:?}"
                );
            }
            (Err(_), Err(_)) => {}
            // A field with another wire type is unknown to us, as to protobuf's own libraries.
            (Ok(_), Err(theirs)) => assert!(
                theirs.to_string().contains("invalid wire type"),
                "{theirs}: {bytes:?}"
            ),
            (Err(ours), Ok(_)) => panic!("refused: {ours}: {bytes:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn messages_are_the_same_in_both_formats(choices in bytes_of_choices()) {
        same_by_both::<Everything>(&choices);
        same_by_both::<Known>(&choices);
    }

    #[test]
    fn changed_bytes_are_judged_as_the_peer_does(
        choices in bytes_of_choices(),
        changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..4),
    ) {
        judged_by_both::<Everything>(&choices, &changes);
        judged_by_both::<Known>(&choices, &changes);
    }

    #[test]
    fn changed_json_is_refused_or_reads_back(
        choices in bytes_of_choices(),
        changes in proptest::collection::vec((any::<usize>(), "[\\]\\[{}\":,0-9eE.+\\\\a-z -]"), 1..4),
    ) {
        let entropy = &mut Entropy::new(&choices);
        let message = messages::sample(entropy, &descriptor::<Everything>());
        let mut json: Vec<char> = serde_json::to_string(&message).expect("the peer writes it").chars().collect();
        for (place, letter) in &changes {
            let place = place % json.len();
            json.splice(place..=place, letter.chars());
        }
        let json: String = json.into_iter().collect();
        if let Ok(message) = Everything::from_json(&json) {
            let again = Everything::from_json(&message.to_json().expect("it is written")).expect("it reads back");
            prop_assert_eq!(again.encode().expect("encodes"), message.encode().expect("encodes"));
        }
    }
}
