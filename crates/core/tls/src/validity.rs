//! From when until when a certificate is valid: the two times of its DER (RFC 5280 section 4.1), and nothing else of it.

use time::{Date, Month, Time, UtcDateTime};

use crate::der::{DerReader, SEQUENCE};

const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// The version, where it is not the first.
const VERSION: u8 = 0xa0;

/// When a certificate is valid, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateValidity {
    /// It is valid from then on.
    pub begins_unix_s: i64,
    /// It is valid until then.
    pub ends_unix_s: i64,
}

impl CertificateValidity {
    /// That of a certificate in DER; none if it is no certificate.
    #[must_use]
    pub fn of(certificate: &[u8]) -> Option<CertificateValidity> {
        let mut certificate = DerReader::new(DerReader::new(certificate).take(SEQUENCE)?);
        let mut signed = DerReader::new(certificate.take(SEQUENCE)?);
        if signed.rest().first() == Some(&VERSION) {
            signed.take(VERSION)?;
        }
        // The serial number, the algorithm and the issuer.
        for _ in 0..3 {
            signed.next()?;
        }
        let mut times = DerReader::new(signed.take(SEQUENCE)?);
        Some(CertificateValidity {
            begins_unix_s: times.time()?,
            ends_unix_s: times.time()?,
        })
    }
}

impl DerReader<'_> {
    fn time(&mut self) -> Option<i64> {
        let (tag, value) = self.next()?;
        let text = str::from_utf8(value).ok()?.strip_suffix('Z')?;
        let (year, rest) = match tag {
            UTC_TIME => {
                let (year, rest) = text.split_at_checked(2)?;
                let year = number(year)?;
                (year + if year < 50 { 2000 } else { 1900 }, rest)
            }
            GENERALIZED_TIME => {
                let (year, rest) = text.split_at_checked(4)?;
                (number(year)?, rest)
            }
            _ => return None,
        };
        if rest.len() != 10 {
            return None;
        }
        let part = |at: usize| u8::try_from(number(rest.get(at..at + 2)?)?).ok();
        let month = Month::try_from(part(0)?).ok()?;
        let date = Date::from_calendar_date(year, month, part(2)?).ok()?;
        let time = Time::from_hms(part(4)?, part(6)?, part(8)?).ok()?;
        Some(UtcDateTime::new(date, time).unix_timestamp())
    }
}

fn number(digits: &str) -> Option<i32> {
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_a_certificate_are_read() {
        let key = rcgen::KeyPair::generate().unwrap();
        for (begin, end, begins_unix_s, ends_unix_s) in [
            ((2020, 2, 29), (2030, 12, 31), 1_582_934_400, 1_924_905_600),
            ((1975, 1, 1), (4096, 1, 1), 157_766_400, 67_090_118_400),
        ] {
            let mut params = rcgen::CertificateParams::default();
            params.not_before = rcgen::date_time_ymd(begin.0, begin.1, begin.2);
            params.not_after = rcgen::date_time_ymd(end.0, end.1, end.2);
            let certificate = params.self_signed(&key).unwrap();
            let expected = CertificateValidity {
                begins_unix_s,
                ends_unix_s,
            };
            assert_eq!(CertificateValidity::of(certificate.der()), Some(expected));
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_times_and_no_piece_of_one_has() {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
        let der = certificate.der().to_vec();
        for end in 0..der.len() {
            assert_eq!(CertificateValidity::of(&der[..end]), None, "{end}");
        }
        for at in 0..der.len().min(200) {
            let mut changed = der.clone();
            changed[at] ^= 0xff;
            // Nothing panics, whatever comes of it.
            let _ = CertificateValidity::of(&changed);
        }
    }
}
