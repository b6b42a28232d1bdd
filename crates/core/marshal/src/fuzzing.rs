//! What must hold of any bytes whatever, for fuzzers and property tests: each function panics if it does not.

use provost_schema::MessageId;

use crate::{ForeignRegion, MessageError, Scratch, Tables, View};

/// The limit that these functions give messages, in bytes.
const BYTES_MAX: u32 = 1 << 20;
/// Fields of a path that [`paths`] reads.
const PATH_FIELDS_MAX: usize = 3;
/// Where these functions place a message in its window, in units of 8 bytes.
const WINDOW_AT: u32 = 1000;

/// Validates bytes as a native message. One that is accepted is the same message after a turn through protobuf, can be
/// relocated, and can be gathered from where it was placed.
pub fn validate(tables: &Tables, message: MessageId, bytes: &[u8]) {
    let verdict = tables.validate(message, bytes);
    let mut relocated = bytes.to_vec();
    assert_eq!(
        tables.validate_and_relocate(message, &mut relocated, WINDOW_AT),
        verdict
    );
    let mut protobuf = Vec::new();
    let encoded = tables.encode(message, bytes, &mut protobuf);
    // A longer message than the limit would be refused when it is gathered.
    if verdict.is_err() || bytes.len() > BYTES_MAX as usize {
        return;
    }
    encoded.expect("what validates encodes");
    let turned = round_trip(tables, message, &protobuf);
    assert_eq!(
        turned, protobuf,
        "a valid message is the same after a turn through protobuf"
    );
    let (mut movable, mut plain) = (relocated.clone(), bytes.to_vec());
    tables
        .make_movable(message, &mut movable, WINDOW_AT)
        .expect("what was relocated can be moved again");
    tables
        .validate_and_relocate(message, &mut plain, 0)
        .expect("it was validated");
    assert_eq!(movable, plain, "a message that can be moved again is as it came");
    let linear =
        gathered(tables, message, &relocated, WINDOW_AT, WINDOW_AT).expect("what was relocated is gathered");
    protobuf.clear();
    tables
        .encode(message, &linear, &mut protobuf)
        .expect("what was gathered encodes");
    assert_eq!(turned, protobuf, "a relocated message is the same");
}

/// Decodes bytes as protobuf. What is accepted validates, and is the same after another turn.
pub fn decode(tables: &Tables, message: MessageId, protobuf: &[u8]) {
    let mut native = Vec::new();
    if tables
        .decode(message, protobuf, &mut native, BYTES_MAX, &mut Scratch::default())
        .is_err()
    {
        assert!(native.is_empty(), "a decoder that fails leaves nothing behind");
        return;
    }
    assert_eq!(
        tables.validate(message, &native),
        Ok(()),
        "what was decoded validates"
    );
    let mut encoded = Vec::new();
    tables
        .encode(message, &native, &mut encoded)
        .expect("what was decoded encodes");
    assert_eq!(round_trip(tables, message, &encoded), encoded);
}

/// Reads fields of bytes as protobuf by their paths. Of a message that decodes, they are what its native form says.
pub fn paths(tables: &Tables, message: MessageId, protobuf: &[u8]) {
    let (mut native, mut scratch) = (Vec::new(), Scratch::default());
    let decoded = tables.decode(message, protobuf, &mut native, u32::MAX, &mut scratch);
    let mut names = Vec::new();
    tables.path_names(message, PATH_FIELDS_MAX, "", &mut names);
    for name in names {
        let path = tables.field_path(message, &name).expect("every field has a path");
        let read = tables.read_protobuf(&path, protobuf, &mut scratch);
        if decoded.is_ok() {
            let expected = tables.read(&path, View::linear(&native)).expect("it is whole");
            let read = read.expect("what decodes is read");
            // By their text, for a float may be none that equals itself.
            assert_eq!(format!("{read:?}"), format!("{expected:?}"), "{name}");
        }
    }
}

/// Gathers a message from a heap of these bytes, with its root at `root` (in units of 8 bytes from the heap's start).
/// What is gathered validates, but for the text of large strings, which nobody has looked at.
pub fn gather(tables: &Tables, message: MessageId, heap: &[u8], root: u32) {
    let Some(root) = root.checked_add(WINDOW_AT) else {
        return;
    };
    let Ok(linear) = gathered(tables, message, heap, WINDOW_AT, root) else {
        return;
    };
    match tables.validate(message, &linear) {
        Ok(()) | Err(MessageError::Utf8 { .. }) => {}
        Err(error) => panic!("what was gathered is malformed: {error}"),
    }
}

/// Protobuf to native and back.
fn round_trip(tables: &Tables, message: MessageId, protobuf: &[u8]) -> Vec<u8> {
    let (mut native, mut again) = (Vec::new(), Vec::new());
    let decoded = tables.decode(message, protobuf, &mut native, u32::MAX, &mut Scratch::default());
    decoded.expect("what was encoded decodes");
    tables
        .encode(message, &native, &mut again)
        .expect("what was decoded encodes");
    again
}

/// Gathers a message from a copy of a heap, and puts it together.
fn gathered(
    tables: &Tables,
    message: MessageId,
    heap: &[u8],
    window_at: u32,
    root: u32,
) -> Result<Vec<u8>, crate::GatherError> {
    let mut words = vec![0u64; heap.len().div_ceil(8)];
    for (word, bytes) in words.iter_mut().zip(heap.chunks(8)) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(padded);
    }
    let region = ForeignRegion::of_words(&words, window_at);
    let (mut linear, mut leaves) = (Vec::new(), Vec::new());
    let total = tables.gather(message, root, &region, &mut linear, &mut leaves, BYTES_MAX)?;
    let base = words.as_ptr().addr();
    for leaf in leaves {
        linear.resize(linear.len().next_multiple_of(8), 0);
        let off8 = (leaf.address.get() - base) / 8;
        region.copy(window_at + off8 as u32, leaf.bytes, &mut linear)?;
    }
    assert_eq!(
        linear.len(),
        total as usize,
        "the gathered message has the length it was said to have"
    );
    Ok(linear)
}
