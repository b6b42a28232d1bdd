//! What all sessions of an endpoint share: time, queues, timers, memory.

use std::collections::{BTreeSet, VecDeque};

use crate::buffer::Pool;
use crate::checksum::Checking;
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
/// Those for which there is room from the beginning.
const CONTROL_PACKETS_EXPECTED: usize = 4;
/// Answers in about a millisecond to packets whose senders have shown nothing that only a client of this endpoint knows.
const STRANGERS_PER_MS_MAX: u32 = 512;
const MS_SHIFT: u32 = 20;
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

    /// The first packet of what a slot has to send, which says nothing beside.
    pub(crate) fn first_of((session, slot): (u16, u8), call: u32, what: What) -> Outgoing {
        Outgoing {
            call,
            session,
            slot,
            what,
            ..Outgoing::NONE
        }
    }
}

/// Sessions with messages of one packet that go out at once, in the order in which they got the first of these. It is the common
/// case: which slots have such a message is one bit each in their session, so that a session is looked up once for all of them. All
/// sessions leave the queue, or nearly so, before new ones come: so they lie one after the other, and their places are used again when
/// none is left.
#[derive(Debug)]
pub(crate) struct WholeQueue {
    sessions: Vec<u16>,
    /// The first that waits.
    first: usize,
}

impl WholeQueue {
    fn new(capacity: usize) -> Self {
        Self {
            sessions: Vec::with_capacity(capacity),
            first: 0,
        }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.sessions.len() == self.first
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, session: u16) {
        if self.sessions.len() == self.sessions.capacity() {
            return self.make_room_and_push(session);
        }
        self.sessions.push(session);
    }

    #[cold]
    fn make_room_and_push(&mut self, session: u16) {
        self.sessions.drain(..self.first);
        self.first = 0;
        self.sessions.push(session);
    }

    /// The session whose turn it is.
    #[inline(always)]
    pub(crate) fn first(&self) -> Option<u16> {
        self.sessions.get(self.first).copied()
    }

    /// The session whose turn it was has nothing more to send.
    #[inline(always)]
    pub(crate) fn pass(&mut self) {
        self.first += 1;
        if self.first >= self.sessions.len() {
            self.sessions.clear();
            self.first = 0;
        }
    }
}

