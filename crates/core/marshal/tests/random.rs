//! Random schemas and random messages: prost-reflect is the independent implementation of protobuf.

mod sampling;

use proptest::prelude::*;
use prost_reflect::prost::Message as _;
use prost_reflect::{DynamicMessage, Kind, MessageDescriptor, ReflectMessage};
use provost_marshal::{Leaf, MessageError, Scratch, Tables, Value, View, copy_foreign};
use provost_schema::MessageId;
use sampling::app_heap::{AppHeap, WINDOW_AT};
use sampling::entropy::Entropy;
use sampling::{Subject, is_same, messages, schemas};

const MESSAGE_BYTES_MAX: u32 = 1 << 20;

struct Nowhere;
impl provost_datapath::Keepalive for Nowhere {}

/// A schema, a message type of it, and some messages.
struct Case {
    subject: Subject,
    id: MessageId,
    descriptor: MessageDescriptor,
}

impl Case {
    fn draw(entropy: &mut Entropy<'_>) -> Case {
        let subject = Subject::new(&schemas::sample(entropy));
        let id = subject.id(&format!(
            "random.M{}",
            entropy.below(subject.schema.messages.len())
        ));
        let descriptor = subject.descriptor(id);
        Case {
            subject,
            id,
            descriptor,
        }
    }

    fn tables(&self) -> &Tables {
        &self.subject.tables
    }

    fn decode(&self, protobuf: &[u8]) -> Vec<u8> {
        // The message stands behind others, to see that nothing depends on its place.
        let mut out = vec![9; 11];
        let bytes = self
            .tables()
            .decode(
                self.id,
                protobuf,
                &mut out,
                MESSAGE_BYTES_MAX,
                &mut Scratch::default(),
            )
            .expect("valid protobuf decodes");
        assert_eq!(out.len(), 16 + bytes as usize);
        out.split_off(16)
    }

    fn encode(&self, native: &[u8]) -> Vec<u8> {
        let mut out = vec![9; 3];
        self.tables()
            .encode(self.id, native, &mut out)
            .expect("a valid message encodes");
        out.split_off(3)
    }

    fn reflect(&self, protobuf: &[u8]) -> DynamicMessage {
        DynamicMessage::decode(self.descriptor.clone(), protobuf).expect("prost-reflect decodes it")
    }
}

fn entropy() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..1500)
}

