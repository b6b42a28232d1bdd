//! A brief profile of a real proxy, with the methods that the kernel grants here.

use std::time::Duration;

use provost_insight::profile::{Component, Profile, Protocol, RateBound};
use provost_insight_probes::StopSignal;
use provost_insight_probes::doctor;
use provost_insight_probes::filters;
use provost_insight_probes::load::{EchoServer, LoadClient, LoadPace, LoadShape};
use provost_insight_probes::profile::{MethodChoice, ProfileOrder, ProfiledProxy, take};
use provost_insight_probes::proxies::{
    ProxyJob, ProxyKind, ProxyVariant, RunningProxy, ServerAddress, free_address,
};
use rustix::process::{Pid, Signal, kill_process};

fn brief(kind: ProxyKind, protocols: &[Protocol]) -> ProfileOrder {
    ProfileOrder {
        sizes_bytes: vec![100],
        rates_per_s: vec![],
        in_flight: vec![],
        repetitions: 2,
        slice: Duration::from_millis(100),
        ..ProfileOrder::of(ProfiledProxy::BuiltIn(kind), protocols.to_vec())
    }
}

/// One that is installed, or a reason to test nothing. nginx first: it starts quickly, and works in other processes than the one
/// that is started.
fn installed() -> Option<ProxyKind> {
    let found = [ProxyKind::Nginx, ProxyKind::Haproxy, ProxyKind::Envoy]
        .into_iter()
        .find(|kind| kind.program().is_ok());
    if found.is_none() {
        provost_skip::missing("a proxy", ProxyKind::Nginx.remedy());
    }
    found
}

#[test]
fn a_brief_profile_has_every_component_that_the_kernel_permits() {
    let Some(kind) = installed() else { return };
    let granted = doctor::granted();
    if !granted.tracepoints {
        provost_skip::forbidden("the kernel grants no BPF tracepoints: only sums are tested");
    }
    let profile = take(&brief(kind, &[Protocol::Http1]), &mut |line| eprintln!("{line}")).unwrap();
    profile.notes.iter().for_each(|note| eprintln!("{note}"));
    assert_eq!(profile.partial, None);
    assert_eq!(profile.totals.len(), 2);
    assert_eq!(Profile::parse(&profile.to_json()).as_ref(), Ok(&profile));
    let has = |component: &Component| {
        profile
            .observations
            .iter()
            .any(|seen| seen.component == *component)
    };
    // A machine that is busy otherwise may grant too few samples.
    let enough_samples = profile
        .methods
        .iter()
        .any(|method| method.component == Component::Parse);
    for component in Component::FIXED {
        let needs_stacks = component == Component::Parse;
        assert_eq!(
            has(&component),
            granted.tracepoints && (granted.stacks && enough_samples || !needs_stacks),
            "{component}"
        );
    }
    let of = |component: &Component| {
        let seen = profile
            .observations
            .iter()
            .find(|seen| seen.component == *component);
        seen.map_or(f64::NAN, |seen| seen.latency_us)
    };
    for component in Component::FIXED {
        eprintln!("{component}: {:.1} us", of(&component));
    }
    // The parts of a repetition's processor time are those of what the scheduler counted while nothing was traced.
    for total in &profile.totals {
        let seen = profile.observations.iter();
        let cpu_us = seen
            .filter(|seen| seen.repetition == total.repetition)
            .map(|seen| seen.cpu_us);
        let sum: f64 = cpu_us.sum();
        let is_whole = (sum - total.added_cpu_us).abs() < 0.01 * total.added_cpu_us;
        assert!(sum == 0.0 || is_whole, "{sum} of {}", total.added_cpu_us);
    }
    // A proxy reads, writes and computes for every message.
    for component in [Component::Read, Component::OtherUser] {
        assert!(!granted.tracepoints || of(&component) > 0.0, "{component}");
    }
}

#[test]
fn without_tracing_there_are_sums_alone() {
    let Some(kind) = installed() else { return };
    let order = ProfileOrder {
        methods: MethodChoice::Differential,
        repetitions: 1,
        slice: Duration::from_millis(50),
        ..brief(kind, &[Protocol::Tcp, Protocol::Http1])
    };
    let profile = take(&order, &mut |_| {}).unwrap();
    assert_eq!(profile.totals.len(), 2);
    assert!(profile.observations.is_empty() && profile.methods.is_empty());
    assert!(profile.totals.iter().all(|total| total.added_cpu_us > 0.0));
}

