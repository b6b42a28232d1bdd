//! How right profiles and predictions are: cells of setup, what, and median over repetitions, each beside what it is compared
//! with, from the same run.

mod paper;
mod predictions;
mod setups;
mod verdicts;

use std::fmt::Write;
use std::time::Duration;

use provost_insight::profile::{Component, LoadCell, Profile, Protocol, TotalObservation};
use serde::Serialize;

use crate::failure::ProbeFailure;
use crate::load::LoadPace;
use crate::profile::{ProfileOrder, ProfiledProxy, SumCheck, median, take_checked};
use crate::proxies::ProxyKind;
use crate::stop::StopSignal;

use predictions::PredictionTally;
pub use verdicts::{TargetOutcome, TargetVerdict};

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
    /// What the run says about each target.
    pub verdicts: Vec<TargetVerdict>,
    /// Whether the run is whole; why not, where it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partial: Option<String>,
    /// What was predicted and measured, over all parts.
    #[serde(skip)]
    predicted: PredictionTally,
    /// Profiles of Envoy, by protocol, for predictions of many traces.
    #[serde(skip)]
    envoy: Vec<Profile>,
    /// How long they took to take.
    #[serde(skip)]
    envoy_time: Duration,
    #[serde(skip)]
    failed: bool,
    #[serde(skip)]
    scope: BenchScope,
    #[serde(skip)]
    only: String,
    #[serde(skip)]
    stop: StopSignal,
}

/// Sizes at which sums are checked; the targets are about these two.
const CHECKED_SIZES: [usize; 2] = [100, 16384];
const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Http1, Protocol::Grpc];

impl InsightBench {
    /// A bench of the setups whose names contain a text, which ends early by a signal.
    #[must_use]
    pub fn new(scope: BenchScope, only: &str, stop: StopSignal) -> InsightBench {
        InsightBench {
            cells: Vec::new(),
            missing: Vec::new(),
            verdicts: Vec::new(),
            partial: None,
            predicted: PredictionTally::default(),
            envoy: Vec::new(),
            envoy_time: Duration::ZERO,
            failed: false,
            scope,
            only: only.into(),
            stop,
        }
    }

    /// Measures everything, and tells of its progress.
    pub fn run(&mut self, tell: &mut dyn FnMut(&str)) {
        for kind in ProxyKind::BUILT_IN {
            for protocol in PROTOCOLS {
                // A node of Provost stands between clients and servers of gRPC.
                if kind != ProxyKind::Provostd || protocol == Protocol::Grpc {
                    let name = format!("{} {protocol}", kind.name());
                    self.part(&name, tell, |bench, tell| bench.components(kind, protocol, tell));
                }
            }
        }
        self.judge_profile_time();
        self.part("envoy filters", tell, InsightBench::filters);
        self.part("provostd policies", tell, InsightBench::policies);
        self.part("envoy unix sockets", tell, InsightBench::unix_sockets);
        self.part("haproxy splice", tell, InsightBench::splicing);
        for protocol in PROTOCOLS {
            let name = format!("predict envoy {protocol}");
            self.part(&name, tell, |bench, tell| bench.plain_predictions(protocol, tell));
        }
        self.part("predict envoy filters", tell, InsightBench::filter_predictions);
        self.part("predict haproxy http1", tell, InsightBench::haproxy_predictions);
        self.judge_predictions();
        self.part("many traces", tell, |bench, _| bench.many_traces());
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
        if let Err(stopped) = self.stop.check() {
            self.partial = Some(stopped.to_string());
            self.missing.push(format!("{name}: {stopped}"));
            self.failed = true;
            return;
        }
        tell(name);
        if let Err(failure) = measure(self, tell) {
            self.failed |= !matches!(failure, ProbeFailure::Unavailable(_));
            self.missing.push(format!("{name}: {failure}"));
        }
    }

