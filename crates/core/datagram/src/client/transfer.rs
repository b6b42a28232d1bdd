//! Packets of calls: what is sent next, what arrives, what is lost.

use super::*;

/// The part of a session's credits after which the server is asked to return them.
const RETURNS_PER_ROUND: u32 = 4;
/// Packets that one request-for-response asks for, where nothing has to be paced.
const RANGE_PACKETS: u8 = 4;
/// How much the reordering window grows, at most, with every loss that was none.
const REORDERING_SCALE_MAX: u64 = 8;

impl<A: Copy> ClientSession<A> {
    /// Whether there is a credit, and room in the congestion window. Requests that the server holds are not in the network,
    /// and take no room in the window; their credits are taken, so that their responses find room in the receive ring.
    #[inline]
    fn may_send(&self) -> bool {
        self.credits > 0 && u32::from(self.in_network()) < self.congestion.window_packets()
    }

    /// Packets that are in the network, or about to be.
    #[inline(always)]
    fn in_network(&self) -> u16 {
        (self.credits_total - self.credits).saturating_sub(self.credits_held)
    }

    /// The server has the whole request of a slot: its credit no longer counts against the congestion window.
    fn enter_server(&mut self, index: u8) {
        let slot = &mut self.slots[usize::from(index)];
        if !slot.accepted {
            slot.accepted = true;
            slot.progress_ns = self.heard_ns;
            self.credits_held += 1;
            self.find_floor();
        }
    }

    /// The server no longer holds the request of a slot, or nobody waits for it any more.
    #[inline]
    pub(super) fn leave_server(&mut self, index: u8) {
        let slot = &mut self.slots[usize::from(index)];
        if slot.accepted {
            slot.accepted = false;
            self.credits_held -= 1;
            self.find_floor();
        }
    }

    /// Queues what a slot has to send, as far as credits reach.
    pub(super) fn pump(&mut self, shared: &mut Shared<A>, index: u8) {
        let slot = &mut self.slots[usize::from(index)];
        if slot.flight.is_some() {
            return self.pump_flight(shared, index);
        }
        if slot.phase == Phase::Request && slot.sent == Sent::NOT_YET {
            self.pump_single(shared, index);
        }
    }

    /// With which flags a request of one packet may be sent; `None` if it may not be.
    #[inline]
    pub(super) fn flags_of_whole(&self) -> Option<Flags> {
        let in_network = u32::from(self.in_network());
        let window_packets = self.congestion.window_packets();
        if self.credits == 0 || in_network >= window_packets {
            return None;
        }
        // The last packet that the window allows: a server that defers its response says so, which opens the window.
        Some(if in_network + 1 >= window_packets && self.credits > 1 {
            Flags::RETURN
        } else {
            Flags::NONE
        })
    }

    /// Whether a request of one packet takes the shortest way: at once.
    #[inline]
    pub(super) fn sends_whole(&self) -> bool {
        self.congestion.is_uncongested() && self.pacing_bypass == ShortCut::On
    }

    /// Queues a request of one packet, if there is a credit.
    #[inline(never)]
    pub(super) fn pump_single(&mut self, shared: &mut Shared<A>, index: u8) {
        let Some(flags) = self.flags_of_whole() else {
            self.starved |= 1 << index;
            return;
        };
        self.credits -= 1;
        let at_once = self.sends_whole();
        let slot = &mut self.slots[usize::from(index)];
        slot.sent = Sent::QUEUED;
        let is_plain = flags == Flags::NONE && slot.size == PacketSize::Full;
        if at_once && is_plain {
            return self.queue_whole(shared, index);
        }
        let bytes = slot.request.len();
        self.queue(shared, index, What::Request, 0, flags, bytes);
    }

    fn pump_flight(&mut self, shared: &mut Shared<A>, index: u8) {
        let bit = 1 << index;
        loop {
            let may_send = self.may_send();
            let slot = &mut self.slots[usize::from(index)];
            let Some(flight) = slot.flight.as_mut() else {
                return;
            };
            if !may_send {
                self.starved |= bit;
                return;
            }
            let Some(packet) = flight.take() else {
                self.starved &= !bit;
                return;
            };
            self.credits -= 1;
            shared.statistics.packets_resent += u64::from(flight.is_resent(packet));
            match slot.phase {
                Phase::Request => self.queue_request(shared, index, packet),
                _ => self.queue_range(shared, index, packet),
            }
        }
    }

