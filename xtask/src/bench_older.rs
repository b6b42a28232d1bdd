//! The benchmarks of an earlier commit and of today's code, in turn, in one table.
//!
//! Both are built with the profile of packages. A round is one short run of each; the one that begins changes from round to round. What
//! counts is the ratio within a round, as the machine is not the same from one minute to the next.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::older_source::OlderSource;
use crate::workspace::{Workspace, WorkspaceError, run, show};
use crate::{Complaints, chores};

/// The commit that is measured when none is named: the last one before the rooms of runtime, live change and transports.
const BEFORE_THE_ROOMS: &str = "a87b6fa";
/// The profile of packages, for commits that have none of this name.
const PROFILE: [&str; 4] = [
    "profile.dist.inherits=\"release\"",
    "profile.dist.lto=\"thin\"",
    "profile.dist.codegen-units=4",
    "profile.dist.debug=\"line-tables-only\"",
];
/// The programs that a benchmark consists of.
const PROGRAMS: [&str; 2] = ["provost-bench", "provostd"];

/// What is measured, and how often.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct OlderBench {
    /// The earlier commit; by default the last one before the rooms of runtime, live change and transports
    #[arg(default_value = BEFORE_THE_ROOMS)]
    commit: String,
    /// Which benchmarks (several, separated by commas)
    #[arg(long, value_delimiter = ',', default_value = "call,policy,datagram,upgrade")]
    bench: Vec<String>,
    /// Rounds, each of one run of either build
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Length of a run in seconds; of `upgrade`, as that is. Many short rounds tell more than few long ones
    #[arg(long, value_name = "SECONDS", default_value_t = 0.8)]
    seconds: f64,
    /// Only setups whose name contains this (several, separated by commas); of `upgrade`, all
    #[arg(long, default_value = "provost,floor")]
    only: String,
    /// Build both, and measure nothing
    #[arg(long)]
    build_only: bool,
    /// A folder with the earlier commit's programs, which are not built then
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
    /// Write the table to this file as well, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Builds both, runs them in turn, and prints the table.
pub(crate) fn compare(workspace: &Workspace, options: &OlderBench) -> Result<(), Complaints> {
    let said = |error: WorkspaceError| vec![error.to_string()];
    let older = match &options.programs {
        Some(folder) => folder.clone(),
        None => build_older(workspace, &options.commit).map_err(said)?,
    };
    run(&mut workspace.cargo(&[
        "build",
        "--quiet",
        "--profile",
        "dist",
        "-p",
        PROGRAMS[0],
        "-p",
        PROGRAMS[1],
    ]))
    .map_err(said)?;
    if options.build_only {
        return Ok(());
    }
    let builds = [older, workspace.target.join("dist")];
    let (mut lines, mut complaints) = (Vec::new(), Complaints::new());
    for bench in &options.bench {
        match compared(workspace, options, bench, &builds) {
            Ok(more) => lines.extend(more),
            // What the others say counts all the same.
            Err(more) => complaints.extend(more),
        }
    }
    print(&lines, &options.commit);
    if let Some(file) = &options.json {
        write(file, &lines)?;
    }
    crate::none(complaints)
}

/// The folder with the earlier programs. They share the target folder with today's code while they are built, and so all that
/// both depend on; what has the same name in both is copied away.
fn build_older(workspace: &Workspace, commit: &str) -> Result<PathBuf, WorkspaceError> {
    let older = OlderSource::of(workspace, commit);
    let folder = older.folder.join("dist");
    if PROGRAMS.iter().all(|name| folder.join(name).is_file()) {
        return Ok(folder);
    }
    let source = older.unpack(workspace)?;
    let mut build = workspace.cargo(&["build", "--quiet", "--profile", "dist"]);
    PROFILE.iter().for_each(|setting| {
        build.args(["--config", setting]);
    });
    PROGRAMS.iter().for_each(|name| {
        build.args(["--package", name]);
    });
    run(build
        .current_dir(&source)
        .env("CARGO_TARGET_DIR", &workspace.target))?;
    run(Command::new("mkdir").arg("-p").arg(&folder))?;
    let built = PROGRAMS.map(|name| workspace.target.join("dist").join(name));
    run(Command::new("cp").args(built).arg(&folder))?;
    Ok(folder)
}

/// Which setups of a benchmark are meant. Those of `upgrade` are changes, and all of them are ours.
fn setups<'a>(bench: &str, only: &'a str) -> &'a str {
    if bench == "upgrade" { "" } else { only }
}

