//! The wire.

use std::io;
use std::path::Path;
use std::task::Waker;
use std::time::Duration;

use provost_packets::{Arrival, Integrity, LOOK_BYTES, Wire};
use provost_ring::FrameFault;
use provost_shm::{Doorbell, Interest, PacketListener, PacketSocket, Ringer, Wait, wait_for};

use crate::SetupError;
use crate::greeting::{self, Barriers, Greeting};
use crate::region::{Ends, Own, PayloadWay, Peers, Shape};
use crate::waiting::{Polled, Waiting, Woken, barrier, register_barriers};

/// Looks in vain after which the kernel is asked whether the peer lives: some milliseconds of polling.
const LOOKS_IN_VAIN: u32 = 1 << 16;
/// Slots go back to the peer when so large a part of the ring was read, in one piece with others.
const RELEASE_PART: u32 = 8;
/// Bytes of a payload, one of several that follow each other, from which on it is copied past the caches.
const PART_BYTES_MIN: usize = 1024;

/// What a wire is to be like. The smaller of both ends' largest packets counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of the largest packet that this end sends, from [`crate::PACKET_BYTES_MIN`] to
    /// [`crate::PACKET_BYTES_MAX`].
    pub packet_bytes_max: usize,
    /// Packets of this end that can be on their way: a power of two, from [`crate::RING_PACKETS_MIN`] to
    /// [`crate::RING_PACKETS_MAX`].
    pub ring_packets: u32,
}

impl Default for Options {
    /// 1,024 packets of 4,088 bytes: 4 MiB in each direction, about what a core's share of the caches can hold.
    fn default() -> Self {
        Self {
            packet_bytes_max: 4088,
            ring_packets: 1024,
        }
    }
}

/// Names an end of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The end that listened.
    Listening,
    /// The end that connected.
    Connecting,
}

impl Side {
    fn other(self) -> Side {
        match self {
            Side::Listening => Side::Connecting,
            Side::Connecting => Side::Listening,
        }
    }
}

/// What a wire has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Packets for which there was no room, or which were too large, or not for the peer.
    pub not_sent: u64,
    /// Packets that were copied before they were lent.
    pub copied: u64,
    /// Packets that were lent where the peer had put them.
    pub lent: u64,
    /// Packets whose payload was copied past the caches, as one of several ([`Wire::transmit_part`]).
    pub past_caches: u64,
    /// How often this end slept.
    pub sleeps: u64,
    /// How often this end rang the peer's doorbell.
    pub rings: u64,
}

/// Waits for peers at a path.
#[derive(Debug)]
pub struct Listener(PacketListener);

impl Listener {
    /// Listens at a path, which gets these permission bits.
    ///
    /// # Errors
    /// If the path cannot be taken.
    pub fn bind(path: &Path, mode: u32) -> Result<Listener, SetupError> {
        let listener = PacketListener::bind(path, mode).map_err(SetupError::system("listen at the path"))?;
        Ok(Listener(listener))
    }

    /// A wire to the next peer that connects within this time.
    ///
    /// # Errors
    /// If none does, or not as it must.
    pub fn accept(&self, options: Options, within: Duration) -> Result<SharedWire, SetupError> {
        let wait = Wait::AtMost(u64::try_from(within.as_nanos()).unwrap_or(u64::MAX));
        wait_for(&self.0, Interest::Readable, wait).map_err(SetupError::system("wait for a peer"))?;
        let socket = self.0.accept().map_err(SetupError::system("accept a peer"))?;
        SharedWire::over(socket, Side::Listening, options)
    }
}

/// One of the two ends of a wire.
#[derive(Debug)]
pub struct SharedWire {
    side: Side,
    packet_bytes_max: usize,
    reading: Reading,
    /// Whether this end needs a barrier before it looks whether the peer sleeps.
    sends_with: Barriers,
    /// Whether the peer needs none, because this end asks the kernel for one before it sleeps.
    sleeps_with: Barriers,
    ends: Ends,
    own: Own,
    peers: Peers,
    /// Where packets are copied to.
    copy: Box<[u64]>,
    ringer: Ringer,
    waiting: Waiting,
    /// Packets of which the peer was told, if it sleeps.
    announced: u64,
    release_packets: u32,
    looks_in_vain: u32,
    statistics: Statistics,
}

/// Where arrivals are lent from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Copied,
    InPlace,
}

