//! The server's end of a session. It has no timers for calls: whatever it sends answers a packet of the client, but for
//! the first packet of a response.
//!
//! ```text
//!   Idle ──► Receiving ──► Executing ──► Responded ──┐ the slot's next call
//!              ▲    (a request of one packet goes     │
//!              │     straight to Executing)           │
//!              └──────────────────────────────────────┘
//! ```

use provost_registered::Array;

use crate::buffer::MsgBuf;
use crate::config::{Config, Recovery};
use crate::endpoint::PacketSink;
use crate::event::{ArrivedRequest, EndReason, Event, Payload, RequestHandle, SessionId};
use crate::flight::{WINDOW_PACKETS, Window};
use crate::handshake::{MarkUse, Sealed};
use crate::packet::{
    ArrivedData, DataHead, Flags, HELD_UNIT_NS, Head, Header, Kind, NO_WORD, PacketSize, PayloadSizes, Piece,
    Prefix,
};
use crate::seal::{KEY_BYTES, Seal};
use crate::shared::{NEVER, Outgoing, Shared, What, lowest_of};

/// Bytes of the smallest buffer that a slot has of its own.
const INLINE_BYTES_MIN: usize = 64;
/// The longest time for which a response can say that the request was held.
const HELD_NS_MAX: u64 = u16::MAX as u64 * HELD_UNIT_NS;
/// A credit return that goes out no later than this after what it answers tells the client the round trip.
const UNTOLD_NS_MAX: u64 = 10_000;

/// Where the client is, and how to speak to it. A call needs its first cache line, where addresses are no longer than eight bytes,
/// and one of its slot.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ServerSession<A> {
    pub(crate) slots: Array<ServerSlot>,
    pub(crate) seal: Option<Box<Seal>>,
    /// When the client was heard last, beside what it asked for the session by; [`NEVER`] before.
    pub(crate) heard_ns: u64,
    pub(crate) local_token: u32,
    /// Bytes of the largest request of one packet.
    pub(crate) whole_bytes_max: u32,
    pub(crate) sizes: PayloadSizes,
    /// Slots whose response of one packet goes out with the next packets, one bit each.
    pub(crate) leaving: u32,
    /// Bytes of the largest response of one packet that a slot's own buffer may hold.
    pub(crate) answer_bytes_max: u32,
    pub(crate) remote: A,

    pub(crate) remote_token: u32,
    pub(crate) remote_number: u16,
    /// What of an Accept follows it, so that it can be repeated.
    pub(crate) sealed: Option<Box<Sealed>>,
    /// The client's public key of a sealed session.
    pub(crate) exchanged_with: Option<Box<[u8; KEY_BYTES]>>,
    pub(crate) opened_ns: u64,
    pub(crate) credits: u16,
    pub(crate) recovery: Recovery,
    /// Whether the client heeds marks.
    pub(crate) marks: MarkUse,
}

/// Cache lines at the beginning of a session that every call needs.
pub(crate) const CALL_LINES: usize = 1;
const _: () = assert!(std::mem::offset_of!(ServerSession<u64>, remote) + 8 == 64 * CALL_LINES);

/// One of the session's concurrent calls. A call of one packet each way needs its first cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct ServerSlot {
    /// The first words of a packet that begins the next call, and has all of its request: a packet that begins so needs no
    /// further look. The second is [`NO_WORD`] while a call is under way.
    expected: [u64; 2],
    /// The first word of responses.
    response_to: u64,
    /// What the response is in.
    response: MsgBuf,
    received_ns: u64,
    call: u32,
    /// The first packet of the request that is missing.
    base: u32,
    status: u16,
    phase: Phase,
    whose: Whose,
    /// When the request came, this end had been kept from polling.
    late: bool,
    marked: bool,
    /// In which packets the call's messages are.
    size: PacketSize,

    /// Packets of a request of several.
    total: u32,
    method: u16,
    /// The slot's own buffer for small responses, while the response is in another.
    aside: MsgBuf,
    request: MsgBuf,

    /// What has arrived past `base`.
    ahead: Window,
    ahead_packets: u32,
    /// Of the requests for response packets that came last at one time, that time and the first packet.
    asked: (u64, u16),
}