/// Puts a gathered message together.
fn whole(head: &[u8], leaves: &[Leaf]) -> Vec<u8> {
    let mut linear = head.to_vec();
    for leaf in leaves {
        linear.resize(linear.len().next_multiple_of(8), 0);
        let range =
            provost_datapath::ForeignBytes::new(leaf.address, leaf.bytes, std::sync::Arc::new(Nowhere));
        copy_foreign(&range, &mut linear);
    }
    linear
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn native_and_protobuf_forms_say_the_same(bytes in entropy()) {
        let entropy = &mut Entropy::new(&bytes);
        let case = Case::draw(entropy);
        let message = messages::sample(entropy, &case.descriptor);
        let native = case.decode(&message.encode_to_vec());
        prop_assert_eq!(case.tables().validate(case.id, &native), Ok(()));
        let encoded = case.encode(&native);
        // Through bytes too: a list that was set to be empty does not equal one that was not set.
        assert_same(&case.reflect(&encoded), &case.reflect(&message.encode_to_vec()));
        prop_assert_eq!(case.decode(&encoded), native);
    }

    #[test]
    fn occurrences_merge_as_protobuf_has_it(bytes in entropy()) {
        let entropy = &mut Entropy::new(&bytes);
        let case = Case::draw(entropy);
        let mut both = messages::sample(entropy, &case.descriptor).encode_to_vec();
        both.extend(messages::sample(entropy, &case.descriptor).encode_to_vec());
        let expected = case.reflect(&both);
        // An unknown varint, and an unknown group with a field in it.
        both.extend([0xf8, 0xff, 0xff, 0xff, 0x0f, 1, 0xf3, 0xff, 0xff, 0xff, 0x0f, 8, 1, 0xf4, 0xff, 0xff, 0xff, 0x0f]);
        let native = case.decode(&both);
        prop_assert_eq!(case.tables().validate(case.id, &native), Ok(()));
        assert_same(&case.reflect(&case.encode(&native)), &expected);
    }

    #[test]
    fn scattered_and_dirty_messages_gather_to_the_canonical_form(bytes in entropy(), seed: u64) {
        let entropy = &mut Entropy::new(&bytes);
        let case = Case::draw(entropy);
        let message = messages::sample(entropy, &case.descriptor);
        let native = case.decode(&message.encode_to_vec());
        let heap = AppHeap::scatter(&case.subject.schema, case.id, &native, seed);
        let (mut head, mut leaves) = (vec![7; 5], vec![]);
        let total = case
            .tables()
            .gather(case.id, heap.root, &heap.region(), &mut head, &mut leaves, MESSAGE_BYTES_MAX)
            .unwrap();
        let linear = whole(&head.split_off(8), &leaves);
        prop_assert_eq!(linear.len(), total as usize);
        prop_assert_eq!(case.tables().validate(case.id, &linear), Ok(()));
        prop_assert_eq!(case.encode(&linear), case.encode(&native));
        if leaves.is_empty() {
            prop_assert_eq!(&linear, &native);
        }
        // In one piece, where it is to go: nothing is left where it is, and too little room is noticed.
        let padded = native.len().next_multiple_of(8);
        let mut place = vec![9; padded + seed as usize % 20];
        let total = case.tables().gather_to(case.id, heap.root, &heap.region(), &mut place).unwrap();
        prop_assert_eq!(&place[..total as usize], &native[..]);
        let short = &mut place[..padded - 1];
        prop_assert!(case.tables().gather_to(case.id, heap.root, &heap.region(), short).is_err());
    }

    #[test]
    fn a_limit_of_exactly_its_length_admits_a_message(bytes in entropy(), seed: u64) {
        let entropy = &mut Entropy::new(&bytes);
        let case = Case::draw(entropy);
        let encoded = messages::sample(entropy, &case.descriptor).encode_to_vec();
        let native = case.decode(&encoded);
        let heap = AppHeap::scatter(&case.subject.schema, case.id, &native, seed);
        let (mut head, mut leaves) = (vec![], vec![]);
        let region = heap.region();
        case.tables().gather(case.id, heap.root, &region, &mut head, &mut leaves, MESSAGE_BYTES_MAX).unwrap();
        // Leaves may take padding in other places than in the canonical form.
        let is_canonical = leaves.is_empty();
        for (limit, fits) in [(native.len() as u32, true), (native.len() as u32 - 1, false)] {
            let (mut head, mut leaves) = (vec![], vec![]);
            let gathered =
                case.tables().gather(case.id, heap.root, &heap.region(), &mut head, &mut leaves, limit);
            if is_canonical {
                prop_assert_eq!(gathered.is_ok(), fits, "{:?}", gathered);
            }
            let mut out = vec![];
            let decoded = case.tables().decode(case.id, &encoded, &mut out, limit, &mut Scratch::default());
            prop_assert_eq!(decoded.is_ok(), fits);
            if !fits {
                prop_assert!(out.is_empty());
            }
        }
    }

    #[test]
    fn a_relocated_message_reads_the_same_in_its_window(bytes in entropy()) {
        let entropy = &mut Entropy::new(&bytes);
        let case = Case::draw(entropy);
        let native = case.decode(&messages::sample(entropy, &case.descriptor).encode_to_vec());
        let mut relocated = native.clone();
        case.tables().validate_and_relocate(case.id, &mut relocated, WINDOW_AT).unwrap();
        let heap = AppHeap::of_bytes(&relocated, WINDOW_AT);
        let (mut head, mut leaves) = (vec![], vec![]);
        case.tables()
            .gather(case.id, WINDOW_AT, &heap.region(), &mut head, &mut leaves, MESSAGE_BYTES_MAX)
            .unwrap();
        prop_assert_eq!(case.encode(&whole(&head, &leaves)), case.encode(&native));
        case.tables().make_movable(case.id, &mut relocated, WINDOW_AT).unwrap();
        prop_assert_eq!(relocated, native);
    }

    #[test]
    fn a_message_of_another_place_cannot_be_moved(bytes in entropy(), window_at in 0..2 * WINDOW_AT) {
        let entropy = &mut Entropy::new(&bytes);
        let case = Case::draw(entropy);
        let native = case.decode(&messages::sample(entropy, &case.descriptor).encode_to_vec());
        let mut relocated = native.clone();
        case.tables().validate_and_relocate(case.id, &mut relocated, WINDOW_AT).unwrap();
        let has_references = relocated != native;
        let moved = case.tables().make_movable(case.id, &mut relocated, window_at);
        prop_assert_eq!(moved.is_ok(), window_at == WINDOW_AT || !has_references);
    }

    #[test]
    fn what_passes_validation_is_safe_whatever_was_changed(
        bytes in entropy(),
        changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..6),
        cut: u8,
    ) {
        let entropy = &mut Entropy::new(&bytes);
        let case = Case::draw(entropy);
        let mut native = case.decode(&messages::sample(entropy, &case.descriptor).encode_to_vec());
        for (place, value) in changes {
            let place = usize::from(place) % native.len();
            native[place] = if value > 8 { value } else { native[place].wrapping_add(value) };
        }
        if cut > 250 {
            native.truncate(native.len().saturating_sub(usize::from(cut - 250)));
        }
        provost_marshal::fuzzing::validate(case.tables(), case.id, &native);
        let mut mutated = case.encode_if_possible(&native);
        mutated.extend(&native);
        provost_marshal::fuzzing::decode(case.tables(), case.id, &mutated);
        provost_marshal::fuzzing::decode(case.tables(), case.id, &bytes);
    }

    #[test]
    fn gathering_arbitrary_memory_errs_or_gives_a_valid_message(
        bytes in entropy(),
        changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..8),
        seed: u64,
    ) {
        let entropy = &mut Entropy::new(&bytes);
        let case = Case::draw(entropy);
        let native = case.decode(&messages::sample(entropy, &case.descriptor).encode_to_vec());
        let mut heap = AppHeap::scatter(&case.subject.schema, case.id, &native, seed);
        let words = heap.words_mut();
        for (place, value) in changes {
            let place = usize::from(place) % (words.len() * 8);
            words[place / 8] ^= u64::from(value) << (place % 8 * 8);
        }
        let memory: Vec<u8> = heap.words_mut().iter().flat_map(|word| word.to_le_bytes()).collect();
        provost_marshal::fuzzing::gather(case.tables(), case.id, &memory, heap.root - WINDOW_AT);
        provost_marshal::fuzzing::gather(case.tables(), case.id, &bytes, u32::from(seed as u8));
    }

    /// Of messages one after the other, which merge, and of messages with wrong bytes.
    #[test]
    fn fields_of_protobuf_are_those_of_the_decoded_message(
        bytes in entropy(),
        changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..4),
    ) {
        let entropy = &mut Entropy::new(&bytes);
        let case = Case::draw(entropy);
        let mut pieces = (0..4).map(|_| messages::sample(entropy, &case.descriptor).encode_to_vec());
        let mut protobuf = pieces.next().unwrap_or_default();
        provost_marshal::fuzzing::paths(case.tables(), case.id, &protobuf);
        pieces.for_each(|piece| protobuf.extend(piece));
        case.decode(&protobuf);
        provost_marshal::fuzzing::paths(case.tables(), case.id, &protobuf);
        for (place, value) in changes {
            if !protobuf.is_empty() {
                let place = usize::from(place) % protobuf.len();
                protobuf[place] ^= value;
            }
        }
        provost_marshal::fuzzing::paths(case.tables(), case.id, &protobuf);
    }

    #[test]
    fn fields_read_by_path_are_those_of_the_message(bytes in entropy()) {
        let entropy = &mut Entropy::new(&bytes);
        let case = Case::draw(entropy);
        let message = messages::sample(entropy, &case.descriptor);
        let native = case.decode(&message.encode_to_vec());
        check_paths(&case, &native, &message, "");
    }
}

