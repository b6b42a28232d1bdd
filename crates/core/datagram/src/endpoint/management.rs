//! Sessions begin, end, and are looked for in vain.

use provost_registered::{Array, One};
use provost_wiping::wipe_stack;

use super::*;
use crate::client::State;
use crate::config::{Recovery, SLOTS_MAX};
use crate::event::{ConnectError, Refusal};
use crate::handshake::{
    ACCEPT_BYTES, Accept, OPEN_BYTES, Open, PacketFallback, Sealed, VERSION, decode_challenge, decode_refuse,
    encode_challenge, encode_refuse, said,
};
use crate::packet::NO_SESSION;
use crate::seal::{Cipher, End, Exchanged, KEY_BYTES, Keyring, Seal};
use crate::shared::NEVER;

/// A session takes this part of what is free of a receive ring without room for all.
const RING_SHARE: u32 = 4;

impl<A: Address> Endpoint<A> {
    /// Asks for a session with whoever is at this address. Calls can be made at once; they wait for it.
    ///
    /// # Errors
    /// If this end has no room for another session.
    pub fn connect(&mut self, now_ns: u64, to: A) -> Result<SessionId, ConnectError> {
        self.shared.clock.advance(now_ns);
        let credits = self.credits_free().ok_or(ConnectError::RingFull)?;
        let number = self.number().ok_or(ConnectError::TooManySessions)?;
        let token = self.shared.secrets.draw() as u32;
        let id = SessionId { number, token };
        let nonce = self.shared.secrets.draw();
        self.ring_packets_taken += u32::from(credits);
        let mut client = ClientSession::new(&self.shared, to, id, nonce);
        client.credits_total = credits;
        client.share = self
            .shared
            .keyring
            .as_mut()
            .map(|keyring| Box::new(keyring.share()));
        self.sessions[usize::from(number)] = Session::Client(One::new(client));
        self.send_open(number);
        Ok(id)
    }

    /// Credits for another session: as many as are configured; none if the receive ring is full. Where the ring cannot have
    /// room for all sessions, one takes a part of what is free at most, so that few sessions do not fill it.
    fn credits_free(&self) -> Option<u16> {
        let (config, free) = (&self.shared.config, self.ring_packets_free());
        let room_for_all = config.sessions_max as u64 * u64::from(config.credits);
        let share = if u64::from(config.receive_ring_packets) < room_for_all {
            free.div_ceil(RING_SHARE)
        } else {
            free
        };
        let credits = share.min(config.credits.into()) as u16;
        (credits > 0).then_some(credits)
    }

    /// A free session number, with its place in the table.
    fn number(&mut self) -> Option<u16> {
        if self.sessions.len() < self.shared.config.sessions_max {
            self.sessions.push(Session::Free);
            return Some(self.sessions.len() as u16 - 1);
        }
        self.free.pop_front()
    }

    /// Ends a session when the calls that were made on it have ended. [`Event::Ended`] follows.
    pub fn disconnect(&mut self, now_ns: u64, session: SessionId) {
        self.shared.clock.advance(now_ns);
        match self.sessions.get_mut(usize::from(session.number)) {
            Some(Session::Client(client)) if client.id == session => match client.state {
                State::Opening { .. } => self.end(session.number, EndReason::Closed),
                _ => client.drain(&mut self.shared),
            },
            _ => {}
        }
    }

    /// Ends a session, of either direction, at once, and tells the peer. Calls on it fail.
    pub fn reset(&mut self, now_ns: u64, session: SessionId) {
        self.shared.clock.advance(now_ns);
        let (to, seal, number, token) = match self.sessions.get_mut(usize::from(session.number)) {
            Some(Session::Client(client)) if client.id == session => {
                let client = &mut **client;
                let seal = client.seal.as_deref_mut();
                (client.remote, seal, client.remote_number, client.remote_token)
            }
            Some(Session::Server(server)) if server.local_token == session.token => {
                let server = &mut **server;
                let seal = server.seal.as_deref_mut();
                (server.remote, seal, server.remote_number, server.remote_token)
            }
            _ => return,
        };
        let header = Header::of_session(Kind::Reset, number, token);
        self.shared.control_of(seal, to, &header);
        self.end(session.number, EndReason::ResetHere);
    }

