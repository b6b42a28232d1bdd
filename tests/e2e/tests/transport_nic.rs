//! Calls over simulated NICs: the key-value service, whose stubs are those that call over any transport, and services that are switched
//! between datagrams and the NIC. Without the feature `nic`, that such a connection says what is missing.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;

use provost::blocking::block_on;
use provost::shared::Optional;
use provost::{App, Channel, Code, Server};
use provost_e2e::driver::{Ticket, WAIT_MAX};
use provost_e2e::script::{Answer, Ask, Echo, Fill, Pour};
use provost_e2e::{
    Agent, Node as NodeProcess, NodeOptions, Server as ServerProcess, World, eventually, watched,
};
use provost_kv::proto::kv_client::SERVICE;
use provost_kv::proto::kv_client::blocking::KvClient;
use provost_kv::proto::kv_server::KvServer;
use provost_kv::proto::{Entry, GetRequest, PutRequest, ScanRequest, scan_request};
use provost_kv::service::KvService;
use provost_kv::store::Store;
use provostd::{Config, Node};
use rustix::process::Signal;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
/// Bytes of a value that takes hundreds of calls of the NIC.
const LARGE_BYTES: usize = 300_000;
/// Entries of a load, which streams to the server, and of a scan, which streams back.
const ENTRIES: usize = 500;

/// An address at which nobody listens now.
fn free_address() -> SocketAddr {
    let socket = UdpSocket::bind("127.43.11.7:0").unwrap();
    socket.local_addr().unwrap()
}

fn node(directory: &Path, name: &str, tables: &str) -> (Node, App) {
    let file = directory.join(format!("{name}.toml"));
    let socket = directory.join(format!("{name}.sock"));
    let text = format!("[control]\nsocket = \"{}\"\n{tables}", socket.display());
    std::fs::write(&file, text).unwrap();
    let node = Node::start(Config::load(&file).unwrap()).unwrap();
    let app = App::builder().socket(&socket).attach().unwrap();
    (node, app)
}

/// Two nodes, of which one serves at this address over its NIC and the other has a route there.
fn two_nodes(directory: &Path) -> [(Node, App); 2] {
    let address = free_address();
    let listener = format!("[[listener]]\ntransport = \"nic\"\naddress = \"{address}\"\n");
    let route = format!("[[route]]\nservice = \"*\"\ntransport = \"nic\"\nendpoints = [\"{address}\"]\n");
    [
        node(directory, "client", &route),
        node(directory, "server", &listener),
    ]
}

fn serve(app: &App, stopped: tokio::sync::oneshot::Receiver<()>) -> std::thread::JoinHandle<()> {
    let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
    let app = app.clone();
    let serving = std::thread::spawn(move || {
        let shutdown = async {
            let _ = stopped.await;
        };
        let is_served = move || {
            let _ = ready.try_send(());
        };
        Server::builder()
            .app(&app)
            .add_service(KvServer::new(KvService::new(Arc::new(Store::default()))))
            .on_ready(is_served)
            .serve_blocking_with_shutdown(shutdown)
            .unwrap();
    });
    is_ready.recv().unwrap();
    serving
}

fn entry(key: &str, value: &[u8]) -> Entry {
    Entry {
        key: key.into(),
        value: value.into(),
        ..Entry::default()
    }
}

fn use_store(client: &KvClient) {
    let get = |key: &str| client.get(GetRequest { key: key.into() });
    assert_eq!(get("a").unwrap_err().code(), Code::NotFound);
    let large: Vec<u8> = (0..LARGE_BYTES).map(|at| (at * 7) as u8).collect();
    for value in [&b"small"[..], &large] {
        let put = PutRequest {
            entry: entry("a", value).into(),
            if_version: Optional::None,
        };
        client.put(put).unwrap();
        let reply = get("a").unwrap();
        assert!(&*reply.get_ref().entry.as_deref().unwrap().value == value);
    }
    let entries: Vec<Entry> = (0..ENTRIES)
        .map(|at| entry(&format!("k{at:04}"), &at.to_le_bytes()))
        .collect();
    client.load(entries).unwrap();
    let request = ScanRequest {
        keys: scan_request::Keys::Prefix("k".into()),
        limit: 0,
    };
    let keys: Vec<String> = client
        .scan(request)
        .unwrap()
        .into_inner()
        .map(|entry| entry.unwrap().key.to_string())
        .collect();
    assert_eq!(keys.len(), ENTRIES);
    assert!(keys.is_sorted());
}

