//! How many records a peer may send that bring no text of the application: session tickets, changes of keys, alerts that say that somebody
//! has cancelled, and empty ones. Each costs as much to open as one with text, and nobody above hears of it.

use std::time::{Duration, Instant};

use rustls::AlertDescription;

use super::session::{TlsFault, broken};

/// Records without text that may come within a [`PERIOD`] when no text comes between them. A server sends a few tickets behind the
/// handshake, and keys are changed once in millions of records; rustls takes as many.
pub(super) const TEXTLESS_RECORDS_MAX: u8 = 32;
/// After so long those before it no longer count. So a connection without text may change its keys each hour for ever.
const PERIOD: Duration = Duration::from_secs(60);

const TOO_MANY: TlsFault = broken(
    AlertDescription::UnexpectedMessage,
    "more than 32 records without text came within a minute: such records may come now and then, between records with text",
);

/// Records without text that came since the last one with text.
#[derive(Debug, Default)]
pub(super) struct TextlessRecords {
    count: u8,
    /// When the first of them came; none if there is none, or if another process has counted it.
    since: Option<Instant>,
}

impl TextlessRecords {
    /// So many that another process has counted, if so many may be.
    pub(super) fn counted(count: u8) -> Option<TextlessRecords> {
        (count <= TEXTLESS_RECORDS_MAX).then_some(TextlessRecords { count, since: None })
    }

    pub(super) const fn count(&self) -> u8 {
        self.count
    }

    /// A record has come, with text or without. The clock is asked only where there is none.
    ///
    /// # Errors
    /// Too many have come.
    pub(super) fn came(&mut self, has_text: bool, clock: impl FnOnce() -> Instant) -> Result<(), TlsFault> {
        if has_text {
            *self = TextlessRecords::default();
            return Ok(());
        }
        let now = clock();
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) >= PERIOD {
            (self.count, self.since) = (0, Some(now));
        }
        if self.count >= TEXTLESS_RECORDS_MAX {
            return Err(TOO_MANY);
        }
        self.count += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What came of so many records without text, so far apart, the first of them after that time.
    fn came(textless: &mut TextlessRecords, records: u32, apart: Duration) -> Result<(), TlsFault> {
        let start = textless.since.unwrap_or_else(Instant::now) + apart;
        (0..records).try_for_each(|at| textless.came(false, || start + apart * at))
    }

    #[test]
    fn so_many_come_in_a_row_and_text_forgives_them() {
        let mut textless = TextlessRecords::default();
        let most = u32::from(TEXTLESS_RECORDS_MAX);
        for _ in 0..3 {
            assert_eq!(came(&mut textless, most, Duration::ZERO), Ok(()));
            textless
                .came(true, || unreachable!("text needs no clock"))
                .unwrap();
        }
        assert_eq!(came(&mut textless, most + 1, Duration::ZERO), Err(TOO_MANY));
        assert!(TOO_MANY.to_string().contains(&TEXTLESS_RECORDS_MAX.to_string()));
    }

    #[test]
    fn those_that_come_now_and_then_are_forgiven_without_text() {
        let row = |apart| came(&mut TextlessRecords::default(), 1_000, apart);
        assert_eq!(row(Duration::from_secs(3_600)), Ok(()));
        assert_eq!(row(PERIOD / 20), Ok(()));
        assert_eq!(row(PERIOD / 100), Err(TOO_MANY));
    }

    #[test]
    fn what_another_process_has_counted_counts() {
        assert!(TextlessRecords::counted(TEXTLESS_RECORDS_MAX + 1).is_none());
        let mut textless = TextlessRecords::counted(30).unwrap();
        assert_eq!(came(&mut textless, 2, Duration::ZERO), Ok(()));
        assert_eq!(textless.count(), 32);
        assert_eq!(came(&mut textless, 1, Duration::ZERO), Err(TOO_MANY));
    }
}