    /// Frees a session's number and everything that it holds.
    fn end(&mut self, number: u16, reason: EndReason) {
        let session = std::mem::replace(&mut self.sessions[usize::from(number)], Session::Free);
        let credits = match session {
            Session::Free => return,
            Session::Client(client) => {
                let credits = client.credits_total;
                self.connected
                    .remove(&(client.remote, client.remote_number, client.remote_token));
                client.into_inner().end(&mut self.shared, reason);
                credits
            }
            Session::Server(server) => {
                let (credits, token) = (server.credits, server.local_token);
                self.opened
                    .remove(&(server.remote, server.remote_number, server.remote_token));
                if let Some(public) = &server.exchanged_with {
                    self.exchanged.remove(&**public);
                }
                server
                    .into_inner()
                    .end(&mut self.shared, SessionId { number, token }, reason);
                credits
            }
        };
        self.ring_packets_taken -= u32::from(credits);
        self.shared.timers.disarm(number);
        self.free.push_back(number);
    }

    pub(super) fn expire(&mut self, number: u16) {
        let now_ns = self.shared.clock.now_ns();
        let config = &self.shared.config;
        let peer_timeout_ns = config.peer_timeout_ns;
        let over = match self.sessions.get_mut(usize::from(number)) {
            None | Some(Session::Free) => return,
            Some(Session::Client(client)) if matches!(client.state, State::Opening { .. }) => {
                if now_ns.saturating_sub(client.asked_ns) < peer_timeout_ns {
                    return self.send_open(number);
                }
                Err(EndReason::PeerTimeout)
            }
            Some(Session::Client(client)) => client.expire(&mut self.shared),
            Some(Session::Server(server)) => {
                let due_ns = server.idle_until_ns(config);
                if due_ns > now_ns {
                    self.shared.timers.arm(number, now_ns, due_ns);
                    return;
                }
                Err(EndReason::PeerTimeout)
            }
        };
        if let Err(reason) = over {
            self.end(number, reason);
        }
    }

    fn send_open(&mut self, number: u16) {
        let Some(Session::Client(client)) = self.sessions.get_mut(usize::from(number)) else {
            return;
        };
        let State::Opening { cookie, attempts } = &mut client.state else {
            return;
        };
        let (config, cookie) = (&self.shared.config, *cookie);
        let pause_ns = (config.timeout_ns_initial << (*attempts).min(10)).min(config.timeout_ns_max);
        *attempts = attempts.saturating_add(1);
        let header = Header::of_session(Kind::Open, NO_SESSION, 0);
        let now_ns = self.shared.clock.now_ns();
        let open = open_of(&self.shared, client, cookie);
        let sealed = self.shared.keyring.as_ref().zip(client.share.as_ref());
        let sealed = sealed.map(|(keyring, share)| {
            let public = share.public();
            let proof = keyring.prove(&said(&[&open.encode()[..], &public].concat()));
            Sealed { public, proof }.encode()
        });
        let payload = [
            &open.encode()[..],
            sealed.as_ref().map_or(&[], |sealed| &sealed[..]),
        ]
        .concat();
        self.shared.control(client.remote, &header, &payload);
        self.shared.timers.arm(number, now_ns, now_ns + pause_ns);
    }

