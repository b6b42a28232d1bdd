//! The four kinds of calls, as generated clients make them.

use std::task::{Poll, ready};

use futures_core::Stream;
use provost_wire::descriptor::Parts;

use crate::call::Step;
use crate::call_limits::{CallLimits, check_received, check_size};
use crate::channel::Channel;
use crate::descriptor::MethodKind;
#[cfg(feature = "tower")]
use crate::intercept::CallPath;
#[cfg(feature = "tower")]
use crate::layer::through_in_time;
use crate::link::OutgoingMessage;
use crate::linked::{self, EgressEvent, LinkedStream};
use crate::message::Message;
use crate::metadata::MetadataMap;
use crate::received::Received;
use crate::request::{Payload, Request, Response};
use crate::status::Status;
use crate::streaming::{Pump, StreamCall, Streaming, poll_pump};

const WHOLE_REQUEST: Parts = Parts::BEGIN.with(Parts::MESSAGE).with(Parts::END);

/// Calls a unary method. `method` is its index in the service's descriptor.
pub async fn unary<Req: Message, Resp: Message>(
    channel: &Channel,
    method: u16,
    mut request: Request<impl Payload<Req>>,
) -> Result<Response<Received<Resp>>, Status> {
    check_method::<Req, Resp>(channel, method, MethodKind::Unary)?;
    channel.prepare(method, &mut request)?;
    #[cfg(feature = "tower")]
    if let Some(layers) = channel.layers() {
        let path = CallPath::of(channel.service(), method);
        let channel = channel.clone();
        let send = move |request| async move {
            let (outgoing, limits) = whole_request::<Req>(request)?;
            send_unary(&channel, method, outgoing, limits).await
        };
        return through_in_time(layers, (path, MethodKind::Unary), request, send).await;
    }
    let (outgoing, limits) = whole_request(request)?;
    send_unary(channel, method, outgoing, limits).await
}

async fn send_unary<Resp: Message>(
    channel: &Channel,
    method: u16,
    mut outgoing: OutgoingMessage,
    limits: CallLimits,
) -> Result<Response<Received<Resp>>, Status> {
    if let Some(transport) = channel.transport() {
        return linked::unary(&**transport, method, outgoing, limits).await;
    }
    let mut call = match channel.begin_now(method, WHOLE_REQUEST, &mut outgoing, limits) {
        Some(call) => call,
        None => channel.begin(method, WHOLE_REQUEST, outgoing, limits).await?,
    };
    let mut response = SingleResponse::bounded(limits.messages.response_bytes_max);
    std::future::poll_fn(|context| {
        loop {
            let step = ready!(call.poll_step(context))?;
            if let Some(result) = response.take(step) {
                return Poll::Ready(result);
            }
        }
    })
    .await
}

/// Calls a method that answers with a stream.
pub async fn server_streaming<Req: Message, Resp: Message>(
    channel: &Channel,
    method: u16,
    mut request: Request<impl Payload<Req>>,
) -> Result<Response<Streaming<Resp>>, Status> {
    check_method::<Req, Resp>(channel, method, MethodKind::ServerStreaming)?;
    channel.prepare(method, &mut request)?;
    #[cfg(feature = "tower")]
    if let Some(layers) = channel.layers() {
        let path = CallPath::of(channel.service(), method);
        let channel = channel.clone();
        let send =
            move |request| async move { send_server_streaming::<Req, Resp>(&channel, method, request).await };
        return through_in_time(layers, (path, MethodKind::ServerStreaming), request, send).await;
    }
    send_server_streaming::<Req, Resp>(channel, method, request).await
}

async fn send_server_streaming<Req: Message, Resp: Message>(
    channel: &Channel,
    method: u16,
    request: Request<impl Payload<Req>>,
) -> Result<Response<Streaming<Resp>>, Status> {
    if let Some(transport) = channel.transport() {
        let (message, metadata, limits) = request.into_parts();
        let outgoing = message.into_outgoing()?;
        check_size(&outgoing, limits.messages.request_bytes_max)?;
        let call = LinkedStream::begin(transport, (method, metadata), limits)?;
        linked::send_message(&**call.end(), outgoing)?;
        call.end().send(EgressEvent::EndOfRequests);
        return stream_of_responses(StreamCall::Linked(call), None, limits).await;
    }
    let (outgoing, limits) = whole_request(request)?;
    let call = channel.begin(method, WHOLE_REQUEST, outgoing, limits).await?;
    stream_of_responses(StreamCall::Managed(call), None, limits).await
}

/// Calls a method that takes a stream and answers once.
pub async fn client_streaming<Req: Message, Resp: Message, S>(
    channel: &Channel,
    method: u16,
    mut request: Request<S>,
) -> Result<Response<Received<Resp>>, Status>
where
    S: Stream<Item = Req> + Send + 'static,
{
    check_method::<Req, Resp>(channel, method, MethodKind::ClientStreaming)?;
    channel.prepare(method, &mut request)?;
    #[cfg(feature = "tower")]
    if let Some(layers) = channel.layers() {
        let path = CallPath::of(channel.service(), method);
        let channel = channel.clone();
        let send = move |request| async move {
            send_client_streaming::<Req, Resp, _>(&channel, method, request).await
        };
        return through_in_time(layers, (path, MethodKind::ClientStreaming), request, send).await;
    }
    send_client_streaming::<Req, Resp, _>(channel, method, request).await
}

async fn send_client_streaming<Req: Message, Resp: Message, S>(
    channel: &Channel,
    method: u16,
    request: Request<S>,
) -> Result<Response<Received<Resp>>, Status>
where
    S: Stream<Item = Req> + Send + 'static,
{
    let (requests, metadata, limits) = request.into_parts();
    let mut call = begin_stream(channel, method, metadata, limits).await?;
    let mut pump = Some(call.pump(requests, limits));
    let mut response = SingleResponse::bounded(limits.messages.response_bytes_max);
    loop {
        if let Some(result) = response.take(step_while_sending(&mut call, &mut pump).await?) {
            return result;
        }
    }
}

