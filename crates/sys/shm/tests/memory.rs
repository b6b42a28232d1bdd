//! Seals hold, foreign memfds are checked, windows map and unmap.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use provost_shm::{
    Access, Mapping, Memfd, MemfdLimits, SEALS_FIXED_SIZE, SEALS_READ_ONLY_FOR_OTHERS, ShmError, Window,
    punch_hole,
};

const BYTES: u64 = 64 << 10;
const LIMITS: MemfdLimits = MemfdLimits {
    bytes_min: 4096,
    bytes_max: 1 << 20,
    seals: SEALS_FIXED_SIZE,
};

fn read(mapping: &Mapping, at: usize) -> u8 {
    assert!(at < mapping.bytes());
    // SAFETY: in bounds, and mapped for reading.
    unsafe { mapping.address().add(at).read_volatile() }
}

fn write(mapping: &Mapping, at: usize, value: u8) {
    assert!(at < mapping.bytes() && mapping.access() == Access::ReadWrite);
    // SAFETY: in bounds, and mapped for writing.
    unsafe { mapping.address().add(at).write_volatile(value) }
}

fn sealed(seals: provost_shm::Seals) -> Memfd {
    let memfd = Memfd::create("test", BYTES).unwrap();
    memfd.seal(seals).unwrap();
    memfd
}

fn reopen(memfd: &Memfd, options: &OpenOptions) -> std::io::Result<std::fs::File> {
    options.open(format!("/proc/self/fd/{}", memfd.as_fd().as_raw_fd()))
}

#[test]
fn two_mappings_show_the_same_bytes() {
    let memfd = sealed(SEALS_FIXED_SIZE);
    let (one, other) = (
        Mapping::new(&memfd, Access::ReadWrite).unwrap(),
        Mapping::new(&memfd, Access::ReadOnly).unwrap(),
    );
    write(&one, 5000, 42);
    assert_eq!(read(&other, 5000), 42);
    punch_hole(&memfd, 4096..8192).unwrap();
    assert_eq!(read(&other, 5000), 0);
}

#[test]
fn a_fixed_size_cannot_change_and_the_seals_stay() {
    let memfd = sealed(SEALS_FIXED_SIZE);
    for bytes in [0, BYTES - 4096, BYTES + 4096] {
        assert!(
            rustix::fs::ftruncate(&memfd, bytes).is_err(),
            "truncated to {bytes}"
        );
    }
    assert!(memfd.seal(provost_shm::Seals::WRITE).is_err(), "sealed further");
}

#[test]
fn what_is_read_only_for_others_is_written_by_its_first_mapping_alone() {
    let memfd = Memfd::create("test", BYTES).unwrap();
    let ours = Mapping::new(&memfd, Access::ReadWrite).unwrap();
    memfd.seal(SEALS_READ_ONLY_FOR_OTHERS).unwrap();
    write(&ours, 0, 7);

    let theirs = Mapping::new(&memfd, Access::ReadOnly).unwrap();
    assert_eq!(read(&theirs, 0), 7);
    assert!(
        Mapping::new(&memfd, Access::ReadWrite).is_err(),
        "mapped for writing"
    );
    assert!(memfd.write_at(0, &[1]).is_err(), "written to");
    assert!(punch_hole(&memfd, 0..4096).is_err(), "punched");
    // SAFETY: the range is `theirs`; failing changes nothing.
    let protected = unsafe {
        rustix::mm::mprotect(
            theirs.address().cast(),
            theirs.bytes(),
            rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE,
        )
    };
    assert!(protected.is_err(), "made writable in place");

    // Opened anew, which the file's mode allows: the seal holds all the same.
    if let Ok(mut file) = reopen(&memfd, OpenOptions::new().read(true).write(true)) {
        assert!(file.write_all(&[1]).is_err(), "written to when opened anew");
        let opened = Memfd::verify_foreign(OwnedFd::from(file), LIMITS).unwrap();
        assert!(
            Mapping::new(&opened, Access::ReadWrite).is_err(),
            "mapped for writing when opened anew"
        );
    }
    assert_eq!(read(&ours, 0), 7);
}

