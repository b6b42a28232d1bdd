//! Runs of pages: who owns each, and which are free.

use std::ops::Range;

/// Pages that one range to give back has at most, so that its owner stays responsive.
const RELEASE_PAGES_MAX: u32 = 16 << 10;
/// Runs of a bin that are looked at when no larger bin has one.
const SCAN_RUNS_MAX: usize = 64;
/// Bins to each power of two, as a power of two.
const BIN_BITS: u32 = 3;
const BINS: usize = 192;
/// The end of a list. Page 0 is never free.
const NONE: u32 = 0;

/// What a page's owner word says. Only the first and last page of a large run say more than `Free`; stale words do
/// not exist, so that a neighbour's state can be read off the word next to one's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageOwner {
    /// In a free run, or inside of a large one.
    Free,
    /// The last page of a large run, if it is not the first too; or reserved.
    Taken,
    /// The first page of a large run.
    Large,
    /// In this span.
    Span(u32),
}

impl PageOwner {
    fn word(self) -> u32 {
        match self {
            PageOwner::Free => 0,
            PageOwner::Taken => 1,
            PageOwner::Large => 2,
            PageOwner::Span(span) => span + 3,
        }
    }

    fn of_word(word: u32) -> PageOwner {
        match word {
            0 => PageOwner::Free,
            1 => PageOwner::Taken,
            2 => PageOwner::Large,
            span => PageOwner::Span(span - 3),
        }
    }
}

/// All pages of a region. Its vectors are allocated zeroed, so that what is never used never becomes memory.
#[derive(Debug)]
pub(crate) struct Pages {
    owners: Vec<u32>,
    /// At the first page of any run, and at the last of a free one: its length.
    run_pages: Vec<u32>,
    /// At the first page of a free run: its neighbours in its bin's list.
    next: Vec<u32>,
    previous: Vec<u32>,
    bins: [u32; BINS],
    /// Bins that have runs.
    bins_filled: [u64; BINS / 64],
    idle: IdlePages,
}

impl Pages {
    /// So many pages; the first is reserved.
    pub(crate) fn new(count: u32) -> Pages {
        let words = count as usize;
        let mut pages = Pages {
            owners: vec![0; words],
            run_pages: vec![0; words],
            next: vec![0; words],
            previous: vec![0; words],
            bins: [NONE; BINS],
            bins_filled: [0; BINS / 64],
            idle: IdlePages {
                bits: vec![0; words.div_ceil(64)],
                pages: 0,
                cursor: 0,
            },
        };
        if count > 1 {
            pages.owners[0] = PageOwner::Taken.word();
            pages.insert(1, count - 1);
        }
        pages
    }

    pub(crate) fn owner(&self, page: u32) -> PageOwner {
        self.owners
            .get(page as usize)
            .map_or(PageOwner::Taken, |word| PageOwner::of_word(*word))
    }

    /// Length of the run that begins at a page of owner [`PageOwner::Large`].
    pub(crate) fn run_pages(&self, first: u32) -> u32 {
        self.run_pages[first as usize]
    }

    pub(crate) fn take_large(&mut self, count: u32) -> Option<u32> {
        let first = self.take(count)?;
        self.owners[(first + count - 1) as usize] = PageOwner::Taken.word();
        self.owners[first as usize] = PageOwner::Large.word();
        self.run_pages[first as usize] = count;
        Some(first)
    }

    pub(crate) fn free_large(&mut self, first: u32) -> u32 {
        let count = self.run_pages(first);
        self.owners[first as usize] = PageOwner::Free.word();
        self.owners[(first + count - 1) as usize] = PageOwner::Free.word();
        self.give_back(first, count);
        count
    }

    pub(crate) fn take_span(&mut self, count: u32, span: u32) -> Option<u32> {
        let first = self.take(count)?;
        self.owners[first as usize..][..count as usize].fill(PageOwner::Span(span).word());
        Some(first)
    }

    pub(crate) fn free_span(&mut self, first: u32, count: u32) {
        self.owners[first as usize..][..count as usize].fill(PageOwner::Free.word());
        self.give_back(first, count);
    }

    /// Free pages that have been in use since they were last given back to the system.
    pub(crate) fn idle_pages(&self) -> u64 {
        self.idle.pages
    }

    /// The next run of idle pages, which count as given back from now on.
    pub(crate) fn release_next(&mut self) -> Option<Range<u32>> {
        self.idle.take_next()
    }

    fn take(&mut self, count: u32) -> Option<u32> {
        let first = self.find(count)?;
        let found = self.run_pages(first);
        self.remove(first, found);
        if found > count {
            self.insert(first + count, found - count);
        }
        self.idle.clear(first, count);
        Some(first)
    }

    fn give_back(&mut self, first: u32, count: u32) {
        self.idle.set(first, count);
        let (mut first, mut count) = (first, count);
        if self.owner(first - 1) == PageOwner::Free {
            let before = self.run_pages(first - 1);
            first -= before;
            self.remove(first, before);
            count += before;
        }
        if self.owner(first + count) == PageOwner::Free {
            let after = self.run_pages(first + count);
            self.remove(first + count, after);
            count += after;
        }
        self.insert(first, count);
    }

