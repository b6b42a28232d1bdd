//! One end of a connection that carries calls.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use provost_http2::{
    ConnectionError, DataChunk, EndpointRole, ErrorCode, FieldList, Http2Config, Http2Connection,
    KeepalivePolicy, SendError, StreamEnd,
};
use provost_wire::Code;
use provost_wire::limits::MESSAGE_BYTES_MAX;

use crate::call_counts::{CallCounts, CallOutcome};
use crate::calls::{CallEnding, CallPhase, CallState, CallTable, EndCause, GrpcEvent, StreamReaction};
use crate::framing::{MessageForm, message_prefix};
use crate::head::{RequestHead, ResponseHead, UriScheme, write_trailers_only};
use crate::metadata::{MetadataFault, write_metadata};
use crate::status::{GrpcStatus, reset_of_code};
use provost_compression::MessageEncoding;

/// Bytes of a message that is taken, by default: as gRPC's own implementations have it.
pub const RECEIVED_MESSAGE_BYTES_MAX_DEFAULT: u32 = 4 << 20;
/// Bytes of all messages of a connection that have come in part, by default.
pub const PARTIAL_BYTES_MAX_DEFAULT: usize = 64 << 20;
/// Bytes of messages that may come whole though their streams' windows are smaller, by default.
pub const LARGE_MESSAGE_BYTES_MAX_DEFAULT: usize = 16 << 20;
/// Room for the fields that say a status, so that most lists grow once.
const TRAILER_FIELDS: usize = 2;
const TRAILER_TEXT_BYTES: usize = 64;
/// A status message that is kept when trailers are over the peer's limit has at most so many bytes.
const MESSAGE_BYTES_KEPT: usize = 512;

/// How one end of a connection behaves, and the bounds of what it keeps beside those of HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrpcConfig {
    pub http2: Http2Config,
    /// What a client says of its carrier.
    pub scheme: UriScheme,
    /// Bytes of a message that is taken, as it comes; over it the call ends with RESOURCE_EXHAUSTED.
    pub received_message_bytes_max: u32,
    /// Bytes of a message that is sent.
    pub sent_message_bytes_max: u32,
    /// Bytes of all messages that have come in part; the call that goes over it ends with RESOURCE_EXHAUSTED. None does as long as
    /// there is room for the windows of as many streams as there may be, and for the large messages.
    pub partial_bytes_max: usize,
    /// Bytes of messages, longer than half of their stream's window, that may come whole before they are consumed. A single one
    /// may be longer. Others wait, with what their windows have let in, until these are whole.
    pub large_message_bytes_max: usize,
}

impl Default for GrpcConfig {
    fn default() -> GrpcConfig {
        GrpcConfig {
            http2: Http2Config::default(),
            scheme: UriScheme::Http,
            received_message_bytes_max: RECEIVED_MESSAGE_BYTES_MAX_DEFAULT,
            sent_message_bytes_max: MESSAGE_BYTES_MAX,
            partial_bytes_max: PARTIAL_BYTES_MAX_DEFAULT,
            large_message_bytes_max: LARGE_MESSAGE_BYTES_MAX_DEFAULT,
        }
    }
}

