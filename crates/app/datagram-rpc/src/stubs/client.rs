//! Channels: their sessions, their calls, and the responses.

pub(super) mod streams;

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Poll, Waker};

use crossbeam_queue::ArrayQueue;
use provost::codegen::ServiceDescriptor;
use provost::linked::{
    Codec, InboundResponse, OutboundCall, OutboundStream, PendingCall, Side, StreamEnd, Transport,
    metadata_of, status_of, wake,
};
use provost::{Code, Status};
use provost_datagram::{Address, Call, CallError, EndReason, MsgBuf, SessionId};
use provost_shm::now_ns;
use slab::Slab;

use super::format::{self, CallHead, HASH_BYTES, LARGE};
use super::frames::Leaving;
use super::stream::{Cell as StreamCell, Held, NewCell, Place, Ready};
use super::{RESPONSE_BYTES_MAX, Stubs, gone, status_of_error, status_of_mailbox};
use crate::context::Context;
use crate::error::RpcError;
use crate::mailbox::{MailboxFull, Remote};
use crate::pending::{Completion, take};
use streams::Streams;

/// Room for a response whose size nobody knows, in bytes.
const RESPONSE_BYTES_AT_FIRST: u32 = 1024;
/// The most that is kept ready for a response; larger ones are fetched, in a round trip more.
const RESPONSE_BYTES_READY_MAX: u32 = 256 << 10;
/// Calls that wait for a session at most.
const WAITING_MAX: usize = 1024;
/// Cells of calls that are kept for the next ones.
const IDLE_CELLS_MAX: usize = 256;

type Loop<'c, A> = Context<'c, A, Stubs<A>>;
/// Is told whether a channel has its session, and says whether anybody has the channel.
type Opened = Box<dyn FnOnce(Result<(), Status>) -> bool + Send>;
type Result1<T> = Result<T, Status>;

/// A channel, in the event loop.
pub(super) struct ChannelState<A: Address + Send + Sync + 'static> {
    service: &'static ServiceDescriptor,
    codec: Arc<Codec>,
    to: A,
    way: Way<A>,
    streams: Streams,
    idle: Arc<IdleCells<A>>,
    /// For each method, what its responses needed.
    response_bytes: Vec<u32>,
}

enum Way<A: Address + Send + Sync + 'static> {
    Down,
    Opening {
        waiting: Vec<Waiting<A>>,
        opened: Option<Opened>,
    },
    Up {
        session: SessionId,
        service: u16,
    },
}

/// What waits for a session.
enum Waiting<A: Address + Send + Sync + 'static> {
    Call(Begun<A>),
    Stream(Arc<StreamCell>),
}

impl<A: Address + Send + Sync + 'static> Waiting<A> {
    fn end(&self, status: Status) {
        match self {
            Waiting::Call(begun) => begun.cell.end(Err(status)),
            Waiting::Stream(cell) => cell.end(Err(status)),
        }
    }
}

/// A call that was made, by whoever made it.
pub(super) struct Begun<A: Address + Send + Sync + 'static> {
    channel: u64,
    call: OutboundCall,
    cell: Arc<Cell<A>>,
    /// Its continuation will run.
    is_sent: bool,
}

/// Calls that were made and that the event loop has not seen.
pub(super) type BegunCalls<A> = ArrayQueue<Begun<A>>;
/// Cells of calls that have ended, for the next ones.
pub(super) type IdleCells<A> = ArrayQueue<Arc<Cell<A>>>;

/// A call that was sent. Its number here is the tag of the request.
pub(super) struct Sent<A: Address + Send + Sync + 'static> {
    channel: u64,
    method: u16,
    cell: Arc<Cell<A>>,
}

/// What a call came to, for the task that made it.
pub(super) struct Cell<A: Address + Send + Sync + 'static> {
    channel: u64,
    remote: Remote<A, Stubs<A>>,
    state: Mutex<CellState>,
}

#[derive(Default)]
struct CellState {
    number: u64,
    waker: Option<Waker>,
    result: Option<Result1<InboundResponse>>,
    is_over: bool,
}

/// How calls reach the event loop: closures, unary calls, streams.
pub(super) type Reaching<A> = (Remote<A, Stubs<A>>, Arc<BegunCalls<A>>, Arc<Ready>);

