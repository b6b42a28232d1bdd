//! Replacing the whole service by a new process, of the same or another version, while apps and peers go on calling.
//!
//! ```text
//! old: spawns the new one ──► preview ──► waits until it is ready ──► closes its barriers, freezes its runtimes, saves
//!                                                                       │ state, descriptors
//! new:                        gets ready (what takes long)              └──► restores ──► commit ──► goes on
//! ```
//!
//! Until the commit nothing that anybody else can see is changed: the old process only copies what it has and duplicates
//! descriptors, the new one only makes memory of its own. Whatever goes wrong until then (the new one ends, says that it
//! cannot, or says nothing for too long) makes the old one end it, thaw its runtimes and go on. After the commit the old
//! one closes what it has without a word, and ends. At no time both read the same ring or socket.
//!
//! - `channel`: what the two say to each other.
//! - `state`: what is transferred.
//! - `replace`: the old process's part; `save`: how it puts the state together.
//! - `succeed`: the new process's part; `restore`: how it makes a service of the state, as that comes; `memory_reserve`: in memory that is there.

mod callers;
mod channel;
#[doc(hidden)]
pub mod fuzzing;
mod memory_reserve;
mod replace;
mod restore;
mod restore_client;
mod restore_connections;
mod restore_end;
mod restore_relay;
mod save;
mod state;
mod succeed;
#[cfg(test)]
mod tests;

pub use crate::upgrade::{UpgradeError, UpgradeReport, UpgradeRequest};
pub use replace::{PassedOn, pass_on};
pub use succeed::{Predecessor, PredecessorError};

pub(crate) use callers::ResumedCallers;
pub(crate) use replace::replace;
pub(crate) use succeed::{begin, complete};

/// The option with which a process is started that is to take over; its standard input is the channel.
pub const HOT_RESTART_OPTION: &str = "--take-over";
