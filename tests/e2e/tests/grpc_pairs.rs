//! Clients and servers of five languages, each with each, through two nodes: unary calls and streams, metadata, errors, deadlines,
//! cancellation, messages of 8 MiB. What each client asks is in `tests/pairs`.
//!
//! Go, Python and Node alone, unless [`LANGUAGES`] says otherwise: `cargo xtask pairs` runs all 25 pairs.

mod grpc_client;
#[allow(dead_code, reason = "another test uses the rest of it")]
mod languages;

use std::net::TcpStream;
use std::path::PathBuf;

use grpc_client::tcp_listener;
use languages::{LanguagePrograms, ProgramSources, free_address, place_of};
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::{Node, NodeOptions, Program, World, built, eventually, watched};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
const PAIRS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../pairs");
/// The environment variable that asks for Java and C++ as well, if it is `all`.
const LANGUAGES: &str = "PROVOST_PAIRS";
/// What a client says when all came to what it should.
const ALL_WELL: &str = "all well\n";
/// Larger than any message that is asked for.
const MESSAGE_BYTES: u32 = 16 << 20;

fn programs() -> Vec<LanguagePrograms> {
    let sources = ProgramSources {
        name: "pairs",
        folder: PAIRS.into(),
    };
    let mut all = vec![sources.go(), sources.python(), sources.node()];
    if std::env::var(LANGUAGES).is_ok_and(|asked| asked == "all") {
        all.extend([sources.java(), sources.cpp()]);
    }
    all.into_iter().flatten().collect()
}

/// A server of a language, and two nodes between it and its clients.
struct PairsSetting {
    a: Node,
    _b: Node,
    _server: Program,
    _world: World,
}

impl PairsSetting {
    fn new(programs: &LanguagePrograms) -> PairsSetting {
        let address = free_address();
        let mut world = World::new(ROLE);
        let command = programs.command(&programs.server, &[&address.to_string()]);
        let server = Program::start("pairs-server", command, world.directory());
        eventually("the server listens", WAIT_MAX, || {
            TcpStream::connect(address).is_ok()
        });
        let route = "[[route]]\nservice = \"pairs.Pairs\"\n";
        let b = NodeOptions {
            tables: format!(
                "{route}transport = \"grpc\"\nendpoints = [\"{address}\"]\nexport = true\napp = \"pairs\"\n"
            ),
            ..NodeOptions::default()
        };
        let b = world.node("b", &b);
        let listener = format!("{}message_bytes = {MESSAGE_BYTES}\n", tcp_listener("web", "web"));
        let a = NodeOptions {
            tables: format!(
                "{listener}{route}transport = \"tcp\"\nendpoints = [\"{}\"]\n",
                b.address
            ),
            ..NodeOptions::default()
        };
        let a = world.node("a", &a);
        let proto: PathBuf = [PAIRS, "pairs.proto"].iter().collect();
        for node in [&a, &b] {
            node.operate(&["schema", "prefetch", proto.to_str().unwrap()]);
        }
        PairsSetting {
            a,
            _b: b,
            _server: server,
            _world: world,
        }
    }
}

/// What is wrong between a client and what listens at this place.
fn asked(client: &LanguagePrograms, place: &str) -> Result<(), String> {
    let output = client.command(&client.client, &[place]).output().unwrap();
    let (said, wrong) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    if output.status.success() && said == ALL_WELL {
        return Ok(());
    }
    Err(format!("{said}{wrong}"))
}

#[test]
fn clients_of_each_language_ask_servers_of_each_for_everything_through_two_nodes() {
    built::program("provost", "provost-cli", ROLE);
    let all = programs();
    watched(move || {
        let mut failed = Vec::new();
        for server in &all {
            let setting = PairsSetting::new(server);
            let place = place_of(&setting.a);
            for client in &all {
                let outcome = asked(client, &place);
                let pair = format!("{} to {}", client.language, server.language);
                println!("{pair}: {}", if outcome.is_ok() { "all well" } else { "failed" });
                failed.extend(outcome.err().map(|wrong| format!("{pair}: {wrong}")));
            }
        }
        assert!(failed.is_empty(), "{}", failed.join("\n"));
    });
}
