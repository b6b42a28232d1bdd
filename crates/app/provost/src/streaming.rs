//! [`Streaming`]: the messages of a stream as they arrive.

use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use crate::codegen::Message;
use crate::metadata::MetadataMap;
use crate::shared::Received;
use crate::status::Status;

/// The messages of a stream as they arrive: responses at a client, requests at a server.
pub struct Streaming<T> {
    message: PhantomData<T>,
}

impl<T: Message> Streaming<T> {
    /// The next message; `None` at the end.
    pub async fn message(&mut self) -> Result<Option<Received<T>>, Status> {
        todo!()
    }

    /// The trailing metadata, once the stream has ended. A server's stream has none.
    #[must_use]
    pub fn trailers(&self) -> Option<&MetadataMap> {
        todo!()
    }
}

impl<T: Message> Stream for Streaming<T> {
    type Item = Result<Received<T>, Status>;
    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        todo!()
    }
}
