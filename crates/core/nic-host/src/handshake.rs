//! The packets of session management, of those sessions that a NIC can carry: not sealed.

use std::hash::Hasher;

use provost_datagram::handshake::{
    ACCEPT_BYTES, Accept, CHALLENGE_BYTES, OPEN_BYTES, Open, encode_challenge, encode_refuse,
};
use provost_datagram::packet::{Head, Header, Kind};
use provost_datagram::{Refusal, SessionId};
use siphasher::sip::SipHasher24;

/// How long a cookie is good, as a power of two of nanoseconds; it is taken in the period after too.
const COOKIE_PERIOD_SHIFT: u32 = 30;

/// What tokens, nonces and cookies are made of. It must be random and secret.
#[derive(Clone, Debug)]
pub struct HostSecrets {
    key: [u64; 2],
    drawn: u64,
}

impl HostSecrets {
    /// From a key that nobody else knows.
    #[must_use]
    pub fn new(key: [u64; 2]) -> Self {
        Self { key, drawn: 0 }
    }

    fn hash(&self, words: &[u64]) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.key[0], self.key[1]);
        words.iter().for_each(|word| hasher.write_u64(*word));
        hasher.finish()
    }

    /// A value that nobody has seen before.
    pub(crate) fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.hash(&[self.drawn])
    }

    fn cookie(&self, period: u64, from: u64, open: &Open) -> u64 {
        let names = u64::from(open.token) << 16 | u64::from(open.session);
        self.hash(&[period, from, open.nonce, names]).max(1)
    }

    /// The cookie that shows that whoever opens this is at that address.
    pub(crate) fn bake(&self, now_ns: u64, from: u64, open: &Open) -> u64 {
        self.cookie(now_ns >> COOKIE_PERIOD_SHIFT, from, open)
    }

    /// Whether an Open carries a cookie of this period or the one before.
    pub(crate) fn recognizes(&self, now_ns: u64, from: u64, open: &Open) -> bool {
        let period = now_ns >> COOKIE_PERIOD_SHIFT;
        [Some(period), period.checked_sub(1)]
            .into_iter()
            .flatten()
            .any(|period| self.cookie(period, from, open) == open.cookie)
    }
}

/// A packet of session management. The NIC puts the check in.
pub(crate) fn control(kind: Kind, number: u16, token: u32, payload: &[u8]) -> Vec<u8> {
    let header = Header::of_session(kind, number, token);
    [Head::bare(&header).bytes(), payload].concat()
}

/// A Challenge to whoever sent this Open.
pub(crate) fn challenge(open: &Open, cookie: u64) -> Vec<u8> {
    control(
        Kind::Challenge,
        open.session,
        open.token,
        &encode_challenge(open.nonce, cookie),
    )
}

/// A refusal of this Open.
pub(crate) fn refuse(open: &Open, reason: Refusal) -> Vec<u8> {
    control(
        Kind::Refuse,
        open.session,
        open.token,
        &encode_refuse(open.nonce, reason),
    )
}

/// Nonce and cookie of a Challenge.
pub(crate) fn read_challenge(payload: &[u8]) -> Option<(u64, u64)> {
    let (words, _) = payload.get(..CHALLENGE_BYTES)?.as_chunks::<8>();
    match words {
        [nonce, cookie, ..] => Some((u64::from_le_bytes(*nonce), u64::from_le_bytes(*cookie))),
        _ => None,
    }
}

/// An Accept, if it is of a session that is not sealed.
pub(crate) fn read_accept(payload: &[u8]) -> Option<Accept> {
    (payload.len() == ACCEPT_BYTES)
        .then(|| Accept::decode(payload))
        .flatten()
}

/// An Open, if it is of a session that is not sealed.
pub(crate) fn read_open(payload: &[u8]) -> Result<Open, Option<Refusal>> {
    let open = Open::decode(payload).ok_or(None)?;
    if open.cipher == 0 && payload.len() == OPEN_BYTES {
        Ok(open)
    } else {
        Err(Some(Refusal::Security))
    }
}

/// A session as a number that two ends never share.
pub(crate) fn session_id(number: u16, token: u32) -> SessionId {
    SessionId::from_bits(u64::from(number) << 32 | u64::from(token))
}
