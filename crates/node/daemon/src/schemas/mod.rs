//! Schemas that apps brought or the configuration named: compiled once, found by content hash, kept on disk.
//!
//! What is reached from a schema's services may be counted many times over, so the sum is bounded before anything is made
//! of it ([`Schema::service_hashes`]), and all services of a set share one schema and its tables. Sets are compiled
//! without any lock, and counted: for the node, and for the user whose app brought them.
//!
//! What the configuration or an operator gave is pinned: it is not forgotten, and no app's schema goes before it.

mod cache;
mod compiling;
mod methods;
mod opaque;
mod room;
mod work;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use provost_frontend_grpc::KnownMethods;
use provost_marshal::{TableError, Tables};
use provost_schema::{Schema, SchemaError, SchemaErrorKind, SchemaHash};
use provost_wire::limits::SCHEMA_BYTES_MAX;

use crate::plurals::counted;
use cache::{CACHE_BOUNDS, SchemaCache, read_bounded};
use compiling::CheckedSet;
pub(crate) use compiling::compile;
pub(crate) use methods::ServiceMethods;
pub(crate) use opaque::{OpaqueServices, opaque_schema};
use room::SchemaUsage;
pub(crate) use work::{COMPILING_THREADS_MAX, PeerWork, SMALL_BYTES_MAX, SchemaWork};

/// Memory that all schemas may take, as [`memory_bytes`] estimates it.
const MEMORY_BYTES_MAX: usize = 512 << 20;
/// Memory that the schemas of one user's apps may take.
const MEMORY_BYTES_PER_USER_MAX: usize = MEMORY_BYTES_MAX / 2;

/// The schema of one service, ready for datapaths.
#[derive(Debug)]
pub struct BoundSchema {
    /// Full name of the service.
    pub service: String,
    pub hash: SchemaHash,
    /// The set that it came in, which all services of that set share.
    pub schema: Arc<Schema>,
    /// What engines walk messages with.
    pub tables: Arc<Tables>,
    /// What it was made from, to be sent to a node that has another.
    pub descriptor_set: Arc<[u8]>,
    /// Its methods, once a connection has asked for them.
    methods: OnceLock<ServiceMethods>,
    /// Whether an app has ever bound the service by it. A set declares more services than the one for which it came.
    was_bound: AtomicBool,
}

impl BoundSchema {
    /// Notes that an app binds the service.
    pub(crate) fn note_bound(&self) {
        self.was_bound.store(true, Ordering::Relaxed);
    }

    /// Whether an app of this node has ever bound the service by it.
    pub(crate) fn was_bound(&self) -> bool {
        self.was_bound.load(Ordering::Relaxed)
    }

    /// Which methods the service may have.
    pub(crate) fn methods_known(&self) -> KnownMethods {
        if self.schema.is_opaque() {
            KnownMethods::ThoseCalled
        } else {
            KnownMethods::All
        }
    }

    /// The methods of the service as engines and ports have them: made once, however many connections share them.
    pub(crate) fn methods(&self) -> &ServiceMethods {
        self.methods.get_or_init(|| {
            let service = self.schema.service(&self.service);
            service.map(ServiceMethods::of_service).unwrap_or_default()
        })
    }
}

