//! Apps of a node call an unmodified gRPC server: one of tonic's, over `transport = "grpc"`.

#[allow(dead_code, reason = "the other test uses the rest of it")]
mod rpc_status;
#[path = "grpc_out/tonic_probe.rs"]
mod tonic_probe;

use std::net::SocketAddr;

use provost::Code;
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::script::{
    Answer, Ask, Echo, Fill, Hold, Metadatum, Pour, Reading, StatusParts, Unconnected,
};
use provost_e2e::{Agent, Node, NodeOptions, World, built, eventually, watched};
use rustix::process::{Pid, Signal, kill_process};
use tonic_probe::TonicServer;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");

/// A tonic server, and a node whose apps call it.
struct GrpcSetting {
    agent: Agent,
    node: Node,
    server: TonicServer,
    _world: World,
}

fn routed(transport: &str, endpoint: SocketAddr) -> NodeOptions {
    NodeOptions {
        tables: format!(
            "[[route]]\nservice = \"probe.Probe\"\ntransport = \"{transport}\"\nendpoints = [\"{endpoint}\"]\n"
        ),
        ..NodeOptions::default()
    }
}

impl GrpcSetting {
    fn new() -> GrpcSetting {
        let server = TonicServer::start();
        let mut world = World::new(ROLE);
        let node = world.node("one", &routed("grpc", server.address));
        let agent = world.agent(&node);
        GrpcSetting {
            agent,
            node,
            server,
            _world: world,
        }
    }
}

fn echo(bytes: usize, calls: usize) -> Ask {
    Ask::Echo(Echo {
        bytes,
        calls,
        ..Echo::default()
    })
}

#[test]
fn every_kind_of_call_reaches_a_tonic_server() {
    watched(|| {
        let mut setting = GrpcSetting::new();
        for bytes in [0, 1, 4_096, 65_536, 1_000_003, 8 << 20] {
            setting.agent.succeeds(echo(bytes, 2));
        }
        setting.agent.succeeds(Ask::Echo(Echo {
            calls: 500,
            in_flight: 20,
            ..Echo::default()
        }));
        let poured = setting.agent.succeeds(Ask::Pour(Pour {
            messages: 300,
            bytes: 20_000,
            ..Pour::default()
        }));
        assert_eq!((poured.count, poured.bytes), (300, 6_000_000));
        let filled = setting.agent.succeeds(Ask::Fill(Fill {
            messages: 300,
            bytes: 20_000,
            ..Fill::default()
        }));
        assert_eq!((filled.count, filled.bytes), (300, 6_000_000));
        let chatted = setting.agent.succeeds(Ask::Chat {
            messages: 50,
            bytes: 5_000,
        });
        assert_eq!(chatted.count, 50);
    });
}

#[test]
fn statuses_and_metadata_travel() {
    watched(|| {
        let mut setting = GrpcSetting::new();
        for code in Code::ALL {
            let parts = StatusParts {
                code: code.number(),
                message: format!("{code}: naïve “message” with\nlines and 100%"),
                details: vec![0, 1, 254, 255],
            };
            let ask = Ask::Fail(parts.clone());
            if code == Code::Ok {
                setting.agent.succeeds(ask);
            } else {
                assert_eq!(setting.agent.fails(ask), parts.into());
            }
        }
        let pair = |key: &str, value: &[u8]| Metadatum {
            key: key.to_owned(),
            value: value.to_owned(),
        };
        let sent = vec![
            pair("x-user", b"ann"),
            pair("trace-bin", &[0, 10, 255]),
            pair("x-long", &[b'v'; 4_000]),
        ];
        let done = setting.agent.succeeds(Ask::Mirror(sent.clone()));
        for pair in sent {
            assert!(done.initial.contains(&pair), "{:?}", done.initial);
        }
    });
}

#[test]
fn standard_details_of_a_grpc_server_are_read_by_an_app() {
    watched(|| {
        let mut setting = GrpcSetting::new();
        let parts = StatusParts {
            code: Code::InvalidArgument.number(),
            message: "no good".to_owned(),
            details: rpc_status::others(),
        };
        let failure = setting.agent.fails(Ask::Fail(parts));
        assert_eq!(
            (failure.code, &*failure.message),
            (Code::InvalidArgument, "no good")
        );
        rpc_status::assert_library_reads(failure.details);
    });
}

#[test]
fn deadlines_and_cancellations_reach_the_server() {
    watched(|| {
        let mut setting = GrpcSetting::new();
        let hold = |key: &str, milliseconds| Hold {
            key: key.to_owned(),
            milliseconds,
            ..Hold::default()
        };
        let done = setting.agent.succeeds(Ask::Hold(Hold {
            timeout_ms: Some(20_000),
            ..hold("short", 1)
        }));
        assert!((1..=20_000).contains(&done.deadline_ms), "{done:?}");
        let failure = setting.agent.fails(Ask::Hold(Hold {
            timeout_ms: Some(200),
            ..hold("late", 600_000)
        }));
        assert_eq!(failure.code, Code::DeadlineExceeded, "{failure:?}");
        let failure = setting.agent.fails(Ask::Hold(Hold {
            cancel_after_ms: Some(100),
            ..hold("dropped", 600_000)
        }));
        assert_eq!(failure.code, Code::Cancelled, "{failure:?}");
        let agent = &mut setting.agent;
        for key in ["late", "dropped"] {
            eventually("the handler has ended", WAIT_MAX, || {
                let key = key.to_owned();
                agent.succeeds(Ask::Counts { key }).cancelled == 1
            });
        }
        // A stream that its reader drops ends at the server, too.
        agent.succeeds(Ask::Pour(Pour {
            key: "poured".to_owned(),
            messages: 1_000_000,
            bytes: 1_000,
            reading: Reading::Dropping(10),
            ..Pour::default()
        }));
        eventually("the stream has ended", WAIT_MAX, || {
            let key = "poured".to_owned();
            agent.succeeds(Ask::Counts { key }).cancelled == 1
        });
    });
}

