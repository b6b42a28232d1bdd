//! [`Streaming`]: the messages of a stream as they arrive.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use provost_wire::descriptor::Parts;

use crate::call::{ClientCall, Reader, Sender, Step};
use crate::call_limits::{CallLimits, check_received, check_size};
use crate::link::{LocalEnd, OutgoingMessage};
use crate::linked::{self, EgressEvent, LinkedStream, StreamEnd, step_of};
use crate::message::Message;
use crate::metadata::MetadataMap;
use crate::received::Received;
use crate::status::Status;

/// What sends a client's stream of requests while its responses are read. The error is what the requests came to.
pub(crate) type Pump = Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>;

/// The messages of a stream as they arrive: responses at a client, requests at a server.
///
/// Dropping a client's stream before its end cancels the call.
///
/// ```no_run
/// # async fn read<T: provost::codegen::Message + std::fmt::Debug>(mut entries: provost::Streaming<T>) -> Result<(), provost::Status> {
/// while let Some(entry) = entries.message().await? {
///     println!("{entry:?}");
/// }
/// # Ok(())
/// # }
/// ```
pub struct Streaming<T> {
    source: Source,
    /// A step that was taken but not read to the end.
    pending: Option<Step<T>>,
    is_over: bool,
    trailers: Option<MetadataMap>,
    /// A longer message ends the stream.
    message_bytes_max: u32,
}

enum Source {
    /// Responses, and what sends the requests until it is through.
    Client { call: StreamCall, pump: Option<Pump> },
    /// Requests.
    Server(Reader),
    /// Requests that a transport of the program itself carries.
    LinkedServer(Arc<dyn StreamEnd>),
}

impl<T: Message> Streaming<T> {
    /// The responses of a call of which the first step was taken.
    pub(crate) fn of_client(call: StreamCall, pump: Option<Pump>, first: Step<T>) -> Streaming<T> {
        Streaming {
            source: Source::Client { call, pump },
            pending: Some(first),
            is_over: false,
            trailers: None,
            message_bytes_max: u32::MAX,
        }
    }

    /// The requests of a call that began with this step.
    pub(crate) fn of_server(reader: Reader, first: Step<T>) -> Streaming<T> {
        Streaming {
            source: Source::Server(reader),
            pending: Some(first),
            is_over: false,
            trailers: None,
            message_bytes_max: u32::MAX,
        }
    }

    /// The requests of a call that a transport of the program itself carries.
    pub(crate) fn of_linked_server(end: Arc<dyn StreamEnd>) -> Streaming<T> {
        Streaming {
            source: Source::LinkedServer(end),
            pending: None,
            is_over: false,
            trailers: None,
            message_bytes_max: u32::MAX,
        }
    }

    /// The same with a bound on its messages.
    pub(crate) fn bounded(self, message_bytes_max: u32) -> Streaming<T> {
        Streaming {
            message_bytes_max,
            ..self
        }
    }

    /// The next message; `None` at the end of the stream. After the end or an error there is nothing more.
    pub async fn message(&mut self) -> Result<Option<Received<T>>, Status> {
        std::future::poll_fn(|context| self.poll_message(context)).await
    }

    /// The metadata that followed the last message, once the stream has ended well. Requests have none.
    #[must_use]
    pub fn trailers(&self) -> Option<&MetadataMap> {
        self.trailers.as_ref()
    }

    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Received<T>>, Status>> {
        loop {
            if self.is_over {
                return Poll::Ready(Ok(None));
            }
            let mut step = match self.pending.take() {
                Some(step) => step,
                None => match ready!(self.poll_step(context)) {
                    Ok(step) => step,
                    Err(status) => return self.over(Err(status)),
                },
            };
            if let Some(message) = step.message.take() {
                if let Err(status) = check_received(&*message, self.message_bytes_max) {
                    return self.over(Err(status));
                }
                self.pending = (step.is_end || step.status.is_some()).then_some(step);
                return Poll::Ready(Ok(Some(message)));
            }
            match step.status {
                Some(ended) => {
                    let result = ended.result.map(|trailers| self.trailers = Some(trailers));
                    return self.over(result);
                }
                None if step.is_end => return self.over(Ok(())),
                None => {}
            }
        }
    }

    fn over(&mut self, result: Result<(), Status>) -> Poll<Result<Option<Received<T>>, Status>> {
        self.is_over = true;
        if let Source::Client { pump, .. } = &mut self.source {
            *pump = None;
        }
        Poll::Ready(result.map(|()| None))
    }

    fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<Result<Step<T>, Status>> {
        match &mut self.source {
            Source::Client { call, pump } => {
                if let Err(status) = poll_pump(pump, context) {
                    return Poll::Ready(Err(status));
                }
                call.poll_step(context)
            }
            Source::Server(reader) => reader
                .poll_step(context)
                .map_err(|end| Status::new(end.code, end.reason)),
            Source::LinkedServer(end) => end.poll_arrival(context).map(step_of),
        }
    }
}

/// A call with a stream, by whatever way it goes. Dropping it before it is over cancels it.
pub(crate) enum StreamCall {
    /// By the node's service.
    Managed(ClientCall),
    /// By a transport of the program itself.
    Linked(LinkedStream),
}

impl StreamCall {
    /// The next step; the error is how the call ended without one.
    pub(crate) fn poll_step<T: Message>(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Step<T>, Status>> {
        match self {
            StreamCall::Managed(call) => call.poll_step(context),
            StreamCall::Linked(call) => call.poll_step(context),
        }
    }

    /// Sends a stream of requests to its end, or until the call is over.
    pub(crate) fn pump<Req: Message, S>(&self, requests: S, limits: CallLimits) -> Pump
    where
        S: Stream<Item = Req> + Send + 'static,
    {
        let bytes_max = limits.messages.request_bytes_max;
        match self {
            StreamCall::Managed(call) => pump(call, requests, bytes_max),
            StreamCall::Linked(call) => linked_pump(call.end().clone(), requests, bytes_max),
        }
    }
}

/// Sends on, and forgets the pump when it is through.
pub(crate) fn poll_pump(pump: &mut Option<Pump>, context: &mut Context<'_>) -> Result<(), Status> {
    let Some(sending) = pump else { return Ok(()) };
    match sending.as_mut().poll(context) {
        Poll::Pending => Ok(()),
        Poll::Ready(result) => {
            *pump = None;
            result
        }
    }
}

impl<T: Message> Stream for Streaming<T> {
    type Item = Result<Received<T>, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_message(context).map(Result::transpose)
    }
}

impl<T> Unpin for Streaming<T> {}

impl<T> std::fmt::Debug for Streaming<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Streaming")
            .field("is_over", &self.is_over)
            .finish_non_exhaustive()
    }
}

/// Sends a stream of requests to its end, or until the call is over.
fn pump<Req: Message, S>(call: &ClientCall, requests: S, bytes_max: u32) -> Pump
where
    S: Stream<Item = Req> + Send + 'static,
{
    let mut sender = call.sender();
    let message_bytes_max = call.message_bytes_max().min(bytes_max);
    Box::pin(async move {
        let mut requests = pin!(requests);
        loop {
            if std::future::poll_fn(|context| sender.poll_window(context))
                .await
                .is_err()
            {
                return Ok(());
            }
            let request = std::future::poll_fn(|context| requests.as_mut().poll_next(context)).await;
            let Some(request) = request else {
                let _ = end_of_requests(&mut sender).await;
                return Ok(());
            };
            let outgoing = OutgoingMessage::message(request)?;
            check_size(&outgoing, message_bytes_max)?;
            // How a call ended is told by its steps.
            if sender.stream_message(outgoing).await.is_err() {
                return Ok(());
            }
        }
    })
}

async fn end_of_requests(sender: &mut Sender) -> Result<(), LocalEnd> {
    let mut step = sender.step();
    step.parts = Parts::END;
    sender.send(step, OutgoingMessage::default()).await
}

/// As [`pump`], by a transport of the program itself.
fn linked_pump<Req: Message, S>(end: Arc<dyn StreamEnd>, requests: S, bytes_max: u32) -> Pump
where
    S: Stream<Item = Req> + Send + 'static,
{
    Box::pin(async move {
        let mut requests = pin!(requests);
        loop {
            if std::future::poll_fn(|context| end.poll_window(context))
                .await
                .is_err()
            {
                return Ok(());
            }
            let request = std::future::poll_fn(|context| requests.as_mut().poll_next(context)).await;
            let Some(request) = request else {
                end.send(EgressEvent::EndOfRequests);
                return Ok(());
            };
            let outgoing = OutgoingMessage::message(request)?;
            check_size(&outgoing, bytes_max)?;
            linked::send_message(&*end, outgoing)?;
        }
    })
}
