//! `bench call` and `bench policy`: every setup in turn, round after round.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use provost_figures::{Cell, Cells, Median, TargetOutcome, table};

use crate::arguments::Call;
use crate::failure::{Doing, Failure};
use crate::grpc_targets;
use crate::idle;
use crate::in_turn::InTurn;
use crate::machine;
use crate::plan::{Measure, Scope, Setup, Suite};
use crate::plot::BarPlot;
use crate::regime::{self, CoreRegime};
use crate::report::{Load, Report};
use crate::stack::Stack;
use crate::targets;

/// Rounds when the command line says nothing.
const ROUNDS: usize = 3;
/// As above, of runs that are shorter and vary more.
const ROUNDS_QUICK: usize = 5;
/// Length of a run in seconds when the command line says nothing, and of the load before it.
const RUN_SECONDS: f64 = 1.5;
const RUN_SECONDS_QUICK: f64 = 0.8;
const WARMUP_SECONDS: f64 = 0.4;
const WARMUP_SECONDS_QUICK: f64 = 0.25;

/// Runs the bench in each regime, prints tables, and writes the file that was asked for.
///
/// # Errors
/// That of a setup that did not work, after all others were measured and written.
pub(crate) fn run(call: &Call, suite: Suite, scope: Scope) -> Result<(), Failure> {
    let mut verdict = Ok(());
    let (mut idle, mut one_core) = (Cells::default(), Cells::default());
    regime::measure_each(&call.run, |regime, cores| {
        let (cells, of_regime) = run_in(call, suite, scope, regime, cores)?;
        verdict = std::mem::replace(&mut verdict, Ok(())).and(of_regime);
        match regime {
            CoreRegime::Idle => idle = cells.clone(),
            CoreRegime::OneCore => one_core = cells.clone(),
            CoreRegime::Background | CoreRegime::Busy => {}
        }
        Ok(cells)
    })?;
    if suite == Suite::Call {
        for outcome in targets::across(&idle, &one_core) {
            println!("{outcome}");
        }
    }
    verdict
}

fn run_in(
    call: &Call,
    suite: Suite,
    scope: Scope,
    regime: CoreRegime,
    cores: &[usize],
) -> Result<(Cells, Result<(), Failure>), Failure> {
    let mut bench = Bench::new(call, suite, scope, cores);
    let began = Instant::now();
    for round in 1..=rounds(call, scope) {
        bench.round();
        eprintln!("round {round} done, {} s", began.elapsed().as_secs());
    }
    if scope != Scope::Smoke && suite == Suite::Call {
        bench.idle();
    }
    let cells = bench.cells();
    table::print(
        &cells,
        &bench.head(regime, began.elapsed()),
        &outcomes(suite, &cells, regime, cores.len()),
    );
    if let Some(folder) = &call.plots {
        plot(folder, regime, &cells)?;
    }
    bench
        .failed
        .iter()
        .for_each(|(setup, why)| println!("no figure for {setup}: {why}"));
    Ok((cells, bench.verdict()))
}

fn outcomes(suite: Suite, cells: &Cells, regime: CoreRegime, cores: usize) -> Vec<TargetOutcome> {
    match suite {
        Suite::Call | Suite::Policy => targets::outcomes(cells, regime, cores),
        Suite::Grpc => grpc_targets::outcomes(cells),
    }
}

fn rounds(call: &Call, scope: Scope) -> usize {
    let usual = if scope == Scope::Full {
        ROUNDS
    } else {
        ROUNDS_QUICK
    };
    call.rounds.unwrap_or(usual)
}

struct Bench<'a> {
    call: &'a Call,
    cores: &'a [usize],
    suite: Suite,
    scope: Scope,
    setups: Vec<Setup>,
    in_turn: InTurn,
    runs: BTreeMap<(usize, usize), Vec<Report>>,
    idle: Vec<Cell>,
    failed: BTreeMap<&'static str, Failure>,
}

