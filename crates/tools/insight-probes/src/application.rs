//! Small applications of known shape, with a proxy before each service or with none.

use provost_insight::acg::{
    AcgError, Amount, AnnotatedGraph, CallEntry, CallGraph, RequestEntry, ServiceEntry,
};
use provost_insight::profile::Protocol;

use crate::failure::ProbeFailure;
use crate::load::{EchoServer, ServiceCalls};
use crate::profile::ProfiledProxy;
use crate::proxies::{ProxyJob, RunningProxy, ServerAddress, free_address};
use crate::stop::StopSignal;
use crate::trace::HopPorts;

/// How services call each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplicationShape {
    /// Each calls the next one.
    Chain,
    /// The first calls three at once.
    FanOut,
    /// The first calls one, then two at once, one of which calls another.
    Mixed,
}

/// A service of a shape: what it calls, in groups that run one after the other, each at once.
struct ShapeService {
    name: &'static str,
    stages: &'static [&'static [&'static str]],
}

const fn service(name: &'static str, stages: &'static [&'static [&'static str]]) -> ShapeService {
    ShapeService { name, stages }
}

impl ApplicationShape {
    pub const ALL: [ApplicationShape; 3] = [
        ApplicationShape::Chain,
        ApplicationShape::FanOut,
        ApplicationShape::Mixed,
    ];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ApplicationShape::Chain => "chain",
            ApplicationShape::FanOut => "fan-out",
            ApplicationShape::Mixed => "mixed",
        }
    }

    /// Its services, those that are called before those that call them; the last one is the front.
    fn services(self) -> &'static [ShapeService] {
        const CHAIN: &[ShapeService] = &[
            service("c", &[]),
            service("b", &[&["c"]]),
            service("front", &[&["b"]]),
        ];
        const FAN_OUT: &[ShapeService] = &[
            service("b", &[]),
            service("c", &[]),
            service("d", &[]),
            service("front", &[&["b", "c", "d"]]),
        ];
        const MIXED: &[ShapeService] = &[
            service("e", &[]),
            service("d", &[&["e"]]),
            service("c", &[]),
            service("b", &[]),
            service("front", &[&["b"], &["c", "d"]]),
        ];
        match self {
            ApplicationShape::Chain => CHAIN,
            ApplicationShape::FanOut => FAN_OUT,
            ApplicationShape::Mixed => MIXED,
        }
    }

    /// The graph that a prediction is made from: all on one node, so that each call passes one proxy.
    ///
    /// # Errors
    /// If the graph is refused, which would be an error of this file's.
    pub fn graph(
        self,
        protocol: Protocol,
        size_bytes: usize,
        rate_per_s: f64,
        app_us: f64,
    ) -> Result<CallGraph, AcgError> {
        let mut graph = AnnotatedGraph::new(format!("the application '{}'", self.name()));
        graph.services = self
            .services()
            .iter()
            .map(|each| service_entry(each.name))
            .collect();
        let size = Amount::Fixed(size_bytes as f64);
        let call = |id: &str, from: &str, after: Vec<String>| CallEntry {
            request_bytes: size,
            response_bytes: size,
            app_us: Amount::Fixed(app_us),
            ..call_entry(id, from, after, protocol)
        };
        let mut calls = vec![call("front", "", Vec::new())];
        for each in self.services().iter().rev() {
            let mut before: Vec<String> = Vec::new();
            for stage in each.stages {
                calls.extend(stage.iter().map(|to| call(to, each.name, before.clone())));
                before = stage.iter().map(ToString::to_string).collect();
            }
        }
        graph.requests = vec![RequestEntry {
            name: self.name().into(),
            rate_per_s,
            traces: 0,
            calls,
        }];
        CallGraph::new(graph)
    }
}

fn service_entry(name: &str) -> ServiceEntry {
    ServiceEntry {
        name: name.into(),
        instances: 1,
        node: "node".into(),
        meshed: true,
        filters: Vec::new(),
    }
}

