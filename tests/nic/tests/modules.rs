//! Modules alone, under stimuli that a seed chooses within what the module's users may do, beside a model that is a few lines of Rust. Each test
//! counts which situations came up, and requires them all.

use std::collections::{BTreeMap, VecDeque};

use provost_nic::LINE_BYTES;
use provost_nic_model::RtlModel;
use provost_nic_tests::{CountedSituations, SeededRandom, model_or_skip};

#[test]
fn the_receive_buffer_is_a_queue_of_whole_packets() {
    let Some(mut fifo) = model_or_skip("packet_fifo") else {
        return;
    };
    fifo.reset();
    let mut random = SeededRandom::new(3);
    let (mut committed, mut open) = (VecDeque::new(), Vec::new());
    let mut coverage = CountedSituations::default();
    for cycle in 0..20_000u64 {
        // In turns, more goes in than out, and the other way round.
        let filling = cycle / 500 % 2 == 0;
        let push = random.chance(if filling { 800 } else { 300 });
        let pop = random.chance(if filling { 200 } else { 700 });
        let (commit, rollback) = (random.chance(250), random.chance(40));
        fifo.set_named("push", push.into());
        fifo.set_named("push_data", cycle);
        fifo.set_named("commit", commit.into());
        fifo.set_named("rollback", rollback.into());
        fifo.set_named("pop", pop.into());
        fifo.settle();
        let ready = fifo.get_named("push_ready") == 1;
        let valid = fifo.get_named("pop_valid") == 1;
        assert_eq!(ready, committed.len() + open.len() < 256);
        if pop && valid {
            assert_eq!(committed.pop_front(), Some(fifo.get_named("pop_data")));
        }
        if push && ready {
            open.push(cycle);
        }
        coverage.note("full", !ready);
        coverage.note("empty", !valid);
        coverage.note("rollback of some lines", rollback && !open.is_empty());
        coverage.note("commit with a push", commit && !rollback && push && ready);
        coverage.note("push without room", push && !ready);
        coverage.note("push and pop at once", push && ready && pop && valid);
        if rollback {
            open.clear();
        } else if commit {
            committed.extend(open.drain(..));
        }
        fifo.edge();
    }
    coverage.require_all("packet_fifo");
}

#[test]
fn credits_are_a_sum_that_stays_whatever_the_host_says() {
    let Some(mut credits) = model_or_skip("receive_credits") else {
        return;
    };
    credits.reset();
    const SLOTS: u16 = 8;
    for flow in 0..4 {
        credits.set_named("restart", 1);
        credits.set_named("restart_flow", flow);
        credits.set_named("restart_slots", SLOTS.into());
        credits.tick();
    }
    credits.set_named("restart", 0);
    let mut random = SeededRandom::new(4);
    let mut coverage = CountedSituations::default();
    // Of each flow: promised, written, freed.
    let (mut promised, mut written, mut freed) = ([0u16; 4], [0u16; 4], [0u16; 4]);
    for _ in 0..40_000 {
        let pick = |random: &mut SeededRandom| random.below(4) as usize;
        let (poll, core, write, free) = (
            pick(&mut random),
            pick(&mut random),
            pick(&mut random),
            pick(&mut random),
        );
        let [available, spare] = ["available", "spare"].map(|name| credits.get_named(name));
        let poll_take = random.chance(500) && available >> poll & 1 == 1;
        let core_take = random.chance(400) && spare >> core & 1 == 1;
        let core_give = !core_take && random.chance(300) && promised[core] > 0;
        let gives = u16::from(core_give && core == write);
        let writes = random.chance(500) && promised[write] > gives;
        let frees = random.chance(300);
        let held = written[free].wrapping_sub(freed[free]);
        let lies = random.chance(100);
        let total = if lies {
            random.draw() as u16
        } else {
            freed[free].wrapping_add(random.below(u64::from(held) + 1) as u16)
        };
        for (name, value) in [
            ("poll_take", u64::from(poll_take)),
            ("poll_flow", poll as u64),
            ("core_take", core_take.into()),
            ("core_give", core_give.into()),
            ("core_flow", core as u64),
            ("written", writes.into()),
            ("written_flow", write as u64),
            ("freed", frees.into()),
            ("freed_flow", free as u64),
            ("freed_total", total.into()),
        ] {
            credits.set_named(name, value);
        }
        credits.settle();
        let forged = credits.get_named("freed_forged") == 1;
        assert_eq!(forged, frees && total.wrapping_sub(freed[free]) > held);
        coverage.note("a lie", forged);
        coverage.note("no credit", available != 15);
        coverage.note(
            "a last credit that only the poller may take",
            available & !spare != 0,
        );
        coverage.note(
            "two credits of a flow at once",
            poll_take && core_take && poll == core,
        );
        coverage.note(
            "taken and freed at once",
            poll_take && frees && !forged && poll == free && total != freed[free],
        );
        promised[poll] += u16::from(poll_take);
        promised[core] += u16::from(core_take);
        promised[core] -= u16::from(core_give);
        promised[write] -= u16::from(writes);
        written[write] = written[write].wrapping_add(writes.into());
        if frees && !forged {
            freed[free] = total;
        }
        credits.edge();
        let levels = credits.get_named("levels");
        for flow in 0..4 {
            let credit = (levels >> (16 * flow)) as u16;
            assert_eq!(
                credit + promised[flow] + written[flow].wrapping_sub(freed[flow]),
                SLOTS
            );
        }
    }
    coverage.require_all("receive_credits");
}

