//! Reading a library's file, if nobody could have written it who must not.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::LoadError;

/// Size of a library, at most.
const LIBRARY_BYTES_MAX: u64 = 256 << 20;
/// Permission to write for the group and for everybody.
const WRITE_BY_GROUP: u32 = 0o020;
const WRITE_BY_ALL: u32 = 0o002;
/// Only the owner of a file may remove it from such a folder.
const STICKY: u32 = 0o1000;

/// SHA-256 of a library.
pub(crate) type Digest = [u8; 32];

/// A library's bytes.
pub(crate) struct LibraryContent(pub(crate) Vec<u8>);

impl LibraryContent {
    /// Reads a file that only root and the service's own user can have written.
    pub(crate) fn read(path: &Path) -> Result<LibraryContent, LoadError> {
        let open = |reason: std::io::Error| LoadError::Open {
            path: path.to_owned(),
            reason: reason.to_string(),
        };
        let path = &path.canonicalize().map_err(open)?;
        check_folders(path)?;
        let mut file = File::open(path).map_err(open)?;
        let metadata = file.metadata().map_err(open)?;
        check(path, &metadata)?;
        if !metadata.is_file() || metadata.len() > LIBRARY_BYTES_MAX {
            return Err(LoadError::Open {
                path: path.clone(),
                reason: format!("not a file of at most {} MiB", LIBRARY_BYTES_MAX >> 20),
            });
        }
        let mut bytes = Vec::with_capacity(metadata.len() as usize);
        file.by_ref()
            .take(LIBRARY_BYTES_MAX)
            .read_to_end(&mut bytes)
            .map_err(open)?;
        Ok(LibraryContent(bytes))
    }

    pub(crate) fn digest(&self) -> Digest {
        Sha256::digest(&self.0).into()
    }
}

/// Who may write a folder on the way can put another file there.
fn check_folders(path: &Path) -> Result<(), LoadError> {
    for folder in path.ancestors().skip(1) {
        let metadata = folder.metadata().map_err(|error| LoadError::Open {
            path: folder.to_owned(),
            reason: error.to_string(),
        })?;
        if metadata.mode() & STICKY == 0 {
            check(folder, &metadata)?;
        }
    }
    Ok(())
}

fn check(path: &Path, metadata: &Metadata) -> Result<(), LoadError> {
    let own = rustix::process::geteuid().as_raw();
    let untrusted = |reason: String| {
        Err(LoadError::Untrusted {
            path: PathBuf::from(path),
            reason,
        })
    };
    if metadata.uid() != 0 && metadata.uid() != own {
        return untrusted(format!("it belongs to user {}; give it to root", metadata.uid()));
    }
    if metadata.mode() & WRITE_BY_ALL != 0 {
        return untrusted("everybody can write it; `chmod o-w` it".to_owned());
    }
    if metadata.mode() & WRITE_BY_GROUP != 0 && metadata.gid() != 0 {
        return untrusted(format!("group {} can write it; `chmod g-w` it", metadata.gid()));
    }
    Ok(())
}