/// Why a schema was not taken.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It is larger than any schema may be.
    #[error("a schema of {bytes} bytes is over the limit of {SCHEMA_BYTES_MAX}")]
    TooLarge { bytes: usize },
    /// It is no schema.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// It is to be compiled first.
    #[error(
        "{0} is a .proto file; the configuration takes what `provost schema compile {0} --output FILE.pb` makes of it"
    )]
    Source(String),
    /// It has no service.
    #[error("the schema has no service: bring the .proto file that declares it")]
    NoService,
    /// It does not have the hash that it was announced with.
    #[error("no service of the schema has the announced hash {announced}: rebuild the app's generated code")]
    Hash { announced: SchemaHash },
    /// An app has brought one that says that nothing is known of its messages.
    #[error(
        "an app's schema cannot declare provost.opaque.Message, which stands for messages of which none is known"
    )]
    Opaque,
    /// Telling its services apart would take too long.
    #[error("{0}")]
    Reach(SchemaErrorKind),
    /// It contradicts itself somewhere.
    #[error(transparent)]
    Tables(#[from] TableError),
    /// It has more services than there can be.
    #[error("the schema has {services} services, and limits.schemas allows {bound}: split it")]
    Services {
        /// How many it has.
        services: usize,
        bound: usize,
    },
    /// The user's apps have too many others, all in use.
    #[error(
        "apps of user {user} use {} of about {bytes} bytes, as much as limits.schemas_per_user = {bound} \
         or {MEMORY_BYTES_PER_USER_MAX} bytes allow",
        counted(*.schemas, "schema", "schemas")
    )]
    UserFull {
        /// The number of the user.
        user: u32,
        /// How many there are.
        schemas: usize,
        /// About what they take.
        bytes: usize,
        bound: usize,
    },
    /// There are too many others, all in use.
    #[error("the schemas in use are as many as limits.schemas = {bound} or {MEMORY_BYTES_MAX} bytes allow")]
    Full { bound: usize },
    /// A file that the configuration names cannot be read.
    #[error("{}: {source}", .path.display())]
    Read {
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file that the configuration names has no usable schema.
    #[error("{}: {source}", .path.display())]
    File {
        path: PathBuf,
        /// What is wrong with it.
        source: Box<StoreError>,
    },
}

/// Who has brought a schema, and whose share it is counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaOwner {
    /// The configuration, or an operator: within the node's bound alone.
    Node,
    /// The process before, which has let it in: what goes on with it needs it, and all others that come with it.
    Predecessor,
    /// An app of this user.
    User(u32),
}

/// How many schemas there may be.
#[derive(Clone, Copy, Debug)]
pub struct SchemaBounds {
    /// All that the node has.
    pub node: usize,
    /// Those of one user's apps.
    pub per_user: usize,
}

/// All schemas of a node, within bounds in memory and on disk.
#[derive(Debug)]
pub struct SchemaStore {
    known: Mutex<KnownSchemas>,
    bounds: SchemaBounds,
    cache: Option<SchemaCache>,
}

/// The schemas that are in memory.
#[derive(Debug, Default)]
struct KnownSchemas {
    by_hash: HashMap<SchemaHash, Arc<BoundSchema>>,
    /// The sets that they came in, by number: what is counted, and forgotten, as a whole.
    sets: HashMap<u64, KnownSet>,
    next_set: u64,
    /// By service, what the node was given last. As these are in use, their sets are not forgotten; no more than
    /// [`SchemaBounds::node`] can be.
    pinned: HashMap<String, Arc<BoundSchema>>,
    /// The servers that have told a schema themselves.
    learnt_from: HashMap<SchemaHash, String>,
}

/// Where a schema came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchemaSource {
    /// An app has brought it, or the process before had it.
    App,
    /// The configuration or an operator has given it.
    Given,
    /// The gRPC server at this endpoint has told it.
    Server(String),
    /// There is none: the methods are those that were called.
    Calls,
}

impl fmt::Display for SchemaSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SchemaSource::App => f.write_str("app"),
            SchemaSource::Given => f.write_str("given"),
            SchemaSource::Server(endpoint) => write!(f, "reflection of {endpoint}"),
            SchemaSource::Calls => f.write_str("none: methods that were called"),
        }
    }
}

/// A set of which services are known.
#[derive(Debug)]
struct KnownSet {
    owner: SchemaOwner,
    services: Vec<SchemaHash>,
    bytes: usize,
}

impl SchemaStore {
    /// An empty store. `cache_dir` is made when the first schema is kept.
    #[must_use]
    pub fn new(bounds: SchemaBounds, cache_dir: Option<PathBuf>) -> SchemaStore {
        SchemaStore {
            known: Mutex::default(),
            bounds,
            cache: cache_dir.map(|directory| SchemaCache::open(directory, CACHE_BOUNDS)),
        }
    }

    /// The schema of `service` with this hash, from memory.
    pub fn known(&self, service: &str, hash: SchemaHash) -> Option<Arc<BoundSchema>> {
        let known = self.lock();
        let bound = known.by_hash.get(&hash)?;
        (bound.service == service).then(|| Arc::clone(bound))
    }