#[test]
fn a_proxy_that_dies_leaves_a_profile_that_says_so() {
    let Some(kind) = installed() else { return };
    let upstream = free_address().unwrap();
    let job = ProxyJob {
        protocol: Protocol::Http1,
        listen: free_address().unwrap(),
        upstream: ServerAddress::Tcp(upstream),
        filters: vec![],
        variant: None,
        access_log: None,
    };
    let proxy = RunningProxy::start(kind, &job, &StopSignal::never()).unwrap();
    let order = ProfileOrder {
        proxy: ProfiledProxy::Running {
            process: proxy.processes()[0],
            listen: job.listen,
            upstream_port: upstream.port(),
        },
        repetitions: 50,
        slice: Duration::from_millis(20),
        ..brief(kind, &[Protocol::Http1])
    };
    let mut rounds = 0;
    let profile = take(&order, &mut |_| {
        rounds += 1;
        if rounds == 2 {
            // Its workers start after it listens: now they all have.
            for process in proxy.processes() {
                let process = Pid::from_raw(process.cast_signed()).unwrap();
                kill_process(process, Signal::KILL).unwrap();
            }
        }
    })
    .unwrap();
    let why = profile.partial.expect("the profile says that it is partial");
    assert!(why.starts_with("ended after 2 of 50 measurements: "), "{why}");
    assert_eq!(profile.totals.len(), 2);
}

/// Passes bytes on from one port to another.
const FORWARDER: &str = "\
import socket, sys, threading
def copy(source, target):
    while data := source.recv(65536):
        target.sendall(data)
    target.close()
server = socket.create_server(('127.0.0.1', int(sys.argv[1])))
while True:
    near, _ = server.accept()
    far = socket.create_connection(('127.0.0.1', int(sys.argv[2])))
    for ends in ((near, far), (far, near)):
        threading.Thread(target=copy, args=ends, daemon=True).start()
";

#[test]
fn a_proxy_is_started_by_a_command_line_or_said_to_have_ended() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("forwarder.py");
    std::fs::write(&script, FORWARDER).unwrap();
    let command = |rest: &str| ProfileOrder {
        proxy: ProfiledProxy::Command(format!("python3 {} {rest}", script.display())),
        methods: MethodChoice::Differential,
        repetitions: 1,
        slice: Duration::from_millis(50),
        ..brief(ProxyKind::Nginx, &[Protocol::Tcp])
    };
    let profile = take(&command("{listen_port} {upstream_port}"), &mut |_| {}).unwrap();
    assert_eq!((profile.partial.as_ref(), profile.totals.len()), (None, 1));
    assert!(profile.totals[0].added_cpu_us > 0.0);
    assert_eq!(profile.proxy.name, "python3");
    assert!(!profile.proxy.command.contains('{'), "{}", profile.proxy.command);
    // It says what is wrong in the proxy's own words.
    let missing = take(&command("no-port"), &mut |_| {}).err().unwrap().to_string();
    assert!(
        missing.contains("python3 ended") && missing.contains("ValueError"),
        "{missing}"
    );
}

#[test]
fn a_variant_is_measured_beside_the_usual_way_and_can_be_asked_about() {
    let Some(kind) = installed() else { return };
    let order = ProfileOrder {
        variants: vec![ProxyVariant::UnixSockets],
        slice: Duration::from_millis(60),
        ..brief(kind, &[Protocol::Http1])
    };
    let profile = take(&order, &mut |_| {}).unwrap();
    let of = |variant: &str| {
        let totals = profile.totals.iter();
        totals.filter(|total| total.load.variant == variant).count()
    };
    assert_eq!((of(""), of("unix_sockets")), (2, 2));
    let changed: Vec<_> = profile
        .observations
        .iter()
        .filter(|seen| seen.load.variant == "unix_sockets")
        .collect();
    if !doctor::granted().tracepoints {
        assert!(changed.is_empty());
        return provost_skip::forbidden(
            "the kernel grants no BPF tracepoints: there is no component to change",
        );
    }
    assert!(changed.iter().all(|seen| seen.component == Component::Ipc));
    // A machine that is busy otherwise may grant too few messages for a critical path.
    let usual = profile
        .observations
        .iter()
        .filter(|seen| seen.component == Component::Ipc && seen.load.variant.is_empty());
    assert_eq!(changed.len(), usual.count());
    // What the variant takes less than the usual way is what its component does.
    for changed in changed {
        let bare = |component: &Component| {
            let mut observations = profile.observations.iter();
            let seen = observations.find(|seen| {
                seen.component == *component
                    && seen.load.variant.is_empty()
                    && seen.repetition == changed.repetition
            });
            seen.unwrap().latency_us
        };
        let total = |variant: &str| {
            let mut totals = profile.totals.iter();
            let total =
                totals.find(|total| total.load.variant == variant && total.repetition == changed.repetition);
            total.unwrap().added_latency_us
        };
        let component = changed.latency_us - bare(&Component::Ipc);
        assert!((component - (total("unix_sockets") - total(""))).abs() < 0.01);
    }
}

