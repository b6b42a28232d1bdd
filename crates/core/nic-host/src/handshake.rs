//! The packets of session management, of those sessions that a NIC can carry: not sealed.

use provost_datagram::handshake::{
    ACCEPT_BYTES, Accept, CHALLENGE_BYTES, OPEN_BYTES, Open, decode_challenge, encode_challenge,
    encode_refuse,
};
use provost_datagram::packet::{Head, Header, Kind};
use provost_datagram::{Refusal, SessionId};

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
    decode_challenge(payload.get(..CHALLENGE_BYTES)?)
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
