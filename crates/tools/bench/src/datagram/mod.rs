//! `bench datagram`: the datagram transport over wires between two processes, beside the bare wires; and on a simulated
//! network what only a broken or crowded one shows. Tables and figures are those of the eRPC paper (NSDI '19).
//!
//! Each process of a pair has a core of its own and polls. All experiments are run one after the other, and again in
//! the next round.

mod cable;
mod calls;
mod floor;
mod library;
mod part;
mod plan;
mod simulated;
pub(crate) mod targets;
#[allow(unsafe_code, reason = "a promise on behalf of this very program")]
mod trust;
mod wires;

use std::io::IsTerminal;
use std::path::Path;
use std::time::Instant;

pub(crate) use part::{Part, load, serve};

use provost_figures::{Cell, Cells, Median, median, table};

use crate::arguments::Datagram;
use crate::failure::{Doing, Failure};
use crate::machine::{self, LoadedCores};
use crate::plot::BarPlot;
use crate::process::Process;
use crate::regime::{self, CoreRegime};
use crate::report::{Load, Report};
use crate::roles::Role;

use cable::Cable;
use part::Pause;
use plan::{Carrier, Experiment, Neighbours};

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    Smoke,
    /// The ends of every scale.
    Quick,
    Full,
}

impl Depth {
    fn rounds(self) -> usize {
        match self {
            Depth::Smoke => 1,
            Depth::Quick | Depth::Full => 3,
        }
    }

    /// Length of a run, and of the load before it.
    fn seconds(self) -> (f64, f64) {
        match self {
            Depth::Smoke => (0.1, 0.02),
            Depth::Quick => (0.35, 0.1),
            Depth::Full => (1.0, 0.3),
        }
    }
}

/// Runs the bench in each regime, prints tables, and writes the files that were asked for.
pub(crate) fn run(options: &Datagram, depth: Depth) -> Result<(), Failure> {
    regime::measure_each(&options.run, |regime, cores| {
        let mut options = options.clone();
        options.run.cores = cores.to_vec();
        run_in(&options, depth, regime)
    })
}

fn run_in(options: &Datagram, depth: Depth, regime: CoreRegime) -> Result<Cells, Failure> {
    let began = Instant::now();
    let chosen = |setup: &str, what: &str| options.setups.has(&format!("{setup} {what}"));
    let mut experiments = plan::experiments(depth);
    experiments.retain(|experiment| chosen(experiment.setup, &experiment.what));
    let cable = lay_cable(&mut experiments);
    let mut runs = vec![Vec::new(); experiments.len()];
    let mut copies_us = Vec::new();
    let rounds = options.rounds.unwrap_or(depth.rounds());
    for round in 1..=rounds {
        for (number, (experiment, runs)) in experiments.iter().zip(&mut runs).enumerate() {
            let (number, all) = (number + 1, experiments.len());
            let (setup, what) = (experiment.setup, &experiment.what);
            progress(
                began,
                &format!("round {round} of {rounds}, {number} of {all}: {setup} {what}"),
            );
            runs.push(measure(options, depth, experiment, cable.as_ref())?);
            if experiment.what == COPIED {
                copies_us.push(copy_twice_us());
            }
        }
    }
    let mut cells: Vec<Cell> = experiments.iter().zip(runs).map(cell).collect();
    cells.extend(copies(copies_us));
    for experiment in simulated::experiments(depth) {
        if chosen(experiment.setup(), &experiment.what()) {
            progress(began, &format!("{} {}", experiment.setup(), experiment.what()));
            cells.push(experiment.run(depth));
        }
    }
    eprintln!();
    let cells = Cells::of(cells);
    let head = format!(
        "{}; cores {:?}, one for each process, {}; {rounds} rounds, {} s",
        machine::describe(),
        options.run.cores,
        regime.description(),
        began.elapsed().as_secs()
    );
    table::print(&cells, &head, &targets::outcomes(&cells));
    if let Some(folder) = &options.plots {
        plot(folder, &cells)?;
    }
    Ok(cells)
}

/// What the experiments over AF_XDP need; where that cannot be had, they are left out, and why is said.
fn lay_cable(experiments: &mut Vec<Experiment>) -> Option<Cable> {
    if !experiments
        .iter()
        .any(|experiment| experiment.carrier == Carrier::Xdp)
    {
        return None;
    }
    match Cable::lay() {
        Ok(cable) => Some(cable),
        Err(error) => {
            eprintln!("left out: AF_XDP, which takes root and Linux 5.11: {error}");
            experiments.retain(|experiment| experiment.carrier != Carrier::Xdp);
            None
        }
    }
}

/// Says what is being done; on a terminal, in the place of what was done before.
fn progress(began: Instant, what: &str) {
    let seconds = began.elapsed().as_secs();
    if std::io::stderr().is_terminal() {
        eprint!("\r{seconds:4} s  {what}\x1b[K");
    } else {
        eprintln!("{seconds:4} s  {what}");
    }
}

