//! What-ifs, comparisons of setups, and budgets.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::acg::CallGraph;
use crate::model::{ComponentFactor, ProfileModel};
use crate::predict::{
    DrawnStatistic, Interval, MeshSetup, PredictError, PredictOptions, Prediction, ProxyPlacement, predict,
};
use crate::profile::{Component, Protocol};

/// Something that could be otherwise.
///
/// As text: `filter+NAME`, `filter-NAME`, `mode=PROTOCOL`, `unix-sockets`, `zero-copy`, `per-node`, `COMPONENT/FACTOR`.
#[derive(Clone, Debug, PartialEq)]
pub enum SetupChange {
    /// Every proxy runs another filter.
    AddFilter(String),
    /// No proxy runs a filter.
    RemoveFilter(String),
    Mode(Protocol),
    /// Components are as they were measured in a variant.
    Variant(String),
    /// One proxy on every node instead of one beside every service.
    PerNode,
    /// A component is so many times faster.
    Faster(Component, f64),
}

/// A text that is no change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is no change: write filter+NAME, filter-NAME, mode=tcp|http1|http2|grpc|provost, unix-sockets, zero-copy, per-node, \
     or COMPONENT/FACTOR such as parse/2"
)]
pub struct UnknownChange(pub String);

impl FromStr for SetupChange {
    type Err = UnknownChange;

    fn from_str(text: &str) -> Result<SetupChange, UnknownChange> {
        let unknown = || UnknownChange(text.chars().take(80).collect());
        let named = |name: &str| {
            if name.is_empty() {
                Err(unknown())
            } else {
                Ok(name.to_owned())
            }
        };
        match text {
            "unix-sockets" => return Ok(SetupChange::Variant("unix_sockets".to_owned())),
            "zero-copy" => return Ok(SetupChange::Variant("zero_copy".to_owned())),
            "per-node" => return Ok(SetupChange::PerNode),
            _ => {}
        }
        if let Some((component, factor)) = text.rsplit_once('/') {
            let component = component.parse().map_err(|_| unknown())?;
            let factor = factor
                .parse()
                .ok()
                .filter(|factor: &f64| *factor > 0.0 && factor.is_finite());
            return Ok(SetupChange::Faster(component, factor.ok_or_else(unknown)?));
        }
        if let Some(name) = text.strip_prefix("filter+") {
            return Ok(SetupChange::AddFilter(named(name)?));
        }
        if let Some(name) = text.strip_prefix("filter-") {
            return Ok(SetupChange::RemoveFilter(named(name)?));
        }
        let mode = text.strip_prefix("mode=").ok_or_else(unknown)?;
        let mode = Protocol::ALL.into_iter().find(|protocol| protocol.name() == mode);
        mode.map(SetupChange::Mode).ok_or_else(unknown)
    }
}

impl fmt::Display for SetupChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetupChange::AddFilter(name) => write!(f, "filter+{name}"),
            SetupChange::RemoveFilter(name) => write!(f, "filter-{name}"),
            SetupChange::Mode(protocol) => write!(f, "mode={protocol}"),
            SetupChange::Variant(name) => f.write_str(&name.replace('_', "-")),
            SetupChange::PerNode => f.write_str("per-node"),
            SetupChange::Faster(component, factor) => write!(f, "{component}/{factor}"),
        }
    }
}

impl SetupChange {
    /// The setup with this change.
    #[must_use]
    pub fn applied_to(&self, setup: &MeshSetup) -> MeshSetup {
        let mut changed = setup.clone();
        changed.name = self.to_string();
        match self {
            SetupChange::AddFilter(name) => changed.filters_added.push(name.clone()),
            SetupChange::RemoveFilter(name) => {
                changed.filters_added.retain(|added| added != name);
                changed.filters_removed.push(name.clone());
            }
            SetupChange::Mode(protocol) => changed.mode = Some(*protocol),
            SetupChange::Variant(name) => changed.changes.variants.insert(0, name.clone()),
            SetupChange::PerNode => changed.placement = ProxyPlacement::PerNode,
            SetupChange::Faster(component, factor) => changed.changes.factors.push(ComponentFactor {
                component: component.clone(),
                factor: 1.0 / factor,
            }),
        }
        changed
    }
}

