//! The keys of one direction of a TLS 1.3 connection (RFC 8446 §7): from a traffic secret to sealed and opened records.
//!
//! Nothing here implements `Debug`, and secrets are zeroed when they are dropped.

use ring::aead::{self, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use ring::hkdf;
use rustls::CipherSuite;
use zeroize::Zeroizing;

/// Bytes of a nonce, and of what it is made from, in every suite.
const NONCE_BYTES: usize = 12;
/// Bytes of the longest secret: a SHA-384.
pub(super) const SECRET_BYTES_MAX: usize = 48;
/// Bytes that sealing adds behind the text.
pub(super) const TAG_BYTES: usize = 16;

/// A cipher suite of TLS 1.3 that rustls offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Suite {
    Aes128GcmSha256,
    Aes256GcmSha384,
    Chacha20Poly1305Sha256,
}

impl Suite {
    pub(super) fn of(suite: CipherSuite) -> Option<Suite> {
        match suite {
            CipherSuite::TLS13_AES_128_GCM_SHA256 => Some(Suite::Aes128GcmSha256),
            CipherSuite::TLS13_AES_256_GCM_SHA384 => Some(Suite::Aes256GcmSha384),
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Some(Suite::Chacha20Poly1305Sha256),
            _ => None,
        }
    }

    /// Its number in the registry of cipher suites.
    pub(super) fn number(self) -> u16 {
        match self {
            Suite::Aes128GcmSha256 => 0x1301,
            Suite::Aes256GcmSha384 => 0x1302,
            Suite::Chacha20Poly1305Sha256 => 0x1303,
        }
    }

    pub(super) fn from_number(number: u16) -> Option<Suite> {
        Suite::of(CipherSuite::from(number))
    }

    pub(super) fn secret_bytes(self) -> usize {
        match self {
            Suite::Aes256GcmSha384 => SECRET_BYTES_MAX,
            Suite::Aes128GcmSha256 | Suite::Chacha20Poly1305Sha256 => 32,
        }
    }

    fn aead(self) -> &'static aead::Algorithm {
        match self {
            Suite::Aes128GcmSha256 => &aead::AES_128_GCM,
            Suite::Aes256GcmSha384 => &aead::AES_256_GCM,
            Suite::Chacha20Poly1305Sha256 => &aead::CHACHA20_POLY1305,
        }
    }

    fn hkdf(self) -> hkdf::Algorithm {
        match self {
            Suite::Aes256GcmSha384 => hkdf::HKDF_SHA384,
            Suite::Aes128GcmSha256 | Suite::Chacha20Poly1305Sha256 => hkdf::HKDF_SHA256,
        }
    }
}

/// Why a record was not sealed or opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadRecord;

/// The keys of one direction.
pub(super) struct Keys {
    suite: Suite,
    secret: Zeroizing<Vec<u8>>,
    key: LessSafeKey,
    iv: Zeroizing<[u8; NONCE_BYTES]>,
    /// Number of the next record.
    sequence: u64,
}

impl Keys {
    /// The keys that follow from a traffic secret; `None` if the secret is not one of this suite.
    pub(super) fn new(suite: Suite, secret: Zeroizing<Vec<u8>>, sequence: u64) -> Option<Keys> {
        if secret.len() != suite.secret_bytes() {
            return None;
        }
        let mut key = Zeroizing::new([0; 32]);
        let key = &mut key[..suite.aead().key_len()];
        let mut iv = Zeroizing::new([0; NONCE_BYTES]);
        expand(suite, &secret, "key", key)?;
        expand(suite, &secret, "iv", &mut iv[..])?;
        Some(Keys {
            suite,
            secret,
            key: LessSafeKey::new(UnboundKey::new(suite.aead(), key).ok()?),
            iv,
            sequence,
        })
    }

    /// The keys after a key update (RFC 8446 §7.2).
    pub(super) fn next(&self) -> Option<Keys> {
        let mut secret = Zeroizing::new(vec![0; self.secret.len()]);
        expand(self.suite, &self.secret, "traffic upd", &mut secret)?;
        Keys::new(self.suite, secret, 0)
    }

    pub(super) fn suite(&self) -> Suite {
        self.suite
    }

