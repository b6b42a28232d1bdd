//! What a server tells the manager that has started its program: one datagram each to the socket that `NOTIFY_SOCKET` names
//! (`sd_notify(3)`).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Whether the manager is told how the server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ManagerNotices {
    Kept,
    Sent,
}

impl ManagerNotices {
    pub(super) fn waiting(self) {
        self.send("STATUS=waiting for the node's service");
    }

    pub(super) fn ready(self) {
        self.send("READY=1\nSTATUS=serving");
    }

    pub(super) fn stopping(self) {
        self.send("STOPPING=1\nSTATUS=finishing calls");
    }

    fn send(self, state: &str) {
        if self == ManagerNotices::Sent
            && let Some(name) = std::env::var_os("NOTIFY_SOCKET")
        {
            // A manager that is gone, or reads nothing, is no reason to serve worse.
            let _ = send_to(&name, state);
        }
    }
}

fn send_to(name: &OsStr, state: &str) -> io::Result<()> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}
