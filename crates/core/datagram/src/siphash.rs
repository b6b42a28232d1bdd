//! SipHash-2-4 (Aumasson and Bernstein, 2012): cookies and tokens that nobody without the key can guess.
//!
//! The standard library has this function only with keys of its own choosing, and a replay needs the same ones again.

use std::hash::Hasher;

/// A keyed hash being computed.
#[derive(Clone)]
pub(crate) struct SipHasher {
    state: [u64; 4],
    /// Bytes that do not fill a word yet.
    tail: u64,
    length: u64,
}

impl SipHasher {
    pub(crate) fn new(key: [u64; 2]) -> Self {
        let [k0, k1] = key;
        Self {
            state: [
                k0 ^ 0x736f_6d65_7073_6575,
                k1 ^ 0x646f_7261_6e64_6f6d,
                k0 ^ 0x6c79_6765_6e65_7261,
                k1 ^ 0x7465_6462_7974_6573,
            ],
            tail: 0,
            length: 0,
        }
    }

    fn absorb(&mut self, word: u64) {
        self.state[3] ^= word;
        self.round();
        self.round();
        self.state[0] ^= word;
    }

    fn round(&mut self) {
        let [v0, v1, v2, v3] = &mut self.state;
        *v0 = v0.wrapping_add(*v1);
        *v2 = v2.wrapping_add(*v3);
        *v1 = v1.rotate_left(13) ^ *v0;
        *v3 = v3.rotate_left(16) ^ *v2;
        *v0 = v0.rotate_left(32);
        *v2 = v2.wrapping_add(*v1);
        *v0 = v0.wrapping_add(*v3);
        *v1 = v1.rotate_left(17) ^ *v2;
        *v3 = v3.rotate_left(21) ^ *v0;
        *v2 = v2.rotate_left(32);
    }
}

impl Hasher for SipHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.tail |= u64::from(*byte) << (8 * (self.length % 8));
            self.length += 1;
            if self.length.is_multiple_of(8) {
                let word = std::mem::take(&mut self.tail);
                self.absorb(word);
            }
        }
    }

    fn finish(&self) -> u64 {
        let mut last = self.clone();
        last.absorb(self.tail | self.length << 56);
        last.state[2] ^= 0xff;
        for _ in 0..4 {
            last.round();
        }
        last.state.iter().fold(0, |all, word| all ^ word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vector_of_the_paper() {
        // Appendix A of the paper: key 00..0f, message 00..0e.
        let mut hasher = SipHasher::new([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        hasher.write(&(0..15).collect::<Vec<u8>>());
        assert_eq!(hasher.finish(), 0xa129_ca61_49be_45e5);
    }
}
