//! What the figures are held against. Ratios within one run: figures of different runs, machines or ways of waiting
//! are not comparable.

use std::collections::BTreeMap;

use provost_figures::{Bound, Cell, Cells, Figure, FigurePlace, Median, TargetOutcome};

use crate::regime::CoreRegime;

/// A ratio (or a difference) of two cells and its bound.
struct Target {
    what: &'static str,
    over: FigurePlace,
    under: FigurePlace,
    bound: Bound,
}

const P50: Figure = |median| median.p50_us;
const BEST_P50: Figure = |median| median.best_p50_us;
const P99: Figure = |median| median.p99_us;
const RPS: Figure = |median| median.rps;
const GBPS: Figure = |median| median.gbps;
const CPU: Figure = |median| median.cpu_us_per_rpc;

const NULL: &str = "provost null";
const ENVOY: &str = "tonic+envoy null";
/// The floor in each way of waiting: what is aimed at is the best of them where it is measured.
const FLOORS: [&str; 3] = ["floor", "floor sleeping", "floor one core"];
/// What [`across`] calls a setup's figures of one core.
const ONE_CORE: &str = "provost null on one core";
/// Goodputs that the targets are about.
const LARGE: [&str; 4] = ["gp 64K", "gp 512K", "gp 1M", "gp 8M"];

use Bound::{DifferenceAtMost, RatioAtLeast, RatioAtMost, ValueAtMost};

/// Bounds on single processes of a setup with an idle client: a figure by process, and the most it may be. Cores are
/// held against a thousandth of one, a millisecond in a second, for timers.
type ByProcess = fn(&Median) -> &BTreeMap<String, f64>;
const REST: [(&str, &str, ByProcess, f64); 4] = [
    (
        "service's memory at rest, MiB (client's)",
        "egress",
        |median| &median.rss_mib,
        8.0,
    ),
    (
        "service's memory at rest, MiB (server's)",
        "ingress",
        |median| &median.rss_mib,
        8.0,
    ),
    (
        "cores of an idle service",
        "egress",
        |median| &median.cores,
        0.001,
    ),
    ("cores of an idle app", "client", |median| &median.cores, 0.001),
];

#[rustfmt::skip]
const TARGETS: [Target; 14] = [
    Target { what: "p50 of tonic+Envoy to ours", over: (ENVOY, "lat", P50), under: (NULL, "lat", P50), bound: RatioAtLeast(14.0) },
    Target { what: "p50 of tonic to ours", over: ("tonic", "lat", P50), under: (NULL, "lat", P50), bound: RatioAtLeast(3.5) },
    Target { what: "p99 of tonic+Envoy to ours", over: (ENVOY, "lat", P99), under: (NULL, "lat", P99), bound: RatioAtLeast(8.0) },
    Target { what: "rate at 64 to tonic+Envoy's", over: (NULL, "rate c=64", RPS), under: (ENVOY, "rate c=64", RPS), bound: RatioAtLeast(10.0) },
    Target { what: "rate at 64 to tonic's", over: (NULL, "rate c=64", RPS), under: ("tonic", "rate c=64", RPS), bound: RatioAtLeast(RATE_TO_TONIC_MIN) },
    Target { what: "CPU per call (lat) to tonic+Envoy's", over: (NULL, "lat", CPU), under: (ENVOY, "lat", CPU), bound: RatioAtMost(1.0 / 6.0) },
    Target { what: "CPU per call (lat) to tonic's", over: (NULL, "lat", CPU), under: ("tonic", "lat", CPU), bound: RatioAtMost(1.0) },
    Target { what: "CPU per call (64) to tonic+Envoy's", over: (NULL, "rate c=64", CPU), under: (ENVOY, "rate c=64", CPU), bound: RatioAtMost(1.0 / 6.0) },
    Target { what: "CPU per call (64) to tonic's", over: (NULL, "rate c=64", CPU), under: ("tonic", "rate c=64", CPU), bound: RatioAtMost(1.0) },
    Target { what: "the null policy's own cost, us", over: (NULL, "lat", BEST_P50), under: ("provost bare", "lat", BEST_P50), bound: DifferenceAtMost(0.3) },
    Target { what: "rate with a limit to Envoy's with one", over: ("provost rate", "rate c=64", RPS), under: ("tonic+envoy rate", "rate c=64", RPS), bound: RatioAtLeast(10.0) },
    Target { what: "rate with access by field to RBAC's", over: ("provost acl", "rate c=64", RPS), under: ("tonic+envoy rbac", "rate c=64", RPS), bound: RatioAtLeast(10.0) },
    Target { what: "rate with access by field to Lua's", over: ("provost acl", "rate c=64", RPS), under: ("tonic+envoy lua", "rate c=64", RPS), bound: RatioAtLeast(10.0) },
    Target { what: "rate with access by field to Wasm's", over: ("provost acl", "rate c=64", RPS), under: ("tonic+envoy wasm", "rate c=64", RPS), bound: RatioAtLeast(10.0) },
];

