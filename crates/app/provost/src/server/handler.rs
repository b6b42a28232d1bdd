//! Handlers by method, and places in which their futures run again and again without another allocation.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::ServerCall;
use crate::call_limits::MessageBounds;
use crate::context;
use crate::descriptor::{MethodKind, ServiceDescriptor};
use crate::intercept::{CallInterceptor, CallPath, InterceptorList};
use crate::message::Message;
use crate::received::Received;
use crate::request::{Request, Response};
use crate::status::Status;
use crate::streaming::Streaming;

pub(crate) type BoxedHandler = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A service that a server can offer; implemented by the generated `…Server` types.
///
/// ```ignore
/// impl<T: Kv> Service for KvServer<T> {
///     fn descriptor(&self) -> &'static ServiceDescriptor { &KV }
///     fn register(&self, methods: &mut Methods) {
///         let inner = self.inner.clone();
///         methods.unary(0, move |request| {
///             let inner = inner.clone();
///             async move { inner.get(request).await }
///         });
///     }
/// }
/// ```
pub trait Service: Send + Sync + 'static {
    /// What the service is.
    fn descriptor(&self) -> &'static ServiceDescriptor;
    /// Registers a handler for each method.
    fn register(&self, methods: &mut Methods);
}

/// The handlers of a service, by the index of their methods.
pub struct Methods {
    service: &'static ServiceDescriptor,
    handlers: Vec<Option<Box<dyn Handler>>>,
    /// What applies to the handlers that are registered now.
    rules: Arc<ServerRules>,
}

/// What a server has for all calls of its services.
#[derive(Clone, Default)]
pub(crate) struct ServerRules {
    pub(crate) interceptors: InterceptorList,
    /// Keys of metadata that calls inherit which handlers make, beside those of the trace.
    pub(crate) pass_on: Vec<String>,
    pub(crate) messages: MessageBounds,
    #[cfg(feature = "tower")]
    pub(crate) layers: Option<Arc<dyn crate::layer::CallLayers>>,
}