/// The changes that make sense for a graph and a profile, when none is asked for: each filter removed, each component twice
/// as fast, and proxies that only carry bytes.
#[must_use]
pub fn usual_changes(graph: &CallGraph, model: &ProfileModel, setup: &MeshSetup) -> Vec<SetupChange> {
    let mut filters: Vec<&String> = graph
        .services
        .iter()
        .flat_map(|service| &service.filters)
        .collect();
    filters.extend(
        graph
            .requests
            .iter()
            .flat_map(|request| request.calls.iter().flat_map(|call| &call.filters)),
    );
    filters.extend(&setup.filters_added);
    filters.sort();
    filters.dedup();
    filters.retain(|filter| !setup.filters_removed.contains(filter));
    let mut changes: Vec<SetupChange> = filters
        .into_iter()
        .map(|name| SetupChange::RemoveFilter(name.clone()))
        .collect();
    let spoken = protocols(graph, setup);
    let components: std::collections::BTreeSet<Component> = spoken
        .iter()
        .flat_map(|protocol| model.components(*protocol))
        .collect();
    let fixed = components
        .into_iter()
        .filter(|component| !matches!(component, Component::Filter(_)));
    changes.extend(fixed.map(|component| SetupChange::Faster(component, 2.0)));
    if !spoken.contains(&Protocol::Tcp) && !model.components(Protocol::Tcp).is_empty() {
        changes.push(SetupChange::Mode(Protocol::Tcp));
    }
    changes
}

fn protocols(graph: &CallGraph, setup: &MeshSetup) -> Vec<Protocol> {
    if let Some(mode) = setup.mode {
        return vec![mode];
    }
    let mut spoken: Vec<Protocol> = graph
        .requests
        .iter()
        .flat_map(|request| request.calls.iter().map(|call| call.protocol))
        .collect();
    spoken.sort();
    spoken.dedup();
    spoken
}

/// By which figure setups are ranked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RankingFigure {
    Mean,
    P50,
    /// Its 90th percentile.
    P90,
    /// Its 99th percentile.
    #[default]
    P99,
    Cores,
}

impl RankingFigure {
    fn of(self, prediction: &Prediction) -> &DrawnStatistic {
        match self {
            RankingFigure::Mean => &prediction.draws.mean,
            RankingFigure::P50 => &prediction.draws.p50,
            RankingFigure::P90 => &prediction.draws.p90,
            RankingFigure::P99 => &prediction.draws.p99,
            RankingFigure::Cores => &prediction.cpu.draws,
        }
    }
}

/// A setup beside the one that it is compared with.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedSetup {
    pub prediction: Prediction,
    /// What it saves of the figure that setups are ranked by; negative where it costs more.
    pub saved: Interval,
    /// What it saves of mean added latency.
    pub saved_mean_us: Interval,
    /// What it saves of the 99th percentile.
    pub saved_p99_us: Interval,
    /// What it saves of processor time.
    pub saved_cores: Interval,
}

/// Setups beside a reference, what saves most first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// By what they are ranked.
    pub figure: RankingFigure,
    /// What they are compared with.
    pub reference: Prediction,
    pub setups: Vec<ComparedSetup>,
}

/// Ranks predictions by what they save. All must come from the same seed, so that what they share cancels.
#[must_use]
pub fn compare(reference: Prediction, others: Vec<Prediction>, figure: RankingFigure) -> Comparison {
    let mut setups: Vec<ComparedSetup> = others
        .into_iter()
        .map(|prediction| {
            let saved =
                |figure: RankingFigure| figure.of(&reference).minus(figure.of(&prediction)).interval();
            ComparedSetup {
                saved: saved(figure),
                saved_mean_us: saved(RankingFigure::Mean),
                saved_p99_us: saved(RankingFigure::P99),
                saved_cores: saved(RankingFigure::Cores),
                prediction,
            }
        })
        .collect();
    setups.sort_by(|left, right| right.saved.value.total_cmp(&left.saved.value));
    Comparison {
        figure,
        reference,
        setups,
    }
}

/// What changes would save.
///
/// # Errors
/// If the profile does not know what a change needs.
pub fn what_if(
    graph: &CallGraph,
    model: &ProfileModel,
    setup: &MeshSetup,
    changes: &[SetupChange],
    figure: RankingFigure,
    options: &PredictOptions,
) -> Result<Comparison, PredictError> {
    let reference = predict(graph, model, setup, options)?;
    let others = changes
        .iter()
        .map(|change| predict(graph, model, &change.applied_to(setup), options))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(compare(reference, others, figure))
}

/// What an application can afford. Latencies hold for every type of request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CostBudget {
    /// The most that the median may grow by.
    pub added_p50_us_max: Option<f64>,
    /// The most that the 90th percentile of added latency may be.
    pub added_p90_us_max: Option<f64>,
    /// The most that the 99th percentile of added latency may be.
    pub added_p99_us_max: Option<f64>,
    /// The most processor time.
    pub cores_max: Option<f64>,
}

/// Whether a figure is within a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetVerdict {
    /// With its whole interval.
    Within,
    /// The estimate is, the interval reaches beyond.
    Unsure,
    /// The estimate is beyond.
    Exceeded,
}