    fn queue_request(&mut self, shared: &mut Shared<A>, index: u8, packet: u32) {
        let slot = &self.slots[usize::from(index)];
        let is_last = packet + 1 == slot.total;
        let resent = slot
            .flight
            .as_ref()
            .is_some_and(|flight| flight.is_resent(packet));
        let every = (u32::from(self.credits_total) / RETURNS_PER_ROUND).max(1);
        let periodic = (packet + 1).is_multiple_of(every) && !is_last;
        let flags = if resent || periodic || !self.may_send() {
            Flags::RETURN
        } else {
            Flags::NONE
        };
        let bytes = payload_of(slot.request.len() as u32, packet, self.sizes.of(slot.size));
        self.queue(shared, index, What::Request, packet as u16, flags, bytes);
    }

    /// Asks for a packet of the response, and those that follow it, if nothing has to be paced.
    fn queue_range(&mut self, shared: &mut Shared<A>, index: u8, packet: u32) {
        let mut packets = 1;
        while packets < RANGE_PACKETS && self.may_send() && self.congestion.is_uncongested() {
            let slot = &mut self.slots[usize::from(index)];
            let next = packet + u32::from(packets);
            if !slot
                .flight
                .as_mut()
                .is_some_and(|flight| flight.take_if_next(next))
            {
                break;
            }
            self.credits -= 1;
            packets += 1;
        }
        let payload_bytes = self.sizes.of(self.slots[usize::from(index)].size);
        let bytes = payload_bytes as usize * usize::from(packets);
        let flags = Flags::range(packets);
        self.queue(
            shared,
            index,
            What::RequestForResponse,
            packet as u16,
            flags,
            bytes,
        );
    }

    /// Hands a packet to the queue, or to the timing wheel when it is not its time yet.
    #[inline(never)]
    fn queue(
        &mut self,
        shared: &mut Shared<A>,
        index: u8,
        what: What,
        packet: u16,
        flags: Flags,
        bytes: usize,
    ) {
        let outgoing = Outgoing {
            call: self.slots[usize::from(index)].call,
            session: self.id.number,
            packet,
            slot: index,
            what,
            flags,
        };
        if shared.config.pacing_bypass == ShortCut::On && self.congestion.is_uncongested() {
            return shared.send(outgoing);
        }
        self.pace(shared, outgoing, bytes);
    }

    /// Hands a packet to the timing wheel, unless it is its time already.
    #[inline(never)]
    fn pace(&mut self, shared: &mut Shared<A>, outgoing: Outgoing, bytes: usize) {
        let bypass = shared.config.pacing_bypass == ShortCut::On;
        let Some(pace_ns) = self.congestion.pace_ns(bytes) else {
            return shared.send(outgoing);
        };
        let now_ns = shared.clock.now_ns();
        let at_ns = self.transmit_next_ns.max(now_ns);
        self.transmit_next_ns = at_ns + pace_ns;
        if bypass && at_ns <= now_ns {
            return shared.send(outgoing);
        }
        // The wheel has a place for each packet of the receive ring, and so for each credit; only what sessions that have
        // ended left behind can fill it. What has to be paced is not sent at once for that: the wheel grows.
        shared.pacing.insert_or_grow(now_ns, at_ns, outgoing);
        shared.statistics.packets_paced += 1;
    }

    pub(super) fn pump_starved(&mut self, shared: &mut Shared<A>) {
        let waiting = std::mem::take(&mut self.starved);
        // In turn, from the slot after the one that was first the last time: else high slots starve.
        let first = if waiting >> self.turn != 0 { self.turn } else { 0 };
        let (mut from_first, mut before) = (waiting >> first << first, waiting & !(u16::MAX << first));
        self.turn = (from_first.trailing_zeros() as u8 + 1) % SLOTS_MAX;
        while from_first | before != 0 {
            let of = if from_first != 0 {
                &mut from_first
            } else {
                &mut before
            };
            let index = of.trailing_zeros() as u8;
            *of &= *of - 1;
            self.pump(shared, index);
        }
    }

