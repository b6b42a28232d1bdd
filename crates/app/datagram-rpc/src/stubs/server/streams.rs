//! The calls with streams of a server, by session: frames that arrive go to their ends, and what these have to say goes
//! out as the answer to the client's LISTEN.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use provost::codegen::MethodKind;
use provost::linked::{Answer, Arrival, Requests, Side};
use provost::{Code, Status};
use provost_datagram::{Address, RequestHandle, SessionId};

use super::{Loop, Origin, Reply, Tasks};
use crate::handlers::Request;
use crate::stubs::CallName;
use crate::stubs::format;
use crate::stubs::frames::{self, BeginHead, FrameHead, kind};
use crate::stubs::stream::{BatchBounds, Cell, Held, NewCell, Place, STREAMS_MAX, batch_of};

/// The calls with streams of one session.
#[derive(Default)]
pub(super) struct Session {
    calls: HashMap<u64, Served>,
    /// Those that have something to send.
    waiting: VecDeque<Arc<Cell>>,
    /// A LISTEN that waits, and how many bytes its client has room for.
    listener: Option<(RequestHandle, u32)>,
    /// The client listens no more.
    is_closing: bool,
}

struct Served {
    cell: Arc<Cell>,
    /// The room of its handler; `None` if it has none.
    task: Option<u32>,
}

