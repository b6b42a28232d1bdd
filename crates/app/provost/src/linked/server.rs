//! Handlers of a service, for transports that call them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use provost_wire::Code;

use super::codec::{Codec, Inbound, Outbound};
use super::stream::{Arrival, CallOver, EgressEvent, StreamEnd, send_message, step_of};
use crate::call::Step;
use crate::channel::check_size;
use crate::codegen::{Message, MethodKind, Service, ServiceDescriptor, Stream};
use crate::context::{CallContext, poll_within};
use crate::link::OutgoingMessage;
use crate::metadata::MetadataMap;
use crate::peer::{Peer, PeerSource};
use crate::request::{CallLimits, MessageBounds, Request, Response, check_received};
use crate::server::{Bound, BoxedHandler, Place, ServerCall, ServerRules, error_code, trailers_of};
use crate::shared::Received;
use crate::status::Status;
use crate::streaming::Streaming;

/// A service that a transport offers, and places in which its handlers run, used again and again.
pub struct Offered {
    service: OfferedService,
    idle_places: Vec<Vec<Box<dyn Place>>>,
}

/// A service with its handlers, and what reads and writes its messages.
pub(crate) struct OfferedService {
    bound: Bound,
    codec: Arc<Codec>,
}

/// A call that has arrived.
pub struct InboundCall {
    /// What the client sends.
    pub requests: Requests,
    /// The metadata that came with it.
    pub metadata: MetadataMap,
    /// When the call must end, in nanoseconds of CLOCK_MONOTONIC; 0 for never.
    pub deadline_ns: u64,
    /// Who calls, if that is known.
    pub peer: Option<Peer>,
    /// Who is told what it came to.
    pub answering: Arc<dyn Answering>,
}

/// What the client of a call sends.
pub enum Requests {
    /// One message, of a unary call.
    One(Inbound),
    /// What arrives at this end, where responses can be sent too.
    Stream(Arc<dyn StreamEnd>),
}

/// Takes the answer to a call.
pub trait Answering: Send + Sync {
    /// The answer, once.
    fn answer(&self, answer: Answer);
}

/// What a call came to. Of a stream it is what comes after all that was sent.
#[derive(Debug)]
pub struct Answer {
    /// Its code.
    pub code: Code,
    /// The metadata block that precedes the message.
    pub metadata: MetadataMap,
    /// The message, if there is one, and the block that follows it.
    pub message: Outbound,
}

/// A handler that runs.
pub struct Handling {
    place: Box<dyn Place>,
    method: u16,
    deadline_ns: u64,
    context: CallContext,
    is_whole: bool,
}

impl OfferedService {
    pub(crate) fn new(service: &dyn Service, rules: &Arc<ServerRules>) -> Result<OfferedService, Status> {
        let bound = Bound::new(service, rules);
        Ok(OfferedService {
            codec: Arc::new(Codec::new(bound.descriptor)?),
            bound,
        })
    }

    pub(crate) fn descriptor(&self) -> &'static ServiceDescriptor {
        self.bound.descriptor
    }

    pub(crate) fn codec(&self) -> &Arc<Codec> {
        &self.codec
    }

    /// How messages flow in this method, if it has a handler.
    pub(crate) fn kind(&self, method: u16) -> Result<MethodKind, Status> {
        let described = self.bound.descriptor.methods.get(usize::from(method));
        match (described, self.bound.handler(method)) {
            (Some(described), Some(_)) => Ok(described.kind),
            _ => Err(Status::unimplemented("the server does not implement this method")),
        }
    }

    /// A future that handles a call.
    pub(crate) fn spawnable(&self, method: u16, call: InboundCall) -> Option<BoxedHandler> {
        let deadline_ns = call.deadline_ns;
        let call = ServerCall::Linked(LinkedCall::new(call));
        let handler = self.bound.handler(method)?.boxed(call);
        Some(Box::pin(run(handler, deadline_ns)))
    }
}

impl Offered {
    /// Offers a service.
    ///
    /// # Errors
    /// If the generated code is not of one piece.
    pub fn new(service: &impl Service) -> Result<Offered, Status> {
        let service = OfferedService::new(service, &Arc::default())?;
        let methods = service.descriptor().methods.iter();
        Ok(Offered {
            idle_places: methods.map(|_| Vec::new()).collect(),
            service,
        })
    }

