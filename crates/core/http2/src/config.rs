//! How one end of a connection behaves, and the bounds of everything that it keeps.

use crate::floods::FloodLimits;
use crate::frame::{FRAME_BYTES_MIN, NUMBER_MAX};
use crate::settings::{EndpointSettings, WINDOW_BYTES_INITIAL};

/// The other end may have so many streams at a time.
pub const STREAMS_MAX_DEFAULT: u32 = 1_000;
/// Bytes that a stream's peer may send ahead of its reader.
pub const STREAM_WINDOW_BYTES_DEFAULT: u32 = 1 << 20;
/// Bytes that a peer may send ahead of the readers of all streams.
pub const CONNECTION_WINDOW_BYTES_DEFAULT: u32 = 4 << 20;
/// Bytes of a list of fields, as RFC 9113, section 6.5.2, counts them.
pub const HEADER_LIST_BYTES_MAX_DEFAULT: u32 = 16 << 10;
/// A stream takes another chunk while fewer bytes wait in its queue.
pub const STREAM_QUEUE_BYTES_MAX_DEFAULT: usize = 256 << 10;
/// A stream takes another call's chunks while fewer wait in its queue.
pub const STREAM_QUEUE_CHUNKS_MAX: usize = 1_024;
/// No head is taken while as many bytes wait for the carrier.
pub const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// DATA are scheduled up to so many bytes that wait for the carrier: what one packet of segmentation offload has room for (64 KiB with
/// all that stands before it). The rest would be a small packet of its own.
pub const DATA_OUTPUT_BYTES_MAX: usize = 63 << 10;
/// Answers to a peer that does not read them (acknowledgements, resets): when so many bytes wait beyond heads and DATA, no
/// input is taken until they have left.
pub const ANSWER_BYTES_MAX: usize = 64 << 10;
/// A head that was taken while the output had room is no larger than this, so the output is bounded.
pub const HEAD_BYTES_MAX: usize = 256 << 10;
/// SETTINGS that this end may have sent without an acknowledgement.
pub const SETTINGS_UNACKNOWLEDGED_MAX: usize = 4;
/// CONTINUATION frames of one block.
pub const CONTINUATION_FRAMES_MAX: u32 = 64;
/// Streams that ended and are remembered, to tell a late frame from a wrong one.
pub const CLOSED_STREAMS_REMEMBERED: usize = 128;
/// Gaps in the numbers of a client's streams that are remembered.
pub const SKIPPED_RANGES_REMEMBERED: usize = 16;
/// Bytes of the debug data of a GOAWAY that are handed on.
pub const GOAWAY_DEBUG_BYTES_MAX: usize = 1_024;

const SECOND_NS: u64 = 1_000_000_000;

/// Which end of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndpointRole {
    /// The end that connected, and that opens streams.
    Client,
    /// The end that serves.
    Server,
}

/// Pings of a connection that says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepalivePolicy {
    /// After so long without a byte from the peer, a ping is sent.
    pub interval_ns: u64,
    /// After so long without an answer, the connection is over.
    pub timeout_ns: u64,
}

/// How long this end waits for what the peer must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimits {
    /// For the preface and for acknowledgements of SETTINGS.
    pub settings_ns: u64,
    /// For the rest of a field block.
    pub field_block_ns: u64,
    /// For the carrier to take any output: a peer that reads nothing.
    pub output_ns: u64,
    /// For the client's half of a stream after the response is complete: then RST_STREAM with NO_ERROR.
    pub half_closed_ns: u64,
    /// For any frame of a stream in either direction; 0 if streams may rest for ever, as gRPC's may.
    pub stream_idle_ns: u64,
    /// For the answer to the ping between the two GOAWAYs of a graceful end.
    pub drain_ns: u64,
}

impl Default for TimeLimits {
    fn default() -> TimeLimits {
        TimeLimits {
            settings_ns: 10 * SECOND_NS,
            field_block_ns: 10 * SECOND_NS,
            output_ns: 30 * SECOND_NS,
            half_closed_ns: 5 * SECOND_NS,
            stream_idle_ns: 0,
            drain_ns: 5 * SECOND_NS,
        }
    }
}

/// How one end of a connection behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2Config {
    /// Bytes of the decoder's dynamic table.
    pub header_table_bytes: u32,
    /// Streams at a time that the peer may open.
    pub streams_max: u32,
    /// The window of each stream, up to 2³¹ − 1.
    pub stream_window_bytes: u32,
    /// The window of the connection, from 65,535 up to 2³¹ − 1.
    pub connection_window_bytes: u32,
    /// Bytes of a frame's payload that the peer may send, from 2¹⁴ up.
    pub frame_bytes_max: u32,
    /// Bytes of a list of fields; one that is larger is refused with 431 or RST_STREAM.
    pub header_list_bytes_max: u32,
    /// A stream takes another chunk while fewer bytes wait in its queue.
    pub stream_queue_bytes_max: usize,
    /// Pings of a silent connection; None if there are none.
    pub keepalive: Option<KeepalivePolicy>,
    pub time_limits: TimeLimits,
    pub floods: FloodLimits,
}

impl Default for Http2Config {
    fn default() -> Http2Config {
        Http2Config {
            header_table_bytes: EndpointSettings::INITIAL.header_table_bytes,
            streams_max: STREAMS_MAX_DEFAULT,
            stream_window_bytes: STREAM_WINDOW_BYTES_DEFAULT,
            connection_window_bytes: CONNECTION_WINDOW_BYTES_DEFAULT,
            frame_bytes_max: FRAME_BYTES_MIN,
            header_list_bytes_max: HEADER_LIST_BYTES_MAX_DEFAULT,
            stream_queue_bytes_max: STREAM_QUEUE_BYTES_MAX_DEFAULT,
            keepalive: None,
            time_limits: TimeLimits::default(),
            floods: FloodLimits::default(),
        }
    }
}

impl Http2Config {
    /// The settings that this end announces: a client takes no pushed responses and a server has nobody that pushes.
    pub(crate) fn settings(&self, role: EndpointRole) -> EndpointSettings {
        let initial = EndpointSettings::INITIAL;
        EndpointSettings {
            header_table_bytes: self.header_table_bytes,
            enable_push: match role {
                EndpointRole::Client => 0,
                EndpointRole::Server => initial.enable_push,
            },
            streams_max: match role {
                EndpointRole::Client => initial.streams_max,
                EndpointRole::Server => self.streams_max,
            },
            stream_window_bytes: self.stream_window_bytes.min(NUMBER_MAX),
            frame_bytes_max: self
                .frame_bytes_max
                .clamp(FRAME_BYTES_MIN, crate::frame::FRAME_BYTES_MAX),
            header_list_bytes_max: self.header_list_bytes_max,
        }
    }

    pub(crate) fn connection_window(&self) -> u32 {
        self.connection_window_bytes
            .clamp(WINDOW_BYTES_INITIAL, NUMBER_MAX)
    }
}
