//! Proxies whose true cost is known, and profiles of them with noise: for tests, examples and benchmarks. Every profile from
//! here says that it is synthetic.

use crate::profile::{
    Component, LatencyQuantiles, LoadCell, MachineIdentity, Observation, Passage, Profile, ProfileOrigin,
    Protocol, ProxyIdentity, TotalObservation,
};
use crate::random::SeededRandom;

/// The identity of the machine of synthetic profiles.
pub const SYNTHETIC_MACHINE: &str = "synthetic";
/// Sizes of a synthetic profile's cells.
const SIZES_BYTES: [f64; 6] = [64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0];
const RATES_PER_S: [f64; 3] = [200.0, 1000.0, 5000.0];
/// Processor time over latency.
const CPU_FACTOR: f64 = 1.3;

/// A component's true cost for a round trip of messages of one size.
#[derive(Clone, Debug, PartialEq)]
pub struct SyntheticComponent {
    pub component: Component,
    /// Of an empty message, by protocol in the order of [`Protocol::ALL`].
    pub constant_us: [f64; 5],
    pub per_byte_us: f64,
    /// For each byte beyond 16 KiB, in addition.
    pub per_large_byte_us: f64,
}

/// A proxy whose true cost is known.
#[derive(Clone, Debug, PartialEq)]
pub struct SyntheticProxy {
    pub name: String,
    /// The protocols that it knows.
    pub protocols: Vec<Protocol>,
    pub components: Vec<SyntheticComponent>,
    /// The relative deviation of an observation.
    pub noise: f64,
    /// The relative deviation that all observations of a repetition share.
    pub repetition_noise: f64,
}

impl SyntheticProxy {
    /// A proxy with the shape of an HTTP proxy: parsing dominates but for TCP.
    #[must_use]
    pub fn example() -> SyntheticProxy {
        let component =
            |component, constant_us: [f64; 5], per_byte_us, per_large_byte_us| SyntheticComponent {
                component,
                constant_us,
                per_byte_us,
                per_large_byte_us,
            };
        let filter = |name: &str, constant_us| {
            component(Component::Filter(name.to_owned()), [constant_us; 5], 0.0, 0.0)
        };
        SyntheticProxy {
            name: "example-proxy".to_owned(),
            protocols: vec![Protocol::Tcp, Protocol::Http1, Protocol::Http2, Protocol::Grpc],
            components: vec![
                component(Component::Ipc, [9.0; 5], 0.0002, 0.0003),
                component(Component::Read, [5.0; 5], 0.0003, 0.0002),
                component(Component::Write, [9.0; 5], 0.0004, 0.0002),
                component(Component::Readiness, [2.0; 5], 0.0, 0.0),
                component(Component::Wakeup, [8.0; 5], 0.0, 0.0),
                component(Component::Parse, [0.0, 16.0, 24.0, 26.0, 0.0], 0.0004, 0.0),
                component(Component::OtherUser, [4.0, 9.0, 11.0, 11.0, 4.0], 0.0, 0.0),
                filter("lua", 12.0),
                filter("local_ratelimit", 2.0),
            ],
            noise: 0.04,
            repetition_noise: 0.03,
        }
    }

    /// One with the same components, each slower or faster at random.
    #[must_use]
    pub fn varied(&self, random: &mut SeededRandom) -> SyntheticProxy {
        let mut varied = self.clone();
        for component in &mut varied.components {
            let factor = 0.4 + 1.6 * random.uniform();
            component
                .constant_us
                .iter_mut()
                .for_each(|constant| *constant *= factor);
            component.per_byte_us *= 0.4 + 1.6 * random.uniform();
        }
        varied
    }

    fn component_us(&self, component: &SyntheticComponent, protocol: Protocol, bytes: f64) -> f64 {
        let at = Protocol::ALL.iter().position(|one| *one == protocol).unwrap_or(0);
        component.constant_us[at]
            + component.per_byte_us * bytes
            + component.per_large_byte_us * (bytes - 16384.0).max(0.0)
    }

    /// The true latency that a round trip gains.
    #[must_use]
    pub fn round_trip_us(
        &self,
        protocol: Protocol,
        request_bytes: f64,
        response_bytes: f64,
        filters: &[String],
    ) -> f64 {
        self.components
            .iter()
            .filter(|one| is_run(&one.component, protocol, filters))
            .map(|one| {
                let request = self.component_us(one, protocol, request_bytes);
                let response = self.component_us(one, protocol, response_bytes);
                (request + response) / 2.0
            })
            .sum()
    }

    /// The true processor time of a round trip.
    #[must_use]
    pub fn round_trip_cpu_us(
        &self,
        protocol: Protocol,
        request_bytes: f64,
        response_bytes: f64,
        filters: &[String],
    ) -> f64 {
        CPU_FACTOR * self.round_trip_us(protocol, request_bytes, response_bytes, filters)
    }

    /// The true latency of a filter.
    #[must_use]
    pub fn filter_us(&self, name: &str) -> f64 {
        let is_it = |one: &&SyntheticComponent| one.component == Component::Filter(name.to_owned());
        self.components
            .iter()
            .find(is_it)
            .map_or(0.0, |one| one.constant_us[0])
    }
}

