//! The 64-byte descriptors of the two rings between an app and its service.
//!
//! Both are plain bytes: any bit pattern is a value of the struct, and *claims* something until it is checked.
//! A call step (the parts of [`Parts`]) has the same meaning in both directions and in [`crate::frame`].

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Which parts of a call a step carries. A unary request is `BEGIN | MESSAGE | END` in one step; its response is
/// `MESSAGE | STATUS`.
#[derive(Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub struct Parts(pub u8);

impl Parts {
    pub const NONE: Parts = Parts(0);
    /// Opens the call; metadata, if any, is the request's. Client to server only.
    pub const BEGIN: Parts = Parts(1);
    /// Carries initial response metadata. Server to client only.
    pub const HEADERS: Parts = Parts(2);
    pub const MESSAGE: Parts = Parts(4);
    /// The client will send no further message. Client to server only.
    pub const END: Parts = Parts(8);
    /// Ends the call with a status; metadata, if any, is trailing (see [`crate::metadata`] for the status message).
    /// Server to client only.
    pub const STATUS: Parts = Parts(16);
    /// Gives the call up: from the client a cancellation, from the server or a service a reset. `status` says why.
    pub const CANCEL: Parts = Parts(32);
    /// Lets the other side send `window_bytes` more of this stream's messages.
    pub const WINDOW: Parts = Parts(64);
    /// Every part that has a meaning.
    pub const ALL: Parts = Parts(127);

    /// Whether all parts of `other` are in `self`.
    #[must_use]
    pub const fn contains(self, other: Parts) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any part of `other` is in `self`.
    #[must_use]
    pub const fn intersects(self, other: Parts) -> bool {
        self.0 & other.0 != 0
    }

    /// The parts of both.
    #[must_use]
    pub const fn with(self, other: Parts) -> Parts {
        Parts(self.0 | other.0)
    }

    /// The parts of `self` that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Parts) -> Parts {
        Parts(self.0 & !other.0)
    }
}

impl std::ops::BitOr for Parts {
    type Output = Parts;
    fn bitor(self, other: Parts) -> Parts {
        self.with(other)
    }
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const NAMES: [&str; 8] = [
            "BEGIN", "HEADERS", "MESSAGE", "END", "STATUS", "CANCEL", "WINDOW", "?",
        ];
        let present = NAMES.iter().enumerate().filter(|(bit, _)| self.0 >> bit & 1 == 1);
        f.write_str(&present.map(|(_, name)| *name).collect::<Vec<_>>().join("|"))
    }
}

/// What a [`Submission`] asks for.
pub mod submission_kind {
    /// A step of a call; all fields of the descriptor count.
    pub const STEP: u8 = 1;
    /// Received blocks that the app no longer reads: up to [`super::BATCH_MAX`] offsets.
    pub const RECLAIM: u8 = 2;
    /// Closes the connection `connection`; its calls end as cancelled.
    pub const CLOSE: u8 = 3;
}

/// What a [`Completion`] tells.
pub mod completion_kind {
    /// A step of a call; all fields of the descriptor count.
    pub const STEP: u8 = 1;
    /// Messages that the service has finished reading: up to [`super::BATCH_MAX`] tokens.
    pub const SENT: u8 = 2;
    /// A connection ended: no step of it follows. `status` says why; its open calls have ended before.
    pub const CLOSED: u8 = 3;
    /// A receive segment holds no block and was unmapped by the service; the app unmaps it. `call` is its id.
    pub const SEGMENT_RETIRED: u8 = 4;
    /// A server's listening side got a new peer connection `connection` (its steps follow). `call` is the id of the
    /// `Bind` request that offered the service; the first reserved word is the number of the peer's description at the
    /// control socket.
    pub const ACCEPTED: u8 = 5;
    /// The service drains: begin no new call on `connection`, finish those in flight.
    pub const GOING_AWAY: u8 = 6;
}

/// Offsets or tokens that fit a batch descriptor.
pub const BATCH_MAX: usize = 6;

/// From an app to its service.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Submission {
    /// One of [`submission_kind`].
    pub kind: u8,
    /// Which parts the step has.
    pub parts: Parts,
    /// Index of the method in the service, in schema order (`BEGIN` only).
    pub method: u16,
    /// Which connection of this app.
    pub connection: u32,
    /// Which call: chosen by the client's library (unique on the connection, increasing), or as it was delivered.
    pub call: u64,
    /// The root struct of the message in the send heap, in units of 8 bytes (`MESSAGE` only).
    pub root: u32,
    /// The metadata block in the send heap, in units of 8 bytes (with a length of 0: none).
    pub metadata: u32,
    /// Length of the metadata block in bytes.
    pub metadata_bytes: u32,
    /// A status code (`STATUS`, `CANCEL`) or the bytes of a `WINDOW`. With `MESSAGE` of a stream and none of these:
    /// what the app counts the message as in its window, and gets back when it was read (0: as the service counts).
    pub status_or_window: u32,
    /// When the call must end, in nanoseconds of CLOCK_MONOTONIC; 0 for never (`BEGIN` only).
    pub deadline_ns: u64,
    /// What [`completion_kind::SENT`] gives back when the service has finished reading; 0 asks for no notice.
    pub token: u64,
    pub reserved: [u64; 2],
}

/// From a service to an app.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Completion {
    /// One of [`completion_kind`].
    pub kind: u8,
    /// Which parts the step has.
    pub parts: Parts,
    /// Index of the method in the service as the app bound it (`BEGIN` only).
    pub method: u16,
    /// Which connection of this app.
    pub connection: u32,
    pub call: u64,
    /// The received block in the app's window, in units of 8 bytes; it is what the app reclaims. 0: no block.
    pub block: u32,
    /// The root struct of the message in the app's window, in units of 8 bytes; 0: no message.
    pub root: u32,
    /// The metadata block in the app's window, in units of 8 bytes.
    pub metadata: u32,
    /// Length of the metadata block in bytes; 0: none.
    pub metadata_bytes: u32,
    /// A status code (`STATUS`, `CANCEL`, `CLOSED`) or the bytes of a `WINDOW`.
    pub status_or_window: u32,
    /// What the message costs of the stream's window, to be given back by a `WINDOW` step when it was read.
    pub window_cost: u32,
    /// When the call must end, in nanoseconds of CLOCK_MONOTONIC; 0 for never (`BEGIN` only).
    pub deadline_ns: u64,
    /// Zero, but for [`completion_kind::ACCEPTED`].
    pub reserved: [u64; 2],
}

/// A batch of offsets ([`submission_kind::RECLAIM`]) or tokens ([`completion_kind::SENT`]), in a slot of either ring.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Batch {
    pub kind: u8,
    /// How many of `items` count, at most [`BATCH_MAX`].
    pub count: u8,
    pub reserved: [u8; 14],
    /// Block offsets in units of 8 bytes, or tokens.
    pub items: [u64; BATCH_MAX],
}

/// A slot's bytes, before anything is known of them.
pub type Slot = [u64; 8];

const _: () = assert!(size_of::<Submission>() == crate::region::SLOT_BYTES);
const _: () = assert!(size_of::<Completion>() == crate::region::SLOT_BYTES);
const _: () = assert!(size_of::<Batch>() == crate::region::SLOT_BYTES);
const _: () = assert!(size_of::<Slot>() == crate::region::SLOT_BYTES);
