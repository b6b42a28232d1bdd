//! Services without a node: [`InProcessServer`] runs their handlers in the task that calls them.
//!
//! ```text
//!   client ─ Channel ─► InProcessService ─ copied, checked ─► handler
//!          ◄──────────────────────────── copied, checked ◄──
//! ```
//!
//! Generated clients, handlers, interceptors, streams with their windows, deadlines and cancellation are those of a real
//! connection; what a node adds (policies, peers elsewhere, the loss of either) is not there.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use provost_wire::Code;
use provost_wire::limits::{STREAM_MESSAGE_COST_BYTES, STREAM_WINDOW_BYTES};

use crate::channel::Channel;
use crate::descriptor::ServiceDescriptor;
use crate::linked::{
    Answer, Answering, Arrival, CallOver, Codec, EgressEvent, Inbound, InboundCall, InboundResponse,
    Outbound, OutboundCall, OutboundStream, PendingCall, Requests, Side, StreamEnd, Transport, metadata_of,
    status_of,
};
use crate::metadata::MetadataMap;
use crate::offered::OfferedService;
use crate::peer::{Peer, PeerApp};
use crate::server::{BoxedHandler, ServerBuilder, ServerRules, Service};
use crate::status::Status;
use crate::waker_list::wake;

/// Services that are called within this process, without a node: for unit tests of services and of what calls them. Made by
/// [`ServerBuilder::in_process`](crate::ServerBuilder::in_process).
///
/// A handler runs whenever its caller's future is polled, and nowhere else: there is no other thread, and a test is over when
/// its calls are.
///
/// ```no_run
/// # async fn test(kv: impl provost::codegen::Service, service: &'static provost::codegen::ServiceDescriptor) -> Result<(), provost::Status> {
/// let server = provost::Server::builder().add_service(kv).in_process()?;
/// let channel = server.channel(service)?;
/// // let client = KvClient::new(channel);
/// # Ok(())
/// # }
/// ```
pub struct InProcessServer {
    offered: Vec<Arc<OfferedService>>,
    peer: Option<Peer>,
}

impl ServerBuilder {
    /// Has the services called within this process, without a node, for unit tests. Interceptors and bounds of messages hold
    /// there too; how handlers are spawned and how many run at a time does not matter.
    ///
    /// # Errors
    /// If the generated code is not of one piece, or there is no memory for messages.
    pub fn in_process(self) -> Result<InProcessServer, Status> {
        let (services, rules) = self.into_parts();
        InProcessServer::new(&services, &Arc::new(rules))
    }
}

impl InProcessServer {
    fn new(services: &[Box<dyn Service>], rules: &Arc<ServerRules>) -> Result<InProcessServer, Status> {
        let offered = services
            .iter()
            .map(|service| OfferedService::new(&**service, rules).map(Arc::new));
        Ok(InProcessServer {
            offered: offered.collect::<Result<_, _>>()?,
            peer: None,
        })
    }

    /// The same, with handlers and interceptors that see this app as who calls ([`Request::peer`](crate::Request::peer)).
    #[must_use]
    pub fn called_by(mut self, app: PeerApp<'_>) -> InProcessServer {
        self.peer = Some(Peer::in_process(app));
        self
    }

    /// A channel to one of the services.
    ///
    /// # Errors
    /// `NOT_FOUND` if the service is not there.
    pub fn channel(&self, service: &'static ServiceDescriptor) -> Result<Channel, Status> {
        let is_wanted = |offered: &&Arc<OfferedService>| std::ptr::eq(offered.descriptor(), service);
        let offered = self.offered.iter().find(is_wanted);
        let offered = offered.ok_or_else(|| Status::not_found(format!("nobody serves {}", service.name)))?;
        Ok(Channel::linked(Arc::new(InProcessService {
            offered: offered.clone(),
            peer: self.peer.clone(),
        })))
    }
}