const _: () = assert!(size_of::<ServerSlot>() == 192);
const _: () = assert!(std::mem::offset_of!(ServerSlot, total) == 64);

impl Default for ServerSlot {
    fn default() -> Self {
        Self {
            expected: [NO_WORD; 2],
            response_to: NO_WORD,
            response: MsgBuf::default(),
            received_ns: 0,
            call: 0,
            base: 0,
            status: 0,
            phase: Phase::Idle,
            whose: Whose::Own,
            late: false,
            marked: false,
            size: PacketSize::Full,
            total: 0,
            method: 0,
            aside: MsgBuf::default(),
            request: MsgBuf::default(),
            ahead: Window::default(),
            ahead_packets: 0,
            asked: (0, 0),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Receiving,
    Executing,
    Responded,
}

/// How a response is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseParts {
    /// In one packet, that nothing else is done to.
    Whole,
    Several,
}

/// Whose buffer a response is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// The slot's own.
    Own,
    /// The application's, which gets it back.
    Given,
}

impl ServerSlot {
    #[inline]
    pub(crate) fn response(&self) -> &[u8] {
        &self.response
    }
}

impl<A: Copy> ServerSession<A> {
    /// When the session is forgotten, if its client stays silent. A client that was never heard may not know of the session: a
    /// late copy of an Open may have made it. One that does asks, when it has nothing else to say, whether this end is there.
    pub(crate) fn idle_until_ns(&self, config: &Config) -> u64 {
        if self.heard_ns != NEVER {
            return self.heard_ns + config.idle_ns_max;
        }
        let asked_within_ns = config.keepalive_ns + config.peer_timeout_ns;
        self.opened_ns + asked_within_ns.min(config.idle_ns_max)
    }

    /// Has this core fetch what a call of one packet each way needs in a slot.
    #[inline(always)]
    pub(crate) fn fetch_slot(&self, slot: usize) {
        self.slots.fetch(slot, 0..1);
    }

