//! What the interface between a host and its NIC costs, calibrated on four published rates and nothing else.
//!
//! A core needs `entry_ns` for each call (to write an entry and to take one), and `batch_ns` for each batch of them that it hands
//! over: that is how long the core waits until the first line of the batch has crossed the interconnect. So the rate of one core is
//! `1 / (entry_ns + batch_ns / batch)`, of which two rates with different batches give both. A crossing is taken to be as long for all
//! who use it: a register that the host writes and a line that the NIC writes cross once, a read of the NIC twice. From that follows
//! every latency here.

use provost_nic::FetchMode;
use provost_nic_model::HostTiming;

/// Nanoseconds of a cycle of the NIC, at 200 MHz.
pub(crate) const CYCLE_NS: f64 = 5.0;
/// Millions of calls a second of one core with doorbells, in batches of 1 and 3 (Dagger, ASPLOS '21).
pub(crate) const DOORBELL_MRPS: [(u32, f64); 2] = [(1, 4.3), (3, 7.9)];
/// The same over a coherent interconnect, in batches of 1 and 4.
pub(crate) const COHERENT_MRPS: [(u32, f64); 2] = [(1, 8.1), (4, 12.4)];
/// Nanoseconds that a line of 64 bytes occupies the interconnect: nominal, PCIe 3.0 with 8 lanes and a head of 24 bytes, and UPI
/// of 10.4 GT/s.
const PCIE_LINE_NS: f64 = 11.0;
const UPI_LINE_NS: f64 = 3.1;
/// Entries after whose receipt a core that pushes returns credits: nothing else takes it to the NIC's registers.
const PUSH_CREDIT_BATCH: u32 = 16;

/// One way in which a host hands entries to its NIC.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HostInterface {
    /// What the tables call it.
    pub(crate) name: String,
    /// How the NIC learns of entries.
    pub(crate) fetch: FetchMode,
    /// Entries that are handed over at once, at most.
    pub(crate) batch: u32,
    /// What the core spends for each call.
    pub(crate) entry_ns: f64,
    /// And for each batch.
    pub(crate) batch_ns: f64,
    /// And for each line of an entry after its first.
    pub(crate) line_ns: f64,
    /// From one end of the interconnect to the other.
    pub(crate) crossing_ns: f64,
    /// Received entries after which credits are returned, if no batch has done it.
    pub(crate) credit_batch: u32,
}

/// Times of a call and of a batch: two rates, solved for both.
fn solve([(first, first_mrps), (second, second_mrps)]: [(u32, f64); 2]) -> (f64, f64) {
    let [first_ns, second_ns] = [1e3 / first_mrps, 1e3 / second_mrps];
    let [first, second] = [first, second].map(f64::from);
    let batch_ns = (first_ns - second_ns) / (1.0 / first - 1.0 / second);
    (first_ns - batch_ns / first, batch_ns)
}

impl HostInterface {
    /// Rings in memory that both see; the NIC polls them.
    pub(crate) fn coherent(batch: u32) -> HostInterface {
        let (entry_ns, batch_ns) = solve(COHERENT_MRPS);
        HostInterface {
            name: format!("coherent b{batch}"),
            fetch: FetchMode::Polled,
            batch,
            entry_ns,
            batch_ns,
            line_ns: UPI_LINE_NS,
            crossing_ns: batch_ns,
            credit_batch: u32::MAX,
        }
    }

    /// Rings that the NIC reads by DMA when a register tells it to.
    pub(crate) fn doorbell(batch: u32) -> HostInterface {
        let (entry_ns, batch_ns) = solve(DOORBELL_MRPS);
        HostInterface {
            name: format!("doorbell b{batch}"),
            fetch: FetchMode::Doorbell,
            batch,
            entry_ns,
            batch_ns,
            line_ns: PCIE_LINE_NS,
            crossing_ns: batch_ns,
            credit_batch: u32::MAX,
        }
    }

    /// Lines that the core writes to the NIC through a write-combining buffer. It costs what a doorbell costs, and what a whole line
    /// takes longer on the bus than a register.
    pub(crate) fn push() -> HostInterface {
        let doorbell = HostInterface::doorbell(1);
        HostInterface {
            name: "mmio push".into(),
            fetch: FetchMode::Push,
            batch_ns: doorbell.batch_ns + PCIE_LINE_NS,
            credit_batch: PUSH_CREDIT_BATCH,
            ..doorbell
        }
    }

    /// A host that costs nothing: what is left is the NIC.
    pub(crate) fn ideal(fetch: FetchMode) -> HostInterface {
        HostInterface {
            name: "ideal host".into(),
            fetch,
            batch: 1,
            entry_ns: 0.0,
            batch_ns: 0.0,
            line_ns: 0.0,
            crossing_ns: 0.0,
            credit_batch: u32::MAX,
        }
    }

    /// What a call costs a core, in full batches.
    pub(crate) fn call_ns(&self) -> f64 {
        self.entry_ns + self.batch_ns / f64::from(self.batch)
    }

    /// Cycles of a crossing.
    pub(crate) fn crossing_cycles(&self) -> u64 {
        (self.crossing_ns / CYCLE_NS).round() as u64
    }

    /// What the NIC sees of it.
    pub(crate) fn timing(&self) -> HostTiming {
        let crossing = self.crossing_cycles() as u32;
        HostTiming {
            read_cycles: (2 * crossing).max(1),
            write_cycles: crossing,
            line_cycles: ((self.line_ns / CYCLE_NS).ceil() as u32).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_rates_come_back_from_what_they_were_solved_for() {
        let rate = |interface: &HostInterface| 1e3 / interface.call_ns();
        for (batch, mrps) in DOORBELL_MRPS {
            assert!((rate(&HostInterface::doorbell(batch)) - mrps).abs() < 1e-9);
        }
        for (batch, mrps) in COHERENT_MRPS {
            assert!((rate(&HostInterface::coherent(batch)) - mrps).abs() < 1e-9);
        }
    }

    #[test]
    fn a_core_spends_about_as_much_for_a_call_over_either_interconnect() {
        let (doorbell, coherent) = (HostInterface::doorbell(1), HostInterface::coherent(1));
        let between = (doorbell.entry_ns - coherent.entry_ns).abs();
        assert!(
            between < 0.15 * coherent.entry_ns,
            "{} ns and {} ns",
            doorbell.entry_ns,
            coherent.entry_ns
        );
    }
}
