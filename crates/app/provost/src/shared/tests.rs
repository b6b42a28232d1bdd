//! The containers against those of the standard library: the same operations, the same answers.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};

use proptest::prelude::*;

use super::{Box, Bytes, List, Map, Optional, String};

const CASES: u32 = if cfg!(miri) { 4 } else { 256 };

fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(CASES)
    }
}

#[derive(Clone, Debug)]
enum ListStep {
    Push(u16),
    Pop,
    Insert(usize, u16),
    Remove(usize),
    Truncate(usize),
    Extend(Vec<u16>),
    Clear,
    Sort,
    Reserve(usize),
}

fn list_step() -> impl Strategy<Value = ListStep> {
    prop_oneof![
        8 => any::<u16>().prop_map(ListStep::Push),
        2 => Just(ListStep::Pop),
        2 => (any::<usize>(), any::<u16>()).prop_map(|(at, value)| ListStep::Insert(at, value)),
        2 => any::<usize>().prop_map(ListStep::Remove),
        1 => (0..50_usize).prop_map(ListStep::Truncate),
        2 => prop::collection::vec(any::<u16>(), 0..40).prop_map(ListStep::Extend),
        1 => Just(ListStep::Clear),
        1 => Just(ListStep::Sort),
        1 => (0..100_usize).prop_map(ListStep::Reserve),
    ]
}

/// Does a step to a list of elements that own memory, and to a vector of the same.
fn do_list_step(list: &mut List<String>, model: &mut Vec<std::string::String>, step: ListStep) {
    let text = |value: u16| format!("element {value}");
    match step {
        ListStep::Push(value) => {
            list.push(text(value).into());
            model.push(text(value));
        }
        ListStep::Pop => assert_eq!(list.pop().map(std::string::String::from), model.pop()),
        ListStep::Insert(at, value) => {
            let at = at % (model.len() + 1);
            list.insert(at, text(value).into());
            model.insert(at, text(value));
        }
        ListStep::Remove(at) if !model.is_empty() => {
            let at = at % model.len();
            assert_eq!(list.remove(at), model.remove(at));
        }
        ListStep::Remove(_) => {}
        ListStep::Truncate(len) => {
            list.truncate(len);
            model.truncate(len);
        }
        ListStep::Extend(values) => {
            list.extend(values.iter().map(|value| String::from(text(*value))));
            model.extend(values.iter().map(|value| text(*value)));
        }
        ListStep::Clear => {
            list.clear();
            model.clear();
        }
        ListStep::Sort => {
            list.sort();
            model.sort();
        }
        ListStep::Reserve(more) => {
            list.reserve(more);
            assert!(list.capacity() >= list.len() + more);
        }
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn lists_are_like_vectors(steps in prop::collection::vec(list_step(), 0..60)) {
        let (mut list, mut model) = (List::new(), Vec::new());
        for step in steps {
            do_list_step(&mut list, &mut model, step);
            prop_assert_eq!(list.len(), model.len());
            prop_assert!(list.iter().eq(model.iter()));
        }
        prop_assert_eq!(format!("{list:?}"), format!("{model:?}"));
        let copy = list.clone();
        prop_assert_eq!(&copy, &list);
        // An owning iterator that is dropped half-way drops the rest.
        let half = list.len() / 2;
        let taken: Vec<_> = list.into_iter().take(half).collect();
        prop_assert!(taken.iter().zip(&model).all(|(one, other)| one == other));
    }

    #[test]
    fn maps_are_like_trees(
        pairs in prop::collection::vec((0..50_u32, any::<u32>()), 0..80),
        removed in prop::collection::vec(0..50_u32, 0..40),
        more in prop::collection::vec((0..50_u32, any::<u32>()), 0..80),
    ) {
        let (mut map, mut model) = (Map::new(), BTreeMap::new());
        for (key, value) in pairs {
            prop_assert_eq!(map.insert(key, value), model.insert(key, value));
        }
        for key in removed {
            prop_assert_eq!(map.remove(&key), model.remove(&key));
        }
        map.extend(more.iter().copied());
        model.extend(more.iter().copied());
        prop_assert!(map.iter().eq(model.iter()));
        prop_assert!(map.keys().eq(model.keys()) && map.values().eq(model.values()));
        for key in 0..50 {
            prop_assert_eq!(map.get(&key), model.get(&key));
            prop_assert_eq!(map.contains_key(&key), model.contains_key(&key));
        }
        prop_assert_eq!(format!("{map:?}"), format!("{model:?}"));
        let collected: Map<u32, u32> = model.iter().map(|(key, value)| (*key, *value)).collect();
        prop_assert_eq!(&collected, &map);
        prop_assert!(map.into_iter().eq(model));
    }

    #[test]
    fn strings_are_like_strings(parts in prop::collection::vec(any::<std::string::String>(), 0..10), cut in any::<usize>()) {
        let (mut text, mut model) = (String::new(), std::string::String::new());
        for part in &parts {
            text.push_str(part);
            model.push_str(part);
            write!(text, "{}", part.len()).unwrap();
            write!(model, "{}", part.len()).unwrap();
            text.extend(part.chars().rev());
            model.extend(part.chars().rev());
        }
        prop_assert_eq!(&text, &model);
        prop_assert_eq!(format!("{text:?} {text:>9}"), format!("{model:?} {model:>9}"));
        let hasher = RandomState::new();
        prop_assert_eq!(hasher.hash_one(&text), hasher.hash_one(model.as_str()));
        prop_assert_eq!(text.cmp(&"m".into()), model.as_str().cmp("m"));
        let cut = model.floor_char_boundary(cut % (model.len() + 1));
        text.truncate(cut);
        model.truncate(cut);
        prop_assert_eq!(&text, &model);
        prop_assert_eq!(text.into_bytes(), model.into_bytes());
    }

    #[test]
    fn bytes_are_like_vectors(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..10)) {
        let (mut bytes, mut model) = (Bytes::new(), Vec::new());
        for part in &parts {
            bytes.extend_from_slice(part);
            model.extend_from_slice(part);
        }
        prop_assert_eq!(&bytes, &model);
        bytes.iter_mut().for_each(|byte| *byte ^= 1);
        model.iter_mut().for_each(|byte| *byte ^= 1);
        prop_assert_eq!(bytes.clone(), model);
        prop_assert!(Bytes::zeroed(bytes.len()).iter().all(|byte| *byte == 0));
    }
}