    /// The schema with this hash, of whichever service.
    #[must_use]
    pub fn of_hash(&self, hash: SchemaHash) -> Option<Arc<BoundSchema>> {
        self.lock().by_hash.get(&hash).cloned()
    }

    /// The schema of a service that the node itself was given.
    #[must_use]
    pub fn pinned(&self, service: &str) -> Option<Arc<BoundSchema>> {
        self.lock().pinned.get(service).cloned()
    }

    /// The schema of a service that was added last. One that only says which methods were called is none.
    #[must_use]
    pub fn newest(&self, service: &str) -> Option<Arc<BoundSchema>> {
        let known = self.lock();
        let of_service = |set: &KnownSet| {
            let mut bound = set.services.iter().filter_map(|hash| known.by_hash.get(hash));
            bound
                .find(|bound| bound.service == service && !bound.schema.is_opaque())
                .cloned()
        };
        let newest = known.sets.iter().max_by_key(|(number, set)| {
            let number = **number;
            of_service(set).map(|_| number)
        });
        newest.and_then(|(_, set)| of_service(set))
    }

    /// The length of the schema that was kept on disk under this hash: [`SchemaStore::load`] has it.
    pub fn bytes_on_disk(&self, hash: SchemaHash) -> Option<u64> {
        self.cache.as_ref()?.bytes(hash)
    }

    /// Loads a schema that was kept under this hash. A file that does not hold what its name says is removed: the app
    /// brings the schema again. It compiles, which takes time.
    pub fn load(&self, hash: SchemaHash, owner: SchemaOwner) {
        let Some(cache) = &self.cache else { return };
        let Some(read) = cache.read(hash) else { return };
        match self.add_to_memory(&read, Some(hash), owner) {
            Ok(_) => {}
            Err(StoreError::Full { .. } | StoreError::UserFull { .. }) => {}
            Err(error) => cache.discard(hash, &error),
        }
    }

    /// Takes a schema and says which services it has. With `announced`, one of them must have that hash. It compiles,
    /// which takes time, and keeps no lock meanwhile.
    pub fn add(
        &self,
        descriptor_set: &[u8],
        announced: Option<SchemaHash>,
        owner: SchemaOwner,
    ) -> Result<Vec<Arc<BoundSchema>>, StoreError> {
        let added = self.add_to_memory(descriptor_set, announced, owner)?;
        if let Some(cache) = &self.cache {
            let of_set: Vec<_> = added.iter().map(|bound| bound.hash).collect();
            cache.keep(
                announced.as_ref().map_or(&of_set, std::slice::from_ref),
                descriptor_set,
            );
        }
        Ok(added)
    }

    /// Takes a schema that the configuration or an operator gives, and keeps it, as [`SchemaStore::add`] does.
    pub fn add_pinned(&self, descriptor_set: &[u8]) -> Result<Vec<Arc<BoundSchema>>, StoreError> {
        let added = self.add(descriptor_set, None, SchemaOwner::Node)?;
        let mut known = self.lock();
        known.pin(&added);
        for schema in &added {
            known.learnt_from.remove(&schema.hash);
        }
        drop(known);
        Ok(added)
    }

    /// Takes a schema that a gRPC server has told, as [`SchemaStore::add_pinned`] does.
    pub fn add_learnt(&self, descriptor_set: &[u8], from: &str) -> Result<Vec<Arc<BoundSchema>>, StoreError> {
        let added = self.add(descriptor_set, None, SchemaOwner::Node)?;
        let mut known = self.lock();
        for schema in &added {
            // One that somebody has given meanwhile goes before it.
            if !known.pinned.contains_key(&schema.service) {
                known.pin(std::slice::from_ref(schema));
                known.learnt_from.insert(schema.hash, from.to_owned());
            }
        }
        Ok(added)
    }

    /// Where a schema came from.
    #[must_use]
    pub fn source_of(&self, schema: &BoundSchema) -> SchemaSource {
        let known = self.lock();
        let pinned = known.pinned.get(&schema.service);
        match known.learnt_from.get(&schema.hash) {
            _ if schema.schema.is_opaque() => SchemaSource::Calls,
            Some(endpoint) => SchemaSource::Server(endpoint.clone()),
            None if pinned.is_some_and(|pinned| pinned.hash == schema.hash) => SchemaSource::Given,
            None => SchemaSource::App,
        }
    }

