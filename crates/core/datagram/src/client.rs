//! The client's end of a session. It drives everything: it sends, asks, measures, paces, and makes good what is lost.
//!
//! ```text
//!   Idle ──► Request ──► Response ──► Idle
//!               │  (a response of one packet ends the call at once)
//!               └───────────────────► Idle
//! ```

mod path;
mod transfer;
mod whole;

use std::collections::VecDeque;

use provost_registered::Array;

use crate::buffer::MsgBuf;
use crate::config::{Recovery, ResponseBuffers, SLOTS_MAX, ShortCut};
use crate::congestion::{Controller, Sample};
use crate::event::{Call, CallError, Completion, EndReason, Event, SessionId};
use crate::flight::{Flight, WINDOW_PACKETS, Window};
use crate::handshake::MarkUse;
use crate::packet::{
    ArrivedData, DataHead, Flags, HELD_UNIT_NS, Head, Header, Kind, MESSAGE_PACKETS_MAX, NO_WORD, PacketSize,
    PayloadSizes, Piece, Prefix,
};
use crate::rtt::RoundTrips;
use crate::seal::{Seal, Share};
use crate::server::{packets_of, payload_of};
use crate::shared::{NEVER, Outgoing, Shared, What};

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Asked for, with this cookie, so often.
    Opening { cookie: u64, attempts: u8 },
    /// Calls go on.
    Open,
    /// Calls that were made go on; when they have ended, it is closed.
    Draining,
    /// Over, as far as this end is concerned; so often said.
    Closing { attempts: u8 },
}

/// The client's end of a session. What every call needs is in its first [`CALL_LINES`] cache lines, where addresses are no longer
/// than eight bytes, so that a call of one among thousands of sessions fetches no more than these and two of its slot.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ClientSession<A> {
    slots: Array<ClientSlot>,
    pub(crate) seal: Option<Box<Seal>>,
    pub(crate) heard_ns: u64,
    pub(crate) id: SessionId,
    /// Slots whose request of one packet goes out with the next packets, one bit each.
    pub(crate) leaving: u32,
    /// Bytes of the largest request of one packet.
    whole_bytes_max: u32,
    pub(crate) credits: u16,
    /// A request of one packet goes at once, and asks for no credit return, while more credits than this are free.
    short_way_floor: u16,
    /// Slots that have a call, one bit each.
    busy: u16,
    /// Slots that have something to send and no credit, one bit each.
    starved: u16,
    /// The session's timer fires no later than this; [`NEVER`] if it may not be set.
    timer_ns: u64,

    backlog: VecDeque<Call>,
    pub(crate) state: State,
    pub(crate) credits_total: u16,
    /// Credits of requests that are complete at the server, which has not answered them: they are not in the network.
    credits_held: u16,
    /// The slot that is first to get credits when several have none.
    turn: u8,
    /// In which packets new calls are put.
    size: PacketSize,
    pub(crate) remote: A,

    trips: RoundTrips,
    pub(crate) congestion: Controller,

    pub(crate) remote_token: u32,
    pub(crate) remote_number: u16,
    pacing_bypass: ShortCut,
    pub(crate) sizes: PayloadSizes,
    pub(crate) message_bytes_max: u32,
    transmit_next_ns: u64,
    reordering_scale: u64,
    /// When a full-size packet is tried next, while packets are small.
    probe_due_ns: u64,
    /// A full-size packet was sent since packets are small.
    is_trying_full: bool,
    /// When a full-size packet came back last that was sent to find out whether it does.
    probed_ns: u64,
    pub(crate) nonce: u64,
    pub(crate) asked_ns: u64,
    /// Of the keys of a sealed session that is asked for.
    pub(crate) share: Option<Box<Share>>,
    /// Whether the server tells of marks; it has not said so before it has accepted the session.
    pub(crate) marks: MarkUse,
}

/// Cache lines at the beginning of a session that every call needs.
pub(crate) const CALL_LINES: usize = 3;
const _: () = assert!(std::mem::offset_of!(ClientSession<u64>, backlog) == 64);
const _: () = assert!(std::mem::offset_of!(ClientSession<u64>, trips) == 128);
const _: () =
    assert!(std::mem::offset_of!(ClientSession<u64>, congestion) + Controller::HOT_BYTES == 64 * CALL_LINES);

