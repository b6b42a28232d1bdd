//! One end of a connection.

mod closing;
mod heads;
mod receive;
mod saved;
mod send;
mod time;

pub use saved::{RestoreFault, SavedConnection};

use std::collections::VecDeque;
use std::io::IoSlice;

use crate::config::{ANSWER_BYTES_MAX, EndpointRole, HEAD_BYTES_MAX, Http2Config, OUTPUT_BYTES_MAX};
use crate::error::{ConnectionError, ErrorCode};
use crate::fields::FieldList;
use crate::floods::{FloodGuard, FloodKind};
use crate::frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind, PREFACE, flags};
use crate::hpack::{HpackDecoder, HpackEncoder};
use crate::output::{DataChunk, OutputQueue};
use crate::settings::{EndpointSettings, WINDOW_BYTES_INITIAL};
use crate::stream_map::StreamMap;
use crate::streams::{ClosedStreams, Http2Stream};
use crate::windows::{ReceiveWindow, SendWindow};

/// When as many bytes wait for the carrier, no input is taken. DATA and heads stop far below, so what is above are answers to
/// a peer that does not read them.
pub const OUTPUT_STOPS_INPUT_BYTES: usize = OUTPUT_BYTES_MAX + HEAD_BYTES_MAX + ANSWER_BYTES_MAX;

/// What kind of message part a list of fields is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    Request,
    /// A response of status 1xx, before the final one.
    Interim,
    Response,
    Trailers,
}

/// Whether the sender's half of the stream goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    Continues,
    Ends,
}

impl StreamEnd {
    pub(crate) fn of(is_end: bool) -> StreamEnd {
        if is_end {
            StreamEnd::Ends
        } else {
            StreamEnd::Continues
        }
    }

    fn flag(self) -> u8 {
        match self {
            StreamEnd::Continues => 0,
            StreamEnd::Ends => flags::END_STREAM,
        }
    }
}

/// Who ended a stream before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetCause {
    /// The peer sent RST_STREAM.
    Peer,
    /// The peer broke a rule, or did not do in time what it must.
    Fault,
    /// The peer sent GOAWAY and did not process the request: it can be sent again elsewhere.
    GoAway,
}

/// What happened on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http2Event<'a> {
    /// A head or trailers came. They are well-formed.
    Head {
        stream: u32,
        kind: HeadKind,
        fields: &'a FieldList,
        end: StreamEnd,
    },
    /// A part of a body came: a slice of the input. Each byte must be given back once, by
    /// [`Http2Connection::release`], even if the stream is gone by then.
    Data {
        stream: u32,
        data: &'a [u8],
        end: StreamEnd,
    },
    /// A stream ended before its time.
    Reset {
        stream: u32,
        code: ErrorCode,
        cause: ResetCause,
    },
    /// A queue that was full has room.
    Writable { stream: u32 },
    /// The peer told its settings: it may allow more streams now.
    PeerSettings,
    /// The peer answered a ping of the application.
    Pong { payload: u64 },
    /// The peer opens no more streams, and takes none above this one. Open ones go on.
    GoAway {
        last_stream: u32,
        code: ErrorCode,
        debug: &'a [u8],
    },
}

/// Events that need nothing of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PendingEvent {
    Reset {
        stream: u32,
        code: ErrorCode,
        cause: ResetCause,
    },
    Writable(u32),
    PeerSettings,
    Pong(u64),
    GoAway {
        last_stream: u32,
        code: ErrorCode,
    },
}

/// What came of some input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedInput<'a> {
    /// Bytes that were taken. The rest must come again.
    pub consumed: usize,
    /// None: more input has to come, or [output has to leave first](Http2Connection::is_blocked).
    pub event: Option<Http2Event<'a>>,
}

/// Where in the peer's bytes this end is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReadState {
    /// In the client's preface, after so many bytes.
    Preface(usize),
    /// In a frame's header.
    Header {
        bytes: [u8; FRAME_HEADER_BYTES],
        have: usize,
    },
    /// In a payload that has to be whole to be understood; the bytes are in `collected`.
    Payload(FrameHeader),
    /// In a payload of DATA, which is handed on as it comes.
    Data(DataProgress),
    /// In a payload that nobody needs.
    Skip(u32),
}

