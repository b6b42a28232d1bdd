//! [`Request`] and [`Response`]: a message, or a stream of them, and what travels beside it.

use std::time::Duration;

use futures_core::Stream;

use crate::call_limits::{CallLimits, Readiness};
use crate::context::{deadline_in, limit_current};
use crate::descriptor::MethodKind;
use crate::extensions::ExtensionMap;
use crate::intercept::{CallHead, CallPath};
use crate::link::{OutgoingMessage, PeerSource};
use crate::message::Message;
use crate::metadata::MetadataMap;
use crate::peer::Peer;
use crate::shared::{HeapFull, Prepared};

/// A request: a message (or a stream of messages), metadata, and how long the call may take.
///
/// Client functions take anything that is [`IntoRequest`], so a bare message will do where nothing else is to be said.
#[derive(Clone, Debug)]
pub struct Request<T> {
    message: T,
    metadata: MetadataMap,
    limits: CallLimits,
    peer: Option<PeerSource>,
    extensions: ExtensionMap,
}

impl<T> Request<T> {
    /// A request with no metadata and no time limit of its own.
    #[must_use]
    pub fn new(message: T) -> Request<T> {
        Request {
            message,
            metadata: MetadataMap::new(),
            limits: CallLimits::default(),
            peer: None,
            extensions: ExtensionMap::new(),
        }
    }

    /// The message, or the stream of messages.
    #[must_use]
    pub fn get_ref(&self) -> &T {
        &self.message
    }

    /// The message, to be changed.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.message
    }

    /// The message alone.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.message
    }

    /// The metadata.
    #[must_use]
    pub fn metadata(&self) -> &MetadataMap {
        &self.metadata
    }

    /// The metadata, to be changed.
    #[must_use]
    pub fn metadata_mut(&mut self) -> &mut MetadataMap {
        &mut self.metadata
    }

    /// Bounds the time from now that the call may take. Within a server's handler, a call never takes longer than
    /// what is left of the handler's own call, whatever is set here.
    pub fn set_timeout(&mut self, timeout: Duration) -> &mut Request<T> {
        self.limits.timeout = Some(timeout);
        self
    }

    /// Says what the call does when there is no connection to the service now.
    pub fn set_readiness(&mut self, readiness: Readiness) -> &mut Request<T> {
        self.limits.readiness = Some(readiness);
        self
    }

    /// How much time is left for the call, in a server's handler. `None` when its caller set no limit.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        match self.limits.deadline_ns {
            0 => self.limits.timeout,
            deadline_ns => Some(Duration::from_nanos(
                deadline_ns.saturating_sub(provost_shm::now_ns()),
            )),
        }
    }

    /// Who calls, in a server's handler: as the node's service knows it, whatever the caller says of itself. `None` where
    /// there is no service, where it is of an earlier version, and when the connection has ended.
    #[must_use]
    pub fn peer(&self) -> Option<Peer> {
        self.peer.as_ref()?.find()
    }

    /// The same request with another message.
    #[must_use]
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Request<U> {
        Request {
            message: change(self.message),
            metadata: self.metadata,
            limits: self.limits,
            peer: self.peer,
            extensions: self.extensions,
        }
    }

    /// Values that interceptors, layers and handlers of this process leave for each other. They do not travel.
    #[must_use]
    pub fn extensions(&self) -> &ExtensionMap {
        &self.extensions
    }

    /// The extensions, to be changed.
    #[must_use]
    pub fn extensions_mut(&mut self) -> &mut ExtensionMap {
        &mut self.extensions
    }

    /// The message, and the request without it.
    #[cfg(feature = "tower")]
    pub(crate) fn split(self) -> (T, Request<()>) {
        let head = Request {
            message: (),
            metadata: self.metadata,
            limits: self.limits,
            peer: self.peer,
            extensions: self.extensions,
        };
        (self.message, head)
    }

    pub(crate) fn from_parts(message: T, metadata: MetadataMap, limits: CallLimits) -> Request<T> {
        Request {
            message,
            metadata,
            limits,
            peer: None,
            extensions: ExtensionMap::new(),
        }
    }

    /// What an interceptor is shown of it.
    pub(crate) fn head(&mut self, path: CallPath, kind: MethodKind) -> CallHead<'_> {
        CallHead {
            path,
            kind,
            metadata: &mut self.metadata,
            limits: &mut self.limits,
            extensions: &mut self.extensions,
            peer: self.peer.as_ref(),
        }
    }

    /// Has the time that an interceptor gave a received request count as its deadline, if that is earlier.
    pub(crate) fn settle_deadline(&mut self) {
        let Some(timeout) = self.limits.timeout.take() else {
            return;
        };
        let deadline_ns = deadline_in(timeout);
        limit_current(deadline_ns);
        self.limits.deadline_ns = match self.limits.deadline_ns {
            0 => deadline_ns,
            own_ns => own_ns.min(deadline_ns),
        };
    }

    pub(crate) fn limits_mut(&mut self) -> &mut CallLimits {
        &mut self.limits
    }

    pub(crate) fn with_peer(self, peer: PeerSource) -> Request<T> {
        Request {
            peer: Some(peer),
            ..self
        }
    }

    pub(crate) fn into_parts(self) -> (T, MetadataMap, CallLimits) {
        (self.message, self.metadata, self.limits)
    }
}

