//! Layers of [tower](https://docs.rs/tower) around calls (feature `tower`): code that waits before a call, sees what it comes
//! to, or answers in its place. [`CallInterceptor`](crate::CallInterceptor) is simpler where that is enough, and costs less.
//!
//! A layer wraps a [`tower_service::Service`] of `Request<CallBody>`, whose answer is a `Response<AnswerBody>`. Path, metadata,
//! extensions and time are in the request and in its [`CallBody`]; the messages stay closed, so that one layer serves all
//! methods. A layer may change metadata and extensions of request and response. Its errors end the call: a
//! [`Status`] as it is, every other error as `UNKNOWN` with its text; `tower`'s `map_err` makes another status of it.
//!
//! ```
//! use provost::{Server, Status};
//! use tower_layer::layer_fn;
//! # #[derive(Clone)]
//! # struct Timed<S>(S);
//! # impl<S: tower_service::Service<R>, R> tower_service::Service<R> for Timed<S> {
//! #     type Response = S::Response;
//! #     type Error = S::Error;
//! #     type Future = S::Future;
//! #     fn poll_ready(&mut self, task: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), S::Error>> { self.0.poll_ready(task) }
//! #     fn call(&mut self, request: R) -> S::Future { self.0.call(request) }
//! # }
//!
//! let server = Server::builder().layer(layer_fn(|inner| Timed(inner)));
//! # drop(server);
//! ```
//!
//! Each call has a clone of the service of its own, as in other libraries over tower. A call through layers allocates.

use std::any::Any;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower_layer::Layer;
use tower_service::Service;

use crate::call_limits::{resolve_deadline, within};
use crate::descriptor::MethodKind;
use crate::intercept::CallPath;
use crate::reactor::Reactor;
use crate::request::{Request, Response};
use crate::status::Status;

/// What a call through layers comes to.
pub type AnswerFuture = Pin<Box<dyn Future<Output = Result<Response<AnswerBody>, Status>> + Send>>;

/// Any error, as layers have it.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The messages of a call on its way through layers, and how it goes on.
pub struct CallBody {
    path: CallPath,
    kind: MethodKind,
    proceed: Box<dyn FnOnce(Request<()>) -> AnswerFuture + Send>,
}

impl CallBody {
    /// The service and the method.
    #[must_use]
    pub fn path(&self) -> CallPath {
        self.path
    }

    /// How messages flow in the method.
    #[must_use]
    pub fn kind(&self) -> MethodKind {
        self.kind
    }
}

impl fmt::Debug for CallBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CallBody").field(&self.path).finish()
    }
}

/// The messages of an answer on its way back through layers.
pub struct AnswerBody(Box<dyn Any + Send>);

impl fmt::Debug for AnswerBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnswerBody")
    }
}

/// What layers are put around: the layers that were added before, and behind them the call.
#[derive(Clone, Default)]
pub struct LayeredService {
    inner: Option<Arc<dyn CallLayers>>,
}

impl Service<Request<CallBody>> for LayeredService {
    type Response = Response<AnswerBody>;
    type Error = Status;
    type Future = AnswerFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<CallBody>) -> AnswerFuture {
        if let Some(inner) = &self.inner {
            return inner.call(request);
        }
        let (body, head) = request.split();
        (body.proceed)(head)
    }
}

impl fmt::Debug for LayeredService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LayeredService")
    }
}

/// A service of a type that is forgotten.
pub(crate) trait CallLayers: Send + Sync {
    fn call(&self, request: Request<CallBody>) -> AnswerFuture;
}

/// A service of which each call has a clone.
struct ClonedService<S>(S);

impl<S> CallLayers for ClonedService<S>
where
    S: Service<Request<CallBody>, Response = Response<AnswerBody>> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
{
    fn call(&self, request: Request<CallBody>) -> AnswerFuture {
        let mut service = self.0.clone();
        Box::pin(async move {
            let is_ready = poll_fn(|task| service.poll_ready(task)).await;
            is_ready.map_err(|error| status_of(error.into()))?;
            let answer = service.call(request).await;
            answer.map_err(|error| status_of(error.into()))
        })
    }
}

/// The status of a call that a layer has ended.
pub(crate) fn status_of(error: BoxError) -> Status {
    match error.downcast::<Status>() {
        Ok(status) => *status,
        Err(error) => Status::unknown(error.to_string()),
    }
}

/// Puts a layer around those that are there.
pub(crate) fn wrap<L>(layers: &mut Option<Arc<dyn CallLayers>>, layer: &L)
where
    L: Layer<LayeredService>,
    L::Service: Service<Request<CallBody>, Response = Response<AnswerBody>> + Clone + Send + Sync + 'static,
    <L::Service as Service<Request<CallBody>>>::Error: Into<BoxError>,
    <L::Service as Service<Request<CallBody>>>::Future: Send,
{
    let inner = LayeredService { inner: layers.take() };
    *layers = Some(Arc::new(ClonedService(layer.layer(inner))));
}

/// [`through`] for a call of a client, which ends at its deadline also while layers wait.
pub(crate) async fn through_in_time<T, R, F>(
    layers: &Arc<dyn CallLayers>,
    method: (CallPath, MethodKind),
    mut request: Request<T>,
    proceed: impl FnOnce(Request<T>) -> F + Send + 'static,
) -> Result<Response<R>, Status>
where
    T: Send + 'static,
    R: Send + 'static,
    F: Future<Output = Result<Response<R>, Status>> + Send + 'static,
{
    let limits = request.limits_mut();
    limits.deadline_ns = resolve_deadline(*limits);
    limits.timeout = None;
    let deadline_ns = limits.deadline_ns;
    if deadline_ns != 0 {
        Reactor::get()?;
    }
    within(deadline_ns, through(layers, method, request, proceed)).await?
}

/// Has a call go through layers, and on by `proceed` if they let it.
pub(crate) async fn through<T, R, F>(
    layers: &Arc<dyn CallLayers>,
    (path, kind): (CallPath, MethodKind),
    request: Request<T>,
    proceed: impl FnOnce(Request<T>) -> F + Send + 'static,
) -> Result<Response<R>, Status>
where
    T: Send + 'static,
    R: Send + 'static,
    F: Future<Output = Result<Response<R>, Status>> + Send + 'static,
{
    let (message, head) = request.split();
    let proceed = Box::new(move |head: Request<()>| -> AnswerFuture {
        let answer = proceed(head.map(|()| message));
        Box::pin(async move { Ok(answer.await?.map(|message| AnswerBody(Box::new(message)))) })
    });
    let body = CallBody { path, kind, proceed };
    let (answer, head) = layers.call(head.map(|()| body)).await?.split();
    let message = answer.0.downcast::<R>();
    let message =
        message.map_err(|_| Status::internal("a layer has answered by the answer of another method"));
    message.map(|message| head.map(|()| *message))
}
