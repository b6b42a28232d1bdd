//! `provost insight whatif` and `compare`: what would save most.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use provost_insight::acg::CallGraph;
use provost_insight::change::{
    ComparedSetup, Comparison, RankingFigure, SetupChange, compare, usual_changes, what_if,
};
use provost_insight::model::ProfileModel;
use provost_insight::predict::{MeshSetup, PredictError, Prediction, ProxyPlacement, predict};
use provost_insight::profile::{Profile, Protocol};

use crate::input::{self, read_graph};
use crate::predict::{draw_remarks, interval_cores, interval_us};
use provost_terminal::failure::{Exit, Failure};
use provost_terminal::output::{json_document, print};
use provost_terminal::table::{Align, Canvas, Look, Table, clean};

pub(crate) const EXAMPLES: &str = "\
Changes: filter+NAME, filter-NAME, mode=tcp|http1|http2|grpc|provost, per-node, COMPONENT/FACTOR (so many times faster, such as
parse/2), and unix-sockets and zero-copy where the profile has components that were measured so. With a profile of provostd
its policies are the filters. Without --change, the usual ones: each filter removed, each component twice as fast, tcp.

What a change and the setup have in common cancels, so that savings have narrower intervals than costs.

Examples:
  provost insight whatif acg.yaml --profile envoy.json
  provost insight whatif acg.yaml --profile envoy.json --change filter-lua --change parse/2 --by cores
  provost insight whatif acg.yaml --profile envoy.json --change unix-sockets --json";

pub(crate) const COMPARE_EXAMPLES: &str = "\
Compared are: no mesh, the proxy beside every service, the proxy on every node, and with --provost a profile of provostd in
its place. Both profiles are to come from the same machine and regime.

Examples:
  provost insight compare acg.yaml --profile envoy.json
  provost insight compare acg.yaml --profile envoy.json --provost provostd.json --by p99";

/// By which figure changes are ranked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum FigureName {
    Mean,
    P50,
    P90,
    #[default]
    P99,
    Cores,
}

impl FigureName {
    pub(crate) const fn figure(self) -> RankingFigure {
        match self {
            FigureName::Mean => RankingFigure::Mean,
            FigureName::P50 => RankingFigure::P50,
            FigureName::P90 => RankingFigure::P90,
            FigureName::P99 => RankingFigure::P99,
            FigureName::Cores => RankingFigure::Cores,
        }
    }
}

/// Options of `whatif`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    asked: input::Prediction,
    /// What would be otherwise; each change is looked at alone
    #[arg(long = "change", value_name = "CHANGE")]
    changes: Vec<SetupChange>,
    /// By what changes are ranked
    #[arg(long, value_enum, default_value_t)]
    by: FigureName,
}

/// Options of `compare`.
#[derive(Args, Debug)]
pub(crate) struct CompareOptions {
    #[command(flatten)]
    asked: input::Prediction,
    /// A profile of provostd
    #[arg(long, value_name = "FILE")]
    provost: Option<PathBuf>,
    /// By what setups are ranked
    #[arg(long, value_enum, default_value_t)]
    by: FigureName,
}

/// Why there is no prediction.
pub(crate) fn refused_prediction(error: PredictError) -> Failure {
    Failure::new(Exit::Refused, error.to_string())
}

/// Runs `whatif`.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let asked = &options.asked;
    let graph = read_graph(&asked.acg)?;
    let (_, model) = asked.model.model(&asked.profile, &graph.source.machine)?;
    let setup = asked.setup.setup("as it is");
    let changes = if options.changes.is_empty() {
        usual_changes(&graph, &model, &setup)
    } else {
        options.changes.clone()
    };
    let found = what_if(
        &graph,
        &model,
        &setup,
        &changes,
        options.by.figure(),
        &asked.model.predict_options(),
    )
    .map_err(refused_prediction)?;
    show(&found, asked.json)
}

/// Runs `compare`.
pub(crate) fn run_compare(options: &CompareOptions) -> Result<(), Failure> {
    let asked = &options.asked;
    let graph = read_graph(&asked.acg)?;
    let (reference, others) = setups(&graph, asked, options.provost.as_ref())?;
    show(&compare(reference, others, options.by.figure()), asked.json)
}

