//! `provost insight validate`: predictions beside measurements.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use provost_insight::profile::Protocol;
use provost_insight_probes::application::ApplicationShape;
use provost_insight_probes::profile::{ProfileOrder, ProfiledProxy};
use provost_insight_probes::proxies::ProxyKind;
use provost_insight_probes::validate::{
    MeasuredApplication, PassagePart, ValidationOrder, ValidationReport, validate,
};

use crate::input::{check_output, write_text};
use crate::profile::{failure, stop_signal};
use provost_terminal::failure::{Failure, complain};
use provost_terminal::output::{json_document, print};
use provost_terminal::table::{Align, Canvas, Table, clean};

pub(crate) const EXAMPLES: &str = "\
Starts small applications of several services (a chain, a fan-out, both mixed), each once with a proxy before every service
and once without. Their latencies and the proxies' processor time are measured in turn, in the same rounds in which the
proxy is profiled. Then the profile predicts what was measured. ^C ends it early: what was measured is compared, with
--profile-out kept, said to be partial, and the exit status is 1.

Examples:
  provost insight validate --proxy envoy --quick
  provost insight validate --proxy haproxy --protocol http1 --shape chain --shape mixed
  provost insight validate --proxy envoy --json --profile-out envoy.json";

/// The shape of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shape {
    /// Three services, each of which calls the next one
    Chain,
    /// One service that calls three at once
    FanOut,
    /// One service that calls one, then two at once, one of which calls another
    Mixed,
}

impl Shape {
    fn application(self) -> ApplicationShape {
        match self {
            Shape::Chain => ApplicationShape::Chain,
            Shape::FanOut => ApplicationShape::FanOut,
            Shape::Mixed => ApplicationShape::Mixed,
        }
    }
}

/// What the services speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Speech {
    /// Messages over plain TCP
    Tcp,
    /// HTTP/1.1
    Http1,
    /// gRPC
    Grpc,
}

impl Speech {
    fn protocol(self) -> Protocol {
        match self {
            Speech::Tcp => Protocol::Tcp,
            Speech::Http1 => Protocol::Http1,
            Speech::Grpc => Protocol::Grpc,
        }
    }
}

/// Options of `validate`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The proxy: envoy, nginx, haproxy, or a command line as with `profile`
    #[arg(long, value_name = "NAME|COMMAND", default_value = "envoy")]
    proxy: String,
    /// The applications [default: all]
    #[arg(long, value_enum, value_name = "SHAPE")]
    shape: Vec<Shape>,
    /// What the services speak [default: all]
    #[arg(long, value_enum, value_name = "PROTOCOL")]
    protocol: Vec<Speech>,
    /// Sizes of the messages, in bytes
    #[arg(long, value_delimiter = ',', value_name = "BYTES", default_value = "100")]
    sizes: Vec<usize>,
    /// Rounds, each of which measures everything once
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Few rounds of short slices
    #[arg(long)]
    quick: bool,
    /// Keep the profile that the predictions are from
    #[arg(long, value_name = "FILE")]
    profile_out: Option<PathBuf>,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    check_output(options.profile_out.as_deref())?;
    let mut order = order(options);
    order.profile.stop = stop_signal()?;
    let (report, profile) = validate(&order, &mut complain).map_err(failure)?;
    if let Some(path) = &options.profile_out {
        write_text(Some(path), &profile.to_json())?;
    }
    print(&if options.json {
        json_document(&report)?
    } else {
        draw(&report, Canvas::of_stdout())
    })?;
    match &report.partial {
        // What was measured is kept, and scripts learn that it is not all.
        Some(why) => Err(Failure::failed(format!("the validation is partial: {why}"))),
        None => Ok(()),
    }
}

fn order(options: &Options) -> ValidationOrder {
    let chosen = |all: &[Speech], asked: &[Speech]| {
        let speeches = if asked.is_empty() { all } else { asked };
        speeches.iter().map(|speech| speech.protocol()).collect()
    };
    let protocols = chosen(&[Speech::Tcp, Speech::Http1, Speech::Grpc], &options.protocol);
    let proxy = ProxyKind::named(&options.proxy).map_or_else(
        || ProfiledProxy::Command(options.proxy.clone()),
        ProfiledProxy::BuiltIn,
    );
    let usual = ProfileOrder::of(proxy, protocols);
    let (rounds, slice) = if options.quick {
        (5, Duration::from_millis(150))
    } else {
        (15, usual.slice)
    };
    let shapes: Vec<ApplicationShape> = options.shape.iter().map(|shape| shape.application()).collect();
    ValidationOrder {
        profile: ProfileOrder {
            sizes_bytes: options.sizes.clone(),
            in_flight: Vec::new(),
            repetitions: options.rounds.unwrap_or(rounds),
            slice,
            ..usual
        },
        shapes: if shapes.is_empty() {
            ApplicationShape::ALL.to_vec()
        } else {
            shapes
        },
        sizes_bytes: options.sizes.clone(),
        draws: 200,
    }
}

