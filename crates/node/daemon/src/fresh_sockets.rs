//! Files of sockets that a start has made: they go again where it fails.

use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::policies::file_lock::is_named;
use crate::stream_listener::StreamListener;

/// Removes the files of its sockets when it is dropped, unless they are to stay.
#[derive(Debug, Default)]
pub(crate) struct FreshSockets {
    /// Each file, held open so that none that another process makes at its path is taken for it.
    files: RefCell<Vec<(PathBuf, File)>>,
    stay: Cell<bool>,
}

impl FreshSockets {
    /// A socket has been made at this path.
    pub(crate) fn add(&self, path: &Path) {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .custom_flags((OFlags::PATH | OFlags::NOFOLLOW).bits().cast_signed());
        // One that is not there any more is not to be removed.
        if let Ok(file) = options.open(path) {
            self.files.borrow_mut().push((path.to_path_buf(), file));
        }
    }

    /// A listener has been opened; a port leaves no file.
    pub(crate) fn add_listener(&self, listener: &StreamListener) {
        if let StreamListener::Unix(_, path) = listener {
            self.add(path);
        }
    }

    /// The service has started: whoever ends it removes them.
    pub(crate) fn stay(&self) {
        self.stay.set(true);
    }
}

impl Drop for FreshSockets {
    fn drop(&mut self) {
        if self.stay.get() {
            return;
        }
        for (path, file) in self.files.borrow().iter() {
            if is_named(file, path) {
                // It is gone when somebody has removed it.
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_socket_that_another_process_has_put_in_its_place_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let fresh = FreshSockets::default();
        let own = ["taken", "left", "gone"].map(|name| {
            let listener = UnixListener::bind(path(name)).unwrap();
            fresh.add(&path(name));
            listener
        });
        drop(own);
        for name in ["taken", "gone"] {
            std::fs::remove_file(path(name)).unwrap();
        }
        let _other = UnixListener::bind(path("taken")).unwrap();
        drop(fresh);
        assert!(path("taken").exists() && !path("left").exists());
    }

    #[test]
    fn what_has_started_keeps_its_sockets() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let fresh = FreshSockets::default();
        let _listener = UnixListener::bind(&path).unwrap();
        fresh.add(&path);
        fresh.stay();
        drop(fresh);
        assert!(path.exists());
    }
}