#[test]
fn a_server_that_restarts_in_good_order_is_reached_again() {
    watched(|| {
        let mut setting = GrpcSetting::new();
        let address = setting.server.address;
        setting.agent.calls_well();
        let held = setting.agent.begin(Ask::Hold(Hold {
            key: "held".to_owned(),
            milliseconds: 700,
            ..Hold::default()
        }));
        let agent = &mut setting.agent;
        eventually("the call is at the server", WAIT_MAX, || {
            let key = "held".to_owned();
            agent.succeeds(Ask::Counts { key }).begun == 1
        });
        // The call under way ends well, and the server only then.
        setting.server.ended();
        let answer = setting.agent.answer(held);
        assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
        let server = TonicServer::at(address);
        setting.agent.succeeds(Ask::Echo(Echo {
            unconnected: Unconnected::Wait,
            calls: 10,
            ..Echo::default()
        }));
        drop(server);
    });
}

#[test]
fn policies_and_taps_see_these_calls_as_others() {
    built::program("provost", "provost-cli", ROLE);
    watched(|| {
        let mut setting = GrpcSetting::new();
        setting.agent.calls_well();
        let limit = "policy attach --kind rate-limit --service probe.Probe --set requests_per_second=0.01 --set burst=5";
        setting.node.operate(&limit.split(' ').collect::<Vec<_>>());
        let failure = setting.agent.fails(echo(10, 50));
        assert_eq!(failure.code, Code::ResourceExhausted, "{failure:?}");
        setting.node.operate(&["policy", "detach", "rate-limit"]);
        setting.agent.succeeds(echo(10, 50));
        let listed = setting.node.operate(&["datapath", "--service", "probe.Probe"]);
        assert!(listed.contains("transport-grpc"), "{listed}");
    });
}

#[test]
fn a_replaced_node_goes_on_with_the_calls_of_its_apps() {
    watched(|| {
        let mut setting = GrpcSetting::new();
        setting.agent.calls_well();
        let held = setting.agent.begin(Ask::Hold(Hold {
            key: "held".to_owned(),
            milliseconds: 3_000,
            ..Hold::default()
        }));
        let agent = &mut setting.agent;
        eventually("the call is at the server", WAIT_MAX, || {
            let key = "held".to_owned();
            agent.succeeds(Ask::Counts { key }).begun == 1
        });
        for _ in 0..3 {
            setting.node.replace();
            setting.agent.succeeds(echo(10, 10));
        }
        let ended = setting.agent.answer(held);
        assert!(matches!(ended, Answer::Done(_)), "{ended:?}");
        setting.agent.calls_well();
        // Messages that are under way.
        let pour = setting.agent.begin(Ask::Pour(Pour {
            messages: 300,
            bytes: 20_000,
            ..Pour::default()
        }));
        setting.node.replace();
        let poured = setting.agent.answer(pour);
        assert!(
            matches!(&poured, Answer::Done(done) if done.count == 300),
            "{poured:?}"
        );
    });
}

/// A route that leads to a node, and then to a gRPC server: the app connects anew.
#[test]
fn a_route_can_go_over_to_grpc_and_back() {
    watched(|| {
        let mut world = World::new(ROLE);
        let b = world.node("b", &NodeOptions::default());
        let _server = world.server(&b);
        let tonic = TonicServer::start();
        let mut a = world.node("a", &routed("tcp", b.address));
        let mut agent = world.agent(&a);
        agent.calls_well();
        for (transport, endpoint) in [("grpc", tonic.address), ("tcp", b.address)] {
            let log = "the app is to connect anew";
            let before = a.program.log().matches(log).count();
            a.reconfigure(&routed(transport, endpoint));
            kill_process(Pid::from_raw(a.process() as i32).unwrap(), Signal::HUP).unwrap();
            eventually("the connection is to end", WAIT_MAX, || {
                a.program.log().matches(log).count() > before
            });
            // A call that begins while the old connection ends may end with it.
            eventually("calls go over the other transport", WAIT_MAX, || {
                let ticket = agent.begin(Ask::Echo(Echo {
                    unconnected: Unconnected::Wait,
                    calls: 20,
                    ..Echo::default()
                }));
                match agent.answer(ticket) {
                    Answer::Failed(parts) => {
                        assert_eq!(parts.code, Code::Unavailable.number(), "{parts:?}");
                        false
                    }
                    answer => matches!(answer, Answer::Done(_)),
                }
            });
        }
    });
}
