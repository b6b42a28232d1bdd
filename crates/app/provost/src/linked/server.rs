//! Handlers of a service, for transports that call them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use provost_wire::Code;

use super::codec::{Codec, Inbound, Outbound};
use super::no_streams;
use crate::codegen::{Message, MethodKind, Service, ServiceDescriptor};
use crate::context::with_deadline;
use crate::link::Parcel;
use crate::metadata::MetadataMap;
use crate::request::{CallLimits, Request, Response};
use crate::server::{Bound, BoxedHandler, Place, ServerCall, error_code, trailers_of};
use crate::shared::Received;
use crate::status::Status;

/// A service that a transport offers, and places in which its handlers run, used again and again.
pub struct Offered {
    bound: Bound,
    codec: Arc<Codec>,
    idle_places: Vec<Vec<Box<dyn Place>>>,
}

/// A call that has arrived.
pub struct InboundCall {
    /// The request.
    pub request: Inbound,
    /// The metadata beside it.
    pub metadata: MetadataMap,
    /// When the call must end, in nanoseconds of CLOCK_MONOTONIC; 0 for never.
    pub deadline_ns: u64,
    /// Who is told what it came to.
    pub answering: Arc<dyn Answering>,
}

/// Takes the answer to a call.
pub trait Answering: Send + Sync {
    /// The answer, once.
    fn answer(&self, answer: Answer);
}

/// What a call came to.
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
    is_whole: bool,
}

impl Offered {
    /// Offers a service.
    ///
    /// # Errors
    /// If the generated code is not of one piece.
    pub fn new(service: &impl Service) -> Result<Offered, Status> {
        let bound = Bound::new(service);
        Ok(Offered {
            codec: Arc::new(Codec::new(bound.descriptor)?),
            idle_places: bound.descriptor.methods.iter().map(|_| Vec::new()).collect(),
            bound,
        })
    }

    /// What the service is.
    #[must_use]
    pub fn descriptor(&self) -> &'static ServiceDescriptor {
        self.bound.descriptor
    }

    /// What reads its requests and writes its responses.
    #[must_use]
    pub fn codec(&self) -> &Arc<Codec> {
        &self.codec
    }

    /// Why calls of this method are refused, if they are.
    ///
    /// # Errors
    /// There is no such method, no handler for it, or it streams.
    pub fn check(&self, method: u16) -> Result<(), Status> {
        let described = self.bound.descriptor.methods.get(usize::from(method));
        match (described, self.bound.handler(method)) {
            (Some(described), Some(_)) if described.kind == MethodKind::Unary => Ok(()),
            (Some(_), Some(_)) => Err(no_streams()),
            _ => Err(Status::unimplemented("the server does not implement this method")),
        }
    }

    /// Begins to handle a call of a method that [`Offered::check`] has passed; `None` if it has not.
    pub fn start(&mut self, method: u16, call: InboundCall) -> Option<Handling> {
        let idle = self.idle_places.get_mut(usize::from(method))?.pop();
        let mut place = match idle {
            Some(place) => place,
            None => self.bound.handler(method)?.place(),
        };
        let deadline_ns = call.deadline_ns;
        place.start(ServerCall::Linked(LinkedCall::new(call)));
        Some(Handling {
            place,
            method,
            deadline_ns,
            is_whole: true,
        })
    }

    /// As [`Offered::start`], as a future that can be run anywhere.
    pub fn spawnable(
        &self,
        method: u16,
        call: InboundCall,
    ) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        let deadline_ns = call.deadline_ns;
        let call = ServerCall::Linked(LinkedCall::new(call));
        let handler = self.bound.handler(method)?.boxed(call);
        Some(Box::pin(run(handler, deadline_ns)))
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
    std::future::poll_fn(|context| {
        let poll = || with_deadline(deadline_ns, || handler.as_mut().poll(context));
        // What the call came to, `LinkedCall` says when it is dropped.
        catch_unwind(AssertUnwindSafe(poll)).unwrap_or(Poll::Ready(()))
    })
    .await;
}

impl std::fmt::Debug for Offered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Offered")
            .field(&self.bound.descriptor.name)
            .finish()
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
        let poll = || with_deadline(self.deadline_ns, || place.poll(context));
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
    call: Option<InboundCall>,
    answering: Option<Arc<dyn Answering>>,
}

impl LinkedCall {
    fn new(call: InboundCall) -> LinkedCall {
        LinkedCall {
            answering: Some(call.answering.clone()),
            call: Some(call),
        }
    }

    pub(crate) fn request<Req: Message>(&mut self) -> Result<Request<Received<Req>>, Status> {
        let call = self
            .call
            .take()
            .ok_or_else(|| Status::internal("the request was read twice"))?;
        let limits = CallLimits {
            deadline_ns: call.deadline_ns,
            ..CallLimits::default()
        };
        Ok(Request::from_parts(
            call.request.received()?,
            call.metadata,
            limits,
        ))
    }

    pub(crate) fn answer<Resp: Message>(mut self, result: Result<Response<Resp>, Status>) {
        let answer = result.and_then(|response| {
            let (message, metadata, trailers) = response.into_parts();
            let parcel = Parcel::message(message)?.with_metadata(&trailers)?;
            Ok(Answer {
                code: Code::Ok,
                metadata,
                message: Outbound::new(parcel),
            })
        });
        match answer {
            Ok(answer) => self.tell(answer),
            Err(status) => self.fail(&status),
        }
    }

    pub(crate) fn fail(mut self, status: &Status) {
        self.tell(Answer::error(status));
    }

    fn tell(&mut self, answer: Answer) {
        if let Some(answering) = self.answering.take() {
            answering.answer(answer);
        }
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
        let status = match std::thread::panicking() {
            true => Status::internal("the handler panicked"),
            false => Status::unavailable("the server stopped"),
        };
        self.tell(Answer::error(&status));
    }
}
