//! Bounds, hostile memory, and the corners of protobuf that random messages seldom reach.

mod sampling;

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use provost_datapath::ForeignBytes;
use provost_marshal::{
    DecodeError, ForeignRegion, GatherError, Leaf, MessageError, PathError, ReadError, Scratch, Value, View,
    copy_foreign,
};
use provost_random::SeededRandom;
use provost_schema::{MessageId, Schema};
use provost_wire::limits::{GATHER_SEGMENT_BYTES_MIN, GATHER_SEGMENTS_MAX, NESTING_MAX};
use sampling::Subject;
use sampling::app_heap::{AppHeap, WINDOW_AT};

const PROTO: &str = include_str!("vectors/vectors.proto");
const MESSAGE_BYTES_MAX: u32 = 1 << 20;

fn subject() -> Subject {
    Subject::from_source(PROTO)
}

fn decode(subject: &Subject, message: &str, protobuf: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let mut out = vec![];
    let id = subject.id(message);
    subject
        .tables
        .decode(id, protobuf, &mut out, MESSAGE_BYTES_MAX, &mut Scratch::default())?;
    Ok(out)
}

fn encode(subject: &Subject, message: &str, native: &[u8]) -> Vec<u8> {
    let mut out = vec![];
    subject
        .tables
        .encode(subject.id(message), native, &mut out)
        .unwrap();
    out
}

fn gather(subject: &Subject, message: &str, heap: &AppHeap) -> Result<(Vec<u8>, Vec<Leaf>), GatherError> {
    let (mut head, mut leaves) = (vec![], vec![]);
    let id = subject.id(message);
    subject.tables.gather(
        id,
        heap.root,
        &heap.region(),
        &mut head,
        &mut leaves,
        MESSAGE_BYTES_MAX,
    )?;
    Ok((head, leaves))
}

/// Protobuf of a record with a length.
fn delimited(number: u8, content: &[u8]) -> Vec<u8> {
    let mut record = vec![number << 3 | 2];
    let mut len = content.len();
    while len >= 0x80 {
        record.push(len as u8 | 0x80);
        len >>= 7;
    }
    record.push(len as u8);
    record.extend(content);
    record
}

/// A `Node` with this many more below it, each the `next` (2) or one of the `children` (3) of the one above.
fn nested(depth: u32, field: u8) -> Vec<u8> {
    (0..depth).fold(vec![], |inner, _| delimited(field, &inner))
}

#[test]
fn nesting_is_bounded_in_every_direction() {
    let subject = subject();
    for field in [2, 3] {
        let deepest = decode(&subject, "vectors.Node", &nested(NESTING_MAX, field)).unwrap();
        let id = subject.id("vectors.Node");
        assert_eq!(subject.tables.validate(id, &deepest), Ok(()));
        assert_eq!(
            encode(&subject, "vectors.Node", &deepest),
            nested(NESTING_MAX, field)
        );
        let heap = AppHeap::scatter(&subject.schema, id, &deepest, 5);
        assert_eq!(gather(&subject, "vectors.Node", &heap).unwrap().0, deepest);

        let too_deep = decode(&subject, "vectors.Node", &nested(NESTING_MAX + 1, field));
        assert!(matches!(too_deep, Err(DecodeError::Nesting { .. })));
    }
}

#[test]
fn the_value_that_a_pair_lacks_counts_as_a_level() {
    let source = "syntax = \"proto3\"; message M { M next = 2; map<int32, M> by_number = 3; }";
    let subject = Subject::from_source(source);
    // A pair without key and value, so many levels below the first message.
    let lacking = |depth| (0..depth).fold(delimited(3, &[]), |inner, _| delimited(2, &inner));
    let deepest = decode(&subject, "M", &lacking(NESTING_MAX - 1)).unwrap();
    assert_eq!(subject.tables.validate(subject.id("M"), &deepest), Ok(()));
    let too_deep = decode(&subject, "M", &lacking(NESTING_MAX));
    assert!(
        matches!(too_deep, Err(DecodeError::Nesting { .. })),
        "{too_deep:?}"
    );
}

#[test]
fn a_message_nested_too_deep_is_refused_wherever_it_is_met() {
    let subject = subject();
    let id = subject.id("vectors.Node");
    // Each node is one block of 24 bytes whose `next` is the block behind it.
    let nodes = NESTING_MAX as usize + 2;
    let mut linear = vec![0; nodes * 24];
    for node in 0..nodes - 1 {
        linear[node * 24 + 8] = 1;
        linear[node * 24 + 12..][..4].copy_from_slice(&((node as u32 + 1) * 3).to_le_bytes());
    }
    let refused = subject.tables.validate(id, &linear);
    assert!(
        matches!(refused, Err(MessageError::Nesting { .. })),
        "{refused:?}"
    );
    let heap = AppHeap::scatter(&subject.schema, id, &linear, 5);
    assert!(matches!(
        gather(&subject, "vectors.Node", &heap),
        Err(GatherError::Message(MessageError::Nesting { .. }))
    ));
    assert!(subject.tables.encode(id, &linear, &mut vec![]).is_err());
}

