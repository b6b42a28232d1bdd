//! Schemas that apps brought or the configuration named: compiled once, found by content hash, kept on disk.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use provost_marshal::{TableError, Tables};
use provost_schema::{Schema, SchemaError, SchemaHash};
use provost_wire::limits::SCHEMA_BYTES_MAX;

/// The schema of one service, ready for datapaths.
#[derive(Debug)]
pub struct BoundSchema {
    /// Full name of the service.
    pub service: String,
    /// Its content hash.
    pub hash: SchemaHash,
    /// The service and what it reaches, in canonical order.
    pub schema: Arc<Schema>,
    /// What engines walk messages with.
    pub tables: Arc<Tables>,
    /// What it was made from, to be sent to a node that has another.
    pub descriptor_set: Arc<[u8]>,
}

/// Why a schema was not taken.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It is larger than any schema may be.
    #[error("a schema of {bytes} bytes is over the limit of {SCHEMA_BYTES_MAX}")]
    TooLarge {
        /// Its length.
        bytes: usize,
    },
    /// It is no schema.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// It has no service.
    #[error("the schema has no service: bring the .proto file that declares it")]
    NoService,
    /// It does not have the hash that it was announced with.
    #[error("no service of the schema has the announced hash {announced}: rebuild the app's generated code")]
    Hash {
        /// What was announced.
        announced: SchemaHash,
    },
    /// It contradicts itself.
    #[error(transparent)]
    Tables(#[from] TableError),
    /// There are too many others, all in use.
    #[error("{bound} schemas are in use, the most that limits.schemas allows")]
    Full {
        /// The limit.
        bound: usize,
    },
    /// A file that the configuration names cannot be read.
    #[error("{}: {source}", .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file that the configuration names has no usable schema.
    #[error("{}: {source}", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<StoreError>,
    },
}

/// All schemas of a node, at most `bound` of them in memory.
#[derive(Debug)]
pub struct SchemaStore {
    by_hash: HashMap<SchemaHash, Arc<BoundSchema>>,
    bound: usize,
    cache_dir: Option<PathBuf>,
}

impl SchemaStore {
    /// An empty store. `cache_dir` is made when the first schema is kept.
    #[must_use]
    pub fn new(bound: usize, cache_dir: Option<PathBuf>) -> SchemaStore {
        SchemaStore {
            by_hash: HashMap::new(),
            bound,
            cache_dir,
        }
    }

    /// The schema of `service` with this hash, from memory or from disk.
    pub fn find(&mut self, service: &str, hash: SchemaHash) -> Option<Arc<BoundSchema>> {
        if !self.by_hash.contains_key(&hash) {
            self.load_cached(hash);
        }
        self.by_hash
            .get(&hash)
            .filter(|bound| bound.service == service)
            .cloned()
    }

    /// Takes a schema and says which services it has. With `announced`, one of them must have that hash.
    pub fn add(
        &mut self,
        descriptor_set: &[u8],
        announced: Option<SchemaHash>,
    ) -> Result<Vec<Arc<BoundSchema>>, StoreError> {
        let added = self.add_to_memory(descriptor_set, announced)?;
        for bound in &added {
            self.keep(bound);
        }
        Ok(added)
    }

    /// Takes the schemas of a file, or of all `.pb` files of a directory, and says how many services they have.
    pub fn prefetch(&mut self, path: &Path) -> Result<usize, StoreError> {
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
        files.retain(|file| file.extension().is_some_and(|extension| extension == "pb"));
        files.sort();
        files
            .iter()
            .try_fold(0, |sum, file| Ok(sum + self.prefetch_file(file)?))
    }

