//! Lists, maps and the messages in them, read in place: prost-reflect says what is in them.

mod sampling;

use proptest::prelude::*;
use prost_reflect::prost::Message as _;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, ReflectMessage};
use provost_marshal::{Elements, Scratch, StructPlace, Value, View};
use provost_schema::MessageId;
use sampling::app_heap::WINDOW_AT;
use sampling::entropy::Entropy;
use sampling::{Subject, is_same, messages, schemas};

const MESSAGE_BYTES_MAX: u32 = 1 << 20;

struct Case {
    subject: Subject,
    id: MessageId,
    message: DynamicMessage,
    native: Vec<u8>,
}

impl Case {
    fn draw(entropy: &mut Entropy<'_>) -> Case {
        let subject = Subject::new(&schemas::sample(entropy));
        let index = entropy.below(subject.schema.messages.len());
        let id = subject.id(&format!("random.M{index}"));
        let message = messages::sample(entropy, &subject.descriptor(id));
        let mut native = Vec::new();
        subject
            .tables
            .decode(
                id,
                &message.encode_to_vec(),
                &mut native,
                MESSAGE_BYTES_MAX,
                &mut Scratch::default(),
            )
            .unwrap();
        Case {
            subject,
            id,
            message,
            native,
        }
    }

    fn check(&self, view: View<'_>, within: StructPlace, message: &DynamicMessage) {
        let id = self.subject.id(message.descriptor().full_name());
        for field in message.descriptor().fields() {
            let path = self.subject.tables.field_path(id, field.name()).unwrap();
            let value = message.get_field(&field);
            let is_set = !field.supports_presence() || message.has_field(&field);
            let length = self.subject.tables.length_at(&path, view, within);
            match length_of(&value) {
                Some(expected) => assert_eq!(length, Ok(is_set.then_some(expected))),
                None => assert!(length.is_err()),
            }
            if field.is_list() || field.is_map() {
                let elements = self.subject.tables.elements(&path, view, within).unwrap();
                match value.as_list() {
                    Some(list) => self.check_list(view, elements, list),
                    None => self.check_map(view, elements, &field, value.as_map().unwrap()),
                }
            } else if let Kind::Message(_) = field.kind() {
                let place = self.subject.tables.message_at(&path, view, within).unwrap();
                assert_eq!(place.is_some(), message.has_field(&field));
                if let Some(place) = place {
                    self.check(view, place, value.as_message().unwrap());
                }
            } else {
                let read = self.subject.tables.read_at(&path, view, within).unwrap();
                let is_set = !field.supports_presence() || message.has_field(&field);
                assert_eq!(read.is_some(), is_set);
                assert!(read.is_none_or(|read| is_same(read, &value)), "{}", field.name());
            }
        }
    }

    fn check_list(&self, view: View<'_>, elements: Elements<'_>, list: &[prost_reflect::Value]) {
        assert_eq!(elements.len() as usize, list.len());
        for (index, expected) in (0..).zip(list) {
            self.check_value(view, elements, index, expected);
            assert_eq!(elements.key(index), Ok(None));
        }
        assert_eq!(elements.get(elements.len()), Ok(None));
        assert_eq!(elements.place(u32::MAX), Ok(None));
    }

    fn check_map(
        &self,
        view: View<'_>,
        elements: Elements<'_>,
        field: &FieldDescriptor,
        map: &std::collections::HashMap<MapKey, prost_reflect::Value>,
    ) {
        assert_eq!(elements.len() as usize, map.len(), "{}", field.name());
        for (key, expected) in map {
            let index = elements
                .find(&native_key(key))
                .unwrap()
                .expect("the key is found");
            assert_eq!(elements.key(index), Ok(Some(native_key(key))));
            self.check_value(view, elements, index, expected);
        }
        for stranger in [
            Value::String("no such key \u{10ffff}"),
            Value::Int(77_077),
            Value::Uint(77_077),
        ] {
            let is_there = map.keys().any(|key| native_key(key) == stranger);
            assert_eq!(elements.find(&stranger).unwrap().is_some(), is_there);
        }
    }

