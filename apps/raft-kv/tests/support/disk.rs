//! A disk that loses, when its machine stops, what was not synced, but for a part.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use provost_raft_kv::journal::JournalMedium;

#[derive(Clone, Debug, Default)]
pub(crate) struct SimulatedDisk(Rc<RefCell<DiskContent>>);

#[derive(Debug, Default)]
struct DiskContent {
    bytes: Vec<u8>,
    synced: usize,
}

impl SimulatedDisk {
    /// The machine stops: of what was not synced, this many per cent are there afterwards.
    pub(crate) fn stop(&self, per_cent: usize) {
        let mut content = self.0.borrow_mut();
        let kept = content.synced + (content.bytes.len() - content.synced) * per_cent / 100;
        content.bytes.truncate(kept);
        content.synced = kept;
    }
}

impl JournalMedium for SimulatedDisk {
    fn load(&mut self) -> io::Result<Vec<u8>> {
        Ok(self.0.borrow().bytes.clone())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.borrow_mut().bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut content = self.0.borrow_mut();
        content.synced = content.bytes.len();
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut content = self.0.borrow_mut();
        content.bytes = bytes.to_vec();
        content.synced = bytes.len();
        Ok(())
    }
}
