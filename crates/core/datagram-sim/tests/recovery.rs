//! Loss, reordering, silence: how sessions come through.

use provost_datagram::{
    Algorithm, CallError, Config, CongestionConfig, EndReason, Recovery, Refusal, SessionId, TimelyConfig,
};
use provost_datagram_sim::traffic::{Answer, Traffic, Wish};
use provost_datagram_sim::{Faults, Host, Links, Simulation};

const MS_NS: u64 = 1_000_000;
const LARGE: Wish = Wish {
    request_bytes: 1 << 20,
    response_bytes: 32,
    answer: Answer::AtOnce,
};
const SMALL: Wish = Wish {
    request_bytes: 32,
    response_bytes: 32,
    answer: Answer::AtOnce,
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

fn call(simulation: &mut Simulation<Traffic>, session: SessionId, wish: Wish) {
    simulation.with(0, |client, endpoint, now_ns| {
        client.call(endpoint, now_ns, session, wish).unwrap();
    });
}

/// Bytes per nanosecond of large calls, one after another, under faults.
fn throughput(recovery: Recovery, faults: Faults, wish: Wish) -> f64 {
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

const LOSS: Faults = Faults {
    loss: 1e-3,
    duplication: 0.0,
    delay: 0.0,
    delay_ns_max: 0,
    corruption: 0.0,
};

#[test]
fn one_lost_packet_in_a_thousand_leaves_most_of_the_throughput() {
    let response = Wish {
        request_bytes: 32,
        response_bytes: 1 << 20,
        ..LARGE
    };
    for wish in [LARGE, response] {
        let without = throughput(Recovery::Selective, Faults::default(), wish);
        let with = throughput(Recovery::Selective, LOSS, wish);
        let go_back_n = throughput(Recovery::GoBackN, LOSS, wish);
        println!("loss-free {without:.2}, selective {with:.2}, go-back-N {go_back_n:.2} bytes/ns");
        assert!(with > 0.5 * without, "{with} of {without} bytes/ns");
        assert!(with > go_back_n);
    }
}

#[test]
fn reordering_is_not_taken_for_loss() {
    let faults = Faults {
        delay: 0.05,
        delay_ns_max: 10_000,
        ..Faults::default()
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
                Wish {
                    answer: Answer::Later,
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
        receive_ring_packets: 70,
        credits: 32,
        ..config()
    };
    let applications = (0..3).map(Traffic::on).collect();
    let mut simulation = Simulation::new(5, Links::default(), &config, applications);
    let mine = [connect(&mut simulation, 0), connect(&mut simulation, 0)];
    let no_room = simulation.with(0, |_, endpoint, now_ns| endpoint.connect(now_ns, 1));
    assert_eq!(no_room, Err(provost_datagram::ConnectError::RingFull));
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
    assert!(statistics.packets_resent < 400, "{statistics:?}");
}