fn call_entry(id: &str, from: &str, after: Vec<String>, protocol: Protocol) -> CallEntry {
    CallEntry {
        id: id.into(),
        from: from.into(),
        to: id.into(),
        operation: String::new(),
        protocol,
        probability: 1.0,
        repeats: 1.0,
        repeat_mode: provost_insight::acg::RepeatMode::default(),
        after,
        detached: false,
        app_cpu_share: 1.0,
        request_bytes: Amount::default(),
        response_bytes: Amount::default(),
        app_us: Amount::default(),
        network_us: Amount::default(),
        filters: Vec::new(),
    }
}

/// The proxies of an application, each of which does the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ApplicationProxies<'a> {
    pub(crate) proxy: &'a ProfiledProxy,
    pub(crate) filters: &'a [String],
    pub(crate) stop: &'a StopSignal,
}

/// An application that runs.
pub(crate) struct RunningApplication {
    /// Those that are called end after those that call them.
    services: Vec<EchoServer>,
    proxies: Vec<RunningProxy>,
    /// The ports before and behind each proxy.
    hops: Vec<HopPorts>,
    front: std::net::SocketAddr,
}

impl RunningApplication {
    /// Starts one, with a proxy before each service if there shall be one.
    pub(crate) fn start(
        shape: ApplicationShape,
        protocol: Protocol,
        mesh: Option<ApplicationProxies<'_>>,
    ) -> Result<RunningApplication, ProbeFailure> {
        let mut application = RunningApplication {
            services: Vec::new(),
            proxies: Vec::new(),
            hops: Vec::new(),
            front: free_address()?,
        };
        let mut addresses = std::collections::BTreeMap::new();
        for each in shape.services() {
            let address = |name: &&str| addresses.get(name).copied();
            let stages = each
                .stages
                .iter()
                .map(|stage| stage.iter().filter_map(address).collect());
            let calls = ServiceCalls {
                stages: stages.collect(),
            };
            let server = EchoServer::start_calling(protocol, 0, calls)?;
            let mut reached_at = server.address();
            application.services.insert(0, server);
            if let Some(mesh) = mesh {
                let job = ProxyJob {
                    protocol,
                    listen: free_address()?,
                    upstream: ServerAddress::Tcp(reached_at),
                    filters: mesh.filters.to_vec(),
                    variant: None,
                    access_log: None,
                };
                application.proxies.push(start_proxy(&mesh, &job)?);
                application.hops.push(HopPorts {
                    proxy: Some(job.listen.port()),
                    server: reached_at.port(),
                });
                reached_at = job.listen;
            }
            addresses.insert(each.name, reached_at);
            application.front = reached_at;
        }
        Ok(application)
    }

    pub(crate) fn front(&self) -> std::net::SocketAddr {
        self.front
    }

    pub(crate) fn proxy_count(&self) -> usize {
        self.proxies.len()
    }

    /// The ports before and behind each proxy.
    pub(crate) fn hops(&self) -> &[HopPorts] {
        &self.hops
    }

    /// All processes of its proxies.
    pub(crate) fn proxy_processes(&self) -> Vec<u32> {
        self.proxies.iter().flat_map(RunningProxy::processes).collect()
    }

    pub(crate) fn check_alive(&mut self) -> Result<(), ProbeFailure> {
        self.proxies.iter_mut().try_for_each(RunningProxy::check_alive)
    }
}

fn start_proxy(mesh: &ApplicationProxies<'_>, job: &ProxyJob) -> Result<RunningProxy, ProbeFailure> {
    match mesh.proxy {
        ProfiledProxy::BuiltIn(kind) => RunningProxy::start(*kind, job, mesh.stop),
        ProfiledProxy::Command(command) => RunningProxy::start_command(command, job, mesh.stop),
        ProfiledProxy::Running { .. } => Err(ProbeFailure::Invalid(
            "an application needs several proxies: name one, or a command line".into(),
        )),
    }
}
