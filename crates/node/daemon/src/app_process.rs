//! The process of an app, as the kernel knows it: what authority goes by, whatever the app says of itself.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use provost_processes::{PeerProcess, ProcessFacts};

use crate::access::Credentials;

/// What the kernel says of an app's process.
#[derive(Clone, Debug)]
pub(crate) struct AppProcess {
    pub(crate) credentials: Credentials,
    /// Its program and its control group, as far as they can be read.
    pub(crate) facts: ProcessFacts,
    /// The program of its table that it was found to run when it attached: the file may be replaced since.
    pub(crate) program: Option<PathBuf>,
}

/// What is saved of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SavedProcess<'a> {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// What [`AppProcess::program_bytes`] has said of its program.
    pub(crate) program: &'a [u8],
}

impl AppProcess {
    /// The process at the other end of a control socket.
    pub(crate) fn at_socket(socket: BorrowedFd<'_>, credentials: Credentials) -> AppProcess {
        let read = PeerProcess::at_socket(socket, credentials.pid, credentials.uid);
        let facts = read.and_then(|process| process.facts());
        AppProcess {
            facts: facts.unwrap_or_else(|error| {
                tracing::debug!(pid = credentials.pid, %error, "a process cannot be looked at");
                ProcessFacts::default()
            }),
            credentials,
            program: None,
        }
    }

    /// That of a client of which the kernel says nothing.
    pub(crate) fn unknown() -> AppProcess {
        AppProcess {
            credentials: Credentials::unknown(),
            facts: ProcessFacts::default(),
            program: None,
        }
    }

    /// The process of an app that another process of the service has let in, at the other end of the app's socket.
    pub(crate) fn of_saved(socket: BorrowedFd<'_>, saved: SavedProcess<'_>) -> AppProcess {
        let program = saved.program;
        let program = (!program.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(program)));
        let credentials = Credentials {
            pid: saved.pid,
            uid: saved.uid,
            gid: saved.gid,
            groups: provost_processes::peer_groups(socket).unwrap_or_default().into(),
        };
        AppProcess {
            program,
            ..AppProcess::at_socket(socket, credentials)
        }
    }

    /// What is saved of it.
    pub(crate) fn program_bytes(&self) -> Vec<u8> {
        let program = self.program.as_ref();
        program.map_or_else(Vec::new, |path| path.as_os_str().as_bytes().to_vec())
    }
}
