//! A network of hosts that run the datagram transport, with a clock and faults of its own. A seed replays exactly.
//!
//! ```text
//!   host ══ link ══╗                ╔══ link ══ host      links: bandwidth, latency
//!   host ══ link ══╬═ switch, with ═╬══ link ══ host      switch: buffer shared by all ports, ECN threshold
//!   host ══ link ══╝  one buffer    ╚══ link ══ host      faults: loss, duplication, delay, corruption, partitions,
//!                                                                 hosts that stop for a while
//! ```
#![forbid(unsafe_code)]

pub mod chaos;
mod network;
mod packets;
pub mod traffic;

pub use packets::{ArrivedPacket, PacketNetwork};

pub use network::{Links, Network, NetworkStatistics, PacketDamage, PacketFaults};
pub use provost_random::SeededRandom as Random;

use std::collections::VecDeque;

use provost_datagram::{Config, Endpoint, Event, Mark, Security};

use network::{Schedule, ScheduledEvent};

/// A host's address: its place in the simulation.
pub type Host = u16;

/// What runs on a host beside the transport.
pub trait Application {
    /// Something has happened. Whatever is to be done follows from such.
    fn handle(&mut self, endpoint: &mut Endpoint<Host>, now_ns: u64, event: Event<'_>);

    /// The host has been polled, and will next be when something comes, or at the time returned.
    fn idle(&mut self, endpoint: &mut Endpoint<Host>, now_ns: u64) -> Option<u64>;
}

/// A packet as it travels.
#[derive(Clone, Debug)]
pub(crate) struct TravellingPacket {
    pub(crate) from: Host,
    pub(crate) to: Host,
    pub(crate) mark: Mark,
    pub(crate) bytes: Vec<u8>,
}

struct HostNode<P> {
    endpoint: Endpoint<Host>,
    application: P,
    inbox: VecDeque<TravellingPacket>,
    inbox_frames_max: usize,
    /// Off its core until then.
    stopped_until_ns: u64,
    wake_at_ns: u64,
    /// Sum over everything that the host received: two runs that agree on it are the same run.
    digest: u64,
}

/// Hosts, and the network between them.
pub struct Simulation<P> {
    now_ns: u64,
    nodes: Vec<HostNode<P>>,
    /// What lies between the hosts.
    pub network: Network,
    schedule: Schedule,
}

impl<P: Application> Simulation<P> {
    /// Hosts with these applications. Each gets the configuration with secrets of its own.
    ///
    /// # Panics
    /// If the configuration is wrong.
    pub fn new(seed: u64, links: Links, config: &Config, applications: Vec<P>) -> Self {
        let mut random = Random::new(seed);
        let mut nodes = Vec::new();
        for application in applications {
            let config = of_host(config, &mut random);
            nodes.push(HostNode {
                inbox_frames_max: config.receive_ring_packets as usize,
                endpoint: Endpoint::new(config).expect("the configuration is one to work with"),
                application,
                inbox: VecDeque::new(),
                stopped_until_ns: 0,
                wake_at_ns: u64::MAX,
                digest: 0,
            });
        }
        let network = Network::new(links, nodes.len(), random);
        let mut simulation = Self {
            now_ns: 1_000_000,
            nodes,
            network,
            schedule: Schedule::default(),
        };
        for host in 0..simulation.nodes.len() {
            simulation.poll(host as Host);
        }
        simulation
    }

    /// The simulation's time, in nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// The application of a host.
    #[must_use]
    pub fn application(&self, host: Host) -> &P {
        &self.nodes[usize::from(host)].application
    }

    /// The endpoint of a host.
    #[must_use]
    pub fn endpoint(&self, host: Host) -> &Endpoint<Host> {
        &self.nodes[usize::from(host)].endpoint
    }

    /// Has a host do something, and what follows from it.
    pub fn with<R>(&mut self, host: Host, act: impl FnOnce(&mut P, &mut Endpoint<Host>, u64) -> R) -> R {
        let node = &mut self.nodes[usize::from(host)];
        let result = act(&mut node.application, &mut node.endpoint, self.now_ns);
        self.poll(host);
        result
    }

    /// Takes a host off its core for so long: packets wait for it, and its clock goes on.
    pub fn stop(&mut self, host: Host, for_ns: u64) {
        let until_ns = self.now_ns + for_ns;
        self.nodes[usize::from(host)].stopped_until_ns = until_ns;
        self.schedule.add(until_ns, ScheduledEvent::Wake(host));
    }

