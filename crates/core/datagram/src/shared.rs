//! What all sessions of an endpoint share: time, queues, timers, memory.

use std::collections::{BTreeSet, VecDeque};

use crate::buffer::Pool;
use crate::clock::Clock;
use crate::config::Config;
use crate::event::Event;
use crate::flight::Flight;
use crate::handshake::{CONTROL_BYTES_MAX, Secrets};
use crate::packet::{Flags, Head, Header};
use crate::seal::{Keyring, Seal, Security};
use crate::statistics::Statistics;
use crate::wheel::Wheel;

/// Answers of session management that may wait; more are dropped, and asked for again.
const CONTROL_PACKETS_MAX: usize = 1024;
/// Buckets of the timing wheel that paces packets, each about a microsecond.
const PACING_BUCKETS: usize = 8192;
const PACING_BUCKET_NS: u64 = 1_024;

/// A packet to send, by name. The memory is looked up when it goes out, and not if the call has moved on by then, so
/// that no queue ever refers to a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) call: u32,
    pub(crate) session: u16,
    pub(crate) packet: u16,
    pub(crate) slot: u8,
    pub(crate) what: What,
    pub(crate) flags: Flags,
}

impl Outgoing {
    const NONE: Outgoing = Outgoing {
        call: 0,
        session: 0,
        packet: 0,
        slot: 0,
        what: What::Request,
        flags: Flags::NONE,
    };
}

/// Packets to send, in order. It grows only if sessions end by the hundred before anything they had queued is sent.
#[derive(Debug)]
pub(crate) struct Queue {
    /// A power of two of them.
    items: Box<[Outgoing]>,
    first: usize,
    length: usize,
}

