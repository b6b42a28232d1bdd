//! What the NIC needs of an FPGA: yosys maps each module to the cells of two families, and a table says how many of each kind.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::tools::{Yosys, rtl_files};
use crate::Complaints;
use crate::workspace::Workspace;

/// A family of FPGAs.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Family {
    /// Lattice ECP5.
    Ecp5,
    /// Xilinx UltraScale+.
    UltrascalePlus,
}

impl Family {
    fn script(self) -> &'static str {
        match self {
            Family::Ecp5 => "synth_ecp5 -noflatten -noabc9 -top nic",
            Family::UltrascalePlus => "synth_xilinx -family xcup -noiopad -top nic",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Family::Ecp5 => "ECP5",
            Family::UltrascalePlus => "UltraScale+",
        }
    }
}

/// Cells of a module by what they are: look-up tables, flip-flops, carries, distributed RAM, block RAM, multipliers.
type Resources = BTreeMap<&'static str, u64>;

const KINDS: [&str; 6] = ["LUT", "FF", "carry", "LUT RAM", "block RAM", "DSP"];

/// Synthesizes the NIC and prints the table. Latches and warnings of yosys about the RTL are errors.
pub(crate) fn synthesize(workspace: &Workspace, yosys: &Yosys, family: Family) -> Result<(), Complaints> {
    let sources: Vec<String> = rtl_files(workspace)?
        .iter()
        .map(|name| format!("hw/rtl/{name}"))
        .collect();
    let script = format!(
        "read_verilog -sv {}; {}; check; stat",
        sources.join(" "),
        family.script()
    );
    let output = yosys.run(workspace, &script)?;
    let log = workspace.target.join(format!("hw/synth-{}.log", family.name()));
    std::fs::write(&log, &output.log).map_err(|error| vec![format!("{}: {error}", log.display())])?;
    if !output.success {
        return Err(vec![format!("yosys failed:\n{}", output.tail())]);
    }
    crate::none(faults(&output.log))?;
    println!("{}", table(family, &modules(&output.log)));
    Ok(())
}

/// Latches, and warnings but those that a small memory becomes flip-flops.
fn faults(log: &str) -> Complaints {
    let is_fault = |line: &&str| {
        let latch = line.contains("Latch inferred") || line.contains("$_DLATCH");
        let warning = line.starts_with("Warning:") && !line.contains("with list of registers");
        latch || warning
    };
    let mut complaints: Complaints = log.lines().filter(is_fault).map(str::to_string).collect();
    complaints.dedup();
    complaints
}

/// What `stat` says last of each module; the name that yosys gives a module with parameters is shortened to the module's.
fn modules(log: &str) -> BTreeMap<String, Resources> {
    let mut modules: BTreeMap<String, Resources> = BTreeMap::new();
    let mut current = None;
    let last = log.rfind("Printing statistics.").unwrap_or_default();
    for line in log[last..].lines() {
        if let Some(name) = line
            .strip_prefix("=== ")
            .and_then(|rest| rest.strip_suffix(" ==="))
        {
            current = (name != "design hierarchy").then(|| module_name(name));
            if let Some(name) = &current {
                modules.entry(name.clone()).or_default();
            }
            continue;
        }
        let Some(resources) = current.as_ref().and_then(|name| modules.get_mut(name)) else {
            continue;
        };
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = words.iter().find_map(|word| word.parse::<u64>().ok());
        let kind = words.iter().find_map(|word| kind_of(word));
        if let (Some(number), Some(kind)) = (number, kind) {
            *resources.entry(kind).or_default() += number;
        }
    }
    modules
}

fn module_name(name: &str) -> String {
    let name = name.rsplit('\\').next().unwrap_or(name);
    name.to_string()
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

fn table(family: Family, modules: &BTreeMap<String, Resources>) -> String {
    let mut out = format!(
        "{} cells, each module with its parameters, without those that it contains:\n\n| module |",
        family.name()
    );
    for kind in KINDS {
        let _ = write!(out, " {kind} |");
    }
    out.push_str("\n|---|---|---|---|---|---|---|\n");
    for (name, resources) in modules {
        let _ = write!(out, "| {name} |");
        for kind in KINDS {
            let _ = write!(out, " {} |", resources.get(kind).copied().unwrap_or_default());
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
Printing statistics.
=== $paramod\\fifo\\WIDTH=s32'1 ===
   9 cells
Printing statistics.

=== $paramod$ab\\fifo ===

        4 cells
        3   LUT4
        1   TRELLIS_FF

=== nic ===
       10   LUT4
        2   DP16KD

=== design hierarchy ===
       99   LUT4
";

    #[test]
    fn cells_are_counted_by_module_and_kind_in_the_last_statistics() {
        let modules = modules(LOG);
        assert_eq!(modules.len(), 2);
        assert_eq!(modules["fifo"], Resources::from([("LUT", 3), ("FF", 1)]));
        assert_eq!(modules["nic"], Resources::from([("LUT", 10), ("block RAM", 2)]));
        assert!(table(Family::Ecp5, &modules).contains("| nic | 10 | 0 | 0 | 0 | 2 | 0 |"));
    }

    #[test]
    fn latches_and_warnings_are_faults() {
        assert_eq!(
            faults("Latch inferred for signal x\nWarning: Replacing memory \\m with list of registers.")
                .len(),
            1
        );
        assert_eq!(faults("Warning: wire is used but has no driver.").len(), 1);
    }
}