impl ReadState {
    pub(crate) const START: ReadState = ReadState::Header {
        bytes: [0; FRAME_HEADER_BYTES],
        have: 0,
    };
}

/// How far a frame of DATA has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataProgress {
    pub(crate) stream: u32,
    pub(crate) data_left: u32,
    pub(crate) padding_left: u32,
    /// The length of the padding stands before the data, and has not come.
    pub(crate) needs_padding_length: bool,
    pub(crate) is_end: bool,
    /// Nobody wants it: the stream was gone when it began.
    pub(crate) is_discarded: bool,
}

/// A field block whose end has not come: only CONTINUATION of its stream may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenBlock {
    pub(crate) stream: u32,
    pub(crate) is_end: bool,
    pub(crate) continuations: u32,
    pub(crate) since_ns: u64,
}

/// How a connection comes to its end in good order (RFC 9113, section 6.8).
///
/// ```text
///  No ──drain()──► Announced ──pong, or time──► Final ──last stream ends──► over
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DrainState {
    No,
    /// GOAWAY with the highest number went out, and a ping: what the client sent before it knew is still taken.
    Announced {
        since_ns: u64,
    },
    /// GOAWAY with the last stream that is taken went out.
    Final {
        last_stream: u32,
    },
}

/// A ping of this connection's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeepaliveState {
    /// When the peer last said anything.
    pub(crate) heard_ns: u64,
    /// When the ping went out that is not answered.
    pub(crate) pinged_ns: Option<u64>,
}

/// The payload of pings that keep the connection alive.
const KEEPALIVE_PING: u64 = u64::from_be_bytes(*b"alive\0\0\0");
/// The payload of the ping between the two GOAWAYs of a graceful end.
const DRAIN_PING: u64 = u64::from_be_bytes(*b"drain\0\0\0");

/// One end of an HTTP/2 connection, without I/O: bytes and a time go in, events and bytes come out.
///
/// Times are nanoseconds of one monotonic clock. See the [crate](crate) for an example.
#[derive(Clone, Debug)]
pub struct Http2Connection<C> {
    role: EndpointRole,
    config: Http2Config,
    failed: Option<ConnectionError>,

    read: ReadState,
    /// The payload of a frame that has come in part.
    collected: Vec<u8>,
    open_block: Option<OpenBlock>,
    decoder: HpackDecoder,
    has_peer_settings: bool,
    /// The latest GOAWAY's debug data, cut.
    goaway_debug: Vec<u8>,
    events: VecDeque<PendingEvent>,

    /// What the peer has acknowledged of this end's settings.
    local: EndpointSettings,
    /// What it has not, oldest first, each with the time when it was sent.
    unacknowledged: VecDeque<(EndpointSettings, u64)>,
    peer: EndpointSettings,
    encoder: HpackEncoder,
    receive_window: ReceiveWindow,
    send_window: SendWindow,

    streams: StreamMap<Http2Stream<C>>,
    closed: ClosedStreams,
    /// Streams with something to send, in the order of their turns.
    round: VecDeque<u32>,
    /// Streams whose window has to be told.
    updates: VecDeque<u32>,
    /// The highest number of a stream that either end has opened.
    highest_stream: u32,

    drain: DrainState,
    /// The last stream that the peer takes, once it has sent GOAWAY.
    peer_goaway: Option<u32>,
    keepalive: KeepaliveState,
    floods: FloodGuard,
    output: OutputQueue<C>,
    /// When the carrier last took something, or there was nothing to take.
    output_ns: u64,
    /// When the streams are next looked at for those that rest too long.
    streams_check_ns: u64,
    /// The preface of the peer is awaited since.
    began_ns: u64,
}

impl<C: DataChunk> Http2Connection<C> {
    /// The end that opens streams. Its preface and settings are in the output.
    #[must_use]
    pub fn client(config: Http2Config, now_ns: u64) -> Http2Connection<C> {
        Http2Connection::new(EndpointRole::Client, config, now_ns)
    }

    /// The end that serves, with prior knowledge or after ALPN. Its settings are in the output.
    #[must_use]
    pub fn server(config: Http2Config, now_ns: u64) -> Http2Connection<C> {
        Http2Connection::new(EndpointRole::Server, config, now_ns)
    }

