//! What the figures are held against (within one run, as all targets are).

use provost_figures::{Bound, Cell, Cells, Figure, FigurePlace, TargetOutcome};

use super::plan::{CALLS_IN_FLIGHT, Without};

use Bound::{DifferenceAtMost, RatioAtLeast, RatioAtMost, ValueAtLeast, ValueAtMost};

const P50: Figure = |median| median.p50_us;
const P99: Figure = |median| median.p99_us;
const RPS: Figure = |median| median.rps;
/// Of two closed loops with as many calls on their way, the rates are as these are, and a moment in which one of the
/// processes was off its core does not count.
const PACE: Figure = |median| Some(1.0 / median.p50_us?);
const GBPS: Figure = |median| median.gbps;
/// What a core handles, in millions a second, while both processes have theirs: of calls whose client it is, and as many
/// whose server it is. So many are on their way, and half of them end in less than the median time.
const HANDLED: Figure = |median| Some(2.0 * CALLS_IN_FLIGHT as f64 / median.p50_us?);

const SHM: &str = "provost shm";

#[rustfmt::skip]
const RATIOS: [(&str, FigurePlace, FigurePlace, Bound); 11] = [
    ("p50 over shared memory, us above bare", (SHM, "lat", P50), ("bare shm", "lat", P50), DifferenceAtMost(0.5)),
    ("p50 over UDP to bare", ("provost udp", "lat", P50), ("bare udp", "lat", P50), RatioAtMost(1.3)),
    ("p50 over AF_XDP to bare", ("provost xdp", "lat", P50), ("bare xdp", "lat", P50), RatioAtMost(1.3)),
    ("pace of 60 at a time over AF_XDP to bare", ("provost xdp", "many", PACE), ("bare xdp", "many", PACE), RatioAtLeast(0.9)),
    ("rate with congestion control to without", (SHM, "all on", PACE), (SHM, "no CC", PACE), RatioAtLeast(0.95)),
    ("rate of 20,000 sessions to that of 20", (SHM, "sessions 20000", PACE), (SHM, "sessions 20", PACE), RatioAtLeast(0.95)),
    ("pace of 8 MB requests to two copies by a core", (SHM, "gp 8M", PACE), ("two copies", "gp 8M", PACE), RatioAtLeast(0.8)),
    ("pace of 60 at a time over UDP to bare", ("provost udp", "many", PACE), ("bare udp", "many", PACE), RatioAtLeast(0.9)),
    ("rate beside busy processes to alone", (SHM, "crowded b=3", RPS), (SHM, "rate b=3", RPS), RatioAtLeast(0.1)),
    ("8 MB at a loss of 1e-3 to without loss", ("sim selective", "gp loss 1e-3", GBPS), ("sim selective", "gp loss 0", GBPS), RatioAtLeast(0.5)),
    ("the same, the paper's recovery", ("sim go-back-N", "gp loss 1e-3", GBPS), ("sim go-back-N", "gp loss 0", GBPS), RatioAtLeast(0.03)),
];

#[rustfmt::skip]
const VALUES: [(&str, FigurePlace, Bound); 6] = [
    ("M calls handled by a core, batches of 3", (SHM, "rate b=3", HANDLED), ValueAtLeast(10.0)),
    ("M calls handled by a core, batches of 5", (SHM, "rate b=5", HANDLED), ValueAtLeast(10.0)),
    ("M calls handled by a core, batches of 11", (SHM, "rate b=11", HANDLED), ValueAtLeast(10.0)),
    ("p99 queueing, incast of 100, timely, us", ("sim timely", "gp incast 100", P99), ValueAtMost(100.0)),
    ("p99 queueing, incast of 100, swift, us", ("sim swift", "gp incast 100", P99), ValueAtMost(100.0)),
    ("p99 queueing, incast of 100, dctcp, us", ("sim dctcp", "gp incast 100", P99), ValueAtMost(100.0)),
];

/// Every target of which this run has the figures.
pub(crate) fn outcomes(cells: &Cells) -> Vec<TargetOutcome> {
    let ratios = RATIOS.iter().filter_map(|(what, over, under, bound)| {
        TargetOutcome::of_places((*what).into(), cells, *over, *under, *bound)
    });
    let values = VALUES
        .iter()
        .filter_map(|(what, place, bound)| TargetOutcome::of_place((*what).into(), cells, *place, *bound));
    let is_all_on = |cell: &&Cell| cell.setup == SHM && cell.what == Without::Nothing.name();
    let in_place = cells.cells.iter().find(is_all_on).and_then(requests_in_place);
    let in_place = in_place.and_then(|part| {
        let what = "part of requests handed over in place";
        TargetOutcome::of_value(what.into(), part, ValueAtLeast(1.0))
    });
    ratios.chain(values).chain(in_place).collect()
}

fn requests_in_place(cell: &Cell) -> Option<f64> {
    let count = |name: &str| {
        cell.runs
            .iter()
            .map(|run| run.counters.get(name).copied().unwrap_or(0))
            .sum::<u64>()
    };
    let part = count("requests in place") as f64 / count("requests") as f64;
    part.is_finite().then_some(part)
}
