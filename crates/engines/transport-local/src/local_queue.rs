//! A bounded queue between two threads, of which one puts and the other takes. Most connections are idle, so it has room for few items, and
//! takes the memory for more when more of them wait for the first time.
//!
//! ```text
//! put ──► few ──► take          until `few` is full for the first time
//! put ──► more ──► take         from then on: what is in `few` is taken first, and nothing is put there any more
//! ```
//!
//! `more` is such a queue again, with more room.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_queue::ArrayQueue;

/// Items for which there is room from the start.
const FEW: usize = 2;
/// How many times as many there is room for when these are too few.
const GROWTH: usize = 16;

/// See the module's documentation.
pub(crate) struct LocalQueue<T> {
    few: ArrayQueue<T>,
    /// Elsewhere: each has a cache line for each of its ends, also when nothing is in it.
    more: OnceLock<Box<LocalQueue<T>>>,
    /// Nothing is in `few`, and nothing will be. Whoever takes says so.
    is_past_few: AtomicBool,
    bound: usize,
}

impl<T> LocalQueue<T> {
    pub(crate) fn with_bound(bound: usize) -> LocalQueue<T> {
        LocalQueue::with_room(FEW, bound)
    }

    fn with_room(few: usize, bound: usize) -> LocalQueue<T> {
        LocalQueue {
            few: ArrayQueue::new(few.min(bound)),
            more: OnceLock::new(),
            is_past_few: AtomicBool::new(false),
            bound,
        }
    }

    pub(crate) fn len(&self) -> usize {
        let more = self.more.get().map_or(0, |more| more.len());
        // Relaxed: who sees it late looks into a queue that is empty.
        if self.is_past_few.load(Ordering::Relaxed) {
            more
        } else {
            self.few.len() + more
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there is no room: asked by whoever puts.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.bound
    }

    /// Puts an item, which comes back if there is no room.
    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        let item = match self.more.get() {
            Some(_) => item,
            None => match self.few.push(item) {
                Ok(()) => return Ok(()),
                Err(item) => item,
            },
        };
        if self.is_full() {
            return Err(item);
        }
        let more = || Box::new(LocalQueue::with_room(self.few.capacity() * GROWTH, self.bound));
        self.more.get_or_init(more).push(item)
    }

    /// Takes the item that was put first.
    pub(crate) fn pop(&self) -> Option<T> {
        // Before `few`: where this is there, whoever put into `few` had done so for the last time.
        let more = self.more.get();
        if !self.is_past_few.load(Ordering::Relaxed) {
            if let Some(item) = self.few.pop() {
                return Some(item);
            }
            if more.is_some() {
                self.is_past_few.store(true, Ordering::Relaxed);
            }
        }
        more?.pop()
    }

    /// Looks at each item, in order, while nobody puts or takes. All stay.
    pub(crate) fn look(&self, look: &mut impl FnMut(&T)) {
        rotate(&self.few, look);
        if let Some(more) = self.more.get() {
            more.look(look);
        }
    }
}

/// Takes each item out, looks at it, and puts it in again behind the others, so that in the end all are in their order.
fn rotate<T>(queue: &ArrayQueue<T>, look: &mut impl FnMut(&T)) {
    for _ in 0..queue.len() {
        let Some(item) = queue.pop() else { return };
        look(&item);
        let put = queue.push(item);
        debug_assert!(put.is_ok(), "the item had room before");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: usize = 3 * FEW * GROWTH;

    #[test]
    fn items_come_in_their_order_up_to_the_bound() {
        let queue = LocalQueue::with_bound(BOUND);
        let mut next = 0..;
        for taken in [1, FEW, FEW + 1, FEW * GROWTH, FEW * GROWTH + 1, BOUND] {
            let first = next.start;
            while !queue.is_full() {
                queue.push(next.next().unwrap()).unwrap();
            }
            assert_eq!((queue.len(), queue.push(u64::MAX)), (BOUND, Err(u64::MAX)));
            let mut seen = Vec::new();
            queue.look(&mut |item| seen.push(*item));
            assert!(seen.is_sorted() && seen.len() == BOUND && seen.contains(&first));
            for expected in seen.into_iter().take(taken) {
                assert_eq!(queue.pop(), Some(expected));
            }
        }
        assert!(queue.is_empty() && queue.pop().is_none());
    }

    #[test]
    fn one_that_is_never_crowded_takes_no_more_memory() {
        let queue = LocalQueue::with_bound(BOUND);
        for round in 0..100 {
            for item in 0..FEW {
                queue.push((round, item)).unwrap();
            }
            for item in 0..FEW {
                assert_eq!(queue.pop(), Some((round, item)));
            }
        }
        assert!(queue.more.get().is_none());
    }

    #[test]
    fn one_that_is_crowded_a_little_takes_a_little_more() {
        let queue = LocalQueue::with_bound(BOUND);
        for _ in 0..100 {
            for item in 0..FEW * GROWTH {
                queue.push(item).unwrap();
            }
            for item in 0..FEW * GROWTH {
                assert_eq!(queue.pop(), Some(item));
            }
        }
        let more = queue.more.get().unwrap();
        assert_eq!(more.few.capacity(), FEW * GROWTH);
        assert!(more.more.get().is_none());
    }

    /// The changes from few to more, again and again, while another thread takes.
    #[test]
    fn no_item_overtakes_another_between_two_threads() {
        const ROUNDS: usize = 2_000;
        for _ in 0..ROUNDS {
            let queue = LocalQueue::with_bound(BOUND);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut item = 0;
                    while item < 2 * BOUND {
                        match queue.push(item) {
                            Ok(()) => item += 1,
                            Err(_) => std::thread::yield_now(),
                        }
                    }
                });
                let mut expected = 0;
                while expected < 2 * BOUND {
                    match queue.pop() {
                        Some(item) => {
                            assert_eq!(item, expected);
                            expected += 1;
                        }
                        None => std::thread::yield_now(),
                    }
                }
            });
        }
    }
}