#[test]
fn groups_of_unknown_fields_are_skipped_to_a_bounded_depth() {
    let subject = subject();
    let group = |depth: usize| [vec![0x53; depth], vec![0x54; depth]].concat();
    assert!(decode(&subject, "vectors.Empty", &group(NESTING_MAX as usize)).is_ok());
    let too_deep = decode(&subject, "vectors.Empty", &group(NESTING_MAX as usize + 1));
    assert!(matches!(too_deep, Err(DecodeError::Nesting { .. })));
    for malformed in [
        &[0x53, 0x5c][..],
        &[0x53],
        &[0x54],
        &[0x53, 0x08, 0x54],
        &[0x57],
        &[0x02, 0x00],
        &[0x00],
        &[0x88, 0x80, 0x80, 0x80, 0x80, 0x00, 0x01],
    ] {
        assert!(
            decode(&subject, "vectors.Empty", malformed).is_err(),
            "{malformed:02x?}"
        );
    }
}

#[test]
fn fields_of_another_wire_type_are_unknown_fields() {
    let subject = subject();
    // Field 1 of Inner as a string, field 2 as a varint; then field 1 as it should be.
    let native = decode(&subject, "vectors.Inner", &[0x0a, 1, b'x', 0x10, 5, 0x08, 9]).unwrap();
    assert_eq!(encode(&subject, "vectors.Inner", &native), [0x08, 9]);
}

#[test]
fn packed_and_unpacked_elements_mix() {
    let subject = subject();
    let protobuf = [
        &[0x08, 1][..],
        &delimited(1, &[2, 3]),
        &[0x10, 1],
        &[0x08, 4],
        &delimited(1, &[]),
    ]
    .concat();
    let native = decode(&subject, "vectors.Lists", &protobuf).unwrap();
    assert_eq!(
        encode(&subject, "vectors.Lists", &native),
        [delimited(1, &[1, 2, 3, 4]), delimited(2, &[1])].concat()
    );
    // The packed form of a list that the schema does not pack.
    let native = decode(&subject, "vectors.Lists", &delimited(8, &[1, 2])).unwrap();
    assert_eq!(encode(&subject, "vectors.Lists", &native), [0x40, 1, 0x40, 2]);
    for cut in [delimited(1, &[0x80]), delimited(3, &[0; 7])] {
        assert!(decode(&subject, "vectors.Lists", &cut).is_err());
    }
}

#[test]
fn another_member_of_a_oneof_discards_the_message_before_it() {
    let subject = subject();
    let inner = |content: &[u8]| delimited(7, content);
    let merged = [inner(&[0x08, 1]), inner(&delimited(2, b"n"))].concat();
    let native = decode(&subject, "vectors.Choice", &merged).unwrap();
    assert_eq!(
        encode(&subject, "vectors.Choice", &native),
        inner(&[&[0x08, 1][..], &delimited(2, b"n")].concat())
    );
    let anew = [inner(&[0x08, 1]), vec![0x18, 5], inner(&delimited(2, b"n"))].concat();
    let native = decode(&subject, "vectors.Choice", &anew).unwrap();
    assert_eq!(
        encode(&subject, "vectors.Choice", &native),
        inner(&delimited(2, b"n"))
    );
    let other = [inner(&[0x08, 1]), delimited(5, b"last")].concat();
    let native = decode(&subject, "vectors.Choice", &other).unwrap();
    assert_eq!(encode(&subject, "vectors.Choice", &native), delimited(5, b"last"));
}

#[test]
fn the_last_of_equal_keys_wins_and_missing_parts_are_defaults() {
    let subject = subject();
    let entry = |key: &[u8], value: &[u8]| delimited(1, &[&delimited(1, key)[..], value].concat());
    let protobuf = [
        entry(b"b", &[0x10, 1]),
        entry(b"a", &[]),
        delimited(1, &[0x10, 7]),
        entry(b"b", &[0x10, 9]),
    ]
    .concat();
    let native = decode(&subject, "vectors.Maps", &protobuf).unwrap();
    let expected = [
        entry(b"", &[0x10, 7]),
        entry(b"a", &[0x10, 0]),
        entry(b"b", &[0x10, 9]),
    ]
    .concat();
    assert_eq!(encode(&subject, "vectors.Maps", &native), expected);
}

