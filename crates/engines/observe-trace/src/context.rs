//! W3C trace context (<https://www.w3.org/TR/trace-context/>), and who is sampled.

use std::hash::{BuildHasher, RandomState};

/// The metadata key.
pub(crate) const TRACEPARENT: &str = "traceparent";
/// Length of a header of version 0: `00-` trace id `-` span id `-` flags.
pub(crate) const TRACEPARENT_BYTES: usize = 55;
const SAMPLED: u8 = 1;

/// Where in a trace a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceContext {
    pub(crate) trace_id: u128,
    pub(crate) span_id: u64,
    pub(crate) is_sampled: bool,
}

impl TraceContext {
    /// Reads a header. Of a version after 0 what version 0 has is read, as the specification asks for.
    pub(crate) fn parse(header: &[u8]) -> Option<TraceContext> {
        let (first, rest) = header.split_at_checked(TRACEPARENT_BYTES)?;
        let version: u8 = hex(&first[..2])? as u8;
        let is_split = [2, 35, 52].iter().all(|at| first[*at] == b'-');
        let ends_well = rest.is_empty() || (version > 0 && rest[0] == b'-');
        if version == u8::MAX || !is_split || !ends_well {
            return None;
        }
        let trace_id = u128::from(hex(&first[3..19])?) << 64 | u128::from(hex(&first[19..35])?);
        let span_id = hex(&first[36..52])?;
        let flags = hex(&first[53..55])? as u8;
        (trace_id != 0 && span_id != 0).then_some(TraceContext {
            trace_id,
            span_id,
            is_sampled: flags & SAMPLED != 0,
        })
    }

    /// Whether a header has the form of one of a trace that nobody samples. Its ids are not looked at: they are carried on
    /// as they are.
    pub(crate) fn is_unsampled(header: &[u8]) -> bool {
        header.len() == TRACEPARENT_BYTES
            && header.starts_with(b"00-")
            && (header[35], header[52]) == (b'-', b'-')
            && hex(&header[53..]).is_some_and(|flags| flags as u8 & SAMPLED == 0)
    }

    /// The header.
    pub(crate) fn header(&self) -> [u8; TRACEPARENT_BYTES] {
        let mut out = *b"00-00000000000000000000000000000000-0000000000000000-00";
        write_hex((self.trace_id >> 64) as u64, &mut out[3..19]);
        write_hex(self.trace_id as u64, &mut out[19..35]);
        write_hex(self.span_id, &mut out[36..52]);
        out[54] = b'0' + u8::from(self.is_sampled);
        out
    }
}

/// What is no hexadecimal digit.
const NO_DIGIT: u8 = 0xff;

/// The values of lower-case hexadecimal digits.
const DIGITS: [u8; 256] = {
    let mut values = [NO_DIGIT; 256];
    let mut digit = 0;
    while digit < 16 {
        values[b"0123456789abcdef"[digit as usize] as usize] = digit;
        digit += 1;
    }
    values
};

/// The number that lower-case hexadecimal digits write, at most 16 of them.
fn hex(digits: &[u8]) -> Option<u64> {
    let (mut number, mut seen) = (0, 0);
    for digit in digits {
        let value = DIGITS[usize::from(*digit)];
        seen |= value;
        number = number << 4 | u64::from(value & 15);
    }
    (seen & 0xf0 == 0).then_some(number)
}

fn write_hex(number: u64, out: &mut [u8]) {
    for (at, digit) in out.iter_mut().rev().enumerate() {
        *digit = b"0123456789abcdef"[(number >> (4 * at) & 15) as usize];
    }
}

/// Who is sampled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampler {
    /// Trace ids whose low 63 bits are below this, as OpenTelemetry's `TraceIdRatioBased` has it.
    below: u64,
    parent_based: bool,
}

impl Sampler {
    pub(crate) fn new(ratio: f64, parent_based: bool) -> Sampler {
        let all = (1u64 << 63) as f64;
        Sampler {
            below: (ratio * all) as u64,
            parent_based,
        }
    }

    /// Whether the decision of a caller counts.
    pub(crate) fn is_parent_based(&self) -> bool {
        self.parent_based
    }

    pub(crate) fn samples(&self, trace_id: u128, parent: Option<&TraceContext>) -> bool {
        match parent {
            Some(parent) if self.parent_based => parent.is_sampled,
            _ => (trace_id as u64 >> 1) < self.below,
        }
    }
}

/// Random ids, of the kind that does not matter when it is guessed (xorshift64*).
#[derive(Debug)]
pub(crate) struct Ids(u64);

impl Ids {
    pub(crate) fn new() -> Ids {
        Ids(RandomState::new().hash_one(0u64) | 1)
    }

    /// Not 0.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &[u8; 55] = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn headers_are_read_and_written_alike() {
        let context = TraceContext::parse(HEADER).unwrap();
        assert_eq!(context.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(
            (context.span_id, context.is_sampled),
            (0x00f0_67aa_0ba9_02b7, true)
        );
        assert_eq!(&context.header(), HEADER);
    }

    #[test]
    fn a_trace_that_nobody_samples_is_told_by_its_flags() {
        let mut header = *HEADER;
        assert!(!TraceContext::is_unsampled(&header));
        header[54] = b'0';
        assert!(TraceContext::is_unsampled(&header));
        header[54] = b'x';
        assert!(!TraceContext::is_unsampled(&header));
        assert!(!TraceContext::is_unsampled(b"00-"));
    }

    #[test]
    fn what_the_specification_refuses_is_no_context() {
        let with = |at: usize, byte: u8| {
            let mut header = *HEADER;
            header[at] = byte;
            TraceContext::parse(&header)
        };
        assert_eq!(with(4, b'B'), None, "capitals");
        assert_eq!(with(35, b'_'), None, "another separator");
        assert_eq!(with(40, b'x'), None);
        assert_eq!(TraceContext::parse(&HEADER[..54]), None);
        assert_eq!(
            TraceContext::parse(&[&HEADER[..], b"-x"].concat()),
            None,
            "longer than version 0"
        );
        let newer = [b"01", &HEADER[2..], b"-x"].concat();
        assert!(TraceContext::parse(&newer).is_some());
        assert_eq!(TraceContext::parse(&[b"ff", &HEADER[2..]].concat()), None);
        let zeros = [&HEADER[..3], &[b'0'; 32][..], &HEADER[35..]].concat();
        assert_eq!(TraceContext::parse(&zeros), None);
    }

    #[test]
    fn the_ratio_is_kept_and_a_parent_decides() {
        let mut ids = Ids::new();
        let sampler = Sampler::new(0.25, true);
        let of = |sampler: &Sampler, ids: &mut Ids| {
            (0..20_000)
                .filter(|_| sampler.samples(u128::from(ids.next()), None))
                .count()
        };
        assert!((4_500..5_500).contains(&of(&sampler, &mut ids)));
        assert_eq!(of(&Sampler::new(0.0, true), &mut ids), 0);
        assert_eq!(of(&Sampler::new(1.0, true), &mut ids), 20_000);
        let mut parent = TraceContext::parse(HEADER).unwrap();
        assert!(Sampler::new(0.0, true).samples(1, Some(&parent)));
        assert!(!Sampler::new(0.0, false).samples(1, Some(&parent)));
        parent.is_sampled = false;
        assert!(!Sampler::new(1.0, true).samples(1, Some(&parent)));
    }
}
