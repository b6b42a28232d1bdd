//! `provost insight doctor`: what this machine grants.

use clap::Args;
use provost_insight_probes::doctor::{DoctorReport, examine};

use provost_terminal::failure::Failure;
use provost_terminal::output::{json_document, print};
use provost_terminal::table::{Align, Canvas, Table, clean};

pub(crate) const EXAMPLES: &str = "\
Tries each method of measuring, says which one each component will be measured by, and what to do about what is missing.
Nothing stays behind. It needs no daemon.

Examples:
  provost insight doctor
  provost insight doctor --json | jq -r '.checks[] | select(.granted | not) | .remedy'";

/// Options of `doctor`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Print what was found out as JSON
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let report = examine();
    print(&if options.json {
        json_document(&report)?
    } else {
        draw(&report, Canvas::of_stdout())
    })
}

fn draw(report: &DoctorReport, canvas: Canvas) -> String {
    let machine = &report.machine;
    let mut checks = Table::new(&[
        ("WHAT", Align::Left),
        ("HERE", Align::Left),
        ("FOUND", Align::Left),
        ("FOR", Align::Left),
    ]);
    for check in &report.checks {
        let here = if check.granted { "yes" } else { "no" };
        checks.row([
            check.name.clone().into(),
            here.into(),
            clean(&check.detail).into(),
            check.purpose.into(),
        ]);
    }
    let mut methods = Table::new(&[
        ("COMPONENT", Align::Left),
        ("METHOD", Align::Left),
        ("NOTE", Align::Left),
    ]);
    for chosen in &report.methods {
        methods.row([
            chosen.component.clone().into(),
            chosen.method.unwrap_or("none").into(),
            chosen.note.into(),
        ]);
    }
    let mut ladder = Table::new(&[
        ("LADDER", Align::Left),
        ("HERE", Align::Left),
        ("HIT ns", Align::Right),
        ("USED FOR", Align::Left),
    ]);
    for rung in &report.ladder {
        ladder.row([
            rung.method.clone().into(),
            if rung.granted { "yes" } else { "no" }.into(),
            rung.hit_cost_ns
                .map_or("-".into(), |cost| format!("{cost:.0}"))
                .into(),
            clean(&rung.purpose).into(),
        ]);
    }
    let mut out = format!(
        "{} cores of {}, Linux {}, {}\n\n{}\n{}\n{}",
        machine.processors,
        clean(&machine.processor),
        clean(&machine.kernel),
        clean(&machine.system),
        checks.draw(canvas),
        ladder.draw(canvas),
        methods.draw(canvas)
    );
    let remedies: Vec<String> = report
        .checks
        .iter()
        .filter_map(|check| Some(format!("{}: {}", check.name, check.remedy.as_ref()?)))
        .collect();
    if !remedies.is_empty() {
        out += &format!("\nWhat can be done:\n  {}\n", remedies.join("\n  "));
    }
    out
}