impl std::fmt::Debug for InProcessServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.offered.iter().map(|offered| offered.descriptor().name);
        f.debug_list().entries(names).finish()
    }
}

impl Channel {
    /// A channel to a service within this process, without a node; see [`InProcessServer`].
    ///
    /// # Errors
    /// If the generated code is not of one piece, or there is no memory for messages.
    pub fn in_process(service: impl Service) -> Result<Channel, Status> {
        let descriptor = service.descriptor();
        let services: [Box<dyn Service>; 1] = [Box::new(service)];
        InProcessServer::new(&services, &Arc::default())?.channel(descriptor)
    }
}

/// One service, as its clients reach it.
struct InProcessService {
    offered: Arc<OfferedService>,
    peer: Option<Peer>,
}

impl InProcessService {
    fn handler(&self, method: u16, call: InboundCall) -> Result<BoxedHandler, Status> {
        self.offered.kind(method)?;
        self.offered
            .spawnable(method, call)
            .ok_or_else(|| Status::unimplemented("the server does not implement this method"))
    }

    fn begin_unary(&self, call: &OutboundCall, answering: Arc<AnswerSlot>) -> Result<BoxedHandler, Status> {
        let request = delivered(self.offered.codec(), call.method, Side::Request, &call.request)?;
        let inbound = InboundCall {
            requests: Requests::One(request),
            metadata: metadata_of(call.request.metadata())?,
            deadline_ns: call.deadline_ns,
            peer: self.peer.clone(),
            answering,
        };
        self.handler(call.method, inbound)
    }
}

impl Transport for InProcessService {
    fn service(&self) -> &'static ServiceDescriptor {
        self.offered.descriptor()
    }

    fn call(&self, call: OutboundCall) -> Arc<dyn PendingCall> {
        let answer = Arc::new(AnswerSlot::default());
        let handler = self.begin_unary(&call, answer.clone());
        if let Err(status) = &handler {
            answer.answer(Answer::error(status));
        }
        Arc::new(UnaryCall {
            codec: self.offered.codec().clone(),
            method: call.method,
            answer,
            handler: Mutex::new(handler.ok()),
        })
    }

    fn stream(&self, call: OutboundStream) -> Arc<dyn StreamEnd> {
        let directions = Arc::new(StreamDirections {
            codec: self.offered.codec().clone(),
            method: call.method,
            directions: [StreamDirection::new(), StreamDirection::new()].map(Mutex::new),
        });
        let inbound = InboundCall {
            requests: Requests::Stream(Arc::new(ServerEnd(directions.clone()))),
            metadata: call.metadata,
            deadline_ns: call.deadline_ns,
            peer: self.peer.clone(),
            answering: Arc::new(ServerEnd(directions.clone())),
        };
        let handler = self.handler(call.method, inbound);
        if let Err(status) = &handler {
            directions.end(Err(status.clone()));
        }
        Arc::new(ClientEnd {
            directions,
            handler: Mutex::new(handler.ok()),
        })
    }
}

/// A message as it arrives: written to bytes and read from them, as on any connection.
fn delivered(codec: &Codec, method: u16, side: Side, message: &Outbound) -> Result<Inbound, Status> {
    let mut bytes = vec![0; message.message_bytes_max()?];
    let written = codec.write(method, side, message, &mut bytes)?;
    codec.read(method, side, &bytes[..written])
}

/// Where a handler leaves its answer.
#[derive(Default)]
struct AnswerSlot(Mutex<Option<Answer>>);

impl Answering for AnswerSlot {
    fn answer(&self, answer: Answer) {
        lock(&self.0).get_or_insert(answer);
    }
}

/// A unary call; polling it lets its handler go on.
struct UnaryCall {
    codec: Arc<Codec>,
    method: u16,
    answer: Arc<AnswerSlot>,
    handler: Mutex<Option<BoxedHandler>>,
}

