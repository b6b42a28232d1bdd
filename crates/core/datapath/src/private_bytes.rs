//! Shares of the private memory that messages take on their way, counted in bytes, wherever they wait.
//!
//! ```text
//! a connection's share ──► its attachment's ──► its user's ──► the node's       each counts what those before it hold
//! ```
//!
//! A buffer carries its charge ([`crate::Buffer::charge`]), so that what is held in queues, by policies, in a transport
//! or between two apps counts until the memory is free again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that all attachments of a node hold, past which an attachment that holds more than little waits.
pub const NODE_PRIVATE_BYTES_MAX: u64 = 1 << 30;
/// The same of all attachments of one user.
pub(crate) const USER_PRIVATE_BYTES_MAX: u64 = NODE_PRIVATE_BYTES_MAX / 2;
/// The same of one attachment.
pub const ATTACHMENT_PRIVATE_BYTES_MAX: u64 = 128 << 20;
/// What a connection may hold in any case, so that others cannot stop it.
pub const CONNECTION_PRIVATE_BYTES_FLOOR: u64 = 1 << 20;
/// A buffer of at most so many bytes is not counted: bounds on steps bound these.
pub const UNCOUNTED_BYTES_MAX: u64 = 2 << 10;

/// One share: how much private memory is held under it, and how much may be.
#[derive(Debug)]
pub struct PrivateBytes {
    held: AtomicU64,
    max: u64,
    within: Option<Arc<PrivateBytes>>,
}

impl PrivateBytes {
    /// The share of a node.
    #[must_use]
    pub fn of_node() -> Arc<PrivateBytes> {
        Arc::new(PrivateBytes {
            held: AtomicU64::new(0),
            max: NODE_PRIVATE_BYTES_MAX,
            within: None,
        })
    }

    /// The share of a user within that of a node.
    #[must_use]
    pub fn of_user(node: &Arc<PrivateBytes>) -> Arc<PrivateBytes> {
        PrivateBytes::within(node, USER_PRIVATE_BYTES_MAX)
    }

    /// The share of an attachment within that of its user.
    #[must_use]
    pub fn of_attachment(user: &Arc<PrivateBytes>) -> Arc<PrivateBytes> {
        PrivateBytes::within(user, ATTACHMENT_PRIVATE_BYTES_MAX)
    }

    /// The share of a connection within that of its attachment.
    #[must_use]
    pub fn of_connection(attachment: &Arc<PrivateBytes>) -> Arc<PrivateBytes> {
        PrivateBytes::within(attachment, u64::MAX)
    }

    /// What messages of one app that have come in part hold, beside its receive heap, whose bound is theirs.
    #[must_use]
    pub fn of_messages_in_part() -> Arc<PrivateBytes> {
        PrivateBytes::unbounded()
    }

    /// What messages in part of one peer hold of one app's room, over all connections between the two. Whoever charges it
    /// compares it with that room.
    #[must_use]
    pub fn of_peer() -> Arc<PrivateBytes> {
        PrivateBytes::unbounded()
    }

    fn unbounded() -> Arc<PrivateBytes> {
        Arc::new(PrivateBytes {
            held: AtomicU64::new(0),
            max: u64::MAX,
            within: None,
        })
    }

    fn within(share: &Arc<PrivateBytes>, max: u64) -> Arc<PrivateBytes> {
        Arc::new(PrivateBytes {
            held: AtomicU64::new(0),
            max,
            within: Some(Arc::clone(share)),
        })
    }

    /// The share around this one, of a user or a node; the same one, where there is none.
    #[must_use]
    pub fn around(self: &Arc<PrivateBytes>) -> &Arc<PrivateBytes> {
        self.within.as_ref().unwrap_or(self)
    }

    /// Whether less is held here than may be, whatever those around it hold.
    #[must_use]
    pub fn is_below_own_bound(&self) -> bool {
        self.held() < self.max
    }

    /// Bytes that are held now.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// How long a message of a connection may be that takes memory now, in bytes: any, no longer than what is left of the
    /// connection's floor, or none (0).
    #[must_use]
    pub fn message_bytes_now(&self) -> u64 {
        if self.has_room() {
            return u64::MAX;
        }
        CONNECTION_PRIVATE_BYTES_FLOOR.saturating_sub(self.held())
    }

    fn has_room(&self) -> bool {
        self.is_below_own_bound() && self.within.as_ref().is_none_or(|share| share.has_room())
    }

    /// Counts bytes here and in all shares around this one, until the charge is dropped.
    #[must_use]
    pub fn charge(self: &Arc<PrivateBytes>, bytes: u64) -> PrivateCharge {
        self.add(bytes);
        PrivateCharge {
            share: Arc::clone(self),
            bytes,
        }
    }

