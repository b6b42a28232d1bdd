//! What holds of every schema: its layout, its hash, and that it is compatible with itself.

mod random;

use proptest::prelude::*;
use prost_types::source_code_info::Location;
use prost_types::{FileDescriptorSet, SourceCodeInfo};
use provost_schema::{
    Cardinality, Compatibility, Field, Message, Schema, SchemaHash, Slot, Type, compatibility,
};
use random::{SERVICE, descriptor_set, encoded, messages};

fn load(set: &FileDescriptorSet) -> Schema {
    Schema::from_descriptor_set(&encoded(set)).expect("a valid schema")
}

fn hash(set: &FileDescriptorSet) -> SchemaHash {
    load(set).service_hash(SERVICE).expect("the service")
}

/// Size and alignment of a value, as the specification has them.
fn extent(schema: &Schema, ty: Type, inline: bool) -> (u32, u32) {
    match ty {
        Type::Bool => (1, 1),
        Type::Int64 | Type::Sint64 | Type::Uint64 | Type::Fixed64 | Type::Sfixed64 | Type::Double => (8, 8),
        Type::String | Type::Bytes => (8, 4),
        Type::Message(id) if inline => (schema.message(id).size, schema.message(id).align),
        _ => (4, 4),
    }
}

/// The bytes of a slot, and its alignment.
fn slot_bytes(schema: &Schema, slot: &Slot) -> (std::ops::Range<u32>, u32) {
    match slot {
        Slot::Oneof(oneof) => (oneof.offset..oneof.offset + oneof.size, oneof.align),
        Slot::Field(field) => {
            let (size, align) = extent(schema, field.ty, false);
            match &field.cardinality {
                Cardinality::Implicit | Cardinality::OneofMember => {
                    (field.offset..field.offset + size, align)
                }
                Cardinality::Optional { value_offset } => {
                    assert!(*value_offset >= field.offset + 4 && value_offset.is_multiple_of(align));
                    // As in C, a struct of a word and a value is padded at its end.
                    let align = align.max(4);
                    (field.offset..(value_offset + size).next_multiple_of(align), align)
                }
                Cardinality::Repeated { .. } | Cardinality::Map(_) => (field.offset..field.offset + 8, 4),
            }
        }
    }
}

fn lowest(slot: &Slot) -> u32 {
    slot.fields()
        .iter()
        .map(|field| field.number)
        .min()
        .expect("a field")
}

fn check_layout(schema: &Schema, message: &Message) {
    assert!(message.size.is_multiple_of(message.align) && message.size > 0);
    let (mut end, mut largest, mut before) = (0, 1, None);
    for slot in &message.slots {
        let (bytes, align) = slot_bytes(schema, slot);
        assert!(
            bytes.start >= end && bytes.start.is_multiple_of(align),
            "{}: {slot:?}",
            message.full_name
        );
        assert!(bytes.start - end < align, "a gap larger than alignment asks for");
        let order = (std::cmp::Reverse(align), lowest(slot));
        assert!(before.is_none_or(|before| before < order), "slots stand in order");
        (end, largest, before) = (bytes.end, largest.max(align), Some(order));
        match slot {
            Slot::Oneof(oneof) => check_oneof(schema, oneof),
            Slot::Field(Field {
                cardinality: Cardinality::Map(pair),
                ty,
                ..
            }) => {
                let (key, key_align) = extent(schema, pair.key, false);
                let (value, value_align) = extent(schema, *ty, true);
                assert_eq!(pair.align, key_align.max(value_align));
                assert!(pair.value_offset >= key && pair.value_offset.is_multiple_of(value_align));
                assert!(pair.size >= pair.value_offset + value && pair.size.is_multiple_of(pair.align));
            }
            Slot::Field(_) => {}
        }
    }
    assert_eq!(message.align, largest);
    assert_eq!(message.size, end.max(1).next_multiple_of(largest));
}

fn check_oneof(schema: &Schema, oneof: &provost_schema::Oneof) {
    assert!(oneof.size.is_multiple_of(oneof.align) && oneof.align >= 4);
    assert!(oneof.members.is_sorted_by(|one, other| one.number < other.number));
    for member in &oneof.members {
        let (size, align) = extent(schema, member.ty, false);
        assert_eq!(member.offset, oneof.value_offset);
        assert!(oneof.value_offset.is_multiple_of(align) && oneof.value_offset >= oneof.offset + 4);
        assert!(member.offset + size <= oneof.offset + oneof.size);
    }
}

