//! What a client wants of a call, and what each of its messages must therefore be. The plan travels in the request's
//! metadata, so the server needs no other knowledge, and both ends know what the other must say.

use provost_conformance::{Random, content_bytes};
use provost_wire::metadata;

/// Metadata key of a plan.
pub(crate) const KEY: &str = "plan-bin";
/// The [`Plan::size`] of calls with small messages.
pub(crate) const SMALL_SIZE: u8 = 0;
/// A plan's length in metadata.
const PLAN_BYTES: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Which call of the whole simulation.
    pub(crate) nonce: u64,
    /// Messages that the client sends.
    pub(crate) requests: u16,
    /// Messages that the server sends.
    pub(crate) responses: u16,
    /// The status that the server gives.
    pub(crate) status: u8,
    /// Whether the server answers at all.
    pub(crate) answer: Answer,
    /// How large messages get: 0 small, 3 large.
    pub(crate) size: u8,
    /// How long the server thinks before it answers, in microseconds.
    pub(crate) think_us: u32,
}

/// Whether a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Full,
    /// It resets the call instead.
    Reset,
    /// Never; the deadline must end the call.
    Never,
    /// It is never asked: a policy denies the call.
    Denied,
}

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Request,
    Response,
}

impl Plan {
    /// A plan for a method.
    pub(crate) fn new(random: &mut Random, nonce: u64, client_streams: bool, server_streams: bool) -> Plan {
        let many = |random: &mut Random| match random.below(8) {
            0 => random.between(20, 60) as u16,
            _ => random.below(6) as u16,
        };
        let status = match random.below(6) {
            0 => random.between(1, 16) as u8,
            _ => 0,
        };
        let responses = match (server_streams, status) {
            (true, _) => many(random),
            (false, 0) => 1,
            (false, _) => 0,
        };
        Plan {
            nonce,
            requests: if client_streams { many(random) } else { 1 },
            responses,
            status,
            answer: match random.below(25) {
                0 => Answer::Never,
                1 => Answer::Reset,
                _ => Answer::Full,
            },
            size: match random.below(40) {
                0 => 3,
                1..=4 => 2,
                5..=14 => 1,
                _ => SMALL_SIZE,
            },
            think_us: if random.one_in(4) {
                random.below(20_000) as u32
            } else {
                0
            },
        }
    }

    /// The plan as metadata.
    pub(crate) fn metadata(&self) -> Vec<u8> {
        let mut value = self.nonce.to_le_bytes().to_vec();
        value.extend_from_slice(&self.requests.to_le_bytes());
        value.extend_from_slice(&self.responses.to_le_bytes());
        let answer = match self.answer {
            Answer::Full => 0,
            Answer::Reset => 1,
            Answer::Never => 2,
            Answer::Denied => 3,
        };
        value.extend_from_slice(&[self.status, answer, self.size, 0]);
        value.extend_from_slice(&self.think_us.to_le_bytes());
        value.resize(PLAN_BYTES, 0);
        let mut block = Vec::new();
        metadata::append(&mut block, KEY, &value).expect("a plan is valid metadata");
        block
    }

    /// The plan in a call's metadata.
    pub(crate) fn from_metadata(block: &[u8]) -> Option<Plan> {
        let (_, value) = metadata::entries(block).find(|(key, _)| *key == KEY)?;
        Plan::from_value(value)
    }

    /// The plan in the value of its metadata key.
    pub(crate) fn from_value(value: &[u8]) -> Option<Plan> {
        let value: &[u8; PLAN_BYTES] = value.try_into().ok()?;
        let number = |at: usize| u16::from_le_bytes([value[at], value[at + 1]]);
        Some(Plan {
            nonce: u64::from_le_bytes(*value.first_chunk()?),
            requests: number(8),
            responses: number(10),
            status: value[12],
            answer: match value[13] {
                0 => Answer::Full,
                1 => Answer::Reset,
                3 => Answer::Denied,
                _ => Answer::Never,
            },
            size: value[14],
            think_us: u32::from_le_bytes(*value[16..].first_chunk()?),
        })
    }

    /// The seed of a message.
    pub(crate) fn seed(&self, way: Way, index: u16) -> u64 {
        let way = u64::from(way == Way::Response);
        Random::new(self.nonce ^ way << 63 ^ u64::from(index) << 40).number()
    }

    /// The payload of a message.
    pub(crate) fn payload(&self, seed: u64) -> Vec<u8> {
        let mut random = Random::new(seed);
        let most = match self.size {
            SMALL_SIZE => 100,
            1 => 3_000,
            2 => 70_000,
            _ => 1_000_000,
        };
        content_bytes(seed, random.below(most) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_its_metadata() {
        let mut random = Random::new(5);
        for nonce in 0..200 {
            let plan = Plan::new(&mut random, nonce, nonce % 2 == 0, nonce % 3 == 0);
            assert_eq!(Plan::from_metadata(&plan.metadata()), Some(plan));
        }
    }
}
