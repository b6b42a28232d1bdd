//! Calls over a network where everything goes wrong: each ends once, is executed once at most, carries the right bytes,
//! and all buffers come back ([`Traffic`] asserts it). A seed determines all of it.

use provost_datagram::packet::SMALL_PACKET_BYTES;
use provost_datagram::{
    Algorithm, Checking, Cipher, Config, CongestionConfig, DctcpConfig, Recovery, Sealing, Security,
    SwiftConfig, TimelyConfig,
};

use crate::traffic::{AnswerForm, CallWish, Traffic};
use crate::{Host, Links, PacketDamage, PacketFaults, Random, Simulation};

const MS_NS: u64 = 1_000_000;
/// Hosts of a common run.
const HOSTS: Host = 4;
/// Hosts of one run in sixteen.
const HOSTS_MANY: Host = 100;

/// A network and load of chance: hosts that call each other.
struct Chaos {
    hosts: Host,
    simulation: Simulation<Traffic>,
    config: Config,
    random: Random,
}

/// Most runs are sealed or not as chance has it.
fn security(random: &mut Random) -> Security {
    let cipher = match random.below(3) {
        0 => Cipher::ChaCha20Poly1305,
        1 => Cipher::Aes128Gcm,
        _ => return Security::Plain,
    };
    let pre_shared_key = [random.number() as u8; 32];
    // Each host gets a seed of its own when it starts.
    Security::Sealed(Sealing {
        cipher,
        pre_shared_key,
        seed: [0; 32],
    })
}

fn algorithm(random: &mut Random) -> Algorithm {
    match random.below(4) {
        0 => Algorithm::Off,
        1 => Algorithm::Timely(TimelyConfig::default()),
        2 => Algorithm::Swift(SwiftConfig::default()),
        _ => Algorithm::Dctcp(DctcpConfig::default()),
    }
}

impl Chaos {
    fn new(seed: u64) -> Chaos {
        let mut random = Random::new(seed);
        let recovery = if random.chance(0.7) {
            Recovery::Selective
        } else {
            Recovery::GoBackN
        };
        let checking = if random.chance(0.5) {
            Checking::Crc32c
        } else {
            Checking::Packets
        };
        let config = Config {
            recovery,
            checking,
            slots: 1 + random.below(8) as u8,
            credits: 1 + random.below(64) as u16,
            message_bytes_max: 1 << 20,
            packet_bytes_max: 200 + random.below(3000) as usize,
            congestion: CongestionConfig {
                algorithm: algorithm(&mut random),
                ..CongestionConfig::default()
            },
            peer_timeout_ns: 400 * MS_NS,
            keepalive_ns: 300 * MS_NS,
            idle_ns_max: 3_000 * MS_NS,
            timeout_ns_max: 20 * MS_NS,
            receive_ring_packets: 8192,
            security: security(&mut random),
            ..Config::default()
        };
        let hosts = if random.chance(1.0 / 16.0) {
            HOSTS_MANY
        } else {
            HOSTS
        };
        let links = Links {
            mark_bytes: 5_000 + random.below(100_000) as usize,
            buffer_bytes: 20_000 + random.below(500_000) as usize,
            latency_ns: 200 + random.below(20_000),
            ..Links::default()
        };
        let applications = (0..hosts).map(|host| application(host, &mut random)).collect();
        let mut simulation = Simulation::new(seed, links, &config, applications);
        simulation.network.faults = faults(&mut random, &config);
        Chaos {
            hosts,
            simulation,
            config,
            random,
        }
    }

    fn connect_all(&mut self) {
        for client in 0..self.hosts {
            self.connect(client);
        }
    }

    fn connect(&mut self, client: Host) {
        let (servers, upstream) = (self.servers(client), (client + 1) % self.hosts);
        self.simulation.with(client, |traffic, endpoint, now_ns| {
            traffic.upstream = endpoint.connect(now_ns, upstream).ok();
            for server in servers {
                let session = endpoint.connect(now_ns, server).unwrap();
                traffic.connected.insert(session);
            }
        });
    }

    /// A host loses its memory, and begins anew.
    fn restart(&mut self, host: Host) {
        let application = self.simulation.application(host).after_restart();
        self.simulation.restart(host, &self.config, application);
        self.connect(host);
    }

    /// Whom a host calls: all where they are few, else its neighbours and the first, which has more clients than a
    /// switch likes.
    fn servers(&self, client: Host) -> Vec<Host> {
        if self.hosts == HOSTS {
            return (0..HOSTS).collect();
        }
        vec![0, (client + 2) % self.hosts, (client + 3) % self.hosts]
    }

    fn call_some(&mut self) {
        let client = self.random.below(self.hosts.into()) as Host;
        let (random, simulation) = (&mut self.random, &mut self.simulation);
        simulation.with(client, |traffic, endpoint, now_ns| {
            let sessions: Vec<_> = traffic.connected.iter().copied().collect();
            if sessions.is_empty() {
                return;
            }
            let session = sessions[random.below(sessions.len() as u64) as usize];
            for _ in 0..1 + random.below(12) {
                let wish = wish(random);
                // A session that is on its way out takes no calls.
                let _ = traffic.call(endpoint, now_ns, session, wish);
            }
        });
    }

