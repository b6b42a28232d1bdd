//! Calls through the NIC that has a clock for each of its interfaces, with clocks whose rates have nothing to do with one another.

use provost_nic::FetchMode;
use provost_nic::registers::CounterName;
use provost_nic_host::HostConfig;
use provost_nic_model::{ClockPeriods, HostTiming, NicShape};
use provost_nic_tests::{
    CallPattern, HostKind, WireFaults, World, WorldConfig, nic_config, nic_config_with_areas, say_skipped,
};

const FAULTS: WireFaults = WireFaults {
    loss: 10,
    duplication: 10,
    reordering: 20,
    corruption: 10,
};

const fn shape(host: u64, transmit: u64, receive: u64) -> NicShape {
    NicShape::Clocked(ClockPeriods {
        nic: 5_000,
        host,
        transmit,
        receive,
    })
}

/// Alike; each interface slower; each faster; nearly alike.
const SHAPES: [NicShape; 4] = [
    shape(5_000, 5_000, 5_000),
    shape(8_191, 6_397, 6_413),
    shape(2_503, 3_103, 3_203),
    shape(4_999, 5_001, 4_999),
];
/// A wire whose lines come far faster than the NIC takes them.
const SWAMPED: NicShape = shape(5_000, 5_000, 1_009);

fn config(nic: HostConfig, bytes_max: usize) -> WorldConfig {
    WorldConfig {
        seed: 1,
        hosts: [HostKind::Nic, HostKind::Nic],
        faults: FAULTS,
        sessions: 5,
        pattern: CallPattern { bytes_max },
        nic: [nic.clone(), nic],
        timing: HostTiming::default(),
    }
}

/// Runs so many calls between NICs of these shapes; each is executed once and ends well once.
fn calls_end_well(config: WorldConfig, shapes: [NicShape; 2], calls: u64) -> Option<World> {
    match World::of_shapes(config, shapes) {
        Ok(mut world) => {
            world.calls_end_well(calls);
            Some(world)
        }
        Err(reason) => {
            say_skipped(reason);
            None
        }
    }
}

#[test]
fn calls_go_between_nics_of_several_clocks() {
    for (at, shape) in SHAPES.into_iter().enumerate() {
        // Each way to the NIC with each shape, over all pairs.
        let fetch = [FetchMode::Polled, FetchMode::Doorbell, FetchMode::Push][at % 3];
        let shapes = [shape, SHAPES[(at + 1) % SHAPES.len()]];
        let Some(mut world) = calls_end_well(config(nic_config(fetch), 900), shapes, 250) else {
            return;
        };
        for side in 0..2 {
            assert_eq!(world.nic(side).map(|nic| nic.stray_accesses()), Some(0));
        }
        assert_eq!(world.counter(1, CounterName::RequestsDelivered), 250);
        assert!(world.counter(1, CounterName::DroppedCheck) > 0, "{shapes:?}");
        world.disconnect();
    }
}

#[test]
fn a_nic_of_several_clocks_and_one_of_one_clock_call_each_other() {
    for shapes in [[SHAPES[2], NicShape::Standard], [NicShape::Standard, SHAPES[1]]] {
        let nic = nic_config_with_areas(FetchMode::Polled);
        if calls_end_well(config(nic, 3_000), shapes, 100).is_none() {
            return;
        }
    }
}

/// Packets of which lines are lost between the clocks are dropped and counted, and their calls end all the same.
#[test]
fn a_wire_that_is_too_fast_costs_packets_and_no_call() {
    let config = WorldConfig {
        faults: WireFaults::default(),
        ..config(nic_config_with_areas(FetchMode::Polled), 6_000)
    };
    let Some(mut world) = calls_end_well(config, [SWAMPED; 2], 200) else {
        return;
    };
    let dropped = [0, 1].map(|side| world.counter(side, CounterName::DroppedBuffer));
    assert!(dropped.iter().all(|dropped| *dropped > 0), "{dropped:?}");
}