impl<'a> Bench<'a> {
    fn new(call: &'a Call, suite: Suite, scope: Scope, cores: &'a [usize]) -> Bench<'a> {
        let setups = suite.setups().iter().copied();
        let is_measured =
            |setup: &Setup| call.setups.has(setup.name()) && !setup.measures(suite, scope).is_empty();
        let setups = setups.filter(is_measured).collect();
        let in_turn = InTurn::new(|name| suite == Suite::Policy && call.setups.has(name));
        Bench {
            call,
            cores,
            suite,
            scope,
            setups,
            in_turn,
            runs: BTreeMap::new(),
            idle: Vec::new(),
            failed: BTreeMap::new(),
        }
    }

    fn round(&mut self) {
        for at in 0..self.setups.len() {
            let setup = self.setups[at];
            // What cannot run here will not in the next round either.
            if matches!(self.failed.get(setup.name()), Some(Failure::Unavailable(_))) {
                continue;
            }
            if let Err(failure) = self.setup(at, setup) {
                eprintln!("{}: {failure}", setup.name());
                self.failed.insert(setup.name(), failure);
            }
        }
        if let Err(failure) = self.in_turn.round(self.call, self.scope) {
            eprintln!("policies in turn: {failure}");
            self.failed.insert("policies in turn", failure);
        }
    }

    fn setup(&mut self, at: usize, setup: Setup) -> Result<(), Failure> {
        let folder = tempfile::tempdir().doing(|| "make a temporary folder".into())?;
        let stack = Stack::start(setup, folder.path())?;
        for (number, measure) in setup.measures(self.suite, self.scope).iter().enumerate() {
            machine::wait_quiet(self.cores, self.call.quiet_limit());
            let report = stack.measure(self.load(measure))?;
            self.runs.entry((at, number)).or_default().push(report);
        }
        Ok(())
    }

    /// Setups at rest. Once is enough: what is idle has no luck or misfortune.
    fn idle(&mut self) {
        for setup in self
            .setups
            .clone()
            .into_iter()
            .filter(|setup| setup.has_services())
        {
            let folder = tempfile::tempdir().doing(|| "make a temporary folder".into());
            let measured =
                folder.and_then(|folder| idle::measure(setup, &Stack::start(setup, folder.path())?));
            match measured {
                Ok(cells) => self.idle.extend(cells),
                Err(failure) => drop(self.failed.insert(setup.name(), failure)),
            }
        }
    }

    fn load(&self, measure: &Measure) -> Load {
        let (seconds, warmup_seconds) = match self.scope {
            Scope::Full => (RUN_SECONDS, WARMUP_SECONDS),
            Scope::Quick | Scope::Smoke => (RUN_SECONDS_QUICK, WARMUP_SECONDS_QUICK),
        };
        Load {
            size_bytes: measure.size_bytes,
            calls_in_flight: measure.calls_in_flight,
            interval_us: 0,
            connections: measure.connections,
            warmup_seconds,
            seconds: self.call.seconds.unwrap_or(seconds),
            watched: Vec::new(),
            cores: self.cores.to_vec(),
            traffic: measure.traffic,
        }
    }

    fn cells(&self) -> Cells {
        let cell = |((at, number), runs): (&(usize, usize), &Vec<Report>)| {
            let measure = self.setups[*at]
                .measures(self.suite, self.scope)
                .swap_remove(*number);
            Cell {
                setup: self.setups[*at].name().into(),
                what: measure.what,
                size: measure.size_bytes,
                conns: measure.connections,
                inflight: measure.calls_in_flight,
                median: Median::of(runs, measure.size_bytes),
                runs: runs.clone(),
            }
        };
        Cells {
            cells: self
                .runs
                .iter()
                .map(cell)
                .chain(self.in_turn.cells())
                .chain(self.idle.iter().cloned())
                .collect(),
            pairs: self.in_turn.outcomes().collect(),
        }
    }

    fn head(&self, regime: CoreRegime, took: Duration) -> String {
        format!(
            "{}; cores {:?}, {}; {} rounds, {} s",
            machine::describe(),
            self.cores,
            regime.description(),
            rounds(self.call, self.scope),
            took.as_secs()
        )
    }

    /// A setup that is not to be had here is no failure; one that did not work is.
    fn verdict(self) -> Result<(), Failure> {
        let broken = self
            .failed
            .into_values()
            .find(|failure| !matches!(failure, Failure::Unavailable(_)));
        broken.map_or(Ok(()), Err)
    }
}

/// The rate of each setup, one bar each.
fn plot(folder: &Path, regime: CoreRegime, cells: &Cells) -> Result<(), Failure> {
    let rates = cells.cells.iter().filter(|cell| cell.what == "rate c=64");
    let plot = BarPlot {
        title: "calls a second, 64 in flight",
        unit: "calls/s",
        bars: rates
            .filter_map(|cell| Some((&*cell.setup, cell.median.rps?)))
            .collect(),
    };
    std::fs::create_dir_all(folder).doing(|| format!("make {}", folder.display()))?;
    plot.write(&folder.join(format!("rate-{}.svg", regime.name())))
}
