//! Fault injection between real apps and nodes: what callers see, and that it is the same each time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use provost::{Code, Request};
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::probe::EchoMessage;
use provost_e2e::probe::probe_client::blocking::ProbeClient;
use provost_e2e::script::{Ask, Hold};
use provost_e2e::{Node, NodeOptions, Setting, World, built, eventually, watched};
use rustix::process::Signal;
use serde_json::Value;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");

/// A node with faults in calls of one method.
fn faulty(method: &str, config: &str) -> NodeOptions {
    NodeOptions {
        tables: format!(
            "[[policy]]\nname = \"trial\"\nkind = \"fault\"\nmethods = [\"{method}\"]\n[policy.config]\n{config}"
        ),
        ..NodeOptions::default()
    }
}

/// What comes of so many calls, one after the other.
fn codes(client: &ProbeClient, calls: usize) -> Vec<Code> {
    let code = || match client.echo(EchoMessage::default()) {
        Ok(_) => Code::Ok,
        Err(status) => status.code(),
    };
    std::iter::repeat_with(code).take(calls).collect()
}

#[test]
fn the_same_calls_meet_the_same_faults_on_either_side() {
    watched(|| {
        let faults = faulty(
            "Echo",
            "seed = 11\n[policy.config.abort]\npercentage = 30.0\ngrpc_status = \"ABORTED\"\n",
        );
        let none = NodeOptions::default();
        let runs: Vec<_> = [(&faults, &none), (&faults, &none), (&none, &faults)]
            .into_iter()
            .map(|(options_a, options_b)| codes(&Setting::with(ROLE, options_a, options_b).a.client(), 100))
            .collect();
        let aborted = runs[0].iter().filter(|code| **code == Code::Aborted).count();
        assert!((10..55).contains(&aborted), "{aborted}");
        assert!(runs.iter().all(|run| *run == runs[0]), "{runs:?}");
    });
}

#[test]
fn only_calls_that_match_are_delayed() {
    watched(|| {
        let faults = faulty(
            "Echo",
            "[policy.config.match]\nx-trial = \"slow\"\n[policy.config.delay]\npercentage = 100\nfixed_delay_ms = 200\n",
        );
        let setting = Setting::with(ROLE, &faults, &NodeOptions::default());
        let client = setting.a.client();
        let mut request = Request::new(EchoMessage::default());
        request.metadata_mut().insert("x-trial", "slow").unwrap();
        let began = Instant::now();
        client.echo(request).unwrap();
        assert!(began.elapsed().as_millis() >= 200);
        let mut other = Request::new(EchoMessage::default());
        other.metadata_mut().insert("x-trial", "fast").unwrap();
        client.echo(other).unwrap();
    });
}

#[test]
fn a_response_fault_comes_after_the_handler_ran() {
    watched(|| {
        let faults = faulty(
            "Hold",
            "[policy.config.response_abort]\npercentage = 100\ngrpc_status = 15\nmessage = \"lost\"\n",
        );
        for (options_a, options_b) in [
            (&faults, &NodeOptions::default()),
            (&NodeOptions::default(), &faults),
        ] {
            let mut setting = Setting::with(ROLE, options_a, options_b);
            let failure = setting.agent.fails(Ask::Hold(Hold {
                key: "ran".into(),
                ..Hold::default()
            }));
            assert_eq!((failure.code, failure.message.as_str()), (Code::DataLoss, "lost"));
            let ran = setting.agent.succeeds(Ask::Counts { key: "ran".into() });
            assert_eq!((ran.begun, ran.finished), (1, 1), "{ran:?}");
        }
    });
}

/// The drain of a node waits for calls that its policies hold, of which no server has heard yet.
#[test]
fn a_call_that_is_held_outlives_the_drain_of_its_node() {
    watched(|| {
        let faults = faulty(
            "Echo",
            "[policy.config.delay]\npercentage = 100\nfixed_delay_ms = 3000\n",
        );
        let mut apart = Setting::with(ROLE, &faults, &NodeOptions::default());
        is_answered_though_the_node_ends(&mut apart.a);
        let mut world = World::new(ROLE);
        let within = "[[route]]\nservice = \"probe.Probe\"\ntransport = \"local\"\n";
        let mut one = world.node(
            "one",
            &NodeOptions {
                tables: format!("{within}{}", faults.tables),
                ..NodeOptions::default()
            },
        );
        let _server = world.server(&one);
        is_answered_though_the_node_ends(&mut one);
    });
}

