//! Full-size packets vanish on the way, from some moment on, while small ones arrive: calls go on in small packets, and in full-size
//! ones again once those arrive.

use provost_datagram::{
    Checking, Cipher, Config, PacketFallback, Recovery, Sealing, Security, SessionId, Statistics,
};
use provost_datagram_sim::traffic::{AnswerForm, CallWish, Traffic};
use provost_datagram_sim::{Host, Links, PacketFaults, Random, Simulation};

const MS_NS: u64 = 1_000_000;
const SEEDS: std::ops::Range<u64> = 1..13;
const CLIENT: Host = 0;
const SERVER: Host = 1;
/// What still arrives is no larger: less than an Ethernet frame's payload, as behind a tunnel.
const NARROW_BYTES: usize = 1_300;
const PROBE_NS: u64 = 1_000 * MS_NS;
/// Calls of each run, and within which time they are made.
const CALLS: u64 = 120;
const MAKING_NS: u64 = 40 * MS_NS;
/// What is carried with every packet of the configuration's size, and when those are small.
const LARGE_BYTES: usize = 100_000;
const LARGE_PACKETS_FULL: u64 = 70;
const LARGE_PACKETS_SMALL: u64 = 86;

fn config() -> Config {
    Config {
        path_probe_ns: PROBE_NS,
        ..Config::default()
    }
}

fn sealed() -> Security {
    Security::Sealed(Sealing {
        cipher: Cipher::Aes128Gcm,
        pre_shared_key: [1; 32],
        seed: [2; 32],
    })
}

fn connected(seed: u64, config: &Config) -> (Simulation<Traffic>, SessionId) {
    let applications = (0..2).map(Traffic::on).collect();
    let mut simulation = Simulation::new(seed, Links::default(), config, applications);
    let connect = |_: &mut Traffic, endpoint: &mut provost_datagram::Endpoint<Host>, now_ns| {
        endpoint.connect(now_ns, SERVER).expect("there is room")
    };
    let session = simulation.with(CLIENT, connect);
    simulation.run_for(10 * MS_NS);
    assert!(simulation.application(CLIENT).connected.contains(&session));
    (simulation, session)
}

fn call(simulation: &mut Simulation<Traffic>, session: SessionId, wish: CallWish) {
    simulation.with(CLIENT, |client, endpoint, now_ns| {
        client.call(endpoint, now_ns, session, wish).expect("it is taken");
    });
}

/// Something between a few bytes and many packets, each way.
fn wish(random: &mut Random) -> CallWish {
    let mut bytes = || match random.below(5) {
        0 => 32,
        1 => 1_448,
        2 => 1_200 + random.below(3_000) as usize,
        // The last packet, and that alone, is as long as small packets are.
        3 => 2 * 1_448 + 1_176,
        _ => random.below(60_000) as usize,
    };
    let (request_bytes, response_bytes) = (bytes().max(16), bytes());
    let answer = match random.below(3) {
        0 => AnswerForm::AtOnce,
        1 => AnswerForm::Lent,
        _ => AnswerForm::Later,
    };
    CallWish {
        request_bytes,
        response_bytes,
        answer,
    }
}

fn statistics(simulation: &Simulation<Traffic>) -> Statistics {
    simulation.endpoint(CLIENT).statistics()
}

/// Packets that a large request takes.
fn packets_of_large(simulation: &mut Simulation<Traffic>, session: SessionId) -> u64 {
    let before = statistics(simulation).packets_sent;
    let large = CallWish {
        request_bytes: LARGE_BYTES,
        response_bytes: 32,
        answer: AnswerForm::AtOnce,
    };
    call(simulation, session, large);
    simulation.run_for(100 * MS_NS);
    assert_eq!(simulation.application(CLIENT).calls_open(), 0);
    statistics(simulation).packets_sent - before
}

/// Makes calls, has the ways in these directions narrow from some moment on, and later wide again.
fn narrow_and_widen(seed: u64, config: &Config, ways: &[(Host, Host)], faults: PacketFaults) {
    let (mut simulation, session) = connected(seed, config);
    simulation.network.faults = faults;
    let mut random = Random::new(seed);
    let narrow_at = random.below(CALLS);
    for at in 0..CALLS {
        if at == narrow_at {
            ways.iter()
                .for_each(|(from, to)| simulation.network.narrow(*from, *to, Some(NARROW_BYTES)));
        }
        let wish = wish(&mut random);
        call(&mut simulation, session, wish);
        simulation.run_for(random.below(2 * MAKING_NS / CALLS));
    }
    let is_done = |simulation: &Simulation<Traffic>| simulation.application(CLIENT).calls_open() == 0;
    let until_ns = simulation.now_ns() + config.path_probe_ns / 10 * 9;
    let done = simulation.run_until(until_ns, is_done);
    let counted = statistics(&simulation);
    assert!(done, "seed {seed}, {ways:?}: {counted:?}");
    let client = simulation.application(CLIENT);
    assert_eq!(
        (client.answered, client.failed.len()),
        (CALLS, 0),
        "seed {seed}, {ways:?}"
    );
    assert_eq!(simulation.application(SERVER).executed() as u64, CALLS);
    assert_eq!(counted.fallbacks, 1, "seed {seed}, {ways:?}: {counted:?}");
    simulation.network.faults = PacketFaults::default();
    let packets = packets_of_large(&mut simulation, session);
    assert!(
        packets >= LARGE_PACKETS_SMALL,
        "seed {seed}, {ways:?}: {packets} packets"
    );

    ways.iter()
        .for_each(|(from, to)| simulation.network.narrow(*from, *to, None));
    simulation.run_for(config.path_probe_ns);
    call(&mut simulation, session, wish(&mut random));
    simulation.run_for(100 * MS_NS);
    let packets = packets_of_large(&mut simulation, session);
    assert!(
        (LARGE_PACKETS_FULL..LARGE_PACKETS_SMALL).contains(&packets),
        "seed {seed}, {ways:?}: {packets} packets once full-size ones arrive again"
    );
    assert_eq!(statistics(&simulation).fallbacks, 1);
}

