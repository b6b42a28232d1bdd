//! What is known of a call.
//!
//! ```text
//! Waiting (for a stream) ──► Open (on a link) ──► Over (the server, or this end, has ended it) ──► gone, when the app knows
//!    ▲                          │
//!    └──── the server did not ──┘
//!          begin it: once
//! ```

mod saved;

use std::collections::VecDeque;

use provost_datapath::Nanos;
use provost_grpc::{GrpcMessage, MessageEncoding};
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::{STREAM_MESSAGE_COST_BYTES, STREAM_WINDOW_BYTES};

use crate::chunk::{FormedChunk, PlainMessages};

/// What an arrival costs beside its bytes while it is held: its own place, and its buffer's.
const ARRIVAL_COST_BYTES: usize = 64;

/// Where a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallPlace {
    Waiting,
    Open(StreamPlace),
    /// Nothing more is sent or comes.
    Over,
}

/// A stream of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StreamPlace {
    pub(crate) link: usize,
    pub(crate) stream: u32,
}

/// How far the client's half is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestEnd {
    NotYet,
    /// It ends behind the messages that wait.
    Asked,
    Said,
}

/// A message of the app that its stream has not taken.
#[derive(Debug)]
pub(crate) struct OutMessage {
    pub(crate) message: FormedChunk,
    /// What it costs of the window, as the app counts; 0 where there is no window.
    pub(crate) app_cost: u32,
}

/// What has come and the app was not told.
#[derive(Debug)]
pub(crate) enum CallArrival {
    Head(Vec<u8>),
    Message(GrpcMessage),
}

impl CallArrival {
    /// Bytes that it takes while it is held.
    fn cost(&self) -> usize {
        let (CallArrival::Head(bytes) | CallArrival::Message(GrpcMessage { bytes, .. })) = self;
        bytes.len() + ARRIVAL_COST_BYTES
    }
}

/// How a call ended.
#[derive(Debug)]
pub(crate) struct CallEnd {
    /// [`Parts::STATUS`], or [`Parts::CANCEL`] where it is not the server's word.
    pub(crate) parts: Parts,
    pub(crate) status: Code,
    /// Its message and details, and trailing metadata.
    pub(crate) metadata: Vec<u8>,
}

/// A message of a stream that the app has.
#[derive(Clone, Copy, Debug)]
struct UnreadMessage {
    /// Bytes in which it came.
    came_bytes: u32,
    /// What it costs of the app's window.
    cost: u32,
}

/// A call of the app.
#[derive(Debug)]
pub(crate) struct GrpcCall {
    pub(crate) method: u16,
    pub(crate) server_streaming: bool,
    pub(crate) client_streaming: bool,
    pub(crate) place: CallPlace,
    /// When it must end; 0 for never.
    pub(crate) deadline: Nanos,
    pub(crate) metadata: Vec<u8>,
    pub(crate) outgoing: VecDeque<OutMessage>,
    /// What those messages cost.
    pub(crate) pending_cost: u64,
    pub(crate) request_end: RequestEnd,
    /// Messages that were sent, until the server has shown that it began the call; none once that cannot be undone.
    pub(crate) replay: Option<Vec<FormedChunk>>,
    /// What keeping those costs, which is part of the cost of all calls.
    pub(crate) replay_cost: usize,
    pub(crate) was_retried: bool,
    /// What the app's stream gets back.
    pub(crate) window_due: u32,
    /// How messages of this end are compressed.
    pub(crate) sent_encoding: MessageEncoding,
    /// What becomes of those that the app has not compressed.
    pub(crate) plain_ones: PlainMessages,
    /// How the server compresses.
    pub(crate) encoding: MessageEncoding,
    /// The metadata of the response's head, which the app is told once it is known whether the single response is compressed.
    pub(crate) untold_head: Option<Vec<u8>>,
    arrivals: VecDeque<CallArrival>,
    /// What those cost, which is part of the cost of all calls.
    held_cost: usize,
    pub(crate) messages_came: u64,
    /// Messages that the app has and has not given back, and what it gave back of them.
    unread: VecDeque<UnreadMessage>,
    unread_cost: u64,
    given_back: u64,
    pub(crate) end: Option<CallEnd>,
    pub(crate) is_ready: bool,
}

