//! What a filter engine does at its bounds, and what it tells whom.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use provost_engine::rig::{Rig, Service, end_of, metadata_of, with_metadata};
use provost_engine::{
    AttachError, Code, DatapathContext, Denial, Ended, Filter, FilterEngine, FilterEngineParts,
    HELD_STEPS_MAX, MetricDescription, MetricSink, Parts, Policy, Side, Start, Step, StepView, Verdict,
    VerdictLedger, Watch,
};

const PROTO: &str = "syntax = \"proto3\"; package t;
    message M { string name = 1; }
    service S { rpc Get(M) returns (M); rpc Watch(stream M) returns (stream M); }";

/// Judges by a function, and counts the calls that are over.
#[derive(Clone)]
struct By<J> {
    watch: Watch,
    judge: J,
    over: Arc<AtomicU64>,
}

impl<J: FnMut(&mut StepView<'_>) -> Verdict + Clone + Send + Sync + 'static> By<J> {
    fn new(judge: J) -> By<J> {
        By {
            watch: Watch::ALL,
            judge,
            over: Arc::default(),
        }
    }

    /// Of beginnings alone.
    fn of_beginnings(judge: J) -> By<J> {
        By {
            watch: Watch::BEGINNINGS,
            ..By::new(judge)
        }
    }
}

impl<J: FnMut(&mut StepView<'_>) -> Verdict + Send> Filter for By<J> {
    type Call = ();

    fn watch(&self) -> Watch {
        self.watch
    }

    fn judge(&mut self, _call: &mut (), step: &mut StepView<'_>) -> Verdict {
        (self.judge)(step)
    }

    fn ended(&mut self, _call: (), _end: &Ended) {
        self.over.fetch_add(1, Ordering::Relaxed);
    }
}

impl<J: FnMut(&mut StepView<'_>) -> Verdict + Clone + Send + Sync + 'static> Policy for By<J> {
    fn prepare(&self, datapath_context: &DatapathContext) -> Result<Start, AttachError> {
        let parts = FilterEngineParts {
            kind: "by",
            version: 1,
            datapath_context: datapath_context.clone(),
            filter: self.clone(),
        };
        Ok(Box::new(|saved| Ok(Box::new(FilterEngine::start(parts, saved)?))))
    }
}

fn deny(_step: &mut StepView<'_>) -> Verdict {
    Verdict::Deny(Denial {
        retry_pushback_ms: Some(-1),
        ..Denial::new(Code::ResourceExhausted, "not now")
    })
}

fn begin(call: u64) -> Step {
    Step {
        method: 1,
        ..Step::new(call, Parts::BEGIN)
    }
}

fn calls(steps: &[Step]) -> Vec<u64> {
    steps.iter().map(|step| step.call).collect()
}

#[test]
fn who_knows_a_call_learns_of_its_denial_and_nobody_else() {
    let service = Service::from_source(PROTO);
    // At the client: the app knows of the call that it begins, the server does not.
    let mut rig = Rig::new(service.datapath_context(Side::Client), &By::new(deny));
    rig.send(service.request(1, 0, &[]));
    rig.poll();
    let told = rig.to_app();
    assert_eq!(
        (calls(&told), end_of(&told[0])),
        (vec![1], Some(Code::ResourceExhausted))
    );
    assert_eq!(metadata_of(&told[0], ":message").as_deref(), Some("not now"));
    assert_eq!(
        metadata_of(&told[0], "grpc-retry-pushback-ms").as_deref(),
        Some("-1")
    );
    assert!(rig.to_wire().is_empty());
    // At the server: the client knows, the app does not.
    let mut rig = Rig::new(service.datapath_context(Side::Server), &By::new(deny));
    rig.receive(service.request(1, 0, &[]));
    rig.poll();
    let told = rig.to_wire();
    assert_eq!(
        (calls(&told), end_of(&told[0])),
        (vec![1], Some(Code::ResourceExhausted))
    );
    assert!(rig.to_app().is_empty());
}

/// What a ledger reports; of a histogram the sum and how many.
#[derive(Default)]
struct Reported(Vec<(String, f64)>);

impl MetricSink for Reported {
    fn number(&mut self, metric: &'static MetricDescription, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<&str> = labels.iter().map(|(_, value)| *value).collect();
        self.0
            .push((format!("{} {}", metric.name, labels.join(" ")), value));
    }

    fn histogram(
        &mut self,
        _: &'static MetricDescription,
        _: &[(&str, &str)],
        _: &[(f64, u64)],
        sum: f64,
        count: u64,
    ) {
        self.0
            .extend([("sum".to_owned(), sum), ("count".to_owned(), count as f64)]);
    }
}

#[test]
fn verdicts_and_times_of_waiting_are_counted_for_every_policy() {
    let service = Service::from_source(PROTO);
    let ledger = VerdictLedger::default();
    // Calls by number: 1 passes, 2 is denied, 3 waits and passes, 4 waits and is given up, 5 is denied in its midst.
    let judge = |step: &mut StepView<'_>| match (step.call(), step.held_since()) {
        (2, _) => deny(step),
        (3, None) | (4, _) => Verdict::Hold {
            until: step.now() + 1_000_000_000,
        },
        (5, _) if !step.parts().contains(Parts::BEGIN) => deny(step),
        _ => Verdict::Pass,
    };
    let mut datapath_context = service.datapath_context(Side::Client);
    datapath_context.verdicts = ledger.of_runtime(datapath_context.runtime);
    let policy = By::new(judge);
    let mut rig = Rig::new(datapath_context, &policy);
    (1..=4).for_each(|call| rig.send(service.request(call, 0, &[])));
    rig.send(begin(5));
    rig.poll_at(10);
    rig.send(Step::new(5, Parts::MESSAGE));
    rig.send(Step::cancel(4, Code::Cancelled));
    rig.poll_at(500_000_010);
    rig.poll_at(1_000_000_010);
    let mut reported = Reported::default();
    ledger.report(&mut reported);
    let expected = [
        ("provost_policy_verdicts_total passed", 3.0),
        ("provost_policy_verdicts_total held", 2.0),
        ("provost_policy_verdicts_total denied RESOURCE_EXHAUSTED", 2.0),
        ("sum", 1.5),
        ("count", 2.0),
    ];
    assert_eq!(reported.0, expected.map(|(name, value)| (name.to_owned(), value)));
}

#[test]
fn calls_to_which_a_policy_was_not_attached_are_not_counted() {
    let service = Service::from_source(PROTO);
    let ledger = VerdictLedger::default();
    let mut datapath_context = service.datapath_context(Side::Client);
    datapath_context.scope = [false, true].into();
    datapath_context.verdicts = ledger.of_runtime(datapath_context.runtime);
    let mut rig = Rig::new(datapath_context, &By::new(deny));
    rig.send(service.request(1, 0, &[]));
    rig.send(begin(2));
    rig.poll();
    assert_eq!(calls(&rig.to_wire()), [1]);
    let mut reported = Reported::default();
    ledger.report(&mut reported);
    let values: Vec<f64> = reported.0.iter().map(|(_, value)| *value).collect();
    assert_eq!(values, [0.0, 0.0, 1.0]);
}

#[test]
fn a_response_that_is_denied_ends_the_call_at_the_client_alone_if_it_was_the_last() {
    let service = Service::from_source(PROTO);
    let judge = |step: &mut StepView<'_>| {
        if step.parts().intersects(Parts::BEGIN) {
            Verdict::Pass
        } else {
            deny(step)
        }
    };
    for (side, ends) in [
        (Side::Client, true),
        (Side::Client, false),
        (Side::Server, true),
        (Side::Server, false),
    ] {
        let policy = By::new(judge);
        let mut rig = Rig::new(service.datapath_context(side), &policy);
        let end = if ends { Parts::STATUS } else { Parts::NONE };
        let response = || Step::new(1, Parts::MESSAGE | end);
        match side {
            Side::Client => rig.send(begin(1)),
            Side::Server => rig.receive(begin(1)),
        }
        rig.poll();
        rig.to_app();
        rig.to_wire();
        match side {
            Side::Client => rig.receive(response()),
            Side::Server => rig.send(response()),
        }
        rig.poll();
        let (client, server) = match side {
            Side::Client => (rig.to_app(), rig.to_wire()),
            Side::Server => (rig.to_wire(), rig.to_app()),
        };
        assert_eq!(
            end_of(&client[0]),
            Some(Code::ResourceExhausted),
            "{side:?}, {ends}"
        );
        let told: Vec<_> = server.iter().map(|step| end_of(step).unwrap()).collect();
        let expected = if ends { vec![] } else { vec![Code::Cancelled] };
        assert_eq!(told, expected, "{side:?}, {ends}");
        assert_eq!(policy.over.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn what_is_under_way_of_a_denied_call_goes_no_further() {
    let service = Service::from_source(PROTO);
    let mut rig = Rig::new(service.datapath_context(Side::Server), &By::new(deny));
    rig.receive(begin(1));
    rig.receive(Step::new(1, Parts::MESSAGE));
    rig.receive(Step::new(1, Parts::MESSAGE | Parts::END));
    rig.receive(Step::cancel(1, Code::Cancelled));
    rig.poll();
    assert!(rig.to_app().is_empty());
    assert_eq!(rig.to_wire().len(), 1);
}

#[test]
fn answers_go_past_who_looks_at_none_in_order_but_past_nobody_who_has_failed() {
    let service = Service::from_source(PROTO);
    let judge = |step: &mut StepView<'_>| match step.call() {
        3 => Verdict::Fault("broken".into()),
        _ => Verdict::Pass,
    };
    let mut rig = Rig::new(service.datapath_context(Side::Client), &By::of_beginnings(judge));
    for call in 1..=2 {
        rig.send(service.request(call, 0, &[]));
    }
    rig.poll();
    assert_eq!(calls(&rig.to_wire()), [1, 2]);
    for call in [2, 1] {
        rig.receive(service.response(call, 0, &[]));
    }
    rig.poll();
    assert_eq!(calls(&rig.to_app()), [2, 1]);
    rig.send(service.request(3, 0, &[]));
    rig.poll();
    // All that comes from now on is for the engine that takes its place.
    rig.receive(service.response(4, 0, &[]));
    rig.poll();
    assert!(rig.to_wire().is_empty() && rig.to_app().is_empty());
    rig.remove();
    rig.poll();
    assert_eq!((calls(&rig.to_wire()), calls(&rig.to_app())), (vec![3], vec![4]));
}

#[test]
fn past_its_bound_a_filter_engine_denies_the_call_that_would_wait() {
    let service = Service::from_source(PROTO);
    let policy = By::new(|step: &mut StepView<'_>| Verdict::Hold {
        until: step.now() + 1000,
    });
    let mut rig = Rig::new(service.datapath_context(Side::Client), &policy);
    rig.send(begin(1));
    rig.poll();
    for _ in 1..HELD_STEPS_MAX {
        rig.send(Step::new(1, Parts::MESSAGE));
        rig.poll();
    }
    assert!(rig.to_app().is_empty() && rig.to_wire().is_empty());
    // Another call finds no room; the one that waits is denied too by a step more, and makes room.
    rig.send(service.request(2, 0, &[]));
    rig.send(Step::new(1, Parts::MESSAGE));
    rig.poll();
    let told = rig.to_app();
    assert_eq!(calls(&told), [2, 1]);
    assert!(
        told.iter()
            .all(|step| end_of(step) == Some(Code::ResourceExhausted))
    );
    // The server has heard of neither; the filter, which held both, learns of both.
    assert!(rig.to_wire().is_empty());
    assert_eq!(policy.over.load(Ordering::Relaxed), 2);
    rig.send(service.request(3, 0, &[]));
    rig.poll();
    assert!(rig.to_app().is_empty());
}

#[test]
fn a_held_call_goes_on_at_its_time_behind_nobody_and_a_full_output_wakes_nobody() {
    let service = Service::from_source(PROTO);
    let policy = By::new(|step: &mut StepView<'_>| match step.held_since() {
        None if step.call() == 1 && step.parts() == Parts::BEGIN => Verdict::Hold { until: 500 },
        _ => Verdict::Pass,
    });
    let mut rig = Rig::new(service.datapath_context(Side::Client), &policy);
    rig.send(begin(1));
    rig.send(Step::new(1, Parts::MESSAGE));
    rig.send(begin(2));
    rig.poll_at(10);
    assert_eq!(calls(&rig.to_wire()), [2]);
    assert_eq!(rig.wake_at(), Some(500));
    rig.queues.tx_out = provost_engine::Queue::with_bound(0);
    rig.poll_at(600);
    assert_eq!(rig.wake_at(), None);
    rig.queues.tx_out = provost_engine::Queue::with_bound(1);
    rig.poll();
    assert_eq!(calls(&rig.to_wire()), [1]);
    rig.poll();
    let rest = rig.to_wire();
    assert_eq!((calls(&rest), rest[0].parts), (vec![1], Parts::MESSAGE));
}

