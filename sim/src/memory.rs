//! The send heap of a simulated app.

use std::collections::HashMap;

use provost_frontend::SendHeap;
use provost_heap::Heap;
use provost_shm::{Access, Mapping, Memfd};
use provost_wire::limits::SEND_WINDOW;

/// A send heap: real shared memory, since that is what a frontend reads.
pub(crate) struct SimSendHeap {
    heap: Heap,
    memfd: Memfd,
    service: SendHeap,
    /// Blocks that the service may still read, by token.
    lent: HashMap<u64, u32>,
    tokens: u64,
}

/// A block that an app is about to send.
pub(crate) struct PreparedBlock {
    /// Where it is in the app's window, in units of 8 bytes.
    pub(crate) at: u32,
    unit: u32,
}

impl SimSendHeap {
    pub(crate) fn new(bytes: u64) -> SimSendHeap {
        let memfd = Memfd::create("sim-send-heap", bytes).expect("memory for a simulated app");
        let mapping = Mapping::new(&memfd, Access::ReadOnly).expect("a mapping of it");
        let service = SendHeap::new(mapping).expect("a mapping is not at 0");
        SimSendHeap {
            heap: Heap::new(bytes),
            memfd,
            service,
            lent: HashMap::new(),
            tokens: 0,
        }
    }

    /// The heap as the service sees it.
    pub(crate) fn for_service(&self) -> SendHeap {
        self.service.clone()
    }

    pub(crate) fn lent_blocks(&self) -> usize {
        self.lent.len()
    }

    pub(crate) fn prepare(&mut self, bytes: usize) -> Option<PreparedBlock> {
        let unit = self.heap.allocate(bytes as u32)?;
        Some(PreparedBlock {
            at: SEND_WINDOW + unit,
            unit,
        })
    }

    pub(crate) fn write(&mut self, block: &PreparedBlock, bytes: &[u8]) {
        self.memfd
            .write_at(u64::from(block.unit) * 8, bytes)
            .expect("the block is in the memory");
    }

    /// Lends a block to the service; it comes back by its token.
    pub(crate) fn lend(&mut self, block: PreparedBlock) -> u64 {
        self.tokens += 1;
        self.lent.insert(self.tokens, block.unit);
        self.tokens
    }

    /// Takes a block back; false for a token that is not out.
    pub(crate) fn take_back(&mut self, token: u64) -> bool {
        match self.lent.remove(&token) {
            Some(unit) => {
                // What is freed is overwritten, so that a service that still reads it is found out.
                let bytes = self.heap.usable_bytes(unit).unwrap_or(0).min(256);
                let _ = self
                    .memfd
                    .write_at(u64::from(unit) * 8, &vec![0xee; bytes as usize]);
                self.heap.free(unit).is_ok()
            }
            None => false,
        }
    }
}
