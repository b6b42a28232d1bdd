//! What the NIC needs of an FPGA: yosys maps each module to the cells of two families, and a table says how many of each kind. Latches
//! and warnings are errors, and a mutant of the RTL with a latch must be refused. For ECP5, nextpnr says how fast modules are ([`placement`]).

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::logic_delay::longest_logic;
use super::placement;
use super::resources::{resources, table};
use super::tools::{MAPPER_MISSING, PLACER_MISSING, PlaceAndRoute, YosysOutput, YosysProgram, rtl_files};
use crate::Complaints;
use crate::workspace::Workspace;

/// A family of FPGAs.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FpgaFamily {
    /// Lattice ECP5.
    Ecp5,
    /// Xilinx UltraScale+.
    UltrascalePlus,
}

impl FpgaFamily {
    pub(crate) const ALL: [FpgaFamily; 2] = [FpgaFamily::Ecp5, FpgaFamily::UltrascalePlus];

    fn script(self, top: &str) -> String {
        match self {
            FpgaFamily::Ecp5 => format!("synth_ecp5 -noflatten -top {top}"),
            FpgaFamily::UltrascalePlus => format!("synth_xilinx -family xcup -noiopad -top {top}"),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            FpgaFamily::Ecp5 => "ECP5",
            FpgaFamily::UltrascalePlus => "UltraScale+",
        }
    }
}

/// The module that the quick check maps to both families, in seconds.
const QUICK_MODULE: &str = "rx_writer";
/// A change of a module that makes it keep a value: the file, what is left out, and what stands in its place.
const LATCH_MUTANT: [&str; 3] = ["client_slot.sv", "    free_slot = '0;\n", ""];

/// Prints the tables of all that is asked for, and the clock that ECP5 reaches.
pub(crate) fn synthesize(
    workspace: &Workspace,
    yosys: &YosysProgram,
    family: Option<FpgaFamily>,
) -> Result<(), Complaints> {
    check_elaboration(workspace, yosys)?;
    if !yosys.can_map() {
        eprintln!("xtask: {MAPPER_MISSING}");
        return Ok(());
    }
    for family in FpgaFamily::ALL
        .into_iter()
        .filter(|one| family.is_none_or(|wanted| wanted == *one))
    {
        let began = Instant::now();
        let log = map(workspace, yosys, family, "nic")?;
        println!("{}", table(family, &resources(&log)));
        if let Some(longest) = longest_logic(&log).filter(|_| family == FpgaFamily::Ecp5) {
            println!("{longest}");
        }
        eprintln!("{}: mapped in {} s", family.name(), began.elapsed().as_secs());
    }
    if family == Some(FpgaFamily::UltrascalePlus) {
        return Ok(());
    }
    place_modules(workspace, yosys, None)
}

/// Prints the clocks that modules reach on ECP5, or this module.
pub(crate) fn place_modules(
    workspace: &Workspace,
    yosys: &YosysProgram,
    only: Option<&str>,
) -> Result<(), Complaints> {
    if !yosys.can_map() {
        eprintln!("xtask: {MAPPER_MISSING}");
        return Ok(());
    }
    match PlaceAndRoute::find(workspace) {
        Some(placer) => placement::place(workspace, yosys, &placer, only),
        None => {
            eprintln!("xtask: {PLACER_MISSING}");
            Ok(())
        }
    }
}

/// What takes less than a minute: the whole NIC without a latch or a warning, a mutant with a latch refused, one module mapped.
pub(crate) fn check_quickly(workspace: &Workspace, yosys: &YosysProgram) -> Result<(), Complaints> {
    check_elaboration(workspace, yosys)?;
    if !yosys.can_map() {
        eprintln!("xtask: {MAPPER_MISSING}");
        return Ok(());
    }
    for family in FpgaFamily::ALL {
        let began = Instant::now();
        let log = map(workspace, yosys, family, QUICK_MODULE)?;
        if !resources(&log).contains_key(QUICK_MODULE) {
            return Err(vec![format!("{}: no cells of {QUICK_MODULE}", family.name())]);
        }
        let seconds = began.elapsed().as_secs();
        eprintln!("{}: {QUICK_MODULE} mapped in {seconds} s", family.name());
    }
    Ok(())
}

/// The whole NIC has no latch and gets no warning; a mutant that has a latch does.
fn check_elaboration(workspace: &Workspace, yosys: &YosysProgram) -> Result<(), Complaints> {
    let began = Instant::now();
    crate::none(elaborate(workspace, yosys, &workspace.root.join("hw/rtl"))?)?;
    let found = elaborate(workspace, yosys, &latch_mutant(workspace)?)?;
    if !found.iter().any(|complaint| complaint.contains("Latch inferred")) {
        let [file, ..] = LATCH_MUTANT;
        return Err(vec![format!(
            "the latch of the mutant of {file} is not found: {found:?}"
        )]);
    }
    let seconds = began.elapsed().as_secs();
    eprintln!("no latch, no warning; the mutant's latch is found ({seconds} s)");
    Ok(())
}

