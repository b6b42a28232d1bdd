//! What the kernel says of the process at the other end of a Unix socket (its supplementary groups, its executable, its
//! control group), and what the system calls users and groups.
//!
//! What is read of a process by its number is read between two looks at its pidfd: a number is not given to another
//! process before the first one has ended, and a pidfd says that.

mod accounts;
mod peer;
mod process;

pub use accounts::{find_group, find_user, name_of_user};
pub use peer::{peer_groups, peer_pidfd};
pub use process::{PeerProcess, ProcessFacts, ProgramFile};
