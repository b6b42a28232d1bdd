//! Reading DER (X.690), as far as certificates need it: values behind each other, with their tags.

pub(crate) const SEQUENCE: u8 = 0x30;

/// Values one after the other.
pub(crate) struct DerReader<'a>(&'a [u8]);

impl<'a> DerReader<'a> {
    pub(crate) fn new(values: &'a [u8]) -> DerReader<'a> {
        DerReader(values)
    }

    /// What is still to be read.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// The next value, with its tag.
    pub(crate) fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, first], mut rest) = self.0.split_first_chunk::<2>()?;
        let mut length = usize::from(first);
        if first & 0x80 != 0 {
            let count = usize::from(first & 0x7f);
            let (digits, behind) = rest.split_at_checked(count)?;
            if count == 0 || count > 4 {
                return None;
            }
            length = digits
                .iter()
                .fold(0, |length, digit| length << 8 | usize::from(*digit));
            rest = behind;
        }
        let (value, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, value))
    }

    pub(crate) fn take(&mut self, expected: u8) -> Option<&'a [u8]> {
        let (tag, value) = self.next()?;
        (tag == expected).then_some(value)
    }

    /// The next value, if it is a sequence: all of its bytes, with its tag and its length.
    pub(crate) fn whole_sequence(&mut self) -> Option<&'a [u8]> {
        let before = self.0;
        self.take(SEQUENCE)?;
        Some(&before[..before.len() - self.0.len()])
    }
}