impl SharedWire {
    /// Connects to a [`Listener`]'s path.
    ///
    /// # Errors
    /// If nobody listens there, or not as it must.
    pub fn connect(path: &Path, options: Options) -> Result<SharedWire, SetupError> {
        let socket = PacketSocket::connect(path).map_err(SetupError::system("connect to the path"))?;
        SharedWire::over(socket, Side::Connecting, options)
    }

    /// Both ends, in one process.
    ///
    /// # Errors
    /// If an option is out of its range, or the system gives no memory.
    pub fn pair(options: Options) -> Result<(SharedWire, SharedWire), SetupError> {
        let (one, other) = PacketSocket::pair().map_err(SetupError::system("make a pair of sockets"))?;
        let here = Introduction::send(one, Side::Listening, options)?;
        let there = Introduction::send(other, Side::Connecting, options)?;
        Ok((here.finish()?, there.finish()?))
    }

    /// A wire to the process at the other end of a connected socket, which does the same with the other side.
    ///
    /// # Errors
    /// If an option is out of its range, the system gives no memory, or the peer does not do as it must.
    pub fn over(socket: PacketSocket, side: Side, options: Options) -> Result<SharedWire, SetupError> {
        Introduction::send(socket, side, options)?.finish()
    }

    /// Lends packets where the peer has put them from now on, instead of copying each first.
    ///
    /// # Safety
    /// The peer must not write to the slot of a packet that it has sent before this end has given it back, as long as
    /// this wire lives. Every peer that is a [`SharedWire`] keeps to that; a process that means harm, or whose memory is
    /// corrupt, may not.
    pub unsafe fn trust_peer(&mut self) {
        self.reading = Reading::InPlace;
    }

    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// The address of the other end.
    #[must_use]
    pub fn peer(&self) -> Side {
        self.side.other()
    }

    #[inline(always)]
    fn send(&mut self, to: Side, head: &[u8], payload: &[u8], payload_way: PayloadWay) {
        let bytes = head.len() + payload.len();
        let slot = self.ends.producer.free_slot();
        let (Some(slot), true) = (slot, bytes <= self.packet_bytes_max && to != self.side) else {
            self.statistics.not_sent += 1;
            return;
        };
        self.own.write(slot, head, payload, payload_way);
        self.ends.producer.publish(bytes as u32);
    }

    #[inline]
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.ends.consumer.peek().map_err(lie)?.is_none())
    }

    #[cold]
    fn look_for_peer(&mut self) -> io::Result<()> {
        self.looks_in_vain = 0;
        if self.waiting.is_peer_gone()? && self.is_empty()? {
            return Err(gone());
        }
        Ok(())
    }

    fn sleep(&mut self, at_most: Option<Duration>) -> io::Result<()> {
        self.ends.sleeper.arm();
        if self.sleeps_with == Barriers::Kernel {
            barrier()?;
        }
        // What was published before the peer could see that this end sleeps is seen here.
        let woken = if self.is_empty()? {
            self.statistics.sleeps += 1;
            self.waiting.sleep(at_most)
        } else {
            Ok(Woken::Usual)
        };
        self.ends.sleeper.disarm();
        if woken? == Woken::PeerGone && self.is_empty()? {
            return Err(gone());
        }
        Ok(())
    }

    #[inline]
    fn is_bell_needed(&mut self) -> bool {
        match self.sends_with {
            Barriers::Kernel => self.ends.bell.needed_unfenced(),
            Barriers::Own => self.ends.bell.needed(),
        }
    }

    #[cold]
    fn ring(&mut self) -> io::Result<()> {
        self.statistics.rings += 1;
        match self.ringer.ring() {
            // What the peer sent before it went can still be received; then its end is told.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            result => result,
        }
    }
}

/// An end that has greeted and waits to be greeted.
struct Introduction {
    socket: PacketSocket,
    side: Side,
    own: Own,
    doorbell: Doorbell,
    /// The other end of the doorbell, of which the peer has a copy.
    own_ringer: Ringer,
    greeting: Greeting,
}

impl Introduction {
    fn send(socket: PacketSocket, side: Side, options: Options) -> Result<Introduction, SetupError> {
        let shape = Shape {
            ring_packets: options.ring_packets,
            packet_bytes: u32::try_from(options.packet_bytes_max).unwrap_or(u32::MAX),
        };
        let own = Own::create(shape)?;
        let (ringer, doorbell) = Doorbell::create().map_err(SetupError::system("make a doorbell"))?;
        let greeting = Greeting {
            shape,
            barriers: register_barriers(),
        };
        greeting.send(&socket, own.memfd(), &ringer)?;
        Ok(Introduction {
            socket,
            side,
            own,
            doorbell,
            own_ringer: ringer,
            greeting,
        })
    }