/// A channel, as its clients have it.
pub(super) struct LinkedChannel<A: Address + Send + Sync + 'static> {
    service: &'static ServiceDescriptor,
    codec: Arc<Codec>,
    number: u64,
    remote: Remote<A, Stubs<A>>,
    begun: Arc<BegunCalls<A>>,
    ready: Arc<Ready>,
    calls: AtomicU64,
    idle: Arc<IdleCells<A>>,
}

impl<A: Address + Send + Sync + 'static> LinkedChannel<A> {
    /// A channel, and what its event loop knows of it.
    pub(super) fn new(
        (service, codec): (&'static ServiceDescriptor, Arc<Codec>),
        number: u64,
        idle: Arc<IdleCells<A>>,
        (remote, begun, ready): Reaching<A>,
    ) -> Self {
        Self {
            service,
            codec,
            number,
            remote,
            begun,
            ready,
            calls: AtomicU64::new(1),
            idle,
        }
    }

    /// A cell for a call: one that served before, if nobody has it any more.
    fn cell(&self, number: u64) -> Arc<Cell<A>> {
        if let Some(mut cell) = self.idle.pop() {
            if let Some(unused) = Arc::get_mut(&mut cell) {
                let state = unused.state.get_mut().unwrap_or_else(PoisonError::into_inner);
                *state = CellState {
                    number,
                    ..CellState::default()
                };
                return cell;
            }
            // Its task has seen the result and is about to let go.
            let _ = self.idle.push(cell);
        }
        Arc::new(Cell {
            channel: self.number,
            remote: self.remote.clone(),
            state: Mutex::new(CellState {
                number,
                ..CellState::default()
            }),
        })
    }
}

/// Room for the cells of a channel's calls.
pub(super) fn idle_cells<A: Address + Send + Sync + 'static>() -> Arc<IdleCells<A>> {
    Arc::new(ArrayQueue::new(IDLE_CELLS_MAX))
}

impl<A: Address + Send + Sync + 'static> Transport for LinkedChannel<A> {
    fn service(&self) -> &'static ServiceDescriptor {
        self.service
    }

    fn call(&self, call: OutboundCall) -> Arc<dyn PendingCall> {
        let cell = self.cell(self.calls.fetch_add(1, Ordering::Relaxed));
        let begun = Begun {
            channel: self.number,
            call,
            cell: cell.clone(),
            is_sent: false,
        };
        if let Err(begun) = self.begun.push(begun) {
            begun.cell.end(Err(status_of_mailbox(&MailboxFull::Full)));
        }
        // Pairs with the end of the event loop: either it sees the call, or this sees that there is no loop.
        fence(Ordering::SeqCst);
        if self.remote.is_open() {
            self.remote.ring();
        } else {
            while self.begun.pop().is_some() {}
        }
        cell
    }

    fn stream(&self, call: OutboundStream) -> Arc<dyn StreamEnd> {
        let new = NewCell {
            call: self.calls.fetch_add(1, Ordering::Relaxed),
            place: Place::Client(self.number),
            method: call.method,
            codec: self.codec.clone(),
        };
        let cell = StreamCell::new(&self.ready, new);
        cell.leave(Leaving::Begin {
            method: call.method,
            deadline_ns: call.deadline_ns,
            metadata: call.metadata,
        });
        Arc::new(Held(cell))
    }
}

impl<A: Address + Send + Sync + 'static> Drop for LinkedChannel<A> {
    fn drop(&mut self) {
        let number = self.number;
        self.remote
            .give_up(move |stubs, context| close(stubs, context, number));
    }
}

/// Ends a channel that nobody has any more, and its session.
fn close<A: Address + Send + Sync + 'static>(stubs: &mut Stubs<A>, context: &mut Loop<'_, A>, number: u64) {
    if let Some(channel) = stubs.channels.remove(&number)
        && let Way::Up { session, .. } = channel.way
    {
        if channel.streams.is_listening() {
            listen_no_more(context, session);
        }
        context.disconnect(session);
    }
}

