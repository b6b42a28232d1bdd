//! What a mesh would have cost each of many traces (MeshInsight, section 6.1 and figure 12). Each trace has its own critical
//! path, taken from its own times; nothing is merged and nothing is played.

use std::collections::HashMap;

use serde::Serialize;

use crate::acg::Amount;
use crate::fit::quantile;
use crate::model::{ModelError, PassageLoad, ProfileModel};
use crate::predict::{Interval, MeshSetup, ProxyPlacement};
use crate::profile::Protocol;
use crate::traces::{CallTree, TraceForest};

/// Figures that are kept at a time: traces times draws.
const FIGURES_MAX: usize = 64 << 20;
/// The shares of traces that are told.
const SHARES: [f64; 6] = [0.1, 0.25, 0.5, 0.75, 0.9, 0.99];

/// What traces do not say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForestOptions {
    /// Size of requests of which the trace does not say it.
    pub request_bytes: f64,
    /// Size of responses of which the trace does not say it.
    pub response_bytes: f64,
    /// What calls speak of which the trace does not say it.
    pub protocol: Protocol,
    /// Calls per second at every proxy.
    pub rate_per_s: f64,
}

/// A figure of a share of all traces.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ShareFigure {
    /// The share of traces that have at most this.
    pub share: f64,
    pub figure: Interval,
}

/// What a mesh would have cost the traces.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ForestPrediction {
    pub setup: String,
    pub traces: usize,
    /// Calls in them.
    pub calls: usize,
    /// Calls that pass proxies with sizes or at a rate beyond what was profiled.
    pub extrapolated_calls: usize,
    /// Added latency of a trace, over traces.
    pub added_us: Vec<ShareFigure>,
    /// Processor time of a trace, over traces.
    pub cpu_us: Vec<ShareFigure>,
    /// Draws behind the intervals.
    pub draws: usize,
    /// What a reader should know.
    pub warnings: Vec<String>,
}

/// Predicts for each trace alone.
///
/// # Errors
/// If the profile does not know what a call speaks.
pub fn predict_forest(
    forest: &TraceForest,
    model: &ProfileModel,
    setup: &MeshSetup,
    options: &ForestOptions,
) -> Result<ForestPrediction, ModelError> {
    let draws = model
        .draw_count()
        .min((FIGURES_MAX / forest.trees.len().max(1)).max(1));
    let mut costs = CallCosts {
        model,
        setup,
        options,
        draws,
        known: HashMap::new(),
    };
    let mut added = vec![Vec::with_capacity(forest.trees.len()); draws];
    let mut cpu = vec![Vec::with_capacity(forest.trees.len()); draws];
    let mut sums = vec![(0.0, 0.0); draws];
    let mut path = CriticalPath::default();
    let (mut extrapolated_calls, mut opaque_calls) = (0, 0);
    for tree in &forest.trees {
        sums.fill((0.0, 0.0));
        path.find(tree);
        for (at, call) in tree.calls.iter().enumerate() {
            let passages = match (setup.placement, call.parent) {
                (ProxyPlacement::Absent, _) => 0.0,
                (ProxyPlacement::BeforeServices, _) | (_, None) => 1.0,
                (_, Some(_)) => 2.0,
            };
            let on_path = f64::from(u8::from(path.is_critical[at]));
            let load = (
                setup.mode.or(call.protocol).unwrap_or(options.protocol),
                call.request_bytes.unwrap_or(options.request_bytes),
                call.response_bytes.unwrap_or(options.response_bytes),
            );
            opaque_calls += usize::from(load.0 == Protocol::Tcp);
            let cost = costs.of(load)?;
            extrapolated_calls += usize::from(cost.is_extrapolated);
            for (sum, cost) in sums.iter_mut().zip(&cost.draws) {
                sum.0 += passages * on_path * cost.0;
                sum.1 += passages * cost.1;
            }
        }
        for (draw, sum) in sums.iter().enumerate() {
            added[draw].push(sum.0);
            cpu[draw].push(sum.1);
        }
    }
    let mut predicted = ForestPrediction {
        setup: setup.name.clone(),
        traces: forest.trees.len(),
        calls: forest.trees.iter().map(|tree| tree.calls.len()).sum(),
        extrapolated_calls,
        added_us: share_figures(added),
        cpu_us: share_figures(cpu),
        draws: draws - 1,
        warnings: Vec::new(),
    };
    predicted.warn(opaque_calls, model, setup);
    Ok(predicted)
}

impl ForestPrediction {
    fn warn(&mut self, opaque_calls: usize, model: &ProfileModel, setup: &MeshSetup) {
        let calls = self.calls;
        let filters = &setup.filters_added;
        if opaque_calls > 0 && !filters.is_empty() && setup.placement != ProxyPlacement::Absent {
            let names = filters.join(", ");
            self.warnings.push(format!(
                "with tcp, filters do not run: {names} left out of {opaque_calls} of {calls} calls"
            ));
        }
        if self.extrapolated_calls > 0 {
            self.warnings.push(format!(
                "extrapolated: {} of {calls} calls have sizes, or a rate, beyond what was profiled",
                self.extrapolated_calls
            ));
        }
        let asked = model.draw_count() - 1;
        if self.draws < asked {
            self.warnings.push(format!(
                "so many traces have room for {} draws: intervals come from these, not from {asked}",
                self.draws
            ));
        }
    }
}

