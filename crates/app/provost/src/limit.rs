//! A bound on how many calls are in flight.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Lets so many in at a time; the others wait in turn.
pub(crate) struct Limit {
    free: AtomicUsize,
    /// Length of the queue; read without its lock.
    queued: AtomicUsize,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(u64, Waker)>,
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
        let next = queue.waiting.pop_front();
        self.queued.store(queue.waiting.len(), Ordering::SeqCst);
        drop(queue);
        next.into_iter().for_each(|(_, waker)| waker.wake());
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
    fn enqueue(&mut self, waker: &Waker) {
        let mut queue = self.limit.queue();
        let place = queue
            .waiting
            .iter_mut()
            .find(|(ticket, _)| Some(*ticket) == self.ticket);
        match place {
            Some((_, registered)) => registered.clone_from(waker),
            None => {
                queue.next_ticket += 1;
                let ticket = queue.next_ticket;
                queue.waiting.push_back((ticket, waker.clone()));
                self.ticket = Some(ticket);
            }
        }
        self.limit.queued.store(queue.waiting.len(), Ordering::SeqCst);
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut queue = self.limit.queue();
        queue.waiting.retain(|(other, _)| *other != ticket);
        self.limit.queued.store(queue.waiting.len(), Ordering::SeqCst);
        drop(queue);
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
}
