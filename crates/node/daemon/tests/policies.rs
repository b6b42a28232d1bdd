//! Policies and engines change while calls go on: no call fails, is lost, doubled or reordered.

#[path = "live/kinds.rs"]
mod kinds;
mod support;
#[path = "live/traffic.rs"]
mod traffic;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kinds::{Notes, WITNESS};
use provost_random::SeededRandom;
use provost_wire::Code;
use provost_wire::descriptor::{Parts, completion_kind};
use provostd::config::Sources;
use provostd::hot_restart::{Predecessor, UpgradeError, UpgradeRequest};
use provostd::policies::{
    AppliesTo, Attachment, Change, ChangeError, Mode, OnFault, Position, Reach, Report, Upgrade,
};
use provostd::{Node, NodeParts};
use support::*;
use traffic::Traffic;

/// Seeded changes of one run.
const CHANGES: usize = 400;
/// Rounds in which two policies are given a version that fails.
const TWO_AT_A_TIME: usize = 100;
/// Rounds of a soak on the same nodes, after each of which its memory is looked at.
const ROUNDS: u32 = 12;
/// By how much it may be larger than after the first of them.
const GROWTH_BYTES_MAX: u64 = 16 << 20;
/// Connections of the client.
const CONNECTIONS: usize = 3;
/// The variable that names the control socket to a process that is to take over from a test.
const SOCKET_VARIABLE: &str = "PROVOST_TEST_CONTROL_SOCKET";

/// Nodes between which traffic goes, and the one that is changed.
struct Scene {
    nodes: Vec<TestNode>,
    notes: Arc<Notes>,
    traffic: Traffic,
}

impl Scene {
    fn over_tcp() -> Scene {
        let notes = Arc::new(Notes::default());
        let far = TestNode::start_with_kinds(|_| {}, kinds::registry(&notes));
        let endpoint = far.node.addresses()[0].to_string();
        let near = TestNode::start_with_kinds(|config| route(config, endpoint), kinds::registry(&notes));
        let (server, client) = (TestApp::attach(&far), TestApp::attach(&near));
        Scene::of(server, client, vec![near, far], notes)
    }

    fn on_one_node() -> Scene {
        let notes = Arc::new(Notes::default());
        let node = TestNode::start_with_kinds(|config| config.runtime.threads = 2, kinds::registry(&notes));
        let (server, client) = (TestApp::attach(&node), TestApp::attach(&node));
        Scene::of(server, client, vec![node], notes)
    }

    /// A node with a client that uses all of its connections but the first.
    fn with_idle_connection() -> Scene {
        let notes = Arc::new(Notes::default());
        let node = TestNode::start_with_kinds(|config| config.runtime.threads = 2, kinds::registry(&notes));
        let (mut server, mut client) = (TestApp::attach(&node), TestApp::attach(&node));
        server.bind();
        client.connect();
        Scene::bound(server, client, vec![node], notes)
    }

    /// A node with two clients; changes are for the first alone.
    fn with_bystander() -> Scene {
        let notes = Arc::new(Notes::default());
        let node = TestNode::start_with_kinds(|_| {}, kinds::registry(&notes));
        let mut server = TestApp::attach_as(&node, named("server"));
        server.bind();
        let clients = ["test", "bystander"].map(|name| {
            let mut client = TestApp::attach_as(&node, named(name));
            let connections = (0..CONNECTIONS).map(|_| client.connect()).collect();
            (client, connections)
        });
        Scene {
            nodes: vec![node],
            notes,
            traffic: Traffic::of_clients(server, clients.into()),
        }
    }

    fn of(mut server: TestApp, client: TestApp, nodes: Vec<TestNode>, notes: Arc<Notes>) -> Scene {
        server.bind();
        Scene::bound(server, client, nodes, notes)
    }

    fn bound(server: TestApp, mut client: TestApp, nodes: Vec<TestNode>, notes: Arc<Notes>) -> Scene {
        let connections = (0..CONNECTIONS).map(|_| client.connect()).collect();
        Scene {
            nodes,
            notes,
            traffic: Traffic::start(server, client, connections),
        }
    }

    fn change(&self, change: Change) -> Result<Report, ChangeError> {
        self.nodes[0].node.change(change, Mode::Apply)
    }
}

fn named(name: &str) -> provost_wire::control::Attach {
    provost_wire::control::Attach {
        name: name.into(),
        ..attach_request()
    }
}