/// What the runs of one benchmark came to.
fn compared(
    workspace: &Workspace,
    options: &OlderBench,
    bench: &str,
    builds: &[PathBuf; 2],
) -> Result<Vec<ComparedFigure>, Complaints> {
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        let begins = round % 2;
        let mut figures = [RunFigures::new(), RunFigures::new()];
        for build in [begins, 1 - begins] {
            let file = workspace
                .target
                .join(format!("bench-{bench}-{build}-{round}.json"));
            let _ = std::fs::remove_file(&file);
            let mut command = Command::new(builds[build].join(PROGRAMS[0]));
            command
                .args([bench, "--quick", "--only", setups(bench, &options.only), "--json"])
                .arg(&file)
                .env(chores::BENCH_CACHE, chores::bench_cache(workspace));
            if has_rounds(bench) {
                command.args(["--rounds", "1", "--seconds", &options.seconds.to_string()]);
            }
            figures[build] = figures_of(&mut command, &file)?;
        }
        rounds.push(figures);
    }
    Ok(lines(bench, &rounds))
}

/// Whether a benchmark takes the number of its rounds and their length: live changes are counted instead.
fn has_rounds(bench: &str) -> bool {
    bench != "upgrade"
}

/// Each figure of a run, by setup, load, and name.
type RunFigures = BTreeMap<(String, String, &'static str), f64>;

/// Runs a benchmark, whose table is of no interest here.
fn figures_of(command: &mut Command, file: &Path) -> Result<RunFigures, Complaints> {
    eprintln!("xtask: {}", show(command));
    let output = command.output();
    let output = output.map_err(|error| vec![format!("{}: {error}", show(command))])?;
    let text = std::fs::read_to_string(file).map_err(|error| {
        let said = String::from_utf8_lossy(&output.stderr);
        vec![format!(
            "{} has written no figures ({error}): {said}",
            show(command)
        )]
    })?;
    let run: WrittenRun =
        serde_json::from_str(&text).map_err(|error| vec![format!("{}: {error}", file.display())])?;
    Ok(run.cells.into_iter().flat_map(WrittenCell::figures).collect())
}

/// What both builds write of a run.
#[derive(Deserialize)]
struct WrittenRun {
    cells: Vec<WrittenCell>,
}

#[derive(Deserialize)]
struct WrittenCell {
    setup: String,
    what: String,
    median: WrittenMedian,
}

#[derive(Deserialize)]
struct WrittenMedian {
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    rps: Option<f64>,
    cpu_us_per_rpc: Option<f64>,
}

impl WrittenCell {
    fn figures(self) -> Vec<((String, String, &'static str), f64)> {
        let median = &self.median;
        let named = [
            ("p50 us", median.p50_us),
            ("p99 us", median.p99_us),
            (RATE, median.rps),
            ("cpu us", median.cpu_us_per_rpc),
        ];
        let known = named.into_iter().filter_map(|(name, value)| Some((name, value?)));
        known
            .filter(|(_, value)| *value > 0.0)
            .map(|(name, value)| ((self.setup.clone(), self.what.clone(), name), value))
            .collect()
    }
}

/// The one figure that is better when it is more.
const RATE: &str = "calls/s";

/// One figure of both builds.
#[derive(Debug, PartialEq, Serialize)]
struct ComparedFigure {
    bench: String,
    setup: String,
    what: String,
    figure: &'static str,
    /// Medians over the rounds.
    before: f64,
    now: f64,
    /// Of each round, now over before, the least first.
    ratios: Vec<f64>,
    verdict: RoundsVerdict,
}

/// What the rounds say of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum RoundsVerdict {
    /// Better in each round.
    Better,
    /// Worse in each round.
    Worse,
    /// Not the same in all of them.
    Alike,
}

/// The figures that both builds have in every round.
fn lines(bench: &str, rounds: &[[RunFigures; 2]]) -> Vec<ComparedFigure> {
    let Some([_, first]) = rounds.first() else {
        return Vec::new();
    };
    first.keys().filter_map(|key| line(bench, key, rounds)).collect()
}

fn line(
    bench: &str,
    key: &(String, String, &'static str),
    rounds: &[[RunFigures; 2]],
) -> Option<ComparedFigure> {
    let of = |build: usize| -> Option<Vec<f64>> {
        rounds
            .iter()
            .map(|round| round[build].get(key).copied())
            .collect()
    };
    let (before, now) = (of(0)?, of(1)?);
    let mut ratios: Vec<f64> = before
        .iter()
        .zip(&now)
        .map(|(before, now)| now / before)
        .collect();
    ratios.sort_by(f64::total_cmp);
    let (least, most) = (*ratios.first()?, *ratios.last()?);
    let verdict = match key.2 {
        _ if least <= 1.0 && most >= 1.0 => RoundsVerdict::Alike,
        RATE if least > 1.0 => RoundsVerdict::Better,
        RATE => RoundsVerdict::Worse,
        _ if least > 1.0 => RoundsVerdict::Worse,
        _ => RoundsVerdict::Better,
    };
    Some(ComparedFigure {
        bench: bench.to_owned(),
        setup: key.0.clone(),
        what: key.1.clone(),
        figure: key.2,
        before: median(before),
        now: median(now),
        ratios,
        verdict,
    })
}

/// The middle one; of two, their mean.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        (values[middle - 1] + values[middle]) / 2.0
    }
}

