//! Memory from the system.

use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

/// Bytes of a huge page, and what regions begin at and end at multiples of.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// In which pages a region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Huge ones that the operator has reserved (`vm.nr_hugepages`).
    ReservedHuge,
    /// Such as the system gives on request: huge ones as far as it finds some.
    TransparentHuge,
    /// Of the ordinary size.
    Ordinary,
}

/// Memory of the process, for as long as it lives.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) address: NonNull<u8>,
    pub(crate) pages: Pages,
}

impl Region {
    /// So many bytes, all zero: of whole huge pages. `None` if the system gives none.
    pub(crate) fn take(bytes: usize) -> Option<Region> {
        let bytes = bytes.next_multiple_of(HUGE_PAGE_BYTES);
        if let Some(address) = map(bytes, MapFlags::PRIVATE | MapFlags::HUGETLB) {
            let pages = Pages::ReservedHuge;
            return Some(Region { address, pages });
        }
        // Longer than needed, so that there is a part that begins where a huge page can.
        let mapped = map(bytes + HUGE_PAGE_BYTES, MapFlags::PRIVATE)?;
        let skipped = mapped.align_offset(HUGE_PAGE_BYTES);
        // SAFETY: no more than a huge page's bytes are skipped, which were mapped on top.
        let address = unsafe { mapped.add(skipped) };
        // SAFETY: the range is within the mapping, which nobody uses yet, and keeps its content.
        let advised = unsafe { madvise(address.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
        let pages = match advised {
            Ok(()) => Pages::TransparentHuge,
            Err(_) => Pages::Ordinary,
        };
        Some(Region { address, pages })
    }
}

fn map(bytes: usize, flags: MapFlags) -> Option<NonNull<u8>> {
    // SAFETY: the kernel chooses a range that nothing else uses.
    let mapped = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            flags,
        )
    };
    NonNull::new(mapped.ok()?.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_begin_at_huge_pages() {
        let region = Region::take(1).unwrap();
        assert_eq!(region.address.as_ptr() as usize % HUGE_PAGE_BYTES, 0);
    }
}
