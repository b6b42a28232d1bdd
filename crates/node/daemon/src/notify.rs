//! What the service tells systemd (`sd_notify(3)`): one datagram to the socket that `NOTIFY_SOCKET` names. Elsewhere
//! it does nothing.

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use provost_shm::{Interest, Wait, wait_for};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

pub fn ready() {
    send_state("READY=1\nSTATUS=serving");
}

/// Calls in flight are being finished.
pub fn stopping() {
    send_state("STOPPING=1\nSTATUS=draining");
}

/// Another process has taken over: the manager is to watch that one. Waits until it knows, for when this one ends it would
/// else take the service for ended.
pub fn replaced_by(process: u32) {
    send_state(&format!("MAINPID={process}"));
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = wait_until_read(&name) {
        tracing::warn!(%error, "cannot tell whether the service manager has heard of the new process");
    }
}

/// How long the manager may take to read what it was told.
const READ_WAIT_NS: u64 = 2_000_000_000;

/// Passes the manager one end of a pipe behind all notices so far; it closes it when it comes there
/// (`sd_notify_barrier(3)`).
fn wait_until_read(name: &OsStr) -> io::Result<()> {
    let (read, write) = io::pipe()?;
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address(name)?)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let passed = [write.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&passed));
    let message = [IoSlice::new(b"BARRIER=1")];
    rustix::net::sendmsg(&socket, &message, &mut ancillary, SendFlags::NOSIGNAL)?;
    drop(write);
    if wait_for(&read, Interest::Readable, Wait::AtMost(READ_WAIT_NS))? {
        Ok(())
    } else {
        Err(io::ErrorKind::TimedOut.into())
    }
}

fn send_state(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(&name, state) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

fn send(name: &OsStr, state: &str) -> io::Result<()> {
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address(name)?)?;
    Ok(())
}

fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
        path => SocketAddr::from_pathname(OsStr::from_bytes(path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_arrives_at_the_named_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        let mut buffer = [0; 64];
        let bytes = socket.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..bytes], b"READY=1");
    }

    #[test]
    fn a_manager_that_reads_up_to_the_barrier_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let manager = std::thread::spawn(move || {
            // The descriptor beside the message is closed, as there is no room for it.
            let mut buffer = [0; 64];
            let bytes = socket.recv(&mut buffer).unwrap();
            buffer[..bytes].to_vec()
        });
        wait_until_read(path.as_os_str()).unwrap();
        assert_eq!(manager.join().unwrap(), b"BARRIER=1");
    }

    #[test]
    fn a_missing_socket_is_an_error_not_a_panic() {
        assert!(send(OsStr::new("/nonexistent/notify"), "READY=1").is_err());
    }
}
