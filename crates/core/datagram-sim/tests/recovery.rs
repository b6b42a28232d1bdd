//! Loss, reordering, silence: how sessions come through.

use provost_datagram::{
    Algorithm, CallError, Config, CongestionConfig, EndReason, Recovery, Refusal, SessionId, SwiftConfig,
    TimelyConfig,
};
use provost_datagram_sim::traffic::{AnswerForm, CallWish, Traffic};
use provost_datagram_sim::{Host, Links, PacketDamage, PacketFaults, Random, Simulation};

const MS_NS: u64 = 1_000_000;
const LARGE: CallWish = CallWish {
    request_bytes: 1 << 20,
    response_bytes: 32,
    answer: AnswerForm::AtOnce,
};
const FETCHING: CallWish = CallWish {
    request_bytes: 32,
    response_bytes: 1 << 20,
    answer: AnswerForm::AtOnce,
};
const SMALL: CallWish = CallWish {
    request_bytes: 32,
    response_bytes: 32,
    answer: AnswerForm::AtOnce,
};

fn config() -> Config {
    Config {
        peer_timeout_ns: 500 * MS_NS,
        ..Config::default()
    }
}

fn connected(config: &Config) -> (Simulation<Traffic>, SessionId) {
    let applications = (0..2).map(Traffic::on).collect();
    let mut simulation = Simulation::new(5, Links::default(), config, applications);
    let session = connect(&mut simulation, 0);
    simulation.run_for(10 * MS_NS);
    assert!(simulation.application(0).connected.contains(&session));
    (simulation, session)
}

fn connect(simulation: &mut Simulation<Traffic>, client: Host) -> SessionId {
    simulation.with(client, |_, endpoint, now_ns| endpoint.connect(now_ns, 1).unwrap())
}

fn call(simulation: &mut Simulation<Traffic>, session: SessionId, wish: CallWish) {
    simulation.with(0, |client, endpoint, now_ns| {
        client.call(endpoint, now_ns, session, wish).unwrap();
    });
}

/// Bytes per nanosecond of large calls, one after another, under faults.
fn throughput(recovery: Recovery, faults: PacketFaults, wish: CallWish) -> f64 {
    let config = Config { recovery, ..config() };
    let (mut simulation, session) = connected(&config);
    simulation.network.faults = faults;
    simulation.with(0, |client, endpoint, now_ns| {
        client.again = Some(wish);
        for _ in 0..4 {
            client.call(endpoint, now_ns, session, wish).unwrap();
        }
    });
    let ns = 100 * MS_NS;
    simulation.run_for(ns);
    simulation.application(0).bytes as f64 / ns as f64
}

const LOSS: PacketFaults = PacketFaults {
    loss: 1e-3,
    duplication: 0.0,
    delay: 0.0,
    delay_ns_max: 0,
    corruption: 0.0,
    damage: PacketDamage::Word,
};

#[test]
fn one_lost_packet_in_a_thousand_leaves_most_of_the_throughput() {
    let response = CallWish {
        request_bytes: 32,
        response_bytes: 1 << 20,
        ..LARGE
    };
    for wish in [LARGE, response] {
        let without = throughput(Recovery::Selective, PacketFaults::default(), wish);
        let with = throughput(Recovery::Selective, LOSS, wish);
        let go_back_n = throughput(Recovery::GoBackN, LOSS, wish);
        println!("loss-free {without:.2}, selective {with:.2}, go-back-N {go_back_n:.2} bytes/ns");
        assert!(with > 0.5 * without, "{with} of {without} bytes/ns");
        assert!(with > go_back_n);
    }
}

#[test]
fn reordering_is_not_taken_for_loss() {
    let faults = PacketFaults {
        delay: 0.05,
        delay_ns_max: 10_000,
        ..PacketFaults::default()
    };
    let (mut simulation, session) = connected(&config());
    simulation.network.faults = faults;
    for _ in 0..10 {
        call(&mut simulation, session, LARGE);
    }
    simulation.run_for(200 * MS_NS);
    let statistics = simulation.endpoint(0).statistics();
    assert_eq!(simulation.application(0).answered, 10, "{statistics:?}");
    assert!(statistics.losses_detected < 8, "{statistics:?}");
    assert_eq!(statistics.timeouts, 0, "{statistics:?}");
}

