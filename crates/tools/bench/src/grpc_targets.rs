//! What the figures of `bench grpc` are held against: the best of the other proxies in the same place, and gRPC without
//! a proxy.

use provost_figures::{Bound, Cell, Cells, Figure, Median, Pairs, Report, TargetOutcome};

use crate::plan::{ProxyHops, ProxyKind};

const DIRECT: &str = "tonic";
const RATE: &str = "rate c=64";
const P50: Figure = |median| median.p50_us;
const P99: Figure = |median| median.p99_us;
const RPS: Figure = |median| median.rps;
const GBPS: Figure = |median| median.gbps;

/// CPU time of the proxies for each call, in microseconds.
const PROXIES_CPU: Figure = |median| Some(cores_of(median, &["egress", "ingress"]) * 1e6 / median.rps?);
/// Calls for each CPU second of the server's host.
const RPS_OF_SERVERS_HOST: Figure = |median| Some(median.rps? / cores_of(median, &["ingress", "server"]));

use Bound::{RatioAtLeast, RatioAtMost};

fn cores_of(median: &Median, processes: &[&str]) -> f64 {
    processes
        .iter()
        .filter_map(|process| median.cores.get(*process))
        .sum()
}

/// Which of two figures is the better.
#[derive(Clone, Copy)]
enum BetterFigure {
    Higher,
    Lower,
}

/// A figure that is held against the best of the other proxies in the same place.
struct PeerTarget {
    what: &'static str,
    load: &'static str,
    figure: Figure,
    better: BetterFigure,
    bound: Bound,
}

#[rustfmt::skip] // One row each.
const TARGETS: [PeerTarget; 5] = [
    PeerTarget { what: "rate at 64", load: RATE, figure: RPS, better: BetterFigure::Higher, bound: RatioAtLeast(3.0) },
    PeerTarget { what: "proxies' CPU per call (64)", load: RATE, figure: PROXIES_CPU, better: BetterFigure::Lower, bound: RatioAtMost(1.0 / 3.0) },
    PeerTarget { what: "p99", load: "lat", figure: P99, better: BetterFigure::Lower, bound: RatioAtMost(1.0) },
    PeerTarget { what: "gp 64K", load: "gp 64K", figure: GBPS, better: BetterFigure::Higher, bound: RatioAtLeast(1.5) },
    PeerTarget { what: "gp 1M", load: "gp 1M", figure: GBPS, better: BetterFigure::Higher, bound: RatioAtLeast(1.5) },
];

/// Our setup with a policy, Envoy's with its own.
const POLICIES: [(&str, &str, &str); 2] = [
    ("rate with a limit", "tonic+provost rate", "tonic+envoy rate"),
    (
        "rate with access by field",
        "tonic+provost acl",
        "tonic+envoy rbac",
    ),
];

/// Every target of which the run has all figures.
pub(crate) fn outcomes(cells: &Cells) -> Vec<TargetOutcome> {
    let hops = [ProxyHops::One, ProxyHops::Two];
    let proxied = hops.into_iter().flat_map(|hops| {
        let targets = TARGETS
            .iter()
            .filter_map(move |target| beside_best(cells, target, hops));
        targets.chain(added_p50(cells, hops))
    });
    let policies = POLICIES.iter().filter_map(|(what, ours, theirs)| {
        let what = format!("{what} to Envoy's");
        TargetOutcome::of_places(
            what,
            cells,
            (ours, RATE, RPS),
            (theirs, RATE, RPS),
            RatioAtLeast(3.0),
        )
    });
    let native = TargetOutcome::of_places(
        "calls per CPU second of a native server's host".into(),
        cells,
        ("tonic to provost", RATE, RPS_OF_SERVERS_HOST),
        (DIRECT, RATE, RPS_OF_SERVERS_HOST),
        RatioAtLeast(1.5),
    );
    proxied.chain(policies).chain(native).collect()
}

fn beside_best(cells: &Cells, target: &PeerTarget, hops: ProxyHops) -> Option<TargetOutcome> {
    let best = best(cells, target.load, target.figure, target.better, hops)?;
    TargetOutcome::of_places(
        format!("{}, {}: to {}", number(hops), target.what, short(best)),
        cells,
        (ProxyKind::Provost.name(hops), target.load, target.figure),
        (best.name(hops), target.load, target.figure),
        target.bound,
    )
}

