//! A descriptor set on its way to schemas: checked, and then compiled, which takes time and so happens without a lock.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use provost_marshal::Tables;
use provost_schema::{Schema, SchemaHash};
use provost_wire::limits::SCHEMA_BYTES_MAX;

use super::{BoundSchema, StoreError};

/// A set whose services are told apart, and of which no tables were made yet.
pub(super) struct CheckedSet {
    pub(super) schema: Schema,
    pub(super) hashes: Vec<SchemaHash>,
}

impl CheckedSet {
    pub(super) fn check(descriptor_set: &[u8], services_max: usize) -> Result<CheckedSet, StoreError> {
        if descriptor_set.len() > SCHEMA_BYTES_MAX {
            return Err(StoreError::TooLarge {
                bytes: descriptor_set.len(),
            });
        }
        let schema = Schema::from_descriptor_set(descriptor_set)?;
        match schema.services.len() {
            0 => return Err(StoreError::NoService),
            services if services > services_max => {
                return Err(StoreError::Services {
                    services,
                    bound: services_max,
                });
            }
            _ => {}
        }
        let hashes = schema.service_hashes().map_err(StoreError::Reach)?;
        Ok(CheckedSet { schema, hashes })
    }

    pub(super) fn compile(self, descriptor_set: &[u8]) -> Result<Vec<BoundSchema>, StoreError> {
        #[cfg(test)]
        tests::reach_latch(&self.schema);
        let tables = Arc::new(Tables::compile(&self.schema)?);
        let (schema, descriptor_set) = (Arc::new(self.schema), Arc::<[u8]>::from(descriptor_set));
        let services = schema.services.iter().zip(self.hashes);
        let bind = |(service, hash): (&provost_schema::Service, SchemaHash)| BoundSchema {
            service: service.full_name.clone(),
            hash,
            schema: Arc::clone(&schema),
            tables: Arc::clone(&tables),
            descriptor_set: Arc::clone(&descriptor_set),
            methods: OnceLock::new(),
            was_bound: AtomicBool::new(false),
        };
        Ok(services.map(bind).collect())
    }
}

/// The schemas of all services of a descriptor set.
pub(crate) fn compile(descriptor_set: &[u8]) -> Result<Vec<BoundSchema>, StoreError> {
    CheckedSet::check(descriptor_set, usize::MAX)?.compile(descriptor_set)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    use std::sync::{LazyLock, Mutex};
    use std::time::Duration;

    use provost_engine::AppIdentity;
    use provost_frontend::CallQuota;
    use provost_shm::Memfd;
    use provost_wire::limits::SCHEMA_REACH_MAX;

    use super::super::tests::encoded;
    use super::super::{SchemaBounds, SchemaStore};
    use super::*;
    use crate::services::{Offer, Services};
    use crate::transport::Limits;

    /// How long whoever compiles waits at most: what waits for it would wait for ever.
    const HELD_MAX: Duration = Duration::from_secs(20);

    /// Services of the large set, and fields that each of them reaches.
    const SERVICES: usize = 250;
    const FIELDS: i32 = 4096;
    const _: () = assert!(SERVICES * (FIELDS as usize + 1) <= SCHEMA_REACH_MAX);

    /// A set that is compiled no further until it is told to.
    struct Latch {
        reached: tokio::sync::oneshot::Sender<()>,
        released: Receiver<()>,
        /// Whether it was told to in time.
        was_released: SyncSender<bool>,
    }

    /// By the name of the first service of a set.
    static LATCHES: LazyLock<Mutex<HashMap<String, Latch>>> = LazyLock::new(Mutex::default);

    /// Where a set is compiled.
    pub(super) fn reach_latch(schema: &Schema) {
        let latch = LATCHES.lock().unwrap().remove(&schema.services[0].full_name);
        if let Some(latch) = latch {
            let _ = latch.reached.send(());
            let _ = latch
                .was_released
                .send(latch.released.recv_timeout(HELD_MAX).is_ok());
        }
    }

    fn app(id: u64) -> AppIdentity {
        AppIdentity {
            id,
            name: "app".into(),
            pid: 1,
            uid: id as u32,
            gid: 1,
            user: "".into(),
            workload: "".into(),
        }
    }

    #[tokio::test]
    async fn while_a_large_schema_is_compiled_another_app_brings_its_own_and_binds() {
        let bounds = SchemaBounds {
            node: 1024,
            per_user: 1024,
        };
        // Sets of more than 64 KiB have turns of their own.
        let names: Vec<String> = (0..SERVICES)
            .map(|number| format!("LargeService{number}"))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let large = encoded(&names, FIELDS);
        assert!(large.len() > 64 << 10);
        let limits = Limits {
            message_bytes_max: 4096,
            calls_in_flight_max: 8,
            ..Limits::default()
        };
        let services = Arc::new(Services::new(SchemaStore::new(bounds, None), limits));
        let (reached, is_reached) = tokio::sync::oneshot::channel();
        let (release, released) = sync_channel(1);
        let (was_released, released_in_time) = sync_channel(1);
        let latch = Latch {
            reached,
            released,
            was_released,
        };
        LATCHES
            .lock()
            .unwrap()
            .insert("t.LargeService0".to_owned(), latch);
        let large = Memfd::of_bytes("large", &large).unwrap();
        let mut bringing = {
            let services = Arc::clone(&services);
            tokio::spawn(async move { services.bring_schema(large, None, &app(1)).await })
        };
        tokio::select! {
            reached = is_reached => reached.unwrap(),
            ended = &mut bringing => panic!("the large one was not compiled: {ended:?}"),
        }

        let set = encoded(&["Small"], 1);
        let hash = compile(&set).unwrap()[0].hash;
        let small = Memfd::of_bytes("small", &set).unwrap();
        services.bring_schema(small, Some(hash), &app(2)).await.unwrap();
        let schema = services.find_schema("t.Small", hash, &app(2)).await.unwrap();
        let offer = Offer {
            app: Some(2),
            request: 1,
            schema,
            quota: Arc::new(CallQuota::new(1)),
        };
        services.bind(offer).unwrap();
        assert!(services.is_bound("t.Small"));
        assert_eq!(services.schemas().len(), 1, "the large one is compiled still");

        let _ = release.send(());
        bringing.await.unwrap().unwrap();
        assert_eq!(released_in_time.recv(), Ok(true), "all that waited for it");
        assert_eq!(services.schemas().len(), 1 + SERVICES);
    }
}