    #[inline]
    fn regain(&mut self, credits: u32) {
        self.credits += credits as u16;
        debug_assert!(self.credits <= self.credits_total, "more credits than there are");
    }

    #[inline]
    pub(super) fn release(&mut self, shared: &mut Shared<A>, credits: u32) {
        self.regain(credits);
        if self.starved != 0 {
            self.pump_starved(shared);
        }
    }

    /// The header and prefix of a packet that goes out now; `None` if it is no longer wanted.
    pub(crate) fn transmit(
        &mut self,
        shared: &mut Shared<A>,
        outgoing: &Outgoing,
    ) -> Option<(Head, std::ops::Range<usize>)> {
        let now_ns = shared.clock.now_ns();
        let slot = self.slots.get_mut(usize::from(outgoing.slot))?;
        let (phase, kind) = match outgoing.what {
            What::Request => (Phase::Request, Kind::Request),
            _ => (Phase::Response, Kind::RequestForResponse),
        };
        if slot.call != outgoing.call || slot.phase != phase || !slot.send(outgoing, now_ns) {
            return None;
        }
        slot.progress_ns = now_ns;
        let due_ns = now_ns + self.trips.timeout_ns(slot.timeouts);
        if due_ns < self.timer_ns {
            self.timer_ns = due_ns;
            shared.timers.watch(self.id.number, due_ns);
        }
        let flags = match outgoing.what {
            // Of the call as it is now, not as it was when the packet was queued.
            What::Request => outgoing.flags.with(slot.size.request_flags()),
            _ => outgoing.flags,
        };
        let header = Header {
            kind,
            flags,
            slot: outgoing.slot,
            session: self.remote_number,
            token: self.remote_token,
            call: outgoing.call,
            packet: outgoing.packet,
        };
        if kind == Kind::RequestForResponse {
            return Some((Head::bare(&header), 0..0));
        }
        let bytes = slot.request.len() as u32;
        let prefix = Prefix {
            message_bytes: bytes,
            code: slot.method,
            held: 0,
        };
        let payload_bytes = self.sizes.of(slot.size);
        let start = usize::from(outgoing.packet) * payload_bytes as usize;
        let end = start + payload_of(bytes, outgoing.packet.into(), payload_bytes);
        Some((Head::of_data(&header, &prefix), start..end))
    }

