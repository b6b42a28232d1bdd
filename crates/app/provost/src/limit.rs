//! A bound on how many calls are in flight.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

/// Lets so many in at a time; the others wait in turn.
pub(crate) struct Limit {
    free: AtomicUsize,
    waiting: Mutex<VecDeque<Waker>>,
    has_waiting: AtomicUsize,
}

/// One of those that are let in, until it is dropped.
pub(crate) struct Permit(Arc<Limit>);

impl Limit {
    pub(crate) fn new(count: usize) -> Arc<Limit> {
        Arc::new(Limit {
            free: AtomicUsize::new(count),
            waiting: Mutex::default(),
            has_waiting: AtomicUsize::new(0),
        })
    }

    pub(crate) fn try_acquire(self: &Arc<Self>) -> Option<Permit> {
        let taken = self.free.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |free| free.checked_sub(1));
        taken.ok().map(|_| Permit(self.clone()))
    }

    pub(crate) async fn acquire(self: &Arc<Self>) -> Permit {
        std::future::poll_fn(|context| {
            if let Some(permit) = self.try_acquire() {
                return Poll::Ready(permit);
            }
            {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                    waiting.push_back(context.waker().clone());
                }
                self.has_waiting.store(waiting.len(), Ordering::SeqCst);
            }
            // A permit that came back before the waker was there woke nobody.
            self.try_acquire().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.free.fetch_add(1, Ordering::SeqCst);
        if self.0.has_waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let next = waiting.pop_front();
        self.0.has_waiting.store(waiting.len(), Ordering::SeqCst);
        drop(waiting);
        next.into_iter().for_each(Waker::wake);
    }
}
