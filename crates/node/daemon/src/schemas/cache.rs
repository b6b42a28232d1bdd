//! Schemas on disk, each under its hash, within bounds: the one that was not used for longest makes room.
//!
//! The cache is a convenience. What goes wrong with it is logged, no more: the app brings its schema again.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use provost_schema::SchemaHash;
use provost_wire::limits::SCHEMA_BYTES_MAX;

/// Bounds of a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheBounds {
    pub(crate) files_max: usize,
    pub(crate) bytes_max: u64,
}

/// What a node keeps on disk.
pub(crate) const CACHE_BOUNDS: CacheBounds = CacheBounds {
    files_max: 4096,
    bytes_max: 256 << 20,
};

/// How the file of a schema ends.
const EXTENSION: &str = "pb";

/// A directory of schemas.
#[derive(Debug)]
pub(crate) struct SchemaCache {
    directory: PathBuf,
    bounds: CacheBounds,
    files: Mutex<CachedFiles>,
}

/// The files that are there.
#[derive(Debug, Default)]
struct CachedFiles {
    by_hash: HashMap<SchemaHash, CachedFile>,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct CachedFile {
    bytes: u64,
    used: SystemTime,
}

impl SchemaCache {
    /// The schemas of a directory, which is made when the first one is kept. What is over the bounds is removed.
    pub(crate) fn open(directory: PathBuf, bounds: CacheBounds) -> SchemaCache {
        let mut files = CachedFiles::default();
        for (hash, file) in found(&directory) {
            files.insert(hash, file);
        }
        let cache = SchemaCache {
            directory,
            bounds,
            files: Mutex::default(),
        };
        cache.make_room(&mut files, 0);
        *cache.lock() = files;
        cache
    }

    /// How long the descriptor set is that was kept under a hash.
    pub(crate) fn bytes(&self, hash: SchemaHash) -> Option<u64> {
        self.lock().by_hash.get(&hash).map(|file| file.bytes)
    }

    /// The descriptor set that was kept under a hash.
    pub(crate) fn read(&self, hash: SchemaHash) -> Option<Vec<u8>> {
        self.bytes(hash)?;
        let read = read_bounded(&self.path(hash));
        let mut files = self.lock();
        match read {
            Ok(read) => {
                if let Some(file) = files.by_hash.get_mut(&hash) {
                    file.used = SystemTime::now();
                }
                Some(read)
            }
            // Somebody has removed it.
            Err(_) => {
                files.remove(hash);
                None
            }
        }
    }

    /// Keeps a descriptor set under the hashes of its services, whole or not at all. It is written once.
    pub(crate) fn keep(&self, hashes: &[SchemaHash], descriptor_set: &[u8]) {
        let mut first: Option<PathBuf> = None;
        for hash in hashes {
            let mut files = self.lock();
            if files.by_hash.contains_key(hash) {
                continue;
            }
            let bytes = descriptor_set.len() as u64;
            if bytes > self.bounds.bytes_max {
                return;
            }
            self.make_room(&mut files, bytes);
            let path = self.path(*hash);
            let kept = match first.as_deref().map(|first| fs::hard_link(first, &path)) {
                // The first one may have made room for this one.
                None | Some(Err(_)) => write_whole(&path, descriptor_set),
                Some(Ok(())) => Ok(()),
            };
            if let Err(error) = kept {
                tracing::warn!(path = %path.display(), %error, "cannot keep a schema in the cache");
                return;
            }
            let used = SystemTime::now();
            files.insert(*hash, CachedFile { bytes, used });
            first = Some(path);
        }
    }

    /// Removes what does not hold what its name says.
    pub(crate) fn discard(&self, hash: SchemaHash, reason: &dyn std::fmt::Display) {
        let path = self.path(hash);
        tracing::warn!(path = %path.display(), error = %reason, "removing a damaged schema from the cache");
        self.remove(&mut self.lock(), hash);
    }

