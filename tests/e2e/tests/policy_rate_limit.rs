//! Rate limits between real apps and nodes: on both sides, over several apps, queued, and through live upgrades.

use provost::{Code, Status};
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::probe::EchoMessage;
use provost_e2e::probe::probe_client::blocking::ProbeClient;
use provost_e2e::scrape::{metrics, value};
use provost_e2e::script::{Ask, Echo};
use provost_e2e::{Node, NodeOptions, Setting, World, built, eventually, watched};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");

/// What a client is told about trying again.
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// A node with a limit: so few calls a second that none comes while a test lasts, but for the burst.
fn limited(config: &str) -> NodeOptions {
    NodeOptions {
        tables: format!(
            "[[policy]]\nname = \"limit\"\nkind = \"rate-limit\"\nmethods = [\"Echo\"]\n[policy.config]\n{config}\n"
        ),
        ..NodeOptions::default()
    }
}

fn echo(client: &ProbeClient) -> Result<(), Status> {
    client.echo(EchoMessage::default()).map(|_| ())
}

/// How many calls succeed until one does not, which is over the limit.
fn successes(client: &ProbeClient) -> usize {
    let failure = |status: Status| {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        status
    };
    std::iter::repeat_with(|| echo(client).map_err(failure))
        .take(10_000)
        .take_while(Result::is_ok)
        .count()
}

#[test]
fn a_call_between_two_apps_of_one_node_is_charged_once() {
    built::program("provost", "provost-cli", ROLE);
    watched(|| {
        let mut world = World::new(ROLE);
        let node = world.node("one", &NodeOptions::default());
        let _server = world.server(&node);
        let client = node.client();
        for side in ["both", "client", "server"] {
            let limit = "policy attach --kind rate-limit --service probe.Probe --set requests_per_second=0.01 --set burst=5";
            let mut attach: Vec<&str> = limit.split(' ').collect();
            attach.extend(["--side", side]);
            node.operate(&attach);
            assert_eq!(successes(&client), 5, "--side {side}");
            node.operate(&["policy", "detach", "rate-limit"]);
        }
    });
}

#[test]
fn who_is_over_the_limit_is_told_when_to_come_again_on_either_side() {
    watched(|| {
        let limit = limited("requests_per_second = 0.01\nburst = 5");
        let none = NodeOptions::default();
        for (options_a, options_b, file) in [(&limit, &none, "a.toml"), (&none, &limit, "b.toml")] {
            let setting = Setting::with(ROLE, options_a, options_b);
            let client = setting.a.client();
            assert_eq!(successes(&client), 5);
            let status = echo(&client).unwrap_err();
            let wait: u64 = status.metadata().get(PUSHBACK).unwrap().parse().unwrap();
            assert!((1..=100_000).contains(&wait), "{wait}");
            let file = setting.world.directory().join(file);
            for part in ["rate limit limit", file.to_str().unwrap()] {
                assert!(status.message().contains(part), "{status} lacks {part}");
            }
            // Other methods are free.
            for _ in 0..20 {
                client.mirror(provost_e2e::probe::Nothing::default()).unwrap();
            }
        }
    });
}

#[test]
fn all_apps_of_a_node_share_a_bucket() {
    watched(|| {
        let limit = limited("requests_per_second = 0.01\nburst = 30");
        let mut setting = Setting::with(ROLE, &limit, &NodeOptions::default());
        let ten = Ask::Echo(Echo {
            calls: 10,
            ..Echo::default()
        });
        setting.agent.succeeds(ten.clone());
        setting.world.agent(&setting.a).succeeds(ten);
        assert_eq!(successes(&setting.a.client()), 10);
    });
}

