//! `provost insight report`: everything about an application in one HTML file.

use std::path::PathBuf;

use clap::Args;
use provost_insight::change::{RankingFigure, compare, usual_changes, what_if};
use provost_insight::report::{ReportContents, render};
use provost_insight::validation::ValidationResult;

use crate::input::{self, check_output, read_graph, read_text, refused, write_text};
use crate::whatif::{refused_prediction, setups};
use provost_terminal::failure::{Exit, Failure};

pub(crate) const EXAMPLES: &str = "\
One file without scripts and without anything from elsewhere: added latency and processor time by component, the critical
path of each type of request, setups compared, what changes would save, and with --validation predictions beside what
`provost insight validate` has measured.

Examples:
  provost insight report acg.yaml --profile envoy.json --out report.html
  provost insight report acg.yaml --profile envoy.json --provost provostd.json --validation validation.json --out report.html";

/// A validation is shorter.
const VALIDATION_BYTES_MAX: usize = 64 << 20;

/// Options of `report`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    asked: input::Prediction,
    /// A profile of provostd
    #[arg(long, value_name = "FILE")]
    provost: Option<PathBuf>,
    /// What `provost insight validate --json` has printed
    #[arg(long, value_name = "FILE")]
    validation: Option<PathBuf>,
    /// The report's title
    #[arg(long, default_value = "What a service mesh costs")]
    title: String,
    /// Write the report here [default: standard output]
    #[arg(long, short = 'o', value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let asked = &options.asked;
    check_output(options.out.as_deref())?;
    let validation = options
        .validation
        .as_ref()
        .map(|path| read_validation(path))
        .transpose()?;
    let graph = read_graph(&asked.acg)?;
    let (_, model) = asked.model.model(&asked.profile, &graph.source.machine)?;
    let (reference, others) = setups(&graph, asked, options.provost.as_ref())?;
    let setups = compare(reference, others, RankingFigure::P99);
    let setup = asked.setup.setup("as it is");
    let changes = usual_changes(&graph, &model, &setup);
    let predict_options = asked.model.predict_options();
    let changes = what_if(
        &graph,
        &model,
        &setup,
        &changes,
        RankingFigure::P99,
        &predict_options,
    )
    .map_err(refused_prediction)?;
    let contents = ReportContents {
        title: &options.title,
        graph: &graph,
        prediction: &setups.reference,
        setups: Some(&setups),
        changes: Some(&changes),
        validation: validation.as_ref(),
    };
    if asked.json {
        let document = serde_json::json!({ "setups": setups, "changes": changes, "validation": validation });
        return write_text(
            options.out.as_deref(),
            &provost_terminal::output::json_document(&document)?,
        );
    }
    let page = render(&contents).map_err(|error| Failure::new(Exit::Refused, error.to_string()))?;
    write_text(options.out.as_deref(), &page)
}

fn read_validation(path: &std::path::Path) -> Result<ValidationResult, Failure> {
    let text = read_text(path, VALIDATION_BYTES_MAX)?;
    ValidationResult::parse(&text).map_err(|error| refused(path, error))
}
