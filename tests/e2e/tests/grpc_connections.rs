//! A gRPC server of Go that allows few streams at a time on a connection: a route with `connections` has more of them opened.

#[allow(dead_code, reason = "this test uses a part of it")]
mod authority;
mod grpc_client;
#[allow(dead_code, reason = "other tests use the rest of it")]
mod languages;
mod together;

use std::path::Path;

use authority::Authority;
use grpc_client::{GrpcProbe, HoldReply, HoldRequest, place, routed, run, spawn};
use provost_e2e::{Node, World, watched};
use together::{TogetherServer, TogetherTerms};
use tokio::task::JoinHandle;
use tonic::Status;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
/// Connections of the route.
const CONNECTIONS: usize = 3;

/// A server that answers no call before all that it was told of are under way, and a node that calls it.
struct TogetherSetting {
    server: TogetherServer,
    node: Node,
    client: GrpcProbe,
    _world: World,
}

/// What the node and the server speak.
#[derive(Clone, Copy)]
enum ServerSecurity {
    Cleartext,
    Tls,
}

impl ServerSecurity {
    /// The server's arguments, and what the route has for it.
    fn files(self, directory: &Path) -> (Vec<String>, String) {
        let file = |kind: &str| {
            directory
                .join(format!("together-{kind}.pem"))
                .display()
                .to_string()
        };
        match self {
            ServerSecurity::Cleartext => (Vec::new(), String::new()),
            ServerSecurity::Tls => {
                Authority::new().vouch_for("together", directory);
                let table = format!("[route.tls]\nca = \"{}\"\n", file("ca"));
                (vec![file("cert"), file("key")], table)
            }
        }
    }
}

impl TogetherSetting {
    fn new(
        program: &languages::LanguagePrograms,
        security: ServerSecurity,
        streams: usize,
        calls: usize,
    ) -> TogetherSetting {
        let mut world = World::new(ROLE);
        let (tls, table) = security.files(world.directory());
        let terms = TogetherTerms {
            streams,
            calls,
            listen: "127.0.0.1:0",
            tls,
        };
        let server = TogetherServer::start(program, &world, terms);
        let more = format!("connections = {CONNECTIONS}\n{table}");
        let node = world.node("one", &routed("grpc", server.address, &more));
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
}

/// As many calls as all connections take are under way at a time, before and after a hot restart, and another one waits for them.
fn all_connections_are_used(program: &languages::LanguagePrograms, security: ServerSecurity, streams: usize) {
    let calls = CONNECTIONS * streams;
    let mut setting = TogetherSetting::new(program, security, streams, calls);
    let mut begun: Vec<_> = (1..calls).map(|_| setting.begin()).collect();
    setting.server.are_under_way(calls - 1);
    println!("{streams}: {:?}", setting.node.replace());
    begun.extend([setting.begin(), setting.begin()]);
    for call in begun {
        run(call).unwrap().expect("no call fails");
    }
    let log = setting.server.program.log();
    assert_eq!(setting.server.connections(), CONNECTIONS, "{log}");
}

#[test]
fn more_connections_are_opened_for_calls_that_a_server_does_not_take_on_one() {
    let Some(program) = together::program() else {
        return;
    };
    let security = ServerSecurity::Cleartext;
    watched(move || (1..=4).for_each(|streams| all_connections_are_used(program, security, streams)));
}

#[test]
fn more_connections_are_opened_within_tls() {
    let Some(program) = together::program() else {
        return;
    };
    watched(move || all_connections_are_used(program, ServerSecurity::Tls, 2));
}