impl UnaryCall {
    fn response(&self, answer: &Answer) -> Result<InboundResponse, Status> {
        let block = answer.message.metadata();
        if answer.code != Code::Ok {
            return Err(status_of(answer.code, block));
        }
        Ok(InboundResponse {
            metadata: answer.metadata.clone(),
            message: delivered(&self.codec, self.method, Side::Response, &answer.message)?,
            trailers: metadata_of(block)?,
        })
    }
}

impl PendingCall for UnaryCall {
    fn poll(&self, context: &mut Context<'_>) -> Poll<Result<InboundResponse, Status>> {
        poll_handler(&self.handler, context);
        let answer = lock(&self.answer.0).take();
        answer.map_or(Poll::Pending, |answer| Poll::Ready(self.response(&answer)))
    }

    fn cancel(&self) {
        let handler = lock(&self.handler).take();
        drop(handler);
    }
}

/// Lets a handler go on; it is dropped when it is through.
fn poll_handler(handler: &Mutex<Option<BoxedHandler>>, context: &mut Context<'_>) {
    let mut handler = lock(handler);
    if let Some(running) = &mut *handler
        && running.as_mut().poll(context).is_ready()
    {
        let over = handler.take();
        drop(handler);
        drop(over);
    }
}

/// A call with a stream: what is on its way to the handler, and to the client.
struct StreamDirections {
    codec: Arc<Codec>,
    method: u16,
    /// By the side that sends.
    directions: [Mutex<StreamDirection>; 2],
}

/// One direction of a stream. Its window bounds how much is in it. Wakers are woken and dropped without its lock: one may be the last owner of
/// a task that has another end of the call.
struct StreamDirection {
    /// With what each counts as in the window, in bytes.
    arrivals: VecDeque<(Arrival, u32)>,
    window: i64,
    is_closed: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl StreamDirection {
    fn new() -> StreamDirection {
        StreamDirection {
            arrivals: VecDeque::new(),
            window: STREAM_WINDOW_BYTES.into(),
            is_closed: false,
            reader: None,
            writer: None,
        }
    }

    /// What has arrived next, and who is to be woken as there is room for more.
    fn take(&mut self) -> Option<(Arrival, Option<Waker>)> {
        let (arrival, cost_bytes) = self.arrivals.pop_front()?;
        self.window += i64::from(cost_bytes);
        Some((arrival, self.writer.take()))
    }

    /// Says who is to be woken for it.
    #[must_use]
    fn put(&mut self, arrival: Arrival, cost_bytes: u32) -> Option<Waker> {
        if self.is_closed {
            return None;
        }
        self.window -= i64::from(cost_bytes);
        self.arrivals.push_back((arrival, cost_bytes));
        self.reader.take()
    }

    /// Says who is to be woken for it.
    #[must_use]
    fn close(&mut self) -> [Option<Waker>; 2] {
        self.is_closed = true;
        [self.reader.take(), self.writer.take()]
    }
}

impl StreamDirections {
    fn direction(&self, from: Side) -> MutexGuard<'_, StreamDirection> {
        lock(&self.directions[from as usize])
    }

    fn poll_window(&self, from: Side, context: &mut Context<'_>) -> Poll<Result<(), CallOver>> {
        let mut direction = self.direction(from);
        if direction.is_closed {
            return Poll::Ready(Err(CallOver));
        }
        if direction.window > 0 {
            return Poll::Ready(Ok(()));
        }
        let replaced = direction.writer.replace(context.waker().clone());
        drop(direction);
        drop(replaced);
        Poll::Pending
    }

    /// What has arrived next, if something has.
    fn take(&self, from: Side) -> Option<Arrival> {
        let taken = self.direction(from).take();
        let (arrival, writer) = taken?;
        writer.into_iter().for_each(wake);
        Some(arrival)
    }

