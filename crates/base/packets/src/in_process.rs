//! A wire between two ends of one process: two rings of frames that are taken at the start.

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
    leaving: Vec<Frame>,
    /// Frames that have come, and how many of them the application has seen. They go back together.
    arrived: Vec<Frame>,
    seen: usize,
    /// Empty frames.
    spare: Vec<Frame>,
    towards: Arc<PacketDirection>,
    from: Arc<PacketDirection>,
}

#[derive(Debug)]
struct PacketDirection {
    state: Mutex<PacketDirectionState>,
    filled: Condvar,
}

#[derive(Debug)]
struct PacketDirectionState {
    full: Vec<Frame>,
    empty: Vec<Frame>,
    /// Somebody has woken whoever waits here, or will.
    woken: bool,
}

impl Wake for PacketDirection {
    fn wake(self: Arc<Self>) {
        self.lock().woken = true;
        self.filled.notify_one();
    }
}

impl PacketDirection {
    /// What is under the lock is queues of whole frames, so a thread that died holding it leaves no harm.
    fn lock(&self) -> MutexGuard<'_, PacketDirectionState> {
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
        let direction = || {
            let state = PacketDirectionState {
                full: Vec::with_capacity(ring_packets),
                empty: Vec::with_capacity(ring_packets),
                woken: false,
            };
            Arc::new(PacketDirection {
                state: Mutex::new(state),
                filled: Condvar::new(),
            })
        };
        let (there, back) = (direction(), direction());
        let end = |side, towards: &Arc<PacketDirection>, from: &Arc<PacketDirection>| InProcess {
            side,
            packet_bytes_max,
            ring_packets,
            leaving: Vec::with_capacity(ring_packets),
            arrived: Vec::with_capacity(ring_packets),
            seen: 0,
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

    /// Gives back what was seen, and takes what has come since.
    fn take_arrived(&mut self) {
        let mut direction = self.from.lock();
        direction.empty.append(&mut self.arrived);
        std::mem::swap(&mut direction.full, &mut self.arrived);
        self.seen = 0;
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
        if self.seen == self.arrived.len() {
            self.take_arrived();
        }
        let packets = packets_max.min(self.arrived.len() - self.seen);
        let from = 1 - self.side;
        for frame in &self.arrived[self.seen..self.seen + packets] {
            take(Arrival {
                from,
                bytes: &frame.bytes[..frame.length],
                congested: false,
            });
        }
        self.seen += packets;
        // Frames go back with the next look for new ones, but before the other end runs short.
        if self.seen == self.arrived.len() && self.seen >= self.ring_packets / 4 {
            self.from.lock().empty.append(&mut self.arrived);
            self.seen = 0;
        }
        Ok(packets)
    }

    #[inline]
    fn transmit_room(&self) -> usize {
        self.spare.len()
    }

    #[inline(always)]
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
            self.leaving.push(frame);
        }
    }

    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        if self.leaving.is_empty() && self.spare.len() > self.ring_packets / 2 {
            return Ok(());
        }
        let mut direction = self.towards.lock();
        self.spare.append(&mut direction.empty);
        if direction.full.is_empty() {
            std::mem::swap(&mut direction.full, &mut self.leaving);
        } else {
            direction.full.append(&mut self.leaving);
        }
        if !direction.full.is_empty() {
            self.towards.filled.notify_one();
        }
        Ok(())
    }

    fn wait(&mut self, at_most: Option<Duration>) -> io::Result<()> {
        let mut direction = self.from.lock();
        if std::mem::take(&mut direction.woken)
            || self.seen < self.arrived.len()
            || !direction.full.is_empty()
        {
            return Ok(());
        }
        let filled = &self.from.filled;
        let mut direction = match at_most {
            Some(at_most) => {
                let waited = filled.wait_timeout(direction, at_most);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => filled.wait(direction).unwrap_or_else(PoisonError::into_inner),
        };
        direction.woken = false;
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
