//! Channels: their sessions, their calls, and the responses.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Poll, Waker};

use provost::codegen::ServiceDescriptor;
use provost::linked::{
    Codec, InboundResponse, OutboundCall, PendingCall, Side, Transport, metadata_of, status_of,
};
use provost::{Code, Status};
use provost_datagram::{Address, Call, MsgBuf, SessionId};
use provost_shm::now_ns;

use super::format::{self, CallHead, HASH_BYTES, LARGE};
use super::{Stubs, gone, status_of_error, status_of_mailbox};
use crate::context::Context;
use crate::error::RpcError;
use crate::mailbox::Remote;
use crate::pending::Completion;

/// Room for a response whose size nobody knows, in bytes.
const RESPONSE_BYTES_AT_FIRST: u32 = 1024;
/// The most that is kept ready for a response; larger ones are fetched, in a round trip more.
const RESPONSE_BYTES_READY_MAX: u32 = 256 << 10;
/// Calls that wait for a session at most.
const WAITING_MAX: usize = 1024;

type Loop<'c, A> = Context<'c, A, Stubs<A>>;
/// Is told whether a channel has its session.
type Opened = Box<dyn FnOnce(Result<(), Status>) + Send>;
type Result1<T> = Result<T, Status>;

/// A channel, in the event loop.
pub(super) struct ChannelState {
    service: &'static ServiceDescriptor,
    codec: Arc<Codec>,
    way: Way,
    /// For each method, what its responses needed.
    response_bytes: Vec<u32>,
}

enum Way {
    Down,
    Opening {
        waiting: Vec<Begun>,
        opened: Option<Opened>,
    },
    Up {
        session: SessionId,
        service: u16,
    },
}

/// A call that was made.
struct Begun {
    call: OutboundCall,
    cell: Arc<Cell>,
    /// Its continuation will run.
    is_sent: bool,
}

/// What a call came to, for the task that made it.
struct Cell {
    number: u64,
    state: Mutex<CellState>,
    cancel: Box<dyn Fn(u64) + Send + Sync>,
}

#[derive(Default)]
struct CellState {
    waker: Option<Waker>,
    result: Option<Result1<InboundResponse>>,
    is_over: bool,
}

/// A channel, as its clients have it.
pub(super) struct LinkedChannel<A: Address + Send + Sync + 'static> {
    service: &'static ServiceDescriptor,
    number: u64,
    to: A,
    remote: Remote<A, Stubs<A>>,
    calls: AtomicU64,
}

impl<A: Address + Send + Sync + 'static> LinkedChannel<A> {
    pub(super) fn new(
        service: &'static ServiceDescriptor,
        (number, to): (u64, A),
        remote: Remote<A, Stubs<A>>,
    ) -> Self {
        Self {
            service,
            number,
            to,
            remote,
            calls: AtomicU64::new(1),
        }
    }
}

impl<A: Address + Send + Sync + 'static> Transport for LinkedChannel<A> {
    fn service(&self) -> &'static ServiceDescriptor {
        self.service
    }

    fn call(&self, call: OutboundCall) -> Arc<dyn PendingCall> {
        let (channel, remote) = (self.number, self.remote.clone());
        let cell = Arc::new(Cell {
            number: self.calls.fetch_add(1, Ordering::Relaxed),
            state: Mutex::default(),
            cancel: Box::new(move |number| {
                // Without room the server's answer is for nobody, which does no harm.
                let _ = remote.run(move |stubs, context| cancel(stubs, context, channel, number));
            }),
        });
        let begun = Begun {
            call,
            cell: cell.clone(),
            is_sent: false,
        };
        let (channel, to) = (self.number, self.to);
        if let Err(error) = self
            .remote
            .run(move |stubs, context| begin(stubs, context, (channel, to), begun))
        {
            cell.end(Err(status_of_mailbox(&error)));
        }
        cell
    }
}

