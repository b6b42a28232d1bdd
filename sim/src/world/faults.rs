//! What goes wrong, when.

use provost_conformance::Random;
use provost_conformance::simulated::{PipeHandle, Setup, Weather};
use provost_datapath::Nanos;
use provost_session::handshake::{Encoding, Limits};

use super::{Course, Fate, Memory, Route};

/// How long a silent peer is waited for, in simulated nanoseconds.
const KEEPALIVE_NS: u64 = 80_000_000;
/// The longest time for which a carrier carries nothing, in nanoseconds.
const STALL_NS_MAX: u64 = 400_000_000;

/// Something that happens to somebody; the number says to whom.
pub(super) enum Blow {
    /// A connection is cut, and what was on its way is lost.
    Cut(u64),
    /// Nothing passes on a connection until a time.
    Stall(u64, Nanos),
    /// A server's node drains.
    Drain(u64),
    /// A client's node closes its connections.
    Close(u64),
    /// A client app is killed, and comes back.
    CrashClient(u64),
    /// A server app is killed, and comes back.
    CrashServer(u64),
}

/// The source of faults.
pub(super) struct Faults {
    random: Random,
    next_at: Nanos,
    /// How long it takes on average from one to the next; 0 for none at all.
    every_ns: u64,
    memory: Memory,
}

impl Faults {
    pub(super) fn new(seed: u64, severity: u64, memory: Memory) -> Faults {
        let every_ns = [0, 200_000_000, 30_000_000, 5_000_000][severity as usize % 4];
        let mut faults = Faults {
            random: Random::new(seed),
            next_at: 1_000_000_000,
            every_ns,
            memory,
        };
        faults.schedule(1_000_000_000);
        faults
    }

    pub(super) fn next_at(&self) -> Nanos {
        self.next_at
    }

    fn schedule(&mut self, now: Nanos) {
        self.next_at = match self.every_ns {
            0 => Nanos::MAX,
            every => now + 1 + self.random.below(2 * every),
        };
    }

    /// What happens now.
    pub(super) fn draw(&mut self, now: Nanos) -> Blow {
        self.schedule(now);
        let whom = self.random.number();
        match self.random.below(8) {
            0 | 1 => Blow::Cut(whom),
            2 => Blow::Stall(whom, now + self.random.below(STALL_NS_MAX)),
            3 => Blow::Stall(whom, now + self.random.below(2_000_000)),
            4 => Blow::Drain(whom),
            5 => Blow::Close(whom),
            6 => Blow::CrashClient(whom),
            _ => Blow::CrashServer(whom),
        }
    }

    /// A new connection: how its ends are joined, and what may befall it.
    pub(super) fn new_route(&mut self, seed: u64) -> (Route, Fate) {
        let random = &mut self.random;
        if random.one_in(4) {
            return (
                Route::WithinNode,
                Fate {
                    memory: self.memory,
                    course: Course::Fair,
                },
            );
        }
        let mut weather = match random.below(4) {
            0 => Weather::fair(),
            1 => Weather {
                piece_bytes_max: 300,
                capacity_bytes: 4_000,
                ..Weather::rough()
            },
            _ => Weather::rough(),
        };
        let mut course = Course::Fair;
        if self.every_ns != 0 && random.one_in(10) {
            weather.flip_one_in = 200;
            course = Course::Damaged;
        }
        let setup = Setup {
            encoding: if random.one_in(2) {
                Encoding::Native
            } else {
                Encoding::Protobuf
            },
            limits: Limits::default(),
            keepalive_interval_ns: KEEPALIVE_NS,
            keepalive_timeout_ns: KEEPALIVE_NS,
        };
        let route = Route::Network(PipeHandle::new(seed, weather), setup);
        (
            route,
            Fate {
                memory: self.memory,
                course,
            },
        )
    }
}