#[test]
fn elements_between_other_fields_are_bounded() {
    let subject = subject();
    let mut out = vec![];
    let mut scratch = Scratch::default();
    let id = subject.id("vectors.Lists");
    // Two lists whose elements alternate: each element is a run of its own.
    let many: Vec<u8> = [[0x08, 1], [0x10, 1]].concat().repeat(600_000);
    let refused = subject.tables.decode(id, &many, &mut out, 64 << 20, &mut scratch);
    assert_eq!(refused, Err(DecodeError::TooFragmented));
    assert!(out.is_empty());
    let few: Vec<u8> = [[0x08, 1], [0x10, 1]].concat().repeat(1000);
    assert!(
        subject
            .tables
            .decode(id, &few, &mut out, 64 << 20, &mut scratch)
            .is_ok()
    );
}

#[test]
fn a_small_protobuf_message_cannot_become_a_large_native_one() {
    let subject = subject();
    // 100,000 empty children of two bytes each would take 24 bytes each.
    let protobuf = delimited(3, &[]).repeat(100_000);
    let refused = decode(&subject, "vectors.Node", &protobuf);
    assert_eq!(
        refused,
        Err(DecodeError::TooLong {
            max: MESSAGE_BYTES_MAX
        })
    );
}

#[test]
fn leaves_are_left_in_place_up_to_their_number_and_from_their_size() {
    let subject = subject();
    let id = subject.id("vectors.Lists");
    let min = GATHER_SEGMENT_BYTES_MIN as usize;
    for (bytes, left) in [(min - 1, 0), (min, GATHER_SEGMENTS_MAX)] {
        let protobuf = delimited(5, &vec![7; bytes]).repeat(GATHER_SEGMENTS_MAX + 3);
        let native = decode(&subject, "vectors.Lists", &protobuf).unwrap();
        let heap = AppHeap::scatter(&subject.schema, id, &native, 3);
        let (_, leaves) = gather(&subject, "vectors.Lists", &heap).unwrap();
        assert_eq!(leaves.len(), left);
        assert!(leaves.iter().all(|leaf| leaf.bytes as usize == bytes));
    }
}

#[test]
fn references_into_shared_blocks_cannot_multiply_a_message() {
    let subject = subject();
    let id = subject.id("vectors.Node");
    // Every node has two children, and all nodes of a level are the same two: 2^30 nodes in a few blocks.
    let (mut bytes, levels) = (vec![], 30u32);
    for level in 0..levels {
        for _ in 0..2 {
            let mut node = [0; 24];
            node[16..20].copy_from_slice(&(WINDOW_AT + (level + 1) * 6).to_le_bytes());
            node[20] = if level + 1 < levels { 2 } else { 0 };
            bytes.extend(node);
        }
    }
    let heap = AppHeap::of_bytes(&bytes, WINDOW_AT);
    let (mut head, mut leaves) = (vec![1, 2, 3], vec![]);
    let refused = subject.tables.gather(
        id,
        WINDOW_AT,
        &heap.region(),
        &mut head,
        &mut leaves,
        MESSAGE_BYTES_MAX,
    );
    assert_eq!(
        refused,
        Err(MessageError::TooLong {
            max: MESSAGE_BYTES_MAX
        }
        .into())
    );
    assert_eq!(head, [1, 2, 3]);
    assert!(head.capacity() < 3 << 20);
}

#[test]
fn a_message_that_does_not_fit_the_window_is_refused() {
    let subject = subject();
    let id = subject.id("vectors.Empty");
    assert_eq!(
        subject.tables.validate_and_relocate(id, &mut [0], u32::MAX - 1),
        Ok(())
    );
    let refused = subject.tables.validate_and_relocate(id, &mut [0], u32::MAX);
    assert_eq!(refused, Err(MessageError::Window { window_at: u32::MAX }));
}

#[test]
fn paths_name_what_is_wrong_with_them() {
    let subject = subject();
    let path = |message: &str, path: &str| subject.tables.field_path(subject.id(message), path);
    assert!(path("vectors.Outer", "first.name").is_ok());
    assert!(path("vectors.Choice", "inner.id").is_ok());
    assert!(matches!(
        path("vectors.Outer", "third"),
        Err(PathError::NoField { .. })
    ));
    assert!(matches!(
        path("vectors.Outer", "first..name"),
        Err(PathError::NoField { .. })
    ));
    assert!(matches!(
        path("vectors.Texts", "name.x"),
        Err(PathError::NotAMessage { .. })
    ));
    assert!(matches!(
        path("vectors.Lists", "inners.id"),
        Err(PathError::NotAMessage { .. })
    ));
    let long = ["next"; 102].join(".");
    assert!(matches!(path("vectors.Node", &long), Err(PathError::TooLong)));
}

