//! `provost insight predict`: what a mesh costs an application.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use provost_insight::change::{BudgetLine, BudgetVerdict, CostBudget};
use provost_insight::forest::{ForestOptions, ForestPrediction, predict_forest};
use provost_insight::predict::{Interval, LatencyDistribution, NamedInterval, Prediction, predict};

use crate::acg::{TraceOptions, told};
use crate::input::{self, ModelOptions, SetupOptions, positive, read_graph, refused, time_us};
use provost_terminal::failure::{Exit, Failure};
use provost_terminal::numbers;
use provost_terminal::output::{json_document, print};
use provost_terminal::table::{Align, Canvas, Cell, Look, Table, clean};

pub(crate) const EXAMPLES: &str = "\
Added latency is that of a request with the mesh less that of the same request without, on its critical path: a
distribution over requests, each figure with a 90 % interval from a bootstrap over profile and graph. Processor time is
that of all proxies, on the critical path or not.

A profile holds for the machine that it was taken on. The application's is the one that the graph names (`machine:`), else
this one.

With a budget the exit status is 1 when an estimate exceeds it.

Examples:
  provost insight predict acg.yaml --profile envoy.json
  provost insight predict acg.yaml --profile envoy.json --add-filter lua --json
  provost insight predict acg.yaml --profile envoy.json --max-added-p99 3ms --max-cores 2";

pub(crate) const EACH_EXAMPLES: &str = "\
Each trace is predicted alone, on its own critical path, and the spread over traces is shown; `acg derive` and `predict`
instead make one graph of all and say how sure it is.

Examples:
  provost insight predict-traces MSCallGraph_0.csv --profile envoy.json --rate 1000
  provost insight predict-traces traces.json --profile envoy.json --mode tcp --json";

/// Options of `predict`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    asked: input::Prediction,
    #[command(flatten)]
    budget: BudgetOptions,
}

/// What may not be exceeded.
#[derive(Args, Clone, Debug)]
pub(crate) struct BudgetOptions {
    /// The most that the median of added latency may be, for every type of request
    #[arg(long, value_name = "TIME", value_parser = time_us)]
    max_added_p50: Option<f64>,
    /// The most that its 90th percentile may be
    #[arg(long, value_name = "TIME", value_parser = time_us)]
    max_added_p90: Option<f64>,
    /// The most that its 99th percentile may be
    #[arg(long, value_name = "TIME", value_parser = time_us)]
    max_added_p99: Option<f64>,
    /// The most processor time of all proxies, in cores
    #[arg(long, value_name = "CORES", value_parser = positive)]
    max_cores: Option<f64>,
    /// Fail also where an interval reaches beyond the budget
    #[arg(long)]
    strict: bool,
}

impl BudgetOptions {
    const fn budget(&self) -> CostBudget {
        CostBudget {
            added_p50_us_max: self.max_added_p50,
            added_p90_us_max: self.max_added_p90,
            added_p99_us_max: self.max_added_p99,
            cores_max: self.max_cores,
        }
    }

    /// Fails where the budget is not kept.
    fn decide(&self, lines: &[BudgetLine]) -> Result<(), Failure> {
        let is_over = |line: &&BudgetLine| match line.verdict {
            BudgetVerdict::Exceeded => true,
            BudgetVerdict::Unsure => self.strict,
            BudgetVerdict::Within => false,
        };
        let over: Vec<String> = lines.iter().filter(is_over).map(describe_line).collect();
        if over.is_empty() {
            Ok(())
        } else {
            Err(Failure::failed(format!("over budget: {}", over.join("; "))))
        }
    }
}

fn describe_line(line: &BudgetLine) -> String {
    format!(
        "{}: {:.3} (90 %: {:.3} to {:.3}), at most {:.3}",
        clean(&line.what),
        line.figure.value,
        line.figure.low,
        line.figure.high,
        line.limit
    )
}

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let asked = &options.asked;
    let graph = read_graph(&asked.acg)?;
    let (_, model) = asked.model.model(&asked.profile, &graph.source.machine)?;
    let setup = asked.setup.setup("mesh");
    let predicted = predict(&graph, &model, &setup, &asked.model.predict_options())
        .map_err(|error| Failure::new(Exit::Refused, error.to_string()))?;
    let lines = options.budget.budget().check(&predicted);
    print(&if asked.json {
        json_document(&serde_json::json!({ "prediction": predicted, "budget": lines }))?
    } else {
        draw(&predicted, &lines, Canvas::of_stdout())
    })?;
    options.budget.decide(&lines)
}

/// A time with its interval.
pub(crate) fn interval_us(figure: &Interval) -> String {
    format!(
        "{} ({} to {})",
        signed_us(figure.value),
        signed_us(figure.low),
        signed_us(figure.high)
    )
}

/// A time that may be negative.
pub(crate) fn signed_us(us: f64) -> String {
    match us {
        _ if us.abs() < 0.05 => "0".to_owned(),
        _ if us < 0.0 => format!("-{}", numbers::time_us(-us)),
        _ => numbers::time_us(us),
    }
}

/// Cores with their interval.
pub(crate) fn interval_cores(figure: &Interval) -> String {
    format!("{:.3} ({:.3} to {:.3})", figure.value, figure.low, figure.high)
}

