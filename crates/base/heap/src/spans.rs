//! Spans: 64 KiB cut into blocks of one size class, with a bit for each block.

use crate::classes::{CLASSES, Class, SPAN_BLOCKS_MAX};

pub(crate) const NONE: u32 = u32::MAX;
const WORDS: usize = SPAN_BLOCKS_MAX / 64;

#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) first_page: u32,
    pub(crate) class: Class,
    live: u32,
    /// Neighbours in the class's list of spans with free blocks, or the next unused span.
    next: u32,
    previous: u32,
    /// Words of `free` that are not zero.
    filled: u64,
    /// A bit for each block that is free.
    free: [u64; WORDS],
}

/// All spans of a heap.
#[derive(Debug)]
pub(crate) struct Spans {
    /// Reserved for as many as the region holds, so that it never moves.
    table: Vec<Span>,
    /// The first of the unused entries of the table.
    unused: u32,
    /// For each class, the first of its spans that have free blocks.
    partial: [u32; CLASSES],
    /// For each class, a span with no live block that is kept, so that one block allocated and freed again and again
    /// does not cost a span each time.
    spare: [u32; CLASSES],
}

/// What freeing a block leaves behind.
pub(crate) enum Freed {
    /// Nothing to be done.
    Kept,
    /// This span has no live block and is not in the table any more; its pages must be freed.
    Retired(RetiredSpan),
}

/// A span that was taken out of the table.
pub(crate) struct RetiredSpan {
    pub(crate) first_page: u32,
}

impl Spans {
    pub(crate) fn new(spans_max: usize) -> Spans {
        let table = Vec::with_capacity(spans_max);
        Spans {
            table,
            unused: NONE,
            partial: [NONE; CLASSES],
            spare: [NONE; CLASSES],
        }
    }

    pub(crate) fn get(&self, span: u32) -> &Span {
        &self.table[span as usize]
    }

    /// The number that the next span will have.
    pub(crate) fn next_number(&self) -> u32 {
        if self.unused == NONE {
            self.table.len() as u32
        } else {
            self.unused
        }
    }

    /// Puts a span of free blocks, with [`Spans::next_number`], at its class's disposal.
    pub(crate) fn insert(&mut self, class: Class, first_page: u32) {
        let number = self.next_number();
        if self.unused == NONE {
            self.table.push(Span {
                first_page,
                class,
                live: 0,
                next: NONE,
                previous: NONE,
                filled: 0,
                free: [0; WORDS],
            });
        } else {
            self.unused = self.get(number).next;
        }
        let span = &mut self.table[number as usize];
        (span.first_page, span.class, span.live) = (first_page, class, 0);
        span.set_all_free();
        self.link(number);
    }

    /// A block of the class from a span that has one: the span, and the block's number.
    #[inline]
    pub(crate) fn allocate(&mut self, class: Class) -> Option<(&Span, u32)> {
        let number = self.partial[class.index()];
        let span = self.table.get_mut(number as usize)?;
        if span.live == 0 && self.spare[class.index()] == number {
            self.spare[class.index()] = NONE;
        }
        let block = span.take_first_free();
        if span.filled == 0 {
            self.unlink(number);
        }
        Some((&self.table[number as usize], block))
    }

    /// Frees a live block.
    #[inline]
    pub(crate) fn free(&mut self, number: u32, block: u32) -> Freed {
        let span = &mut self.table[number as usize];
        let was_full = span.filled == 0;
        span.give_back(block);
        let (live, class) = (span.live, span.class);
        if was_full {
            self.link(number);
        }
        if live > 0 {
            return Freed::Kept;
        }
        if self.spare[class.index()] == NONE {
            self.spare[class.index()] = number;
            return Freed::Kept;
        }
        Freed::Retired(self.retire(number))
    }

    /// Takes a spare span out of the table, if there is one.
    pub(crate) fn retire_spare(&mut self) -> Option<RetiredSpan> {
        let class = Class::all().find(|class| self.spare[class.index()] != NONE)?;
        let number = std::mem::replace(&mut self.spare[class.index()], NONE);
        Some(self.retire(number))
    }

    fn retire(&mut self, number: u32) -> RetiredSpan {
        self.unlink(number);
        let unused = self.unused;
        let span = &mut self.table[number as usize];
        span.next = unused;
        let first_page = span.first_page;
        self.unused = number;
        RetiredSpan { first_page }
    }

    fn link(&mut self, number: u32) {
        let head = std::mem::replace(&mut self.partial[self.get(number).class.index()], number);
        if let Some(head) = self.table.get_mut(head as usize) {
            head.previous = number;
        }
        let span = &mut self.table[number as usize];
        (span.next, span.previous) = (head, NONE);
    }

    fn unlink(&mut self, number: u32) {
        let span = self.get(number);
        let (next, previous, class) = (span.next, span.previous, span.class);
        if let Some(next) = self.table.get_mut(next as usize) {
            next.previous = previous;
        }
        match self.table.get_mut(previous as usize) {
            Some(previous) => previous.next = next,
            None => self.partial[class.index()] = next,
        }
    }
}

impl Span {
    pub(crate) fn is_live(&self, block: u32) -> bool {
        self.free[(block / 64) as usize] >> (block % 64) & 1 == 0
    }

    fn set_all_free(&mut self) {
        let blocks = self.class.blocks() as usize;
        let words = blocks.div_ceil(64);
        self.free[..words].fill(u64::MAX);
        self.free[words - 1] = u64::MAX >> (words * 64 - blocks);
        self.filled = u64::MAX >> (64 - words);
    }

    fn take_first_free(&mut self) -> u32 {
        let word = self.filled.trailing_zeros();
        let bits = &mut self.free[word as usize % WORDS];
        let bit = bits.trailing_zeros();
        *bits &= *bits - 1;
        if *bits == 0 {
            self.filled &= !(1 << word);
        }
        self.live += 1;
        word * 64 + bit
    }

    fn give_back(&mut self, block: u32) {
        let word = block / 64;
        self.free[word as usize % WORDS] |= 1 << (block % 64);
        self.filled |= 1 << word;
        self.live -= 1;
    }
}

const _: () = assert!(WORDS == 64, "`filled` has a bit for each word");
