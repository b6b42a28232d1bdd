//! `bench upgrade`: what changing a node does to the calls on it (mRPC, figures 7a and 7b), and replacing it whole.
//!
//! Each experiment has two nodes, a server, an app that makes load and a second one whose calls nobody touches. What is
//! done to the first app's datapaths shows in the longest time without a completion around each change, beside the
//! same of as many moments at which nothing was done.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use provost_shm::now_ns;

use provost_figures::{Bound, Cell, Cells, Median, Pairs, median};

use crate::arguments::Upgrade;
use crate::failure::{Doing, Failure};
use crate::machine::{Spent, control_plane};
use crate::operator::Operator;
use crate::plan::{Measure, Setup};
use crate::plot::TimePlot;
use crate::regime::{self, CoreRegime};
use crate::report::Load;
use crate::stack::{Stack, TimelineClient};
use crate::timeline::{Timeline, Window, quantiles};

/// Between two replacements of a daemon.
const BETWEEN_DAEMONS: Duration = Duration::from_millis(500);
/// Load before the first change, after the last, and between the steps of figure 7b.
const CALM: Duration = Duration::from_millis(1000);
/// Slices of a plot.
const SLICE_NS: u64 = 20_000_000;
/// Engine upgrades and daemon replacements of a run.
const ENGINES: Counts = Counts {
    quick: 100,
    full: 1000,
};
const DAEMONS: Counts = Counts { quick: 6, full: 30 };
/// Calls in flight of the app that makes load, and of the second one.
const CALLS_IN_FLIGHT: usize = 16;
const SECOND_CALLS_IN_FLIGHT: usize = 1;
/// Longest part of a run's time that changes may take: past it the run was planned too short.
const CHANGES_SECONDS_MAX: f64 = 600.0;

struct Counts {
    quick: usize,
    full: usize,
}

impl Counts {
    fn of(&self, options: &Upgrade) -> usize {
        let usual = if options.run.quick { self.quick } else { self.full };
        options.changes.unwrap_or(usual)
    }
}

/// Runs the experiments in each regime, prints tables, and writes the files that were asked for.
pub(crate) fn run(options: &Upgrade) -> Result<(), Failure> {
    regime::measure_each(&options.run, |regime, cores| {
        println!("cores {cores:?}, {}", regime.description());
        run_all(options, regime)
    })
}

fn run_all(options: &Upgrade, regime: CoreRegime) -> Result<Cells, Failure> {
    let mut cells = Vec::new();
    for experiment in Experiment::ALL {
        let name = experiment.name();
        if !options.setups.has(name) {
            continue;
        }
        eprintln!("{name} …");
        let outcome = experiment.run(options)?;
        outcome.plot(&format!("{name}-{}", regime.name()), options.plots.as_deref())?;
        cells.extend(outcome.cells(name));
    }
    print(&cells);
    for target in TARGETS {
        target.print(&cells);
    }
    Ok(Cells::of(cells))
}

/// What a figure is held against.
struct Target {
    experiment: &'static str,
    what: &'static str,
    figure: fn(&Median) -> Option<f64>,
    most: Most,
}

#[derive(Clone, Copy)]
enum Most {
    /// Than the same figure when nothing was changed.
    UsMore(f64),
    /// Of the same figure when nothing was changed.
    Ratio(f64),
}

const P99: fn(&Median) -> Option<f64> = |median| median.p99_us;
const P999: fn(&Median) -> Option<f64> = |median| median.p999_us;

#[rustfmt::skip]
const TARGETS: [Target; 6] = [
    Target { experiment: "transport upgrade", what: "gap", figure: P999, most: Most::UsMore(500.0) },
    Target { experiment: "policy upgrade", what: "gap", figure: P999, most: Most::UsMore(500.0) },
    Target { experiment: "daemon upgrade", what: "gap", figure: P999, most: Most::UsMore(10_000.0) },
    Target { experiment: "transport upgrade", what: "second", figure: P99, most: Most::Ratio(1.2) },
    Target { experiment: "policy upgrade", what: "second", figure: P99, most: Most::Ratio(1.2) },
    Target { experiment: "daemon upgrade", what: "second", figure: P99, most: Most::Ratio(1.2) },
];

