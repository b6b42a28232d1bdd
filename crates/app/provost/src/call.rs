//! One call in flight, as its client or its server holds it: reading steps, sending steps, and its end.

use std::sync::Arc;
use std::task::{Context, Poll};

use provost_wire::descriptor::{Completion, Parts, Submission, submission_kind};
use provost_wire::limits::STREAM_MESSAGE_COST_BYTES;
use provost_wire::{Code, metadata};

use crate::limit::Permit;
use crate::link::{
    CallId, Connection, Half, Link, LocalEnd, OutgoingMessage, SubmitError, Waiter, WireCall, when_room,
};
use crate::message::Message;
use crate::metadata::MetadataMap;
use crate::received::Received;
use crate::shared::heap;
use crate::status::Status;

/// What was read of a stream is told to its sender when it comes to this much, in bytes, or when nothing more has come
/// and it is at least [`PENDING_IDLE_BYTES`].
const PENDING_BYTES: u32 = 64 << 10;
const PENDING_IDLE_BYTES: u32 = 4 << 10;

/// A message for people that is longer is cut, in bytes.
const STATUS_MESSAGE_BYTES_MAX: usize = 4 << 10;

/// A client's call. Dropping it before it is over cancels it.
pub(crate) struct ClientCall {
    pub(crate) reader: Reader,
    is_over: bool,
    cancel_code: Code,
    _permit: Permit,
    /// What keeps its connection open, of a call that may outlive its clients.
    channel: Option<Arc<dyn Send + Sync>>,
}

impl ClientCall {
    pub(crate) fn new(connection: Connection, id: CallId, permit: Permit) -> ClientCall {
        let wire = WireCall {
            connection: connection.number,
            call: id.0,
        };
        ClientCall {
            reader: Reader::new(connection.link, id, wire),
            is_over: false,
            cancel_code: Code::Cancelled,
            _permit: permit,
            channel: None,
        }
    }

    /// The same, of a channel that stays as long as the call.
    pub(crate) fn keeping(mut self, channel: Arc<dyn Send + Sync>) -> ClientCall {
        self.channel = Some(channel);
        self
    }

    /// The half that sends, which may be used beside this one.
    pub(crate) fn sender(&self) -> Sender {
        Sender::new(
            self.reader.link().clone(),
            self.reader.waiter.id(),
            self.reader.wire,
        )
    }

    /// Size of the largest message that the service takes.
    pub(crate) fn message_bytes_max(&self) -> u32 {
        self.reader.link().message_bytes_max
    }

    /// The next step; the error is how the call ended without one.
    pub(crate) fn poll_step<T: Message>(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Step<T>, Status>> {
        let step = std::task::ready!(self.reader.poll_step(context));
        if let Ok(step) = &step {
            self.is_over = step.status.is_some();
        }
        Poll::Ready(step.map_err(|end| {
            self.cancel_code = end.code;
            Status::new(end.code, end.reason)
        }))
    }
}

impl Drop for ClientCall {
    fn drop(&mut self) {
        let link = self.reader.waiter.link();
        if !self.is_over {
            link.submit_eventually(&Submission {
                parts: Parts::CANCEL,
                status_or_window: self.cancel_code.number(),
                ..self.reader.wire.step()
            });
        }
        link.close(self.reader.waiter.id());
        // The connection is closed after the call's last step, if this is the last that has it.
        self.channel = None;
    }
}

/// What a step brought.
pub(crate) struct Step<T> {
    pub(crate) metadata: Option<MetadataMap>,
    pub(crate) message: Option<Received<T>>,
    /// The peer sends no more messages.
    pub(crate) is_end: bool,
    /// How the call ended, with its trailing metadata, if it has.
    pub(crate) status: Option<Ended>,
}

/// How a call ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// `Err` for every code but `OK`.
    pub(crate) result: Result<MetadataMap, Status>,
}

/// The half of a call that takes steps.
pub(crate) struct Reader {
    waiter: Waiter,
    wire: WireCall,
    /// What was read of the stream's window and not given back yet.
    pending_bytes: u32,
}

