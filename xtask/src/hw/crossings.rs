//! Where signals of the NIC go from one clock to another. yosys writes the netlist of [`TOP`], the NIC itself a box with one clock, and this reads it:
//! every register, memory and box may take only what its own clock makes. The exceptions are two: the first register of a synchronizer takes one
//! register's bit of another clock; and an element of a queue between clocks is read by the other clock, whose address chooses it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use serde::Deserialize;
use serde_json::Value;

use super::tools::{YosysProgram, rtl_files};
use crate::Complaints;
use crate::workspace::Workspace;

const TOP: &str = "clocked_nic";
/// The module that is a box here: it has one clock.
const BOX: &str = "nic";
/// The register of `gray_synchronizer` that may take a bit of another clock.
const SYNCHRONIZER: &str = "caught_q";
/// The memory of `clock_fifo`.
const ELEMENTS: &str = ".elements";
/// The RTL that the check reads.
const SOURCES: [&str; 8] = [
    "nic_pkg.sv",
    "gray_counter.sv",
    "gray_synchronizer.sv",
    "clock_fifo.sv",
    "host_crossing.sv",
    "bus_crossing.sv",
    "wire_crossing.sv",
    "clocked_nic.sv",
];
/// How ports of the top begin, and their clock; all others belong to the NIC's.
const PORT_CLOCKS: [(&str, &str); 3] = [
    ("host_", "host_clk"),
    ("mac_tx_", "mac_tx_clk"),
    ("mac_rx_", "mac_rx_clk"),
];
const OWN_CLOCK: &str = "clk";
/// Cells of whose output each bit follows from the same bits of `A` and `B`, and from all of the other inputs.
const BITWISE: [&str; 5] = ["$mux", "$not", "$and", "$or", "$xor"];

/// Changes that let a signal cross: the file, what is replaced, and what stands in its place.
const MUTANTS: [[&str; 3]; 4] = [
    [
        "clock_fifo.sv",
        "head_gray != tail_seen",
        "head_gray != tail_gray",
    ],
    [
        "gray_synchronizer.sv",
        "settled_q <= caught_q",
        "settled_q <= gray",
    ],
    ["host_crossing.sv", ".pop_clk(host_clk)", ".pop_clk(clk)"],
    [
        "gray_counter.sv",
        "assign gray = gray_q;",
        "assign gray = count_q ^ (count_q >> 1);",
    ],
];

/// Checks the RTL, and that each mutant is found.
pub(super) fn check(workspace: &Workspace, yosys: &YosysProgram) -> Result<(), Complaints> {
    let began = Instant::now();
    crate::none(crossings(workspace, yosys, "hw/rtl")?)?;
    for [file, from, to] in MUTANTS {
        let folder = mutated(workspace, file, from, to)?;
        if crossings(workspace, yosys, &folder)?.is_empty() {
            return Err(vec![format!("{file}: a signal that crosses is not found: {to}")]);
        }
    }
    let seconds = began.elapsed().as_secs();
    eprintln!("no signal crosses but through queues; mutants are found ({seconds} s)");
    Ok(())
}

fn mutated(workspace: &Workspace, file: &str, from: &str, to: &str) -> Result<String, Complaints> {
    let folder = workspace.target.join("hw/mutants/crossings");
    std::fs::create_dir_all(&folder).map_err(|error| vec![format!("{}: {error}", folder.display())])?;
    for name in rtl_files(workspace)? {
        let read = std::fs::read_to_string(workspace.root.join("hw/rtl").join(&name));
        let mut text = read.map_err(|error| vec![format!("{name}: {error}")])?;
        if name == file {
            if text.matches(from).count() != 1 {
                return Err(vec![format!("{file} does not have {from} once")]);
            }
            text = text.replace(from, to);
        }
        std::fs::write(folder.join(&name), text).map_err(|error| vec![format!("{name}: {error}")])?;
    }
    Ok(workspace.relative(&folder).display().to_string())
}

fn crossings(workspace: &Workspace, yosys: &YosysProgram, folder: &str) -> Result<Complaints, Complaints> {
    let written = workspace.target.join(format!("hw/{TOP}.json"));
    let sources = SOURCES.map(|name| format!("{folder}/{name}")).join(" ");
    let script = format!(
        "read_verilog -sv {sources}; read_verilog -sv -lib {folder}/{BOX}.sv; hierarchy -check -top {TOP}; proc; flatten; \
         memory_collect; opt_clean; write_json {}",
        workspace.relative(&written).display()
    );
    let output = yosys.run(workspace, &script)?;
    if !output.success {
        return Err(vec![format!("yosys failed:\n{}", output.tail())]);
    }
    let text =
        std::fs::read_to_string(&written).map_err(|error| vec![format!("{}: {error}", written.display())])?;
    netlist_crossings(&text)
}