impl Target {
    /// Prints whether it was met, if this run has its figures.
    fn print(&self, cells: &[Cell]) {
        let find = |when: &str| {
            let what = format!("{}, {when}", self.what);
            let cell = cells
                .iter()
                .find(|cell| cell.setup == self.experiment && cell.what == what)?;
            (self.figure)(&cell.median)
        };
        let Some((changes, calm)) = find("changes").zip(find("calm")) else {
            return;
        };
        let (value, bound, unit) = match self.most {
            Most::UsMore(us) => (changes - calm, us, "us more than the calm one's"),
            Most::Ratio(ratio) => (changes / calm, ratio, "times the calm one's"),
        };
        let quantile = if matches!(self.most, Most::Ratio(_)) {
            "p99"
        } else {
            "p99.9"
        };
        // Quantiles of all changes together: there is nothing that lies apart.
        let verdict = Bound::ValueAtMost(bound).verdict(value, &Pairs::new(Vec::new()));
        let name = format!("{}: {} {quantile}", self.experiment, self.what);
        println!("{name:34} {value:>10.2} {unit}, at most {bound}  {verdict}");
    }
}

#[derive(Clone, Copy)]
enum Experiment {
    /// The TCP transport, to another version and back, on both nodes (figure 7a).
    Transport,
    /// A rate limit attached, set to infinite, removed (figure 7b).
    Limit,
    /// A rate limit, started anew with its state.
    Policy,
    Daemon,
}

impl Experiment {
    const ALL: [Experiment; 4] = [
        Experiment::Transport,
        Experiment::Limit,
        Experiment::Policy,
        Experiment::Daemon,
    ];

    fn name(self) -> &'static str {
        match self {
            Experiment::Transport => "transport upgrade",
            Experiment::Limit => "limit attached",
            Experiment::Policy => "policy upgrade",
            Experiment::Daemon => "daemon upgrade",
        }
    }

    fn run(self, options: &Upgrade) -> Result<Outcome, Failure> {
        let folder = tempfile::tempdir().doing(|| "make a temporary folder".into())?;
        let stack = Stack::start(Setup::ProvostBare, folder.path())?;
        let mut bench = Bench::start(&stack, folder.path(), self.seconds(options), options.every)?;
        match self {
            Experiment::Transport => bench.upgrade_engines("transport-tcp", [2, 1], ENGINES.of(options))?,
            Experiment::Limit => bench.limit()?,
            Experiment::Policy => {
                bench.attach_unlimited()?;
                bench.upgrade_engines("rate-limit", [2, 2], ENGINES.of(options))?;
            }
            Experiment::Daemon => bench.replace_daemons(DAEMONS.of(options))?,
        }
        bench.finish()
    }

    /// How long clients make load: what the changes are expected to take, generously.
    fn seconds(self, options: &Upgrade) -> f64 {
        let changes = match self {
            Experiment::Transport | Experiment::Policy => {
                ENGINES.of(options) as f64 * (options.every as f64 / 1e3 + 0.02)
            }
            Experiment::Daemon => DAEMONS.of(options) as f64 * (BETWEEN_DAEMONS.as_secs_f64() + 0.5),
            Experiment::Limit => 4.0 * CALM.as_secs_f64(),
        };
        (changes + 4.0 * CALM.as_secs_f64()).min(CHANGES_SECONDS_MAX)
    }
}

/// A change, and what it is called in a plot.
struct Done {
    what: &'static str,
    window: Window,
}

struct Bench {
    between: Duration,
    egress: Operator,
    ingress: Operator,
    first: TimelineClient,
    second: TimelineClient,
    /// Connections of the first app, at either node.
    connections: [u64; 2],
    began_ns: u64,
    done: Vec<Done>,
    pauses_us: Vec<f64>,
    /// Processes of the nodes.
    nodes: Vec<u32>,
    /// What both nodes' control planes, and this process, spent for each change.
    spent: Option<[Spent; 2]>,
}

/// Starts a client that makes load for so long.
fn start_client(
    stack: &Stack,
    path: PathBuf,
    seconds: f64,
    calls_in_flight: usize,
) -> Result<TimelineClient, Failure> {
    let Measure {
        size_bytes,
        connections,
        traffic,
        ..
    } = Measure::latency();
    let load = Load {
        size_bytes,
        calls_in_flight,
        interval_us: 0,
        connections,
        warmup_seconds: 0.0,
        seconds,
        watched: Vec::new(),
        cores: Vec::new(),
        traffic,
    };
    stack.start_timeline(load, path)
}