impl Reader {
    pub(crate) fn new(link: Arc<Link>, id: CallId, wire: WireCall) -> Reader {
        Reader {
            waiter: Waiter::new(link, id),
            wire,
            pending_bytes: 0,
        }
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        self.waiter.link()
    }

    pub(crate) fn poll_step<T: Message>(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Step<T>, LocalEnd>> {
        let mut is_last = true;
        let step = self.waiter.poll_until(Half::Reader, context, |state| {
            let step = state.steps.pop_front();
            is_last = state.steps.is_empty();
            step
        });
        match step {
            Poll::Ready(Ok(step)) => {
                self.owe(step.window_cost, is_last);
                Poll::Ready(read_step(self.link(), &step))
            }
            Poll::Ready(Err(end)) => Poll::Ready(Err(end)),
            Poll::Pending => {
                self.pay(PENDING_IDLE_BYTES);
                Poll::Pending
            }
        }
    }

    fn owe(&mut self, cost_bytes: u32, is_last: bool) {
        self.pending_bytes = self.pending_bytes.saturating_add(cost_bytes);
        self.pay(if is_last {
            PENDING_IDLE_BYTES.max(cost_bytes)
        } else {
            PENDING_BYTES
        });
    }

    /// Gives the window back if at least so much is pending.
    fn pay(&mut self, least_bytes: u32) {
        if self.pending_bytes == 0 || self.pending_bytes < least_bytes.min(PENDING_BYTES) {
            return;
        }
        self.waiter.link().submit_eventually(&Submission {
            parts: Parts::WINDOW,
            status_or_window: std::mem::take(&mut self.pending_bytes),
            ..self.wire.step()
        });
    }
}

/// Takes a step apart. Its block becomes the message's, or is given back.
pub(crate) fn read_step<T: Message>(link: &Arc<Link>, step: &Completion) -> Result<Step<T>, LocalEnd> {
    let metadata = metadata_of(step);
    let ended = step
        .parts
        .intersects(Parts::STATUS | Parts::CANCEL)
        .then(|| ended(step, metadata));
    let carries_headers = step.parts.intersects(Parts::BEGIN | Parts::HEADERS) && ended.is_none();
    let metadata = (carries_headers && !metadata.is_empty()).then(|| MetadataMap::from_block(metadata));
    let message = (step.parts.contains(Parts::MESSAGE) && step.root != 0).then(|| {
        // SAFETY: the service published this block for this call, whose method has this type of message (see
        // `Methods` and the generated clients), the drainer has checked that it is mapped, and each step is read once.
        unsafe { Received::new(link.clone(), step.block, step.root) }
    });
    if message.is_none() {
        link.reclaim(step.block);
    }
    if step.parts.contains(Parts::MESSAGE) && message.is_none() {
        return Err(MALFORMED);
    }
    Ok(Step {
        metadata,
        message,
        is_end: step.parts.contains(Parts::END),
        status: ended,
    })
}

/// The step's metadata block, where it lies.
fn metadata_of(step: &Completion) -> &[u8] {
    if step.metadata_bytes == 0 {
        return &[];
    }
    // SAFETY: the drainer has checked that the range lies in a mapped segment; the service does not write to it
    // until the block is given back, which happens after the last use of this slice.
    unsafe { std::slice::from_raw_parts(heap::address(step.metadata), step.metadata_bytes as usize) }
}

/// A step that no service sends.
const MALFORMED: LocalEnd = LocalEnd {
    code: Code::Internal,
    reason: "the node's service sent a step without its message",
};

fn ended(step: &Completion, block: &[u8]) -> Ended {
    let trailers = MetadataMap::from_block(block);
    let code = Code::from_number(step.status_or_window);
    if code == Code::Ok && !step.parts.contains(Parts::CANCEL) {
        return Ended { result: Ok(trailers) };
    }
    let code = if code == Code::Ok { Code::Cancelled } else { code };
    Ended {
        result: Err(status_of(code, block, trailers)),
    }
}

/// A status, of which the block that came with it has the message and the details.
pub(crate) fn status_of(code: Code, block: &[u8], trailers: MetadataMap) -> Status {
    let (mut message, mut details) = (String::new(), Vec::new());
    for (key, value) in metadata::entries(block) {
        match key {
            metadata::STATUS_MESSAGE => message = String::from_utf8_lossy(value).into_owned(),
            metadata::STATUS_DETAILS => details = value.to_vec(),
            _ => {}
        }
    }
    Status::with_details_and_metadata(code, message, details, trailers)
}

/// A handler that fails with `OK` has failed all the same.
pub(crate) fn error_code(status: &Status) -> Code {
    match status.code() {
        Code::Ok => Code::Unknown,
        code => code,
    }
}

/// A status's message, details and metadata as they travel. What does not fit is left out: first the details.
pub(crate) fn trailers_of(status: &Status) -> OutgoingMessage {
    let mut trailers = status.metadata().as_block().to_vec();
    let message = status.message();
    if !message.is_empty() {
        let longest = message.len().min(STATUS_MESSAGE_BYTES_MAX);
        let cut = (0..=longest).rev().find(|cut| message.is_char_boundary(*cut));
        let message = &message.as_bytes()[..cut.unwrap_or(0)];
        let _ = metadata::append(&mut trailers, metadata::STATUS_MESSAGE, message);
    }
    if !status.details().is_empty() {
        let _ = metadata::append(&mut trailers, metadata::STATUS_DETAILS, status.details());
    }
    if trailers.is_empty() {
        OutgoingMessage::default()
    } else {
        OutgoingMessage::of_block(&trailers).unwrap_or_default()
    }
}

/// The half of a call that sends steps.
pub(crate) struct Sender {
    waiter: Waiter,
    wire: WireCall,
}

impl Sender {
    pub(crate) fn new(link: Arc<Link>, id: CallId, wire: WireCall) -> Sender {
        Sender {
            waiter: Waiter::new(link, id),
            wire,
        }
    }