/// What a test does with the cache's ports.
struct CacheBench {
    cache: RtlModel,
    random: SeededRandom,
    memory: BTreeMap<u64, [u8; 64]>,
    /// Line of a read that is out, and how long it takes.
    read: Option<(u64, u64)>,
    writes: u64,
}

impl CacheBench {
    /// One cycle; the line, if there is an answer.
    fn cycle(&mut self) -> Option<[u8; 64]> {
        let data = self.cache.port("data");
        let (read_ready, write_ready) = (self.random.chance(500), self.random.chance(500));
        self.cache.set_named("read_ready", read_ready.into());
        self.cache.set_named("write_ready", write_ready.into());
        let due = matches!(self.read, Some((_, 0)));
        self.cache.set_named("data_valid", due.into());
        if let (true, Some((address, _))) = (due, self.read) {
            let line = self.memory.get(&address).copied().unwrap_or([0; 64]);
            self.cache.bytes_mut(data).copy_from_slice(&line);
            self.read = None;
        } else if let Some((_, left)) = &mut self.read {
            *left -= 1;
        }
        self.cache.settle();
        if self.cache.get_named("read") == 1 && read_ready {
            self.read = Some((self.cache.get_named("read_address"), self.random.below(20)));
        }
        if self.cache.get_named("write") == 1 && write_ready {
            self.writes += 1;
            let line = self
                .cache
                .bytes(self.cache.port("write_data"))
                .try_into()
                .expect("64 bytes");
            self.memory.insert(self.cache.get_named("write_address"), line);
        }
        let answer = (self.cache.get_named("answer") == 1).then(|| {
            self.cache
                .bytes(self.cache.port("answer_line"))
                .try_into()
                .expect("64 bytes")
        });
        self.cache.edge();
        answer
    }

    fn lookup(&mut self, connection: u64, anew: bool) -> [u8; 64] {
        self.cache.set_named("lookup", 1);
        self.cache.set_named("lookup_connection", connection);
        self.cache.set_named("lookup_anew", anew.into());
        while self.cache.get_named("lookup_ready") == 0 {
            self.cycle();
        }
        let mut answer = self.cycle();
        self.cache.set_named("lookup", 0);
        self.cache.set_named("update", 0);
        for _ in 0..500 {
            if let Some(line) = answer {
                return line;
            }
            answer = self.cycle();
        }
        panic!("no answer about connection {connection}");
    }
}

