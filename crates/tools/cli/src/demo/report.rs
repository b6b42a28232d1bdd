//! The figures at the end: a table for people, JSON for programs.

use std::fmt::Write;

use serde::Serialize;

use super::governing::Governed;
use super::wire::{Figures, Moved};

/// Everything that a run found out.
#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) data: String,
    /// The streamed bulk load.
    pub(crate) load: Moved,
    /// The gets that compared every entry with the file.
    pub(crate) check: Moved,
    pub(crate) scan: Moved,
    /// What the operator did while the client called, and what came of it.
    pub(crate) governed: Governed,
    /// The same of a client and a server that know nothing of Provost.
    pub(crate) plain_grpc: Governed,
    /// Resident memory of the two nodes' services after all that, in MiB.
    pub(crate) service_memory_mib: Vec<f64>,
    pub(crate) cells: Vec<Cell>,
}

#[derive(Serialize)]
pub(crate) struct Cell {
    pub(crate) setup: &'static str,
    pub(crate) what: String,
    #[serde(rename = "median")]
    pub(crate) figures: Figures,
}

impl Report {
    /// The report as indented JSON.
    pub(crate) fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self)
    }

    /// The report as a table.
    pub(crate) fn to_table(&self) -> String {
        let mut table = String::new();
        let row = |table: &mut String, cells: [&str; 7]| {
            let [setup, what, calls, p50, p99, p999, rate] = cells;
            // Writing to a string cannot fail.
            let _ = writeln!(
                table,
                "  {setup:<20} {what:<18} {calls:>10} {p50:>10} {p99:>10} {p999:>10} {rate:>12}"
            );
        };
        row(&mut table, ["", "", "calls", "p50", "p99", "p99.9", "calls/s"]);
        for cell in &self.cells {
            let figures = &cell.figures;
            row(
                &mut table,
                [
                    cell.setup,
                    &cell.what,
                    &grouped(figures.calls),
                    &latency(figures.p50_us),
                    &latency(figures.p99_us),
                    &latency(figures.p999_us),
                    &grouped(figures.rps as u64),
                ],
            );
        }
        table
    }
}

impl Moved {
    /// What was moved, in a few words.
    pub(crate) fn summary(&self) -> String {
        format!(
            "{}, {:.1} MB in {:.2} s ({} entries/s)",
            entries(self.entries),
            self.bytes as f64 / 1e6,
            self.seconds,
            grouped(self.entries_per_second() as u64),
        )
    }
}

/// So many entries of the data.
pub(crate) fn entries(count: u64) -> String {
    match count {
        1 => "1 entry".to_owned(),
        count => format!("{} entries", grouped(count)),
    }
}

fn latency(us: f64) -> String {
    if us < 10_000.0 {
        format!("{us:.1} µs")
    } else {
        format!("{:.1} ms", us / 1e3)
    }
}

/// A number with a comma after every three digits.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_three() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }

    #[test]
    fn latencies_have_a_fitting_unit() {
        assert_eq!(latency(12.34), "12.3 µs");
        assert_eq!(latency(12_340.0), "12.3 ms");
    }
}