    /// A client asks for a session.
    pub(super) fn receive_open(&mut self, from: A, payload: &[u8]) -> Option<Event<'static>> {
        let Some(open) = Open::decode(payload) else {
            self.shared.statistics.dropped.length += 1;
            return None;
        };
        let now_ns = self.shared.clock.now_ns();
        let to_client = |kind| Header::of_session(kind, open.session, open.token);
        if !self.shared.secrets.recognizes(now_ns, &from, &open) {
            self.shared.statistics.dropped.cookie += u64::from(open.cookie != 0);
            let cookie = self.shared.secrets.bake(now_ns, &from, &open);
            let challenge = encode_challenge(open.nonce, cookie);
            self.shared
                .answer_stranger(from, &to_client(Kind::Challenge), &challenge);
            return None;
        }
        if let Some(number) = self.opened.get(&(from, open.session, open.token)).copied() {
            self.send_accept(number, open.nonce);
            return None;
        }
        match self.accept(from, &open, payload) {
            Ok(number) => {
                self.send_accept(number, open.nonce);
                let token = self.token_of_server(number)?;
                Some(Event::Accepted(SessionId { number, token }))
            }
            Err(refusal) => {
                let refuse = encode_refuse(open.nonce, refusal);
                self.shared
                    .answer_stranger(from, &to_client(Kind::Refuse), &refuse);
                None
            }
        }
    }

    pub(super) fn accept(&mut self, from: A, open: &Open, payload: &[u8]) -> Result<u16, Refusal> {
        if !(open.versions.0..=open.versions.1).contains(&VERSION) {
            return Err(Refusal::Version);
        }
        let config = &self.shared.config;
        let credits = open.credits.min(config.credits);
        let room = self.credits_free();
        let slots = open.slots.min(config.slots).min(SLOTS_MAX);
        let packet_bytes = usize::from(open.packet_bytes).min(config.packet_bytes_max);
        if credits == 0 || slots == 0 || packet_bytes < config.packet_bytes_min() {
            return Err(Refusal::Parameters);
        }
        let credits = room.ok_or(Refusal::RingFull)?.min(credits);
        let exchange = self.exchange(open, payload)?;
        let number = self.number().ok_or(Refusal::TooManySessions)?;
        let recovery = if open.selective {
            Recovery::Selective
        } else {
            Recovery::GoBackN
        };
        let now_ns = self.shared.clock.now_ns();
        let fallback = match open.fallback {
            PacketFallback::On => self.shared.config.fallback(),
            PacketFallback::Off => PacketFallback::Off,
        };
        let sizes = self.shared.config.payload_sizes(packet_bytes, fallback);
        let mut server = ServerSession {
            remote: from,
            remote_number: open.session,
            remote_token: open.token,
            local_token: self.shared.secrets.draw() as u32,
            seal: None,
            sealed: None,
            exchanged_with: exchange.as_ref().map(|exchange| Box::new(exchange.client_public)),
            credits,
            sizes,
            leaving: 0,
            answer_bytes_max: sizes
                .full
                .min(u32::try_from(self.shared.config.inline_response_bytes).unwrap_or(u32::MAX)),
            whole_bytes_max: sizes.full.min(self.shared.config.message_bytes_max),
            recovery,
            marks: open.marks,
            opened_ns: now_ns,
            heard_ns: NEVER,
            slots: Array::new((0..slots).map(|_| server::ServerSlot::default())),
        };
        server.expect_whole_requests(number);
        let due_ns = server.idle_until_ns(&self.shared.config);
        self.sessions[usize::from(number)] = Session::Server(One::new(server));
        self.ring_packets_taken += u32::from(credits);
        self.opened.insert((from, open.session, open.token), number);
        if let Some(exchange) = &exchange {
            self.exchanged.insert(exchange.client_public, number);
        }
        self.shared.timers.arm(number, now_ns, due_ns);
        if let Some(exchange) = exchange {
            self.seal_accepted(number, open.nonce, &exchange);
        }
        Ok(number)
    }

    /// Exchanges keys with a client, if sessions are sealed here and there.
    fn exchange(&mut self, open: &Open, payload: &[u8]) -> Result<Option<Exchange>, Refusal> {
        let shared = &mut self.shared;
        let Some(keyring) = shared.keyring.as_mut() else {
            return match open.cipher {
                0 => Ok(None),
                _ => Err(Refusal::Security),
            };
        };
        let cipher = Cipher::parse(open.cipher).ok_or(Refusal::Security)?;
        let sealed = Sealed::after(payload, OPEN_BYTES).ok_or(Refusal::Security)?;
        let said = said(payload);
        if !keyring.is_proven(&said, &sealed.proof) {
            shared.statistics.dropped.forged += 1;
            return Err(Refusal::Security);
        }
        // A client's key is of one session. Whoever heard the Open can repeat it from other addresses, but not use it.
        if self.exchanged.contains_key(&sealed.public) {
            shared.statistics.dropped.replayed += 1;
            return Err(Refusal::Security);
        }
        let share = keyring.share();
        let exchanged = keyring
            .exchange(&share, sealed.public)
            .ok_or(Refusal::Parameters)?;
        Ok(Some(Exchange {
            cipher,
            said,
            public: share.public(),
            client_public: sealed.public,
            exchanged,
        }))
    }

    /// Agrees on the keys of a session that a client has asked for.
    fn seal_accepted(&mut self, number: u16, nonce: u64, exchange: &Exchange) {
        let Some(Session::Server(server)) = self.sessions.get_mut(usize::from(number)) else {
            return;
        };
        let accept = accept_of(&self.shared.config, number, server, nonce);
        let agreement = exchange
            .exchanged
            .agree([&exchange.said, &[&accept.encode()[..], &exchange.public].concat()]);
        server.seal = Some(Box::new(agreement.seal(exchange.cipher, End::Server)));
        server.sealed = Some(Box::new(Sealed {
            public: exchange.public,
            proof: agreement.proof(),
        }));
        drop(agreement);
        wipe_stack();
    }

    pub(super) fn token_of_server(&self, number: u16) -> Option<u32> {
        match self.sessions.get(usize::from(number)) {
            Some(Session::Server(server)) => Some(server.local_token),
            _ => None,
        }
    }

    pub(super) fn send_accept(&mut self, number: u16, nonce: u64) {
        let Some(Session::Server(server)) = self.sessions.get(usize::from(number)) else {
            return;
        };
        let accept = accept_of(&self.shared.config, number, server, nonce).encode();
        let sealed = server.sealed.as_ref().map(|sealed| sealed.encode());
        let payload = [&accept[..], sealed.as_ref().map_or(&[], |sealed| &sealed[..])].concat();
        let header = Header::of_session(Kind::Accept, server.remote_number, server.remote_token);
        self.shared.control(server.remote, &header, &payload);
    }

    /// A packet of session management for a client session, whose token is right.
    pub(super) fn receive_management_as_client(
        &mut self,
        header: &Header,
        body: Body<'_>,
    ) -> Option<Event<'static>> {
        let Some(Session::Client(client)) = self.sessions.get_mut(usize::from(header.session)) else {
            return None;
        };
        let nonce = client.nonce;
        match (header.kind, body, client.state) {
            (Kind::Challenge, Body::Control(payload), State::Opening { attempts, .. }) => {
                match decode_challenge(payload).filter(|(echo, _)| *echo == nonce) {
                    Some((_, cookie)) => {
                        client.state = State::Opening { cookie, attempts };
                        self.send_open(header.session);
                    }
                    None => self.shared.statistics.dropped.cookie += 1,
                }
                None
            }
            (Kind::Accept, Body::Control(payload), State::Opening { .. }) => {
                match Accept::decode(payload).filter(|accept| accept.nonce == nonce) {
                    Some(accept) => self.accepted(header.session, &accept, payload),
                    None => {
                        self.shared.statistics.dropped.cookie += 1;
                        None
                    }
                }
            }
            (Kind::Refuse, Body::Control(payload), State::Opening { .. }) => {
                match decode_refuse(payload).filter(|(echo, _)| *echo == nonce) {
                    Some((_, reason)) => self.end(header.session, EndReason::Refused(reason)),
                    None => self.shared.statistics.dropped.cookie += 1,
                }
                None
            }
            (Kind::Pong, body, State::Open | State::Draining) => {
                client.heard_ns = self.shared.clock.now_ns();
                if let Body::Control(padding) = body {
                    client.probe_arrived(&self.shared, padding.len());
                }
                None
            }
            (Kind::Closed, _, State::Closing { .. }) => {
                self.end(header.session, EndReason::Closed);
                None
            }
            (Kind::Reset, _, state) if !matches!(state, State::Opening { .. }) => {
                self.end(header.session, EndReason::Reset);
                None
            }
            _ => {
                self.shared.statistics.dropped.stale += 1;
                None
            }
        }
    }

    fn accepted(&mut self, number: u16, accept: &Accept, payload: &[u8]) -> Option<Event<'static>> {
        let config = &self.shared.config;
        let wished = match self.sessions.get(usize::from(number)) {
            Some(Session::Client(client)) => client.credits_total,
            _ => return None,
        };
        let possible = accept.version == VERSION
            && (1..=config.slots).contains(&accept.slots)
            && (1..=wished).contains(&accept.credits)
            && (config.packet_bytes_min()..=config.packet_bytes_max).contains(&accept.packet_bytes.into());
        if !possible {
            self.shared.statistics.dropped.protocol += 1;
            return None;
        }
        let Some(Session::Client(client)) = self.sessions.get_mut(usize::from(number)) else {
            return None;
        };
        let seal = match &self.shared.keyring {
            None if payload.len() == ACCEPT_BYTES => None,
            None => return None,
            Some(keyring) => {
                let seal = seal_of_client(&self.shared, keyring, client, payload);
                if seal.is_none() {
                    self.shared.statistics.dropped.forged += 1;
                    return None;
                }
                seal
            }
        };
        client.seal = seal;
        client.share = None;
        let now_ns = self.shared.clock.now_ns();
        self.ring_packets_taken -= u32::from(wished - accept.credits);
        client.remote_number = accept.session;
        client.remote_token = accept.token;
        let fallback = match accept.fallback {
            PacketFallback::On => config.fallback(),
            PacketFallback::Off => PacketFallback::Off,
        };
        client.sizes = config.payload_sizes(accept.packet_bytes.into(), fallback);
        let bytes_possible = client.sizes.message_bytes_max();
        let bytes_possible = u32::try_from(bytes_possible).unwrap_or(u32::MAX);
        client.message_bytes_max = accept.message_bytes_max.min(bytes_possible);
        client.marks = accept.marks;
        client.heard_ns = now_ns;
        self.connected
            .insert((client.remote, accept.session, accept.token), number);
        client.open(&mut self.shared, accept.slots, accept.credits);
        let due_ns = now_ns + self.shared.config.keepalive_ns;
        self.shared.timers.arm(number, now_ns, due_ns);
        Some(Event::Connected(client.id))
    }

    /// A packet of session management for a server session, whose token is right.
    pub(super) fn receive_management_as_server(
        &mut self,
        header: &Header,
        body: Body<'_>,
    ) -> Option<Event<'static>> {
        let Some(Session::Server(server)) = self.sessions.get_mut(usize::from(header.session)) else {
            return None;
        };
        let (to, number, token) = (server.remote, server.remote_number, server.remote_token);
        let probe_bytes = server.sizes.probe_bytes();
        let seal = server.seal.as_deref_mut();
        let answer = |kind| Header::of_session(kind, number, token);
        match header.kind {
            Kind::Ping => {
                let more_bytes = match body {
                    Body::Control(more) => more.len().min(probe_bytes),
                    _ => 0,
                };
                self.shared
                    .control_lengthened(seal, to, (&answer(Kind::Pong), more_bytes));
            }
            Kind::Close => {
                self.shared.control_of(seal, to, &answer(Kind::Closed));
                self.end(header.session, EndReason::Closed);
            }
            Kind::Reset => self.end(header.session, EndReason::Reset),
            _ => self.shared.statistics.dropped.protocol += 1,
        }
        None
    }

    /// A packet of no session here. A client whose server has lost its memory is told, so that it need not wait; the
    /// answer is no longer than the packet, and says nothing that its sender did not know.
    #[cold]
    pub(super) fn receive_for_nobody(&mut self, from: A, header: &Header) -> Option<Event<'static>> {
        self.shared.statistics.dropped.token += 1;
        if matches!(
            header.kind,
            Kind::Request | Kind::RequestForResponse | Kind::Ping | Kind::Close
        ) {
            let unknown = Header::of_session(Kind::Unknown, header.session, header.token);
            let is_of = |lost: &&Disowned<A>| {
                let SessionId { number, token } = lost.session;
                (lost.client, number, token) == (from, header.session, header.token)
            };
            // Sealed packets are longer than the answer, and so are their headers.
            let proof = self.disowned.as_ref().filter(is_of).map(|lost| lost.proof);
            let proof = proof.as_ref().map_or(&[][..], |proof| proof);
            self.shared.answer_stranger(from, &unknown, proof);
        }
        None
    }

    /// A server says that it has no such session as a packet of ours named.
    #[cold]
    pub(super) fn receive_unknown(
        &mut self,
        from: A,
        header: &Header,
        proof: &[u8],
    ) -> Option<Event<'static>> {
        let named = (from, header.session, header.token);
        let Some(number) = self.connected.get(&named).copied() else {
            self.shared.statistics.dropped.token += 1;
            return None;
        };
        // In a sealed session anybody on the path could say so: only who has it from the server is believed.
        if let Session::Client(client) = &self.sessions[usize::from(number)]
            && client
                .seal
                .as_ref()
                .is_some_and(|seal| !seal.is_loss_proven(proof))
        {
            self.shared.statistics.dropped.unproven += 1;
            return None;
        }
        let reason = match &self.sessions[usize::from(number)] {
            Session::Client(client) if matches!(client.state, State::Closing { .. }) => EndReason::Closed,
            _ => EndReason::Reset,
        };
        self.end(number, reason);
        None
    }
}