/// Takes the lowest slot out of a set of them, one bit each.
#[inline(always)]
pub(crate) fn lowest_of(slots: &mut u32) -> Option<u8> {
    if *slots == 0 {
        return None;
    }
    let lowest = slots.trailing_zeros() as u8;
    *slots &= *slots - 1;
    Some(lowest)
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

    /// As large as a new one of this capacity, if nothing waits in it.
    fn shrink_to(&mut self, capacity: usize) {
        if self.is_empty() && self.items.len() > capacity.next_power_of_two() {
            *self = Queue::new(capacity);
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

    #[inline(always)]
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

    #[inline(always)]
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
#[derive(Clone, Debug)]
pub(crate) struct Control<A> {
    pub(crate) to: A,
    pub(crate) head: Head,
    payload: [u8; CONTROL_BYTES_MAX],
    payload_bytes: usize,
    /// The payload, where it is longer than that. Few packets have one.
    large: Option<Box<[u8]>>,
}

impl<A> Control<A> {
    pub(crate) fn payload(&self) -> &[u8] {
        match &self.large {
            Some(large) => large,
            None => &self.payload[..self.payload_bytes],
        }
    }
}

/// What packets of an endpoint's sessions carry so that nobody changes them unnoticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketGuard {
    Bare,
    /// They carry a check of their own.
    Checked,
    /// They are sealed, and perhaps carry a check as well.
    Sealed,
}

impl PacketGuard {
    fn of(config: &Config) -> PacketGuard {
        match (&config.security, config.checking) {
            (Security::Sealed(_), _) => PacketGuard::Sealed,
            (Security::Plain, Checking::Wire) => PacketGuard::Bare,
            (Security::Plain, Checking::Packets | Checking::Crc32c) => PacketGuard::Checked,
        }
    }
}

/// What all sessions share.
#[derive(Debug)]
pub(crate) struct Shared<A> {
    pub(crate) config: Config,
    pub(crate) guard: PacketGuard,
    pub(crate) clock: Clock,
    pub(crate) statistics: Statistics,
    pub(crate) events: VecDeque<Event<'static>>,
    pub(crate) outgoing: Queue,
    /// Sessions with messages of one packet. These go before the others.
    pub(crate) whole: WholeQueue,
    pub(crate) pacing: Wheel<Outgoing>,
    pub(crate) control: VecDeque<Control<A>>,
    /// A millisecond, and how many strangers were answered in it.
    strangers: (u64, u32),
    pub(crate) timers: Timers,
    pub(crate) pool: Pool,
    pub(crate) secrets: Secrets,
    /// Where sessions are sealed.
    pub(crate) keyring: Option<Keyring>,
}

impl<A: Copy> Shared<A> {
    pub(crate) fn new(mut config: Config) -> Self {
        config.message_bytes_max = config.message_bytes_taken();
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
            guard: PacketGuard::of(&config),
            keyring,
            clock: Clock::new(config.stall_ns),
            statistics: Statistics::default(),
            events: VecDeque::new(),
            outgoing: Queue::new(config.transmit_queue_packets),
            whole: WholeQueue::new(config.transmit_queue_packets.min(config.sessions_max)),
            pacing: Wheel::new(
                PACING_BUCKET_NS,
                PACING_BUCKETS,
                config.receive_ring_packets as usize,
            ),
            control: VecDeque::with_capacity(CONTROL_PACKETS_EXPECTED),
            strangers: (0, 0),
            timers: Timers::new(config.sessions_max),
            pool: Pool::new(config.assembly_bytes_max),
            secrets: Secrets::new(config.secret),
            config,
        }
    }

    /// The next packet to send: one whose time has come, else the first of the queue.
    #[inline(always)]
    pub(crate) fn next_outgoing(&mut self, now_ns: u64) -> Option<Outgoing> {
        match self.pacing.pop_due(now_ns) {
            Some(outgoing) => Some(outgoing),
            None => self.outgoing.pop(),
        }
    }

    /// Whether other packets than whole messages wait, perhaps for their time.
    #[inline(always)]
    pub(crate) fn is_any_outgoing(&self) -> bool {
        !self.outgoing.is_empty() || !self.pacing.is_empty()
    }

    pub(crate) fn shrink_queues(&mut self) {
        if self.events.is_empty() {
            self.events = VecDeque::new();
        }
        self.control.shrink_to(CONTROL_PACKETS_EXPECTED);
        self.pacing.shrink();
        self.outgoing.shrink_to(self.config.transmit_queue_packets);
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

    /// Queues an answer to somebody who has shown nothing yet: no more than so many in a millisecond, so that a flood of such
    /// packets costs neither the wire nor the sessions' own answers.
    pub(crate) fn answer_stranger(&mut self, to: A, header: &Header, payload: &[u8]) {
        let millisecond = self.clock.now_ns() >> MS_SHIFT;
        if self.strangers.0 != millisecond {
            self.strangers = (millisecond, 0);
        }
        if self.strangers.1 >= STRANGERS_PER_MS_MAX {
            self.statistics.dropped.strangers += 1;
            return;
        }
        self.strangers.1 += 1;
        self.control(to, header, payload);
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
            large: None,
        };
        match control.payload.get_mut(..payload.len()) {
            Some(place) => place.copy_from_slice(payload),
            None => control.large = Some(payload.into()),
        }
        self.control.push_back(control);
    }

    /// Queues a packet of session management that is lengthened by so many bytes, sealed if its session is.
    pub(crate) fn control_lengthened(
        &mut self,
        seal: Option<&mut Seal>,
        to: A,
        (header, more_bytes): (&Header, usize),
    ) {
        let zeros = vec![0; more_bytes];
        let Some(seal) = seal else {
            return self.control(to, header, &zeros);
        };
        let mut body = std::mem::take(&mut self.pool.spares.lists.sealing);
        seal.seal(&header.encode(), &[], &zeros, &mut body);
        self.control(to, header, &body);
        self.pool.spares.lists.sealing = body;
    }

    /// Queues a packet of session management of a session, sealed if that is.
    pub(crate) fn control_of(&mut self, seal: Option<&mut Seal>, to: A, header: &Header) {
        let Some(seal) = seal else {
            return self.control(to, header, &[]);
        };
        let mut body = std::mem::take(&mut self.pool.spares.lists.sealing);
        seal.seal(&header.encode(), &[], &[], &mut body);
        self.control(to, header, &body);
        self.pool.spares.lists.sealing = body;
    }

    pub(crate) fn flight(&mut self, first: u32, total: u32) -> Box<Flight> {
        let mut flight = self.pool.spares.flight();
        flight.begin(first, total);
        flight
    }

    pub(crate) fn land(&mut self, flight: Option<Box<Flight>>) {
        self.pool.spares.land(flight);
    }
}

/// Entries of one session in either timer wheel at most.
const TIMER_ENTRIES_MAX: u8 = 3;
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
    /// Timers that found no room in their wheel: sessions that ended have left their number's entries there. At most one
    /// for each session and wheel.
    crowded: BTreeSet<(u64, u16)>,
    watched: Watched,
    /// Nothing fires before this, so that most looks end here.
    quiet_until_ns: u64,
}

