//! Sealed sessions: what is sent is encrypted and authenticated, replays are noticed, and keys are renewed.
//!
//! ```text
//!   pre-shared key ──► proof of the Open                       each direction:
//!        │                                                        secret 0 ──► secret 1 ──► … one for each epoch
//!        ▼                                                           │            │
//!   HKDF (X25519 of both ephemeral keys, transcript) ──► secrets     ▼            ▼
//!        └────────────────────────────────► proof of the Accept   key, nonce   key, nonce
//! ```
//!
//! A packet of a sealed session is its header in the clear (which the tag covers, with the check taken as zero), the number
//! of the packet, and the rest encrypted, with a tag. Numbers never repeat in a session, and a key serves one epoch: the
//! numbers that agree in all but their lowest bits. The sender's next epoch begins by itself; the receiver follows.
//!
//! Sources: TLS 1.3 (RFC 8446 section 7.1, psk_dhe_ke; section 5.3, nonces), QUIC-TLS (RFC 9001 sections 5 and 6), HKDF
//! (RFC 5869), X25519 (RFC 7748), ChaCha20-Poly1305 (RFC 8439), anti-replay windows (RFC 4303 section 3.4.3).

use std::fmt;

use ring::aead::{self, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{self, HKDF_SHA256, Prk};
use ring::hmac;
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::{Zeroize, Zeroizing};

/// Bytes of a public key, of a proof, and of a pre-shared key.
pub const KEY_BYTES: usize = 32;
/// Bytes that sealing adds to a packet: its number and its tag.
pub const SEAL_BYTES: usize = NUMBER_BYTES + TAG_BYTES;
/// Bytes of the proof that a session's server has lost its memory.
pub const LOSS_PROOF_BYTES: usize = 16;
const NUMBER_BYTES: usize = 8;
const TAG_BYTES: usize = 16;
const NONCE_BYTES: usize = 12;
/// Packets that one key seals, as a power of two. AES-GCM is good for 2^23 full packets at least (RFC 9001 section 6.6).
const EPOCH_SHIFT: u32 = 20;
/// Forged packets that a session bears before it takes none any more (2^36 for ChaCha20-Poly1305, RFC 9001 section 6.6).
const FORGERIES_MAX: u64 = 1 << 32;
/// How far a packet may be overtaken, in packets.
const REPLAY_PACKETS: u64 = 1024;

/// Whether sessions are sealed.
#[derive(Clone, Debug, Default)]
pub enum Security {
    /// They are not: whoever can read the packets can also forge them. Only for networks where nobody can.
    #[default]
    Plain,
    /// All of them are; peers that do not seal are refused.
    Sealed(Sealing),
}

/// How sessions are sealed.
#[derive(Clone)]
pub struct Sealing {
    /// What this end, as a client, encrypts with. As a server, it takes what the client wants.
    pub cipher: Cipher,
    /// What all ends that may speak to each other know, and nobody else.
    pub pre_shared_key: [u8; KEY_BYTES],
    /// What ephemeral keys are made of. It must be random, and be given to one endpoint only, once.
    pub seed: [u8; KEY_BYTES],
}

impl Drop for Sealing {
    fn drop(&mut self) {
        self.pre_shared_key.zeroize();
        self.seed.zeroize();
    }
}

impl fmt::Debug for Sealing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Sealing")
            .field("cipher", &self.cipher)
            .finish_non_exhaustive()
    }
}

/// What packets are encrypted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cipher {
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305 = 1,
    /// AES-128-GCM, the faster one where the processor helps.
    Aes128Gcm = 2,
}

impl Cipher {
    pub(crate) fn parse(value: u8) -> Option<Cipher> {
        [Cipher::ChaCha20Poly1305, Cipher::Aes128Gcm]
            .into_iter()
            .find(|cipher| *cipher as u8 == value)
    }

    fn algorithm(self) -> &'static aead::Algorithm {
        match self {
            Cipher::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
            Cipher::Aes128Gcm => &aead::AES_128_GCM,
        }
    }
}

/// What an endpoint needs to agree on keys.
pub(crate) struct Keyring {
    cipher: Cipher,
    pre_shared: hkdf::Salt,
    proof: hmac::Key,
    /// Each ephemeral key comes out of it, and then it is replaced by what cannot be turned back into it.
    seed: hmac::Key,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Keyring")
            .field("cipher", &self.cipher)
            .finish_non_exhaustive()
    }
}

