//! Shared memory for the floor: mailboxes of one message each, and a doorbell for each. Written for the benchmark alone,
//! so that the floor does not stand on what is measured against it.
//!
//! Who may touch what of a mailbox: its sender writes `sequence` and `words`; its receiver writes `sleeping`.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::failure::{Doing, Failure};

/// Mailboxes in one memory.
pub(crate) const MAILBOXES: usize = 4;
/// Words of a message.
pub(crate) const MESSAGE_WORDS: usize = 8;

pub(crate) type Message = [u64; MESSAGE_WORDS];

#[repr(C, align(64))]
struct Line<T>(T);

#[repr(C)]
struct Mailbox {
    sequence: Line<AtomicU32>,
    sleeping: Line<AtomicU32>,
    words: Line<[AtomicU64; MESSAGE_WORDS]>,
}

type Memory = [Mailbox; MAILBOXES];

/// The mailboxes as one process sees them. The process that created them hands their descriptors down to those that it
/// starts (they are not closed on exec, on purpose).
pub(crate) struct Mailboxes {
    memory: NonNull<Memory>,
    memory_fd: OwnedFd,
    doorbells: [OwnedFd; MAILBOXES],
}

// SAFETY: a mapping is valid from any thread, and all that is in it is atomic.
unsafe impl Send for Mailboxes {}
// SAFETY: as above.
unsafe impl Sync for Mailboxes {}

/// The descriptors of [`Mailboxes`], by number.
pub(crate) type Descriptors = (RawFd, [RawFd; MAILBOXES]);

impl Mailboxes {
    pub(crate) fn create() -> Result<Mailboxes, Failure> {
        let memory_fd = memfd_create(c"floor", MemfdFlags::empty()).doing(|| "make shared memory".into())?;
        ftruncate(&memory_fd, size_of::<Memory>() as u64).doing(|| "size shared memory".into())?;
        let doorbell = || eventfd(0, EventfdFlags::empty()).doing(|| "make a doorbell".into());
        let doorbells = [doorbell()?, doorbell()?, doorbell()?, doorbell()?];
        Mailboxes::map(memory_fd, doorbells)
    }

    /// Opens those that the process that started this one has made.
    pub(crate) fn inherit((memory, doorbells): Descriptors) -> Result<Mailboxes, Failure> {
        let inherited = [memory, doorbells[0], doorbells[1], doorbells[2], doorbells[3]];
        if let Some(missing) = inherited
            .iter()
            .find(|fd| !Path::new(&format!("/proc/self/fd/{fd}")).exists())
        {
            return Err(Failure::role(
                "floor",
                format!("descriptor {missing} was not inherited"),
            ));
        }
        // SAFETY: the descriptors are open (checked above), this process has just begun as a role, and nothing else in
        // it knows them: it is their only owner.
        let own = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
        Mailboxes::map(own(memory), doorbells.map(own))
    }

    /// The descriptors to hand down.
    pub(crate) fn descriptors(&self) -> Descriptors {
        (
            self.memory_fd.as_raw_fd(),
            self.doorbells.each_ref().map(AsRawFd::as_raw_fd),
        )
    }

    /// Puts message number `sequence` into a mailbox, and rings if its receiver sleeps.
    pub(crate) fn post(&self, mailbox: usize, sequence: u32, message: &Message) -> Result<(), Failure> {
        let shared = &self.memory()[mailbox];
        for (word, value) in shared.words.0.iter().zip(message) {
            word.store(*value, Relaxed);
        }
        // Orders the words before it, and itself before the load of `sleeping`: whoever goes to sleep looks at
        // `sequence` after it has said so.
        shared.sequence.0.store(sequence, SeqCst);
        if shared.sleeping.0.load(SeqCst) != 0 {
            rustix::io::write(&self.doorbells[mailbox], &1_u64.to_ne_bytes()).doing(|| "ring".into())?;
        }
        Ok(())
    }

    /// Waits for message number `sequence`: spins `spin_ns`, yielding, then sleeps.
    pub(crate) fn receive(&self, mailbox: usize, sequence: u32, spin_ns: u64) -> Result<Message, Failure> {
        let shared = &self.memory()[mailbox];
        let since = Instant::now();
        while shared.sequence.0.load(SeqCst) != sequence {
            if still_spinning(since, spin_ns) {
                continue;
            }
            shared.sleeping.0.store(1, SeqCst);
            if shared.sequence.0.load(SeqCst) != sequence {
                let mut rings = [0; 8];
                rustix::io::read(&self.doorbells[mailbox], &mut rings).doing(|| "sleep".into())?;
            }
            shared.sleeping.0.store(0, SeqCst);
        }
        Ok(std::array::from_fn(|word| shared.words.0[word].load(Relaxed)))
    }

    fn map(memory_fd: OwnedFd, doorbells: [OwnedFd; MAILBOXES]) -> Result<Mailboxes, Failure> {
        let (protection, flags) = (
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::POPULATE,
        );
        // SAFETY: a new mapping at an address that the kernel chooses replaces nothing. The file is as long as the
        // mapping: `create` sized it, and nobody shrinks it.
        let mapped = unsafe {
            mmap(
                std::ptr::null_mut(),
                size_of::<Memory>(),
                protection,
                flags,
                &memory_fd,
                0,
            )
        };
        let mapped = mapped.doing(|| "map shared memory".into())?;
        let memory =
            NonNull::new(mapped.cast()).ok_or_else(|| Failure::role("floor", "mapped at address 0"))?;
        Ok(Mailboxes {
            memory,
            memory_fd,
            doorbells,
        })
    }

    fn memory(&self) -> &Memory {
        // SAFETY: the mapping lives as long as `self`, is page-aligned, as long as `Memory`, and began as zeros, which
        // is a `Memory`. Everything in it is atomic.
        unsafe { self.memory.as_ref() }
    }
}

impl Drop for Mailboxes {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `map` made, and no reference to it outlives `self`. That it fails would
        // only leave it mapped.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), size_of::<Memory>()) };
    }
}

/// Yields the core and says whether to look once more before sleeping.
pub(crate) fn still_spinning(since: Instant, spin_ns: u64) -> bool {
    if since.elapsed().as_nanos() >= u128::from(spin_ns) {
        return false;
    }
    std::thread::yield_now();
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whether_the_receiver_spins_or_sleeps() {
        for spin_ns in [0, 50_000] {
            let here = Mailboxes::create().unwrap();
            let doorbells = here.doorbells.each_ref().map(|fd| fd.try_clone().unwrap());
            let there = Mailboxes::map(here.memory_fd.try_clone().unwrap(), doorbells).unwrap();
            let echo = std::thread::spawn(move || {
                for sequence in 1..=100 {
                    let message = there.receive(0, sequence, spin_ns).unwrap();
                    there.post(1, sequence, &message.map(|word| word + 1)).unwrap();
                }
            });
            for sequence in 1..=100 {
                here.post(0, sequence, &[u64::from(sequence); MESSAGE_WORDS])
                    .unwrap();
                let answer = here.receive(1, sequence, spin_ns).unwrap();
                assert_eq!(answer, [u64::from(sequence) + 1; MESSAGE_WORDS]);
            }
            echo.join().unwrap();
        }
    }
}
