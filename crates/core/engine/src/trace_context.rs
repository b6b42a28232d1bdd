//! W3C trace context (<https://www.w3.org/TR/trace-context/>), as it is carried in metadata.

/// The metadata key of a trace context.
pub const TRACEPARENT: &str = "traceparent";
/// The metadata key of what the systems of a trace know of it, which is of no use without its context.
pub const TRACESTATE: &str = "tracestate";
/// Length of a header of version 0: `00-` trace id `-` span id `-` flags.
pub const TRACEPARENT_BYTES: usize = 55;
const SAMPLED: u8 = 1;

/// Where in a trace a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace. Not 0.
    pub trace_id: u128,
    /// The span that is the parent of what comes. Not 0.
    pub span_id: u64,
    /// Whether the trace is sampled.
    pub is_sampled: bool,
}

impl TraceContext {
    /// Reads a header. Of a version after 0 what version 0 has is read, as the specification asks for.
    #[must_use]
    pub fn parse(header: &[u8]) -> Option<TraceContext> {
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

    /// The header.
    #[must_use]
    pub fn header(&self) -> [u8; TRACEPARENT_BYTES] {
        let mut out = *b"00-00000000000000000000000000000000-0000000000000000-00";
        write_hex((self.trace_id >> 64) as u64, &mut out[3..19]);
        write_hex(self.trace_id as u64, &mut out[19..35]);
        write_hex(self.span_id, &mut out[36..52]);
        out[54] = b'0' + u8::from(self.is_sampled);
        out
    }
}

/// The number that lower-case hexadecimal digits write: two, or a multiple of eight up to 16.
fn hex(digits: &[u8]) -> Option<u64> {
    if let [high, low] = digits {
        // Six zeros before them.
        let padded = [b'0', b'0', b'0', b'0', b'0', b'0', *high, *low];
        return hex_of_eight(padded);
    }
    let mut number = 0;
    for eight in digits.as_chunks().0 {
        number = number << 32 | hex_of_eight(*eight)?;
    }
    Some(number)
}

/// Eight digits at once, each in a byte of a word.
fn hex_of_eight(digits: [u8; 8]) -> Option<u64> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let ascii = u64::from_be_bytes(digits);
    // Letters have bit 6, and are 9 above what their low four bits say.
    let values = (ascii & (0x0f * ONES)) + (ascii >> 6 & ONES) * 9;
    let above_nine = (values + 6 * ONES) >> 4 & ONES;
    // Whatever else the byte had, it is not what these values are written with.
    let written = values + 0x30 * ONES + above_nine * 0x27;
    if written != ascii || values & (0xf0 * ONES) != 0 {
        return None;
    }
    let pairs = (values | values >> 4) & 0x00ff_00ff_00ff_00ff;
    let quads = (pairs | pairs >> 8) & 0x0000_ffff_0000_ffff;
    Some((quads | quads >> 16) & 0xffff_ffff)
}

/// The digits of each byte.
const PAIRS: [[u8; 2]; 256] = {
    let digits = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [digits[byte >> 4], digits[byte & 15]];
        byte += 1;
    }
    pairs
};

fn write_hex(number: u64, out: &mut [u8]) {
    for (byte, pair) in number.to_be_bytes().iter().zip(out.as_chunks_mut().0) {
        *pair = PAIRS[usize::from(*byte)];
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
    fn digits_are_lower_case_hexadecimal_and_nothing_else() {
        for at in 0..8 {
            for byte in 0..=u8::MAX {
                let mut digits = *b"00000000";
                digits[at] = byte;
                let expected = match byte {
                    b'0'..=b'9' | b'a'..=b'f' => {
                        u64::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).ok()
                    }
                    _ => None,
                };
                assert_eq!(hex(&digits), expected, "{byte:#x} at {at}");
            }
        }
        assert_eq!(hex(b"0123456789abcdef"), Some(0x0123_4567_89ab_cdef));
        assert_eq!((hex(b"fe"), hex(b"FE")), (Some(0xfe), None));
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
}
