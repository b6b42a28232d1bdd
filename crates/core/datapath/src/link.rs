//! What a transport and the node around it tell each other about one connection, beside the steps.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use provost_wire::Code;

use crate::{FieldReader, FieldWriter, PacketCounts, RestoreError};

const DRAIN: u8 = 1;
const CLOSE: u8 = 2;
const PEER_DRAINS: u8 = 4;
const DELIVERED: u8 = 8;

/// Shared by a transport engine and whoever made its datapath. All of it is lock-free; a transport looks at it each
/// time it is polled.
#[derive(Debug)]
pub struct Link {
    flags: AtomicU8,
    turn_bytes: AtomicU32,
    unsent_bytes: AtomicU32,
    ended: OnceLock<LinkEnd>,
    packets: PacketCounts,
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkEnd {
    /// [`Code::Ok`] for an orderly end, else the status that its open calls got.
    pub code: Code,
    /// What happened, for people.
    pub reason: String,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            flags: AtomicU8::new(0),
            turn_bytes: AtomicU32::new(u32::MAX),
            unsent_bytes: AtomicU32::new(0),
            ended: OnceLock::new(),
            packets: PacketCounts::default(),
        }
    }
}

impl Link {
    /// A link of which nothing was asked.
    #[must_use]
    pub fn new() -> Link {
        Link::default()
    }

    /// Bounds what the transport moves in each direction in one poll (set by the datapath).
    pub fn set_turn_bytes(&self, bytes_max: u32) {
        self.turn_bytes.store(bytes_max, Ordering::Relaxed);
    }

    /// How many bytes the transport moves in each direction in one poll, at most.
    #[must_use]
    pub fn turn_bytes(&self) -> u32 {
        self.turn_bytes.load(Ordering::Relaxed)
    }

    /// Says how many bytes of messages the transport was given and has not sent (set by the transport, when it has a bound
    /// to what it moves).
    pub fn set_unsent_bytes(&self, bytes: usize) {
        self.unsent_bytes
            .store(u32::try_from(bytes).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// How many bytes of messages the transport had not sent after its last poll, if it had a bound then.
    #[must_use]
    pub fn unsent_bytes(&self) -> u32 {
        self.unsent_bytes.load(Ordering::Relaxed)
    }

    /// The packets of a transport that makes them itself.
    #[must_use]
    pub fn packets(&self) -> &PacketCounts {
        &self.packets
    }

    /// Appends what was asked and said to a saved state.
    pub fn save(&self, out: &mut FieldWriter) {
        out.u8(self.flags.load(Ordering::Relaxed));
        out.flag(self.ended.get().is_some());
        if let Some(end) = self.ended.get() {
            out.code(end.code);
            out.text(&end.reason);
        }
    }

    /// A link of which the same was asked and said as of the one that [`Link::save`] appended.
    pub fn restore(fields: &mut FieldReader<'_>) -> Result<Link, RestoreError> {
        let link = Link::new();
        link.flags.store(fields.u8()?, Ordering::Relaxed);
        if fields.flag()? {
            let (code, reason) = (fields.code()?, fields.text()?.to_owned());
            link.set_ended(LinkEnd { code, reason });
        }
        Ok(link)
    }

    /// Asks the transport to begin no new call, to let those in flight finish, and then to end.
    pub fn drain(&self) {
        self.flags.fetch_or(DRAIN, Ordering::Relaxed);
    }

    /// Asks the transport to send what it was given, and then to end whatever is in flight.
    pub fn close(&self) {
        self.flags.fetch_or(CLOSE, Ordering::Relaxed);
    }

    /// Says that the peer wants no new calls (set by the transport).
    pub fn set_peer_drains(&self) {
        self.flags.fetch_or(PEER_DRAINS, Ordering::Relaxed);
    }

    /// Whether [`Link::drain`] was called.
    #[must_use]
    pub fn drain_requested(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & DRAIN != 0
    }

    /// Whether [`Link::close`] was called.
    #[must_use]
    pub fn close_requested(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & CLOSE != 0
    }

    /// Whether the peer wants no new calls.
    #[must_use]
    pub fn peer_drains(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & PEER_DRAINS != 0
    }

    /// Says that the transport has ended and that all it delivered has gone through the engines before it (set by the
    /// runtime): nothing more comes, so the frontend ends what is open.
    pub fn set_delivered(&self) {
        self.flags.fetch_or(DELIVERED, Ordering::Relaxed);
    }

    /// Whether nothing more comes from the transport.
    #[must_use]
    pub fn delivered(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & DELIVERED != 0
    }

    /// Says why the connection ended (set once, by the transport, before it reports [`crate::Progress::Ended`]).
    pub fn set_ended(&self, end: LinkEnd) {
        // The first reason is the cause; later ones are its consequences.
        let _ = self.ended.set(end);
    }

    /// Why the connection ended, if it has.
    #[must_use]
    pub fn ended(&self) -> Option<&LinkEnd> {
        self.ended.get()
    }
}
