//! The clock that modules of the NIC reach on ECP5: yosys maps each to cells, nextpnr places and routes it, alone on the device, between registers at
//! all its ports. So the paths within a module are timed with their routing, and paths through several modules are not.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Instant;

use serde::Deserialize;

use super::synthesis::{judged, sources};
use super::tools::{PlaceAndRoute, YosysProgram};
use crate::Complaints;
use crate::workspace::{Workspace, run as run_command};

/// What is placed unless one module is asked for: the modules with the longest logic, and those with the most cells.
const PLACED: [&str; 12] = [
    "access_list",
    "call_table",
    "connection_cache",
    "line_sum",
    "load_balancer",
    "packet_rx",
    "packet_tx",
    "receive_credits",
    "rx_writer",
    "token_buckets",
    "transport_core",
    "tx_poller",
];
/// The module around the one that is placed: it has more ports than an FPGA has pins.
const AROUND: &str = "placed";
/// The device that is placed and routed, with its package: 83,640 look-up tables.
const DEVICE: [&str; 3] = ["--85k", "--package", "CABGA381"];
/// The clock that nextpnr is asked for, in MHz. It goes on if it does not get there.
const CLOCK_WANTED_MHZ: &str = "200";

/// Places the modules, or the one that is asked for, and prints what nextpnr says of their clocks.
pub(super) fn place(
    workspace: &Workspace,
    yosys: &YosysProgram,
    placer: &PlaceAndRoute,
    only: Option<&str>,
) -> Result<(), Complaints> {
    println!(
        "| module | ECP5-85, MHz | longest path, ns | of it routing | from | to |\n|---|---|---|---|---|---|"
    );
    for module in PLACED.into_iter().filter(|_| only.is_none()).chain(only) {
        let began = Instant::now();
        let clock = place_one(workspace, yosys, placer, module)?;
        println!("| {module} | {clock}");
        eprintln!("{module}: placed and routed in {} s", began.elapsed().as_secs());
    }
    Ok(())
}

fn place_one(
    workspace: &Workspace,
    yosys: &YosysProgram,
    placer: &PlaceAndRoute,
    module: &str,
) -> Result<ClockReached, Complaints> {
    // nextpnr's package sees only what is below the folder in which it starts.
    let folder = workspace.root.join("target/hw");
    std::fs::create_dir_all(&folder).map_err(|error| vec![format!("{}: {error}", folder.display())])?;
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read_to_string(&path).map_err(|error| vec![format!("{}: {error}", path.display())])
    };
    let files = sources(workspace, &workspace.root.join("hw/rtl"))?.join(" ");
    let elaborate = format!(
        "read_verilog -sv {files}; hierarchy -check -top {module}; proc; write_json target/hw/{AROUND}-ports.json"
    );
    judged(yosys.run(workspace, &elaborate)?)?;
    let around = around(module, &read(&format!("{AROUND}-ports.json"))?)?;
    let path = folder.join(format!("{AROUND}.sv"));
    std::fs::write(&path, around).map_err(|error| vec![format!("{}: {error}", path.display())])?;
    let map = format!(
        "read_verilog -sv {files} target/hw/{AROUND}.sv; synth_ecp5 -top {AROUND} -json target/hw/{AROUND}.json; check -assert"
    );
    judged(yosys.run(workspace, &map)?)?;
    let mut command = placer.command(workspace);
    command
        .args(DEVICE)
        .args(["--freq", CLOCK_WANTED_MHZ, "--seed", "1"]);
    command.args(["--json", &format!("target/hw/{AROUND}.json")]);
    command.args(["--report", &format!("target/hw/{AROUND}-report.json")]);
    command.args(["--timing-allow-fail", "--lpf-allow-unconstrained", "--quiet"]);
    command.args(["--log", &format!("target/hw/{AROUND}-{module}.log")]);
    run_command(&mut command).map_err(|error| vec![error.to_string()])?;
    ClockReached::of(&read(&format!("{AROUND}-report.json"))?)
}

#[derive(Deserialize)]
struct ElaboratedDesign {
    modules: BTreeMap<String, ElaboratedModule>,
}

#[derive(Deserialize)]
struct ElaboratedModule {
    #[serde(default)]
    attributes: BTreeMap<String, serde_json::Value>,
    ports: BTreeMap<String, ElaboratedPort>,
}

#[derive(Deserialize)]
struct ElaboratedPort {
    direction: String,
    bits: Vec<serde_json::Value>,
}