#[test]
fn a_call_that_is_given_up_while_its_beginning_waits_is_heard_of_by_nobody() {
    let service = Service::from_source(PROTO);
    let policy = By::new(|_: &mut StepView<'_>| Verdict::Hold { until: u64::MAX });
    let mut rig = Rig::new(service.datapath_context(Side::Client), &policy);
    rig.send(service.request(1, 0, &[]));
    rig.poll();
    rig.send(Step::cancel(1, Code::Cancelled));
    rig.poll();
    assert!(rig.to_wire().is_empty() && rig.to_app().is_empty() && rig.wake_at().is_none());
    assert_eq!(policy.over.load(Ordering::Relaxed), 1);
}

#[test]
fn metadata_is_added_in_front_of_the_message_written_over_and_taken_out() {
    let service = Service::from_source(PROTO);
    let name = |service: &Service| {
        let datapath_context = service.datapath_context(Side::Client);
        datapath_context
            .tables
            .field_path(datapath_context.methods[0].input, "name")
            .unwrap()
    };
    let path = name(&service);
    let policy = By::new(move |step: &mut StepView<'_>| {
        assert!(step.overwrite_metadata("a", b"2") && !step.overwrite_metadata("a", b"22"));
        for number in 0..40 {
            step.append_metadata(&format!("added-{number}"), b"value")
                .unwrap();
            let read = step.field(&path).unwrap();
            assert_eq!(read, Some(provost_engine::Value::String("ann")));
        }
        assert!(step.append_metadata("Bad Key", b"").is_err());
        let mut added = 40;
        while step.append_metadata("more", b"").is_ok() {
            added += 1;
        }
        assert!(added < 10_000, "the block never fills");
        step.remove_metadata("more");
        step.remove_metadata("added-0");
        step.remove_metadata("never-there");
        let read = step.field(&path).unwrap();
        assert_eq!(read, Some(provost_engine::Value::String("ann")));
        step.append_metadata("more", b"").unwrap();
        Verdict::Pass
    });
    let mut rig = Rig::new(service.datapath_context(Side::Client), &policy);
    let request = service.request(
        1,
        0,
        &[("name", provost_engine::rig::Value::String("ann".into()))],
    );
    rig.send(with_metadata(request, &[("a", "1")]));
    rig.poll();
    let sent = rig.to_wire();
    assert_eq!(metadata_of(&sent[0], "a").as_deref(), Some("2"));
    assert_eq!(metadata_of(&sent[0], "added-0"), None);
    assert_eq!(metadata_of(&sent[0], "added-39").as_deref(), Some("value"));
    assert_eq!(metadata_of(&sent[0], "more").as_deref(), Some(""));
}