    /// Says of a part that its figures are of less than was planned.
    fn note_partial(&mut self, setup: &str, partial: Option<&String>) {
        if let Some(why) = partial {
            self.failed = true;
            self.missing.push(format!(
                "{setup}, whole: {why}; the figures above are of the rest"
            ));
            self.partial.get_or_insert_with(|| format!("{setup}: {why}"));
        }
    }

    fn repetitions(&self) -> u32 {
        if self.scope == BenchScope::Quick { 8 } else { 15 }
    }

    /// A profile with the sizes alone that targets are about.
    fn brief(&self, kind: ProxyKind, protocol: Protocol) -> ProfileOrder {
        ProfileOrder {
            sizes_bytes: CHECKED_SIZES.to_vec(),
            rates_per_s: vec![],
            in_flight: vec![],
            repetitions: self.repetitions(),
            slice: Duration::from_millis(200),
            stop: self.stop.clone(),
            ..ProfileOrder::of(ProfiledProxy::BuiltIn(kind), vec![protocol])
        }
    }

    fn order(&self, kind: ProxyKind, protocol: Protocol) -> ProfileOrder {
        let usual = ProfileOrder {
            stop: self.stop.clone(),
            ..ProfileOrder::of(ProfiledProxy::BuiltIn(kind), vec![protocol])
        };
        match (self.scope, kind) {
            // As users take it, so that its time is known.
            (BenchScope::Quick, ProxyKind::Envoy) => usual,
            (BenchScope::Quick, _) => self.brief(kind, protocol),
            (BenchScope::Full, _) => ProfileOrder {
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
        let began = std::time::Instant::now();
        let order = self.order(kind, protocol);
        let (profile, mut checks) = take_checked(&order, tell)?;
        checks.retain(|check| check.pace == LoadPace::Saturating);
        let setup = format!("{} {protocol}", kind.name());
        for size in CHECKED_SIZES {
            let name = format!("{setup} {size} B");
            self.component_cells(&name, &profile, |load| {
                load.size_bytes == size as f64 && load.in_flight == 1 && pace(load, &order).is_none()
            });
            self.sum_cells(&name, &checks, size);
        }
        self.load_cells(&setup, &profile, &order);
        self.note_partial(&setup, profile.partial.as_ref());
        if kind == ProxyKind::Envoy {
            self.judge_sums(protocol, &checks);
        }
        if kind == ProxyKind::Envoy && profile.partial.is_none() {
            self.envoy.push(profile);
            self.envoy_time += began.elapsed();
        }
        Ok(())
    }

    fn component_cells(&mut self, setup: &str, profile: &Profile, is_meant: impl Fn(&LoadCell) -> bool) {
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
            let paper = paper::share(setup, &component);
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

    /// What the targets of a profile's own figures say.
    fn judge_sums(&mut self, protocol: Protocol, checks: &[SumCheck]) {
        let per_cent = |part: f64, whole: f64| (part / whole - 1.0) * 100.0;
        for (size, bound) in CHECKED_SIZES.into_iter().zip([5.0, 10.0]) {
            let meant: Vec<&SumCheck> = checks.iter().filter(|check| check.size_bytes == size).collect();
            let of = |figure: &dyn Fn(&SumCheck) -> f64| -> Vec<f64> {
                meant.iter().map(|check| figure(check)).collect()
            };
            let name = |what: &str| format!("envoy {protocol} {size} B: {what} within {bound} %");
            let sums = of(&|check| per_cent(check.sum_us, check.added_us));
            let verdict = TargetVerdict::of_distance(name("sum of components"), &sums, bound, "%");
            self.verdicts.extend(verdict.map(|verdict| TargetVerdict {
                remark: unexplained(&meant),
                ..verdict
            }));
            let name = format!("envoy {protocol} {size} B: processor time within 5 %");
            let cpu = of(&|check| per_cent(check.cpu_sum_us, check.cpu_us));
            let verdict = TargetVerdict::of_distance(name, &cpu, 5.0, "%");
            self.verdicts.extend(verdict.map(|verdict| TargetVerdict {
                remark: unexplained_cpu(&meant),
                ..verdict
            }));
            let name = format!("envoy {protocol} {size} B: rate lost while traced under 10 %");
            let lost = of(&|check| (1.0 - check.rate_share) * 100.0);
            self.verdicts
                .extend(TargetVerdict::of_bound(name, &lost, 10.0, "%"));
        }
    }

    /// Of a profile as users take it: all protocols of Envoy.
    fn judge_profile_time(&mut self) {
        if self.envoy.len() == PROTOCOLS.len() {
            let minutes = self.envoy_time.as_secs_f64() / 60.0;
            let name = "profile of envoy under 10 minutes";
            self.verdicts
                .extend(TargetVerdict::of_bound(name, &[minutes], 10.0, "min"));
        }
    }

    fn sum_cells(&mut self, setup: &str, checks: &[SumCheck], size: usize) {
        let of = |figure: fn(&SumCheck) -> f64| -> Vec<f64> {
            let meant = checks.iter().filter(|check| check.size_bytes == size);
            meant.map(figure).collect()
        };
        self.cell(
            setup,
            "added latency",
            of(|check| check.added_us),
            "us",
            paper::added(setup),
        );
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
    fn load_cells(&mut self, setup: &str, profile: &Profile, order: &ProfileOrder) {
        let mut names: Vec<String> = Vec::new();
        let name = |load: &LoadCell| {
            let (size, in_flight) = (load.size_bytes, load.in_flight);
            match pace(load, order) {
                Some(rate) => format!("{size} B c={in_flight} {rate}/s"),
                None => format!("{size} B c={in_flight}"),
            }
        };
        for total in &profile.totals {
            if !names.contains(&name(&total.load)) {
                names.push(name(&total.load));
            }
        }
        for what in names {
            let of = |figure: fn(&TotalObservation) -> f64| -> Vec<f64> {
                let totals = profile.totals.iter();
                let meant = totals.filter(|total| name(&total.load) == what);
                meant.map(figure).collect()
            };
            let added = of(|total| total.added_latency_us);
            self.cell(setup, format!("added {what}"), added, "us", None);
            let cpu = of(|total| total.added_cpu_us);
            self.cell(setup, format!("cpu {what}"), cpu, "us", None);
        }
        self.growth_cells(setup, profile, order);
    }

    /// How much more the largest message costs that the paper has (figures 10 and 11).
    fn growth_cells(&mut self, setup: &str, profile: &Profile, order: &ProfileOrder) {
        let [small, large] = CHECKED_SIZES.map(|size| size as f64);
        let growth = |figure: fn(&TotalObservation) -> f64| -> Vec<f64> {
            let of_size = |size| {
                let totals = profile.totals.iter();
                totals.filter(move |total| {
                    let load = &total.load;
                    load.size_bytes == size && load.in_flight == 1 && pace(load, order).is_none()
                })
            };
            let pairs = of_size(large).filter_map(|more| {
                let less = of_size(small).find(|less| less.repetition == more.repetition)?;
                Some((figure(more) / figure(less) - 1.0) * 100.0)
            });
            pairs.collect()
        };
        let paper = setup.ends_with("http1").then_some(paper::GROWTH);
        let latency = growth(|total| total.added_latency_us);
        let [of_latency, of_cpu] = [0, 1].map(|at| paper.map(|growth| growth[at]));
        self.cell(setup, "added, 16 KiB over 100 B", latency, "%", of_latency);
        let cpu = growth(|total| total.added_cpu_us);
        self.cell(setup, "cpu, 16 KiB over 100 B", cpu, "%", of_cpu);
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
        for verdict in &self.verdicts {
            let _ = writeln!(text, "{verdict}");
        }
        if let Some(why) = &self.partial {
            let _ = writeln!(text, "partial: {why}");
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

/// What the sum of the components leaves open, and how much of that is not there when both sides are traced: then tracing
/// has made the path longer or shorter by more than what is subtracted for it.
fn unexplained(checks: &[&SumCheck]) -> String {
    let of = |figure: fn(&SumCheck) -> f64| {
        let figures = checks.iter().map(|check| figure(check));
        median(figures.collect()).unwrap_or(f64::NAN)
    };
    format!(
        "unexplained {:+.1} of {:.1} us, of which {:+.1} also when both are traced; others used {:.2} cores",
        of(|check| check.added_us - check.sum_us),
        of(|check| check.added_us),
        of(|check| check.traced_added_us - check.traced_sum_us),
        of(|check| check.foreign_cores)
    )
}

/// What the events leave open of the scheduler's count, and what of that is known.
fn unexplained_cpu(checks: &[&SumCheck]) -> String {
    let of = |figure: fn(&SumCheck) -> f64| {
        let figures = checks.iter().map(|check| figure(check));
        median(figures.collect()).unwrap_or(f64::NAN)
    };
    format!(
        "unexplained {:+.1} of {:.1} us; {:+.1} of it in threads without an event, interrupts and the hypervisor explain {:+.1} at most, {} events were lost; \
         others used {:.2} cores",
        of(|check| check.cpu_us - check.cpu_sum_us),
        of(|check| check.cpu_us),
        of(|check| check.cpu_unseen_us),
        -of(|check| check.unscheduled_us),
        checks.iter().map(|check| check.events_lost).sum::<u64>(),
        of(|check| check.foreign_cores)
    )
}

/// The pace at which calls were made in a cell; `None` where they were made as fast as they could.
fn pace(load: &LoadCell, order: &ProfileOrder) -> Option<f64> {
    const NEAR: f64 = 0.1;
    let mut paces = order.rates_per_s.iter().copied();
    paces.find(|pace| load.in_flight == 1 && (load.rate_per_s / pace - 1.0).abs() < NEAR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_setup_what_and_median() {
        let mut bench = InsightBench::new(BenchScope::Quick, "nothing is called this", StopSignal::never());
        bench.run(&mut |_| {});
        assert!(bench.cells.is_empty() && !bench.has_failed());
        bench.cell("one", "figure", vec![3.0, 1.0, 2.004], "us", None);
        bench.cell("one", "no figure", vec![f64::NAN], "us", None);
        let json: serde_json::Value = serde_json::from_str(&bench.json().unwrap()).unwrap();
        assert_eq!(json["cells"][0]["median"], 2.0);
        assert_eq!(json["cells"].as_array().map(Vec::len), Some(1));
        assert!(bench.text().starts_with("one "));
    }

    #[test]
    fn a_missed_sum_of_processor_time_says_what_is_known_of_the_rest() {
        let check = |cpu_sum_us| SumCheck {
            protocol: Protocol::Http1,
            size_bytes: 100,
            pace: LoadPace::Saturating,
            sum_us: 50.0,
            added_us: 50.0,
            traced_added_us: 60.0,
            traced_sum_us: 60.0,
            cpu_sum_us,
            cpu_us: 80.0,
            cpu_unseen_us: 2.5,
            unscheduled_us: 1.5,
            events_lost: 7,
            rate_share: 0.95,
            foreign_cores: 0.25,
        };
        let mut bench = InsightBench::new(BenchScope::Quick, "", StopSignal::never());
        bench.judge_sums(Protocol::Http1, &[70.0, 71.0, 72.0].map(check));
        let judged = bench
            .verdicts
            .iter()
            .find(|one| one.target.contains("100 B: processor time") && one.outcome == TargetOutcome::Missed);
        let says = "unexplained +9.0 of 80.0 us; +2.5 of it in threads without an event, interrupts and the hypervisor explain -1.5 at \
                    most, 21 events were lost; others used 0.25 cores";
        assert_eq!(judged.unwrap().remark, says);
    }
}