fn route(config: &mut provostd::Config, endpoint: String) {
    config.routes.push(provostd::config::RouteConfig {
        service: SERVICE.to_owned(),
        transport: provostd::config::RouteTransport::Over(provostd::TransportKind::Tcp),
        endpoints: vec![endpoint],
        ..provostd::config::RouteConfig::default()
    });
}

fn witness(name: &str, version: u32) -> Attachment {
    Attachment {
        name: name.to_owned(),
        version: Some(version),
        app: "test".into(),
        ..Attachment::of_kind(WITNESS)
    }
}

fn attach(attachment: Attachment) -> Change {
    Change::Attach {
        attachment,
        at: Position::Last,
    }
}

fn upgrade(name: &str, version: u32) -> Change {
    Change::Upgrade(Upgrade {
        kind: WITNESS.to_owned(),
        version: Some(version),
        policy: Some(name.to_owned()),
        reach: Reach::All,
    })
}

#[test]
fn a_policy_comes_and_goes_while_calls_go_on() {
    for scene in [Scene::over_tcp(), Scene::on_one_node()] {
        scene.traffic.let_calls_pass(100);
        let report = scene.change(attach(witness("w", 1))).expect("attached");
        assert!(report.datapaths >= CONNECTIONS, "{report:?}");
        assert!(report.after.contains("name = \"w\""), "{report:?}");
        scene.traffic.let_calls_pass(300);
        assert!(scene.notes.judged.load(Ordering::Relaxed) > 300);
        let twice = scene.change(attach(witness("w", 1)));
        assert!(matches!(twice, Err(ChangeError::NameTaken { .. })));
        scene
            .change(Change::Detach { name: "w".into() })
            .expect("detached");
        let unknown = scene.change(Change::Detach { name: "w".into() });
        assert!(matches!(unknown, Err(ChangeError::NoSuchPolicy { .. })));
        scene.traffic.let_calls_pass(100);
        let judged = scene.notes.judged.load(Ordering::Relaxed);
        scene.traffic.let_calls_pass(300);
        assert_eq!(scene.notes.judged.load(Ordering::Relaxed), judged);
        assert_eq!(scene.notes.missed.load(Ordering::Relaxed), 0);
        scene.traffic.finish();
    }
}

#[test]
fn a_version_that_does_not_take_over_changes_nothing_anywhere() {
    let scene = Scene::on_one_node();
    scene.change(attach(witness("w", 1))).expect("attached");
    scene.traffic.let_calls_pass(100);
    let refused = scene.change(upgrade("w", 4)).expect_err("a version that refuses");
    let text = refused.to_string();
    assert!(matches!(refused, ChangeError::Undone { .. }), "{text}");
    for part in ["w did not take over", "connection", "app \"test\"", "as asked"] {
        assert!(text.contains(part), "{text}");
    }
    let unfit = scene
        .change(upgrade("w", 6))
        .expect_err("a version that fits no datapath");
    assert!(matches!(unfit, ChangeError::Unfit { .. }), "{unfit}");
    let config = toml::Table::from_iter([("wrong".to_owned(), toml::Value::Boolean(true))]);
    let set = Change::Set {
        name: "w".into(),
        config,
    };
    let wrong = scene.change(set).expect_err("a configuration that is refused");
    assert!(
        wrong
            .to_string()
            .contains("policy \"w\": config: wrong: as asked"),
        "{wrong}"
    );
    scene.traffic.let_calls_pass(300);
    scene.change(upgrade("w", 2)).expect("a version that takes over");
    scene.traffic.let_calls_pass(300);
    let back = Change::Rollback {
        engine: WITNESS.into(),
    };
    scene.change(back).expect("the version before");
    scene.traffic.let_calls_pass(300);
    assert_eq!(scene.notes.missed.load(Ordering::Relaxed), 0);
    scene.traffic.finish();
}

