//! What happens when a stream is polled, at either end.

use super::*;

impl ResumableStream {
    /// Takes what has come, does what is due, sends what is to be sent, by these batches.
    pub(crate) fn poll(
        &mut self,
        now_ns: u64,
        reading: Reading,
        batches: &mut PacketBatches,
    ) -> Result<Polled, Lost> {
        pool::with_spares(self, |stream| stream.poll_with_spares(now_ns, reading, batches))
    }

    fn poll_with_spares(
        &mut self,
        now_ns: u64,
        reading: Reading,
        batches: &mut PacketBatches,
    ) -> Result<Polled, Lost> {
        let now_ns = self.time(now_ns);
        self.attach(now_ns)?;
        let mut polled = Polled {
            moved: false,
            left_some: false,
        };
        if reading == Reading::Try {
            polled = self.receive(now_ns, batches)?;
        }
        self.endpoint.handle_timers(now_ns);
        self.on_events(now_ns)?;
        self.apply_refusals(now_ns)?;
        // A session that has ended meanwhile is followed by another one.
        self.attach(now_ns)?;
        match self.role {
            Role::Client => self.ask(now_ns),
            Role::Server => {
                self.answer(now_ns);
                self.rest(now_ns);
            }
        }
        polled.moved |= self.transmit(now_ns, batches)?;
        self.wake_ns = self.next_wake();
        Ok(polled)
    }

    pub(super) fn time(&mut self, now_ns: u64) -> u64 {
        if let Clock::GoesOn { at_ns } = self.clock {
            self.clock = Clock::Offset {
                ns: at_ns.wrapping_sub(now_ns),
            };
        }
        match self.clock {
            Clock::Offset { ns } => now_ns.wrapping_add(ns),
            Clock::GoesOn { at_ns } => at_ns,
        }
    }

    pub(super) fn receive(&mut self, now_ns: u64, batches: &mut PacketBatches) -> Result<Polled, Lost> {
        self.endpoint.begin_receiving(now_ns, self.emptied_ns);
        let (mut packets, mut left_some) = (0, true);
        while left_some && packets < PACKETS_MAX {
            left_some = self.socket.receive(batches)?;
            while let Some((mark, packet)) = self.socket.next(batches) {
                self.take_in(now_ns, mark, packet)?;
                packets += 1;
            }
        }
        if !left_some {
            self.emptied_ns = now_ns;
        }
        Ok(Polled {
            moved: packets > 0,
            left_some,
        })
    }

    fn take_in(&mut self, now_ns: u64, mark: Mark, packet: &[u8]) -> Result<(), Lost> {
        let peer = self.socket.peer();
        let unproven = self.endpoint.unproven_losses();
        if let Some(event) = self.endpoint.receive_next(peer, mark, packet) {
            self.handle(now_ns, event)?;
        }
        // That nobody there knows a sealed session is no proof that somebody is there who does, but what comes beside it is.
        if self.endpoint.unproven_losses() == unproven {
            self.refusals.count = 0;
        }
        Ok(())
    }

    /// Takes what has come until a packet asks for `other`, with its key. Says whether one did: `other` has taken it then.
    pub(crate) fn poll_until_asked_for(
        &mut self,
        other: &mut ResumableStream,
        now_ns: u64,
        batches: &mut PacketBatches,
    ) -> Result<bool, Lost> {
        self.endpoint.begin_receiving(now_ns, self.emptied_ns);
        let (mut asked, mut left_some, mut packets) = (false, true, 0);
        while left_some && packets < PACKETS_MAX && !asked {
            left_some = self.socket.receive(batches)?;
            while let Some((mark, packet)) = self.socket.next(batches) {
                packets += 1;
                if !asked && !other.is_asked_for_by(packet) {
                    self.take_in(now_ns, mark, packet)?;
                    continue;
                }
                // What comes after it in the same batch, too, is for whoever reads the socket from now on.
                let now_ns = other.time(now_ns);
                if !asked {
                    other.endpoint.begin_receiving(now_ns, now_ns);
                }
                asked = true;
                other.take_in(now_ns, mark, packet)?;
            }
        }
        if asked {
            return Ok(true);
        }
        if !left_some {
            self.emptied_ns = now_ns;
        }
        self.poll(now_ns, Reading::Skip, batches).map(|_| false)
    }

    /// Hears what the endpoint has to tell.
    pub(super) fn on_events(&mut self, now_ns: u64) -> Result<(), Lost> {
        while let Some(event) = self.endpoint.poll_event() {
            self.handle(now_ns, event)?;
        }
        // Their session goes on, so the client has had them.
        for buffer in self.returned.drain(..) {
            pool::give(buffer);
        }
        Ok(())
    }

    pub(super) fn handle(&mut self, now_ns: u64, event: Event<'_>) -> Result<(), Lost> {
        match event {
            Event::Completed(completion) => self.completed(completion),
            Event::Request {
                handle,
                method,
                payload,
            } => self.requested(now_ns, handle, method, payload),
            Event::ResponseReturned(buffer) => {
                self.returned.push(buffer);
                Ok(())
            }
            Event::Ended(session, reason) => self.session_ended(now_ns, session, reason),
            Event::Connected(_) => Ok(()),
            Event::Accepted(session) => {
                self.accepted(now_ns, session);
                Ok(())
            }
        }
    }

