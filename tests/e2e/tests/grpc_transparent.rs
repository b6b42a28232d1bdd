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
/// What a node marks its connections with.
const MARK: u32 = 7;
/// Told of a connection of the node's own that has come back to it.
const OWN: &str = "was redirected to the node itself";

/// Which addresses the hosts have.
struct HostAddresses {
    /// As rules of the firewall call it.
    family: &'static str,
    client: &'static str,
    server: &'static str,
    /// Where the server is called.
    place: &'static str,
    loopback: &'static str,
    any: &'static str,
    /// What `ip route` is to take for this host.
    all: &'static str,
}

const IPV4: HostAddresses = HostAddresses {
    family: "ip",
    client: "10.77.0.1/24",
    server: "10.77.0.2/24",
    place: "10.77.0.2:50051",
    loopback: "127.0.0.1:0",
    any: "0.0.0.0:0",
    all: "0.0.0.0/0",
};

const IPV6: HostAddresses = HostAddresses {
    family: "ip6",
    client: "fd77::1/64 nodad",
    server: "fd77::2/64 nodad",
    place: "[fd77::2]:50051",
    loopback: "[::1]:0",
    any: "[::]:0",
    all: "::/0",
};

impl HostAddresses {
    /// An address as rules have it, without its network.
    fn of_server(&self) -> &'static str {
        self.server.split('/').next().unwrap_or_default()
    }

    /// Its option of `ip`.
    fn option(&self) -> &'static str {
        if self.family == "ip6" { "-6" } else { "-4" }
    }
}

/// The client's host and the server's, which call each other by addresses of one family.
struct TwoHosts<'a> {
    client: &'a Namespace,
    server: &'a Namespace,
    addresses: HostAddresses,
}

/// Two hosts with addresses of both families.
fn joined() -> io::Result<[Namespace; 2]> {
    let (client, server) = (Namespace::new()?, Namespace::new()?);
    client.join("eth0", &server, "eth0")?;
    for addresses in [IPV4, IPV6] {
        client.command(&format!("ip addr add {} dev eth0", addresses.client))?;
        server.command(&format!("ip addr add {} dev eth0", addresses.server))?;
    }
    Ok([client, server])
}

impl TwoHosts<'_> {
    /// A chain of a host's own, with one rule.
    fn set_rule(&self, host: &Namespace, hook: &str, rule: &str) -> io::Result<()> {
        let family = self.addresses.family;
        host.command(&format!("nft add table {family} node"))?;
        host.command(&format!("nft add chain {family} node way {{ {hook} }}"))?;
        host.command(&format!("nft flush chain {family} node way"))?;
        host.command(&format!("nft add rule {family} node way {rule}"))?;
        Ok(())
    }

    fn drop_rules(&self, host: &Namespace) -> io::Result<()> {
        host.command(&format!("nft delete table {} node", self.addresses.family))?;
        Ok(())
    }

    /// A call on a connection of its own; the text that comes back.
    fn echo(&self, text: &str) -> Result<String, tonic::Status> {
        let probe = GrpcProbe::at(&format!("http://{}", self.addresses.place));
        run(async { probe.echo(text).await })
    }

    /// The connections to gRPC servers that a node has opened.
    fn opened_to_servers(&self, node: &Node) -> usize {
        let log = node.program.log();
        log.lines()
            .filter(|line| line.contains("connection opened") && line.contains(self.addresses.place))
            .count()
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

fn passes_on_the_clients_host(world: &mut World, hosts: &TwoHosts<'_>) -> io::Result<()> {
    let node = node(world, "out", hosts.addresses.loopback, "redirect");
    let hook = "type nat hook output priority -100 ;";
    let port = port_of(&node);
    let (family, server) = (hosts.addresses.family, hosts.addresses.of_server());
    let towards = format!("{family} daddr {server} tcp dport 50051");
    let others = format!("{towards} meta mark != {MARK} redirect to :{port}");
    hosts.set_rule(hosts.client, hook, &others)?;
    assert_eq!(hosts.echo("out").unwrap(), "out");
    eventually("the connection is logged", WAIT_MAX, || {
        hosts.opened_to_servers(&node) == 1
    });
    // Who comes by itself was going nowhere else.
    let probe = GrpcProbe::at(&place(&node, "web"));
    assert!(run(async { probe.echo("straight").await }).is_err());
    node.program.wait_for_log("it was not redirected");

    // A rule that leaves nothing out brings the node's own connection back to it.
    let all = format!("{towards} redirect to :{port}");
    hosts.set_rule(hosts.client, hook, &all)?;
    let looped = hosts.echo("round and round").unwrap_err();
    assert_eq!(looped.code(), Code::FailedPrecondition, "{looped:?}");
    assert!(looped.message().contains(OWN), "{looped:?}");
    hosts.drop_rules(hosts.client)?;
    Ok(())
}

fn passes_on_the_servers_host(world: &mut World, hosts: &TwoHosts<'_>) -> io::Result<()> {
    let node = node(world, "in", hosts.addresses.any, "redirect");
    let hook = "type nat hook prerouting priority -100 ;";
    let rule = format!("tcp dport 50051 redirect to :{}", port_of(&node));
    hosts.set_rule(hosts.server, hook, &rule)?;
    assert_eq!(hosts.echo("in").unwrap(), "in");
    assert_eq!(hosts.opened_to_servers(&node), 1);
    hosts.drop_rules(hosts.server)?;
    Ok(())
}

fn passes_without_a_change_of_addresses(world: &mut World, hosts: &TwoHosts<'_>) -> io::Result<()> {
    let node = node(world, "taken", hosts.addresses.any, "tproxy");
    let (option, all) = (hosts.addresses.option(), hosts.addresses.all);
    let server = hosts.server;
    server.command(&format!("ip {option} rule add fwmark 1 lookup 100"))?;
    server.command(&format!("ip {option} route add local {all} dev lo table 100"))?;
    let hook = "type filter hook prerouting priority -150 ;";
    let rule = format!(
        "iifname eth0 tcp dport 50051 tproxy to :{} meta mark set 1 accept",
        port_of(&node)
    );
    hosts.set_rule(hosts.server, hook, &rule)?;
    assert_eq!(hosts.echo("taken").unwrap(), "taken");
    assert_eq!(hosts.opened_to_servers(&node), 1);
    hosts.drop_rules(hosts.server)?;
    Ok(())
}

#[test]
fn connections_go_through_nodes_and_no_address_changes() {
    built::program("provost", "provost-cli", ROLE);
    let [client, server] = match joined() {
        Ok(hosts) => hosts,
        Err(error) => return provost_skip::error(&error),
    };
    watched(move || {
        for addresses in [IPV4, IPV6] {
            let hosts = TwoHosts {
                client: &client,
                server: &server,
                addresses,
            };
            if let Err(error) = client.run(|| pass_through_nodes(&hosts)) {
                provost_skip::error(&error);
            }
        }
    });
}

/// Calls through nodes on either host. The test is on the client's.
fn pass_through_nodes(hosts: &TwoHosts<'_>) -> io::Result<()> {
    let mut world = World::new(ROLE);
    let address = hosts.addresses.place.parse().unwrap();
    let _server = hosts.server.run(|| Ok(TonicServer::at(address)))?;
    assert_eq!(hosts.echo("straight").unwrap(), "straight");
    passes_on_the_clients_host(&mut world, hosts)?;
    // In a thread that is there until the nodes are gone: they end with whoever has started them.
    hosts.server.run(|| {
        passes_on_the_servers_host(&mut world, hosts)?;
        passes_without_a_change_of_addresses(&mut world, hosts)
    })
}
