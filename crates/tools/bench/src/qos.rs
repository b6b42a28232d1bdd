//! `bench qos`: an app with small calls beside one with large ones on the same runtimes, with and without the policy
//! that lets small ones go first (mRPC, table 4).
//!
//! The policy is attached to both nodes and taken away again while both apps call, in short slices that alternate, so
//! that what a noisy minute does, it does to both. What is compared are the two slices of a pair.

use std::path::{Path, PathBuf};
use std::time::Duration;

use provost_shm::now_ns;

use crate::arguments::Call;
use crate::bench;
use crate::failure::{Doing, Failure};
use crate::link::Link;
use crate::machine;
use crate::operator::Operator;
use crate::process::Process;
use crate::report::{Load, Report, Traffic};
use crate::stack::Stack;
use crate::summary::{Cell, Cells, Median, median};
use crate::timeline::{Outline, Timeline, Window, quantiles};

/// Pairs of slices.
const PAIRS: usize = 12;
const PAIRS_QUICK: usize = 5;
const SLICE_SECONDS: f64 = 0.8;
/// What is left out after each change.
const SETTLE: Duration = Duration::from_millis(100);
/// Small calls alone, before the large ones begin, and what the large ones take to get going.
const ALONE: Duration = Duration::from_millis(1500);
const WARMUP: Duration = Duration::from_millis(700);

const SMALL_BYTES: usize = 32;
const LARGE_BYTES: usize = 64 << 10;
const LARGE_IN_FLIGHT: usize = 32;
/// From one small call to the next: without it, calls that are answered sooner would be more calls, and take more of the
/// cores.
const SMALL_INTERVAL_US: u64 = 1000;

const POLICY: &str = "small-first";

/// What is scarce, and which way the large messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Both nodes and all apps on few cores, over the loopback interface.
    Cores,
    /// A link between two hosts; requests are large.
    Link,
    /// The same; answers are large.
    LinkAnswers,
}

impl Place {
    const ALL: [Place; 3] = [Place::Cores, Place::Link, Place::LinkAnswers];

    /// Names of its setups: small calls alone, with large ones beside them, and the same under the policy.
    fn names(self) -> [&'static str; 3] {
        match self {
            Place::Cores => ["cores: alone", "cores: no qos", "cores: qos"],
            Place::Link => ["link: alone", "link: no qos", "link: qos"],
            Place::LinkAnswers => ["answers: alone", "answers: no qos", "answers: qos"],
        }
    }

    fn link(self) -> Result<Option<Link>, Failure> {
        match self {
            Place::Cores => Ok(None),
            Place::Link | Place::LinkAnswers => Link::start().map(Some),
        }
    }

    fn bulk(self) -> Traffic {
        match self {
            Place::Cores | Place::Link => Traffic::Bulk,
            Place::LinkAnswers => Traffic::BulkAnswers,
        }
    }
}

/// Runs the bench, prints a table, and writes the file that was asked for.
pub(crate) fn run(call: &Call) -> Result<(), Failure> {
    machine::pin(&call.cores)?;
    let mut cells = Vec::new();
    let mut pairs = Vec::new();
    for place in Place::ALL {
        let [_, name, _] = place.names();
        if !call.only.is_empty() && !call.only.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        machine::wait_quiet(&call.cores, call.quiet_limit());
        match measure(call, place) {
            Ok(outcome) => {
                cells.extend(outcome.cells(place));
                pairs.push((place, outcome.ratios()));
            }
            Err(Failure::Unavailable(why)) => eprintln!("{name}: skipped: {why}"),
            Err(failure) => return Err(failure),
        }
    }
    print(&cells, &pairs);
    match &call.json {
        Some(path) => bench::write(path, &Cells { cells }),
        None => Ok(()),
    }
}

struct Client {
    process: Process,
    path: PathBuf,
}

impl Client {
    fn start(stack: &Stack, path: PathBuf, load: Load) -> Result<Client, Failure> {
        let process = stack.start_timeline(load, path.clone())?;
        Ok(Client { process, path })
    }

    fn finish(self) -> Result<Timeline, Failure> {
        let said = self.process.finish()?;
        let last = said.lines().last().unwrap_or_default();
        let outline: Outline = serde_json::from_str(last)
            .map_err(|error| Failure::role("client", format!("said '{last}': {error}")))?;
        Timeline::read(outline, &self.path)
    }
}