#[test]
fn a_change_that_cannot_be_undone_on_one_connection_is_undone_on_the_others() {
    let scene = Scene::with_idle_connection();
    scene.change(attach(witness("w", 8))).expect("attached");
    scene.traffic.let_calls_pass(100);
    let connections = scene.notes.connections.lock().expect("no panic").clone();
    // The first one is idle.
    let (stuck, odd) = (connections.first(), connections.last());
    let (stuck, odd) = (*stuck.expect("connections"), *odd.expect("connections"));
    scene.notes.unfit_connection.store(stuck, Ordering::Relaxed);
    scene.notes.odd_connection.store(odd, Ordering::Relaxed);
    let refused = scene.change(upgrade("w", 7)).expect_err("it does not take over");
    assert!(matches!(refused, ChangeError::NotUndone { .. }), "{refused}");
    let text = refused.to_string();
    for part in [
        format!("did not take over on connection {odd} "),
        format!(". It could not be changed back on: connection {stuck}: as asked. "),
    ] {
        assert!(text.contains(&part), "{text}");
    }
    assert!(!text.contains("nothing has changed"), "{text}");
    scene.traffic.let_calls_pass(300);
    // That one ends, though nothing fits it; all others have what they had.
    let until = Instant::now() + WAIT_MAX;
    let report = loop {
        let order = Change::Order {
            names: vec!["w".into()],
        };
        match scene.change(order) {
            Ok(report) => break report,
            Err(refused) => assert!(Instant::now() < until, "{refused}"),
        }
    };
    assert_eq!(report.datapaths, 0, "{report:?}");
    scene.traffic.let_calls_pass(300);
    assert_eq!(scene.notes.missed.load(Ordering::Relaxed), 0);
    scene.traffic.finish();
}

#[test]
fn an_upgrade_that_fails_its_first_calls_is_taken_back_everywhere() {
    let scene = Scene::over_tcp();
    scene.change(attach(witness("w", 1))).expect("attached");
    for _ in 0..5 {
        scene.traffic.let_calls_pass(50);
        match scene.change(upgrade("w", 5)) {
            Ok(_) => {}
            // It failed while others were still being changed.
            Err(ChangeError::Undone { problem, .. }) => assert!(problem.contains("trial"), "{problem}"),
            Err(other) => panic!("{other}"),
        }
        scene.traffic.let_calls_pass(1000);
        assert_ne!(scene.notes.failures.load(Ordering::Relaxed), 0);
        // It has the version before again: its upgrade touches every datapath.
        let report = scene.change(upgrade("w", 2)).expect("a good version");
        assert_eq!(report.datapaths, CONNECTIONS, "{report:?}");
        scene.change(upgrade("w", 1)).expect("a good version");
    }
    scene.traffic.finish();
}

/// While one change is undone, what another one brought fails too: it must not come back with what is undone.
#[test]
fn failures_of_two_policies_at_a_time_are_both_taken_back() {
    let scene = Scene::on_one_node();
    for name in ["v", "w"] {
        scene.change(attach(witness(name, 1))).expect("attached");
    }
    let mut undone = 0;
    for _ in 0..TWO_AT_A_TIME {
        for (name, version) in [("v", 5), ("w", 5), ("v", 2), ("w", 2), ("v", 1), ("w", 1)] {
            match scene.change(upgrade(name, version)) {
                // One that was taken back already has the version.
                Ok(_) | Err(ChangeError::NothingToUpgrade { .. }) => {}
                Err(ChangeError::Undone { .. }) => undone += 1,
                Err(other) => panic!("{name} to {version}: {other}"),
            }
        }
    }
    println!(
        "{undone} undone, {} failures",
        scene.notes.failures.load(Ordering::Relaxed)
    );
    assert_ne!(undone, 0);
    scene.traffic.let_calls_pass(300);
    scene.traffic.finish();
}

#[test]
fn an_attached_policy_that_fails_its_first_calls_is_withdrawn() {
    let scene = Scene::over_tcp();
    scene.traffic.let_calls_pass(50);
    match scene.change(attach(witness("w", 5))) {
        Ok(_) | Err(ChangeError::Undone { .. }) => {}
        Err(other) => panic!("{other}"),
    }
    scene.traffic.let_calls_pass(1000);
    assert_ne!(scene.notes.failures.load(Ordering::Relaxed), 0);
    let gone = scene.change(Change::Detach { name: "w".into() });
    assert!(matches!(gone, Err(ChangeError::NoSuchPolicy { .. })), "{gone:?}");
    scene.traffic.finish();
}

/// A node where a policy is attached from the start that fails within some steps: nothing is on probation.
fn failing_from_the_start(on_fault: OnFault) -> (TestNode, Arc<Notes>) {
    let notes = Arc::new(Notes::default());
    let attachment = Attachment {
        on_fault,
        side: AppliesTo::Client,
        ..witness("w", 5)
    };
    let node = TestNode::start_with_kinds(
        |config| config.attachments.push(attachment),
        kinds::registry(&notes),
    );
    (node, notes)
}

