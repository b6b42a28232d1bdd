//! A call as its handler sees it: what was asked, and the ways to answer.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use futures_core::Stream;
use provost_wire::Code;
use provost_wire::descriptor::{Completion, Parts, Submission};

use super::LinkedCall;
use crate::call::{Reader, Sender, Step, error_code, read_step, trailers_of};
use crate::call_limits::{CallLimits, MessageBounds, check_received, check_size};
use crate::link::{CANCELLED, CallId, Link, LocalEnd, OutgoingMessage, PeerSource, SubmitError, WireCall};
use crate::message::Message;
use crate::metadata::MetadataMap;
use crate::received::Received;
use crate::request::{Request, Response};
use crate::status::Status;
use crate::streaming::Streaming;

/// A call as its handler has it, by whatever way it came.
pub(crate) enum ServerCall {
    /// By the node's service.
    Managed(ManagedCall),
    /// By a transport of the program itself.
    Linked(LinkedCall),
}

impl ServerCall {
    /// Says how long its messages may be.
    pub(crate) fn bound_messages(&mut self, messages: MessageBounds) {
        match self {
            ServerCall::Managed(call) => call.messages = messages,
            ServerCall::Linked(call) => call.bound_messages(messages),
        }
    }

    /// The one request of the call.
    pub(crate) async fn single_request<Req: Message>(&mut self) -> Result<Request<Received<Req>>, Status> {
        match self {
            ServerCall::Managed(call) => match call.whole_request() {
                Some(request) => request,
                None => call.single_request().await,
            },
            ServerCall::Linked(call) => call.single_request().await,
        }
    }

    /// The requests of the call.
    pub(crate) fn request_stream<Req: Message>(&mut self) -> Result<Request<Streaming<Req>>, Status> {
        match self {
            ServerCall::Managed(call) => call.request_stream(),
            ServerCall::Linked(call) => call.request_stream(),
        }
    }

    /// Answers with one message, or with an error.
    pub(crate) async fn answer<Resp: Message>(&mut self, result: Result<Response<Resp>, Status>) {
        match self {
            ServerCall::Managed(call) => {
                if let Some(unsent) = call.answer(result) {
                    call.send_late(unsent).await;
                }
            }
            ServerCall::Linked(call) => call.answer(result),
        }
    }

    /// Answers with a stream of messages, or with an error.
    pub(crate) async fn answer_stream<Resp, S>(&mut self, result: Result<Response<S>, Status>)
    where
        Resp: Message,
        S: Stream<Item = Result<Resp, Status>>,
    {
        match self {
            ServerCall::Managed(call) => call.answer_stream(result).await,
            ServerCall::Linked(call) => call.answer_stream(result).await,
        }
    }
}

/// What is left to be sent of an answer.
struct UnsentAnswer {
    headers: Option<OutgoingMessage>,
    code: Code,
    /// The last message, if there is one, with what goes with the status.
    last: OutgoingMessage,
}

/// A call that must be answered. Dropping it without an answer answers with why its handler was dropped.
pub(crate) struct ManagedCall {
    link: Arc<Link>,
    id: CallId,
    wire: WireCall,
    begin: Option<Completion>,
    deadline_ns: u64,
    messages: MessageBounds,
    is_answered: bool,
}

impl ManagedCall {
    /// The call that this step has begun; `None` if it is over already.
    pub(crate) fn new(link: &Arc<Link>, begin: Completion) -> Option<ManagedCall> {
        let id = CallId(begin.call);
        let Some(wire) = link.calls.state(id).map(|state| state.wire) else {
            link.reclaim(begin.block);
            return None;
        };
        Some(ManagedCall {
            link: link.clone(),
            id,
            wire,
            deadline_ns: begin.deadline_ns,
            begin: Some(begin),
            messages: MessageBounds::default(),
            is_answered: false,
        })
    }

    pub(crate) fn id(&self) -> CallId {
        self.id
    }

    pub(crate) fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// The one request of a call that came whole; none if it did not.
    fn whole_request<Req: Message>(&mut self) -> Option<Result<Request<Received<Req>>, Status>> {
        let begin = self.begin.as_ref()?;
        begin
            .parts
            .contains(Parts::MESSAGE)
            .then(|| self.first_step())
            .map(|step| {
                let step: Step<Req> = step?;
                let message = step.message.ok_or_else(no_request)?;
                self.request(message, step.metadata.unwrap_or_default())
            })
    }

