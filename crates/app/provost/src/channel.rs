//! [`Channel`]: a connection to a service that is kept up.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use provost_wire::control::{Connect, reply, request};
use provost_wire::descriptor::Parts;
use provost_wire::limits::CALLS_IN_FLIGHT_MAX;

use crate::app::{App, AppInner};
use crate::call::ClientCall;
use crate::call_limits::{CallLimits, Readiness, check_size, deadline_passed, resolve_deadline, within};
use crate::context::{add_inherited, inherited_deadline_ns};
use crate::defaults::{CallDefaults, ChannelRules, rules_of};
use crate::descriptor::ServiceDescriptor;
use crate::fork::refuse_child;
use crate::intercept::CallInterceptor;
#[cfg(feature = "tower")]
use crate::layer::{AnswerBody, BoxError, CallBody, LayeredService, wrap};
use crate::limit::Limit;
use crate::link::{
    CONNECT_TIMEOUT, CallId, Connection, Link, NewCall, OutgoingMessage, SubmitError, request_with_schema,
    when_room,
};
use crate::linked::Transport;
use crate::reactor::Timer;
use crate::request::Request;
#[cfg(feature = "tower")]
use crate::request::Response;
use crate::status::Status;
use crate::waker_list::{WakerList, WakerPlace};

/// Where a service is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    service: String,
    address: String,
}

impl Target {
    /// Where the node's configuration routes this service to; it may bear another name than its schema gives it. An
    /// empty name stands for the schema's.
    #[must_use]
    pub fn service(name: impl Into<String>) -> Target {
        Target {
            service: name.into(),
            address: String::new(),
        }
    }

    /// At `host:port`, whatever the configuration says.
    #[must_use]
    pub fn address(address: impl Into<String>) -> Target {
        Target {
            service: String::new(),
            address: address.into(),
        }
    }
}

impl From<&str> for Target {
    fn from(name: &str) -> Target {
        Target::service(name)
    }
}

impl From<String> for Target {
    fn from(name: String) -> Target {
        Target::service(name)
    }
}

/// A connection to a service, which comes back by itself when it was lost. Cheap to clone; all clones share the
/// connection and its limit.
#[derive(Clone)]
pub struct Channel {
    way: Way,
    /// What all calls go through before they begin; `None` when that is nothing.
    rules: Option<Arc<ChannelRules>>,
}

/// By what a channel's calls go.
#[derive(Clone)]
enum Way {
    /// The node's service.
    Managed(Arc<ChannelInner>),
    /// A transport of the program itself.
    Linked(Arc<dyn Transport>),
}

pub(crate) struct ChannelInner {
    app: Arc<AppInner>,
    service: &'static ServiceDescriptor,
    target: Target,
    state: Mutex<State>,
    limit: Arc<Limit>,
}

#[derive(Default)]
struct State {
    current: Option<Connection>,
    /// Why there is none.
    why_down: Option<Status>,
    /// Whether the last attempt to connect has failed.
    has_failed: bool,
    /// Tasks that want to know when the state changes.
    waiters: WakerList,
}

/// Whether a [`Channel`] is connected, as gRPC's connectivity states have it. A channel is never idle: whatever it has
/// lost, it connects again by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelState {
    /// There is no connection yet, or it was lost a moment ago; an attempt to connect is under way.
    Connecting,
    /// It is connected: calls can begin.
    Ready,
    /// The last attempt to connect has failed, for the reason that [`Channel::why_not_ready`] gives. Further attempts
    /// follow, with pauses that grow to two seconds.
    TransientFailure,
}

/// Says how a [`Channel`] connects.
pub struct ChannelBuilder {
    service: &'static ServiceDescriptor,
    app: Option<App>,
    concurrency_limit: usize,
    rules: Option<Arc<ChannelRules>>,
}

impl Channel {
    /// Connects to a service through this process's app, [`App::global`].
    pub async fn connect(
        service: &'static ServiceDescriptor,
        target: impl Into<Target>,
    ) -> Result<Channel, Status> {
        Channel::builder(service).connect(target).await
    }

