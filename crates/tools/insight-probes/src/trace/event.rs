//! One event of the tracepoints, as the BPF programs write it down.

/// Bytes of an event; `struct event` in `bpf/probes.bpf.c`.
pub(crate) const EVENT_BYTES: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TraceKind {
    /// A thread of the proxy enters a system call.
    Enter {
        call: u32,
    },
    Leave {
        call: u32,
    },
    /// It loses its core, of its own will or not.
    OffCore {
        /// Whether it still wants to run.
        is_preempted: bool,
    },
    /// It gets a core.
    OnCore,
    /// Someone makes it ready to run.
    Waking,
    /// A socket has more to read.
    Readable {
        /// The port of the socket that can be read.
        local: u16,
        /// The port of its peer.
        peer: u16,
    },
    /// It hands a packet to a device.
    Sent,
}

/// An event of one thread at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceEvent {
    /// The monotonic clock, in nanoseconds.
    pub(crate) time_ns: u64,
    /// The thread that it is about; of [`TraceKind::Readable`] the one on whose core the packet was received.
    pub(crate) thread: u32,
    pub(crate) kind: TraceKind,
}

impl TraceEvent {
    /// Reads what a program wrote; `None` for anything that no program writes.
    pub(crate) fn parse(bytes: &[u8]) -> Option<TraceEvent> {
        let bytes: &[u8; EVENT_BYTES] = bytes.try_into().ok()?;
        let u32_at = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u16_at = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let what = u32_at(16);
        let kind = match u16_at(12) {
            1 => TraceKind::Enter { call: what },
            2 => TraceKind::Leave { call: what },
            3 => TraceKind::OffCore {
                is_preempted: what != 0,
            },
            4 => TraceKind::OnCore,
            5 => TraceKind::Waking,
            6 => TraceKind::Readable {
                local: u16::try_from(what).ok()?,
                peer: u16::try_from(u32_at(20)).ok()?,
            },
            7 => TraceKind::Sent,
            _ => return None,
        };
        let time = u64::from(u32_at(0)) | u64::from(u32_at(4)) << 32;
        Some(TraceEvent {
            time_ns: time,
            thread: u32_at(8),
            kind,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_event_is_read_as_it_was_written() {
        let mut bytes = 5_000_000_007u64.to_ne_bytes().to_vec();
        bytes.extend(41u32.to_ne_bytes());
        bytes.extend(6u16.to_ne_bytes());
        bytes.extend(1u16.to_ne_bytes());
        bytes.extend(8080u32.to_ne_bytes());
        bytes.extend(9090u32.to_ne_bytes());
        let event = TraceEvent::parse(&bytes).unwrap();
        let kind = TraceKind::Readable {
            local: 8080,
            peer: 9090,
        };
        assert_eq!(
            event,
            TraceEvent {
                time_ns: 5_000_000_007,
                thread: 41,
                kind
            }
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let parsed = TraceEvent::parse(&bytes);
            prop_assert!(parsed.is_none() || bytes.len() == EVENT_BYTES);
        }
    }
}
