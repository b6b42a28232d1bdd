//! The heaps of a simulated app.

use std::collections::HashMap;

use provost_datapath::{HeapFull, ReceiveHeap, ReceivedBlock};
use provost_frontend::SendHeap;
use provost_heap::Heap;
use provost_shm::{Access, Mapping, Memfd};
use provost_wire::limits::SEND_WINDOW;

/// Where receive heaps lie in every app's window, in units of 8 bytes.
const RECEIVE_WINDOW: u32 = 1 << 28;

/// A receive heap in ordinary memory.
pub(crate) struct SimReceiveHeap {
    heap: Heap,
    memory: Vec<u8>,
    live: usize,
}

impl SimReceiveHeap {
    pub(crate) fn new(bytes: usize) -> SimReceiveHeap {
        SimReceiveHeap {
            heap: Heap::new(bytes as u64),
            memory: vec![0; bytes],
            live: 0,
        }
    }

    pub(crate) fn live_blocks(&self) -> usize {
        self.live
    }

    /// Bytes at an offset of the app's window.
    pub(crate) fn read(&self, at: u32, bytes: usize) -> Option<&[u8]> {
        let from = at.checked_sub(RECEIVE_WINDOW)? as usize * 8;
        self.memory.get(from..from.checked_add(bytes)?)
    }
}

impl ReceiveHeap for SimReceiveHeap {
    fn allocate(&mut self, bytes: u32) -> Result<ReceivedBlock, HeapFull> {
        let unit = self.heap.allocate(bytes).ok_or(HeapFull)?;
        self.live += 1;
        let from = unit as usize * 8;
        // Old bytes must not be mistaken for new ones.
        self.memory[from..from + bytes as usize].fill(0xa5);
        Ok(ReceivedBlock {
            at: RECEIVE_WINDOW + unit,
            bytes,
        })
    }

    fn bytes_mut(&mut self, block: &mut ReceivedBlock) -> &mut [u8] {
        let from = (block.at - RECEIVE_WINDOW) as usize * 8;
        &mut self.memory[from..from + block.bytes as usize]
    }

    fn free(&mut self, block: ReceivedBlock) {
        self.heap
            .free(block.at - RECEIVE_WINDOW)
            .expect("a block is freed once");
        self.live -= 1;
    }
}

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
pub(crate) struct Prepared {
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

    pub(crate) fn prepare(&mut self, bytes: usize) -> Option<Prepared> {
        let unit = self.heap.allocate(bytes as u32)?;
        Some(Prepared {
            at: SEND_WINDOW + unit,
            unit,
        })
    }

    pub(crate) fn write(&mut self, block: &Prepared, bytes: &[u8]) {
        self.memfd
            .write_at(u64::from(block.unit) * 8, bytes)
            .expect("the block is in the memory");
    }

    /// Lends a block to the service; it comes back by its token.
    pub(crate) fn lend(&mut self, block: Prepared) -> u64 {
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