    /// What the service is.
    #[must_use]
    pub fn descriptor(&self) -> &'static ServiceDescriptor {
        self.service.descriptor()
    }

    /// What reads its requests and writes its responses.
    #[must_use]
    pub fn codec(&self) -> &Arc<Codec> {
        self.service.codec()
    }

    /// How messages flow in this method.
    ///
    /// # Errors
    /// There is no such method, or no handler for it.
    pub fn kind(&self, method: u16) -> Result<MethodKind, Status> {
        self.service.kind(method)
    }

    /// Begins to handle a call of a method that [`Offered::kind`] knows; `None` if it does not.
    pub fn start(&mut self, method: u16, call: InboundCall) -> Option<Handling> {
        let idle = self.idle_places.get_mut(usize::from(method))?.pop();
        let mut place = match idle {
            Some(place) => place,
            None => self.service.bound.handler(method)?.place(),
        };
        let deadline_ns = call.deadline_ns;
        place.start(ServerCall::Linked(LinkedCall::new(call)));
        Some(Handling {
            place,
            method,
            deadline_ns,
            context: CallContext::until(deadline_ns),
            is_whole: true,
        })
    }

    /// As [`Offered::start`], as a future that can be run anywhere.
    pub fn spawnable(
        &self,
        method: u16,
        call: InboundCall,
    ) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        self.service.spawnable(method, call)
    }

    /// Keeps the place of a handler that is through.
    pub fn finished(&mut self, handling: Handling) {
        if handling.is_whole
            && let Some(idle) = self.idle_places.get_mut(usize::from(handling.method))
        {
            idle.push(handling.place);
        }
    }
}

/// Runs a handler; a panic ends its call and nothing else.
async fn run(mut handler: BoxedHandler, deadline_ns: u64) {
    let mut own = CallContext::until(deadline_ns);
    std::future::poll_fn(|context| {
        let poll = || poll_within(&mut own, || handler.as_mut().poll(context));
        // What the call came to, `LinkedCall` says when it is dropped.
        catch_unwind(AssertUnwindSafe(poll)).unwrap_or(Poll::Ready(()))
    })
    .await;
}

impl std::fmt::Debug for Offered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Offered").field(&self.descriptor().name).finish()
    }
}

impl std::fmt::Debug for InboundCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InboundCall")
            .field("metadata", &self.metadata)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Handling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handling")
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}

impl Handling {
    /// When its call must end, in nanoseconds of CLOCK_MONOTONIC; 0 for never.
    #[must_use]
    pub fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Lets the handler go on. When it is through, or has panicked, its call has been answered.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let place = &mut self.place;
        let own = &mut self.context;
        let poll = || poll_within(own, || place.poll(context));
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(polled) => polled,
            Err(_) => {
                self.stop();
                self.is_whole = false;
                Poll::Ready(())
            }
        }
    }

    /// Drops the handler where it stands.
    pub fn stop(&mut self) {
        let place = &mut self.place;
        self.is_whole &= catch_unwind(AssertUnwindSafe(|| place.clear())).is_ok();
    }
}

/// A call that must be answered. Dropping it without an answer answers that its handler was dropped.
pub(crate) struct LinkedCall {
    requests: Option<Requests>,
    /// Where responses go, of a stream.
    stream: Option<Arc<dyn StreamEnd>>,
    metadata: MetadataMap,
    deadline_ns: u64,
    peer: Option<Peer>,
    messages: MessageBounds,
    answering: Option<Arc<dyn Answering>>,
}

impl LinkedCall {
    fn new(call: InboundCall) -> LinkedCall {
        let stream = match &call.requests {
            Requests::One(_) => None,
            Requests::Stream(end) => Some(end.clone()),
        };
        LinkedCall {
            requests: Some(call.requests),
            stream,
            metadata: call.metadata,
            deadline_ns: call.deadline_ns,
            peer: call.peer,
            messages: MessageBounds::default(),
            answering: Some(call.answering),
        }
    }

    pub(crate) fn bound_messages(&mut self, messages: MessageBounds) {
        self.messages = messages;
    }

    /// The one request of the call.
    pub(crate) async fn single_request<Req: Message>(&mut self) -> Result<Request<Received<Req>>, Status> {
        let message: Received<Req> = match self.take_requests()? {
            Requests::One(message) => message.received()?,
            Requests::Stream(end) => first_message(&*end).await?,
        };
        check_received(&*message, self.messages.request_bytes_max)?;
        Ok(self.request(message))
    }

    /// The requests of the call.
    pub(crate) fn request_stream<Req: Message>(&mut self) -> Result<Request<Streaming<Req>>, Status> {
        match self.take_requests()? {
            Requests::Stream(end) => {
                let requests = Streaming::of_linked_server(end);
                Ok(self.request(requests.bounded(self.messages.request_bytes_max)))
            }
            Requests::One(_) => Err(Status::internal("a call with one request is read as a stream")),
        }
    }

    fn take_requests(&mut self) -> Result<Requests, Status> {
        self.requests
            .take()
            .ok_or_else(|| Status::internal("the request was read twice"))
    }