const LOCAL: &str = "provost local";
const SLEEPING: &str = "provost local sleeping";

/// A call through one node beside what runs without one, which waits as the node and its apps do: what polls before it sleeps, and
/// what sleeps at once. Both of the latter are held against it, so that the better of them is.
#[rustfmt::skip]
const SAME_NODE: [Target; 6] = [
    Target { what: "same-node p50 to iceoryx2's", over: (LOCAL, "lat", P50), under: ("iceoryx2", "lat", P50), bound: RatioAtMost(1.0) },
    Target { what: "same-node rate at 64 to iceoryx2's", over: (LOCAL, "rate c=64", RPS), under: ("iceoryx2", "rate c=64", RPS), bound: RatioAtLeast(1.0) },
    Target { what: "same-node p50 to iceoryx2's, all sleeping", over: (SLEEPING, "lat", P50), under: ("iceoryx2 sleeping", "lat", P50), bound: RatioAtMost(1.0) },
    Target { what: "same-node rate at 64 to iceoryx2's, all sleeping", over: (SLEEPING, "rate c=64", RPS), under: ("iceoryx2 sleeping", "rate c=64", RPS), bound: RatioAtLeast(1.0) },
    Target { what: "same-node p50 to shmipc's, all sleeping", over: (SLEEPING, "lat", P50), under: ("shmipc", "lat", P50), bound: RatioAtMost(1.0) },
    Target { what: "same-node rate at 64 to shmipc's, all sleeping", over: (SLEEPING, "rate c=64", RPS), under: ("shmipc", "rate c=64", RPS), bound: RatioAtLeast(1.0) },
];

/// The same beside bare shared memory. A call is four hops between three processes, so that with fewer cores two of them share one.
const fn beside_shared_memory(cores: usize) -> [Target; 2] {
    let most = if cores < 3 { 6.0 } else { 3.0 };
    #[rustfmt::skip]
    let targets = [
        Target { what: "same-node p50 to shared memory's", over: (LOCAL, "lat", P50), under: ("shm", "lat", P50), bound: RatioAtMost(most) },
        Target { what: "same-node p50 to shared memory's on a core", over: (LOCAL, "lat", P50), under: ("shm one core", "lat", P50), bound: RatioAtMost(2.0) },
    ];
    targets
}

/// What is the same everywhere.
const RATE_TO_TONIC_MIN: f64 = 4.0;
const GOODPUT_TO_ENVOY_MIN: f64 = 6.0;

/// What holds in each regime.
#[rustfmt::skip]
const EVERYWHERE: [Target; 2] = [
    Target { what: "p50 to tonic's", over: (NULL, "lat", P50), under: ("tonic", "lat", P50), bound: RatioAtMost(1.0) },
    Target { what: "p99 to tonic's", over: (NULL, "lat", P99), under: ("tonic", "lat", P99), bound: RatioAtMost(1.0) },
];

/// On idle cores, of one setup alone.
#[rustfmt::skip]
const IDLE: [Target; 1] = [
    Target { what: "p99 to p50", over: (NULL, "lat", P99), under: (NULL, "lat", P50), bound: RatioAtMost(2.5) },
];

