//! Envoy's access log, with the durations of each call in nanoseconds.
//!
//! Each line is a JSON object with the three keys of [`ENVOY_LOG_FORMAT`], and whatever else its owner wants. Other proxies' logs
//! have whole milliseconds of calls that take tens of microseconds.

use serde::Deserialize;

/// The keys that a line needs, and the operators by which Envoy fills them (`json_format` of its file access log).
///
/// `DS_RX_BEG`: the first byte of the request is decoded. `US_TX_END`: its last byte is encoded for the server. `US_RX_BEG` and
/// `DS_TX_END`: the same of the response.
pub const ENVOY_LOG_FORMAT: [(&str, &str); 3] = [
    ("request_ns", "%COMMON_DURATION(DS_RX_BEG:US_TX_END:ns)%"),
    ("upstream_ns", "%COMMON_DURATION(US_TX_END:US_RX_BEG:ns)%"),
    ("response_ns", "%COMMON_DURATION(US_RX_BEG:DS_TX_END:ns)%"),
];
/// Lines with more bytes are not read.
pub const LOG_LINE_BYTES_MAX: usize = 1 << 16;
/// No duration is longer: about 17 minutes.
const DURATION_NS_MAX: i64 = 1_000_000_000_000;

/// How long one call took where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedCall {
    /// The request within the proxy.
    pub request_ns: u64,
    /// From the end of the request to the begin of the response, as the proxy sees it.
    pub upstream_ns: u64,
    /// The response within the proxy.
    pub response_ns: u64,
}

/// Why a line tells nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogLineError {
    #[error("it has {0} bytes, at most {LOG_LINE_BYTES_MAX} are read")]
    TooLong(usize),
    #[error("it is no JSON object with the keys request_ns, upstream_ns and response_ns: {0}")]
    AnotherFormat(String),
    /// A call that failed, was not passed on, or was answered before it was passed on whole.
    #[error("{0} is not known, or negative: the call was not passed on whole before it was answered")]
    Unknown(&'static str),
}

#[derive(Deserialize)]
struct LogLine {
    request_ns: LoggedDuration,
    upstream_ns: LoggedDuration,
    response_ns: LoggedDuration,
}

/// A number, `null` in JSON that keeps types, or a text, which is `-` where there is none.
#[derive(Deserialize)]
#[serde(untagged)]
enum LoggedDuration {
    Number(i64),
    Text(String),
    Nothing,
}

impl LoggedDuration {
    fn nanoseconds(&self) -> Option<u64> {
        let number = match self {
            LoggedDuration::Number(number) => *number,
            LoggedDuration::Text(text) => text.parse().ok()?,
            LoggedDuration::Nothing => return None,
        };
        let number = (0..=DURATION_NS_MAX).contains(&number).then_some(number)?;
        u64::try_from(number).ok()
    }
}

impl LoggedCall {
    /// Reads a line, without its end.
    ///
    /// # Errors
    /// If it does not tell all three durations.
    pub fn parse(line: &[u8]) -> Result<LoggedCall, LogLineError> {
        if line.len() > LOG_LINE_BYTES_MAX {
            return Err(LogLineError::TooLong(line.len()));
        }
        let read: LogLine = serde_json::from_slice(line)
            .map_err(|error| LogLineError::AnotherFormat(error.to_string().chars().take(200).collect()))?;
        let known =
            |duration: LoggedDuration, name| duration.nanoseconds().ok_or(LogLineError::Unknown(name));
        Ok(LoggedCall {
            request_ns: known(read.request_ns, "request_ns")?,
            upstream_ns: known(read.upstream_ns, "upstream_ns")?,
            response_ns: known(read.response_ns, "response_ns")?,
        })
    }

    /// Time within the proxy.
    #[must_use]
    pub fn proxy_ns(&self) -> u64 {
        self.request_ns + self.response_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_numbers_and_as_texts_beside_whatever_else_is_logged() {
        let call = LoggedCall {
            request_ns: 41_000,
            upstream_ns: 90_500,
            response_ns: 12_000,
        };
        let lines = [
            r#"{"path":"/","request_ns":41000,"response_ns":12000,"upstream_ns":90500}"#,
            r#"{"upstream_ns":"90500","request_ns":"41000","response_ns":"12000"}"#,
        ];
        for line in lines {
            assert_eq!(LoggedCall::parse(line.as_bytes()), Ok(call), "{line}");
        }
        assert_eq!(call.proxy_ns(), 53_000);
    }

    #[test]
    fn a_line_that_tells_nothing_says_why() {
        let error = |line: &str| LoggedCall::parse(line.as_bytes()).unwrap_err().to_string();
        for absent in ["null", "\"-\"", "-3", "\"many\"", "1000000000001"] {
            let line = format!(r#"{{"request_ns":1,"upstream_ns":{absent},"response_ns":1}}"#);
            assert!(
                error(&line).starts_with("upstream_ns is not known"),
                "{}",
                error(&line)
            );
        }
        let other = error("[2026-01-01T00:00:00.000Z] \"GET / HTTP/1.1\" 200");
        assert!(
            other.contains("request_ns, upstream_ns and response_ns"),
            "{other}"
        );
        assert!(error(r#"{"request_ns":1}"#).contains("missing field `upstream_ns`"));
        let long = vec![b' '; LOG_LINE_BYTES_MAX + 1];
        assert_eq!(
            LoggedCall::parse(&long),
            Err(LogLineError::TooLong(LOG_LINE_BYTES_MAX + 1))
        );
    }
}
