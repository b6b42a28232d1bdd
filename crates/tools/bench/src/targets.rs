//! What the figures are held against. Ratios within one run: figures of different runs, machines or ways of waiting
//! are not comparable.

use std::collections::BTreeMap;

use provost_figures::{Bound, Cells, Figure, FigurePlace, Median, TargetOutcome};

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
        9.0,
    ),
    (
        "service's memory at rest, MiB (server's)",
        "ingress",
        |median| &median.rss_mib,
        9.0,
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
const TARGETS: [Target; 15] = [
    Target { what: "p50 to the floor's", over: (NULL, "lat", P50), under: ("floor", "lat", P50), bound: RatioAtMost(1.6) },
    Target { what: "p50 of tonic+Envoy to ours", over: (ENVOY, "lat", P50), under: (NULL, "lat", P50), bound: RatioAtLeast(14.0) },
    Target { what: "p50 of tonic to ours", over: ("tonic", "lat", P50), under: (NULL, "lat", P50), bound: RatioAtLeast(3.5) },
    Target { what: "p99 of tonic+Envoy to ours", over: (ENVOY, "lat", P99), under: (NULL, "lat", P99), bound: RatioAtLeast(8.0) },
    Target { what: "rate at 64 to tonic+Envoy's", over: (NULL, "rate c=64", RPS), under: (ENVOY, "rate c=64", RPS), bound: RatioAtLeast(10.0) },
    Target { what: "rate at 64 to tonic's", over: (NULL, "rate c=64", RPS), under: ("tonic", "rate c=64", RPS), bound: RatioAtLeast(2.0) },
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

/// What holds beside others, too: there a call is held against gRPC without a proxy.
#[rustfmt::skip]
const LOADED: [Target; 5] = [
    Target { what: "p50 to tonic's", over: (NULL, "lat", P50), under: ("tonic", "lat", P50), bound: RatioAtMost(1.0) },
    Target { what: "p99 to tonic's", over: (NULL, "lat", P99), under: ("tonic", "lat", P99), bound: RatioAtMost(1.0) },
    Target { what: "p99 at 64 to tonic's", over: (NULL, "rate c=64", P99), under: ("tonic", "rate c=64", P99), bound: RatioAtMost(1.0) },
    Target { what: "rate at 64 to tonic's", over: (NULL, "rate c=64", RPS), under: ("tonic", "rate c=64", RPS), bound: RatioAtLeast(4.0) },
    Target { what: "rate at 64 to tonic+Envoy's", over: (NULL, "rate c=64", RPS), under: (ENVOY, "rate c=64", RPS), bound: RatioAtLeast(10.0) },
];

/// Every target of this regime, on so many cores, of which the run has both figures.
pub(crate) fn outcomes(cells: &Cells, regime: CoreRegime, cores: usize) -> Vec<TargetOutcome> {
    let of_regime = match regime {
        CoreRegime::Idle => idle_outcomes(cells, cores),
        CoreRegime::Background | CoreRegime::Busy | CoreRegime::OneCore => {
            of_targets(&LOADED, cells).collect()
        }
    };
    let same_node = of_targets(&SAME_NODE, cells);
    of_regime.into_iter().chain(same_node).collect()
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
            target("tonic+Envoy's", ENVOY, RatioAtLeast(5.0)),
            target("tonic's", "tonic", RatioAtLeast(1.0)),
            target("raw TCP's", "raw tcp", RatioAtLeast(0.8)),
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
    let shared_memory = of_targets(&shared_memory, cells);
    let calls = of_targets(&TARGETS, cells).chain(shared_memory);
    calls.chain(large).chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use provost_figures::{Cell, Report, TargetVerdict};

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
            [TargetVerdict::Met, TargetVerdict::Missed]
        );
        assert!(outcomes[1].to_string().contains("MISSED"), "{}", outcomes[1]);
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
        let gbps = |gbps| Median {
            gbps: Some(gbps),
            ..Median::default()
        };
        let cells = [(NULL, 40.0), (ENVOY, 8.0), ("tonic", 17.0), ("raw tcp", 60.0)]
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
        let verdict = |null| outcomes(&cells(null), CoreRegime::Idle, 2)[0].verdict();
        assert_eq!(verdict([15.0, 15.5, 17.0]), TargetVerdict::Undecided);
        assert_eq!(verdict([15.0, 15.5, 15.9]), TargetVerdict::Met);
        assert_eq!(verdict([16.1, 17.0, 18.0]), TargetVerdict::Missed);
    }
}