#[test]
fn optional_values_are_like_options() {
    let mut value: Optional<String> = Optional::None;
    assert!(value.is_none() && value.as_deref().is_none());
    value.get_or_insert_with(|| "a".into()).push('b');
    assert_eq!(value.as_deref(), Some("ab"));
    assert_eq!(value.replace("c".into()).unwrap(), "ab");
    assert_eq!(value.take().unwrap(), "c");
    assert!(value.is_none());
    assert_eq!(value.clone().unwrap_or("d".into()), "d");
    *value.insert("e".into()) = "f".into();
    assert_eq!(value.into_option().unwrap(), "f");
    assert_eq!(Optional::<u32>::None.unwrap_or_default(), 0);
    let (present, absent) = (Optional::Some(3), Optional::<i32>::None);
    assert!(present == Some(3) && absent == None && absent != present);
    assert_eq!(
        (present.map(|value| value * 2), absent.map(|value| value * 2)),
        (Some(6), None)
    );
    assert_eq!(
        (
            present.and_then(|_| None::<u8>),
            present.and_then(|value| value.checked_add(1))
        ),
        (None, Some(4))
    );
    assert_eq!(
        (present.ok_or("none"), absent.ok_or_else(|| "none")),
        (Ok(3), Err("none"))
    );
    assert!(present.is_some_and(|value| value == 3) && !absent.is_some_and(|_| true));
    assert_eq!(
        (present.expect("there is one"), absent.unwrap_or_else(|| 9)),
        (3, 9)
    );
    assert_eq!((present.iter().count(), absent.into_iter().count()), (1, 0));
    let boxed: Optional<Box<i32>> = Some(5).into();
    assert_eq!(boxed.as_deref(), Some(&5));
    assert!(Optional::<Box<i32>>::from(None::<i32>).is_none());
}

#[test]
fn boxes_own_what_they_hold() {
    let nested: Optional<Box<List<Box<String>>>> = List::from([Box::new(String::from("deep"))]).into();
    let copy = nested.clone();
    assert_eq!(copy, nested);
    let mut list = nested.into_option().unwrap().into_inner();
    list[0].push_str("er");
    assert_eq!(*list[0], *"deeper");
    assert_eq!(**copy.as_ref().unwrap()[0], *"deep");
}

#[test]
fn a_string_cannot_be_cut_inside_of_a_character() {
    let mut text = String::from("ä");
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| text.truncate(1))).is_err());
}

#[test]
fn memory_that_is_dropped_comes_back_whoever_drops_it() {
    let used = || super::heap_bytes_used();
    // Other tests run beside this one, so only what is far beyond them counts.
    let before = used();
    const ROUNDS: usize = if cfg!(miri) { 2 } else { 200 };
    for _ in 0..ROUNDS {
        let big = Bytes::zeroed(1 << 20);
        let many: Vec<String> = (0..100)
            .map(|number| String::from(format!("{number}: {}", "x".repeat(1000))))
            .collect();
        std::thread::spawn(move || drop((big, many))).join().unwrap();
    }
    assert!(
        used() < before + (64 << 20),
        "{before} bytes before, {} after",
        used()
    );
}

#[test]
fn a_full_heap_is_an_error_where_one_asks_for_it() {
    let too_much = usize::try_from(super::heap_bytes_max()).unwrap() + 1;
    assert!(Bytes::try_zeroed(too_much).is_err());
    assert!(List::<u64>::try_with_capacity(usize::MAX / 4).is_err());
    assert!(List::<u64>::new().try_reserve(too_much / 8).is_err());
    let panicked = std::panic::catch_unwind(|| Bytes::zeroed(too_much));
    let message = *panicked.unwrap_err().downcast::<std::string::String>().unwrap();
    assert!(message.contains("PROVOST_SEND_HEAP_BYTES"), "{message}");
}

#[test]
fn the_layout_is_the_one_of_the_specification() {
    assert_eq!((size_of::<String>(), align_of::<String>()), (8, 4));
    assert_eq!((size_of::<Bytes>(), align_of::<Bytes>()), (8, 4));
    assert_eq!((size_of::<List<u64>>(), align_of::<List<u64>>()), (8, 4));
    assert_eq!((size_of::<Map<u64, u8>>(), align_of::<Map<u64, u8>>()), (8, 4));
    assert_eq!((size_of::<Box<u64>>(), align_of::<Box<u64>>()), (4, 4));
    assert_eq!((size_of::<Optional<u8>>(), align_of::<Optional<u8>>()), (8, 4));
    assert_eq!((size_of::<Optional<f64>>(), align_of::<Optional<f64>>()), (16, 8));
}