    /// The schemas in memory, by service and hash.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<BoundSchema>> {
        let mut all: Vec<_> = self.by_hash.values().cloned().collect();
        all.sort_by(|one, other| (&one.service, one.hash.0).cmp(&(&other.service, other.hash.0)));
        all
    }

    /// How many schemas are in memory.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_hash.len()
    }

    /// Whether none is in memory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    fn prefetch_file(&mut self, path: &Path) -> Result<usize, StoreError> {
        let read = read_bounded(path).map_err(|source| StoreError::Read {
            path: path.to_path_buf(),
            source,
        })?;
        let added = self
            .add_to_memory(&read, None)
            .map_err(|source| StoreError::File {
                path: path.to_path_buf(),
                source: Box::new(source),
            })?;
        Ok(added.len())
    }

    fn add_to_memory(
        &mut self,
        descriptor_set: &[u8],
        announced: Option<SchemaHash>,
    ) -> Result<Vec<Arc<BoundSchema>>, StoreError> {
        let compiled = compile(descriptor_set)?;
        if let Some(announced) = announced
            && !compiled.iter().any(|bound| bound.hash == announced)
        {
            return Err(StoreError::Hash { announced });
        }
        compiled.into_iter().map(|bound| self.insert(bound)).collect()
    }

    fn insert(&mut self, bound: BoundSchema) -> Result<Arc<BoundSchema>, StoreError> {
        if let Some(known) = self.by_hash.get(&bound.hash) {
            return Ok(known.clone());
        }
        if self.by_hash.len() >= self.bound {
            let unused = self
                .by_hash
                .iter()
                .find(|(_, known)| Arc::strong_count(known) == 1);
            let unused = unused
                .map(|(hash, _)| *hash)
                .ok_or(StoreError::Full { bound: self.bound })?;
            self.by_hash.remove(&unused);
        }
        let bound = Arc::new(bound);
        self.by_hash.insert(bound.hash, bound.clone());
        Ok(bound)
    }

    /// Loads a schema that was kept under this hash. A file that does not hold what its name says is removed: the
    /// app brings the schema again.
    fn load_cached(&mut self, hash: SchemaHash) {
        let Some(path) = self.cached_path(hash) else {
            return;
        };
        let Ok(read) = read_bounded(&path) else { return };
        if let Err(error) = self.add_to_memory(&read, Some(hash)) {
            tracing::warn!(path = %path.display(), %error, "removing a damaged schema from the cache");
            let _ = fs::remove_file(&path);
        }
    }

    /// Keeps a schema on disk, whole or not at all. The cache is a convenience: a failure is logged, no more.
    fn keep(&self, bound: &BoundSchema) {
        let Some(path) = self.cached_path(bound.hash) else {
            return;
        };
        if path.exists() {
            return;
        }
        let unfinished = path.with_extension(format!("{}.new", std::process::id()));
        let written = path
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&unfinished, &bound.descriptor_set))
            .and_then(|()| fs::rename(&unfinished, &path));
        if let Err(error) = written {
            tracing::warn!(path = %path.display(), %error, "cannot keep a schema in the cache");
            let _ = fs::remove_file(&unfinished);
        }
    }

    fn cached_path(&self, hash: SchemaHash) -> Option<PathBuf> {
        self.cache_dir.as_ref().map(|dir| dir.join(format!("{hash}.pb")))
    }
}

/// Reads a file, but no more of it than a schema may have.
fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    use io::Read;
    let mut read = Vec::new();
    fs::File::open(path)?
        .take(SCHEMA_BYTES_MAX as u64 + 1)
        .read_to_end(&mut read)?;
    Ok(read)
}

/// The schemas of all services of a descriptor set.
pub(crate) fn compile(descriptor_set: &[u8]) -> Result<Vec<BoundSchema>, StoreError> {
    if descriptor_set.len() > SCHEMA_BYTES_MAX {
        return Err(StoreError::TooLarge {
            bytes: descriptor_set.len(),
        });
    }
    let whole = Schema::from_descriptor_set(descriptor_set)?;
    if whole.services.is_empty() {
        return Err(StoreError::NoService);
    }
    let descriptor_set: Arc<[u8]> = descriptor_set.into();
    whole
        .services
        .iter()
        .map(|service| bind(&whole, &service.full_name, &descriptor_set))
        .collect()
}

