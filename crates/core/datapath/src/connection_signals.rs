//! What a transport and the node around it tell each other about one connection, beside the steps.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use provost_wire::Code;

use crate::{FieldReader, FieldWriter, PacketCounts, PrivateBytes, RestoreError, SavedField};

const DRAIN: u8 = 1;
const CLOSE: u8 = 2;
const PEER_DRAINS: u8 = 4;
const DELIVERED: u8 = 8;

/// Shared by a transport engine and whoever made its datapath. All of it is lock-free; a transport looks at it each
/// time it is polled.
#[derive(Debug, Default)]
pub struct ConnectionSignals {
    flags: AtomicU8,
    ended: OnceLock<ConnectionEnd>,
    packets: PacketCounts,
    /// Where messages in part are counted that come from the same peer to the same app.
    peer_share: Option<Arc<PrivateBytes>>,
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionEnd {
    /// [`Code::Ok`] for an orderly end, else the status that its open calls got.
    pub code: Code,
    /// What happened, for people.
    pub reason: String,
}

impl ConnectionSignals {
    /// Signals of a connection of which nothing was asked.
    #[must_use]
    pub fn new() -> ConnectionSignals {
        ConnectionSignals::default()
    }

    /// The same signals, of a connection whose messages in part count in this share, with those of others of its peer.
    #[must_use]
    pub fn with_peer_share(self, share: Option<Arc<PrivateBytes>>) -> ConnectionSignals {
        ConnectionSignals {
            peer_share: share,
            ..self
        }
    }

    /// Where messages in part are counted of all connections of the peer; without, each connection counts for itself.
    #[must_use]
    pub fn peer_share(&self) -> Option<&Arc<PrivateBytes>> {
        self.peer_share.as_ref()
    }

    /// The packets of a transport that makes them itself.
    #[must_use]
    pub fn packets(&self) -> &PacketCounts {
        &self.packets
    }

    /// Appends what was asked and said to a saved state.
    pub fn save(&self, out: &mut FieldWriter) {
        out.u8(self.flags.load(Ordering::Relaxed));
        self.ended.get().cloned().save(out);
    }

    /// Signals of which the same was asked and said as of those that [`ConnectionSignals::save`] appended.
    pub fn restore(fields: &mut FieldReader<'_>) -> Result<ConnectionSignals, RestoreError> {
        let signals = ConnectionSignals::new();
        signals.flags.store(fields.u8()?, Ordering::Relaxed);
        if let Some(end) = SavedField::restore(fields)? {
            signals.set_ended(end);
        }
        Ok(signals)
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

    /// Whether [`ConnectionSignals::drain`] was called.
    #[must_use]
    pub fn drain_requested(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & DRAIN != 0
    }

    /// Whether [`ConnectionSignals::close`] was called.
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
    pub fn set_ended(&self, end: ConnectionEnd) {
        // The first reason is the cause; later ones are its consequences.
        let _ = self.ended.set(end);
    }

    /// Why the connection ended, if it has.
    #[must_use]
    pub fn ended(&self) -> Option<&ConnectionEnd> {
        self.ended.get()
    }
}

impl SavedField for ConnectionEnd {
    fn save(&self, out: &mut FieldWriter) {
        out.code(self.code);
        out.text(&self.reason);
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<ConnectionEnd, RestoreError> {
        Ok(ConnectionEnd {
            code: fields.code()?,
            reason: fields.text()?.to_owned(),
        })
    }
}
