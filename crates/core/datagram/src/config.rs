//! What an endpoint is told when it starts.

use provost_registered::MESSAGE_BLOCK_BYTES_MAX;

use crate::checksum::Checking;
use crate::congestion::CongestionConfig;
use crate::flight::WINDOW_PACKETS;
use crate::handshake::{CONTROL_BYTES_MAX, MarkUse, PacketFallback};
use crate::packet::{DATA_HEADER_BYTES, HEADER_BYTES, MESSAGE_PACKETS_MAX, PayloadSizes, SMALL_PACKET_BYTES};
use crate::seal::{SEAL_BYTES, Security};

/// Slots of a session at most.
pub const SLOTS_MAX: u8 = 16;
/// Sessions of an endpoint at most.
pub const SESSIONS_MAX: usize = 65_000;
/// The smallest packet that a wire must be able to carry, in bytes; with [`Checking::Crc32c`] four more.
pub const PACKET_BYTES_MIN: usize = 128;
const _: () = assert!(HEADER_BYTES + CONTROL_BYTES_MAX <= PACKET_BYTES_MIN);

/// How losses are made good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// From the first missing packet on, everything is sent again after a time-out, and what arrives out of order is
    /// dropped: eRPC's own way.
    GoBackN,
    /// Only what is missing is sent again, as soon as something sent later has arrived and a reordering window has
    /// passed.
    Selective,
}

/// Whether a short cut of the common case is taken. All are on unless the cost of one is to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShortCut {
    /// Taken.
    On,
    /// Not taken.
    Off,
}

/// Where responses to an endpoint's own calls are put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseBuffers {
    /// Into the buffer that each call brings ([`Call::response`](crate::Call)); what does not fit there fails its call.
    Given,
    /// What does not fit there, into one of the endpoint's own, when it comes: no larger than `message_bytes_max`, and counted with
    /// `assembly_bytes_max`. The call's completion brings it in place of the other, and
    /// [`Endpoint::recycle`](crate::Endpoint::recycle) takes it back. So a call that may wait long for a large response needs no memory for it
    /// meanwhile.
    Lent,
}

/// What an endpoint is told when it starts. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Config {
    /// What the wire can carry in one packet, all headers of ours included, in bytes.
    pub packet_bytes_max: usize,
    /// Who notices damaged packets. A wire that notices none itself has packets checked ([`Checking::Packets`]) at least.
    pub checking: Checking,
    /// Calls of one session that are on their way at once; more wait.
    pub slots: u8,
    /// Packets of one session that can be on their way at once.
    pub credits: u16,
    /// Packets that the wire's receive ring holds. Every session takes its credits from it.
    pub receive_ring_packets: u32,
    /// Sessions at most, of both directions.
    pub sessions_max: usize,
    /// Calls of one session that may wait for a slot.
    pub backlog_calls_max: usize,
    /// Bytes of a request that this end takes. One of several packets is no larger than the largest power of two in `assembly_bytes_max`.
    pub message_bytes_max: u32,
    /// Bytes of all requests of several packets that are being received, or not given back yet.
    pub assembly_bytes_max: usize,
    /// Where responses to this end's calls are put.
    pub responses: ResponseBuffers,
    /// Bytes of the response buffer that every slot has of its own.
    pub inline_response_bytes: usize,
    /// Packets that wait to be handed to the wire.
    pub transmit_queue_packets: usize,
    /// How losses are made good in the sessions that this end opens.
    pub recovery: Recovery,
    /// How this end, as a client, keeps off a congested network.
    pub congestion: CongestionConfig,
    /// Whether this end is told of the network's marks of congestion, with [`Endpoint::receive`](crate::Endpoint::receive). Its
    /// peers learn it when a session begins.
    pub marks: MarkUse,
    /// Whether calls go on in packets of 1,200 bytes where larger ones vanish on the way. Messages are then no larger than such packets
    /// can number: 77 MB. It takes both ends.
    pub packet_fallback: PacketFallback,
    /// After packets have become small, the time until a full-size one is tried.
    pub path_probe_ns: u64,
    /// Send at once, past the timing wheel, what need not be paced.
    pub pacing_bypass: ShortCut,
    /// The retransmission time-out before anything was measured.
    pub timeout_ns_initial: u64,
    /// The least retransmission time-out.
    pub timeout_ns_min: u64,
    /// The greatest, to which it doubles.
    pub timeout_ns_max: u64,
    /// The least time by which a packet may be overtaken before it counts as lost.
    pub reordering_ns_min: u64,
    /// Silence of a peer that owes an answer after which it counts as failed.
    pub peer_timeout_ns: u64,
    /// Silence after which a client asks whether the server is there.
    pub keepalive_ns: u64,
    /// Silence after which a server forgets a session.
    pub idle_ns_max: u64,
    /// A gap between two polls that was not the network's fault.
    pub stall_ns: u64,
    /// What tokens and cookies are made of. It must be random and secret; the default, zeros, is refused.
    pub secret: [u64; 2],
    /// Whether sessions are sealed. If they are, all of this endpoint's are, in both directions.
    pub security: Security,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            packet_bytes_max: 1472,
            checking: Checking::Wire,
            slots: 8,
            credits: 32,
            receive_ring_packets: 4096,
            sessions_max: 1024,
            backlog_calls_max: 1024,
            message_bytes_max: 64 << 20,
            assembly_bytes_max: 256 << 20,
            responses: ResponseBuffers::Given,
            inline_response_bytes: 1472,
            transmit_queue_packets: 8192,
            recovery: Recovery::Selective,
            congestion: CongestionConfig::default(),
            marks: MarkUse::Unread,
            packet_fallback: PacketFallback::On,
            path_probe_ns: 60_000_000_000,
            pacing_bypass: ShortCut::On,
            timeout_ns_initial: 5_000_000,
            timeout_ns_min: 500_000,
            timeout_ns_max: 200_000_000,
            reordering_ns_min: 20_000,
            peer_timeout_ns: 3_000_000_000,
            keepalive_ns: 10_000_000_000,
            idle_ns_max: 60_000_000_000,
            stall_ns: 200_000,
            secret: [0; 2],
            security: Security::Plain,
        }
    }
}

