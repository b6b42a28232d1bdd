//! A wire between two ends of one process: two rings of frames that are taken at the start.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::Duration;

use crate::{Arrival, Integrity, Wire};

/// One of two ends. What one sends, the other receives; the receiver copies nothing.
#[derive(Debug)]
pub struct InProcess {
    side: u8,
    packet_bytes_max: usize,
    ring_packets: usize,
    /// Frames that go to the other end with the next flush.
    leaving: VecDeque<Frame>,
    /// Frames that have come, and those that the application has seen, which go back.
    arrived: VecDeque<Frame>,
    seen: Vec<Frame>,
    /// Empty frames.
    spare: Vec<Frame>,
    towards: Arc<Lane>,
    from: Arc<Lane>,
}

#[derive(Debug, Default)]
struct Lane {
    state: Mutex<LaneState>,
    filled: Condvar,
}

#[derive(Debug, Default)]
struct LaneState {
    full: VecDeque<Frame>,
    empty: Vec<Frame>,
    /// Somebody has woken whoever waits here, or will.
    woken: bool,
}

impl Wake for Lane {
    fn wake(self: Arc<Self>) {
        self.lock().woken = true;
        self.filled.notify_one();
    }
}

impl Lane {
    /// What is under the lock is queues of whole frames, so a thread that died holding it leaves no harm.
    fn lock(&self) -> MutexGuard<'_, LaneState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Frame {
    bytes: Box<[u8]>,
    length: usize,
}

impl InProcess {
    /// Two ends, with room for so many packets of so many bytes on the way in each direction.
    #[must_use]
    pub fn pair(packet_bytes_max: usize, ring_packets: usize) -> (InProcess, InProcess) {
        let (there, back) = (Arc::<Lane>::default(), Arc::<Lane>::default());
        let end = |side, towards: &Arc<Lane>, from: &Arc<Lane>| InProcess {
            side,
            packet_bytes_max,
            ring_packets,
            leaving: VecDeque::with_capacity(ring_packets),
            arrived: VecDeque::with_capacity(ring_packets),
            seen: Vec::with_capacity(ring_packets),
            spare: (0..ring_packets)
                .map(|_| Frame {
                    bytes: vec![0; packet_bytes_max].into_boxed_slice(),
                    length: 0,
                })
                .collect(),
            towards: Arc::clone(towards),
            from: Arc::clone(from),
        };
        (end(0, &there, &back), end(1, &back, &there))
    }

    fn take_arrived(&mut self) {
        let mut lane = self.from.lock();
        self.arrived.append(&mut lane.full);
        lane.empty.append(&mut self.seen);
    }
}

impl Wire for InProcess {
    type Address = u8;

    fn address(&self) -> u8 {
        self.side
    }

    fn packet_bytes_max(&self) -> usize {
        self.packet_bytes_max
    }

    fn receive_ring_packets(&self) -> usize {
        self.ring_packets
    }

    fn integrity(&self) -> Integrity {
        Integrity::Checked
    }

    #[inline]
    fn receive(&mut self, packets_max: usize, mut take: impl FnMut(Arrival<'_, u8>)) -> io::Result<usize> {
        if self.arrived.is_empty() {
            self.take_arrived();
        }
        let packets = self.arrived.len().min(packets_max);
        for frame in self.arrived.drain(..packets) {
            take(Arrival {
                from: 1 - self.side,
                bytes: &frame.bytes[..frame.length],
                congested: false,
            });
            self.seen.push(frame);
        }
        // Frames go back with the next look for new ones, but before the other end runs short.
        if self.seen.len() >= self.ring_packets / 4 && self.arrived.is_empty() {
            self.from.lock().empty.append(&mut self.seen);
        }
        Ok(packets)
    }

    #[inline]
    fn transmit_room(&self) -> usize {
        self.spare.len()
    }

    #[inline]
    fn transmit(&mut self, to: u8, head: &[u8], payload: &[u8]) {
        let bytes = head.len() + payload.len();
        if to != 1 - self.side || bytes > self.packet_bytes_max {
            return;
        }
        if let Some(mut frame) = self.spare.pop() {
            frame.length = bytes;
            let (first, rest) = frame.bytes.split_at_mut(head.len());
            first.copy_from_slice(head);
            rest[..payload.len()].copy_from_slice(payload);
            self.leaving.push_back(frame);
        }
    }

    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        if self.leaving.is_empty() && self.spare.len() > self.ring_packets / 2 {
            return Ok(());
        }
        let mut lane = self.towards.lock();
        self.spare.append(&mut lane.empty);
        if !self.leaving.is_empty() {
            lane.full.append(&mut self.leaving);
            self.towards.filled.notify_one();
        }
        Ok(())
    }

    fn wait(&mut self, at_most: Option<Duration>) -> io::Result<()> {
        let mut lane = self.from.lock();
        if std::mem::take(&mut lane.woken) || !self.arrived.is_empty() || !lane.full.is_empty() {
            return Ok(());
        }
        let filled = &self.from.filled;
        let mut lane = match at_most {
            Some(at_most) => {
                let waited = filled.wait_timeout(lane, at_most);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => filled.wait(lane).unwrap_or_else(PoisonError::into_inner),
        };
        lane.woken = false;
        Ok(())
    }

    fn waker(&self) -> Option<Waker> {
        Some(self.from.clone().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_conforms() {
        crate::conformance::suite(|| InProcess::pair(1500, 64));
    }

    #[test]
    fn another_thread_ends_a_wait_before_and_after_it_begins() {
        let (mut near, _far) = InProcess::pair(1500, 64);
        let waker = near.waker().unwrap();
        waker.wake_by_ref();
        near.wait(None).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| waker.wake_by_ref());
            near.wait(None).unwrap();
        });
    }
}