impl<A: Address + Send + Sync + 'static> Tasks<A> {
    /// Takes frames from a client.
    pub(in crate::stubs) fn receive(&mut self, context: &mut Loop<'_, A>, request: &mut Request<'_>) {
        let handle = request.handle();
        let mut bytes = request.bytes();
        let mut code = Code::Ok;
        while !bytes.is_empty() {
            let Some((head, payload, rest)) = frames::split(bytes) else {
                code = Code::InvalidArgument;
                break;
            };
            self.take_frame(context, handle.session(), &head, payload);
            bytes = rest;
        }
        // If the session is over by now, nobody waits for this.
        let _ = context.respond(handle, code.number() as u16, &[]);
    }

    fn take_frame(
        &mut self,
        context: &mut Loop<'_, A>,
        session: SessionId,
        head: &FrameHead,
        payload: &[u8],
    ) {
        let calls = self.sessions.get(&session).map(|session| &session.calls);
        let served = calls.and_then(|calls| calls.get(&head.call));
        let Some(cell) = served.map(|served| served.cell.clone()) else {
            if head.kind == kind::BEGIN {
                self.begin_stream(context, (session, head.call), payload);
            }
            // What comes late for a call that is over finds nobody.
            return;
        };
        let taken = match head.kind {
            kind::MESSAGE => cell.message(Side::Request, head, payload),
            kind::END => {
                cell.arrived(Arrival::EndOfRequests);
                Ok(())
            }
            kind::WINDOW => {
                cell.widen(head.value);
                Ok(())
            }
            kind::CANCEL => {
                let code = Code::from_number(head.value);
                return self.end_stream((session, head.call), &Status::new(code, "the client gave it up"));
            }
            _ => Err(Status::invalid_argument(
                "the frames of a stream are of an unknown kind",
            )),
        };
        if let Err(status) = taken {
            self.abort((session, head.call), &status);
        }
    }

    fn begin_stream(&mut self, context: &mut Loop<'_, A>, name: CallName, payload: &[u8]) {
        let (session_id, call) = name;
        let session = self.sessions.entry(session_id).or_default();
        if session.calls.len() >= STREAMS_MAX {
            // No client of ours does this.
            return context.reset(session_id);
        }
        let head = BeginHead::split(payload);
        let service = head.and_then(|(head, _)| self.services.get(usize::from(head.service)));
        let (Some((head, metadata)), Some(service)) = (head, service) else {
            // There is no codec to answer with: BIND gave the number of a service, so this client made its own.
            return context.reset(session_id);
        };
        let new = NewCell {
            call,
            place: Place::Server(session_id),
            method: head.method,
            codec: service.codec().clone(),
        };
        let cell = Cell::new(&self.ready_streams, new);
        let streams = service.kind(head.method).and_then(|kind| match kind {
            MethodKind::Unary => Err(Status::invalid_argument("the method takes and gives no stream")),
            _ => Ok(()),
        });
        let origin = Origin {
            name,
            service: usize::from(head.service),
            method: head.method,
            reply: Reply::Stream,
        };
        let requests = Requests::Stream(Arc::new(Held(cell.clone())));
        let started = streams.and_then(|()| self.start(&origin, head.timeout_ns, metadata, requests));
        let task = match started {
            Ok(index) => {
                self.tasks[index as usize].cell.queue();
                Some(index)
            }
            Err(status) => {
                cell.answer(Answer::error(&status));
                None
            }
        };
        if let Some(session) = self.sessions.get_mut(&session_id) {
            session.calls.insert(call, Served { cell, task });
        }
    }

    /// What a call came to.
    pub(super) fn answer_stream(&mut self, name: CallName, answer: Answer) {
        let calls = self.sessions.get(&name.0).map(|session| &session.calls);
        if let Some(served) = calls.and_then(|calls| calls.get(&name.1)) {
            served.cell.answer(answer);
        }
    }

    /// Ends a call with an error of which its client is told.
    fn abort(&mut self, name: CallName, status: &Status) {
        if let Some(index) = self.task_of(name) {
            self.stop_task(index);
        }
        self.answer_stream(name, Answer::error(status));
    }

    /// Ends a call of which its client wants to know nothing more.
    fn end_stream(&mut self, name: CallName, status: &Status) {
        if let Some(index) = self.task_of(name) {
            self.stop_task(index);
        }
        let session = self.sessions.get_mut(&name.0);
        if let Some(served) = session.and_then(|session| session.calls.remove(&name.1)) {
            served.cell.end(Err(status.clone()));
        }
    }

    /// The room of a call's handler, if it still has it.
    fn task_of(&self, (session, call): CallName) -> Option<u32> {
        let index = self.sessions.get(&session)?.calls.get(&call)?.task?;
        let origin = self.tasks.get(index as usize)?.call?;
        (origin.name == (session, call)).then_some(index)
    }

    /// Takes a request for what the streams of a session have to say.
    pub(in crate::stubs) fn listen(&mut self, context: &mut Loop<'_, A>, request: &mut Request<'_>) {
        let handle = request.handle();
        let Some(room) = request.bytes().first_chunk() else {
            let _ = context.respond(handle, Code::InvalidArgument.number() as u16, &[]);
            return;
        };
        let session = self.sessions.entry(handle.session()).or_default();
        let room = u32::from_le_bytes(*room);
        if let Some((before, _)) = session.listener.replace((handle, room)) {
            // One that listens twice hears nothing the first time.
            let _ = context.respond(before, 0, &[]);
        }
        self.flush(context, handle.session());
    }

    /// The client listens no more.
    pub(super) fn listen_no_more(&mut self, context: &mut Loop<'_, A>, session: SessionId) {
        let session_state = self.sessions.entry(session).or_default();
        session_state.is_closing = true;
        self.flush(context, session);
    }

    /// An end has something to send.
    pub(in crate::stubs) fn stream_ready(&mut self, session: SessionId, cell: Arc<Cell>) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.waiting.push_back(cell);
        }
    }

    /// Sends what the streams of a session have to say, if somebody listens.
    pub(in crate::stubs) fn flush(&mut self, context: &mut Loop<'_, A>, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some((handle, room)) = session.listener else {
            return;
        };
        let calls = &mut session.calls;
        let mut failed = Vec::new();
        let bounds = BatchBounds {
            together_bytes: room as usize,
            bytes_max: context.response_bytes_max(),
        };
        let batch = batch_of(context, &mut session.waiting, (0, bounds), |cell, written| {
            if let Err(status) = written {
                failed.push((cell.call, status));
            } else if cell.is_over() {
                calls.remove(&cell.call);
            }
        });
        match batch {
            Some(batch) => {
                session.listener = None;
                let reply = (handle, (id, format::LISTEN_CALL), room);
                self.send_or_keep(context, reply, 0, batch);
            }
            None if session.is_closing => {
                session.listener = None;
                let _ = context.respond(handle, 0, &[]);
            }
            None => {}
        }
        for (call, status) in failed {
            self.abort((id, call), &status);
        }
    }

    /// Ends the calls of a session that is over.
    pub(super) fn end_streams(&mut self, session: SessionId) {
        let Some(session) = self.sessions.remove(&session) else {
            return;
        };
        for served in session.calls.into_values() {
            let lost = Status::unavailable("the session of the client is over");
            served.cell.end(Err(lost));
        }
    }
}
