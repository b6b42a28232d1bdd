//! Connections over loopback, both ends in one process.
#![allow(dead_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use provost_conformance::methods;
use provost_transport_tcp::{
    ConnectParams, Decision, Encoding, Established, Greeting, Hello, Limits, accept, connect,
};

use super::certificates::Authority;

/// Configurations of both ends.
pub(crate) type Tls = (Arc<rustls::ClientConfig>, Arc<rustls::ServerConfig>);

/// The client's end and the server's, both of one address, as within a host.
pub(crate) fn established(tls: Option<&Tls>) -> (Established, Established) {
    established_at("127.0.0.1:0", tls)
}

/// The same with addresses of their own, as over a network.
pub(crate) fn established_apart() -> (Established, Established) {
    established_at("127.0.0.2:0", None)
}

fn established_at(server: &str, tls: Option<&Tls>) -> (Established, Established) {
    let listener = provost_net::listen(server.parse().unwrap()).unwrap();
    listener.set_nonblocking(false).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let params = ConnectParams {
        address: listener.local_addr().unwrap().to_string(),
        hello: Hello {
            service: "test.Test".into(),
            schema_hash: [1; 32],
            methods: methods(),
            limits: Limits::default(),
            caller: None,
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

/// Configurations whose certificates are of one authority.
pub(crate) fn mutual_tls() -> Tls {
    let authority = Authority::new();
    let client = authority.node("client", &["client.test"]).client().unwrap();
    let server = authority.node("server", &["127.0.0.1"]).server().unwrap();
    (client, server)
}
