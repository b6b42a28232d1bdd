//! A call that a transport of the program itself brought, as its handler has it.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use futures_core::Stream;
use provost_wire::Code;

use crate::call::Step;
use crate::call_limits::{CallLimits, MessageBounds, check_received, check_size};
use crate::link::{OutgoingMessage, PeerSource};
use crate::linked::{
    Answer, Answering, Arrival, CallOver, EgressEvent, InboundCall, Outbound, Requests, StreamEnd,
    send_message, step_of,
};
use crate::message::Message;
use crate::metadata::MetadataMap;
use crate::peer::Peer;
use crate::received::Received;
use crate::request::{Request, Response};
use crate::status::Status;
use crate::streaming::Streaming;

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
    pub(crate) fn new(call: InboundCall) -> LinkedCall {
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
    pub(crate) fn answer<Resp: Message>(&mut self, result: Result<Response<Resp>, Status>) {
        let bytes_max = self.messages.response_bytes_max;
        let answer = result.and_then(|response| {
            let (message, metadata, trailers) = response.into_parts();
            let mut outgoing = OutgoingMessage::message(message)?;
            outgoing.set_metadata(&trailers)?;
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
    pub(crate) async fn answer_stream<Resp, S>(&mut self, result: Result<Response<S>, Status>)
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
            let outgoing = OutgoingMessage::of_metadata(&trailers)?;
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