/// Calls a method that takes a stream and answers with a stream.
pub async fn bidirectional<Req: Message, Resp: Message, S>(
    channel: &Channel,
    method: u16,
    mut request: Request<S>,
) -> Result<Response<Streaming<Resp>>, Status>
where
    S: Stream<Item = Req> + Send + 'static,
{
    check_method::<Req, Resp>(channel, method, MethodKind::Bidirectional)?;
    channel.prepare(method, &mut request)?;
    #[cfg(feature = "tower")]
    if let Some(layers) = channel.layers() {
        let path = CallPath::of(channel.service(), method);
        let channel = channel.clone();
        let send =
            move |request| async move { send_bidirectional::<Req, Resp, _>(&channel, method, request).await };
        return through_in_time(layers, (path, MethodKind::Bidirectional), request, send).await;
    }
    send_bidirectional::<Req, Resp, _>(channel, method, request).await
}

async fn send_bidirectional<Req: Message, Resp: Message, S>(
    channel: &Channel,
    method: u16,
    request: Request<S>,
) -> Result<Response<Streaming<Resp>>, Status>
where
    S: Stream<Item = Req> + Send + 'static,
{
    let (requests, metadata, limits) = request.into_parts();
    let call = begin_stream(channel, method, metadata, limits).await?;
    let pump = call.pump(requests, limits);
    stream_of_responses(call, Some(pump), limits).await
}

/// Sees to it that what is received as a `Resp` is one.
fn check_method<Req: Message, Resp: Message>(
    channel: &Channel,
    method: u16,
    kind: MethodKind,
) -> Result<(), Status> {
    match channel.service().has_method::<Req, Resp>(method, kind) {
        true => Ok(()),
        false => Err(Status::internal(format!(
            "{} has no method {method} from {} to {}: the client was generated from another schema",
            channel.service().name,
            Req::FULL_NAME,
            Resp::FULL_NAME
        ))),
    }
}

fn whole_request<Req: Message>(
    request: Request<impl Payload<Req>>,
) -> Result<(OutgoingMessage, CallLimits), Status> {
    let (message, metadata, limits) = request.into_parts();
    let mut outgoing = message.into_outgoing()?;
    outgoing.set_metadata(&metadata)?;
    Ok((outgoing, limits))
}

async fn begin_stream(
    channel: &Channel,
    method: u16,
    metadata: MetadataMap,
    limits: CallLimits,
) -> Result<StreamCall, Status> {
    if let Some(transport) = channel.transport() {
        return LinkedStream::begin(transport, (method, metadata), limits).map(StreamCall::Linked);
    }
    let outgoing = OutgoingMessage::of_metadata(&metadata)?;
    channel
        .begin(method, Parts::BEGIN, outgoing, limits)
        .await
        .map(StreamCall::Managed)
}

/// The one response of a call, as its parts arrive.
struct SingleResponse<Resp> {
    metadata: MetadataMap,
    message: Option<Received<Resp>>,
    bytes_max: u32,
}

impl<Resp: Message> SingleResponse<Resp> {
    /// None yet. A longer message is refused.
    fn bounded(bytes_max: u32) -> SingleResponse<Resp> {
        SingleResponse {
            metadata: MetadataMap::new(),
            message: None,
            bytes_max,
        }
    }

    /// Takes a step; the result once the call is over.
    fn take(&mut self, step: Step<Resp>) -> Option<Result<Response<Received<Resp>>, Status>> {
        if let Some(metadata) = step.metadata {
            self.metadata = metadata;
        }
        let message = step.message;
        if let Some(Err(status)) = message
            .as_deref()
            .map(|message| check_received(message, self.bytes_max))
        {
            return Some(Err(status));
        }
        if let Some(message) = message
            && self.message.replace(message).is_some()
        {
            return Some(Err(Status::internal("the server answered more than once")));
        }
        let result = step.status?.result;
        Some(result.and_then(|trailers| {
            let message = self.message.take();
            let message = message.ok_or_else(|| Status::internal("the server gave no answer"))?;
            Ok(Response::from_parts(
                message,
                std::mem::take(&mut self.metadata),
                trailers,
            ))
        }))
    }
}

/// Waits for the first step, which says whether the call was accepted.
async fn stream_of_responses<Resp: Message>(
    mut call: StreamCall,
    pump: Option<Pump>,
    limits: CallLimits,
) -> Result<Response<Streaming<Resp>>, Status> {
    let mut pump = pump;
    let mut first: Step<Resp> = step_while_sending(&mut call, &mut pump).await?;
    if first.message.is_none() && first.status.as_ref().is_some_and(|ended| ended.result.is_err()) {
        let ended = first.status.take();
        return Err(ended
            .and_then(|ended| ended.result.err())
            .unwrap_or_else(|| Status::from_code(crate::Code::Unknown)));
    }
    let metadata = first.metadata.take().unwrap_or_default();
    let stream = Streaming::of_client(call, pump, first).bounded(limits.messages.response_bytes_max);
    Ok(Response::from_parts(stream, metadata, MetadataMap::new()))
}

async fn step_while_sending<Resp: Message>(
    call: &mut StreamCall,
    pump: &mut Option<Pump>,
) -> Result<Step<Resp>, Status> {
    std::future::poll_fn(|context| match poll_pump(pump, context) {
        Ok(()) => call.poll_step(context),
        Err(status) => Poll::Ready(Err(status)),
    })
    .await
}