    /// Takes the schemas of a file, or of all `.pb` files of a directory, pins them, and says how many services they have.
    pub fn prefetch(&self, path: &Path) -> Result<usize, StoreError> {
        let read_error = |source| StoreError::Read {
            path: path.to_path_buf(),
            source,
        };
        if !path.is_dir() {
            return self.prefetch_file(path);
        }
        let mut files = fs::read_dir(path)
            .and_then(|entries| {
                entries
                    .map(|entry| Ok(entry?.path()))
                    .collect::<io::Result<Vec<_>>>()
            })
            .map_err(read_error)?;
        files.sort();
        let is = |file: &Path, kind: &str| file.extension().is_some_and(|extension| extension == kind);
        if let [source, ..] = &*files
            && files.iter().all(|file| is(file, "proto"))
        {
            return self.prefetch_file(source);
        }
        files.retain(|file| is(file, "pb"));
        files
            .iter()
            .try_fold(0, |sum, file| Ok(sum + self.prefetch_file(file)?))
    }

    /// Counts schemas that the process before had for the users who go on with them.
    pub fn count_for(&self, users: impl IntoIterator<Item = (SchemaHash, u32)>) {
        let mut of_each: HashMap<SchemaHash, BTreeSet<u32>> = HashMap::new();
        for (schema, user) in users {
            of_each.entry(schema).or_default().insert(user);
        }
        self.lock().count_for(&of_each);
    }

    /// The schemas in memory, by service and hash.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<BoundSchema>> {
        let mut all: Vec<_> = self.lock().by_hash.values().cloned().collect();
        all.sort_by(|one, other| (&one.service, one.hash.0).cmp(&(&other.service, other.hash.0)));
        all
    }

    /// How many schemas are in memory.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().by_hash.len()
    }

    /// Whether none is in memory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn prefetch_file(&self, path: &Path) -> Result<usize, StoreError> {
        if path.extension().is_some_and(|extension| extension == "proto") {
            return Err(StoreError::Source(path.display().to_string()));
        }
        let read = read_bounded(path).map_err(|source| StoreError::Read {
            path: path.to_path_buf(),
            source,
        })?;
        let added = self
            .add_to_memory(&read, None, SchemaOwner::Node)
            .map_err(|source| StoreError::File {
                path: path.to_path_buf(),
                source: Box::new(source),
            })?;
        self.lock().pin(&added);
        Ok(added.len())
    }

    fn add_to_memory(
        &self,
        descriptor_set: &[u8],
        announced: Option<SchemaHash>,
        owner: SchemaOwner,
    ) -> Result<Vec<Arc<BoundSchema>>, StoreError> {
        let checked = CheckedSet::check(descriptor_set, self.services_max(owner))?;
        if matches!(owner, SchemaOwner::User(_)) && checked.schema.is_opaque() {
            return Err(StoreError::Opaque);
        }
        if let Some(announced) = announced
            && !checked.hashes.contains(&announced)
        {
            return Err(StoreError::Hash { announced });
        }
        if let Some(known) = self.all_known(&checked.hashes) {
            return Ok(known);
        }
        let bytes = memory_bytes(&checked.schema, descriptor_set.len());
        let compiled = checked.compile(descriptor_set)?;
        self.lock().insert(compiled, bytes, owner, self.bounds)
    }

    fn services_max(&self, owner: SchemaOwner) -> usize {
        match owner {
            SchemaOwner::Node => self.bounds.node,
            SchemaOwner::Predecessor => usize::MAX,
            SchemaOwner::User(_) => self.bounds.per_user.min(self.bounds.node),
        }
    }

    fn all_known(&self, hashes: &[SchemaHash]) -> Option<Vec<Arc<BoundSchema>>> {
        let known = self.lock();
        let all = hashes.iter().map(|hash| known.by_hash.get(hash).cloned());
        all.collect()
    }

    fn lock(&self) -> MutexGuard<'_, KnownSchemas> {
        // A panic while it was held was a bug; what it protects is whole between any two statements here.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KnownSchemas {
    /// Takes what is new of a set, once there is room for it.
    fn insert(
        &mut self,
        compiled: Vec<BoundSchema>,
        bytes: usize,
        owner: SchemaOwner,
        bounds: SchemaBounds,
    ) -> Result<Vec<Arc<BoundSchema>>, StoreError> {
        // Held, so that what is known of the set already does not make room for the rest of it.
        let known: Vec<_> = compiled
            .iter()
            .map(|bound| self.by_hash.get(&bound.hash).cloned())
            .collect();
        let schemas = known.iter().filter(|known| known.is_none()).count();
        if schemas > 0 {
            self.make_room(SchemaUsage { schemas, bytes }, owner, bounds)?;
        }
        let mut services = Vec::with_capacity(schemas);
        let all = compiled.into_iter().zip(known);
        let all = all.map(|(bound, known)| {
            known.unwrap_or_else(|| {
                let bound = Arc::new(bound);
                services.push(bound.hash);
                self.by_hash.insert(bound.hash, Arc::clone(&bound));
                bound
            })
        });
        let all = all.collect();
        if !services.is_empty() {
            let set = KnownSet {
                owner,
                services,
                bytes,
            };
            self.sets.insert(self.next_set, set);
            self.next_set += 1;
        }
        Ok(all)
    }

    fn pin(&mut self, given: &[Arc<BoundSchema>]) {
        for bound in given {
            self.pinned.insert(bound.service.clone(), Arc::clone(bound));
        }
    }
}