fn measure(
    options: &Datagram,
    depth: Depth,
    experiment: &Experiment,
    cable: Option<&Cable>,
) -> Result<Report, Failure> {
    let folder = tempfile::tempdir().doing(|| "make a temporary folder".into())?;
    let (first, last) = match options.run.cores[..] {
        [] => return Err(Failure::Unavailable("--cores names none".into())),
        [first, .., last] => (first, last),
        [only] => (only, only),
    };
    let [server_host, client_host] = match cable {
        Some(cable) if experiment.carrier == Carrier::Xdp => cable.hosts().map(Some),
        _ => [None, None],
    };
    let pause = if first == last { Pause::Yield } else { Pause::None };
    let part = Part {
        carrier: experiment.carrier,
        talk: experiment.talk,
        work: experiment.work,
        address: folder.path().join("wire").to_string_lossy().into_owned(),
        host: server_host,
        core: last,
        pause,
    };
    let _neighbours = match experiment.neighbours {
        Neighbours::None => None,
        Neighbours::Busy => Some(LoadedCores::busy(&options.run.cores)?),
    };
    let (server, address) = Process::start_ready("server", &Role::DatagramServer { part: part.clone() })?;
    let (seconds, warmup_seconds) = depth.seconds();
    let work = &experiment.work;
    let load = Load {
        size_bytes: work.request_bytes,
        calls_in_flight: work.batch * work.batches,
        connections: 1,
        warmup_seconds,
        seconds: options.seconds.unwrap_or(seconds),
        watched: vec![server.watched()],
        cores: options.run.cores.clone(),
        traffic: Default::default(),
        interval_us: 0,
    };
    let part = Part {
        address,
        host: client_host,
        core: first,
        ..part
    };
    let client = Process::start("client", &Role::DatagramClient { part, load })?;
    let text = client.finish()?;
    let report = serde_json::from_str(text.trim());
    report.map_err(|error| Failure::role("client", format!("said '{}': {error}", text.trim())))
}

fn cell((experiment, runs): (&Experiment, Vec<Report>)) -> Cell {
    let work = &experiment.work;
    Cell {
        setup: experiment.setup.into(),
        what: experiment.what.clone(),
        size: work.request_bytes,
        conns: work.sessions,
        inflight: work.batch * work.batches,
        median: Median::of(&runs, work.request_bytes),
        runs,
    }
}

/// The experiments beside which it is measured what copies cost, which varies with the time on machines that others use.
const COPIED: &str = "gp 8M";
const COPIED_BYTES: usize = 8 << 20;
const COPY_ROUNDS: usize = 20;

/// How long one core takes to copy as much twice.
fn copy_twice_us() -> f64 {
    let from = vec![7_u8; COPIED_BYTES];
    let mut to = vec![0_u8; COPIED_BYTES];
    let took = (0..COPY_ROUNDS).map(|_| {
        let began = Instant::now();
        for _ in 0..2 {
            to.copy_from_slice(std::hint::black_box(&from));
            std::hint::black_box(&mut to);
        }
        began.elapsed().as_secs_f64() * 1e6
    });
    median(took.collect()).unwrap_or(f64::NAN)
}

fn copies(took_us: Vec<f64>) -> Option<Cell> {
    let p50_us = median(took_us)?;
    let figures = Median {
        p50_us: Some(p50_us),
        gbps: Some(COPIED_BYTES as f64 * 8.0 / 1e3 / p50_us),
        quiet_runs: 1,
        ..Median::default()
    };
    Some(Cell {
        setup: "two copies".into(),
        what: COPIED.into(),
        size: COPIED_BYTES,
        conns: 1,
        inflight: 1,
        median: figures,
        runs: Vec::new(),
    })
}

/// A plot for each table or figure.
fn plot(folder: &Path, cells: &Cells) -> Result<(), Failure> {
    type Figure = fn(&Median) -> Option<f64>;
    const P50: Figure = |median| median.p50_us;
    const P99: Figure = |median| median.p99_us;
    const RPS: Figure = |median| median.rps;
    const GBPS: Figure = |median| median.gbps;
    let is_factor = |what: &str| plan::Without::ALL.iter().any(|without| without.name() == what);
    type Chosen<'c> = &'c dyn Fn(&Cell) -> bool;
    let plots: [(&str, &str, &str, Figure, Chosen<'_>); 9] = [
        (
            "latency",
            "p50 of 32-byte calls, one at a time",
            "us",
            P50,
            &|cell| cell.what == "lat",
        ),
        (
            "rate",
            "calls a second of a core that serves as many",
            "calls/s",
            RPS,
            &|cell| cell.what.starts_with("rate") || cell.what.starts_with("crowded"),
        ),
        (
            "factors",
            "calls a second, one optimization left out",
            "calls/s",
            RPS,
            &|cell| is_factor(&cell.what),
        ),
        (
            "workers",
            "p50 by who answers, one call at a time",
            "us",
            P50,
            &|cell| cell.what == "answered",
        ),
        (
            "sessions",
            "calls a second by sessions",
            "calls/s",
            RPS,
            &|cell| cell.what.starts_with("sessions"),
        ),
        (
            "bandwidth",
            "bandwidth by bytes of a request",
            "Gb/s",
            GBPS,
            &|cell| cell.what.starts_with("gp") && !cell.setup.starts_with("sim"),
        ),
        (
            "loss",
            "bandwidth of 8 MB requests by loss, simulated",
            "Gb/s",
            GBPS,
            &|cell| cell.what.starts_with("gp loss"),
        ),
        (
            "incast",
            "p99 of queueing by senders, simulated",
            "us",
            P99,
            &|cell| cell.what.starts_with("gp incast"),
        ),
        (
            "incast-carried",
            "what the victim's link carries by senders, simulated",
            "Gb/s",
            GBPS,
            &|cell| cell.what.starts_with("gp incast"),
        ),
    ];
    std::fs::create_dir_all(folder).doing(|| format!("make {}", folder.display()))?;
    for (file, title, unit, figure, is_chosen) in plots {
        let chosen = cells.cells.iter().filter(|cell| is_chosen(cell));
        let bars: Vec<(String, f64)> = chosen
            .filter_map(|cell| Some((format!("{} {}", cell.setup, cell.what), figure(&cell.median)?)))
            .collect();
        if bars.is_empty() {
            continue;
        }
        let bars = bars.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        BarPlot { title, unit, bars }.write(&folder.join(format!("datagram-{file}.svg")))?;
    }
    Ok(())
}