    /// A session is asked for: by the client, or by an old packet of its own that somebody repeats. So those before stay, in one of which it may
    /// be about to take the stream up; but not many that it has given up.
    fn accepted(&mut self, now_ns: u64, session: SessionId) {
        let current = self.session();
        let given_up = self.asked_for.iter().position(|before| Some(*before) != current);
        if let Some(at) = given_up.filter(|_| self.asked_for.len() >= ASKED_FOR_MAX) {
            let before = self.asked_for.remove(at);
            self.endpoint.reset(now_ns, before);
        }
        self.asked_for.push(session);
    }

    /// A session is over: what was under way in it has to be sent again in another.
    pub(super) fn session_ended(
        &mut self,
        now_ns: u64,
        session: SessionId,
        reason: EndReason,
    ) -> Result<(), Lost> {
        for buffer in std::mem::take(&mut self.returned) {
            self.send_again(buffer);
        }
        if self.session() != Some(session) {
            self.asked_for.retain(|asked_for| *asked_for != session);
            return Ok(());
        }
        self.held.clear();
        // One that did not come about leaves the stream as long without a session as it was.
        let since_ns = Some(since_ns_of(self.attachment).unwrap_or(now_ns));
        self.attachment = Attachment::Detached { since_ns };
        let is_believed = self.terms.key.is_none();
        match reason {
            // Anybody on the path can refuse a session: that is no reason to give a sealed stream up.
            EndReason::Refused(Refusal::Version | Refusal::Parameters | Refusal::Other) if is_believed => {
                Err(Lost(reason.to_string()))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn session(&self) -> Option<SessionId> {
        match self.attachment {
            Attachment::Attached { session } | Attachment::Attaching { session, .. } => Some(session),
            Attachment::Detached { .. } | Attachment::Inherited => None,
        }
    }

    /// Keeps a segment for another try, in its place, unless the peer has it.
    pub(super) fn send_again(&mut self, segment: MsgBuf) {
        let number = Head::read(&segment).map_or(0, |head| head.number);
        if number <= self.outgoing.acknowledged {
            return pool::give(segment);
        }
        let number_of = |segment: &MsgBuf| Head::read(segment).map_or(0, |head| head.number);
        match self.outgoing.unsent.binary_search_by_key(&number, number_of) {
            Ok(_) => pool::give(segment),
            Err(at) => self.outgoing.unsent.insert(at, segment),
        }
    }

    pub(super) fn acknowledged(&mut self, received: u64) -> Result<(), Lost> {
        if received > self.outgoing.last {
            return Err(Lost("the peer has received what was never sent".to_owned()));
        }
        self.outgoing.acknowledged = self.outgoing.acknowledged.max(received);
        Ok(())
    }

    /// Sees that there is a session, and gives up when there is none for too long.
    pub(super) fn attach(&mut self, now_ns: u64) -> Result<(), Lost> {
        let since_ns = match self.attachment {
            Attachment::Attached { .. } => return Ok(()),
            Attachment::Detached { since_ns } => since_ns.unwrap_or(now_ns),
            Attachment::Attaching { since_ns, .. } => since_ns,
            Attachment::Inherited => {
                if let Some(Inherited { session, proof }) = self.inherited {
                    self.endpoint.disown(now_ns, self.socket.peer(), session, proof);
                }
                now_ns
            }
        };
        if now_ns.saturating_sub(since_ns) > DETACHED_NS_MAX {
            return Err(Lost("the peer did not take the connection up again".to_owned()));
        }
        match (self.role, self.attachment) {
            (Role::Client, Attachment::Attaching { .. }) => Ok(()),
            (Role::Client, _) => self.ask_to_attach(now_ns, since_ns),
            (Role::Server, _) => {
                let since_ns = Some(since_ns);
                self.attachment = Attachment::Detached { since_ns };
                Ok(())
            }
        }
    }

    pub(super) fn next_wake(&mut self) -> Option<u64> {
        let look_at = match self.attachment {
            Attachment::Attached { .. } => None,
            _ => since_ns_of(self.attachment).map(|since_ns| since_ns + DETACHED_NS_MAX + 1),
        };
        let is_refused = self.refusals.count > 0;
        let refused_at = is_refused.then(|| self.refusals.first_ns + REFUSED_NS_MAX + 1);
        let ask_at = (is_refused && self.terms.key.is_some()).then(|| self.refusals.asked_ns + ASK_NS);
        let due = self.endpoint.wake_at();
        let rest_at = match self.rest {
            RestTime::At { ns } => Some(ns),
            RestTime::Done | RestTime::Acknowledged => None,
        };
        [due, look_at, refused_at, ask_at, rest_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// Heeds what says that nobody listens at the peer's address: messages of the network, and peers that do not know the
    /// session. Anybody can send those, so that a sealed stream only asks its peer whether it is there, and believes in its
    /// silence. (A server's end cannot ask: there, the connection's own questions decide.)
    pub(super) fn apply_refusals(&mut self, now_ns: u64) -> Result<(), Lost> {
        let is_sealed = self.terms.key.is_some();
        let refusals = &mut self.refusals;
        let unproven = self.endpoint.unproven_losses();
        let is_disowned = std::mem::replace(&mut refusals.unproven, unproven) < unproven;
        let is_refused = self.socket.take_refused() && !(is_sealed && self.role == Role::Server);
        if is_refused || is_disowned {
            if refusals.count == 0 {
                refusals.first_ns = now_ns;
                refusals.asked_ns = now_ns.saturating_sub(ASK_NS);
            }
            refusals.count += 1;
            refusals.last_ns = now_ns;
        }
        if refusals.count == 0 {
            return Ok(());
        }
        let since_ns = now_ns.saturating_sub(refusals.first_ns);
        let several = !is_sealed && refusals.count >= REFUSALS_MAX && since_ns >= REFUSALS_NS_MIN;
        if several || since_ns > REFUSED_NS_MAX {
            return Err(Lost("nobody listens at the peer's address any more".to_owned()));
        }
        let is_due = now_ns.saturating_sub(refusals.asked_ns) >= ASK_NS;
        if is_sealed && is_due {
            refusals.asked_ns = now_ns;
            if let Some(session) = self.session() {
                self.endpoint.ask(now_ns, session);
            }
        }
        Ok(())
    }

    pub(super) fn transmit(&mut self, now_ns: u64, batches: &mut PacketBatches) -> Result<bool, Lost> {
        let marks = self.session().map(|session| self.endpoint.peer_marks(session));
        self.socket.apply_marks(marks.unwrap_or_default())?;
        let mut sent = false;
        loop {
            let (socket, room) = (&mut self.socket, batches.room());
            let packets = self.endpoint.transmit(now_ns, room, |_, head, payload| {
                socket.push(batches, head, payload)
            });
            if packets == 0 {
                return Ok(sent);
            }
            sent = true;
            self.socket.flush(batches)?;
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.incoming.bytes >= INCOMING_BYTES_MAX || self.incoming.ready.len() >= INCOMING_SEGMENTS_MAX
    }

    /// What goes with whatever is sent now.
    pub(super) fn present_head(&mut self) -> Head {
        let is_busy = self.is_busy();
        self.told_changes += u32::from(self.told_busy != is_busy);
        self.told_busy = is_busy;
        Head {
            number: 0,
            received: self.incoming.received,
            flags: if is_busy { BUSY } else { 0 },
            changes: self.told_changes,
        }
    }

    /// Heeds whether the peer is busy, unless it has said since that it is otherwise.
    fn apply_busy(&mut self, head: Head) {
        if head.changes >= self.peer_changes {
            self.peer_changes = head.changes;
            self.peer_busy = head.flags & BUSY != 0;
        }
    }

    /// The next segment that can go now.
    pub(super) fn next_segment(&mut self) -> Option<MsgBuf> {
        let last = self.outgoing.acknowledged + WINDOW_SEGMENTS;
        let head = Head::read(self.outgoing.unsent.front()?)?;
        let can_go = !self.peer_busy && head.number <= last;
        can_go.then(|| self.outgoing.unsent.pop_front()).flatten()
    }

    /// Takes what has come with a head, and says whether its buffer was taken, too.
    pub(super) fn arrived(&mut self, head: Head, segment: Segment) -> Result<(), Lost> {
        self.apply_busy(head);
        self.acknowledged(head.received)?;
        let next = self.incoming.received + 1;
        let known = head.number < next || self.incoming.ahead.contains_key(&head.number);
        if head.number == 0 || known {
            self.give_back(segment);
            return Ok(());
        }
        let ahead = self.incoming.ahead.len();
        if self.incoming.bytes + segment.buffer.len() > INCOMING_BYTES_ABSURD
            || self.incoming.ready.len() + ahead >= INCOMING_SEGMENTS_ABSURD
            || ahead >= AHEAD_MAX
        {
            return Err(Lost("the peer sends more than it was asked to".to_owned()));
        }
        self.incoming.bytes += segment.buffer.len();
        if head.number > next {
            self.incoming.ahead.insert(head.number, segment);
            return Ok(());
        }
        self.incoming.ready.push_back(segment);
        self.incoming.received = next;
        while let Some(segment) = self.incoming.ahead.remove(&(self.incoming.received + 1)) {
            self.incoming.ready.push_back(segment);
            self.incoming.received += 1;
        }
        Ok(())
    }
}

pub(super) fn since_ns_of(attachment: Attachment) -> Option<u64> {
    match attachment {
        Attachment::Detached { since_ns } => since_ns,
        Attachment::Attaching { since_ns, .. } => Some(since_ns),
        Attachment::Attached { .. } | Attachment::Inherited => None,
    }
}