    /// The one request of the call.
    async fn single_request<Req: Message>(&mut self) -> Result<Request<Received<Req>>, Status> {
        let mut reader = self.reader();
        let mut step: Step<Req> = self.first_step()?;
        let metadata = step.metadata.take().unwrap_or_default();
        loop {
            if let Some(message) = step.message {
                return self.request(message, metadata);
            }
            if step.is_end {
                return Err(no_request());
            }
            step = poll_fn(|context| reader.poll_step(context))
                .await
                .map_err(status_of)?;
        }
    }

    fn request<Req: Message>(
        &self,
        message: Received<Req>,
        metadata: MetadataMap,
    ) -> Result<Request<Received<Req>>, Status> {
        check_received(&*message, self.messages.request_bytes_max)?;
        Ok(Request::from_parts(message, metadata, self.limits()).with_peer(self.peer()))
    }

    /// The requests of the call.
    pub(crate) fn request_stream<Req: Message>(&mut self) -> Result<Request<Streaming<Req>>, Status> {
        let mut first: Step<Req> = self.first_step()?;
        let metadata = first.metadata.take().unwrap_or_default();
        let requests = Streaming::of_server(self.reader(), first).bounded(self.messages.request_bytes_max);
        Ok(Request::from_parts(requests, metadata, self.limits()).with_peer(self.peer()))
    }

    fn reader(&self) -> Reader {
        Reader::new(self.link.clone(), self.id, self.wire)
    }

    fn first_step<Req: Message>(&mut self) -> Result<Step<Req>, Status> {
        let begin = self
            .begin
            .take()
            .ok_or_else(|| Status::internal("the request was read twice"))?;
        read_step(&self.link, &begin).map_err(status_of)
    }

    fn peer(&self) -> PeerSource {
        PeerSource::Link {
            link: self.link.clone(),
            connection: self.wire.connection,
        }
    }

    fn limits(&self) -> CallLimits {
        CallLimits {
            deadline_ns: self.deadline_ns,
            ..CallLimits::default()
        }
    }

    /// Answers with one message, or with an error; what found no room is to be [sent late](ManagedCall::send_late).
    fn answer<Resp: Message>(&mut self, result: Result<Response<Resp>, Status>) -> Option<UnsentAnswer> {
        let whole = result.and_then(|response| {
            let (message, metadata, trailers) = response.into_parts();
            let mut outgoing = self.outgoing(message)?;
            outgoing.set_metadata(&trailers)?;
            let headers = (!metadata.is_empty()).then(|| OutgoingMessage::of_metadata(&metadata));
            Ok((headers.transpose()?, outgoing))
        });
        let (code, headers, last) = match whole {
            Ok((headers, last)) => (Code::Ok, headers, last),
            Err(status) => (error_code(&status), None, trailers_of(&status)),
        };
        self.send(UnsentAnswer { headers, code, last })
    }

    /// Sends an answer as far as there is room; what is left of it.
    fn send(&mut self, mut answer: UnsentAnswer) -> Option<UnsentAnswer> {
        if let Some(headers) = &mut answer.headers {
            match self.link.submit(self.step(Parts::HEADERS), headers) {
                Ok(()) => answer.headers = None,
                Err(SubmitError::Full) => return Some(answer),
                Err(_) => return None,
            }
        }
        let step = self.last_step(answer.code, &answer.last);
        let sent = self.link.submit(step, &mut answer.last);
        self.is_answered = sent.is_ok();
        (sent == Err(SubmitError::Full)).then_some(answer)
    }

    /// Sends what is left of an answer when there is room. A call that ends before is answered with that once dropped.
    async fn send_late(&mut self, answer: UnsentAnswer) {
        if let Some(headers) = answer.headers {
            let step = self.step(Parts::HEADERS);
            if self.sender().send(step, headers).await.is_err() {
                return;
            }
        }
        let step = self.last_step(answer.code, &answer.last);
        self.is_answered = self.sender().send(step, answer.last).await.is_ok();
    }

