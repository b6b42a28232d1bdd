//! Services: calls that arrive become handlers that run, in the event loop or elsewhere, and their answers responses.

mod streams;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as TaskContext, Wake, Waker};

use crossbeam_queue::ArrayQueue;
use provost::codegen::MethodKind;
use provost::linked::{Answer, Answering, InboundCall, Requests, Side, block_of, metadata_of};
use provost::offered::{Handling, Offered};
use provost::{Code, Spawn, Status};
use provost_datagram::{Address, MsgBuf, RequestHandle, SessionId};
use provost_shm::now_ns;

use super::format::{self, CallHead, HASH_BYTES, LARGE};
use super::stream::Ready;
use super::{CallName, Kept, Stubs};
use crate::context::Context;
use crate::handlers::Request;
use crate::mailbox::Remote;
use streams::Session;

/// Calls that are handled at a time; further ones are refused.
const TASKS_MAX: usize = 4096;
/// Bytes of responses that wait to be fetched; a further one is answered as an error.
const KEPT_BYTES_MAX: usize = 256 << 20;
/// Of those a session may have so many times as much as it leaves to the others.
const SHARE_OF_ROOM: usize = 2;

type Loop<'c, A> = Context<'c, A, Stubs<A>>;

/// Services and the calls that they handle.
pub(super) struct Tasks<A: Address + Send + Sync + 'static> {
    services: Vec<Offered>,
    tasks: Vec<Task<A>>,
    idle: Vec<u32>,
    ready: Arc<ArrayQueue<u32>>,
    remote: Option<Remote<A, Stubs<A>>>,
    spawner: Option<Arc<dyn Spawn>>,
    kept: HashMap<CallName, Kept>,
    kept_bytes: usize,
    sessions: HashMap<SessionId, Session>,
    ready_streams: Arc<Ready>,
}

/// Room for a call that is handled.
struct Task<A: Address + Send + Sync + 'static> {
    /// The call; `None` if there is none, or nobody waits for it any more.
    call: Option<Origin>,
    /// Its handler, if it runs here.
    handling: Option<Handling>,
    cell: Arc<Cell<A>>,
    waker: Waker,
}

/// Where a call came from.
#[derive(Clone, Copy)]
struct Origin {
    name: CallName,
    service: usize,
    method: u16,
    reply: Reply,
}

/// How a call is answered.
#[derive(Clone, Copy)]
enum Reply {
    /// By the response to its request, for which the client has room.
    Response { handle: RequestHandle, bytes_max: u32 },
    /// By frames.
    Stream,
}

/// What other threads reach of a task.
struct Cell<A: Address + Send + Sync + 'static> {
    index: u32,
    is_queued: AtomicBool,
    ready: Arc<ArrayQueue<u32>>,
    remote: Remote<A, Stubs<A>>,
    answer: Mutex<Option<Answer>>,
}

impl<A: Address + Send + Sync + 'static> Wake for Cell<A> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.queue();
    }
}

impl<A: Address + Send + Sync + 'static> Cell<A> {
    fn queue(&self) {
        if !self.is_queued.swap(true, Ordering::SeqCst) {
            // Each task is in the queue once at most, and the queue has room for all.
            let _ = self.ready.push(self.index);
            self.remote.ring();
        }
    }

    fn take(&self) -> Option<Answer> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<A: Address + Send + Sync + 'static> Answering for Cell<A> {
    fn answer(&self, answer: Answer) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        self.queue();
    }
}

