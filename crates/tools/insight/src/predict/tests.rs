use super::*;
use crate::acg::{AnnotatedGraph, CallGraph};
use crate::model::MachineMatch;
use crate::synthetic::{SyntheticProxy, synthetic_profile};

fn model(draws: usize) -> ProfileModel {
    let profile = synthetic_profile(&SyntheticProxy::example(), 5, 1);
    ProfileModel::new(&profile, MachineMatch::Same, draws, 1).unwrap()
}

fn graph(requests: &str) -> CallGraph {
    let services = "abcdefgh"
        .chars()
        .map(|name| format!("  - name: {name}\n"))
        .collect::<String>();
    let text = format!("format: provost-insight-acg\nversion: 1\nservices:\n{services}requests:\n{requests}");
    CallGraph::new(AnnotatedGraph::parse(&text).unwrap()).unwrap()
}

const OPTIONS: PredictOptions = PredictOptions {
    samples: 400,
    seed: 3,
    cores: NodeCores::Plenty,
};

fn added(graph: &CallGraph, setup: &MeshSetup) -> Prediction {
    predict(graph, &model(0), setup, &OPTIONS).unwrap()
}

/// The true mean cost of a call through so many proxies.
fn truth(passages: f64) -> f64 {
    passages * SyntheticProxy::example().round_trip_us(Protocol::Grpc, 100.0, 100.0, &[])
}

fn call(id: &str, from: &str, to: &str, more: &str) -> String {
    format!(
        "      - {{id: {id}, from: \"{from}\", to: {to}, request_bytes: 100, response_bytes: 100{more}}}\n"
    )
}

fn request(calls: &[String]) -> CallGraph {
    graph(&format!(
        "  - name: r\n    rate_per_s: 100\n    calls:\n{}",
        calls.concat()
    ))
}

fn near(found: f64, expected: f64) -> bool {
    (found / expected - 1.0).abs() < 0.05
}

fn sidecars() -> MeshSetup {
    MeshSetup::new("mesh", ProxyPlacement::Sidecars)
}

#[test]
fn a_chain_adds_two_proxies_for_each_call_but_the_first() {
    let graph = request(&[
        call("x", "", "a", ""),
        call("y", "x", "b", ""),
        call("z", "y", "c", ""),
    ]);
    let prediction = added(&graph, &sidecars());
    assert!(
        near(prediction.added_us.mean.value, truth(5.0)),
        "{:?}",
        prediction.added_us
    );
    let components: f64 = prediction.requests[0]
        .components_us
        .iter()
        .map(|one| one.figure.value)
        .sum();
    assert!(near(components, prediction.added_us.mean.value), "{components}");
}

#[test]
fn concurrent_calls_add_the_slower_one_and_processor_time_of_both() {
    let graph = request(&[
        call("x", "", "a", ""),
        call("y", "x", "b", ", app_us: 1000"),
        call("z", "x", "c", ", app_us: 10"),
    ]);
    let prediction = added(&graph, &sidecars());
    assert!(
        near(prediction.added_us.mean.value, truth(3.0)),
        "{:?}",
        prediction.added_us
    );
    let cores =
        100.0 * 5.0 * SyntheticProxy::example().round_trip_cpu_us(Protocol::Grpc, 100.0, 100.0, &[]) / 1e6;
    assert!(
        near(prediction.cpu.cores.value, cores),
        "{:?} {cores}",
        prediction.cpu.cores
    );
    let path = &prediction.requests[0].path;
    assert_eq!((path[1].critical_share, path[2].critical_share), (1.0, 0.0));
}

#[test]
fn calls_in_order_add_up() {
    let graph = request(&[
        call("x", "", "a", ""),
        call("y", "x", "b", ""),
        call("z", "x", "c", ", after: [y]"),
    ]);
    let prediction = added(&graph, &sidecars());
    assert!(near(prediction.added_us.mean.value, truth(5.0)));
    assert!(
        prediction.requests[0]
            .path
            .iter()
            .all(|step| step.critical_share == 1.0)
    );
}