    /// The step that says how the call ended, with the last message if there is one.
    fn last_step(&self, code: Code, last: &OutgoingMessage) -> Submission {
        let parts = match last.root() {
            0 => Parts::STATUS,
            _ => Parts::MESSAGE | Parts::STATUS,
        };
        Submission {
            status_or_window: code.number(),
            ..self.step(parts)
        }
    }

    /// Answers with a stream of messages, or with an error.
    async fn answer_stream<Resp, S>(&mut self, result: Result<Response<S>, Status>)
    where
        Resp: Message,
        S: Stream<Item = Result<Resp, Status>>,
    {
        let result = match result {
            Ok(response) => self.send_stream(response).await,
            Err(status) => Err(status),
        };
        let (code, last) = match result {
            Ok(trailers) => (Code::Ok, trailers),
            Err(status) => (error_code(&status), trailers_of(&status)),
        };
        let headers = None;
        self.send_late(UnsentAnswer { headers, code, last }).await;
    }

    /// Sends a stream to its end; what goes with its status.
    async fn send_stream<Resp, S>(&self, response: Response<S>) -> Result<OutgoingMessage, Status>
    where
        Resp: Message,
        S: Stream<Item = Result<Resp, Status>>,
    {
        let (messages, metadata, trailers) = response.into_parts();
        let mut messages = pin!(messages);
        let mut sender = self.sender();
        // The client waits for the first step: if there is a message already, it serves for that.
        let mut next = poll_fn(|context| Poll::Ready(messages.as_mut().poll_next(context))).await;
        if !metadata.is_empty() || next.is_pending() {
            self.send_headers(&metadata).await?;
        }
        loop {
            let message = match next {
                Poll::Ready(message) => message,
                Poll::Pending => poll_fn(|context| messages.as_mut().poll_next(context)).await,
            };
            let Some(message) = message.transpose()? else {
                break;
            };
            poll_fn(|context| sender.poll_window(context))
                .await
                .map_err(status_of)?;
            sender
                .stream_message(self.outgoing(message)?)
                .await
                .map_err(status_of)?;
            next = Poll::Pending;
        }
        Ok(OutgoingMessage::of_metadata(&trailers)?)
    }

    fn outgoing<Resp: Message>(&self, message: Resp) -> Result<OutgoingMessage, Status> {
        let outgoing = OutgoingMessage::message(message)?;
        let bytes_max = self.messages.response_bytes_max;
        check_size(&outgoing, self.link.message_bytes_max.min(bytes_max))?;
        Ok(outgoing)
    }

    async fn send_headers(&self, metadata: &MetadataMap) -> Result<(), Status> {
        let step = self.step(Parts::HEADERS);
        let outgoing = OutgoingMessage::of_metadata(metadata)?;
        self.sender().send(step, outgoing).await.map_err(status_of)
    }

    /// Answers with an error at once.
    pub(crate) fn refuse(mut self, status: &Status) {
        self.send_status(status);
        self.is_answered = true;
    }

    /// Sends a status without waiting for room: with its message if there is some, bare if not.
    fn send_status(&self, status: &Status) {
        let mut step = self.step(Parts::STATUS);
        step.status_or_window = error_code(status).number();
        if self.link.submit(step, &mut trailers_of(status)).is_err() {
            self.link.submit_eventually(&step);
        }
    }

    fn sender(&self) -> Sender {
        Sender::new(self.link.clone(), self.id, self.wire)
    }

    fn step(&self, parts: Parts) -> Submission {
        Submission {
            parts,
            ..self.wire.step()
        }
    }
}

impl Drop for ManagedCall {
    fn drop(&mut self) {
        if let Some(begin) = self.begin.take() {
            self.link.reclaim(begin.block);
        }
        if !self.is_answered {
            match self.link.calls.ended(self.id) {
                // The handler's panic drops what its future holds on its way out.
                None if std::thread::panicking() => {
                    self.send_status(&Status::internal("the handler panicked"))
                }
                None => self.send_status(&Status::unavailable("the server stopped")),
                Some(end) if end.code == CANCELLED.code || self.link.is_dead() => {}
                Some(end) => self.send_status(&status_of(end)),
            }
        }
        self.link.close(self.id);
    }
}

fn no_request() -> Status {
    Status::invalid_argument("the client sent no request")
}

fn status_of(end: LocalEnd) -> Status {
    Status::new(end.code, end.reason)
}
