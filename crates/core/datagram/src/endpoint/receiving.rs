//! What arrives: which session it is for, and what it is there.

use provost_packets::LOOK_BYTES;

use super::*;
use crate::client::GoingOn;
use crate::event::ResponseSlot;
use crate::packet::{ArrivedData, DataHead, IntactPacket, Malformed, Piece, Prefix, place_of};
use crate::seal::Broken;
use crate::shared::PacketGuard;

/// What a call needs of so many sessions, with their slots, is in a core's caches without being fetched ahead.
const SESSIONS_NEAR: usize = 256;

/// Keeps what has happened.
struct LastEvent<'p>(Option<Event<'p>>);

impl<'p, A> EventHandler<'p, A> for LastEvent<'p> {
    fn handle(&mut self, _: &mut Endpoint<A>, _: u64, event: Event<'p>) {
        self.0 = Some(event);
    }
}

/// Keeps what has happened, with a copy of what is in memory of the endpoint's own.
struct LastOwnedEvent(Option<Event<'static>>);

impl<A> EventHandler<'_, A> for LastOwnedEvent {
    fn handle(&mut self, endpoint: &mut Endpoint<A>, _: u64, event: Event<'_>) {
        self.0 = Some(event.owned(&mut endpoint.shared.pool));
    }
}

/// Whether what a packet of a sealed session carries has been unsealed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unsealed {
    NotYet,
    Already,
}