fn draw(predicted: &Prediction, budget: &[BudgetLine], canvas: Canvas) -> String {
    let mut out = Look::Heading.paint("Added latency, with 90 % intervals", canvas) + "\n";
    let mut table = Table::new(&[
        ("REQUEST", Align::Left),
        ("WITHOUT p50", Align::Right),
        ("ADDED p50", Align::Right),
        ("p90", Align::Right),
        ("p99", Align::Right),
    ]);
    let row = |name: &str, base: Option<&LatencyDistribution>, added: &LatencyDistribution| -> [Cell; 5] {
        [
            name.into(),
            base.map_or_else(String::new, |base| signed_us(base.p50.value))
                .into(),
            interval_us(&added.p50).into(),
            interval_us(&added.p90).into(),
            interval_us(&added.p99).into(),
        ]
    };
    for request in &predicted.requests {
        table.row(row(&request.name, Some(&request.base_us), &request.added_us));
    }
    if predicted.requests.len() > 1 {
        table.row(row("(all, by rate)", None, &predicted.added_us));
    }
    out += &table.draw(canvas);
    for request in &predicted.requests {
        let title = format!(
            "\n{}: mean added latency on the critical path by component",
            clean(&request.name)
        );
        out += &(Look::Heading.paint(&title, canvas) + "\n");
        out += &shares(&request.components_us, interval_us, canvas);
    }
    let title = format!(
        "\nProcessor time of all proxies: {} cores",
        interval_cores(&predicted.cpu.cores)
    );
    out += &(Look::Heading.paint(&title, canvas) + "\n");
    out += &shares(&predicted.cpu.by_component, interval_cores, canvas);
    out += &("\n".to_owned() + &shares(&predicted.cpu.by_service, interval_cores, canvas));
    out += &draw_remarks(predicted);
    for line in budget {
        let verdict = match line.verdict {
            BudgetVerdict::Within => Look::Good.paint("within", canvas),
            BudgetVerdict::Unsure => Look::Bad.paint("within, but the interval reaches beyond", canvas),
            BudgetVerdict::Exceeded => Look::Bad.paint("exceeded", canvas),
        };
        let _ = writeln!(out, "budget: {}: {verdict}", describe_line(line));
    }
    out
}

/// What was extrapolated, and what a reader should know.
pub(crate) fn draw_remarks(predicted: &Prediction) -> String {
    let mut out = String::new();
    for call in &predicted.extrapolated {
        let _ = writeln!(
            out,
            "extrapolated: {}, call {} at the proxy of {}: {}",
            clean(&call.request),
            clean(&call.call),
            clean(&call.proxy_of),
            call.beyond.join(", ")
        );
    }
    for warning in &predicted.warnings {
        let _ = writeln!(out, "note: {}", clean(warning));
    }
    if out.is_empty() { out } else { format!("\n{out}") }
}

fn shares(parts: &[NamedInterval], text: fn(&Interval) -> String, canvas: Canvas) -> String {
    let whole: f64 = parts.iter().map(|part| part.figure.value).sum();
    let mut table = Table::new(&[
        ("PART", Align::Left),
        ("SHARE", Align::Right),
        ("FIGURE", Align::Right),
    ]);
    let mut sorted: Vec<&NamedInterval> = parts.iter().collect();
    sorted.sort_by(|left, right| right.figure.value.total_cmp(&left.figure.value));
    for part in sorted {
        let share = if whole > 0.0 {
            part.figure.value / whole
        } else {
            0.0
        };
        table.row([
            part.name.as_str().into(),
            format!("{:.1} %", share * 100.0).into(),
            text(&part.figure).into(),
        ]);
    }
    table.draw(canvas)
}

/// Options of `predict-traces`.
#[derive(Args, Debug)]
pub(crate) struct EachOptions {
    #[command(flatten)]
    traces: TraceOptions,
    /// The proxy's profile
    #[arg(long, short = 'p', value_name = "FILE")]
    profile: PathBuf,
    /// Calls per second at every proxy
    #[arg(long, default_value_t = 1000.0, value_name = "PER_S", value_parser = positive)]
    rate: f64,
    /// The machines that the application runs on, as profiles name them [default: this one]
    #[arg(long, value_name = "ID", default_value = "")]
    machine: String,
    #[command(flatten)]
    setup: SetupOptions,
    #[command(flatten)]
    model: ModelOptions,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub(crate) fn run_each(options: &EachOptions) -> Result<(), Failure> {
    let forest = options.traces.read()?;
    let (_, model) = options.model.model(&options.profile, &options.machine)?;
    let asked = ForestOptions {
        request_bytes: options.traces.request_bytes,
        response_bytes: options.traces.response_bytes,
        protocol: options.traces.protocol.protocol(),
        rate_per_s: options.rate,
    };
    let predicted = predict_forest(&forest, &model, &options.setup.setup("mesh"), &asked)
        .map_err(|error| refused(&options.profile, error))?;
    print(&if options.json {
        json_document(
            &serde_json::json!({ "report": forest.report, "prediction": predicted, "warnings": model.warnings }),
        )?
    } else {
        told(&forest.report) + "\n" + &draw_each(&predicted, &model.warnings, Canvas::of_stdout())
    })
}

fn draw_each(predicted: &ForestPrediction, warnings: &[String], canvas: Canvas) -> String {
    let mut table = Table::new(&[
        ("TRACES UP TO", Align::Left),
        ("ADDED LATENCY", Align::Right),
        ("PROCESSOR TIME", Align::Right),
    ]);
    for (added, cpu) in predicted.added_us.iter().zip(&predicted.cpu_us) {
        table.row([
            format!("{:.0} %", added.share * 100.0).into(),
            interval_us(&added.figure).into(),
            interval_us(&cpu.figure).into(),
        ]);
    }
    let mut out = table.draw(canvas);
    for warning in warnings.iter().chain(&predicted.warnings) {
        let _ = writeln!(out, "note: {}", clean(warning));
    }
    out
}
