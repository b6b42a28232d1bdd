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

    /// Appends an item.
    pub fn push(&mut self, item: T) -> Result<(), Full<T>> {
        if self.is_full() {
            return Err(Full(item));
        }
        self.items.push_back(item);
        Ok(())
    }

    /// Appends an item even past the bound: for what an engine still owes when another one takes its place.
    pub fn push_past_bound(&mut self, item: T) {
        self.items.push_back(item);
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

    /// Whether none waits.
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
}