impl<A: Address> Endpoint<A> {
    /// Takes a packet from the wire, which has not waited there. All that have arrived should be taken before
    /// [`Endpoint::handle_timers`].
    #[inline]
    pub fn receive<'p>(&mut self, now_ns: u64, from: A, mark: Mark, bytes: &'p [u8]) -> Option<Event<'p>> {
        self.begin_receiving(now_ns, now_ns);
        self.receive_next(from, mark, bytes)
    }

    /// Tells the time at which the next packets are taken from the wire, and when nothing waited there last. What this end
    /// left packets waiting for in between is no part of their round trips.
    #[inline]
    pub fn begin_receiving(&mut self, now_ns: u64, since_ns: u64) {
        self.shared.clock.arrive(now_ns, since_ns);
    }

    /// Takes a packet of those that [`Endpoint::begin_receiving`] has told the time of.
    #[inline]
    pub fn receive_next<'p>(&mut self, from: A, mark: Mark, bytes: &'p [u8]) -> Option<Event<'p>> {
        let origin = PacketOrigin { from, mark };
        if self.shared.guard == PacketGuard::Sealed {
            let mut last = LastOwnedEvent(None);
            self.receive_sealed(origin, bytes, &mut last);
            return last.0;
        }
        let mut last = LastEvent(None);
        match self.shared.guard {
            PacketGuard::Bare => self.receive_bare(origin, bytes, &mut last),
            _ => self.receive_checked(origin, bytes, &mut last),
        }
        last.0
    }

    /// Whether peers have so many sessions here that a request likely finds what it needs of its own one out of this core's caches.
    #[inline(always)]
    pub(crate) fn serves_many(&self) -> bool {
        self.opened.len() > SESSIONS_NEAR
    }

    /// Has this core fetch what a packet that begins so will need of its session, if that is a peer's. (What a response needs was
    /// fetched for its request.)
    #[inline(always)]
    pub(crate) fn fetch_session(&self, first: [u8; LOOK_BYTES]) {
        if let (session, _) = place_of(first)
            && let Some(Session::Server(server)) = self.sessions.get(session)
        {
            server.fetch(0..server::CALL_LINES);
        }
    }

    /// The same of the slot, once the session is there.
    #[inline(always)]
    pub(crate) fn fetch_slot(&self, first: [u8; LOOK_BYTES]) {
        if let (session, slot) = place_of(first)
            && let Some(Session::Server(server)) = self.sessions.get(session)
        {
            server.fetch_slot(slot);
        }
    }

    /// Whether packets carry neither check nor seal.
    #[inline(always)]
    pub(crate) fn is_bare(&self) -> bool {
        self.shared.guard == PacketGuard::Bare
    }

    /// The same, but hands over what has happened instead of returning it. Requests and responses of one packet come
    /// first: each is built where it is handled.
    #[inline(always)]
    pub(crate) fn receive_to(
        &mut self,
        origin: PacketOrigin<A>,
        bytes: &[u8],
        handler: &mut impl for<'p> EventHandler<'p, A>,
    ) {
        match self.shared.guard {
            PacketGuard::Bare => self.receive_bare(origin, bytes, handler),
            PacketGuard::Checked => self.receive_checked(origin, bytes, handler),
            PacketGuard::Sealed => self.receive_sealed(origin, bytes, handler),
        }
    }

    /// Takes a packet that carries neither check nor seal.
    #[inline(always)]
    pub(crate) fn receive_bare<'p>(
        &mut self,
        origin: PacketOrigin<A>,
        bytes: &'p [u8],
        handler: &mut impl EventHandler<'p, A>,
    ) {
        self.shared.statistics.packets_received += 1;
        if let Some((head, payload)) = DataHead::read(bytes)
            && self.take_expected(origin, (head, payload), handler)
        {
            return;
        }
        self.receive_unexpected(origin, bytes, handler);
    }

    /// Takes a packet that is not what a slot most likely gets next.
    #[inline(never)]
    fn receive_unexpected<'p>(
        &mut self,
        origin: PacketOrigin<A>,
        bytes: &'p [u8],
        handler: &mut dyn EventHandler<'p, A>,
    ) {
        match IntactPacket::read(bytes, self.shared.config.checking) {
            Ok(packet) => self.receive_rest(origin, &packet, (packet.rest, Unsealed::NotYet), handler),
            Err(malformed) => self.count_malformed(malformed),
        }
    }

    /// Takes a packet with a check.
    #[inline(never)]
    fn receive_checked<'p>(
        &mut self,
        origin: PacketOrigin<A>,
        bytes: &'p [u8],
        handler: &mut impl EventHandler<'p, A>,
    ) {
        self.shared.statistics.packets_received += 1;
        let packet = match IntactPacket::read(bytes, self.shared.config.checking) {
            Ok(packet) => packet,
            Err(malformed) => return self.count_malformed(malformed),
        };
        if let Some(data) = packet.data_head(packet.rest)
            && self.take_expected(origin, data, handler)
        {
            return;
        }
        self.receive_rest(origin, &packet, (packet.rest, Unsealed::NotYet), handler);
    }

    /// Takes a packet of an endpoint whose sessions are sealed: those take nothing that is not.
    #[inline(never)]
    fn receive_sealed(
        &mut self,
        origin: PacketOrigin<A>,
        bytes: &[u8],
        handler: &mut impl for<'p> EventHandler<'p, A>,
    ) {
        self.shared.statistics.packets_received += 1;
        let packet = match IntactPacket::read(bytes, self.shared.config.checking) {
            Ok(packet) => packet,
            Err(malformed) => return self.count_malformed(malformed),
        };
        let mut body = std::mem::take(&mut self.shared.pool.spares.lists.unsealing);
        match self.unseal(origin.from, &packet, &mut body) {
            None => self.receive_rest(origin, &packet, (packet.rest, Unsealed::NotYet), handler),
            Some(Ok(unsealed)) => {
                let unsealed = &body[unsealed];
                let is_taken = packet
                    .data_head(unsealed)
                    .is_some_and(|data| self.take_expected(origin, data, handler));
                if !is_taken {
                    self.receive_rest(origin, &packet, (unsealed, Unsealed::Already), handler);
                }
            }
            Some(Err(Broken::Forged)) => self.shared.statistics.dropped.forged += 1,
            Some(Err(Broken::Replayed)) => self.shared.statistics.dropped.replayed += 1,
        }
        self.shared.pool.spares.lists.unsealing = body;
    }

    /// Unseals what a packet carries into `body`, and says where it is there; `None` if it is for no sealed session.
    #[inline(always)]
    fn unseal(
        &mut self,
        from: A,
        packet: &IntactPacket<'_>,
        body: &mut Vec<u8>,
    ) -> Option<Result<std::ops::Range<usize>, Broken>> {
        let (session, token) = packet.session_and_token();
        let seal = match self.sessions.get_mut(session)? {
            Session::Server(server) if server.local_token == token && server.remote == from => {
                server.seal.as_deref_mut()
            }
            Session::Client(client) if client.id.token == token && client.remote == from => {
                client.seal.as_deref_mut()
            }
            _ => None,
        }?;
        body.clear();
        body.extend_from_slice(packet.rest);
        Some(seal.unseal(&packet.header_bytes(), body))
    }

    /// Takes a packet with message data that its slot expects next; says whether it was one.
    #[inline(always)]
    fn take_expected<'p>(
        &mut self,
        origin: PacketOrigin<A>,
        (head, payload): (DataHead, &'p [u8]),
        handler: &mut impl EventHandler<'p, A>,
    ) -> bool {
        let arrival = ArrivedData {
            from: origin.from,
            head,
            payload,
            marked: origin.mark == Mark::Congested,
        };
        match self.sessions.get_mut(head.session()) {
            Some(Session::Server(server)) => {
                let bytes_max = server.answer_bytes_max as usize;
                let Some((request, slot)) = server.take_expected(&mut self.shared, &arrival) else {
                    return false;
                };
                let given = handler.answer(&request, ResponseSlot::new(slot, bytes_max));
                match given {
                    Some(_) => server.queue_response(&mut self.shared, &request.handle, ResponseParts::Whole),
                    None => handler.request(self, self.shared.clock.told_ns(), request),
                }
            }
            Some(Session::Client(client)) => {
                let id = client.id;
                match client.take_expected(&mut self.shared, &arrival) {
                    Some((slot, GoingOn::Nothing)) => {
                        let completion = slot.completion(id, Ok(head.prefix().code));
                        handler.completed(self, self.shared.clock.told_ns(), completion);
                    }
                    Some((_, GoingOn::CallWaits)) => self.complete_and_begin_next(head, handler),
                    Some((_, GoingOn::Possible)) => self.complete_and_go_on(head, arrival.marked, handler),
                    None => return false,
                }
            }
            _ => return false,
        }
        true
    }

    /// Hands over the end of a call whose slot is the next one's, which waits.
    #[inline(never)]
    fn complete_and_begin_next<'p>(&mut self, head: DataHead, handler: &mut impl EventHandler<'p, A>) {
        let Some(Session::Client(client)) = self.sessions.get_mut(head.session()) else {
            return;
        };
        let completion = client.completion(head.slot(), Ok(head.prefix().code));
        client.start_waiting(&mut self.shared, head.slot());
        handler.completed(self, self.shared.clock.told_ns(), completion);
    }

    /// Hands over the end of a call that makes something possible.
    #[inline(never)]
    fn complete_and_go_on<'p>(
        &mut self,
        head: DataHead,
        marked: bool,
        handler: &mut dyn EventHandler<'p, A>,
    ) {
        let Some(Session::Client(client)) = self.sessions.get_mut(head.session()) else {
            return;
        };
        client.note_round_trip(&mut self.shared, &head, marked);
        let completion = client.completion(head.slot(), Ok(head.prefix().code));
        client.go_on(&mut self.shared, head.slot());
        handler.completed(self, self.shared.clock.told_ns(), completion);
    }

    /// Takes a packet that no slot expected; `rest` is what follows its header.
    #[inline(never)]
    fn receive_rest<'p>(
        &mut self,
        origin: PacketOrigin<A>,
        packet: &IntactPacket<'_>,
        (rest, unsealed): (&'p [u8], Unsealed),
        handler: &mut dyn EventHandler<'p, A>,
    ) {
        let event = match packet.header() {
            Ok(header) => self.dispatch(origin, header, rest, unsealed),
            Err(malformed) => return self.count_malformed(malformed),
        };
        if let Some(event) = event {
            handler.handle(self, self.shared.clock.told_ns(), event);
        }
    }

    /// To the session that the packet is for.
    #[inline(never)]
    fn dispatch<'p>(
        &mut self,
        origin: PacketOrigin<A>,
        header: Header,
        rest: &'p [u8],
        unsealed: Unsealed,
    ) -> Option<Event<'p>> {
        let now_ns = self.shared.clock.now_ns();
        let (from, marked) = (origin.from, origin.mark == Mark::Congested);
        match self.sessions.get_mut(usize::from(header.session)) {
            Some(Session::Server(server)) if server.local_token == header.token && server.remote == from => {
                if server.seal.is_some() && unsealed == Unsealed::NotYet {
                    return self.drop_forged();
                }
                server.heard_ns = now_ns;
                match (header.kind, Prefix::read(rest)) {
                    (Kind::Request, Ok((prefix, payload))) => {
                        let piece = Piece {
                            header,
                            prefix,
                            payload,
                            marked,
                        };
                        server.receive_request(&mut self.shared, piece)
                    }
                    _ => self.receive_rare_as_server(header, rest),
                }
            }
            Some(Session::Client(client)) if client.id.token == header.token && client.remote == from => {
                if client.seal.is_some() && unsealed == Unsealed::NotYet {
                    return self.drop_forged();
                }
                match (header.kind, Prefix::read(rest)) {
                    (Kind::Response, Ok((prefix, payload))) if client.is_open() => {
                        client.heard_ns = now_ns;
                        let piece = Piece {
                            header,
                            prefix,
                            payload,
                            marked,
                        };
                        client.receive_response(&mut self.shared, piece)
                    }
                    _ => self.receive_rare_as_client(header, rest, marked),
                }
            }
            _ => self.receive_without_session(from, &header, rest),
        }
    }

    #[cold]
    fn drop_forged(&mut self) -> Option<Event<'static>> {
        self.shared.statistics.dropped.forged += 1;
        None
    }

    #[cold]
    fn count_malformed(&mut self, malformed: Malformed) {
        let dropped = &mut self.shared.statistics.dropped;
        match malformed {
            Malformed::Short | Malformed::Length => dropped.length += 1,
            Malformed::Check => dropped.check += 1,
            Malformed::Kind => dropped.kind += 1,
        }
    }

    #[inline(never)]
    fn receive_rare_as_server(&mut self, header: Header, rest: &[u8]) -> Option<Event<'static>> {
        let body = match Body::read(header.kind, rest) {
            Ok(body) => body,
            Err(malformed) => {
                self.count_malformed(malformed);
                return None;
            }
        };
        let Some(Session::Server(server)) = self.sessions.get_mut(usize::from(header.session)) else {
            return None;
        };
        if header.kind != Kind::RequestForResponse {
            return self.receive_management_as_server(&header, body);
        }
        server.receive_request_for_response(&mut self.shared, &header);
        None
    }

    #[inline(never)]
    fn receive_rare_as_client(
        &mut self,
        header: Header,
        rest: &[u8],
        marked: bool,
    ) -> Option<Event<'static>> {
        let body = match Body::read(header.kind, rest) {
            Ok(body) => body,
            Err(malformed) => {
                self.count_malformed(malformed);
                return None;
            }
        };
        match (self.sessions.get_mut(usize::from(header.session)), body) {
            (Some(Session::Client(client)), Body::Bitmap(bitmap)) if client.is_open() => {
                client.heard_ns = self.shared.clock.now_ns();
                client.receive_credit_return(&mut self.shared, &header, bitmap, marked);
                None
            }
            _ => self.receive_management_as_client(&header, body),
        }
    }

    #[cold]
    fn receive_without_session(&mut self, from: A, header: &Header, rest: &[u8]) -> Option<Event<'static>> {
        match Body::read(header.kind, rest) {
            Err(malformed) => {
                self.count_malformed(malformed);
                None
            }
            Ok(Body::Control(payload)) if header.kind == Kind::Open => self.receive_open(from, payload),
            Ok(_) if header.kind == Kind::Unknown => self.receive_unknown(from, header, rest),
            Ok(_) => self.receive_for_nobody(from, header),
        }
    }
}