/// Beside others, and where one core is all.
#[rustfmt::skip]
const LOADED: [Target; 3] = [
    Target { what: "p99 at 64 to tonic's", over: (NULL, "rate c=64", P99), under: ("tonic", "rate c=64", P99), bound: RatioAtMost(1.0) },
    Target { what: "rate at 64 to tonic's", over: (NULL, "rate c=64", RPS), under: ("tonic", "rate c=64", RPS), bound: RatioAtLeast(RATE_TO_TONIC_MIN) },
    Target { what: "rate at 64 to tonic+Envoy's", over: (NULL, "rate c=64", RPS), under: (ENVOY, "rate c=64", RPS), bound: RatioAtLeast(10.0) },
];

/// What two cores are to one: more calls, for hardly more processor time each.
#[rustfmt::skip]
const ACROSS: [Target; 2] = [
    Target { what: "rate at 64 of all cores to that of one", over: (NULL, "rate c=64", RPS), under: (ONE_CORE, "rate c=64", RPS), bound: RatioAtLeast(1.6) },
    Target { what: "CPU per call (64) of all cores to one's", over: (NULL, "rate c=64", CPU), under: (ONE_CORE, "rate c=64", CPU), bound: RatioAtMost(1.2) },
];

/// Every target of this regime, on so many cores, of which the run has both figures.
pub(crate) fn outcomes(cells: &Cells, regime: CoreRegime, cores: usize) -> Vec<TargetOutcome> {
    let everywhere = of_targets(&EVERYWHERE, cells).chain(to_floor(cells, regime));
    let of_regime: Vec<TargetOutcome> = match regime {
        CoreRegime::Idle => everywhere.chain(idle_outcomes(cells, cores)).collect(),
        CoreRegime::Background | CoreRegime::Busy | CoreRegime::OneCore => {
            let large = to_envoy(cells);
            everywhere
                .chain(of_targets(&LOADED, cells))
                .chain(large)
                .collect()
        }
    };
    let same_node = of_targets(&SAME_NODE, cells);
    of_regime.into_iter().chain(same_node).collect()
}

/// The targets about idle cores and a single one in the same run of the bench.
pub(crate) fn across(all_cores: &Cells, one_core: &Cells) -> Vec<TargetOutcome> {
    let of_null = |cells: &Cells| {
        cells
            .cells
            .iter()
            .filter(|cell| cell.setup == NULL)
            .cloned()
            .collect()
    };
    let mut cells: Vec<Cell> = of_null(one_core);
    for cell in &mut cells {
        cell.setup = ONE_CORE.into();
    }
    cells.extend::<Vec<Cell>>(of_null(all_cores));
    of_targets(&ACROSS, &Cells::of(cells)).collect()
}

/// The floor whose calls are the fastest here.
fn to_floor(cells: &Cells, regime: CoreRegime) -> Option<TargetOutcome> {
    let most = match regime {
        CoreRegime::Idle => 1.25,
        CoreRegime::Background | CoreRegime::Busy | CoreRegime::OneCore => 1.5,
    };
    let p50 = |floor: &&str| {
        let is_floor = |cell: &&Cell| cell.setup == *floor && cell.what == "lat";
        cells.cells.iter().find(is_floor)?.median.p50_us
    };
    let measured = FLOORS.iter().filter_map(|floor| Some((*floor, p50(floor)?)));
    let (best, _) = measured.min_by(|(_, one), (_, other)| one.total_cmp(other))?;
    let (over, under) = ((NULL, "lat", P50), (best, "lat", P50));
    TargetOutcome::of_places(
        format!("p50 to that of '{best}'"),
        cells,
        over,
        under,
        RatioAtMost(most),
    )
}

fn to_envoy(cells: &Cells) -> impl Iterator<Item = TargetOutcome> {
    LARGE.iter().filter_map(|what| {
        let (over, under) = ((NULL, *what, GBPS), (ENVOY, *what, GBPS));
        let bound = RatioAtLeast(GOODPUT_TO_ENVOY_MIN);
        TargetOutcome::of_places(format!("{what} to tonic+Envoy's"), cells, over, under, bound)
    })
}