#[test]
fn the_key_value_service_is_called_over_two_simulated_nics() {
    watched(|| {
        let directory = tempfile::tempdir().unwrap();
        let [(client_node, client_app), (server_node, server_app)] = two_nodes(directory.path());
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let serving = serve(&server_app, stopped);
        let channel = block_on(Channel::builder(&SERVICE).app(&client_app).connect("kv.Kv"));
        match channel {
            Ok(channel) => use_store(&KvClient::new(channel)),
            Err(error) if cfg!(feature = "nic") => panic!("no connection: {error}"),
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("Verilator"), "it says what is missing: {text}");
            }
        }
        stop.send(()).unwrap();
        serving.join().unwrap();
        drop((client_node, server_node));
    });
}

/// Two nodes of processes of their own, of which the one that serves listens for datagrams and at a NIC.
struct SwitchedPair {
    world: World,
    a: NodeProcess,
    datagrams: SocketAddr,
    nic: SocketAddr,
    server: ServerProcess,
    b: NodeProcess,
}

impl SwitchedPair {
    fn new() -> SwitchedPair {
        let mut world = World::new(ROLE);
        let mut b = world.node("b", &NodeOptions::default());
        let (datagrams, nic) = (b.address, free_address());
        let listener = |transport, address| {
            format!("[[listener]]\ntransport = \"{transport}\"\naddress = \"{address}\"\n")
        };
        b.reconfigure(&NodeOptions {
            tables: listener("datagram", datagrams) + &listener("nic", nic),
            ..NodeOptions::default()
        });
        b.restart();
        let server = world.server(&b);
        let a = world.node("a", &routed("datagram", datagrams));
        SwitchedPair {
            world,
            a,
            datagrams,
            nic,
            server,
            b,
        }
    }

    /// Has the client's node follow its route by this transport, and waits for what its log says then.
    fn switch(&mut self, transport: &str, says: &str) {
        let before = self.a.program.log().matches(says).count();
        let endpoint = if transport == "nic" {
            self.nic
        } else {
            self.datagrams
        };
        self.a.reconfigure(&routed(transport, endpoint));
        self.a.program.signal(Signal::HUP);
        let program = &self.a.program;
        eventually(says, WAIT_MAX, || program.log().matches(says).count() > before);
    }
}

fn routed(transport: &str, endpoint: SocketAddr) -> NodeOptions {
    NodeOptions {
        tables: format!(
            "[[route]]\nservice = \"probe.Probe\"\ntransport = \"{transport}\"\nendpoints = [\"{endpoint}\"]\n"
        ),
        ..NodeOptions::default()
    }
}

/// Calls and streams that are under way at once, and end well only if nothing is lost and nothing comes twice.
fn load() -> Vec<Ask> {
    let streams = 300;
    vec![
        Ask::Echo(Echo {
            calls: 2_000,
            in_flight: 8,
            ..Echo::default()
        }),
        Ask::Echo(Echo {
            bytes: 100_000,
            calls: 20,
            in_flight: 3,
            ..Echo::default()
        }),
        Ask::Pour(Pour {
            key: "pour".to_owned(),
            messages: streams,
            bytes: 500,
            ..Pour::default()
        }),
        Ask::Fill(Fill {
            messages: streams,
            bytes: 2_000,
            ..Fill::default()
        }),
        Ask::Chat {
            messages: streams,
            bytes: 5_000,
        },
    ]
}

fn begin(agent: &mut Agent) -> Vec<(Ask, Ticket)> {
    load()
        .into_iter()
        .map(|ask| (ask.clone(), agent.begin(ask)))
        .collect()
}

fn end(agent: &mut Agent, begun: Vec<(Ask, Ticket)>) {
    for (ask, ticket) in begun {
        match agent.answer(ticket) {
            Answer::Done(_) => {}
            other => panic!("{ask:?} came to {other:?}"),
        }
    }
}

/// From datagrams to the NIC and back while calls of all kinds are under way: none is lost, and new ones begin where the route says. Without
/// a model of the NIC, connections stay with datagrams, and calls go on.
#[test]
fn a_service_is_switched_between_datagrams_and_the_nic_under_load() {
    watched(|| {
        let mut pair = SwitchedPair::new();
        let mut agent = pair.world.agent(&pair.a);
        agent.calls_well();
        let begun = begin(&mut agent);
        if cfg!(feature = "nic") {
            pair.switch("nic", "migrated to another transport");
            let on_the_nic = begin(&mut agent);
            pair.switch("datagram", "migrated to another transport");
            end(&mut agent, on_the_nic);
            pair.switch("nic", "migrated to another transport");
        } else {
            pair.switch("nic", "a connection stays with the transport that it has");
            assert!(
                pair.a.program.log().contains("Verilator"),
                "{}",
                pair.a.program.log()
            );
        }
        end(&mut agent, begun);
        let begun = begin(&mut agent);
        end(&mut agent, begun);
        drop((pair.server, pair.b));
    });
}