#[test]
fn a_policy_that_fails_later_lets_calls_pass_if_it_was_attached_so() {
    let (node, notes) = failing_from_the_start(OnFault::Pass);
    let (server, client) = (TestApp::attach(&node), TestApp::attach(&node));
    let scene = Scene::of(server, client, vec![node], notes);
    scene.traffic.let_calls_pass(2000);
    assert_eq!(scene.notes.failures.load(Ordering::Relaxed), CONNECTIONS as u64);
    let report = scene.change(upgrade("w", 1)).expect("a good version");
    assert_eq!(report.datapaths, CONNECTIONS, "it judges again");
    scene.traffic.finish();
}

/// Makes a call, answers it, and says how it ended.
fn call(server: &mut TestApp, client: &mut TestApp, connection: u32) -> (Code, String) {
    let root = client.write_note(0, 1 << 40, "", &[]);
    client.begin(connection, root);
    let until = Instant::now() + WAIT_MAX;
    loop {
        if let Some(request) = server.poll()
            && request.kind == completion_kind::STEP
            && request.parts.contains(Parts::BEGIN)
        {
            let answer = server.write_note(1, 1 << 40, "", &[]);
            server.answer(&request, answer);
            server.reclaim(request.block);
        }
        if let Some(end) = client.poll()
            && end.kind == completion_kind::STEP
        {
            let reason = if end.parts.contains(Parts::CANCEL) {
                client.status_message(&end)
            } else {
                String::new()
            };
            client.reclaim(end.block);
            return (status(&end), reason);
        }
        assert!(Instant::now() < until, "the call does not end");
    }
}

#[test]
fn an_upgrade_that_fails_on_connections_that_open_after_it_is_taken_back_too() {
    let notes = Arc::new(Notes::default());
    let node = TestNode::start_with_kinds(|_| {}, kinds::registry(&notes));
    let (mut server, mut client) = (TestApp::attach(&node), TestApp::attach(&node));
    server.bind();
    let change = |change| node.node.change(change, Mode::Apply).expect("a change");
    change(attach(witness("w", 1)));
    // Two that fail, one upon the other, and no connection yet to show it.
    assert_eq!(change(upgrade("w", 5)).datapaths, 0);
    let config = toml::Table::from_iter([("value".to_owned(), toml::Value::Integer(1))]);
    change(Change::Set {
        name: "w".into(),
        config,
    });
    let connection = client.connect();
    for at in 0..1000 {
        let (code, reason) = call(&mut server, &mut client, connection);
        assert_eq!(code, Code::Ok, "call {at}: {reason}");
    }
    // On either side of the connection.
    assert_ne!(notes.failures.load(Ordering::Relaxed), 0);
    let report = change(upgrade("w", 2));
    assert!(report.before.contains("version = 1"), "{report:?}");
}

/// The new process would not know of the failure.
#[test]
fn a_failure_on_probation_while_the_node_is_replaced_is_dealt_with_first() {
    let notes = Arc::new(Notes::default());
    let node = TestNode::start_with_kinds(|_| {}, kinds::registry(&notes));
    let (mut server, mut client) = (TestApp::attach(&node), TestApp::attach(&node));
    server.bind();
    let connection = client.connect();
    let change = |change| node.node.change(change, Mode::Apply);
    change(attach(witness("w", 1))).expect("attached");
    change(upgrade("w", 5)).expect("a version that fails later");
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str| directory.path().join(name);
    let script = format!(
        "touch {0}/started; until [ -e {0}/go ]; do sleep 0.01; done; export {SOCKET_VARIABLE}={1}; \
         exec {2} --exact the_successor_of_a_test --ignored --nocapture",
        directory.path().display(),
        node.socket.display(),
        std::env::current_exe().expect("a program").display(),
    );
    let outcome = node.node.begin_upgrade(UpgradeRequest {
        binary: Some("/bin/sh".into()),
        arguments: Some(vec!["-c".into(), script.into()]),
        ready_within: Some(WAIT_MAX),
    });
    let until = Instant::now() + WAIT_MAX;
    while !file("started").exists() {
        assert!(Instant::now() < until, "the other process does not start");
        std::thread::sleep(Duration::from_millis(1));
    }
    while notes.failures.load(Ordering::Relaxed) == 0 {
        assert_eq!(call(&mut server, &mut client, connection).0, Code::Ok);
    }
    std::fs::write(file("go"), "").expect("a file");
    let outcome = outcome.blocking_recv().expect("an outcome");
    if let Ok(report) = &outcome
        && let Some(process) = rustix::process::Pid::from_raw(report.process as i32)
    {
        let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
    }
    assert!(matches!(outcome, Err(UpgradeError::TakesBack)), "{outcome:?}");
    let report = change(upgrade("w", 2)).expect("a good version");
    assert!(report.before.contains("version = 1"), "{report:?}");
    assert_eq!(call(&mut server, &mut client, connection).0, Code::Ok);
}

