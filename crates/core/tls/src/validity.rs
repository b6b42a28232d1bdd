//! From when until when a certificate is valid: the two times of its DER (RFC 5280 section 4.1), and nothing else of it.

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
        let part = |at: usize| number(rest.get(at..at + 2)?);
        let days = days_since_1970(year, part(0)?, part(2)?);
        Some(((days * 24 + part(4)?) * 60 + part(6)?) * 60 + part(8)?)
    }
}

fn number(digits: &str) -> Option<i64> {
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

/// Days from 1 January 1970 to a day of the Gregorian calendar (Howard Hinnant, "chrono-compatible low-level date
/// algorithms").
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (year, month, day, days) in [
            (1970, 1, 1, 0),
            (1969, 12, 31, -1),
            (2000, 3, 1, 11_017),
            (2026, 11, 22, 20_779),
            (4096, 1, 1, 776_506),
        ] {
            assert_eq!(days_since_1970(year, month, day), days, "{year}-{month}-{day}");
        }
    }

    #[test]
    fn the_times_of_a_certificate_are_read() {
        let key = rcgen::KeyPair::generate().unwrap();
        for (begin, end) in [((2020, 2, 29), (2030, 12, 31)), ((1975, 1, 1), (4096, 1, 1))] {
            let mut params = rcgen::CertificateParams::default();
            params.not_before = rcgen::date_time_ymd(begin.0, begin.1, begin.2);
            params.not_after = rcgen::date_time_ymd(end.0, end.1, end.2);
            let certificate = params.self_signed(&key).unwrap();
            let seconds = |day: (i32, u8, u8)| {
                days_since_1970(i64::from(day.0), i64::from(day.1), i64::from(day.2)) * 86_400
            };
            let expected = CertificateValidity {
                begins_unix_s: seconds(begin),
                ends_unix_s: seconds(end),
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