    fn check_value(
        &self,
        view: View<'_>,
        elements: Elements<'_>,
        index: u32,
        expected: &prost_reflect::Value,
    ) {
        match (elements.get(index).unwrap().unwrap(), expected.as_message()) {
            (Value::Message, Some(message)) => {
                self.check(view, elements.place(index).unwrap().unwrap(), message);
            }
            (read, _) => assert!(is_same(read, expected), "{read:?} is not {expected:?}"),
        }
    }
}

fn length_of(value: &prost_reflect::Value) -> Option<u32> {
    use prost_reflect::Value as Expected;
    let length = match value {
        Expected::String(text) => text.len(),
        Expected::Bytes(bytes) => bytes.len(),
        Expected::List(list) => list.len(),
        Expected::Map(map) => map.len(),
        _ => return None,
    };
    Some(length as u32)
}

fn native_key(key: &MapKey) -> Value<'_> {
    match key {
        MapKey::Bool(key) => Value::Bool(*key),
        MapKey::I32(key) => Value::Int(i64::from(*key)),
        MapKey::I64(key) => Value::Int(*key),
        MapKey::U32(key) => Value::Uint(u64::from(*key)),
        MapKey::U64(key) => Value::Uint(*key),
        MapKey::String(key) => Value::String(key),
    }
}

/// Reads all that can be reached, to see that nothing panics.
fn read_everything(case: &Case, id: MessageId, view: View<'_>, within: StructPlace, depth: u32) {
    let tables = &case.subject.tables;
    let message = case.subject.schema.message(id);
    for field in message.fields() {
        let path = tables.field_path(id, &field.name).unwrap();
        let _ = (
            tables.read_at(&path, view, within),
            tables.length_at(&path, view, within),
        );
        let inner = match field.ty {
            provost_schema::Type::Message(inner) if depth < 4 => Some(inner),
            _ => None,
        };
        if let (Some(inner), Ok(Some(place))) = (inner, tables.message_at(&path, view, within)) {
            read_everything(case, inner, view, place, depth + 1);
        }
        let Ok(elements) = tables.elements(&path, view, within) else {
            continue;
        };
        let _ = elements.find(&Value::String("k"));
        for index in (0..elements.len().min(3)).chain([elements.len().saturating_sub(1)]) {
            let _ = (elements.get(index), elements.key(index));
            if let (Some(inner), Ok(Some(place))) = (inner, elements.place(index)) {
                read_everything(case, inner, view, place, depth + 1);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn elements_are_those_of_the_message(bytes in proptest::collection::vec(any::<u8>(), 0..1500)) {
        let case = Case::draw(&mut Entropy::new(&bytes));
        case.check(View::linear(&case.native), StructPlace::ROOT, &case.message);
        let mut relocated = case.native.clone();
        case.subject.tables.validate_and_relocate(case.id, &mut relocated, WINDOW_AT).unwrap();
        case.check(View::relocated(&relocated, WINDOW_AT), StructPlace::ROOT, &case.message);
    }

    #[test]
    fn reading_what_was_not_validated_errs_or_gives_something_within_it(
        bytes in proptest::collection::vec(any::<u8>(), 0..1500),
        changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..6),
        cut in any::<u16>(),
    ) {
        let case = Case::draw(&mut Entropy::new(&bytes));
        let mut native = case.native.clone();
        for (place, value) in changes {
            let place = usize::from(place) % native.len();
            native[place] = value;
        }
        if cut % 3 == 0 {
            native.truncate(usize::from(cut) % (native.len() + 1));
        }
        read_everything(&case, case.id, View::linear(&native), StructPlace::ROOT, 0);
        read_everything(&case, case.id, View::relocated(&native, u32::from(cut)), StructPlace::ROOT, 0);
    }
}