impl<A: Address + Send + Sync + 'static> Cell<A> {
    fn end(&self, result: Result1<InboundResponse>) {
        let mut state = self.lock();
        if state.is_over {
            return;
        }
        state.is_over = true;
        state.result = Some(result);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(wake);
    }

    fn lock(&self) -> MutexGuard<'_, CellState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A: Address + Send + Sync + 'static> PendingCall for Cell<A> {
    fn poll(&self, context: &mut TaskContext<'_>) -> Poll<Result1<InboundResponse>> {
        let mut state = self.lock();
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None if state.is_over => Poll::Ready(Err(gone())),
            None => {
                let replaced = state.waker.replace(context.waker().clone());
                // Dropped without the lock: it may be the last owner of a task.
                drop(state);
                drop(replaced);
                Poll::Pending
            }
        }
    }

    fn cancel(&self) {
        let mut state = self.lock();
        let (was_over, call) = (std::mem::replace(&mut state.is_over, true), state.number);
        drop(state);
        if !was_over {
            let channel = self.channel;
            self.remote
                .give_up(move |stubs, context| cancel(stubs, context, channel, call));
        }
    }
}

impl<A: Address + Send + Sync + 'static> Drop for Begun<A> {
    /// If the event loop ends before it has begun the call, nobody else would say so.
    fn drop(&mut self) {
        if !self.is_sent {
            self.cell.end(Err(gone()));
        }
    }
}

impl<A: Address + Send + Sync + 'static> ChannelState<A> {
    pub(super) fn new(
        (service, codec): (&'static ServiceDescriptor, Arc<Codec>),
        idle: Arc<IdleCells<A>>,
        to: A,
    ) -> Self {
        Self {
            idle,
            service,
            codec,
            to,
            way: Way::Down,
            streams: Streams::default(),
            response_bytes: vec![RESPONSE_BYTES_AT_FIRST; service.methods.len()],
        }
    }

    pub(super) fn session_ended(&mut self, ended: SessionId, why: EndReason) {
        if matches!(self.way, Way::Up { session, .. } if session == ended) {
            self.way = Way::Down;
            self.streams
                .end(&status_of_error(RpcError::Call(CallError::Ended(why))));
        }
    }
}

/// Opens a channel's session, and asks for the service there.
pub(super) fn open<A: Address + Send + Sync + 'static>(
    stubs: &mut Stubs<A>,
    context: &mut Loop<'_, A>,
    number: u64,
    opened: Opened,
) {
    let Some(channel) = stubs.channels.get_mut(&number) else {
        opened(Err(gone()));
        return;
    };
    let to = channel.to;
    channel.way = Way::Opening {
        waiting: Vec::new(),
        opened: Some(opened),
    };
    let service = channel.service;
    let session = match context.connect(to) {
        Ok(session) => session,
        Err(error) => return not_opened(stubs, number, &status_of_error(error)),
    };
    let mut hash = [0; HASH_BYTES];
    let hash_bytes = service.schema_hash.len().min(HASH_BYTES);
    hash[..hash_bytes].copy_from_slice(&service.schema_hash[..hash_bytes]);
    let bind = context.call_of(format::BIND, &[&hash, service.name.as_bytes()].concat(), 2);
    let asked = context.enqueue_request(session, bind, move |stubs, context, completion| {
        bound(stubs, context, (number, session), completion);
    });
    if let Err(refused) = asked {
        context.disconnect(session);
        not_opened(stubs, number, &status_of_error(refused.error));
    }
}

fn bound<A: Address + Send + Sync + 'static>(
    stubs: &mut Stubs<A>,
    context: &mut Loop<'_, A>,
    (number, session): (u64, SessionId),
    completion: Completion,
) {
    let service = match (completion.outcome, completion.response.first_chunk()) {
        (Ok(0), Some(service)) => Ok(u16::from_le_bytes(*service)),
        (Ok(code), _) => Err(not_bound(Code::from_number(code.into()))),
        (Err(error), _) => Err(status_of_error(error)),
    };
    let Some(channel) = stubs.channels.get_mut(&number) else {
        return context.disconnect(session);
    };
    match service {
        Err(status) => {
            context.disconnect(session);
            not_opened(stubs, number, &status);
        }
        Ok(service) => {
            let before = std::mem::replace(&mut channel.way, Way::Up { session, service });
            let Way::Opening { waiting, opened } = before else {
                return;
            };
            if opened.is_some_and(|opened| !opened(Ok(()))) {
                // Given up meanwhile.
                return close(stubs, context, number);
            }
            for waiting in waiting {
                match waiting {
                    Waiting::Call(begun) => begin(stubs, context, begun),
                    Waiting::Stream(cell) => streams::ready(stubs, context, number, cell),
                }
            }
            streams::flush(stubs, context, number);
        }
    }
}