/// What is wrong with a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option} is {value}; it must be from {least} to {most}")]
pub struct ConfigError {
    /// The option.
    pub option: &'static str,
    /// What it was set to.
    pub value: u64,
    /// The least it can be.
    pub least: u64,
    /// The most it can be.
    pub most: u64,
}

impl Config {
    /// Whether an endpoint can work with it.
    ///
    /// # Errors
    /// The first option that is out of its range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let within = |option, value: u64, least: u64, most: u64| {
            let error = ConfigError {
                option,
                value,
                least,
                most,
            };
            if (least..=most).contains(&value) {
                Ok(())
            } else {
                Err(error)
            }
        };
        let ring = u64::from(self.receive_ring_packets);
        // Who knows the secret can guess tokens and bake cookies.
        within("secret", self.secret[0] | self.secret[1], 1, u64::MAX)?;
        within(
            "packet_bytes_max",
            self.packet_bytes_max as u64,
            self.packet_bytes_min() as u64,
            u16::MAX.into(),
        )?;
        within("slots", self.slots.into(), 1, SLOTS_MAX.into())?;
        within("credits", self.credits.into(), 1, ring.min(WINDOW_PACKETS.into()))?;
        within("sessions_max", self.sessions_max as u64, 1, SESSIONS_MAX as u64)?;
        within(
            "message_bytes_max",
            self.message_bytes_max.into(),
            1,
            self.message_bytes_possible(),
        )?;
        within(
            "transmit_queue_packets",
            self.transmit_queue_packets as u64,
            64,
            1 << 24,
        )?;
        within("timeout_ns_min", self.timeout_ns_min, 1_000, self.timeout_ns_max)?;
        within(
            "timeout_ns_initial",
            self.timeout_ns_initial,
            self.timeout_ns_min,
            self.timeout_ns_max,
        )?;
        within("stall_ns", self.stall_ns, 1, self.peer_timeout_ns)
    }

    /// Bytes of a packet with message data that are not message data.
    pub(crate) fn overhead_bytes(&self) -> usize {
        let head_bytes = DATA_HEADER_BYTES + self.checking.bytes();
        match self.security {
            Security::Plain => head_bytes,
            Security::Sealed(_) => head_bytes + SEAL_BYTES,
        }
    }

    /// Bytes of the largest message for which there can be room: one of several packets takes a buffer, whose size is a power of two.
    pub(crate) fn message_bytes_taken(&self) -> u32 {
        let buffer_bytes_max = self
            .assembly_bytes_max
            .checked_ilog2()
            .map_or(0, |shift| 1 << shift);
        let whole_bytes_max = self.packet_bytes_max.saturating_sub(self.overhead_bytes());
        let possible = u32::try_from(whole_bytes_max.max(buffer_bytes_max)).unwrap_or(u32::MAX);
        self.message_bytes_max.min(possible)
    }

    /// Whether this end can put messages into small packets: where its packets are larger than that, and small ones can number the
    /// largest request that it takes.
    pub(crate) fn fallback(&self) -> PacketFallback {
        let sizes = self.payload_sizes(self.packet_bytes_max, self.packet_fallback);
        if sizes.can_fall_back() && u64::from(self.message_bytes_max) <= sizes.message_bytes_max() {
            self.packet_fallback
        } else {
            PacketFallback::Off
        }
    }

    /// What packets of this size carry of a message.
    pub(crate) fn payload_sizes(&self, packet_bytes: usize, fallback: PacketFallback) -> PayloadSizes {
        let small_bytes = match fallback {
            PacketFallback::Off => packet_bytes,
            PacketFallback::On => packet_bytes.min(SMALL_PACKET_BYTES),
        };
        let overhead_bytes = self.overhead_bytes();
        PayloadSizes {
            full: packet_bytes.saturating_sub(overhead_bytes) as u32,
            small: small_bytes.saturating_sub(overhead_bytes) as u32,
        }
    }

    /// Bytes that every packet must be able to have, so that those of session management fit.
    pub(crate) fn packet_bytes_min(&self) -> usize {
        PACKET_BYTES_MIN + self.checking.bytes()
    }

    /// Bytes of a message that packet numbers can count at this packet size.
    fn message_bytes_possible(&self) -> u64 {
        let payload = self.packet_bytes_max.saturating_sub(self.overhead_bytes()) as u64;
        (payload * u64::from(MESSAGE_PACKETS_MAX)).min(MESSAGE_BLOCK_BYTES_MAX as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_lacks_only_a_secret_and_an_error_names_its_option() {
        let text = Config::default().check().unwrap_err().to_string();
        assert!(text.starts_with("secret is 0; it must be from 1"), "{text}");
        let with_secret = Config {
            secret: [0, 1],
            ..Config::default()
        };
        assert_eq!(with_secret.check(), Ok(()));
        let wrong = Config {
            credits: 0,
            ..with_secret
        };
        let text = wrong.check().unwrap_err().to_string();
        assert_eq!(text, "credits is 0; it must be from 1 to 256");
    }
}
