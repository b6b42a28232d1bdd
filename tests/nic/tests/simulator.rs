//! NICs in the network of the datagram transport's simulator: its links, its switch and its faults, partitions among them.

use provost_datagram_sim::{Links, Network, PacketDamage, PacketFaults, PacketNetwork};
use provost_nic::FetchMode;
use provost_nic_model::HostTiming;
use provost_nic_tests::{CallPattern, HostKind, WireFaults, World, WorldConfig, nic_config, say_skipped};

/// Calls before the hosts are parted, while they are, and after.
const CALLS: u64 = 400;
/// Cycles for which they are parted: 250 us.
const PARTED_CYCLES: u64 = 50_000;
const FAULTS: PacketFaults = PacketFaults {
    loss: 0.02,
    duplication: 0.01,
    delay: 0.02,
    delay_ns_max: 20_000,
    corruption: 0.01,
    damage: PacketDamage::Word,
};

fn world(hosts: [HostKind; 2], seed: u64) -> Option<World> {
    let nic = nic_config(FetchMode::Polled);
    let config = WorldConfig {
        seed,
        hosts,
        faults: WireFaults::default(),
        sessions: 4,
        pattern: CallPattern { bytes_max: 900 },
        nic: [nic.clone(), nic],
        timing: HostTiming::default(),
    };
    let mut world = World::new(config).map_err(say_skipped).ok()?;
    let mut network = PacketNetwork::new(Links::default(), hosts.len(), seed);
    network.network.faults = FAULTS;
    world.network = Some(network);
    Some(world)
}

fn network(world: &mut World) -> &mut Network {
    let network = world.network.as_mut();
    &mut network.expect("the world has the simulator's network").network
}

/// Each call is executed once and ends well once, with a NIC at either end or at both.
#[test]
fn calls_of_nics_go_through_the_simulators_network_and_survive_partitions() {
    use HostKind::{Nic, Software};
    for (seed, hosts) in [[Nic, Nic], [Nic, Software], [Software, Nic]]
        .into_iter()
        .enumerate()
    {
        let Some(mut world) = world(hosts, seed as u64 + 1) else {
            return;
        };
        world.connect();
        world.call(CALLS);
        network(&mut world).part(0, 1, true);
        // Calls begin, and nothing of them arrives.
        world.begin(CALLS);
        for _ in 0..PARTED_CYCLES {
            world.step();
        }
        network(&mut world).part(0, 1, false);
        world.call(CALLS);
        let calls = world.client.made;
        assert!(calls > 2 * CALLS, "calls began while the hosts were parted");
        assert_eq!(world.client.failed, Default::default(), "{hosts:?}");
        assert_eq!(world.client.completed.len() as u64, calls);
        assert!(world.client.completed.values().all(|times| *times == 1));
        assert_eq!(world.server.executed.len() as u64, calls);
        assert!(world.server.executed.values().all(|times| *times == 1));
        let statistics = network(&mut world).statistics;
        assert!(statistics.lost > calls / 50, "{statistics:?}");
        println!(
            "{hosts:?}: {calls} calls in {} cycles, {statistics:?}",
            world.cycle()
        );
        world.disconnect();
    }
}