/// One of the session's concurrent calls: a cache line of buffers, and one of what is known of them.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ClientSlot {
    /// The first words of the only packet of a response, to a request of one packet that was sent once: a packet that begins so
    /// needs no further look. The second is [`NO_WORD`] as long as no such request is out.
    expected: [u64; 2],
    /// The first word of requests.
    request_to: u64,
    request: MsgBuf,
    response: MsgBuf,
    tag: u64,

    sent: Sent,
    /// When the network last did something for this call.
    progress_ns: u64,
    /// When to look for losses again; [`NEVER`] if not.
    look_again_ns: u64,
    flight: Option<Box<Flight>>,
    call: u32,
    /// Of the request.
    total: u32,
    method: u16,
    status: u16,
    phase: Phase,
    /// No round trip is measured by the response: the request was sent again, or acknowledged before.
    resent: bool,
    /// The server has the whole request, and the session counts its credit as held.
    accepted: bool,
    timeouts: u8,
    /// Time-outs in a row in which nothing of the call came.
    unanswered: u8,
    /// In which packets the call's messages are.
    size: PacketSize,
    /// When the first of those was.
    silent_ns: u64,
}

const _: () = assert!(size_of::<ClientSlot>() == 128);
const _: () = assert!(std::mem::offset_of!(ClientSlot, sent) == 64);

impl Default for ClientSlot {
    fn default() -> Self {
        Self {
            expected: [NO_WORD; 2],
            request_to: NO_WORD,
            request: MsgBuf::default(),
            response: MsgBuf::default(),
            tag: 0,
            sent: Sent::NOT_YET,
            progress_ns: 0,
            look_again_ns: NEVER,
            flight: None,
            call: 0,
            total: 0,
            method: 0,
            status: 0,
            phase: Phase::Idle,
            resent: false,
            accepted: false,
            timeouts: 0,
            unanswered: 0,
            size: PacketSize::Full,
            silent_ns: 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Request,
    Response,
}

/// Whether the end of a call makes something possible: a call that waits can begin, or a session that drains can close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GoingOn {
    Nothing,
    /// Nothing but that a call that waits can begin, once the call's buffers were taken out.
    CallWaits,
    /// Once the call's buffers were taken out. Or its round trip says something.
    Possible,
}

/// Where the single packet of a request is: when it was sent, or one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sent(u64);

impl Sent {
    const NOT_YET: Sent = Sent(u64::MAX);
    const QUEUED: Sent = Sent(u64::MAX - 1);

    /// Whether it was.
    #[inline]
    fn is_out(self) -> bool {
        self.0 < Sent::QUEUED.0
    }
}

impl ClientSlot {
    /// Begins a call. Until more is known its request has one packet.
    #[inline(always)]
    fn begin(&mut self, now_ns: u64, call: Call) {
        self.call = self.call.wrapping_add(1);
        self.phase = Phase::Request;
        self.tag = call.tag;
        self.method = call.method;
        self.total = 1;
        self.size = PacketSize::Full;
        self.sent = Sent::NOT_YET;
        self.progress_ns = now_ns;
        // The last call has taken its buffers with it, so nothing is dropped here; the compiler does not know.
        debug_assert!(self.request.capacity() == 0 && self.response.capacity() == 0);
        std::mem::forget(std::mem::replace(&mut self.request, call.request));
        std::mem::forget(std::mem::replace(&mut self.response, call.response));
    }

    /// Takes the buffers out, as the call has ended.
    #[inline(always)]
    pub(crate) fn completion(&mut self, session: SessionId, outcome: Result<u16, CallError>) -> Completion {
        Completion {
            session,
            tag: self.tag,
            outcome,
            request: self.request.take(),
            response: self.response.take(),
        }
    }