/// Sessions with a call that went out lately, one bit each. Nearly all such calls end before any of them can time out,
/// and then cost the wheels nothing; the others go there when the first could.
#[derive(Debug)]
struct Watched {
    bits: Box<[u64]>,
    /// When the first could time out; [`NEVER`] if none was watched since the last look.
    look_ns: u64,
    /// The word from which on a look goes on.
    looking_at: Option<usize>,
}

impl Watched {
    fn new(sessions: usize) -> Self {
        Self {
            bits: vec![0; sessions.div_ceil(64)].into_boxed_slice(),
            look_ns: NEVER,
            looking_at: None,
        }
    }

    #[inline]
    fn insert(&mut self, session: u16, at_ns: u64) {
        self.bits[usize::from(session) / 64] |= 1 << (session % 64);
        self.look_ns = self.look_ns.min(at_ns);
    }

    #[inline]
    fn remove(&mut self, session: u16) {
        self.bits[usize::from(session) / 64] &= !(1 << (session % 64));
    }

    /// A session that is to be looked at, if it is time for that.
    #[inline]
    fn pop_due(&mut self, now_ns: u64) -> Option<u16> {
        if self.look_ns <= now_ns {
            (self.look_ns, self.looking_at) = (NEVER, Some(0));
        }
        self.looking_at.and_then(|word| self.pop_from(word))
    }

    fn pop_from(&mut self, from: usize) -> Option<u16> {
        let ahead = self.bits[from..].iter().position(|word| *word != 0);
        self.looking_at = ahead.map(|ahead| from + ahead);
        let at = self.looking_at?;
        let bit = self.bits[at].trailing_zeros();
        self.bits[at] &= self.bits[at] - 1;
        Some((at * 64) as u16 + bit as u16)
    }
}

/// What of a session is in the two wheels. A session that is idle between its calls waits in the coarse one all along,
/// so that the next call has the fine one to itself.
#[derive(Clone, Copy, Debug)]
struct Timer {
    fine: Waiting,
    coarse: Waiting,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// When the timer fires by this wheel; [`NEVER`] if not.
    at_ns: u64,
    /// Entries in the wheel: the last of them, where there are several, are what an earlier one was set before.
    entries: u8,
}

impl Waiting {
    const NO: Waiting = Waiting {
        at_ns: NEVER,
        entries: 0,
    };
}

/// A time that never comes.
pub(crate) const NEVER: u64 = u64::MAX;

impl Timers {
    fn new(sessions: usize) -> Self {
        let entries = sessions * usize::from(TIMER_ENTRIES_MAX);
        let timer = Timer {
            fine: Waiting::NO,
            coarse: Waiting::NO,
        };
        Self {
            fine: Wheel::new(FINE_BUCKET_NS, FINE_BUCKETS, entries),
            coarse: Wheel::new(COARSE_BUCKET_NS, COARSE_BUCKETS, entries),
            timers: vec![timer; sessions],
            crowded: BTreeSet::new(),
            watched: Watched::new(sessions),
            quiet_until_ns: NEVER,
        }
    }

    /// As [`Timers::arm`], for a call that most likely ends before.
    #[inline(always)]
    pub(crate) fn watch(&mut self, session: u16, at_ns: u64) {
        let timer = &self.timers[usize::from(session)];
        if at_ns < timer.fine.at_ns && at_ns < timer.coarse.at_ns {
            self.quiet_until_ns = self.quiet_until_ns.min(at_ns);
            self.watched.insert(session, at_ns);
        }
    }

