//! A wire between two ends of one process: packets lie densely, in batches that change hands whole.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::Duration;

use crate::{Arrival, Integrity, LOOK_BYTES, Wire, copy_short};

/// Packets, with their length before them, begin at multiples of so many bytes: two cache lines, which hold a small message with its
/// header, and with a check or a seal.
const LINE_BYTES: usize = 128;
/// Bytes of a packet's length.
const LENGTH_BYTES: usize = 8;
/// Bytes of the largest packet that takes one line.
const SHORT_BYTES_MAX: usize = LINE_BYTES - LENGTH_BYTES;
/// Bytes of heads as most packets have them.
const HEAD_BYTES_EXPECTED: usize = 32;

/// One of two ends. What one sends, the other receives; the receiver copies nothing.
#[derive(Debug)]
pub struct InProcess {
    side: u8,
    /// The other end's address.
    peer: u8,
    packet_bytes_max: usize,
    ring_packets: usize,
    /// Packets that go to the other end with the next flush.
    leaving: Box<PacketBatch>,
    /// Packets that the other end has room for, beside those that leave.
    room_packets: usize,
    /// Packets that have come.
    arrived: Box<PacketBatch>,
    /// Packets that the application has seen, and that still take room.
    seen_packets: usize,
    /// Flushes of the other end whose packets were taken.
    flushes_seen: usize,
    towards: Arc<PacketDirection>,
    from: Arc<PacketDirection>,
}

#[derive(Debug, Default)]
struct PacketDirection {
    state: Mutex<PacketDirectionState>,
    filled: Condvar,
    /// Flushes that brought packets. It changes under the lock; whoever only looks whether there is something needs none.
    flushes: AtomicUsize,
}

#[derive(Debug, Default)]
struct PacketDirectionState {
    /// Packets that were sent and not taken. Whoever takes them leaves an empty batch.
    sent: Box<PacketBatch>,
    /// Packets that were sent and still take room.
    on_the_way: usize,
    /// Somebody has woken whoever waits here, or will.
    woken: bool,
    /// The receiver sleeps, or is about to.
    is_awaited: bool,
}

impl Wake for PacketDirection {
    fn wake(self: Arc<Self>) {
        self.lock().woken = true;
        self.filled.notify_one();
    }
}

impl PacketDirection {
    /// What is under the lock is whole packets, so a thread that died holding it leaves no harm.
    fn lock(&self) -> MutexGuard<'_, PacketDirectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Packets one after the other.
#[derive(Debug, Default)]
struct PacketBatch {
    /// Memory that was taken, of which the first `lines_used` are packets.
    lines: Vec<[u8; LINE_BYTES]>,
    lines_used: usize,
    packets: usize,
    /// Packets that were read, and the line where the next begins.
    packets_read: usize,
    read_at: usize,
}

impl PacketBatch {
    #[inline]
    fn len(&self) -> usize {
        self.packets
    }

    #[inline]
    fn is_read(&self) -> bool {
        self.packets_read == self.packets
    }

    fn clear(&mut self) {
        (self.lines_used, self.packets) = (0, 0);
        (self.packets_read, self.read_at) = (0, 0);
    }

    #[inline(always)]
    fn push(&mut self, head: &[u8], payload: &[u8]) {
        let is_short = head.len() <= SHORT_BYTES_MAX && payload.len() <= SHORT_BYTES_MAX - head.len();
        match self.lines.get_mut(self.lines_used) {
            Some(line) if is_short => {
                write_packet(line, head, payload);
                self.lines_used += 1;
                self.packets += 1;
            }
            _ if head.len() <= HEAD_BYTES_EXPECTED => {
                // A copy: so a head that was put together in registers is stored nowhere but in its line.
                let mut copied = [0; HEAD_BYTES_EXPECTED];
                let copied = &mut copied[..head.len()];
                copied.copy_from_slice(head);
                self.push_anyhow(copied, payload);
            }
            _ => self.push_anyhow(head, payload),
        }
    }

