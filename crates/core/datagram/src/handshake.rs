//! Session management: what its packets carry (`docs/datagram.md`), and the cookies that keep strangers out.
//!
//! ```text
//!   client                                   server
//!   Open (nonce, token, wishes) ───────────►  keeps nothing
//!      ◄─────────────────── Challenge (cookie over address, nonce, token)
//!   Open (the same, cookie) ───────────────►  makes the session
//!      ◄─────────────────── Accept (number, token, agreement), or Refuse (reason)
//! ```
//!
//! What the server sends before it knows the client's address to be true is no longer than what it got.

use std::hash::{Hash, Hasher};

use siphasher::sip::SipHasher24;

use crate::event::Refusal;
use crate::seal::KEY_BYTES;

/// The version of the protocol that this crate speaks.
pub const VERSION: u8 = 1;
/// Bytes of an Open's payload, if it is not sealed. A Challenge, an Accept and a Refuse are shorter.
pub const OPEN_BYTES: usize = 48;
/// Bytes of an Accept's payload.
pub const ACCEPT_BYTES: usize = 32;
/// Bytes of a Challenge's payload.
pub const CHALLENGE_BYTES: usize = 24;
/// Bytes of a Refuse's payload.
pub const REFUSE_BYTES: usize = 16;
/// Bytes that follow in an Open and an Accept of a sealed session: a public key, and a proof.
pub const SEALING_BYTES: usize = 2 * KEY_BYTES;
/// Bytes of the longest payload of session management.
pub(crate) const CONTROL_BYTES_MAX: usize = OPEN_BYTES + SEALING_BYTES;
/// Where in an Open its cookie is.
const COOKIE_AT: std::ops::Range<usize> = 24..32;
/// Every Open begins with this.
const MAGIC: [u8; 4] = *b"PVDG";
/// How long a cookie is good, as a power of two of nanoseconds: about a second; it is taken in the period after too.
const COOKIE_PERIOD_SHIFT: u32 = 30;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// The oldest and the newest version that it speaks.
    pub versions: (u8, u8),
    /// Whether only missing packets are sent again, not everything from the first missing one on.
    pub selective: bool,
    /// Concurrent calls.
    pub slots: u8,
    /// Its number of the session.
    pub session: u16,
    /// Its token of the session.
    pub token: u32,
    /// Packets on their way at once.
    pub credits: u16,
    /// Bytes of its largest packet.
    pub packet_bytes: u16,
    /// What every answer repeats, so that the client knows that it is one.
    pub nonce: u64,
    /// The cookie of the server's challenge; zero at first.
    pub cookie: u64,
    /// What the session is to be sealed with ([`Cipher`](crate::Cipher)); zero if it is not.
    pub cipher: u8,
    /// Whether it heeds the network's marks of congestion.
    pub marks: MarkUse,
    /// Whether calls of the session may be put into small packets.
    pub fallback: PacketFallback,
}

/// Whether an end can put the messages of a call into smaller packets than was agreed, where full-size ones vanish on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PacketFallback {
    /// It cannot. Versions that knew no such thing send this.
    #[default]
    Off,
    /// It can, if the other end can too.
    On,
}

impl PacketFallback {
    fn parse(value: u8) -> PacketFallback {
        if value == 1 {
            PacketFallback::On
        } else {
            PacketFallback::Off
        }
    }
}

/// Whether an end is told of packets that the network has marked as having met congestion, so that they may be marked: a client
/// heeds marks, a server tells its client of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MarkUse {
    /// It is not, or does not say so. Versions that knew no marks send this.
    #[default]
    Unread,
    /// It is told, and says so.
    Read,
}

impl MarkUse {
    fn parse(value: u8) -> MarkUse {
        if value == 1 {
            MarkUse::Read
        } else {
            MarkUse::Unread
        }
    }
}