/// This end's share of an agreement.
pub(crate) struct Share(StaticSecret);

impl fmt::Debug for Share {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Share")
    }
}

impl Share {
    pub(crate) fn public(&self) -> [u8; KEY_BYTES] {
        PublicKey::from(&self.0).to_bytes()
    }
}

/// Which end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Client,
    Server,
}

impl Keyring {
    pub(crate) fn new(sealing: &Sealing) -> Self {
        let of_proof = hmac::Key::new(hmac::HMAC_SHA256, &sealing.pre_shared_key);
        let proof = hmac::sign(&of_proof, b"provost datagram 1 open");
        Self {
            cipher: sealing.cipher,
            pre_shared: hkdf::Salt::new(HKDF_SHA256, &sealing.pre_shared_key),
            proof: hmac::Key::new(hmac::HMAC_SHA256, proof.as_ref()),
            seed: hmac::Key::new(hmac::HMAC_SHA256, &sealing.seed),
        }
    }

    pub(crate) fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// A share that nobody has seen before.
    pub(crate) fn share(&mut self) -> Share {
        let mut key = array(hmac::sign(&self.seed, b"share").as_ref());
        let next = hmac::sign(&self.seed, b"next");
        self.seed = hmac::Key::new(hmac::HMAC_SHA256, next.as_ref());
        let share = Share(StaticSecret::from(key));
        key.zeroize();
        share
    }

    /// Shows that whoever sent an Open knows the pre-shared key.
    pub(crate) fn prove(&self, open: &[u8]) -> [u8; KEY_BYTES] {
        array(hmac::sign(&self.proof, open).as_ref())
    }

    pub(crate) fn is_proven(&self, open: &[u8], proof: &[u8; KEY_BYTES]) -> bool {
        hmac::verify(&self.proof, open, proof).is_ok()
    }

    /// What both ends can compute from the other's public key; `None` if that key is none.
    pub(crate) fn exchange(&self, share: &Share, theirs: [u8; KEY_BYTES]) -> Option<Exchanged> {
        let shared = share.0.diffie_hellman(&PublicKey::from(theirs));
        shared
            .was_contributory()
            .then(|| Exchanged(self.pre_shared.extract(shared.as_bytes())))
    }
}

/// What both ends of a session, and nobody else, can compute.
pub(crate) struct Exchanged(Prk);

impl Exchanged {
    /// What follows from it and from everything that was said.
    pub(crate) fn agree(&self, transcript: [&[u8]; 2]) -> Agreement {
        Agreement {
            client: expand(&self.0, "client", transcript).into(),
            server: expand(&self.0, "server", transcript).into(),
            proof: expand(&self.0, "accept", transcript),
            loss: array(&expand(&self.0, "lost", transcript)[..LOSS_PROOF_BYTES]),
        }
    }
}

/// What keys follow from.
type SessionSecret = Zeroizing<[u8; KEY_BYTES]>;

/// What both ends of a session have agreed on.
pub(crate) struct Agreement {
    client: SessionSecret,
    server: SessionSecret,
    /// Shows that the server has agreed on it.
    proof: [u8; KEY_BYTES],
    loss: LossProof,
}

/// Shows a client that whoever says that its session is not known any more has it from the server.
///
/// It is of no use but once, when the session is over: a server gives it to its successor, and to nobody else.
pub type LossProof = [u8; LOSS_PROOF_BYTES];

impl Agreement {
    pub(crate) fn proof(&self) -> [u8; KEY_BYTES] {
        self.proof
    }

    /// Whether the other end came to the same, in a time that does not tell how much of it.
    pub(crate) fn is_proven(&self, proof: &[u8; KEY_BYTES]) -> bool {
        are_alike(&self.proof, proof)
    }

    /// The seal of one end's packets.
    pub(crate) fn seal(&self, cipher: Cipher, end: End) -> Seal {
        let (mine, theirs) = match end {
            End::Client => (&self.client, &self.server),
            End::Server => (&self.server, &self.client),
        };
        Seal {
            sending: Epochs::new(cipher, mine),
            number: 0,
            receiving: Epochs::new(cipher, theirs),
            received: Received::default(),
            forgeries: 0,
            loss: self.loss,
        }
    }
}

/// Whether two proofs are the same, in a time that does not tell how much of them.
fn are_alike<const BYTES: usize>(one: &[u8; BYTES], other: &[u8; BYTES]) -> bool {
    let difference = one
        .iter()
        .zip(other)
        .fold(0, |all, (one, other)| all | (one ^ other));
    std::hint::black_box(difference) == 0
}