/// Why something cannot be done. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallFault {
    /// HTTP/2 does not take it, and says whether it can later.
    #[error(transparent)]
    Http2(#[from] SendError),
    #[error(transparent)]
    Metadata(#[from] MetadataFault),
    /// There is no such call, or it ended.
    #[error("the call ended, or there was none")]
    NoCall,
    /// The call is not where this can be done.
    #[error("the call's state does not allow that: {0}")]
    State(&'static str),
    /// A message is larger than this end sends.
    #[error("a message of {bytes} bytes is over the limit of {bytes_max}")]
    TooLarge { bytes: usize, bytes_max: u32 },
}

/// What came of some input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedCalls {
    /// Bytes that were taken. The rest must come again.
    pub consumed: usize,
    /// None: more input has to come, or [output has to leave first](GrpcConnection::is_blocked).
    pub event: Option<GrpcEvent>,
}

/// One end of a connection, without I/O. See the [crate](crate) for an example.
///
/// Times are nanoseconds of one monotonic clock. Calls whose deadline passes end at both ends: a client resets them, a server
/// answers them with DEADLINE_EXCEEDED.
#[derive(Clone, Debug)]
pub struct GrpcConnection<C> {
    pub(crate) http2: Http2Connection<C>,
    pub(crate) config: GrpcConfig,
    pub(crate) table: CallTable,
    /// Whole responses that found the output full. Their streams are open, so there are no more than those.
    pub(crate) pending_answers: VecDeque<(u32, FieldList)>,
}

impl<C: DataChunk> GrpcConnection<C> {
    /// The end that begins calls.
    #[must_use]
    pub fn client(config: GrpcConfig, now_ns: u64) -> GrpcConnection<C> {
        GrpcConnection::new(Http2Connection::client(config.http2, now_ns), config)
    }

    /// The end that serves.
    #[must_use]
    pub fn server(config: GrpcConfig, now_ns: u64) -> GrpcConnection<C> {
        GrpcConnection::new(Http2Connection::server(config.http2, now_ns), config)
    }

    fn new(http2: Http2Connection<C>, config: GrpcConfig) -> GrpcConnection<C> {
        let table = CallTable::new(http2.role(), &config);
        GrpcConnection {
            http2,
            config,
            table,
            pending_answers: VecDeque::new(),
        }
    }

    /// Counts calls there from now on, as other connections of the same thread may.
    pub fn count_in(&mut self, counts: Arc<CallCounts>) {
        // Calls that another process has begun are counted as what this one has.
        (0..self.table.len()).for_each(|_| counts.note_start(0));
        self.table.counts = counts;
    }

    /// Bytes of messages that have come in part.
    #[must_use]
    pub fn partial_bytes(&self) -> usize {
        self.table.partial_bytes
    }

    /// What messages in part may come to from now on, if that is less than [`GrpcConfig::partial_bytes_max`]: a call whose message makes
    /// them more ends with RESOURCE_EXHAUSTED.
    pub fn bound_partial_bytes(&mut self, bytes: usize) {
        self.table.partial_bytes_now = bytes;
    }

    /// Says whether this end reads what the peer sends, of a server whose clients' messages are to go on coming: calls whose message has
    /// stopped in its midst then end, where much is held (see [`PROGRESS_NS`](crate::PROGRESS_NS)).
    pub fn watch_progress(&mut self, is_reading: bool, now_ns: u64) {
        let partial_bytes = self.table.partial_bytes;
        self.table.progress.watch(partial_bytes, is_reading, now_ns);
    }

    /// Calls that are under way.
    #[must_use]
    pub fn open_calls(&self) -> usize {
        self.table.len()
    }

    /// Takes bytes of the peer up to the next event.
    ///
    /// # Errors
    /// The connection is over, and every call that it had was told: send what is in the output and close the carrier.
    pub fn receive(&mut self, input: &[u8], now_ns: u64) -> Result<ReceivedCalls, ConnectionError> {
        let mut consumed = 0;
        loop {
            if let Some(event) = self.table.events.pop_front() {
                let event = Some(event);
                return Ok(ReceivedCalls { consumed, event });
            }
            let reaction = match self.http2.receive(&input[consumed..], now_ns) {
                Ok(received) => {
                    consumed += received.consumed;
                    let Some(event) = received.event else {
                        let event = None;
                        return Ok(ReceivedCalls { consumed, event });
                    };
                    self.table.on_event(event, now_ns)
                }
                Err(error) if self.table.len() == 0 => return Err(error),
                Err(_) => {
                    self.table.lose_all();
                    continue;
                }
            };
            self.react(reaction, now_ns);
        }
    }

    /// Begins a call. Its deadline counts from now on.
    ///
    /// # Errors
    /// Nothing was sent, and the reason says whether it can be later.
    pub fn call(&mut self, head: &RequestHead, now_ns: u64) -> Result<u32, CallFault> {
        let mut fields = self.http2.spare_list();
        head.write(self.config.scheme, &mut fields)?;
        let opened = self.http2.open(&fields, StreamEnd::Continues, now_ns);
        self.http2.keep_list(fields);
        let call = opened?;
        let deadline_ns = head
            .timeout_ns
            .map(|timeout_ns| now_ns.saturating_add(timeout_ns));
        let state = CallState::new(EndpointRole::Client, head.encoding, deadline_ns);
        self.table.insert(call, state, now_ns);
        Ok(call)
    }

    /// Sends the head of the response. A call that fails at once needs none.
    ///
    /// # Errors
    /// Nothing was sent.
    pub fn respond(&mut self, call: u32, head: &ResponseHead, now_ns: u64) -> Result<(), CallFault> {
        let state = self.table.get_mut(call).ok_or(CallFault::NoCall)?;
        if state.sending != CallPhase::Head {
            return Err(CallFault::State("the response has begun already"));
        }
        let mut fields = self.http2.spare_list();
        head.write(&mut fields)?;
        let sent = self.http2.respond(call, &fields, StreamEnd::Continues, now_ns);
        self.http2.keep_list(fields);
        sent?;
        state.sending = CallPhase::Body;
        state.sent_encoding = head.encoding;
        Ok(())
    }

    /// Sends a message, whose body is not copied.
    ///
    /// # Errors
    /// The body comes back, with the reason. [`SendError::QueueFull`] is followed by [`GrpcEvent::Writable`].
    pub fn send_message(
        &mut self,
        call: u32,
        form: MessageForm,
        body: C,
        now_ns: u64,
    ) -> Result<(), (CallFault, C)> {
        if let Err(fault) = self.check_message(call, form, body.bytes().len()) {
            return Err((fault, body));
        }
        let prefix = message_prefix(form, body.bytes().len() as u32);
        let chunks = [C::of_few(&prefix), body];
        self.http2
            .send_chunks(call, chunks, StreamEnd::Continues, now_ns)
            .map_err(|(error, [_, body])| (error.into(), body))?;
        self.table.counts.note_sent();
        Ok(())
    }

    fn check_message(&mut self, call: u32, form: MessageForm, bytes: usize) -> Result<(), CallFault> {
        let state = self.table.get_mut(call).ok_or(CallFault::NoCall)?;
        match state.sending {
            CallPhase::Head => return Err(CallFault::State("the head of the response comes first")),
            CallPhase::Ended => return Err(CallFault::State("this end has sent its last message")),
            CallPhase::Body => {}
        }
        if form == MessageForm::Compressed && state.sent_encoding == MessageEncoding::Identity {
            return Err(CallFault::State("the head names no encoding for messages"));
        }
        let bytes_max = self.config.sent_message_bytes_max;
        if bytes > bytes_max as usize {
            return Err(CallFault::TooLarge { bytes, bytes_max });
        }
        Ok(())
    }

    /// The client sends no more messages.
    ///
    /// # Errors
    /// There is no such call, or it was done already.
    pub fn half_close(&mut self, call: u32, now_ns: u64) -> Result<(), CallFault> {
        let state = self.table.get_mut(call).ok_or(CallFault::NoCall)?;
        if self.http2.role() == EndpointRole::Server || state.sending != CallPhase::Body {
            return Err(CallFault::State(
                "only a client closes its half, and once: a server finishes the call",
            ));
        }
        state.sending = CallPhase::Ended;
        self.http2
            .send_data(call, C::of_few(&[]), StreamEnd::Ends, now_ns)
            .map_err(|(error, _)| error.into())
    }

    /// The server ends the call, after the messages that it has sent. Metadata is a block as heads have it. When both find no
    /// room in the peer's limit, the code goes alone.
    ///
    /// # Errors
    /// There is no such call, or the metadata cannot pass.
    pub fn finish(
        &mut self,
        call: u32,
        status: &GrpcStatus,
        metadata: &[u8],
        now_ns: u64,
    ) -> Result<(), CallFault> {
        if self.http2.role() == EndpointRole::Client {
            return Err(CallFault::State(
                "only a server finishes a call: a client cancels it",
            ));
        }
        let mut rest = FieldList::new();
        write_metadata(metadata, &mut rest)?;
        let state = self.table.get_mut(call).ok_or(CallFault::NoCall)?;
        let sending = state.sending;
        state.outcome = outcome_of(status);
        self.forget(call);
        self.end_response(call, sending, status, &rest, now_ns);
        Ok(())
    }

    /// Ends the call before its time: a client that has no use for the response any more, or a server that cannot say a status.
    /// What waits to be sent is dropped.
    ///
    /// # Errors
    /// There is no such call.
    pub fn cancel(&mut self, call: u32, code: Code, now_ns: u64) -> Result<(), CallFault> {
        self.table.get_mut(call).ok_or(CallFault::NoCall)?;
        self.forget(call);
        Ok(self.http2.reset(call, reset_of_code(code), now_ns)?)
    }

    /// The application is done with a message of so many bytes: the peer may send as many more.
    pub fn consume(&mut self, call: u32, message_bytes: usize) {
        let reaction = self.table.consume(call, message_bytes);
        self.give_back(&reaction);
    }

    /// Schedules what waits, as far as the windows and the output's bound allow. Call it before sending.
    pub fn fill(&mut self, now_ns: u64) {
        for _ in 0..self.pending_answers.len() {
            if let Some((call, fields)) = self.pending_answers.pop_front() {
                self.answer(call, fields, now_ns);
            }
        }
        self.http2.fill(now_ns);
    }

    /// Names what waits for the carrier, in order, as far as `slices` reach; says how many were named.
    pub fn output<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.http2.output(slices)
    }

    /// What waits for the carrier, copied.
    #[must_use]
    pub fn copied_output(&self) -> Vec<u8> {
        self.http2.copied_output()
    }

    /// Bytes that wait for the carrier, after [`GrpcConnection::fill`].
    #[must_use]
    pub fn output_bytes(&self) -> usize {
        self.http2.output_bytes()
    }

    /// The carrier took so many bytes of what waited.
    pub fn advance(&mut self, bytes: usize, now_ns: u64) {
        self.http2.advance(bytes, now_ns);
    }

    /// Whether the peer must read first: no input is taken until output has left.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.http2.is_blocked()
    }

    /// Whether everything is done: the carrier can be closed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.http2.is_over() && self.table.events.is_empty()
    }

    /// When [`GrpcConnection::on_time`] has to be called next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        let timeouts = [self.http2.next_timeout(), self.table.next_deadline()];
        timeouts.into_iter().flatten().min()
    }

    /// Does what is due: deadlines of calls, and what HTTP/2 waits for no longer.
    ///
    /// # Errors
    /// The connection is over. Its calls are told by [`GrpcConnection::receive`].
    pub fn on_time(&mut self, now_ns: u64) -> Result<(), ConnectionError> {
        while let Some(call) = self.table.expired(now_ns) {
            let status = GrpcStatus::new(Code::DeadlineExceeded, "the deadline of the call has passed");
            self.fail(call, status, now_ns);
        }
        for call in self.table.stalled(now_ns) {
            let reason = "the message stopped in its midst: its connection brought less than 480 KiB in 30 s";
            self.fail(call, GrpcStatus::new(Code::Unavailable, reason), now_ns);
        }
        self.http2.on_time(now_ns)
    }

    /// Pings a silent peer by this policy from now on, or no more; its silence counts from `since_ns`.
    pub fn set_keepalive(&mut self, policy: Option<KeepalivePolicy>, since_ns: u64) {
        self.http2.set_keepalive(policy, since_ns);
    }

    /// This end takes nothing of what the peer says now, so that an answer to a ping may have come.
    pub fn note_unread(&mut self, now_ns: u64) {
        self.http2.note_unread(now_ns);
    }

    /// What ended the connection, if it did not end in good order.
    #[must_use]
    pub fn failure(&self) -> Option<ConnectionError> {
        self.http2.failure()
    }

    /// Bytes of messages that wait in the queue of a call's stream; none if there is no such stream.
    #[must_use]
    pub fn queued_bytes(&self, call: u32) -> Option<usize> {
        self.http2.queued_bytes(call)
    }

    /// Ends the connection in good order: calls under way go on, and no more are taken or opened.
    pub fn drain(&mut self, now_ns: u64) {
        self.http2.drain(now_ns);
    }

    /// The carrier is gone, or this end gives the connection up: all calls end.
    pub fn lose(&mut self, now_ns: u64) {
        self.table.lose_all();
        self.http2.close(ErrorCode::NO_ERROR, now_ns);
    }

    fn react(&mut self, reaction: StreamReaction, now_ns: u64) {
        let call = reaction.call;
        self.give_back(&reaction);
        match reaction.ending {
            None => {}
            Some(CallEnding::Refused(refusal)) => self.answer(call, refusal.fields(), now_ns),
            Some(CallEnding::Failed(status)) => self.fail(call, status, now_ns),
            Some(CallEnding::Answered(status, metadata)) => {
                if let Some(state) = self.table.get_mut(call) {
                    state.outcome = outcome_of(&status);
                }
                self.forget(call);
                // Its stream may go on: the server has said all, and nobody reads what this end might say.
                let _ = self.http2.reset(call, ErrorCode::CANCEL, now_ns);
                self.table.ended(call, status, metadata, EndCause::Answered);
            }
        }
    }

    /// This end ends a call, and tells both the peer and the application.
    fn fail(&mut self, call: u32, status: GrpcStatus, now_ns: u64) {
        let Some(state) = self.table.get_mut(call) else {
            return;
        };
        let sending = state.sending;
        self.forget(call);
        match self.http2.role() {
            EndpointRole::Server => self.end_response(call, sending, &status, &FieldList::new(), now_ns),
            EndpointRole::Client => {
                let _ = self.http2.reset(call, ErrorCode::CANCEL, now_ns);
            }
        }
        self.table.ended(call, status, Vec::new(), EndCause::Local);
    }

    /// Takes a call out of the table; the windows of the connection get back what it kept.
    fn forget(&mut self, call: u32) {
        if let Some((_, unreleased)) = self.table.remove(call) {
            self.release(call, unreleased);
            self.release_streams();
        }
    }

    fn give_back(&mut self, reaction: &StreamReaction) {
        self.release(reaction.call, reaction.release);
        self.http2.release_connection(reaction.release_connection);
        self.release_streams();
    }

    fn release_streams(&mut self) {
        for (call, bytes) in self.table.stream_releases.drain(..) {
            self.http2.release_stream(call, bytes);
        }
    }

    fn release(&mut self, call: u32, bytes: u32) {
        if bytes > 0 {
            self.http2.release(call, bytes);
        }
    }

    /// PROTOCOL-HTTP2, Responses: Trailers after a head, else Trailers-Only.
    fn end_response(
        &mut self,
        call: u32,
        sending: CallPhase,
        status: &GrpcStatus,
        metadata: &FieldList,
        now_ns: u64,
    ) {
        let mut fields = self.http2.spare_list();
        fields.make_room(
            TRAILER_FIELDS + metadata.len(),
            TRAILER_TEXT_BYTES + metadata.text_bytes(),
        );
        if sending == CallPhase::Head {
            write_trailers_only(&mut fields);
        }
        status.write(&mut fields);
        for field in metadata.iter() {
            fields.push_field(field.name, field.value, field.indexing);
        }
        if sending == CallPhase::Head {
            self.answer(call, fields, now_ns);
            return;
        }
        if !self.http2.takes_list(&fields) {
            fields = essential(&fields);
        }
        let sent = self.http2.send_trailers(call, fields, now_ns);
        self.reset_if_unsaid(call, sent, now_ns);
    }

    /// Sends a whole response, now or when the output has room.
    fn answer(&mut self, call: u32, fields: FieldList, now_ns: u64) {
        let mut sent = self.http2.respond(call, &fields, StreamEnd::Ends, now_ns);
        if let Err(SendError::ListTooLarge { .. }) = sent {
            sent = self
                .http2
                .respond(call, &essential(&fields), StreamEnd::Ends, now_ns);
        }
        if sent == Err(SendError::OutputFull) {
            self.pending_answers.push_back((call, fields));
            return;
        }
        self.reset_if_unsaid(call, sent.map(|_| ()), now_ns);
    }

    fn reset_if_unsaid(&mut self, call: u32, sent: Result<(), SendError>, now_ns: u64) {
        if sent.is_err() {
            // Unless the peer has reset it meanwhile.
            let _ = self.http2.reset(call, ErrorCode::INTERNAL_ERROR, now_ns);
        }
    }
}

fn outcome_of(status: &GrpcStatus) -> CallOutcome {
    if status.code == Code::Ok {
        CallOutcome::Succeeded
    } else {
        CallOutcome::Failed
    }
}

/// Of the fields that end a call, those without which it has no status.
fn essential(fields: &FieldList) -> FieldList {
    let is_essential = |name: &[u8], value: &[u8]| match name {
        b":status" | b"content-type" | b"grpc-status" => true,
        b"grpc-message" => value.len() <= MESSAGE_BYTES_KEPT,
        _ => false,
    };
    let kept = fields
        .iter()
        .filter(|field| is_essential(field.name, field.value));
    kept.map(|field| (field.name, field.value)).collect()
}