#[test]
fn repeats_and_probability_count_as_often_as_they_happen() {
    let sequential = request(&[
        call("x", "", "a", ""),
        call("y", "x", "b", ", repeats: 2.5, probability: 0.4"),
    ]);
    let prediction = predict(
        &sequential,
        &model(0),
        &sidecars(),
        &PredictOptions {
            samples: 5000,
            ..OPTIONS
        },
    )
    .unwrap();
    assert!(
        near(prediction.added_us.mean.value, truth(1.0 + 2.0 * 2.5 * 0.4)),
        "{:?}",
        prediction.added_us
    );
    // Three in five requests have no second call: the median has none of it.
    assert!(
        prediction.added_us.p50.value < truth(1.4),
        "{:?}",
        prediction.added_us
    );
    assert!(
        prediction.added_us.p99.value > truth(5.0),
        "{:?}",
        prediction.added_us
    );
    let at_once = request(&[
        call("x", "", "a", ""),
        call("y", "x", "b", ", repeats: 10, repeat_mode: concurrent"),
    ]);
    let prediction = added(&at_once, &sidecars());
    assert!(prediction.added_us.mean.value < truth(6.0) && prediction.added_us.mean.value > truth(3.2));
    // Of processor time each repeat has its own.
    let passage_us = SyntheticProxy::example().round_trip_cpu_us(Protocol::Grpc, 100.0, 100.0, &[]);
    let cores = 100.0 * 21.0 * passage_us / 1e6;
    assert!(
        near(prediction.cpu.cores.value, cores),
        "{:?} {cores}",
        prediction.cpu.cores
    );
}

#[test]
fn what_is_not_waited_for_adds_processor_time_alone() {
    let graph = request(&[call("x", "", "a", ""), call("y", "x", "b", ", detached: true")]);
    let prediction = added(&graph, &sidecars());
    assert!(near(prediction.added_us.mean.value, truth(1.0)));
    assert_eq!(prediction.cpu.by_service.len(), 2);
    let alone = added(&request(&[call("x", "", "a", "")]), &sidecars());
    assert!(near(prediction.cpu.cores.value, 3.0 * alone.cpu.cores.value));
}

#[test]
fn no_mesh_costs_nothing_and_a_proxy_on_the_node_is_passed_once() {
    let text = "\
format: provost-insight-acg
version: 1
services: [{name: a, node: n}, {name: b, node: n}]
requests:
  - name: r
    rate_per_s: 10
    calls: [{id: x, to: a, request_bytes: 100, response_bytes: 100}, {id: y, from: x, to: b, request_bytes: 100, response_bytes: 100}]
";
    let graph = CallGraph::new(AnnotatedGraph::parse(text).unwrap()).unwrap();
    let none = added(&graph, &MeshSetup::new("none", ProxyPlacement::Absent));
    assert_eq!((none.added_us.p99.value, none.cpu.cores.value), (0.0, 0.0));
    let node = added(&graph, &MeshSetup::new("node", ProxyPlacement::PerNode));
    assert!(near(node.added_us.mean.value, truth(2.0)), "{:?}", node.added_us);
}

#[test]
fn each_edge_has_its_own_size() {
    let graph = request(&[
        call("x", "", "a", ""),
        call("y", "x", "b", "").replace("response_bytes: 100", "response_bytes: 60000"),
    ]);
    let prediction = added(&graph, &sidecars());
    let large = SyntheticProxy::example().round_trip_us(Protocol::Grpc, 100.0, 60_000.0, &[]);
    assert!(
        near(prediction.added_us.mean.value, truth(1.0) + 2.0 * large),
        "{:?}",
        prediction.added_us
    );
}