fn bind(whole: &Schema, service: &str, descriptor_set: &Arc<[u8]>) -> Result<BoundSchema, StoreError> {
    let schema = whole.for_service(service).ok_or(StoreError::NoService)?;
    let hash = whole.service_hash(service).ok_or(StoreError::NoService)?;
    let tables = Arc::new(Tables::compile(&schema)?);
    Ok(BoundSchema {
        service: service.into(),
        hash,
        schema: Arc::new(schema),
        tables,
        descriptor_set: descriptor_set.clone(),
    })
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use prost_types::{
        DescriptorProto, FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto,
        ServiceDescriptorProto,
    };

    use super::*;

    fn descriptor_set(service: &str) -> Vec<u8> {
        let method = MethodDescriptorProto {
            name: Some("Call".into()),
            input_type: Some(".t.M".into()),
            output_type: Some(".t.M".into()),
            ..Default::default()
        };
        let file = FileDescriptorProto {
            name: Some("t.proto".into()),
            package: Some("t".into()),
            syntax: Some("proto3".into()),
            message_type: vec![DescriptorProto {
                name: Some("M".into()),
                ..Default::default()
            }],
            service: vec![ServiceDescriptorProto {
                name: Some(service.into()),
                method: vec![method],
                ..Default::default()
            }],
            ..Default::default()
        };
        FileDescriptorSet { file: vec![file] }.encode_to_vec()
    }

    #[test]
    fn a_schema_is_found_by_hash_and_service() {
        let mut store = SchemaStore::new(4, None);
        let added = store.add(&descriptor_set("S"), None).unwrap();
        let hash = added[0].hash;
        assert_eq!(store.find("t.S", hash).unwrap().service, "t.S");
        assert!(store.find("t.Other", hash).is_none());
        assert!(store.find("t.S", SchemaHash([0; 32])).is_none());
    }

    #[test]
    fn a_wrong_announcement_is_refused() {
        let mut store = SchemaStore::new(4, None);
        let refused = store.add(&descriptor_set("S"), Some(SchemaHash([7; 32])));
        assert!(matches!(refused, Err(StoreError::Hash { .. })));
        assert!(store.is_empty());
    }

    #[test]
    fn garbage_and_empty_schemas_are_refused() {
        let mut store = SchemaStore::new(4, None);
        assert!(matches!(store.add(&[0xff; 40], None), Err(StoreError::Schema(_))));
        assert!(matches!(store.add(&[], None), Err(StoreError::NoService)));
        let large = vec![0; SCHEMA_BYTES_MAX + 1];
        assert!(matches!(
            store.add(&large, None),
            Err(StoreError::TooLarge { .. })
        ));
    }

    #[test]
    fn at_the_bound_an_unused_schema_makes_room_and_a_used_one_does_not() {
        let mut store = SchemaStore::new(1, None);
        let held = store.add(&descriptor_set("A"), None).unwrap();
        assert!(matches!(
            store.add(&descriptor_set("B"), None),
            Err(StoreError::Full { bound: 1 })
        ));
        drop(held);
        store.add(&descriptor_set("B"), None).unwrap();
        assert_eq!(store.len(), 1);
    }

    #[test]
    fn the_disk_keeps_schemas_and_a_damaged_file_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("cache");
        let mut first = SchemaStore::new(4, Some(cache.clone()));
        let hash = first.add(&descriptor_set("S"), None).unwrap()[0].hash;

        let mut second = SchemaStore::new(4, Some(cache.clone()));
        assert!(second.find("t.S", hash).is_some());

        let file = cache.join(format!("{hash}.pb"));
        fs::write(&file, descriptor_set("Other")).unwrap();
        let mut third = SchemaStore::new(4, Some(cache));
        assert!(third.find("t.S", hash).is_none());
        assert!(!file.exists());
    }

    #[test]
    fn prefetch_reads_files_and_directories_and_names_what_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.pb"), descriptor_set("A")).unwrap();
        fs::write(dir.path().join("b.pb"), descriptor_set("B")).unwrap();
        fs::write(dir.path().join("notes.txt"), "no schema").unwrap();
        let mut store = SchemaStore::new(4, None);
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