    /// The call has ended: what only few calls need is as at the beginning.
    fn rest(&mut self) {
        self.expected[1] = NO_WORD;
        self.phase = Phase::Idle;
        self.sent = Sent::NOT_YET;
        self.look_again_ns = NEVER;
        (self.resent, self.accepted) = (false, false);
        (self.timeouts, self.unanswered) = (0, 0);
    }
}

impl<A: Copy> ClientSession<A> {
    pub(crate) fn new(shared: &Shared<A>, remote: A, id: SessionId, nonce: u64) -> Self {
        let config = &shared.config;
        let now_ns = shared.clock.now_ns();
        Self {
            remote,
            id,
            remote_number: 0,
            remote_token: 0,
            state: State::Opening {
                cookie: 0,
                attempts: 0,
            },
            nonce,
            share: None,
            marks: MarkUse::Unread,
            seal: None,
            short_way_floor: u16::MAX,
            pacing_bypass: config.pacing_bypass,
            whole_bytes_max: 0,
            sizes: PayloadSizes::NONE,
            message_bytes_max: u32::MAX,
            credits: 0,
            credits_total: config.credits,
            credits_held: 0,
            busy: 0,
            starved: 0,
            leaving: 0,
            turn: 0,
            heard_ns: now_ns,
            asked_ns: now_ns,
            trips: RoundTrips::new(
                config.timeout_ns_initial,
                config.timeout_ns_min,
                config.timeout_ns_max,
            ),
            reordering_scale: 1,
            size: PacketSize::Full,
            probe_due_ns: 0,
            is_trying_full: false,
            probed_ns: 0,
            congestion: Controller::new(&config.congestion, config.credits, config.packet_bytes_max),
            timer_ns: NEVER,
            transmit_next_ns: 0,
            slots: Array::default(),
            backlog: VecDeque::new(),
        }
    }

    /// The server has agreed; what was called in the meantime begins.
    pub(crate) fn open(&mut self, shared: &mut Shared<A>, slots: u8, credits: u16) {
        self.state = State::Open;
        self.credits = credits;
        self.credits_total = credits;
        self.slots = Array::new((0..slots).map(|_| ClientSlot::default()));
        self.expect_whole_responses();
        self.whole_bytes_max = self.sizes.full.min(self.message_bytes_max);
        self.find_floor();
        for slot in 0..slots {
            self.start_waiting(shared, slot);
        }
    }

    /// Has responses of one packet be known by their first words.
    fn expect_whole_responses(&mut self) {
        let (here, there) = (self.id, (self.remote_number, self.remote_token));
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let index = index as u8;
            slot.expected[0] = Header::of_slot(Kind::Response, index, here.number, here.token).first_word();
            slot.request_to = Header::of_slot(Kind::Request, index, there.0, there.1).first_word();
        }
    }

    /// Takes a call: it begins at once, or waits for a slot.
    #[inline(always)]
    pub(crate) fn call(&mut self, shared: &mut Shared<A>, call: Call) -> Result<(), (CallError, Call)> {
        let index = (!self.busy).trailing_zeros() as u8;
        match self.start_short(shared, index, call) {
            None => Ok(()),
            Some(call) => self.call_otherwise(shared, call),
        }
    }

    /// Takes a call whose request has one packet, which goes out at once, in this slot, if that is there; else returns it.
    #[inline(always)]
    fn start_short(&mut self, shared: &mut Shared<A>, index: u8, call: Call) -> Option<Call> {
        if self.credits <= self.short_way_floor || call.request.len() > self.whole_bytes_max as usize {
            return Some(call);
        }
        let Some(slot) = self.slots.get_mut(usize::from(index)) else {
            return Some(call);
        };
        if self.busy == 0 {
            // An idle server without pending responses: its silence counts from now.
            self.heard_ns = shared.clock.now_ns();
        }
        self.busy |= 1 << (index % SLOTS_MAX);
        slot.begin(shared.clock.now_ns(), call);
        slot.sent = Sent::QUEUED;
        debug_assert_eq!(
            self.flags_of_short(),
            Some(Flags::NONE),
            "the floor is out of date"
        );
        self.credits -= 1;
        self.queue_whole(shared, index);
        None
    }

    /// Takes a call that does not go out at once, in one packet.
    #[inline(never)]
    fn call_otherwise(&mut self, shared: &mut Shared<A>, call: Call) -> Result<(), (CallError, Call)> {
        let index = (!self.busy).trailing_zeros() as u8;
        let is_taken = self.state == State::Open
            && call.request.len() <= self.message_bytes_max as usize
            && usize::from(index) < self.slots.len();
        if !is_taken {
            return self.call_later(shared, call);
        }
        // Whatever ends a call begins one that waits: a slot is free only when none does.
        debug_assert!(self.backlog.is_empty());
        if self.busy == 0 {
            self.heard_ns = shared.clock.now_ns();
        }
        self.start(shared, index, call);
        Ok(())
    }

    /// With which flags a request of one packet may be sent at once; `None` if it may not be.
    fn flags_of_short(&self) -> Option<Flags> {
        let at_once = self.state == State::Open && self.size == PacketSize::Full && self.sends_whole();
        at_once.then(|| self.flags_of_whole()).flatten()
    }