    /// Removes files until one more of so many bytes is within the bounds.
    fn make_room(&self, files: &mut CachedFiles, bytes: u64) {
        while files.by_hash.len() >= self.bounds.files_max || files.bytes + bytes > self.bounds.bytes_max {
            let oldest = files.by_hash.iter().min_by_key(|(_, file)| file.used);
            let Some(hash) = oldest.map(|(hash, _)| *hash) else {
                return;
            };
            self.remove(files, hash);
        }
    }

    fn remove(&self, files: &mut CachedFiles, hash: SchemaHash) {
        files.remove(hash);
        // It is gone when somebody else has removed it.
        let _ = fs::remove_file(self.path(hash));
    }

    fn path(&self, hash: SchemaHash) -> PathBuf {
        self.directory.join(format!("{hash}.{EXTENSION}"))
    }

    fn lock(&self) -> MutexGuard<'_, CachedFiles> {
        // What it protects is whole between any two statements here.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CachedFiles {
    fn insert(&mut self, hash: SchemaHash, file: CachedFile) {
        self.remove(hash);
        self.bytes += file.bytes;
        self.by_hash.insert(hash, file);
    }

    fn remove(&mut self, hash: SchemaHash) {
        if let Some(file) = self.by_hash.remove(&hash) {
            self.bytes -= file.bytes;
        }
    }
}

/// The schemas of a directory; none while there is no such directory.
fn found(directory: &Path) -> Vec<(SchemaHash, CachedFile)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let schema = |entry: fs::DirEntry| {
        let path = entry.path();
        let is_schema = path.extension().is_some_and(|extension| extension == EXTENSION);
        let hash = path.file_stem()?.to_str()?.parse().ok();
        let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
        let file = CachedFile {
            bytes: metadata.len(),
            used: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        };
        hash.filter(|_| is_schema).map(|hash| (hash, file))
    };
    entries.filter_map(schema).collect()
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let unfinished = path.with_extension(format!("{}.new", std::process::id()));
    let written = path
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(&unfinished, bytes))
        .and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        // It may not have been made at all.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Reads a file, but no more of it than a schema may have.
pub(super) fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    use io::Read;
    let mut read = Vec::new();
    fs::File::open(path)?
        .take(SCHEMA_BYTES_MAX as u64 + 1)
        .read_to_end(&mut read)?;
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: CacheBounds = CacheBounds {
        files_max: 3,
        bytes_max: 100,
    };

    fn hash(number: u8) -> SchemaHash {
        SchemaHash([number; 32])
    }

    fn on_disk(directory: &Path) -> usize {
        fs::read_dir(directory).unwrap().count()
    }

    #[test]
    fn files_and_bytes_are_bounded_and_the_oldest_makes_room() {
        let directory = tempfile::tempdir().unwrap();
        let cache = SchemaCache::open(directory.path().join("cache"), BOUNDS);
        for number in 0..5 {
            cache.keep(&[hash(number)], &[number; 10]);
        }
        assert_eq!(on_disk(&directory.path().join("cache")), 3);
        assert!(cache.bytes(hash(1)).is_none() && cache.bytes(hash(2)) == Some(10));
        assert_eq!(cache.read(hash(2)).unwrap(), [2; 10]);
        cache.keep(&[hash(6)], &[6; 95]);
        assert_eq!(on_disk(&directory.path().join("cache")), 1);
        cache.keep(&[hash(7)], &[7; 101]);
        assert!(cache.bytes(hash(7)).is_none() && cache.bytes(hash(6)).is_some());
    }

    #[test]
    fn a_set_is_kept_under_all_its_hashes_and_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let cache = SchemaCache::open(directory.path().to_path_buf(), BOUNDS);
        cache.keep(&[hash(1), hash(2)], &[9; 20]);
        let again = SchemaCache::open(directory.path().to_path_buf(), BOUNDS);
        assert_eq!(again.read(hash(1)).unwrap(), [9; 20]);
        assert_eq!(again.read(hash(2)).unwrap(), [9; 20]);
        let lower = CacheBounds {
            files_max: 2,
            ..BOUNDS
        };
        SchemaCache::open(directory.path().to_path_buf(), lower);
        assert!(on_disk(directory.path()) < 2, "one more has room");
    }
}
