//! What arrives: which session it is for, and what it is there.

use super::*;
use crate::packet::{ArrivedData, DataHead, Malformed, Piece, Prefix};
use crate::seal::Broken;

/// Keeps what has happened.
struct LastEvent<'p>(Option<Event<'p>>);

impl<'p, A> EventHandler<'p, A> for LastEvent<'p> {
    fn handle(&mut self, _: &mut Endpoint<A>, _: u64, event: Event<'p>) {
        self.0 = Some(event);
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
        let mut last = LastEvent(None);
        self.receive_to(from, mark, bytes, &mut last);
        last.0
    }

    /// The same, but hands over what has happened instead of returning it. Requests and responses of one packet come
    /// first: each is built where it is handled.
    #[inline(always)]
    pub(crate) fn receive_to<'p>(
        &mut self,
        from: A,
        mark: Mark,
        bytes: &'p [u8],
        handler: &mut impl EventHandler<'p, A>,
    ) {
        let told_ns = self.shared.clock.told_ns();
        self.shared.statistics.packets_received += 1;
        let marked = mark == Mark::Congested;
        if let Some((head, payload)) = DataHead::read(bytes) {
            let arrival = ArrivedData {
                from,
                head,
                payload,
                marked,
            };
            match self.sessions.get_mut(head.session()) {
                Some(Session::Server(server)) => {
                    if let Some(request) = server.take_expected(&mut self.shared, &arrival) {
                        return handler.request(self, told_ns, request);
                    }
                }
                Some(Session::Client(client)) => {
                    if let Some(completion) = client.take_expected(&mut self.shared, &arrival) {
                        return handler.completed(self, told_ns, completion);
                    }
                }
                _ => {}
            }
        }
        self.receive_unexpected((from, marked, bytes), handler);
    }

    /// Takes a packet that is not what a slot most likely gets next.
    #[inline(never)]
    fn receive_unexpected<'p>(
        &mut self,
        (from, marked, bytes): (A, bool, &'p [u8]),
        handler: &mut dyn EventHandler<'p, A>,
    ) {
        let event = match Header::read(bytes, self.shared.config.checking) {
            Ok((header, rest)) => self.dispatch(from, marked, header, rest, Unsealed::NotYet),
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
        from: A,
        marked: bool,
        header: Header,
        rest: &'p [u8],
        unsealed: Unsealed,
    ) -> Option<Event<'p>> {
        let now_ns = self.shared.clock.now_ns();
        match self.sessions.get_mut(usize::from(header.session)) {
            Some(Session::Server(server)) if server.local_token == header.token && server.remote == from => {
                if server.seal.is_some() && unsealed == Unsealed::NotYet {
                    return self.receive_sealed(from, marked, header, rest);
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
                    return self.receive_sealed(from, marked, header, rest);
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

    /// A packet for a sealed session, which takes nothing else.
    #[inline(never)]
    fn receive_sealed(
        &mut self,
        from: A,
        marked: bool,
        header: Header,
        rest: &[u8],
    ) -> Option<Event<'static>> {
        let seal = match self.sessions.get_mut(usize::from(header.session)) {
            Some(Session::Server(server)) => server.seal.as_deref_mut(),
            Some(Session::Client(client)) => client.seal.as_deref_mut(),
            _ => None,
        };
        let mut body = std::mem::take(&mut self.shared.sealing);
        body.clear();
        body.extend_from_slice(rest);
        let event = match seal?.unseal(&header.encode(), &mut body) {
            Ok(range) => self
                .dispatch(from, marked, header, &body[range], Unsealed::Already)
                .map(|event| event.owned(&mut self.shared.pool)),
            Err(Broken::Forged) => {
                self.shared.statistics.dropped.forged += 1;
                None
            }
            Err(Broken::Replayed) => {
                self.shared.statistics.dropped.replayed += 1;
                None
            }
        };
        self.shared.sealing = body;
        event
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
        if let Err(malformed) = Body::read(header.kind, rest) {
            self.count_malformed(malformed);
            return None;
        }
        let Some(Session::Server(server)) = self.sessions.get_mut(usize::from(header.session)) else {
            return None;
        };
        if header.kind != Kind::RequestForResponse {
            return self.receive_management_as_server(&header);
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
