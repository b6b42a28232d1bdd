//! [`Server`]: offers services and runs their handlers.

mod call;
mod handler;
mod intercepted;
mod linked_call;
mod load;
mod notices;
mod serving;

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

pub(crate) use call::{ManagedCall, ServerCall};
pub(crate) use handler::{Bound, BoxedHandler, Place, ServerRules};
pub use handler::{Methods, Service};
pub use intercepted::InterceptedService;
pub(crate) use linked_call::LinkedCall;
use load::Overload;
pub use load::ServerCounts;
use notices::ManagerNotices;
use serving::{Outcome, Serving};

use crate::app::App;
use crate::call_limits::bytes_max;
use crate::intercept::CallInterceptor;
#[cfg(feature = "tower")]
use crate::layer::{AnswerBody, BoxError, CallBody, LayeredService, wrap};
use crate::link::block_on;
use crate::reactor::Timer;
#[cfg(feature = "tower")]
use crate::request::{Request, Response};
use crate::status::Status;
use provost_wire::Code;
use provost_wire::limits::CALLS_IN_FLIGHT_MAX;

/// Time before services are bound again after that has failed on a new link.
const REBIND_PAUSE: Duration = Duration::from_millis(100);

/// Offers services through this node's service, and runs their handlers.
///
/// Handlers run on the task that serves, so a server uses one core at most, unless [`ServerBuilder::spawn`] says where
/// else they go. A handler that blocks holds up the others that run beside it.
///
/// A handler that panics ends its own call as `INTERNAL`, nothing else. A call that is cancelled, or whose deadline
/// passes, has its handler dropped.
///
/// ```no_run
/// # async fn serve(kv: impl provost::codegen::Service) -> Result<(), provost::Status> {
/// provost::Server::builder().concurrency_limit(256).add_service(kv).serve().await
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    _private: (),
}

/// Says what a [`Server`] offers, and how.
#[must_use = "a server serves nothing before `serve` is called"]
pub struct ServerBuilder {
    app: Option<App>,
    concurrency_limit: usize,
    services: Vec<Box<dyn Service>>,
    rules: ServerRules,
    overload: Overload,
    counts: Option<ServerCounts>,
    drain_timeout: Option<Duration>,
    spawner: Option<Arc<dyn Spawn>>,
    on_ready: Option<ReadyCallback>,
    manager: ManagerNotices,
}

/// What is told each time that all services are offered.
type ReadyCallback = Box<dyn Fn() + Send + Sync>;

/// Where handlers run in place of the task that serves.
pub trait Spawn: Send + Sync + 'static {
    /// Runs a future to its end.
    fn spawn(&self, handler: Pin<Box<dyn Future<Output = ()> + Send>>);
}

impl<F: Fn(Pin<Box<dyn Future<Output = ()> + Send>>) + Send + Sync + 'static> Spawn for F {
    fn spawn(&self, handler: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self(handler);
    }
}

impl Server {
    /// Says what to offer.
    pub fn builder() -> ServerBuilder {
        ServerBuilder {
            app: None,
            concurrency_limit: CALLS_IN_FLIGHT_MAX,
            services: Vec::new(),
            rules: ServerRules::default(),
            overload: Overload::Wait,
            counts: None,
            drain_timeout: None,
            spawner: None,
            on_ready: None,
            manager: ManagerNotices::Kept,
        }
    }
}

impl ServerBuilder {
    /// Serves through this app, in place of the process's own.
    pub fn app(mut self, app: &App) -> ServerBuilder {
        self.app = Some(app.clone());
        self
    }

    /// How many handlers may run at a time; further calls wait, and the service holds back what is beyond. With
    /// [`ServerBuilder::shed_load`] they are refused.
    pub fn concurrency_limit(mut self, calls: usize) -> ServerBuilder {
        self.concurrency_limit = calls.clamp(1, CALLS_IN_FLIGHT_MAX);
        self
    }

    /// Ends calls over the concurrency limit with `RESOURCE_EXHAUSTED` at once, in place of having them wait: a client knows
    /// early that it is to go elsewhere, and a server that cannot keep up answers those that it can.
    pub fn shed_load(mut self) -> ServerBuilder {
        self.overload = Overload::Refuse;
        self
    }

    /// Has the server count its calls there.
    pub fn counts(mut self, counts: &ServerCounts) -> ServerBuilder {
        self.counts = Some(counts.clone());
        self
    }

    /// How long a server that shuts down waits for its calls. Those that are still under way then end with `UNAVAILABLE`, and
    /// their handlers are dropped. Without it, it waits for all of them.
    pub fn drain_timeout(mut self, timeout: Duration) -> ServerBuilder {
        self.drain_timeout = Some(timeout);
        self
    }

    /// Calls `ready` each time that the node offers all services: at the start, and again when the node's service has come
    /// back after it was away. It must not block.
    pub fn on_ready(mut self, ready: impl Fn() + Send + Sync + 'static) -> ServerBuilder {
        self.on_ready = Some(Box::new(ready));
        self
    }

    /// Tells the manager that has started this program, as systemd with `Type=notify` has, how the server is (`sd_notify(3)`):
    /// `READY=1` once the node offers all services, what it waits for while the node's service is away, and `STOPPING=1` when
    /// it shuts down. Elsewhere, where there is no `NOTIFY_SOCKET` in the environment, it does nothing.
    pub fn notify_manager(mut self) -> ServerBuilder {
        self.manager = ManagerNotices::Sent;
        self
    }

    /// Offers a service.
    pub fn add_service(mut self, service: impl Service) -> ServerBuilder {
        self.services.push(Box::new(service));
        self
    }