#[test]
fn every_filter_of_envoys_and_every_policy_of_a_nodes_lets_calls_pass() {
    for (kind, protocol, names) in [
        (ProxyKind::Envoy, Protocol::Http1, &filters::NAMES[..]),
        (ProxyKind::Provostd, Protocol::Grpc, &filters::POLICIES),
    ] {
        if kind.program().is_err() {
            provost_skip::missing(kind.name(), kind.remedy());
            continue;
        }
        let server = EchoServer::start(protocol).unwrap();
        let job = ProxyJob {
            protocol,
            listen: free_address().unwrap(),
            upstream: ServerAddress::Tcp(server.address()),
            filters: names.iter().map(ToString::to_string).collect(),
            variant: None,
            access_log: None,
        };
        let _proxy = RunningProxy::start(kind, &job, &StopSignal::never()).unwrap();
        let shape = LoadShape {
            protocol,
            size_bytes: 100,
            in_flight: 1,
            pace: LoadPace::Saturating,
        };
        let mut client = LoadClient::connect(job.listen, shape).unwrap();
        assert!(client.run_enough(Duration::from_millis(50), 3).unwrap().count() >= 3);
        let unknown = ProxyJob {
            filters: vec!["none".into()],
            ..job
        };
        let refused = RunningProxy::start(kind, &unknown, &StopSignal::never())
            .err()
            .unwrap()
            .to_string();
        assert!(refused.contains("no filter 'none': take "), "{refused}");
    }
}

fn logging_order() -> Option<ProfileOrder> {
    if ProxyKind::Envoy.program().is_err() {
        provost_skip::missing("envoy", ProxyKind::Envoy.remedy());
        return None;
    }
    Some(ProfileOrder {
        methods: MethodChoice::AccessLog,
        slice: Duration::from_millis(60),
        ..brief(
            ProxyKind::Envoy,
            &[Protocol::Tcp, Protocol::Http1, Protocol::Grpc],
        )
    })
}

#[test]
fn envoys_access_log_divides_the_time_within_it_from_the_rest() {
    let Some(order) = logging_order() else { return };
    let profile = take(&order, &mut |_| {}).unwrap();
    profile.notes.iter().for_each(|note| eprintln!("{note}"));
    assert_eq!(profile.partial, None);
    assert_eq!(Profile::parse(&profile.to_json()).as_ref(), Ok(&profile));
    // A total for each protocol and repetition; none of the Envoys that log.
    assert_eq!(profile.totals.len(), 6);
    for total in &profile.totals {
        let parts: Vec<_> = profile
            .observations
            .iter()
            .filter(|seen| (&seen.load, seen.repetition) == (&total.load, total.repetition))
            .collect();
        if total.load.protocol == Protocol::Tcp {
            assert!(parts.is_empty(), "a log of connections has no calls: {parts:?}");
            continue;
        }
        let [within, rest] = parts[..] else {
            panic!("{parts:?}")
        };
        assert_eq!(
            (&within.component, &rest.component),
            (&Component::OtherUser, &Component::Ipc)
        );
        eprintln!(
            "{}: {:.1} us within of {:.1} us",
            total.load.protocol, within.latency_us, total.added_latency_us
        );
        // Envoy takes microseconds for a call, and no log of milliseconds would show them.
        assert!(
            (1.0..20_000.0).contains(&within.latency_us),
            "{}",
            within.latency_us
        );
        assert!(within.messages >= 40 && within.cpu_us > 0.0);
        let sums = [
            (within.latency_us + rest.latency_us, total.added_latency_us),
            (within.cpu_us + rest.cpu_us, total.added_cpu_us),
        ];
        assert!(
            sums.iter().all(|(sum, whole)| (sum - whole).abs() < 0.01),
            "{sums:?}"
        );
    }
    let method = profile
        .methods
        .iter()
        .find(|method| method.method == "access_log")
        .unwrap();
    assert!(method.overhead_us_per_message.is_some() && method.overhead_rate_share.is_some());
    let rung = profile
        .ladder
        .iter()
        .find(|rung| rung.method == "access_log")
        .unwrap();
    assert!(rung.granted && rung.hit_cost_ns.is_some());
}

