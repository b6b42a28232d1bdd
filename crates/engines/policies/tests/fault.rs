//! The engine on one datapath: who is delayed or aborted, the same for the same seed, and what changes leave alone.

use std::sync::Arc;

use provost_engine::rig::churn::{Churn, Make, run};
use provost_engine::rig::{
    Rig, Service, config, end_of, environment, metadata_of, metric, policy, with_metadata,
};
use provost_engine::{Code, Environment, Nanos, Parts, Policy, SharedState, Side, Step};
use provost_policies::kind;

const MILLISECOND: Nanos = 1_000_000;
const BOOT: Nanos = 1_000_000_000_000;

fn service() -> Service {
    Service::from_source(
        "syntax = 'proto3'; package test; service S { rpc M(Q) returns (Q); } message Q { string user = 1; }",
    )
}

fn fault(text: &str) -> Arc<dyn Policy> {
    policy(&*kind("fault").unwrap(), text, None).unwrap()
}

fn rig(service: &Service, side: Side, policy: &dyn Policy) -> Rig {
    let mut rig = Rig::new(service.datapath_context(side), policy);
    rig.now = BOOT;
    rig
}

fn offer(rig: &mut Rig, steps: impl IntoIterator<Item = Step>) -> Vec<u64> {
    steps.into_iter().for_each(|step| rig.send(step));
    rig.poll();
    ids(&rig.to_wire())
}

fn ids(steps: &[Step]) -> Vec<u64> {
    steps.iter().map(|step| step.call).collect()
}

fn calls(service: &Service, ids: std::ops::Range<u64>) -> Vec<Step> {
    ids.map(|id| service.request(id, 0, &[])).collect()
}

/// Makes 60 calls and says which were aborted and when each other one came out.
fn fates(policy: &dyn Policy) -> (Vec<u64>, Vec<(u64, Nanos)>) {
    let service = service();
    let mut rig = rig(&service, Side::Client, policy);
    let mut passed: Vec<_> = offer(&mut rig, calls(&service, 0..60))
        .into_iter()
        .map(|id| (id, 0))
        .collect();
    while let Some(at) = rig.wake_at() {
        rig.poll_at(at);
        passed.extend(ids(&rig.to_wire()).into_iter().map(|id| (id, at - BOOT)));
    }
    (ids(&rig.to_app()), passed)
}

#[test]
fn the_same_seed_gives_the_same_faults() {
    let text = |seed: u64| {
        format!(
            "seed = {seed}\n[delay]\npercentage = 30\nfixed_delay_ms = 1\nmax_delay_ms = 20\n\
             [abort]\npercentage = 20\ngrpc_status = 'ABORTED'"
        )
    };
    let (aborted, passed) = fates(&*fault(&text(7)));
    assert!(aborted.len() > 4 && aborted.len() < 25, "{aborted:?}");
    assert_eq!(aborted.len() + passed.len(), 60);
    let delayed: Vec<Nanos> = passed.iter().map(|(_, at)| *at).filter(|at| *at > 0).collect();
    assert!(
        delayed.len() > 4
            && delayed
                .iter()
                .all(|at| (MILLISECOND..=20 * MILLISECOND).contains(at))
    );
    assert_eq!(fates(&*fault(&text(7))), (aborted.clone(), passed));
    assert_ne!(fates(&*fault(&text(8))).0, aborted);
}

#[test]
fn an_abort_has_the_status_and_the_message_that_were_asked_for() {
    let service = service();
    let fault = fault("[abort]\npercentage = 100\ngrpc_status = 'DATA_LOSS'\nmessage = 'on purpose'");
    let mut rig = rig(&service, Side::Client, &*fault);
    assert_eq!(offer(&mut rig, calls(&service, 0..2)), []);
    for step in rig.to_app() {
        assert_eq!(end_of(&step), Some(Code::DataLoss));
        assert_eq!(metadata_of(&step, ":message").as_deref(), Some("on purpose"));
    }
    assert_eq!(
        metric(&*fault, "provost_fault_aborts_injected_total{on=request}"),
        2.0
    );
}

#[test]
fn an_abort_without_a_message_names_the_policy_and_its_configuration() {
    let service = service();
    let environment = Environment {
        place: "/etc/chaos.toml".into(),
        ..environment()
    };
    let fault = kind("fault").unwrap();
    let fault = fault.configure(&config("[abort]\npercentage = 100"), &environment, None);
    let mut rig = rig(&service, Side::Client, &*fault.unwrap());
    assert_eq!(offer(&mut rig, calls(&service, 0..1)), []);
    let told = metadata_of(&rig.to_app()[0], ":message");
    let expected = "aborted on purpose by policy \"test\" (/etc/chaos.toml)";
    assert_eq!(told.as_deref(), Some(expected));
}

#[test]
fn only_what_matches_is_met() {
    let service = service();
    let fault = fault("[match]\nx-user = 'ada'\nx-chosen = '*'\n[abort]\npercentage = 100");
    let mut rig = rig(&service, Side::Client, &*fault);
    let with = |id, entries: &[(&str, &str)]| with_metadata(service.request(id, 0, &[]), entries);
    let steps = vec![
        with(0, &[("x-user", "ada"), ("x-chosen", "7")]),
        with(1, &[("x-user", "ada")]),
        with(2, &[("x-chosen", ""), ("x-user", "ada")]),
        with(3, &[("x-chosen", "1"), ("x-user", "adam")]),
        service.request(4, 0, &[]),
    ];
    assert_eq!(offer(&mut rig, steps), [1, 3, 4]);
}

