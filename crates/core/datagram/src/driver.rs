//! Joins an endpoint and a wire: the loop that a thread of theirs runs.

use std::io;
use std::time::Duration;

use provost_packets::{Arrival, Integrity, Wire};

use crate::checksum::Checking;
use crate::config::{Config, ConfigError, ShortCut};
use crate::endpoint::{Endpoint, Mark, PacketOrigin, PacketSink};
use crate::event::{Event, EventHandler};

/// Packets taken from the wire in one batch, with one look at the clock.
const BATCH_PACKETS: usize = 32;
/// Batches in one turn, so that a flood does not keep timers from their time.
const BATCHES_MAX: usize = 32;
/// An end that had no packet for so long sends after each batch, as others seem to wait for it. One that lags behind sends after
/// two, which costs it less.
const IDLE_NS: u64 = 5_000;
/// The time since which an end has been idle that has had packets.
const NOT_IDLE: u64 = u64::MAX;
/// What follows from a batch that took so long is sent before the next, by whatever end.
const SLOW_BATCH_NS: u64 = 30_000;

/// Where the time comes from.
pub trait Clock {
    /// Nanoseconds since some moment; they never run backwards.
    fn now_ns(&mut self) -> u64;
}

/// The machine's monotonic clock, read from the processor's counter where that is good enough (`provost-ticks`).
#[derive(Clone, Debug, Default)]
pub struct Monotonic(provost_ticks::Clock);

impl Clock for Monotonic {
    #[inline]
    fn now_ns(&mut self) -> u64 {
        self.0.now_ns()
    }
}

/// An endpoint on a wire.
#[derive(Debug)]
pub struct Driver<W: Wire, C = Monotonic> {
    endpoint: Endpoint<W::Address>,
    wire: W,
    clock: C,
    batched_clock: ShortCut,
    /// When the wire had no more packets, the last time it had not.
    emptied_ns: u64,
    /// When the wire had no packet, and has had none since; else [`NOT_IDLE`].
    idle_since_ns: u64,
}

/// What one turn did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Packets came or went.
    Busy,
    /// None did. Whoever does not want to spin can [`Driver::wait`].
    Idle,
}

/// What came of the batches of a turn after the first.
struct FurtherBatches {
    now_ns: u64,
    received: usize,
    sent: usize,
}

impl<W: Wire> Driver<W> {
    /// An endpoint on this wire, by the machine's clock. What the wire determines, it determines in the configuration; packets
    /// are checked by what notices more of what the wire needs and the configuration asks for.
    ///
    /// # Errors
    /// If the configuration, so changed, cannot be.
    pub fn new(config: Config, wire: W) -> Result<Self, ConfigError> {
        Driver::with_clock(config, wire, Monotonic::default())
    }
}

impl<W: Wire, C: Clock> Driver<W, C> {
    /// As [`Driver::new`], by another clock.
    ///
    /// # Errors
    /// As [`Driver::new`].
    pub fn with_clock(config: Config, wire: W, mut clock: C) -> Result<Self, ConfigError> {
        let needed = match wire.integrity() {
            Integrity::Checked => Checking::Wire,
            Integrity::Unchecked => Checking::Packets,
        };
        let config = Config {
            packet_bytes_max: config.packet_bytes_max.min(wire.packet_bytes_max()),
            receive_ring_packets: config
                .receive_ring_packets
                .min(wire.receive_ring_packets() as u32),
            checking: config.checking.max(needed),
            ..config
        };
        Ok(Self {
            endpoint: Endpoint::new(config)?,
            wire,
            emptied_ns: clock.now_ns(),
            idle_since_ns: NOT_IDLE,
            clock,
            batched_clock: ShortCut::On,
        })
    }

    /// Whether one look at the clock serves a whole batch. It is on unless its worth is to be measured.
    pub fn set_batched_clock(&mut self, batched: ShortCut) {
        self.batched_clock = batched;
    }

    /// The time and the endpoint, to ask something of it.
    #[inline]
    pub fn endpoint(&mut self) -> (u64, &mut Endpoint<W::Address>) {
        (self.clock.now_ns(), &mut self.endpoint)
    }

    /// The wire.
    pub fn wire(&self) -> &W {
        &self.wire
    }