fn netlist_crossings(text: &str) -> Result<Complaints, Complaints> {
    let netlist: YosysNetlist =
        serde_json::from_str(text).map_err(|error| vec![format!("netlist: {error}")])?;
    let module = netlist
        .modules
        .get(TOP)
        .ok_or_else(|| vec![format!("netlist: no {TOP}")])?;
    let nets = ClockedNets::of(module);
    let mut complaints = nets.complaints();
    if nets.synchronizers.is_empty() {
        complaints.push(format!(
            "netlist: no register {SYNCHRONIZER} in {TOP}, by which the check knows synchronizers"
        ));
    }
    Ok(complaints)
}

#[derive(Deserialize)]
struct YosysNetlist {
    modules: BTreeMap<String, NetlistModule>,
}

#[derive(Deserialize)]
struct NetlistModule {
    ports: BTreeMap<String, NetlistPort>,
    cells: BTreeMap<String, NetlistCell>,
    netnames: BTreeMap<String, NetlistName>,
}

#[derive(Deserialize)]
struct NetlistPort {
    direction: String,
    bits: Vec<Value>,
}

#[derive(Deserialize)]
struct NetlistCell {
    #[serde(rename = "type")]
    kind: String,
    port_directions: BTreeMap<String, String>,
    connections: BTreeMap<String, Vec<Value>>,
}

#[derive(Deserialize)]
struct NetlistName {
    bits: Vec<Value>,
}

impl NetlistCell {
    /// Which bit of the output this net is, if each follows from the same bits of the inputs.
    fn bitwise_place(&self, net: NetNumber) -> Option<usize> {
        let output = self
            .connections
            .get("Y")
            .filter(|_| BITWISE.contains(&&*self.kind))?;
        output.iter().position(|bit| bit.as_u64() == Some(net))
    }
}

/// As yosys numbers the nets of a module.
type NetNumber = u64;

/// Who drives a net.
#[derive(Clone, Copy)]
enum NetDriver<'n> {
    Port(&'n str),
    Cell(&'n str, &'n NetlistCell),
}

/// What makes a net's value, as far back as registers: their nets, and their clocks.
type NetMakers = BTreeSet<(String, NetNumber)>;

/// The netlist, with what drives each net.
struct ClockedNets<'n> {
    module: &'n NetlistModule,
    drivers: BTreeMap<NetNumber, NetDriver<'n>>,
    synchronizers: BTreeSet<NetNumber>,
    /// The port that each clock comes from.
    clocks: BTreeMap<NetNumber, String>,
}

