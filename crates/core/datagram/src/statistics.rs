//! What an endpoint counts.

/// Counters, since the endpoint began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Packets handed to the wire.
    pub packets_sent: u64,
    /// Packets taken from the wire.
    pub packets_received: u64,
    /// Calls that got a response.
    pub calls_completed: u64,
    /// Calls that ended without one.
    pub calls_failed: u64,
    /// Requests handed to the application.
    pub requests_received: u64,
    /// Packets sent again, because they counted as lost or nothing was heard of them in time. Probes are not among them.
    pub packets_resent: u64,
    /// Packets that asked a server, which had taken a request, whether its response got lost: they are the last of the request, and
    /// no sign of a loss.
    pub probes_sent: u64,
    /// Packets that were here before: the network doubled them, or their sender sent them again or probed by them. They are among
    /// those that were dropped as stale.
    pub packets_duplicate: u64,
    /// Packets that counted as lost because later ones had arrived.
    pub losses_detected: u64,
    /// Packets that counted as lost and were not.
    pub losses_spurious: u64,
    /// Retransmission time-outs.
    pub timeouts: u64,
    /// Timers of sessions that were looked at.
    pub timers_fired: u64,
    /// Gaps in which nobody polled the endpoint.
    pub stalls: u64,
    /// Packets that went through the timing wheel.
    pub packets_paced: u64,
    /// Acknowledgements that said that the network had marked packets.
    pub marks: u64,
    /// Round trips measured.
    pub round_trips: u64,
    /// Requests of one packet, handed over without a copy, or where they were unsealed.
    pub requests_borrowed: u64,
    /// Sessions whose packets became small, because full-size ones vanished on the way.
    pub fallbacks: u64,
    /// Packets as large as can be that were sent to find out whether such arrive.
    pub path_probes: u64,
    /// Packets dropped, by reason.
    pub dropped: Drops,
}

/// Packets that were dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// Too short, or of a length that its kind cannot have.
    pub length: u64,
    /// Damaged.
    pub check: u64,
    /// Of an unknown kind.
    pub kind: u64,
    /// Of no session here, or with a token that is not the session's.
    pub token: u64,
    /// Right in form, but contrary to the protocol.
    pub protocol: u64,
    /// Of a call that has ended, or heard before.
    pub stale: u64,
    /// Out of order, with go-back-N.
    pub order: u64,
    /// Of a sealed session, but not from who has its keys.
    pub forged: u64,
    /// Of a sealed session, and here before, or too old to tell.
    pub replayed: u64,
    /// That say that a sealed session is lost, without the proof.
    pub unproven: u64,
    /// With a wrong or expired cookie.
    pub cookie: u64,
    /// Of no session here, without an answer: as many were answered already in that millisecond as may be.
    pub strangers: u64,
    /// For want of room: of the transmit queue or the assembly memory.
    pub room: u64,
}