impl Bench {
    fn start(stack: &Stack, folder: &Path, seconds: f64, every_ms: u64) -> Result<Bench, Failure> {
        let mut ingress = Operator::connect(&stack.admin_socket("ingress"))?;
        let mut egress = Operator::connect(&stack.admin_socket("egress"))?;
        let second = start_client(stack, folder.join("second"), seconds, SECOND_CALLS_IN_FLIGHT)?;
        let before = [connections(&mut egress)?, connections(&mut ingress)?];
        let first = start_client(stack, folder.join("first"), seconds, CALLS_IN_FLIGHT)?;
        let after = [connections(&mut egress)?, connections(&mut ingress)?];
        let new = |at: usize| {
            let new = after[at]
                .iter()
                .find(|connection| !before[at].contains(connection));
            let missing = || Failure::role("operator", "does not see the app's connection");
            new.copied().ok_or_else(missing)
        };
        let connections = [new(0)?, new(1)?];
        std::thread::sleep(CALM);
        Ok(Bench {
            between: Duration::from_millis(every_ms),
            egress,
            ingress,
            first,
            second,
            connections,
            began_ns: now_ns(),
            done: Vec::new(),
            pauses_us: Vec::new(),
            nodes: stack.nodes(),
            spent: None,
        })
    }

    /// What the control planes of all nodes have spent, and what this process has.
    fn spent(&self) -> [Spent; 2] {
        let nodes = self.nodes.iter().map(|node| control_plane(*node));
        let sum = |all: Spent, one: Spent| Spent {
            cpu_us: all.cpu_us + one.cpu_us,
            switches: all.switches + one.switches,
        };
        [
            nodes.fold(Spent::default(), sum),
            control_plane(std::process::id()),
        ]
    }

    /// To and fro on both nodes, the receiver before the sender.
    fn upgrade_engines(&mut self, kind: &str, versions: [u32; 2], count: usize) -> Result<(), Failure> {
        let before = self.spent();
        for number in 0..count {
            let version = versions[number / 2 % 2];
            let [egress, ingress] = self.connections;
            let window = match number % 2 {
                0 => self.ingress.upgrade(kind, version, ingress)?,
                _ => self.egress.upgrade(kind, version, egress)?,
            };
            self.note("", window);
            std::thread::sleep(self.between);
        }
        let now = self.spent();
        self.spent = Some([0, 1].map(|at| now[at].since(before[at], count)));
        Ok(())
    }

    fn attach_unlimited(&mut self) -> Result<(), Failure> {
        const UNLIMITED: &str = "requests_per_second = 1000000000\nburst = 1000000000\n";
        self.ingress.attach("limit", "rate-limit", UNLIMITED)?;
        self.egress.attach("limit", "rate-limit", UNLIMITED)?;
        self.began_ns = now_ns();
        Ok(())
    }

    fn limit(&mut self) -> Result<(), Failure> {
        const LIMIT: &str = "requests_per_second = 10000\nburst = 100\non_limit = \"queue\"\n";
        const INFINITE: &str = "requests_per_second = \"unlimited\"\non_limit = \"queue\"\n";
        let window = self.egress.attach("limit", "rate-limit", LIMIT)?;
        self.note("limit 10,000/s", window);
        std::thread::sleep(CALM);
        let window = self.egress.set("limit", INFINITE)?;
        self.note("infinite", window);
        std::thread::sleep(CALM);
        let window = self.egress.detach("limit")?;
        self.note("removed", window);
        std::thread::sleep(CALM);
        Ok(())
    }

    fn replace_daemons(&mut self, count: usize) -> Result<(), Failure> {
        for number in 0..count {
            let (window, pause_us) = match number % 2 {
                0 => self.ingress.upgrade_daemon()?,
                _ => self.egress.upgrade_daemon()?,
            };
            self.pauses_us.push(pause_us);
            self.note("", window);
            std::thread::sleep(BETWEEN_DAEMONS);
        }
        Ok(())
    }

    fn note(&mut self, what: &'static str, window: Window) {
        self.done.push(Done { what, window });
    }

    fn finish(self) -> Result<Outcome, Failure> {
        let ended = Window {
            from_ns: self.began_ns,
            to_ns: now_ns(),
        };
        let waited = Instant::now();
        let (first, second) = (self.first.finish()?, self.second.finish()?);
        eprintln!(
            "  {} changes; then {} s of load",
            self.done.len(),
            waited.elapsed().as_secs()
        );
        Ok(Outcome {
            first,
            second,
            changes: ended,
            done: self.done,
            pauses_us: self.pauses_us,
            spent: self.spent,
        })
    }
}

fn connections(operator: &mut Operator) -> Result<Vec<u64>, Failure> {
    let datapaths = operator.datapaths()?;
    Ok(datapaths.iter().map(|datapath| datapath.connection).collect())
}

struct Outcome {
    first: Timeline,
    second: Timeline,
    /// From the first change to after the last one.
    changes: Window,
    done: Vec<Done>,
    pauses_us: Vec<f64>,
    spent: Option<[Spent; 2]>,
}

