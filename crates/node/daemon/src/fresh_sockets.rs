//! Files of sockets that a start has made: they go again where it fails.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};

use crate::stream_listener::StreamListener;

/// Removes the files of its sockets when it is dropped, unless they are to stay.
#[derive(Debug, Default)]
pub(crate) struct FreshSockets {
    paths: RefCell<Vec<PathBuf>>,
    stay: Cell<bool>,
}

impl FreshSockets {
    /// A socket has been made at this path.
    pub(crate) fn add(&self, path: &Path) {
        self.paths.borrow_mut().push(path.to_path_buf());
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
        for path in self.paths.borrow().iter() {
            // It is gone when somebody has removed it.
            let _ = std::fs::remove_file(path);
        }
    }
}
