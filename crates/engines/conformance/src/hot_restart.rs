//! Successors: whatever is saved is made again, as in the same process or as in another one.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use provost_datapath::{
    BlockContent, Engine, ForeignBytes, InPlace, KeptMemory, NotSaved, ReceiveHeap, ReceivedBlock,
    RestoreError, Restorer, SavedState, Saver, Successor, duplicate_descriptors,
};
use provost_marshal::copy_foreign;
use provost_session::Role;

use crate::{Node, Random};

/// Once in how many rounds an end is replaced.
const ROUNDS_BETWEEN: u64 = 2;
/// Rounds of a case that are looked at: later ones are fewer, as cases with many rounds wait in most of them.
const ROUNDS_OFTEN: u64 = 300;
const ROUNDS_BETWEEN_LATER: u64 = 200;
/// One in so many hot restarts fails, and the old engine goes on.
const FAILS_ONE_IN: u64 = 4;

/// What an engine leaves its successor.
pub struct LeftState {
    pub state: SavedState,
    pub descriptors: Vec<OwnedFd>,
}

/// Makes successors of the engines of a pair.
pub trait Successors {
    /// The successor of one engine, while the other goes on.
    ///
    /// # Errors
    /// The state is not one to go on from.
    fn one(
        &mut self,
        role: Role,
        saved: LeftState,
        restorer: &mut dyn Restorer,
    ) -> Result<Box<dyn Engine>, RestoreError>;

    /// The successors of both engines: the process of both is replaced.
    ///
    /// # Errors
    /// A state is not one to go on from.
    fn both(
        &mut self,
        client: (LeftState, &mut dyn Restorer),
        server: (LeftState, &mut dyn Restorer),
    ) -> Result<[Box<dyn Engine>; 2], RestoreError> {
        Ok([
            self.one(Role::Client, client.0, client.1)?,
            self.one(Role::Server, server.0, server.1)?,
        ])
    }

    /// Whether one engine's process can be replaced without the other's.
    fn can_part(&self) -> bool {
        true
    }
}

/// Which ends are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sides {
    Client,
    Server,
    /// Either, at moments of its own.
    Either,
    Both,
}

/// HotRestarts at moments that follow from a seed.
#[derive(Clone, Debug)]
pub struct HotRestarts {
    random: Random,
    sides: Sides,
    rounds: u64,
}

impl HotRestarts {
    /// Hot restarts of these sides.
    #[must_use]
    pub fn new(seed: u64, sides: Sides) -> HotRestarts {
        HotRestarts {
            random: Random::new(seed),
            sides,
            rounds: 0,
        }
    }

    pub(crate) fn round(&mut self, successors: &mut dyn Successors, client: &mut Node, server: &mut Node) {
        self.rounds += 1;
        let between = if self.rounds < ROUNDS_OFTEN {
            ROUNDS_BETWEEN
        } else {
            ROUNDS_BETWEEN_LATER
        };
        if !self.random.one_in(between) || !client.has_successors || !server.has_successors {
            return;
        }
        match self.sides {
            Sides::Client => self.one(successors, Role::Client, client),
            Sides::Server => self.one(successors, Role::Server, server),
            Sides::Either if self.random.one_in(2) => self.one(successors, Role::Client, client),
            Sides::Either => self.one(successors, Role::Server, server),
            Sides::Both => self.both(successors, client, server),
        }
    }

    fn one(&mut self, successors: &mut dyn Successors, role: Role, node: &mut Node) {
        let successor = if successors.can_part() && self.random.one_in(2) {
            Successor::OtherProcess
        } else {
            Successor::SameProcess
        };
        let fails = self.random.one_in(FAILS_ONE_IN);
        let Node { engine, heap, .. } = node;
        let bytes_max = std::mem::replace(&mut heap.bytes_max, u64::MAX);
        let restored = succeed(
            successor,
            heap,
            |saver| save(engine, saver, fails),
            |saved, restorer| successors.one(role, saved, restorer),
        );
        node.heap.bytes_max = bytes_max;
        match restored {
            Ok(successor) if !fails => *engine = successor,
            Err(_) if fails => {}
            Ok(_) => panic!("a damaged state was restored"),
            Err(error) => panic!("what was saved is not restored: {error}"),
        }
    }

