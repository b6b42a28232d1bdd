//! Message buffers that are kept for the next use, and the way home for those that other threads hold.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use provost_datagram::MsgBuf;

/// Sizes from one byte to 4 GiB, each twice the one before.
const CLASSES: usize = 33;
/// The least that is allocated, in bytes.
const CAPACITY_MIN: usize = 64;
/// Buffers of either origin on their way home at most.
pub(crate) const HOMECOMING_MAX: usize = 4096;

/// Buffers kept for the next use, by the power of two that is their capacity.
#[derive(Debug)]
pub(crate) struct Buffers {
    free: [Vec<MsgBuf>; CLASSES],
    bytes: usize,
    bytes_max: usize,
    pub(crate) home: Arc<Home>,
    /// Buffers of the endpoint that are away.
    pub(crate) away: usize,
}

/// Where buffers wait that come home from requests that the program kept.
#[derive(Debug)]
pub(crate) struct Home {
    of_endpoint: ArrayQueue<MsgBuf>,
    of_buffers: ArrayQueue<MsgBuf>,
}

#[derive(Debug)]
pub(crate) struct Homecoming {
    pub(crate) buffer: MsgBuf,
    pub(crate) origin: Origin,
}

/// Whose a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The endpoint put a request of several packets together in it.
    Endpoint,
    /// A request of one packet was copied into it.
    Buffers,
}

impl Home {
    fn new() -> Self {
        Self {
            of_endpoint: ArrayQueue::new(HOMECOMING_MAX),
            of_buffers: ArrayQueue::new(HOMECOMING_MAX),
        }
    }

    /// Takes a buffer. Those of the endpoint always find room, for no more are given away; of the others what finds none is freed.
    pub(crate) fn come(&self, homecoming: Homecoming) {
        let _ = match homecoming.origin {
            Origin::Endpoint => self.of_endpoint.push(homecoming.buffer),
            Origin::Buffers => self.of_buffers.push(homecoming.buffer),
        };
    }

    #[inline]
    pub(crate) fn pop(&self) -> Option<Homecoming> {
        let come = |buffer, origin| Homecoming { buffer, origin };
        let of_endpoint = self
            .of_endpoint
            .pop()
            .map(|buffer| come(buffer, Origin::Endpoint));
        of_endpoint.or_else(|| Some(come(self.of_buffers.pop()?, Origin::Buffers)))
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.of_endpoint.is_empty() && self.of_buffers.is_empty()
    }
}

impl Buffers {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            free: [const { Vec::new() }; CLASSES],
            bytes: 0,
            bytes_max,
            home: Arc::new(Home::new()),
            away: 0,
        }
    }

    /// An empty buffer for at least so many bytes.
    #[inline]
    pub(crate) fn take(&mut self, bytes: usize) -> MsgBuf {
        let capacity = bytes.max(CAPACITY_MIN).next_power_of_two();
        let class = capacity.trailing_zeros() as usize;
        match self.free.get_mut(class).and_then(Vec::pop) {
            Some(mut buffer) => {
                self.bytes -= buffer.capacity();
                buffer.set_length(0);
                buffer
            }
            None => MsgBuf::with_capacity(capacity),
        }
    }

    /// Keeps a buffer for the next use, if there is room for it.
    #[inline]
    pub(crate) fn keep(&mut self, buffer: MsgBuf) {
        let capacity = buffer.capacity();
        if capacity < CAPACITY_MIN || self.bytes + capacity > self.bytes_max {
            return;
        }
        // One that is between two sizes serves the smaller.
        if let Some(free) = self.free.get_mut(capacity.ilog2() as usize) {
            self.bytes += capacity;
            free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_serves_again_and_never_is_too_small() {
        let mut buffers = Buffers::new(10_000);
        buffers.keep(MsgBuf::with_capacity(3000));
        assert!(buffers.take(2500).capacity() >= 2500, "3000 bytes serve as 2048");
        assert_eq!(buffers.take(2048).capacity(), 3000);
        assert_eq!(buffers.bytes, 0);
        buffers.keep(MsgBuf::with_capacity(20_000));
        assert_eq!(buffers.bytes, 0, "more than may be kept");
    }

    #[test]
    fn buffers_of_the_endpoint_come_home_however_many_others_do() {
        let buffers = Buffers::new(0);
        let come = |origin| {
            buffers.home.come(Homecoming {
                buffer: MsgBuf::with_capacity(CAPACITY_MIN),
                origin,
            });
        };
        (0..3 * HOMECOMING_MAX).for_each(|_| come(Origin::Buffers));
        (0..HOMECOMING_MAX).for_each(|_| come(Origin::Endpoint));
        let home = std::iter::from_fn(|| buffers.home.pop());
        let of_endpoint = home.filter(|homecoming| homecoming.origin == Origin::Endpoint);
        assert_eq!(of_endpoint.count(), HOMECOMING_MAX);
        assert!(buffers.home.is_empty());
    }
}
