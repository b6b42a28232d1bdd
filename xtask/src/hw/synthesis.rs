//! What the NIC needs of an FPGA: yosys maps each module to the cells of two families, and a table says how many of each kind. Latches
//! and warnings are errors, and a mutant of the RTL with a latch must be refused. For ECP5, nextpnr places, routes, and says how fast.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::logic_delay::longest_logic;
use super::resources::{resources, table};
use super::tools::{MAPPER_MISSING, PLACER_MISSING, PlaceAndRoute, YosysOutput, YosysProgram, rtl_files};
use crate::Complaints;
use crate::workspace::{Workspace, run as run_command};

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
/// The NIC between shift registers: it has more ports than an FPGA has pins.
const TIMED: &str = "nic_timing";
/// The device that is placed and routed, with its package: 83,640 look-up tables.
const DEVICE: [&str; 3] = ["--85k", "--package", "CABGA381"];
/// The clock that nextpnr is asked for, in MHz. It goes on if it does not get there.
const CLOCK_WANTED_MHZ: &str = "100";

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
    match PlaceAndRoute::find(workspace) {
        Some(placer) => time(workspace, yosys, &placer),
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

/// Places and routes the NIC for ECP5, and prints what nextpnr says of its clock.
fn time(workspace: &Workspace, yosys: &YosysProgram, placer: &PlaceAndRoute) -> Result<(), Complaints> {
    let began = Instant::now();
    // nextpnr's package sees only what is below the folder in which it starts.
    let folder = workspace.root.join("target/hw");
    std::fs::create_dir_all(&folder).map_err(|error| vec![format!("{}: {error}", folder.display())])?;
    let mut files = sources(workspace, &workspace.root.join("hw/rtl"))?;
    files.push(format!("hw/bench/{TIMED}.sv"));
    let script = format!(
        "read_verilog -sv {}; {} -json target/hw/{TIMED}.json; check -assert",
        files.join(" "),
        FpgaFamily::Ecp5.script(TIMED)
    );
    judged(yosys.run(workspace, &script)?)?;
    let mut command = placer.command(workspace);
    command
        .args(DEVICE)
        .args(["--json", &format!("target/hw/{TIMED}.json")]);
    command.args(["--report", &format!("target/hw/{TIMED}-report.json")]);
    command.args([
        "--freq",
        CLOCK_WANTED_MHZ,
        "--seed",
        "1",
        "--timing-allow-fail",
        "--lpf-allow-unconstrained",
    ]);
    command.args(["--quiet", "--log", &format!("target/hw/{TIMED}.log")]);
    run_command(&mut command).map_err(|error| vec![error.to_string()])?;
    let path = folder.join(format!("{TIMED}-report.json"));
    let report =
        std::fs::read_to_string(&path).map_err(|error| vec![format!("{}: {error}", path.display())])?;
    println!("{}", timing(&report)?);
    eprintln!("ECP5: placed and routed in {} s", began.elapsed().as_secs());
    Ok(())
}

/// What nextpnr's report says of the clock and of the longest path.
fn timing(report: &str) -> Result<String, Complaints> {
    let report: serde_json::Value =
        serde_json::from_str(report).map_err(|error| vec![format!("nextpnr's report: {error}")])?;
    let clocks = report["fmax"].as_object().into_iter().flatten();
    let mut lines: Vec<String> = clocks
        .filter_map(|(_, clock)| clock["achieved"].as_f64())
        .map(|mhz| format!("ECP5-85, placed and routed: {mhz:.1} MHz"))
        .collect();
    if lines.is_empty() {
        return Err(vec!["nextpnr's report names no clock".to_string()]);
    }
    lines.extend(longest_path(&report));
    Ok(lines.join("\n"))
}

fn longest_path(report: &serde_json::Value) -> Option<String> {
    let paths = report["critical_paths"].as_array()?;
    let clocked = |path: &&serde_json::Value| path["from"] == path["to"];
    let path = paths.iter().find(clocked)?["path"].as_array()?;
    let total: f64 = path.iter().filter_map(|part| part["delay"].as_f64()).sum();
    let routed = path.iter().filter(|part| part["type"] == "routing");
    let routed: f64 = routed.filter_map(|part| part["delay"].as_f64()).sum();
    let from = path.first()?["from"]["cell"].as_str()?;
    let to = path.last()?["to"]["cell"].as_str()?;
    Some(format!(
        "longest path: {total:.1} ns, {routed:.1} of it routing, from {from} to {to}"
    ))
}

fn sources(workspace: &Workspace, folder: &Path) -> Result<Vec<String>, Complaints> {
    let folder = workspace.relative(folder).display().to_string();
    let names = rtl_files(workspace)?;
    Ok(names.iter().map(|name| format!("{folder}/{name}")).collect())
}

/// The log of a run that ended well.
fn judged(output: YosysOutput) -> Result<String, Complaints> {
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

    #[test]
    fn a_report_says_the_clock_and_the_longest_path() {
        let report = r#"{"fmax": {"clk": {"achieved": 41.234, "constraint": 100}}, "critical_paths": [
            {"from": "async", "to": "posedge clk", "path": []},
            {"from": "posedge clk", "to": "posedge clk", "path": [
                {"type": "clk-to-q", "delay": 0.5, "from": {"cell": "a_q"}, "to": {"cell": "a_q"}},
                {"type": "routing", "delay": 2.5, "from": {"cell": "a_q"}, "to": {"cell": "b_q"}},
                {"type": "setup", "delay": 1.0, "from": {"cell": "b_q"}, "to": {"cell": "b_q"}}]}]}"#;
        let said = timing(report).unwrap();
        assert!(said.contains("41.2 MHz"), "{said}");
        assert!(
            said.contains("4.0 ns, 2.5 of it routing, from a_q to b_q"),
            "{said}"
        );
        assert!(timing("{}").is_err());
    }
}
