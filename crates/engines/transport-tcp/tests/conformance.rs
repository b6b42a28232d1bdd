//! TCP passes the suite of all transports, plain and with mutual TLS.

mod certificates;

use std::sync::Arc;
use std::time::{Duration, Instant};

use certificates::Authority;
use provost_conformance::{End, Pair, methods, run};
use provost_datapath::Link;
use provost_transport_tcp::{
    ConnectParams, Decision, Encoding, Established, Greeting, Hello, Limits, Role, TcpTransport,
    TransportConfig, accept, connect,
};

type Tls = (Arc<rustls::ClientConfig>, Arc<rustls::ServerConfig>);

fn established(tls: Option<&Tls>) -> (Established, Established) {
    let listener = provost_net::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.set_nonblocking(false).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let params = ConnectParams {
        address: listener.local_addr().unwrap().to_string(),
        hello: Hello {
            service: "test.Test".into(),
            schema_hash: [1; 32],
            methods: methods(),
            limits: Limits::default(),
        },
        descriptor_set: Arc::from([]),
        tls: tls.map(|(client, _)| client.clone()),
        deadline,
    };
    let client = std::thread::spawn(move || connect(&params));
    let (stream, _) = listener.accept().unwrap();
    let welcome = |_: Greeting<'_>| Decision::Welcome {
        encoding: Encoding::Native,
        methods: methods(),
        limits: Limits::default(),
    };
    let server = accept(stream, tls.map(|(_, server)| server.clone()), deadline, welcome).unwrap();
    (client.join().unwrap().unwrap(), server)
}

fn pair(tls: Option<&Tls>) -> Pair {
    let config = TransportConfig {
        keepalive_interval_ns: 0,
        ..TransportConfig::default()
    };
    let end = |established, role| {
        let link = Arc::new(Link::new());
        End {
            engine: Box::new(TcpTransport::new(established, role, config, link.clone(), 0)),
            link,
        }
    };
    let (client, server) = established(tls);
    Pair {
        client: end(client, Role::Client),
        server: end(server, Role::Server),
        between: Box::new(|_| None),
    }
}

#[test]
fn plain() {
    run(|| pair(None));
}

#[test]
fn mutual_tls() {
    let authority = Authority::new();
    let client = authority.node("client", &["client.test"]).client().unwrap();
    let server = authority.node("server", &["127.0.0.1"]).server().unwrap();
    run(|| pair(Some(&(client.clone(), server.clone()))));
}
