//! `bench qos`: an app with small calls beside one with large ones on the same runtimes, with and without the policy
//! that lets small ones go first (mRPC, table 4).
//!
//! The policy is attached to both nodes and taken away again while both apps call, in short slices that alternate, so
//! that what a noisy minute does, it does to both. What is compared are the two slices of a pair.

use std::path::Path;
use std::time::Duration;

use provost_figures::{Bound, Cell, Cells, Median, Pairs, TargetOutcome as Comparison, median};

use crate::arguments::Call;
use crate::failure::{Doing, Failure};
use crate::link::NetworkLink;
use crate::machine;
use crate::operator::Operator;
use crate::regime;
use crate::report::{Load, Report, Traffic};
use crate::slices::{SETTLE, Slice, Turns, Watch, Ways, report};
use crate::stack::{Stack, TimelineClient};
use crate::timeline::{Timeline, Window, quantiles};

const PAIRS: usize = 12;
const PAIRS_QUICK: usize = 5;
const SLICE_SECONDS: f64 = 0.8;
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
    NetworkLink,
    /// The same; answers are large.
    LinkAnswers,
}

impl Place {
    const ALL: [Place; 3] = [Place::Cores, Place::NetworkLink, Place::LinkAnswers];

    /// Names of its setups: small calls alone, with large ones beside them, and the same under the policy.
    fn names(self) -> [&'static str; 3] {
        match self {
            Place::Cores => ["cores: alone", "cores: no qos", "cores: qos"],
            Place::NetworkLink => ["link: alone", "link: no qos", "link: qos"],
            Place::LinkAnswers => ["answers: alone", "answers: no qos", "answers: qos"],
        }
    }

    fn link(self) -> Result<Option<NetworkLink>, Failure> {
        match self {
            Place::Cores => Ok(None),
            Place::NetworkLink | Place::LinkAnswers => NetworkLink::start().map(Some),
        }
    }

    /// At least how many times better the small calls' p99 is to be, and at which part of the large ones' bandwidth. For a link
    /// mRPC's table 4 has 2.5, at less than a hundredth of the bandwidth. On few cores small calls wait for those, too.
    fn least(self) -> SharedRatios {
        match self {
            Place::Cores => SharedRatios {
                p99: 2.0,
                bandwidth: 0.95,
            },
            Place::NetworkLink | Place::LinkAnswers => SharedRatios {
                p99: 2.5,
                bandwidth: 0.99,
            },
        }
    }

    fn bulk(self) -> Traffic {
        match self {
            Place::Cores | Place::NetworkLink => Traffic::Bulk,
            Place::LinkAnswers => Traffic::BulkAnswers,
        }
    }
}

/// What is aimed at.
#[derive(Clone, Copy)]
struct SharedRatios {
    p99: f64,
    bandwidth: f64,
}

/// Runs the bench in each regime, prints tables, and writes the file that was asked for.
pub(crate) fn run(call: &Call) -> Result<(), Failure> {
    regime::measure_each(&call.run, |regime, cores| {
        println!("cores {cores:?}, {}", regime.description());
        run_in(call, cores)
    })
}

fn run_in(call: &Call, cores: &[usize]) -> Result<Cells, Failure> {
    let mut cells = Vec::new();
    let mut pairs = Vec::new();
    for place in Place::ALL {
        let [_, name, _] = place.names();
        if !call.setups.has(name) {
            continue;
        }
        machine::wait_quiet(cores, call.quiet_limit());
        match measure(call, place) {
            Ok(outcome) => {
                cells.extend(outcome.cells(place));
                pairs.push((place, outcome.ratios(place)));
            }
            Err(Failure::Unavailable(why)) => eprintln!("{name}: skipped: {why}"),
            Err(failure) => return Err(failure),
        }
    }
    print(&cells, &pairs);
    Ok(Cells::of(cells))
}

fn measure(call: &Call, place: Place) -> Result<Outcome, Failure> {
    let folder = tempfile::tempdir().doing(|| "make a temporary folder".into())?;
    let stack = Stack::start_beside_bulk(place.link()?, folder.path())?;
    let usual = if call.run.quick { PAIRS_QUICK } else { PAIRS };
    let turns = Turns {
        count: call.rounds.unwrap_or(usual),
        slice: Duration::from_secs_f64(call.seconds.unwrap_or(SLICE_SECONDS)),
        settle: SETTLE,
    };
    let mut nodes = Nodes([
        Operator::connect(&stack.admin_socket("egress"))?,
        Operator::connect(&stack.admin_socket("ingress"))?,
    ]);
    let clients = Clients::start(&stack, folder.path(), place, turns.time(nodes.count()))?;
    let slices = turns.take(&mut nodes, &Watch::default())?;
    clients.finish(slices)
}