    /// Has requests of one packet be known by their first words, in a session with this number.
    pub(crate) fn expect_whole_requests(&mut self, number: u16) {
        let (here, there) = (self.local_token, (self.remote_number, self.remote_token));
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let index = index as u8;
            slot.expected[0] = Header::of_slot(Kind::Request, index, number, here).first_word();
            slot.response_to = Header::of_slot(Kind::Response, index, there.0, there.1).first_word();
            slot.enter(Phase::Idle);
        }
    }

    /// Takes a request of one packet that its slot expects; `None` if it is something else. The slot executes it then.
    #[inline(always)]
    pub(crate) fn take_expected<'p>(
        &mut self,
        shared: &mut Shared<A>,
        arrival: &ArrivedData<'p, A>,
    ) -> Option<(ArrivedRequest<'p>, &mut ServerSlot)>
    where
        A: PartialEq,
    {
        let ArrivedData {
            from,
            head,
            payload,
            marked,
        } = *arrival;
        let slot = self.slots.get_mut(usize::from(head.slot()))?;
        let prefix = head.prefix();
        // Whoever gives a buffer back with this call does so the longer way.
        let is_expected = head.begins_with(&slot.expected)
            && from == self.remote
            && prefix.message_bytes as usize == payload.len()
            && prefix.message_bytes <= self.whole_bytes_max
            && slot.whose == Whose::Own;
        if !is_expected {
            return None;
        }
        slot.begin_whole(shared, head.call(), marked);
        self.heard_ns = shared.clock.now_ns();
        let handle = RequestHandle {
            session: SessionId {
                number: head.session() as u16,
                token: self.local_token,
            },
            slot: head.slot(),
            call: head.call(),
        };
        shared.statistics.requests_received += 1;
        shared.statistics.requests_borrowed += 1;
        let request = ArrivedRequest {
            handle,
            method: prefix.code,
            bytes: payload,
        };
        Some((request, slot))
    }

    /// Takes a request of one packet that begins the next call of its slot; `None` if it is something else.
    fn take_whole<'p>(&mut self, shared: &mut Shared<A>, piece: &Piece<'p>) -> Option<Event<'p>> {
        let bytes = piece.prefix.message_bytes;
        let size = PacketSize::of_request(piece.header.flags);
        let is_whole = piece.header.kind == Kind::Request
            && piece.header.packet == 0
            && bytes as usize == piece.payload.len()
            && bytes <= self.whole_bytes_max.min(self.sizes.of(size));
        let slot = self.slots.get_mut(usize::from(piece.header.slot))?;
        if !is_whole || !slot.awaits(piece.header.call) {
            return None;
        }
        release(slot, shared);
        slot.begin_whole(shared, piece.header.call, piece.marked);
        slot.size = size;
        if piece.header.flags.has(Flags::RETURN) {
            // Says that the request is here. If the response is ready when this would go, the response says it.
            shared.answer(outgoing(&piece.header, What::CreditReturn, 0));
        }
        Some(self.delivered(shared, piece, Payload::Borrowed(piece.payload)))
    }

    /// Takes a piece of a request, which may complete it.
    pub(crate) fn receive_request<'p>(
        &mut self,
        shared: &mut Shared<A>,
        piece: Piece<'p>,
    ) -> Option<Event<'p>> {
        if usize::from(piece.header.slot) >= self.slots.len() {
            shared.statistics.dropped.protocol += 1;
            return None;
        }
        match self.take_whole(shared, &piece) {
            Some(event) => Some(event),
            None => self.receive_part(shared, piece),
        }
    }

    /// Takes a packet that is not the only one of its request, or was here before.
    #[inline(never)]
    fn receive_part<'p>(&mut self, shared: &mut Shared<A>, piece: Piece<'p>) -> Option<Event<'p>> {
        let sizes = self.sizes;
        let slot = self.slots.get_mut(usize::from(piece.header.slot))?;
        let size = PacketSize::of_request(piece.header.flags);
        if slot.call == piece.header.call && slot.size != size {
            // What is full-size is from before the client went over to small packets.
            if size == PacketSize::Full || !slot.fall_back(sizes.small, piece.prefix.message_bytes) {
                shared.statistics.dropped.stale += 1;
                return None;
            }
        }
        match piece.header.call.wrapping_sub(slot.call) as i32 {
            0 if slot.phase == Phase::Receiving => {}
            0 => {
                self.repeat(shared, &piece);
                return None;
            }
            1 if slot.phase != Phase::Executing => match begin(slot, shared, &piece, sizes) {
                Begun::Yes => {}
                Begun::NoRoom => {
                    self.answer_without_room(shared, &piece);
                    return None;
                }
                Begun::TooLarge => return None,
            },
            ahead => {
                let dropped = &mut shared.statistics.dropped;
                *(if ahead < 0 {
                    &mut dropped.stale
                } else {
                    &mut dropped.protocol
                }) += 1;
                return None;
            }
        }
        self.add(shared, piece)
    }

    /// There is no room for a request now: says at least that somebody is here, or the client, which hears nothing else,
    /// would take this end for dead. It sends the request again until there is room.
    fn answer_without_room(&mut self, shared: &mut Shared<A>, piece: &Piece<'_>) {
        if piece.header.packet == 0 || piece.header.flags.has(Flags::RETURN) {
            let header = Header::of_session(Kind::Pong, self.remote_number, self.remote_token);
            shared.control_of(self.seal.as_deref_mut(), self.remote, &header);
        }
    }

    /// Answers a request packet of a call whose request is complete.
    fn repeat(&mut self, shared: &mut Shared<A>, piece: &Piece<'_>) {
        shared.statistics.packets_duplicate += 1;
        shared.statistics.dropped.stale += 1;
        let slot = &mut self.slots[usize::from(piece.header.slot)];
        let is_last = u32::from(piece.header.packet) + 1 == slot.base;
        if !is_last && !piece.header.flags.has(Flags::RETURN) {
            return;
        }
        slot.late = true;
        if piece.header.flags.has(Flags::RETURN) && slot.received_ns == shared.clock.arrived_ns() {
            shared.clock.note_absence();
        }
        let what = match slot.phase {
            Phase::Responded => What::Response,
            _ => What::CreditReturn,
        };
        shared.answer(outgoing(&piece.header, what, 0));
    }

    fn add<'p>(&mut self, shared: &mut Shared<A>, piece: Piece<'p>) -> Option<Event<'p>> {
        let slot = &mut self.slots[usize::from(piece.header.slot)];
        let payload_bytes = self.sizes.of(slot.size);
        let packet = u32::from(piece.header.packet);
        let at = packet as usize * payload_bytes as usize;
        let expected = payload_of(piece.prefix.message_bytes, packet, payload_bytes);
        if packet >= slot.total || piece.payload.len() != expected || piece.prefix.code != slot.method {
            shared.statistics.dropped.protocol += 1;
            return None;
        }
        let before_ns = slot.received_ns;
        slot.received_ns = shared.clock.arrived_ns();
        slot.late = shared.clock.is_catching_up();
        slot.marked |= piece.marked;
        if slot.total == 1 {
            slot.base = 1;
            return Some(self.deliver(shared, &piece, Payload::Borrowed(piece.payload)));
        }
        if piece.prefix.message_bytes as usize != slot.request.len() {
            shared.statistics.dropped.protocol += 1;
            return None;
        }
        match packet {
            _ if packet < slot.base || slot.ahead.has(packet) && packet < slot.base + WINDOW_PACKETS => {
                shared.statistics.packets_duplicate += 1;
                shared.statistics.dropped.stale += 1;
                if piece.header.flags.has(Flags::RETURN) && slot.received_ns == before_ns {
                    shared.clock.note_absence();
                }
                shared.answer(outgoing(&piece.header, What::CreditReturn, 0));
                return None;
            }
            _ if packet > slot.base && self.recovery == Recovery::GoBackN => {
                shared.statistics.dropped.order += 1;
                return None;
            }
            _ if packet >= slot.base + WINDOW_PACKETS => {
                shared.statistics.dropped.protocol += 1;
                return None;
            }
            _ => {}
        }
        slot.request[at..at + expected].copy_from_slice(piece.payload);
        slot.ahead.insert(packet);
        slot.ahead_packets += 1;
        while slot.ahead_packets > 0 && slot.ahead.has(slot.base) {
            slot.ahead.remove(slot.base);
            slot.ahead_packets -= 1;
            slot.base += 1;
        }
        // A gap is told at once; else credits are returned many at a time, when the client asks.
        if slot.ahead_packets > 0 || piece.header.flags.has(Flags::RETURN) {
            shared.answer(outgoing(&piece.header, What::CreditReturn, 0));
        }
        if slot.base < slot.total {
            return None;
        }
        let request = std::mem::take(&mut slot.request);
        Some(self.deliver(shared, &piece, Payload::Owned(request)))
    }

    fn deliver<'p>(&mut self, shared: &mut Shared<A>, piece: &Piece<'p>, payload: Payload<'p>) -> Event<'p> {
        self.slots[usize::from(piece.header.slot)].enter(Phase::Executing);
        self.delivered(shared, piece, payload)
    }

    fn delivered<'p>(&self, shared: &mut Shared<A>, piece: &Piece<'p>, payload: Payload<'p>) -> Event<'p> {
        shared.statistics.requests_received += 1;
        shared.statistics.requests_borrowed += u64::from(matches!(payload, Payload::Borrowed(_)));
        let handle = RequestHandle {
            session: SessionId {
                number: piece.header.session,
                token: self.local_token,
            },
            slot: piece.header.slot,
            call: piece.header.call,
        };
        Event::Request {
            handle,
            method: piece.prefix.code,
            payload,
        }
    }

    /// Queues the packets of a response that the client asks for.
    pub(crate) fn receive_request_for_response(&mut self, shared: &mut Shared<A>, header: &Header) {
        let Some(slot) = self.slots.get_mut(usize::from(header.slot)) else {
            shared.statistics.dropped.protocol += 1;
            return;
        };
        if slot.call != header.call || slot.phase != Phase::Responded {
            shared.statistics.dropped.stale += 1;
            return;
        }
        let arrived_ns = shared.clock.arrived_ns();
        if slot.asked == (arrived_ns, header.packet) {
            shared.clock.note_absence();
        } else if slot.asked.0 != arrived_ns {
            slot.asked = (arrived_ns, header.packet);
        }
        slot.late = shared.clock.is_catching_up();
        let total = packets_of(slot.response().len() as u32, self.sizes.of(slot.size));
        let first = u32::from(header.packet);
        let end = first + u32::from(header.flags.range_packets());
        if end > total {
            shared.statistics.dropped.protocol += 1;
            return;
        }
        for packet in first..end {
            shared.answer(outgoing(header, What::Response, packet as u16));
        }
    }

    /// Bytes of the largest response.
    pub(crate) fn response_bytes_max(&self) -> u64 {
        self.sizes.message_bytes_max()
    }

    /// Returns responses that the client has.
    pub(crate) fn return_responses(&mut self, shared: &mut Shared<A>, is_known: impl Fn(&[u8]) -> bool) {
        for slot in self.slots.iter_mut() {
            let is_given = slot.phase == Phase::Responded && slot.whose == Whose::Given;
            if is_given && is_known(slot.response()) {
                give_back(slot, shared);
                slot.enter(Phase::Idle);
            }
        }
    }

    /// The slot of a request that waits for its response.
    #[inline]
    pub(crate) fn executing(&mut self, handle: &RequestHandle) -> Option<&mut ServerSlot> {
        let slot = self.slots.get_mut(usize::from(handle.slot))?;
        (slot.call == handle.call && slot.phase == Phase::Executing).then_some(slot)
    }

    /// Queues what a slot has to send in response to the call of this handle.
    #[inline(always)]
    pub(crate) fn queue_response(
        &mut self,
        shared: &mut Shared<A>,
        handle: &RequestHandle,
        parts: ResponseParts,
    ) {
        let bit = 1u32.wrapping_shl(handle.slot.into());
        match parts {
            ResponseParts::Whole => {
                if self.leaving == 0 {
                    shared.whole.push(handle.session.number);
                }
                self.leaving |= bit;
            }
            ResponseParts::Several => {
                self.leaving &= !bit;
                let place = (handle.session.number, handle.slot);
                shared.answer(Outgoing::first_of(place, handle.call, What::Response));
            }
        }
    }

    /// One of the responses of one packet that are to go out; the others are still to go. `number` is the session's.
    pub(crate) fn next_whole(&mut self, number: u16) -> Option<Outgoing> {
        let index = lowest_of(&mut self.leaving)?;
        let slot = self.slots.get(usize::from(index))?;
        Some(Outgoing::first_of((number, index), slot.call, What::Response))
    }

    /// Hands over responses of one packet that go out now, up to so many; says how many there were.
    #[inline(always)]
    pub(crate) fn transmit_wholes(
        &mut self,
        shared: &Shared<A>,
        packets_max: usize,
        sink: &mut impl PacketSink<A>,
    ) -> usize {
        let (mut leaving, mut packets) = (self.leaving, 0);
        while packets < packets_max
            && let Some(index) = lowest_of(&mut leaving)
        {
            if let Some(slot) = self.slots.get_mut(usize::from(index))
                && let Some(head) = slot.whole_head(shared)
            {
                sink.whole(self.remote, &head.bytes(), &slot.response);
                packets += 1;
            }
        }
        self.leaving = leaving;
        packets
    }

    /// What goes before the next response of one packet, and which slot it is of, if one goes out.
    pub(crate) fn next_whole_head(&mut self, shared: &Shared<A>) -> Option<(u8, DataHead)> {
        while let Some(index) = lowest_of(&mut self.leaving) {
            let slot = self.slots.get_mut(usize::from(index))?;
            if let Some(head) = slot.whole_head(shared) {
                return Some((index, head));
            }
        }
        None
    }

    /// What goes before a packet that is sent now, and the part of the response that follows; `None` if the call has
    /// moved on. The packet tells of congestion marks, which are forgotten with that.
    #[inline]
    pub(crate) fn transmit(
        &mut self,
        shared: &Shared<A>,
        outgoing: &Outgoing,
    ) -> Option<(Head, std::ops::Range<usize>)> {
        let leaving = match outgoing.what {
            What::Response => self.response_head(shared, outgoing)?,
            _ => (self.credit_return_head(shared, outgoing)?, 0..0),
        };
        self.slots[usize::from(outgoing.slot)].marked = false;
        Some(leaving)
    }

    /// The response to the call that a slot has.
    #[inline]
    pub(crate) fn response(&self, slot: u8) -> &[u8] {
        self.slots
            .get(usize::from(slot))
            .map_or(&[], ServerSlot::response)
    }

    /// That, and what seals it.
    pub(crate) fn response_and_seal(&mut self, slot: u8) -> (&[u8], Option<&mut Seal>) {
        let response = self.slots.get(usize::from(slot)).map(ServerSlot::response);
        (response.unwrap_or_default(), self.seal.as_deref_mut())
    }

    #[inline]
    fn response_head(
        &self,
        shared: &Shared<A>,
        outgoing: &Outgoing,
    ) -> Option<(Head, std::ops::Range<usize>)> {
        let slot = self.slots.get(usize::from(outgoing.slot))?;
        if slot.call != outgoing.call || slot.phase != Phase::Responded {
            return None;
        }
        let bytes = slot.response().len() as u32;
        let packet = u32::from(outgoing.packet);
        let payload_bytes = self.sizes.of(slot.size);
        let start = packet as usize * payload_bytes as usize;
        let end = start + payload_of(bytes, packet, payload_bytes);
        let (flags, held) = match packet {
            0 => slot.flags_and_held(shared, slot.received_ns),
            _ => slot.flags_and_held(shared, slot.asked.0),
        };
        let prefix = Prefix {
            message_bytes: bytes,
            code: slot.status,
            held,
        };
        let header = self.header(Kind::Response, outgoing, flags.with(slot.size.answer_flags()));
        Some((Head::of_data(&header, &prefix), start..end))
    }

    /// A credit return as of now: everything below its packet number is here, and what the bitmap says after it.
    fn credit_return_head(&self, shared: &Shared<A>, outgoing: &Outgoing) -> Option<Head> {
        let slot = self.slots.get(usize::from(outgoing.slot))?;
        if slot.call != outgoing.call || matches!(slot.phase, Phase::Idle | Phase::Responded) {
            return None;
        }
        // It has no room to say how long this end has had what it answers.
        let timed = match shared.clock.now_ns() - slot.received_ns {
            0..=UNTOLD_NS_MAX => Flags::NONE,
            _ => Flags::UNTIMED,
        };
        let flags = slot.flags(shared, timed).with(slot.size.answer_flags());
        let mut header = self.header(Kind::CreditReturn, outgoing, flags);
        // A message may have one packet more than the field can count; the last is answered by the response.
        header.packet = slot.base.min(u16::MAX.into()) as u16;
        let bitmap = match slot.ahead_packets {
            0 => 0,
            _ => slot.ahead.bitmap_from(slot.base + 1),
        };
        Some(Head::of_credit_return(&header, bitmap))
    }

    #[inline]
    fn header(&self, kind: Kind, outgoing: &Outgoing, flags: Flags) -> Header {
        Header {
            kind,
            flags,
            slot: outgoing.slot,
            session: self.remote_number,
            token: self.remote_token,
            call: outgoing.call,
            packet: outgoing.packet,
        }
    }

    /// Ends the session: buffers go back to whom they belong to.
    pub(crate) fn end(mut self, shared: &mut Shared<A>, id: SessionId, reason: EndReason) {
        for slot in self.slots.iter_mut() {
            release(slot, shared);
            shared.pool.give_back(std::mem::take(&mut slot.request));
        }
        shared.events.push_back(Event::Ended(id, reason));
    }
}

