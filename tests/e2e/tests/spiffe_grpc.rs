//! gRPC listeners and routes whose certificates the SPIFFE Workload API gives: they rotate under calls, and are gone when the
//! agent takes the identity back.

mod grpc_client;
#[allow(dead_code, reason = "these tests use a part of it")]
mod spiffe_agent;
#[path = "grpc_out/tonic_probe.rs"]
mod tonic_probe;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use grpc_client::{GrpcProbe, place, run, spawn};
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::{NodeOptions, World, eventually, watched};
use spiffe_agent::{SpiffeAgent, SvidResponse, TrustDomain, no_identity};
use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};
use tonic_probe::TonicServer;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn pem(kind: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    format!(
        "-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n",
        lines.join("\n")
    )
}

fn identity(answer: &SvidResponse) -> Identity {
    let svid = &answer.svids[0];
    Identity::from_pem(
        pem("CERTIFICATE", &svid.x509_svid),
        pem("PRIVATE KEY", &svid.x509_svid_key),
    )
}

/// The authorities of these domains, as those believe them who are no SPIFFE workloads.
fn authorities(domains: &[&TrustDomain]) -> Certificate {
    let pems = domains.iter().map(|domain| pem("CERTIFICATE", &domain.bundle()));
    Certificate::from_pem(pems.collect::<String>())
}

fn client(believes: &[&TrustDomain], proves: &SvidResponse) -> ClientTlsConfig {
    ClientTlsConfig::new()
        .ca_certificate(authorities(believes))
        .domain_name("localhost")
        .identity(identity(proves))
}

fn server(believes: &[&TrustDomain], proves: &SvidResponse) -> ServerTlsConfig {
    ServerTlsConfig::new()
        .client_ca_root(authorities(believes))
        .identity(identity(proves))
}

/// A node that serves gRPC clients, and calls a gRPC server, by the certificates of an agent alone.
fn tables(agent: &Path, schema: &Path, server: SocketAddr) -> String {
    let (agent, schema, port) = (agent.display(), schema.display(), server.port());
    let listener = grpc_client::tcp_listener("web", "web");
    format!(
        "[tls]\nserver_identities = [\"spiffe://*\"]\n[tls.spiffe]\nsocket = \"unix://{agent}\"\n\
         [schemas]\nprefetch = [\"{schema}\"]\n\
         {listener}[grpc.listener.tls]\nclient_auth = \"required\"\n\
         [[route]]\nservice = \"probe.Probe\"\ntransport = \"grpc\"\nendpoints = [\"localhost:{port}\"]\n\
         [route.tls]\nspiffe = true\n"
    )
}

/// Calls until it is told to stop, by ever new connections; the number of calls, all of which went well.
fn calling(at: &str, config: &ClientTlsConfig, stop: &Arc<AtomicBool>) -> tokio::task::JoinHandle<usize> {
    let (at, config, stop) = (at.to_owned(), config.clone(), Arc::clone(stop));
    spawn(async move {
        let mut count = 0;
        while !stop.load(Ordering::Relaxed) {
            let probe = GrpcProbe::within_tls(&at, config.clone());
            for _ in 0..5 {
                probe.echo("a").await.expect("no call fails");
                count += 1;
            }
        }
        count
    })
}

#[test]
fn a_listener_and_a_route_have_what_the_agent_gives_while_calls_go_on() {
    watched(|| {
        // Two authorities of one trust domain, of which the second takes the place of the first.
        let (first, second) = (TrustDomain::new("one.test"), TrustDomain::new("one.test"));
        let mut world = World::new(ROLE);
        let socket = world.directory().join("agent.sock");
        let agent = SpiffeAgent::begin(&socket, first.host_answer("node"));
        let of_server = first.host_answer("server");
        let of_client = first.host_answer("client");
        let serving = TonicServer::within_tls(LOCAL, server(&[&first, &second], &of_server));
        let address = serving.address;
        let schema = world.directory().join("probe.pb");
        std::fs::write(&schema, provost_e2e::server::descriptor().file_descriptor_set).unwrap();
        let options = NodeOptions {
            tables: tables(&socket, &schema, address),
            ..NodeOptions::default()
        };
        let node = world.node("one", &options);
        let at = place(&node, "web");
        let both = client(&[&first, &second], &of_client);
        let probe = |config: &ClientTlsConfig| GrpcProbe::within_tls(&at, config.clone());
        eventually("the agent's certificates are used", WAIT_MAX, || {
            run(probe(&both).echo("a")).is_ok()
        });
        // Who believes the new authority alone does not call yet, nor does who proves nothing.
        let later = client(&[&second], &of_client);
        assert!(run(probe(&later).echo("a")).is_err());
        let anonymous = ClientTlsConfig::new()
            .ca_certificate(authorities(&[&first]))
            .domain_name("localhost");
        assert!(run(probe(&anonymous).echo("a")).is_err());

        let stop = Arc::new(AtomicBool::new(false));
        let calls = calling(&at, &both, &stop);
        let mut rotated = second.host_answer("node");
        rotated.svids[0].bundle = [second.bundle(), first.bundle()].concat();
        agent.say(rotated.clone());
        eventually("the listener has the new certificate", WAIT_MAX, || {
            run(probe(&later).echo("a")).is_ok()
        });
        stop.store(true, Ordering::Relaxed);
        assert!(run(calls).unwrap() > 0);

        // A server that believes the new authority alone is called, by the new certificate.
        serving.ended();
        let _serving = TonicServer::within_tls(address, server(&[&second], &of_server));
        eventually("the route has the new certificate", WAIT_MAX, || {
            run(probe(&both).echo("a")).is_ok()
        });

        // A refusal takes all of it away; what is open goes on.
        let open = probe(&both);
        assert_eq!(run(open.echo("open")).unwrap(), "open");
        agent.refuse(no_identity());
        eventually("nobody is let in any more", WAIT_MAX, || {
            run(probe(&both).echo("a")).is_err()
        });
        assert_eq!(run(open.echo("still")).unwrap(), "still");
        agent.say(rotated);
        eventually("the identity is back", WAIT_MAX, || {
            run(probe(&both).echo("a")).is_ok()
        });
    });
}