    fn both(&mut self, successors: &mut dyn Successors, client: &mut Node, server: &mut Node) {
        let fails = self.random.one_in(FAILS_ONE_IN);
        let elsewhere = Successor::OtherProcess;
        let (at_client, at_server) = (&mut client.engine, &mut server.engine);
        let bytes_max =
            [&mut client.heap, &mut server.heap].map(|heap| std::mem::replace(&mut heap.bytes_max, u64::MAX));
        let restored = succeed(
            elsewhere,
            &mut client.heap,
            |saver| save(at_client, saver, false),
            |client, from_client| {
                succeed(
                    elsewhere,
                    &mut server.heap,
                    |saver| save(at_server, saver, fails),
                    |server, from_server| successors.both((client, from_client), (server, from_server)),
                )
            },
        );
        [client.heap.bytes_max, server.heap.bytes_max] = bytes_max;
        match restored {
            Ok(successors) if !fails => [*at_client, *at_server] = successors,
            Err(_) if fails => {}
            Ok(_) => panic!("a damaged state was restored"),
            Err(error) => panic!("what was saved is not restored: {error}"),
        }
    }
}

/// Saves an engine; a state that shall not be restored lacks its end.
#[allow(clippy::borrowed_box)]
fn save(engine: &Box<dyn Engine>, saver: &mut dyn Saver, fails: bool) -> LeftState {
    let mut state = engine.save(saver);
    if fails {
        state.bytes.pop();
    }
    LeftState {
        state,
        descriptors: duplicate_descriptors(&**engine).expect("a free descriptor"),
    }
}

/// Saves through `save` and makes a successor through `restore`, of one that has its blocks in this heap. If there is
/// none, the heap is as it was. The heap stands for the other process's, too: it must have room for copies.
///
/// # Errors
/// What `restore` says.
pub fn succeed<T, S, E>(
    successor: Successor,
    heap: &mut dyn ReceiveHeap,
    save: impl FnOnce(&mut dyn Saver) -> S,
    restore: impl FnOnce(S, &mut dyn Restorer) -> Result<T, E>,
) -> Result<T, E> {
    match successor {
        Successor::SameProcess => {
            let mut saver = InPlace::new(copy_foreign);
            let saved = save(&mut saver);
            let mut kept: KeptMemory = saver.into_restorer();
            restore(saved, &mut kept)
        }
        Successor::OtherProcess => {
            let mut saver = ForeignCopies::default();
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
struct ForeignCopies {
    blocks: Vec<(ReceivedBlock, BlockContent)>,
}

impl Saver for ForeignCopies {
    fn foreign(&mut self, bytes: &ForeignBytes, out: &mut Vec<u8>) {
        copy_foreign(bytes, out);
    }

    fn block(&mut self, block: &ReceivedBlock, content: BlockContent) {
        let (at, bytes) = (block.at, block.bytes);
        self.blocks.push((ReceivedBlock { at, bytes }, content));
    }
}

impl ForeignCopies {
    /// Copies the blocks that can move to others of the same heap, which stands for the other process's.
    fn moved(self, heap: &mut dyn ReceiveHeap) -> MovedBlocks {
        let mut moved = MovedBlocks::default();
        for (old, content) in self.blocks {
            let BlockContent::Movable { filled } = content else {
                moved.places.insert(old.at, Some(old));
                continue;
            };
            let came = heap.bytes(&old)[..filled as usize].to_vec();
            let mut copy = heap.allocate(old.bytes).ok();
            if let Some(block) = &mut copy {
                heap.bytes_mut(block)[..came.len()].copy_from_slice(&came);
                let (at, bytes) = (block.at, block.bytes);
                moved.copies.push(ReceivedBlock { at, bytes });
            }
            moved.places.insert(old.at, copy);
            moved.originals.push(old);
        }
        moved
    }
}

/// Restores in another process: each block that a state names is at another place, those that must not move aside.
#[derive(Default)]
struct MovedBlocks {
    /// Where each block is now, unless there was no room for it.
    places: HashMap<u32, Option<ReceivedBlock>>,
    originals: Vec<ReceivedBlock>,
    copies: Vec<ReceivedBlock>,
}

impl MovedBlocks {
    fn settle(self, heap: &mut dyn ReceiveHeap) {
        assert!(self.places.is_empty(), "a block was saved and not restored");
        self.originals.into_iter().for_each(|block| heap.free(block));
    }

    fn undo(self, heap: &mut dyn ReceiveHeap) {
        self.copies.into_iter().for_each(|block| heap.free(block));
    }
}

impl Restorer for MovedBlocks {
    fn block(&mut self, saved: ReceivedBlock) -> Result<ReceivedBlock, NotSaved> {
        let at = saved.at;
        let place = self.places.remove(&at).ok_or(NotSaved::Block { at })?;
        place.ok_or(NotSaved::Full { at })
    }

    fn foreign(&mut self, kept: u32) -> Result<ForeignBytes, NotSaved> {
        Err(NotSaved::Foreign { kept })
    }
}
