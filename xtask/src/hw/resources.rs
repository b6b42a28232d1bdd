//! Cells that yosys counts in its logs, by module and by what they are.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::synthesis::FpgaFamily;

/// Cells by what they are: look-up tables, flip-flops, carries, distributed RAM, block RAM, multipliers.
type CellCounts = BTreeMap<&'static str, u64>;

const KINDS: [&str; 6] = ["LUT", "FF", "carry", "LUT RAM", "block RAM", "DSP"];

/// All instances of a module in the whole, without the modules that they contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModuleResources {
    instances: u64,
    cells: CellCounts,
}

/// What `stat` says of one module, under the name that yosys gives it with its parameters.
#[derive(Clone, Debug, Default)]
struct ModuleStatistics {
    cells: CellCounts,
    /// The modules that it contains, and how often.
    contains: BTreeMap<String, u64>,
}

/// What the last `stat` of a log says, by the modules' own names.
pub(crate) fn resources(log: &str) -> BTreeMap<String, ModuleResources> {
    let statistics = statistics(log);
    let mut resources: BTreeMap<String, ModuleResources> = BTreeMap::new();
    let contained: Vec<&String> = statistics
        .values()
        .flat_map(|module| module.contains.keys())
        .collect();
    let tops = statistics.keys().filter(|name| !contained.contains(name));
    let mut instances: Vec<(&str, u64)> = tops.map(|name| (name.as_str(), 1)).collect();
    // A module cannot contain itself, so this ends.
    while let Some((name, count)) = instances.pop() {
        let Some(module) = statistics.get(name) else {
            continue;
        };
        let sum = resources.entry(own_name(name).to_string()).or_default();
        sum.instances += count;
        for (kind, cells) in &module.cells {
            *sum.cells.entry(kind).or_default() += cells * count;
        }
        instances.extend(
            module
                .contains
                .iter()
                .map(|(name, each)| (name.as_str(), count * each)),
        );
    }
    resources
}

fn statistics(log: &str) -> BTreeMap<String, ModuleStatistics> {
    let mut modules: BTreeMap<String, ModuleStatistics> = BTreeMap::new();
    let mut current = None;
    let last = log.rfind("Printing statistics.").unwrap_or_default();
    for line in log[last..].lines() {
        let heading = line
            .strip_prefix("=== ")
            .and_then(|rest| rest.strip_suffix(" ==="));
        if let Some(name) = heading {
            current = (name != "design hierarchy").then(|| modules.entry(name.to_string()).or_default());
        } else if let Some(module) = &mut current {
            module.read(line);
        }
    }
    modules
}

impl ModuleStatistics {
    fn read(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [count, name] = words[..] else {
            return;
        };
        let Ok(count) = count.parse::<u64>() else {
            return;
        };
        if let Some(kind) = kind_of(name) {
            *self.cells.entry(kind).or_default() += count;
        } else if !WORDS_OF_STATISTICS.contains(&name) {
            self.contains.insert(name.to_string(), count);
        }
    }
}

/// What `stat` counts beside cells and modules, in lines of two words.
const WORDS_OF_STATISTICS: [&str; 6] = ["wires", "ports", "memories", "processes", "cells", "submodules"];

/// A module's name without the parameters that yosys puts around it.
fn own_name(name: &str) -> &str {
    let mut parts = name.split('\\');
    match (parts.next(), parts.next(), parts.next()) {
        // `$paramod\fifo\WIDTH=...`, or `$paramod$<hash>\fifo`.
        (Some("$paramod"), Some(own), _) | (Some(_), Some(own), None) => own,
        _ => name,
    }
}

fn kind_of(cell: &str) -> Option<&'static str> {
    Some(match cell {
        "LUT1" | "LUT2" | "LUT3" | "LUT4" | "LUT5" | "LUT6" | "INV" => "LUT",
        "TRELLIS_FF" | "FDRE" | "FDSE" | "FDCE" | "FDPE" => "FF",
        "CCU2C" | "CARRY4" | "CARRY8" => "carry",
        "TRELLIS_DPR16X4" => "LUT RAM",
        "DP16KD" | "RAMB36E2" | "RAMB18E2" => "block RAM",
        "MULT18X18D" | "DSP48E2" => "DSP",
        _ if cell.starts_with("RAM") && cell.contains('M') && !cell.starts_with("RAMB") => "LUT RAM",
        _ => return None,
    })
}

/// The table of a family, in Markdown, with the sum of all modules last.
pub(crate) fn table(family: FpgaFamily, modules: &BTreeMap<String, ModuleResources>) -> String {
    let mut out = format!("{} cells\n\n| module | instances |", family.name());
    for kind in KINDS {
        let _ = write!(out, " {kind} |");
    }
    out.push_str("\n|---|---|---|---|---|---|---|---|\n");
    let mut whole = ModuleResources {
        instances: 1,
        cells: CellCounts::new(),
    };
    for (name, module) in modules {
        row(&mut out, name, module);
        for (kind, cells) in &module.cells {
            *whole.cells.entry(kind).or_default() += cells;
        }
    }
    row(&mut out, "**all**", &whole);
    out
}

fn row(out: &mut String, name: &str, module: &ModuleResources) {
    let _ = write!(out, "| {name} | {} |", module.instances);
    for kind in KINDS {
        let _ = write!(out, " {} |", module.cells.get(kind).copied().unwrap_or_default());
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
Printing statistics.
=== $paramod\\fifo\\WIDTH=s32'1 ===
   9 LUT4
Printing statistics.

=== $paramod$ab\\fifo ===

        4 cells
        3   LUT4
        1   TRELLIS_FF
        1 submodules
        1   $paramod\\ram\\BITS=s32'00000000000000000000000000000110

=== $paramod\\ram\\BITS=s32'00000000000000000000000000000110 ===
        7 wires
        2   DP16KD

=== nic ===
       30 wire bits
       10   LUT4
        1   PFUMX
        2 submodules
        2   $paramod$ab\\fifo

=== design hierarchy ===
       99   LUT4
";

    #[test]
    fn cells_of_all_instances_are_counted_in_the_last_statistics() {
        let modules = resources(LOG);
        let of = |name: &str| (modules[name].instances, modules[name].cells.clone());
        assert_eq!(of("fifo"), (2, CellCounts::from([("LUT", 6), ("FF", 2)])));
        assert_eq!(of("ram"), (2, CellCounts::from([("block RAM", 4)])));
        assert_eq!(of("nic"), (1, CellCounts::from([("LUT", 10)])));
        assert_eq!(modules.len(), 3);
        let table = table(FpgaFamily::Ecp5, &modules);
        assert!(table.contains("| fifo | 2 | 6 | 2 | 0 | 0 | 0 | 0 |"), "{table}");
        assert!(
            table.contains("| **all** | 1 | 16 | 2 | 0 | 0 | 4 | 0 |"),
            "{table}"
        );
    }
}
