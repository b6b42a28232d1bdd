//! Handlers of a service, for transports that a program links and that call them. Applications have no need to look here.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::context::{CallContext, poll_within};
use crate::descriptor::{MethodKind, ServiceDescriptor};
use crate::linked::{Codec, InboundCall};
use crate::server::{Bound, BoxedHandler, LinkedCall, Place, ServerCall, ServerRules, Service};
use crate::status::Status;

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
