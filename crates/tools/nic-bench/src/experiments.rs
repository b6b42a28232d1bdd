//! What is measured, group by group.

use provost_nic::FetchMode;
use provost_nic_model::{ModelUnavailable, NicShape, SimulatedNic};

use crate::chain::{FRONT_END_CALLS, ServiceChain};
use crate::figures::{FigureBasis, NicFigures};
use crate::handlers::{HandlerModel, HandlerThreads, HandlerTime};
use crate::interface::{COHERENT_MRPS, DOORBELL_MRPS, HostInterface};
use crate::pair::{
    NIC_CALLS, NeighbourTenant, NicPair, PairConfig, PairFigures, PolicyUse, SMALL_BYTES, added_cycles,
};
use crate::parts::{CallContent, CallLoad};
use crate::store::{StoreKeys, measure_store};

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BenchScope {
    /// The ends of every scale.
    Quick,
    /// Every point of every scale.
    Full,
}

impl BenchScope {
    /// Calls of a run, and those before it.
    fn calls(self) -> (u64, u64) {
        match self {
            BenchScope::Quick => (4_000, 500),
            BenchScope::Full => (20_000, 2_000),
        }
    }

    /// Of a scale, what this scope measures.
    fn of<T: Copy>(self, all: &[T]) -> Vec<T> {
        match self {
            BenchScope::Full => all.to_vec(),
            BenchScope::Quick => all.first().into_iter().chain(all.last()).copied().collect(),
        }
    }
}

/// A group of figures.
type ExperimentGroup = (
    &'static str,
    fn(&mut NicFigures, BenchScope) -> Result<(), String>,
);

const GROUPS: [ExperimentGroup; 12] = [
    ("interfaces", interfaces),
    ("load", load),
    ("flows", flows),
    ("sizes", sizes),
    ("cache", cache),
    ("policies", policies),
    ("isolation", isolation),
    ("threads", threads),
    ("chain", chain),
    ("store", store),
    ("rtl", rtl),
    ("simulation", simulation),
];

/// Whether a group is to be measured.
pub(crate) fn is_chosen(only: &[String], group: &str) -> bool {
    only.is_empty() || only.iter().any(|chosen| chosen == group)
}

/// Measures every group that is chosen; what needs a model of the NIC that is not there is left out, with the reason.
pub(crate) fn run(figures: &mut NicFigures, scope: BenchScope, only: &[String]) -> Result<(), String> {
    let known = |chosen: &String| {
        chosen == crate::published::GROUP || GROUPS.iter().any(|(group, _)| group == chosen)
    };
    if let Some(unknown) = only.iter().find(|chosen| !known(chosen)) {
        return Err(format!("--only {unknown}: no such group; --help lists them"));
    }
    if let Err(reason) = available() {
        eprintln!("left out: everything that is simulated: {reason}");
        figures
            .missing
            .push(format!("everything that is simulated: {reason}"));
        return Ok(());
    }
    for (group, measure) in GROUPS {
        if is_chosen(only, group) {
            eprintln!("{group}");
            measure(figures, scope)?;
        }
    }
    Ok(())
}

fn available() -> Result<(), ModelUnavailable> {
    SimulatedNic::of_shape(
        NicShape::Wide,
        1,
        HostInterface::ideal(FetchMode::Polled).timing(),
    )
    .map(drop)
}

/// With one batch at a time, calls differ so little that fewer say as much.
const ALONE_PART: u64 = 8;

fn measure(config: PairConfig, scope: BenchScope) -> Result<PairFigures, String> {
    let (calls, warmup) = scope.calls();
    measure_calls(config, warmup, calls)
}

fn measure_alone(config: PairConfig, scope: BenchScope) -> Result<PairFigures, String> {
    let (calls, warmup) = scope.calls();
    // Every session once at least, so that caches have what they can keep.
    let warmup = (warmup / ALONE_PART).max(config.sessions.into());
    measure_calls(config, warmup, calls / ALONE_PART)
}

fn measure_calls(config: PairConfig, warmup: u64, calls: u64) -> Result<PairFigures, String> {
    let name = config.interface.name.clone();
    let mut pair = NicPair::new(config).map_err(|error| error.to_string())?;
    let found = pair.run(warmup, calls)?;
    match found.failed {
        0 => Ok(found),
        failed => Err(format!("{name}: {failed} calls failed")),
    }
}

