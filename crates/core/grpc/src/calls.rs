//! The calls of one connection, and what events of HTTP/2 mean to them.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use provost_http2::{
    EndpointRole, ErrorCode, FieldList, HeadKind, Http2Event, ResetCause, StreamEnd, StreamMap,
};
use provost_wire::Code;

use crate::call_counts::{CallCounts, CallOutcome};
use crate::connection::GrpcConfig;
use crate::framing::{FramingFault, GrpcMessage, MessageForm, MessageReader, PREFIX_BYTES};
use crate::head::{HeadRefusal, RequestHead, ResponseHead, not_grpc};
use crate::large_messages::{LargeMessages, ReaderReadiness};
use crate::metadata::read_metadata;
use crate::progress::PartialProgress;
use crate::status::{GrpcStatus, code_of_reset};
use provost_compression::MessageEncoding;

/// Events of what one frame brings: a message, and that it was the last one.
const EVENTS_USUAL: usize = 2;

/// What happened on a connection. A call has the number of its stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrpcEvent {
    /// At a server: a call begins.
    Request { call: u32, head: RequestHead },
    /// At a client: the head of the response came. A call that ends at once has none.
    Response { call: u32, head: ResponseHead },
    /// A whole message came. When it is done with, its bytes are [consumed](crate::GrpcConnection::consume).
    Message { call: u32, message: GrpcMessage },
    /// At a server: the client sends no more messages.
    HalfClosed { call: u32 },
    /// The call is over, and nothing more can be sent on it. A server whose call ended by its own
    /// [`finish`](crate::GrpcConnection::finish) is not told.
    Ended {
        call: u32,
        status: GrpcStatus,
        /// At a client, what came with the status.
        metadata: Vec<u8>,
        cause: EndCause,
    },
    /// A call that took no message has room for one.
    Writable { call: u32 },
    /// The peer told its settings: it may allow more calls now.
    PeerSettings,
    /// The peer takes no more calls. Those under way go on.
    Draining,
}

/// Why a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// The server said its status.
    Answered,
    /// The peer gave the call up.
    Reset,
    /// The server has not begun the call: it can be sent again.
    NotProcessed,
    /// This end ended it: its deadline passed, or the peer broke a rule or a limit.
    Local,
    /// The connection is gone.
    Lost,
}

/// How far a direction of a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallPhase {
    Head,
    Body,
    Ended,
}

/// What is known of a call.
#[derive(Clone, Debug)]
pub(crate) struct CallState {
    pub(crate) sending: CallPhase,
    pub(crate) sent_encoding: MessageEncoding,
    pub(crate) receiving: CallPhase,
    pub(crate) received_encoding: MessageEncoding,
    pub(crate) reader: MessageReader,
    pub(crate) deadline_ns: Option<u64>,
    /// Bytes of messages that the application has and has not consumed.
    pub(crate) held_bytes: usize,
    /// Bytes that the windows do not have back yet: at most as many as are held.
    pub(crate) unreleased: usize,
    /// Bytes that the window of the stream alone does not have back, as a large message has to wait.
    pub(crate) withheld: u32,
    /// When the message that is in part began to come.
    pub(crate) part_began_ns: u64,
    /// What it counts as when it ends.
    pub(crate) outcome: CallOutcome,
}

impl CallState {
    /// A call whose request is to be sent, or has come.
    pub(crate) fn new(role: EndpointRole, encoding: MessageEncoding, deadline_ns: Option<u64>) -> CallState {
        let (begun, to_come) = (CallPhase::Body, CallPhase::Head);
        let (sending, receiving, sent_encoding, received_encoding) = match role {
            EndpointRole::Client => (begun, to_come, encoding, MessageEncoding::Identity),
            EndpointRole::Server => (to_come, begun, MessageEncoding::Identity, encoding),
        };
        CallState {
            sending,
            sent_encoding,
            receiving,
            received_encoding,
            reader: MessageReader::default(),
            deadline_ns,
            held_bytes: 0,
            unreleased: 0,
            withheld: 0,
            part_began_ns: 0,
            outcome: CallOutcome::Failed,
        }
    }

