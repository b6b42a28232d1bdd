//! What the kernel noted of a process when it connected.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Groups that are asked for first.
const GROUPS_GUESSED: usize = 32;
/// Groups that a process can have (`NGROUPS_MAX`).
const GROUPS_MAX: usize = 65_536;
/// `SO_PEERPIDFD` of `asm-generic/socket.h`, since Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;

/// The supplementary groups of the process that connected (`SO_PEERGROUPS`), by number.
pub fn peer_groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let socket = socket.as_fd().as_raw_fd();
    let mut groups = vec![0_u32; GROUPS_GUESSED];
    loop {
        let mut bytes = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes` bytes, which is the length of `groups`, and the length to `bytes`.
        let outcome = unsafe {
            libc::getsockopt(
                socket,
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<u32>();
        if outcome == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        let is_short = error.raw_os_error() == Some(libc::ERANGE);
        if !is_short || count <= groups.len() || count > GROUPS_MAX {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

/// A pidfd of the process that connected (`SO_PEERPIDFD`). Kernels before Linux 6.5 do not have it.
pub fn peer_pidfd(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut pidfd: libc::c_int = -1;
    let mut bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes, which is the length of `pidfd`, and the length to `bytes`.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut pidfd).cast(),
            &raw mut bytes,
        )
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    if pidfd < 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: the kernel has just made this descriptor for this process, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_groups_of_a_pair_are_those_of_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let mut own: Vec<u32> = rustix::process::getgroups()
            .unwrap()
            .into_iter()
            .map(|group| group.as_raw())
            .collect();
        let mut groups = peer_groups(&one).unwrap();
        own.sort_unstable();
        groups.sort_unstable();
        assert_eq!(groups, own);
    }

    #[test]
    fn a_descriptor_that_is_no_socket_is_an_error() {
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(peer_groups(&reader).is_err());
        assert!(peer_pidfd(&reader).is_err());
    }
}