impl GrpcCall {
    pub(crate) fn new(method: u16, client_streaming: bool, server_streaming: bool) -> GrpcCall {
        GrpcCall {
            method,
            server_streaming,
            client_streaming,
            place: CallPlace::Waiting,
            deadline: 0,
            metadata: Vec::new(),
            outgoing: VecDeque::new(),
            pending_cost: 0,
            request_end: RequestEnd::NotYet,
            replay: Some(Vec::new()),
            replay_cost: 0,
            was_retried: false,
            window_due: 0,
            sent_encoding: MessageEncoding::Identity,
            plain_ones: PlainMessages::Compressed,
            encoding: MessageEncoding::Identity,
            untold_head: None,
            arrivals: VecDeque::new(),
            held_cost: 0,
            messages_came: 0,
            unread: VecDeque::new(),
            unread_cost: 0,
            given_back: 0,
            end: None,
            is_ready: false,
        }
    }

    /// Has something that came wait for the app; what it costs.
    pub(crate) fn hold(&mut self, arrival: CallArrival) -> usize {
        let cost = arrival.cost();
        self.held_cost += cost;
        self.arrivals.push_back(arrival);
        cost
    }

    /// What the app is told next.
    pub(crate) fn first_arrival(&self) -> Option<&CallArrival> {
        self.arrivals.front()
    }

    /// The same, which is held no longer.
    pub(crate) fn take_arrival(&mut self) -> Option<CallArrival> {
        let arrival = self.arrivals.pop_front()?;
        self.held_cost -= arrival.cost();
        Some(arrival)
    }

    /// What was held is dropped; what it cost.
    pub(crate) fn drop_arrivals(&mut self) -> usize {
        self.arrivals = VecDeque::new();
        std::mem::take(&mut self.held_cost)
    }

    /// What everything costs that has come and that the app was not told.
    pub(crate) fn held_cost(&self) -> usize {
        self.held_cost
    }

    /// Whether the app's stream gets something back now. A sender that waits has a whole window outstanding, so to wait for a
    /// quarter cannot block it for ever.
    pub(crate) fn has_window_due(&self) -> bool {
        let is_sending = self.request_end == RequestEnd::NotYet && self.end.is_none();
        is_sending && self.window_due >= STREAM_WINDOW_BYTES / 4
    }

    /// Whether the app may be given another message of the stream.
    pub(crate) fn may_deliver(&self) -> bool {
        self.unread_cost.saturating_sub(self.given_back) < u64::from(STREAM_WINDOW_BYTES)
    }

    /// The app is given a message of the stream; what it costs.
    pub(crate) fn deliver(&mut self, came_bytes: u32, plain_bytes: u32) -> u32 {
        let cost = came_bytes
            .max(plain_bytes)
            .saturating_add(STREAM_MESSAGE_COST_BYTES);
        self.unread.push_back(UnreadMessage { came_bytes, cost });
        self.unread_cost += u64::from(cost);
        cost
    }

    /// The app has read so much; in how many bytes each message of that came.
    pub(crate) fn give_back(&mut self, window_bytes: u32, mut consumed: impl FnMut(usize)) {
        self.given_back += u64::from(window_bytes);
        while let Some(UnreadMessage { came_bytes, cost }) = self.unread.front().copied() {
            if u64::from(cost) > self.given_back {
                return;
            }
            self.given_back -= u64::from(cost);
            self.unread_cost -= u64::from(cost);
            self.unread.pop_front();
            consumed(came_bytes as usize);
        }
        // What was never given cannot be given back.
        self.given_back = 0;
    }
}