    /// Waits until the stream's window lets another message pass. The error says that the call is over.
    pub(crate) fn poll_window(&mut self, context: &mut Context<'_>) -> Poll<Result<(), LocalEnd>> {
        self.waiter.poll_until(Half::Writer, context, |state| {
            (state.send_window > 0).then_some(())
        })
    }

    /// Sends a message of a stream, for which [`Sender::poll_window`] said that it may pass.
    pub(crate) async fn stream_message(&mut self, outgoing: OutgoingMessage) -> Result<(), LocalEnd> {
        let cost_bytes = outgoing.window_bytes().saturating_add(STREAM_MESSAGE_COST_BYTES);
        if let Some(mut state) = self.waiter.link().calls.state(self.waiter.id()) {
            state.send_window -= i64::from(cost_bytes);
        }
        let step = Submission {
            parts: Parts::MESSAGE,
            status_or_window: cost_bytes,
            ..self.wire.step()
        };
        self.send(step, outgoing).await
    }

    /// Sends a step as soon as the ring has room.
    pub(crate) async fn send(
        &mut self,
        step: Submission,
        mut outgoing: OutgoingMessage,
    ) -> Result<(), LocalEnd> {
        let link = self.waiter.link();
        match link.submit(step, &mut outgoing) {
            Ok(()) => return Ok(()),
            Err(SubmitError::Full) => {}
            Err(_) => return Err(GONE),
        }
        let id = self.waiter.id();
        let sent = when_room(link, 0, || match link.calls.ended(id) {
            Some(end) => Ok(Err(end)),
            None => link.submit(step, &mut outgoing).map(Ok),
        });
        sent.await.unwrap_or(Err(GONE))
    }

    pub(crate) fn step(&self) -> Submission {
        self.wire.step()
    }
}

const GONE: LocalEnd = LocalEnd {
    code: Code::Unavailable,
    reason: "the node's service went away",
};

impl WireCall {
    /// A step of this call that carries nothing yet.
    pub(crate) fn step(self) -> Submission {
        Submission {
            kind: submission_kind::STEP,
            connection: self.connection,
            call: self.call,
            ..Submission::default()
        }
    }
}