    /// Notes from which number of free credits on requests of one packet go the short way: to be called when the window, the requests
    /// that the server holds, or the state of the session have changed.
    fn find_floor(&mut self) {
        let window_packets = self.congestion.window_packets();
        let is_short = self.state == State::Open && self.size == PacketSize::Full && self.sends_whole();
        self.short_way_floor = if !is_short || window_packets < 2 {
            u16::MAX
        } else {
            // One packet more still leaves room in the window.
            let not_held = u32::from(self.credits_total.saturating_sub(self.credits_held));
            (not_held + 1).saturating_sub(window_packets) as u16
        };
    }

    fn call_later(&mut self, shared: &mut Shared<A>, call: Call) -> Result<(), (CallError, Call)> {
        match self.objection(shared, &call) {
            Some(error) => Err((error, call)),
            None => {
                self.backlog.push_back(call);
                Ok(())
            }
        }
    }

    fn objection(&self, shared: &Shared<A>, call: &Call) -> Option<CallError> {
        match self.state {
            State::Draining | State::Closing { .. } => Some(CallError::NoSession),
            _ if call.request.len() > self.message_bytes_max as usize => Some(CallError::RequestTooLarge),
            _ if self.backlog.len() >= shared.config.backlog_calls_max => Some(CallError::BacklogFull),
            _ => None,
        }
    }

    /// Begins a call that waits, in this slot.
    #[inline]
    pub(crate) fn start_waiting(&mut self, shared: &mut Shared<A>, slot: u8) {
        while let Some(call) = self.backlog.pop_front() {
            let Some(call) = self.start_short(shared, slot, call) else {
                return;
            };
            // What was called before the session was there could not be held against its limit then.
            if call.request.len() <= self.message_bytes_max as usize {
                return self.start(shared, slot, call);
            }
            let event = failed(self.id, call, CallError::RequestTooLarge);
            shared.statistics.calls_failed += 1;
            shared.events.push_back(event);
        }
    }

    fn start(&mut self, shared: &mut Shared<A>, index: u8, call: Call) {
        self.busy |= 1 << index;
        let slot = &mut self.slots[usize::from(index)];
        slot.begin(shared.clock.now_ns(), call);
        slot.size = self.size;
        self.try_full_size(shared);
        self.pump_first(shared, index);
    }

    /// Begins to send a request.
    #[inline(never)]
    fn pump_first(&mut self, shared: &mut Shared<A>, index: u8) {
        let slot = &self.slots[usize::from(index)];
        if slot.request.len() <= self.sizes.of(slot.size) as usize {
            self.pump_single(shared, index);
        } else {
            self.begin_flight(shared, index);
        }
    }

    /// Begins to send a request of several packets.
    fn begin_flight(&mut self, shared: &mut Shared<A>, index: u8) {
        let slot = &mut self.slots[usize::from(index)];
        slot.total = packets_of(slot.request.len() as u32, self.sizes.of(slot.size));
        slot.flight = Some(shared.flight(0, slot.total));
        self.pump(shared, index);
    }