/// The module between registers: what its inputs get comes bit by bit through a shift register, and what its outputs say leaves so.
fn around(module: &str, elaborated: &str) -> Result<String, Complaints> {
    let design: ElaboratedDesign = serde_json::from_str(elaborated)
        .map_err(|error| vec![format!("{module}: yosys' netlist: {error}")])?;
    let top = design
        .modules
        .values()
        .find(|one| one.attributes.contains_key("top"));
    let ports = &top
        .ok_or_else(|| vec![format!("{module}: not in yosys' netlist")])?
        .ports;
    let (mut inputs, mut outputs) = (0, 0);
    let mut connections = Vec::new();
    for (name, port) in ports.iter().filter(|(name, _)| *name != "clk") {
        let (bits, register) = match &*port.direction {
            "input" => (&mut inputs, "inputs_q"),
            _ => (&mut outputs, "outputs"),
        };
        connections.push(format!(".{name}({register}[{bits}+:{}])", port.bits.len()));
        *bits += port.bits.len();
    }
    if inputs == 0 || outputs == 0 {
        return Err(vec![format!(
            "{module}: without inputs or without outputs there is no path to time: name a module of hw/rtl that has both"
        )]);
    }
    if ports.contains_key("clk") {
        connections.push(".clk(clk)".to_string());
    }
    let mut out = String::new();
    let _ = write!(
        out,
        "module {AROUND} (input logic clk, input logic scan_in, input logic capture, output logic scan_out);\n\
         logic [{}:0] inputs_q;\nlogic [{1}:0] outputs;\nlogic [{1}:0] outputs_q;\nlogic capture_q;\n\
         {module} dut ({2});\nassign scan_out = outputs_q[0];\nalways_ff @(posedge clk) begin\n\
         capture_q <= capture;\ninputs_q <= {{inputs_q, scan_in}};\n\
         outputs_q <= capture_q ? outputs : outputs_q >> 1;\nend\nendmodule\n",
        inputs - 1,
        outputs - 1,
        connections.join(", ")
    );
    Ok(out)
}

/// What nextpnr's report says of the clock and of the longest path.
#[derive(Debug, PartialEq)]
struct ClockReached {
    mhz: f64,
    path_ns: f64,
    routing_ns: f64,
    from: String,
    to: String,
}

impl ClockReached {
    fn of(report: &str) -> Result<ClockReached, Complaints> {
        let report: serde_json::Value =
            serde_json::from_str(report).map_err(|error| vec![format!("nextpnr's report: {error}")])?;
        let reached = || {
            let mut clocks = report["fmax"].as_object()?.values();
            let mhz = clocks.find_map(|clock| clock["achieved"].as_f64())?;
            let mut paths = report["critical_paths"].as_array()?.iter();
            let path = paths.find(|path| path["from"] == path["to"])?["path"].as_array()?;
            let sum_ns = |kind: Option<&str>| {
                let parts = path
                    .iter()
                    .filter(|part| kind.is_none_or(|kind| part["type"] == kind));
                parts.filter_map(|part| part["delay"].as_f64()).sum::<f64>()
            };
            Some(ClockReached {
                mhz,
                path_ns: sum_ns(None),
                routing_ns: sum_ns(Some("routing")),
                from: path.first()?["from"]["cell"].as_str()?.to_string(),
                to: path.last()?["to"]["cell"].as_str()?.to_string(),
            })
        };
        reached().ok_or_else(|| vec!["nextpnr's report has no clock or no path of it".to_string()])
    }
}

impl std::fmt::Display for ClockReached {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ClockReached {
            mhz,
            path_ns,
            routing_ns,
            from,
            to,
        } = self;
        write!(out, "{mhz:.1} | {path_ns:.1} | {routing_ns:.1} | {from} | {to} |")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_the_clock_and_the_longest_path() {
        let report = r#"{"fmax": {"clk": {"achieved": 41.234, "constraint": 100}}, "critical_paths": [
            {"from": "async", "to": "posedge clk", "path": []},
            {"from": "posedge clk", "to": "posedge clk", "path": [
                {"type": "clk-to-q", "delay": 0.5, "from": {"cell": "a_q"}, "to": {"cell": "a_q"}},
                {"type": "routing", "delay": 2.5, "from": {"cell": "a_q"}, "to": {"cell": "b_q"}},
                {"type": "setup", "delay": 1.0, "from": {"cell": "b_q"}, "to": {"cell": "b_q"}}]}]}"#;
        let reached = ClockReached::of(report).unwrap();
        assert_eq!(reached.to_string(), "41.2 | 4.0 | 2.5 | a_q | b_q |");
        assert!(ClockReached::of("{}").is_err());
    }

    #[test]
    fn a_module_is_placed_between_registers_of_all_its_ports() {
        let elaborated = r#"{"modules": {
            "$paramod\\ram": {"ports": {}},
            "adder": {"attributes": {"top": "1"}, "ports": {
                "a": {"direction": "input", "bits": [2, 3]},
                "clk": {"direction": "input", "bits": [4]},
                "sum": {"direction": "output", "bits": [5, 6, 7]}}}}}"#;
        let text = around("adder", elaborated).unwrap();
        assert!(
            text.contains("adder dut (.a(inputs_q[0+:2]), .sum(outputs[0+:3]), .clk(clk));"),
            "{text}"
        );
        assert!(
            text.contains("logic [1:0] inputs_q;\nlogic [2:0] outputs;"),
            "{text}"
        );
        assert!(around("adder", r#"{"modules": {}}"#).is_err());
        let without_ports = r#"{"modules": {"none": {"attributes": {"top": "1"}, "ports": {}}}}"#;
        assert!(around("none", without_ports).unwrap_err()[0].contains("without inputs"));
    }
}
