//! A node in the place of a sidecar: tonic's client and tonic's server, neither of which knows of Provost, with a node between
//! them.

mod grpc_client;
#[path = "grpc_out/tonic_probe.rs"]
mod tonic_probe;

use grpc_client::{EchoMessage, GrpcProbe, place, run, tcp_listener};
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::{Node, NodeOptions, World, built, eventually, watched};
use tonic::Code;
use tonic_probe::TonicServer;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/probe.proto");

/// A tonic server, and a node through which clients call it.
struct ThroughSetting {
    node: Node,
    server: TonicServer,
    world: World,
}

impl ThroughSetting {
    fn new() -> ThroughSetting {
        let server = TonicServer::start();
        let route = format!(
            "[[route]]\nservice = \"probe.Probe\"\ntransport = \"grpc\"\nendpoints = [\"{}\"]\n",
            server.address
        );
        let mut world = World::new(ROLE);
        let options = NodeOptions {
            tables: tcp_listener("web", "web") + &route,
            ..NodeOptions::default()
        };
        let node = world.node("one", &options);
        // Neither end brings a schema.
        node.operate(&["schema", "prefetch", PROTO]);
        ThroughSetting { node, server, world }
    }

    fn probe(&self) -> GrpcProbe {
        GrpcProbe::at(&place(&self.node, "web"))
    }
}

/// Runs a test's body within a limit. Whatever has to be built is built before.
fn tested(body: impl FnOnce() + Send + 'static) {
    built::program("provost", "provost-cli", ROLE);
    watched(body);
}

#[test]
fn calls_of_all_kinds_pass_between_programs_that_know_nothing_of_the_node() {
    tested(|| {
        let setting = ThroughSetting::new();
        run(async {
            let probe = setting.probe();
            probe.calls_of_all_kinds().await;
        });
    });
}

#[test]
fn a_policy_is_attached_to_calls_between_programs_that_know_nothing_of_the_node() {
    tested(|| {
        let setting = ThroughSetting::new();
        run(async {
            let probe = setting.probe();
            let echo = async |text: &str| {
                let message = EchoMessage {
                    text: text.to_owned(),
                    ..EchoMessage::default()
                };
                probe
                    .unary::<_, EchoMessage>("Echo", message)
                    .await
                    .map(|reply| reply.text)
            };
            assert_eq!(echo("secret").await.unwrap(), "secret");
            let rules = setting.world.directory().join("acl.toml");
            let deny = "default = \"allow\"\n[[rule]]\nname = \"secrets\"\naction = \"deny\"\nwhen = 'request.text == \"secret\"'\n";
            std::fs::write(&rules, deny).unwrap();
            let rules = rules.to_str().unwrap();
            let attach = [
                "policy", "attach", "--kind", "access", "--name", "acl", "--config", rules,
            ];
            setting
                .node
                .operate(&[&attach[..], &["--method", "Echo", "--side", "client"]].concat());
            assert_eq!(echo("open").await.unwrap(), "open");
            assert_eq!(echo("secret").await.unwrap_err().code(), Code::PermissionDenied);
            setting.node.operate(&["policy", "detach", "acl"]);
            assert_eq!(echo("secret").await.unwrap(), "secret");
        });
        // A server that has ended and is there again is called again, by the same client.
        let probe = setting.probe();
        let ThroughSetting {
            node: _node,
            server,
            world: _world,
        } = setting;
        let address = server.address;
        server.ended();
        let again = TonicServer::at(address);
        eventually("the server is called again", WAIT_MAX, || {
            let message = EchoMessage::default();
            run(async { probe.unary::<_, EchoMessage>("Echo", message).await.is_ok() })
        });
        drop(again);
    });
}