fn draw(report: &ValidationReport, canvas: Canvas) -> String {
    let mut table = Table::new(&[
        ("APPLICATION", Align::Left),
        ("BASE µs", Align::Right),
        ("ADDED µs", Align::Right),
        ("PREDICTED µs", Align::Right),
        ("90 %", Align::Left),
        ("ERROR", Align::Right),
        ("CPU µs", Align::Right),
        ("PREDICTED µs", Align::Right),
        ("ERROR", Align::Right),
    ]);
    let percent = |share: f64| format!("{:+.1} %", share * 100.0);
    for one in &report.applications {
        let interval = &one.predicted_added_us;
        let covered = if one.is_covered { "holds it" } else { "misses it" };
        table.row([
            clean(&one.name).into(),
            format!("{:.1}", one.base_us).into(),
            format!("{:.1}", one.measured_added_us).into(),
            format!("{:.1}", interval.value).into(),
            format!("{:.1} to {:.1} {covered}", interval.low, interval.high).into(),
            percent(one.latency_error).into(),
            format!("{:.1}", one.measured_cpu_us).into(),
            format!("{:.1}", one.predicted_cpu_us.value).into(),
            percent(one.cpu_error).into(),
        ]);
    }
    if report.applications.is_empty() && report.unpredicted.is_empty() {
        return "No application was measured.\n".to_owned();
    }
    if report.applications.is_empty() {
        return unpredicted(&report.unpredicted, canvas);
    }
    let error = |median: Option<f64>| median.map_or("-".into(), |share| format!("{:.1} %", share * 100.0));
    let mut out = format!(
        "{}\nmedian error: added latency {}, processor time {}; {:.0} % of the measured latencies lie in their intervals\n\
         other processes used {:.2} cores meanwhile\n\nPredicted, by component:\n",
        table.draw(canvas),
        error(report.latency_error_median),
        error(report.cpu_error_median),
        report.latency_covered_share * 100.0,
        report.foreign_cores
    );
    for one in &report.applications {
        let parts = one
            .components_us
            .iter()
            .map(|(name, us)| format!("{} {us:.1}", clean(name)));
        out += &format!(
            "  {}: {}\n",
            clean(&one.name),
            parts.collect::<Vec<_>>().join(", ")
        );
    }
    out + &passages(report)
}

/// What was measured, where a partial profile predicts nothing.
fn unpredicted(applications: &[MeasuredApplication], canvas: Canvas) -> String {
    let mut table = Table::new(&[
        ("APPLICATION", Align::Left),
        ("ROUNDS", Align::Right),
        ("BASE µs", Align::Right),
        ("ADDED µs", Align::Right),
        ("CPU µs", Align::Right),
    ]);
    for one in applications {
        table.row([
            clean(&one.name).into(),
            one.rounds.to_string().into(),
            format!("{:.1}", one.base_us).into(),
            format!("{:.1}", one.added_us).into(),
            format!("{:.1}", one.cpu_us).into(),
        ]);
    }
    table.draw(canvas)
}

/// What is predicted of a part, and what was measured.
type PartFigures = fn(&PassagePart) -> (f64, f64);

/// One passage of each application, as the profile has it and as it was traced.
fn passages(report: &ValidationReport) -> String {
    let traced = || report.applications.iter().filter(|one| !one.passage.is_empty());
    if traced().next().is_none() {
        return "\nThe kernel grants no tracing here: a passage's parts are not compared.\n".to_owned();
    }
    let figures: [(&str, PartFigures); 2] = [
        ("predicted > traced on the path of the messages", |part| {
            (part.predicted_us, part.measured_us)
        }),
        (
            "processor time, predicted > counted by the scheduler and divided as traced",
            |part| (part.predicted_cpu_us, part.measured_cpu_us),
        ),
    ];
    let mut out = String::new();
    for (title, figures) in figures {
        out += &format!("\nOne passage through a proxy, {title}:\n");
        for one in traced() {
            let parts = one.passage.iter().map(|part| {
                let (predicted, measured) = figures(part);
                format!("{} {predicted:.1} > {measured:.1}", part.component)
            });
            let parts: Vec<String> = parts.collect();
            out += &format!("  {}: {}\n", clean(&one.name), parts.join(", "));
        }
    }
    out
}
