//! The queues between clocks, with clocks whose rates have nothing to do with one another. Each test counts which situations came up, and requires
//! them all.

use std::collections::{BTreeMap, VecDeque};

use provost_nic_model::RtlModel;
use provost_nic_tests::{CountedSituations, SeededRandom, model_or_skip};

/// Rates of two clocks: picoseconds from edge to edge.
const PERIODS: [[u64; 2]; 6] = [
    [5_000, 5_000],
    [5_000, 3_103],
    [3_103, 5_000],
    [5_000, 4_999],
    [2_000, 17_001],
    [17_001, 2_000],
];

/// Two clocks of a model, each with its own rate.
struct TwoClocks {
    model: RtlModel,
    names: [&'static str; 2],
    periods: [u64; 2],
    next: [u64; 2],
}

impl TwoClocks {
    /// The model, reset on both sides.
    fn new(
        mut model: RtlModel,
        clocks: [&'static str; 2],
        resets: [&'static str; 2],
        periods: [u64; 2],
    ) -> TwoClocks {
        for reset in resets {
            model.set_named(reset, 1);
        }
        let mut clocks = TwoClocks {
            model,
            names: clocks,
            periods,
            next: [0, 1],
        };
        for _ in 0..20 {
            let edges = clocks.until_edge();
            clocks.edge(edges);
        }
        for reset in resets {
            clocks.model.set_named(reset, 0);
        }
        clocks
    }

    /// Goes on to the next edge: which clocks have one.
    fn until_edge(&mut self) -> [bool; 2] {
        let soonest = self.next[0].min(self.next[1]);
        self.next.map(|next| next == soonest)
    }

    /// The edge itself; until then, inputs of these clocks may change.
    fn edge(&mut self, edges: [bool; 2]) {
        for level in [1, 0] {
            for (side, name) in self.names.into_iter().enumerate() {
                if edges[side] {
                    self.model.set_named(name, level);
                }
            }
            self.model.eval();
        }
        for ((next, period), edge) in self.next.iter_mut().zip(self.periods).zip(edges) {
            *next += if edge { period } else { 0 };
        }
    }
}

#[test]
fn a_queue_between_clocks_keeps_all_in_order() {
    let mut coverage = CountedSituations::default();
    for (seed, periods) in (1..).zip(PERIODS) {
        let Some(model) = model_or_skip("clock_fifo") else {
            return;
        };
        let mut clocks = TwoClocks::new(model, ["push_clk", "pop_clk"], ["push_rst", "pop_rst"], periods);
        let mut random = SeededRandom::new(seed);
        let mut inside = VecDeque::new();
        let (mut pushed, mut popped) = (0u64, 0u64);
        for step in 0..20_000u64 {
            let edges = clocks.until_edge();
            let filling = step / 400 % 2 == 0;
            let model = &mut clocks.model;
            if edges[0] {
                model.set_named("push", random.chance(if filling { 950 } else { 300 }).into());
                model.set_named("push_data", pushed & 0xffff_ffff);
            }
            if edges[1] {
                model.set_named("pop", random.chance(if filling { 300 } else { 950 }).into());
            }
            model.eval();
            let says = |name| model.get_named(name) == 1;
            let push = edges[0] && says("push");
            let pop = edges[1] && says("pop");
            let (pushes, pops) = (push && says("push_ready"), pop && says("pop_valid"));
            if pops {
                assert_eq!(
                    inside.pop_front(),
                    Some(model.get_named("pop_data")),
                    "{periods:?}"
                );
                popped += 1;
            }
            if pushes {
                assert!(
                    inside.len() < 8 || pops,
                    "{periods:?}: more than there is room for"
                );
                inside.push_back(pushed & 0xffff_ffff);
                pushed += 1;
            }
            coverage.note("full", inside.len() == 8);
            coverage.note("push without room", push && !pushes);
            coverage.note("pop of nothing", pop && !pops && inside.is_empty());
            coverage.note("pop of what has not arrived", pop && !pops && !inside.is_empty());
            coverage.note("push and pop at once", pushes && pops);
            clocks.edge(edges);
        }
        assert!(popped > 500, "{periods:?}: {popped} came through");
    }
    coverage.require_all("clock_fifo");
}

#[test]
fn a_read_of_host_memory_sees_what_the_nic_wrote_before_it() {
    let mut coverage = CountedSituations::default();
    for (seed, periods) in (1..).zip(PERIODS) {
        let Some(model) = model_or_skip("host_crossing") else {
            return;
        };
        let mut clocks = TwoClocks::new(model, ["clk", "host_clk"], ["rst", "host_rst"], periods);
        let mut random = SeededRandom::new(seed);
        // What the NIC has written; what it expects of its reads that are out; host memory; lines that are to be answered.
        let (mut written, mut expected) = (BTreeMap::new(), VecDeque::new());
        let (mut memory, mut answers) = (BTreeMap::<u64, u64>::new(), VecDeque::new());
        let mut read = 0u64;
        for step in 1..20_000u64 {
            let edges = clocks.until_edge();
            let model = &mut clocks.model;
            if edges[0] {
                let may_read = expected.len() < 32;
                model.set_named("read", (may_read && random.chance(600)).into());
                model.set_named("read_address", random.below(4));
                model.set_named("write", random.chance(400).into());
                model.set_named("write_address", random.below(4));
                model.set_named("write_data", step);
            }
            if edges[1] {
                // At times the host is slow, so that all reads that may be are out.
                let slow = step / 1_000 % 2 == 0;
                let answer = answers.front().copied();
                let answer = answer.filter(|_| random.chance(if slow { 20 } else { 900 }));
                model.set_named("host_data_valid", answer.is_some().into());
                model.set_named("host_data", answer.unwrap_or(0));
                if answer.is_some() {
                    answers.pop_front();
                }
                model.set_named("host_read_ready", random.chance(800).into());
                model.set_named("host_write_ready", random.chance(800).into());
            }
            model.eval();
            let says = |name| model.get_named(name) == 1;
            if edges[0] {
                let (reads, writes) = (
                    says("read") && says("read_ready"),
                    says("write") && says("write_ready"),
                );
                assert!(!(reads && writes));
                if says("data_valid") {
                    assert_eq!(expected.pop_front(), Some(model.get_named("data")), "{periods:?}");
                    read += 1;
                }
                if writes {
                    written.insert(model.get_named("write_address"), step);
                }
                if reads {
                    let address = model.get_named("read_address");
                    expected.push_back(written.get(&address).copied().unwrap_or(0));
                }
                coverage.note("a read and a write at once", says("read") && says("write"));
                coverage.note("no room for a write", says("write") && !writes && !reads);
                coverage.note("as many reads out as can be", expected.len() == 32);
            }
            if edges[1] {
                if says("host_write") && says("host_write_ready") {
                    memory.insert(
                        model.get_named("host_write_address"),
                        model.get_named("host_write_data"),
                    );
                }
                if says("host_read") && says("host_read_ready") {
                    let address = model.get_named("host_read_address");
                    answers.push_back(memory.get(&address).copied().unwrap_or(0));
                }
                coverage.note("the host waits", says("host_read") && !says("host_read_ready"));
            }
            clocks.edge(edges);
        }
        assert!(read > 300, "{periods:?}: {read} lines came");
    }
    coverage.require_all("host_crossing");
}

#[test]
fn registers_and_pushed_lines_arrive_in_the_order_in_which_they_were_made() {
    let mut coverage = CountedSituations::default();
    for (seed, periods) in (1..).zip(PERIODS) {
        let Some(model) = model_or_skip("bus_crossing") else {
            return;
        };
        let mut clocks = TwoClocks::new(model, ["clk", "host_clk"], ["rst", "host_rst"], periods);
        let mut random = SeededRandom::new(seed);
        // Writes and pushes that are on their way: which, address, value. Reads likewise: what they must say.
        let (mut accesses, mut reads) = (VecDeque::new(), VecDeque::new());
        // A register says how many of the others had arrived when it was read, and its address.
        let (mut made, mut arrived, mut register, mut answered) = (0u64, 0u64, 0, 0);
        for step in 1..20_000u64 {
            let edges = clocks.until_edge();
            let model = &mut clocks.model;
            if edges[0] {
                model.set_named("csr_read_data", register);
                model.set_named("push_ready", random.chance(500).into());
            }
            if edges[1] {
                model.set_named("host_valid", random.chance(700).into());
                model.set_named("host_writes", random.below(2));
                model.set_named("host_pushes", random.below(2));
                model.set_named("host_address", step & 0xff);
                model.set_named("host_line", step);
            }
            model.eval();
            let get = |name| model.get_named(name);
            let says = |name| get(name) == 1;
            if edges[0] {
                let (writes, pushes) = (says("csr_write"), says("push_valid") && says("push_ready"));
                assert!(!(writes && pushes));
                register = arrived << 8 | get("csr_address") & 0xff;
                if writes || pushes {
                    let value = get(if pushes { "push_line" } else { "csr_write_data" });
                    let access = (pushes, get("csr_address"), value);
                    assert_eq!(accesses.pop_front(), Some(access), "{periods:?}");
                    arrived += 1;
                }
                coverage.note("a push waits", says("push_valid") && !pushes);
            }
            if edges[1] {
                if says("host_read_valid") {
                    assert_eq!(reads.pop_front(), Some(get("host_read_data")), "{periods:?}");
                    answered += 1;
                }
                let taken = says("host_valid") && says("host_ready");
                let (writes, pushes) = (says("host_writes"), says("host_pushes"));
                if taken && (writes || pushes) {
                    accesses.push_back((pushes, get("host_address"), get("host_line")));
                    made += 1;
                } else if taken {
                    reads.push_back(made << 8 | get("host_address"));
                }
                coverage.note("no room for an access", says("host_valid") && !taken);
                coverage.note("several reads are out", reads.len() > 2);
            }
            clocks.edge(edges);
        }
        assert!(
            arrived > 200 && answered > 50,
            "{periods:?}: {arrived}, {answered}"
        );
    }
    coverage.require_all("bus_crossing");
}

/// A packet on the wire: its lines.
type PacketLines = Vec<u64>;

/// Has packets arrive back to back, or nearly so: those that came through whole, in order, and how many were spoiled.
fn arrive(
    periods: [u64; 2],
    seed: u64,
    busy: u32,
    coverage: &mut CountedSituations,
) -> Option<(Vec<PacketLines>, Vec<PacketLines>, u64)> {
    let model = model_or_skip("wire_crossing")?;
    let mut clocks = TwoClocks::new(model, ["clk", "mac_rx_clk"], ["rst", "mac_rx_rst"], periods);
    let mut random = SeededRandom::new(seed);
    let (mut sent, mut whole, mut spoiled) = (Vec::new(), Vec::new(), 0);
    let (mut leaving, mut left): (PacketLines, usize) = (Vec::new(), 0);
    let mut arriving = PacketLines::new();
    for step in 1..30_000u64 {
        let edges = clocks.until_edge();
        let model = &mut clocks.model;
        if edges[1] {
            let valid = random.chance(busy);
            model.set_named("mac_rx_valid", valid.into());
            if valid {
                if left == 0 {
                    left = 1 + random.below(12) as usize;
                }
                left -= 1;
                leaving.push(step);
                model.set_named("mac_rx_data", step);
                model.set_named("mac_rx_last", (left == 0).into());
                if left == 0 {
                    sent.push(std::mem::take(&mut leaving));
                }
            }
        }
        model.eval();
        let says = |name| model.get_named(name) == 1;
        if edges[0] && says("rx_valid") {
            arriving.push(model.get_named("rx_data"));
            assert!(says("rx_last") || !says("rx_spoiled"));
            coverage.note("a mark alone", says("rx_spoiled") && arriving.len() == 1);
            coverage.note(
                "a mark after some lines",
                says("rx_spoiled") && arriving.len() > 1,
            );
            if says("rx_last") {
                let packet = std::mem::take(&mut arriving);
                if says("rx_spoiled") {
                    spoiled += 1;
                } else {
                    coverage.note("a whole packet after a spoiled one", spoiled > 0);
                    whole.push(packet);
                }
            }
        }
        clocks.edge(edges);
    }
    Some((sent, whole, spoiled))
}

#[test]
fn packets_come_from_the_wires_clock_whole_or_marked_as_spoiled() {
    let mut coverage = CountedSituations::default();
    for (seed, periods) in (1..).zip(PERIODS) {
        let Some((sent, whole, spoiled)) = arrive(periods, seed, 900, &mut coverage) else {
            return;
        };
        let mut rest = sent.iter();
        for packet in &whole {
            assert!(
                rest.any(|one| one == packet),
                "{periods:?}: {packet:?} was not sent, or earlier"
            );
        }
        let lost = sent.len() - whole.len();
        // Some packets are on their way at the end; a mark stands for one at least.
        assert!(spoiled <= lost as u64, "{periods:?}: {spoiled} marks for {lost}");
        if periods[0] <= periods[1] {
            assert!(
                spoiled == 0 && lost <= 5,
                "{periods:?}: {lost} lost, {spoiled} marks"
            );
        }
        coverage.note("one mark for several packets", spoiled + 5 < lost as u64);
        assert!(whole.len() > 20, "{periods:?}: {}", whole.len());
    }
    coverage.require_all("wire_crossing, from the wire");
}

#[test]
fn packets_go_to_the_wires_clock_line_by_line() {
    let mut coverage = CountedSituations::default();
    for (seed, periods) in (1..).zip(PERIODS) {
        let Some(model) = model_or_skip("wire_crossing") else {
            return;
        };
        let mut clocks = TwoClocks::new(model, ["clk", "mac_tx_clk"], ["rst", "mac_tx_rst"], periods);
        let mut random = SeededRandom::new(seed);
        let mut leaving = VecDeque::new();
        let mut left = 0u64;
        for step in 1..10_000u64 {
            let edges = clocks.until_edge();
            let model = &mut clocks.model;
            if edges[0] {
                model.set_named("tx_valid", random.chance(800).into());
                model.set_named("tx_data", step);
                model.set_named("tx_last", step & 1);
                model.set_named("tx_bytes", step & 0x3f);
                model.set_named("tx_remote", step ^ 0xffff);
            }
            if edges[1] {
                model.set_named("mac_tx_ready", random.chance(800).into());
            }
            model.eval();
            let says = |name| model.get_named(name) == 1;
            if edges[1] && says("mac_tx_valid") && says("mac_tx_ready") {
                let line = ["mac_tx_data", "mac_tx_last", "mac_tx_bytes", "mac_tx_remote"];
                let line = line.map(|name| model.get_named(name));
                assert_eq!(leaving.pop_front(), Some(line), "{periods:?}");
                left += 1;
            }
            if edges[0] && says("tx_valid") {
                coverage.note("the NIC waits", !says("tx_ready"));
                if says("tx_ready") {
                    leaving.push_back(
                        ["tx_data", "tx_last", "tx_bytes", "tx_remote"].map(|name| model.get_named(name)),
                    );
                }
            }
            coverage.note("the MAC waits for lines", edges[1] && !says("mac_tx_valid"));
            clocks.edge(edges);
        }
        assert!(left > 200, "{periods:?}: {left}");
    }
    coverage.require_all("wire_crossing, to the wire");
}