impl Outcome {
    fn cells(&self, setup: &'static str) -> Vec<Cell> {
        let changes: Vec<Window> = self.done.iter().map(|done| done.window.around()).collect();
        let calm = self.calm();
        let errors = |timeline: &Timeline, median| Median {
            errors: timeline.outline.errors,
            ..median
        };
        let gaps = |windows: &[Window]| errors(&self.first, quantiles(self.first.gaps_us(windows)));
        let calls = |timeline: &Timeline, windows: &[Window]| {
            let rates = windows.iter().map(|window| timeline.rate(*window)).collect();
            let median = Median {
                rps: median(rates),
                ..quantiles(timeline.latencies_us(windows))
            };
            errors(timeline, median)
        };
        let mut cells = vec![
            ("gap, changes", gaps(&changes)),
            ("gap, calm", gaps(&calm)),
            ("calls, changes", calls(&self.first, &[self.changes])),
            ("calls, calm", calls(&self.first, &calm)),
            ("second, changes", calls(&self.second, &[self.changes])),
            ("second, calm", calls(&self.second, &calm)),
        ];
        if !self.pauses_us.is_empty() {
            cells.push(("pause, as told", quantiles(self.pauses_us.clone())));
        }
        for (what, spent) in ["a change, node", "a change, asker"]
            .iter()
            .zip(self.spent.iter().flatten())
        {
            let spent = Median {
                mean_us: Some(spent.cpu_us),
                switches: Some(spent.switches),
                ..Median::default()
            };
            cells.push((what, spent));
        }
        let cell = |(what, median): (&str, Median)| Cell {
            setup: setup.into(),
            what: what.into(),
            size: 64,
            conns: 1,
            inflight: CALLS_IN_FLIGHT,
            median,
            runs: Vec::new(),
        };
        cells.into_iter().map(cell).collect()
    }

    /// Windows without a change, of the changes' own lengths, each half way between two changes.
    fn calm(&self) -> Vec<Window> {
        let between = |pair: &[Done]| {
            let (before, after) = (pair[0].window.around(), pair[1].window.around());
            let length_ns = after.to_ns - after.from_ns;
            let room_ns = after.from_ns.checked_sub(before.to_ns)?.checked_sub(length_ns)?;
            let from_ns = before.to_ns + room_ns / 2;
            Some(Window {
                from_ns,
                to_ns: from_ns + length_ns,
            })
        };
        self.done.windows(2).filter_map(between).collect()
    }

    fn plot(&self, name: &str, folder: Option<&Path>) -> Result<(), Failure> {
        let Some(folder) = folder else { return Ok(()) };
        std::fs::create_dir_all(folder).doing(|| format!("make {}", folder.display()))?;
        let began_ns = self.first.outline.began_ns;
        let mark = |done: &Done| {
            let seconds = done.window.from_ns.saturating_sub(began_ns) as f64 / 1e9;
            (seconds, done.what)
        };
        let plot = TimePlot {
            title: name,
            unit: "calls/s",
            lines: vec![
                ("the app", self.first.rates(SLICE_NS)),
                ("a second app", self.second.rates(SLICE_NS)),
            ],
            // Hundreds of marks would hide the line.
            marks: self
                .done
                .iter()
                .filter(|_| self.done.len() <= 64)
                .map(mark)
                .collect(),
        };
        plot.write(&folder.join(format!("{}.svg", name.replace(' ', "-"))))
    }
}

fn print(cells: &[Cell]) {
    println!(
        "{:18} {:16} {:>10} {:>10} {:>10} {:>11} {:>9} {:>7} {:>8}",
        "experiment", "what", "p50 us", "p99 us", "p99.9 us", "mean us", "calls/s", "failed", "switches"
    );
    let figure = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.1}"));
    for cell in cells {
        let Median {
            p50_us,
            p99_us,
            p999_us,
            mean_us,
            rps,
            errors,
            switches,
            ..
        } = &cell.median;
        println!(
            "{:18} {:16} {:>10} {:>10} {:>10} {:>11} {:>9} {:>7} {:>8}",
            cell.setup,
            cell.what,
            figure(*p50_us),
            figure(*p99_us),
            figure(*p999_us),
            figure(*mean_us),
            rps.map_or(String::new(), |rps| format!("{rps:.0}")),
            errors,
            figure(*switches)
        );
    }
    println!(
        "\ngap: longest time without a completion around each change, or half way between two; calls and second: latency of\n\
         the app's and of a second app's calls, all of them, or half way between; pause: how long the daemon says that no\n\
         call moved; a change: processor time and context switches of the node's control plane, and of who asks, for each.\n"
    );
}
