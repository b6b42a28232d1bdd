//! Room for schemas: what sets take, and which are forgotten when there is too little.
//!
//! A set is counted by those of its services that no other set had when it came, and it may be all that has the others by now: so sets
//! that fit here need not fit another process, which takes them anew. It takes them all the same ([`SchemaOwner::Predecessor`]), and
//! forgets, when somebody needs the room, what nobody has gone on with.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use provost_schema::SchemaHash;

use super::{
    KnownSchemas, KnownSet, MEMORY_BYTES_MAX, MEMORY_BYTES_PER_USER_MAX, SchemaBounds, SchemaOwner,
    StoreError,
};

/// What some sets take together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SchemaUsage {
    pub(super) schemas: usize,
    pub(super) bytes: usize,
}

impl SchemaUsage {
    fn and(self, other: SchemaUsage) -> SchemaUsage {
        SchemaUsage {
            schemas: self.schemas + other.schemas,
            bytes: self.bytes + other.bytes,
        }
    }

    fn is_within(self, schemas_max: usize, bytes_max: usize) -> bool {
        self.schemas <= schemas_max && self.bytes <= bytes_max
    }
}

impl KnownSchemas {
    /// Forgets what nobody uses until there is room for another set of this owner.
    pub(super) fn make_room(
        &mut self,
        new: SchemaUsage,
        owner: SchemaOwner,
        bounds: SchemaBounds,
    ) -> Result<(), StoreError> {
        if let SchemaOwner::User(user) = owner {
            let is_own = |set: &KnownSet| set.owner == owner;
            loop {
                let held = self.usage(is_own);
                let usage = held.and(new);
                if usage.is_within(bounds.per_user, MEMORY_BYTES_PER_USER_MAX) {
                    break;
                }
                let mut forgotten = self.forget_oldest(is_own);
                if forgotten.is_none() && usage.schemas > bounds.per_user {
                    forgotten = self.forget_unused_services(is_own);
                }
                forgotten.ok_or(StoreError::UserFull {
                    user,
                    schemas: held.schemas,
                    bytes: held.bytes,
                    bound: bounds.per_user,
                })?;
            }
        }
        let bytes_max = match owner {
            SchemaOwner::Predecessor => return Ok(()),
            // What comes with the configuration is bounded by number alone.
            SchemaOwner::Node => usize::MAX,
            SchemaOwner::User(_) => MEMORY_BYTES_MAX,
        };
        loop {
            let usage = self.usage(|_| true).and(new);
            if usage.is_within(bounds.node, bytes_max) {
                return Ok(());
            }
            let mut forgotten = self
                .forget_oldest(|set| set.owner == owner)
                .or_else(|| self.forget_oldest(|_| true));
            if forgotten.is_none() && usage.schemas > bounds.node {
                forgotten = self.forget_unused_services(|_| true);
            }
            forgotten.ok_or(StoreError::Full { bound: bounds.node })?;
        }
    }

    fn usage(&self, is_counted: impl Fn(&KnownSet) -> bool) -> SchemaUsage {
        let counted = self.sets.values().filter(|set| is_counted(set));
        counted.fold(SchemaUsage::default(), |sum, set| {
            sum.and(SchemaUsage {
                schemas: set.services.len(),
                bytes: set.bytes,
            })
        })
    }

    /// Counts sets that the process before had for the user whose apps use them, if all are of one.
    pub(super) fn count_for(&mut self, users: &HashMap<SchemaHash, BTreeSet<u32>>) {
        let predecessors = self.sets.values_mut();
        for set in predecessors.filter(|set| set.owner == SchemaOwner::Predecessor) {
            let mut found = set.services.iter().filter_map(|hash| users.get(hash)).flatten();
            if let Some(user) = found.next()
                && found.all(|other| other == user)
            {
                set.owner = SchemaOwner::User(*user);
            }
        }
    }

    fn is_used(&self, hash: &SchemaHash) -> bool {
        let known = self.by_hash.get(hash);
        known.is_some_and(|known| Arc::strong_count(known) > 1)
    }

    /// Forgets the oldest of these sets that nobody uses.
    fn forget_oldest(&mut self, may_go: impl Fn(&KnownSet) -> bool) -> Option<()> {
        let unused = self.sets.iter().filter(|(_, set)| may_go(set));
        let unused = unused.filter(|(_, set)| !set.services.iter().any(|hash| self.is_used(hash)));
        let oldest = *unused.map(|(number, _)| number).min()?;
        let forgotten = self.sets.remove(&oldest)?.services;
        self.forget(&forgotten);
        Some(())
    }

