//! `provost insight acg`: annotated call graphs, from traces or by hand.

use std::fmt::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use provost_insight::acg::{AnnotatedGraph, CallGraph, SERVICES_MAX, draw_text};
use provost_insight::traces::{
    ImportReport, METRICS_BYTES_MAX, MergeOptions, TRACES_BYTES_MAX, TraceForest, TraceFormat, apply_metrics,
    assemble, merge, read,
};

use crate::input::{ProtocolName, count, positive, read_graph, read_text, refused, share, write_text};
use provost_terminal::failure::{Failure, complain};
use provost_terminal::numbers::{plural, plural_of};
use provost_terminal::output::{json_document, print};
use provost_terminal::table::clean;

const DERIVE_EXAMPLES: &str = "\
Formats: jaeger (JSON of its API or user interface), otlp (OpenTelemetry's JSON, as documents or lines; Provost's own traces
too), alibaba (MSCallGraph CSV of the cluster traces of 2021 and 2022), nezha (its trace CSV). Without --format the file's
beginning tells.

Whatever cannot be used is counted and printed by reason: spans without a parent, cycles, negative durations, clocks that
disagree. Sizes and rates that the traces do not say are assumed; the graph lists what was.

Examples:
  provost insight acg derive traces.json --out acg.yaml
  provost insight acg derive spans.jsonl --sampled 0.01 --out acg.yaml      one request in a hundred was traced
  provost insight acg derive MSCallGraph_0.csv --requests 20 --rate 500
  provost insight acg derive traces.json --metrics after.txt --metrics-before before.txt --metrics-seconds 60";

const VALIDATE_EXAMPLES: &str = "\
Examples:
  provost insight acg validate acg.yaml
  provost insight acg validate acg.yaml --json";

const SHOW_EXAMPLES: &str = "\
Examples:
  provost insight acg show acg.yaml
  provost insight acg show acg.yaml --json | jq '.requests[].name'";

/// `provost insight acg …`.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Make a call graph of traces
    #[command(after_help = DERIVE_EXAMPLES)]
    Derive(DeriveOptions),
    /// Say whether a call graph is valid
    #[command(after_help = VALIDATE_EXAMPLES)]
    Validate(GraphOptions),
    /// Draw a call graph, with its critical path
    #[command(after_help = SHOW_EXAMPLES)]
    Show(GraphOptions),
}

/// Options of commands that read a graph.
#[derive(Args, Debug)]
pub(crate) struct GraphOptions {
    /// The call graph; - is standard input
    acg: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Options of `acg derive`.
#[derive(Args, Debug)]
pub(crate) struct DeriveOptions {
    #[command(flatten)]
    traces: TraceOptions,
    /// Write the graph here [default: standard output]
    #[arg(long, short = 'o', value_name = "FILE")]
    out: Option<PathBuf>,
    /// The most frequent types of requests that are kept
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = count(SERVICES_MAX))]
    requests: usize,
    /// Requests per second of all types together [default: what the traces show]
    #[arg(long, value_name = "PER_S", value_parser = positive)]
    rate: Option<f64>,
    /// The share of requests that was traced
    #[arg(long, default_value_t = 1.0, value_name = "SHARE", value_parser = share)]
    sampled: f64,
    /// Metrics of provostd, as its Prometheus endpoint prints them: mean sizes of each method
    #[arg(long, value_name = "FILE")]
    metrics: Option<PathBuf>,
    /// An earlier reading of the same metrics: with it they tell rates
    #[arg(long, value_name = "FILE", requires_all = ["metrics", "metrics_seconds"])]
    metrics_before: Option<PathBuf>,
    /// Seconds between the two readings
    #[arg(long, value_name = "SECONDS", value_parser = positive, requires = "metrics_before")]
    metrics_seconds: Option<f64>,
    /// Name the machines that the application runs on, as profiles of them do
    #[arg(long, value_name = "ID", default_value = "")]
    machine: String,
    /// Print the graph and the report as JSON
    #[arg(long)]
    json: bool,
}