/// As many calls on their way as the NIC takes, in whole batches.
fn saturating(interface: &HostInterface, flows: u8) -> CallLoad {
    let batch = interface.batch as usize;
    let calls = NIC_CALLS / usize::from(flows);
    CallLoad::Closed {
        calls: (calls / batch * batch).max(batch),
    }
}

fn saturated(interface: HostInterface) -> PairConfig {
    let load = saturating(&interface, 1);
    PairConfig::new(interface, load)
}

/// One batch at a time.
fn alone(interface: HostInterface) -> PairConfig {
    let calls = interface.batch as usize;
    PairConfig::new(interface, CallLoad::Closed { calls })
}

fn basis(interface: &HostInterface) -> FigureBasis {
    let points = match interface.fetch {
        FetchMode::Doorbell => DOORBELL_MRPS,
        FetchMode::Polled => COHERENT_MRPS,
        FetchMode::Push => return FigureBasis::SimulatedPredicted,
    };
    if points.iter().any(|(batch, _)| *batch == interface.batch) {
        FigureBasis::SimulatedCalibrated
    } else {
        FigureBasis::SimulatedPredicted
    }
}

/// Rates of one core and latencies, by interface (Dagger's comparison of host interfaces).
fn interfaces(figures: &mut NicFigures, scope: BenchScope) -> Result<(), String> {
    let mut all = vec![HostInterface::push()];
    all.extend([1, 3, 7, 11].map(HostInterface::doorbell));
    all.extend([1, 4].map(HostInterface::coherent));
    for interface in all {
        let name = interface.name.clone();
        let rate_basis = basis(&interface);
        let rate = measure(saturated(interface.clone()), scope)?;
        figures.add((&name, "rate of a core"), rate.mrps(), "M/s", rate_basis, "");
        let latency = measure_alone(alone(interface), scope)?;
        add_latency(figures, &name, "one batch", &latency);
    }
    Ok(())
}

fn add_latency(figures: &mut NicFigures, setup: &str, what: &str, found: &PairFigures) {
    let mut add = |quantile: &str, us| {
        let what = format!("{quantile}, {what}");
        figures.add((setup, &what), us, "us", FigureBasis::SimulatedPredicted, "");
    };
    add("p50", found.p50_us());
    add("p99", found.p99_us());
}

/// Latency against load: calls begin at random times.
fn load(figures: &mut NicFigures, scope: BenchScope) -> Result<(), String> {
    let interfaces = [
        HostInterface::coherent(4),
        HostInterface::coherent(1),
        HostInterface::doorbell(11),
        HostInterface::doorbell(3),
        HostInterface::doorbell(1),
    ];
    for interface in interfaces {
        let mean_ns = interface.call_ns();
        for percent in scope.of(&[10, 30, 50, 70, 80, 90]) {
            let load = CallLoad::Open {
                mean_ns: mean_ns * 100.0 / f64::from(percent),
            };
            let found = measure(PairConfig::new(interface.clone(), load), scope)?;
            let what = format!("{percent} % of its rate");
            add_latency(figures, &interface.name, &what, &found);
        }
    }
    Ok(())
}

/// Rates by flows, each with a core of its own.
fn flows(figures: &mut NicFigures, scope: BenchScope) -> Result<(), String> {
    for interface in [HostInterface::coherent(4), HostInterface::doorbell(3)] {
        for flows in scope.of(&[1_u8, 2, 4, 8]) {
            let load = saturating(&interface, flows);
            let config = PairConfig {
                flows,
                ..PairConfig::new(interface.clone(), load)
            };
            let found = measure(config, scope)?;
            let what = format!("rate of {flows} flows");
            figures.add(
                (&interface.name, &what),
                found.mrps(),
                "M/s",
                FigureBasis::SimulatedPredicted,
                "",
            );
        }
    }
    Ok(())
}

/// Bytes of RPCs, as whole lines: a head of 24 bytes and the payload.
const SIZES: [usize; 6] = [64, 128, 256, 512, 1024, 2048];
/// Bytes of an RPC that is more than a packet.
const LARGE_BYTES: usize = 4096;