/// Seals what one end of a session sends, and unseals what it receives.
pub(crate) struct Seal {
    sending: Epochs,
    /// Of the next packet.
    number: u64,
    receiving: Epochs,
    received: Received,
    forgeries: u64,
    loss: LossProof,
}

impl fmt::Debug for Seal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Seal")
            .field("number", &self.number)
            .field("forgeries", &self.forgeries)
            .finish_non_exhaustive()
    }
}

/// Why a packet was not unsealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// Nobody who knows the keys has sent it.
    Forged,
    /// It was here before, or is too old to tell.
    Replayed,
}

impl Seal {
    /// Seals what follows a header, in two pieces, and leaves nothing else in `body`.
    pub(crate) fn seal(&mut self, header: &[u8], first: &[u8], rest: &[u8], body: &mut Vec<u8>) {
        let number = self.number;
        self.number += 1;
        self.sending.reach(number >> EPOCH_SHIFT);
        body.clear();
        body.extend_from_slice(&number.to_le_bytes());
        body.extend_from_slice(first);
        body.extend_from_slice(rest);
        let tag = self
            .sending
            .current
            .seal(number, header, &mut body[NUMBER_BYTES..]);
        body.extend_from_slice(&tag);
    }

    /// What shows that whoever has lost this session has had it.
    pub(crate) fn loss_proof(&self) -> LossProof {
        self.loss
    }

    pub(crate) fn is_loss_proven(&self, proof: &[u8]) -> bool {
        proof.try_into().is_ok_and(|proof| are_alike(&self.loss, proof))
    }

    /// Unseals what follows a header, in place, and says where in `body` it is then.
    pub(crate) fn unseal(
        &mut self,
        header: &[u8],
        body: &mut [u8],
    ) -> Result<std::ops::Range<usize>, Broken> {
        let (number, sealed) = body
            .split_first_chunk_mut::<NUMBER_BYTES>()
            .filter(|(_, sealed)| sealed.len() >= TAG_BYTES && self.forgeries < FORGERIES_MAX)
            .ok_or(Broken::Forged)?;
        let number = u64::from_le_bytes(*number);
        if self.received.has(number) {
            return Err(Broken::Replayed);
        }
        let (end, epoch) = (body_end(sealed.len()), number >> EPOCH_SHIFT);
        let opened = match self.receiving.of(epoch) {
            Some(keys) => keys.open(number, header, sealed),
            None => false,
        };
        if !opened {
            self.forgeries += 1;
            return Err(Broken::Forged);
        }
        self.receiving.reach(epoch);
        self.received.insert(number);
        Ok(NUMBER_BYTES..end)
    }
}

fn body_end(sealed_bytes: usize) -> usize {
    NUMBER_BYTES + sealed_bytes - TAG_BYTES
}

/// The keys of one direction: of the present epoch, the one before, and the one after, which a receiver needs to notice
/// that it has begun.
#[derive(Debug)]
struct Epochs {
    cipher: Cipher,
    epoch: u64,
    before: Option<Keys>,
    current: Keys,
    after: Keys,
    /// Of the epoch after that.
    secret: SessionSecret,
}

impl Epochs {
    fn new(cipher: Cipher, secret: &SessionSecret) -> Self {
        let (current, secret) = Keys::derive(cipher, secret);
        let (after, secret) = Keys::derive(cipher, &secret);
        Self {
            cipher,
            epoch: 0,
            before: None,
            current,
            after,
            secret,
        }
    }

    /// The keys of an epoch, if it is near the present one.
    fn of(&self, epoch: u64) -> Option<&Keys> {
        match epoch.wrapping_sub(self.epoch) as i64 {
            -1 => self.before.as_ref(),
            0 => Some(&self.current),
            1 => Some(&self.after),
            _ => None,
        }
    }

    /// Goes on to the next epoch, if that is this one.
    fn reach(&mut self, epoch: u64) {
        if epoch <= self.epoch {
            return;
        }
        let (after, secret) = Keys::derive(self.cipher, &self.secret);
        let current = std::mem::replace(&mut self.after, after);
        self.before = Some(std::mem::replace(&mut self.current, current));
        self.secret = secret;
        self.epoch += 1;
    }
}

