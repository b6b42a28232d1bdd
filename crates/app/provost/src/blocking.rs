//! The same calls for programs without an executor: each blocks its thread until it is done.
//!
//! A thread that waits spins for a bounded time and then sleeps at the link's doorbell itself; no other thread has to
//! wake it. Generated code has a blocking client for each service. To serve without an executor, see
//! [`ServerBuilder::serve_blocking`](crate::ServerBuilder::serve_blocking).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use crate::message::Message;
use crate::metadata::MetadataMap;
use crate::received::Received;
use crate::request::Request;
use crate::status::Status;

/// Runs a future of this library on this thread, and returns what it comes to.
pub fn block_on<F: Future>(future: F) -> F::Output {
    crate::link::block_on(future)
}

/// The messages of a stream of responses as they arrive: an iterator that blocks.
#[derive(Debug)]
pub struct Streaming<T> {
    inner: crate::Streaming<T>,
}

impl<T: Message> Streaming<T> {
    /// Blocks where the other would wait.
    #[must_use]
    pub fn new(inner: crate::Streaming<T>) -> Streaming<T> {
        Streaming { inner }
    }

    /// The next message; `None` at the end of the stream.
    pub fn message(&mut self) -> Result<Option<Received<T>>, Status> {
        block_on(self.inner.message())
    }

    /// The metadata that followed the last message, once the stream has ended well.
    #[must_use]
    pub fn trailers(&self) -> Option<&MetadataMap> {
        self.inner.trailers()
    }
}

impl<T: Message> Iterator for Streaming<T> {
    type Item = Result<Received<T>, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        self.message().transpose()
    }
}

/// What blocking clients take as a stream of requests: anything that can be iterated, or a [`Request`] with it.
///
/// The iterator runs on the thread that calls; while it makes the next message, nothing else of the call goes on.
pub trait IntoIteratorRequest {
    /// The message.
    type Message;
    /// The iterator as a stream.
    type Stream: Stream<Item = Self::Message> + Send + 'static;
    /// The request.
    fn into_streaming_request(self) -> Request<Self::Stream>;
}

impl<I> IntoIteratorRequest for I
where
    I: IntoIterator,
    I::IntoIter: Send + 'static,
{
    type Message = I::Item;
    type Stream = Iter<I::IntoIter>;
    fn into_streaming_request(self) -> Request<Self::Stream> {
        Request::new(Iter(self.into_iter()))
    }
}

impl<I> IntoIteratorRequest for Request<I>
where
    I: IntoIterator,
    I::IntoIter: Send + 'static,
{
    type Message = I::Item;
    type Stream = Iter<I::IntoIter>;
    fn into_streaming_request(self) -> Request<Self::Stream> {
        self.map(|messages| Iter(messages.into_iter()))
    }
}

/// An iterator as a stream that is always ready.
#[derive(Clone, Debug)]
pub struct Iter<I>(I);

impl<I> Unpin for Iter<I> {}

impl<I: Iterator> Stream for Iter<I> {
    type Item = I::Item;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<I::Item>> {
        Poll::Ready(self.0.next())
    }
}
