//! Room for schemas: what sets take, and which are forgotten when there is too little.

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
    /// Forgets sets that nobody uses until there is room for another of this owner.
    pub(super) fn make_room(
        &mut self,
        new: SchemaUsage,
        owner: SchemaOwner,
        bounds: SchemaBounds,
    ) -> Result<(), StoreError> {
        if let SchemaOwner::User(user) = owner {
            let is_own = |set: &KnownSet| set.owner == owner;
            while !self
                .usage(is_own)
                .and(new)
                .is_within(bounds.per_user, MEMORY_BYTES_PER_USER_MAX)
            {
                let SchemaUsage { schemas, bytes } = self.usage(is_own);
                let full = StoreError::UserFull {
                    user,
                    schemas,
                    bytes,
                    bound: bounds.per_user,
                };
                self.forget_oldest(is_own).ok_or(full)?;
            }
        }
        // What comes with the configuration or from the process before is bounded by number alone: it was let in there.
        let bytes_max = match owner {
            SchemaOwner::Node => usize::MAX,
            SchemaOwner::User(_) => MEMORY_BYTES_MAX,
        };
        while !self.usage(|_| true).and(new).is_within(bounds.node, bytes_max) {
            let forgotten = self
                .forget_oldest(|set| set.owner == owner)
                .or_else(|| self.forget_oldest(|_| true));
            forgotten.ok_or(StoreError::Full { bound: bounds.node })?;
        }
        Ok(())
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

    /// Forgets the oldest of these sets that nobody uses.
    fn forget_oldest(&mut self, may_go: impl Fn(&KnownSet) -> bool) -> Option<()> {
        let is_used = |hash: &SchemaHash| {
            let known = self.by_hash.get(hash);
            known.is_some_and(|known| Arc::strong_count(known) > 1)
        };
        let unused = self.sets.iter().filter(|(_, set)| may_go(set));
        let unused = unused.filter(|(_, set)| !set.services.iter().any(is_used));
        let oldest = *unused.map(|(number, _)| number).min()?;
        for hash in self.sets.remove(&oldest)?.services {
            self.by_hash.remove(&hash);
            self.learnt_from.remove(&hash);
        }
        Some(())
    }
}