impl Methods {
    /// The handler of a unary method.
    pub fn unary<Req, Resp, H, F>(&mut self, method: u16, handler: H)
    where
        Req: Message,
        Resp: Message,
        H: Fn(Request<Received<Req>>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response<Resp>, Status>> + Send + 'static,
    {
        let handler = self.registered::<Req, Resp, H>(method, MethodKind::Unary, handler);
        self.insert(method, move |mut call: ServerCall| {
            let handler = handler.clone();
            async move {
                call.bound_messages(handler.rules.messages);
                let result = match call.single_request().await {
                    Ok(request) => handler.handle(request).await,
                    Err(status) => Err(status),
                };
                call.answer(result).await;
            }
        });
    }

    /// The handler of a method that answers with a stream.
    pub fn server_streaming<Req, Resp, S, H, F>(&mut self, method: u16, handler: H)
    where
        Req: Message,
        Resp: Message,
        S: Stream<Item = Result<Resp, Status>> + Send + 'static,
        H: Fn(Request<Received<Req>>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response<S>, Status>> + Send + 'static,
    {
        let handler = self.registered::<Req, Resp, H>(method, MethodKind::ServerStreaming, handler);
        self.insert(method, move |mut call: ServerCall| {
            let handler = handler.clone();
            async move {
                call.bound_messages(handler.rules.messages);
                let result = match call.single_request().await {
                    Ok(request) => handler.handle(request).await,
                    Err(status) => Err(status),
                };
                call.answer_stream(result).await;
            }
        });
    }

    /// The handler of a method that takes a stream and answers once.
    pub fn client_streaming<Req, Resp, H, F>(&mut self, method: u16, handler: H)
    where
        Req: Message,
        Resp: Message,
        H: Fn(Request<Streaming<Req>>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response<Resp>, Status>> + Send + 'static,
    {
        let handler = self.registered::<Req, Resp, H>(method, MethodKind::ClientStreaming, handler);
        self.insert(method, move |mut call: ServerCall| {
            let handler = handler.clone();
            async move {
                call.bound_messages(handler.rules.messages);
                let result = match call.request_stream() {
                    Ok(requests) => handler.handle(requests).await,
                    Err(status) => Err(status),
                };
                call.answer(result).await;
            }
        });
    }

    /// The handler of a method that takes a stream and answers with a stream.
    pub fn bidirectional<Req, Resp, S, H, F>(&mut self, method: u16, handler: H)
    where
        Req: Message,
        Resp: Message,
        S: Stream<Item = Result<Resp, Status>> + Send + 'static,
        H: Fn(Request<Streaming<Req>>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response<S>, Status>> + Send + 'static,
    {
        let handler = self.registered::<Req, Resp, H>(method, MethodKind::Bidirectional, handler);
        self.insert(method, move |mut call: ServerCall| {
            let handler = handler.clone();
            async move {
                call.bound_messages(handler.rules.messages);
                let result = match call.request_stream() {
                    Ok(requests) => handler.handle(requests).await,
                    Err(status) => Err(status),
                };
                call.answer_stream(result).await;
            }
        });
    }

    /// Has what `register` registers seen by an interceptor first.
    pub(crate) fn intercepted(
        &mut self,
        interceptor: &Arc<dyn CallInterceptor>,
        register: impl FnOnce(&mut Methods),
    ) {
        let outer = self.rules.clone();
        Arc::make_mut(&mut self.rules)
            .interceptors
            .push(interceptor.clone());
        register(self);
        self.rules = outer;
    }

    fn registered<Req: Message, Resp: Message, H>(
        &self,
        method: u16,
        kind: MethodKind,
        handler: H,
    ) -> Arc<RegisteredHandler<H>> {
        self.check::<Req, Resp>(method, kind);
        Arc::new(RegisteredHandler {
            handler,
            path: CallPath::of(self.service, method),
            kind,
            rules: self.rules.clone(),
        })
    }

    /// Sees to it that what is received as a `Req` is one.
    ///
    /// # Panics
    ///
    /// When the method has other messages: the server was generated from another schema than its descriptor.
    fn check<Req: Message, Resp: Message>(&self, method: u16, kind: MethodKind) {
        let (name, request, response) = (self.service.name, Req::FULL_NAME, Resp::FULL_NAME);
        let is_right = self.service.has_method::<Req, Resp>(method, kind);
        assert!(
            is_right,
            "{name} has no method {method} from {request} to {response}"
        );
    }

    fn insert<M, F>(&mut self, method: u16, make: M)
    where
        M: Fn(ServerCall) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let method = usize::from(method);
        if self.handlers.len() <= method {
            self.handlers.resize_with(method + 1, || None);
        }
        self.handlers[method] = Some(Box::new(MadeBy(Arc::new(make))));
    }
}

impl std::fmt::Debug for Methods {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = self.handlers.iter().flatten().count();
        f.debug_struct("Methods").field("handlers", &count).finish()
    }
}

/// A handler of a program, and what its calls go through before.
struct RegisteredHandler<H> {
    handler: H,
    path: CallPath,
    kind: MethodKind,
    rules: Arc<ServerRules>,
}

impl<H> RegisteredHandler<H> {
    async fn handle<T, R, F>(self: &Arc<Self>, mut request: Request<T>) -> Result<Response<R>, Status>
    where
        T: Send + 'static,
        R: Send + 'static,
        H: Fn(Request<T>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response<R>, Status>> + Send + 'static,
    {
        self.admit(&mut request)?;
        #[cfg(feature = "tower")]
        if let Some(layers) = &self.rules.layers {
            let registered = self.clone();
            let proceed = move |request| (registered.handler)(request);
            return crate::layer::through(layers, (self.path, self.kind), request, proceed).await;
        }
        (self.handler)(request).await
    }

    /// Asks the interceptors, and has calls of the handler inherit what the request then passes on.
    fn admit<T>(&self, request: &mut Request<T>) -> Result<(), Status> {
        if !self.rules.interceptors.is_empty() {
            let mut head = request.head(self.path, self.kind);
            let mut interceptors = self.rules.interceptors.iter();
            interceptors.try_for_each(|interceptor| interceptor.intercept(&mut head))?;
            request.settle_deadline();
        }
        if !request.metadata().is_empty() {
            context::carry(request.metadata(), &self.rules.pass_on);
        }
        Ok(())
    }
}

/// A service with its handlers.
#[derive(Clone)]
pub(crate) struct Bound {
    pub(crate) descriptor: &'static ServiceDescriptor,
    methods: Arc<Methods>,
}

impl Bound {
    pub(crate) fn new(service: &dyn Service, rules: &Arc<ServerRules>) -> Bound {
        let descriptor = service.descriptor();
        let mut methods = Methods {
            service: descriptor,
            handlers: Vec::new(),
            rules: rules.clone(),
        };
        service.register(&mut methods);
        Bound {
            descriptor,
            methods: Arc::new(methods),
        }
    }

    pub(crate) fn handler(&self, method: u16) -> Option<&dyn Handler> {
        self.methods.handlers.get(usize::from(method))?.as_deref()
    }
}

/// Makes the futures that handle calls of one method.
pub(crate) trait Handler: Send + Sync {
    /// A place in which they can run, one after the other.
    fn place(&self) -> Box<dyn Place>;
    /// One of them.
    fn boxed(&self, call: ServerCall) -> BoxedHandler;
}

/// Where one future of a handler runs at a time.
pub(crate) trait Place: Send {
    /// Puts the future for a call in.
    fn start(&mut self, call: ServerCall);
    /// Polls it, and drops it when it is ready.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()>;
    /// Drops it.
    fn clear(&mut self);
}

struct MadeBy<M>(Arc<M>);

impl<M, F> Handler for MadeBy<M>
where
    M: Fn(ServerCall) -> F + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    fn place(&self) -> Box<dyn Place> {
        Box::new(PlaceFor {
            make: self.0.clone(),
            future: Box::pin(None),
        })
    }

    fn boxed(&self, call: ServerCall) -> BoxedHandler {
        Box::pin((self.0)(call))
    }
}

struct PlaceFor<M, F> {
    make: Arc<M>,
    future: Pin<Box<Option<F>>>,
}

impl<M, F> Place for PlaceFor<M, F>
where
    M: Fn(ServerCall) -> F + Send + Sync,
    F: Future<Output = ()> + Send,
{
    fn start(&mut self, call: ServerCall) {
        let future = (self.make)(call);
        self.future.set(Some(future));
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(future) = self.future.as_mut().as_pin_mut() else {
            return Poll::Ready(());
        };
        let polled = future.poll(context);
        if polled.is_ready() {
            self.clear();
        }
        polled
    }

    fn clear(&mut self) {
        self.future.set(None);
    }
}