#[test]
fn an_envoy_of_the_users_is_profiled_by_the_log_that_it_writes() {
    let Some(order) = logging_order() else { return };
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("calls.log");
    let upstream = free_address().unwrap();
    let job = ProxyJob {
        protocol: Protocol::Http1,
        listen: free_address().unwrap(),
        upstream: ServerAddress::Tcp(upstream),
        filters: vec![],
        variant: None,
        access_log: Some(log.clone()),
    };
    let proxy = RunningProxy::start(ProxyKind::Envoy, &job, &StopSignal::never()).unwrap();
    let order = ProfileOrder {
        proxy: ProfiledProxy::Running {
            process: proxy.processes()[0],
            listen: job.listen,
            upstream_port: upstream.port(),
        },
        protocols: vec![Protocol::Http1],
        access_log: Some(log),
        ..order
    };
    let profile = take(&order, &mut |_| {}).unwrap();
    assert_eq!((profile.totals.len(), profile.observations.len()), (2, 4));
    // It always logs, so nobody knows what that costs.
    let method = profile
        .methods
        .iter()
        .find(|method| method.method == "access_log")
        .unwrap();
    assert_eq!(method.overhead_us_per_message, None);
    assert!(
        profile.notes.iter().any(|note| note.contains("logging itself")),
        "{:?}",
        profile.notes
    );
    let refused = |order: ProfileOrder| take(&order, &mut |_| {}).err().unwrap().to_string();
    let elsewhere = refused(ProfileOrder {
        access_log: None,
        ..order.clone()
    });
    assert!(
        elsewhere.contains("name the file in which your Envoy logs"),
        "{elsewhere}"
    );
    let another = refused(ProfileOrder {
        access_log: Some("/nowhere/calls.log".into()),
        ..order
    });
    assert!(
        another.contains("read the access log /nowhere/calls.log"),
        "{another}"
    );
}

/// Programs that take all the time that they get; they end with this.
struct BusyNeighbours(Vec<std::process::Child>);

impl BusyNeighbours {
    fn start() -> BusyNeighbours {
        let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        let start = |_| {
            let mut shell = std::process::Command::new("/bin/sh");
            shell.args(["-c", "while :; do :; done"]).spawn().unwrap()
        };
        BusyNeighbours((0..2 * cores).map(start).collect())
    }
}

impl Drop for BusyNeighbours {
    fn drop(&mut self) {
        for neighbour in &mut self.0 {
            neighbour.kill().unwrap();
            neighbour.wait().unwrap();
        }
    }
}

#[test]
fn a_load_that_others_held_up_does_not_call_its_rate_the_proxys_saturation() {
    let Some(kind) = installed() else { return };
    let order = ProfileOrder {
        methods: MethodChoice::Differential,
        in_flight: vec![8],
        repetitions: 1,
        slice: Duration::from_millis(250),
        ..brief(kind, &[Protocol::Http1])
    };
    let neighbours = BusyNeighbours::start();
    let profile = take(&order, &mut |_| {}).unwrap();
    drop(neighbours);
    let many = profile
        .totals
        .iter()
        .find(|total| total.load.in_flight == 8)
        .unwrap();
    let pacing = many.pacing.unwrap();
    eprintln!("{} calls/s: {pacing:?}", many.load.rate_per_s);
    assert_eq!(many.bound(), Some(RateBound::OthersWork), "{pacing:?}");
    assert!(pacing.core_wait_share > 0.1 && pacing.other_cores > 0.1 && pacing.proxy_busy_share < 0.9);
    let says = |text: &str| profile.notes.iter().any(|note| note.contains(text));
    assert!(says("is not the proxy's saturation"), "{:?}", profile.notes);
}
