//! What was predicted beside what was measured, and how long many predictions take.

use std::collections::BTreeMap;
use std::time::Instant;

use provost_insight::forest::{ForestOptions, predict_forest};
use provost_insight::model::{MachineMatch, ProfileModel};
use provost_insight::predict::{MeshSetup, ProxyPlacement};
use provost_insight::profile::Protocol;
use provost_insight::synthetic::synthetic_alibaba_rows;
use provost_insight::traces::{TraceFormat, assemble, read};

use super::{InsightBench, TargetVerdict, paper};
use crate::application::ApplicationShape;
use crate::failure::ProbeFailure;
use crate::profile::{ProfileOrder, median};
use crate::proxies::ProxyKind;
use crate::validate::{ValidatedApplication, ValidationOrder, validate};

/// Sizes of the applications' messages.
const SIZES: [usize; 2] = [100, 4096];
/// Calls per second with which proxies are profiled as well: in an application each waits for the others, so that calls pass it
/// at less than its highest rate, and cost something else.
const RATES: [f64; 2] = [500.0, 2000.0];
/// Draws behind each interval of a prediction.
const DRAWS: usize = 200;
/// The target's number of traces, their calls on average, and the draws of each.
const TRACES: usize = 50_000;
const CALLS_PER_TRACE: f64 = 12.0;
const TRACE_DRAWS: usize = 50;

/// What came of the predictions of all parts of a run.
#[derive(Debug, Default)]
pub(super) struct PredictionTally {
    latency_errors: Vec<f64>,
    cpu_errors: Vec<f64>,
    covered: usize,
    /// Applications whose calls run one after the other.
    sequential_errors: Vec<f64>,
    /// Cores' worth of others' work meanwhile, for each part of a run.
    foreign_cores: Vec<f64>,
    latency_left: LeftOpen,
    cpu_left: LeftOpen,
}

/// What predictions leave open of what was measured, in microseconds.
#[derive(Debug, Default)]
struct LeftOpen {
    /// Measured, and measured less predicted, of each application.
    measured_us: Vec<f64>,
    missing_us: Vec<f64>,
    /// Measured less predicted of a passage's parts.
    parts_us: BTreeMap<String, Vec<f64>>,
}

impl LeftOpen {
    fn count(&mut self, measured_us: f64, predicted_us: f64) {
        self.measured_us.push(measured_us);
        self.missing_us.push(measured_us - predicted_us);
    }

    fn count_part(&mut self, component: &str, missing_us: f64) {
        self.parts_us
            .entry(component.to_owned())
            .or_default()
            .push(missing_us);
    }

    /// What is open, and in which parts of a passage, those with the most first.
    fn remark(&self) -> String {
        let middle = |values: &[f64]| median(values.to_vec()).unwrap_or(f64::NAN);
        let mut parts: Vec<(&String, f64)> = self
            .parts_us
            .iter()
            .map(|(name, missing)| (name, middle(missing)))
            .collect();
        parts.sort_by(|left, right| right.1.abs().total_cmp(&left.1.abs()));
        let parts: Vec<String> = parts
            .iter()
            .map(|(name, us)| format!("{name} {us:+.1}"))
            .collect();
        let where_it_is = if parts.is_empty() {
            "; nothing was traced, so nobody knows where".to_owned()
        } else {
            format!("; of each passage {}", parts.join(", "))
        };
        format!(
            "unexplained {:+.1} of {:.1} us a request{where_it_is} (medians)",
            middle(&self.missing_us),
            middle(&self.measured_us)
        )
    }
}

impl PredictionTally {
    fn count(&mut self, shape: ApplicationShape, one: &ValidatedApplication) {
        self.latency_errors.push(one.latency_error.abs() * 100.0);
        self.cpu_errors.push(one.cpu_error.abs() * 100.0);
        self.covered += usize::from(one.is_covered);
        self.latency_left
            .count(one.measured_added_us, one.predicted_added_us.value);
        self.cpu_left
            .count(one.measured_cpu_us, one.predicted_cpu_us.value);
        for part in &one.passage {
            let missing_us = part.measured_us - part.predicted_us;
            self.latency_left.count_part(&part.component, missing_us);
            let missing_us = part.measured_cpu_us - part.predicted_cpu_us;
            self.cpu_left.count_part(&part.component, missing_us);
        }
        if shape == ApplicationShape::Chain {
            self.sequential_errors.push(one.latency_error.abs() * 100.0);
        }
    }
}