    fn finish(self) -> Result<SharedWire, SetupError> {
        let greeted = greeting::receive(&self.socket)?;
        let peers = Peers::map(greeted.memory, greeted.greeting.shape)?;
        // SAFETY: this is the only place that makes ends, and each region of our own passes it once. The wire keeps both
        // regions, whose addresses do not change when it moves, as long as the ends.
        let ends = unsafe { Ends::of(&self.own, &peers) };
        let packet_bytes = self.greeting.shape.packet_bytes.min(peers.shape().packet_bytes) as usize;
        let copy_words = (peers.shape().packet_bytes as usize).div_ceil(size_of::<u64>());
        // A kernel that has these barriers has them for both processes; each needs the other's consent.
        let kernel = [self.greeting.barriers, greeted.greeting.barriers] == [Barriers::Kernel; 2];
        let barriers = if kernel { Barriers::Kernel } else { Barriers::Own };
        Ok(SharedWire {
            side: self.side,
            packet_bytes_max: packet_bytes,
            reading: Reading::Copied,
            sends_with: barriers,
            sleeps_with: barriers,
            ends,
            own: self.own,
            release_packets: peers.shape().ring_packets / RELEASE_PART,
            peers,
            copy: vec![0; copy_words].into_boxed_slice(),
            ringer: greeted.ringer.into(),
            waiting: Waiting::new(self.doorbell, self.own_ringer, self.socket),
            announced: 0,
            looks_in_vain: 0,
            statistics: Statistics::default(),
        })
    }
}

impl Wire for SharedWire {
    type Address = Side;

    fn address(&self) -> Side {
        self.side
    }

    fn packet_bytes_max(&self) -> usize {
        self.packet_bytes_max
    }

    fn receive_ring_packets(&self) -> usize {
        // Those that were read and not given back are not the peer's to fill.
        (self.peers.shape().ring_packets - self.release_packets) as usize
    }

    fn integrity(&self) -> Integrity {
        Integrity::Checked
    }

    #[inline]
    fn receive(&mut self, packets_max: usize, mut take: impl FnMut(Arrival<'_, Side>)) -> io::Result<usize> {
        let from = self.side.other();
        let mut packets = 0;
        while packets < packets_max {
            let Some(frame) = self.ends.consumer.peek().map_err(lie)? else {
                break;
            };
            let bytes = match self.reading {
                Reading::Copied => self.peers.copy(frame.slot, frame.bytes, &mut self.copy),
                // SAFETY: the peer does not write to it (the promise of `trust_peer`), and it is released below,
                // when nobody has it any more.
                Reading::InPlace => unsafe { self.peers.lend(frame.slot, frame.bytes) },
            };
            take(Arrival {
                from,
                bytes,
                congested: false,
            });
            self.ends.consumer.pop();
            packets += 1;
        }
        match self.reading {
            Reading::Copied => self.statistics.copied += packets as u64,
            Reading::InPlace => self.statistics.lent += packets as u64,
        }
        if packets > 0 {
            self.looks_in_vain = 0;
            if self.ends.consumer.unreleased() >= self.release_packets {
                self.ends.consumer.release();
            }
            return Ok(packets);
        }
        self.looks_in_vain += 1;
        if self.looks_in_vain == LOOKS_IN_VAIN {
            self.look_for_peer()?;
        }
        Ok(0)
    }

    #[inline]
    fn look_ahead(&mut self, packets_max: usize, mut look: impl FnMut([u8; LOOK_BYTES])) -> usize {
        let packets_max = u32::try_from(packets_max).unwrap_or(u32::MAX);
        let mut packets = 0;
        while packets < packets_max
            && let Some(frame) = self.ends.consumer.peek_ahead(packets)
            && frame.bytes as usize >= LOOK_BYTES
        {
            look(self.peers.first_word(frame.slot));
            packets += 1;
        }
        packets as usize
    }

    #[inline]
    fn transmit_room(&self) -> usize {
        self.ends.producer.room() as usize
    }

    #[inline(always)]
    fn transmit(&mut self, to: Side, head: &[u8], payload: &[u8]) {
        self.send(to, head, payload, PayloadWay::ThroughCaches);
    }

    #[inline]
    fn transmit_part(&mut self, to: Side, head: &[u8], payload: &[u8]) {
        let payload_way = if payload.len() >= PART_BYTES_MIN {
            self.statistics.past_caches += 1;
            PayloadWay::PastCaches
        } else {
            PayloadWay::ThroughCaches
        };
        self.send(to, head, payload, payload_way);
    }

    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        let published = self.ends.producer.published();
        let burst = published - self.announced;
        if burst > 0 {
            self.announced = published;
            if self.is_bell_needed() {
                self.ring()?;
            }
            // The next turn may send as many.
            self.own
                .expect(published, burst.min(self.ends.producer.room().into()));
        }
        // The peer's head is a line of its own that it writes from time to time: not to be looked at more than needed.
        if self.ends.producer.room() < self.own.shape().ring_packets / 2 {
            self.ends.producer.refresh().map_err(lie)?;
        }
        Ok(())
    }

