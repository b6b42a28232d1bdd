//! Calls over a network where nothing goes wrong.

use provost_datagram::{Config, EndReason, Recovery, SessionId};
use provost_datagram_sim::traffic::{AnswerForm, CallWish, Traffic};
use provost_datagram_sim::{Host, Links, Simulation};

const SECOND_NS: u64 = 1_000_000_000;

fn hosts(count: Host) -> Vec<Traffic> {
    (0..count).map(Traffic::on).collect()
}

fn connected(config: &Config, links: Links) -> (Simulation<Traffic>, SessionId) {
    let mut simulation = Simulation::new(1, links, config, hosts(2));
    let session = simulation.with(0, |_, endpoint, now_ns| endpoint.connect(now_ns, 1).unwrap());
    let until_ns = simulation.now_ns() + SECOND_NS;
    assert!(simulation.run_until(until_ns, |all| all.application(0).connected.contains(&session)));
    (simulation, session)
}

fn call_all(simulation: &mut Simulation<Traffic>, session: SessionId, wishes: &[CallWish]) {
    simulation.with(0, |client, endpoint, now_ns| {
        for wish in wishes {
            client.call(endpoint, now_ns, session, *wish).unwrap();
        }
    });
    let until_ns = simulation.now_ns() + 10 * SECOND_NS;
    let done = simulation.run_until(until_ns, |all| all.application(0).calls_open() == 0);
    assert!(done, "{:?}", simulation.endpoint(0).statistics());
}

const fn wish(request_bytes: usize, response_bytes: usize, answer: AnswerForm) -> CallWish {
    CallWish {
        request_bytes,
        response_bytes,
        answer,
    }
}

#[test]
fn calls_of_every_size_and_kind_of_answer_are_answered() {
    for recovery in [Recovery::Selective, Recovery::GoBackN] {
        let config = Config {
            recovery,
            ..Config::default()
        };
        let (mut simulation, session) = connected(&config, Links::default());
        let sizes = [16, 17, 1447, 1448, 1449, 2896, 2897, 10_000, 100_000];
        let mut wishes = Vec::new();
        for request_bytes in sizes {
            for response_bytes in sizes.into_iter().chain([0, 1]) {
                for answer in [
                    AnswerForm::AtOnce,
                    AnswerForm::Lent,
                    AnswerForm::Later,
                    AnswerForm::Nested,
                ] {
                    wishes.push(wish(request_bytes, response_bytes, answer));
                }
            }
        }
        call_all(&mut simulation, session, &wishes);
        let client = simulation.application(0);
        assert_eq!(client.answered, wishes.len() as u64);
        assert_eq!(simulation.application(1).executed(), wishes.len());
        let statistics = simulation.endpoint(0).statistics();
        assert_eq!(statistics.losses_detected, 0, "{recovery:?}: {statistics:?}");
        let served = simulation.endpoint(1).statistics();
        let of_one_packet = (4 * 4 * 11) as u64;
        assert_eq!(served.requests_borrowed, of_one_packet);
    }
}

#[test]
fn eight_megabytes_go_each_way_near_the_speed_of_the_link() {
    let config = Config {
        credits: 64,
        ..Config::default()
    };
    let (mut simulation, session) = connected(&config, Links::default());
    let bytes = 8 << 20;
    let before_ns = simulation.now_ns();
    call_all(
        &mut simulation,
        session,
        &[wish(bytes, bytes, AnswerForm::AtOnce)],
    );
    let took_ns = simulation.now_ns() - before_ns;
    let rate = 2.0 * bytes as f64 / took_ns as f64;
    assert!(rate > 0.7 * 3.125, "{rate} bytes/ns");
    let statistics = simulation.endpoint(0).statistics();
    assert_eq!(
        (statistics.packets_resent, statistics.timeouts),
        (0, 0),
        "{statistics:?}"
    );
}

#[test]
fn a_session_that_is_closed_lets_its_calls_end_first() {
    let (mut simulation, session) = connected(&Config::default(), Links::default());
    simulation.with(0, |client, endpoint, now_ns| {
        for _ in 0..20 {
            client
                .call(endpoint, now_ns, session, wish(50_000, 50_000, AnswerForm::Later))
                .unwrap();
        }
        endpoint.disconnect(now_ns, session);
        assert!(
            client
                .call(endpoint, now_ns, session, wish(16, 16, AnswerForm::AtOnce))
                .is_err()
        );
    });
    simulation.run_for(SECOND_NS);
    assert_eq!(simulation.application(0).answered, 20);
    assert_eq!(simulation.application(0).ended, [(session, EndReason::Closed)]);
    assert_eq!(simulation.application(1).ended.len(), 1);
    assert_eq!(simulation.application(1).responses_lent(), 0);
    let all = Config::default().receive_ring_packets;
    assert_eq!(simulation.endpoint(0).ring_packets_free(), all);
    assert_eq!(simulation.endpoint(1).ring_packets_free(), all);
}

#[test]
fn a_long_handler_is_asked_after_rarely_and_its_session_lives() {
    let (mut simulation, session) = connected(&Config::default(), Links::default());
    simulation.with(1, |server, _, _| server.later_ns = 20 * SECOND_NS);
    simulation.with(0, |client, endpoint, now_ns| {
        client
            .call(endpoint, now_ns, session, wish(16, 16, AnswerForm::Later))
            .unwrap();
    });
    simulation.run_for(21 * SECOND_NS);
    assert_eq!(
        simulation.application(0).answered,
        1,
        "{:?}",
        simulation.application(0).failed
    );
    assert!(simulation.endpoint(0).statistics().packets_resent < 200);
}