    fn readiness(&self) -> ReaderReadiness {
        if self.held_bytes == 0 {
            ReaderReadiness::Waits
        } else {
            ReaderReadiness::Holds
        }
    }

    /// Bytes that the windows get back. While the application holds messages, it keeps as many from its peer.
    fn release(&mut self) -> u32 {
        let kept = self.unreleased.min(self.held_bytes);
        let released = self.unreleased - kept;
        self.unreleased = kept;
        released as u32
    }

    /// Tells of all messages that are whole with these bytes.
    fn messages(
        &mut self,
        call: u32,
        mut data: &[u8],
        bytes_max: u32,
        events: &mut VecDeque<GrpcEvent>,
    ) -> Result<(), FramingFault> {
        while let Some(message) = self.reader.read(&mut data, bytes_max)? {
            let is_compressed = message.form == MessageForm::Compressed;
            if is_compressed && self.received_encoding == MessageEncoding::Identity {
                return Err(FramingFault::NoEncoding);
            }
            self.held_bytes += message.bytes.len() + PREFIX_BYTES;
            events.push_back(GrpcEvent::Message { call, message });
        }
        Ok(())
    }
}

/// How a call is over, as far as HTTP/2 has not ended its stream.
#[derive(Clone, Debug)]
pub(crate) enum CallEnding {
    /// At a server: a request that is no call.
    Refused(HeadRefusal),
    /// The server's status came, or what stands for it.
    Answered(GrpcStatus, Vec<u8>),
    /// This end ends it.
    Failed(GrpcStatus),
}

/// What has to be done on a stream after an event.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamReaction {
    pub(crate) call: u32,
    /// Bytes that the windows of the connection and of the stream get back.
    pub(crate) release: u32,
    /// Bytes that only the one of the connection does.
    pub(crate) release_connection: u32,
    pub(crate) ending: Option<CallEnding>,
}

impl StreamReaction {
    fn end(call: u32, ending: CallEnding) -> StreamReaction {
        StreamReaction {
            call,
            ending: Some(ending),
            ..StreamReaction::default()
        }
    }
}

/// The calls of one connection.
#[derive(Clone, Debug)]
pub(crate) struct CallTable {
    role: EndpointRole,
    message_bytes_max: u32,
    pub(crate) partial_bytes_max: usize,
    pub(crate) calls: StreamMap<CallState>,
    pub(crate) counts: Arc<CallCounts>,
    deadlines: BTreeSet<(u64, u32)>,
    /// Events that wait: those of one frame of HTTP/2, and of calls that ended meanwhile.
    pub(crate) events: VecDeque<GrpcEvent>,
    /// Bytes of messages that have come in part.
    pub(crate) partial_bytes: usize,
    /// What they may come to now, where memory is scarce.
    pub(crate) partial_bytes_now: usize,
    pub(crate) progress: PartialProgress,
    pub(crate) large: LargeMessages,
    /// Bytes that the windows of streams get back, whose large messages need not wait any more.
    pub(crate) stream_releases: Vec<(u32, u32)>,
}