#[test]
fn queued_calls_all_succeed_no_faster_than_the_rate_and_their_method_tells_how_long_they_waited() {
    watched(|| {
        let place = tempfile::Builder::new().prefix("plim-").tempdir().unwrap();
        let queueing = limited("requests_per_second = 200\nburst = 1\non_limit = \"queue\"");
        for side in ["client", "server"] {
            let socket = place.path().join(side);
            // The limit comes behind what counts, as the app that calls sees it.
            let limit = NodeOptions {
                tables: format!(
                    "[observe]\nlisten = \"unix:{}\"\n[[policy]]\nname = \"numbers\"\nkind = \"metrics\"\n{}",
                    socket.display(),
                    queueing.tables
                ),
                ..NodeOptions::default()
            };
            let none = NodeOptions::default();
            let (options_a, options_b) = match side {
                "client" => (&limit, &none),
                _ => (&none, &limit),
            };
            let mut setting = Setting::with(ROLE, options_a, options_b);
            let done = setting.agent.succeeds(Ask::Echo(Echo {
                calls: 60,
                in_flight: 20,
                ..Echo::default()
            }));
            // 59 intervals of 5 ms.
            assert!(done.count == 60 && done.elapsed_ms >= 290, "{done:?}");
            let labels = [
                format!("side=\"{side}\""),
                "grpc_method=\"probe.Probe/Echo\"".into(),
            ];
            let queued = |what: &str| {
                let name = format!("provost_{what}");
                value(&metrics(&socket), &name, &[&labels[0], &labels[1]]).unwrap_or_default()
            };
            // The last step is counted in the round after the one in which it went.
            eventually("all steps have been counted", WAIT_MAX, || {
                queued("request_time_in_queue_seconds_count") >= 60.0
                    && queued("response_time_in_queue_seconds_count") >= 60.0
            });
            let held = value(
                &metrics(&socket),
                "provost_policy_held_seconds_sum",
                &["policy=\"limit\""],
            );
            let (held_s, queued_s) = (held.unwrap(), queued("request_time_in_queue_seconds_sum"));
            assert!(held_s > 0.0 && queued_s >= held_s - 1e-6, "{held_s} {queued_s}");
        }
    });
}

#[test]
fn a_call_that_would_wait_past_its_deadline_is_rejected_rather_than_late() {
    watched(|| {
        let limit = limited("requests_per_second = 0.01\nburst = 1\non_limit = \"queue\"");
        let mut setting = Setting::with(ROLE, &limit, &NodeOptions::default());
        setting.agent.calls_well();
        let failure = setting.agent.fails(Ask::Echo(Echo {
            timeout_ms: Some(30_000),
            ..Echo::default()
        }));
        assert_eq!(failure.code, Code::ResourceExhausted, "{failure:?}");
    });
}

/// Starts the engines of the limit anew, with their state, as an upgrade to another version of its code does.
fn upgrade(node: &Node) {
    node.operate(&[
        "engine",
        "upgrade",
        "rate-limit",
        "--version",
        "2",
        "--policy",
        "limit",
    ]);
}

#[test]
fn what_is_in_a_bucket_survives_upgrades() {
    built::program("provost", "provost-cli", ROLE);
    watched(|| {
        let limit = limited("requests_per_second = 0.01\nburst = 40\nper = [\"app\", \"method\"]");
        let setting = Setting::with(ROLE, &limit, &NodeOptions::default());
        let client = setting.a.client();
        for _ in 0..3 {
            for _ in 0..10 {
                echo(&client).unwrap();
            }
            upgrade(&setting.a);
        }
        assert_eq!(successes(&client), 10);
        // What is missing stays missing when the bucket becomes another one.
        setting
            .a
            .operate(&["policy", "set", "limit", "--set", "burst=45"]);
        assert_eq!(successes(&client), 5);
        setting
            .a
            .operate(&["policy", "set", "limit", "--set", "requests_per_second=unlimited"]);
        for _ in 0..100 {
            echo(&client).unwrap();
        }
    });
}

#[test]
fn calls_that_wait_survive_upgrades() {
    built::program("provost", "provost-cli", ROLE);
    watched(|| {
        let limit =
            limited("requests_per_second = 500\nburst = 1\non_limit = \"queue\"\nqueue_calls_max = 2000");
        let mut setting = Setting::with(ROLE, &limit, &NodeOptions::default());
        let calls = setting.agent.begin(Ask::Echo(Echo {
            calls: 1500,
            in_flight: 64,
            ..Echo::default()
        }));
        for _ in 0..6 {
            upgrade(&setting.a);
            setting
                .a
                .operate(&["policy", "set", "limit", "--set", "requests_per_second=600"]);
        }
        match setting.agent.answer(calls) {
            provost_e2e::Answer::Done(done) => assert_eq!(done.count, 1500),
            other => panic!("{other:?}"),
        }
    });
}