    /// Says how to connect.
    #[must_use]
    pub fn builder(service: &'static ServiceDescriptor) -> ChannelBuilder {
        ChannelBuilder {
            service,
            app: None,
            concurrency_limit: CALLS_IN_FLIGHT_MAX,
            rules: None,
        }
    }

    /// The service that it is connected to.
    #[must_use]
    pub fn service(&self) -> &'static ServiceDescriptor {
        match &self.way {
            Way::Managed(inner) => inner.service,
            Way::Linked(transport) => transport.service(),
        }
    }

    /// A channel whose calls go by a transport of the program itself.
    #[doc(hidden)]
    pub fn linked(transport: Arc<dyn Transport>) -> Channel {
        Channel {
            way: Way::Linked(transport),
            rules: None,
        }
    }

    /// Whether it is connected now.
    #[must_use]
    pub fn state(&self) -> ChannelState {
        match &self.way {
            Way::Managed(inner) => inner.state().now(),
            Way::Linked(_) => ChannelState::Ready,
        }
    }

    /// Why it is not connected: how the last attempt has failed, or how the connection was lost.
    #[must_use]
    pub fn why_not_ready(&self) -> Option<Status> {
        match &self.way {
            Way::Managed(inner) => inner.state().why_not_ready(),
            Way::Linked(_) => None,
        }
    }

    /// Waits until the state is another one than `known`, and says which.
    pub async fn state_changed(&self, known: ChannelState) -> ChannelState {
        let Way::Managed(inner) = &self.way else {
            return match known {
                ChannelState::Ready => std::future::pending().await,
                _ => ChannelState::Ready,
            };
        };
        let mut place = None;
        std::future::poll_fn(|context| {
            let state = inner.state();
            match state.now() {
                now if now != known => Poll::Ready(now),
                _ => {
                    let replaced = state.wake_on_change(&mut place, context.waker());
                    drop(state);
                    drop(replaced);
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Waits until it is connected, for as long as that takes; [`Channel::why_not_ready`] says meanwhile what is missing.
    ///
    /// # Errors
    /// `DEADLINE_EXCEEDED` within a handler whose call ends before, and `FAILED_PRECONDITION` in a child of `fork`.
    pub async fn on_ready(&self) -> Result<(), Status> {
        let Way::Managed(inner) = &self.way else {
            return Ok(());
        };
        refuse_child()?;
        let deadline_ns = inherited_deadline_ns().unwrap_or(0);
        inner.connection(Readiness::Wait, deadline_ns).await.map(drop)
    }

    /// The same connection with an interceptor, which sees calls after those that the channel has. Other clones of the
    /// channel stay as they are.
    #[must_use]
    pub fn intercept(mut self, interceptor: impl CallInterceptor) -> Channel {
        rules_of(&mut self.rules).interceptors.push(Arc::new(interceptor));
        self
    }

    /// The same connection with these defaults in place of those that the channel has. Other clones of the channel stay as
    /// they are.
    #[must_use]
    pub fn with_defaults(mut self, defaults: CallDefaults) -> Channel {
        rules_of(&mut self.rules).defaults = defaults;
        self
    }

    /// The layers around calls, if there are some.
    #[cfg(feature = "tower")]
    pub(crate) fn layers(&self) -> Option<&Arc<dyn crate::layer::CallLayers>> {
        self.rules.as_ref()?.layers.as_ref()
    }

    /// Completes a request by what is inherited and by what the channel has for all calls, and asks its interceptors.
    pub(crate) fn prepare<T>(&self, method: u16, request: &mut Request<T>) -> Result<(), Status> {
        match &self.rules {
            None => {
                add_inherited(request.metadata_mut());
                Ok(())
            }
            Some(rules) => rules.prepare(self.service(), method, request),
        }
    }

    /// The transport, unless it is the node's service.
    pub(crate) fn transport(&self) -> Option<&Arc<dyn Transport>> {
        match &self.way {
            Way::Managed(_) => None,
            Way::Linked(transport) => Some(transport),
        }
    }

    /// Begins a call with its first step, if nothing has to be waited for. None: [`Channel::begin`] says what is in the way.
    pub(crate) fn begin_now(
        &self,
        method: u16,
        parts: Parts,
        outgoing: &mut OutgoingMessage,
        limits: CallLimits,
    ) -> Option<ClientCall> {
        let Way::Managed(inner) = &self.way else {
            return None;
        };
        refuse_child().ok()?;
        let permit = inner.limit.try_acquire()?;
        let connection = inner.state().connection()?.clone();
        let bytes_max = connection
            .link
            .message_bytes_max
            .min(limits.messages.request_bytes_max);
        check_size(outgoing, bytes_max).ok()?;
        let call = NewCall {
            connection: connection.number,
            method,
            parts,
            deadline_ns: resolve_deadline(limits),
        };
        let id = connection.link.begin(&call, outgoing).ok()?;
        Some(ClientCall::new(connection, id, permit))
    }

    /// Begins a call with its first step.
    pub(crate) async fn begin(
        &self,
        method: u16,
        parts: Parts,
        mut outgoing: OutgoingMessage,
        limits: CallLimits,
    ) -> Result<ClientCall, Status> {
        let Way::Managed(inner) = &self.way else {
            return Err(Status::internal("a linked transport begins its calls itself"));
        };
        refuse_child()?;
        let deadline_ns = resolve_deadline(limits);
        let readiness = limits.readiness.unwrap_or_default();
        let request_bytes_max = limits.messages.request_bytes_max;
        let permit = match inner.limit.try_acquire() {
            Some(permit) => permit,
            None => within(deadline_ns, Limit::acquire(&inner.limit)).await?,
        };
        loop {
            let connection = inner.connection(readiness, deadline_ns).await?;
            let call = NewCall {
                connection: connection.number,
                method,
                parts,
                deadline_ns,
            };
            let bytes_max = connection.link.message_bytes_max.min(request_bytes_max);
            check_size(&outgoing, bytes_max)?;
            match begin_on(&connection.link, &call, &mut outgoing).await {
                Ok(id) => return Ok(ClientCall::new(connection, id, permit).keeping(inner.clone())),
                Err(SubmitError::Closed) => {
                    inner.lost(&connection);
                    if readiness == Readiness::FailFast {
                        return Err(closed());
                    }
                }
                Err(SubmitError::Dead) if readiness == Readiness::Wait => {}
                Err(SubmitError::Dead) => return Err(Status::unavailable("the node's service went away")),
                Err(_) => return Err(deadline_passed()),
            }
        }
    }
}

#[cfg(feature = "tower")]
impl Channel {
    /// The same connection with a layer around its calls, and around the layers that it has. Interceptors see a call first. Other
    /// clones of the channel stay as they are. See [`layer`](crate::layer).
    #[must_use]
    pub fn layer<L>(mut self, layer: L) -> Channel
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
        wrap(&mut rules_of(&mut self.rules).layers, &layer);
        self
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut fields = f.debug_struct("Channel");
        fields.field("service", &self.service().name);
        if let Way::Managed(inner) = &self.way {
            fields
                .field("target", &inner.target)
                .field("state", &self.state());
        }
        fields.finish()
    }
}

impl ChannelBuilder {
    /// Connects through this app, in place of the process's own.
    #[must_use]
    pub fn app(mut self, app: &App) -> ChannelBuilder {
        self.app = Some(app.clone());
        self
    }

    /// How many calls may be in flight; more wait for their turn.
    #[must_use]
    pub fn concurrency_limit(mut self, calls: usize) -> ChannelBuilder {
        self.concurrency_limit = calls.clamp(1, CALLS_IN_FLIGHT_MAX);
        self
    }

    /// Has an interceptor see all calls. Several are asked in the order in which they are added.
    #[must_use]
    pub fn intercept(mut self, interceptor: impl CallInterceptor) -> ChannelBuilder {
        rules_of(&mut self.rules).interceptors.push(Arc::new(interceptor));
        self
    }

    /// What calls have that do not say otherwise.
    #[must_use]
    pub fn defaults(mut self, defaults: CallDefaults) -> ChannelBuilder {
        rules_of(&mut self.rules).defaults = defaults;
        self
    }

    /// Connects. Fails when there is no node, or no server, now.
    pub async fn connect(self, target: impl Into<Target>) -> Result<Channel, Status> {
        refuse_child()?;
        let app = self.app.clone().map_or_else(App::global, Ok)?;
        let (inner, rules) = self.unconnected(&app, target.into());
        let link = inner
            .app
            .link()
            .ok_or_else(|| Status::unavailable("the node's service is away"))?;
        inner.connect_over(&link).await?;
        inner.app.add_channel(&inner);
        if inner.lose_if_closed() || !inner.is_connected() {
            // It was lost before anybody knew of it.
            inner.app.keep_at_once();
        }
        let way = Way::Managed(inner);
        Ok(Channel { way, rules })
    }

    /// A channel that connects by itself as soon as that works, whether the node and the server are there already or start
    /// later. Until then calls fail at once with `UNAVAILABLE`, or wait, as their [`Readiness`] says;
    /// [`Channel::on_ready`] waits for the connection.
    ///
    /// ```no_run
    /// # async fn connect(service: &'static provost::codegen::ServiceDescriptor) -> Result<(), provost::Status> {
    /// use provost::{CallDefaults, Channel, Readiness};
    ///
    /// let waiting = CallDefaults::new().readiness(Readiness::Wait);
    /// let channel = Channel::builder(service).defaults(waiting).connect_lazily("inventory")?;
    /// channel.on_ready().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` in a child of `fork`.
    pub fn connect_lazily(self, target: impl Into<Target>) -> Result<Channel, Status> {
        refuse_child()?;
        let app = self.app.clone().map_or_else(App::global_lazily, Ok)?;
        let (inner, rules) = self.unconnected(&app, target.into());
        inner.app.add_channel(&inner);
        inner.app.keep_at_once();
        let way = Way::Managed(inner);
        Ok(Channel { way, rules })
    }

    fn unconnected(self, app: &App, target: Target) -> (Arc<ChannelInner>, Option<Arc<ChannelRules>>) {
        let inner = Arc::new(ChannelInner {
            app: app.inner().clone(),
            service: self.service,
            target,
            state: Mutex::default(),
            limit: Limit::new(self.concurrency_limit),
        });
        (inner, self.rules)
    }
}

impl std::fmt::Debug for ChannelBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChannelBuilder")
            .field("service", &self.service.name)
            .field("app", &self.app)
            .field("concurrency_limit", &self.concurrency_limit)
            .finish_non_exhaustive()
    }
}

impl State {
    fn connection(&self) -> Option<&Connection> {
        self.current.as_ref().filter(|current| !current.link.is_dead())
    }

    fn now(&self) -> ChannelState {
        if self.connection().is_some() {
            ChannelState::Ready
        } else if self.has_failed {
            ChannelState::TransientFailure
        } else {
            ChannelState::Connecting
        }
    }

    fn why_not_ready(&self) -> Option<Status> {
        match self.connection() {
            Some(_) => None,
            None => self.why_down.clone(),
        }
    }

    /// Has `waker` woken when the state changes; `place` is that of who waits. The one in whose place it is must be dropped without the lock.
    #[must_use]
    fn wake_on_change(&self, place: &mut Option<WakerPlace>, waker: &Waker) -> Option<Waker> {
        place.get_or_insert_with(|| self.waiters.place()).replace(waker)
    }

    fn failed(&mut self, status: &Status) {
        self.has_failed = true;
        self.why_down = Some(status.clone());
    }
}

impl ChannelInner {
    pub(crate) fn is_connected(&self) -> bool {
        self.state().connection().is_some()
    }

    /// There is no node's service to connect by.
    pub(crate) fn note_no_link(&self, status: &Status) {
        let mut state = self.state();
        if state.connection().is_none() {
            state.failed(status);
            wake(state);
        }
    }

    /// Forgets the connection if it is the one that is meant, and says whether it was.
    pub(crate) fn lose(&self, is_meant: impl Fn(&Connection) -> bool, status: &Status) -> bool {
        let mut state = self.state();
        if !state.current.as_ref().is_some_and(is_meant) {
            return false;
        }
        let lost = state.current.take();
        state.has_failed = false;
        state.why_down = Some(Status::unavailable(status.message()));
        wake(state);
        drop(lost);
        true
    }

    /// Forgets this connection, which is over, and has another one made.
    fn lost(&self, connection: &Connection) {
        self.lose(|current| current.is(connection), &closed());
        self.app.keep_at_once();
    }

    /// Forgets the connection if it has closed before the app knew whose it is, and says whether it has.
    fn lose_if_closed(&self) -> bool {
        let current = self.state().connection().cloned();
        current.is_some_and(|current| {
            current.link.has_closed(current.number) && self.lose(|other| other.is(&current), &closed())
        })
    }

    /// Connects over this link.
    pub(crate) async fn connect_over(&self, link: &Arc<Link>) -> Result<(), Status> {
        let result = self.establish(link).await;
        let mut state = self.state();
        match &result {
            Ok(number) => {
                state.current = Some(Connection {
                    link: link.clone(),
                    number: *number,
                });
                state.has_failed = false;
                state.why_down = None;
            }
            Err(status) => state.failed(status),
        }
        wake(state);
        match result {
            Ok(_) if self.lose_if_closed() => Err(closed()),
            result => result.map(drop),
        }
    }

    async fn establish(&self, link: &Link) -> Result<u32, Status> {
        let connect = Connect {
            service: match self.target.service.as_str() {
                "" => self.service.name.to_owned(),
                name => name.to_owned(),
            },
            schema_hash: self.service.schema_hash.to_vec(),
            address: self.target.address.clone(),
            timeout_ns: CONNECT_TIMEOUT.as_nanos() as u64,
        };
        let request = || request::Body::Connect(connect.clone());
        match request_with_schema(link, self.service, link.control.new_id(), request).await? {
            reply::Body::Connected(connected) => Ok(connected.connection),
            _ => Err(Status::internal(
                "the node's service did not answer the connect request",
            )),
        }
    }

    /// The connection; waits for one if that is wanted.
    async fn connection(
        self: &Arc<Self>,
        readiness: Readiness,
        deadline_ns: u64,
    ) -> Result<Connection, Status> {
        let mut late = (deadline_ns != 0).then(|| Timer::at(deadline_ns));
        let mut place = None;
        std::future::poll_fn(|context| {
            let state = self.state();
            if let Some(current) = state.connection() {
                return Poll::Ready(Ok(current.clone()));
            }
            if readiness == Readiness::FailFast {
                let why = state.why_down.clone();
                drop(state);
                self.app.keep();
                let why = why.unwrap_or_else(|| Status::unavailable("the node's service went away"));
                return Poll::Ready(Err(Status::unavailable(why.message())));
            }
            let replaced = state.wake_on_change(&mut place, context.waker());
            drop(state);
            drop(replaced);
            self.app.keep();
            match late.as_mut().map(|timer| timer.poll(context)) {
                Some(Poll::Ready(())) => Poll::Ready(Err(deadline_passed())),
                _ => Poll::Pending,
            }
        })
        .await
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn closed() -> Status {
    Status::unavailable("the connection closed")
}

/// Wakes whoever waits for a change.
fn wake(state: MutexGuard<'_, State>) {
    let waiters = state.waiters.clone();
    drop(state);
    waiters.wake_all();
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        if let Some(current) = self.state().current.take() {
            current.link.close_connection(current.number);
        }
    }
}

/// Begins a call as soon as there is room for it.
async fn begin_on(
    link: &Arc<Link>,
    call: &NewCall,
    outgoing: &mut OutgoingMessage,
) -> Result<CallId, SubmitError> {
    when_room(link, call.deadline_ns, || link.begin(call, outgoing)).await
}