#[test]
fn every_connections_line_stays_its_own_among_more_than_the_cache_holds() {
    let Some(cache) = model_or_skip("connection_cache") else {
        return;
    };
    let mut bench = CacheBench {
        cache,
        random: SeededRandom::new(5),
        memory: BTreeMap::new(),
        read: None,
        writes: 0,
    };
    bench.cache.reset();
    const TABLE: u64 = 0x4000;
    bench.cache.set_named("table_base", TABLE);
    let mut lines: BTreeMap<u64, [u8; 64]> = BTreeMap::new();
    let mut coverage = CountedSituations::default();
    let (mut updated, mut last) = (None, 0);
    for step in 0..6_000u64 {
        // Some connections that are used often, many of the same set, and any of 65,536.
        let connection = match bench.random.below(4) {
            0 => bench.random.below(40),
            1 => last,
            2 => bench.random.below(12) * 16 + 3,
            _ => bench.random.below(65_536),
        };
        last = connection;
        let anew = bench.random.chance(30);
        if anew {
            // The host has written the line, as it does when a session begins.
            let line = [step as u8 ^ 0x77; 64];
            bench.memory.insert(TABLE + connection, line);
            lines.insert(connection, line);
        }
        let writes = bench.writes;
        let line = bench.lookup(connection, anew);
        if let Some(before) = updated.take() {
            coverage.note("looked up while it is updated", before == connection && !anew);
            coverage.note("looked up while another is updated", before != connection);
        }
        let expected = lines.get(&connection).copied().unwrap_or([0; 64]);
        assert_eq!(line, expected, "connection {connection}, step {step}");
        coverage.note("evictions of changed lines", bench.writes > writes);
        coverage.note("lines read anew", anew);
        coverage.note("connections of any number", connection > 1_000);
        if bench.random.chance(500) {
            let mut line = [0; 64];
            line[..8].copy_from_slice(&connection.to_le_bytes());
            line[8..16].copy_from_slice(&step.to_le_bytes());
            line[56..].copy_from_slice(&step.to_le_bytes());
            let port = bench.cache.port("update_line");
            bench.cache.bytes_mut(port).copy_from_slice(&line);
            bench.cache.set_named("update", 1);
            lines.insert(connection, line);
            updated = Some(connection);
            // Else the update is made in the cycle of the next lookup.
            if bench.random.chance(500) {
                bench.cycle();
                bench.cache.set_named("update", 0);
                updated = None;
            }
        }
    }
    coverage.require_all("connection_cache");
}

#[test]
fn a_servers_slot_delivers_each_call_once_in_any_order_of_packets() {
    let Some(mut slot) = model_or_skip("server_slot") else {
        return;
    };
    const EXECUTING: u64 = 1;
    const RESPONDED: u64 = 2;
    let mut random = SeededRandom::new(6);
    let mut coverage = CountedSituations::default();
    let (mut phase, mut call) = (0u64, u32::MAX - 200);
    let mut delivered = std::collections::HashSet::new();
    for _ in 0..50_000 {
        if phase == EXECUTING && random.chance(300) {
            phase = RESPONDED;
            continue;
        }
        let packet_call = call.wrapping_add(random.below(5) as u32).wrapping_sub(2);
        let verdict = if random.chance(800) {
            0
        } else {
            1 + random.below(2)
        };
        let credit = random.chance(800);
        for (name, value) in [
            ("phase", phase),
            ("slot_call", call.into()),
            ("packet_call", packet_call.into()),
            ("verdict", verdict),
            ("credit", credit.into()),
        ] {
            slot.set_named(name, value);
        }
        slot.eval();
        let says = |name| slot.get_named(name) == 1;
        if says("deliver") {
            assert!(verdict == 0 && credit && packet_call == call.wrapping_add(1));
            assert!(
                delivered.insert(packet_call),
                "call {packet_call} is delivered twice"
            );
        }
        for name in [
            "deliver",
            "acknowledge",
            "repeat_response",
            "deny",
            "stale",
            "forbidden",
            "no_room",
        ] {
            coverage.note(name, says(name));
        }
        coverage.note("numbers come round", call == 0);
        phase = slot.get_named("phase_next");
        call = slot.get_named("call_next") as u32;
    }
    coverage.require_all("server_slot");
}

