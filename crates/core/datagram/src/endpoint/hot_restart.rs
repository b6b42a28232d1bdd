//! For owners that pass things on: a listener that gives each client an endpoint of its own, a process whose successor
//! goes on without the sessions, but not without what was said in them.

use super::*;
use crate::handshake::{OPEN_BYTES, Open, Sealed, said};
use crate::packet::Packet;

impl<A: Address> Endpoint<A> {
    /// Whether a packet asks for a session, and its sender has shown that it receives at this address. Another endpoint
    /// can then [`Endpoint::welcome`] it; this one keeps nothing of it.
    pub fn recognizes(&mut self, now_ns: u64, from: A, bytes: &[u8]) -> bool {
        self.shared.clock.advance(now_ns);
        let now_ns = self.shared.clock.now_ns();
        let open = self.open_of(bytes);
        open.is_some_and(|(open, _)| self.shared.secrets.recognizes(now_ns, &from, &open))
    }

    /// Takes a packet that asks for a session, and whose sender another endpoint recognized.
    pub fn welcome(&mut self, now_ns: u64, from: A, bytes: &[u8]) -> Option<Event<'static>> {
        self.shared.clock.advance(now_ns);
        let (open, payload) = self.open_of(bytes)?;
        let number = self.accept(from, &open, payload).ok()?;
        self.send_accept(number, open.nonce);
        let token = self.token_of_server(number)?;
        Some(Event::Accepted(SessionId { number, token }))
    }

    /// Whether a packet asks for a session that this endpoint cannot give, as it is to be sealed and this endpoint's
    /// are not, or the other way round.
    #[must_use]
    pub fn asks_otherwise(&self, bytes: &[u8]) -> bool {
        let open = self.open_of(bytes);
        open.is_some_and(|(open, _)| (open.cipher != 0) != self.shared.keyring.is_some())
    }

    /// Whether a packet asks for a sealed session, and its sender has shown that it has this endpoint's key.
    #[must_use]
    pub fn vouches(&self, bytes: &[u8]) -> bool {
        let keyring = self.shared.keyring.as_ref();
        let (Some(keyring), Some((_, payload))) = (keyring, self.open_of(bytes)) else {
            return false;
        };
        let sealed = Sealed::after(payload, OPEN_BYTES);
        sealed.is_some_and(|sealed| keyring.is_proven(&said(payload), &sealed.proof))
    }

    fn open_of<'p>(&self, bytes: &'p [u8]) -> Option<(Open, &'p [u8])> {
        let packet = Packet::parse(bytes, self.shared.config.checking).ok()?;
        match (packet.header.kind, packet.body) {
            (Kind::Open, Body::Control(payload)) => Some((Open::decode(payload)?, payload)),
            _ => None,
        }
    }

    /// The messages of a session that this end has sent, or is to send, and of which it does not know that they were
    /// received: a client's requests, a server's responses. (Of a server's some are older, and empty ones are none.)
    pub fn messages_kept(&self, session: SessionId) -> impl Iterator<Item = &[u8]> {
        let (client, server) = match self.sessions.get(usize::from(session.number)) {
            Some(Session::Client(client)) if client.id == session => (Some(client), None),
            Some(Session::Server(server)) if server.local_token == session.token => (None, Some(server)),
            _ => (None, None),
        };
        let requests = client.into_iter().flat_map(|client| client.requests());
        let slots = server.into_iter().flat_map(|server| server.slots.iter());
        let responses = slots.map(|slot| slot.response());
        requests.chain(responses.filter(|response| !response.is_empty()))
    }

    /// Tells the client at this address that a session is not known here, which a predecessor of this endpoint had with
    /// it: then it need not find out by itself.
    ///
    /// The client of a sealed session believes it by its proof alone ([`Endpoint::loss_proof`]), and gets it again whenever
    /// it asks for that session.
    pub fn disown(&mut self, now_ns: u64, to: A, session: SessionId, proof: Option<LossProof>) {
        self.shared.clock.advance(now_ns);
        let unknown = Header::of_session(Kind::Unknown, session.number, session.token);
        let payload = proof.as_ref().map_or(&[][..], |proof| proof);
        self.shared.control(to, &unknown, payload);
        self.disowned = proof.map(|proof| Disowned {
            client: to,
            session,
            proof,
        });
    }

    /// What a successor shows the client of a sealed session of this server's, so that it is believed that the session
    /// is lost.
    #[must_use]
    pub fn loss_proof(&self, session: SessionId) -> Option<LossProof> {
        match self.sessions.get(usize::from(session.number)) {
            Some(Session::Server(server)) if server.local_token == session.token => {
                server.seal.as_ref().map(|seal| seal.loss_proof())
            }
            _ => None,
        }
    }

    /// How often it was said that a sealed session of this client's is lost, by somebody who could not prove it.
    #[must_use]
    pub fn unproven_losses(&self) -> u64 {
        self.shared.statistics.dropped.unproven
    }
}