fn share_figures(mut by_draw: Vec<Vec<f64>>) -> Vec<ShareFigure> {
    by_draw
        .iter_mut()
        .for_each(|values| values.sort_by(f64::total_cmp));
    SHARES
        .into_iter()
        .map(|share| {
            let values: Vec<f64> = by_draw.iter().map(|values| quantile(values, share)).collect();
            ShareFigure {
                share,
                figure: Interval::of_draws(values[0], &values[1..]),
            }
        })
        .collect()
}

/// What one passage costs.
struct PassageCost {
    /// Latency and processor time, in each draw.
    draws: Vec<(f64, f64)>,
    is_extrapolated: bool,
}

struct CallCosts<'a> {
    model: &'a ProfileModel,
    setup: &'a MeshSetup,
    options: &'a ForestOptions,
    draws: usize,
    known: HashMap<(Protocol, u64, u64), PassageCost>,
}

impl CallCosts<'_> {
    fn of(
        &mut self,
        (protocol, request_bytes, response_bytes): (Protocol, f64, f64),
    ) -> Result<&PassageCost, ModelError> {
        let key = (protocol, request_bytes.to_bits(), response_bytes.to_bits());
        if !self.known.contains_key(&key) {
            // Sizes that differ in every call must not fill the memory.
            const KNOWN_MAX: usize = 10_000;
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
            let cost = self.cost(protocol, request_bytes, response_bytes)?;
            self.known.insert(key, cost);
        }
        Ok(&self.known[&key])
    }

    fn cost(
        &self,
        protocol: Protocol,
        request_bytes: f64,
        response_bytes: f64,
    ) -> Result<PassageCost, ModelError> {
        if self.setup.placement == ProxyPlacement::Absent {
            return Ok(PassageCost {
                draws: vec![(0.0, 0.0); self.draws],
                is_extrapolated: false,
            });
        }
        let load = PassageLoad {
            protocol,
            filters: match protocol {
                Protocol::Tcp => Vec::new(),
                _ => self.setup.filters_added.clone(),
            },
            request_bytes: Amount::Fixed(request_bytes),
            response_bytes: Amount::Fixed(response_bytes),
            rate_per_s: self.options.rate_per_s,
        };
        let components = self.model.passage_costs(&load, &self.setup.changes)?;
        let whole = |draw: usize| {
            components.iter().fold((0.0, 0.0), |(latency, cpu), (_, costs)| {
                (latency + costs[draw].latency_us, cpu + costs[draw].cpu_us)
            })
        };
        Ok(PassageCost {
            draws: (0..self.draws).map(whole).collect(),
            is_extrapolated: !self.model.beyond_observed(&load, &self.setup.changes).is_empty(),
        })
    }
}

/// The calls of a trace that its duration depends on, by its own times: within a call the one that ended last, before it the
/// one that ended last before that one began, and so on; then the same within each of them.
#[derive(Debug, Default)]
pub struct CriticalPath {
    /// For each call of the tree.
    pub is_critical: Vec<bool>,
    children: Vec<Vec<usize>>,
    left: Vec<usize>,
}