    /// The same with a packet of several lines, or where memory has to be taken.
    #[inline(never)]
    fn push_anyhow(&mut self, head: &[u8], payload: &[u8]) {
        let end = self.lines_used + lines_of(head.len() + payload.len());
        self.make_room(end);
        write_packet(self.lines[self.lines_used..end].as_flattened_mut(), head, payload);
        self.lines_used = end;
        self.packets += 1;
    }

    #[inline]
    fn make_room(&mut self, lines: usize) {
        if lines > self.lines.len() {
            self.lines.resize(lines.next_power_of_two(), [0; LINE_BYTES]);
        }
    }

    /// Takes the packets out of another batch, none of which was read.
    #[cold]
    fn append(&mut self, other: &mut PacketBatch) {
        let end = self.lines_used + other.lines_used;
        self.make_room(end);
        self.lines[self.lines_used..end].copy_from_slice(&other.lines[..other.lines_used]);
        self.lines_used = end;
        self.packets += other.packets;
        other.clear();
    }

    /// Shows how packets begin that are next to be read, up to the first that is too short; says how many there were.
    #[inline(always)]
    fn look_ahead(&self, packets_max: usize, mut look: impl FnMut([u8; LOOK_BYTES])) -> usize {
        let packets = packets_max.min(self.packets - self.packets_read);
        let mut at = self.read_at;
        for seen in 0..packets {
            let Some((length, packet)) = self.lines.get(at).and_then(|line| line.split_first_chunk()) else {
                return seen;
            };
            let bytes = u64::from_le_bytes(*length) as usize;
            match packet.first_chunk() {
                Some(beginning) if bytes >= LOOK_BYTES => look(*beginning),
                _ => return seen,
            }
            at += lines_of(bytes);
        }
        packets
    }

    /// Hands over up to so many packets; says how many there were.
    #[inline(always)]
    fn read(&mut self, packets_max: usize, mut take: impl FnMut(&[u8])) -> usize {
        let packets = packets_max.min(self.packets - self.packets_read);
        let mut at = self.read_at;
        for _ in 0..packets {
            let Some((length, short)) = self.lines.get(at).and_then(|line| line.split_first_chunk()) else {
                break;
            };
            let bytes = u64::from_le_bytes(*length) as usize;
            let packet = match short.get(..bytes) {
                Some(packet) => {
                    at += 1;
                    packet
                }
                None => {
                    let lines = &self.lines[at..][..lines_of(bytes)];
                    at += lines.len();
                    &lines.as_flattened()[LENGTH_BYTES..][..bytes]
                }
            };
            take(packet);
        }
        self.read_at = at;
        self.packets_read += packets;
        packets
    }
}

/// Lines that a packet of so many bytes takes.
fn lines_of(bytes: usize) -> usize {
    (LENGTH_BYTES + bytes).div_ceil(LINE_BYTES)
}

/// Puts a packet with its length into memory that has room for both.
#[inline(always)]
fn write_packet(memory: &mut [u8], head: &[u8], payload: &[u8]) {
    let bytes = head.len() + payload.len();
    let (length, packet) = memory.split_at_mut(LENGTH_BYTES);
    length.copy_from_slice(&(bytes as u64).to_le_bytes());
    let (first, rest) = packet.split_at_mut(head.len());
    first.copy_from_slice(head);
    copy_short(&mut rest[..payload.len()], payload);
}

impl InProcess {
    /// Two ends, with room for so many packets of so many bytes on the way in each direction.
    #[must_use]
    pub fn pair(packet_bytes_max: usize, ring_packets: usize) -> (InProcess, InProcess) {
        let (there, back) = (Arc::default(), Arc::default());
        let end = |side, towards: &Arc<PacketDirection>, from: &Arc<PacketDirection>| InProcess {
            side,
            peer: 1 - side,
            packet_bytes_max,
            ring_packets,
            leaving: Box::default(),
            room_packets: ring_packets,
            arrived: Box::default(),
            seen_packets: 0,
            flushes_seen: 0,
            towards: Arc::clone(towards),
            from: Arc::clone(from),
        };
        (end(0, &there, &back), end(1, &back, &there))
    }