/// What a server agrees to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept {
    /// The client's nonce.
    pub nonce: u64,
    /// The version to speak.
    pub version: u8,
    /// Concurrent calls.
    pub slots: u8,
    /// The server's number of the session.
    pub session: u16,
    /// The server's token of the session.
    pub token: u32,
    /// Packets on their way at once.
    pub credits: u16,
    /// Bytes of the largest packet.
    pub packet_bytes: u16,
    /// Bytes of the largest request.
    pub message_bytes_max: u32,
    /// Whether it tells of the network's marks of congestion.
    pub marks: MarkUse,
    /// Whether calls of the session may be put into small packets.
    pub fallback: PacketFallback,
}

/// Bytes written or read in order. Reading past the end gives zeros; lengths are checked before.
struct Fields<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Fields<N> {
    fn new(bytes: [u8; N]) -> Self {
        Self { bytes, at: 0 }
    }

    fn put<const M: usize>(&mut self, field: [u8; M]) {
        self.bytes[self.at..self.at + M].copy_from_slice(&field);
        self.at += M;
    }

    fn get<const M: usize>(&mut self) -> [u8; M] {
        let mut field = [0; M];
        field.copy_from_slice(&self.bytes[self.at..self.at + M]);
        self.at += M;
        field
    }
}

impl Open {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; OPEN_BYTES] {
        let mut fields = Fields::new([0; OPEN_BYTES]);
        fields.put(MAGIC);
        fields.put([
            self.versions.0,
            self.versions.1,
            self.selective.into(),
            self.slots,
        ]);
        fields.put(self.session.to_le_bytes());
        fields.put(self.credits.to_le_bytes());
        fields.put(self.token.to_le_bytes());
        fields.put(self.nonce.to_le_bytes());
        fields.put(self.cookie.to_le_bytes());
        fields.put(self.packet_bytes.to_le_bytes());
        fields.put([self.cipher, self.marks as u8, self.fallback as u8]);
        fields.bytes
    }

    /// Reads one. What a sealed one carries beyond is not looked at.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Open> {
        let (bytes, sealing) = bytes.split_first_chunk()?;
        let mut fields = Fields::<OPEN_BYTES>::new(*bytes);
        if fields.get() != MAGIC {
            return None;
        }
        let [oldest, newest, selective, slots] = fields.get();
        Some(Open {
            versions: (oldest, newest),
            selective: selective == 1,
            slots,
            session: u16::from_le_bytes(fields.get()),
            credits: u16::from_le_bytes(fields.get()),
            token: u32::from_le_bytes(fields.get()),
            nonce: u64::from_le_bytes(fields.get()),
            cookie: u64::from_le_bytes(fields.get()),
            packet_bytes: u16::from_le_bytes(fields.get()),
            cipher: u8::from_le_bytes(fields.get()),
            marks: MarkUse::parse(u8::from_le_bytes(fields.get())),
            fallback: PacketFallback::parse(u8::from_le_bytes(fields.get())),
        })
        .filter(|open| sealing.len() == open.sealing_bytes())
    }

    /// Bytes that follow: a public key and a proof, if it is sealed.
    fn sealing_bytes(&self) -> usize {
        if self.cipher == 0 { 0 } else { SEALING_BYTES }
    }
}

/// What proofs cover of an Open: everything as it came, but for the cookie, which comes later.
pub(crate) fn said(open: &[u8]) -> Vec<u8> {
    let mut said = open[..open.len().min(OPEN_BYTES + KEY_BYTES)].to_vec();
    if let Some(cookie) = said.get_mut(COOKIE_AT) {
        cookie.fill(0);
    }
    said
}

