//! `provost insight fit`: from observations to functions.

use std::path::PathBuf;

use clap::Args;
use provost_insight::fit::fit;
use provost_insight::profile::{ComponentFunction, FitSection, PiecewiseFunction, Profile};

use crate::input::{read_profile, write_text};
use provost_terminal::failure::{Exit, Failure};
use provost_terminal::output::{json_document, print};
use provost_terminal::table::{Align, Canvas, Table, clean};

pub(crate) const EXAMPLES: &str = "\
Latency and processor time of each component become piecewise-linear functions of message size and rate, with their
covariance and the quantiles of what they leave unexplained. A slope changes only where the observations ask for it.

Examples:
  provost insight fit profile.json                     show the functions
  provost insight fit profile.json --out profile.json  and keep them in the profile
  provost insight fit profile.json --json | jq '.functions[].component'";

/// Options of `fit`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The profile, as `provost insight profile` writes it; - is standard input
    profile: PathBuf,
    /// Write the profile with its functions here
    #[arg(long, short = 'o', value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print the functions as JSON
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut profile = read_profile(&options.profile)?;
    let fitted = fit(&profile)
        .map_err(|error| Failure::new(Exit::Refused, format!("{}: {error}", options.profile.display())))?;
    print(&if options.json {
        json_document(&fitted)?
    } else {
        draw(&profile, &fitted, Canvas::of_stdout())
    })?;
    let Some(out) = &options.out else {
        return Ok(());
    };
    profile.fit = Some(fitted);
    write_text(Some(out), &profile.to_json())
}

fn draw(profile: &Profile, fitted: &FitSection, canvas: Canvas) -> String {
    let mut table = Table::new(&[
        ("PROTOCOL", Align::Left),
        ("COMPONENT", Align::Left),
        ("PASSAGE", Align::Left),
        ("LATENCY µs", Align::Right),
        ("± 90 %", Align::Right),
        ("CPU µs", Align::Right),
        ("± 90 %", Align::Right),
        ("LATENCY AS A FUNCTION", Align::Left),
    ]);
    for function in &fitted.functions {
        let (latency, latency_error) = at_smallest(&function.latency_us);
        let (cpu, cpu_error) = at_smallest(&function.cpu_us);
        table.row([
            function.protocol.into(),
            name(function).into(),
            format!("{:?}", function.passage).to_lowercase().into(),
            format!("{latency:.2}").into(),
            format!("{latency_error:.2}").into(),
            format!("{cpu:.2}").into(),
            format!("{cpu_error:.2}").into(),
            formula(&function.latency_us).into(),
        ]);
    }
    let mut out = format!(
        "{} {} on {} ({} repetitions), at the smallest size and lowest rate observed:\n\n{}",
        clean(&profile.proxy.name),
        clean(&profile.proxy.version),
        clean(&profile.machine.processor),
        fitted.repetitions,
        table.draw(canvas)
    );
    for remark in &fitted.remarks {
        out += &format!("note: {}\n", clean(remark));
    }
    out
}

fn name(function: &ComponentFunction) -> String {
    match function.variant.as_str() {
        "" => function.component.to_string(),
        variant => format!("{} ({variant})", function.component),
    }
}

/// The value with half the width of its 90 % interval.
fn at_smallest(function: &PiecewiseFunction) -> (f64, f64) {
    let observed = &function.observed;
    let (size, rate) = (observed.size_bytes_min, observed.rate_per_s_min);
    (
        function.value_at(size, rate),
        function.half_width_90_at(size, rate),
    )
}

/// Such as `5.10 + 0.42·KiB (+1.10 from 4096 B)`.
fn formula(function: &PiecewiseFunction) -> String {
    let mut slopes = function.coefficients.iter();
    let constant = slopes.next().copied().unwrap_or(0.0);
    let size = slopes.next().copied().unwrap_or(0.0);
    let mut text = format!("{constant:.2} {:+.3}·KiB", size * 1024.0);
    for knot in &function.size_knots_bytes {
        let change = slopes.next().copied().unwrap_or(0.0);
        text += &format!(" ({:+.3} from {knot:.0} B)", change * 1024.0);
    }
    if function.has_rate_term {
        let rate = slopes.next().copied().unwrap_or(0.0);
        text += &format!(" {:+.3}·1000/s", rate * 1000.0);
    }
    for knot in &function.rate_knots_per_s {
        let change = slopes.next().copied().unwrap_or(0.0);
        text += &format!(" ({:+.3} from {knot:.0}/s)", change * 1000.0);
    }
    text
}