#[test]
#[ignore = "another test starts it in a process of its own, which is to take over from that one"]
fn the_successor_of_a_test() {
    let Some(socket) = std::env::var_os(SOCKET_VARIABLE) else {
        return;
    };
    let mut config = provostd::Config::default();
    config.control.socket = socket.into();
    let parts = NodeParts {
        config,
        kinds: kinds::registry(&Arc::default()),
        sources: Sources::default(),
    };
    let predecessor = Predecessor::at_standard_input().expect("a channel");
    if let Ok(node) = Node::hot_restart(parts, predecessor) {
        node.join();
    }
}

#[test]
fn a_policy_that_fails_later_ends_calls_until_it_is_upgraded() {
    let (node, _) = failing_from_the_start(OnFault::Deny);
    let (mut server, mut client) = (TestApp::attach(&node), TestApp::attach(&node));
    server.bind();
    let connection = client.connect();
    let mut ends = (0..300).map(|_| call(&mut server, &mut client, connection));
    let (code, reason) = ends
        .find(|(code, _)| *code != Code::Ok)
        .expect("it has failed by then");
    assert_eq!(code, Code::Unavailable);
    assert!(reason.contains("policy \"w\" has failed"), "{reason}");
    assert_eq!(call(&mut server, &mut client, connection).0, Code::Unavailable);
    node.node
        .change(upgrade("w", 1), Mode::Apply)
        .expect("a good version");
    assert_eq!(call(&mut server, &mut client, connection).0, Code::Ok);
}

#[test]
fn a_dry_run_says_what_would_change_and_changes_nothing() {
    let scene = Scene::on_one_node();
    let node = &scene.nodes[0].node;
    let report = node
        .change(attach(witness("w", 1)), Mode::DryRun)
        .expect("it would go");
    assert_eq!((report.number, report.datapaths), (0, 2 * CONNECTIONS));
    assert!(node.change(attach(witness("w", 6)), Mode::DryRun).is_err());
    scene.traffic.let_calls_pass(200);
    assert_eq!(scene.notes.judged.load(Ordering::Relaxed), 0);
    scene.traffic.finish();
}

#[test]
fn connections_that_open_during_changes_have_what_is_attached_then() {
    let notes = Arc::new(Notes::default());
    let node = TestNode::start_with_kinds(|_| {}, kinds::registry(&notes));
    let mut server = TestApp::attach(&node);
    server.bind();
    std::thread::scope(|scope| {
        let changer = scope.spawn(|| {
            for round in 0..60 {
                let change = match round % 2 {
                    0 => attach(witness("w", 1)),
                    _ => Change::Detach { name: "w".into() },
                };
                node.node.change(change, Mode::Apply).expect("a change");
            }
            node.node
                .change(attach(witness("w", 1)), Mode::Apply)
                .expect("attached")
        });
        let mut client = TestApp::attach(&node);
        let connections: Vec<_> = (0..40).map(|_| client.connect()).collect();
        changer.join().expect("no change failed");
        // Each of them is judged on both sides: the request and the answer, four times in all.
        for connection in connections {
            let before = notes.judged.load(Ordering::Relaxed);
            let root = client.write_note(0, 1 << 40, "", &[]);
            client.begin(connection, root);
            let request = server.next_of(completion_kind::STEP);
            server.reclaim(request.block);
            let answer = server.write_note(1, 1 << 40, "", &[]);
            server.answer(&request, answer);
            let response = client.next_of(completion_kind::STEP);
            client.reclaim(response.block);
            assert_eq!(notes.judged.load(Ordering::Relaxed) - before, 4);
        }
    });
}