fn not_bound(code: Code) -> Status {
    match code {
        Code::FailedPrecondition => {
            Status::failed_precondition("the peer's service is of another schema: build both from the same")
        }
        Code::Unimplemented => Status::unimplemented("the peer does not offer this service"),
        code => Status::new(code, "the peer does not understand what is asked of it"),
    }
}

fn not_opened<A: Address + Send + Sync + 'static>(stubs: &mut Stubs<A>, number: u64, status: &Status) {
    let Some(channel) = stubs.channels.get_mut(&number) else {
        return;
    };
    if let Way::Opening { waiting, opened } = std::mem::replace(&mut channel.way, Way::Down) {
        for waiting in waiting {
            waiting.end(status.clone());
        }
        if let Some(opened) = opened {
            // Whoever asked for the channel gets none.
            stubs.channels.remove(&number);
            opened(Err(status.clone()));
        }
    }
}

/// Makes a call, as soon as there is a session.
pub(super) fn begin<A: Address + Send + Sync + 'static>(
    stubs: &mut Stubs<A>,
    context: &mut Loop<'_, A>,
    mut begun: Begun<A>,
) {
    let number = begun.channel;
    if begun.cell.lock().is_over {
        // Nobody waits for it any more.
        return;
    }
    let Some(channel) = stubs.channels.get_mut(&number) else {
        return;
    };
    match &mut channel.way {
        Way::Up { session, service } => {
            let (session, service) = (*session, *service);
            match send(channel, &mut stubs.sent, context, (session, service), &begun) {
                Ok(()) => begun.is_sent = true,
                Err(status) => begun.cell.end(Err(status)),
            }
        }
        Way::Opening { waiting, .. } => wait(waiting, Waiting::Call(begun)),
        Way::Down => reopen(stubs, context, number, Waiting::Call(begun)),
    }
}

fn wait<A: Address + Send + Sync + 'static>(waiting: &mut Vec<Waiting<A>>, more: Waiting<A>) {
    match waiting.len() {
        0..WAITING_MAX => waiting.push(more),
        _ => more.end(Status::resource_exhausted("too many calls wait for the session")),
    }
}

fn reopen<A: Address + Send + Sync + 'static>(
    stubs: &mut Stubs<A>,
    context: &mut Loop<'_, A>,
    number: u64,
    first: Waiting<A>,
) {
    open(stubs, context, number, Box::new(|_| true));
    let Some(channel) = stubs.channels.get_mut(&number) else {
        return first.end(gone());
    };
    match &mut channel.way {
        Way::Opening { waiting, opened } => {
            // The channel stays also when this fails.
            *opened = None;
            waiting.push(first);
        }
        _ => first.end(Status::unavailable("no session can be asked for")),
    }
}

/// Writes a call straight to a message buffer, and sends it.
fn send<A: Address + Send + Sync + 'static>(
    channel: &ChannelState<A>,
    sent: &mut Slab<Sent<A>>,
    context: &mut Loop<'_, A>,
    (session, service): (SessionId, u16),
    begun: &Begun<A>,
) -> Result1<()> {
    let OutboundCall {
        method,
        deadline_ns,
        ref request,
    } = begun.call;
    let response_bytes = channel.response_bytes.get(usize::from(method));
    let response_bytes_max = response_bytes.copied().unwrap_or(RESPONSE_BYTES_AT_FIRST);
    let metadata = request.metadata();
    let head = CallHead {
        service,
        method,
        metadata_bytes: metadata.len() as u32,
        call: begun.cell.lock().number,
        timeout_ns: match deadline_ns {
            0 => 0,
            deadline_ns => deadline_ns.saturating_sub(now_ns()).max(1),
        },
        response_bytes_max,
    };
    let room = CallHead::BYTES + format::padded(metadata) + request.message_bytes_max()?;
    let mut buffer = context.buffer(room);
    buffer.set_length(room);
    let at = format::write_parts(&mut buffer, &[&head.encode(), metadata])?;
    let written = channel
        .codec
        .write(method, Side::Request, request, &mut buffer[at..])?;
    buffer.set_length(at + written);
    let tag = sent.insert(Sent {
        channel: begun.channel,
        method,
        cell: begun.cell.clone(),
    }) as u64;
    let call = Call {
        method: format::CALL,
        tag,
        request: buffer,
        response: context.buffer(response_bytes_max as usize),
    };
    context
        .enqueue_request(session, call, completed)
        .map_err(|refused| {
            take(sent, tag);
            status_of_error(refused.error)
        })
}

