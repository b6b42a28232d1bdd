//! Targets of `provost-schema` and `provost-marshal`: descriptor sets, and messages in each of their forms.

use provost_marshal::{Tables, fuzzing};
use provost_schema::Schema;

use crate::subject::Subject;

/// A descriptor set that loads has tables, a hash for each service, and is what its pruned form says.
pub(crate) fn schema(input: &[u8]) {
    let Ok(schema) = Schema::from_descriptor_set(input) else {
        return;
    };
    // Tables have bounds of their own; what is past them is refused.
    let _ = Tables::compile(&schema);
    for service in &schema.services {
        let name = &service.full_name;
        assert!(
            schema.for_service(name).is_some(),
            "service {name} of the schema is not in it"
        );
        let again = Schema::from_descriptor_set(input).map(|again| again.service_hash(name));
        assert_eq!(
            again.ok(),
            Some(schema.service_hash(name)),
            "the hash of {name} is not a function of its input"
        );
    }
}

pub(crate) fn schema_seeds() -> Vec<Vec<u8>> {
    vec![Subject::get().descriptor_set.clone()]
}

/// A native message that came from a peer.
pub(crate) fn native(input: &[u8]) {
    let subject = Subject::get();
    fuzzing::validate(&subject.tables, subject.everything(), input);
}

pub(crate) fn native_seeds() -> Vec<Vec<u8>> {
    Subject::get().native_seeds()
}

/// A protobuf message that came from a peer.
pub(crate) fn protobuf(input: &[u8]) {
    let subject = Subject::get();
    fuzzing::decode(&subject.tables, subject.everything(), input);
    fuzzing::paths(&subject.tables, subject.everything(), input);
}

pub(crate) fn protobuf_seeds() -> Vec<Vec<u8>> {
    Subject::get().protobuf_seeds()
}

/// A message in an app's heap: the first 4 bytes say where its root is, in units of 8 bytes, the rest is the heap.
pub(crate) fn gather(input: &[u8]) {
    let Some((root, heap)) = input.split_first_chunk::<4>() else {
        return;
    };
    let subject = Subject::get();
    fuzzing::gather(
        &subject.tables,
        subject.everything(),
        heap,
        u32::from_le_bytes(*root),
    );
}

/// Native messages, as an app's window has them: their references count from the window's start.
pub(crate) fn gather_seeds() -> Vec<Vec<u8>> {
    let subject = Subject::get();
    let placed = |mut native: Vec<u8>| {
        // Where `fuzzing::gather` has its window.
        const WINDOW_AT: u32 = 1000;
        subject
            .tables
            .validate_and_relocate(subject.everything(), &mut native, WINDOW_AT)
            .ok()?;
        Some([vec![0; 4], native].concat())
    };
    subject.native_seeds().into_iter().filter_map(placed).collect()
}