/// The key and the nonces of one epoch.
struct Keys {
    key: LessSafeKey,
    nonce: [u8; NONCE_BYTES],
}

impl fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Keys")
    }
}

impl Keys {
    /// The keys that a secret stands for, and the secret of the next epoch.
    fn derive(cipher: Cipher, secret: &SessionSecret) -> (Keys, SessionSecret) {
        let secret = Prk::new_less_safe(HKDF_SHA256, &secret[..]);
        let bytes = Zeroizing::new(expand(&secret, "key", NOTHING_SAID));
        let algorithm = cipher.algorithm();
        let key = UnboundKey::new(algorithm, &bytes[..algorithm.key_len()]).expect("keys have their length");
        let nonce = expand(&secret, "nonce", NOTHING_SAID);
        let keys = Keys {
            key: LessSafeKey::new(key),
            nonce: array(&nonce[..NONCE_BYTES]),
        };
        (keys, expand(&secret, "next", NOTHING_SAID).into())
    }

    fn nonce(&self, number: u64) -> Nonce {
        let mut nonce = self.nonce;
        for (byte, of_number) in nonce[NONCE_BYTES - 8..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= of_number;
        }
        Nonce::assume_unique_for_key(nonce)
    }

    fn seal(&self, number: u64, header: &[u8], plain: &mut [u8]) -> [u8; TAG_BYTES] {
        let aad = aead::Aad::from(header);
        let tag = self
            .key
            .seal_in_place_separate_tag(self.nonce(number), aad, plain)
            .expect("a packet is far shorter than what a cipher can take");
        array(tag.as_ref())
    }

    fn open(&self, number: u64, header: &[u8], sealed: &mut [u8]) -> bool {
        let aad = aead::Aad::from(header);
        self.key.open_in_place(self.nonce(number), aad, sealed).is_ok()
    }
}

/// Which of the latest packets have arrived.
#[derive(Debug)]
struct Received {
    /// One more than the greatest number.
    end: u64,
    window: [u64; REPLAY_PACKETS as usize / 64],
}

impl Default for Received {
    fn default() -> Self {
        Self {
            end: 0,
            window: [0; REPLAY_PACKETS as usize / 64],
        }
    }
}

impl Received {
    fn has(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        number < self.end && (number + REPLAY_PACKETS < self.end || self.window[word] & bit != 0)
    }

    fn insert(&mut self, number: u64) {
        // Places that come into the window anew may still say something of numbers a window ago.
        let fresh_from = self.end.max((number + 1).saturating_sub(REPLAY_PACKETS));
        for fresh in fresh_from..=number {
            let (word, bit) = place(fresh);
            self.window[word] &= !bit;
        }
        let (word, bit) = place(number);
        self.window[word] |= bit;
        self.end = self.end.max(number + 1);
    }
}

fn place(number: u64) -> (usize, u64) {
    let at = number % REPLAY_PACKETS;
    (at as usize / 64, 1 << (at % 64))
}

const NOTHING_SAID: [&[u8]; 2] = [&[], &[]];

/// HKDF-Expand to 32 bytes, for one purpose.
fn expand(secret: &Prk, purpose: &str, [open, accept]: [&[u8]; 2]) -> [u8; KEY_BYTES] {
    let info = [b"provost datagram 1 ", purpose.as_bytes(), b"\0", open, accept];
    let mut bytes = [0; KEY_BYTES];
    secret
        .expand(&info, HKDF_SHA256)
        .and_then(|okm| okm.fill(&mut bytes))
        .expect("HKDF gives as many bytes as its hash has");
    bytes
}