/// About what a schema takes with its tables: what its parts take, and its names and comments, which stand in several
/// places.
fn memory_bytes(schema: &Schema, descriptor_set_bytes: usize) -> usize {
    /// A field with its operation, its entry by number, and its name.
    const FIELD_BYTES: usize = 320;
    /// A message with its struct.
    const MESSAGE_BYTES: usize = 320;
    /// A method, a service or a value of an enum.
    const OTHER_BYTES: usize = 128;
    let fields: usize = schema
        .messages
        .iter()
        .map(|message| message.fields().count())
        .sum();
    let values: usize = schema
        .enums
        .iter()
        .map(|enumeration| 1 + enumeration.values.len())
        .sum();
    let methods: usize = schema
        .services
        .iter()
        .map(|service| 1 + service.methods.len())
        .sum();
    fields * FIELD_BYTES
        + schema.messages.len() * MESSAGE_BYTES
        + (values + methods) * OTHER_BYTES
        + descriptor_set_bytes * 3
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use prost_types::field_descriptor_proto::{Label, Type};
    use prost_types::{
        DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto,
        ServiceDescriptorProto,
    };

    use super::*;
    use crate::services::Services;
    use crate::transport::Limits;

    const USER: SchemaOwner = SchemaOwner::User(7);

    fn store(bound: usize, cache_dir: Option<PathBuf>) -> SchemaStore {
        let bounds = SchemaBounds {
            node: bound,
            per_user: bound,
        };
        SchemaStore::new(bounds, cache_dir)
    }

    fn descriptor_set(service: &str) -> Vec<u8> {
        encoded(&[service], 0)
    }

    /// Services with one method each, of a message with so many fields.
    pub(super) fn encoded(services: &[&str], fields: i32) -> Vec<u8> {
        let method = MethodDescriptorProto {
            name: Some("Call".into()),
            input_type: Some(".t.M".into()),
            output_type: Some(".t.M".into()),
            ..Default::default()
        };
        let field = |number: i32| FieldDescriptorProto {
            name: Some(format!("f{number}")),
            number: Some(number),
            label: Some(Label::Optional.into()),
            r#type: Some(Type::Bool.into()),
            ..Default::default()
        };
        let service = |name: &&str| ServiceDescriptorProto {
            name: Some((*name).to_owned()),
            method: vec![method.clone()],
            ..Default::default()
        };
        let file = FileDescriptorProto {
            name: Some("t.proto".into()),
            package: Some("t".into()),
            syntax: Some("proto3".into()),
            message_type: vec![DescriptorProto {
                name: Some("M".into()),
                field: (1..=fields).map(field).collect(),
                ..Default::default()
            }],
            service: services.iter().map(service).collect(),
            ..Default::default()
        };
        FileDescriptorSet { file: vec![file] }.encode_to_vec()
    }

    #[test]
    fn a_schema_is_found_by_hash_and_service() {
        let store = store(4, None);
        let added = store.add(&descriptor_set("S"), None, USER).unwrap();
        let hash = added[0].hash;
        assert_eq!(store.newest("t.S").unwrap().hash, hash);
        assert!(store.newest("t.Other").is_none());
        let later = store.add(&encoded(&["S"], 1), None, USER).unwrap();
        assert_eq!(store.newest("t.S").unwrap().hash, later[0].hash);
        assert_eq!(store.known("t.S", hash).unwrap().service, "t.S");
        assert!(store.known("t.Other", hash).is_none());
        assert!(store.known("t.S", SchemaHash([0; 32])).is_none());
    }

    #[test]
    fn the_methods_of_a_service_are_made_once_for_all_its_connections() {
        let store = store(4, None);
        let schema = store.add(&encoded(&["S", "T"], 0), None, USER).unwrap().remove(1);
        let (first, second) = (schema.methods().clone(), schema.methods().clone());
        assert!(
            Arc::ptr_eq(&first.bindings, &second.bindings) && Arc::ptr_eq(&first.contexts, &second.contexts)
        );
        assert!(Arc::ptr_eq(&first.shapes, &second.shapes) && Arc::ptr_eq(&first.types, &second.types));
        assert_eq!(
            (first.bindings.len(), first.shapes.len(), first.types.len()),
            (1, 1, 1)
        );
        assert_eq!(*first.contexts[0].path, *"/t.T/Call");
    }

    #[test]
    fn a_wrong_announcement_is_refused() {
        let store = store(4, None);
        let refused = store.add(&descriptor_set("S"), Some(SchemaHash([7; 32])), USER);
        assert!(matches!(refused, Err(StoreError::Hash { .. })));
        assert!(store.is_empty());
    }

    #[test]
    fn garbage_and_empty_schemas_are_refused() {
        let store = store(4, None);
        assert!(matches!(
            store.add(&[0xff; 40], None, USER),
            Err(StoreError::Schema(_))
        ));
        assert!(matches!(store.add(&[], None, USER), Err(StoreError::NoService)));
        let large = vec![0; SCHEMA_BYTES_MAX + 1];
        assert!(matches!(
            store.add(&large, None, USER),
            Err(StoreError::TooLarge { .. })
        ));
    }

    #[test]
    fn at_the_bound_an_unused_schema_makes_room_and_a_used_one_does_not() {
        let store = store(1, None);
        let held = store.add(&descriptor_set("A"), None, USER).unwrap();
        assert!(matches!(
            store.add(&descriptor_set("B"), None, USER),
            Err(StoreError::UserFull { bound: 1, .. })
        ));
        drop(held);
        store.add(&descriptor_set("B"), None, USER).unwrap();
        assert_eq!(store.len(), 1);
    }

    #[test]
    fn what_the_node_was_given_goes_before_what_apps_bring_and_stays() {
        let store = store(2, None);
        store.add(&descriptor_set("A"), None, USER).unwrap();
        assert!(store.pinned("t.A").is_none());
        // It is that of the app: it is kept from then on.
        let given = store.add_pinned(&descriptor_set("A")).unwrap()[0].hash;
        for fields in 1..5 {
            store.add(&encoded(&["A"], fields), None, USER).unwrap();
            assert_eq!(store.pinned("t.A").unwrap().hash, given);
        }
        assert!(store.of_hash(given).is_some());
        // The last word is the node's.
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.pb");
        fs::write(&file, encoded(&["A"], 9)).unwrap();
        store.prefetch(&file).unwrap();
        assert_ne!(store.pinned("t.A").unwrap().hash, given);
        store.add(&descriptor_set("B"), None, USER).unwrap();
        assert!(store.of_hash(given).is_none(), "it can be forgotten again");
    }

    #[test]
    fn grpc_clients_call_by_the_schema_that_the_node_was_given() {
        let limits = Limits {
            message_bytes_max: 1 << 20,
            stream_window_bytes: 1 << 20,
            calls_in_flight_max: 1,
        };
        let store = store(4, None);
        store.add(&encoded(&["A"], 1), None, USER).unwrap();
        let given = store.add_pinned(&descriptor_set("A")).unwrap()[0].hash;
        store.add(&encoded(&["A"], 2), None, USER).unwrap();
        let newest = store.add(&encoded(&["B"], 3), None, USER).unwrap()[0].hash;
        let services = Services::new(store, limits);
        assert_eq!(services.schema_to_call("t.A").unwrap().hash, given);
        assert_eq!(services.schema_to_call("t.B").unwrap().hash, newest);
    }

    #[test]
    fn services_of_a_set_share_what_was_made_of_it() {
        let store = store(4, None);
        let added = store.add(&encoded(&["A", "B"], 3), None, USER).unwrap();
        assert!(Arc::ptr_eq(&added[0].tables, &added[1].tables));
        assert!(Arc::ptr_eq(&added[0].schema, &added[1].schema));
        let alone = compile(&encoded(&["B"], 3)).unwrap();
        assert_eq!(
            alone[0].hash, added[1].hash,
            "the set does not change what a service is"
        );
    }

    #[test]
    fn many_services_over_one_large_root_are_refused_before_they_are_compiled() {
        let names: Vec<_> = (0..1000).map(|number| format!("S{number}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let bomb = encoded(&names, 4096);
        let refused = store(1024, None).add(&bomb, None, USER);
        assert!(matches!(refused, Err(StoreError::Reach(_))), "{refused:?}");
        let refused = store(999, None).add(&bomb, None, USER);
        assert!(matches!(refused, Err(StoreError::Services { .. })), "{refused:?}");
    }

    #[test]
    fn a_user_has_a_share_and_another_user_room() {
        let bounds = SchemaBounds { node: 3, per_user: 2 };
        let store = SchemaStore::new(bounds, None);
        let other = SchemaOwner::User(8);
        let held = store.add(&encoded(&["A", "B"], 0), None, USER).unwrap();
        let refused = store.add(&descriptor_set("C"), None, USER);
        assert!(matches!(refused, Err(StoreError::UserFull { user: 7, .. })));
        let _others = store.add(&descriptor_set("C"), None, other).unwrap();
        let refused = store.add(&descriptor_set("D"), None, other);
        assert!(matches!(refused, Err(StoreError::Full { bound: 3 })));
        assert!(
            store.add(&descriptor_set("A"), None, other).is_ok(),
            "it is known"
        );
        drop(held);
        store.add(&descriptor_set("D"), None, other).unwrap();
    }

    #[test]
    fn the_disk_keeps_schemas_and_a_damaged_file_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("cache");
        let first = store(4, Some(cache.clone()));
        let hash = first.add(&descriptor_set("S"), None, USER).unwrap()[0].hash;

        let second = store(4, Some(cache.clone()));
        assert!(second.bytes_on_disk(hash).is_some() && second.known("t.S", hash).is_none());
        second.load(hash, USER);
        assert!(second.known("t.S", hash).is_some());

        let file = cache.join(format!("{hash}.pb"));
        fs::write(&file, descriptor_set("Other")).unwrap();
        let third = store(4, Some(cache));
        third.load(hash, USER);
        assert!(third.known("t.S", hash).is_none());
        assert!(!file.exists());
    }

    #[test]
    fn prefetch_reads_files_and_directories_and_names_what_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.pb"), descriptor_set("A")).unwrap();
        fs::write(dir.path().join("b.pb"), descriptor_set("B")).unwrap();
        fs::write(dir.path().join("notes.txt"), "no schema").unwrap();
        let store = store(4, None);
        assert_eq!(store.prefetch(dir.path()).unwrap(), 2);
        fs::write(dir.path().join("c.pb"), "no schema").unwrap();
        let error = store.prefetch(dir.path()).unwrap_err().to_string();
        assert!(error.contains("c.pb"), "{error}");
        assert!(
            store
                .prefetch(&dir.path().join("d.pb"))
                .unwrap_err()
                .to_string()
                .contains("d.pb")
        );
    }
}