impl Queue {
    fn new(capacity: usize) -> Self {
        Self {
            items: vec![Outgoing::NONE; capacity.next_power_of_two()].into_boxed_slice(),
            first: 0,
            length: 0,
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    #[inline]
    pub(crate) fn push(&mut self, outgoing: Outgoing) {
        if self.length == self.items.len() {
            self.grow();
        }
        let last = (self.first + self.length) & (self.items.len() - 1);
        if let Some(place) = self.items.get_mut(last) {
            *place = outgoing;
            self.length += 1;
        }
    }

    #[cold]
    fn grow(&mut self) {
        self.items.rotate_left(self.first);
        self.first = 0;
        let mut items = std::mem::take(&mut self.items).into_vec();
        items.resize(2 * items.len(), Outgoing::NONE);
        self.items = items.into_boxed_slice();
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Outgoing> {
        if self.length == 0 {
            return None;
        }
        let outgoing = self.items.get(self.first).copied();
        self.first = (self.first + 1) & (self.items.len() - 1);
        self.length -= 1;
        outgoing
    }

    /// All that wait, in order.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Outgoing> {
        let (before, from_first) = self.items.split_at(self.first);
        from_first.iter().chain(before).take(self.length)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Request,
    RequestForResponse,
    CreditReturn,
    Response,
}

/// A packet of session management.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control<A> {
    pub(crate) to: A,
    pub(crate) head: Head,
    pub(crate) payload: [u8; CONTROL_BYTES_MAX],
    pub(crate) payload_bytes: usize,
}

/// What all sessions share.
#[derive(Debug)]
pub(crate) struct Shared<A> {
    pub(crate) config: Config,
    pub(crate) clock: Clock,
    pub(crate) statistics: Statistics,
    pub(crate) events: VecDeque<Event<'static>>,
    pub(crate) outgoing: Queue,
    pub(crate) pacing: Wheel<Outgoing>,
    pub(crate) control: VecDeque<Control<A>>,
    pub(crate) timers: Timers,
    pub(crate) pool: Pool,
    pub(crate) secrets: Secrets,
    /// Where sessions are sealed.
    pub(crate) keyring: Option<Keyring>,
    /// A packet that is being sealed or unsealed.
    pub(crate) sealing: Vec<u8>,
    /// Spare ones. They stay in their boxes, for the slots hold those.
    #[expect(clippy::vec_box, reason = "moving a box is cheaper than moving two kilobytes")]
    flights: Vec<Box<Flight>>,
}

impl<A: Copy> Shared<A> {
    pub(crate) fn new(mut config: Config) -> Self {
        let keyring = match &mut config.security {
            Security::Plain => None,
            Security::Sealed(sealing) => {
                let keyring = Keyring::new(sealing);
                // Whoever reads this memory later learns nothing about keys of the past.
                sealing.seed = Default::default();
                Some(keyring)
            }
        };
        Self {
            keyring,
            sealing: Vec::with_capacity(config.packet_bytes_max),
            clock: Clock::new(config.stall_ns),
            statistics: Statistics::default(),
            events: VecDeque::new(),
            outgoing: Queue::new(config.transmit_queue_packets),
            pacing: Wheel::new(
                PACING_BUCKET_NS,
                PACING_BUCKETS,
                config.receive_ring_packets as usize,
            ),
            control: VecDeque::with_capacity(16),
            timers: Timers::new(config.sessions_max),
            pool: Pool::new(config.assembly_bytes_max),
            secrets: Secrets::new(config.secret),
            flights: Vec::new(),
            config,
        }
    }

    /// The next packet to send: one whose time has come, else the first of the queue.
    #[inline]
    pub(crate) fn next_outgoing(&mut self, now_ns: u64) -> Option<Outgoing> {
        match self.pacing.pop_due(now_ns) {
            Some(outgoing) => Some(outgoing),
            None => self.outgoing.pop(),
        }
    }

    /// Queues a packet that holds a credit. There are no more of them than credits.
    #[inline]
    pub(crate) fn send(&mut self, outgoing: Outgoing) {
        self.outgoing.push(outgoing);
    }

    /// Queues an answer. Whoever waits for it asks again if there is no room.
    #[inline]
    pub(crate) fn answer(&mut self, outgoing: Outgoing) {
        if self.outgoing.len() < self.config.transmit_queue_packets {
            self.outgoing.push(outgoing);
        } else {
            self.statistics.dropped.room += 1;
        }
    }

    pub(crate) fn control(&mut self, to: A, header: &Header, payload: &[u8]) {
        if self.control.len() >= CONTROL_PACKETS_MAX {
            self.statistics.dropped.room += 1;
            return;
        }
        let mut control = Control {
            to,
            head: Head::bare(header),
            payload: [0; CONTROL_BYTES_MAX],
            payload_bytes: payload.len(),
        };
        control.payload[..payload.len()].copy_from_slice(payload);
        self.control.push_back(control);
    }

    /// Queues a packet of session management of a session, sealed if that is.
    pub(crate) fn control_of(&mut self, seal: Option<&mut Seal>, to: A, header: &Header) {
        let Some(seal) = seal else {
            return self.control(to, header, &[]);
        };
        let mut body = std::mem::take(&mut self.sealing);
        body.clear();
        seal.seal(&header.encode(), &[], &[], &mut body);
        self.control(to, header, &body);
        self.sealing = body;
    }

    pub(crate) fn flight(&mut self, first: u32, total: u32) -> Box<Flight> {
        let mut flight = self.flights.pop().unwrap_or_else(|| Box::new(Flight::new()));
        flight.begin(first, total);
        flight
    }

    pub(crate) fn land(&mut self, flight: Option<Box<Flight>>) {
        self.flights.extend(flight);
    }
}

/// Entries of one session in the timer wheels at most.
const TIMER_ENTRIES_MAX: u8 = 4;
const FINE_BUCKET_NS: u64 = 8_192;
const FINE_BUCKETS: usize = 8_192;
const COARSE_BUCKET_NS: u64 = 16_777_216;
const COARSE_BUCKETS: usize = 4_096;

/// One timer for each session. It is lazy: it fires at the earliest time it was ever set to, and whoever owns it then
/// looks what is due, so that a call that is answered in time costs no work.
#[derive(Debug)]
pub(crate) struct Timers {
    fine: Wheel<u16>,
    coarse: Wheel<u16>,
    timers: Vec<Timer>,
    /// Timers that found no room in the wheels: sessions that ended have left their number's entries there. At most one
    /// for each session.
    crowded: BTreeSet<(u64, u16)>,
}

#[derive(Clone, Copy, Debug)]
struct Timer {
    at_ns: u64,
    entries: u8,
}

/// A time that never comes.
pub(crate) const NEVER: u64 = u64::MAX;

impl Timers {
    fn new(sessions: usize) -> Self {
        let entries = sessions * usize::from(TIMER_ENTRIES_MAX);
        Self {
            fine: Wheel::new(FINE_BUCKET_NS, FINE_BUCKETS, entries),
            coarse: Wheel::new(COARSE_BUCKET_NS, COARSE_BUCKETS, entries),
            timers: vec![
                Timer {
                    at_ns: NEVER,
                    entries: 0
                };
                sessions
            ],
            crowded: BTreeSet::new(),
        }
    }

    /// Has the session's timer fire at this time, if it would not before.
    #[inline]
    pub(crate) fn arm(&mut self, session: u16, now_ns: u64, at_ns: u64) {
        if at_ns < self.timers[usize::from(session)].at_ns {
            self.insert(session, now_ns, at_ns);
        }
    }

    fn insert(&mut self, session: u16, now_ns: u64, at_ns: u64) {
        self.uncrowd(session);
        let timer = &mut self.timers[usize::from(session)];
        if timer.entries >= TIMER_ENTRIES_MAX {
            timer.at_ns = at_ns;
            self.crowded.insert((at_ns, session));
            return;
        }
        let is_near = at_ns.saturating_sub(now_ns) < self.fine.horizon_ns() / 2;
        let wheel = if is_near { &mut self.fine } else { &mut self.coarse };
        if wheel.insert(now_ns, at_ns, session).is_ok() {
            timer.entries += 1;
            timer.at_ns = at_ns;
        }
    }

    /// Forgets when the timer was to fire: the session's number is free.
    pub(crate) fn disarm(&mut self, session: u16) {
        self.uncrowd(session);
        self.timers[usize::from(session)].at_ns = NEVER;
    }

    #[inline]
    fn uncrowd(&mut self, session: u16) {
        if !self.crowded.is_empty() {
            let at_ns = self.timers[usize::from(session)].at_ns;
            self.crowded.remove(&(at_ns, session));
        }
    }

    #[inline]
    fn pop_crowded(&mut self, now_ns: u64) -> Option<u16> {
        let due = self.crowded.first().is_some_and(|(at_ns, _)| *at_ns <= now_ns);
        let (_, session) = due.then(|| self.crowded.pop_first()).flatten()?;
        self.timers[usize::from(session)].at_ns = NEVER;
        Some(session)
    }

    /// A session whose timer has fired. It is not set any longer.
    pub(crate) fn pop_due(&mut self, now_ns: u64) -> Option<u16> {
        if let Some(session) = self.pop_crowded(now_ns) {
            return Some(session);
        }
        loop {
            let session = self
                .fine
                .pop_due(now_ns)
                .or_else(|| self.coarse.pop_due(now_ns))?;
            let timer = &mut self.timers[usize::from(session)];
            timer.entries -= 1;
            let at_ns = timer.at_ns;
            if at_ns <= now_ns {
                self.disarm(session);
                return Some(session);
            }
            if timer.entries == 0 && at_ns != NEVER {
                self.insert(session, now_ns, at_ns);
            }
        }
    }

    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        let crowded_ns = self.crowded.first().map(|(at_ns, _)| *at_ns);
        [self.fine.next_due_ns(), self.coarse.next_due_ns(), crowded_ns]
            .into_iter()
            .flatten()
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_fires_once_at_the_earliest_time_it_was_set_to() {
        let mut timers = Timers::new(2);
        timers.arm(1, 0, 5_000_000);
        timers.arm(1, 0, 1_000_000);
        timers.arm(1, 0, 9_000_000);
        assert_eq!(timers.pop_due(900_000), None);
        assert_eq!(timers.pop_due(1_010_000), Some(1));
        assert_eq!(
            timers.pop_due(20_000_000),
            None,
            "what is left in the wheel is stale"
        );
        timers.arm(1, 20_000_000, 90_000_000_000);
        assert_eq!(
            timers.pop_due(80_000_000_000),
            None,
            "beyond the horizon it is set again"
        );
        assert_eq!(timers.pop_due(90_100_000_000), Some(1));
    }

    #[test]
    fn a_number_whose_sessions_ended_one_after_the_other_still_has_a_timer() {
        let mut timers = Timers::new(2);
        for _ in 0..2 * TIMER_ENTRIES_MAX {
            timers.arm(1, 0, 60_000_000_000);
            timers.disarm(1);
        }
        timers.arm(1, 0, 9_000_000);
        timers.arm(1, 0, 1_000_000);
        assert_eq!(timers.next_due_ns(), Some(1_000_000));
        assert_eq!(timers.pop_due(900_000), None);
        assert_eq!(timers.pop_due(1_010_000), Some(1));
        assert_eq!(timers.pop_due(50_000_000_000), None, "it fires once");
        timers.arm(1, 50_000_000_000, 51_000_000_000);
        timers.disarm(1);
        assert_eq!(timers.pop_due(59_000_000_000), None, "it was forgotten");
        timers.arm(1, 59_000_000_000, 70_000_000_000);
        assert_eq!(timers.pop_due(69_000_000_000), None, "all stale entries are gone");
        assert_eq!(timers.pop_due(70_100_000_000), Some(1));
    }

    #[test]
    fn a_queue_keeps_its_order_also_when_it_grows() {
        let mut queue = Queue::new(4);
        let (mut pushed, mut popped) = (0, 0);
        for (push, pop) in [(3, 2), (3, 1), (9, 4), (30, 35), (2, 3)] {
            for _ in 0..push {
                queue.push(Outgoing {
                    call: pushed,
                    ..Outgoing::NONE
                });
                pushed += 1;
            }
            for _ in 0..pop {
                assert_eq!(queue.pop().map(|outgoing| outgoing.call), Some(popped));
                popped += 1;
            }
        }
        assert_eq!((queue.len(), queue.pop().is_none()), (2, false));
    }
}