/// Whether a call has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begun {
    Yes,
    /// Not now: no memory is free to put its request together in.
    NoRoom,
    /// Never: its request is larger than was agreed.
    TooLarge,
}

/// Begins the slot's next call.
#[inline]
fn begin<A: Copy>(
    slot: &mut ServerSlot,
    shared: &mut Shared<A>,
    piece: &Piece<'_>,
    sizes: PayloadSizes,
) -> Begun {
    let bytes = piece.prefix.message_bytes;
    if bytes > shared.config.message_bytes_max {
        shared.statistics.dropped.protocol += 1;
        return Begun::TooLarge;
    }
    let size = PacketSize::of_request(piece.header.flags);
    let total = packets_of(bytes, sizes.of(size));
    if total > 1 {
        let Some(buffer) = shared.pool.take(bytes as usize) else {
            shared.statistics.dropped.room += 1;
            return Begun::NoRoom;
        };
        // An earlier request that the client gave up on half-way has left its buffer here.
        shared
            .pool
            .give_back(std::mem::replace(&mut slot.request, buffer));
        slot.ahead = Window::default();
        slot.ahead_packets = 0;
    }
    release(slot, shared);
    slot.call = piece.header.call;
    slot.size = size;
    slot.enter(Phase::Receiving);
    (slot.total, slot.base) = (total, 0);
    slot.method = piece.prefix.code;
    slot.marked = false;
    Begun::Yes
}

