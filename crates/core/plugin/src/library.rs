//! Opening a library and reading its description.

use std::ffi::c_void;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use provost_engine::abi::{CONTAINS_PANICS, ENGINE_ABI, EngineDescription, SYMBOL};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::LoadError;
use crate::file::LibraryContent;

/// Opens a library by a copy of its content that nobody can change, and checks its description. It stays open.
pub(crate) fn open(path: &Path, content: &LibraryContent) -> Result<&'static EngineDescription, LoadError> {
    let link = |reason: String| LoadError::Link {
        path: path.to_owned(),
        reason,
    };
    let copy = copy(content).map_err(|error| link(format!("its copy: {error}")))?;
    // The linker knows libraries by name, so each has its own descriptor for ever.
    let name = format!("/proc/self/fd/{}", copy.as_raw_fd());
    // SAFETY: what runs here is trusted as the service itself is: only root and the service's user can have written it.
    let library = unsafe { Library::open(Some(&name), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|error| link(reason(&error).replace(&name, "the library")))?;
    // SAFETY: only its address is used.
    let symbol = unsafe { library.get::<*const c_void>(SYMBOL.to_bytes_with_nul()) };
    let address = symbol.map(|symbol| symbol.into_raw().cast_const());
    // Nothing that runs, or has run, in a library can be taken away from under it.
    std::mem::forget((library, copy));
    let no_symbol = LoadError::NoSymbol {
        path: path.to_owned(),
        symbol: SYMBOL.to_str().unwrap_or_default(),
    };
    description(path, address.map_err(|_| no_symbol)?)
}

/// What the linker says is the source of an error that names its function alone.
fn reason(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), ToString::to_string)
}

fn copy(content: &LibraryContent) -> std::io::Result<File> {
    let flags = MemfdFlags::CLOEXEC;
    // Kernels before 6.3 do not know that a file can be executable or not.
    let copy = memfd_create("provost-engine", flags | MemfdFlags::EXEC)
        .or_else(|_| memfd_create("provost-engine", flags))?;
    let mut copy = File::from(copy);
    copy.write_all(&content.0)?;
    Ok(copy)
}

fn description(path: &Path, at: *const c_void) -> Result<&'static EngineDescription, LoadError> {
    let refused = |reason: &str| LoadError::Description {
        path: path.to_owned(),
        reason: reason.to_owned(),
    };
    let at = at.cast::<EngineDescription>();
    if at.is_null() || !at.is_aligned() {
        return Err(refused("its description is not where one can be"));
    }
    // SAFETY: the symbol is there and aligned, and the first word of a description is this in all versions of the ABI.
    let found = unsafe { (&raw const (*at).abi).read() };
    if found != ENGINE_ABI {
        return Err(LoadError::Abi {
            path: path.to_owned(),
            found,
            supported: ENGINE_ABI,
        });
    }
    // SAFETY: the second word is this in all versions.
    let struct_bytes = unsafe { (&raw const (*at).struct_bytes).read() } as usize;
    if struct_bytes < size_of::<EngineDescription>() {
        return Err(refused("its description is too short for its version of the ABI"));
    }
    // SAFETY: it is as long as it has to be, any bits are a description, and a library's constants stay.
    let description = unsafe { &*at };
    match description.flags & CONTAINS_PANICS {
        0 => Err(refused(
            "a panic in it would end the whole service: build it with panic = \"unwind\" (or set \
             PROVOST_CONTAINS_PANICS where nothing can panic)",
        )),
        _ => Ok(description),
    }
}