impl Case {
    fn encode_if_possible(&self, native: &[u8]) -> Vec<u8> {
        let mut out = vec![];
        let _ = self.tables().encode(self.id, native, &mut out);
        out
    }
}

/// Compares two messages. (Their `Debug` form does not end if their type is recursive.)
fn assert_same(got: &DynamicMessage, expected: &DynamicMessage) {
    let json = |message| serde_json::to_string_pretty(message).expect("a message has a JSON form");
    assert!(got == expected, "got {}, expected {}", json(got), json(expected));
}

fn check_paths(case: &Case, native: &[u8], message: &DynamicMessage, prefix: &str) {
    for field in message.descriptor().fields() {
        let path = format!("{prefix}{}", field.name());
        let found = case
            .tables()
            .field_path(case.id, &path)
            .expect("every field has a path");
        let read = case
            .tables()
            .read(&found, View::linear(native))
            .expect("the message is whole");
        let is_set = !field.supports_presence() || message.has_field(&field);
        assert_eq!(read.is_some(), is_set, "{path}");
        let value = message.get_field(&field);
        if let (Some(read), Kind::Message(_), false, false) =
            (read, field.kind(), field.is_list(), field.is_map())
        {
            assert_eq!(read, Value::Message);
            check_paths(case, native, value.as_message().unwrap(), &format!("{path}."));
        } else if let Some(read) = read {
            assert!(is_same(read, &value), "{path}: {read:?} is not {value:?}");
        }
    }
}

#[test]
fn a_message_that_the_schema_does_not_have_is_refused() {
    let subject = Subject::from_source("syntax = \"proto3\"; message A {}");
    let unknown = MessageId(1);
    assert_eq!(
        subject.tables.validate(unknown, &[0]),
        Err(MessageError::Unknown(unknown))
    );
}
