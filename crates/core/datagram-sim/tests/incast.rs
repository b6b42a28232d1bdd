//! Many clients send large requests to one server at once, over a switch with a shared buffer (the paper's table 5).

use provost_datagram::{Algorithm, Config, CongestionConfig, DctcpConfig, SwiftConfig, TimelyConfig};
use provost_datagram_sim::traffic::{AnswerForm, CallWish, Traffic};
use provost_datagram_sim::{Host, Links, Simulation};

const MS_NS: u64 = 1_000_000;
const VICTIM: Host = 0;

/// Who sends, and how much at a time.
struct IncastLoad {
    senders: Host,
    request_bytes: usize,
    /// Rates find their level first.
    settle_ns: u64,
    links: Links,
}

#[derive(Debug)]
struct Outcome {
    wait_us_p50: f64,
    wait_us_p99: f64,
    /// Of the victim's link.
    utilization: f64,
    dropped: u64,
    /// Jain's index of what each sender got.
    fairness: f64,
}

fn incast(
    &IncastLoad {
        senders,
        request_bytes,
        settle_ns,
        links,
    }: &IncastLoad,
    algorithm: Algorithm,
) -> Outcome {
    let request = CallWish {
        request_bytes,
        response_bytes: 32,
        answer: AnswerForm::AtOnce,
    };
    let congestion = CongestionConfig {
        algorithm,
        ..CongestionConfig::default()
    };
    let config = Config {
        congestion,
        sessions_max: 4096,
        receive_ring_packets: 4096 * 32,
        ..Config::default()
    };
    let applications = (0..=senders).map(Traffic::on).collect();
    let mut simulation = Simulation::new(7, links, &config, applications);
    for sender in 1..=senders {
        simulation.with(sender, |traffic, endpoint, now_ns| {
            let session = endpoint.connect(now_ns, VICTIM).unwrap();
            traffic.again = Some(request);
            traffic.call(endpoint, now_ns, session, request).unwrap();
        });
    }
    simulation.run_for(settle_ns);
    simulation.network.waits_ns.clear();
    let received =
        |simulation: &Simulation<Traffic>| simulation.endpoint(VICTIM).statistics().packets_received;
    let (before, dropped) = (
        received(&simulation),
        simulation.network.statistics.dropped_by_switch,
    );
    let span_ns = 20 * MS_NS;
    simulation.run_for(span_ns);
    let bytes = (received(&simulation) - before) * (config.packet_bytes_max + links.overhead_bytes) as u64;
    let waits_ns = &mut simulation.network.waits_ns;
    waits_ns.sort_unstable();
    let at = |part: f64| waits_ns[(waits_ns.len() as f64 * part) as usize] as f64 / 1e3;
    let (wait_us_p50, wait_us_p99) = (at(0.5), at(0.99));
    let shares: Vec<f64> = (1..=senders)
        .map(|host| simulation.endpoint(host).statistics().packets_sent as f64)
        .collect();
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), share| {
        (sum + share, squares + share * share)
    });
    Outcome {
        wait_us_p50,
        wait_us_p99,
        utilization: bytes as f64 / span_ns as f64 / links.rate,
        dropped: simulation.network.statistics.dropped_by_switch - dropped,
        fairness: sum * sum / (f64::from(senders) * squares),
    }
}

#[test]
fn congestion_control_keeps_queues_short_and_the_link_busy() {
    for senders in [20, 50, 100] {
        let load = IncastLoad {
            senders,
            request_bytes: 256 << 10,
            settle_ns: 20 * MS_NS,
            links: Links::default(),
        };
        let off = incast(&load, Algorithm::Off);
        println!("{senders:3} off    {off:.2?}");
        // Least utilization of the link, and the longest queue, which must stay below the paper's with Timely.
        for (name, algorithm, utilization_min, wait_us_max) in [
            ("timely", Algorithm::Timely(TimelyConfig::default()), 0.95, 200.0),
            ("swift", Algorithm::Swift(SwiftConfig::default()), 0.9, 200.0),
            ("dctcp", Algorithm::Dctcp(DctcpConfig::default()), 0.9, 200.0),
        ] {
            let outcome = incast(&load, algorithm);
            println!("{senders:3} {name:6} {outcome:.2?}");
            assert!(
                outcome.utilization > utilization_min,
                "{name} with {senders}: {outcome:?}"
            );
            assert!(
                outcome.wait_us_p50 <= outcome.wait_us_p99 && outcome.wait_us_p99 < wait_us_max,
                "{name} with {senders}: {outcome:?}"
            );
            assert!(
                outcome.wait_us_p99 < off.wait_us_p99 / 1.5,
                "{name} with {senders}: {outcome:?}"
            );
            assert!(outcome.fairness > 0.9, "{name} with {senders}: {outcome:?}");
            assert_eq!(outcome.dropped, 0);
        }
    }
}

#[test]
fn hundreds_of_senders_send_less_than_a_packet_in_a_round_trip() {
    for (senders, settle_ns) in [(500, 40 * MS_NS), (2_000, 60 * MS_NS)] {
        let load = IncastLoad {
            senders,
            request_bytes: 32 << 10,
            settle_ns,
            links: Links::default(),
        };
        let outcome = incast(&load, Algorithm::Swift(SwiftConfig::default()));
        println!("{senders:4} swift {outcome:.2?}");
        // One packet of each sender alone would wait for 120 µs on average with 500 of them, for half a millisecond with 2,000.
        assert!(outcome.wait_us_p50 < 100.0, "with {senders}: {outcome:?}");
        assert!(outcome.wait_us_p99 < 250.0, "with {senders}: {outcome:?}");
        assert!(outcome.utilization > 0.9, "with {senders}: {outcome:?}");
        assert!(outcome.fairness > 0.6, "with {senders}: {outcome:?}");
        assert_eq!(outcome.dropped, 0);
    }
}

/// A switch whose buffer holds less than what delay targets let wait there: without marks it drops.
#[test]
fn marks_of_a_small_switch_take_the_place_of_losses() {
    let load = |mark_bytes| IncastLoad {
        senders: 50,
        request_bytes: 256 << 10,
        settle_ns: 20 * MS_NS,
        links: Links {
            buffer_bytes: 128 << 10,
            mark_bytes,
            ..Links::default()
        },
    };
    for (name, algorithm) in [
        ("timely", Algorithm::Timely(TimelyConfig::default())),
        ("swift", Algorithm::Swift(SwiftConfig::default())),
    ] {
        let unmarked = incast(&load(usize::MAX), algorithm);
        let marked = incast(&load(16 << 10), algorithm);
        println!("{name:6} without marks {unmarked:.2?}");
        println!("{name:6} with marks    {marked:.2?}");
        assert!(unmarked.dropped > 100, "{name}: {unmarked:?}");
        assert!(
            marked.dropped < unmarked.dropped / 2,
            "{name}: {marked:?} {unmarked:?}"
        );
        assert!(marked.utilization > 0.85, "{name}: {marked:?}");
    }
}
