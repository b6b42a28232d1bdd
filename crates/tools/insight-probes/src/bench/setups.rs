//! What filters and other ways of passing bytes on cost: runs with and without, in the same rounds.

use provost_insight::profile::{Profile, Protocol, TotalObservation};

use super::{InsightBench, TargetVerdict, paper};
use crate::failure::ProbeFailure;
use crate::filters;
use crate::profile::{ProfileOrder, take};
use crate::proxies::{ProxyKind, ProxyVariant};

/// A figure of a total.
type TotalFigure = (&'static str, fn(&TotalObservation) -> f64);

const FIGURES: [TotalFigure; 2] = [
    ("latency", |total| total.added_latency_us),
    ("cpu", |total| total.added_cpu_us),
];

impl InsightBench {
    /// Envoy's filters alone and combined (table 3, figure 9).
    pub(super) fn filters(&mut self, tell: &mut dyn FnMut(&str)) -> Result<(), ProbeFailure> {
        self.alone_and_combined(ProxyKind::Envoy, Protocol::Http1, &filters::NAMES, tell)
    }

    /// The same of a node's policies.
    pub(super) fn policies(&mut self, tell: &mut dyn FnMut(&str)) -> Result<(), ProbeFailure> {
        self.alone_and_combined(ProxyKind::Provostd, Protocol::Grpc, &filters::POLICIES, tell)
    }

    fn alone_and_combined(
        &mut self,
        kind: ProxyKind,
        protocol: Protocol,
        names: &[&str],
        tell: &mut dyn FnMut(&str),
    ) -> Result<(), ProbeFailure> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let order = ProfileOrder {
            filters: names.clone(),
            sizes_bytes: vec![100],
            ..self.brief(kind, protocol)
        };
        let profile = take(&order, tell)?;
        let setup = match kind {
            ProxyKind::Provostd => "provostd policies",
            _ => "envoy filters",
        };
        self.note_partial(setup, profile.partial.as_ref());
        for (what, figure) in FIGURES {
            let over = |filters: &[String], round: u32| {
                let of = |filters: &[String]| {
                    let mut totals = profile.totals.iter();
                    let total = totals.find(|total| total.filters == filters && total.repetition == round);
                    total.map(figure)
                };
                Some(of(filters)? - of(&[])?)
            };
            let rounds = || 0..order.repetitions;
            for name in &names {
                let alone = std::slice::from_ref(name);
                let runs = rounds().filter_map(|round| over(alone, round)).collect();
                let paper = paper::filter(name).filter(|_| kind == ProxyKind::Envoy && what == "latency");
                self.cell(setup, format!("{name} {what}"), runs, "us", paper);
            }
            let together: Vec<f64> = rounds().filter_map(|round| over(&names, round)).collect();
            // In each round by itself, so that the scatter of the error is known.
            let errors = rounds().filter_map(|round| {
                let alone: Option<Vec<f64>> = names
                    .iter()
                    .map(|name| over(std::slice::from_ref(name), round))
                    .collect();
                Some((alone?.iter().sum::<f64>() / over(&names, round)? - 1.0) * 100.0)
            });
            let errors: Vec<f64> = errors.collect();
            self.cell(setup, format!("all together {what}"), together, "us", None);
            let name = format!("sum of each alone against all together, {what}");
            self.cell(setup, name, errors.clone(), "%", Some(paper::FILTERS_SUM));
            let name = format!("{setup}: all together within 5 % of their sum, {what}");
            self.verdicts
                .extend(TargetVerdict::of_distance(name, &errors, 5.0, "%"));
        }
        Ok(())
    }

    /// The server behind Envoy at a Unix socket (figures 13 and 14).
    pub(super) fn unix_sockets(&mut self, tell: &mut dyn FnMut(&str)) -> Result<(), ProbeFailure> {
        self.variant(ProxyKind::Envoy, ProxyVariant::UnixSockets, tell)
    }

    /// HAProxy, which has the kernel move what it passes on (figures 13 and 14).
    pub(super) fn splicing(&mut self, tell: &mut dyn FnMut(&str)) -> Result<(), ProbeFailure> {
        self.variant(ProxyKind::Haproxy, ProxyVariant::ZeroCopy, tell)
    }

    fn variant(
        &mut self,
        kind: ProxyKind,
        variant: ProxyVariant,
        tell: &mut dyn FnMut(&str),
    ) -> Result<(), ProbeFailure> {
        let order = ProfileOrder {
            sizes_bytes: vec![100, 4096, 16384],
            variants: vec![variant],
            ..self.brief(kind, Protocol::Tcp)
        };
        let profile = take(&order, tell)?;
        let setup = format!("{} tcp {}", kind.name(), variant.name());
        self.note_partial(&setup, profile.partial.as_ref());
        for size in &order.sizes_bytes {
            for (at, (what, figure)) in FIGURES.into_iter().enumerate() {
                let saved = saved_per_cent(&profile, variant, *size, figure);
                let paper = match (variant, size) {
                    (ProxyVariant::ZeroCopy, _) => Some(paper::ZERO_COPY),
                    (ProxyVariant::UnixSockets, 100) => Some(paper::UNIX_SOCKETS[at]),
                    (ProxyVariant::UnixSockets, _) => None,
                };
                self.cell(&setup, format!("{size} B: saves of {what}"), saved, "%", paper);
            }
        }
        Ok(())
    }
}

/// By how much less a proxy adds in a variant than in its usual way, in the same round.
fn saved_per_cent(
    profile: &Profile,
    variant: ProxyVariant,
    size: usize,
    figure: fn(&TotalObservation) -> f64,
) -> Vec<f64> {
    let of = |name: &'static str| {
        let totals = profile.totals.iter();
        totals.filter(move |total| total.load.variant == name && total.load.size_bytes == size as f64)
    };
    let pairs = of(variant.name()).filter_map(|changed| {
        let usual = of("").find(|usual| usual.repetition == changed.repetition)?;
        Some((1.0 - figure(changed) / figure(usual)) * 100.0)
    });
    pairs.collect()
}