    pub(super) fn secret(&self) -> &[u8] {
        &self.secret
    }

    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether rustls has the same keys: then the secret is the one that is in use.
    pub(super) fn are(&self, key: &[u8], iv: &[u8]) -> bool {
        let mut own = Zeroizing::new([0; 32]);
        let own = &mut own[..self.suite.aead().key_len()];
        expand(self.suite, &self.secret, "key", own).is_some() && own == key && self.iv[..] == *iv
    }

    /// Seals the next record in place; its tag goes behind it.
    pub(super) fn seal(&mut self, header: &[u8], text: &mut [u8]) -> Result<Tag, BadRecord> {
        let nonce = self.next_nonce()?;
        self.key
            .seal_in_place_separate_tag(nonce, Aad::from(header), text)
            .map_err(|_| BadRecord)
    }

    /// Opens the next record in place: the text stands where the record began. Its length.
    pub(super) fn open(&mut self, header: &[u8], record: &mut [u8]) -> Result<usize, BadRecord> {
        let nonce = self.next_nonce()?;
        let text = self.key.open_in_place(nonce, Aad::from(header), record);
        text.map(|text| text.len()).map_err(|_| BadRecord)
    }

    /// A nonce is never used twice: the sequence number does not wrap.
    fn next_nonce(&mut self) -> Result<Nonce, BadRecord> {
        let mut nonce = *self.iv;
        for (byte, sequence) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= sequence;
        }
        self.sequence = self.sequence.checked_add(1).ok_or(BadRecord)?;
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand-Label with an empty context (RFC 8446 §7.1).
fn expand(suite: Suite, secret: &[u8], label: &str, out: &mut [u8]) -> Option<()> {
    const PREFIX: &[u8] = b"tls13 ";
    let length = u16::try_from(out.len()).ok()?.to_be_bytes();
    let label_bytes = [u8::try_from(PREFIX.len() + label.len()).ok()?];
    let info = [&length[..], &label_bytes, PREFIX, label.as_bytes(), &[0]];
    let secret = hkdf::Prk::new_less_safe(suite.hkdf(), secret);
    secret.expand(&info, Length(out.len())).ok()?.fill(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_hex(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    /// RFC 8448 §3, "server application traffic secret" and the keys derived from it.
    #[test]
    fn keys_are_those_of_rfc_8448() {
        let secret = from_hex("a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643");
        let keys = Keys::new(Suite::Aes128GcmSha256, secret.into(), 0).unwrap();
        let key = from_hex("9f02283b6c9c07efc26bb9f2ac92e356");
        let iv = from_hex("cf782b88dd83549aadf1e984");
        assert!(keys.are(&key, &iv));
        assert!(!keys.are(&iv, &key));
    }

    #[test]
    fn what_was_sealed_opens_once_and_in_order() {
        for suite in [
            Suite::Aes128GcmSha256,
            Suite::Aes256GcmSha384,
            Suite::Chacha20Poly1305Sha256,
        ] {
            let secret = vec![7; suite.secret_bytes()];
            let mut seals = Keys::new(suite, secret.clone().into(), 0)
                .unwrap()
                .next()
                .unwrap();
            let mut opens = Keys::new(suite, secret.into(), 0).unwrap().next().unwrap();
            for text in [&b"first"[..], b"", b"third"] {
                let mut record = text.to_vec();
                let tag = seals.seal(b"header", &mut record).unwrap();
                record.extend_from_slice(tag.as_ref());
                let mut again = record.clone();
                let length = opens.open(b"header", &mut record).unwrap();
                assert_eq!(&record[..length], text);
                // The number of the record is part of what is checked.
                assert_eq!(opens.open(b"header", &mut again), Err(BadRecord));
                opens.sequence -= 1;
            }
            assert_eq!(Suite::from_number(suite.number()), Some(suite));
        }
    }

    #[test]
    fn a_secret_of_another_length_and_the_end_of_the_numbers_are_refused() {
        assert!(Keys::new(Suite::Aes128GcmSha256, vec![7; 48].into(), 0).is_none());
        let mut keys = Keys::new(Suite::Aes128GcmSha256, vec![7; 32].into(), u64::MAX).unwrap();
        assert!(keys.seal(b"", &mut [0]).is_err());
    }
}
