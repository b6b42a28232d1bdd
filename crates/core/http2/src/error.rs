//! What goes wrong, and whose fault it is.

use std::fmt;

use crate::validate::HeadFault;

/// Why a stream or a connection ends (RFC 9113, section 7). Codes that nobody knows are kept as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    pub const NO_ERROR: ErrorCode = ErrorCode(0);
    pub const PROTOCOL_ERROR: ErrorCode = ErrorCode(1);
    pub const INTERNAL_ERROR: ErrorCode = ErrorCode(2);
    pub const FLOW_CONTROL_ERROR: ErrorCode = ErrorCode(3);
    pub const SETTINGS_TIMEOUT: ErrorCode = ErrorCode(4);
    pub const STREAM_CLOSED: ErrorCode = ErrorCode(5);
    pub const FRAME_SIZE_ERROR: ErrorCode = ErrorCode(6);
    pub const REFUSED_STREAM: ErrorCode = ErrorCode(7);
    pub const CANCEL: ErrorCode = ErrorCode(8);
    pub const COMPRESSION_ERROR: ErrorCode = ErrorCode(9);
    pub const CONNECT_ERROR: ErrorCode = ErrorCode(10);
    pub const ENHANCE_YOUR_CALM: ErrorCode = ErrorCode(11);
    pub const INADEQUATE_SECURITY: ErrorCode = ErrorCode(12);
    pub const HTTP_1_1_REQUIRED: ErrorCode = ErrorCode(13);

    const NAMES: [&str; 14] = [
        "NO_ERROR",
        "PROTOCOL_ERROR",
        "INTERNAL_ERROR",
        "FLOW_CONTROL_ERROR",
        "SETTINGS_TIMEOUT",
        "STREAM_CLOSED",
        "FRAME_SIZE_ERROR",
        "REFUSED_STREAM",
        "CANCEL",
        "COMPRESSION_ERROR",
        "CONNECT_ERROR",
        "ENHANCE_YOUR_CALM",
        "INADEQUATE_SECURITY",
        "HTTP_1_1_REQUIRED",
    ];
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMES.get(self.0 as usize) {
            Some(name) => formatter.write_str(name),
            None => write!(formatter, "error code {:#x}", self.0),
        }
    }
}

/// The connection is over: what the peer did cannot be answered on one stream, or this end closed it. A GOAWAY with the code
/// and the reason stands in the output; send that, then close the carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the HTTP/2 connection ends with {code}: {reason}")]
pub struct ConnectionError {
    /// The code that GOAWAY says.
    pub code: ErrorCode,
    /// The same for people.
    pub reason: &'static str,
}

impl ConnectionError {
    pub(crate) const fn new(code: ErrorCode, reason: &'static str) -> ConnectionError {
        ConnectionError { code, reason }
    }

    pub(crate) const fn protocol(reason: &'static str) -> ConnectionError {
        ConnectionError::new(ErrorCode::PROTOCOL_ERROR, reason)
    }

    pub(crate) const fn calm(reason: &'static str) -> ConnectionError {
        ConnectionError::new(ErrorCode::ENHANCE_YOUR_CALM, reason)
    }
}

/// Why something cannot be sent. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The peer does not read: wait until output has left, then try again.
    #[error("the output is full: send what waits in it, then try again")]
    OutputFull,
    /// The stream's queue is full: wait for [`Http2Event::Writable`](crate::Http2Event::Writable).
    #[error("the stream's queue is full: wait until it is writable")]
    QueueFull,
    /// The peer allows no more streams at a time: wait until one ends.
    #[error("the peer allows no more streams at a time: wait until one ends")]
    TooManyStreams,
    /// This connection opens no more streams: use another.
    #[error("this connection opens no more streams: use another")]
    NoMoreStreams,
    /// There is no such stream, or it ended.
    #[error("the stream ended, or there was none")]
    NoStream,
    /// This end ended the stream, or its state allows no such part.
    #[error("the stream's state does not allow that: {0}")]
    State(&'static str),
    /// The peer would take it for malformed.
    #[error("the head is malformed: {0}")]
    Malformed(#[from] HeadFault),
    /// The peer said that it takes no list so large.
    #[error("the list has {list_bytes} bytes, and the peer takes {list_bytes_max}")]
    ListTooLarge {
        /// As RFC 9113, section 6.5.2, counts them.
        list_bytes: usize,
        /// The limit that the peer announced.
        list_bytes_max: u32,
    },
}