    /// Ends a slot's call, and begins the next one that waits.
    fn complete(
        &mut self,
        shared: &mut Shared<A>,
        index: u8,
        outcome: Result<u16, CallError>,
    ) -> Event<'static> {
        self.leave_server(index);
        self.leaving &= !(1 << index);
        let slot = &mut self.slots[usize::from(index)];
        shared.land(slot.flight.take());
        slot.rest();
        Event::Completed(self.completed(shared, index, outcome))
    }

    /// A slot's call has ended.
    fn completed(
        &mut self,
        shared: &mut Shared<A>,
        index: u8,
        outcome: Result<u16, CallError>,
    ) -> Completion {
        let going_on = self.leave_slot(shared, index);
        if outcome.is_err() {
            shared.statistics.calls_completed -= 1;
            shared.statistics.calls_failed += 1;
        }
        let completion = self.completion(index, outcome);
        if going_on == GoingOn::Possible {
            self.go_on(shared, index);
        }
        completion
    }

    /// Notes that a slot's call has ended; its buffers are still there. Says whether that makes something possible.
    #[inline(always)]
    fn leave_slot(&mut self, shared: &mut Shared<A>, index: u8) -> GoingOn {
        let bit = 1 << (index % SLOTS_MAX);
        self.busy &= !bit;
        self.starved &= !bit;
        if self.busy == 0 {
            self.rest(shared);
        }
        shared.statistics.calls_completed += 1;
        if !self.backlog.is_empty() || self.starved != 0 || self.state == State::Draining {
            GoingOn::Possible
        } else {
            GoingOn::Nothing
        }
    }

    /// Takes the buffers out of a slot whose call has ended.
    #[inline(always)]
    pub(crate) fn completion(&mut self, index: u8, outcome: Result<u16, CallError>) -> Completion {
        self.slots[usize::from(index)].completion(self.id, outcome)
    }

    /// The session has no call any more. Its timer fires in time to ask whether the peer is there, as it is set from the beginning on,
    /// and again whenever it has fired.
    #[inline(always)]
    fn rest(&mut self, shared: &mut Shared<A>) {
        debug_assert!(
            !self.is_open() || shared.timers.is_set(self.id.number),
            "nothing would ask whether the peer is there"
        );
        shared.timers.rest(self.id.number);
        self.timer_ns = NEVER;
    }

    /// What the end of a slot's call makes possible.
    #[inline(never)]
    pub(crate) fn go_on(&mut self, shared: &mut Shared<A>, index: u8) {
        if !self.backlog.is_empty() {
            self.start_waiting(shared, index);
        }
        if self.starved != 0 {
            self.pump_starved(shared);
        }
        self.close_if_drained(shared);
    }

    /// Whether calls go on.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, State::Open | State::Draining)
    }

    /// No more calls; when those that were made have ended, says goodbye.
    pub(crate) fn drain(&mut self, shared: &mut Shared<A>) {
        if matches!(self.state, State::Open) {
            self.state = State::Draining;
            self.find_floor();
            self.close_if_drained(shared);
        }
    }

    #[inline]
    fn close_if_drained(&mut self, shared: &mut Shared<A>) {
        if self.state == State::Draining && self.busy == 0 && self.backlog.is_empty() {
            self.heard_ns = shared.clock.now_ns();
            self.state = State::Closing { attempts: 0 };
            self.say_goodbye(shared);
        }
    }

    fn say_goodbye(&mut self, shared: &mut Shared<A>) {
        let header = Header::of_session(Kind::Close, self.remote_number, self.remote_token);
        shared.control_of(self.seal.as_deref_mut(), self.remote, &header);
        let State::Closing { attempts } = &mut self.state else {
            return;
        };
        *attempts = attempts.saturating_add(1);
        let at_ns = shared.clock.now_ns() + self.trips.timeout_ns(*attempts);
        shared.timers.arm(self.id.number, shared.clock.now_ns(), at_ns);
    }

    /// Ends the session: every call of it, on its way or waiting, is completed with the reason, once.
    pub(crate) fn end(mut self, shared: &mut Shared<A>, reason: EndReason) {
        let waiting = std::mem::take(&mut self.backlog);
        self.state = State::Closing { attempts: 0 };
        self.credits = 0;
        for index in 0..self.slots.len() as u8 {
            if self.slots[usize::from(index)].phase != Phase::Idle {
                let event = self.complete(shared, index, Err(CallError::Ended(reason)));
                shared.events.push_back(event);
            }
        }
        shared.statistics.calls_failed += waiting.len() as u64;
        for call in waiting {
            shared
                .events
                .push_back(failed(self.id, call, CallError::Ended(reason)));
        }
        shared.events.push_back(Event::Ended(self.id, reason));
    }

    /// Does what is due at this time. `Err` if the session is over.
    pub(crate) fn expire(&mut self, shared: &mut Shared<A>) -> Result<(), EndReason> {
        let now_ns = shared.clock.now_ns();
        let silence_ns = now_ns.saturating_sub(self.heard_ns);
        self.timer_ns = NEVER;
        match self.state {
            State::Opening { .. } => Ok(()),
            State::Closing { .. } if silence_ns >= shared.config.peer_timeout_ns => {
                Err(EndReason::PeerTimeout)
            }
            State::Closing { .. } => {
                self.say_goodbye(shared);
                Ok(())
            }
            State::Open | State::Draining if self.busy == 0 => self.keep_alive(shared, silence_ns),
            State::Open | State::Draining => self.expire_calls(shared, silence_ns),
        }
    }

    /// Asks the peer whether it is there.
    pub(crate) fn ask(&mut self, shared: &mut Shared<A>) {
        if matches!(self.state, State::Open | State::Draining) {
            let header = Header::of_session(Kind::Ping, self.remote_number, self.remote_token);
            shared.control_of(self.seal.as_deref_mut(), self.remote, &header);
        }
    }

    fn keep_alive(&mut self, shared: &mut Shared<A>, silence_ns: u64) -> Result<(), EndReason> {
        let now_ns = shared.clock.now_ns();
        let (keepalive_ns, peer_timeout_ns) = (shared.config.keepalive_ns, shared.config.peer_timeout_ns);
        if silence_ns >= keepalive_ns + peer_timeout_ns {
            return Err(EndReason::PeerTimeout);
        }
        let due_ns = if silence_ns >= keepalive_ns {
            self.ask(shared);
            now_ns + peer_timeout_ns / 4
        } else {
            self.heard_ns + keepalive_ns
        };
        shared.timers.arm(self.id.number, now_ns, due_ns);
        Ok(())
    }

    fn expire_calls(&mut self, shared: &mut Shared<A>, silence_ns: u64) -> Result<(), EndReason> {
        let now_ns = shared.clock.now_ns();
        let mut next_ns = u64::MAX;
        for index in 0..self.slots.len() as u8 {
            if self.busy >> index & 1 == 0 {
                continue;
            }
            if self.slots[usize::from(index)].look_again_ns <= now_ns {
                self.look_for_losses(shared, index);
            }
            if self.due_ns(index) <= now_ns {
                if silence_ns >= shared.config.peer_timeout_ns {
                    return Err(EndReason::PeerTimeout);
                }
                self.time_out(shared, index);
            }
            let slot = &self.slots[usize::from(index)];
            next_ns = next_ns.min(self.due_ns(index)).min(slot.look_again_ns);
        }
        // Even if every slot waits for another's credits, somebody looks again.
        let next_ns = next_ns.min(now_ns + shared.config.timeout_ns_max);
        shared.timers.arm(self.id.number, now_ns, next_ns);
        Ok(())
    }

    /// When a slot's call times out; [`NEVER`] if no packet of it is out.
    ///
    /// While some of its packets wait for their time to be sent, the peer may have been asked for nothing yet: however slow
    /// the session is, that is no silence of the peer's.
    fn due_ns(&self, index: u8) -> u64 {
        let slot = &self.slots[usize::from(index)];
        let (is_out, is_paced) = match &slot.flight {
            Some(flight) => (flight.outstanding() > 0, flight.is_any_queued()),
            None => (slot.sent.is_out(), false),
        };
        match (is_out, is_paced) {
            (false, _) => NEVER,
            (true, false) => slot.progress_ns + self.trips.timeout_ns(slot.timeouts),
            (true, true) => slot.progress_ns + self.trips.timeout_ns_max(),
        }
    }

    /// How fast the session sends now, in bytes per nanosecond.
    pub(crate) fn rate(&self) -> f64 {
        self.congestion.rate()
    }

    /// The request of a call whose packet is to be sent.
    #[inline]
    pub(crate) fn request(&self, slot: u8) -> &[u8] {
        self.slots
            .get(usize::from(slot))
            .map_or(&[], |slot| &slot.request)
    }

    /// The requests of all calls that have not ended.
    pub(crate) fn requests(&self) -> impl Iterator<Item = &[u8]> {
        let in_slots = self.slots.iter().filter(|slot| slot.phase != Phase::Idle);
        let waiting = self.backlog.iter().map(|call| &*call.request);
        in_slots.map(|slot| &*slot.request).chain(waiting)
    }

    /// The request of a call whose packet is to be sent, and what seals it.
    pub(crate) fn request_and_seal(&mut self, slot: u8) -> (&[u8], Option<&mut Seal>) {
        let request = self.slots.get(usize::from(slot)).map(|slot| &*slot.request);
        (request.unwrap_or_default(), self.seal.as_deref_mut())
    }

    /// The smoothed round trip, zero before the first.
    pub(crate) fn round_trip_ns(&self) -> u64 {
        self.trips.smoothed_ns()
    }
}

fn failed(session: SessionId, call: Call, error: CallError) -> Event<'static> {
    Event::Completed(Completion {
        session,
        tag: call.tag,
        outcome: Err(error),
        request: call.request,
        response: call.response,
    })
}