/// The proxy beside every service, and what it is compared with.
pub(crate) fn setups(
    graph: &CallGraph,
    asked: &input::Prediction,
    provost: Option<&PathBuf>,
) -> Result<(Prediction, Vec<Prediction>), Failure> {
    let options = asked.model.predict_options();
    let (profile, model) = asked.model.model(&asked.profile, &graph.source.machine)?;
    let placed = |name: String, placement| MeshSetup {
        placement,
        ..asked.setup.setup(&name)
    };
    let other = provost
        .map(|path| other_model(path, asked, graph, &profile))
        .transpose()?;
    let proxy = &profile.proxy.name;
    let reference = placed(format!("{proxy} beside every service"), ProxyPlacement::Sidecars);
    let reference = predict(graph, &model, &reference, &options).map_err(refused_prediction)?;
    let mut others = Vec::new();
    for (name, placement) in [
        ("no mesh".to_owned(), ProxyPlacement::Absent),
        (format!("{proxy} on every node"), ProxyPlacement::PerNode),
    ] {
        others.push(predict(graph, &model, &placed(name, placement), &options).map_err(refused_prediction)?);
    }
    if let Some((other, model)) = other {
        let mut setup = placed(other.proxy.name.clone(), ProxyPlacement::Sidecars);
        // A node between clients and servers of gRPC was profiled with what they speak.
        if model.knows(Protocol::Provost) {
            setup.mode = Some(Protocol::Provost);
        }
        others.push(predict(graph, &model, &setup, &options).map_err(refused_prediction)?);
    }
    Ok((reference, others))
}

/// The profile that is compared with another one, and its model.
fn other_model(
    path: &Path,
    asked: &input::Prediction,
    graph: &CallGraph,
    profile: &Profile,
) -> Result<(Profile, ProfileModel), Failure> {
    let (other, model) = asked.model.model(path, &graph.source.machine)?;
    if other.regime != profile.regime {
        let problem = "the two profiles were taken in different regimes (cores that halt, and cores that do not): take both in one";
        return Err(input::refused(path, problem));
    }
    Ok((other, model))
}

fn show(found: &Comparison, is_json: bool) -> Result<(), Failure> {
    print(&if is_json {
        json_document(found)?
    } else {
        draw(found, Canvas::of_stdout())
    })
}

fn draw(found: &Comparison, canvas: Canvas) -> String {
    let mut table = Table::new(&[
        ("SETUP", Align::Left),
        ("ADDED p50", Align::Right),
        ("ADDED p99", Align::Right),
        ("CORES", Align::Right),
        ("SAVES p99", Align::Right),
        ("SAVES CORES", Align::Right),
    ]);
    let figures = |prediction: &Prediction| {
        [
            interval_us(&prediction.added_us.p50),
            interval_us(&prediction.added_us.p99),
            interval_cores(&prediction.cpu.cores),
        ]
    };
    let [p50, p99, cores] = figures(&found.reference);
    table.row([
        found.reference.setup.as_str().into(),
        p50.into(),
        p99.into(),
        cores.into(),
        "".into(),
        "".into(),
    ]);
    for one in &found.setups {
        let [p50, p99, cores] = figures(&one.prediction);
        table.row([
            one.prediction.setup.as_str().into(),
            p50.into(),
            p99.into(),
            cores.into(),
            interval_us(&one.saved_p99_us).into(),
            interval_cores(&one.saved_cores).into(),
        ]);
    }
    let mut out = Look::Heading.paint("Average request, weighted by rate; 90 % intervals", canvas) + "\n";
    out += &table.draw(canvas);
    if let Some(best) = found.setups.iter().find(|one| is_sure(one)) {
        out += &format!("\nsaves most: {}\n", clean(&best.prediction.setup));
    }
    out += &draw_remarks(&found.reference);
    for one in &found.setups {
        let told = |warning: &&String| !found.reference.warnings.contains(warning);
        for warning in one.prediction.warnings.iter().filter(told) {
            out += &format!("note: {}: {}\n", clean(&one.prediction.setup), clean(warning));
        }
    }
    out
}

/// Whether a setup surely saves something.
fn is_sure(one: &ComparedSetup) -> bool {
    one.saved.low > 0.0
}
