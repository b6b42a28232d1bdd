//! What the service tells systemd (`sd_notify(3)`): one datagram to the socket that `NOTIFY_SOCKET` names. Elsewhere
//! it does nothing.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Apps can attach.
pub fn ready() {
    tell("READY=1\nSTATUS=serving");
}

/// Calls in flight are being finished.
pub fn stopping() {
    tell("STOPPING=1\nSTATUS=draining");
}

fn tell(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(&name, state) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

fn send(name: &OsStr, state: &str) -> io::Result<()> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
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
    fn a_missing_socket_is_an_error_not_a_panic() {
        assert!(send(OsStr::new("/nonexistent/notify"), "READY=1").is_err());
    }
}