fn print(lines: &[ComparedFigure], commit: &str) {
    println!(
        "before: {commit}; a ratio is now over before, of each round; \"worse\" and \"better\" are so in every round\n"
    );
    println!(
        "{:9} {:20} {:18} {:8} {:>12} {:>12} {:>6} {:>13}",
        "bench", "setup", "what", "figure", "before", "now", "ratio", "of rounds"
    );
    for line in lines {
        let (least, most) = (line.ratios[0], line.ratios[line.ratios.len() - 1]);
        println!(
            "{:9} {:20} {:18} {:8} {:12.2} {:12.2} {:6.2} {:6.2}-{:<6.2} {}",
            line.bench,
            line.setup,
            line.what,
            line.figure,
            line.before,
            line.now,
            median(line.ratios.clone()),
            least,
            most,
            match line.verdict {
                RoundsVerdict::Better => "better",
                RoundsVerdict::Worse => "worse",
                RoundsVerdict::Alike => "",
            }
        );
    }
    let count = |verdict| lines.iter().filter(|line| line.verdict == verdict).count();
    let (better, worse) = (count(RoundsVerdict::Better), count(RoundsVerdict::Worse));
    println!(
        "\n{} figures: {better} better, {worse} worse in every round",
        lines.len()
    );
}

fn write(file: &Path, lines: &[ComparedFigure]) -> Result<(), Complaints> {
    let text = serde_json::to_string_pretty(lines).map_err(|error| vec![error.to_string()])?;
    let written = std::fs::write(file, text + "\n");
    written.map_err(|error| vec![format!("{}: {error}", file.display())])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(text: &str) -> RunFigures {
        let run: WrittenRun = serde_json::from_str(text).unwrap();
        run.cells.into_iter().flat_map(WrittenCell::figures).collect()
    }

    fn run_of(p50: f64, rate: f64) -> RunFigures {
        figures(&format!(
            r#"{{"cells": [{{"setup": "provost", "what": "lat", "size": 64, "median": {{"p50_us": {p50}, "rps": {rate}}}}}]}}"#
        ))
    }

    #[test]
    fn a_figure_is_worse_when_it_is_so_in_every_round() {
        let rounds = [
            [run_of(10.0, 100.0), run_of(12.0, 90.0)],
            [run_of(20.0, 100.0), run_of(22.0, 110.0)],
        ];
        let lines = lines("call", &rounds);
        let verdicts: Vec<_> = lines.iter().map(|line| (line.figure, line.verdict)).collect();
        assert_eq!(
            verdicts,
            [
                ("calls/s", RoundsVerdict::Alike),
                ("p50 us", RoundsVerdict::Worse)
            ]
        );
        assert_eq!(lines[1].ratios, [1.1, 1.2]);
        assert_eq!((lines[1].before, lines[1].now), (15.0, 17.0));
    }

    #[test]
    fn more_calls_are_better_and_more_time_is_worse() {
        let rounds = [[run_of(10.0, 100.0), run_of(12.0, 120.0)]];
        let verdicts: Vec<_> = lines("call", &rounds)
            .into_iter()
            .map(|line| line.verdict)
            .collect();
        assert_eq!(verdicts, [RoundsVerdict::Better, RoundsVerdict::Worse]);
    }

    #[test]
    fn what_one_build_does_not_measure_is_left_out() {
        let rounds = [[RunFigures::new(), run_of(10.0, 100.0)]];
        assert_eq!(lines("call", &rounds), []);
    }
}