/// Rates and latencies by size.
fn sizes(figures: &mut NicFigures, scope: BenchScope) -> Result<(), String> {
    for interface in [HostInterface::coherent(1), HostInterface::doorbell(1)] {
        for bytes in scope.of(&SIZES) {
            let payload_bytes = bytes - (provost_nic::LINE_BYTES - SMALL_BYTES);
            let sized = |config: PairConfig| PairConfig {
                content: CallContent::Echo(payload_bytes),
                ..config
            };
            let rate = measure(sized(saturated(interface.clone())), scope)?;
            let latency = measure_alone(sized(alone(interface.clone())), scope)?;
            let setup = format!("{} {bytes} B", interface.name);
            let basis = FigureBasis::SimulatedPredicted;
            let note = match rate.resent {
                0 => String::new(),
                resent => format!("{resent} requests sent again"),
            };
            figures.add((&setup, "rate of a core"), rate.mrps(), "M/s", basis, &note);
            figures.add((&setup, "p50, one batch"), latency.p50_us(), "us", basis, "");
        }
    }
    figures.missing.push(format!(
        "{LARGE_BYTES} B: a message of this NIC is one packet of at most {} bytes",
        SIZES[SIZES.len() - 1]
    ));
    Ok(())
}

/// More sessions than the cache of 64 connections holds, used in turn: the worst case.
fn cache(figures: &mut NicFigures, scope: BenchScope) -> Result<(), String> {
    let interface = HostInterface::coherent(4);
    let mut alone_us = None;
    for sessions in scope.of(&[6_u16, 48, 64, 80, 128, 512, 2048]) {
        let with = |config: PairConfig| PairConfig { sessions, ..config };
        let rate = measure(with(saturated(interface.clone())), scope)?;
        let latency = measure_alone(with(alone(HostInterface::coherent(1))), scope)?;
        let setup = format!("sessions {sessions}");
        let hit_percent = 100.0 * rate.hits as f64 / (rate.hits + rate.misses).max(1) as f64;
        let basis = FigureBasis::SimulatedPredicted;
        figures.add(
            (&setup, "cache hits"),
            hit_percent,
            "%",
            FigureBasis::SimulatedCycles,
            "",
        );
        figures.add(
            (&setup, "rate of a core"),
            rate.mrps(),
            "M/s",
            basis,
            &interface.name,
        );
        figures.add(
            (&setup, "p50, one batch"),
            latency.p50_us(),
            "us",
            basis,
            "coherent b1",
        );
        let first_us = *alone_us.get_or_insert(latency.latencies.report(1.0, 0).mean_us);
        let added_us = latency.latencies.report(1.0, 0).mean_us - first_us;
        // A call has one miss at the client for the request, and one at the server; both may miss again for the response.
        let misses = 2.0 * latency.misses as f64 / latency.calls as f64;
        if misses > 0.1 {
            figures.add(
                (&setup, "cost of a miss"),
                1e3 * added_us / misses,
                "ns",
                basis,
                "coherent b1",
            );
        }
    }
    Ok(())
}

/// Eight rules and a token bucket, and neither.
fn policies(figures: &mut NicFigures, scope: BenchScope) -> Result<(), String> {
    for (policies, setup) in [(PolicyUse::Off, "policies off"), (PolicyUse::On, "policies on")] {
        let with = |config: PairConfig| PairConfig { policies, ..config };
        let rate = measure(with(saturated(HostInterface::coherent(4))), scope)?;
        let latency = measure_alone(with(alone(HostInterface::coherent(1))), scope)?;
        let basis = FigureBasis::SimulatedPredicted;
        figures.add(
            (setup, "rate of a core"),
            rate.mrps(),
            "M/s",
            basis,
            "coherent b4",
        );
        figures.add(
            (setup, "p50, one batch"),
            latency.p50_us(),
            "us",
            basis,
            "coherent b1",
        );
    }
    Ok(())
}

/// What another tenant of both NICs does beside one that uses half of its core's rate: nothing, or as much as it can. It tries to have all
/// calls of the NIC on their way, of which its flow may have half.
const NEIGHBOURS: [(&str, usize, usize); 3] = [
    ("silent", 0, SMALL_BYTES),
    ("flood of 64 B", NIC_CALLS, SMALL_BYTES),
    ("flood of 2 KB", NIC_CALLS, LARGEST_PACKET_BYTES),
];
/// Payload of an entry of 32 lines.
const LARGEST_PACKET_BYTES: usize = 2024;