#[test]
fn calls_go_on_in_small_packets_while_full_size_ones_vanish() {
    for seed in SEEDS {
        narrow_and_widen(
            seed,
            &config(),
            &[(CLIENT, SERVER), (SERVER, CLIENT)],
            PacketFaults::default(),
        );
    }
}

#[test]
fn one_direction_is_enough() {
    for seed in SEEDS {
        narrow_and_widen(seed, &config(), &[(CLIENT, SERVER)], PacketFaults::default());
        narrow_and_widen(seed, &config(), &[(SERVER, CLIENT)], PacketFaults::default());
    }
}

#[test]
fn sealed_and_checked_packets_become_small_too() {
    let both = [(CLIENT, SERVER), (SERVER, CLIENT)];
    for seed in SEEDS {
        let sealed = Config {
            security: sealed(),
            ..config()
        };
        narrow_and_widen(seed, &sealed, &both, PacketFaults::default());
        let checked = Config {
            checking: Checking::Crc32c,
            ..config()
        };
        narrow_and_widen(seed, &checked, &both, PacketFaults::default());
    }
}

#[test]
fn full_size_packets_that_come_late_do_no_harm() {
    // They are of calls that have begun anew in small packets, and are counted otherwise.
    let faults = PacketFaults {
        loss: 0.01,
        duplication: 0.05,
        delay: 0.1,
        delay_ns_max: 20 * MS_NS,
        ..PacketFaults::default()
    };
    for seed in 1..41 {
        let both = [(CLIENT, SERVER), (SERVER, CLIENT)];
        let config = Config {
            path_probe_ns: 10 * PROBE_NS,
            ..config()
        };
        narrow_and_widen(seed, &config, &both, faults);
        let go_back_n = Config {
            recovery: Recovery::GoBackN,
            ..config
        };
        narrow_and_widen(seed, &go_back_n, &both, faults);
    }
}

#[test]
fn neither_loss_nor_requests_that_are_held_make_packets_small() {
    for seed in SEEDS {
        let (mut simulation, session) = connected(seed, &config());
        let mut random = Random::new(seed);
        simulation.network.faults = PacketFaults {
            loss: 0.03,
            duplication: 0.01,
            delay: 0.05,
            delay_ns_max: MS_NS,
            ..PacketFaults::default()
        };
        simulation.with(CLIENT, |client, _, _| client.later_ns = 200 * MS_NS);
        simulation.with(SERVER, |server, _, _| server.later_ns = 200 * MS_NS);
        for _ in 0..CALLS {
            let wish = wish(&mut random);
            call(&mut simulation, session, wish);
        }
        simulation.run_for(20_000 * MS_NS);
        let counted = statistics(&simulation);
        assert_eq!(
            simulation.application(CLIENT).answered,
            CALLS,
            "seed {seed}: {counted:?}"
        );
        assert_eq!(counted.fallbacks, 0, "seed {seed}: {counted:?}");
    }
}

#[test]
fn ends_that_do_not_both_fall_back_go_on_as_before() {
    let off = Config {
        packet_fallback: PacketFallback::Off,
        ..config()
    };
    let (mut simulation, session) = connected(1, &off);
    let packets = packets_of_large(&mut simulation, session);
    assert!(
        (LARGE_PACKETS_FULL..LARGE_PACKETS_SMALL).contains(&packets),
        "{packets}"
    );
    simulation.network.narrow(CLIENT, SERVER, Some(NARROW_BYTES));
    let large = CallWish {
        request_bytes: LARGE_BYTES,
        response_bytes: 32,
        answer: AnswerForm::AtOnce,
    };
    call(&mut simulation, session, large);
    simulation.run_for(500 * MS_NS);
    let counted = statistics(&simulation);
    assert_eq!((counted.fallbacks, counted.path_probes), (0, 0));
    assert_eq!(simulation.application(CLIENT).calls_open(), 1);
}
