//! Successors: whatever is saved is made again, as in the same process or as in another one.

use std::collections::HashMap;

use provost_datapath::{
    BlockContent, ForeignBytes, InPlace, Kept, NotSaved, ReceiveHeap, ReceivedBlock, Restorer, Saver,
    Successor,
};
use provost_marshal::copy_foreign;

use crate::TestHeap;

/// Saves through `save` and makes a successor through `restore`, of one that has its blocks in this heap. If there is
/// none, the heap is as it was.
///
/// # Errors
/// What `restore` says.
pub fn succeed<T, S, E>(
    successor: Successor,
    heap: &mut TestHeap,
    save: impl FnOnce(&mut dyn Saver) -> S,
    restore: impl FnOnce(S, &mut dyn Restorer) -> Result<T, E>,
) -> Result<T, E> {
    match successor {
        Successor::SameProcess => {
            let mut saver = InPlace::new(copy_foreign);
            let saved = save(&mut saver);
            let mut kept: Kept = saver.into_restorer();
            restore(saved, &mut kept)
        }
        Successor::OtherProcess => {
            let mut saver = Copies::default();
            let saved = save(&mut saver);
            let mut moved = saver.moved(heap);
            let restored = restore(saved, &mut moved);
            match &restored {
                Ok(_) => moved.settle(heap),
                Err(_) => moved.undo(heap),
            }
            restored
        }
    }
}

/// Saves for another process: foreign memory is copied, blocks are noted.
#[derive(Default)]
struct Copies {
    blocks: Vec<(ReceivedBlock, BlockContent)>,
}

impl Saver for Copies {
    fn foreign(&mut self, bytes: &ForeignBytes, out: &mut Vec<u8>) {
        copy_foreign(bytes, out);
    }

    fn block(&mut self, block: &ReceivedBlock, content: BlockContent) {
        let (at, bytes) = (block.at, block.bytes);
        self.blocks.push((ReceivedBlock { at, bytes }, content));
    }
}

impl Copies {
    /// Copies the blocks that can move to others of the same heap, which stands for the other process's.
    fn moved(self, heap: &mut TestHeap) -> Moved {
        let mut moved = Moved::default();
        for (old, content) in self.blocks {
            let BlockContent::Movable { filled } = content else {
                moved.places.insert(old.at, old);
                continue;
            };
            let came = heap.bytes(&old)[..filled as usize].to_vec();
            let bytes_max = std::mem::replace(&mut heap.bytes_max, u64::MAX);
            let copy = heap.allocate(old.bytes);
            heap.bytes_max = bytes_max;
            if let Ok(mut block) = copy {
                heap.bytes_mut(&mut block)[..came.len()].copy_from_slice(&came);
                let (at, bytes) = (block.at, block.bytes);
                moved.copies.push(ReceivedBlock { at, bytes });
                moved.places.insert(old.at, block);
            }
            moved.originals.push(old);
        }
        moved
    }
}

/// Restores in another process: each block that a state names is at another place, those that must not move aside.
#[derive(Default)]
struct Moved {
    places: HashMap<u32, ReceivedBlock>,
    originals: Vec<ReceivedBlock>,
    copies: Vec<ReceivedBlock>,
}

impl Moved {
    fn settle(self, heap: &mut TestHeap) {
        assert!(self.places.is_empty(), "a block was saved and not restored");
        self.originals.into_iter().for_each(|block| heap.free(block));
    }

    fn undo(self, heap: &mut TestHeap) {
        self.copies.into_iter().for_each(|block| heap.free(block));
    }
}

impl Restorer for Moved {
    fn block(&mut self, saved: ReceivedBlock) -> Result<ReceivedBlock, NotSaved> {
        let place = self.places.remove(&saved.at);
        place.ok_or(NotSaved::Block { at: saved.at })
    }

    fn foreign(&mut self, kept: u32) -> Result<ForeignBytes, NotSaved> {
        Err(NotSaved::Foreign { kept })
    }
}
