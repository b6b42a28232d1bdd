//! What the figures are held against.

use provost_figures::{Bound, TargetOutcome};

use crate::figures::NicFigures;
use crate::interface::{COHERENT_MRPS, DOORBELL_MRPS};

use Bound::{RatioAtMost, ValueAtLeast, ValueAtMost};

/// Part by which a rate may differ from the one on which the model is calibrated.
const CALIBRATION_PART: f64 = 0.05;

/// A target: what it is called, setup, figure, bound.
type ValueTarget = (&'static str, &'static str, &'static str, Bound);

#[rustfmt::skip]
const VALUES: [ValueTarget; 6] = [
    ("simulated RPC/s on a core, lock-step", "simulation", "rate of lock-step", ValueAtLeast(25_000.0)),
    ("cycles for a 64-byte RPC, one flow", "ideal host", "cycles/RPC, 1 flows", ValueAtMost(4.0)),
    ("cycles for a 64-byte RPC, 8 flows", "ideal host", "cycles/RPC, 8 flows", ValueAtMost(4.0)),
    ("cycles added on the way out, unloaded", "ideal host", "added, out", ValueAtMost(60.0)),
    ("cycles added on the way in, unloaded", "ideal host", "added, in", ValueAtMost(60.0)),
    ("M calls/s of 8 flows (Dagger: 84)", "coherent b4", "rate of 8 flows", ValueAtLeast(84.0)),
];

/// Part of its rate and p99 that a tenant may lose to another that floods the NIC.
const FLOOD_PART: f64 = 0.1;
/// Setups of which two tenants are measured.
const ISOLATED: [&str; 2] = ["coherent b4", "doorbell b3"];
/// Latency over the coherent interconnect to that with doorbells: Dagger's is 45 % lower.
const LATENCY_RATIO: f64 = 0.55;

/// Every target of which this run has the figures.
pub(crate) fn outcomes(figures: &NicFigures) -> Vec<TargetOutcome> {
    let values = VALUES.iter().filter_map(|(what, setup, figure, bound)| {
        let (_, runs) = figures.get(setup, figure)?;
        TargetOutcome::of_pairs((*what).into(), &runs, *bound)
    });
    let p50 = |setup| figures.get(setup, "p50, one batch").map(|(us, _)| us);
    let ratio = p50("coherent b1")
        .zip(p50("doorbell b1"))
        .and_then(|(coherent, doorbell)| {
            let what = "p50, coherent to doorbell (Dagger: 0.55)";
            TargetOutcome::of_value(what.into(), coherent / doorbell, RatioAtMost(LATENCY_RATIO))
        });
    let isolated = ISOLATED.iter().filter_map(|setup| isolation(figures, setup));
    calibration(figures)
        .chain(values)
        .chain(ratio)
        .chain(isolated.flatten())
        .collect()
}

/// What a tenant has beside one that floods the NIC with calls as small, to what it has beside a silent one.
fn isolation(figures: &NicFigures, setup: &str) -> Option<[TargetOutcome; 2]> {
    let ratio = |figure: &str| {
        let (silent, _) = figures.get(setup, &format!("{figure} beside silent"))?;
        let (flooded, _) = figures.get(setup, &format!("{figure} beside flood of 64 B"))?;
        Some(flooded / silent)
    };
    let lost = 1.0 - ratio("rate")?;
    let rate = TargetOutcome::of_value(
        format!("{setup}: part of its rate lost to a flood"),
        lost,
        ValueAtMost(FLOOD_PART),
    );
    let p99 = TargetOutcome::of_value(
        format!("{setup}: p99 beside a flood"),
        ratio("p99,")?,
        RatioAtMost(1.0 + FLOOD_PART),
    );
    Some([rate?, p99?])
}

/// Whether simulated rates are those on which the model is calibrated: else something else than the interface bounds them.
fn calibration(figures: &NicFigures) -> impl Iterator<Item = TargetOutcome> {
    let points = |name: &'static str, points: [(u32, f64); 2]| {
        points.map(|(batch, mrps)| (format!("{name} b{batch}"), mrps))
    };
    let all = [
        points("doorbell", DOORBELL_MRPS),
        points("coherent", COHERENT_MRPS),
    ];
    all.into_iter().flatten().filter_map(|(setup, mrps)| {
        let (simulated, _) = figures.get(&setup, "rate of a core")?;
        let apart = (simulated / mrps - 1.0).abs();
        let what = format!("{setup}: part that its rate is off");
        TargetOutcome::of_value(what, apart, ValueAtMost(CALIBRATION_PART))
    })
}
