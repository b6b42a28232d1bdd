//! Settings of one end (RFC 9113, section 6.5).

use crate::error::{ConnectionError, ErrorCode};
use crate::frame::{FRAME_BYTES_MAX, FRAME_BYTES_MIN, NUMBER_MAX};

/// Numbers of the settings that RFC 9113 defines.
pub mod setting {
    pub const HEADER_TABLE_SIZE: u16 = 1;
    pub const ENABLE_PUSH: u16 = 2;
    pub const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub const INITIAL_WINDOW_SIZE: u16 = 4;
    pub const MAX_FRAME_SIZE: u16 = 5;
    pub const MAX_HEADER_LIST_SIZE: u16 = 6;
}

/// The window of the connection and of each stream at first (RFC 9113, section 6.9.2).
pub const WINDOW_BYTES_INITIAL: u32 = 65_535;

/// What one end has told the other of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointSettings {
    /// Bytes of its decoder's dynamic table.
    pub header_table_bytes: u32,
    /// 1 if it takes pushed responses.
    pub enable_push: u32,
    /// Streams at a time that the other end may open; `u32::MAX` without a limit.
    pub streams_max: u32,
    /// The window of a new stream.
    pub stream_window_bytes: u32,
    /// Bytes of a frame's payload.
    pub frame_bytes_max: u32,
    /// Bytes of a list of fields; `u32::MAX` without a limit.
    pub header_list_bytes_max: u32,
}

impl EndpointSettings {
    /// What holds before an end has said anything.
    pub const INITIAL: EndpointSettings = EndpointSettings {
        header_table_bytes: 4_096,
        enable_push: 1,
        streams_max: u32::MAX,
        stream_window_bytes: WINDOW_BYTES_INITIAL,
        frame_bytes_max: FRAME_BYTES_MIN,
        header_list_bytes_max: u32::MAX,
    };

    /// Takes one setting over. Those that RFC 9113 does not define are ignored.
    ///
    /// # Errors
    /// The value is one that no end may have.
    pub fn apply(&mut self, entry: [u8; 6]) -> Result<(), ConnectionError> {
        let [a, b, value @ ..] = entry;
        let value = u32::from_be_bytes(value);
        match u16::from_be_bytes([a, b]) {
            setting::HEADER_TABLE_SIZE => self.header_table_bytes = value,
            setting::ENABLE_PUSH if value > 1 => {
                return Err(ConnectionError::protocol("SETTINGS_ENABLE_PUSH is 0 or 1"));
            }
            setting::ENABLE_PUSH => self.enable_push = value,
            setting::MAX_CONCURRENT_STREAMS => self.streams_max = value,
            setting::INITIAL_WINDOW_SIZE if value > NUMBER_MAX => {
                let reason = "SETTINGS_INITIAL_WINDOW_SIZE is over the largest window";
                return Err(ConnectionError::new(ErrorCode::FLOW_CONTROL_ERROR, reason));
            }
            setting::INITIAL_WINDOW_SIZE => self.stream_window_bytes = value,
            setting::MAX_FRAME_SIZE if !(FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&value) => {
                return Err(ConnectionError::protocol(
                    "SETTINGS_MAX_FRAME_SIZE is out of its range",
                ));
            }
            setting::MAX_FRAME_SIZE => self.frame_bytes_max = value,
            setting::MAX_HEADER_LIST_SIZE => self.header_list_bytes_max = value,
            _ => {}
        }
        Ok(())
    }

    /// The settings that differ from `before`, as they are sent.
    pub(crate) fn changes(&self, before: &EndpointSettings) -> Vec<[u8; 6]> {
        let values = |settings: &EndpointSettings| {
            [
                (setting::HEADER_TABLE_SIZE, settings.header_table_bytes),
                (setting::ENABLE_PUSH, settings.enable_push),
                (setting::MAX_CONCURRENT_STREAMS, settings.streams_max),
                (setting::INITIAL_WINDOW_SIZE, settings.stream_window_bytes),
                (setting::MAX_FRAME_SIZE, settings.frame_bytes_max),
                (setting::MAX_HEADER_LIST_SIZE, settings.header_list_bytes_max),
            ]
        };
        let pairs = values(self).into_iter().zip(values(before));
        let changed = pairs.filter(|(now, before)| now.1 != before.1);
        changed
            .map(|((number, value), _)| setting_bytes(number, value))
            .collect()
    }
}

/// One setting as it is sent.
#[must_use]
pub fn setting_bytes(number: u16, value: u32) -> [u8; 6] {
    let ([a, b], [c, d, e, f]) = (number.to_be_bytes(), value.to_be_bytes());
    [a, b, c, d, e, f]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(number: u16, value: u32) -> Result<EndpointSettings, ErrorCode> {
        let mut settings = EndpointSettings::INITIAL;
        let applied = settings.apply(setting_bytes(number, value));
        applied.map(|()| settings).map_err(|error| error.code)
    }

    /// RFC 9113, section 6.5.2: values out of their range are connection errors.
    #[test]
    fn rfc9113_6_5_2_values_out_of_range_are_refused() {
        assert_eq!(applied(setting::ENABLE_PUSH, 2), Err(ErrorCode::PROTOCOL_ERROR));
        assert_eq!(
            applied(setting::INITIAL_WINDOW_SIZE, 1 << 31),
            Err(ErrorCode::FLOW_CONTROL_ERROR)
        );
        assert_eq!(
            applied(setting::MAX_FRAME_SIZE, 16_383),
            Err(ErrorCode::PROTOCOL_ERROR)
        );
        assert_eq!(
            applied(setting::MAX_FRAME_SIZE, 1 << 24),
            Err(ErrorCode::PROTOCOL_ERROR)
        );
        assert_eq!(
            applied(setting::MAX_FRAME_SIZE, 16_384),
            Ok(EndpointSettings::INITIAL)
        );
    }

    /// RFC 9113, section 6.5.2: a setting that is not known is ignored.
    #[test]
    fn rfc9113_6_5_2_unknown_settings_are_ignored() {
        assert_eq!(applied(0x99, 7), Ok(EndpointSettings::INITIAL));
    }

    #[test]
    fn changes_are_what_makes_one_of_the_other() {
        let wanted = EndpointSettings {
            header_table_bytes: 0,
            streams_max: 7,
            header_list_bytes_max: 9,
            ..EndpointSettings::INITIAL
        };
        let mut settings = EndpointSettings::INITIAL;
        for entry in wanted.changes(&settings) {
            settings.apply(entry).unwrap();
        }
        assert_eq!(settings, wanted);
        assert!(wanted.changes(&wanted).is_empty());
    }
}
