//! DPDK's environment: once in a process, for all of its wires.

use std::collections::HashSet;
use std::ffi::{CString, c_char, c_int};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::shim::{self, Pool};

/// Words of the command line at most.
const WORDS_MAX: usize = 128;

/// DPDK's environment. There is one in a process, and it stays until the end.
#[derive(Debug)]
pub struct Eal {
    control: Mutex<Control>,
}

/// What wires have of DPDK.
#[derive(Debug, Default)]
pub(crate) struct Control {
    ports_taken: HashSet<u16>,
    /// Pools whose wires are gone.
    pools_idle: Vec<BufferPool>,
}

/// A pool of buffers. It is never freed, because others may have its buffers still; the next wire of the same size gets it.
#[derive(Debug)]
pub(crate) struct BufferPool {
    buffers: u32,
    frame_bytes: u16,
    pub(crate) pool: Pool,
}

// SAFETY: a pool is the same for every thread.
unsafe impl Send for BufferPool {}

impl Control {
    /// A pool of so many buffers, each with room for so many bytes.
    pub(crate) fn pool(&mut self, buffers: u32, frame_bytes: u16) -> io::Result<BufferPool> {
        let fits = |pool: &BufferPool| (pool.buffers, pool.frame_bytes) == (buffers, frame_bytes);
        if let Some(at) = self.pools_idle.iter().position(fits) {
            return Ok(self.pools_idle.swap_remove(at));
        }
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = CString::new(format!("provost-{number}"))?;
        let mut pool = std::ptr::null_mut();
        // SAFETY: the name ends with a zero, and the pool's address is written to what is there.
        check(unsafe { shim::provost_dpdk_pool(name.as_ptr(), buffers, frame_bytes, &raw mut pool) })?;
        Ok(BufferPool {
            buffers,
            frame_bytes,
            pool,
        })
    }

    /// The number of a device's port, if no wire has it.
    pub(crate) fn free_port(&self, device: &str) -> Result<u16, DpdkError> {
        let refused = |source| DpdkError::Device {
            device: device.to_owned(),
            source,
        };
        let name = CString::new(device).map_err(|_| refused(io::ErrorKind::InvalidInput.into()))?;
        let mut port = 0;
        // SAFETY: the name ends with a zero, and the number is written to what is there.
        check(unsafe { shim::provost_dpdk_port(name.as_ptr(), &raw mut port) }).map_err(refused)?;
        if self.ports_taken.contains(&port) {
            return Err(refused(io::ErrorKind::AddrInUse.into()));
        }
        Ok(port)
    }

    /// The port is a wire's.
    pub(crate) fn take(&mut self, port: u16) {
        self.ports_taken.insert(port);
    }

    /// The port has been closed, and its wire is gone.
    pub(crate) fn give_back(&mut self, port: u16, pool: BufferPool) {
        self.ports_taken.remove(&port);
        self.pools_idle.push(pool);
    }
}

/// Why there is no wire.
#[derive(Debug, thiserror::Error)]
pub enum DpdkError {
    /// DPDK did not start.
    #[error(
        "DPDK did not start with {words:?}: {source}; what it prints on standard error says more. Without hugepages, add \
         --no-huge"
    )]
    Start {
        /// What it was told.
        words: Vec<String>,
        source: io::Error,
    },
    /// There is no such device, or another wire has it.
    #[error(
        "device {device}: {source}; devices are named by their PCI address, or by --vdev when DPDK starts"
    )]
    Device { device: String, source: io::Error },
    /// DPDK refused an operation.
    #[error("{operation}: {source}; {remedy}")]
    Refused {
        /// What was asked of it.
        operation: &'static str,
        remedy: &'static str,
        source: io::Error,
    },
}