fn is_answered_though_the_node_ends(node: &mut Node) {
    let client = node.client();
    // The first use of the command may build it.
    node.operate(&["status"]);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| client.echo(EchoMessage::default()));
        eventually("the policy holds the call", WAIT_MAX, || {
            let datapaths: Value = serde_json::from_str(&node.operate(&["datapath", "--json"])).unwrap();
            datapaths.to_string().contains("\"held\":1")
        });
        node.program.signal(Signal::TERM);
        call.join().unwrap().unwrap();
    });
    assert!(node.program.ends_within(WAIT_MAX).is_some());
}

/// What `provost insight live` tells of where calls spend their time, while they are made.
#[test]
fn a_delay_has_its_own_line_where_the_time_of_calls_is_divided() {
    const DELAY_US: f64 = 4_000.0;
    built::program("provost", "provost-cli", ROLE);
    built::program("provost-insight", "provost-insight-cli", ROLE);
    watched(|| {
        let mut delayed = faulty(
            "Echo",
            "[policy.config.delay]\npercentage = 100.0\nfixed_delay_ms = 4\n",
        );
        let counted = "[[policy]]\nname = \"numbers\"\nkind = \"metrics\"\n";
        delayed.tables = format!(
            "{counted}[[policy]]\nname = \"idle\"\nkind = \"fault\"\n{}",
            delayed.tables
        );
        let others = NodeOptions {
            tables: counted.into(),
            ..NodeOptions::default()
        };
        let setting = Setting::with(ROLE, &delayed, &others);
        let (client, is_over) = (setting.a.client(), AtomicBool::new(false));
        let told = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    client.echo(EchoMessage::default()).unwrap();
                }
            });
            let peer = setting.b.admin_socket.to_str().unwrap();
            let live = [
                "insight",
                "live",
                "--seconds",
                "1",
                "--peer-socket",
                peer,
                "--json",
            ];
            let told = setting.a.try_operate(&live);
            is_over.store(true, Ordering::Relaxed);
            told.unwrap()
        });
        let told: Value = serde_json::from_str(&told).unwrap();
        let [calls, serves] = [0, 1].map(|at| &told["nodes"][at]);
        let number = |value: &Value| value.as_f64().unwrap();
        let of_policy = |node: &Value, name: &str| {
            let policies = node["policies"].as_array().unwrap();
            let found = policies.iter().find(|policy| policy["policy"] == name);
            found
                .unwrap_or_else(|| panic!("no policy {name}: {told}"))
                .clone()
        };
        let (idle, trial) = (of_policy(calls, "idle"), of_policy(calls, "trial"));
        assert_eq!(trial["kind"], "fault");
        assert!(number(&trial["us_per_wait"]) >= DELAY_US, "{told}");
        // A call waits once. Calls at the edges of the second may be on one side only.
        assert!(number(&trial["us_per_call"]) >= 0.8 * DELAY_US, "{told}");
        assert!(
            number(&calls["queueing_us"]) < number(&trial["us_per_call"]),
            "{told}"
        );
        assert!(number(&calls["in_node_us"]) >= 0.8 * DELAY_US, "{told}");
        let of_methods = trial["methods"].as_array().unwrap();
        let [only] = &of_methods[..] else {
            panic!("one method waits: {told}")
        };
        let method = only["method"].as_str().unwrap();
        assert!(
            told["methods"]
                .as_array()
                .unwrap()
                .iter()
                .any(|made| made["method"] == method),
            "{told}"
        );
        assert_eq!(only["waits_per_s"], trial["waits_per_s"]);
        assert!(number(&only["us_per_call"]) >= 0.8 * DELAY_US, "{told}");
        assert_eq!(idle["methods"].as_array().map(Vec::len), Some(0));
        assert_eq!(
            (number(&idle["waits_per_s"]), number(&idle["us_per_call"])),
            (0.0, 0.0)
        );
        assert_eq!(number(&of_policy(serves, "numbers")["us_per_call"]), 0.0);
        assert!(
            number(&serves["rate"]) > 0.0 && number(&serves["in_node_us"]) < DELAY_US,
            "{told}"
        );
    });
}