impl<A: Address + Send + Sync + 'static> Drop for LinkedChannel<A> {
    fn drop(&mut self) {
        let number = self.number;
        // If the event loop takes nothing now, the session stays until it ends.
        let _ = self.remote.run(move |stubs, context| {
            if let Some(channel) = stubs.channels.remove(&number)
                && let Way::Up { session, .. } = channel.way
            {
                context.disconnect(session);
            }
        });
    }
}

impl Cell {
    fn end(&self, result: Result1<InboundResponse>) {
        let mut state = self.lock();
        if state.is_over {
            return;
        }
        state.is_over = true;
        state.result = Some(result);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, CellState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingCall for Cell {
    fn poll(&self, context: &mut TaskContext<'_>) -> Poll<Result1<InboundResponse>> {
        let mut state = self.lock();
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None if state.is_over => Poll::Ready(Err(gone())),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    fn cancel(&self) {
        let was_over = std::mem::replace(&mut self.lock().is_over, true);
        if !was_over {
            (self.cancel)(self.number);
        }
    }
}

impl Drop for Begun {
    /// If the event loop ends before it has begun the call, nobody else would say so.
    fn drop(&mut self) {
        if !self.is_sent {
            self.cell.end(Err(gone()));
        }
    }
}

impl ChannelState {
    pub(super) fn new(service: &'static ServiceDescriptor, codec: Arc<Codec>) -> Self {
        Self {
            service,
            codec,
            way: Way::Down,
            response_bytes: vec![RESPONSE_BYTES_AT_FIRST; service.methods.len()],
        }
    }

    pub(super) fn session_ended(&mut self, ended: SessionId) {
        if matches!(self.way, Way::Up { session, .. } if session == ended) {
            self.way = Way::Down;
        }
    }
}

/// Opens a channel's session, and asks for the service there.
pub(super) fn open<A: Address + Send + Sync + 'static>(
    stubs: &mut Stubs<A>,
    context: &mut Loop<'_, A>,
    (number, to): (u64, A),
    opened: Opened,
) {
    let Some(channel) = stubs.channels.get_mut(&number) else {
        return opened(Err(gone()));
    };
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
        bound(stubs, context, (number, session, to), completion);
    });
    if let Err(refused) = asked {
        not_opened(stubs, number, &status_of_error(refused.error));
    }
}

fn bound<A: Address + Send + Sync + 'static>(
    stubs: &mut Stubs<A>,
    context: &mut Loop<'_, A>,
    (number, session, to): (u64, SessionId, A),
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
            opened.into_iter().for_each(|opened| opened(Ok(())));
            for begun in waiting {
                begin(stubs, context, (number, to), begun);
            }
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

fn not_opened<A>(stubs: &mut Stubs<A>, number: u64, status: &Status) {
    let Some(channel) = stubs.channels.get_mut(&number) else {
        return;
    };
    if let Way::Opening { waiting, opened } = std::mem::replace(&mut channel.way, Way::Down) {
        for begun in waiting {
            begun.cell.end(Err(status.clone()));
        }
        if let Some(opened) = opened {
            // Whoever asked for the channel gets none.
            stubs.channels.remove(&number);
            opened(Err(status.clone()));
        }
    }
}

/// Makes a call, as soon as there is a session.
fn begin<A: Address + Send + Sync + 'static>(
    stubs: &mut Stubs<A>,
    context: &mut Loop<'_, A>,
    (number, to): (u64, A),
    mut begun: Begun,
) {
    let Some(channel) = stubs.channels.get_mut(&number) else {
        return;
    };
    match &mut channel.way {
        Way::Up { session, service } => {
            let (session, service) = (*session, *service);
            match send(channel, context, (number, session, service), &begun) {
                Ok(()) => begun.is_sent = true,
                Err(status) => begun.cell.end(Err(status)),
            }
        }
        Way::Opening { waiting, .. } if waiting.len() < WAITING_MAX => waiting.push(begun),
        Way::Opening { .. } => {
            let full = Status::resource_exhausted("too many calls wait for the session");
            begun.cell.end(Err(full));
        }
        Way::Down => {
            reopen(stubs, context, (number, to), begun);
        }
    }
}

