//! Fault injection between real apps and nodes: what callers see, and that it is the same each time.

use std::time::Instant;

use provost::blocking::block_on;
use provost::{App, Channel, Code, Request};
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::probe::EchoMessage;
use provost_e2e::probe::probe_client::blocking::ProbeClient;
use provost_e2e::probe::probe_service::SERVICE;
use provost_e2e::script::{Ask, Hold};
use provost_e2e::{Node, NodeOptions, Setting, World, eventually, watched};
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

fn client(node: &Node) -> ProbeClient {
    let app = App::builder().socket(&node.socket).attach().unwrap();
    let channel = block_on(Channel::builder(&SERVICE).app(&app).connect("probe.Probe"));
    ProbeClient::new(channel.unwrap())
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
            .map(|(options_a, options_b)| codes(&client(&Setting::with(ROLE, options_a, options_b).a), 100))
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
        let client = client(&setting.a);
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
    let client = client(node);
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
