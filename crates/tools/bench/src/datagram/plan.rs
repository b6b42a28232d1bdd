//! What is measured: setups, and what is done on each.

use serde::{Deserialize, Serialize};

use super::Depth;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Bytes of a small request, and of every response (the paper's, section 6.1).
pub(crate) const SMALL_BYTES: usize = 32;
/// Calls of each process on their way when rates are measured (the paper's figure 4), in whole batches.
pub(crate) const CALLS_IN_FLIGHT: usize = 60;
/// Sessions that carry them: each has eight slots.
const RATE_SESSIONS: usize = 8;
/// Batches of the factor analysis (the paper's table 3).
const FACTOR_BATCH: usize = 3;
/// What a link between two processes carries, as far as congestion control knows, in bytes per nanosecond: so much that
/// it never is what limits.
pub(crate) const LINK_RATE: f64 = 100.0;

/// What carries packets between two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Carrier {
    /// Shared memory, packets lent where the peer put them.
    Shm,
    /// Shared memory, each packet copied before it is looked at.
    ShmCopied,
    /// UDP sockets on the loopback interface.
    Udp,
    /// AF_XDP sockets, over a virtual cable between two hosts of the bench's own.
    Xdp,
    /// A TCP socket on the loopback interface: for comparison only.
    Tcp,
}

/// Who talks over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Talk {
    /// Nobody but the benchmark: a packet there, a packet back.
    Bare,
    Provost,
}

/// One of the optimizations, which is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Without {
    Nothing,
    BatchedClock,
    CongestionBypass,
    PacingBypass,
    CongestionControl,
    SelectiveRecovery,
    OwnResponseBuffers,
    RequestsInPlace,
    PacketsInPlace,
}

impl Without {
    pub(crate) const ALL: [Without; 9] = [
        Without::Nothing,
        Without::BatchedClock,
        Without::CongestionBypass,
        Without::PacingBypass,
        Without::CongestionControl,
        Without::SelectiveRecovery,
        Without::OwnResponseBuffers,
        Without::RequestsInPlace,
        Without::PacketsInPlace,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Without::Nothing => "all on",
            Without::BatchedClock => "no batched time",
            Without::CongestionBypass => "no CC bypass",
            Without::PacingBypass => "no pacer bypass",
            Without::CongestionControl => "no CC",
            Without::SelectiveRecovery => "go-back-N",
            Without::OwnResponseBuffers => "alloc responses",
            Without::RequestsInPlace => "copy requests",
            Without::PacketsInPlace => "copy packets",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Callers {
    /// One process; the other answers.
    Client,
    /// Both, and both answer: so each core does the work of a client and of a server.
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answers {
    /// Whoever drives the endpoint.
    Endpoint,
    /// A handler of the library, in its event loop.
    Dispatch,
    /// A handler of the library, in a thread of its own.
    Worker,
}

/// What two processes do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Work {
    pub(crate) callers: Callers,
    pub(crate) answers: Answers,
    pub(crate) request_bytes: usize,
    /// Calls that begin together, when all of their batch before have ended.
    pub(crate) batch: usize,
    pub(crate) batches: usize,
    pub(crate) sessions: usize,
    pub(crate) without: Without,
    pub(crate) wire: WireShape,
}

/// What the wire and its sessions are to be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireShape {
    pub(crate) packet_bytes: usize,
    /// Of shared memory alone: sockets have what the kernel grants.
    pub(crate) ring_packets: u32,
    pub(crate) credits: u16,
}

/// Packets of Ethernet size.
const WIRE: WireShape = WireShape {
    packet_bytes: 1472,
    ring_packets: 1024,
    credits: 32,
};
/// Large packets, in as much memory as a core's cache has.
const WIRE_LARGE: WireShape = WireShape {
    packet_bytes: 16_376,
    ring_packets: 64,
    credits: 24,
};
/// Small packets, and room for the credits of 20,000 sessions.
const WIRE_MANY: WireShape = WireShape {
    packet_bytes: 248,
    ring_packets: 1 << 18,
    credits: 8,
};

/// Who else wants the cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Neighbours {
    None,
    /// A process on each core that computes without pause.
    Busy,
}

/// A run of two processes.
#[derive(Clone, Debug)]
pub(crate) struct Experiment {
    pub(crate) setup: &'static str,
    pub(crate) what: String,
    pub(crate) carrier: Carrier,
    pub(crate) talk: Talk,
    pub(crate) work: Work,
    pub(crate) neighbours: Neighbours,
}

/// Everything that two processes are measured at.
pub(crate) fn experiments(depth: Depth) -> Vec<Experiment> {
    let mut all = latencies();
    match depth {
        Depth::Smoke => all.push(rate("provost shm", Carrier::Shm, 3)),
        Depth::Quick | Depth::Full => {
            all.extend(rates());
            all.extend(many());
            all.extend(factors());
            all.extend(workers());
            all.push(crowded());
            all.extend(sessions(depth));
            all.extend(bandwidths(depth));
        }
    }
    all
}

const CALL: Work = Work {
    callers: Callers::Client,
    answers: Answers::Endpoint,
    request_bytes: SMALL_BYTES,
    batch: 1,
    batches: 1,
    sessions: 1,
    without: Without::Nothing,
    wire: WIRE,
};

fn experiment(setup: &'static str, what: impl Into<String>, carrier: Carrier, work: Work) -> Experiment {
    Experiment {
        setup,
        what: what.into(),
        carrier,
        talk: Talk::Provost,
        work,
        neighbours: Neighbours::None,
    }
}