impl Eal {
    /// Starts DPDK with these words, as on the command line of its programs. When it has been started before, the words do
    /// not count.
    ///
    /// # Errors
    /// If DPDK does not start. It cannot be tried again in this process.
    pub fn start(words: &[&str]) -> Result<&'static Eal, DpdkError> {
        static EAL: OnceLock<Result<Eal, i32>> = OnceLock::new();
        let started = EAL.get_or_init(|| start(words).map(|()| Eal::new()));
        started.as_ref().map_err(|errno| DpdkError::Start {
            words: words.iter().map(|word| (*word).to_owned()).collect(),
            source: io::Error::from_raw_os_error(*errno),
        })
    }

    fn new() -> Eal {
        Eal {
            control: Mutex::default(),
        }
    }

    /// Makes a virtual device, as `--vdev=NAME,ARGUMENTS` does at the start, in the network namespace of this thread.
    ///
    /// # Errors
    /// If there is no driver for it, or its arguments are wrong.
    pub fn add_device(&self, name: &str, arguments: &str) -> Result<(), DpdkError> {
        let refused = |source| DpdkError::Device {
            device: format!("{name},{arguments}"),
            source,
        };
        let word = |text: &str| CString::new(text).map_err(|_| refused(io::ErrorKind::InvalidInput.into()));
        let (name, arguments) = (word(name)?, word(arguments)?);
        let _control = self.control();
        // SAFETY: both words end with a zero.
        let outcome = unsafe { shim::provost_dpdk_add_device(name.as_ptr(), arguments.as_ptr()) };
        check(outcome).map(|_| ()).map_err(refused)
    }

    /// Makes two virtual devices, of which each receives what the other sends, in the memory of this process.
    ///
    /// # Errors
    /// If the names are taken, or there is no memory.
    pub fn add_pair(&self, names: [&str; 2], packets: u32) -> Result<(), DpdkError> {
        let refused = |source| DpdkError::Device {
            device: names.join(" and "),
            source,
        };
        let word = |text: &str| CString::new(text).map_err(|_| refused(io::ErrorKind::InvalidInput.into()));
        let (one, other) = (word(names[0])?, word(names[1])?);
        let _control = self.control();
        // SAFETY: both names end with a zero.
        let outcome = unsafe { shim::provost_dpdk_add_pair(one.as_ptr(), other.as_ptr(), packets) };
        check(outcome).map(|_| ()).map_err(refused)
    }

    /// The lock that devices are made, started and closed under: DPDK does one at a time, and gives numbers of ports that
    /// were closed to new ones. What is under it is whole whatever happened to the thread that changed it last.
    pub(crate) fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// In a thread of its own, because DPDK ties the thread that starts it to a processor.
fn start(words: &[&str]) -> Result<(), i32> {
    let program = std::iter::once("provost").chain(words.iter().copied());
    let words: Result<Vec<CString>, _> = program.take(WORDS_MAX).map(CString::new).collect();
    let words = words.map_err(|_| invalid())?;
    let run = move || {
        let mut addresses: Vec<*mut c_char> = words.into_iter().map(CString::into_raw).collect();
        let count = addresses.len() as c_int;
        addresses.push(std::ptr::null_mut());
        // SAFETY: the words end with zeros and are never freed, because DPDK may keep them.
        unsafe { shim::provost_dpdk_init(count, addresses.as_mut_ptr()) }
    };
    match std::thread::spawn(run).join() {
        Ok(0) => Ok(()),
        Ok(outcome) => Err(-outcome),
        Err(_) => Err(invalid()),
    }
}

fn invalid() -> i32 {
    22
}

/// A negative outcome is an errno.
pub(crate) fn check(outcome: c_int) -> io::Result<c_int> {
    if outcome < 0 {
        Err(io::Error::from_raw_os_error(-outcome))
    } else {
        Ok(outcome)
    }
}

/// For `map_err`: names the operation that DPDK refused, and what may help.
pub(crate) fn refused(operation: &'static str, remedy: &'static str) -> impl Fn(io::Error) -> DpdkError {
    move |source| DpdkError::Refused {
        operation,
        remedy,
        source,
    }
}
