//! Two ends of a connection, with UDP sockets of the loopback interface below them.

#[path = "../../../../core/tls/tests/certificates/mod.rs"]
mod certificates;

use std::sync::Arc;
use std::time::{Duration, Instant};

use certificates::Authority;
use provost_conformance::{End, LeftState, Pair, Successors, methods};
use provost_datapath::{ConnectionSignals, Engine, RestoreError, Restorer};
use provost_transport_datagram::{
    ConnectParams, DatagramTransport, Decision, Encoding, Established, Greeting, Hello, Limits, Listener,
    PacketOptions, Role, StateTransfer, TransportConfig, accept, connect,
};
use rustls::{ClientConfig, ServerConfig};

/// How far the clock goes in a round in which nothing moves: packets are in the other socket at once, but for those that
/// got lost, and a hot restart loses some. What waits for a timer then waits for many of them.
const IDLE_ROUND_NS: u64 = 250_000;

/// A client's and a server's, of one authority.
pub(crate) type Tls = (Arc<ClientConfig>, Arc<ServerConfig>);

pub(crate) fn mutual_tls() -> Tls {
    let authority = Authority::new();
    let client = authority.node("client", &["client.test"]).client().unwrap();
    let server = authority.node("server", &["127.0.0.1"]).server().unwrap();
    (client, server)
}

pub(crate) fn listener() -> Listener {
    Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap()
}

/// The client's end and the server's, which has come by this listener.
fn established(
    listener: &mut Listener,
    packets: PacketOptions,
    tls: Option<&Tls>,
) -> (Established, Established) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let params = ConnectParams {
        address: listener.address().to_string(),
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
    let client = std::thread::spawn(move || connect(&params, packets));
    let caller = loop {
        if let Some(caller) = listener.next_caller().unwrap() {
            break caller;
        }
        std::thread::yield_now();
    };
    let welcome = |_: Greeting<'_>| Decision::Welcome {
        encoding: Encoding::Native,
        methods: methods(),
        limits: Limits::default(),
    };
    let server_tls = tls.map(|(_, server)| &**server);
    let server = accept(caller, packets, server_tls, deadline, welcome).unwrap();
    (client.join().unwrap().unwrap(), server)
}

pub(crate) fn pair(packet_bytes: u32, tls: Option<&Tls>) -> Pair {
    pair_at(&mut listener(), packet_bytes, tls)
}

pub(crate) fn pair_at(listener: &mut Listener, packet_bytes: u32, tls: Option<&Tls>) -> Pair {
    let config = TransportConfig {
        keepalive_interval_ns: 0,
        ..TransportConfig::default()
    };
    let end = |established| {
        let link = Arc::new(ConnectionSignals::new());
        End {
            engine: Box::new(DatagramTransport::new(established, config, link.clone(), 0)),
            link,
        }
    };
    let (client, server) = established(listener, PacketOptions { packet_bytes }, tls);
    let (client, server) = (end(client), end(server));
    let successors = DatagramSuccessors {
        links: [client.link.clone(), server.link.clone()],
    };
    Pair {
        client,
        server,
        between: Box::new(|now| Some(now + IDLE_ROUND_NS)),
        successors: Box::new(successors),
        hot_restarts: None,
        turn_bytes: None,
    }
}

struct DatagramSuccessors {
    links: [Arc<ConnectionSignals>; 2],
}

impl Successors for DatagramSuccessors {
    fn one(
        &mut self,
        role: Role,
        saved: LeftState,
        restorer: &mut dyn Restorer,
    ) -> Result<Box<dyn Engine>, RestoreError> {
        let link = &self.links[usize::from(role == Role::Server)];
        let state_transfer = StateTransfer {
            descriptors: saved.descriptors,
            link: link.clone(),
            restorer,
        };
        let successor = DatagramTransport::restore((), &saved.state, state_transfer)?;
        Ok(Box::new(successor))
    }
}
