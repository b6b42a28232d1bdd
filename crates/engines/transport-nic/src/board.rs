//! Boards: the NICs of this process with their hosts' parts. A board outlives the engine that drives it, as one in a slot would: an engine's
//! saved state has the board's number, and its successor in this process goes on with the same NIC, whose calls notice nothing. In another
//! process there is no such board.
//!
//! One engine drives a board at a time. Between a save and the end of the predecessor two of them hold it, of which one is polled: so the
//! lock is always free.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use provost_nic_host::NicHost;
use provost_nic_model::SimulatedNic;

use crate::wired::draw_u64;

/// The boards that engines hold, by number.
static BOARDS: Mutex<BTreeMap<u64, Weak<Mutex<NicBoard>>>> = Mutex::new(BTreeMap::new());

/// A NIC, and the part of the protocol that its host does.
pub(crate) struct NicBoard {
    pub(crate) nic: SimulatedNic,
    pub(crate) host: NicHost,
}

/// A board that an engine holds.
#[derive(Clone)]
pub(crate) struct BoardHandle {
    number: u64,
    board: Arc<Mutex<NicBoard>>,
}

impl BoardHandle {
    /// Gives a board a number by which a successor finds it.
    pub(crate) fn install(board: NicBoard) -> io::Result<BoardHandle> {
        // Drawn, so that a state of another process names no board of this one.
        let number = draw_u64()?;
        let board = Arc::new(Mutex::new(board));
        let mut boards = lock(&BOARDS);
        boards.retain(|_, board| board.strong_count() > 0);
        boards.insert(number, Arc::downgrade(&board));
        Ok(BoardHandle { number, board })
    }

    /// The board with this number, if an engine of this process holds it.
    pub(crate) fn find(number: u64) -> Option<BoardHandle> {
        let board = lock(&BOARDS).get(&number).and_then(Weak::upgrade)?;
        Some(BoardHandle { number, board })
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The board, to drive it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, NicBoard> {
        lock(&self.board)
    }
}

/// What another thread left when it panicked is as good as before: each change is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