#[test]
fn buckets_give_no_more_tokens_than_time_and_burst_allow() {
    let Some(mut buckets) = model_or_skip("token_buckets") else {
        return;
    };
    buckets.reset();
    let mut random = SeededRandom::new(8);
    let mut coverage = CountedSituations::default();
    // Bucket 0 does not limit, 1 gets a token in 100 ticks, 2 in 1,000.
    let (periods, burst) = ([0u32, 100, 1_000], 5u32);
    for (name, values) in [("period", periods), ("burst", [burst; 3])] {
        let port = buckets.port(name);
        let bytes = buckets.bytes_mut(port);
        for (place, value) in bytes.chunks_mut(4).zip(values) {
            place.copy_from_slice(&value.to_le_bytes());
        }
    }
    let mut spent = [0u64; 3];
    const TICKS: u64 = 60_000;
    // Nobody spends for a time, in which no more than a burst is kept; then as much as there is goes.
    const PAUSE: std::ops::Range<u64> = 20_000..40_000;
    let mut spent_before = spent;
    for tick in 0..TICKS {
        let bucket = random.below(3) as usize;
        let spend = !PAUSE.contains(&tick) && random.chance(if tick < PAUSE.start { 100 } else { 500 });
        if tick == PAUSE.end {
            spent_before = spent;
        }
        buckets.set_named("now", tick);
        buckets.set_named("bucket", bucket as u64);
        buckets.settle();
        let has = buckets.get_named("has_token") == 1;
        buckets.set_named("spend", u64::from(spend && has));
        coverage.note("spent", spend && has);
        coverage.note("none left", !has);
        spent[bucket] += u64::from(spend && has);
        buckets.edge();
        for (bucket, period) in periods.into_iter().enumerate().skip(1) {
            let most = u64::from(burst) + tick / u64::from(period) + 1;
            assert!(
                spent[bucket] <= most,
                "bucket {bucket}: {} of {most}",
                spent[bucket]
            );
            let spent_since = spent[bucket] - spent_before[bucket];
            let since = tick.saturating_sub(PAUSE.end);
            let most = u64::from(burst) + since / u64::from(period) + 1;
            assert!(
                tick < PAUSE.end || spent_since <= most,
                "bucket {bucket} after a pause: {spent_since} of {most}"
            );
        }
    }
    coverage.require_all("token_buckets");
    assert!(
        spent[2] >= (TICKS - PAUSE.end + PAUSE.start) / 1_000 - 1,
        "what time gives can be spent: {spent:?}"
    );
    assert!(spent[0] > 1_500, "{spent:?}");
}

#[test]
fn the_balancer_stays_among_the_connections_flows() {
    let Some(mut balancer) = model_or_skip("load_balancer") else {
        return;
    };
    balancer.reset();
    let mut random = SeededRandom::new(9);
    let mut coverage = CountedSituations::default();
    for _ in 0..20_000 {
        let (balance, log2) = (random.below(4), random.below(3));
        let mask = (1 << log2) - 1;
        let first = random.below(4) & !mask;
        let levels: Vec<u64> = (0..4).map(|_| random.below(6)).collect();
        let hash = random.draw() & 0xffff_ffff;
        let packed = levels
            .iter()
            .rev()
            .fold(0, |packed, level| (packed << 16) | level);
        for (name, value) in [
            ("balance", balance),
            ("first", first),
            ("mask", mask),
            ("key_hash", hash),
            ("levels", packed),
            ("used", u64::from(random.chance(500))),
        ] {
            balancer.set_named(name, value);
        }
        balancer.settle();
        let flow = balancer.get_named("flow");
        assert_eq!(flow & !mask, first, "flow {flow} of {first} with mask {mask}");
        match balance {
            0 => assert_eq!(flow, first),
            2 => assert_eq!(flow & mask, hash & mask),
            3 => {
                let most = (first..=first | mask).map(|flow| levels[flow as usize]).max();
                assert!(Some(levels[flow as usize]) == most || most == Some(0));
            }
            _ => {}
        }
        for (name, number) in [("static", 0), ("in turn", 1), ("by key", 2), ("least loaded", 3)] {
            coverage.note(
                name,
                (balance == number && flow != first) || (balance == 0 && number == 0),
            );
        }
        balancer.edge();
    }
    coverage.require_all("load_balancer");
}

/// The rings' memory: of slots of two lines, those of entries that were written.
#[derive(Default)]
struct PolledRing {
    lines: BTreeMap<u64, [u8; LINE_BYTES]>,
    written: u64,
    taken: u64,
}

