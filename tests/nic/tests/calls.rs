//! Calls over NICs: two of them back to back, and each with the software transport, over wires that do harm.

use provost_nic::registers::CounterName;
use provost_nic::{FetchMode, LINE_BYTES};
use provost_nic_model::HostTiming;
use provost_nic_tests::{CallPattern, HostKind, WireFaults, World, WorldConfig, nic_config, say_skipped};

const FAULTS: WireFaults = WireFaults {
    loss: 10,
    duplication: 10,
    reordering: 20,
    corruption: 10,
};

fn config(hosts: [HostKind; 2], faults: WireFaults, fetch: FetchMode) -> WorldConfig {
    WorldConfig {
        seed: 1,
        hosts,
        faults,
        sessions: 5,
        pattern: CallPattern { bytes_max: 900 },
        nic: [nic_config(fetch), nic_config(fetch)],
        timing: HostTiming::default(),
    }
}

/// Runs so many calls; each is executed once and ends well once.
fn calls_end_well(config: WorldConfig, calls: u64) -> Option<World> {
    let mut world = match World::new(config) {
        Ok(world) => world,
        Err(reason) => {
            say_skipped(reason);
            return None;
        }
    };
    world.calls_end_well(calls);
    Some(world)
}

#[test]
fn calls_go_from_nic_to_nic() {
    let hosts = [HostKind::Nic, HostKind::Nic];
    for fetch in [FetchMode::Polled, FetchMode::Doorbell, FetchMode::Push] {
        let Some(mut world) = calls_end_well(config(hosts, WireFaults::default(), fetch), 500) else {
            return;
        };
        let again = world.counter(0, CounterName::Retransmissions);
        println!(
            "{fetch:?}: 500 calls in {} cycles (simulated), {again} sent again",
            world.cycle()
        );
        assert_eq!(world.counter(0, CounterName::CallsCompleted), 500);
        assert_eq!(world.counter(1, CounterName::RequestsDelivered), 500);
        assert_eq!(world.counter(0, CounterName::Retransmissions), 0);
        assert_eq!(
            world.server.by_flow.len(),
            2,
            "requests are spread over both flows"
        );
        world.disconnect();
    }
}

#[test]
fn calls_go_between_a_nic_and_the_software_transport() {
    for hosts in [
        [HostKind::Nic, HostKind::Software],
        [HostKind::Software, HostKind::Nic],
    ] {
        for faults in [WireFaults::default(), FAULTS] {
            let Some(mut world) = calls_end_well(config(hosts, faults, FetchMode::Polled), 2_000) else {
                return;
            };
            world.disconnect();
        }
    }
}

#[test]
fn more_sessions_than_the_connection_cache_holds_are_fetched_and_lose_nothing() {
    let hosts = [HostKind::Nic, HostKind::Nic];
    let config = WorldConfig {
        sessions: 100,
        ..config(hosts, FAULTS, FetchMode::Polled)
    };
    let Some(mut world) = calls_end_well(config, 2_000) else {
        return;
    };
    for side in 0..2 {
        let misses = world.counter(side, CounterName::ConnectionMisses);
        assert!(misses > 100, "{misses} misses at host {side}");
    }
    world.disconnect();
}

/// A hundred thousand, or as many as `PROVOST_NIC_CALLS` says.
#[test]
fn no_call_is_lost_or_done_twice_between_two_nics_on_a_wire_that_does_harm() {
    let calls = std::env::var("PROVOST_NIC_CALLS")
        .ok()
        .and_then(|calls| calls.parse().ok());
    let calls = calls.unwrap_or(100_000);
    let began = std::time::Instant::now();
    let hosts = [HostKind::Nic, HostKind::Nic];
    let Some(mut world) = calls_end_well(config(hosts, FAULTS, FetchMode::Polled), calls) else {
        return;
    };
    let counters = CounterName::ALL.map(|name| (name, [0, 1].map(|side| world.counter(side, name))));
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{calls} calls in {} cycles (simulated), {:.0} calls a second of simulation",
        world.cycle(),
        calls as f64 / seconds
    );
    println!(
        "the wire lost, doubled, delayed, damaged: {:?}",
        world.faults_made
    );
    for (name, [client, server]) in counters {
        println!("{name:?}: {client} at the client, {server} at the server");
    }
    println!("requests by lines: {:?}", world.server.by_lines);
    // Coverage: whatever the wire can do was done, and whatever the NIC does about it happened.
    assert!(world.faults_made.iter().all(|faults| *faults > calls / 200));
    let happened = |side, name| world.counter(side, name) > 0;
    let mut happened = happened;
    assert!(happened(0, CounterName::Retransmissions));
    assert!(happened(1, CounterName::RequestsRepeated));
    assert!(happened(1, CounterName::DroppedCheck));
    assert!(happened(0, CounterName::DroppedStale) && happened(1, CounterName::DroppedStale));
    assert_eq!(
        world.server.by_lines.len(),
        (15 * 64_usize).div_ceil(LINE_BYTES),
        "every length of a request in lines"
    );
    world.disconnect();
}