    /// Takes what has come, and gives back the room of what was seen.
    fn take_arrived(&mut self) {
        let flushes = self.from.flushes.load(Ordering::Acquire);
        if flushes == self.flushes_seen {
            return;
        }
        self.flushes_seen = flushes;
        self.arrived.clear();
        let mut direction = self.from.lock();
        direction.on_the_way -= std::mem::take(&mut self.seen_packets);
        std::mem::swap(&mut direction.sent, &mut self.arrived);
    }
}

impl InProcess {
    #[inline(never)]
    fn give_room_back(&mut self) {
        self.from.lock().on_the_way -= std::mem::take(&mut self.seen_packets);
    }

    /// Sends what leaves, and learns how much room there is.
    #[inline(never)]
    fn exchange(&mut self) {
        let mut direction = self.towards.lock();
        if self.leaving.len() > 0 {
            direction.on_the_way += self.leaving.len();
            if direction.sent.len() == 0 {
                std::mem::swap(&mut direction.sent, &mut self.leaving);
            } else {
                direction.sent.append(&mut self.leaving);
            }
            self.towards.flushes.fetch_add(1, Ordering::Release);
            if direction.is_awaited {
                self.towards.filled.notify_one();
            }
        }
        self.room_packets = self.ring_packets.saturating_sub(direction.on_the_way);
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

    #[inline(always)]
    fn receive(&mut self, packets_max: usize, mut take: impl FnMut(Arrival<'_, u8>)) -> io::Result<usize> {
        if self.arrived.is_read() {
            self.take_arrived();
        }
        let from = self.peer;
        let packets = self.arrived.read(packets_max, |bytes| {
            take(Arrival {
                from,
                bytes,
                congested: false,
            });
        });
        self.seen_packets += packets;
        // Room goes back with the next look for new packets, but before the other end runs short.
        if self.arrived.is_read() && self.seen_packets >= self.ring_packets / 4 {
            self.give_room_back();
        }
        Ok(packets)
    }

    #[inline(always)]
    fn look_ahead(&mut self, packets_max: usize, look: impl FnMut([u8; LOOK_BYTES])) -> usize {
        if self.arrived.is_read() {
            self.take_arrived();
        }
        self.arrived.look_ahead(packets_max, look)
    }

    #[inline(always)]
    fn transmit_room(&self) -> usize {
        self.room_packets.saturating_sub(self.leaving.len())
    }

    #[inline(always)]
    fn transmit(&mut self, to: u8, head: &[u8], payload: &[u8]) {
        let bytes = head.len() + payload.len();
        if to != self.peer || bytes > self.packet_bytes_max || self.leaving.len() >= self.room_packets {
            return;
        }
        self.leaving.push(head, payload);
    }

    #[inline(always)]
    fn flush(&mut self) -> io::Result<()> {
        if self.leaving.len() > 0 || self.room_packets <= self.ring_packets / 2 {
            self.exchange();
        }
        Ok(())
    }

    fn wait(&mut self, at_most: Option<Duration>) -> io::Result<()> {
        let mut direction = self.from.lock();
        if std::mem::take(&mut direction.woken) || !self.arrived.is_read() || direction.sent.len() > 0 {
            return Ok(());
        }
        direction.is_awaited = true;
        let filled = &self.from.filled;
        let mut direction = match at_most {
            Some(at_most) => {
                let waited = filled.wait_timeout(direction, at_most);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => filled.wait(direction).unwrap_or_else(PoisonError::into_inner),
        };
        direction.is_awaited = false;
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