/// What a client asks for.
fn open_of<A>(shared: &Shared<A>, client: &ClientSession<A>, cookie: u64) -> Open {
    let config = &shared.config;
    Open {
        versions: (VERSION, VERSION),
        selective: config.recovery == Recovery::Selective,
        slots: config.slots,
        session: client.id.number,
        token: client.id.token,
        credits: client.credits_total,
        packet_bytes: config.packet_bytes_max as u16,
        nonce: client.nonce,
        cookie,
        cipher: shared
            .keyring
            .as_ref()
            .map_or(0, |keyring| keyring.cipher() as u8),
        marks: shared.config.marks,
        fallback: shared.config.fallback(),
    }
}

/// What a server agrees to.
fn accept_of<A>(config: &Config, number: u16, server: &ServerSession<A>, nonce: u64) -> Accept {
    Accept {
        nonce,
        version: VERSION,
        slots: server.slots.len() as u8,
        session: number,
        token: server.local_token,
        credits: server.credits,
        packet_bytes: (server.sizes.full as usize + config.overhead_bytes()) as u16,
        message_bytes_max: config.message_bytes_max,
        marks: config.marks,
        fallback: if server.sizes.can_fall_back() {
            PacketFallback::On
        } else {
            PacketFallback::Off
        },
    }
}

/// A server's side of an exchange of keys.
struct Exchange {
    cipher: Cipher,
    /// What the client said.
    said: Vec<u8>,
    public: [u8; KEY_BYTES],
    client_public: [u8; KEY_BYTES],
    exchanged: Exchanged,
}

/// What a client's session is sealed with, if the server has shown that it agrees.
fn seal_of_client<A>(
    shared: &Shared<A>,
    keyring: &Keyring,
    client: &ClientSession<A>,
    payload: &[u8],
) -> Option<Box<Seal>> {
    let share = client.share.as_ref()?;
    let sealed = Sealed::after(payload, ACCEPT_BYTES)?;
    let open = open_of(shared, client, 0).encode();
    let agreement = keyring.exchange(share, sealed.public)?.agree([
        &[&open[..], &share.public()].concat(),
        payload.get(..ACCEPT_BYTES + KEY_BYTES)?,
    ]);
    let seal = agreement
        .is_proven(&sealed.proof)
        .then(|| Box::new(agreement.seal(keyring.cipher(), End::Client)));
    drop(agreement);
    wipe_stack();
    seal
}