#[test]
fn what_is_not_there_to_read_is_an_error_and_not_an_absent_field() {
    let subject = subject();
    let native = decode(&subject, "vectors.Texts", &delimited(2, b"here")).unwrap();
    let path = subject
        .tables
        .field_path(subject.id("vectors.Texts"), "data")
        .unwrap();
    assert_eq!(
        subject.tables.read(&path, View::linear(&native)),
        Ok(Some(Value::Bytes(b"here")))
    );
    assert_eq!(
        subject.tables.read(&path, View::linear(&native[..16])),
        Err(ReadError)
    );
    let mut relocated = native;
    subject
        .tables
        .validate_and_relocate(subject.id("vectors.Texts"), &mut relocated, 77)
        .unwrap();
    assert_eq!(
        subject.tables.read(&path, View::relocated(&relocated, 77)),
        Ok(Some(Value::Bytes(b"here")))
    );
    assert_eq!(
        subject.tables.read(&path, View::linear(&relocated)),
        Err(ReadError)
    );
}

/// Messages that the next test gathers, at least, and changes that it waits for.
const GATHERED_MIN: usize = 2000;
const CHANGES_MIN: u64 = 2000;

/// Another thread writes the heap while messages are gathered from it: what comes out is well formed or an error.
#[test]
fn a_heap_that_changes_meanwhile_gives_a_valid_message_or_an_error() {
    let subject = subject();
    let id = subject.id("vectors.Node");
    let label = delimited(1, "müde".as_bytes());
    // A full binary tree of nodes, seven levels deep.
    let tree = (0..7).fold(vec![], |inner, _| {
        [&label[..], &delimited(3, &inner).repeat(2)].concat()
    });
    let native = decode(&subject, "vectors.Node", &tree).unwrap();
    let heap = SharedHeap::of(&subject.schema, id, &native);
    let (stop, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| heap.scribble(&stop, &changes));
        let mut gathered = 0;
        while gathered < GATHERED_MIN || changes.load(Ordering::Relaxed) < CHANGES_MIN {
            let (mut head, mut leaves) = (vec![], vec![]);
            let tables = &subject.tables;
            match tables.gather(
                id,
                heap.root,
                &heap.region(),
                &mut head,
                &mut leaves,
                MESSAGE_BYTES_MAX,
            ) {
                Ok(bytes) => {
                    let linear = whole(head, &leaves);
                    assert_eq!(bytes as usize, linear.len());
                    assert!(matches!(
                        tables.validate(id, &linear),
                        Ok(()) | Err(MessageError::Utf8 { .. })
                    ));
                }
                Err(_) => assert!(head.is_empty() && leaves.is_empty()),
            }
            gathered += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Puts a gathered message together.
fn whole(mut linear: Vec<u8>, leaves: &[Leaf]) -> Vec<u8> {
    struct Nowhere;
    impl provost_datapath::Keepalive for Nowhere {}
    for leaf in leaves {
        linear.resize(linear.len().next_multiple_of(8), 0);
        let range = ForeignBytes::new(leaf.address, leaf.bytes, std::sync::Arc::new(Nowhere));
        copy_foreign(&range, &mut linear);
    }
    linear
}

/// A heap that threads may write while it is read.
struct SharedHeap {
    words: Vec<AtomicU64>,
    root: u32,
}

impl SharedHeap {
    fn of(schema: &Schema, id: MessageId, native: &[u8]) -> SharedHeap {
        let mut heap = AppHeap::scatter(schema, id, native, 17);
        SharedHeap {
            words: heap
                .words_mut()
                .iter()
                .map(|word| AtomicU64::new(*word))
                .collect(),
            root: heap.root,
        }
    }

    fn region(&self) -> ForeignRegion {
        let address = NonZeroUsize::new(self.words.as_ptr().expose_provenance()).unwrap();
        // SAFETY: the words live as long as `self`, 8-aligned; they are only written atomically.
        unsafe { ForeignRegion::new(address, self.words.len() as u64 * 8, WINDOW_AT) }
    }

    /// Flips bits of words here and there, and back.
    fn scribble(&self, stop: &AtomicBool, changes: &AtomicU64) {
        let mut random = SeededRandom::new(1);
        while !stop.load(Ordering::Relaxed) {
            let word = random.pick(&self.words);
            let flip = 1 << random.below(64);
            word.fetch_xor(flip, Ordering::Relaxed);
            std::thread::yield_now();
            word.fetch_xor(flip, Ordering::Relaxed);
            changes.fetch_add(1, Ordering::Relaxed);
        }
    }
}
