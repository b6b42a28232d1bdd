//! What waits for the carrier: frames in one run of bytes, and between them the payloads of DATA where they are, uncopied.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use crate::frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind, flags};

/// A payload up to so many bytes is copied behind its header: less work than a piece of its own.
pub const COPIED_BYTES_MAX: usize = 1_024;
/// Memory of a run of bytes that is kept when nothing waits.
const KEPT_BYTES: usize = 4_096;
/// Runs whose memory a thread keeps: for those connections that have output in the same turn.
const KEPT_RUNS: usize = 16;

thread_local! {
    /// Runs without bytes, for their memory: most connections have nothing to send just now.
    static KEPT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty run, in the memory of another if there is one.
fn take_run() -> Vec<u8> {
    KEPT.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Keeps the memory of a run whose bytes have left.
fn keep_run(mut run: Vec<u8>) {
    run.clear();
    run.shrink_to(KEPT_BYTES);
    KEPT.with_borrow_mut(|kept| {
        if kept.len() < KEPT_RUNS {
            kept.push(run);
        }
    });
}

/// Bytes of a body, which the connection keeps until the carrier has them. A clone is cheap: frames share a chunk.
pub trait DataChunk: Clone {
    /// The bytes, which never change.
    fn bytes(&self) -> &[u8];

    /// A chunk of bytes that were saved by a predecessor.
    fn from_saved(bytes: Vec<u8>) -> Self;

    /// A chunk of few bytes, such as stand before a message. A kind of chunks that keeps them without an allocation says how.
    fn of_few(bytes: &[u8]) -> Self {
        Self::from_saved(bytes.to_vec())
    }
}

/// Bytes that are kept where they stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FewBytes {
    bytes: [u8; FewBytes::MAX],
    len: u8,
}

impl FewBytes {
    /// The most that there may be.
    pub const MAX: usize = 7;

    /// These bytes, if they are few.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<FewBytes> {
        let mut few = FewBytes::default();
        few.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        few.len = bytes.len() as u8;
        Some(few)
    }

    /// The bytes, in their order.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl DataChunk for Arc<[u8]> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn from_saved(bytes: Vec<u8>) -> Self {
        bytes.into()
    }
}

impl DataChunk for Arc<Vec<u8>> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn from_saved(bytes: Vec<u8>) -> Self {
        Arc::new(bytes)
    }
}

#[derive(Clone, Debug)]
enum OutputPiece<C> {
    /// So many bytes of the run.
    Run(usize),
    Chunk {
        chunk: C,
        start: usize,
        end: usize,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct OutputQueue<C> {
    run: Vec<u8>,
    /// Bytes of the run that have left.
    run_sent: usize,
    pieces: VecDeque<OutputPiece<C>>,
    bytes: usize,
}

impl<C: DataChunk> OutputQueue<C> {
    pub(crate) fn new() -> OutputQueue<C> {
        OutputQueue {
            run: Vec::new(),
            run_sent: 0,
            pieces: VecDeque::new(),
            bytes: 0,
        }
    }

    /// How many bytes wait for the carrier.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends bytes to the run.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.write(|run| run.extend_from_slice(bytes));
    }

    /// Appends whatever `write` appends to the run.
    fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.run.capacity() == 0 {
            self.run = take_run();
        }
        let before = self.run.len();
        write(&mut self.run);
        let bytes = self.run.len() - before;
        self.bytes += bytes;
        match self.pieces.back_mut() {
            Some(OutputPiece::Run(length)) => *length += bytes,
            _ if bytes > 0 => self.pieces.push_back(OutputPiece::Run(bytes)),
            _ => {}
        }
    }

    /// Appends a part of a chunk.
    pub(crate) fn put_chunk(&mut self, chunk: &C, start: usize, end: usize) {
        if end - start <= COPIED_BYTES_MAX {
            self.put(&chunk.bytes()[start..end]);
            return;
        }
        self.bytes += end - start;
        self.pieces.push_back(OutputPiece::Chunk {
            chunk: chunk.clone(),
            start,
            end,
        });
    }

    /// Appends a frame with its payload.
    pub(crate) fn frame(&mut self, kind: FrameKind, flags: u8, stream: u32, payload: &[u8]) {
        self.frame_header(kind, flags, stream, payload.len());
        self.put(payload);
    }

    /// Appends the header of a frame, whose payload follows.
    pub(crate) fn frame_header(&mut self, kind: FrameKind, flags: u8, stream: u32, length: usize) {
        let length = length as u32;
        let header = FrameHeader {
            length,
            kind,
            flags,
            stream,
        };
        self.put(&header.bytes());
    }