/// A figure beside its limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BudgetLine {
    pub what: String,
    pub limit: f64,
    pub figure: Interval,
    pub verdict: BudgetVerdict,
}

impl CostBudget {
    /// Whether anything is limited.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == CostBudget::default()
    }

    /// Every limit beside its figure.
    #[must_use]
    pub fn check(&self, prediction: &Prediction) -> Vec<BudgetLine> {
        let mut lines = Vec::new();
        for request in &prediction.requests {
            let added = &request.added_us;
            let limits = [
                ("p50", self.added_p50_us_max, added.p50),
                ("p90", self.added_p90_us_max, added.p90),
                ("p99", self.added_p99_us_max, added.p99),
            ];
            for (name, limit, figure) in limits {
                lines.extend(
                    limit.map(|limit| line(format!("{}: added {name} in µs", request.name), limit, figure)),
                );
            }
        }
        lines.extend(
            self.cores_max
                .map(|limit| line("cores".to_owned(), limit, prediction.cpu.cores)),
        );
        lines
    }
}

fn line(what: String, limit: f64, figure: Interval) -> BudgetLine {
    let verdict = if figure.value > limit {
        BudgetVerdict::Exceeded
    } else if figure.high > limit {
        BudgetVerdict::Unsure
    } else {
        BudgetVerdict::Within
    };
    BudgetLine {
        what,
        limit,
        figure,
        verdict,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acg::tests::small;
    use crate::model::MachineMatch;
    use crate::predict::NodeCores;
    use crate::synthetic::{SyntheticProxy, synthetic_profile};

    const OPTIONS: PredictOptions = PredictOptions {
        samples: 200,
        seed: 1,
        cores: NodeCores::OfProfile,
    };

    fn model() -> ProfileModel {
        let profile = synthetic_profile(&SyntheticProxy::example(), 5, 1);
        ProfileModel::new(&profile, MachineMatch::Same, 40, 1).unwrap()
    }

    fn setup() -> MeshSetup {
        MeshSetup::new("now", ProxyPlacement::Sidecars)
    }

    #[test]
    fn changes_have_texts_that_read_back() {
        for text in [
            "filter+lua",
            "filter-lua",
            "mode=tcp",
            "unix-sockets",
            "zero-copy",
            "per-node",
            "parse/2",
            "filter:lua/1.5",
        ] {
            assert_eq!(text.parse::<SetupChange>().unwrap().to_string(), text);
        }
        for text in ["filter+", "mode=smtp", "parse/0", "parse/nan", "faster"] {
            assert!(text.parse::<SetupChange>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_saves_most_comes_first_with_narrower_intervals_than_the_whole() {
        let (graph, model) = (small(), model());
        let changes = usual_changes(&graph, &model, &setup());
        assert!(
            changes.contains(&SetupChange::RemoveFilter("lua".into())),
            "{changes:?}"
        );
        let found = what_if(&graph, &model, &setup(), &changes, RankingFigure::Mean, &OPTIONS).unwrap();
        assert!(
            found
                .setups
                .is_sorted_by(|left, right| left.saved.value >= right.saved.value)
        );
        let half = found
            .setups
            .iter()
            .find(|one| one.prediction.setup == "readiness/2")
            .unwrap();
        let whole = found.reference.added_us.mean;
        // What both have in common cancels, draw by draw.
        assert!(half.saved.high - half.saved.low < (whole.high - whole.low) / 2.0);
        let tcp = found
            .setups
            .iter()
            .find(|one| one.prediction.setup == "mode=tcp")
            .unwrap();
        assert!(tcp.saved.low > 0.0, "{:?}", tcp.saved);
    }

    #[test]
    fn a_budget_is_kept_or_not_or_unsure() {
        let prediction = what_if(&small(), &model(), &setup(), &[], RankingFigure::P99, &OPTIONS)
            .unwrap()
            .reference;
        let p99 = prediction.requests[0].added_us.p99;
        let verdict = |limit| {
            let budget = CostBudget {
                added_p99_us_max: Some(limit),
                ..CostBudget::default()
            };
            budget.check(&prediction)[0].verdict
        };
        assert_eq!(verdict(p99.high + 1.0), BudgetVerdict::Within);
        assert_eq!(verdict((p99.value + p99.high) / 2.0), BudgetVerdict::Unsure);
        assert_eq!(verdict(p99.value - 1.0), BudgetVerdict::Exceeded);
        let cores = CostBudget {
            cores_max: Some(0.0),
            ..CostBudget::default()
        };
        assert_eq!(cores.check(&prediction)[0].verdict, BudgetVerdict::Exceeded);
    }
}