    /// All calls of the session have ended: there is nothing to look at before its timer fires.
    #[inline(always)]
    pub(crate) fn rest(&mut self, session: u16) {
        self.watched.remove(session);
    }

    /// Whether the session's timer fires at any time.
    pub(crate) fn is_set(&self, session: u16) -> bool {
        let timer = &self.timers[usize::from(session)];
        timer.fine.at_ns != NEVER || timer.coarse.at_ns != NEVER
    }

    /// Has the session's timer fire at this time, if it would not before.
    #[inline]
    pub(crate) fn arm(&mut self, session: u16, now_ns: u64, at_ns: u64) {
        let timer = &self.timers[usize::from(session)];
        if at_ns < timer.fine.at_ns && at_ns < timer.coarse.at_ns {
            self.insert(session, now_ns, at_ns);
        }
    }

    fn insert(&mut self, session: u16, now_ns: u64, at_ns: u64) {
        self.quiet_until_ns = self.quiet_until_ns.min(at_ns);
        let timer = &mut self.timers[usize::from(session)];
        let is_near = at_ns.saturating_sub(now_ns) < self.fine.horizon_ns() / 2;
        let (wheel, waiting) = if is_near {
            (&mut self.fine, &mut timer.fine)
        } else {
            (&mut self.coarse, &mut timer.coarse)
        };
        waiting.uncrowd(&mut self.crowded, session);
        waiting.at_ns = at_ns;
        let has_room = waiting.entries < TIMER_ENTRIES_MAX;
        if has_room && wheel.insert(now_ns, at_ns, session).is_ok() {
            waiting.entries += 1;
        } else {
            self.crowded.insert((at_ns, session));
        }
    }

    /// Forgets when the timer was to fire: the session's number is free.
    pub(crate) fn disarm(&mut self, session: u16) {
        let timer = &mut self.timers[usize::from(session)];
        for waiting in [&mut timer.fine, &mut timer.coarse] {
            waiting.uncrowd(&mut self.crowded, session);
            waiting.at_ns = NEVER;
        }
        self.watched.remove(session);
    }

    #[inline]
    fn pop_crowded(&mut self, now_ns: u64) -> Option<u16> {
        let due = self.crowded.first().is_some_and(|(at_ns, _)| *at_ns <= now_ns);
        let (due_ns, session) = due.then(|| self.crowded.pop_first()).flatten()?;
        let timer = &mut self.timers[usize::from(session)];
        for waiting in [&mut timer.fine, &mut timer.coarse] {
            if waiting.at_ns == due_ns {
                waiting.at_ns = NEVER;
            }
        }
        Some(session)
    }

    /// A session whose timer has fired, or that is watched and has to be looked at. The timer is not set any longer, but
    /// for what it may wait for in the coarse wheel.
    pub(crate) fn pop_due(&mut self, now_ns: u64) -> Option<u16> {
        let popped = self.pop_first_due(now_ns);
        if popped.is_none() {
            self.quiet_until_ns = self.next_due_ns().unwrap_or(NEVER);
        }
        popped
    }

    /// Whether [`Timers::pop_due`] is worth a look.
    #[inline(always)]
    pub(crate) fn may_be_due(&self, now_ns: u64) -> bool {
        now_ns >= self.quiet_until_ns
    }

    fn pop_first_due(&mut self, now_ns: u64) -> Option<u16> {
        if let Some(session) = self.watched.pop_due(now_ns) {
            return Some(session);
        }
        if let Some(session) = self.pop_crowded(now_ns) {
            return Some(session);
        }
        while let Some(session) = self.fine.pop_due(now_ns) {
            let waiting = &mut self.timers[usize::from(session)].fine;
            match waiting.popped(&mut self.crowded, session, now_ns) {
                Popped::Due => return Some(session),
                Popped::Later(at_ns) => self.arm(session, now_ns, at_ns),
                Popped::Stale => {}
            }
        }
        while let Some(session) = self.coarse.pop_due(now_ns) {
            let waiting = &mut self.timers[usize::from(session)].coarse;
            match waiting.popped(&mut self.crowded, session, now_ns) {
                Popped::Due => return Some(session),
                Popped::Later(at_ns) => self.arm(session, now_ns, at_ns),
                Popped::Stale => {}
            }
        }
        None
    }

    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        let crowded_ns = self.crowded.first().map(|(at_ns, _)| *at_ns);
        let watched_ns = (self.watched.look_ns != NEVER).then_some(self.watched.look_ns);
        let due_ns = [self.fine.next_due_ns(), self.coarse.next_due_ns()];
        due_ns.into_iter().chain([crowded_ns, watched_ns]).flatten().min()
    }
}