impl<'n> ClockedNets<'n> {
    fn of(module: &'n NetlistModule) -> ClockedNets<'n> {
        let mut nets = ClockedNets {
            module,
            drivers: BTreeMap::new(),
            synchronizers: BTreeSet::new(),
            clocks: BTreeMap::new(),
        };
        for (name, port) in module.ports.iter().filter(|(_, port)| port.direction == "input") {
            for net in numbers(&port.bits) {
                nets.drivers.insert(net, NetDriver::Port(name));
                nets.clocks.insert(net, name.clone());
            }
        }
        for (name, cell) in &module.cells {
            for (port, bits) in &cell.connections {
                if cell.port_directions.get(port).is_some_and(|way| way == "output") {
                    let driver = NetDriver::Cell(name, cell);
                    nets.drivers.extend(numbers(bits).map(|net| (net, driver)));
                }
            }
        }
        for (name, names) in &module.netnames {
            if name.ends_with(SYNCHRONIZER) {
                nets.synchronizers.extend(numbers(&names.bits));
            }
        }
        nets
    }

    /// The clock that a cell's port is connected to.
    fn clock(&self, cell: &NetlistCell, port: &str) -> Option<String> {
        let net = numbers(cell.connections.get(port)?).next()?;
        self.clocks.get(&net).cloned()
    }

    /// What makes this net.
    fn makers(&self, net: NetNumber, seen: &mut BTreeSet<NetNumber>, makers: &mut NetMakers) {
        if !seen.insert(net) {
            return;
        }
        let (name, cell) = match self.drivers.get(&net) {
            None => return,
            Some(NetDriver::Port(name)) => {
                makers.insert((port_clock(name).to_string(), net));
                return;
            }
            Some(NetDriver::Cell(name, cell)) => (name, cell),
        };
        if let Some(clock) = register_clock(cell) {
            let clock = self.clock(cell, clock).unwrap_or_default();
            makers.insert((clock, net));
            return;
        }
        let memory = cell.kind == "$mem_v2";
        if memory && !name.ends_with(ELEMENTS) {
            let clock = self.clock(cell, "WR_CLK").unwrap_or_default();
            makers.insert((clock, net));
        }
        let bitwise = cell.bitwise_place(net);
        for (port, bits) in &cell.connections {
            let input = cell.port_directions.get(port).is_some_and(|way| way == "input");
            if !input || (memory && port != "RD_ADDR") {
                continue;
            }
            let bits = match bitwise {
                Some(place) if port == "A" || port == "B" => bits.get(place..=place).unwrap_or_default(),
                _ => bits,
            };
            for bit in numbers(bits) {
                self.makers(bit, seen, makers);
            }
        }
    }

    fn makers_of(&self, net: NetNumber) -> NetMakers {
        let mut makers = NetMakers::new();
        self.makers(net, &mut BTreeSet::new(), &mut makers);
        makers
    }

    /// What takes something of another clock.
    fn complaints(&self) -> Complaints {
        let mut complaints = Complaints::new();
        for (name, cell) in &self.module.cells {
            let clock = match (register_clock(cell), &*cell.kind) {
                (Some(clock), _) => self.clock(cell, clock),
                (None, "$mem_v2") => self.clock(cell, "WR_CLK"),
                _ => continue,
            };
            let Some(clock) = clock else {
                complaints.push(format!("{name}: its clock is no port's"));
                continue;
            };
            complaints.extend(self.cell_complaints(name, cell, &clock));
        }
        for (name, port) in &self.module.ports {
            if port.direction == "output" {
                let bits = numbers(&port.bits).map(|net| (net, false));
                complaints.extend(self.foreign(name, port_clock(name), bits));
            }
        }
        complaints
    }

    fn cell_complaints(&self, name: &str, cell: &NetlistCell, clock: &str) -> Complaints {
        let taken = |port: &str| {
            let input = cell.port_directions.get(port).is_some_and(|way| way == "input");
            input && !port.starts_with("RD_") && !port.to_lowercase().ends_with("clk")
        };
        let held = cell.connections.get("Q");
        let mut complaints = Complaints::new();
        for (port, bits) in cell.connections.iter().filter(|(port, _)| taken(port)) {
            let synchronizes = |at: usize| {
                let bit = held.and_then(|held| held.get(at)).and_then(Value::as_u64);
                port == "D" && bit.is_some_and(|bit| self.synchronizers.contains(&bit))
            };
            let bits = bits.iter().enumerate();
            let bits = bits.filter_map(|(at, bit)| Some((bit.as_u64()?, synchronizes(at))));
            complaints.extend(self.foreign(&format!("{name}.{port}"), clock, bits));
        }
        complaints
    }

    /// A complaint if one of these nets has something of another clock; of a synchronizer, something else than one register's bit.
    fn foreign(
        &self,
        taker: &str,
        clock: &str,
        bits: impl Iterator<Item = (NetNumber, bool)>,
    ) -> Option<String> {
        for (net, synchronizes) in bits {
            let makers = self.makers_of(net);
            let foreign: Vec<_> = makers.iter().filter(|(of, _)| of != clock).collect();
            let registered = |net: &NetNumber| matches!(self.drivers.get(net), Some(NetDriver::Cell(..)));
            let allowed = match &foreign[..] {
                [] => true,
                [(_, net)] => synchronizes && registered(net),
                _ => false,
            };
            if !allowed {
                let (of, _) = foreign[0];
                return Some(format!("{taker}, of {clock}, takes what {of} makes"));
            }
        }
        None
    }
}

/// The port that clocks a cell which keeps a value.
fn register_clock(cell: &NetlistCell) -> Option<&'static str> {
    if cell.kind == BOX {
        return Some("clk");
    }
    let register = cell.kind.contains("dff") || cell.kind.contains("latch");
    register.then_some("CLK")
}

fn port_clock(name: &str) -> &'static str {
    let known = PORT_CLOCKS.iter().find(|(begins, _)| name.starts_with(begins));
    known.map_or(OWN_CLOCK, |(_, clock)| clock)
}

/// The nets among bits; the others are constants.
fn numbers(bits: &[Value]) -> impl Iterator<Item = NetNumber> + '_ {
    bits.iter().filter_map(Value::as_u64)
}