/// A file of traces.
#[derive(Args, Clone, Debug)]
pub(crate) struct TraceOptions {
    /// The traces; - is standard input
    pub(crate) traces: PathBuf,
    /// Their format [default: what the file looks like]
    #[arg(long, value_enum)]
    format: Option<FormatName>,
    /// Size of requests of which the traces do not say it
    #[arg(long, default_value_t = 100.0, value_name = "BYTES", value_parser = positive)]
    pub(crate) request_bytes: f64,
    /// Size of responses of which the traces do not say it
    #[arg(long, default_value_t = 100.0, value_name = "BYTES", value_parser = positive)]
    pub(crate) response_bytes: f64,
    /// What calls speak of which the traces do not say it
    #[arg(long, value_enum, default_value_t = ProtocolName::Grpc)]
    pub(crate) protocol: ProtocolName,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FormatName {
    Jaeger,
    Otlp,
    Alibaba,
    Nezha,
}

impl TraceOptions {
    /// Reads the traces.
    pub(crate) fn read(&self) -> Result<TraceForest, Failure> {
        let text = read_text(&self.traces, TRACES_BYTES_MAX)?;
        let format = match self.format {
            Some(FormatName::Jaeger) => TraceFormat::Jaeger,
            Some(FormatName::Otlp) => TraceFormat::Otlp,
            Some(FormatName::Alibaba) => TraceFormat::Alibaba,
            Some(FormatName::Nezha) => TraceFormat::Nezha,
            None => TraceFormat::guess(&text).ok_or_else(|| {
                refused(
                    &self.traces,
                    "not traces of a known format: say which with --format",
                )
            })?,
        };
        let spans = read(&text, format).map_err(|error| refused(&self.traces, error))?;
        drop(text);
        Ok(assemble(spans))
    }
}

/// Runs one.
pub(crate) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Derive(options) => derive(&options),
        Command::Validate(options) => validate(&options),
        Command::Show(options) => show(&options),
    }
}

fn derive(options: &DeriveOptions) -> Result<(), Failure> {
    let mut forest = options.traces.read()?;
    let name = options.traces.traces.display();
    let merged = MergeOptions {
        origin: format!("derived from {} traces of {name}", forest.trees.len()),
        requests_max: options.requests,
        rate_per_s: options.rate,
        sampled_share: options.sampled,
        request_bytes: options.traces.request_bytes,
        response_bytes: options.traces.response_bytes,
        protocol: options.traces.protocol.protocol(),
    };
    let mut graph = merge(&mut forest, &merged).map_err(|error| {
        refused(
            &options.traces.traces,
            format!("{error}\n{}", told(&forest.report)),
        )
    })?;
    graph.machine.clone_from(&options.machine);
    let known = take_metrics(&mut graph, options)?;
    // What was derived is checked as what was written by hand is.
    let graph = CallGraph::new(graph).map_err(|error| refused(&options.traces.traces, error))?;
    let text = graph
        .source
        .to_yaml()
        .map_err(|error| refused(&options.traces.traces, error))?;
    if options.json {
        let document =
            serde_json::json!({ "report": forest.report, "graph": graph.source, "calls_in_metrics": known });
        print(&json_document(&document)?)?;
    } else {
        complain(told(&forest.report).trim_end());
        for assumption in &graph.source.assumptions {
            complain(&format!("assumed: {}", clean(assumption)));
        }
    }
    match (&options.out, options.json) {
        (None, true) => Ok(()),
        (out, _) => write_text(out.as_deref(), &text),
    }
}

fn take_metrics(graph: &mut AnnotatedGraph, options: &DeriveOptions) -> Result<Option<usize>, Failure> {
    let Some(path) = &options.metrics else {
        return Ok(None);
    };
    let text = read_text(path, METRICS_BYTES_MAX)?;
    let before = options
        .metrics_before
        .as_ref()
        .map(|path| read_text(path, METRICS_BYTES_MAX))
        .transpose()?;
    let earlier = before.as_deref().zip(options.metrics_seconds);
    let known = apply_metrics(graph, &text, earlier).map_err(|error| refused(path, error))?;
    graph.assumptions.push(format!(
        "sizes of {known} calls are means that the node's metrics count"
    ));
    Ok(Some(known))
}

/// What was read and what was not, for people.
pub(crate) fn told(report: &ImportReport) -> String {
    let mut out = format!(
        "{}, {}, {}\n",
        plural(report.spans, "span"),
        plural(report.traces, "trace"),
        plural(report.calls, "call")
    );
    for (reason, count) in &report.unused {
        let _ = writeln!(out, "not used: {count} {reason}");
    }
    for (what, count) in &report.adjusted {
        let _ = writeln!(out, "put right: {count} {what}");
    }
    if report.clock_skew_us_max > 0.0 {
        let _ = writeln!(
            out,
            "clocks differ by up to {}",
            provost_terminal::numbers::time_us(report.clock_skew_us_max)
        );
    }
    if report.is_partial() {
        out += "the graph is partial: it lacks what was not used\n";
    }
    out
}

fn validate(options: &GraphOptions) -> Result<(), Failure> {
    let graph = read_graph(&options.acg)?;
    let summary = graph.summary();
    print(&if options.json {
        json_document(&serde_json::json!({
            "services": summary.services, "requests": summary.requests, "calls": summary.calls, "depth": summary.depth,
        }))?
    } else {
        format!(
            "the graph is good: {}, {}, {}, nested {} deep\n",
            plural(summary.services as u64, "service"),
            plural_of(summary.requests as u64, "type of request", "types of requests"),
            plural(summary.calls as u64, "call"),
            summary.depth
        )
    })
}

fn show(options: &GraphOptions) -> Result<(), Failure> {
    let graph = read_graph(&options.acg)?;
    print(&if options.json {
        json_document(&graph.source)?
    } else {
        draw_text(&graph)
    })
}
