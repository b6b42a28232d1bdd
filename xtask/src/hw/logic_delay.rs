//! The longest logic within each module, as abc estimates it while it maps to ECP5: what bounds the clock before anything is placed.

use std::collections::BTreeMap;

/// Modules that are printed.
const MODULES_SHOWN: usize = 6;

/// Picoseconds of the longest path of look-up tables and carries within each module, without routing and flip-flops, from a log of yosys. A path that
/// goes through several modules is longer.
fn logic_delays(log: &str) -> BTreeMap<&str, f64> {
    let mut delays = BTreeMap::new();
    let mut current = None;
    for line in log.lines() {
        if let Some(name) = module_extracted(line) {
            current = Some(name);
        }
        // Each pass says the delay of what it has found, and the last is kept.
        if let (Some(module), Some(delay_ps)) = (current, delay_said(line)) {
            delays.insert(module, delay_ps);
        }
    }
    delays
}

/// ``Extracted 589 AND gates and 0 wires from module `$paramod$14f2\load_balancer' to a netlist …``
fn module_extracted(line: &str) -> Option<&str> {
    let (_, rest) = line.strip_prefix("Extracted ")?.split_once("from module `")?;
    let (name, _) = rest.split_once("' to a netlist")?;
    let mut parts = name.trim_start_matches("$paramod\\").split('\\');
    parts.find(|part| !part.is_empty() && !part.starts_with('$'))
}

/// `ABC: P:  Del = 7251.00.  Ar = …`
fn delay_said(line: &str) -> Option<f64> {
    let (_, rest) = line.strip_prefix("ABC: ")?.split_once("Del =")?;
    let (number, _) = rest.split_once(".  Ar")?;
    number.trim().parse().ok()
}

/// The modules with the longest logic, in one line; None where the log has none.
pub(crate) fn longest_logic(log: &str) -> Option<String> {
    let mut delays: Vec<(&str, f64)> = logic_delays(log).into_iter().collect();
    delays.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let shown = delays.iter().take(MODULES_SHOWN);
    let shown: Vec<String> = shown
        .map(|(module, delay_ps)| format!("{module} {:.1} ns", delay_ps / 1000.0))
        .collect();
    (!shown.is_empty()).then(|| {
        format!(
            "longest logic within a module, without routing: {}",
            shown.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_estimate_of_each_module_counts() {
        let log = "\
Extracted 9 AND gates and 0 wires from module `$paramod$14f2\\load_balancer' to a netlist network with 1 inputs.
ABC: P:  Del = 7251.00.  Ar =     598.0.  Edge =      639.
ABC: A:  Del = 7151.00.  Ar =     325.0.  Edge =      510.
Extracted 9 AND gates and 0 wires from module `$paramod\\fifo\\WIDTH=s32'01' to a netlist network with 1 inputs.
ABC: P:  Del = 900.00.  Ar =     5.0.  Edge =      6.
Extracted 9 AND gates and 0 wires from module `\\packet_tx' to a netlist network with 1 inputs.
ABC: P:  Del = 8000.00.  Ar =     5.0.  Edge =      6.
";
        assert_eq!(
            longest_logic(log).unwrap(),
            "longest logic within a module, without routing: packet_tx 8.0 ns, load_balancer 7.2 ns, fifo 0.9 ns"
        );
        assert_eq!(longest_logic("ABC: P:  Del = 900.00.  Ar = 5.0."), None);
    }
}