impl PolledRing {
    const SLOTS_LOG2: u64 = 2;

    /// Writes an entry of one line, or of two, if there is room.
    fn write(&mut self, two_lines: bool) {
        let slots = 1 << Self::SLOTS_LOG2;
        if self.written - self.taken == slots {
            return;
        }
        let mut header = entry_line(1, if two_lines { 60 } else { 8 }, self.written);
        header[0] |= u8::from((self.written / slots).is_multiple_of(2));
        let slot = 2 * (self.written % slots);
        self.lines.insert(slot + 1, [1; LINE_BYTES]);
        self.lines.insert(slot, header);
        self.written += 1;
    }
}

/// The first line of an entry.
fn entry_line(kind: u8, bytes: u16, tag: u64) -> [u8; LINE_BYTES] {
    let mut line = [0; LINE_BYTES];
    line[0] = kind << 4;
    line[2..4].copy_from_slice(&bytes.to_le_bytes());
    line[8..16].copy_from_slice(&tag.to_le_bytes());
    line
}

/// Flow and tag of the entry that the poller gives (`nic_pkg::entry_t`).
fn entry_of(poller: &RtlModel) -> (u64, u64) {
    let bytes = poller.bytes(poller.port("entry"));
    let bits = |from: usize, count: usize| {
        (0..count).fold(0, |value, bit| {
            let at = from + bit;
            value | u64::from(bytes[at / 8] >> (at % 8) & 1) << bit
        })
    };
    (bits(191, 8), bits(67, 64))
}

#[test]
fn a_pushed_line_waits_for_room_and_is_taken_once_beside_entries_of_a_ring() {
    let Some(mut poller) = model_or_skip("tx_poller") else {
        return;
    };
    poller.reset();
    for (name, value) in [
        ("enable", 1),
        // Flow 0 has a ring that is polled, flow 1 pushed lines alone.
        ("flow_doorbell_mode", 0b10),
        ("flow_base", 64 << 32),
        ("flow_slots_log2", PolledRing::SLOTS_LOG2 * 0x11),
        ("flow_stride_log2", 0x11),
    ] {
        poller.set_named(name, value);
    }
    const PUSHED: u64 = 1 << 32;
    let (push_line, data) = (poller.port("push_line"), poller.port("data"));
    let mut random = SeededRandom::new(8);
    let mut coverage = CountedSituations::default();
    let (mut ring, mut reads) = (PolledRing::default(), VecDeque::new());
    let (mut pushed, mut waiting) = (0, VecDeque::new());
    for cycle in 0..40_000u64 {
        if random.chance(300) {
            ring.write(random.chance(500));
        }
        if waiting.len() < 8 && random.chance(400) {
            waiting.push_back((random.below(2), PUSHED | pushed));
            pushed += 1;
        }
        let off = cycle / 1_000 % 4 == 3;
        poller.set_named("flow_enable", if off { 0b01 } else { 0b11 });
        poller.set_named("push_valid", u64::from(!waiting.is_empty()));
        if let Some((flow, tag)) = waiting.front() {
            poller.set_named("push_flow", *flow);
            // The phase of a ring's lap means nothing here.
            let mut line = entry_line(1, 8, *tag);
            line[0] |= random.below(2) as u8;
            poller.bytes_mut(push_line).copy_from_slice(&line);
        }
        let answers = !reads.is_empty() && random.chance(500);
        poller.set_named("data_valid", answers.into());
        let line = reads.front().and_then(|at| ring.lines.get(at));
        poller
            .bytes_mut(data)
            .copy_from_slice(line.unwrap_or(&[0; LINE_BYTES]));
        let (buffer, room, credits) = (random.chance(700), random.chance(700), random.below(4));
        poller.set_named("read_ready", random.chance(800).into());
        poller.set_named("buffer_valid", buffer.into());
        poller.set_named("entry_ready", room.into());
        poller.set_named("credit_available", credits);
        poller.settle();
        let says = |name| poller.get_named(name) == 1;
        let entry = says("entry_valid").then(|| entry_of(&poller));
        let took = says("push_take");
        if took {
            let (flow, tag) = waiting.pop_front().expect("a line is taken where none is");
            let credit = credits >> flow & 1 == 1;
            if off && flow == 1 {
                assert_eq!(entry, None, "of a flow that is off");
                coverage.note("a line is dropped, its flow being off", true);
            } else {
                assert!(buffer && room && credit, "line {tag:x} is taken without room");
                assert_eq!(entry, Some((flow, tag)), "a line is taken and lost");
            }
            coverage.note("a line is taken while reads are out", !reads.is_empty());
        } else if let Some(entry) = entry {
            assert!(ring.taken < ring.written);
            assert_eq!(entry, (0, ring.taken), "of the ring's next entry");
            ring.taken += 1;
        } else if let Some((flow, _)) = waiting.front() {
            let credit = credits >> flow & 1 == 1;
            coverage.note(
                "a line waits for a buffer alone",
                !buffer && room && credit && !answers,
            );
            coverage.note(
                "a line waits for room alone",
                buffer && !room && credit && !answers,
            );
            coverage.note(
                "a line waits for a credit alone",
                buffer && room && !credit && !answers,
            );
        }
        coverage.note("a line waits for one of memory", answers && !waiting.is_empty());
        if answers {
            reads.pop_front();
        }
        if says("read") && says("read_ready") {
            reads.push_back(poller.get_named("read_address"));
        }
        poller.edge();
    }
    assert!(pushed > 4_000 && ring.taken > 500, "{pushed} {}", ring.taken);
    coverage.require_all("tx_poller");
}