#[test]
fn a_peer_that_falls_silent_fails_every_call_once() {
    for silent_by in ["partition", "stop"] {
        let (mut simulation, session) = connected(&config());
        for _ in 0..30 {
            call(
                &mut simulation,
                session,
                CallWish {
                    answer: AnswerForm::Later,
                    ..SMALL
                },
            );
        }
        match silent_by {
            "partition" => simulation.network.part(0, 1, true),
            _ => simulation.stop(1, 5_000 * MS_NS),
        }
        simulation.run_for(2_000 * MS_NS);
        let client = simulation.application(0);
        assert_eq!(
            client.failed,
            [CallError::Ended(EndReason::PeerTimeout); 30],
            "{silent_by}"
        );
        assert_eq!(client.ended, [(session, EndReason::PeerTimeout)]);
        assert_eq!(client.calls_open(), 0);
        simulation.network.part(0, 1, false);
        simulation.run_for(4_000 * MS_NS);
        let again = connect(&mut simulation, 0);
        call(&mut simulation, again, SMALL);
        simulation.run_for(100 * MS_NS);
        assert_eq!(simulation.application(0).answered, 1, "{silent_by}");
    }
}

#[test]
fn a_server_that_lost_its_memory_says_so_at_once() {
    let (mut simulation, session) = connected(&config());
    simulation.restart(1, &config(), Traffic::on(1));
    call(&mut simulation, session, SMALL);
    simulation.run_for(MS_NS);
    assert_eq!(
        simulation.application(0).failed,
        [CallError::Ended(EndReason::Reset)]
    );
}

#[test]
fn an_idle_session_lives_while_its_peer_does() {
    let config = Config {
        keepalive_ns: 300 * MS_NS,
        idle_ns_max: 2_000 * MS_NS,
        ..config()
    };
    let (mut simulation, session) = connected(&config);
    simulation.run_for(20_000 * MS_NS);
    call(&mut simulation, session, SMALL);
    simulation.run_for(MS_NS);
    assert_eq!(simulation.application(0).answered, 1);
    simulation.network.part(0, 1, true);
    simulation.run_for(20_000 * MS_NS);
    assert_eq!(
        simulation.application(0).ended,
        [(session, EndReason::PeerTimeout)]
    );
    assert_eq!(simulation.application(1).ended.len(), 1);
}

#[test]
fn a_receive_ring_takes_no_more_sessions_than_it_has_room_for() {
    let config = Config {
        receive_ring_packets: 64,
        credits: 32,
        ..config()
    };
    let applications = (0..3).map(Traffic::on).collect();
    let mut simulation = Simulation::new(5, Links::default(), &config, applications);
    let mut mine = Vec::new();
    let no_room = loop {
        match simulation.with(0, |_, endpoint, now_ns| endpoint.connect(now_ns, 1)) {
            Ok(session) => mine.push(session),
            Err(error) => break error,
        }
    };
    assert_eq!(no_room, provost_datagram::ConnectError::RingFull);
    assert!(mine.len() > 2, "the first two have not taken all of it");
    simulation.run_for(10 * MS_NS);
    assert!(
        mine.iter()
            .all(|session| simulation.application(0).connected.contains(session))
    );
    let theirs = connect(&mut simulation, 2);
    simulation.run_for(10 * MS_NS);
    let refused = EndReason::Refused(Refusal::RingFull);
    assert_eq!(simulation.application(2).ended, [(theirs, refused)]);
    simulation.with(0, |_, endpoint, now_ns| endpoint.disconnect(now_ns, mine[0]));
    simulation.run_for(10 * MS_NS);
    let theirs = connect(&mut simulation, 2);
    simulation.run_for(10 * MS_NS);
    assert!(simulation.application(2).connected.contains(&theirs));
}