fn completed<A: Address + Send + Sync + 'static>(
    stubs: &mut Stubs<A>,
    context: &mut Loop<'_, A>,
    completion: Completion,
) {
    if completion.outcome == Ok(LARGE) {
        return fetch(stubs, context, &completion);
    }
    if let Some(sent) = take(&mut stubs.sent, completion.tag) {
        let channel = stubs.channels.get(&sent.channel);
        let result = match channel {
            Some(channel) => read(
                &channel.codec,
                sent.method,
                completion.outcome,
                &completion.response,
            ),
            None => Err(gone()),
        };
        sent.cell.end(result);
        if let Some(channel) = channel {
            // What there is no room for is made anew.
            let _ = channel.idle.push(sent.cell);
        }
    }
    context.recycle(completion.request);
    context.recycle(completion.response);
}

/// Asks for a response that needs a larger buffer, and keeps larger ones ready from now on.
fn fetch<A: Address + Send + Sync + 'static>(
    stubs: &mut Stubs<A>,
    context: &mut Loop<'_, A>,
    completion: &Completion,
) {
    let Some(sent) = usize::try_from(completion.tag)
        .ok()
        .and_then(|place| stubs.sent.get(place))
    else {
        return;
    };
    let number = sent.cell.lock().number;
    let bytes = completion
        .response
        .first_chunk()
        .map(|bytes| u32::from_le_bytes(*bytes));
    let Some(bytes) = bytes.filter(|bytes| *bytes <= RESPONSE_BYTES_MAX) else {
        let longer = Status::internal("the peer's response is longer than any");
        return end_sent(stubs, completion.tag, longer);
    };
    if let Some(channel) = stubs.channels.get_mut(&sent.channel)
        && let Some(ready) = channel.response_bytes.get_mut(usize::from(sent.method))
    {
        *ready = bytes
            .next_power_of_two()
            .clamp(*ready, RESPONSE_BYTES_READY_MAX.max(*ready));
    }
    let call = context.call_of(format::FETCH, &number.to_le_bytes(), bytes as usize);
    let call = Call {
        tag: completion.tag,
        ..call
    };
    if let Err(refused) = context.enqueue_request(completion.session, call, completed) {
        end_sent(stubs, completion.tag, status_of_error(refused.error));
    }
}

fn end_sent<A: Address + Send + Sync + 'static>(stubs: &mut Stubs<A>, tag: u64, status: Status) {
    if let Some(sent) = take(&mut stubs.sent, tag) {
        sent.cell.end(Err(status));
    }
}

fn read(
    codec: &Codec,
    method: u16,
    outcome: Result<u16, RpcError>,
    response: &MsgBuf,
) -> Result1<InboundResponse> {
    let code = Code::from_number(outcome.map_err(status_of_error)?.into());
    let (metadata, trailers, message) = format::split_answer(response)
        .ok_or_else(|| Status::internal("the peer's response is shorter than its parts"))?;
    if code != Code::Ok {
        return Err(status_of(code, trailers));
    }
    Ok(InboundResponse {
        metadata: metadata_of(metadata)?,
        message: codec.read(method, Side::Response, message)?,
        trailers: metadata_of(trailers)?,
    })
}

/// Tells the server that nobody waits for a call any more.
fn cancel<A: Address + Send + Sync + 'static>(
    stubs: &mut Stubs<A>,
    context: &mut Loop<'_, A>,
    number: u64,
    call: u64,
) {
    let channel = stubs.channels.get(&number);
    if let Some(Way::Up { session, .. }) = channel.map(|channel| &channel.way) {
        send_cancelled(context, *session, call);
    }
}

/// Has the server answer a LISTEN that waits, so that the session can end.
fn listen_no_more<A: Address + Send + Sync + 'static>(context: &mut Loop<'_, A>, session: SessionId) {
    send_cancelled(context, session, format::LISTEN_CALL);
}

fn send_cancelled<A: Address + Send + Sync + 'static>(
    context: &mut Loop<'_, A>,
    session: SessionId,
    call: u64,
) {
    let request = context.call_of(format::CANCEL, &call.to_le_bytes(), 0);
    // If it cannot be told, the session is over or full of calls, and the answer is dropped when it comes.
    let _ = context.enqueue_request(session, request, |_, context, completion| {
        context.recycle(completion.request);
        context.recycle(completion.response);
    });
}
