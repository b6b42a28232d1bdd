//! The bpf(2) system call, as far as one small program and its two maps need it.

use std::ffi::c_long;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Commands of bpf(2).
const MAP_CREATE: c_long = 0;
const MAP_UPDATE: c_long = 2;
const MAP_DELETE: c_long = 3;
const PROGRAM_LOAD: c_long = 5;
const LINK_CREATE: c_long = 28;
const LINK_DETACH: c_long = 34;

const PROGRAM_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// Bytes of the verifier's log that are kept.
const LOG_BYTES: usize = 1 << 16;
/// Every license will do for the helpers that are called.
const LICENSE: &[u8] = b"Dual MIT/GPL\0";

#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum MapKind {
    Array = 2,
    Sockets = 17,
}

/// How a program sits on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum AttachMode {
    /// After the kernel has made a buffer of its own.
    Generic = 1 << 1,
    Driver = 1 << 2,
}

/// A map whose keys are `u32`.
#[derive(Debug)]
pub(crate) struct Map(OwnedFd);

#[repr(C)]
struct MapAttributes {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

#[repr(C)]
struct ElementAttributes {
    map: u32,
    _padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramAttributes {
    kind: u32,
    instructions: u32,
    instructions_at: u64,
    license_at: u64,
    log_level: u32,
    log_bytes: u32,
    log_at: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

#[repr(C)]
struct LinkAttributes {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

impl Map {
    /// A map of values of four bytes.
    pub(crate) fn new(kind: MapKind, entries: u32) -> io::Result<Map> {
        let attributes = MapAttributes {
            kind: kind as u32,
            key_bytes: 4,
            value_bytes: 4,
            entries,
            flags: 0,
        };
        // SAFETY: the attributes are those of this command, and hold no pointers.
        unsafe { bpf_descriptor(MAP_CREATE, &attributes) }.map(Map)
    }

    pub(crate) fn descriptor(&self) -> i32 {
        self.0.as_raw_fd()
    }

    pub(crate) fn set(&self, key: u32, value: u32) -> io::Result<()> {
        self.element(MAP_UPDATE, key, value)
    }

    pub(crate) fn remove(&self, key: u32) -> io::Result<()> {
        self.element(MAP_DELETE, key, 0)
    }

    fn element(&self, command: c_long, key: u32, value: u32) -> io::Result<()> {
        let attributes = ElementAttributes {
            map: self.0.as_raw_fd() as u32,
            _padding: 0,
            key: (&raw const key) as u64,
            value: (&raw const value) as u64,
            flags: 0,
        };
        // SAFETY: key and value are of the map's sizes, and live until the call returns.
        unsafe { bpf(command, &attributes) }.map(|_| ())
    }
}

/// One instruction, as the kernel reads it (RFC 9669 section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Instruction {
    pub(crate) code: u8,
    /// Source in the upper four bits, destination in the lower.
    pub(crate) registers: u8,
    pub(crate) offset: i16,
    pub(crate) immediate: i32,
}

/// Loads a program; the error comes with the verifier's log.
pub(crate) fn load(instructions: &[Instruction]) -> Result<OwnedFd, (io::Error, String)> {
    let mut log = vec![0_u8; LOG_BYTES];
    let attempt = |log: Option<&mut Vec<u8>>| {
        let (log_level, log_bytes, log_at) =
            log.map_or((0, 0, 0), |log| (1, LOG_BYTES as u32, log.as_mut_ptr() as u64));
        let attributes = ProgramAttributes {
            kind: PROGRAM_TYPE_XDP,
            instructions: instructions.len() as u32,
            instructions_at: instructions.as_ptr() as u64,
            license_at: LICENSE.as_ptr() as u64,
            log_level,
            log_bytes,
            log_at,
            kernel_version: 0,
            flags: 0,
            name: *b"provost_xdp\0\0\0\0\0",
            interface: 0,
            attach_type: ATTACH_XDP,
        };
        // SAFETY: the instructions, the license (which ends with a zero) and the log live until the call returns.
        unsafe { bpf_descriptor(PROGRAM_LOAD, &attributes) }
    };
    // The log is asked for only when there is something to tell.
    if let Ok(program) = attempt(None) {
        return Ok(program);
    }
    attempt(Some(&mut log)).map_err(|error| {
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
        (error, String::from_utf8_lossy(&log[..end]).trim().to_owned())
    })
}

/// A program on an interface. It is taken off when this is dropped, or the process ends.
#[derive(Debug)]
pub(crate) struct Link(OwnedFd);

impl Link {
    pub(crate) fn attach(program: &OwnedFd, interface: u32, mode: AttachMode) -> io::Result<Link> {
        let attributes = LinkAttributes {
            program: program.as_raw_fd() as u32,
            interface,
            attach_type: ATTACH_XDP,
            flags: mode as u32,
        };
        // SAFETY: the attributes are those of this command, and hold no pointers.
        unsafe { bpf_descriptor(LINK_CREATE, &attributes) }.map(Link)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // To close it is not enough: a child of this process may have a copy until it executes its program. A kernel that
        // does not know the command leaves it at that.
        let link = self.0.as_raw_fd() as u32;
        // SAFETY: the attribute is that of this command.
        let _ = unsafe { bpf(LINK_DETACH, &link) };
    }
}

/// # Safety
/// As [`bpf`]; and the command must be one that returns a new descriptor.
unsafe fn bpf_descriptor<T>(command: c_long, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: as promised.
    let descriptor = unsafe { bpf(command, attributes) }?;
    // SAFETY: the kernel has just opened it for us, close-on-exec as all of its kind.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// # Safety
/// The attributes must be those of the command, without uninitialized bytes, and their pointers good for it.
unsafe fn bpf<T>(command: c_long, attributes: &T) -> io::Result<i32> {
    let at: *const T = attributes;
    // SAFETY: as promised.
    let outcome = unsafe { libc::syscall(libc::SYS_bpf, command, at, size_of::<T>()) };
    i32::try_from(outcome)
        .ok()
        .filter(|outcome| *outcome >= 0)
        .ok_or_else(io::Error::last_os_error)
}