    /// A free run of at least so many pages: from the least bin all of whose runs are long enough; else from the
    /// bin below it, some of whose are.
    fn find(&self, count: u32) -> Option<u32> {
        let own = bin(count);
        let sure = if bin_pages_min(own) == count { own } else { own + 1 };
        if let Some(filled) = self.first_filled_bin(sure) {
            return Some(self.bins[filled]);
        }
        let mut run = self.bins[own];
        for _ in 0..SCAN_RUNS_MAX {
            if run == NONE || self.run_pages(run) >= count {
                break;
            }
            run = self.next[run as usize];
        }
        (run != NONE && self.run_pages(run) >= count).then_some(run)
    }

    fn first_filled_bin(&self, from: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut bits = self.bins_filled.get(word)? & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            bits = *self.bins_filled.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }

    fn insert(&mut self, first: u32, count: u32) {
        self.run_pages[first as usize] = count;
        self.run_pages[(first + count - 1) as usize] = count;
        let bin = bin(count);
        let head = self.bins[bin];
        self.next[first as usize] = head;
        self.previous[first as usize] = NONE;
        if head != NONE {
            self.previous[head as usize] = first;
        }
        self.bins[bin] = first;
        self.bins_filled[bin / 64] |= 1 << (bin % 64);
    }

    fn remove(&mut self, first: u32, count: u32) {
        let (next, previous) = (self.next[first as usize], self.previous[first as usize]);
        if next != NONE {
            self.previous[next as usize] = previous;
        }
        if previous != NONE {
            self.next[previous as usize] = next;
            return;
        }
        let bin = bin(count);
        self.bins[bin] = next;
        if next == NONE {
            self.bins_filled[bin / 64] &= !(1 << (bin % 64));
        }
    }
}

/// The bin of the runs of so many pages: exact up to 16, then eight to each power of two.
fn bin(count: u32) -> usize {
    let shift = count.max(1).ilog2().saturating_sub(BIN_BITS);
    ((shift << BIN_BITS) + (count >> shift)) as usize
}

/// The shortest run of a bin.
fn bin_pages_min(bin: usize) -> u32 {
    let bin = bin as u32;
    let shift = (bin >> BIN_BITS).saturating_sub(1);
    (bin - (shift << BIN_BITS)) << shift
}

// The longest run has 2²³ pages (32 GiB).
const _: () = assert!((((23 - BIN_BITS) << BIN_BITS) + (1 << BIN_BITS)) < BINS as u32);

/// Pages that are free but may still be backed by memory.
#[derive(Debug)]
struct IdlePages {
    bits: Vec<u64>,
    pages: u64,
    /// The word where the next search begins.
    cursor: usize,
}

impl IdlePages {
    fn set(&mut self, first: u32, count: u32) {
        for (word, mask) in masks(first, count) {
            self.pages += u64::from((mask & !self.bits[word]).count_ones());
            self.bits[word] |= mask;
        }
    }

    fn clear(&mut self, first: u32, count: u32) {
        for (word, mask) in masks(first, count) {
            self.pages -= u64::from((mask & self.bits[word]).count_ones());
            self.bits[word] &= !mask;
        }
    }

    fn take_next(&mut self) -> Option<Range<u32>> {
        if self.pages == 0 {
            return None;
        }
        let words = self.bits.len();
        let word = (0..words)
            .map(|step| (self.cursor + step) % words)
            .find(|word| self.bits[*word] != 0)?;
        let first = word as u32 * 64 + self.bits[word].trailing_zeros();
        let end = self.end_of_ones(first);
        self.clear(first, end - first);
        self.cursor = word;
        Some(first..end)
    }

    fn end_of_ones(&self, first: u32) -> u32 {
        let mut at = first;
        while let Some(bits) = self.bits.get((at / 64) as usize) {
            let ones = (bits >> (at % 64)).trailing_ones();
            at += ones;
            if ones == 0 || !at.is_multiple_of(64) || at - first >= RELEASE_PAGES_MAX {
                break;
            }
        }
        at
    }
}

/// The words that a range of bits touches, each with its bits in it.
fn masks(first: u32, count: u32) -> impl Iterator<Item = (usize, u64)> {
    let end = first + count;
    (first / 64..end.div_ceil(64)).map(move |word| {
        let low = first.max(word * 64) - word * 64;
        let high = end.min((word + 1) * 64) - word * 64;
        (word as usize, (u64::MAX << low) & (u64::MAX >> (64 - high)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_ordered_and_know_their_shortest_run() {
        let mut last = 0;
        for count in 1..5000 {
            let bin = bin(count);
            assert!(bin == last || bin == last + 1, "{count} pages");
            if bin != last {
                assert_eq!(bin_pages_min(bin), count);
            }
            last = bin;
        }
        assert!(bin(1 << 23) < BINS);
    }

    #[test]
    fn masks_cover_exactly_the_range() {
        for (first, count) in [(0, 1), (0, 64), (1, 63), (63, 2), (10, 200), (64, 128)] {
            let covered: Vec<u32> = masks(first, count)
                .flat_map(|(word, mask)| {
                    (0..64)
                        .filter(move |bit| mask >> bit & 1 == 1)
                        .map(move |bit| word as u32 * 64 + bit)
                })
                .collect();
            assert_eq!(covered, (first..first + count).collect::<Vec<_>>());
        }
    }
}