    /// Everything that can happen to hosts.
    fn disturb(&mut self) {
        let host = self.random.below(self.hosts.into()) as Host;
        let other = self.random.below(self.hosts.into()) as Host;
        match self.random.below(12) {
            0 => self.simulation.stop(host, self.random.below(30 * MS_NS)),
            1 if host != other => self.simulation.network.part(host, other, true),
            2..5 => {
                for other in 0..self.hosts {
                    self.simulation.network.part(host, other, false);
                    self.simulation.network.narrow(host, other, None);
                }
            }
            5 => {
                let random = &mut self.random;
                self.simulation.with(host, |traffic, endpoint, now_ns| {
                    let pick = random.below(1 + traffic.connected.len() as u64) as usize;
                    if let Some(session) = traffic.connected.iter().nth(pick).copied() {
                        match random.below(2) {
                            0 => endpoint.disconnect(now_ns, session),
                            _ => endpoint.reset(now_ns, session),
                        }
                    }
                    let session = endpoint.connect(now_ns, other).unwrap();
                    traffic.connected.insert(session);
                });
            }
            6 => {
                let bytes = (0..self.random.below(64))
                    .map(|_| self.random.number() as u8)
                    .collect();
                self.simulation.inject(host, other, bytes);
            }
            7 => self.simulation.network.faults = faults(&mut self.random, &self.config),
            8 => self.restart(host),
            9 => {
                let widest = self.config.packet_bytes_max.saturating_sub(SMALL_PACKET_BYTES) as u64;
                let bytes = SMALL_PACKET_BYTES + self.random.below(1 + widest) as usize;
                self.simulation.network.narrow(host, other, Some(bytes));
            }
            _ => {}
        }
    }

    /// Mends everything, waits until all calls have ended, and all sessions after that.
    fn settle(&mut self, seed: u64) {
        self.simulation.network.faults = PacketFaults::default();
        for one in 0..self.hosts {
            for other in 0..self.hosts {
                self.simulation.network.part(one, other, false);
                self.simulation.network.narrow(one, other, None);
            }
        }
        let (hosts, until_ns) = (self.hosts, self.simulation.now_ns() + 200_000 * MS_NS);
        let ended = self.simulation.run_until(until_ns, |all| {
            (0..hosts).all(|host| all.application(host).calls_open() == 0)
        });
        for host in 0..self.hosts {
            let open = self.simulation.application(host).calls_open();
            assert!(ended, "seed {seed}: host {host} has {open} calls that never end");
            self.simulation.with(host, |traffic, endpoint, now_ns| {
                for session in traffic.connected.iter().copied().chain(traffic.upstream) {
                    endpoint.disconnect(now_ns, session);
                }
            });
        }
        self.simulation.run_for(self.config.idle_ns_max * 2);
        for host in 0..self.hosts {
            let endpoint = self.simulation.endpoint(host);
            let lent = self.simulation.application(host).responses_lent();
            assert_eq!(lent, 0, "seed {seed}: responses of host {host} never came back");
            let ring = self.config.receive_ring_packets;
            assert_eq!(
                endpoint.ring_packets_free(),
                ring,
                "seed {seed}: host {host} keeps ring room"
            );
        }
    }
}

/// An application that keeps requests which are to be answered later for that long; some for longer than a peer may be silent.
fn application(host: Host, random: &mut Random) -> Traffic {
    let later_ms = [1, 2, 50, 600][random.below(4) as usize];
    let mut traffic = Traffic::on(host);
    traffic.later_ns = later_ms * MS_NS;
    traffic
}

fn faults(random: &mut Random, config: &Config) -> PacketFaults {
    let mut probability = |most: f64| match random.below(3) {
        0 => 0.0,
        _ => most * random.below(1000) as f64 / 1000.0,
    };
    PacketFaults {
        loss: probability(0.1),
        duplication: probability(0.1),
        delay: probability(0.2),
        corruption: probability(0.05),
        delay_ns_max: 1 + random.below(300_000),
        damage: match (&config.security, config.checking) {
            (Security::Plain, Checking::Wire | Checking::Packets) => PacketDamage::Word,
            (Security::Sealed(_), _) | (_, Checking::Crc32c) => PacketDamage::Scattered(16),
        },
    }
}

fn wish(random: &mut Random) -> CallWish {
    let mut bytes = || match random.below(4) {
        0 => random.below(60_000) as usize,
        1 => random.below(4_000) as usize,
        _ => random.below(100) as usize,
    };
    let (request_bytes, response_bytes) = (bytes(), bytes());
    let answers = [
        AnswerForm::AtOnce,
        AnswerForm::Lent,
        AnswerForm::Later,
        AnswerForm::Nested,
    ];
    CallWish {
        request_bytes,
        response_bytes,
        answer: answers[random.below(4) as usize],
    }
}

/// What came of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChaosOutcome {
    /// Calls that were answered.
    pub answered: u64,
    /// Sessions that went over to small packets, of hosts that were not restarted since.
    pub fallbacks: u64,
    /// Every packet that every host received, and when, in one number.
    pub digest: u64,
}

/// Runs a seed.
///
/// # Panics
/// If anything is not as it must be.
#[must_use]
pub fn run(seed: u64) -> ChaosOutcome {
    let mut chaos = Chaos::new(seed);
    chaos.connect_all();
    for _ in 0..60 {
        for _ in 0..chaos.random.below(4) {
            chaos.call_some();
        }
        chaos.disturb();
        let pause_ns = chaos.random.below(5 * MS_NS);
        chaos.simulation.run_for(pause_ns);
    }
    chaos.settle(seed);
    let answered = (0..chaos.hosts).map(|host| chaos.simulation.application(host).answered);
    let fallbacks = (0..chaos.hosts).map(|host| chaos.simulation.endpoint(host).statistics().fallbacks);
    ChaosOutcome {
        answered: answered.sum(),
        fallbacks: fallbacks.sum(),
        digest: chaos.simulation.digest(),
    }
}
