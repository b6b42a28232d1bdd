//! A process that lives, and what `/proc` says of it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::peer_pidfd;

/// Longest line of `/proc/PID/cgroup` that is looked at, in bytes.
const CGROUP_BYTES_MAX: usize = 64 << 10;

/// A process, held by its pidfd.
#[derive(Debug)]
pub struct PeerProcess {
    pidfd: OwnedFd,
    pid: i32,
}

/// What is known of a process beside its user and its groups. What cannot be read is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessFacts {
    /// The program that it runs.
    pub executable: Option<ProgramFile>,
    /// Its control group, as a path from the root of the hierarchy.
    pub cgroup: Option<String>,
}

/// A program, as a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramFile {
    /// Where the kernel says that it is, for people: another file may be there by now, or in this mount namespace.
    pub path: PathBuf,
    file: FileNumber,
}

/// What tells files apart: the device's two numbers, and the inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileNumber {
    device: (u32, u32),
    inode: u64,
}

impl FileNumber {
    /// The number of the file at a path. What answers for the file system is not asked: it may be the process's own.
    fn of(path: &Path) -> io::Result<FileNumber> {
        let file = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO)?;
        Ok(FileNumber {
            device: (file.stx_dev_major, file.stx_dev_minor),
            inode: file.stx_ino,
        })
    }
}

impl PeerProcess {
    /// The process at the other end of a socket. `pid` and `user` are what `SO_PEERCRED` says: where the kernel gives no
    /// pidfd for a socket, the number is opened, and must be of that user.
    pub fn at_socket(socket: impl AsFd, pid: i32, user: u32) -> io::Result<PeerProcess> {
        match peer_pidfd(socket) {
            Ok(pidfd) => {
                let pid = number_of(&pidfd)?;
                return Ok(PeerProcess { pidfd, pid });
            }
            // A kernel that has pidfds for sockets, and none for this one, says that the process has ended. Another one may
            // have its number by now.
            Err(error) if error.raw_os_error() != Some(libc::ENOPROTOOPT) => return Err(error),
            Err(_) => {}
        }
        let number = Pid::from_raw(pid).filter(|_| pid > 0);
        let number = number.ok_or_else(|| io::Error::other("it is in another PID namespace"))?;
        let pidfd = pidfd_open(number, PidfdFlags::empty())?;
        let process = PeerProcess { pidfd, pid };
        let owner = std::fs::metadata(process.file("status"))?.uid();
        if owner != user || !process.is_alive()? {
            return Err(io::Error::other(
                "it has ended, and its number is another process's",
            ));
        }
        Ok(process)
    }

    /// What `/proc` says of it. An error if it has ended meanwhile, as then another process may have been looked at.
    pub fn facts(&self) -> io::Result<ProcessFacts> {
        let facts = ProcessFacts {
            executable: self.executable().ok(),
            cgroup: self.cgroup().ok().flatten(),
        };
        if !self.is_alive()? {
            return Err(io::Error::other("it has ended"));
        }
        Ok(facts)
    }

    fn file(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.pid))
    }

    fn executable(&self) -> io::Result<ProgramFile> {
        let link = self.file("exe");
        Ok(ProgramFile {
            path: std::fs::read_link(&link)?,
            file: FileNumber::of(&link)?,
        })
    }

    fn cgroup(&self) -> io::Result<Option<String>> {
        let text = std::fs::read_to_string(self.file("cgroup"))?;
        Ok(cgroup_of(&text))
    }

    fn is_alive(&self) -> io::Result<bool> {
        let mut ended = [PollFd::new(&self.pidfd, PollFlags::IN)];
        Ok(poll(&mut ended, Some(&Timespec::default()))? == 0)
    }
}

impl ProgramFile {
    /// Whether a path leads to this file now.
    #[must_use]
    pub fn is_at(&self, path: &Path) -> bool {
        FileNumber::of(path).is_ok_and(|file| file == self.file)
    }
}