    /// Forgets what nobody uses of the oldest of these sets of which somebody uses some.
    fn forget_unused_services(&mut self, may_go: impl Fn(&KnownSet) -> bool) -> Option<()> {
        let partly_used = self.sets.iter().filter(|(_, set)| {
            let mut services = set.services.iter();
            may_go(set) && services.any(|hash| !self.is_used(hash))
        });
        let oldest = *partly_used.map(|(number, _)| number).min()?;
        let services = std::mem::take(&mut self.sets.get_mut(&oldest)?.services);
        let (used, unused): (Vec<_>, Vec<_>) = services.into_iter().partition(|hash| self.is_used(hash));
        self.sets.get_mut(&oldest)?.services = used;
        self.forget(&unused);
        Some(())
    }

    fn forget(&mut self, services: &[SchemaHash]) {
        for hash in services {
            self.by_hash.remove(hash);
            self.learnt_from.remove(hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::encoded;
    use super::super::{BoundSchema, SchemaStore};
    use super::*;

    const BOUNDS: SchemaBounds = SchemaBounds { node: 4, per_user: 4 };
    const USER: SchemaOwner = SchemaOwner::User(7);

    /// Two sets that share no service, of each of which one service is used, and nothing else is known: so they fit.
    fn used_sets(store: &SchemaStore) -> Vec<Arc<BoundSchema>> {
        let mut used = Vec::new();
        for [shared, more, own] in [["A", "B", "C"], ["D", "E", "F"]] {
            store.add(&encoded(&[shared, more], 0), None, USER).unwrap();
            used.extend(
                store
                    .add(&encoded(&[shared, more, own], 0), None, USER)
                    .unwrap()
                    .pop(),
            );
        }
        store.add(&encoded(&["G", "H"], 0), None, USER).unwrap();
        assert_eq!(store.len(), 4);
        used
    }

    #[test]
    fn what_the_process_before_used_is_there_whatever_comes_with_it() {
        let before = SchemaStore::new(BOUNDS, None);
        let used = used_sets(&before);
        let store = SchemaStore::new(BOUNDS, None);
        for schema in &used {
            store
                .add(&schema.descriptor_set, None, SchemaOwner::Predecessor)
                .unwrap();
        }
        let found = used
            .iter()
            .map(|schema| store.known(&schema.service, schema.hash));
        let found: Option<Vec<_>> = found.collect();
        let held = found.expect("both are known");
        // Nobody is kept out by the services that came with them and that nobody has gone on with.
        let other = SchemaOwner::User(8);
        let others = store.add(&encoded(&["X", "Y"], 0), None, other).unwrap();
        assert_eq!((others.len(), store.len()), (2, BOUNDS.node));
        let refused = store.add(&encoded(&["Z"], 1), None, other);
        assert!(
            matches!(refused, Err(StoreError::Full { bound: 4 })),
            "{refused:?}"
        );
        drop((held, others));
    }

    #[test]
    fn what_the_process_before_let_in_counts_for_the_users_who_go_on_with_it() {
        let bounds = SchemaBounds { node: 8, per_user: 4 };
        let store = SchemaStore::new(bounds, None);
        let take = |names: &[&str]| {
            store
                .add(&encoded(names, 0), None, SchemaOwner::Predecessor)
                .unwrap()
        };
        let (used, of_nobody) = (take(&["A", "B", "C"]), take(&["D"]));
        store.count_for([(used[0].hash, 7), (SchemaHash([0; 32]), 8)]);
        let refused = store.add(&encoded(&["E", "F"], 0), None, USER);
        assert!(
            matches!(
                refused,
                Err(StoreError::UserFull {
                    user: 7,
                    schemas: 3,
                    ..
                })
            ),
            "{refused:?}"
        );
        assert!(store.add(&encoded(&["E"], 0), None, USER).is_ok());
        drop((used, of_nobody));
    }

    #[test]
    fn a_set_whose_apps_are_of_two_users_counts_for_neither() {
        // Both use one service of it, or each another one.
        for of_second in [0, 1] {
            let store = SchemaStore::new(BOUNDS, None);
            let used = store
                .add(&encoded(&["A", "B"], 0), None, SchemaOwner::Predecessor)
                .unwrap();
            let users = [(used[0].hash, 7), (used[of_second].hash, 8), (used[0].hash, 7)];
            store.count_for(users);
            let owners = |store: &SchemaStore| {
                let known = store.lock();
                known.sets.values().map(|set| set.owner).collect::<Vec<_>>()
            };
            assert_eq!(owners(&store), [SchemaOwner::Predecessor]);
            // One of them has gone by the time of the next process.
            store.count_for([(used[0].hash, 8)]);
            assert_eq!(owners(&store), [SchemaOwner::User(8)]);
        }
    }
}
