//! How right profiles and predictions are: cells of setup, what, and median over repetitions, each beside what it is compared
//! with, from the same run.

use std::fmt::Write;
use std::time::Duration;

use provost_insight::profile::{Component, Profile, Protocol, TotalObservation};
use serde::Serialize;

use crate::application::ApplicationShape;
use crate::failure::ProbeFailure;
use crate::filters;
use crate::profile::{ProfileOrder, ProfiledProxy, SumCheck, median, take_checked};
use crate::proxies::ProxyKind;
use crate::validate::{ValidationOrder, validate};

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchScope {
    /// Few sizes and repetitions.
    Quick,
    Full,
}

#[derive(Clone, Debug, Serialize)]
pub struct BenchCell {
    pub setup: String,
    /// Which figure of it.
    pub what: String,
    /// The median over the repetitions.
    pub median: f64,
    pub runs: Vec<f64>,
    pub unit: &'static str,
    /// What MeshInsight (SoCC 2023) has, where it has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper: Option<&'static str>,
}

/// All cells of a run.
#[derive(Debug, Serialize)]
pub struct InsightBench {
    /// In the order in which they were measured.
    pub cells: Vec<BenchCell>,
    /// Setups that gave no figure, with the reason.
    pub missing: Vec<String>,
    #[serde(skip)]
    failed: bool,
    #[serde(skip)]
    scope: BenchScope,
    #[serde(skip)]
    only: String,
}

/// Sizes at which sums are checked; the targets are about these two.
const CHECKED_SIZES: [usize; 2] = [100, 16384];
const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Http1, Protocol::Grpc];

impl InsightBench {
    /// A bench of the setups whose names contain a text.
    #[must_use]
    pub fn new(scope: BenchScope, only: &str) -> InsightBench {
        InsightBench {
            cells: Vec::new(),
            missing: Vec::new(),
            failed: false,
            scope,
            only: only.into(),
        }
    }

    /// Measures everything, and tells of its progress.
    pub fn run(&mut self, tell: &mut dyn FnMut(&str)) {
        for kind in ProxyKind::BUILT_IN {
            for protocol in PROTOCOLS {
                let name = format!("{} {protocol}", kind.name());
                self.part(&name, tell, |bench, tell| bench.components(kind, protocol, tell));
            }
        }
        self.part("envoy filters", tell, InsightBench::filters);
        for protocol in PROTOCOLS {
            let name = format!("predict {protocol}");
            self.part(&name, tell, |bench, tell| bench.predictions(protocol, tell));
        }
    }