fn is_run(component: &Component, protocol: Protocol, filters: &[String]) -> bool {
    match component {
        Component::Filter(name) => filters.contains(name) && protocol != Protocol::Tcp,
        Component::Parse => protocol != Protocol::Tcp,
        _ => true,
    }
}

/// How single messages' latencies spread around their mean in every synthetic profile: p10, p50, p90, p99.
const MESSAGE_SPREAD: [f64; 4] = [0.75, 0.95, 1.3, 2.0];

/// A profile of a proxy whose cost is known, with noise from a seed.
#[must_use]
pub fn synthetic_profile(proxy: &SyntheticProxy, repetitions: u32, seed: u64) -> Profile {
    let machine = MachineIdentity {
        id: SYNTHETIC_MACHINE.to_owned(),
        processor: "made up".to_owned(),
        processors: 2,
        ..MachineIdentity::default()
    };
    let identity = ProxyIdentity {
        name: proxy.name.clone(),
        version: "0".to_owned(),
        ..ProxyIdentity::default()
    };
    let mut profile = Profile::new(ProfileOrigin::Synthetic, machine, identity);
    profile.notes.push(
        "SYNTHETIC: these figures are made up, for examples and tests; nothing was measured".to_owned(),
    );
    let mut random = SeededRandom::new(seed);
    for repetition in 0..repetitions {
        let common = 1.0 + proxy.repetition_noise * random.normal();
        for protocol in &proxy.protocols {
            for size_bytes in SIZES_BYTES {
                for rate_per_s in RATES_PER_S {
                    let load = LoadCell {
                        protocol: *protocol,
                        variant: String::new(),
                        size_bytes,
                        rate_per_s,
                        in_flight: 1,
                    };
                    observe(proxy, &load, repetition, common, &mut random, &mut profile);
                }
            }
        }
    }
    profile
}

fn observe(
    proxy: &SyntheticProxy,
    load: &LoadCell,
    repetition: u32,
    common: f64,
    random: &mut SeededRandom,
    profile: &mut Profile,
) {
    let rounded = |value: f64| (value * 1000.0).round() / 1000.0;
    let mut total = 0.0;
    let every_filter: Vec<String> = proxy
        .components
        .iter()
        .filter_map(|one| match &one.component {
            Component::Filter(name) => Some(name.clone()),
            _ => None,
        })
        .collect();
    for one in proxy
        .components
        .iter()
        .filter(|one| is_run(&one.component, load.protocol, &every_filter))
    {
        let truth = proxy.component_us(one, load.protocol, load.size_bytes);
        let latency_us = rounded(truth * common * (1.0 + proxy.noise * random.normal()));
        if !matches!(one.component, Component::Filter(_)) {
            total += latency_us;
        }
        profile.observations.push(Observation {
            component: one.component.clone(),
            passage: Passage::RoundTrip,
            load: load.clone(),
            repetition,
            messages: 1000,
            latency_us,
            cpu_us: rounded(CPU_FACTOR * truth * common * (1.0 + proxy.noise * random.normal())),
            cpu_off_path_us: 0.0,
            latency_inclusive_us: None,
            latency_quantiles_us: None,
        });
    }
    let [p10, p50, p90, p99] = MESSAGE_SPREAD.map(|ratio| rounded(total * ratio));
    profile.totals.push(TotalObservation {
        filters: Vec::new(),
        load: load.clone(),
        repetition,
        messages: 1000,
        added_latency_us: rounded(total),
        added_cpu_us: rounded(CPU_FACTOR * total),
        added_quantiles_us: Some(LatencyQuantiles { p10, p50, p90, p99 }),
        pacing: None,
    });
}

/// Rows in the layout of Alibaba's traces, of so many traces with so many calls each on average; made up, from a seed.
#[must_use]
pub fn synthetic_alibaba_rows(traces: usize, calls_mean: f64, seed: u64) -> String {
    const KINDS: [&str; 4] = ["rpc", "rpc", "http", "mc"];
    let mut random = SeededRandom::new(seed);
    let mut rows = String::from(",traceid,timestamp,rpcid,um,rpctype,dm,interface,rt\n");
    let mut number = 0;
    for trace in 0..traces {
        // Most traces are small and few are large: a geometric number of calls.
        let calls = 1 + (-(1.0 - random.uniform()).ln() * (calls_mean - 1.0)) as usize;
        let mut nodes: Vec<(String, u64, f64, f64, u32)> =
            vec![("0".to_owned(), random.bits() % 400, trace as f64 * 3.0, 400.0, 0)];
        for _ in 1..calls.min(2_000) {
            let at = random.below(nodes.len());
            nodes[at].4 += 1;
            let (id, _, start, took, children) = nodes[at].clone();
            let (begin, share) = (random.uniform() * 0.6, random.uniform() * 0.4);
            nodes.push((
                format!("{id}.{children}"),
                random.bits() % 400,
                (start + begin * took).round(),
                (share * took).floor(),
                0,
            ));
        }
        for (id, service, start, took, _) in &nodes {
            let kind = KINDS[(service % 4) as usize];
            rows += &format!(
                "{number},t{trace},{start},{id},up,{kind},MS_{service},if_{},{took}\n",
                service % 7
            );
            number += 1;
        }
    }
    rows
}