#[test]
fn a_process_that_was_off_its_core_neither_resends_much_nor_slows_down() {
    let timely = TimelyConfig::default();
    let congestion = CongestionConfig {
        algorithm: Algorithm::Timely(timely),
        ..CongestionConfig::default()
    };
    let config = Config {
        congestion,
        ..config()
    };
    let (mut simulation, session) = connected(&config);
    simulation.with(0, |client, endpoint, now_ns| {
        client.again = Some(SMALL);
        for _ in 0..8 {
            client.call(endpoint, now_ns, session, SMALL).unwrap();
        }
    });
    let calls_in = |simulation: &mut Simulation<Traffic>| {
        let before = simulation.application(0).answered;
        simulation.run_for(10 * MS_NS);
        simulation.application(0).answered - before
    };
    let undisturbed = calls_in(&mut simulation);
    for round in 0..40 {
        simulation.stop(round % 2, 8 * MS_NS);
        simulation.run_for(9 * MS_NS);
    }
    let after = calls_in(&mut simulation);
    assert!(after > undisturbed * 9 / 10, "{after} calls of {undisturbed}");
    let rate = simulation.endpoint(0).rate(session).unwrap();
    assert_eq!(rate, congestion.link_rate, "a preempted host is no congestion");
    let statistics = simulation.endpoint(0).statistics();
    // In 8 ms each of the 8 calls asks after 0.5, 1, 2 and 4 ms more; 20 times it was the server that was away.
    assert!(statistics.packets_resent <= 20 * 8 * 4, "{statistics:?}");
}

/// What a preemption is measured by.
#[derive(Debug)]
struct Preempted {
    /// Packets that the server got in [`SPAN_NS`] before, and in as long after [`ROUND_TRIPS_TO_RECOVER`].
    before: u64,
    after: u64,
    /// How fast the session might send, as a part of the link's rate.
    rate: f64,
    failed: usize,
}

const ROUND_TRIP_NS: u64 = 5_000;
/// After so many round trips a session whose process is back on its core is as fast as it was.
const ROUND_TRIPS_TO_RECOVER: u64 = 100;
const SPAN_NS: u64 = MS_NS / 2;

/// A process is off its core for a while, at a moment of chance.
fn preempt(seed: u64, algorithm: Algorithm, wish: CallWish, host: Host, off_ns: u64) -> Preempted {
    let congestion = CongestionConfig {
        algorithm,
        ..CongestionConfig::default()
    };
    let config = Config {
        congestion,
        ..config()
    };
    let mut random = Random::new(seed);
    let (mut simulation, session) = connected(&config);
    simulation.with(0, |client, endpoint, now_ns| {
        client.again = Some(wish);
        for _ in 0..8 {
            client.call(endpoint, now_ns, session, wish).unwrap();
        }
    });
    let packets_in_span = |simulation: &mut Simulation<Traffic>| {
        let received =
            |simulation: &Simulation<Traffic>| simulation.endpoint(1).statistics().packets_received;
        let before = received(simulation);
        simulation.run_for(SPAN_NS);
        received(simulation) - before
    };
    simulation.run_for(MS_NS);
    let before = packets_in_span(&mut simulation);
    simulation.run_for(random.below(MS_NS));
    simulation.stop(host, off_ns);
    simulation.run_for(off_ns + ROUND_TRIPS_TO_RECOVER * ROUND_TRIP_NS);
    let after = packets_in_span(&mut simulation);
    let rate = simulation.endpoint(0).rate(session);
    Preempted {
        before,
        after,
        rate: rate.unwrap_or(0.0) / congestion.link_rate,
        failed: simulation.application(0).failed.len(),
    }
}

#[test]
fn a_process_that_is_preempted_for_milliseconds_is_as_fast_again_a_hundred_round_trips_later() {
    let mut seed = 0;
    for (name, algorithm) in [
        ("timely", Algorithm::Timely(TimelyConfig::default())),
        ("swift", Algorithm::Swift(SwiftConfig::default())),
    ] {
        for (load, wish) in [("small", SMALL), ("large", LARGE), ("fetching", FETCHING)] {
            for (who, host) in [("client", 0), ("server", 1)] {
                for off_ms in [5, 20, 50] {
                    seed += 1;
                    let outcome = preempt(seed, algorithm, wish, host, off_ms * MS_NS);
                    let case = format!("{name}, {load} calls, {who} off for {off_ms} ms, seed {seed}");
                    assert_eq!(outcome.failed, 0, "{case}: {outcome:?}");
                    assert!(outcome.after * 10 >= outcome.before * 9, "{case}: {outcome:?}");
                    assert!(outcome.rate >= 0.9, "{case}: {outcome:?}");
                }
            }
        }
    }
}
