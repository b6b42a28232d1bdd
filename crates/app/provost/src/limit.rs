//! A bound on how many calls are in flight.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::waker_list::wake;

/// Lets so many in at a time; the others wait in turn.
pub(crate) struct Limit {
    free: AtomicUsize,
    /// Length of the queue; read without its lock.
    queued: AtomicUsize,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// By their tickets, which grow.
    waiting: BTreeMap<u64, Waker>,
    next_ticket: u64,
}

/// One of those that are let in, until it is dropped.
pub(crate) struct Permit(Arc<Limit>);

/// One of those that wait.
pub(crate) struct Acquire {
    limit: Arc<Limit>,
    ticket: Option<u64>,
}

impl Limit {
    pub(crate) fn new(count: usize) -> Arc<Limit> {
        Arc::new(Limit {
            free: AtomicUsize::new(count),
            queued: AtomicUsize::new(0),
            queue: Mutex::default(),
        })
    }

    pub(crate) fn try_acquire(self: &Arc<Self>) -> Option<Permit> {
        let taken = self
            .free
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |free| free.checked_sub(1));
        taken.ok().map(|_| Permit(self.clone()))
    }

    pub(crate) fn acquire(self: &Arc<Self>) -> Acquire {
        Acquire {
            limit: self.clone(),
            ticket: None,
        }
    }

    /// Wakes the next that waits, if there is a place for it.
    fn pass_on(&self) {
        if self.queued.load(Ordering::SeqCst) == 0 || self.free.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut queue = self.queue();
        let next = queue.waiting.pop_first();
        self.queued.store(queue.waiting.len(), Ordering::SeqCst);
        drop(queue);
        next.into_iter().for_each(|(_, waker)| wake(waker));
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Permit> {
        if let Some(permit) = self.limit.try_acquire() {
            return Poll::Ready(permit);
        }
        self.enqueue(context.waker());
        // A place that was given up before the waker was there woke nobody.
        self.limit.try_acquire().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Acquire {
    /// Waits on. Who was woken for a place that another took first is where it was before.
    fn enqueue(&mut self, waker: &Waker) {
        let mut queue = self.limit.queue();
        let ticket = *self.ticket.get_or_insert_with(|| {
            queue.next_ticket += 1;
            queue.next_ticket
        });
        let replaced = queue.waiting.insert(ticket, waker.clone());
        self.limit.queued.store(queue.waiting.len(), Ordering::SeqCst);
        drop(queue);
        drop(replaced);
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut queue = self.limit.queue();
        let waker = queue.waiting.remove(&ticket);
        self.limit.queued.store(queue.waiting.len(), Ordering::SeqCst);
        drop(queue);
        drop(waker);
        // If it was woken for a place that it did not take, the next may have it.
        self.limit.pass_on();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.free.fetch_add(1, Ordering::SeqCst);
        self.0.pass_on();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::task::Wake;

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_place_goes_to_the_next_even_if_the_first_gave_up() {
        let limit = Limit::new(1);
        let permit = limit.try_acquire().unwrap();
        let woken: [Arc<Woken>; 2] = Default::default();
        let mut waiting: Vec<_> = woken.iter().map(|_| Box::pin(limit.acquire())).collect();
        for (acquire, woken) in waiting.iter_mut().zip(&woken) {
            let waker = Waker::from(woken.clone());
            assert!(
                acquire
                    .as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_pending()
            );
        }
        drop(permit);
        assert_eq!(woken[0].0.load(Ordering::SeqCst), 1);
        assert_eq!(woken[1].0.load(Ordering::SeqCst), 0);
        drop(waiting.remove(0));
        assert_eq!(woken[1].0.load(Ordering::SeqCst), 1);
        let waker = Waker::from(woken[1].clone());
        assert!(
            waiting[0]
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_ready()
        );
    }

    #[test]
    fn one_that_was_overtaken_keeps_its_turn() {
        let limit = Limit::new(1);
        let permit = limit.try_acquire().unwrap();
        let woken: [Arc<Woken>; 2] = Default::default();
        let mut waiting: Vec<_> = woken.iter().map(|_| Box::pin(limit.acquire())).collect();
        let mut poll = |index: usize| {
            let waker = Waker::from(woken[index].clone());
            waiting[index].as_mut().poll(&mut Context::from_waker(&waker))
        };
        assert!(poll(0).is_pending() && poll(1).is_pending());
        drop(permit);
        let overtaking = limit.try_acquire().unwrap();
        assert!(poll(0).is_pending());
        drop(overtaking);
        let count = |woken: &Woken| woken.0.load(Ordering::SeqCst);
        assert_eq!((count(&woken[0]), count(&woken[1])), (2, 0));
        assert!(poll(0).is_ready());
    }
}
