//! A brief profile of a real proxy, with the methods that the kernel grants here.

use std::time::Duration;

use provost_insight::profile::{Component, Profile, Protocol};
use provost_insight_probes::doctor;
use provost_insight_probes::profile::{MethodChoice, ProfileOrder, ProfiledProxy, take};
use provost_insight_probes::proxies::{ProxyJob, ProxyKind, RunningProxy, free_address};
use rustix::process::{Pid, Signal, kill_process};

fn brief(kind: ProxyKind, protocols: &[Protocol]) -> ProfileOrder {
    ProfileOrder {
        sizes_bytes: vec![100],
        rates_per_s: vec![],
        in_flight: vec![],
        repetitions: 2,
        slice: Duration::from_millis(150),
        ..ProfileOrder::of(ProfiledProxy::BuiltIn(kind), protocols.to_vec())
    }
}

/// The first that is installed, or a reason to test nothing.
fn installed() -> Option<ProxyKind> {
    let found = ProxyKind::BUILT_IN
        .into_iter()
        .find(|kind| kind.program().is_ok());
    if found.is_none() {
        provost_skip::missing("a proxy", "Envoy, nginx or HAProxy: apt-get install haproxy");
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
        ..brief(kind, &[Protocol::Tcp, Protocol::Http1])
    };
    let profile = take(&order, &mut |_| {}).unwrap();
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
        upstream,
        filters: vec![],
    };
    let proxy = RunningProxy::start(kind, &job).unwrap();
    let processes = proxy.processes();
    let order = ProfileOrder {
        proxy: ProfiledProxy::Running {
            process: processes[0],
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
            for process in &processes {
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