impl InsightBench {
    /// Applications of every shape and size behind Envoy (figure 8).
    pub(super) fn plain_predictions(
        &mut self,
        protocol: Protocol,
        tell: &mut dyn FnMut(&str),
    ) -> Result<(), ProbeFailure> {
        let profile = ProfileOrder {
            sizes_bytes: vec![100, 1024, 4096],
            rates_per_s: RATES.to_vec(),
            ..self.brief(ProxyKind::Envoy, protocol)
        };
        self.predictions(&format!("predict envoy {protocol}"), profile, &SIZES, tell)
    }

    /// The same, with filters that are in no profile together.
    pub(super) fn filter_predictions(&mut self, tell: &mut dyn FnMut(&str)) -> Result<(), ProbeFailure> {
        let profile = ProfileOrder {
            sizes_bytes: vec![100],
            rates_per_s: RATES.to_vec(),
            filters: vec!["lua".into(), "rbac".into()],
            ..self.brief(ProxyKind::Envoy, Protocol::Http1)
        };
        self.predictions("predict envoy http1 lua rbac", profile, &SIZES[..1], tell)
    }

    /// Another proxy than Envoy, with the same applications.
    pub(super) fn haproxy_predictions(&mut self, tell: &mut dyn FnMut(&str)) -> Result<(), ProbeFailure> {
        let profile = ProfileOrder {
            sizes_bytes: vec![100, 1024],
            rates_per_s: RATES.to_vec(),
            ..self.brief(ProxyKind::Haproxy, Protocol::Http1)
        };
        self.predictions("predict haproxy http1", profile, &SIZES[..1], tell)
    }

    fn predictions(
        &mut self,
        setup: &str,
        profile: ProfileOrder,
        sizes: &[usize],
        tell: &mut dyn FnMut(&str),
    ) -> Result<(), ProbeFailure> {
        let order = ValidationOrder {
            profile,
            shapes: ApplicationShape::ALL.to_vec(),
            sizes_bytes: sizes.to_vec(),
            draws: DRAWS,
        };
        let (report, _) = validate(&order, tell)?;
        self.note_partial(setup, report.partial.as_ref());
        self.predicted.foreign_cores.push(report.foreign_cores);
        for one in &report.applications {
            self.predicted.count(one.shape, one);
            let name = &one.name;
            let mut single = |what: &str, value: f64, unit, paper| {
                self.cell(setup, format!("{name}: {what}"), vec![value], unit, paper);
            };
            single("measured added", one.measured_added_us, "us", None);
            single("predicted added", one.predicted_added_us.value, "us", None);
            single("interval from", one.predicted_added_us.low, "us", None);
            single("interval to", one.predicted_added_us.high, "us", None);
            let error = one.latency_error * 100.0;
            single("latency error", error, "%", Some(paper::PREDICTIONS));
            single("measured cpu", one.measured_cpu_us, "us", None);
            single("predicted cpu", one.predicted_cpu_us.value, "us", None);
            single("cpu error", one.cpu_error * 100.0, "%", Some(paper::PREDICTIONS));
            for part in &one.passage {
                let component = &part.component;
                for (what, value) in [
                    ("predicted", part.predicted_us),
                    ("traced", part.measured_us),
                    ("cpu predicted", part.predicted_cpu_us),
                    ("cpu measured", part.measured_cpu_us),
                ] {
                    single(&format!("a passage's {component} {what}"), value, "us", None);
                }
            }
        }
        let covered = vec![report.latency_covered_share * 100.0];
        self.cell(setup, "within the 90 % interval", covered, "%", None);
        let foreign = vec![report.foreign_cores];
        self.cell(setup, "cores of others meanwhile", foreign, "cores", None);
        Ok(())
    }

