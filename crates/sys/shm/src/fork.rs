//! What is kept from children that `fork` makes. A child has its parent's memory and descriptors, and none of its threads:
//! what it wrote into memory that the parent shares with a service, the service would take for the parent's.
//!
//! In such a child, other memory is in the place of what is kept: private, and zero.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::ShmError;

/// Ranges of one process that are kept from its children, at most. More are not kept.
const RANGES_MAX: usize = 64;

static IS_FORKED: AtomicBool = AtomicBool::new(false);
static RANGES: [KeptRange; RANGES_MAX] = [const { KeptRange::none() }; RANGES_MAX];

/// A place in the table: who sets `address` from null owns it.
struct KeptRange {
    address: AtomicPtr<c_void>,
    bytes: AtomicUsize,
}

impl KeptRange {
    const fn none() -> KeptRange {
        KeptRange {
            address: AtomicPtr::new(null_mut()),
            bytes: AtomicUsize::new(0),
        }
    }
}

/// Whether this process was forked from one that kept memory from its children.
#[must_use]
pub fn is_forked_child() -> bool {
    IS_FORKED.load(Ordering::Relaxed)
}

/// Memory that is kept from children, until this is dropped.
#[derive(Debug)]
pub(crate) struct KeptFromChildren {
    place: Option<usize>,
}

impl KeptFromChildren {
    /// Keeps a range of whole pages, which is mapped as long as what this returns is there.
    pub(crate) fn new(address: *mut u8, bytes: usize) -> Result<KeptFromChildren, ShmError> {
        watch_forks()?;
        let address: *mut c_void = address.cast();
        let take = |range: &KeptRange| {
            let taken =
                range
                    .address
                    .compare_exchange(null_mut(), address, Ordering::AcqRel, Ordering::Relaxed);
            taken.is_ok()
        };
        let place = RANGES.iter().position(take);
        if let Some(range) = place.map(|place| &RANGES[place]) {
            range.bytes.store(bytes, Ordering::Release);
        }
        Ok(KeptFromChildren { place })
    }
}

impl Drop for KeptFromChildren {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            RANGES[place].bytes.store(0, Ordering::Release);
            RANGES[place].address.store(null_mut(), Ordering::Release);
        }
    }
}

fn watch_forks() -> Result<(), ShmError> {
    static WATCHED: OnceLock<libc::c_int> = OnceLock::new();
    // SAFETY: the handler is a function of this program, which stays; it makes system calls and touches statics alone.
    let error = *WATCHED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
    match error {
        0 => Ok(()),
        error => Err(ShmError::Kernel {
            operation: "pthread_atfork",
            source: Errno::from_raw_os_error(error),
        }),
    }
}

/// The C library calls it in the child, before `fork` returns there: it is alone.
extern "C" fn in_child() {
    IS_FORKED.store(true, Ordering::Relaxed);
    for range in &RANGES {
        let (address, bytes) = (
            range.address.load(Ordering::Acquire),
            range.bytes.load(Ordering::Acquire),
        );
        if address.is_null() || bytes == 0 {
            continue;
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the range was mapped in the parent when it forked, so it is the owner's here; who has its address relies
        // on no more than that it can be read and written, and finds zeros as after nothing was written.
        if unsafe { rustix::mm::mmap_anonymous(address, bytes, protection, flags) }.is_err() {
            // What this child would write there would be the parent's.
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Mapping, Memfd};

    /// Forks, runs `child` there, and says with what it ended.
    fn in_a_child(child: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child makes system calls and reads memory, and ends by `_exit`.
        match unsafe { libc::fork() } {
            0 => {
                let code = child();
                // SAFETY: nothing of this process is to be ended in order.
                unsafe { libc::_exit(code) }
            }
            pid => {
                let mut status = 0;
                // SAFETY: the place for the status is there.
                let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
                assert_eq!(waited, pid);
                libc::WEXITSTATUS(status)
            }
        }
    }

    #[test]
    fn a_child_has_other_memory_where_it_is_kept_and_knows_it() {
        let memfd = Memfd::create("fork-test", 4096).unwrap();
        let [kept, shared] = [(); 2].map(|()| Mapping::new(&memfd, Access::ReadWrite).unwrap());
        let keeping = KeptFromChildren::new(kept.address(), kept.bytes()).unwrap();
        // SAFETY: the mappings are there, and of more than a byte.
        let byte = |mapping: &Mapping| unsafe { mapping.address().read_volatile() };
        // SAFETY: as above.
        let write = |mapping: &Mapping, value| unsafe { mapping.address().write_volatile(value) };
        write(&kept, 7);
        let code = in_a_child(|| {
            let seen = (is_forked_child(), byte(&kept), byte(&shared));
            write(&kept, 9);
            i32::from(seen != (true, 0, 7)) + 2 * i32::from(byte(&shared) != 7)
        });
        assert_eq!(code, 0);
        assert_eq!((is_forked_child(), byte(&kept)), (false, 7));
        drop(keeping);
        let code = in_a_child(|| i32::from(byte(&kept) != 7));
        assert_eq!(code, 0, "it is not kept any more");
    }
}