fn reopen<A: Address + Send + Sync + 'static>(
    stubs: &mut Stubs<A>,
    context: &mut Loop<'_, A>,
    (number, to): (u64, A),
    begun: Begun,
) {
    open(stubs, context, (number, to), Box::new(|_| {}));
    let Some(channel) = stubs.channels.get_mut(&number) else {
        return;
    };
    if let Way::Opening { waiting, opened } = &mut channel.way {
        // The channel stays also when this fails.
        *opened = None;
        waiting.push(begun);
    }
}

/// Writes a call straight to a message buffer, and sends it.
fn send<A: Address + Send + Sync + 'static>(
    channel: &ChannelState,
    context: &mut Loop<'_, A>,
    (number, session, service): (u64, SessionId, u16),
    begun: &Begun,
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
        call: begun.cell.number,
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
    let call = Call {
        method: format::CALL,
        tag: 0,
        request: buffer,
        response: context.buffer(response_bytes_max as usize),
    };
    let cell = begun.cell.clone();
    context
        .enqueue_request(session, call, move |stubs, context, completion| {
            completed(stubs, context, (number, method, cell), completion);
        })
        .map_err(|refused| status_of_error(refused.error))
}

fn completed<A: Address + Send + Sync + 'static>(
    stubs: &mut Stubs<A>,
    context: &mut Loop<'_, A>,
    (number, method, cell): (u64, u16, Arc<Cell>),
    completion: Completion,
) {
    if completion.outcome == Ok(LARGE) {
        return fetch(stubs, context, (number, method, cell), &completion);
    }
    let codec = stubs.channels.get(&number).map(|channel| &channel.codec);
    let result = match codec {
        Some(codec) => read(codec, method, completion.outcome, &completion.response),
        None => Err(gone()),
    };
    cell.end(result);
    context.recycle(completion.request);
    context.recycle(completion.response);
}

/// Asks for a response that needs a larger buffer, and keeps larger ones ready from now on.
fn fetch<A: Address + Send + Sync + 'static>(
    stubs: &mut Stubs<A>,
    context: &mut Loop<'_, A>,
    (number, method, cell): (u64, u16, Arc<Cell>),
    completion: &Completion,
) {
    let bytes = completion
        .response
        .first_chunk()
        .map(|bytes| u32::from_le_bytes(*bytes));
    let Some(bytes) = bytes.filter(|bytes| *bytes <= provost_wire::limits::MESSAGE_BYTES_MAX + (64 << 10))
    else {
        return cell.end(Err(Status::internal("the peer's response is longer than any")));
    };
    if let Some(channel) = stubs.channels.get_mut(&number)
        && let Some(ready) = channel.response_bytes.get_mut(usize::from(method))
    {
        *ready = bytes
            .next_power_of_two()
            .clamp(*ready, RESPONSE_BYTES_READY_MAX.max(*ready));
    }
    let call = context.call_of(format::FETCH, &cell.number.to_le_bytes(), bytes as usize);
    let theirs = cell.clone();
    let asked = context.enqueue_request(completion.session, call, move |stubs, context, completion| {
        completed(stubs, context, (number, method, theirs), completion);
    });
    if let Err(refused) = asked {
        cell.end(Err(status_of_error(refused.error)));
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
    let Some(Way::Up { session, .. }) = stubs.channels.get(&number).map(|channel| &channel.way) else {
        return;
    };
    let request = context.call_of(format::CANCEL, &call.to_le_bytes(), 0);
    // If it cannot be told, the session is over or full of calls, and the answer is dropped when it comes.
    let _ = context.enqueue_request(*session, request, |_, context, completion| {
        context.recycle(completion.request);
        context.recycle(completion.response);
    });
}