    /// Has an interceptor see the calls of all services, those included that are added later. Several are asked in the
    /// order in which they are added.
    pub fn intercept(mut self, interceptor: impl CallInterceptor) -> ServerBuilder {
        self.rules.interceptors.push(Arc::new(interceptor));
        self
    }

    /// Has the calls that handlers make inherit this key of their own call's metadata, such as `baggage`. Those of the trace
    /// are inherited in any case; see [`context`](crate::context).
    pub fn pass_on(mut self, key: impl Into<String>) -> ServerBuilder {
        self.rules.pass_on.push(key.into());
        self
    }

    /// Refuses a call with `RESOURCE_EXHAUSTED` when one of its requests is longer than this.
    pub fn request_bytes_max(mut self, bytes: usize) -> ServerBuilder {
        self.rules.messages.request_bytes_max = bytes_max(bytes);
        self
    }

    /// Ends a call with `RESOURCE_EXHAUSTED` in place of sending a response that is longer than this.
    pub fn response_bytes_max(mut self, bytes: usize) -> ServerBuilder {
        self.rules.messages.response_bytes_max = bytes_max(bytes);
        self
    }

    /// Runs each handler as a task of its own, for instance with `|handler| { tokio::spawn(handler); }`.
    pub fn spawn(mut self, spawner: impl Spawn) -> ServerBuilder {
        self.spawner = Some(Arc::new(spawner));
        self
    }

    /// The services, and what holds for their calls.
    pub(crate) fn into_parts(self) -> (Vec<Box<dyn Service>>, ServerRules) {
        (self.services, self.rules)
    }

    /// Serves until the program ends. Returns only if the services cannot be offered in the first place. A server that may
    /// start before its node has an app that attaches lazily ([`App::global_lazily`]), and waits for it.
    pub async fn serve(self) -> Result<(), Status> {
        self.serve_with_shutdown(std::future::pending()).await
    }

    /// Serves until `shutdown` is ready; then takes no new calls, finishes those in flight
    /// ([`ServerBuilder::drain_timeout`] bounds that), and returns.
    pub async fn serve_with_shutdown(self, shutdown: impl Future<Output = ()>) -> Result<(), Status> {
        let mut shutdown = pin!(shutdown);
        let (mut is_over, manager) = (false, self.manager);
        // It is asked again when the node's service goes away while calls are being finished.
        let mut shutdown = pin!(poll_fn(move |context| {
            if !is_over && shutdown.as_mut().poll(context).is_ready() {
                is_over = true;
                manager.stopping();
            }
            if is_over { Poll::Ready(()) } else { Poll::Pending }
        }));
        let app = self.app.clone().map_or_else(App::global, Ok)?;
        let rules = Arc::new(self.rules.clone());
        let services = self.services.iter().map(|service| Bound::new(&**service, &rules));
        let services: Vec<Bound> = services.collect();
        let mut is_first = true;
        loop {
            manager.waiting();
            let Some(link) = unless(shutdown.as_mut(), app.inner().wait_for_link()).await else {
                return Ok(());
            };
            let binding = Serving::bind(link.clone(), &self, services.clone());
            let Some(bound) = unless(shutdown.as_mut(), binding).await else {
                return Ok(());
            };
            match bound {
                Ok(mut serving) => {
                    is_first = false;
                    self.on_ready.iter().for_each(|ready| ready());
                    manager.ready();
                    match poll_fn(|context| serving.poll(shutdown.as_mut(), context)).await {
                        Outcome::ShutDown => return Ok(()),
                        Outcome::Refused(status) => return Err(status),
                        Outcome::LinkLost => {}
                    }
                }
                // The node's service has ended meanwhile: another one may take them.
                Err(_) if link.is_dead() && link.control.farewell().is_none() => {}
                // A rule of the node's configuration does not change by trying again.
                Err(status) if is_first || status.code() == Code::PermissionDenied => return Err(status),
                Err(_) => {
                    if unless(shutdown.as_mut(), Timer::new(REBIND_PAUSE).wait())
                        .await
                        .is_none()
                    {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Serves on this thread, without an executor.
    pub fn serve_blocking(self) -> Result<(), Status> {
        block_on(self.serve())
    }

    /// As [`ServerBuilder::serve_with_shutdown`], on this thread, without an executor.
    pub fn serve_blocking_with_shutdown(self, shutdown: impl Future<Output = ()>) -> Result<(), Status> {
        block_on(self.serve_with_shutdown(shutdown))
    }
}

#[cfg(feature = "tower")]
impl ServerBuilder {
    /// Puts a layer around the handlers of all services, and around the layers that were added before. Interceptors see a call
    /// first. See [`layer`](crate::layer).
    pub fn layer<L>(mut self, layer: L) -> ServerBuilder
    where
        L: tower_layer::Layer<LayeredService>,
        L::Service: tower_service::Service<Request<CallBody>, Response = Response<AnswerBody>>
            + Clone
            + Send
            + Sync
            + 'static,
        <L::Service as tower_service::Service<Request<CallBody>>>::Error: Into<BoxError>,
        <L::Service as tower_service::Service<Request<CallBody>>>::Future: Send,
    {
        wrap(&mut self.rules.layers, &layer);
        self
    }
}

impl std::fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.services.iter().map(|service| service.descriptor().name);
        let services: Vec<_> = names.collect();
        f.debug_struct("ServerBuilder")
            .field("services", &services)
            .field("concurrency_limit", &self.concurrency_limit)
            .finish_non_exhaustive()
    }
}

/// Runs `future`, unless `stop` is ready before it.
async fn unless<R>(
    mut stop: Pin<&mut impl Future<Output = ()>>,
    future: impl Future<Output = R>,
) -> Option<R> {
    let mut future = pin!(future);
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        stop.as_mut().poll(context).map(|()| None)
    })
    .await
}