/// A tenant's rate and latency beside another, which has a flow of its own.
fn isolation(figures: &mut NicFigures, scope: BenchScope) -> Result<(), String> {
    for interface in [HostInterface::coherent(4), HostInterface::doorbell(3)] {
        let load = CallLoad::Open {
            mean_ns: 2.0 * interface.call_ns(),
        };
        for (what, calls, payload_bytes) in NEIGHBOURS {
            let neighbour = NeighbourTenant {
                load: CallLoad::Closed { calls },
                payload_bytes,
            };
            let config = PairConfig {
                flows: 2,
                neighbour: Some(neighbour),
                ..PairConfig::new(interface.clone(), load)
            };
            let (measured, warmup) = scope.calls();
            let mut pair = NicPair::new(config).map_err(|error| error.to_string())?;
            let found = pair.run(warmup, measured)?;
            let (carried, refused) = pair.neighbour_calls();
            let note = format!("{carried} calls of the other carried, {refused} refused");
            let rate = format!("rate beside {what}");
            let basis = FigureBasis::SimulatedPredicted;
            figures.add((&interface.name, &rate), found.mrps(), "M/s", basis, &note);
            add_latency(figures, &interface.name, &format!("beside {what}"), &found);
        }
    }
    Ok(())
}

/// The two ways to run handlers.
const THREADS: [(&str, HandlerThreads); 2] = [
    ("polling thread", HandlerThreads::Polling),
    ("4 workers", HandlerThreads::Workers(4)),
];
/// A handler that takes as long as an RPC's way, but one call in ten waits for a tier behind it: a service as the check-in of a flight
/// registration.
const CHECK_IN: HandlerTime = HandlerTime::Mixed {
    short_ns: 500.0,
    long_ns: 10_000.0,
};
/// Calls of it a microsecond at most, in one thread: part of that in which latency is taken.
const CHECK_IN_LOAD: f64 = 0.5;

/// Handlers in the thread that polls, and in workers: the highest rate, and latency at half of what the polling thread carries.
fn threads(figures: &mut NicFigures, scope: BenchScope) -> Result<(), String> {
    let interface = HostInterface::coherent(1);
    let mut polling_mrps = None;
    for (name, threads) in THREADS {
        let handlers = HandlerModel {
            threads,
            time: CHECK_IN,
        };
        let with = |config: PairConfig| PairConfig { handlers, ..config };
        let rate = measure_alone(with(saturated(interface.clone())), scope)?;
        let setup = format!("check-in, {name}");
        let basis = FigureBasis::SimulatedPredicted;
        figures.add((&setup, "rate of a server"), rate.mrps(), "M/s", basis, "");
        let carried_mrps: f64 = *polling_mrps.get_or_insert(rate.mrps());
        let load = CallLoad::Open {
            mean_ns: 1e3 / (carried_mrps * CHECK_IN_LOAD),
        };
        let latency = measure_alone(with(PairConfig::new(interface.clone(), load)), scope)?;
        add_latency(figures, &setup, "half that load", &latency);
    }
    Ok(())
}

/// A chain of services, whose one that computes for long runs its handlers in the thread that polls, or in workers: the highest rate of check-ins, their
/// latency alone, and at half of the first rate.
fn chain(figures: &mut NicFigures, scope: BenchScope) -> Result<(), String> {
    let interface = HostInterface::coherent(1);
    let (calls, warmup) = scope.calls();
    let run = |load, threads| {
        let chain = ServiceChain::new(&interface, load, threads);
        let mut chain = chain.map_err(|error| error.to_string())?;
        let found = chain.run(warmup / ALONE_PART, calls / ALONE_PART)?;
        match found.failed {
            0 => Ok(found),
            failed => Err(format!("a chain of services: {failed} check-ins failed")),
        }
    };
    let mut polling_mrps = None;
    for (name, threads) in THREADS {
        let setup = format!("chain, {name}");
        let basis = FigureBasis::SimulatedPredicted;
        let closed = |calls| CallLoad::Closed { calls };
        let rate = run(closed(FRONT_END_CALLS.into()), threads)?;
        figures.add((&setup, "rate of check-ins"), rate.mrps(), "M/s", basis, "");
        add_latency(figures, &setup, "one check-in", &run(closed(1), threads)?);
        let carried_mrps: f64 = *polling_mrps.get_or_insert(rate.mrps());
        let load = CallLoad::Open {
            mean_ns: 1e3 / (carried_mrps * CHECK_IN_LOAD),
        };
        add_latency(figures, &setup, "half that load", &run(load, threads)?);
    }
    Ok(())
}

