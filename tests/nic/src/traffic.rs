//! Calls whose every byte follows from their number, and what both ends noted of them.

use std::collections::{BTreeMap, HashMap};

use provost_nic::LINE_BYTES;

/// What calls look like.
#[derive(Clone, Copy, Debug)]
pub struct CallPattern {
    /// Bytes of a payload at most, from 8.
    pub bytes_max: usize,
}

/// Bytes of the call's number, with which every payload begins.
const TAG_BYTES: usize = 8;

impl CallPattern {
    /// The request of a call: mostly small ones, some as long as can be.
    #[must_use]
    pub fn request(&self, tag: u64) -> Vec<u8> {
        let mixed = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let spread = match mixed >> 60 {
            0 => self.bytes_max - TAG_BYTES,
            1 | 2 => (mixed >> 20) as usize % (self.bytes_max - TAG_BYTES + 1),
            _ => (mixed >> 20) as usize % (self.bytes_max.min(96) - TAG_BYTES + 1),
        };
        let rest = (0..spread).map(|at| (mixed >> (at % 7 * 8)) as u8 ^ at as u8);
        tag.to_le_bytes().into_iter().chain(rest).collect()
    }

    /// The method of a call.
    #[must_use]
    pub fn method(&self, tag: u64) -> u16 {
        (tag % 1000) as u16 + 1
    }

    /// The call's number in a request.
    #[must_use]
    pub fn tag(&self, request: &[u8]) -> Option<u64> {
        Some(u64::from_le_bytes(request.get(..TAG_BYTES)?.try_into().ok()?))
    }

    /// The response to a request: its bytes, turned round; every fourth is cut to its first half.
    #[must_use]
    pub fn response(&self, request: &[u8]) -> Vec<u8> {
        let mut response: Vec<u8> = request.iter().rev().map(|byte| byte ^ 0x5a).collect();
        if request[0].is_multiple_of(4) {
            response.truncate(request.len() / 2);
        }
        response
    }

    /// The status of the response.
    #[must_use]
    pub fn status(&self, tag: u64) -> u16 {
        (tag % 17) as u16
    }
}

/// What a server has seen.
#[derive(Debug, Default)]
pub struct ServerRecord {
    /// How often each call was executed.
    pub executed: HashMap<u64, u32>,
    /// Requests by the flow that they came by.
    pub by_flow: BTreeMap<u8, u64>,
    pub by_lines: BTreeMap<usize, u64>,
}

impl ServerRecord {
    /// Checks a request against what it must be, notes it, and gives the response and the status.
    ///
    /// # Panics
    /// If a byte is wrong.
    pub fn execute(
        &mut self,
        pattern: &CallPattern,
        method: u16,
        flow: u8,
        request: &[u8],
    ) -> (u16, Vec<u8>) {
        let tag = pattern.tag(request).expect("a request has its number");
        assert_eq!(request, pattern.request(tag), "the request of call {tag}");
        assert_eq!(method, pattern.method(tag));
        *self.executed.entry(tag).or_default() += 1;
        *self.by_flow.entry(flow).or_default() += 1;
        *self
            .by_lines
            .entry((request.len() + 24).div_ceil(LINE_BYTES))
            .or_default() += 1;
        (pattern.status(tag), pattern.response(request))
    }
}

/// What a client has seen.
#[derive(Debug, Default)]
pub struct ClientRecord {
    /// Calls that were made.
    pub made: u64,
    /// Calls that ended well, and how often each did.
    pub completed: HashMap<u64, u32>,
    /// Calls that failed, with the reason.
    pub failed: BTreeMap<String, u64>,
    /// Statuses of the NIC's own answers, by code.
    pub answered_by_nic: BTreeMap<u16, u64>,
}

impl ClientRecord {
    /// Checks a response against what it must be, and notes it.
    ///
    /// # Panics
    /// If a byte is wrong.
    pub fn complete(&mut self, pattern: &CallPattern, tag: u64, status: u16, response: &[u8]) {
        let expected = pattern.response(&pattern.request(tag));
        assert_eq!(response, expected, "the response to call {tag}");
        assert_eq!(status, pattern.status(tag), "the status of call {tag}");
        *self.completed.entry(tag).or_default() += 1;
    }
}