/// Both nodes, with the policy in every second slice.
struct Nodes([Operator; 2]);

const WITHOUT: usize = 0;
const WITH: usize = 1;

impl Ways for Nodes {
    fn count(&self) -> usize {
        2
    }

    fn enter(&mut self, way: usize) -> Result<(), Failure> {
        for node in self.0.iter_mut().filter(|_| way == WITH) {
            node.attach(POLICY, "qos", "")?;
        }
        Ok(())
    }

    fn leave(&mut self, way: usize) -> Result<(), Failure> {
        for node in self.0.iter_mut().filter(|_| way == WITH) {
            node.detach(POLICY)?;
        }
        Ok(())
    }
}

struct Clients {
    small: TimelineClient,
    large: TimelineClient,
    alone: Slice,
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
        let small = stack.start_timeline(small, folder.join("small"))?;
        std::thread::sleep(SETTLE);
        let alone = Watch::default().slice(ALONE - SETTLE);
        let large = load(place.bulk(), LARGE_BYTES, LARGE_IN_FLIGHT, 0, time + WARMUP);
        let large = stack.start_timeline(large, folder.join("large"))?;
        std::thread::sleep(WARMUP);
        Ok(Clients { small, large, alone })
    }

    fn finish(self, slices: Vec<Vec<Slice>>) -> Result<Outcome, Failure> {
        Ok(Outcome {
            small: self.small.finish()?,
            large: self.large.finish()?,
            alone: self.alone,
            slices,
        })
    }
}

struct Outcome {
    small: Timeline,
    large: Timeline,
    alone: Slice,
    slices: Vec<Vec<Slice>>,
}

/// What the policy does, pair by pair.
struct Ratios {
    p50: Pairs,
    p99: Pairs,
    bandwidth: Pairs,
}

impl Outcome {
    fn cells(&self, place: Place) -> Vec<Cell> {
        let [alone, without, with] = place.names();
        let ways = [
            (without, &self.slices[WITHOUT][..]),
            (with, &self.slices[WITH][..]),
        ];
        let mut cells = vec![cell(
            alone,
            "small",
            &self.small,
            std::slice::from_ref(&self.alone),
        )];
        for (name, slices) in ways {
            cells.push(cell(name, "small", &self.small, slices));
            cells.push(cell(name, "gp 64K", &self.large, slices));
        }
        cells
    }

    fn ratios(&self, place: Place) -> Ratios {
        let runs = |timeline, way: usize| -> Vec<Report> {
            let slices = self.slices[way].iter();
            slices.map(|slice| report(timeline, slice, LARGE_BYTES)).collect()
        };
        let [small, large] =
            [&self.small, &self.large].map(|timeline| [WITHOUT, WITH].map(|way| runs(timeline, way)));
        let bound = Bound::RatioAtLeast(place.least().p99);
        Ratios {
            p50: Pairs::of(&small[WITHOUT], &small[WITH], |run| run.p50_us, bound),
            p99: Pairs::of(&small[WITHOUT], &small[WITH], |run| run.p99_us, bound),
            bandwidth: Pairs::of(&large[WITH], &large[WITHOUT], |run| run.rps, bound),
        }
    }
}

/// Latencies over all slices together; rates are medians over slices.
fn cell(setup: &'static str, what: &str, timeline: &Timeline, slices: &[Slice]) -> Cell {
    let (size, inflight) = match what {
        "small" => (SMALL_BYTES, 1),
        _ => (LARGE_BYTES, LARGE_IN_FLIGHT),
    };
    let runs: Vec<Report> = slices.iter().map(|slice| report(timeline, slice, size)).collect();
    let windows: Vec<Window> = slices.iter().map(|slice| slice.window).collect();
    let over = |figure: fn(&Report) -> f64| median(runs.iter().map(figure).collect());
    let median = Median {
        rps: over(|run| run.rps),
        gbps: over(|run| run.gbps),
        errors: timeline.outline.errors,
        ..quantiles(timeline.latencies_us(&windows))
    };
    Cell {
        setup: setup.into(),
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
    println!("\nOver pairs of slices, one of each with the policy:");
    for (place, ratios) in pairs {
        let ([_, without, _], least) = (place.names(), place.least());
        let rows = [
            ("small p99, without to with", &ratios.p99, least.p99),
            ("bandwidth, with to without", &ratios.bandwidth, least.bandwidth),
        ];
        if let Some(middle) = ratios.p50.median() {
            let what = format!("{without}: small p50, without to with");
            println!("{what:50} {middle:>8.3}  {}", ratios.p50);
        }
        for (what, pairs, least) in rows {
            let bound = Bound::RatioAtLeast(least);
            if let Some(outcome) = Comparison::of_pairs(format!("{without}: {what}"), pairs, bound) {
                println!("{outcome}  {pairs}");
            }
        }
    }
}