#[test]
fn no_more_delays_than_allowed_are_under_way() {
    let service = service();
    let fault = fault("max_active_faults = 2\n[delay]\npercentage = 100\nfixed_delay_ms = 10");
    let mut rig = rig(&service, Side::Client, &*fault);
    assert_eq!(offer(&mut rig, calls(&service, 0..5)), [2, 3, 4]);
    assert_eq!(metric(&*fault, "provost_fault_active_faults"), 2.0);
    assert_eq!(metric(&*fault, "provost_fault_faults_overflow_total"), 3.0);
    // One is given up, so another one may be delayed.
    assert_eq!(offer(&mut rig, [Step::cancel(0, Code::Cancelled)]), []);
    assert_eq!(metric(&*fault, "provost_fault_active_faults"), 1.0);
    assert_eq!(offer(&mut rig, calls(&service, 5..6)), []);
    rig.poll_at(BOOT + 10 * MILLISECOND);
    assert_eq!(ids(&rig.to_wire()), [1, 5]);
    assert_eq!(metric(&*fault, "provost_fault_active_faults"), 0.0);
    assert_eq!(
        metric(&*fault, "provost_fault_delays_injected_total{on=request}"),
        3.0
    );
}

#[test]
fn responses_are_delayed_and_replaced_once_the_handler_ran() {
    let service = service();
    for side in [Side::Client, Side::Server] {
        let fault = fault(
            "[response_delay]\npercentage = 100\nfixed_delay_ms = 3\n\
             [response_abort]\npercentage = 100\ngrpc_status = 13",
        );
        let mut rig = rig(&service, side, &*fault);
        let (request, answer) = (service.request(0, 0, &[]), service.response(0, 0, &[]));
        let headers = Step::new(0, Parts::HEADERS);
        match side {
            Side::Client => {
                assert_eq!(offer(&mut rig, [request]), [0]);
                rig.receive(headers);
                rig.receive(answer);
            }
            Side::Server => {
                rig.receive(request);
                rig.poll();
                assert_eq!(ids(&rig.to_app()), [0]);
                rig.send(headers);
                rig.send(answer);
            }
        }
        rig.poll();
        let to_client = |rig: &mut Rig| match side {
            Side::Client => rig.to_app(),
            Side::Server => rig.to_wire(),
        };
        assert_eq!(to_client(&mut rig).len(), 1, "the headers pass");
        rig.poll_at(BOOT + 3 * MILLISECOND - 1);
        assert_eq!(to_client(&mut rig).len(), 0);
        rig.poll_at(BOOT + 3 * MILLISECOND);
        let came = to_client(&mut rig);
        assert_eq!(came.len(), 1);
        assert_eq!(end_of(&came[0]), Some(Code::Internal));
        assert_eq!(
            metric(&*fault, "provost_fault_aborts_injected_total{on=response}"),
            1.0
        );
    }
}

#[test]
fn a_delay_goes_on_in_the_next_engine_and_the_numbers_go_on() {
    let service = service();
    let text = "seed = 5\n[delay]\npercentage = 100\nfixed_delay_ms = 10\n[abort]\npercentage = 50";
    let whole = fates(&*fault(text)).0;
    let mut current = fault(text);
    let mut rig = rig(&service, Side::Client, &*current);
    for first in (0..60).step_by(10) {
        assert_eq!(offer(&mut rig, calls(&service, first..first + 10)), []);
        let next = policy(&*kind("fault").unwrap(), text, Some(&current.save())).unwrap();
        rig.replace(&*next).unwrap();
        current = next;
        rig.now += MILLISECOND / 4;
        rig.poll();
        assert_eq!(
            metric(&*current, "provost_fault_active_faults"),
            (first + 10) as f64
        );
    }
    // Each is delayed once, from its beginning; the first group's time has not come yet.
    assert!(rig.to_wire().is_empty() && rig.to_app().is_empty());
    let mut aborted = Vec::new();
    while let Some(at) = rig.wake_at() {
        rig.poll_at(at);
        aborted.extend(ids(&rig.to_app()));
    }
    assert!(rig.now < BOOT + 12 * MILLISECOND);
    assert_eq!(aborted, whole);
}

#[test]
fn calls_survive_changes_at_random_moments() {
    let service = service();
    let make = |text: &'static str| {
        move |shared: Option<&SharedState>| policy(&*kind("fault").unwrap(), text, shared).unwrap()
    };
    let policies = [
        make("[delay]\npercentage = 50\nfixed_delay_ms = 0.2\nmax_delay_ms = 3\n[abort]\npercentage = 10"),
        make("[response_delay]\npercentage = 50\nfixed_delay_ms = 1\n[response_abort]\npercentage = 10"),
        make("[abort]\npercentage = 20"),
        make(""),
    ];
    let makers: Vec<Make<'_>> = policies.iter().map(|make| make as Make<'_>).collect();
    for seed in 0..60 {
        let outcome = run(&Churn {
            service: &service,
            side: [Side::Client, Side::Server][seed as usize % 2],
            seed,
            actions: 1500,
            gap_ns: 500_000,
            policies: &makers,
            request: &|step| step,
        });
        assert!(
            outcome.answered > 10 && outcome.denied > 2 && outcome.changes > 10,
            "{outcome:?}"
        );
    }
}