impl Accept {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; ACCEPT_BYTES] {
        let mut fields = Fields::new([0; ACCEPT_BYTES]);
        fields.put(self.nonce.to_le_bytes());
        fields.put([self.version, self.slots]);
        fields.put(self.session.to_le_bytes());
        fields.put(self.token.to_le_bytes());
        fields.put(self.credits.to_le_bytes());
        fields.put(self.packet_bytes.to_le_bytes());
        fields.put(self.message_bytes_max.to_le_bytes());
        fields.put([self.marks as u8, self.fallback as u8]);
        fields.bytes
    }

    /// Reads one. What a sealed one carries beyond is not looked at.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Accept> {
        let (bytes, _) = bytes.split_first_chunk()?;
        let mut fields = Fields::<ACCEPT_BYTES>::new(*bytes);
        let nonce = u64::from_le_bytes(fields.get());
        let [version, slots] = fields.get();
        Some(Accept {
            nonce,
            version,
            slots,
            session: u16::from_le_bytes(fields.get()),
            token: u32::from_le_bytes(fields.get()),
            credits: u16::from_le_bytes(fields.get()),
            packet_bytes: u16::from_le_bytes(fields.get()),
            message_bytes_max: u32::from_le_bytes(fields.get()),
            marks: MarkUse::parse(u8::from_le_bytes(fields.get())),
            fallback: PacketFallback::parse(u8::from_le_bytes(fields.get())),
        })
    }
}

/// The bytes of a Challenge.
#[must_use]
pub fn encode_challenge(nonce: u64, cookie: u64) -> [u8; CHALLENGE_BYTES] {
    let mut fields = Fields::new([0; CHALLENGE_BYTES]);
    fields.put(nonce.to_le_bytes());
    fields.put(cookie.to_le_bytes());
    fields.bytes
}

/// The nonce and the cookie of a Challenge.
#[must_use]
pub fn decode_challenge(bytes: &[u8]) -> Option<(u64, u64)> {
    let mut fields = Fields::<CHALLENGE_BYTES>::new(bytes.try_into().ok()?);
    Some((u64::from_le_bytes(fields.get()), u64::from_le_bytes(fields.get())))
}

/// The bytes of a Refuse.
#[must_use]
pub fn encode_refuse(nonce: u64, reason: Refusal) -> [u8; REFUSE_BYTES] {
    let mut fields = Fields::new([0; REFUSE_BYTES]);
    fields.put(nonce.to_le_bytes());
    fields.put((reason as u16).to_le_bytes());
    fields.bytes
}

/// The nonce and the reason of a Refuse.
pub(crate) fn decode_refuse(bytes: &[u8]) -> Option<(u64, Refusal)> {
    let mut fields = Fields::<REFUSE_BYTES>::new(bytes.try_into().ok()?);
    let nonce = u64::from_le_bytes(fields.get());
    Some((nonce, Refusal::from_number(u16::from_le_bytes(fields.get()))))
}

/// A public key, and the proof that whoever sent it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// The ephemeral X25519 key.
    pub public: [u8; KEY_BYTES],
    /// Over everything that was said so far, with the pre-shared key in it.
    pub proof: [u8; KEY_BYTES],
}