/// The proxy of others that does best.
fn best(
    cells: &Cells,
    load: &str,
    figure: Figure,
    better: BetterFigure,
    hops: ProxyHops,
) -> Option<ProxyKind> {
    let of = |proxy: &ProxyKind| figure(&find(cells, proxy.name(hops), load)?.median);
    let known = ProxyKind::OTHERS.into_iter().filter(|proxy| of(proxy).is_some());
    let order = |left: &ProxyKind, right: &ProxyKind| {
        of(left)
            .partial_cmp(&of(right))
            .unwrap_or(std::cmp::Ordering::Equal)
    };
    match better {
        BetterFigure::Higher => known.max_by(order),
        BetterFigure::Lower => known.min_by(order),
    }
}

fn find<'c>(cells: &'c Cells, setup: &str, load: &str) -> Option<&'c Cell> {
    let mut cells = cells.cells.iter();
    cells.find(|cell| cell.setup == setup && cell.what == load)
}

/// What the proxies add to the time of a call without any, beside what the best of the others add, round by round.
fn added_p50(cells: &Cells, hops: ProxyHops) -> Option<TargetOutcome> {
    let best = best(cells, "lat", P50, BetterFigure::Lower, hops)?;
    let runs = |setup| Some(&find(cells, setup, "lat")?.runs);
    let (direct, ours, theirs) = (
        runs(DIRECT)?,
        runs(ProxyKind::Provost.name(hops))?,
        runs(best.name(hops))?,
    );
    let added = |(direct, (ours, theirs)): (&Report, (&Report, &Report))| {
        (ours.p50_us - direct.p50_us) / (theirs.p50_us - direct.p50_us)
    };
    let rounds = direct.iter().zip(ours.iter().zip(theirs)).map(added);
    let what = format!("{}, added p50: to {}", number(hops), short(best));
    TargetOutcome::of_pairs(what, &Pairs::new(rounds.collect()), RatioAtMost(0.5))
}

fn number(hops: ProxyHops) -> &'static str {
    match hops {
        ProxyHops::One => "one",
        ProxyHops::Two => "two",
    }
}

fn short(proxy: ProxyKind) -> &'static str {
    match proxy {
        ProxyKind::Envoy => "Envoy",
        ProxyKind::Nginx => "nginx",
        ProxyKind::Haproxy => "HAProxy",
        ProxyKind::Provost => "Provost",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(setup: &'static str, what: &str, runs: &[(f64, f64)]) -> Cell {
        let run = |(rps, p50_us): &(f64, f64)| Report {
            seconds: 1.0,
            count: *rps as u64,
            rps: *rps,
            p50_us: *p50_us,
            cpu_seconds: [("egress".to_string(), 0.5), ("ingress".to_string(), 0.5)].into(),
            ..Report::default()
        };
        let runs: Vec<_> = runs.iter().map(run).collect();
        Cell {
            setup: setup.into(),
            what: what.into(),
            size: 32,
            conns: 1,
            inflight: 64,
            median: Median::of(&runs, 32),
            runs,
        }
    }

    #[test]
    fn the_best_of_the_others_is_what_counts() {
        let cells = Cells::of(vec![
            cell("tonic+envoy two", RATE, &[(10_000.0, 0.0)]),
            cell("tonic+haproxy two", RATE, &[(20_000.0, 0.0)]),
            cell("tonic+provost two", RATE, &[(50_000.0, 0.0)]),
        ]);
        let said: Vec<_> = outcomes(&cells).iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(
            said[0].starts_with("two, rate at 64: to HAProxy") && said[0].contains("2.500"),
            "{}",
            said[0]
        );
        assert!(said[0].ends_with("MISSED"), "{}", said[0]);
        assert!(
            said[1].starts_with("two, proxies' CPU per call (64): to HAProxy"),
            "{}",
            said[1]
        );
    }

    #[test]
    fn what_proxies_add_is_beyond_a_direct_call() {
        let cells = Cells::of(vec![
            cell(DIRECT, "lat", &[(1.0, 100.0)]),
            cell("tonic+envoy one", "lat", &[(1.0, 300.0)]),
            cell("tonic+provost one", "lat", &[(1.0, 150.0)]),
        ]);
        let said: Vec<_> = outcomes(&cells).iter().map(ToString::to_string).collect();
        let added = said
            .iter()
            .find(|line| line.starts_with("one, added p50: to Envoy"))
            .unwrap();
        assert!(added.contains("0.250") && added.ends_with("met"), "{added}");
    }
}