impl CriticalPath {
    /// Finds the path of a tree.
    pub fn find(&mut self, tree: &CallTree) {
        // Rounded times make calls that follow each other seem to overlap a little.
        const ROUNDING_US: f64 = 1.0;
        self.is_critical.clear();
        self.is_critical.resize(tree.calls.len(), false);
        self.children.iter_mut().for_each(Vec::clear);
        self.children
            .resize(self.children.len().max(tree.calls.len()), Vec::new());
        for (at, call) in tree.calls.iter().enumerate() {
            match call.parent {
                Some(parent) if !call.detached => self.children[parent as usize].push(at),
                _ => {}
            }
        }
        self.left.clear();
        if !tree.calls.is_empty() {
            self.left.push(0);
        }
        while let Some(at) = self.left.pop() {
            self.is_critical[at] = true;
            let end = |child: &usize| tree.calls[*child].end_us();
            self.children[at].sort_by(|left, right| end(right).total_cmp(&end(left)));
            let mut before = f64::INFINITY;
            for child in &self.children[at] {
                if end(child) <= before + ROUNDING_US {
                    before = tree.calls[*child].start_us;
                    self.left.push(*child);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::MachineMatch;
    use crate::synthetic::{SyntheticProxy, synthetic_alibaba_rows, synthetic_profile};
    use crate::traces::{TraceFormat, assemble, read};

    const OPTIONS: ForestOptions = ForestOptions {
        request_bytes: 100.0,
        response_bytes: 100.0,
        protocol: Protocol::Grpc,
        rate_per_s: 1000.0,
    };

    fn forest(text: &str) -> TraceForest {
        assemble(read(text, TraceFormat::Alibaba).unwrap())
    }

    /// What a mesh with such proxies costs these traces, by a profile that is known beforehand.
    fn predicted(forest: &TraceForest, placement: ProxyPlacement) -> ForestPrediction {
        predicted_with(forest, placement, &OPTIONS)
    }

    fn predicted_with(
        forest: &TraceForest,
        placement: ProxyPlacement,
        options: &ForestOptions,
    ) -> ForestPrediction {
        let profile = synthetic_profile(&SyntheticProxy::example(), 5, 1);
        let model = ProfileModel::new(&profile, MachineMatch::Same, 20, 1).unwrap();
        predict_forest(forest, &model, &MeshSetup::new("m", placement), options).unwrap()
    }

    #[test]
    fn each_trace_has_its_own_critical_path() {
        let text = "\
traceid,timestamp,rpcid,um,rpctype,dm,interface,rt
t,1000,0,USER,rpc,a,i,100
t,1010,0.1,a,rpc,b,i,20
t,1040,0.2,a,rpc,c,i,50
t,1040,0.3,a,rpc,d,i,10
";
        let forest = forest(text);
        let mut path = CriticalPath::default();
        path.find(&forest.trees[0]);
        let names: Vec<&str> = forest.trees[0]
            .calls
            .iter()
            .zip(&path.is_critical)
            .filter(|(_, critical)| **critical)
            .map(|(call, _)| forest.names.name(call.service))
            .collect();
        assert_eq!((names.len(), names.contains(&"d")), (3, false), "{names:?}");
        let found = predicted(&forest, ProxyPlacement::Sidecars);
        let truth = SyntheticProxy::example().round_trip_us(Protocol::Grpc, 100.0, 100.0, &[]);
        // One proxy for the request, two for each call; the path has two of the three calls.
        let median = found.added_us[2].figure;
        assert!(
            (median.value / (5.0 * truth) - 1.0).abs() < 0.05,
            "{median:?} {truth}"
        );
        assert!((found.cpu_us[2].figure.value / (1.3 * 7.0 * truth) - 1.0).abs() < 0.05);
    }

    #[test]
    fn many_traces_are_predicted_with_their_spread() {
        let forest = forest(&synthetic_alibaba_rows(300, 12.0, 7));
        assert_eq!(forest.trees.len(), 300);
        let found = predicted(&forest, ProxyPlacement::Sidecars);
        assert!(
            found
                .added_us
                .is_sorted_by(|left, right| left.figure.value <= right.figure.value)
        );
        let none = predicted(&forest, ProxyPlacement::Absent);
        assert!(none.cpu_us.iter().all(|one| one.figure.value == 0.0));
    }

    #[test]
    fn calls_beyond_the_profile_are_counted() {
        let forest = forest(&synthetic_alibaba_rows(30, 5.0, 7));
        // Profiled to 5,000 calls a second, and to 64 KiB.
        let faster = ForestOptions {
            rate_per_s: 9000.0,
            ..OPTIONS
        };
        let larger = ForestOptions {
            response_bytes: 1e6,
            ..OPTIONS
        };
        let count = |placement, options: &ForestOptions| predicted_with(&forest, placement, options);
        let within = count(ProxyPlacement::Sidecars, &OPTIONS);
        assert_eq!((within.extrapolated_calls, within.warnings), (0, vec![]));
        for options in [faster, larger] {
            let beyond = count(ProxyPlacement::Sidecars, &options);
            assert_eq!(beyond.extrapolated_calls, beyond.calls);
            assert!(
                beyond.warnings[0].starts_with("extrapolated: "),
                "{:?}",
                beyond.warnings
            );
            let absent = count(ProxyPlacement::Absent, &options);
            assert_eq!(absent.extrapolated_calls, 0);
        }
    }

    #[test]
    fn filters_that_opaque_bytes_pass_by_are_named() {
        let forest = forest(&synthetic_alibaba_rows(30, 5.0, 7));
        let profile = synthetic_profile(&SyntheticProxy::example(), 5, 1);
        let model = ProfileModel::new(&profile, MachineMatch::Same, 5, 1).unwrap();
        let warnings = |mode, placement| {
            let setup = MeshSetup {
                mode: Some(mode),
                filters_added: vec!["lua".into()],
                ..MeshSetup::new("m", placement)
            };
            predict_forest(&forest, &model, &setup, &OPTIONS)
                .unwrap()
                .warnings
        };
        let opaque = warnings(Protocol::Tcp, ProxyPlacement::Sidecars);
        assert!(
            opaque[0].starts_with("with tcp, filters do not run: lua left out of "),
            "{opaque:?}"
        );
        assert_eq!(warnings(Protocol::Grpc, ProxyPlacement::Sidecars), [""; 0]);
        assert_eq!(warnings(Protocol::Tcp, ProxyPlacement::Absent), [""; 0]);
    }
}