/// A NIC of one flow has one bit for its number, and a connection's line may have it set: the request goes to the flow that there is.
#[test]
fn a_nic_of_one_flow_gives_no_request_to_another() {
    let Some(mut core) = model_or_skip("transport_core_single") else {
        return;
    };
    core.reset();
    let mut coverage = CountedSituations::default();
    for name in [
        "lookup_ready",
        "transmit_room_for_two",
        "receive_room_for_two",
        "bucket_has_token",
        "credit_spare",
    ] {
        core.set_named(name, 1);
    }
    // Fields of a packet, from its lowest bit: the first line, 16 bits of bytes, 6 of lines, 48 of the address.
    const BYTES_AT: usize = LINE_BYTES;
    let mut first = [0; LINE_BYTES];
    // A request of slot 0 and call 1, to a session with the token 0, of no bytes.
    first[0] = 1;
    first[8] = 1;
    let ports = ["packet_next", "answer_line", "receive"].map(|name| core.port(name));
    let packet = core.bytes_mut(ports[0]);
    packet[..LINE_BYTES].copy_from_slice(&first);
    packet[BYTES_AT] = 24;
    // One line.
    packet[BYTES_AT + 2] = 1;
    for balanced in [0, 1] {
        for phase in [0u8, 2, 6] {
            let mut line = [0; 64];
            // A server's, valid, with eight slots; the first flow is the second, of two.
            line[..3].copy_from_slice(&[0x83, 0, 0x11]);
            // Slot 0 has call 1 where it is not idle.
            line[22] = u8::from(phase != 0);
            line[54] = phase;
            // A flow and packets of slot 0: the flow's bit is set.
            line[57] = 0b1000;
            core.bytes_mut(ports[1]).copy_from_slice(&line);
            core.set_named("balance_flow", balanced);
            core.set_named("packet_valid", 1);
            let mut delivered = None;
            for _ in 0..6 {
                core.settle();
                let looked_up = core.get_named("lookup") == 1;
                if core.get_named("receive_valid") == 1 {
                    // The flow lies above the bits of the first line, 192 of the head, and 6 of the lines.
                    let order = core.bytes(ports[2]);
                    let flow =
                        u16::from_le_bytes([order[LINE_BYTES + 24], order[LINE_BYTES + 25]]) >> 6 & 0xff;
                    delivered = Some(flow);
                }
                core.edge();
                if looked_up {
                    core.set_named("packet_valid", 0);
                }
                core.set_named("answer", u64::from(looked_up));
            }
            assert_eq!(delivered, Some(0), "phase {phase}, balanced to {balanced}");
            coverage.note("a request that begins", phase == 0);
            coverage.note("one that comes again", phase == 2);
        }
    }
    coverage.require_all("transport_core of one flow");
}
