//! Network namespaces for tests and benchmarks: hosts of their own on one machine, joined by virtual Ethernet. They have no
//! name, so they vanish with the process, however it ends.
//!
//! ```no_run
//! use provost_namespaces::Namespace;
//!
//! let (one, other) = (Namespace::new()?, Namespace::new()?);
//! one.join("eth0", &other, "eth0")?;
//! one.command("ip addr add 10.0.0.1/24 dev eth0")?;
//! one.run(|| std::net::UdpSocket::bind("10.0.0.1:0"))?;
//! # Ok::<(), std::io::Error>(())
//! ```

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// In these words commands say that the kernel does not allow, or does not have, what they are to set up.
const REFUSALS: [&str; 4] = [
    "Operation not permitted",
    "Operation not supported",
    "Protocol not supported",
    "Unknown device type",
];

/// A network namespace. What was opened in it stays in it, whichever thread uses it.
#[derive(Debug)]
pub struct Namespace {
    descriptor: OwnedFd,
}

impl Namespace {
    /// A new one, whose loopback interface is up.
    ///
    /// # Errors
    /// If the kernel refuses, as it does to all but root (CAP_SYS_ADMIN), or the command `ip` is missing.
    pub fn new() -> io::Result<Namespace> {
        let namespace = in_thread(|| {
            // SAFETY: only this thread moves, which ends with this closure; it has no file descriptors of its own.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(|error| {
                let advice = "a network namespace needs root (CAP_SYS_ADMIN)";
                io::Error::new(io::Error::from(error).kind(), format!("{advice}: {error}"))
            })?;
            let descriptor = std::fs::File::open("/proc/thread-self/ns/net")?.into();
            Ok(Namespace { descriptor })
        })?;
        namespace.command("ip link set lo up")?;
        Ok(namespace)
    }

    /// Runs this in a thread that is in the namespace.
    ///
    /// # Errors
    /// Those of `job`, or if the thread cannot move there.
    pub fn run<T: Send>(&self, job: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        in_thread(|| {
            move_into_link_name_space(self.descriptor.as_fd(), Some(LinkNameSpaceType::Network))?;
            job()
        })
    }

    /// A path by which another process of this machine can [`Namespace::enter`], as long as this one keeps it.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let (process, descriptor) = (std::process::id(), self.descriptor.as_raw_fd());
        PathBuf::from(format!("/proc/{process}/fd/{descriptor}"))
    }

    /// Moves the calling thread, and what it starts from now on, into a namespace for good.
    ///
    /// # Errors
    /// If there is none at this path, or the kernel refuses.
    pub fn enter(path: &Path) -> io::Result<()> {
        let descriptor: OwnedFd = std::fs::File::open(path)?.into();
        Ok(move_into_link_name_space(
            descriptor.as_fd(),
            Some(LinkNameSpaceType::Network),
        )?)
    }

    /// Runs a command in the namespace, words without quotes, and returns what it printed.
    ///
    /// # Errors
    /// If it cannot be run, or fails; of the kind `Unsupported` where it says that the kernel refuses.
    pub fn command(&self, words: &str) -> io::Result<String> {
        let mut words_of = words.split_whitespace();
        let program = words_of.next().unwrap_or_default();
        let output = self.run(|| Command::new(program).args(words_of).output())?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let told = String::from_utf8_lossy(&output.stderr);
        let is_refused = REFUSALS.iter().any(|refusal| told.contains(refusal));
        let kind = if is_refused {
            io::ErrorKind::Unsupported
        } else {
            io::ErrorKind::Other
        };
        Err(io::Error::new(kind, format!("{words}: {}", told.trim())))
    }

    /// Joins this to another by a pair of virtual Ethernet interfaces of these names, with one queue each, and up.
    ///
    /// # Errors
    /// If the kernel has none, or the names are taken.
    pub fn join(&self, here: &str, other: &Namespace, there: &str) -> io::Result<()> {
        let namespace = other.path();
        let namespace = namespace.display();
        let queues = "numtxqueues 1 numrxqueues 1";
        self.command(&format!(
            "ip link add name {here} {queues} type veth peer name {there} {queues} netns {namespace}"
        ))?;
        self.command(&format!("ip link set {here} up"))?;
        other.command(&format!("ip link set {there} up"))?;
        Ok(())
    }
}

/// A thread that moves between namespaces must not be one that goes on to do something else.
fn in_thread<T: Send>(job: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| scope.spawn(job).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn two_namespaces_reach_each_other_and_nobody_else_sees_them() {
        let (one, other) = match Namespace::new().and_then(|one| Ok((one, Namespace::new()?))) {
            Ok(pair) => pair,
            Err(error) => return provost_skip::error(&error),
        };
        one.join("left", &other, "right").unwrap();
        one.command("ip addr add 10.7.0.1/24 dev left").unwrap();
        other.command("ip addr add 10.7.0.2/24 dev right").unwrap();
        let here = one.run(|| UdpSocket::bind("10.7.0.1:0")).unwrap();
        let there = other.run(|| UdpSocket::bind("10.7.0.2:0")).unwrap();
        there
            .set_read_timeout(Some(std::time::Duration::from_secs(30)))
            .unwrap();
        here.send_to(b"hello", there.local_addr().unwrap()).unwrap();
        let mut bytes = [0; 8];
        assert_eq!(
            there.recv_from(&mut bytes).unwrap(),
            (5, here.local_addr().unwrap())
        );
        assert!(UdpSocket::bind("10.7.0.1:0").is_err());
        let path = one.path();
        let entered = in_thread(|| {
            Namespace::enter(&path)?;
            UdpSocket::bind("10.7.0.1:0")
        });
        entered.unwrap();
        assert!(one.command("ip link set nothing up").is_err());
    }
}