fn elaborate(workspace: &Workspace, yosys: &YosysProgram, folder: &Path) -> Result<Complaints, Complaints> {
    let script = format!(
        "read_verilog -sv {}; hierarchy -check -top nic; proc; check -assert",
        sources(workspace, folder)?.join(" ")
    );
    let output = yosys.run(workspace, &script)?;
    let mut complaints = faults(&output.log);
    if !output.success && complaints.is_empty() {
        complaints.push(format!("yosys failed:\n{}", output.tail()));
    }
    Ok(complaints)
}

/// The RTL in a folder of its own, with the change that makes a latch.
fn latch_mutant(workspace: &Workspace) -> Result<PathBuf, Complaints> {
    let folder = workspace.target.join("hw/mutants/latch");
    std::fs::create_dir_all(&folder).map_err(|error| vec![format!("{}: {error}", folder.display())])?;
    let [file, from, to] = LATCH_MUTANT;
    for name in rtl_files(workspace)? {
        let path = workspace.root.join("hw/rtl").join(&name);
        let mut text = std::fs::read_to_string(&path).map_err(|error| vec![format!("{name}: {error}")])?;
        if name == file {
            let places = text.matches(from).count();
            if places != 1 {
                return Err(vec![format!(
                    "{file}: what the mutant leaves out is {places} times in it"
                )]);
            }
            text = text.replace(from, to);
        }
        std::fs::write(folder.join(&name), text).map_err(|error| vec![format!("{name}: {error}")])?;
    }
    Ok(folder)
}

/// Maps a module and what it contains; the log of it, in which nothing is wrong.
fn map(
    workspace: &Workspace,
    yosys: &YosysProgram,
    family: FpgaFamily,
    top: &str,
) -> Result<String, Complaints> {
    let script = format!(
        "read_verilog -sv {}; {}; check -assert; stat",
        sources(workspace, &workspace.root.join("hw/rtl"))?.join(" "),
        family.script(top)
    );
    let output = yosys.run(workspace, &script)?;
    let log = workspace
        .target
        .join(format!("hw/synth-{}-{top}.log", family.name()));
    std::fs::write(&log, &output.log).map_err(|error| vec![format!("{}: {error}", log.display())])?;
    judged(output)
}

pub(super) fn sources(workspace: &Workspace, folder: &Path) -> Result<Vec<String>, Complaints> {
    let folder = workspace.relative(folder).display().to_string();
    let names = rtl_files(workspace)?;
    Ok(names.iter().map(|name| format!("{folder}/{name}")).collect())
}

/// The log of a run that ended well.
pub(super) fn judged(output: YosysOutput) -> Result<String, Complaints> {
    crate::none(faults(&output.log))?;
    if output.success {
        Ok(output.log)
    } else {
        Err(vec![format!("yosys failed:\n{}", output.tail())])
    }
}

/// Whether yosys warns of what it makes itself and not of the RTL: that a small memory becomes flip-flops, and that the ports of the block RAM to
/// which it maps `memory_q` of `line_ram` are wider than those of the FPGA's cell.
fn is_of_mapping(warning: &str) -> bool {
    let block_ram = warning.contains("Resizing cell port") && warning.contains("line_ram.memory_q.");
    block_ram || warning.contains("with list of registers")
}

/// Latches, and warnings about the RTL.
fn faults(log: &str) -> Complaints {
    let is_fault = |line: &&str| {
        let latch = line.contains("Latch inferred");
        latch || (line.starts_with("Warning:") && !is_of_mapping(line))
    };
    let mut complaints: Complaints = log.lines().filter(is_fault).map(str::to_string).collect();
    complaints.dedup();
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hw::tools::YOSYS_MISSING;

    #[test]
    fn latches_and_warnings_are_faults() {
        assert_eq!(
            faults("Latch inferred for signal x\nWarning: Replacing memory \\m with list of registers.")
                .len(),
            1
        );
        assert_eq!(faults("Warning: wire is used but has no driver.").len(), 1);
        let resized = |port: &str| format!("Warning: Resizing cell port {port} from 16 bits to 14 bits.");
        assert_eq!(
            faults(&resized("$paramod\\line_ram.memory_q.0.1.ADDRARDADDR")),
            Complaints::new()
        );
        assert_eq!(faults(&resized("nic.buffers.write_address")).len(), 1);
    }

    #[test]
    fn a_latch_in_the_rtl_is_found_by_yosys() {
        let workspace = Workspace::load().unwrap();
        match YosysProgram::find(&workspace) {
            Some(yosys) => assert_eq!(check_elaboration(&workspace, &yosys), Ok(())),
            None => eprintln!("{YOSYS_MISSING}"),
        }
    }
}