#[test]
fn foreign_descriptors_are_refused_with_their_reason() {
    let verify = |descriptor: OwnedFd| Memfd::verify_foreign(descriptor, LIMITS);
    let bare = Memfd::create("test", BYTES).unwrap();
    assert!(
        matches!(verify(bare.into_descriptor()), Err(ShmError::SealsMissing { missing }) if missing == SEALS_FIXED_SIZE)
    );

    let large = Memfd::create("test", LIMITS.bytes_max + 4096).unwrap();
    large.seal(SEALS_FIXED_SIZE).unwrap();
    assert!(matches!(
        verify(large.into_descriptor()),
        Err(ShmError::Size { .. })
    ));

    let empty = Memfd::of_bytes("test", b"").unwrap();
    assert!(matches!(
        verify(empty.into_descriptor()),
        Err(ShmError::Size { bytes: 0, .. })
    ));

    let file = tempfile::tempfile().unwrap();
    file.set_len(BYTES).unwrap();
    assert!(verify(file.into()).is_err());
    let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(matches!(verify(socket.into()), Err(ShmError::NotMemfd)));
    assert!(verify(sealed(SEALS_FIXED_SIZE).into_descriptor()).is_ok_and(|memfd| memfd.bytes() == BYTES));
}

#[test]
fn a_document_keeps_its_size_and_can_be_mapped() {
    let bytes: Vec<u8> = (0..5000).map(|at| at as u8).collect();
    let document = Memfd::of_bytes("test", &bytes).unwrap();
    let received = Memfd::verify_foreign(document.into_descriptor(), LIMITS).unwrap();
    assert_eq!(received.bytes(), 5000);
    let mut copy = vec![0; 5000];
    assert_eq!(received.read_at(0, &mut copy).unwrap(), 5000);
    assert_eq!(copy, bytes);
    let mapping = Mapping::new(&received, Access::ReadOnly).unwrap();
    assert_eq!(read(&mapping, 4999), bytes[4999]);
    let window = Window::reserve(1 << 30).unwrap();
    assert!(matches!(
        window.map(0, &received, Access::ReadOnly),
        Err(ShmError::Place { .. })
    ));
}

#[test]
fn memory_of_huge_pages_is_refused_even_when_sealed() {
    use rustix::fs::MemfdFlags;
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::CLOEXEC;
    let Ok(huge) = rustix::fs::memfd_create("test", flags) else {
        return;
    };
    if rustix::fs::fcntl_add_seals(&huge, SEALS_FIXED_SIZE).is_ok() {
        assert!(matches!(
            Memfd::verify_foreign(huge, LIMITS),
            Err(ShmError::NotMemfd)
        ));
    }
}

#[test]
fn a_window_maps_segments_in_place_and_takes_them_out_again() {
    let window = Window::reserve(1 << 35).unwrap();
    let (one, other) = (sealed(SEALS_FIXED_SIZE), sealed(SEALS_FIXED_SIZE));
    one.write_at(0, b"one").unwrap();
    other.write_at(0, b"two").unwrap();
    let first = |at: u64| {
        // SAFETY: the test maps something there before it asks.
        unsafe { window.base().add(at as usize).read_volatile() }
    };
    window.map(2 << 20, &one, Access::ReadOnly).unwrap();
    window.map((2 << 20) + BYTES, &other, Access::ReadOnly).unwrap();
    assert_eq!((first(2 << 20), first((2 << 20) + BYTES)), (b'o', b't'));
    window.map(2 << 20, &other, Access::ReadWrite).unwrap();
    assert_eq!(first(2 << 20), b't');
    window.unmap(2 << 20, BYTES).unwrap();
    assert!(!is_mapped(&window, 2 << 20));
    assert!(is_mapped(&window, (2 << 20) + BYTES));

    for (at, bytes) in [
        (window.bytes(), BYTES),
        (window.bytes() - BYTES + 4096, BYTES),
        (100, 4096),
        (0, 0),
        (u64::MAX - 4095, 4096),
    ] {
        assert!(
            matches!(window.unmap(at, bytes), Err(ShmError::Place { .. })),
            "{bytes} at {at}"
        );
    }
    let beyond = window.bytes() - 4096;
    assert!(matches!(
        window.map(beyond, &one, Access::ReadOnly),
        Err(ShmError::Place { .. })
    ));
}

/// Whether an address can be read: the kernel tells without a fault.
fn is_mapped(window: &Window, at: u64) -> bool {
    let (read, write) = rustix::pipe::pipe().unwrap();
    // SAFETY: the kernel checks the address; at worst the write fails.
    let byte = unsafe { std::slice::from_raw_parts(window.base().add(at as usize), 1) };
    let written = rustix::io::write(&write, byte).is_ok();
    drop(read);
    written
}