/// What is thought to be attached.
fn random_change(random: &mut SeededRandom, names: &mut Vec<String>, next: &mut u64) -> Change {
    let pick = |random: &mut SeededRandom, names: &[String]| {
        names[random.below(names.len() as u64) as usize].clone()
    };
    let choice = match names.len() {
        0 => 0,
        1..=5 => random.below(12),
        _ => 1 + random.below(11),
    };
    match choice {
        0 | 11 => {
            *next += 1;
            let name = format!("w{next}");
            let at = random.below(names.len() as u64 + 1) as usize;
            let version = 1 + random.below(3) as u32;
            names.insert(at, name.clone());
            Change::Attach {
                attachment: witness(&name, version),
                at: Position::At(at),
            }
        }
        1 | 2 => {
            let name = pick(random, names);
            names.retain(|other| *other != name);
            Change::Detach { name }
        }
        3 | 4 => {
            for at in (1..names.len()).rev() {
                names.swap(at, random.below(at as u64 + 1) as usize);
            }
            Change::Order { names: names.clone() }
        }
        5 | 6 => Change::Set {
            name: pick(random, names),
            config: toml::Table::from_iter([(
                "value".to_owned(),
                toml::Value::Integer(random.below(9) as i64),
            )]),
        },
        7 => Change::Upgrade(Upgrade {
            kind: provostd_transport(),
            version: Some(1 + random.below(2) as u32),
            policy: None,
            reach: Reach::All,
        }),
        8 => Change::Rollback {
            engine: WITNESS.into(),
        },
        _ => {
            let name = pick(random, names);
            let version = 1 + random.below(5) as u32;
            let reach = match random.below(4) {
                0 => Reach::App("test".into()),
                1 => Reach::Connection(1 + random.below(6)),
                _ => Reach::All,
            };
            Change::Upgrade(Upgrade {
                kind: WITNESS.into(),
                version: Some(version),
                policy: Some(name),
                reach,
            })
        }
    }
}

fn provostd_transport() -> String {
    "transport-tcp".to_owned()
}

/// How long a run of random changes goes on.
#[derive(Clone, Copy)]
enum Until {
    Changes(usize),
    Time(Instant),
}

impl Until {
    fn is_over(self, changes: usize) -> bool {
        match self {
            Until::Changes(count) => changes >= count,
            Until::Time(at) => Instant::now() >= at,
        }
    }
}

/// What random changes came to.
#[derive(Debug, Default)]
struct Tally {
    made: usize,
    undone: usize,
    pauses_ns: Vec<u64>,
}

impl Tally {
    /// A pause that this part of all changes does not exceed, in microseconds.
    fn pause_us(&self, part: f64) -> u64 {
        let at = (self.pauses_ns.len() as f64 * part) as usize;
        self.pauses_ns
            .get(at.min(self.pauses_ns.len().saturating_sub(1)))
            .map_or(0, |ns| ns / 1000)
    }
}

fn make_random_changes(scene: &Scene, seed: u64, until: Until) -> Tally {
    if std::env::var_os(provostd::log::FILTER_VARIABLE).is_some() {
        provostd::log::start(&provostd::config::LogConfig::default()).expect("a filter");
    }
    let mut random = SeededRandom::new(seed);
    let (mut names, mut next) = (Vec::new(), 0);
    let mut tally = Tally::default();
    let mut at = 0;
    while !until.is_over(at) {
        at += 1;
        let before = names.clone();
        let change = random_change(&mut random, &mut names, &mut next);
        let what = format!("{change:?}");
        match scene.change(change) {
            Ok(report) => {
                tally.made += 1;
                tally.pauses_ns.push(report.pause_ns_max);
            }
            Err(ChangeError::Undone { .. } | ChangeError::NothingBefore { .. }) => {
                tally.undone += 1;
                names = before;
            }
            Err(other) => panic!("seed {seed}, change {at}, {what}: {other}"),
        }
        if random.below(3) == 0 {
            std::thread::sleep(Duration::from_micros(random.below(2000)));
        }
    }
    // Nothing is left of them.
    let apply = Change::Apply {
        attachments: Vec::new(),
    };
    scene.change(apply).expect("an empty table");
    tally.pauses_ns.sort_unstable();
    tally
}

fn run_random_changes(scene: Scene, seed: u64, changes: usize) {
    let tally = make_random_changes(&scene, seed, Until::Changes(changes));
    scene.traffic.let_calls_pass(300);
    report(&tally, &scene, seed);
    scene.traffic.finish();
    assert!(tally.made > changes / 2, "only {} changes were made", tally.made);
}