/// Gives back what the slot's last response was in.
#[inline(always)]
fn release<A: Copy>(slot: &mut ServerSlot, shared: &mut Shared<A>) {
    if slot.whose == Whose::Given {
        give_back(slot, shared);
    }
}

#[inline(never)]
fn give_back<A: Copy>(slot: &mut ServerSlot, shared: &mut Shared<A>) {
    let own = std::mem::take(&mut slot.aside);
    let given = std::mem::replace(&mut slot.response, own);
    slot.whose = Whose::Own;
    shared.events.push_back(Event::ResponseReturned(given));
}

impl ServerSlot {
    /// A call of the slot begins, goes on or ends.
    #[inline(always)]
    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.expected[1] = match phase {
            Phase::Idle | Phase::Responded => DataHead::second_word(self.call.wrapping_add(1)),
            Phase::Receiving | Phase::Executing => NO_WORD,
        };
    }

    /// What packets of the call say beside these flags.
    #[inline]
    fn flags<A>(&self, shared: &Shared<A>, flags: Flags) -> Flags {
        let untimed = if shared.clock.is_catching_up() {
            Flags::UNTIMED.with(Flags::AWAY)
        } else if self.late {
            Flags::UNTIMED
        } else {
            Flags::NONE
        };
        let marked = if self.marked { Flags::MARKED } else { Flags::NONE };
        flags.with(untimed).with(marked)
    }

    /// That, and how long this end has had what it answers, unless that says nothing.
    #[inline(never)]
    fn flags_and_held<A>(&self, shared: &Shared<A>, received_ns: u64) -> (Flags, u16) {
        let held_ns = shared.clock.now_ns() - received_ns;
        match u16::try_from(held_ns / HELD_UNIT_NS) {
            Ok(held) if !shared.clock.stalled_since(received_ns) => (self.flags(shared, Flags::NONE), held),
            _ => (self.flags(shared, Flags::UNTIMED), u16::MAX),
        }
    }

    /// Whether this is the next call, and the slot is free for it.
    #[inline]
    fn awaits(&self, call: u32) -> bool {
        call == self.call.wrapping_add(1) && !matches!(self.phase, Phase::Executing | Phase::Receiving)
    }

    /// The client goes over to small packets in the middle of the call: a request that is not complete begins anew, and a response
    /// that is there is cut anew. Says whether the call can go on so.
    #[cold]
    fn fall_back(&mut self, payload_bytes: u32, request_bytes: u32) -> bool {
        let is_receiving = self.phase == Phase::Receiving;
        if is_receiving && self.total <= 1 {
            return false;
        }
        if is_receiving {
            // The buffer says how long the request is; what a packet says is compared with that.
            (self.total, self.base) = (packets_of(self.request.len() as u32, payload_bytes), 0);
        } else {
            self.base = packets_of(request_bytes, payload_bytes);
        }
        (self.ahead, self.ahead_packets) = (Window::default(), 0);
        self.size = PacketSize::Small;
        true
    }

    /// How a response of so many bytes is sent, where a full-size packet carries so many.
    #[inline(always)]
    pub(crate) fn response_parts(&self, bytes: usize, payload_bytes: u32) -> ResponseParts {
        if bytes <= payload_bytes as usize && self.size == PacketSize::Full {
            ResponseParts::Whole
        } else {
            ResponseParts::Several
        }
    }

    /// Begins a call with all of its request, in one packet.
    #[inline(always)]
    fn begin_whole<A>(&mut self, shared: &Shared<A>, call: u32, marked: bool) {
        self.call = call;
        self.base = 1;
        self.received_ns = shared.clock.arrived_ns();
        self.late = shared.clock.is_catching_up();
        self.marked = marked;
        self.size = PacketSize::Full;
        self.enter(Phase::Executing);
    }

    /// What goes before the only packet of the response, which goes out now; `None` if the slot has moved on.
    #[inline(always)]
    fn whole_head<A>(&mut self, shared: &Shared<A>) -> Option<DataHead> {
        if self.phase != Phase::Responded {
            return None;
        }
        let held_ns = shared.clock.now_ns() - self.received_ns;
        let says_more = self.late || self.marked || shared.clock.has_stalled();
        let (flags, held) = if says_more || held_ns > HELD_NS_MAX {
            self.flags_and_held(shared, self.received_ns)
        } else {
            (Flags::NONE, (held_ns / HELD_UNIT_NS) as u16)
        };
        self.marked = false;
        let prefix = Prefix {
            message_bytes: self.response.len() as u32,
            code: self.status,
            held,
        };
        let addressee = self.response_to | flags.first_word();
        Some(DataHead::of_whole(addressee, self.call, &prefix))
    }

    /// Answers from the slot's own buffer, if that has room.
    #[inline(always)]
    pub(crate) fn respond_at_hand(&mut self, status: u16, response: &[u8]) -> bool {
        if self.response.capacity() < response.len() {
            return false;
        }
        self.status = status;
        self.enter(Phase::Responded);
        self.response.fill(response)
    }

    /// The same, but the buffer grows to what responses need; says whether that is no more than `bytes_max`.
    #[inline(always)]
    pub(crate) fn respond_inline(&mut self, status: u16, response: &[u8], bytes_max: usize) -> bool {
        if self.response.capacity() < response.len() && !self.grow(response.len(), bytes_max) {
            return false;
        }
        self.respond_at_hand(status, response)
    }

    #[cold]
    fn grow(&mut self, bytes: usize, bytes_max: usize) -> bool {
        if bytes > bytes_max {
            return false;
        }
        let capacity = bytes.next_power_of_two().max(INLINE_BYTES_MIN);
        self.response = MsgBuf::with_capacity(capacity.min(bytes_max));
        true
    }

    /// Answers with a buffer of the application.
    pub(crate) fn respond(&mut self, status: u16, buffer: MsgBuf) {
        self.aside = std::mem::replace(&mut self.response, buffer);
        self.whose = Whose::Given;
        self.status = status;
        self.enter(Phase::Responded);
    }
}

#[inline]
fn outgoing(header: &Header, what: What, packet: u16) -> Outgoing {
    Outgoing {
        call: header.call,
        session: header.session,
        packet,
        slot: header.slot,
        what,
        flags: Flags::NONE,
    }
}

/// Packets of a message of so many bytes; an empty one takes one.
#[inline]
pub(crate) fn packets_of(bytes: u32, payload_bytes: u32) -> u32 {
    if bytes <= payload_bytes {
        1
    } else {
        bytes.div_ceil(payload_bytes)
    }
}

/// Bytes of a message that this packet carries.
#[inline]
pub(crate) fn payload_of(bytes: u32, packet: u32, payload_bytes: u32) -> usize {
    let before = u64::from(packet) * u64::from(payload_bytes);
    u64::from(bytes)
        .saturating_sub(before)
        .min(u64::from(payload_bytes)) as usize
}
