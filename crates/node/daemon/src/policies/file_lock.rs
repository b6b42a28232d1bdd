//! A policies file is one service's: two that kept theirs in the same file would each lose what the other one has.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::kept::opened;

/// Attempts to lock a file that somebody removes meanwhile, at most.
const ATTEMPTS_MAX: usize = 16;
/// What is read of who holds a lock, at most.
const HOLDER_BYTES_MAX: u64 = 512;

/// Held by the service that keeps its policies in a file, as long as it lives: the file `PATH.lock`, which says who that is.
#[derive(Debug)]
pub(crate) struct PolicyFileLock {
    file: File,
    path: PathBuf,
}

/// Why a policies file is not this service's.
#[derive(Debug)]
pub(crate) enum NotLocked {
    /// It is another one's, which says this of itself.
    Held { holder: String },
    /// Nothing can be locked there.
    Failed(io::Error),
}

impl PolicyFileLock {
    /// Locks a policies file for the service at this control socket.
    pub(crate) fn take(policies: &Path, control_socket: &Path) -> Result<PolicyFileLock, NotLocked> {
        let path = PathBuf::from(format!("{}.lock", policies.display()));
        for _ in 0..ATTEMPTS_MAX {
            let mut options = OpenOptions::new();
            let options = options.read(true).write(true).create(true).mode(0o600);
            let mut file = opened(&path, options).map_err(NotLocked::Failed)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => {
                    let holder = holder(&mut file);
                    return Err(NotLocked::Held { holder });
                }
                Err(error) => return Err(NotLocked::Failed(error.into())),
                Ok(()) => {}
            }
            if is_named(&file, &path) {
                let text = format!(
                    "the service at control.socket {}, process {}",
                    control_socket.display(),
                    std::process::id()
                );
                // It is for people alone: a full disk is said when policies cannot be kept.
                let _ = file.set_len(0).and_then(|()| file.write_all(text.as_bytes()));
                return Ok(PolicyFileLock { file, path });
            }
        }
        Err(NotLocked::Failed(io::Error::other(
            "its lock is removed again and again",
        )))
    }
}

impl Drop for PolicyFileLock {
    fn drop(&mut self) {
        // While it is locked: whoever comes now finds no file, or sees that his has no name any more.
        if is_named(&self.file, &self.path) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Whether this is the file at a path: the one who held it before may have removed it.
pub(crate) fn is_named(file: &File, path: &Path) -> bool {
    let identity = |file: std::fs::Metadata| (file.dev(), file.ino());
    let named = std::fs::symlink_metadata(path).map(identity).ok();
    named.is_some() && named == file.metadata().map(identity).ok()
}

fn holder(file: &mut File) -> String {
    let mut text = Vec::new();
    // Whoever holds it may not have written yet.
    let _ = file.take(HOLDER_BYTES_MAX).read_to_end(&mut text);
    match String::from_utf8_lossy(&text).escape_debug().to_string() {
        text if text.is_empty() => "another service".to_owned(),
        text => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policies_file_is_one_service_s_until_that_lets_it_go() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policies.toml");
        let take = |socket: &str| PolicyFileLock::take(&path, Path::new(socket));
        for _ in 0..2 {
            let first = take("/run/a.sock").unwrap();
            match take("/run/b.sock") {
                Err(NotLocked::Held { holder }) => {
                    let expected = format!("control.socket /run/a.sock, process {}", std::process::id());
                    assert!(holder.ends_with(&expected), "{holder}");
                }
                other => panic!("{other:?}"),
            }
            drop(first);
            assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        }
        // What somebody who was killed has left is nobody's.
        std::fs::write(
            directory.path().join("policies.toml.lock"),
            "the service at /gone",
        )
        .unwrap();
        let held = take("/run/b.sock").unwrap();
        // A lock whose file somebody has removed is not the one that others see.
        std::fs::remove_file(directory.path().join("policies.toml.lock")).unwrap();
        let other = take("/run/c.sock").unwrap();
        drop(held);
        assert!(matches!(take("/run/d.sock"), Err(NotLocked::Held { .. })));
        drop(other);
        let nowhere = directory.path().join("none/policies.toml");
        let failed = PolicyFileLock::take(&nowhere, Path::new("/run/a.sock"));
        assert!(matches!(failed, Err(NotLocked::Failed(_))));
    }
}
