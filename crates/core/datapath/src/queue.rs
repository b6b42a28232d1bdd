//! Bounded queues between engines of one runtime.

use std::collections::VecDeque;

/// A first-in first-out queue with a fixed bound. It takes memory as it is first needed and keeps it: a node has many
/// more connections than busy ones.
#[derive(Debug)]
pub struct Queue<T> {
    items: VecDeque<T>,
    bound: usize,
}

/// The queue is at its bound; the item comes back.
#[derive(Debug)]
pub struct Full<T>(pub T);

impl<T> Queue<T> {
    /// An empty queue for at most `bound` items.
    #[must_use]
    pub fn with_bound(bound: usize) -> Queue<T> {
        Queue {
            items: VecDeque::new(),
            bound,
        }
    }

    pub fn push(&mut self, item: T) -> Result<(), Full<T>> {
        if self.is_full() {
            return Err(Full(item));
        }
        if self.items.capacity() == 0 {
            // Most connections never have more than one step in a queue, and by itself it would begin with room for four.
            self.items.reserve_exact(1);
        }
        self.items.push_back(item);
        Ok(())
    }

    /// Appends an item even past the bound: for what an engine still has pending when another one takes its place.
    pub fn push_past_bound(&mut self, item: T) {
        self.items.push_back(item);
    }

    /// Moves the oldest items to the end of another queue, in their order: so many, but no more than there are and than it
    /// has room for. Says how many went. All of them into an empty queue cost as much as one: the queues exchange their
    /// memory.
    pub fn transfer(&mut self, to: &mut Queue<T>, count_max: usize) -> usize {
        let count = self.items.len().min(to.room()).min(count_max);
        if count == self.items.len() && to.items.is_empty() {
            std::mem::swap(&mut self.items, &mut to.items);
        } else {
            to.items.extend(self.items.drain(..count));
        }
        count
    }

    /// Puts the item back that was just taken, in its old place.
    pub fn put_back(&mut self, item: T) {
        self.items.push_front(item);
    }

    /// Takes the oldest item.
    pub fn pop(&mut self) -> Option<T> {
        self.items.pop_front()
    }

    /// The items, the oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &T> {
        self.items.iter()
    }

    /// The items in their places, the oldest first.
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = &mut T> {
        self.items.iter_mut()
    }

    /// The oldest item, left in place.
    #[must_use]
    pub fn peek(&self) -> Option<&T> {
        self.items.front()
    }

    /// How many items wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Whether another item would be refused.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.items.len() >= self.bound
    }

    /// How many items can be pushed now.
    #[must_use]
    pub fn room(&self) -> usize {
        self.bound.saturating_sub(self.items.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_gives_the_item_back_and_keeps_its_order() {
        let mut queue = Queue::with_bound(2);
        queue.push(1).unwrap();
        queue.push(2).unwrap();
        assert!(matches!(queue.push(3), Err(Full(3))));
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(1), Some(2), None));
    }
    #[test]
    fn what_is_transferred_keeps_its_order_and_the_bound() {
        let (mut from, mut to) = (Queue::with_bound(8), Queue::with_bound(4));
        let fill = |from: &mut Queue<u32>, numbers: std::ops::Range<u32>| {
            numbers.for_each(|number| from.push(number).unwrap());
        };
        fill(&mut from, 0..3);
        assert_eq!((from.transfer(&mut to, 64), from.len(), to.len()), (3, 0, 3));
        fill(&mut from, 3..8);
        assert_eq!((from.transfer(&mut to, 64), from.len(), to.len()), (1, 4, 4));
        let taken: Vec<_> = std::iter::from_fn(|| to.pop()).collect();
        assert_eq!(taken, [0, 1, 2, 3]);
        assert_eq!((from.transfer(&mut to, 3), from.transfer(&mut to, 0)), (3, 0));
        assert!(from.transfer(&mut to, 64) == 1 && to.is_full() && from.is_empty());
        let taken: Vec<_> = std::iter::from_fn(|| to.pop()).collect();
        assert_eq!(taken, [4, 5, 6, 7]);
        fill(&mut from, 0..8);
        assert_eq!((from.transfer(&mut to, 64), from.len(), to.len()), (4, 4, 4));
    }
}
