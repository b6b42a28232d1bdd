//! A gRPC server of Go that allows few streams at a time on a connection: a route with `connections` has more of them opened.

mod grpc_client;
#[allow(dead_code, reason = "other tests use the rest of it")]
mod languages;

use std::net::SocketAddr;

use grpc_client::{GrpcProbe, HoldReply, HoldRequest, place, routed, run, spawn};
use languages::ProgramSources;
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::{Node, Program, World, eventually, watched};
use tokio::task::JoinHandle;
use tonic::Status;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
const INTEROP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../interop");
/// Connections of the route.
const CONNECTIONS: usize = 3;

/// A server that answers no call before all that it was told of are under way, and a node that calls it.
struct TogetherSetting {
    server: Program,
    node: Node,
    client: GrpcProbe,
    _world: World,
}

impl TogetherSetting {
    fn new(program: &languages::LanguagePrograms, streams: usize, calls: usize) -> TogetherSetting {
        let mut world = World::new(ROLE);
        let command = program.command(&program.client, &[&streams.to_string(), &calls.to_string()]);
        let server = Program::start("together", command, world.directory());
        let mut address: Option<SocketAddr> = None;
        eventually("the server listens", WAIT_MAX, || {
            let log = server.log();
            let said = log.lines().find_map(|line| line.strip_prefix("listening at "));
            address = said.and_then(|said| said.parse().ok());
            address.is_some()
        });
        let more = format!("connections = {CONNECTIONS}\n");
        let node = world.node("one", &routed("grpc", address.unwrap(), &more));
        let client = GrpcProbe::at(&place(&node, "web"));
        TogetherSetting {
            server,
            node,
            client,
            _world: world,
        }
    }

    fn begin(&self) -> JoinHandle<Result<HoldReply, Status>> {
        let client = self.client.clone();
        spawn(async move { client.unary("Hold", HoldRequest::default()).await })
    }

    fn are_under_way(&self, calls: usize) {
        let said = format!("{calls} under way\n");
        eventually("all calls are at the server", WAIT_MAX, || {
            self.server.log().contains(&said)
        });
    }

    fn connections(&self) -> usize {
        self.server.log().matches("connection from").count()
    }
}

/// As many calls as all connections take are under way at a time, before and after a hot restart, and another one waits for them.
fn all_connections_are_used(program: &languages::LanguagePrograms, streams: usize) {
    let calls = CONNECTIONS * streams;
    let mut setting = TogetherSetting::new(program, streams, calls);
    let mut begun: Vec<_> = (1..calls).map(|_| setting.begin()).collect();
    setting.are_under_way(calls - 1);
    println!("{streams}: {:?}", setting.node.replace());
    begun.extend([setting.begin(), setting.begin()]);
    for call in begun {
        run(call).unwrap().expect("no call fails");
    }
    assert_eq!(setting.connections(), CONNECTIONS, "{}", setting.server.log());
}

#[test]
fn more_connections_are_opened_for_calls_that_a_server_does_not_take_on_one() {
    let sources = ProgramSources {
        name: "together",
        folder: INTEROP.into(),
    };
    let Some(program) = sources.go_program("together") else {
        return;
    };
    watched(move || (1..=4).for_each(|streams| all_connections_are_used(&program, streams)));
}
