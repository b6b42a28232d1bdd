//! The rings between the kernel and us. One side writes `producer` and the descriptors, the other `consumer`; each
//! publishes by a release store, and sees what the other has published by an acquire load.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Debug)]
struct Ring<T> {
    mapping: NonNull<u8>,
    mapping_bytes: usize,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    descriptors: NonNull<T>,
    /// Entries, a power of two.
    entries: u32,
    /// What we have published, or will, and what we know of the other side.
    ours: u32,
    theirs: u32,
}

// SAFETY: the memory is the same for every thread; the ring is used by one at a time.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    fn map(
        socket: &OwnedFd,
        page: u64,
        offsets: &libc::xdp_ring_offset,
        entries: u32,
    ) -> io::Result<Ring<T>> {
        let bytes = offsets.desc as usize + entries as usize * size_of::<T>();
        // SAFETY: the kernel chooses a range that nothing else uses.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                socket.as_raw_fd(),
                page as libc::off_t,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = NonNull::new(at.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the kernel has told where in the mapping each is.
        let place = |offset: u64| unsafe { mapping.add(offset as usize) };
        Ok(Ring {
            mapping,
            mapping_bytes: bytes,
            producer: place(offsets.producer).cast(),
            consumer: place(offsets.consumer).cast(),
            flags: place(offsets.flags).cast(),
            descriptors: place(offsets.desc).cast(),
            entries,
            ours: 0,
            theirs: 0,
        })
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: it lives as long as the mapping.
        unsafe { self.producer.as_ref() }
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }
    }

    #[inline]
    fn needs_wakeup(&self) -> bool {
        // SAFETY: as above.
        let flags = unsafe { self.flags.as_ref() }.load(Ordering::Relaxed);
        flags & libc::XDP_RING_NEED_WAKEUP != 0
    }

    #[inline]
    fn descriptor(&self, at: u32) -> *mut T {
        // SAFETY: the mask keeps it within the ring.
        unsafe { self.descriptors.add((at & (self.entries - 1)) as usize) }.as_ptr()
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and this is the last use of it.
        unsafe { libc::munmap(self.mapping.as_ptr().cast(), self.mapping_bytes) };
    }
}

/// A ring that we fill.
#[derive(Debug)]
pub(crate) struct Producer<T>(Ring<T>);

impl<T: Copy> Producer<T> {
    pub(crate) fn map(
        socket: &OwnedFd,
        page: u64,
        offsets: &libc::xdp_ring_offset,
        entries: u32,
    ) -> io::Result<Producer<T>> {
        Ring::map(socket, page, offsets, entries).map(Producer)
    }

    /// Puts an entry, if there is room, for the next [`Producer::publish`].
    #[inline]
    pub(crate) fn put(&mut self, entry: T) -> bool {
        let ring = &mut self.0;
        if ring.ours.wrapping_sub(ring.theirs) == ring.entries {
            // Pairs with the kernel's release of what it has consumed.
            ring.theirs = ring.consumer().load(Ordering::Acquire);
            if ring.ours.wrapping_sub(ring.theirs) >= ring.entries {
                return false;
            }
        }
        // SAFETY: the place is not published, so it is ours.
        unsafe { ring.descriptor(ring.ours).write(entry) };
        ring.ours = ring.ours.wrapping_add(1);
        true
    }

    #[inline]
    pub(crate) fn publish(&mut self) {
        // Pairs with the kernel's acquire before it reads entries.
        self.0.producer().store(self.0.ours, Ordering::Release);
    }

    /// Entries that the kernel has not taken.
    #[inline]
    pub(crate) fn waiting(&mut self) -> u32 {
        self.0.theirs = self.0.consumer().load(Ordering::Acquire);
        self.0.ours.wrapping_sub(self.0.theirs)
    }

    /// Whether the kernel looks at the ring only when it is called.
    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.0.needs_wakeup()
    }
}

/// A ring that the kernel fills.
#[derive(Debug)]
pub(crate) struct Consumer<T>(Ring<T>);

impl<T: Copy> Consumer<T> {
    pub(crate) fn map(
        socket: &OwnedFd,
        page: u64,
        offsets: &libc::xdp_ring_offset,
        entries: u32,
    ) -> io::Result<Consumer<T>> {
        Ring::map(socket, page, offsets, entries).map(Consumer)
    }

    /// The next entry. It stays in the ring until the next [`Consumer::release`].
    #[inline]
    pub(crate) fn next(&mut self) -> Option<T> {
        let ring = &mut self.0;
        if ring.ours == ring.theirs {
            // Pairs with the kernel's release of what it has produced.
            ring.theirs = ring.producer().load(Ordering::Acquire);
            if ring.ours == ring.theirs {
                return None;
            }
        }
        // SAFETY: the kernel has published the entry, and will not write it until it is released.
        let entry = unsafe { ring.descriptor(ring.ours).read() };
        ring.ours = ring.ours.wrapping_add(1);
        Some(entry)
    }

    /// Gives what was taken back to the kernel.
    #[inline]
    pub(crate) fn release(&mut self) {
        // Pairs with the kernel's acquire before it writes entries again.
        self.0.consumer().store(self.0.ours, Ordering::Release);
    }
}
