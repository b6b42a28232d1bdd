//! An unmodified client and an unmodified server on two hosts, neither of whose addresses changes: rules of the firewall lead their
//! connections through a node, on the client's host and on the server's. The hosts are network namespaces.

mod grpc_client;
#[path = "grpc_out/tonic_probe.rs"]
mod tonic_probe;

use std::io;

use grpc_client::{GrpcProbe, place, run};
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::{Node, NodeOptions, World, built, eventually, watched};
use provost_namespaces::Namespace;
use tonic::Code;
use tonic_probe::TonicServer;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/probe.proto");
const SERVER: &str = "10.77.0.2:50051";
/// What a node marks its connections with.
const MARK: u32 = 7;
/// Told of a connection of the node's own that has come back to it.
const OWN: &str = "was redirected to the node itself";

/// The client's host and the server's.
struct TwoHosts {
    client: Namespace,
    server: Namespace,
}

impl TwoHosts {
    fn new() -> io::Result<TwoHosts> {
        let (client, server) = (Namespace::new()?, Namespace::new()?);
        client.join("eth0", &server, "eth0")?;
        client.command("ip addr add 10.77.0.1/24 dev eth0")?;
        server.command("ip addr add 10.77.0.2/24 dev eth0")?;
        Ok(TwoHosts { client, server })
    }
}

/// A node at whose listener connections come that were going elsewhere.
fn node(world: &mut World, name: &str, address: &str, mode: &str) -> Node {
    let listener = format!(
        "[[grpc.listener]]\nname = \"web\"\naddress = \"{address}\"\napp = \"web\"\ntransparent = \"{mode}\"\n"
    );
    let options = NodeOptions {
        tables: format!("[grpc]\nmark = {MARK}\n{listener}"),
        ..NodeOptions::default()
    };
    let node = world.node(name, &options);
    node.operate(&["schema", "prefetch", PROTO]);
    node
}

fn port_of(node: &Node) -> String {
    let place = place(node, "web");
    place.rsplit(':').next().unwrap_or_default().to_owned()
}

/// A chain of a host's own, with one rule.
fn set_rule(host: &Namespace, hook: &str, rule: &str) -> io::Result<()> {
    host.command("nft add table ip node")?;
    host.command(&format!("nft add chain ip node way {{ {hook} }}"))?;
    host.command("nft flush chain ip node way")?;
    host.command(&format!("nft add rule ip node way {rule}"))?;
    Ok(())
}

/// A call on a connection of its own; the text that comes back.
fn echo(text: &str) -> Result<String, tonic::Status> {
    let probe = GrpcProbe::at(&format!("http://{SERVER}"));
    run(async { probe.echo(text).await })
}

/// The connections to gRPC servers that a node has opened.
fn opened_to_servers(node: &Node) -> usize {
    let log = node.program.log();
    log.lines()
        .filter(|line| line.contains("connection opened") && line.contains(SERVER))
        .count()
}

fn passes_on_the_clients_host(world: &mut World, hosts: &TwoHosts) -> io::Result<()> {
    let node = node(world, "out", "127.0.0.1:0", "redirect");
    let hook = "type nat hook output priority -100 ;";
    let port = port_of(&node);
    let others = format!("ip daddr 10.77.0.2 tcp dport 50051 meta mark != {MARK} redirect to :{port}");
    set_rule(&hosts.client, hook, &others)?;
    assert_eq!(echo("out").unwrap(), "out");
    eventually("the connection is logged", WAIT_MAX, || {
        opened_to_servers(&node) == 1
    });
    // Who comes by itself was going nowhere else.
    let probe = GrpcProbe::at(&place(&node, "web"));
    assert!(run(async { probe.echo("straight").await }).is_err());
    node.program.wait_for_log("it was not redirected");

    // A rule that leaves nothing out brings the node's own connection back to it.
    let all = format!("ip daddr 10.77.0.2 tcp dport 50051 redirect to :{port}");
    set_rule(&hosts.client, hook, &all)?;
    let looped = echo("round and round").unwrap_err();
    assert_eq!(looped.code(), Code::FailedPrecondition, "{looped:?}");
    assert!(looped.message().contains(OWN), "{looped:?}");
    hosts.client.command("nft delete table ip node")?;
    Ok(())
}

fn passes_on_the_servers_host(world: &mut World, hosts: &TwoHosts) -> io::Result<()> {
    let node = node(world, "in", "0.0.0.0:0", "redirect");
    let hook = "type nat hook prerouting priority -100 ;";
    let rule = format!("tcp dport 50051 redirect to :{}", port_of(&node));
    set_rule(&hosts.server, hook, &rule)?;
    assert_eq!(echo("in").unwrap(), "in");
    assert_eq!(opened_to_servers(&node), 1);
    hosts.server.command("nft delete table ip node")?;
    Ok(())
}

fn passes_without_a_change_of_addresses(world: &mut World, hosts: &TwoHosts) -> io::Result<()> {
    let node = node(world, "taken", "0.0.0.0:0", "tproxy");
    hosts.server.command("ip rule add fwmark 1 lookup 100")?;
    hosts
        .server
        .command("ip route add local 0.0.0.0/0 dev lo table 100")?;
    let hook = "type filter hook prerouting priority -150 ;";
    let rule = format!(
        "iifname eth0 tcp dport 50051 tproxy to :{} meta mark set 1 accept",
        port_of(&node)
    );
    set_rule(&hosts.server, hook, &rule)?;
    assert_eq!(echo("taken").unwrap(), "taken");
    assert_eq!(opened_to_servers(&node), 1);
    hosts.server.command("nft delete table ip node")?;
    Ok(())
}

#[test]
fn connections_go_through_nodes_and_no_address_changes() {
    built::program("provost", "provost-cli", ROLE);
    let hosts = match TwoHosts::new() {
        Ok(hosts) => hosts,
        Err(error) => return provost_skip::error(&error),
    };
    watched(move || {
        let mut world = World::new(ROLE);
        let passed = hosts.client.run(|| {
            let address = SERVER.parse().unwrap();
            let _server = hosts.server.run(|| Ok(TonicServer::at(address)))?;
            assert_eq!(echo("straight").unwrap(), "straight");
            passes_on_the_clients_host(&mut world, &hosts)?;
            // In a thread that is there until the nodes are gone: they end with whoever has started them.
            hosts.server.run(|| {
                passes_on_the_servers_host(&mut world, &hosts)?;
                passes_without_a_change_of_addresses(&mut world, &hosts)
            })
        });
        if let Err(error) = passed {
            provost_skip::error(&error);
        }
    });
}