    /// One turn: takes packets in batches, and sends what follows from them after each or each second one; then looks at timers,
    /// and sends. Events go to `handle`, which may ask for more.
    ///
    /// # Errors
    /// If the wire is of no use any more.
    #[inline]
    pub fn turn(
        &mut self,
        mut handle: impl FnMut(&mut Endpoint<W::Address>, u64, Event<'_>),
    ) -> io::Result<Turn> {
        self.turn_with(&mut handle)
    }

    /// The same, with a handler that may take requests and completed calls by methods of its own.
    ///
    /// # Errors
    /// If the wire is of no use any more.
    #[inline(always)]
    pub fn turn_with(&mut self, handler: &mut impl for<'p> EventHandler<'p, W::Address>) -> io::Result<Turn> {
        let began_ns = self.clock.now_ns();
        let mut received = self.receive(began_ns, handler)?;
        let (mut now_ns, mut sent) = (began_ns, 0);
        if received > 0 {
            // Handlers have taken their time.
            now_ns = self.clock.now_ns();
        }
        if received == BATCH_PACKETS {
            let further = self.receive_further(began_ns, now_ns, handler)?;
            now_ns = further.now_ns;
            received += further.received;
            sent = further.sent;
        }
        self.idle_since_ns = if received == 0 {
            self.idle_since_ns.min(began_ns)
        } else {
            NOT_IDLE
        };
        self.endpoint.handle_timers(now_ns);
        if self.endpoint.is_any_event() {
            self.endpoint.hand_over_events(handler);
        }
        sent += self.send(now_ns)?;
        Ok(if received + sent > 0 {
            Turn::Busy
        } else {
            Turn::Idle
        })
    }

    /// Takes the batches after the first of a turn, which was full.
    #[inline(never)]
    fn receive_further(
        &mut self,
        began_ns: u64,
        first_ended_ns: u64,
        handler: &mut impl for<'p> EventHandler<'p, W::Address>,
    ) -> io::Result<FurtherBatches> {
        let was_idle = began_ns.saturating_sub(self.idle_since_ns) >= IDLE_NS;
        let mut further = FurtherBatches {
            now_ns: first_ended_ns,
            received: 0,
            sent: 0,
        };
        let mut batch_began_ns = began_ns;
        for batch in 1..BATCHES_MAX {
            let is_slow = further.now_ns.saturating_sub(batch_began_ns) >= SLOW_BATCH_NS;
            if was_idle || is_slow || batch % 2 == 0 {
                further.sent += self.send(further.now_ns)?;
            }
            batch_began_ns = further.now_ns;
            let packets = self.receive(batch_began_ns, handler)?;
            further.received += packets;
            if packets > 0 {
                further.now_ns = self.clock.now_ns();
            }
            if packets < BATCH_PACKETS {
                break;
            }
        }
        Ok(further)
    }

    /// Takes a batch of packets; says how many there were.
    #[inline(always)]
    fn receive(
        &mut self,
        now_ns: u64,
        handler: &mut impl for<'p> EventHandler<'p, W::Address>,
    ) -> io::Result<usize> {
        let packets_max = if self.endpoint.serves_many() {
            self.look_ahead()
        } else {
            BATCH_PACKETS
        };
        let endpoint = &mut self.endpoint;
        if self.batched_clock == ShortCut::Off || !endpoint.is_bare() {
            return self.receive_guarded(now_ns, packets_max, handler);
        }
        endpoint.begin_receiving(now_ns, self.emptied_ns);
        let packets = self.wire.receive(packets_max, |arrival| {
            endpoint.receive_bare(origin_of(&arrival), arrival.bytes, handler);
        })?;
        if packets < BATCH_PACKETS {
            self.emptied_ns = now_ns;
        }
        Ok(packets)
    }

    /// Has what the next requests need fetched into this core's caches: first their sessions, all at once, and then their slots. Says how
    /// many packets to take next.
    #[inline(never)]
    fn look_ahead(&mut self) -> usize {
        let (endpoint, wire) = (&self.endpoint, &mut self.wire);
        match wire.look_ahead(BATCH_PACKETS, |first| endpoint.fetch_session(first)) {
            0 => BATCH_PACKETS,
            // No more than these: the place of the next packet was looked at, and its sender is about to write to it.
            packets => {
                wire.look_ahead(packets, |first| endpoint.fetch_slot(first));
                packets
            }
        }
    }

    /// The same, where packets carry a check or a seal, or the clock is looked at for each.
    #[inline(never)]
    fn receive_guarded(
        &mut self,
        now_ns: u64,
        packets_max: usize,
        handler: &mut impl for<'p> EventHandler<'p, W::Address>,
    ) -> io::Result<usize> {
        let (endpoint, clock, batched) = (&mut self.endpoint, &mut self.clock, self.batched_clock);
        let since_ns = self.emptied_ns;
        endpoint.begin_receiving(now_ns, since_ns);
        let packets = self.wire.receive(packets_max, |arrival| {
            if batched == ShortCut::Off {
                endpoint.begin_receiving(clock.now_ns(), since_ns);
            }
            endpoint.receive_to(origin_of(&arrival), arrival.bytes, handler);
        })?;
        if packets < BATCH_PACKETS {
            self.emptied_ns = now_ns;
        }
        Ok(packets)
    }

    /// Sends what was asked for since the last turn, without looking for packets first; says how many packets went.
    ///
    /// # Errors
    /// If the wire is of no use any more.
    pub fn transmit(&mut self) -> io::Result<usize> {
        let now_ns = self.clock.now_ns();
        self.send(now_ns)
    }

    #[inline(always)]
    fn send(&mut self, now_ns: u64) -> io::Result<usize> {
        if self.endpoint.is_any_packet() {
            return self.send_packets(now_ns);
        }
        self.wire.flush()?;
        Ok(0)
    }

    #[inline(never)]
    fn send_packets(&mut self, now_ns: u64) -> io::Result<usize> {
        let room = self.wire.transmit_room();
        let wire = &mut self.wire;
        let sent = match self.batched_clock {
            ShortCut::On => self.endpoint.transmit_to(now_ns, room, WireSink(wire)),
            ShortCut::Off => send_one_by_one(&mut self.endpoint, &mut self.clock, wire, room),
        };
        self.wire.flush()?;
        Ok(sent)
    }

    /// Sleeps until something is to be done: until a packet comes, or a timer is due, or so long.
    ///
    /// # Errors
    /// If the wire is of no use any more.
    pub fn wait(&mut self, at_most: Duration) -> io::Result<()> {
        let now_ns = self.clock.now_ns();
        let due = self.endpoint.wake_at();
        let until_due = due.map_or(at_most, |due_ns| {
            Duration::from_nanos(due_ns.saturating_sub(now_ns))
        });
        let pause = until_due.min(at_most);
        if pause.is_zero() {
            return Ok(());
        }
        self.wire.wait(Some(pause))
    }
}

/// What the wire said of a packet.
#[inline(always)]
fn origin_of<A: Copy>(arrival: &Arrival<'_, A>) -> PacketOrigin<A> {
    let mark = if arrival.congested {
        Mark::Congested
    } else {
        Mark::None
    };
    PacketOrigin {
        from: arrival.from,
        mark,
    }
}

/// Hands packets to the wire.
struct WireSink<'w, W>(&'w mut W);

impl<W: Wire> PacketSink<W::Address> for WireSink<'_, W> {
    #[inline(never)]
    fn packet(&mut self, to: W::Address, head: &[u8], payload: &[u8]) {
        self.0.transmit_part(to, head, payload);
    }

    #[inline(always)]
    fn whole<const BYTES: usize>(&mut self, to: W::Address, head: &[u8; BYTES], payload: &[u8]) {
        self.0.transmit(to, head, payload);
    }
}

/// Sends with a look at the clock for each packet.
fn send_one_by_one<W: Wire>(
    endpoint: &mut Endpoint<W::Address>,
    clock: &mut impl Clock,
    wire: &mut W,
    packets_max: usize,
) -> usize {
    let mut sent = 0;
    while sent < packets_max {
        let now_ns = clock.now_ns();
        let more = endpoint.transmit_to(now_ns, 1, WireSink(&mut *wire));
        if more == 0 {
            break;
        }
        sent += more;
    }
    sent
}