/// A response: a message (or a stream of messages) and the metadata around it.
#[derive(Clone, Debug)]
pub struct Response<T> {
    message: T,
    metadata: MetadataMap,
    trailers: MetadataMap,
    extensions: ExtensionMap,
}

impl<T> Response<T> {
    /// A response with no metadata.
    #[must_use]
    pub fn new(message: T) -> Response<T> {
        Response {
            message,
            metadata: MetadataMap::new(),
            trailers: MetadataMap::new(),
            extensions: ExtensionMap::new(),
        }
    }

    /// The message, or the stream of messages.
    #[must_use]
    pub fn get_ref(&self) -> &T {
        &self.message
    }

    /// The message, to be changed.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.message
    }

    /// The message alone.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.message
    }

    /// The metadata that precedes the message.
    #[must_use]
    pub fn metadata(&self) -> &MetadataMap {
        &self.metadata
    }

    /// The metadata that precedes the message, to be changed.
    #[must_use]
    pub fn metadata_mut(&mut self) -> &mut MetadataMap {
        &mut self.metadata
    }

    /// The metadata that follows the last message. For a response that streams, see
    /// [`Streaming::trailers`](crate::Streaming::trailers).
    #[must_use]
    pub fn trailers(&self) -> &MetadataMap {
        &self.trailers
    }

    /// The metadata that follows the last message, to be changed.
    #[must_use]
    pub fn trailers_mut(&mut self) -> &mut MetadataMap {
        &mut self.trailers
    }

    /// The same response with another message.
    #[must_use]
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Response<U> {
        Response {
            message: change(self.message),
            metadata: self.metadata,
            trailers: self.trailers,
            extensions: self.extensions,
        }
    }

    /// Values that handlers, layers and who has called in this process leave for each other. They do not travel.
    #[must_use]
    pub fn extensions(&self) -> &ExtensionMap {
        &self.extensions
    }

    /// The extensions, to be changed.
    #[must_use]
    pub fn extensions_mut(&mut self) -> &mut ExtensionMap {
        &mut self.extensions
    }

    /// The message, and the response without it.
    #[cfg(feature = "tower")]
    pub(crate) fn split(self) -> (T, Response<()>) {
        let head = Response {
            message: (),
            metadata: self.metadata,
            trailers: self.trailers,
            extensions: self.extensions,
        };
        (self.message, head)
    }

    pub(crate) fn from_parts(message: T, metadata: MetadataMap, trailers: MetadataMap) -> Response<T> {
        Response {
            message,
            metadata,
            trailers,
            extensions: ExtensionMap::new(),
        }
    }

    pub(crate) fn into_parts(self) -> (T, MetadataMap, MetadataMap) {
        (self.message, self.metadata, self.trailers)
    }
}

impl<T> From<T> for Response<T> {
    fn from(message: T) -> Response<T> {
        Response::new(message)
    }
}

/// What client functions take as the request: a message, a [`Prepared`] one, or a [`Request`] with either.
pub trait IntoRequest<T: Message> {
    /// The message, in one form or the other.
    type Payload: Payload<T>;
    /// The request.
    fn into_request(self) -> Request<Self::Payload>;
}

impl<T: Message> IntoRequest<T> for T {
    type Payload = T;
    fn into_request(self) -> Request<T> {
        Request::new(self)
    }
}

impl<T: Message> IntoRequest<T> for Prepared<T> {
    type Payload = Prepared<T>;
    fn into_request(self) -> Request<Prepared<T>> {
        Request::new(self)
    }
}

impl<T: Message, P: Payload<T>> IntoRequest<T> for Request<P> {
    type Payload = P;
    fn into_request(self) -> Request<P> {
        self
    }
}

/// A message that can be sent: owned, or [`Prepared`]. Only this library implements it.
pub trait Payload<T: Message>: Send + 'static {
    /// The message in the send heap.
    #[doc(hidden)]
    fn into_outgoing(self) -> Result<OutgoingMessage, HeapFull>;
}

impl<T: Message> Payload<T> for T {
    fn into_outgoing(self) -> Result<OutgoingMessage, HeapFull> {
        OutgoingMessage::message(self)
    }
}

impl<T: Message> Payload<T> for Prepared<T> {
    fn into_outgoing(self) -> Result<OutgoingMessage, HeapFull> {
        Ok(OutgoingMessage::prepared(&self))
    }
}

/// What client functions take as a stream of requests: a stream of messages, or a [`Request`] with one.
pub trait IntoStreamingRequest {
    /// The stream.
    type Stream: Stream<Item = Self::Message> + Send + 'static;
    /// The message.
    type Message;
    /// The request.
    fn into_streaming_request(self) -> Request<Self::Stream>;
}

impl<S: Stream + Send + 'static> IntoStreamingRequest for S {
    type Stream = S;
    type Message = S::Item;
    fn into_streaming_request(self) -> Request<S> {
        Request::new(self)
    }
}

impl<S: Stream + Send + 'static> IntoStreamingRequest for Request<S> {
    type Stream = S;
    type Message = S::Item;
    fn into_streaming_request(self) -> Request<S> {
        self
    }
}