#[test]
fn modes_and_filters_change_the_cost_and_tcp_runs_no_filter() {
    let graph = request(&[call("x", "", "a", ", filters: [lua]")]);
    let with = added(&graph, &sidecars()).added_us.mean.value;
    let mut setup = sidecars();
    setup.filters_removed = vec!["lua".into()];
    let without = added(&graph, &setup).added_us.mean.value;
    assert!((with - without - SyntheticProxy::example().filter_us("lua")).abs() < 2.0);
    setup = sidecars();
    setup.mode = Some(Protocol::Tcp);
    let tcp = added(&graph, &setup);
    assert!(tcp.added_us.mean.value < without);
    assert!(
        tcp.warnings
            .iter()
            .any(|warning| warning.contains("filters do not run: lua"))
    );
}

/// Three calls at once on one node, which others have to share with what they call.
fn at_once(cores: NodeCores, more: &str) -> Prediction {
    let calls = [
        call("x", "", "a", ""),
        call("y", "x", "b", more),
        call("z", "x", "c", more),
        call("w", "x", "d", more),
    ];
    let graph = request(&calls);
    let mut source = graph.source;
    source
        .services
        .iter_mut()
        .for_each(|service| service.node = "n".into());
    let graph = CallGraph::new(source).unwrap();
    let setup = MeshSetup::new("mesh", ProxyPlacement::BeforeServices);
    predict(&graph, &model(0), &setup, &PredictOptions { cores, ..OPTIONS }).unwrap()
}

#[test]
fn calls_at_once_wait_for_the_cores_that_they_share() {
    let one = at_once(NodeCores::Each(1), "").added_us.mean.value;
    let two = at_once(NodeCores::OfProfile, "").added_us.mean.value;
    let plenty = at_once(NodeCores::Plenty, "").added_us.mean.value;
    // The synthetic machine has two cores. Single messages spread, so that of three at once the slowest is waited for.
    assert!(plenty > truth(2.0) && plenty < truth(3.0), "{plenty}");
    // On one core nothing is at once, and what is off the path delays as well: processor time is 1.3 times latency.
    assert!(one > truth(4.0) && one < 1.3 * truth(4.0), "{one}");
    assert!(two > 1.1 * plenty && two < one / 1.1, "{two}");
}

#[test]
fn time_in_which_a_service_waits_for_something_else_needs_no_core() {
    let base = |more: &str| {
        let prediction = at_once(NodeCores::Each(1), more);
        prediction.requests[0].base_us.mean.value
    };
    assert!((base(", app_us: 100") - 300.0).abs() < 1e-6);
    assert!((base(", app_us: 100, app_cpu_share: 0") - 100.0).abs() < 1e-6);
}

#[test]
fn what_nobody_waits_for_takes_cores_all_the_same() {
    let calls = [
        call("x", "", "a", ""),
        call(
            "y",
            "x",
            "a",
            ", detached: true, repeats: 20, repeat_mode: concurrent",
        ),
    ];
    let graph = request(&calls);
    let added = |cores| {
        let options = PredictOptions { cores, ..OPTIONS };
        let prediction = predict(&graph, &model(0), &sidecars(), &options).unwrap();
        prediction.added_us.mean.value
    };
    assert!(near(added(NodeCores::Plenty), truth(1.0)));
    assert!(added(NodeCores::Each(1)) > truth(2.0));
}

#[test]
fn a_proxy_with_one_thread_carries_calls_one_after_the_other() {
    let mut profile = synthetic_profile(&SyntheticProxy::example(), 5, 1);
    let added = |profile: &crate::profile::Profile| {
        let model = ProfileModel::new(profile, MachineMatch::Same, 0, 1).unwrap();
        let graph = request(&[
            call("x", "", "a", ""),
            call("y", "x", "b", ", repeats: 8, repeat_mode: concurrent"),
        ]);
        let prediction = predict(&graph, &model, &sidecars(), &OPTIONS).unwrap();
        prediction.added_us.mean.value
    };
    let any_number = added(&profile);
    profile.proxy.workers = 1;
    // Eight calls pass the caller's proxy, and the callee's besides.
    assert!(added(&profile) > 1.5 * any_number && added(&profile) > truth(1.0 + 8.0));
}