    fn new(role: EndpointRole, config: Http2Config, now_ns: u64) -> Http2Connection<C> {
        let mut connection = Http2Connection {
            role,
            config,
            failed: None,
            read: match role {
                EndpointRole::Client => ReadState::START,
                EndpointRole::Server => ReadState::Preface(0),
            },
            collected: Vec::new(),
            open_block: None,
            decoder: HpackDecoder::new(config.header_list_bytes_max as usize),
            has_peer_settings: false,
            goaway_debug: Vec::new(),
            events: VecDeque::new(),
            local: EndpointSettings::INITIAL,
            unacknowledged: VecDeque::new(),
            peer: EndpointSettings::INITIAL,
            encoder: HpackEncoder::new(),
            receive_window: ReceiveWindow::new(WINDOW_BYTES_INITIAL, config.connection_window()),
            send_window: SendWindow::new(WINDOW_BYTES_INITIAL),
            streams: StreamMap::new(),
            closed: ClosedStreams::default(),
            round: VecDeque::new(),
            updates: VecDeque::new(),
            highest_stream: 0,
            drain: DrainState::No,
            peer_goaway: None,
            keepalive: KeepaliveState {
                heard_ns: now_ns,
                pinged_ns: None,
            },
            floods: FloodGuard::default(),
            output: OutputQueue::new(),
            output_ns: now_ns,
            streams_check_ns: now_ns,
            began_ns: now_ns,
        };
        connection.greet(now_ns);
        connection
    }

    /// RFC 9113, section 3.4: the client's preface, then SETTINGS; and a window as wide as it is configured.
    fn greet(&mut self, now_ns: u64) {
        if self.role == EndpointRole::Client {
            self.output.put(PREFACE);
        }
        self.send_settings(self.config.settings(self.role), now_ns);
        let more = self.receive_window.target - WINDOW_BYTES_INITIAL;
        if more > 0 {
            self.receive_window.bytes += i64::from(more);
            self.window_update(0, more);
        }
    }

    /// Which end this is.
    #[must_use]
    pub fn role(&self) -> EndpointRole {
        self.role
    }

    /// Streams that are open.
    #[must_use]
    pub fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// What the peer has told of itself.
    #[must_use]
    pub fn peer_settings(&self) -> &EndpointSettings {
        &self.peer
    }

    /// The highest number of a stream that was opened.
    #[must_use]
    pub fn highest_stream(&self) -> u32 {
        self.highest_stream
    }

    /// Whether the peer must read first: no input is taken until output has left.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.output.bytes() >= OUTPUT_STOPS_INPUT_BYTES
    }

    /// Whether everything is done: the carrier can be closed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let is_drained = matches!(self.drain, DrainState::Final { .. }) && self.streams.is_empty();
        (self.failed.is_some() || is_drained) && self.output.bytes() == 0 && self.events.is_empty()
    }

    /// Bytes that wait for the carrier, after [`Http2Connection::fill`].
    #[must_use]
    pub fn output_bytes(&self) -> usize {
        self.output.bytes()
    }

    /// Names what waits for the carrier, in order, as far as `slices` reach; says how many were named.
    pub fn output<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.output.slices(slices)
    }

    /// What waits for the carrier, copied.
    #[must_use]
    pub fn copied_output(&self) -> Vec<u8> {
        self.output.copied()
    }

    /// The carrier took so many bytes of what waited.
    pub fn advance(&mut self, bytes: usize, now_ns: u64) {
        self.output.advance(bytes);
        if bytes > 0 {
            self.output_ns = now_ns;
        }
    }

    fn begin_output(&mut self, now_ns: u64) {
        if self.output.bytes() == 0 {
            self.output_ns = now_ns;
        }
    }

    fn window_update(&mut self, stream: u32, increment: u32) {
        self.output
            .frame(FrameKind::WindowUpdate, 0, stream, &increment.to_be_bytes());
    }

    fn charge(&mut self, kind: FloodKind, now_ns: u64) -> Result<(), ConnectionError> {
        self.floods.charge(kind, &self.config.floods, now_ns)
    }

    /// Whether a number is one that the client gives to its streams. Pushed ones there are none.
    fn is_stream_number(id: u32) -> bool {
        id % 2 == 1
    }
}