impl Sealed {
    /// What follows an Open or an Accept of so many bytes, if anything does.
    pub(crate) fn after(payload: &[u8], bytes: usize) -> Option<Sealed> {
        let rest = payload.get(bytes..)?;
        let (public, proof) = rest.split_first_chunk()?;
        let proof = proof.try_into().ok()?;
        Some(Sealed {
            public: *public,
            proof,
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; SEALING_BYTES] {
        let mut fields = Fields::new([0; SEALING_BYTES]);
        fields.put(self.public);
        fields.put(self.proof);
        fields.bytes
    }
}

/// What only this endpoint can compute: tokens, nonces and cookies.
#[derive(Clone, Debug)]
pub struct Secrets {
    key: [u64; 2],
    drawn: u64,
}

/// What a value is drawn for, so that one use's values say nothing of another's.
const DRAW: u8 = 1;
const COOKIE: u8 = 2;

impl Secrets {
    /// From a key that is random and that nobody else knows.
    #[must_use]
    pub fn new(key: [u64; 2]) -> Self {
        Self { key, drawn: 0 }
    }

    fn hasher(&self) -> SipHasher24 {
        SipHasher24::new_with_keys(self.key[0], self.key[1])
    }

    /// A value that nobody has seen before.
    pub fn draw(&mut self) -> u64 {
        self.drawn += 1;
        let mut hasher = self.hasher();
        hasher.write_u8(DRAW);
        hasher.write_u64(self.drawn);
        hasher.finish()
    }

    fn cookie<A: Hash>(&self, period: u64, from: &A, open: &Open) -> u64 {
        let mut hasher = self.hasher();
        hasher.write_u8(COOKIE);
        hasher.write_u64(period);
        from.hash(&mut hasher);
        hasher.write_u64(open.nonce);
        hasher.write_u32(open.token);
        hasher.write_u16(open.session);
        hasher.finish().max(1)
    }

    /// The cookie that shows that whoever opens this is at that address.
    #[must_use]
    pub fn bake<A: Hash>(&self, now_ns: u64, from: &A, open: &Open) -> u64 {
        self.cookie(now_ns >> COOKIE_PERIOD_SHIFT, from, open)
    }

    /// Whether an Open carries a cookie of this period or the one before.
    #[must_use]
    pub fn recognizes<A: Hash>(&self, now_ns: u64, from: &A, open: &Open) -> bool {
        let period = now_ns >> COOKIE_PERIOD_SHIFT;
        let good = |period| self.cookie(period, from, open) == open.cookie;
        good(period) || period > 0 && good(period - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> Open {
        Open {
            versions: (1, 3),
            selective: true,
            slots: 8,
            session: 5,
            token: 6,
            credits: 32,
            packet_bytes: 1472,
            nonce: 9,
            cookie: 0,
            cipher: 0,
            marks: MarkUse::Read,
            fallback: PacketFallback::On,
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        assert_eq!(Open::decode(&open().encode()), Some(open()));
        assert_eq!(Open::decode(&open().encode()[1..]), None);
        let with_cookie = Open {
            cookie: u64::MAX,
            ..open()
        };
        assert_eq!(said(&with_cookie.encode()), open().encode());
        let mut other = open().encode();
        other[0] = b'Q';
        assert_eq!(Open::decode(&other), None);
        let accept = Accept {
            nonce: 1,
            version: 2,
            slots: 3,
            session: 4,
            token: 5,
            credits: 6,
            packet_bytes: 7,
            message_bytes_max: 8,
            marks: MarkUse::Read,
            fallback: PacketFallback::On,
        };
        assert_eq!(Accept::decode(&accept.encode()), Some(accept));
        assert_eq!(decode_challenge(&encode_challenge(3, 4)), Some((3, 4)));
        let refused = (3, Refusal::RingFull);
        assert_eq!(decode_refuse(&encode_refuse(refused.0, refused.1)), Some(refused));
    }

    #[test]
    fn a_cookie_is_good_for_its_address_its_open_and_about_a_second() {
        let secrets = Secrets::new([1, 2]);
        let with = |cookie| Open { cookie, ..open() };
        let cookie = secrets.bake(10, &"here", &open());
        assert!(secrets.recognizes(1_100_000_000, &"here", &with(cookie)));
        assert!(!secrets.recognizes(10, &"there", &with(cookie)));
        assert!(!secrets.recognizes(10, &"here", &with(cookie + 1)));
        assert!(!secrets.recognizes(10, &"here", &with(0)));
        assert!(!secrets.recognizes(
            10,
            &"here",
            &Open {
                token: 7,
                ..with(cookie)
            }
        ));
        assert!(!secrets.recognizes(2_200_000_000, &"here", &with(cookie)));
        assert!(!Secrets::new([1, 3]).recognizes(10, &"here", &with(cookie)));
    }

    #[test]
    fn draws_differ() {
        let mut secrets = Secrets::new([1, 2]);
        assert_ne!(secrets.draw(), secrets.draw());
    }

    #[test]
    fn the_hash_is_that_of_the_paper() {
        // SipHash-2-4 (Aumasson and Bernstein, 2012), Appendix A: key 00..0f, message 00..0e.
        let secrets = Secrets::new([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        let mut hasher = secrets.hasher();
        hasher.write(&(0..15).collect::<Vec<u8>>());
        assert_eq!(hasher.finish(), 0xa129_ca61_49be_45e5);
    }
}