#[test]
fn each_proxy_has_the_rate_of_the_calls_that_pass_it() {
    let text = "\
format: provost-insight-acg
version: 1
services: [{name: a, node: n}, {name: b, node: n}]
requests:
  - name: r
    rate_per_s: 4000
    calls: [{id: x, to: a, request_bytes: 100, response_bytes: 100}, {id: y, from: x, to: b, request_bytes: 100, response_bytes: 100}]
";
    // Profiled to 5,000 calls a second.
    let beyond_of = |text: &str, placement| -> Vec<(String, String)> {
        let graph = CallGraph::new(AnnotatedGraph::parse(text).unwrap()).unwrap();
        let prediction = added(&graph, &MeshSetup::new("mesh", placement));
        let extrapolated = prediction.extrapolated.into_iter();
        extrapolated
            .map(|one| (one.proxy_of, one.beyond.concat()))
            .collect()
    };
    let beyond = |placement| beyond_of(text, placement);
    let of_a = ("a".to_owned(), "8000 calls/s, profiled to 5000".to_owned());
    assert_eq!(beyond(ProxyPlacement::Sidecars), [of_a.clone(), of_a.clone()]);
    let of_node = [of_a.clone(), ("b".to_owned(), of_a.1.clone())];
    assert_eq!(beyond(ProxyPlacement::PerNode), of_node);
    assert_eq!(beyond(ProxyPlacement::BeforeServices), []);
    // A call that is made every other time counts half, and instances share what comes.
    let halved = text.replace("from: x,", "from: x, probability: 0.5,");
    let of_a = ("a".to_owned(), "6000 calls/s, profiled to 5000".to_owned());
    assert_eq!(beyond_of(&halved, ProxyPlacement::Sidecars), [of_a.clone(), of_a]);
    let shared = halved.replace("{name: a,", "{name: a, instances: 2,");
    assert_eq!(beyond_of(&shared, ProxyPlacement::Sidecars), []);
    // Instances on one node have one proxy there.
    let shared = text.replace("{name: a,", "{name: a, instances: 2,");
    assert_eq!(beyond_of(&shared, ProxyPlacement::PerNode), of_node);
}

#[test]
fn an_edge_beyond_the_profile_is_named() {
    let graph = request(&[call("x", "", "a", "").replace("response_bytes: 100", "response_bytes: 10000000")]);
    let prediction = added(&graph, &sidecars());
    assert_eq!(prediction.extrapolated.len(), 1);
    assert!(
        prediction.extrapolated[0].beyond[0].contains("profiled to 65536 B"),
        "{:?}",
        prediction.extrapolated
    );
}

#[test]
fn few_traces_widen_the_interval() {
    let calls = [call("x", "", "a", ""), call("y", "x", "b", ", probability: 0.5")];
    let with_traces = |traces: u64| {
        graph(&format!(
            "  - name: r\n    rate_per_s: 100\n    traces: {traces}\n    calls:\n{}",
            calls.concat()
        ))
    };
    let width = |graph: &CallGraph| {
        let mean = predict(graph, &model(60), &sidecars(), &OPTIONS)
            .unwrap()
            .added_us
            .mean;
        mean.high - mean.low
    };
    let (few, many) = (width(&with_traces(12)), width(&with_traces(100_000)));
    assert!(few > 1.5 * many, "{few} {many}");
}

#[test]
fn more_than_can_be_played_is_refused() {
    let graph = request(&[call("x", "", "a", ""), call("y", "x", "b", ", repeats: 9000")]);
    let options = PredictOptions {
        samples: 1_000_000,
        ..OPTIONS
    };
    let error = predict(&graph, &model(0), &sidecars(), &options).unwrap_err();
    assert!(error.to_string().contains("fewer samples"), "{error}");
}

#[test]
fn the_same_seed_gives_the_same_prediction() {
    let graph = request(&[call("x", "", "a", ""), call("y", "x", "b", ", probability: 0.5")]);
    assert_eq!(
        predict(&graph, &model(5), &sidecars(), &OPTIONS),
        predict(&graph, &model(5), &sidecars(), &OPTIONS)
    );
}