    /// What the targets of predictions say, over all applications of the run.
    pub(super) fn judge_predictions(&mut self) {
        let PredictionTally {
            latency_errors,
            cpu_errors,
            covered,
            sequential_errors,
            foreign_cores,
            latency_left,
            cpu_left,
        } = &self.predicted;
        let foreign = median(foreign_cores.clone()).unwrap_or_default();
        let errors = [
            (
                "predicted added latency: median error within 5 %",
                latency_errors,
                latency_left.remark(),
            ),
            (
                "predicted added latency of chains alone: median error within 5 %",
                sequential_errors,
                String::new(),
            ),
            (
                "predicted processor time: median error within 5 %",
                cpu_errors,
                cpu_left.remark(),
            ),
        ];
        let errors = errors.into_iter().map(|(target, errors, remark)| {
            let verdict = TargetVerdict::of_bound(target, errors, 5.0, "%")?;
            Some(TargetVerdict { remark, ..verdict })
        });
        let covered = TargetVerdict::of_share(
            "measured latencies within their 90 % intervals: 85 to 97 %",
            *covered,
            latency_errors.len(),
            (85.0, 97.0),
        );
        let remarked = errors.chain([covered]).flatten().map(|mut verdict| {
            let separator = if verdict.remark.is_empty() { "" } else { "; " };
            verdict.remark += &format!("{separator}others used {foreign:.2} cores");
            verdict
        });
        self.verdicts.extend(remarked);
    }

    /// Each of many traces, with the profiles that this run has taken (figure 12). The traces are made up in the layout of
    /// Alibaba's: theirs are not to be had here.
    pub(super) fn many_traces(&mut self) -> Result<(), ProbeFailure> {
        let text = synthetic_alibaba_rows(TRACES, CALLS_PER_TRACE, 1);
        let invalid = |error: &dyn std::fmt::Display| ProbeFailure::Invalid(error.to_string());
        let profiles = std::mem::take(&mut self.envoy);
        if profiles.is_empty() {
            return Err(ProbeFailure::Unavailable("no profile of Envoy was taken".into()));
        }
        for profile in &profiles {
            let began = Instant::now();
            let spans = read(&text, TraceFormat::Alibaba).map_err(|error| invalid(&error))?;
            let forest = assemble(spans);
            let model = ProfileModel::new(profile, MachineMatch::Same, TRACE_DRAWS, 1)
                .map_err(|error| invalid(&error))?;
            let protocol = profile
                .totals
                .first()
                .map_or(Protocol::Tcp, |total| total.load.protocol);
            let setup = MeshSetup {
                mode: Some(protocol),
                ..MeshSetup::new("sidecars", ProxyPlacement::Sidecars)
            };
            let options = ForestOptions {
                request_bytes: 100.0,
                response_bytes: 100.0,
                protocol,
                rate_per_s: 1000.0,
            };
            let predicted =
                predict_forest(&forest, &model, &setup, &options).map_err(|error| invalid(&error))?;
            let seconds = began.elapsed().as_secs_f64();
            let paper = match protocol {
                Protocol::Tcp => Some(paper::TRACES[0]),
                Protocol::Grpc => Some(paper::TRACES[1]),
                _ => None,
            };
            let name = format!("{TRACES} traces envoy {protocol}");
            for (figures, what) in [(&predicted.added_us, "added latency"), (&predicted.cpu_us, "cpu")] {
                for one in figures {
                    let what = format!("{what} of {:.0} % is at most", one.share * 100.0);
                    let paper = paper.filter(|_| one.share == 0.5 && figures == &predicted.added_us);
                    self.cell(&name, what, vec![one.figure.value], "us", paper);
                }
            }
            self.cell(&name, "read and predicted, one thread", vec![seconds], "s", None);
            let target = format!("{name}: under 60 s on one core");
            self.verdicts
                .extend(TargetVerdict::of_bound(target, &[seconds], 60.0, "s"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_predictions_leave_open_is_said_with_the_parts_in_which_it_is() {
        let mut left = LeftOpen::default();
        assert!(left.remark().contains("nobody knows where"));
        for (measured, predicted) in [(100.0, 80.0), (110.0, 80.0), (300.0, 260.0)] {
            left.count(measured, predicted);
            left.count_part("read", 1.0);
            left.count_part("user", predicted - measured);
        }
        assert_eq!(
            left.remark(),
            "unexplained +30.0 of 110.0 us a request; of each passage user -30.0, read +1.0 (medians)"
        );
    }

    #[test]
    fn verdicts_of_predictions_have_remarks() {
        let mut bench = InsightBench::new(crate::bench::BenchScope::Quick, "", crate::StopSignal::never());
        bench.predicted.cpu_errors = vec![20.0, 21.0];
        bench.predicted.cpu_left.count(100.0, 80.0);
        bench.judge_predictions();
        let [verdict] = &bench.verdicts[..] else {
            panic!("{:?}", bench.verdicts)
        };
        assert!(
            verdict.target.contains("processor time")
                && verdict.remark.contains("unexplained +20.0 of 100.0"),
            "{verdict}"
        );
    }
}