    fn request<T>(&mut self, message: T) -> Request<T> {
        let limits = CallLimits {
            deadline_ns: self.deadline_ns,
            ..CallLimits::default()
        };
        let request = Request::from_parts(message, std::mem::take(&mut self.metadata), limits);
        match self.peer.take() {
            Some(peer) => request.with_peer(PeerSource::Known(peer)),
            None => request,
        }
    }

    /// Answers with one message, or with an error.
    pub(crate) fn answer<Resp: Message>(mut self, result: Result<Response<Resp>, Status>) {
        let bytes_max = self.messages.response_bytes_max;
        let answer = result.and_then(|response| {
            let (message, metadata, trailers) = response.into_parts();
            let outgoing = OutgoingMessage::message(message)?.with_metadata(&trailers)?;
            check_size(&outgoing, bytes_max)?;
            Ok(Answer {
                code: Code::Ok,
                metadata,
                message: Outbound::new(outgoing),
            })
        });
        self.send_answer(answer.unwrap_or_else(|status| Answer::error(&status)));
    }

    /// Answers with a stream of messages, or with an error.
    pub(crate) async fn answer_stream<Resp, S>(mut self, result: Result<Response<S>, Status>)
    where
        Resp: Message,
        S: Stream<Item = Result<Resp, Status>>,
    {
        let result = match (result, self.stream.clone()) {
            (Ok(response), Some(end)) => {
                send_responses(&*end, response, self.messages.response_bytes_max).await
            }
            (Ok(_), None) => Err(Status::internal("a unary call is answered with a stream")),
            (Err(status), _) => Err(status),
        };
        let answer = result.and_then(|trailers| {
            let outgoing = OutgoingMessage::default().with_metadata(&trailers)?;
            Ok(Answer {
                code: Code::Ok,
                metadata: MetadataMap::new(),
                message: Outbound::new(outgoing),
            })
        });
        self.send_answer(answer.unwrap_or_else(|status| Answer::error(&status)));
    }

    fn send_answer(&mut self, answer: Answer) {
        if let Some(answering) = self.answering.take() {
            answering.answer(answer);
        }
    }
}

/// Waits for the one request of a call that is answered with a stream.
async fn first_message<Req: Message>(end: &dyn StreamEnd) -> Result<Received<Req>, Status> {
    loop {
        let arrival = std::future::poll_fn(|context| end.poll_arrival(context)).await;
        if let Arrival::Ended(result) = arrival {
            return Err(result
                .err()
                .unwrap_or_else(|| Status::cancelled("the call is over")));
        }
        let step: Step<Req> = step_of(arrival)?;
        match step.message {
            Some(message) => return Ok(message),
            None if step.is_end => return Err(Status::invalid_argument("the client sent no request")),
            None => {}
        }
    }
}

/// Sends a stream to its end; what follows it.
async fn send_responses<Resp, S>(
    end: &dyn StreamEnd,
    response: Response<S>,
    bytes_max: u32,
) -> Result<MetadataMap, Status>
where
    Resp: Message,
    S: Stream<Item = Result<Resp, Status>>,
{
    let (messages, metadata, trailers) = response.into_parts();
    let mut messages = pin!(messages);
    // The client waits for the first step: if there is a message already, it serves for that.
    let mut next = std::future::poll_fn(|context| Poll::Ready(messages.as_mut().poll_next(context))).await;
    if !metadata.is_empty() || next.is_pending() {
        end.send(EgressEvent::Metadata(metadata));
    }
    loop {
        let message = match next {
            Poll::Ready(message) => message,
            Poll::Pending => std::future::poll_fn(|context| messages.as_mut().poll_next(context)).await,
        };
        let Some(message) = message.transpose()? else {
            return Ok(trailers);
        };
        let passes = std::future::poll_fn(|context| end.poll_window(context)).await;
        passes.map_err(|CallOver| Status::cancelled("the call is over"))?;
        let outgoing = OutgoingMessage::message(message)?;
        check_size(&outgoing, bytes_max)?;
        send_message(end, outgoing)?;
        next = Poll::Pending;
    }
}

impl Answer {
    /// An error.
    #[must_use]
    pub fn error(status: &Status) -> Answer {
        Answer {
            code: error_code(status),
            metadata: MetadataMap::new(),
            message: Outbound::new(trailers_of(status)),
        }
    }
}

impl Drop for LinkedCall {
    fn drop(&mut self) {
        if self.answering.is_none() {
            return;
        }
        // The handler's panic drops what its future holds on its way out.
        let status = if std::thread::panicking() {
            Status::internal("the handler panicked")
        } else {
            Status::unavailable("the server stopped")
        };
        self.send_answer(Answer::error(&status));
    }
}