fn of_targets(targets: &[Target], cells: &Cells) -> impl Iterator<Item = TargetOutcome> {
    targets.iter().filter_map(|target| {
        TargetOutcome::of_places(target.what.into(), cells, target.over, target.under, target.bound)
    })
}

fn idle_outcomes(cells: &Cells, cores: usize) -> Vec<TargetOutcome> {
    let large = LARGE.iter().flat_map(|what| {
        let target = |name, under, bound| (format!("{what} to {name}"), *what, under, bound);
        [
            target("tonic's", "tonic", RatioAtLeast(1.0)),
            target("raw TCP's", "raw tcp", RatioAtLeast(0.9)),
        ]
    });
    let large = large.filter_map(|(name, what, under, bound)| {
        TargetOutcome::of_places(name, cells, (NULL, what, GBPS), (under, what, GBPS), bound)
    });
    let rest = REST.iter().filter_map(|(name, process, figure, most)| {
        let cell = cells
            .cells
            .iter()
            .find(|cell| cell.setup == NULL && cell.what == "idle")?;
        let value = figure(&cell.median).get(*process).copied()?;
        TargetOutcome::of_value((*name).into(), value, ValueAtMost(*most))
    });
    let shared_memory = beside_shared_memory(cores);
    let tail = TargetOutcome::of_place(
        "p99 at 64, us".into(),
        cells,
        (NULL, "rate c=64", P99),
        ValueAtMost(1000.0),
    );
    of_targets(&IDLE, cells)
        .chain(tail)
        .chain(of_targets(&TARGETS, cells))
        .chain(of_targets(&shared_memory, cells))
        .chain(to_envoy(cells))
        .chain(large)
        .chain(rest)
        .collect()
}

#[cfg(test)]
mod tests {
    use provost_figures::{Report, TargetVerdict};

    use super::*;

    fn cell(setup: &'static str, what: &str, median: Median) -> Cell {
        Cell {
            setup: setup.into(),
            what: what.into(),
            size: 0,
            conns: 1,
            inflight: 1,
            median,
            runs: Vec::new(),
        }
    }

    fn p50(p50_us: f64) -> Median {
        Median {
            p50_us: Some(p50_us),
            ..Median::default()
        }
    }

    #[test]
    fn targets_are_ratios_of_what_was_measured_and_the_rest_is_left_out() {
        let cells = vec![
            cell(NULL, "lat", p50(16.0)),
            cell("floor", "lat", p50(10.0)),
            cell("tonic", "lat", p50(48.0)),
        ];
        let outcomes = outcomes(&Cells::of(cells), CoreRegime::Idle, 2);
        assert_eq!(
            outcomes.iter().map(TargetOutcome::verdict).collect::<Vec<_>>(),
            [TargetVerdict::Met, TargetVerdict::Missed, TargetVerdict::Missed]
        );
        for (outcome, (what, verdict)) in outcomes.iter().zip([
            ("p50 to tonic's", "met"),
            ("p50 to that of 'floor'", "MISSED"),
            ("p50 of tonic to ours", "MISSED"),
        ]) {
            let line = outcome.to_string();
            assert!(line.starts_with(what) && line.contains(verdict), "{line}");
        }
    }

    #[test]
    fn a_call_is_held_against_the_way_of_waiting_that_is_the_best_here() {
        let cells = |sleeping| {
            Cells::of(vec![
                cell(NULL, "lat", p50(58.0)),
                cell("floor", "lat", p50(4000.0)),
                cell("floor sleeping", "lat", p50(sleeping)),
                cell("floor one core", "lat", p50(45.0)),
            ])
        };
        // 1.29 times the one, 1.93 times the other.
        for (regime, sleeping, best, verdict) in [
            (CoreRegime::Busy, 50.0, "floor one core", TargetVerdict::Met),
            (CoreRegime::Idle, 50.0, "floor one core", TargetVerdict::Missed),
            (CoreRegime::Busy, 30.0, "floor sleeping", TargetVerdict::Missed),
        ] {
            let outcomes = outcomes(&cells(sleeping), regime, 2);
            assert_eq!(outcomes[0].verdict(), verdict);
            assert!(outcomes[0].to_string().contains(best), "{}", outcomes[0]);
        }
    }