    fn wait(&mut self, at_most: Option<Duration>) -> io::Result<()> {
        let consumer = &self.ends.consumer;
        let is_there = || Ok(consumer.peek().map_err(lie)?.is_some());
        match self.waiting.poll(at_most, is_there)? {
            Polled::Found => Ok(()),
            Polled::Nothing { left } => self.sleep(left),
        }
    }

    fn waker(&self) -> Option<Waker> {
        Some(self.waiting.waker())
    }
}

#[cold]
fn lie(fault: FrameFault) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, fault)
}

fn gone() -> io::Error {
    io::Error::new(
        io::ErrorKind::ConnectionAborted,
        "the process at the other end of the wire has ended",
    )
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const OPTIONS: Options = Options {
        packet_bytes_max: 1500,
        ring_packets: 64,
    };

    fn pair() -> (SharedWire, SharedWire) {
        SharedWire::pair(OPTIONS).expect("the system gives memory")
    }

    #[test]
    fn it_conforms() {
        provost_packets::conformance::suite(pair);
    }

    #[test]
    fn it_conforms_when_it_lends_packets_in_place() {
        provost_packets::conformance::suite(|| {
            let (mut one, mut other) = pair();
            // SAFETY: both are ends of this type, which write to no slot that was not given back.
            unsafe {
                one.trust_peer();
                other.trust_peer();
            }
            (one, other)
        });
    }

    /// Some go by way of the caches, others past them.
    #[test]
    fn large_packets_arrive_whole_at_another_thread() {
        const PACKET_BYTES: usize = 16_376;
        const PACKETS: usize = 2_000;
        let (mut here, mut there) = SharedWire::pair(Options {
            packet_bytes_max: PACKET_BYTES,
            ring_packets: 16,
        })
        .expect("the system gives memory");
        // SAFETY: both are ends of this type, which write to no slot that was not given back.
        unsafe { there.trust_peer() };
        let bytes_of = |packet: usize| 24 + packet * 61 % (PACKET_BYTES - 24);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut came = 0;
                while came < PACKETS {
                    there
                        .receive(8, |arrival| {
                            assert_eq!(arrival.bytes.len(), bytes_of(came));
                            assert!(
                                arrival.bytes.iter().all(|byte| *byte == came as u8),
                                "packet {came}"
                            );
                            came += 1;
                        })
                        .unwrap();
                    there.flush().unwrap();
                }
            });
            let payload: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte; PACKET_BYTES]).collect();
            for packet in 0..PACKETS {
                while here.transmit_room() == 0 {
                    std::thread::yield_now();
                    here.flush().unwrap();
                }
                let (head, rest) = payload[packet % 256][..bytes_of(packet)].split_at(24);
                if packet.is_multiple_of(3) {
                    here.transmit(here.peer(), head, rest);
                } else {
                    here.transmit_part(here.peer(), head, rest);
                }
                here.flush().unwrap();
            }
        });
        let is_past = |packet: &usize| !packet.is_multiple_of(3) && bytes_of(*packet) - 24 >= PART_BYTES_MIN;
        let past = (0..PACKETS).filter(is_past).count();
        assert_eq!(here.statistics().past_caches, past as u64);
    }

    #[test]
    fn it_conforms_without_barriers_of_the_kernel() {
        provost_packets::conformance::suite(|| {
            let (mut one, mut other) = pair();
            for end in [&mut one, &mut other] {
                (end.sends_with, end.sleeps_with) = (Barriers::Own, Barriers::Own);
            }
            (one, other)
        });
    }

    #[test]
    fn packets_go_round_the_ring_between_two_threads_that_sleep_now_and_then() {
        const PACKETS: u32 = 20_000;
        let (mut one, mut other) = pair();
        let sender = std::thread::spawn(move || {
            let mut sent = 0;
            while sent < PACKETS {
                for _ in 0..one.transmit_room().min((PACKETS - sent) as usize) {
                    one.transmit(one.peer(), &sent.to_le_bytes(), b"");
                    sent += 1;
                }
                one.flush().unwrap();
                if sent % 7 == 0 {
                    std::thread::yield_now();
                }
            }
            one
        });
        let mut expected = 0;
        while expected < PACKETS {
            let taken = other
                .receive(5, |arrival| {
                    assert_eq!(arrival.bytes, expected.to_le_bytes());
                    expected += 1;
                })
                .unwrap();
            if taken == 0 {
                other.wait(None).unwrap();
            }
        }
        assert_eq!(sender.join().unwrap().statistics().not_sent, 0);
    }

    #[test]
    fn another_thread_ends_a_wait_that_goes_on_or_the_next() {
        let (mut one, _other) = pair();
        let waker = one.waker().unwrap();
        waker.wake_by_ref();
        one.wait(None).unwrap();
        let later = std::thread::spawn(move || {
            for pause_us in [0, 10, 20_000] {
                std::thread::sleep(Duration::from_micros(pause_us));
                waker.wake_by_ref();
            }
        });
        // Only the last of these is sure not to fall together with others; this ends if it ends a wait.
        one.wait(None).unwrap();
        later.join().unwrap();
        assert_eq!(one.receive(1, |_| {}).unwrap(), 0);
    }

    #[test]
    fn busy_ends_do_not_ring() {
        let (mut one, mut other) = pair();
        for _ in 0..1000 {
            one.transmit(other.address(), b"x", b"");
            one.flush().unwrap();
            assert_eq!(other.receive(1, |_| {}).unwrap(), 1);
        }
        assert_eq!((one.statistics().rings, other.statistics().sleeps), (0, 0));
    }

    #[test]
    fn a_peer_that_lies_is_an_error() {
        let (mut one, other) = pair();
        other.own.write_state(0, 77 << 32 | 10);
        let error = one.receive(1, |_| {}).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(one.wait(None).is_err());

        let (mut one, other) = pair();
        other.own.write_state(0, 1 << 32 | 1501);
        assert!(one.receive(1, |_| {}).unwrap_err().to_string().contains("1501"));

        let (mut one, other) = pair();
        for _ in 0..OPTIONS.ring_packets {
            one.transmit(other.address(), b"x", b"");
        }
        other.own.write_head(OPTIONS.ring_packets + 1);
        assert_eq!(one.flush().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_peer_that_is_gone_is_an_error_once_its_packets_are_read() {
        let (mut one, mut other) = pair();
        other.transmit(one.address(), b"last words", b"");
        other.flush().unwrap();
        drop(other);
        one.wait(None).unwrap();
        assert_eq!(
            one.receive(8, |arrival| assert_eq!(arrival.bytes, b"last words"))
                .unwrap(),
            1
        );
        let error = one.wait(None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        // One that never waits learns it too, after many looks.
        let began = Instant::now();
        while one.receive(8, |_| {}).is_ok() {
            assert!(began.elapsed() < Duration::from_secs(50), "nobody told");
        }
        one.transmit(one.peer(), b"x", b"");
        one.flush().unwrap();
    }

    #[test]
    fn an_end_that_is_not_greeted_properly_does_not_begin() {
        let (one, other) = PacketSocket::pair().unwrap();
        other.send(b"something else..", &[]).unwrap();
        let error = SharedWire::over(one, Side::Listening, OPTIONS).unwrap_err();
        assert!(matches!(error, SetupError::Peer { .. }), "{error}");
        let (one, other) = PacketSocket::pair().unwrap();
        drop(other);
        assert!(SharedWire::over(one, Side::Listening, OPTIONS).is_err());
    }

    #[test]
    fn packets_are_as_large_as_both_ends_take() {
        let (one, other) = PacketSocket::pair().unwrap();
        let small = Options {
            packet_bytes_max: 300,
            ..OPTIONS
        };
        let here = Introduction::send(one, Side::Listening, small).unwrap();
        let there = Introduction::send(other, Side::Connecting, OPTIONS).unwrap();
        let (here, there) = (here.finish().unwrap(), there.finish().unwrap());
        assert_eq!((here.packet_bytes_max(), there.packet_bytes_max()), (300, 300));
    }
}