#[test]
fn a_damaged_state_is_refused() {
    let service = Service::from_source(PROTO);
    let policy = By::new(|_: &mut StepView<'_>| Verdict::Pass);
    let datapath_context = service.datapath_context(Side::Client);
    let mut rig = Rig::new(datapath_context.clone(), &policy);
    for call in 1..5 {
        rig.send(begin(call));
    }
    rig.poll();
    let saved = rig
        .engine()
        .unwrap()
        .save(&mut provost_datapath::InPlace::new(|_, _| {}));
    let start = |saved: &provost_engine::SavedState| {
        policy.prepare(&datapath_context).unwrap()(Some(saved)).map(|_| ())
    };
    assert_eq!(start(&saved), Ok(()));
    for length in 0..saved.bytes.len() {
        let mut cut = saved.clone();
        cut.bytes.truncate(length);
        assert!(start(&cut).is_err(), "{length} bytes");
    }
    let mut longer = saved.clone();
    longer.bytes.push(0);
    assert!(start(&longer).is_err());
    let stranger = provost_engine::SavedState {
        kind: "other".into(),
        ..saved
    };
    assert!(start(&stranger).is_err());
}

/// Names how many rounds [`calls_that_pass`] makes; set only where it runs under callgrind.
const ROUNDS: &str = "PROVOST_SIEVE_ROUNDS";
/// Calls under way in each round, each a request and a response.
const ROUND_CALLS: u64 = 16;
/// Most instructions of a step that passes a filter which sees every step and keeps every call in mind, with the test's
/// own share: taken out and put into the queues. For the profile that tests are built with; a release takes a tenth.
const STEP_INSTRUCTIONS_MAX: u64 = 2_150;

#[test]
fn calls_that_pass() {
    let Some(rounds) = std::env::var(ROUNDS).ok().and_then(|text| text.parse().ok()) else {
        return;
    };
    let service = Service::from_source(PROTO);
    let mut rig = Rig::new(
        service.datapath_context(Side::Client),
        &By::new(|_| Verdict::Pass),
    );
    let mut requests: Vec<Step> = (0..ROUND_CALLS).map(|_| service.request(0, 0, &[])).collect();
    let mut responses: Vec<Step> = (0..ROUND_CALLS).map(|_| service.response(0, 0, &[])).collect();
    for round in 0..rounds {
        let calls = round * ROUND_CALLS..;
        for (mut step, call) in requests.drain(..).zip(calls.clone()) {
            step.call = call;
            rig.queues.tx_in.push(step).unwrap();
        }
        rig.poll();
        requests.extend(std::iter::from_fn(|| rig.queues.tx_out.pop()));
        for (mut step, call) in responses.drain(..).zip(calls) {
            step.call = call;
            rig.queues.rx_in.push(step).unwrap();
        }
        rig.poll();
        responses.extend(std::iter::from_fn(|| rig.queues.rx_out.pop()));
        assert_eq!((requests.len(), responses.len()), (16, 16));
    }
}

/// Instructions of so many rounds of [`calls_that_pass`], where callgrind is to be had.
fn instructions(rounds: u64, out: &std::path::Path) -> Option<u64> {
    let output = std::process::Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe().ok()?)
        .args(["--exact", "calls_that_pass", "--test-threads=1"])
        .env(ROUNDS, rounds.to_string())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    let line = text.lines().find(|line| line.contains("Collected"))?;
    line.split(':').nth(1)?.trim().parse().ok()
}

/// Counted by callgrind: unlike a time, that does not depend on what else the machine does.
#[test]
fn a_step_that_passes_stays_within_its_budget_of_instructions() {
    let folder = tempfile::tempdir().unwrap();
    let count = |rounds| instructions(rounds, &folder.path().join("callgrind.out"));
    let (Some(some), Some(more)) = (count(50), count(250)) else {
        return provost_skip::missing("valgrind", "Debian package valgrind");
    };
    let per_step = (more - some) / (200 * ROUND_CALLS * 2);
    println!("{per_step} instructions for each step that passes");
    assert!(per_step > 50, "{per_step} instructions cannot be all");
    assert!(
        per_step <= STEP_INSTRUCTIONS_MAX,
        "{per_step} instructions for each step that passes"
    );
}