/// The first `N` bytes.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[..N]);
    array
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn keyring(pre_shared: u8, seed: u8) -> Keyring {
        Keyring::new(&Sealing {
            cipher: Cipher::Aes128Gcm,
            pre_shared_key: [pre_shared; KEY_BYTES],
            seed: [seed; KEY_BYTES],
        })
    }

    fn seals(cipher: Cipher) -> (Seal, Seal) {
        let (mut one, mut other) = (keyring(1, 2), keyring(1, 3));
        let (mine, theirs) = (one.share(), other.share());
        let transcript: [&[u8]; 2] = [b"what was said", b"and answered"];
        let at_client = one.exchange(&mine, theirs.public()).unwrap().agree(transcript);
        let at_server = other.exchange(&theirs, mine.public()).unwrap().agree(transcript);
        assert!(at_client.is_proven(&at_server.proof()));
        (
            at_client.seal(cipher, End::Client),
            at_server.seal(cipher, End::Server),
        )
    }

    fn sealed(seal: &mut Seal, text: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        let (first, rest) = text.split_at(text.len() / 2);
        seal.seal(b"header", first, rest, &mut body);
        body
    }

    #[test]
    fn what_is_sealed_is_unsealed_once_by_the_other_end_alone() {
        for cipher in [Cipher::ChaCha20Poly1305, Cipher::Aes128Gcm] {
            let (mut client, mut server) = seals(cipher);
            for text in [b"".as_slice(), b"some words"] {
                let body = sealed(&mut client, text);
                assert_eq!(body.len(), text.len() + SEAL_BYTES);
                let mut copy = body.clone();
                assert_eq!(
                    client.unseal(b"header", &mut copy),
                    Err(Broken::Forged),
                    "of itself"
                );
                let mut copy = body.clone();
                assert_eq!(server.unseal(b"Header", &mut copy), Err(Broken::Forged));
                let mut copy = body.clone();
                let range = server.unseal(b"header", &mut copy).unwrap();
                assert_eq!(&copy[range], text);
                assert_eq!(server.unseal(b"header", &mut body.clone()), Err(Broken::Replayed));
            }
        }
    }

    #[test]
    fn another_key_transcript_or_share_leads_elsewhere() {
        let (mut one, mut other, mut stranger) = (keyring(1, 2), keyring(1, 3), keyring(4, 3));
        let (mine, theirs, third) = (one.share(), other.share(), stranger.share());
        let agreed = |keyring: &Keyring, share: &Share, theirs: &Share, said: &[u8]| {
            let exchanged = keyring.exchange(share, theirs.public()).unwrap();
            exchanged.agree([said, b""])
        };
        let here = agreed(&one, &mine, &theirs, b"said");
        let fourth = other.share();
        for there in [
            agreed(&other, &theirs, &mine, b"heard"),
            agreed(&stranger, &third, &mine, b"said"),
            agreed(&other, &fourth, &mine, b"said"),
        ] {
            assert!(!here.is_proven(&there.proof()));
        }
        assert!(one.exchange(&mine, [0; KEY_BYTES]).is_none(), "no key at all");
        assert!(!stranger.is_proven(b"open", &one.prove(b"open")));
        assert_ne!(one.share().public(), mine.public());
    }

    #[test]
    fn keys_change_with_each_epoch_and_both_ends_follow() {
        let (mut client, mut server) = seals(Cipher::Aes128Gcm);
        let last_of = |epoch: u64| (epoch << EPOCH_SHIFT) - 1;
        for epoch in 1..4 {
            client.number = last_of(epoch);
            let mut old = sealed(&mut client, b"old");
            let mut new = sealed(&mut client, b"new");
            assert_eq!((client.sending.epoch, server.receiving.epoch), (epoch, epoch - 1));
            assert!(server.unseal(b"header", &mut new).is_ok());
            assert!(
                server.unseal(b"header", &mut old).is_ok(),
                "it was only overtaken"
            );
            assert_eq!(server.receiving.epoch, epoch);
        }
        client.number = 9 << EPOCH_SHIFT;
        let mut far = sealed(&mut client, b"far");
        assert_eq!(server.unseal(b"header", &mut far), Err(Broken::Forged));
    }

    proptest! {
        #[test]
        fn each_number_is_taken_once_unless_it_is_too_old(
            numbers in prop::collection::vec(0u64..5_000, 1..400),
        ) {
            let (mut received, mut seen) = (Received::default(), BTreeSet::new());
            for number in numbers {
                let newest = seen.last().copied().unwrap_or(0);
                let is_old = number + REPLAY_PACKETS <= newest && !seen.is_empty();
                prop_assert_eq!(received.has(number), seen.contains(&number) || is_old);
                if !received.has(number) {
                    received.insert(number);
                    seen.insert(number);
                }
            }
        }

        #[test]
        fn a_changed_byte_breaks_the_seal(
            text in prop::collection::vec(any::<u8>(), 0..100),
            at in any::<prop::sample::Index>(),
            flip in 1u8..,
        ) {
            let (mut client, mut server) = seals(Cipher::ChaCha20Poly1305);
            let mut body = sealed(&mut client, &text);
            let at = at.index(body.len());
            body[at] ^= flip;
            prop_assert!(server.unseal(b"header", &mut body).is_err());
        }
    }
}