    /// Replaces a host's endpoint and application: it has lost its memory. What was under way there is gone.
    ///
    /// # Panics
    /// If the configuration is wrong.
    pub fn restart(&mut self, host: Host, config: &Config, application: P) -> P {
        let config = of_host(config, &mut self.network.random);
        let node = &mut self.nodes[usize::from(host)];
        node.endpoint = Endpoint::new(config).expect("the configuration is one to work with");
        node.inbox.clear();
        node.wake_at_ns = u64::MAX;
        let before = std::mem::replace(&mut node.application, application);
        self.poll(host);
        before
    }

    /// Has a packet arrive that nobody sent.
    pub fn inject(&mut self, from: Host, to: Host, bytes: Vec<u8>) {
        let frame = TravellingPacket {
            from,
            to,
            mark: Mark::None,
            bytes,
        };
        self.schedule.add(self.now_ns, ScheduledEvent::Arrive(frame));
    }

    /// Lets this much time pass.
    pub fn run_for(&mut self, ns: u64) {
        let until_ns = self.now_ns + ns;
        self.run_until(until_ns, |_| false);
    }

    /// Lets time pass until something is so, or it is this late; says whether it was.
    pub fn run_until(&mut self, until_ns: u64, mut is_so: impl FnMut(&Self) -> bool) -> bool {
        loop {
            if is_so(self) {
                return true;
            }
            let Some((at_ns, happening)) = self.schedule.pop(until_ns) else {
                self.now_ns = until_ns;
                return false;
            };
            self.now_ns = self.now_ns.max(at_ns);
            self.happen(happening);
        }
    }

    fn happen(&mut self, happening: ScheduledEvent) {
        match happening {
            ScheduledEvent::Wake(host) => {
                if self.nodes[usize::from(host)].wake_at_ns <= self.now_ns {
                    self.nodes[usize::from(host)].wake_at_ns = u64::MAX;
                }
                self.poll(host);
            }
            ScheduledEvent::Switch(frame) => self.network.switch(self.now_ns, frame, &mut self.schedule),
            ScheduledEvent::Depart(frame) => self.network.depart(self.now_ns, frame, &mut self.schedule),
            ScheduledEvent::Arrive(frame) => {
                let host = frame.to;
                let node = &mut self.nodes[usize::from(host)];
                if node.inbox.len() >= node.inbox_frames_max {
                    self.network.statistics.dropped_by_ring += 1;
                } else {
                    node.inbox.push_back(frame);
                    self.poll(host);
                }
            }
        }
    }

    /// One turn of a host's loop: packets first, then timers, then what goes out.
    fn poll(&mut self, host: Host) {
        let now_ns = self.now_ns;
        let node = &mut self.nodes[usize::from(host)];
        if node.stopped_until_ns > now_ns {
            return;
        }
        while let Some(frame) = node.inbox.pop_front() {
            for byte in &frame.bytes {
                node.digest = (node.digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
            node.digest ^= now_ns;
            if let Some(event) = node
                .endpoint
                .receive(now_ns, frame.from, frame.mark, &frame.bytes)
            {
                node.application.handle(&mut node.endpoint, now_ns, event);
            }
        }
        node.endpoint.handle_timers(now_ns);
        let again_ns = loop {
            while let Some(event) = node.endpoint.poll_event() {
                node.application.handle(&mut node.endpoint, now_ns, event);
            }
            let again_ns = node.application.idle(&mut node.endpoint, now_ns);
            while let Some(transmit) = node.endpoint.poll_transmit(now_ns) {
                let bytes = [transmit.head.bytes(), transmit.payload].concat();
                let frame = TravellingPacket {
                    from: host,
                    to: transmit.to,
                    mark: Mark::None,
                    bytes,
                };
                self.network.send(now_ns, frame, &mut self.schedule);
            }
            let Some(event) = node.endpoint.poll_event() else {
                break again_ns;
            };
            node.application.handle(&mut node.endpoint, now_ns, event);
        };
        let wake_ns = node.endpoint.wake_at().into_iter().chain(again_ns).min();
        // A timer that is due now was just handled; the next look is a little later, so that time goes on.
        if let Some(wake_ns) = wake_ns.map(|wake_ns| wake_ns.max(now_ns + 100))
            && wake_ns < node.wake_at_ns
        {
            node.wake_at_ns = wake_ns;
            self.schedule.add(wake_ns, ScheduledEvent::Wake(host));
        }
    }

    /// What all hosts received, when, in one number.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.nodes
            .iter()
            .fold(0, |all, node| all.rotate_left(7) ^ node.digest)
    }
}

/// The configuration, with secrets of its own.
fn of_host(config: &Config, random: &mut Random) -> Config {
    let mut config = config.clone();
    config.secret = [random.number(), random.number()];
    if let Security::Sealed(sealing) = &mut config.security {
        sealing.seed.fill_with(|| random.number() as u8);
    }
    config
}