/// Changes one thing that matters; `None` if the schema has no place for it.
fn change(set: &mut FileDescriptorSet, which: usize, file: usize, at: usize) -> Option<()> {
    let count = set.file.len() - 2;
    let message = &mut set.file[file % count].message_type[0];
    match which {
        0 => message.name = Some("Renamed".into()),
        1 => set.file.last_mut()?.service[0].method[0].server_streaming = Some(true),
        2 => set.file.last_mut()?.service[0].method[0].name = Some("Renamed".into()),
        3 => set.file.last_mut()?.service[0].method.truncate(count - 1),
        _ => {
            let fields = message.field.len();
            let field = message.field.get_mut(at.checked_rem(fields)?)?;
            match which {
                4 => field.name = Some("renamed".into()),
                5 => field.number = Some(field.number() + 20),
                6 => {
                    let packed = field.options.as_mut()?;
                    packed.packed = Some(!packed.packed());
                }
                7 if field.type_name.is_none() => {
                    field.r#type = Some(if field.r#type == Some(8) { 9 } else { 8 })
                }
                8 => drop(message.field.remove(at % fields)),
                _ => return None,
            }
        }
    }
    Some(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn layout_has_no_overlap_and_no_needless_gap(messages in messages()) {
        let schema = load(&descriptor_set(&messages));
        for message in &schema.messages {
            check_layout(&schema, message);
        }
    }

    #[test]
    fn comments_and_the_order_of_files_do_not_change_the_hash(messages in messages(), turn in 0..8_usize) {
        let mut set = descriptor_set(&messages);
        let before = hash(&set);
        let turn = turn % set.file.len();
        set.file.rotate_left(turn);
        for file in &mut set.file {
            let location = |path: &[i32]| Location {
                path: path.to_vec(),
                span: vec![0, 0, 1],
                leading_comments: Some(" Said.\n".into()),
                ..Location::default()
            };
            let location = vec![location(&[4, 0]), location(&[4, 0, 2, 0]), location(&[6, 0])];
            file.source_code_info = Some(SourceCodeInfo { location });
            file.message_type.iter_mut().for_each(|message| message.field.reverse());
        }
        let schema = load(&set);
        prop_assert_eq!(schema.service_hash(SERVICE), Some(before));
        prop_assert_eq!(&schema.service(SERVICE).expect("the service").docs, "Said.");
    }

    #[test]
    fn what_matters_changes_the_hash(messages in messages(), which in 0..9_usize, file in 0..6_usize, at in 0..12_usize) {
        let set = descriptor_set(&messages);
        let mut changed = set.clone();
        prop_assume!(change(&mut changed, which, file, at).is_some() && changed != set);
        // Some changes make the schema invalid, or concern what another element of it names.
        let Ok(schema) = Schema::from_descriptor_set(&encoded(&changed)) else { return Ok(()) };
        prop_assert_ne!(schema.service_hash(SERVICE), Some(hash(&set)));
    }

    #[test]
    fn a_pruned_schema_is_canonical_and_compatible_with_itself(messages in messages()) {
        let schema = load(&descriptor_set(&messages));
        let pruned = schema.for_service(SERVICE).expect("the service");
        prop_assert_eq!(pruned.service_hash(SERVICE), schema.service_hash(SERVICE));
        let again = pruned.for_service(SERVICE).expect("the service");
        prop_assert_eq!(format!("{again:?}"), format!("{pruned:?}"));
        prop_assert_eq!(compatibility(&schema, &pruned, SERVICE), Ok(Compatibility::Equal));
        for message in &pruned.messages {
            check_layout(&pruned, message);
        }
    }

    #[test]
    fn any_bytes_are_refused_or_loaded(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let _ = Schema::from_descriptor_set(&bytes);
    }

    #[test]
    fn a_damaged_schema_is_refused_or_loaded(
        messages in messages(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let set = descriptor_set(&messages);
        let mut bytes = encoded(&set);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(schema) = Schema::from_descriptor_set(&bytes) {
            schema.messages.iter().for_each(|message| check_layout(&schema, message));
            for service in &schema.services {
                let _ = schema.service_hash(&service.full_name);
                let _ = compatibility(&load(&set), &schema, &service.full_name);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_schema_comes_back_from_the_descriptor_set_that_is_made_of_it(messages in messages()) {
        let schema = load(&descriptor_set(&messages));
        let again = Schema::from_descriptor_set(&schema.to_descriptor_set()).expect("a valid schema");
        prop_assert_eq!(again.service_hash(SERVICE), schema.service_hash(SERVICE));
        prop_assert_eq!(again.messages.len(), schema.messages.len());
        let pruned = schema.for_service(SERVICE).expect("the service");
        let again = Schema::from_descriptor_set(&pruned.to_descriptor_set()).expect("a valid schema");
        prop_assert_eq!(again.service_hash(SERVICE), schema.service_hash(SERVICE));
    }
}