/// The number of a pidfd's process, as this process sees it.
fn number_of(pidfd: &OwnedFd) -> io::Result<i32> {
    use std::os::fd::AsRawFd;
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let number = text.lines().find_map(|line| line.strip_prefix("Pid:"));
    let number = number.and_then(|number| number.trim().parse::<i32>().ok());
    // -1: it has ended; 0: it is in another PID namespace.
    number
        .filter(|number| *number > 0)
        .ok_or_else(|| io::Error::other("it has ended, or is in another PID namespace"))
}

/// The path in `/proc/PID/cgroup`: that of the unified hierarchy, else of systemd's own. None for one that is outside of
/// what this process sees.
fn cgroup_of(text: &str) -> Option<String> {
    let of = |hierarchy: &str| {
        let line = text.lines().find_map(|line| {
            let (_number, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            (controllers == hierarchy).then_some(path)
        })?;
        let is_seen = line.starts_with('/') && line.len() <= CGROUP_BYTES_MAX;
        (is_seen && !line.split('/').any(|part| part == "..")).then(|| line.to_owned())
    };
    of("")
        .filter(|path| path != "/")
        .or_else(|| of("name=systemd"))
        .or_else(|| of(""))
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    use std::process::Command;

    use super::*;

    #[test]
    fn a_peer_is_known_by_its_executable() {
        let (one, _other) = UnixStream::pair().unwrap();
        let (pid, user) = (std::process::id() as i32, rustix::process::geteuid().as_raw());
        let facts = PeerProcess::at_socket(&one, pid, user).unwrap().facts().unwrap();
        let executable = facts.executable.unwrap();
        let own = std::env::current_exe().unwrap();
        assert!(executable.is_at(&own) && !executable.is_at(Path::new("/bin/sh")));
        assert_eq!(executable.path, own);
    }

    #[test]
    fn nothing_is_said_of_a_process_that_has_ended() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id() as i32;
        let pidfd = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        let process = PeerProcess { pidfd, pid };
        assert!(process.facts().is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
        // Its number may be another process's by now.
        assert!(process.facts().is_err());
        assert!(number_of(&process.pidfd).is_err());
    }

    #[test]
    fn a_peer_that_has_ended_is_not_taken_for_the_process_that_has_its_number() {
        const SOCKET: &str = "PROVOST_TEST_CONNECTS_TO";
        let address = |name: &str| SocketAddr::from_abstract_name(name).unwrap();
        if let Ok(name) = std::env::var(SOCKET) {
            UnixStream::connect_addr(&address(&name)).unwrap();
            return;
        }
        let name = format!("provost-test-{}", std::process::id());
        let listener = UnixListener::bind_addr(&address(&name)).unwrap();
        let ended = Command::new(std::env::current_exe().unwrap())
            .arg("a_peer_that_has_ended_is_not_taken")
            .env(SOCKET, &name)
            .status();
        assert!(ended.unwrap().success());
        let (socket, _) = listener.accept().unwrap();
        // As if this process had got its number.
        let (own, user) = (std::process::id() as i32, rustix::process::geteuid().as_raw());
        let is_known = peer_pidfd(&socket).err().and_then(|error| error.raw_os_error());
        let peer = PeerProcess::at_socket(&socket, own, user);
        assert!(peer.is_err() || is_known == Some(libc::ENOPROTOOPT), "{peer:?}");
    }

    #[test]
    fn the_control_group_is_that_of_the_unified_hierarchy_or_of_systemd() {
        let cases = [
            ("0::/system.slice/kv.service\n", Some("/system.slice/kv.service")),
            ("2:cpu:/x\n1:name=systemd:/a/b\n0::/\n", Some("/a/b")),
            ("2:cpu:/x\n", None),
            ("0::/\n", Some("/")),
            ("0::/../../evil\n", None),
            ("nonsense", None),
        ];
        for (text, expected) in cases {
            assert_eq!(cgroup_of(text).as_deref(), expected, "{text:?}");
        }
    }
}