    /// Appends a field block, which `encode` writes, as HEADERS and as many CONTINUATIONs as it needs. Nothing can come
    /// between them.
    pub(crate) fn block(
        &mut self,
        flag: u8,
        stream: u32,
        frame_bytes_max: usize,
        encode: impl FnOnce(&mut Vec<u8>),
    ) {
        self.write(|run| {
            let at = run.len();
            run.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
            encode(run);
            let block_at = at + FRAME_HEADER_BYTES;
            let rest = run.len().min(block_at + frame_bytes_max);
            let rest = run.split_off(rest);
            let mut header = FrameHeader {
                length: (run.len() - block_at) as u32,
                kind: FrameKind::Headers,
                flags: if rest.is_empty() {
                    flag | flags::END_HEADERS
                } else {
                    flag
                },
                stream,
            };
            run[at..block_at].copy_from_slice(&header.bytes());
            let mut fragments = rest.chunks(frame_bytes_max).peekable();
            while let Some(fragment) = fragments.next() {
                let is_last = fragments.peek().is_none();
                header.length = fragment.len() as u32;
                header.kind = FrameKind::Continuation;
                header.flags = if is_last { flags::END_HEADERS } else { 0 };
                run.extend_from_slice(&header.bytes());
                run.extend_from_slice(fragment);
            }
        });
    }

    /// Names what waits, in order, as far as `slices` reach; says how many were named.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut run = &self.run[self.run_sent..];
        let mut named = 0;
        for (piece, slice) in self.pieces.iter().zip(slices) {
            let bytes = match piece {
                OutputPiece::Run(length) => {
                    let (first, rest) = run.split_at(*length);
                    run = rest;
                    first
                }
                OutputPiece::Chunk { chunk, start, end } => &chunk.bytes()[*start..*end],
            };
            *slice = IoSlice::new(bytes);
            named += 1;
        }
        named
    }

    /// The carrier took so many bytes.
    pub(crate) fn advance(&mut self, bytes: usize) {
        let mut left = bytes.min(self.bytes);
        self.bytes -= left;
        while let Some(piece) = self.pieces.front_mut() {
            let taken = piece.take(left);
            if matches!(piece, OutputPiece::Run(_)) {
                self.run_sent += taken;
            }
            left -= taken;
            if !piece.is_empty() {
                break;
            }
            self.pieces.pop_front();
        }
        self.tidy();
    }

    /// All that waits, in one run.
    pub(crate) fn copied(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes);
        let mut run = &self.run[self.run_sent..];
        for piece in &self.pieces {
            match piece {
                OutputPiece::Run(length) => {
                    let (first, rest) = run.split_at(*length);
                    out.extend_from_slice(first);
                    run = rest;
                }
                OutputPiece::Chunk { chunk, start, end } => {
                    out.extend_from_slice(&chunk.bytes()[*start..*end]);
                }
            }
        }
        out
    }

    fn tidy(&mut self) {
        if self.run_sent == self.run.len() {
            if self.run.capacity() > 0 {
                keep_run(std::mem::take(&mut self.run));
            }
            self.run_sent = 0;
        } else if self.run_sent > KEPT_BYTES && self.run_sent > self.run.len() / 2 {
            self.run.drain(..self.run_sent);
            self.run_sent = 0;
        }
    }
}

impl<C> OutputPiece<C> {
    /// Takes up to so many bytes from the front, and says how many.
    fn take(&mut self, bytes: usize) -> usize {
        match self {
            OutputPiece::Run(length) => {
                let taken = bytes.min(*length);
                *length -= taken;
                taken
            }
            OutputPiece::Chunk { start, end, .. } => {
                let taken = bytes.min(*end - *start);
                *start += taken;
                taken
            }
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            OutputPiece::Run(length) => *length == 0,
            OutputPiece::Chunk { start, end, .. } => start == end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_leave_in_order_however_they_are_cut() {
        for step in [1, 2, 7, 100, 5_000] {
            let mut queue: OutputQueue<Arc<[u8]>> = OutputQueue::new();
            let chunk: Arc<[u8]> = (0..4_000_u32).map(|byte| byte as u8).collect();
            queue.put(b"first");
            queue.put_chunk(&chunk, 10, 3_000);
            queue.put_chunk(&chunk, 3_000, 3_010);
            queue.put(b"last");
            let expected = queue.copied();
            assert_eq!(expected.len(), queue.bytes());
            let mut got = Vec::new();
            while queue.bytes() > 0 {
                let mut slices = [IoSlice::new(&[]); 2];
                let named = queue.slices(&mut slices);
                let front: Vec<u8> = slices[..named].iter().flat_map(|slice| slice.to_vec()).collect();
                let taken = step.min(front.len());
                got.extend_from_slice(&front[..taken]);
                queue.advance(taken);
            }
            assert_eq!(got, expected);
        }
    }
}