impl<A: Address + Send + Sync + 'static> Tasks<A> {
    pub(super) fn new(
        (services, spawner): (Vec<Offered>, Option<Arc<dyn Spawn>>),
        ready_streams: Arc<Ready>,
    ) -> Self {
        Self {
            services,
            tasks: Vec::new(),
            idle: Vec::new(),
            ready: Arc::new(ArrayQueue::new(TASKS_MAX)),
            remote: None,
            spawner,
            kept: HashMap::new(),
            kept_bytes: 0,
            sessions: HashMap::new(),
            ready_streams,
        }
    }

    pub(super) fn set_remote(&mut self, remote: Remote<A, Stubs<A>>) {
        self.remote = Some(remote);
    }

    /// Tells the number of a service.
    pub(super) fn bind(&mut self, context: &mut Loop<'_, A>, request: &mut Request<'_>) {
        let (status, number) = match request.bytes().split_first_chunk::<HASH_BYTES>() {
            Some((hash, name)) => self.number_of(name, hash),
            None => (Code::InvalidArgument, 0),
        };
        let number = (number as u16).to_le_bytes();
        // If the session is over by now, nobody waits for this.
        let _ = context.respond(request.handle(), status.number() as u16, &number);
    }

    fn number_of(&self, name: &[u8], hash: &[u8; HASH_BYTES]) -> (Code, usize) {
        let is_meant = |offered: &Offered| offered.descriptor().name.as_bytes() == name;
        match self.services.iter().position(is_meant) {
            None => (Code::Unimplemented, 0),
            Some(number) if self.services[number].descriptor().schema_hash == hash => (Code::Ok, number),
            Some(_) => (Code::FailedPrecondition, 0),
        }
    }

    /// Begins to handle a call.
    pub(super) fn begin(&mut self, context: &mut Loop<'_, A>, request: &mut Request<'_>) {
        let handle = request.handle();
        let begun = match CallHead::split(request.bytes()) {
            None => Err((Status::invalid_argument("a call without its head"), None)),
            Some((head, metadata, message)) => {
                let origin = Origin {
                    name: (handle.session(), head.call),
                    service: usize::from(head.service),
                    method: head.method,
                    reply: Reply::Response {
                        handle,
                        bytes_max: head.response_bytes_max,
                    },
                };
                self.request_of(&origin, message)
                    .and_then(|request| self.start(&origin, head.timeout_ns, metadata, request))
                    .map_err(|status| (status, Some(origin)))
            }
        };
        match begun {
            Ok(index) => self.poll(context, index),
            Err((status, Some(origin))) => self.respond(context, &origin, Answer::error(&status)),
            Err((status, None)) => {
                let _ = context.respond(handle, status.code().number() as u16, &[0; 8]);
            }
        }
    }

    /// The request of a unary call.
    fn request_of(&self, origin: &Origin, message: &[u8]) -> Result<Requests, Status> {
        let service = self
            .services
            .get(origin.service)
            .ok_or_else(|| Status::unimplemented("there is no such service here"))?;
        match service.kind(origin.method)? {
            MethodKind::Unary => {}
            _ => return Err(Status::invalid_argument("the method takes or gives a stream")),
        }
        let request = service.codec().read(origin.method, Side::Request, message)?;
        Ok(Requests::One(request))
    }

    fn start(
        &mut self,
        origin: &Origin,
        timeout_ns: u64,
        metadata: &[u8],
        requests: Requests,
    ) -> Result<u32, Status> {
        let metadata = metadata_of(metadata)?;
        let index = self.room()?;
        let task = &mut self.tasks[index as usize];
        let call = InboundCall {
            requests,
            metadata,
            deadline_ns: match timeout_ns {
                0 => 0,
                timeout_ns => now_ns().saturating_add(timeout_ns),
            },
            peer: None,
            answering: task.cell.clone(),
        };
        task.call = Some(*origin);
        let service = &mut self.services[origin.service];
        match &self.spawner {
            Some(spawner) => {
                let handler = service.spawnable(origin.method, call);
                handler.into_iter().for_each(|handler| spawner.spawn(handler));
            }
            None => task.handling = service.start(origin.method, call),
        }
        Ok(index)
    }

    fn room(&mut self) -> Result<u32, Status> {
        if let Some(index) = self.idle.pop() {
            return Ok(index);
        }
        let remote = self.remote.clone().filter(|_| self.tasks.len() < TASKS_MAX);
        let remote = remote.ok_or_else(|| Status::resource_exhausted("the server handles too many calls"))?;
        let index = self.tasks.len() as u32;
        let cell = Arc::new(Cell {
            index,
            is_queued: AtomicBool::new(false),
            ready: self.ready.clone(),
            remote,
            answer: Mutex::new(None),
        });
        self.tasks.push(Task {
            call: None,
            handling: None,
            waker: cell.clone().into(),
            cell,
        });
        Ok(index)
    }

    /// Lets those go on that want to.
    pub(super) fn poll_ready(&mut self, context: &mut Loop<'_, A>) {
        for _ in 0..self.ready.len() {
            let Some(index) = self.ready.pop() else { return };
            self.tasks[index as usize]
                .cell
                .is_queued
                .store(false, Ordering::SeqCst);
            self.poll(context, index);
        }
    }

    /// Lets a handler go on, and sends its answer if there is one.
    fn poll(&mut self, context: &mut Loop<'_, A>, index: u32) {
        let task = &mut self.tasks[index as usize];
        let is_through = match &mut task.handling {
            Some(handling) => handling
                .poll(&mut TaskContext::from_waker(&task.waker))
                .is_ready(),
            None => false,
        };
        // A handler that runs elsewhere is through when it answers.
        let answer = task.cell.take();
        if !is_through && (answer.is_none() || task.handling.is_some()) {
            return;
        }
        let call = task.call;
        self.finish(index);
        if let (Some(origin), Some(answer)) = (call, answer) {
            self.respond(context, &origin, answer);
        }
    }

    /// Makes room for another call.
    fn finish(&mut self, index: u32) {
        let task = &mut self.tasks[index as usize];
        let (call, handling) = (task.call.take(), task.handling.take());
        if let (Some(origin), Some(handling)) = (call, handling) {
            self.services[origin.service].finished(handling);
        }
        self.idle.push(index);
    }

    fn respond(&mut self, context: &mut Loop<'_, A>, origin: &Origin, answer: Answer) {
        let Reply::Response { handle, bytes_max } = origin.reply else {
            return self.answer_stream(origin.name, answer);
        };
        let code = answer.code;
        let (code, response) = match self.encode(context, origin, answer) {
            Ok(response) => (code, response),
            Err(status) => {
                let error = Answer::error(&status);
                let error = self.encode(context, origin, error);
                (status.code(), error.unwrap_or_default())
            }
        };
        let reply = (handle, origin.name, bytes_max);
        self.send_or_keep(context, reply, code.number() as u16, response);
    }

    /// Sends a response, or keeps it if the client has no room for it, and says so.
    fn send_or_keep(
        &mut self,
        context: &mut Loop<'_, A>,
        (handle, name, bytes_max): (RequestHandle, CallName, u32),
        status: u16,
        response: MsgBuf,
    ) {
        if response.len() <= bytes_max as usize {
            // If the session is over by now, nobody waits for this.
            let _ = context.respond_buffer(handle, status, response);
            return;
        }
        let bytes = response.len();
        if !self.may_keep(name.0, bytes) {
            let full = Code::ResourceExhausted.number() as u16;
            let _ = context.respond(handle, full, &[0; format::ANSWER_HEAD_BYTES]);
            return;
        }
        self.kept_bytes += bytes;
        // A client that uses a number twice has given the first call up.
        if let Some((_, replaced)) = self.kept.insert(name, (status, response)) {
            self.kept_bytes -= replaced.len();
            context.recycle(replaced);
        }
        let _ = context.respond(handle, LARGE, &(bytes as u32).to_le_bytes());
    }

    /// Whether there is room for so much more of a session, and it leaves enough to the others.
    fn may_keep(&self, session: SessionId, bytes: usize) -> bool {
        let Some(left) = KEPT_BYTES_MAX.checked_sub(self.kept_bytes + bytes) else {
            return false;
        };
        let of_session = self.kept.iter().filter(|(name, _)| name.0 == session);
        let kept: usize = of_session.map(|(_, (_, response))| response.len()).sum();
        kept + bytes <= SHARE_OF_ROOM * left
    }

    /// Writes an answer straight to a message buffer.
    fn encode(&self, context: &mut Loop<'_, A>, origin: &Origin, answer: Answer) -> Result<MsgBuf, Status> {
        let (metadata, trailers) = (block_of(&answer.metadata), answer.message.metadata());
        let message_bytes = if answer.message.has_message() {
            answer.message.message_bytes_max()?
        } else {
            0
        };
        let room =
            format::ANSWER_HEAD_BYTES + format::padded(metadata) + format::padded(trailers) + message_bytes;
        let mut buffer = context.buffer(room);
        buffer.set_length(room);
        let head = format::answer_head(metadata, trailers);
        let at = format::write_parts(&mut buffer, &[&head, metadata, trailers])?;
        let written = match (message_bytes, self.services.get(origin.service)) {
            (0, _) | (_, None) => 0,
            (_, Some(service)) => {
                let codec = service.codec();
                codec.write(origin.method, Side::Response, &answer.message, &mut buffer[at..])?
            }
        };
        buffer.set_length(at + written);
        let bytes_max = context.response_bytes_max();
        if buffer.len() > bytes_max {
            let bytes = buffer.len();
            context.recycle(buffer);
            return Err(format::too_large("response", bytes, bytes_max));
        }
        Ok(buffer)
    }

    /// Sends a response that was larger than its first buffer.
    pub(super) fn fetch(&mut self, context: &mut Loop<'_, A>, request: &mut Request<'_>) {
        let handle = request.handle();
        let kept = format::long(request.bytes()).and_then(|call| self.kept.remove(&(handle.session(), call)));
        match kept {
            Some((status, response)) => {
                self.kept_bytes -= response.len();
                let _ = context.respond_buffer(handle, status, response);
            }
            None => {
                let lost = Code::DataLoss.number() as u16;
                let _ = context.respond(handle, lost, &[0; format::ANSWER_HEAD_BYTES]);
            }
        }
    }

    /// Stops a call for which nobody waits any more.
    pub(super) fn cancel(&mut self, context: &mut Loop<'_, A>, request: &mut Request<'_>) {
        let handle = request.handle();
        if let Some(call) = format::long(request.bytes()) {
            let name = (handle.session(), call);
            match call {
                format::LISTEN_CALL => self.listen_no_more(context, handle.session()),
                _ => self.stop(context, |other| other == name),
            }
            if let Some((_, response)) = self.kept.remove(&name) {
                self.kept_bytes -= response.len();
                context.recycle(response);
            }
        }
        let _ = context.respond(handle, 0, &[]);
    }

    pub(super) fn session_ended(&mut self, context: &mut Loop<'_, A>, session: SessionId) {
        self.stop(context, |(other, _)| other == session);
        self.end_streams(session);
        let kept_bytes = &mut self.kept_bytes;
        self.kept.retain(|name, (_, response)| {
            let stays = name.0 != session;
            *kept_bytes -= if stays { 0 } else { response.len() };
            stays
        });
    }

    /// Drops the handlers of these calls, and answers them as cancelled.
    fn stop(&mut self, context: &mut Loop<'_, A>, is_meant: impl Fn(CallName) -> bool) {
        for index in 0..self.tasks.len() {
            let task = &self.tasks[index];
            let Some(origin) = task.call.filter(|origin| is_meant(origin.name)) else {
                continue;
            };
            self.stop_task(index as u32);
            self.respond(
                context,
                &origin,
                Answer::error(&Status::cancelled("the client gave it up")),
            );
        }
    }

    /// Drops a handler, or forgets one that runs elsewhere.
    fn stop_task(&mut self, index: u32) {
        let task = &mut self.tasks[index as usize];
        let Some(handling) = &mut task.handling else {
            task.call = None;
            return;
        };
        handling.stop();
        // What it said when it was dropped is not what the client is told.
        let _ = task.cell.take();
        self.finish(index);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use provost_datagram::{Config, Endpoint, Payload};

    use super::*;
    use crate::buffers::Buffers;
    use crate::carrier::CarrierRef;
    use crate::context::{Stage, Tables};
    use crate::pending::Pending;

    /// What a server without services has, and a context to call it in.
    fn with_tasks(act: impl FnOnce(&mut Tasks<u8>, &mut Loop<'_, u8>)) {
        let config = Config {
            secret: [1, 2],
            ..Config::default()
        };
        let mut endpoint: Endpoint<u8> = Endpoint::new(config).unwrap();
        let mut tables = Tables {
            pending: Pending::default(),
            buffers: Buffers::new(1 << 20),
            sessions: HashSet::new(),
            connecting: HashMap::new(),
            stage: Stage::Open,
        };
        let mut context = Context {
            carrier: CarrierRef::Software(&mut endpoint),
            tables: &mut tables,
            now_ns: 1,
        };
        let mut tasks = Tasks::<u8>::new((Vec::new(), None), Arc::default());
        act(&mut tasks, &mut context);
    }

    #[test]
    fn a_client_that_fetches_nothing_leaves_others_room() {
        with_tasks(|tasks, context| {
            let mut keep = |session: u64, call: u64| {
                let session = SessionId::from_bits(session);
                let mut response = context.buffer(64 << 20);
                response.set_length(64 << 20);
                let reply = (RequestHandle::new(session, 0, 1), (session, call), 0);
                tasks.send_or_keep(context, reply, 0, response);
                let kept = tasks.kept.keys().filter(|(other, _)| *other == session);
                kept.count()
            };
            assert_eq!([1, 2, 3].map(|call| keep(1, call)), [1, 2, 2]);
            assert_eq!([1, 2].map(|call| keep(2, call)), [1, 1]);
        });
    }

    #[test]
    fn a_response_that_is_kept_in_the_place_of_another_is_counted_alone() {
        with_tasks(keep_in_the_place_of_another);
    }

    fn keep_in_the_place_of_another(tasks: &mut Tasks<u8>, context: &mut Loop<'_, u8>) {
        let session = SessionId::from_bits(1);
        // A client that has no room for what it is told, fetches nothing, and gives all its calls one number.
        let head = CallHead {
            service: 0,
            method: 0,
            metadata_bytes: 0,
            call: 7,
            timeout_ns: 0,
            response_bytes_max: 0,
        };
        let bytes = head.encode();
        for slot in 0..3 {
            let mut request = Request {
                handle: RequestHandle::new(session, slot, 1),
                request_type: format::CALL,
                payload: Payload::Borrowed(&bytes),
            };
            tasks.begin(context, &mut request);
        }
        let kept: Vec<usize> = tasks.kept.values().map(|(_, response)| response.len()).collect();
        assert_eq!(kept.len(), 1);
        assert_eq!(tasks.kept_bytes, kept[0]);
        tasks.session_ended(context, session);
        assert_eq!((tasks.kept_bytes, tasks.kept.len()), (0, 0));
    }
}