fn measure(call: &Call, place: Place) -> Result<Outcome, Failure> {
    let folder = tempfile::tempdir().doing(|| "make a temporary folder".into())?;
    let stack = Stack::start_beside_bulk(place.link()?, folder.path())?;
    let pairs = call
        .rounds
        .unwrap_or(if call.quick { PAIRS_QUICK } else { PAIRS });
    let slice = Duration::from_secs_f64(call.seconds.unwrap_or(SLICE_SECONDS));
    let mut nodes = [
        Operator::connect(&stack.admin_socket("egress"))?,
        Operator::connect(&stack.admin_socket("ingress"))?,
    ];
    let clients = Clients::start(&stack, folder.path(), place, (slice + SETTLE) * 2 * pairs as u32)?;
    let mut slices = Slices::default();
    for pair in 0..pairs {
        // Which one is first alternates too, for what drifts.
        for with in [pair % 2 == 0, pair % 2 == 1] {
            if with {
                for node in &mut nodes {
                    node.attach(POLICY, "qos", "")?;
                }
            }
            std::thread::sleep(SETTLE);
            let from_ns = now_ns();
            std::thread::sleep(slice);
            let window = Window {
                from_ns,
                to_ns: now_ns(),
            };
            match with {
                true => slices.with.push(window),
                false => slices.without.push(window),
            }
            if with {
                for node in &mut nodes {
                    node.detach(POLICY)?;
                }
            }
        }
    }
    clients.finish(slices)
}

/// Both apps.
struct Clients {
    small: Client,
    large: Client,
    alone: Window,
}

impl Clients {
    /// Starts them for this long and what comes before; the large calls are under way when it returns.
    fn start(stack: &Stack, folder: &Path, place: Place, time: Duration) -> Result<Clients, Failure> {
        // Changes take a little as well.
        let time = time + time / 4;
        let load = |traffic, size_bytes, calls_in_flight, interval_us, time: Duration| Load {
            size_bytes,
            calls_in_flight,
            interval_us,
            connections: 1,
            warmup_seconds: 0.0,
            seconds: time.as_secs_f64(),
            watched: Vec::new(),
            cores: Vec::new(),
            traffic,
        };
        let small = load(
            Traffic::Plain,
            SMALL_BYTES,
            1,
            SMALL_INTERVAL_US,
            time + ALONE + WARMUP,
        );
        let small = Client::start(stack, folder.join("small"), small)?;
        std::thread::sleep(SETTLE);
        let from_ns = now_ns();
        std::thread::sleep(ALONE - SETTLE);
        let alone = Window {
            from_ns,
            to_ns: now_ns(),
        };
        let large = load(place.bulk(), LARGE_BYTES, LARGE_IN_FLIGHT, 0, time + WARMUP);
        let large = Client::start(stack, folder.join("large"), large)?;
        std::thread::sleep(WARMUP);
        Ok(Clients { small, large, alone })
    }

    fn finish(self, slices: Slices) -> Result<Outcome, Failure> {
        Ok(Outcome {
            small: self.small.finish()?,
            large: self.large.finish()?,
            alone: self.alone,
            slices,
        })
    }
}

/// Slices with and without the policy; those of a pair have the same place.
#[derive(Default)]
struct Slices {
    with: Vec<Window>,
    without: Vec<Window>,
}

struct Outcome {
    small: Timeline,
    large: Timeline,
    alone: Window,
    slices: Slices,
}

/// What the policy does, pair by pair.
struct Ratios {
    p50: Vec<f64>,
    p99: Vec<f64>,
    bandwidth: Vec<f64>,
}

impl Outcome {
    fn cells(&self, place: Place) -> Vec<Cell> {
        let [alone, without, with] = place.names();
        let ways = [(without, &self.slices.without[..]), (with, &self.slices.with[..])];
        let mut cells = vec![cell(alone, "small", &self.small, &[self.alone])];
        for (name, windows) in ways {
            cells.push(cell(name, "small", &self.small, windows));
            cells.push(cell(name, "gp 64K", &self.large, windows));
        }
        cells
    }