    fn add(&self, bytes: u64) {
        self.held.fetch_add(bytes, Ordering::Relaxed);
        if let Some(share) = &self.within {
            share.add(bytes);
        }
    }

    fn subtract(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(share) = &self.within {
            share.subtract(bytes);
        }
    }
}

/// Bytes that are counted in shares for as long as this lives.
#[derive(Debug)]
pub struct PrivateCharge {
    share: Arc<PrivateBytes>,
    bytes: u64,
}

impl PrivateCharge {
    /// Bytes that it counts.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Has it count so many bytes.
    pub fn set_bytes(&mut self, bytes: u64) {
        self.share.add(bytes);
        self.share.subtract(self.bytes);
        self.bytes = bytes;
    }

    /// Has it count in another share what it counts, if it does not yet.
    pub fn move_to(&mut self, share: &Arc<PrivateBytes>) {
        if !Arc::ptr_eq(&self.share, share) {
            *self = share.charge(self.bytes);
        }
    }

    /// The share in which it counts.
    #[must_use]
    pub fn share(&self) -> &PrivateBytes {
        &self.share
    }

    /// Counts more bytes in the same share.
    #[must_use]
    pub fn another(&self, bytes: u64) -> PrivateCharge {
        self.share.charge(bytes)
    }

    /// Whether the share, and those around it, have room.
    #[must_use]
    pub fn share_has_room(&self) -> bool {
        self.share.has_room()
    }
}

impl Drop for PrivateCharge {
    fn drop(&mut self) {
        self.share.subtract(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, BufferPool};

    #[test]
    fn a_charge_counts_in_all_shares_until_its_buffer_is_given_back_or_dropped() {
        let node = PrivateBytes::of_node();
        let attachment = PrivateBytes::of_attachment(&node);
        let (one, other) = (
            PrivateBytes::of_connection(&attachment),
            PrivateBytes::of_connection(&attachment),
        );
        let held = || [&one, &other, &attachment, &node].map(|share| share.held());
        let charged = |share: &Arc<PrivateBytes>, bytes| {
            let mut buffer = Buffer::default();
            buffer.charge = Some(share.charge(bytes));
            buffer
        };
        let (first, second) = (charged(&one, 5000), charged(&other, 300));
        assert_eq!(held(), [5000, 300, 5300, 5300]);
        let mut pool = BufferPool::new();
        pool.give(first);
        assert_eq!(held(), [0, 300, 300, 300]);
        drop(second);
        assert_eq!(held(), [0; 4]);
        assert!(pool.take().charge.is_none());
    }

    #[test]
    fn one_user_with_many_attachments_leaves_room_for_others() {
        let node = PrivateBytes::of_node();
        let [greedy, modest] = [(); 2].map(|()| PrivateBytes::of_user(&node));
        let mut charges = Vec::new();
        for _ in 0..20 {
            let attachment = PrivateBytes::of_attachment(&greedy);
            let connection = PrivateBytes::of_connection(&attachment);
            while connection.message_bytes_now() == u64::MAX {
                charges.push(connection.charge(16 << 20));
            }
        }
        assert!(node.held() >= USER_PRIVATE_BYTES_MAX);
        let attachment = PrivateBytes::of_attachment(&modest);
        let connection = PrivateBytes::of_connection(&attachment);
        assert_eq!(connection.message_bytes_now(), u64::MAX);
        drop(charges);
        assert_eq!((node.held(), greedy.held()), (0, 0));
    }

    #[test]
    fn who_holds_much_waits_and_who_holds_little_does_not() {
        let node = PrivateBytes::of_node();
        let [greedy, modest] = [(); 2].map(|()| PrivateBytes::of_attachment(&node));
        let [greedy, modest] = [greedy, modest].map(|attachment| PrivateBytes::of_connection(&attachment));
        assert_eq!(greedy.message_bytes_now(), u64::MAX);
        let charge = greedy.charge(ATTACHMENT_PRIVATE_BYTES_MAX);
        assert_eq!(greedy.message_bytes_now(), 0);
        assert_eq!(modest.message_bytes_now(), u64::MAX);
        let rest = greedy.charge(NODE_PRIVATE_BYTES_MAX);
        let little = modest.charge(1000);
        assert_eq!(modest.message_bytes_now(), CONNECTION_PRIVATE_BYTES_FLOOR - 1000);
        drop((charge, rest, little));
        assert_eq!(greedy.message_bytes_now(), u64::MAX);
    }
}