    /// Takes the response of one packet that its slot expects; `None` if it is something else. The call's buffers are still in the
    /// slot then, for whoever takes them next: so they are moved once. If more goes on than that a call waits,
    /// [`ClientSession::note_round_trip`] is to be called, too.
    #[inline(always)]
    pub(crate) fn take_expected(
        &mut self,
        shared: &mut Shared<A>,
        arrival: &ArrivedData<'_, A>,
    ) -> Option<(&mut ClientSlot, GoingOn)>
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
        // A request that was sent again, or that the server holds, is not waited for so: nothing else is to be put back.
        let is_expected = head.begins_with(&slot.expected)
            && from == self.remote
            && prefix.message_bytes as usize == payload.len()
            && payload.len() <= slot.response.capacity();
        if !is_expected {
            return None;
        }
        let filled = slot.response.fill(payload);
        debug_assert!(filled, "there was room");
        slot.expected[1] = NO_WORD;
        slot.phase = Phase::Idle;
        let now_ns = shared.clock.now_ns();
        self.heard_ns = now_ns;
        let held_ns = u64::from(prefix.held) * HELD_UNIT_NS;
        let rtt_ns = shared.clock.arrived_ns().saturating_sub(slot.sent.0 + held_ns);
        let says_much = marked || !self.congestion.is_indifferent(rtt_ns);
        if !says_much && !self.trips.is_sampled(now_ns) {
            time(&mut self.trips, shared, slot.sent.0, held_ns);
        }
        self.credits += 1;
        debug_assert!(self.credits <= self.credits_total, "more credits than there are");
        // Its packet is out, so the slot does not wait for a credit.
        self.busy &= !(1 << (head.slot() % SLOTS_MAX));
        if self.busy == 0 {
            shared.timers.rest(self.id.number);
            self.timer_ns = NEVER;
        }
        shared.statistics.calls_completed += 1;
        let going_on = if says_much || self.starved != 0 || self.state == State::Draining {
            GoingOn::Possible
        } else if self.backlog.is_empty() {
            GoingOn::Nothing
        } else {
            GoingOn::CallWaits
        };
        Some((slot, going_on))
    }

    /// Learns the round trip of a response that its slot expected, where it says anything.
    pub(crate) fn note_round_trip(&mut self, shared: &mut Shared<A>, head: &DataHead, marked: bool) {
        let Some(slot) = self.slots.get(usize::from(head.slot())) else {
            return;
        };
        let sent_ns = slot.sent.0;
        let held_ns = u64::from(head.prefix().held) * HELD_UNIT_NS;
        let rtt_ns = shared.clock.arrived_ns().saturating_sub(sent_ns + held_ns);
        if marked || !self.congestion.is_indifferent(rtt_ns) {
            self.sample(shared, Some(sent_ns), held_ns, marked, 1);
        }
    }

    /// Takes the response of one packet to a request of one that was sent once; `None` if it is something else.
    fn take_whole(&mut self, shared: &mut Shared<A>, piece: &Piece<'_>) -> Option<Event<'static>> {
        let bytes = piece.payload.len();
        let slot = self.slots.get_mut(usize::from(piece.header.slot))?;
        let is_whole = piece.header.kind == Kind::Response
            && slot.call == piece.header.call
            && slot.phase == Phase::Request
            && slot.sent.is_out()
            && !slot.resent
            && piece.header.packet == 0
            && piece.prefix.message_bytes as usize == bytes
            && bytes <= self.sizes.full as usize;
        if !is_whole || slot.make_room(shared, bytes) != ResponseRoom::Made {
            return None;
        }
        let filled = slot.response.fill(piece.payload);
        debug_assert!(filled, "there was room");
        let sent_ns = Some(slot.sent.0);
        self.heard_ns = shared.clock.now_ns();
        self.measure(shared, piece, sent_ns, 1);
        self.regain(1);
        Some(self.complete(shared, piece.header.slot, Ok(piece.prefix.code)))
    }

    /// Takes a piece of a response, which may complete the call.
    pub(crate) fn receive_response(
        &mut self,
        shared: &mut Shared<A>,
        piece: Piece<'_>,
    ) -> Option<Event<'static>> {
        match self.take_whole(shared, &piece) {
            Some(event) => Some(event),
            None => self.receive_part(shared, piece),
        }
    }

    #[inline(never)]
    fn receive_part(&mut self, shared: &mut Shared<A>, piece: Piece<'_>) -> Option<Event<'static>> {
        let index = piece.header.slot;
        let slot = match self.slots.get(usize::from(index)) {
            Some(slot)
                if slot.call == piece.header.call
                    && slot.phase != Phase::Idle
                    && slot.size == PacketSize::of_answer(piece.header.flags) =>
            {
                slot
            }
            _ => {
                shared.statistics.dropped.stale += 1;
                self.forgive_timeouts(shared, piece.header.flags);
                return None;
            }
        };
        let packet = u32::from(piece.header.packet);
        let bytes = piece.prefix.message_bytes;
        if piece.payload.len() != payload_of(bytes, packet, self.sizes.of(slot.size)) {
            shared.statistics.dropped.protocol += 1;
            return None;
        }
        match (slot.phase, packet) {
            (Phase::Request, 0) => self.begin_response(shared, piece),
            (Phase::Response, 1..) if slot.response.len() == bytes as usize => {
                self.continue_response(shared, piece)
            }
            (Phase::Response, 0) => {
                shared.statistics.packets_duplicate += 1;
                shared.statistics.dropped.stale += 1;
                None
            }
            _ => {
                shared.statistics.dropped.protocol += 1;
                None
            }
        }
    }

    /// The first packet of a response: it also says that all of the request is there.
    fn begin_response(&mut self, shared: &mut Shared<A>, piece: Piece<'_>) -> Option<Event<'static>> {
        let index = piece.header.slot;
        let size = self.slots[usize::from(index)].size;
        let total = packets_of(piece.prefix.message_bytes, self.sizes.of(size));
        if total > MESSAGE_PACKETS_MAX {
            shared.statistics.dropped.protocol += 1;
            return None;
        }
        let room = self.slots[usize::from(index)].make_room(shared, piece.prefix.message_bytes as usize);
        if room == ResponseRoom::NotNow {
            // It is asked for again.
            shared.statistics.dropped.room += 1;
            return None;
        }
        self.leave_server(index);
        let slot = &mut self.slots[usize::from(index)];
        let (sent_ns, credits) = match slot.flight.as_mut() {
            None => {
                let sent_ns = (slot.sent.is_out() && !slot.resent).then_some(slot.sent.0);
                (sent_ns, u32::from(slot.sent != Sent::NOT_YET))
            }
            Some(flight) => {
                let out = flight.outstanding();
                let last = flight.arrive(slot.total - 1, shared.clock.now_ns());
                (last.and_then(|last| last.sent_ns), out)
            }
        };
        slot.sent = Sent::NOT_YET;
        slot.expected[1] = NO_WORD;
        slot.status = piece.prefix.code;
        slot.progress_ns = shared.clock.now_ns();
        (slot.timeouts, slot.unanswered) = (0, 0);
        slot.look_again_ns = NEVER;
        let fits = room == ResponseRoom::Made;
        if fits {
            slot.response.set_length(piece.prefix.message_bytes as usize);
            slot.response[..piece.payload.len()].copy_from_slice(piece.payload);
        }
        let status = slot.status;
        self.measure(shared, &piece, sent_ns, credits);
        if !fits || total == 1 {
            self.regain(credits);
            let outcome = if fits {
                Ok(status)
            } else {
                Err(CallError::ResponseTooLarge)
            };
            return Some(self.complete(shared, index, outcome));
        }
        let slot = &mut self.slots[usize::from(index)];
        slot.phase = Phase::Response;
        match slot.flight.as_mut() {
            Some(flight) => flight.begin(1, total),
            None => slot.flight = Some(shared.flight(1, total)),
        }
        self.starved |= 1 << index;
        self.release(shared, credits);
        None
    }

    fn continue_response(&mut self, shared: &mut Shared<A>, piece: Piece<'_>) -> Option<Event<'static>> {
        let index = piece.header.slot;
        let packet = u32::from(piece.header.packet);
        let now_ns = shared.clock.now_ns();
        let slot = &mut self.slots[usize::from(index)];
        let flight = slot.flight.as_mut()?;
        if shared.config.recovery == Recovery::GoBackN && packet > flight.base() {
            shared.statistics.dropped.order += 1;
            return None;
        }
        let Some(arrival) = flight.arrive(packet, now_ns) else {
            shared.statistics.packets_duplicate += 1;
            shared.statistics.dropped.stale += 1;
            return None;
        };
        let start = packet as usize * self.sizes.of(slot.size) as usize;
        slot.response[start..start + piece.payload.len()].copy_from_slice(piece.payload);
        slot.progress_ns = now_ns;
        (slot.timeouts, slot.unanswered) = (0, 0);
        let is_complete = flight.is_complete();
        let status = slot.status;
        self.note_spurious(shared, arrival.was_lost);
        let credits = u32::from(arrival.was_out);
        self.measure(shared, &piece, arrival.sent_ns, credits.max(1));
        if is_complete {
            self.regain(credits);
            return Some(self.complete(shared, index, Ok(status)));
        }
        self.starved |= 1 << index;
        self.look_for_losses(shared, index);
        self.release(shared, credits);
        None
    }

    /// Learns the round trip of a packet, where this says something about the network.
    fn measure(&mut self, shared: &mut Shared<A>, piece: &Piece<'_>, sent_ns: Option<u64>, packets: u32) {
        let untimed = piece.header.flags.has(Flags::UNTIMED);
        if untimed {
            self.forgive_timeouts(shared, piece.header.flags);
        }
        let held_ns = u64::from(piece.prefix.held) * HELD_UNIT_NS;
        let marked = piece.marked || piece.header.flags.has(Flags::MARKED);
        let sent_ns = sent_ns.filter(|_| !untimed);
        self.sample(shared, sent_ns, held_ns, marked, packets);
    }

    #[inline(never)]
    fn sample(
        &mut self,
        shared: &mut Shared<A>,
        sent_ns: Option<u64>,
        held_ns: u64,
        marked: bool,
        packets: u32,
    ) {
        let (now_ns, arrived_ns) = (shared.clock.now_ns(), shared.clock.arrived_ns());
        let sent_ns = sent_ns.filter(|sent_ns| !shared.clock.stalled_since(*sent_ns));
        if let Some(sent_ns) = sent_ns
            && !self.trips.is_sampled(now_ns)
        {
            time(&mut self.trips, shared, sent_ns, held_ns);
        }
        shared.statistics.marks += u64::from(marked);
        let has_learned = self.congestion.acknowledged(&Sample {
            now_ns,
            rtt_ns: sent_ns.map(|sent_ns| arrived_ns.saturating_sub(sent_ns + held_ns)),
            marked,
            packets,
        });
        if has_learned {
            self.find_floor();
        }
    }

    /// Takes a credit return: everything below its packet number has arrived, and what its bitmap says.
    pub(crate) fn receive_credit_return(
        &mut self,
        shared: &mut Shared<A>,
        header: &Header,
        bitmap: u64,
        marked: bool,
    ) {
        let index = header.slot;
        let now_ns = shared.clock.now_ns();
        let slot = match self.slots.get_mut(usize::from(index)) {
            Some(slot)
                if slot.call == header.call
                    && slot.phase == Phase::Request
                    && slot.size == PacketSize::of_answer(header.flags) =>
            {
                slot
            }
            _ => {
                shared.statistics.dropped.stale += 1;
                return self.forgive_timeouts(shared, header.flags);
            }
        };
        let below = u32::from(header.packet);
        if below > slot.total {
            shared.statistics.dropped.protocol += 1;
            return;
        }
        let is_complete = below == slot.total;
        let last = slot.total - 1;
        if is_complete {
            self.enter_server(index);
        }
        let slot = &mut self.slots[usize::from(index)];
        if is_complete {
            slot.unanswered = 0;
        }
        let Some(flight) = slot.flight.as_mut() else {
            if is_complete {
                self.measure_held(shared, header, marked);
            }
            return;
        };
        // The last packet keeps its credit until the response is here, which arrives without one of its own.
        let in_order = flight.base()..below.min(last);
        let beyond = (0..64u32)
            .filter(|bit| bitmap >> bit & 1 == 1)
            .map(|bit| below + 1 + bit);
        let (mut credits, mut arrived, mut sent_ns, mut was_lost) = (0, 0, None, false);
        for packet in in_order.chain(beyond.filter(|packet| *packet < last)) {
            if let Some(arrival) = flight.arrive(packet, now_ns) {
                credits += u32::from(arrival.was_out);
                arrived += 1;
                sent_ns = sent_ns.max(arrival.sent_ns);
                was_lost |= arrival.was_lost;
            }
        }
        if arrived > 0 {
            slot.progress_ns = now_ns;
            (slot.timeouts, slot.unanswered) = (0, 0);
        }
        self.note_spurious(shared, was_lost);
        let sent_ns = sent_ns.filter(|_| !header.flags.has(Flags::UNTIMED));
        self.forgive_timeouts(shared, header.flags);
        let marked = marked || header.flags.has(Flags::MARKED);
        if arrived > 0 {
            self.sample(shared, sent_ns, 0, marked, arrived);
        }
        self.starved |= 1 << index;
        self.look_for_losses(shared, index);
        self.release(shared, credits);
    }

    /// The request of one packet of a slot has arrived, and its response comes later: what its round trip says.
    fn measure_held(&mut self, shared: &mut Shared<A>, header: &Header, marked: bool) {
        let slot = &mut self.slots[usize::from(header.slot)];
        let sent_ns =
            (slot.sent.is_out() && !slot.resent && !header.flags.has(Flags::UNTIMED)).then_some(slot.sent.0);
        slot.note_resent();
        self.forgive_timeouts(shared, header.flags);
        let marked = marked || header.flags.has(Flags::MARKED);
        self.sample(shared, sent_ns, 0, marked, 1);
        self.release(shared, 0);
    }

    fn note_spurious(&mut self, shared: &mut Shared<A>, was_lost: bool) {
        if was_lost {
            shared.statistics.losses_spurious += 1;
            self.reordering_scale = (self.reordering_scale * 2).min(REORDERING_SCALE_MAX);
        }
    }

    /// Takes for lost what later packets have overtaken for too long.
    pub(super) fn look_for_losses(&mut self, shared: &mut Shared<A>, index: u8) {
        let slot = &mut self.slots[usize::from(index)];
        slot.look_again_ns = NEVER;
        if shared.config.recovery == Recovery::GoBackN || slot.accepted && slot.phase == Phase::Request {
            return;
        }
        let Some(flight) = slot.flight.as_mut() else {
            return;
        };
        let now_ns = shared.clock.now_ns();
        let window_ns = self.trips.reordering_ns(shared.config.reordering_ns_min) * self.reordering_scale;
        let losses = flight.look_for_losses(now_ns, window_ns);
        slot.look_again_ns = losses.look_again_ns.unwrap_or(NEVER);
        if let Some(at_ns) = losses.look_again_ns {
            shared.timers.arm(self.id.number, now_ns, at_ns);
        }
        if losses.packets > 0 {
            shared.statistics.losses_detected += u64::from(losses.packets);
            self.congestion.lost(now_ns);
            self.find_floor();
            self.starved |= 1 << index;
            self.release(shared, losses.packets);
        }
    }

    /// Nothing has come in time: sends again what is missing, or asks whether the server still works on it.
    pub(super) fn time_out(&mut self, shared: &mut Shared<A>, index: u8) {
        if self.is_to_shrink(shared, index) {
            return self.begin_anew(shared, index);
        }
        let now_ns = shared.clock.now_ns();
        let slot = &mut self.slots[usize::from(index)];
        let was_accepted = slot.accepted && slot.phase == Phase::Request;
        slot.timeouts = slot.timeouts.saturating_add(1);
        slot.progress_ns = now_ns;
        let repeated = slot.timeouts > 1;
        if was_accepted {
            // The server has it all and is at work: this only asks whether the response got lost.
            shared.statistics.probes_sent += 1;
            return self.send_last_again(shared, index);
        }
        shared.statistics.timeouts += 1;
        let in_a_row = slot.timeouts;
        // What has been out for shorter than this has not timed out.
        let timeout_ns = self.trips.timeout_ns(in_a_row - 1);
        self.trips.back_off(in_a_row);
        // The first time-out may be a host that was off its core; a second in a row is congestion or worse.
        if repeated {
            self.congestion.timed_out(now_ns, timeout_ns);
            self.find_floor();
        }
        let slot = &mut self.slots[usize::from(index)];
        let Some(flight) = slot.flight.as_mut() else {
            shared.statistics.packets_resent += 1;
            return self.send_last_again(shared, index);
        };
        let sent_before_ns = match shared.config.recovery {
            Recovery::GoBackN => u64::MAX,
            Recovery::Selective => now_ns.saturating_sub(timeout_ns),
        };
        let lost = flight.time_out(sent_before_ns);
        self.starved |= 1 << index;
        self.release(shared, lost);
    }

    /// A server that was off its core was silent, whatever the network did: the session is as fast as it was before.
    #[cold]
    fn forgive_timeouts(&mut self, shared: &mut Shared<A>, flags: Flags) {
        if flags.has(Flags::AWAY) && self.congestion.forgive_timeouts() {
            self.find_floor();
            self.pace_anew(shared);
        }
    }

    /// Queues again what waits in the timing wheel for the time that a slower rate gave it. Of each packet, what comes later
    /// is no longer wanted then.
    fn pace_anew(&mut self, shared: &mut Shared<A>) {
        self.transmit_next_ns = shared.clock.now_ns();
        for index in 0..self.slots.len() as u8 {
            let slot = &self.slots[usize::from(index)];
            let bytes = slot.request.len();
            match (&slot.flight, slot.phase) {
                (None, Phase::Request) if slot.sent == Sent::QUEUED => {
                    self.queue(shared, index, What::Request, 0, Flags::RETURN, bytes);
                }
                (Some(flight), Phase::Request | Phase::Response) => {
                    let mut waiting = Window::default();
                    let base = flight.base();
                    flight.queued().for_each(|packet| waiting.insert(packet));
                    for packet in (base..base + WINDOW_PACKETS).filter(|packet| waiting.has(*packet)) {
                        self.queue_anew(shared, index, packet);
                    }
                }
                _ => {}
            }
        }
    }

    fn queue_anew(&mut self, shared: &mut Shared<A>, index: u8, packet: u32) {
        let slot = &self.slots[usize::from(index)];
        if slot.phase == Phase::Request {
            return self.queue_request(shared, index, packet);
        }
        let (flags, bytes) = (Flags::range(1), self.sizes.of(slot.size) as usize);
        self.queue(
            shared,
            index,
            What::RequestForResponse,
            packet as u16,
            flags,
            bytes,
        );
    }

    /// Sends the last packet of a request again, on the credit that it still has.
    fn send_last_again(&mut self, shared: &mut Shared<A>, index: u8) {
        let slot = &mut self.slots[usize::from(index)];
        let last = slot.total - 1;
        let bytes = payload_of(slot.request.len() as u32, last, self.sizes.of(slot.size));
        match slot.flight.as_mut() {
            None => {
                slot.sent = Sent::QUEUED;
                slot.note_resent();
            }
            Some(flight) => flight.send_again(last),
        }
        self.queue(shared, index, What::Request, last as u16, Flags::RETURN, bytes);
    }
}

/// Whether there is room for a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponseRoom {
    Made,
    /// The buffers that are lent are all in use.
    NotNow,
    /// It is larger than the call allows.
    TooSmall,
}

impl ClientSlot {
    /// Sees that there is room for a response of so many bytes.
    fn make_room<A: Copy>(&mut self, shared: &mut Shared<A>, bytes: usize) -> ResponseRoom {
        if bytes <= self.response.capacity() {
            return ResponseRoom::Made;
        }
        let bytes_max = match shared.config.responses {
            ResponseBuffers::Given => return ResponseRoom::TooSmall,
            ResponseBuffers::Lent => shared.config.message_bytes_max as usize,
        };
        if bytes > bytes_max {
            return ResponseRoom::TooSmall;
        }
        let Some(lent) = shared.pool.take(bytes) else {
            return ResponseRoom::NotNow;
        };
        shared.pool.give_back(std::mem::replace(&mut self.response, lent));
        ResponseRoom::Made
    }

    /// The request's round trip can no longer be told by its response.
    pub(super) fn note_resent(&mut self) {
        self.resent = true;
        self.expected[1] = NO_WORD;
    }

    /// The only packet of the request goes out now.
    #[inline(always)]
    pub(super) fn leave(&mut self, now_ns: u64) {
        self.sent = Sent(now_ns);
        if !self.resent {
            self.expected[1] = DataHead::second_word(self.call);
        }
    }

    /// Notes that a packet goes out now; not if it is no longer wanted.
    #[inline]
    fn send(&mut self, outgoing: &Outgoing, now_ns: u64) -> bool {
        let packet = u32::from(outgoing.packet);
        let Some(flight) = self.flight.as_mut() else {
            let wanted = self.sent == Sent::QUEUED;
            if wanted {
                self.leave(now_ns);
            }
            return wanted;
        };
        if outgoing.what == What::Request {
            return flight.send(packet, now_ns);
        }
        let packets = u32::from(outgoing.flags.range_packets());
        (packet..packet + packets).fold(false, |wanted, packet| flight.send(packet, now_ns) | wanted)
    }
}

/// Learns how long a packet's round trip took, for time-outs alone.
#[inline(never)]
fn time<A>(trips: &mut RoundTrips, shared: &mut Shared<A>, sent_ns: u64, held_ns: u64) {
    let now_ns = shared.clock.now_ns();
    if shared.clock.stalled_since(sent_ns) {
        return;
    }
    // Time-outs have to allow for what this end takes to look; the network is not to blame for that.
    trips.sample(now_ns, (now_ns - sent_ns).saturating_sub(held_ns));
    shared.statistics.round_trips += 1;
}