impl CallTable {
    pub(crate) fn new(role: EndpointRole, config: &GrpcConfig) -> CallTable {
        let small_bytes_max = config.http2.stream_window_bytes as usize / 2;
        CallTable {
            role,
            message_bytes_max: config.received_message_bytes_max,
            partial_bytes_max: config.partial_bytes_max,
            large: LargeMessages::new(small_bytes_max, config.large_message_bytes_max),
            stream_releases: Vec::new(),
            calls: StreamMap::new(),
            counts: Arc::default(),
            deadlines: BTreeSet::new(),
            events: VecDeque::with_capacity(EVENTS_USUAL),
            partial_bytes: 0,
            partial_bytes_now: usize::MAX,
            progress: PartialProgress::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(crate) fn get_mut(&mut self, call: u32) -> Option<&mut CallState> {
        self.calls.get_mut(call)
    }

    pub(crate) fn insert(&mut self, call: u32, state: CallState, now_ns: u64) {
        self.counts.note_start(now_ns);
        self.deadlines
            .extend(state.deadline_ns.map(|deadline_ns| (deadline_ns, call)));
        self.calls.insert(call, state);
    }

    /// Takes a call out. Its bytes that were not released are what the windows of the connection have to get back.
    pub(crate) fn remove(&mut self, call: u32) -> Option<(CallState, u32)> {
        let state = self.calls.remove(call)?;
        self.counts.note_end(state.outcome);
        if let Some(deadline_ns) = state.deadline_ns {
            self.deadlines.remove(&(deadline_ns, call));
        }
        self.partial_bytes -= state.reader.buffered_bytes();
        self.large.leave(call);
        self.admit_large();
        let unreleased = state.unreleased as u32;
        Some((state, unreleased))
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let deadline = self.deadlines.first().map(|(deadline_ns, _)| *deadline_ns);
        [deadline, self.progress.judged_at()].into_iter().flatten().min()
    }

    /// Once it is time to judge: the calls whose messages have stopped in their midst. One that waits
    /// for this end, which gives it no window, has not.
    pub(crate) fn stalled(&mut self, now_ns: u64) -> Vec<u32> {
        let Some(since_ns) = self.progress.judge(now_ns) else {
            return Vec::new();
        };
        let has_stopped = |call: u32, state: &CallState| {
            let may_come = state.held_bytes == 0 && !self.large.is_waiting(call);
            may_come && state.reader.is_within_message() && state.part_began_ns <= since_ns
        };
        let calls = self.calls.iter();
        calls
            .filter(|(call, state)| has_stopped(*call, state))
            .map(|(call, _)| call)
            .collect()
    }

    /// A call whose deadline has passed.
    pub(crate) fn expired(&self, now_ns: u64) -> Option<u32> {
        let (deadline_ns, call) = self.deadlines.first()?;
        (*deadline_ns <= now_ns).then_some(*call)
    }

    /// The application is done with bytes of messages; what the windows get back.
    pub(crate) fn consume(&mut self, call: u32, message_bytes: usize) -> StreamReaction {
        let mut reaction = StreamReaction {
            call,
            ..StreamReaction::default()
        };
        let Some(state) = self.calls.get_mut(call) else {
            return reaction;
        };
        state.held_bytes = state.held_bytes.saturating_sub(message_bytes + PREFIX_BYTES);
        reaction.release = state.release();
        if state.readiness() == ReaderReadiness::Waits {
            self.large.note_consumed(call);
            self.admit_large();
        }
        self.withhold(&mut reaction);
        reaction
    }

    /// All calls end with the connection.
    pub(crate) fn lose_all(&mut self) {
        let calls: Vec<u32> = self.calls.keys().collect();
        for call in calls {
            self.remove(call);
            let status = GrpcStatus::new(Code::Unavailable, "the connection is gone");
            self.ended(call, status, Vec::new(), EndCause::Lost);
        }
    }

    pub(crate) fn ended(&mut self, call: u32, status: GrpcStatus, metadata: Vec<u8>, cause: EndCause) {
        self.events.push_back(GrpcEvent::Ended {
            call,
            status,
            metadata,
            cause,
        });
    }

    /// What an event of HTTP/2 means.
    pub(crate) fn on_event(&mut self, event: Http2Event<'_>, now_ns: u64) -> StreamReaction {
        match event {
            Http2Event::Head {
                stream,
                kind,
                fields,
                end,
            } => return self.head(stream, kind, fields, end, now_ns),
            Http2Event::Data { stream, data, end } => return self.data(stream, data, end, now_ns),
            Http2Event::Reset { stream, code, cause } => return self.reset(stream, code, cause),
            Http2Event::Writable { stream } => {
                if self.calls.contains_key(stream) {
                    self.events.push_back(GrpcEvent::Writable { call: stream });
                }
            }
            Http2Event::PeerSettings => self.events.push_back(GrpcEvent::PeerSettings),
            Http2Event::GoAway { .. } => self.events.push_back(GrpcEvent::Draining),
            Http2Event::Pong { .. } => {}
        }
        StreamReaction::default()
    }

    fn head(
        &mut self,
        call: u32,
        kind: HeadKind,
        fields: &FieldList,
        end: StreamEnd,
        now_ns: u64,
    ) -> StreamReaction {
        match (kind, self.role, end) {
            (HeadKind::Request, ..) => self.request(call, fields, end, now_ns),
            (HeadKind::Response, _, StreamEnd::Continues) => self.response(call, fields),
            (HeadKind::Response, _, StreamEnd::Ends) => self.trailers(call, fields, not_grpc),
            (HeadKind::Interim, ..) => StreamReaction::default(),
            // A client of gRPC has nothing to say in trailers: its stream ends with them.
            (HeadKind::Trailers, EndpointRole::Server, _) => self.data(call, &[], end, now_ns),
            (HeadKind::Trailers, EndpointRole::Client, _) => self.trailers(call, fields, |_| {
                GrpcStatus::new(Code::Internal, "the trailers of the response have no grpc-status")
            }),
        }
    }

    fn request(&mut self, call: u32, fields: &FieldList, end: StreamEnd, now_ns: u64) -> StreamReaction {
        let read = match RequestHead::read(fields, end) {
            Ok(read) => read,
            Err(refusal) => return StreamReaction::end(call, CallEnding::Refused(refusal)),
        };
        let timeout_ns = read.head.timeout_ns;
        let deadline_ns = timeout_ns.map(|timeout_ns| now_ns.saturating_add(timeout_ns));
        let state = CallState::new(self.role, read.head.encoding, deadline_ns);
        self.insert(call, state, now_ns);
        self.events.push_back(GrpcEvent::Request {
            call,
            head: read.head,
        });
        if let Some(bytes) = read.message {
            let form = MessageForm::Plain;
            let message = GrpcMessage { form, bytes };
            self.events.push_back(GrpcEvent::Message { call, message });
        }
        self.data(call, &[], end, now_ns)
    }

    fn response(&mut self, call: u32, fields: &FieldList) -> StreamReaction {
        let Some(state) = self.calls.get_mut(call) else {
            return StreamReaction::default();
        };
        let head = match ResponseHead::read(fields) {
            Ok(head) => head,
            Err(status) => return StreamReaction::end(call, CallEnding::Answered(status, Vec::new())),
        };
        state.receiving = CallPhase::Body;
        state.received_encoding = head.encoding;
        self.events.push_back(GrpcEvent::Response { call, head });
        StreamReaction::default()
    }

    /// Trailers, or a response that has nothing else. `missing` is the status of one that says none.
    fn trailers(
        &mut self,
        call: u32,
        fields: &FieldList,
        missing: impl FnOnce(&FieldList) -> GrpcStatus,
    ) -> StreamReaction {
        let Some(state) = self.calls.get(call) else {
            return StreamReaction::default();
        };
        let read = GrpcStatus::read(fields).and_then(|status| Ok((status, read_metadata(fields)?)));
        let (status, metadata) = match read {
            Ok((status, metadata)) => (status.unwrap_or_else(|| missing(fields)), metadata),
            Err(fault) => (GrpcStatus::new(Code::Internal, fault.to_string()), Vec::new()),
        };
        let is_cut = status.code == Code::Ok && state.reader.is_within_message();
        let status = if is_cut {
            status_of(FramingFault::Truncated)
        } else {
            status
        };
        StreamReaction::end(call, CallEnding::Answered(status, metadata))
    }

    fn data(&mut self, call: u32, data: &[u8], end: StreamEnd, now_ns: u64) -> StreamReaction {
        let mut reaction = StreamReaction {
            call,
            release: data.len() as u32,
            ..StreamReaction::default()
        };
        let Some(state) = self.calls.get_mut(call) else {
            return reaction;
        };
        let before = state.reader.buffered_bytes();
        let events_before = self.events.len();
        let read = state.messages(call, data, self.message_bytes_max, &mut self.events);
        self.partial_bytes = self.partial_bytes - before + state.reader.buffered_bytes();
        self.progress.add(data.len());
        if before == 0 || self.events.len() > events_before {
            state.part_began_ns = now_ns;
        }
        state.unreleased += data.len();
        reaction.release = state.release();
        if self.events.len() > events_before {
            self.counts.note_received(self.events.len() - events_before);
            // The message that was in part is whole: the next one is judged anew.
            let withheld = std::mem::take(&mut state.withheld);
            self.stream_releases
                .extend((withheld > 0).then_some((call, withheld)));
            self.large.leave(call);
        }
        if let Some(bytes) = state.reader.announced_bytes() {
            self.large.announce(call, bytes, state.readiness());
        }
        self.withhold(&mut reaction);
        self.admit_large();
        reaction.ending = match read {
            Err(fault) => Some(CallEnding::Failed(status_of(fault))),
            Ok(()) if self.partial_bytes > self.partial_bytes_max.min(self.partial_bytes_now) => {
                let message = "the messages of this connection that have come in part are over their limit, or what there is memory for";
                let status = GrpcStatus::new(Code::ResourceExhausted, message);
                Some(CallEnding::Failed(status))
            }
            Ok(()) if end == StreamEnd::Ends => self.end_of_stream(call),
            Ok(()) => None,
        };
        reaction
    }

    /// Keeps from the window of a stream whose large message waits what that of the connection gets back.
    fn withhold(&mut self, reaction: &mut StreamReaction) {
        if self.large.is_waiting(reaction.call)
            && let Some(state) = self.calls.get_mut(reaction.call)
        {
            reaction.release_connection = std::mem::take(&mut reaction.release);
            state.withheld += reaction.release_connection;
        }
    }

    /// Gives large messages that have waited the windows that they need.
    fn admit_large(&mut self) {
        while let Some(call) = self.large.admit_next() {
            if let Some(state) = self.calls.get_mut(call) {
                let withheld = std::mem::take(&mut state.withheld);
                self.stream_releases.push((call, withheld));
            }
        }
    }

    /// The peer's half of the stream ended without trailers.
    fn end_of_stream(&mut self, call: u32) -> Option<CallEnding> {
        let state = self.calls.get_mut(call)?;
        if self.role == EndpointRole::Client {
            let message = "the server ended the response without a status";
            let status = GrpcStatus::new(Code::Internal, message);
            return Some(CallEnding::Answered(status, Vec::new()));
        }
        if state.reader.is_within_message() {
            return Some(CallEnding::Failed(status_of(FramingFault::Truncated)));
        }
        if state.receiving != CallPhase::Ended {
            state.receiving = CallPhase::Ended;
            self.events.push_back(GrpcEvent::HalfClosed { call });
        }
        None
    }

    fn reset(&mut self, call: u32, code: ErrorCode, cause: ResetCause) -> StreamReaction {
        let Some((_, release)) = self.remove(call) else {
            return StreamReaction::default();
        };
        let is_untouched = cause == ResetCause::GoAway || code == ErrorCode::REFUSED_STREAM;
        let (cause, end_code) = match (cause, self.role) {
            (ResetCause::Fault, _) => (EndCause::Local, code_of_reset(code)),
            (_, EndpointRole::Client) if is_untouched => (EndCause::NotProcessed, Code::Unavailable),
            // RFC 9113, section 8.1, lets a client that has its answer reset with NO_ERROR.
            (_, EndpointRole::Server) if code == ErrorCode::NO_ERROR => (EndCause::Reset, Code::Cancelled),
            _ => (EndCause::Reset, code_of_reset(code)),
        };
        let status = GrpcStatus::new(end_code, format!("the stream was reset with {code}"));
        self.ended(call, status, Vec::new(), cause);
        StreamReaction {
            call,
            release,
            ..StreamReaction::default()
        }
    }
}

fn status_of(fault: FramingFault) -> GrpcStatus {
    let code = match fault {
        FramingFault::TooLarge { .. } => Code::ResourceExhausted,
        _ => Code::Internal,
    };
    GrpcStatus::new(code, fault.to_string())
}