/// The paper's table 2.
fn latencies() -> Vec<Experiment> {
    let bare = |setup, carrier| Experiment {
        talk: Talk::Bare,
        ..experiment(setup, "lat", carrier, CALL)
    };
    vec![
        bare("bare shm", Carrier::Shm),
        experiment("provost shm", "lat", Carrier::Shm, CALL),
        experiment("provost shm copied", "lat", Carrier::ShmCopied, CALL),
        bare("bare udp", Carrier::Udp),
        experiment("provost udp", "lat", Carrier::Udp, CALL),
        bare("bare xdp", Carrier::Xdp),
        experiment("provost xdp", "lat", Carrier::Xdp, CALL),
        bare("bare tcp", Carrier::Tcp),
    ]
}

/// The paper's figure 4.
fn rates() -> Vec<Experiment> {
    let of = |batch| {
        [
            rate("provost shm", Carrier::Shm, batch),
            rate("provost udp", Carrier::Udp, batch),
        ]
    };
    let over_cable = rate("provost xdp", Carrier::Xdp, FACTOR_BATCH);
    [3, 5, 11].into_iter().flat_map(of).chain([over_cable]).collect()
}

fn rate(setup: &'static str, carrier: Carrier, batch: usize) -> Experiment {
    experiment(setup, format!("rate b={batch}"), carrier, rate_work(batch))
}

fn rate_work(batch: usize) -> Work {
    Work {
        callers: Callers::Both,
        batch,
        batches: CALLS_IN_FLIGHT / batch,
        sessions: RATE_SESSIONS,
        ..CALL
    }
}

/// As many calls on their way as when rates are measured, of one process, and as many bare packets.
fn many() -> Vec<Experiment> {
    let work = Work {
        batches: CALLS_IN_FLIGHT,
        sessions: RATE_SESSIONS,
        ..CALL
    };
    let of = |setup, talk, carrier| Experiment {
        talk,
        ..experiment(setup, "many", carrier, work)
    };
    vec![
        of("bare udp", Talk::Bare, Carrier::Udp),
        of("provost udp", Talk::Provost, Carrier::Udp),
        of("bare xdp", Talk::Bare, Carrier::Xdp),
        of("provost xdp", Talk::Provost, Carrier::Xdp),
    ]
}

/// The paper's table 3.
fn factors() -> impl Iterator<Item = Experiment> {
    Without::ALL.into_iter().map(|without| {
        let carrier = match without {
            Without::PacketsInPlace => Carrier::ShmCopied,
            _ => Carrier::Shm,
        };
        let work = Work {
            without,
            ..rate_work(FACTOR_BATCH)
        };
        experiment("provost shm", without.name(), carrier, work)
    })
}

/// What it costs to have a thread of its own answer (sRPC's figure 5).
fn workers() -> impl Iterator<Item = Experiment> {
    let of = |(setup, answers)| {
        let call = Work { answers, ..CALL };
        let calls = Work {
            batch: FACTOR_BATCH,
            batches: CALLS_IN_FLIGHT / FACTOR_BATCH,
            sessions: RATE_SESSIONS,
            ..call
        };
        [
            experiment(setup, "answered", Carrier::Shm, call),
            experiment(setup, "answered b=3", Carrier::Shm, calls),
        ]
    };
    [
        ("shm endpoint", Answers::Endpoint),
        ("shm dispatch", Answers::Dispatch),
        ("shm worker", Answers::Worker),
    ]
    .into_iter()
    .flat_map(of)
}

fn crowded() -> Experiment {
    Experiment {
        neighbours: Neighbours::Busy,
        ..experiment(
            "provost shm",
            "crowded b=3",
            Carrier::Shm,
            rate_work(FACTOR_BATCH),
        )
    }
}

/// The paper's figure 5.
fn sessions(depth: Depth) -> impl Iterator<Item = Experiment> {
    let numbers: &[usize] = match depth {
        Depth::Full => &[20, 200, 2_000, 10_000, 20_000],
        _ => &[20, 20_000],
    };
    numbers.iter().map(|sessions| {
        let work = Work {
            batch: FACTOR_BATCH,
            batches: CALLS_IN_FLIGHT / FACTOR_BATCH,
            sessions: *sessions,
            wire: WIRE_MANY,
            ..CALL
        };
        experiment("provost shm", format!("sessions {sessions}"), Carrier::Shm, work)
    })
}

/// The paper's figure 6.
fn bandwidths(depth: Depth) -> impl Iterator<Item = Experiment> {
    let sizes: &[usize] = match depth {
        Depth::Full => &[
            512,
            2 * KIB,
            8 * KIB,
            32 * KIB,
            128 * KIB,
            512 * KIB,
            2 * MIB,
            8 * MIB,
        ],
        _ => &[32 * KIB, 8 * MIB],
    };
    sizes.iter().flat_map(|size| {
        let of = |setup, carrier, wire| {
            let work = Work {
                request_bytes: *size,
                wire,
                ..CALL
            };
            experiment(setup, goodput_name(*size), carrier, work)
        };
        [
            of("provost shm", Carrier::Shm, WIRE_LARGE),
            of("provost udp", Carrier::Udp, WIRE),
            of("provost xdp", Carrier::Xdp, WIRE),
        ]
    })
}

pub(crate) fn goodput_name(bytes: usize) -> String {
    match bytes {
        0..KIB => format!("gp {bytes}"),
        KIB..MIB => format!("gp {}K", bytes / KIB),
        _ => format!("gp {}M", bytes / MIB),
    }
}
