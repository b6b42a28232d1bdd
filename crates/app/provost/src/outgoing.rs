//! An explicit sender for a stream: what a program puts in at one end, a call takes out at the other.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

/// A stream and the end that feeds it, with room for `capacity` items in between.
///
/// A client gives the stream to a call as its requests, a server as its responses (of `Result<T, Status>`).
///
/// ```
/// # provost::blocking::block_on(async {
/// let (mut sender, stream) = provost::stream(4);
/// sender.send("first").await.unwrap();
/// drop(stream);
/// assert_eq!(sender.send("second").await, Err("second"));
/// # })
/// ```
#[must_use]
pub fn stream<T>(capacity: usize) -> (StreamSender<T>, SentStream<T>) {
    let shared = Arc::new(Mutex::new(Shared {
        items: VecDeque::new(),
        capacity: capacity.max(1),
        has_sender: true,
        has_receiver: true,
        sender: None,
        receiver: None,
    }));
    (
        StreamSender {
            shared: shared.clone(),
        },
        SentStream { shared },
    )
}

struct Shared<T> {
    items: VecDeque<T>,
    capacity: usize,
    has_sender: bool,
    has_receiver: bool,
    sender: Option<Waker>,
    receiver: Option<Waker>,
}

/// Feeds a [`SentStream`]. Dropping it ends the stream.
#[derive(Debug)]
pub struct StreamSender<T> {
    shared: Arc<Mutex<Shared<T>>>,
}

/// What is put into a [`StreamSender`], in the same order.
#[derive(Debug)]
pub struct SentStream<T> {
    shared: Arc<Mutex<Shared<T>>>,
}

impl<T> StreamSender<T> {
    /// Puts an item in as soon as there is room. Gives it back when nobody will take it any more.
    pub async fn send(&mut self, item: T) -> Result<(), T> {
        let mut item = Some(item);
        std::future::poll_fn(|context| {
            let mut shared = lock(&self.shared);
            let Some(next) = item.take() else {
                return Poll::Ready(Ok(()));
            };
            if !shared.has_receiver {
                return Poll::Ready(Err(next));
            }
            if shared.items.len() == shared.capacity {
                item = Some(next);
                let replaced = shared.sender.replace(context.waker().clone());
                // Wakers go without the lock: one may be the last owner of a task that has the other end.
                drop(shared);
                drop(replaced);
                return Poll::Pending;
            }
            shared.items.push_back(next);
            let receiver = shared.receiver.take();
            drop(shared);
            receiver.into_iter().for_each(Waker::wake);
            Poll::Ready(Ok(()))
        })
        .await
    }
}

impl<T> Drop for StreamSender<T> {
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        shared.has_sender = false;
        let receiver = shared.receiver.take();
        drop(shared);
        receiver.into_iter().for_each(Waker::wake);
    }
}

impl<T> Stream for SentStream<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut shared = lock(&self.shared);
        let item = shared.items.pop_front();
        if item.is_none() && shared.has_sender {
            let replaced = shared.receiver.replace(context.waker().clone());
            drop(shared);
            drop(replaced);
            return Poll::Pending;
        }
        let sender = shared.sender.take();
        drop(shared);
        sender.into_iter().for_each(Waker::wake);
        Poll::Ready(item)
    }
}

impl<T> Drop for SentStream<T> {
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        shared.has_receiver = false;
        let items = std::mem::take(&mut shared.items);
        let sender = shared.sender.take();
        drop(shared);
        drop(items);
        sender.into_iter().for_each(Waker::wake);
    }
}

impl<T> std::fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("items", &self.items.len())
            .finish_non_exhaustive()
    }
}

fn lock<T>(shared: &Mutex<Shared<T>>) -> MutexGuard<'_, Shared<T>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