    fn ratios(&self) -> Ratios {
        let small = |window: &Window| quantiles(self.small.latencies_us(&[*window]));
        let over = |figure: &dyn Fn(&Window) -> Option<f64>| {
            let pairs = self.slices.without.iter().zip(&self.slices.with);
            pairs
                .filter_map(|(without, with)| Some(figure(without)? / figure(with)?))
                .collect()
        };
        Ratios {
            p50: over(&|window| small(window).p50_us),
            p99: over(&|window| small(window).p99_us),
            // With to without.
            bandwidth: over(&|window| Some(1.0 / self.large.rate(*window))),
        }
    }
}

/// Latencies over all slices together; rates are medians over slices.
fn cell(setup: &'static str, what: &str, timeline: &Timeline, windows: &[Window]) -> Cell {
    let (size, inflight) = match what {
        "small" => (SMALL_BYTES, 1),
        _ => (LARGE_BYTES, LARGE_IN_FLIGHT),
    };
    let run = |window: &Window| {
        let latencies_us = timeline.latencies_us(&[*window]);
        let (count, rps) = (latencies_us.len() as u64, timeline.rate(*window));
        let Median { p50_us, p99_us, .. } = quantiles(latencies_us);
        Report {
            count,
            rps,
            gbps: rps * size as f64 * 8.0 / 1e9,
            p50_us: p50_us.unwrap_or(f64::NAN),
            p99_us: p99_us.unwrap_or(f64::NAN),
            ..Report::default()
        }
    };
    let runs: Vec<Report> = windows.iter().map(run).collect();
    let over = |figure: fn(&Report) -> f64| median(runs.iter().map(figure).collect());
    let median = Median {
        rps: over(|run| run.rps),
        gbps: over(|run| run.gbps),
        errors: timeline.outline.errors,
        ..quantiles(timeline.latencies_us(windows))
    };
    Cell {
        setup,
        what: what.into(),
        size,
        conns: 1,
        inflight,
        median,
        runs,
    }
}

fn print(cells: &[Cell], pairs: &[(Place, Ratios)]) {
    println!("{}\n", machine::describe());
    println!(
        "{:16} {:8} {:>10} {:>10} {:>10} {:>9} {:>7} {:>7}",
        "setup", "what", "p50 us", "p99 us", "p99.9 us", "calls/s", "Gb/s", "failed"
    );
    let figure =
        |value: Option<f64>, digits: usize| value.map_or(String::new(), |value| format!("{value:.digits$}"));
    for cell in cells {
        let median = &cell.median;
        println!(
            "{:16} {:8} {:>10} {:>10} {:>10} {:>9} {:>7} {:>7}",
            cell.setup,
            cell.what,
            figure(median.p50_us, 1),
            figure(median.p99_us, 1),
            figure(median.p999_us, 1),
            figure(median.rps, 0),
            figure(median.gbps, 2),
            median.errors
        );
    }
    println!("\nOver pairs of slices, one of each with the policy: median (least to most)");
    for (place, ratios) in pairs {
        let [_, without, _] = place.names();
        let row = |what: &str, ratios: &[f64], bound: Option<f64>| {
            let Some(middle) = median(ratios.to_vec()) else {
                return;
            };
            let (least, most) = ratios
                .iter()
                .fold((f64::INFINITY, 0.0_f64), |(least, most), ratio| {
                    (least.min(*ratio), most.max(*ratio))
                });
            let verdict = match bound {
                None => String::new(),
                Some(bound) if middle >= bound => format!("at least {bound}  met"),
                Some(bound) => format!("at least {bound}  MISSED"),
            };
            println!("{without:16} {what:28} {middle:>7.3} ({least:.3} to {most:.3})  {verdict}");
        };
        row("small p50, without to with", &ratios.p50, None);
        row("small p99, without to with", &ratios.p99, Some(P99_RATIO_MIN));
        row(
            "bandwidth, with to without",
            &ratios.bandwidth,
            Some(BANDWIDTH_RATIO_MIN),
        );
    }
}

/// mRPC's table 4 has 2.5, at less than a hundredth of the bandwidth.
const P99_RATIO_MIN: f64 = 2.5;
const BANDWIDTH_RATIO_MIN: f64 = 0.99;
