//! Descriptor sets as a node's store takes them from an app: bounded before anything is made of them, counted for its user.

use provostd::schemas::{SchemaBounds, SchemaOwner, SchemaStore};

use crate::subject::Subject;

const BOUNDS: SchemaBounds = SchemaBounds {
    node: 64,
    per_user: 32,
};
/// The user whose app brings the set.
const APP: SchemaOwner = SchemaOwner::User(1);

/// A set that is taken is found by all of its hashes, and taken once more; one that is not leaves the store as it was.
pub(crate) fn schema_store(input: &[u8]) {
    let store = SchemaStore::new(BOUNDS, None);
    let good = &Subject::get().descriptor_set;
    let before = store.add(good, None, SchemaOwner::Node).expect("a good schema");
    let schemas = store.len();
    match store.add(input, None, APP) {
        Ok(added) => {
            for bound in &added {
                let known = store.known(&bound.service, bound.hash);
                assert!(known.is_some(), "{} was taken and is not there", bound.service);
                let again = store.add(input, Some(bound.hash), APP);
                assert!(again.is_ok(), "{} is not taken again: {again:?}", bound.service);
            }
        }
        Err(_) => assert_eq!(store.len(), schemas, "what was refused is there"),
    }
    for bound in before {
        assert!(store.known(&bound.service, bound.hash).is_some());
    }
}