    #[test]
    fn all_cores_are_held_against_one() {
        let cells = |rps, cpu_us| {
            let median = Median {
                rps: Some(rps),
                cpu_us_per_rpc: Some(cpu_us),
                ..Median::default()
            };
            Cells::of(vec![cell(NULL, "rate c=64", median)])
        };
        let verdicts =
            |outcomes: Vec<TargetOutcome>| outcomes.iter().map(TargetOutcome::verdict).collect::<Vec<_>>();
        assert_eq!(
            verdicts(across(&cells(330.0, 5.0), &cells(200.0, 4.0))),
            [TargetVerdict::Met, TargetVerdict::Missed]
        );
        assert!(across(&cells(330.0, 5.0), &Cells::default()).is_empty());
    }

    #[test]
    fn same_node_calls_are_held_against_each_peer_that_waits_alike_in_every_regime() {
        let rps = |rps| Median {
            rps: Some(rps),
            ..Median::default()
        };
        let cells = || {
            let all = [
                cell(LOCAL, "lat", p50(10.0)),
                cell("iceoryx2", "lat", p50(12.0)),
                cell(SLEEPING, "rate c=64", rps(100.0)),
                cell("iceoryx2 sleeping", "rate c=64", rps(50.0)),
                cell("shmipc", "rate c=64", rps(200.0)),
            ];
            Cells::of(all.into())
        };
        for regime in [
            CoreRegime::Idle,
            CoreRegime::Background,
            CoreRegime::Busy,
            CoreRegime::OneCore,
        ] {
            let verdicts: Vec<_> = outcomes(&cells(), regime, 2)
                .iter()
                .map(TargetOutcome::verdict)
                .collect();
            let (met, missed) = (TargetVerdict::Met, TargetVerdict::Missed);
            assert_eq!(verdicts, [met, met, missed], "{}", regime.name());
        }
    }

    #[test]
    fn a_third_core_lowers_the_bound_to_shared_memory() {
        let cells = || Cells::of(vec![cell(LOCAL, "lat", p50(4.0)), cell("shm", "lat", p50(1.0))]);
        let verdict = |cores| outcomes(&cells(), CoreRegime::Idle, cores)[0].verdict();
        assert_eq!(verdict(2), TargetVerdict::Met);
        assert_eq!(verdict(3), TargetVerdict::Missed);
    }

    #[test]
    fn large_messages_are_held_against_three_peers() {
        // Eight times Envoy's, more than tonic's, and too little of raw TCP's.
        let gbps = |gbps| Median {
            gbps: Some(gbps),
            ..Median::default()
        };
        let cells = [(NULL, 40.0), (ENVOY, 5.0), ("tonic", 17.0), ("raw tcp", 60.0)]
            .map(|(setup, value)| cell(setup, "gp 64K", gbps(value)));
        let outcomes = outcomes(&Cells::of(cells.into()), CoreRegime::Idle, 2);
        assert_eq!(
            outcomes.iter().map(TargetOutcome::verdict).collect::<Vec<_>>(),
            [TargetVerdict::Met, TargetVerdict::Met, TargetVerdict::Missed]
        );
    }

    #[test]
    fn a_bound_within_the_middle_half_of_the_rounds_decides_nothing() {
        let run = |p50_us| Report {
            p50_us,
            ..Default::default()
        };
        let of = |setup, runs: [f64; 3]| {
            let runs: Vec<_> = runs.map(run).into();
            Cell {
                runs: runs.clone(),
                ..cell(setup, "lat", Median::of(&runs, 0))
            }
        };
        let cells = |null| Cells::of(vec![of(NULL, null), of("floor", [10.0; 3])]);
        let verdict = |null| outcomes(&cells(null), CoreRegime::OneCore, 2)[0].verdict();
        assert_eq!(verdict([14.0, 14.5, 16.0]), TargetVerdict::Undecided);
        assert_eq!(verdict([14.0, 14.5, 14.9]), TargetVerdict::Met);
        assert_eq!(verdict([15.1, 16.0, 17.0]), TargetVerdict::Missed);
    }
}
