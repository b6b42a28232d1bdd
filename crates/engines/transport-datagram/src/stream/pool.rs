//! Memory that the streams of a thread take turns to use, so that one that rests keeps none: buffers for what is sent, of three
//! sizes, and the spares of the endpoints.

use std::cell::RefCell;

use provost_datagram::{MsgBuf, SpareMemory};

use super::ResumableStream;
use super::form::{HEAD_BYTES, SEGMENT_BYTES_SENT};

/// Bytes of a small buffer: a segment of one packet of Ethernet size.
const SMALL_BYTES: usize = 1536;
/// Bytes of buffers: for a head alone or an Attach, for one packet, for a segment.
const SIZES: [usize; 3] = [32, SMALL_BYTES, HEAD_BYTES + SEGMENT_BYTES_SENT];
/// Buffers that are kept of each size, by a thread.
const KEPT_MAX: [usize; 3] = [256, 128, 32];
/// What is kept of the endpoints' spares: bytes of buffers, and lists of packets on their way.
const SPARE_BYTES_MAX: usize = 4 << 20;
const SPARE_FLIGHTS_MAX: usize = 256;

thread_local! {
    static BUFFERS: RefCell<[Vec<MsgBuf>; SIZES.len()]> = RefCell::default();
    static SPARES: RefCell<SpareMemory> = RefCell::default();
}

/// A buffer for so many bytes.
pub(super) fn take(bytes: usize) -> MsgBuf {
    let Some(size) = SIZES.iter().position(|size| bytes <= *size) else {
        return MsgBuf::with_capacity(bytes);
    };
    let spare = BUFFERS.with_borrow_mut(|buffers| buffers[size].pop());
    spare.unwrap_or_else(|| MsgBuf::with_capacity(SIZES[size]))
}

/// Takes a buffer back; those of other sizes, and those beyond what is kept, are freed.
pub(super) fn give(buffer: MsgBuf) {
    let size = SIZES.iter().position(|size| buffer.capacity() == *size);
    BUFFERS.with_borrow_mut(|buffers| match size {
        Some(size) if buffers[size].len() < KEPT_MAX[size] => buffers[size].push(buffer),
        _ => {}
    });
}

/// Has an endpoint use the spares of the thread while something is done.
pub(super) fn with_spares<T>(
    stream: &mut ResumableStream,
    body: impl FnOnce(&mut ResumableStream) -> T,
) -> T {
    SPARES.with_borrow_mut(|spares| {
        stream.endpoint.exchange_spares(spares);
        let result = body(stream);
        stream.endpoint.exchange_spares(spares);
        spares.keep(SPARE_BYTES_MAX, SPARE_FLIGHTS_MAX);
        result
    })
}
