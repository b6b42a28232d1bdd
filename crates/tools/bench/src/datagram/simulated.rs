//! What a network would have to be broken or crowded for: on the simulated one, which replays exactly.

use provost_datagram::{
    Algorithm, Config, CongestionConfig, DctcpConfig, Recovery, SwiftConfig, TimelyConfig,
};
use provost_datagram_sim::traffic::{AnswerForm, CallWish, Traffic};
use provost_datagram_sim::{Host, Links, PacketFaults, Simulation};

use provost_figures::{Cell, Median};

use super::Depth;

const MS_NS: u64 = 1_000_000;
const SEED: u64 = 7;
/// Requests whose throughput is measured under loss (the paper's table 4).
const LARGE_BYTES: usize = 8 << 20;
/// Requests of an incast.
const INCAST_BYTES: usize = 256 << 10;
const SERVER: Host = 0;
/// Until rates have found their level.
const SETTLING_MS: u64 = 20;

/// What is run on the simulated network.
pub(crate) enum Experiment {
    /// Large requests, of which this part of the packets is lost (the paper's table 4).
    Loss(Recovery, f64),
    /// Many clients send to one server (the paper's table 5).
    Incast(&'static str, Algorithm, Host),
}

/// The paper's tables 4 and 5.
pub(crate) fn experiments(depth: Depth) -> Vec<Experiment> {
    let losses: &[f64] = match depth {
        Depth::Smoke => return vec![Experiment::Loss(Recovery::Selective, 1e-3)],
        Depth::Quick => &[0.0, 1e-5, 1e-3],
        Depth::Full => &[0.0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3],
    };
    let loss = |recovery| losses.iter().map(move |part| Experiment::Loss(recovery, *part));
    let incast =
        |(setup, algorithm)| [20, 50, 100].map(|senders| Experiment::Incast(setup, algorithm, senders));
    let algorithms = [
        ("sim no control", Algorithm::Off),
        ("sim timely", Algorithm::Timely(TimelyConfig::default())),
        ("sim swift", Algorithm::Swift(SwiftConfig::default())),
        ("sim dctcp", Algorithm::Dctcp(DctcpConfig::default())),
    ];
    loss(Recovery::Selective)
        .chain(loss(Recovery::GoBackN))
        .chain(algorithms.into_iter().flat_map(incast))
        .collect()
}

impl Experiment {
    pub(crate) fn setup(&self) -> &'static str {
        match self {
            Experiment::Loss(Recovery::Selective, _) => "sim selective",
            Experiment::Loss(Recovery::GoBackN, _) => "sim go-back-N",
            Experiment::Incast(setup, ..) => setup,
        }
    }

    pub(crate) fn what(&self) -> String {
        match self {
            Experiment::Loss(_, 0.0) => "gp loss 0".into(),
            Experiment::Loss(_, part) => format!("gp loss {part:e}"),
            Experiment::Incast(_, _, senders) => format!("gp incast {senders}"),
        }
    }

    pub(crate) fn run(&self, depth: Depth) -> Cell {
        let (loss_ms, incast_ms) = match depth {
            Depth::Smoke => (5, 5),
            Depth::Quick => (40, 10),
            Depth::Full => (300, 50),
        };
        let (size, conns, median) = match *self {
            Experiment::Loss(recovery, part) => (LARGE_BYTES, 1, loss(recovery, part, loss_ms)),
            Experiment::Incast(_, algorithm, senders) => (
                INCAST_BYTES,
                senders.into(),
                incast(algorithm, senders, incast_ms),
            ),
        };
        Cell {
            setup: self.setup().into(),
            what: self.what(),
            size,
            conns,
            inflight: 1,
            median,
            runs: Vec::new(),
        }
    }
}

fn loss(recovery: Recovery, part: f64, ms: u64) -> Median {
    let config = Config {
        recovery,
        ..Config::default()
    };
    let wish = CallWish {
        request_bytes: LARGE_BYTES,
        response_bytes: 32,
        answer: AnswerForm::AtOnce,
    };
    let mut simulation = start(&config, 1, wish);
    simulation.network.faults = PacketFaults {
        loss: part,
        ..PacketFaults::default()
    };
    let payload_bytes = simulation.endpoint(SERVER).packet_payload_bytes() as f64;
    // Whole messages are too coarse a measure for so short a time: packets that were new.
    let new = |simulation: &Simulation<Traffic>| {
        let sent = simulation.endpoint(1).statistics();
        let received = simulation.endpoint(SERVER).statistics();
        received.packets_received as f64 - sent.packets_resent as f64
    };
    let before = new(&simulation);
    simulation.run_for(ms * MS_NS);
    let bytes = (new(&simulation) - before).max(0.0) * payload_bytes;
    Median {
        gbps: Some(bytes * 8.0 / (ms * MS_NS) as f64),
        quiet_runs: 1,
        ..Median::default()
    }
}

/// Its latencies are the times that packets wait at the switch; its rate is what the victim's link carries.
fn incast(algorithm: Algorithm, senders: Host, ms: u64) -> Median {
    let congestion = CongestionConfig {
        algorithm,
        ..CongestionConfig::default()
    };
    let config = Config {
        congestion,
        ..Config::default()
    };
    let wish = CallWish {
        request_bytes: INCAST_BYTES,
        response_bytes: 32,
        answer: AnswerForm::AtOnce,
    };
    let mut simulation = start(&config, senders, wish);
    // Rates find their level first.
    simulation.run_for(SETTLING_MS * MS_NS);
    simulation.network.waits_ns.clear();
    let received =
        |simulation: &Simulation<Traffic>| simulation.endpoint(SERVER).statistics().packets_received;
    let before = received(&simulation);
    simulation.run_for(ms * MS_NS);
    let bytes = (received(&simulation) - before) as f64 * config.packet_bytes_max as f64;
    let waits_ns = &mut simulation.network.waits_ns;
    waits_ns.sort_unstable();
    let at = |part: f64| Some(*waits_ns.get((waits_ns.len() as f64 * part) as usize)? as f64 / 1e3);
    Median {
        p50_us: at(0.5),
        p99_us: at(0.99),
        p999_us: at(0.999),
        gbps: Some(bytes * 8.0 / (ms * MS_NS) as f64),
        quiet_runs: 1,
        ..Median::default()
    }
}

/// So many clients, each with such calls on its way to one server, one after another.
fn start(config: &Config, clients: Host, wish: CallWish) -> Simulation<Traffic> {
    let applications = (0..=clients).map(Traffic::on).collect();
    let mut simulation = Simulation::new(SEED, Links::default(), config, applications);
    for client in 1..=clients {
        simulation.with(client, |traffic, endpoint, now_ns| {
            if let Ok(session) = endpoint.connect(now_ns, SERVER) {
                traffic.again = Some(wish);
                // One that were refused would show as a throughput of nothing.
                let _ = traffic.call(endpoint, now_ns, session, wish);
            }
        });
    }
    simulation
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_replay_and_control_shortens_queues() {
        let control = |algorithm| incast(algorithm, 10, 2);
        let (off, timely) = (
            control(Algorithm::Off),
            control(Algorithm::Timely(TimelyConfig::default())),
        );
        assert!(timely.p50_us < off.p50_us, "{timely:?} {off:?}");
        assert_eq!(
            loss(Recovery::Selective, 1e-3, 2).gbps,
            loss(Recovery::Selective, 1e-3, 2).gbps
        );
    }
}
