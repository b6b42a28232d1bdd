//! What is measured: setups, and the loads put on each.

use serde::{Deserialize, Serialize};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Bytes of payload in flight, roughly, whatever the size of one.
const GOODPUT_BYTES_IN_FLIGHT: usize = 32 * MIB;
/// Calls in flight of small messages in goodput.
const GOODPUT_CALLS_MAX: usize = 64;
/// Calls in flight of the largest messages in goodput, so that nobody waits for one to be through.
const GOODPUT_CALLS_MIN: usize = 4;

/// Processes put together in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Setup {
    /// Ping-pong over blocking sockets.
    RawTcp,
    /// Ping-pong over sockets that are polled without pause.
    RawTcpSpin,
    /// A bare call through four processes in Provost's shape.
    Floor,
    /// A bare call between two processes over shared memory, free to have a core each.
    SharedMemory,
    /// The same with both on one core, so that each hop is a context switch.
    SharedMemoryOneCore,
    /// gRPC, client to server.
    Tonic,
    /// gRPC through a sidecar on either side that routes and does nothing else.
    TonicEnvoyNull,
    /// Two nodes, no policy.
    ProvostBare,
    /// Two nodes, a null policy in each.
    ProvostNull,
    /// Client and server on one node, a null policy.
    ProvostLocal,
}

impl Setup {
    /// In the order in which a round runs them; what is compared closely stands together.
    pub(crate) const ALL: [Setup; 10] = [
        Setup::RawTcp,
        Setup::RawTcpSpin,
        Setup::Tonic,
        Setup::TonicEnvoyNull,
        Setup::SharedMemory,
        Setup::SharedMemoryOneCore,
        Setup::ProvostLocal,
        Setup::Floor,
        Setup::ProvostNull,
        Setup::ProvostBare,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Setup::RawTcp => "raw tcp",
            Setup::RawTcpSpin => "raw tcp spin",
            Setup::Floor => "floor",
            Setup::SharedMemory => "shm",
            Setup::SharedMemoryOneCore => "shm one core",
            Setup::Tonic => "tonic",
            Setup::TonicEnvoyNull => "tonic+envoy null",
            Setup::ProvostBare => "provost bare",
            Setup::ProvostNull => "provost null",
            Setup::ProvostLocal => "provost local",
        }
    }

    /// Whether there are processes between client and server whose rest is worth a look.
    pub(crate) fn has_services(self) -> bool {
        matches!(
            self,
            Setup::TonicEnvoyNull | Setup::ProvostNull | Setup::ProvostLocal
        )
    }

    /// Whether it can have one call in flight only.
    fn is_ping_pong(self) -> bool {
        matches!(
            self,
            Setup::RawTcpSpin | Setup::Floor | Setup::SharedMemory | Setup::SharedMemoryOneCore
        )
    }

    /// Whether its client starts the other processes, which inherit memory from it.
    pub(crate) fn starts_from_client(self) -> bool {
        matches!(
            self,
            Setup::Floor | Setup::SharedMemory | Setup::SharedMemoryOneCore
        )
    }

    /// What is measured of it.
    pub(crate) fn measures(self, scope: Scope) -> Vec<Measure> {
        let latency = vec![Measure::latency()];
        if scope == Scope::Smoke || self.is_ping_pong() {
            return latency;
        }
        match (self, scope) {
            (Setup::ProvostBare, Scope::Quick) => [latency, vec![Measure::rate(64, 1)]].concat(),
            (Setup::ProvostBare, Scope::Full) => [latency, rates(), goodputs(&[64 * KIB, MIB])].concat(),
            (_, Scope::Quick | Scope::Smoke) => {
                [latency, vec![Measure::rate(64, 1)], goodputs(&[64 * KIB, MIB])].concat()
            }
            (_, Scope::Full) => [
                latency,
                rates(),
                goodputs(&[2 * KIB, 8 * KIB, 64 * KIB, 512 * KIB, MIB, 8 * MIB]),
            ]
            .concat(),
        }
    }
}

/// How much of the plan is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// One short latency run of each setup: does it work?
    Smoke,
    /// Latency, one rate, two goodputs.
    Quick,
    /// Everything.
    Full,
}

/// One kind of load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Measure {
    /// Its name in tables and files.
    pub(crate) what: String,
    /// Payload of a request, in bytes.
    pub(crate) size_bytes: usize,
    /// Calls in flight on each connection.
    pub(crate) calls_in_flight: usize,
    /// Connections, each with a client thread of its own.
    pub(crate) connections: usize,
}

impl Measure {
    pub(crate) fn latency() -> Measure {
        Measure {
            what: "lat".into(),
            size_bytes: 64,
            calls_in_flight: 1,
            connections: 1,
        }
    }

    pub(crate) fn rate(calls_in_flight: usize, connections: usize) -> Measure {
        let suffix = if connections == 1 {
            String::new()
        } else {
            format!(" k={connections}")
        };
        Measure {
            what: format!("rate c={calls_in_flight}{suffix}"),
            size_bytes: 32,
            calls_in_flight,
            connections,
        }
    }

    fn goodput(size_bytes: usize) -> Measure {
        let size = if size_bytes >= MIB {
            format!("{}M", size_bytes / MIB)
        } else {
            format!("{}K", size_bytes / KIB)
        };
        let calls_in_flight =
            (GOODPUT_BYTES_IN_FLIGHT / size_bytes).clamp(GOODPUT_CALLS_MIN, goodput_calls_max(size_bytes));
        Measure {
            what: format!("gp {size}"),
            size_bytes,
            calls_in_flight,
            connections: 1,
        }
    }
}

/// Fewer calls the larger they are: past a bandwidth-delay product more in flight only adds memory traffic.
fn goodput_calls_max(size_bytes: usize) -> usize {
    match size_bytes {
        0..=32_768 => GOODPUT_CALLS_MAX,
        32_769..=131_072 => GOODPUT_CALLS_MAX / 2,
        _ => GOODPUT_CALLS_MAX / 4,
    }
}

fn rates() -> Vec<Measure> {
    [(1, 1), (8, 1), (64, 1), (128, 1), (64, 2), (64, 4)]
        .map(|(calls, connections)| Measure::rate(calls, connections))
        .to_vec()
}

fn goodputs(sizes_bytes: &[usize]) -> Vec<Measure> {
    sizes_bytes.iter().copied().map(Measure::goodput).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_loads_are_those_of_the_files() {
        let full = Setup::ProvostNull.measures(Scope::Full);
        let names: Vec<_> = full.iter().map(|measure| measure.what.as_str()).collect();
        for name in ["lat", "rate c=64", "rate c=64 k=4", "gp 2K", "gp 64K", "gp 8M"] {
            assert!(names.contains(&name), "{name} is not in {names:?}");
        }
    }

    #[test]
    fn large_messages_have_few_in_flight() {
        assert_eq!(Measure::goodput(2 * KIB).calls_in_flight, 64);
        assert_eq!(Measure::goodput(64 * KIB).calls_in_flight, 32);
        assert_eq!(Measure::goodput(MIB).calls_in_flight, 16);
        assert_eq!(Measure::goodput(8 * MIB).calls_in_flight, 4);
    }
}
