//! Replacing the whole service by a new process, of the same or another version, while apps and peers go on calling.
//!
//! ```text
//! old: spawns the new one ──► preview ──► waits until it is ready ──► closes its gates, freezes its runtimes, saves
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
//! - `state`: what is handed over.
//! - `give`: the old process's part; `save`: how it puts the state together.
//! - `take`: the new process's part; `restore`: how it makes a service of the state.

mod channel;
mod give;
mod restore;
mod save;
mod state;
mod take;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

pub use take::{Seat, SeatError};

pub(crate) use give::{
    UpgradeOrder, UpgradeSender, Upgrades, give, order, own_program, pass_shutdown_on, queue,
};
pub(crate) use restore::Restored;
pub(crate) use take::{begin, complete};

/// The option with which a process is started that is to take over; its standard input is the channel.
pub const TAKE_OVER_OPTION: &str = "--take-over";

/// What is to take over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpgradeRequest {
    /// The program; by default the one that this process was started from, as it is on disk now.
    pub binary: Option<PathBuf>,
    /// Its arguments; by default those of this process.
    pub arguments: Option<Vec<OsString>>,
    /// How long it may take to get ready; a minute without.
    pub ready_within: Option<Duration>,
}

/// What came of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpgradeReport {
    /// The process that goes on.
    pub process: u32,
    /// Its version.
    pub version: String,
    /// How long it took to get ready, while this one went on.
    pub prepared: Duration,
    /// For how long nobody served: from the freeze to the commit.
    pub frozen: Duration,
    /// Length of the state in bytes.
    pub state_bytes: u64,
    /// Descriptors that were passed.
    pub descriptors: usize,
    /// Apps.
    pub apps: usize,
    /// Ends of connections.
    pub connections: usize,
}

/// Why this process goes on instead.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// It is about to end.
    #[error("the service is shutting down")]
    ShuttingDown,
    /// Another upgrade is under way.
    #[error("another upgrade is under way")]
    UnderWay,
    /// It is the first process of its PID namespace, such as a container's.
    #[error(
        "this is the first process of its container, which would end with it: run it under an init (docker run --init, \
         tini, or a pod with shareProcessNamespace)"
    )]
    FirstProcess,
    /// The program could not be started.
    #[error("{}: {source}: name a program that this user may run", binary.display())]
    Start {
        /// Which program.
        binary: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The new process ended, or said that it cannot go on, or nothing for too long.
    #[error("the new process {phase}: {reason}")]
    Successor {
        /// What it was about to do.
        phase: &'static str,
        /// What it said, or what became of it.
        reason: String,
    },
    /// Requests of apps did not come to an end.
    #[error("requests of apps have not come to an end in {0:?}: try again")]
    Requests(Duration),
    /// Something could not be saved.
    #[error("the state could not be saved: {0}")]
    Save(#[from] io::Error),
    /// The new process took over and ended at once: its state is lost with it.
    #[error("the new process took over and ended at once ({status}): the service ends")]
    Lost {
        /// How it ended.
        status: String,
    },
}

/// What a listener is called between two processes: its address alone where it is of the first transport.
fn listener_name(transport: crate::config::ListenerTransport, address: std::net::SocketAddr) -> String {
    match transport {
        crate::config::ListenerTransport::Tcp => address.to_string(),
        crate::config::ListenerTransport::Datagram => format!("{DATAGRAM}{address}"),
    }
}

/// The address in such a name.
fn listener_address(name: &str) -> Option<std::net::SocketAddr> {
    name.strip_prefix(DATAGRAM).unwrap_or(name).parse().ok()
}

const DATAGRAM: &str = "datagram:";