/// Operations of the store that are measured.
const STORE_OPERATIONS: usize = 200_000;

/// Parts of a core's highest rate of operations, in percent, at which latencies are taken.
const STORE_LOADS: [u32; 3] = [10, 50, 90];

/// A key-value service as memcached's: its store answers every call, what an operation takes is measured here, and the rest is simulated.
fn store(figures: &mut NicFigures, scope: BenchScope) -> Result<(), String> {
    for keys in StoreKeys::ALL {
        let times = measure_store(keys, STORE_OPERATIONS);
        let setup = format!("store, {}", keys.name());
        for (what, ns) in [("a read", times.read_ns), ("a write", times.write_ns)] {
            figures.add((&setup, what), ns, "ns", FigureBasis::Measured, "");
        }
        for (name, threads) in THREADS {
            let time = HandlerTime::Store(keys, times);
            let handlers = HandlerModel { threads, time };
            let content = CallContent::Store(keys);
            let with = |config: PairConfig| PairConfig {
                handlers,
                content,
                ..config
            };
            let basis = FigureBasis::SimulatedPredicted;
            let rate = measure(with(saturated(HostInterface::coherent(4))), scope)?;
            let what = format!("rate, {name}");
            figures.add((&setup, &what), rate.mrps(), "M/s", basis, "coherent b4");
            for percent in scope.of(&STORE_LOADS) {
                let load = CallLoad::Open {
                    mean_ns: 1e5 / (rate.mrps() * f64::from(percent)),
                };
                let latency = measure(with(PairConfig::new(HostInterface::coherent(4), load)), scope)?;
                add_latency(
                    figures,
                    &setup,
                    &format!("{name}, {percent} % of its rate"),
                    &latency,
                );
            }
        }
    }
    Ok(())
}

/// The NIC with hosts that cost nothing.
fn rtl(figures: &mut NicFigures, scope: BenchScope) -> Result<(), String> {
    for flows in scope.of(&[1_u8, 2, 4, 8]) {
        let interface = HostInterface::ideal(FetchMode::Polled);
        let config = PairConfig {
            flows,
            wire_cycles: 1,
            ..PairConfig::new(interface.clone(), saturating(&interface, flows))
        };
        let found = measure(config, scope)?;
        let what = format!("cycles/RPC, {flows} flows");
        figures.add(
            ("ideal host", &what),
            found.cycles_per_call(),
            "cycles",
            FigureBasis::SimulatedCycles,
            "",
        );
    }
    let [out, inwards] = added_cycles().map_err(|error| error.to_string())?;
    for (what, cycles) in [("added, out", out), ("added, in", inwards)] {
        figures.add(
            ("ideal host", what),
            cycles as f64,
            "cycles",
            FigureBasis::SimulatedCycles,
            "unloaded",
        );
    }
    Ok(())
}

/// Rounds in which the simulation's own speed is measured.
const SPEED_ROUNDS: usize = 3;

/// How fast the simulation itself is: both NICs and their hosts in lock-step, on one core of this machine.
fn simulation(figures: &mut NicFigures, scope: BenchScope) -> Result<(), String> {
    let mut runs = Vec::new();
    for _ in 0..SPEED_ROUNDS {
        let found = measure(saturated(HostInterface::coherent(4)), scope)?;
        runs.push(found.calls as f64 / found.cpu_seconds);
    }
    figures.add_runs(
        ("simulation", "rate of lock-step"),
        runs,
        "RPC/CPU s",
        FigureBasis::Measured,
        "two NICs and their hosts in one thread",
    );
    Ok(())
}