    /// Whether a setup failed that could have run here.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    fn part(
        &mut self,
        name: &str,
        tell: &mut dyn FnMut(&str),
        measure: impl FnOnce(&mut InsightBench, &mut dyn FnMut(&str)) -> Result<(), ProbeFailure>,
    ) {
        if !name.contains(&self.only) {
            return;
        }
        tell(name);
        if let Err(failure) = measure(self, tell) {
            self.failed |= !matches!(failure, ProbeFailure::Unavailable(_));
            self.missing.push(format!("{name}: {failure}"));
        }
    }

    fn repetitions(&self) -> u32 {
        if self.scope == BenchScope::Quick { 5 } else { 15 }
    }

    fn order(&self, kind: ProxyKind, protocol: Protocol) -> ProfileOrder {
        let usual = ProfileOrder::of(ProfiledProxy::BuiltIn(kind), vec![protocol]);
        let quick = ProfileOrder {
            sizes_bytes: CHECKED_SIZES.to_vec(),
            rates_per_s: vec![],
            in_flight: vec![],
            repetitions: self.repetitions(),
            slice: Duration::from_millis(200),
            ..usual.clone()
        };
        match self.scope {
            BenchScope::Quick => quick,
            BenchScope::Full => ProfileOrder {
                repetitions: self.repetitions(),
                ..usual
            },
        }
    }

    /// Shares of the components, and how well they sum up (table 2).
    fn components(
        &mut self,
        kind: ProxyKind,
        protocol: Protocol,
        tell: &mut dyn FnMut(&str),
    ) -> Result<(), ProbeFailure> {
        let (profile, checks) = take_checked(&self.order(kind, protocol), tell)?;
        let setup = format!("{} {protocol}", kind.name());
        for size in CHECKED_SIZES {
            self.component_cells(&format!("{setup} {size} B"), &profile, size, kind);
            self.sum_cells(&format!("{setup} {size} B"), &checks, size);
        }
        self.load_cells(&setup, &profile);
        Ok(())
    }

    fn component_cells(&mut self, setup: &str, profile: &Profile, size: usize, kind: ProxyKind) {
        let is_meant =
            |load: &provost_insight::profile::LoadCell| load.size_bytes == size as f64 && load.in_flight == 1;
        let seen = || profile.observations.iter().filter(|seen| is_meant(&seen.load));
        let of = |component: &Component| -> Vec<f64> {
            let own = seen().filter(|seen| seen.component == *component);
            own.map(|seen| seen.latency_us).collect()
        };
        let sums: Vec<f64> = profile
            .totals
            .iter()
            .filter(|total| is_meant(&total.load))
            .map(|total| {
                let same = seen().filter(|seen| seen.repetition == total.repetition);
                same.map(|seen| seen.latency_us).sum()
            })
            .collect();
        for component in Component::FIXED {
            let latencies = of(&component);
            let shares: Vec<f64> = latencies
                .iter()
                .zip(&sums)
                .map(|(part, sum)| part / sum * 100.0)
                .collect();
            let paper = paper_share(kind, profile, &component, size);
            self.cell(setup, format!("{component} latency"), latencies, "us", None);
            // The paper's figure of parsing is about the codec with all that it calls.
            let of_parse = component == Component::Parse;
            let exclusive_paper = paper.filter(|_| !of_parse);
            self.cell(setup, format!("{component} share"), shares, "%", exclusive_paper);
            if of_parse {
                let parsed = seen().filter(|seen| seen.component == component);
                let whole = parsed.filter_map(|seen| seen.latency_inclusive_us);
                let shares = whole.zip(&sums).map(|(part, sum)| part / sum * 100.0).collect();
                self.cell(setup, "parse with what it calls, share", shares, "%", paper);
            }
            let own = seen().filter(|seen| seen.component == component);
            let cpu = own.map(|seen| seen.cpu_us).collect();
            self.cell(setup, format!("{component} cpu"), cpu, "us", None);
        }
    }

    fn sum_cells(&mut self, setup: &str, checks: &[SumCheck], size: usize) {
        let of = |figure: fn(&SumCheck) -> f64| -> Vec<f64> {
            let meant = checks.iter().filter(|check| check.size_bytes == size);
            meant.map(figure).collect()
        };
        self.cell(setup, "added latency", of(|check| check.added_us), "us", None);
        self.cell(setup, "sum of components", of(|check| check.sum_us), "us", None);
        self.cell(
            setup,
            "sum against added",
            of(|check| (check.sum_us / check.added_us - 1.0) * 100.0),
            "%",
            None,
        );
        self.cell(
            setup,
            "sum against added, both traced",
            of(|check| (check.traced_sum_us / check.traced_added_us - 1.0) * 100.0),
            "%",
            None,
        );
        self.cell(
            setup,
            "cpu sum against scheduler",
            of(|check| (check.cpu_sum_us / check.cpu_us - 1.0) * 100.0),
            "%",
            None,
        );
        self.cell(
            setup,
            "rate while traced",
            of(|check| check.rate_share * 100.0),
            "%",
            None,
        );
        self.cell(
            setup,
            "cores of others meanwhile",
            of(|check| check.foreign_cores),
            "cores",
            None,
        );
    }

    /// What a proxy adds by size, by rate and in flight (figures 10 and 11).
    fn load_cells(&mut self, setup: &str, profile: &Profile) {
        let mut loads: Vec<(f64, u32)> = profile
            .totals
            .iter()
            .map(|total| (total.load.size_bytes, total.load.in_flight))
            .collect();
        loads.dedup();
        loads.sort_by(|one, other| one.partial_cmp(other).unwrap_or(std::cmp::Ordering::Equal));
        loads.dedup();
        for (size, in_flight) in loads {
            let of = |figure: fn(&TotalObservation) -> f64| -> Vec<f64> {
                let meant = profile
                    .totals
                    .iter()
                    .filter(|total| total.load.size_bytes == size && total.load.in_flight == in_flight);
                meant.map(figure).collect()
            };
            let what = format!("{size} B c={in_flight}");
            self.cell(
                setup,
                format!("added {what}"),
                of(|total| total.added_latency_us),
                "us",
                None,
            );
            self.cell(
                setup,
                format!("cpu {what}"),
                of(|total| total.added_cpu_us),
                "us",
                None,
            );
        }
    }

    /// Filters alone and combined (table 3, figure 9).
    fn filters(&mut self, tell: &mut dyn FnMut(&str)) -> Result<(), ProbeFailure> {
        let names: Vec<String> = filters::NAMES.iter().map(ToString::to_string).collect();
        let order = ProfileOrder {
            filters: names.clone(),
            sizes_bytes: vec![100],
            ..self.order(ProxyKind::Envoy, Protocol::Http1)
        };
        let (profile, _) = take_checked(&order, tell)?;
        let added = |filters: &[String], repetition: u32, figure: fn(&TotalObservation) -> f64| {
            let mut totals = profile.totals.iter();
            let total = totals.find(|total| {
                total.filters == filters && total.repetition == repetition && total.load.in_flight == 1
            });
            total.map(figure)
        };
        let over = |filters: &[String], figure: fn(&TotalObservation) -> f64| -> Vec<f64> {
            let rounds = 0..order.repetitions;
            let over = |round| Some(added(filters, round, figure)? - added(&[], round, figure)?);
            rounds.filter_map(over).collect()
        };
        type Figure = (&'static str, fn(&TotalObservation) -> f64);
        let figures: [Figure; 2] = [
            ("latency", |total| total.added_latency_us),
            ("cpu", |total| total.added_cpu_us),
        ];
        for (what, figure) in figures {
            let mut sum = 0.0;
            for name in &names {
                let alone = over(std::slice::from_ref(name), figure);
                sum += median(alone.clone()).unwrap_or_default();
                self.cell("envoy filters", format!("{name} {what}"), alone, "us", None);
            }
            let together = over(&names, figure);
            let errors = together.iter().map(|all| (sum / all - 1.0) * 100.0).collect();
            self.cell(
                "envoy filters",
                format!("all together {what}"),
                together,
                "us",
                None,
            );
            let paper = Some("filters' sum within 5 % of their combination");
            let what = format!("sum of each alone against all together, {what}");
            self.cell("envoy filters", what, errors, "%", paper);
        }
        Ok(())
    }

    /// Predicted beside measured (figure 8).
    fn predictions(&mut self, protocol: Protocol, tell: &mut dyn FnMut(&str)) -> Result<(), ProbeFailure> {
        let order = ValidationOrder {
            profile: self.order(ProxyKind::Envoy, protocol),
            shapes: ApplicationShape::ALL.to_vec(),
            sizes_bytes: vec![100],
            draws: 200,
        };
        let (report, _) = validate(&order, tell)?;
        let paper = Some("predictions within a few per cent for small messages");
        let setup = format!("predict envoy {protocol}");
        for one in &report.applications {
            let name = &one.name;
            let mut single = |what: &str, value: f64, unit, paper| {
                self.cell(&setup, format!("{name}: {what}"), vec![value], unit, paper);
            };
            single("measured added", one.measured_added_us, "us", None);
            single("predicted added", one.predicted_added_us.value, "us", None);
            single("interval from", one.predicted_added_us.low, "us", None);
            single("interval to", one.predicted_added_us.high, "us", None);
            single("latency error", one.latency_error * 100.0, "%", paper);
            single("measured cpu", one.measured_cpu_us, "us", None);
            single("predicted cpu", one.predicted_cpu_us.value, "us", None);
            single("cpu error", one.cpu_error * 100.0, "%", paper);
        }
        let covered = vec![report.latency_covered_share * 100.0];
        self.cell(&setup, "within the 90 % interval", covered, "%", None);
        self.cell(
            &setup,
            "cores of others meanwhile",
            vec![report.foreign_cores],
            "cores",
            None,
        );
        Ok(())
    }

    fn cell(
        &mut self,
        setup: &str,
        what: impl Into<String>,
        runs: Vec<f64>,
        unit: &'static str,
        paper: Option<&'static str>,
    ) {
        let Some(median) = median(runs.clone()) else {
            return;
        };
        let round = |value: f64| (value * 100.0).round() / 100.0;
        self.cells.push(BenchCell {
            setup: setup.into(),
            what: what.into(),
            median: round(median),
            runs: runs.into_iter().map(round).collect(),
            unit,
            paper,
        });
    }

    /// A table for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for cell in &self.cells {
            let paper = cell
                .paper
                .map_or(String::new(), |paper| format!("   (MeshInsight: {paper})"));
            let (setup, what, median, unit) = (&cell.setup, &cell.what, cell.median, cell.unit);
            // Writing to a string does not fail.
            let _ = writeln!(text, "{setup:<24} {what:<48} {median:>10.2} {unit}{paper}");
        }
        for missing in &self.missing {
            let _ = writeln!(text, "no figure for {missing}");
        }
        text
    }

    /// The cells as JSON.
    ///
    /// # Errors
    /// If a figure is one that JSON has no way to write.
    pub fn json(&self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

/// Shares of latency in MeshInsight's table 2, which is about Envoy 1.21 and messages of 100 bytes: TCP, HTTP, gRPC.
const PAPER_SHARES: [(Component, [&str; 3]); 6] = [
    (Component::Ipc, ["30 %", "8 %", "7 %"]),
    (Component::Read, ["16 %", "5 %", "5 %"]),
    (Component::Write, ["34 %", "8 %", "7 %"]),
    (Component::Readiness, ["3 %", "1 %", "1 %"]),
    (Component::Parse, ["none", "70 %", "73 %"]),
    (Component::OtherUser, ["11 %", "8 %", "7 %"]),
];

fn paper_share(
    kind: ProxyKind,
    profile: &Profile,
    component: &Component,
    size: usize,
) -> Option<&'static str> {
    let protocol = profile.totals.first()?.load.protocol;
    let at = PROTOCOLS.iter().position(|each| *each == protocol)?;
    let (_, shares) = PAPER_SHARES.iter().find(|(each, _)| each == component)?;
    (kind == ProxyKind::Envoy && size == 100).then_some(shares[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_setup_what_and_median() {
        let mut bench = InsightBench::new(BenchScope::Quick, "nothing is called this");
        bench.run(&mut |_| {});
        assert!(bench.cells.is_empty() && !bench.has_failed());
        bench.cell("one", "figure", vec![3.0, 1.0, 2.004], "us", None);
        bench.cell("one", "no figure", vec![f64::NAN], "us", None);
        let json: serde_json::Value = serde_json::from_str(&bench.json().unwrap()).unwrap();
        assert_eq!(json["cells"][0]["median"], 2.0);
        assert_eq!(json["cells"].as_array().map(Vec::len), Some(1));
        assert!(bench.text().starts_with("one "));
    }
}