/// What an entry that came out of a wheel means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Popped {
    /// The timer fires.
    Due,
    /// It was the last one, and the timer fires at this time.
    Later(u64),
    /// Nothing.
    Stale,
}

impl Waiting {
    #[inline]
    fn popped(&mut self, crowded: &mut BTreeSet<(u64, u16)>, session: u16, now_ns: u64) -> Popped {
        self.entries -= 1;
        let at_ns = self.at_ns;
        if at_ns > now_ns && (self.entries > 0 || at_ns == NEVER) {
            return Popped::Stale;
        }
        self.uncrowd(crowded, session);
        self.at_ns = NEVER;
        if at_ns <= now_ns {
            Popped::Due
        } else {
            Popped::Later(at_ns)
        }
    }

    #[inline]
    fn uncrowd(&self, crowded: &mut BTreeSet<(u64, u16)>, session: u16) {
        if !crowded.is_empty() {
            crowded.remove(&(self.at_ns, session));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_is_idle_between_calls_does_not_lose_its_time_outs() {
        const IDLE_NS: u64 = 10_000_000_000;
        let mut timers = Timers::new(1);
        let mut now_ns = 0;
        for call in 0..100 {
            timers.arm(0, now_ns, now_ns + 1_000_000);
            assert_eq!(timers.pop_due(now_ns + 900_000), None);
            now_ns += 1_010_000;
            assert_eq!(timers.pop_due(now_ns), Some(0), "call {call} times out");
            timers.arm(0, now_ns, now_ns + IDLE_NS);
            assert_eq!(timers.pop_due(now_ns), None);
        }
        assert_eq!(timers.pop_due(IDLE_NS + 40_000_000), Some(0));
    }

    #[test]
    fn only_what_is_still_watched_is_looked_at_when_the_first_could_time_out() {
        let mut timers = Timers::new(200);
        timers.arm(64, 10_000, 10_000_000_000);
        timers.watch(70, 1_000_000);
        timers.watch(64, 900_000);
        timers.watch(199, 1_100_000);
        timers.rest(64);
        assert_eq!(
            (timers.next_due_ns(), timers.pop_due(899_999)),
            (Some(900_000), None)
        );
        assert_eq!(timers.pop_due(900_000), Some(70));
        timers.arm(70, 900_000, 1_000_000);
        // What is watched while others are looked at is not forgotten.
        timers.watch(2, 1_900_000);
        assert_eq!(timers.pop_due(900_000), Some(199));
        assert_eq!(timers.pop_due(900_000), None);
        assert_eq!(timers.pop_due(1_010_000), Some(70));
        timers.disarm(199);
        assert_eq!(timers.pop_due(1_899_999), None);
        assert_eq!(timers.pop_due(1_900_000), Some(2));
        assert_eq!(timers.pop_due(9_000_000_000), None);
        assert_eq!(timers.pop_due(10_040_000_000), Some(64));
    }

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
            for at_ns in [60_000_000_000, 30_000_000] {
                timers.arm(1, 0, at_ns);
                timers.disarm(1);
            }
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
    fn sessions_keep_their_order_where_their_queue_is_never_empty() {
        let mut queue = WholeQueue::new(4);
        let (mut pushed, mut passed) = (0, 0);
        for (push, pass) in [(3, 2), (3, 1), (9, 4), (2, 6), (3, 5)] {
            for _ in 0..push {
                queue.push(pushed);
                pushed += 1;
            }
            for _ in 0..pass {
                assert_eq!(queue.first(), Some(passed));
                queue.pass();
                passed += 1;
            }
            assert_eq!(queue.sessions.len() - queue.first, usize::from(pushed - passed));
        }
        assert_eq!((queue.first(), queue.is_empty()), (Some(18), false));
        queue.pass();
        queue.pass();
        assert_eq!((queue.first(), queue.is_empty()), (None, true));
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