    fn poll_arrival(&self, from: Side, context: &mut Context<'_>) -> Poll<Arrival> {
        let mut direction = self.direction(from);
        if let Some((arrival, writer)) = direction.take() {
            drop(direction);
            writer.into_iter().for_each(wake);
            return Poll::Ready(arrival);
        }
        if direction.is_closed {
            return Poll::Ready(Arrival::Ended(Err(Status::cancelled("the call is over"))));
        }
        let replaced = direction.reader.replace(context.waker().clone());
        drop(direction);
        drop(replaced);
        Poll::Pending
    }

    fn send(&self, from: Side, egress_event: EgressEvent) {
        let (arrival, cost_bytes) = match egress_event {
            EgressEvent::Metadata(metadata) => (Arrival::Metadata(metadata), 0),
            EgressEvent::EndOfRequests => (Arrival::EndOfRequests, 0),
            EgressEvent::Message(message) => {
                let bytes = message.message_bytes_max().unwrap_or_default() as u32;
                match delivered(&self.codec, self.method, from, &message) {
                    Ok(message) => (Arrival::Message(message), bytes + STREAM_MESSAGE_COST_BYTES),
                    Err(status) => return self.end(Err(status)),
                }
            }
        };
        let reader = self.direction(from).put(arrival, cost_bytes);
        reader.into_iter().for_each(wake);
    }

    /// Tells the client what the call came to. Nobody reads requests any more.
    fn end(&self, result: Result<MetadataMap, Status>) {
        let mut responses = self.direction(Side::Response);
        let reader = responses.put(Arrival::Ended(result), 0);
        let closed = responses.close();
        drop(responses);
        let requests = self.direction(Side::Request).close();
        let wakers = [reader].into_iter().chain(closed).chain(requests);
        wakers.flatten().for_each(wake);
    }
}

/// The end of a call with a stream that a client has; polling it lets the handler go on.
struct ClientEnd {
    directions: Arc<StreamDirections>,
    handler: Mutex<Option<BoxedHandler>>,
}

impl StreamEnd for ClientEnd {
    fn poll_arrival(&self, context: &mut Context<'_>) -> Poll<Arrival> {
        if let Some(arrival) = self.directions.take(Side::Response) {
            return Poll::Ready(arrival);
        }
        poll_handler(&self.handler, context);
        self.directions.poll_arrival(Side::Response, context)
    }

    fn poll_window(&self, context: &mut Context<'_>) -> Poll<Result<(), CallOver>> {
        self.directions.poll_window(Side::Request, context)
    }

    fn send(&self, egress_event: EgressEvent) {
        self.directions.send(Side::Request, egress_event);
    }

    fn cancel(&self, code: Code) {
        let handler = lock(&self.handler).take();
        drop(handler);
        self.directions
            .end(Err(Status::new(code, "the client gave the call up")));
    }
}

/// The end of a call with a stream that its handler has.
struct ServerEnd(Arc<StreamDirections>);

impl StreamEnd for ServerEnd {
    fn poll_arrival(&self, context: &mut Context<'_>) -> Poll<Arrival> {
        self.0.poll_arrival(Side::Request, context)
    }

    fn poll_window(&self, context: &mut Context<'_>) -> Poll<Result<(), CallOver>> {
        self.0.poll_window(Side::Response, context)
    }

    fn send(&self, egress_event: EgressEvent) {
        self.0.send(Side::Response, egress_event);
    }

    fn cancel(&self, code: Code) {
        self.0.end(Err(Status::new(code, "the server gave the call up")));
    }
}

impl Answering for ServerEnd {
    fn answer(&self, answer: Answer) {
        let trailers = answer.message.metadata().to_vec();
        if answer.code != Code::Ok {
            return self.0.end(Err(status_of(answer.code, &trailers)));
        }
        if !answer.metadata.is_empty() {
            self.send(EgressEvent::Metadata(answer.metadata));
        }
        if answer.message.has_message() {
            self.send(EgressEvent::Message(answer.message));
        }
        self.0.end(metadata_of(&trailers));
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
