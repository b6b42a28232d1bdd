//! Handlers by the type of the requests, and requests as they see them.

use std::sync::Arc;

use provost_datagram::{Address, EndReason, MsgBuf, Payload, RequestHandle, SessionId};

use crate::buffers::{Home, Homecoming, Origin};
use crate::context::Context;
use crate::workers::Work;

/// What has happened to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// One that was asked for is there.
    Connected(SessionId),
    /// A client has opened one.
    Accepted(SessionId),
    /// One is over. The continuations of all its calls have run.
    Ended(SessionId, EndReason),
}

pub(crate) type Dispatch<A, S> = Box<dyn FnMut(&mut S, &mut Context<'_, A, S>, &mut Request<'_>) + Send>;
pub(crate) type OnSession<A, S> = Box<dyn FnMut(&mut S, &mut Context<'_, A, S>, SessionEvent) + Send>;
pub(crate) type OnRing<A, S> = Box<dyn FnMut(&mut S, &mut Context<'_, A, S>) + Send>;
pub(crate) type OnWork = Arc<dyn Fn(&mut Work) -> u16 + Send + Sync>;

pub(crate) enum Handler<A, S> {
    Dispatch(Dispatch<A, S>),
    Worker(OnWork),
}

/// Handlers by the type of the requests, registered before an [`Rpc`](crate::Rpc) starts.
pub struct Handlers<A, S> {
    pub(crate) by_type: Vec<Option<Handler<A, S>>>,
    pub(crate) otherwise: Option<Dispatch<A, S>>,
    pub(crate) on_session: Option<OnSession<A, S>>,
    pub(crate) on_ring: Option<OnRing<A, S>>,
}

impl<A, S> Default for Handlers<A, S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<A, S> std::fmt::Debug for Handlers<A, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let types = |(index, handler): (usize, &Option<Handler<A, S>>)| handler.as_ref().map(|_| index);
        f.debug_set()
            .entries(self.by_type.iter().enumerate().filter_map(types))
            .finish()
    }
}

impl<A, S> Handlers<A, S> {
    /// None: requests are answered as [`RpcError::NoHandler`](crate::RpcError::NoHandler).
    #[must_use]
    pub fn new() -> Self {
        Self {
            by_type: Vec::new(),
            otherwise: None,
            on_session: None,
            on_ring: None,
        }
    }

    /// Requests of this type are handled in the event loop. It is for handlers that take less than a few microseconds;
    /// all others wait meanwhile. The handler may answer at once, or keep the request's handle and answer later.
    pub fn dispatch(
        &mut self,
        request_type: u16,
        handler: impl FnMut(&mut S, &mut Context<'_, A, S>, &mut Request<'_>) + Send + 'static,
    ) -> &mut Self {
        self.insert(request_type, Handler::Dispatch(Box::new(handler)))
    }

    /// Requests of this type are handled by a worker thread; what the handler returns is the response's status.
    pub fn worker(
        &mut self,
        request_type: u16,
        handler: impl Fn(&mut Work) -> u16 + Send + Sync + 'static,
    ) -> &mut Self {
        self.insert(request_type, Handler::Worker(Arc::new(handler)))
    }

    /// Requests of all other types are handled by this one, in the event loop.
    pub fn otherwise(
        &mut self,
        handler: impl FnMut(&mut S, &mut Context<'_, A, S>, &mut Request<'_>) + Send + 'static,
    ) -> &mut Self {
        self.otherwise = Some(Box::new(handler));
        self
    }

    /// Who is told what happens to sessions.
    pub fn on_session(
        &mut self,
        handler: impl FnMut(&mut S, &mut Context<'_, A, S>, SessionEvent) + Send + 'static,
    ) -> &mut Self {
        self.on_session = Some(Box::new(handler));
        self
    }

    /// What runs after another thread has called [`Remote::ring`](crate::Remote::ring).
    pub fn on_ring(
        &mut self,
        handler: impl FnMut(&mut S, &mut Context<'_, A, S>) + Send + 'static,
    ) -> &mut Self {
        self.on_ring = Some(Box::new(handler));
        self
    }

    fn insert(&mut self, request_type: u16, handler: Handler<A, S>) -> &mut Self {
        let index = usize::from(request_type);
        if self.by_type.len() <= index {
            self.by_type.resize_with(index + 1, || None);
        }
        self.by_type[index] = Some(handler);
        self
    }

    pub(crate) fn has_workers(&self) -> bool {
        let is_worker = |handler: &Option<Handler<A, S>>| matches!(handler, Some(Handler::Worker(_)));
        self.by_type.iter().any(is_worker)
    }
}

/// A request, in its handler.
#[derive(Debug)]
pub struct Request<'p> {
    pub(crate) handle: RequestHandle,
    pub(crate) request_type: u16,
    pub(crate) payload: Payload<'p>,
}

impl Request<'_> {
    /// What to answer to, now or later.
    #[must_use]
    pub fn handle(&self) -> RequestHandle {
        self.handle
    }

    /// Its type.
    #[must_use]
    pub fn request_type(&self) -> u16 {
        self.request_type
    }

    /// What was sent. One packet's bytes are still where the wire put them, uncopied.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.payload
    }

    /// The bytes, to keep beyond the handler: those of one packet are copied, those of several are not. After this the
    /// request is empty.
    #[must_use]
    pub fn take<A: Address, S>(&mut self, context: &mut Context<'_, A, S>) -> OwnedRequest {
        context.own(std::mem::replace(&mut self.payload, Payload::Borrowed(&[])))
    }
}

/// The bytes of a request that outlives its handler. Its memory goes home when it is dropped, on whatever thread.
#[derive(Debug)]
pub struct OwnedRequest {
    pub(crate) buffer: MsgBuf,
    pub(crate) origin: Origin,
    pub(crate) home: Arc<Home>,
}

impl std::ops::Deref for OwnedRequest {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for OwnedRequest {
    fn drop(&mut self) {
        self.home.come(Homecoming {
            buffer: std::mem::take(&mut self.buffer),
            origin: self.origin,
        });
    }
}