fn report(tally: &Tally, scene: &Scene, seed: u64) {
    println!(
        "seed {seed}: {} changes made, {} undone, {} failures of engines; pause of a datapath p50 {} us, p99.9 {} us, max \
         {} us",
        tally.made,
        tally.undone,
        scene.notes.failures.load(Ordering::Relaxed),
        tally.pause_us(0.5),
        tally.pause_us(0.999),
        tally.pause_us(1.0),
    );
    for (at, counts) in scene.traffic.of_clients.iter().enumerate() {
        println!(
            "  client {at}: {} unary calls, {} messages of {} streams; longest gap between completions {} us",
            counts.unary.load(Ordering::Relaxed),
            counts.messages.load(Ordering::Relaxed),
            counts.streams.load(Ordering::Relaxed),
            counts.gap_us_max.load(Ordering::Relaxed),
        );
    }
}

#[test]
fn random_changes_over_tcp_fail_no_call() {
    run_random_changes(Scene::over_tcp(), 1, CHANGES);
}

#[test]
fn random_changes_on_one_node_fail_no_call() {
    run_random_changes(Scene::on_one_node(), 2, CHANGES);
}

#[test]
fn a_transport_goes_to_another_version_and_back_on_one_connection_and_on_all() {
    let scene = Scene::over_tcp();
    let to = |version, reach| {
        Change::Upgrade(Upgrade {
            kind: provostd_transport(),
            version: Some(version),
            policy: None,
            reach,
        })
    };
    for _ in 0..20 {
        scene.traffic.let_calls_pass(20);
        let one = scene.change(to(2, Reach::Connection(1))).expect("version 2");
        assert_eq!(one.datapaths, 1);
        let rest = scene.change(to(2, Reach::All)).expect("version 2");
        assert_eq!(rest.datapaths, CONNECTIONS - 1);
        scene.traffic.let_calls_pass(20);
        let engine = provostd_transport();
        let back = scene.change(Change::Rollback { engine }).expect("version 1");
        assert_eq!(back.datapaths, CONNECTIONS);
    }
    let unknown = scene.change(to(3, Reach::All));
    assert!(
        matches!(unknown, Err(ChangeError::NothingToUpgrade { .. })),
        "{unknown:?}"
    );
    scene.traffic.finish();
}

#[test]
fn another_app_of_the_node_goes_on_through_changes_for_one() {
    let scene = Scene::with_bystander();
    make_random_changes(&scene, 3, Until::Changes(CHANGES / 4));
    let judged = scene.notes.judged.load(Ordering::Relaxed);
    assert_ne!(judged, 0);
    scene.traffic.finish();
}

/// Changes for as long as `PROVOST_SOAK_MINUTES` says: `cargo xtask soak upgrade`.
#[test]
#[ignore = "for an hour"]
fn soak() {
    let minutes = std::env::var("PROVOST_SOAK_MINUTES").ok();
    let minutes: f64 = minutes.and_then(|text| text.parse().ok()).unwrap_or(1.0);
    let scenes: [fn() -> Scene; 3] = [Scene::over_tcp, Scene::on_one_node, Scene::with_bystander];
    let share = Duration::from_secs_f64(60.0 * minutes) / scenes.len() as u32;
    let mut seed = 0;
    for make in scenes {
        let scene = make();
        let end = Instant::now() + share;
        let mut memory_at_first = None;
        let mut round = 0;
        while Instant::now() < end {
            (seed, round) = (seed + 1, round + 1);
            let until = end.min(Instant::now() + share / ROUNDS);
            let tally = make_random_changes(&scene, seed, Until::Time(until));
            report(&tally, &scene, seed);
            let memory = resident_bytes();
            println!("  {} MB resident", memory >> 20);
            // The first rounds fill pools and the allocator's free lists.
            if round == ROUNDS / 4 {
                memory_at_first = Some(memory);
            }
            if let Some(first) = memory_at_first {
                assert!(
                    memory < first + GROWTH_BYTES_MAX,
                    "memory grows: {first} bytes, then {memory}"
                );
            }
        }
        scene.traffic.finish();
    }
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
    kilobytes
        .and_then(|text| text.parse::<u64>().ok())
        .expect("a number of kB")
        << 10
}
