//! Two ends of a connection over simulated NICs, as the suite of all transports wants them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use provost_conformance::{End, LeftState, Node, Pair, Successors, methods};
use provost_datapath::{ConnectionSignals, Engine, RestoreError, Restorer};
use provost_nic_model::RtlModel;
use provost_transport_nic::{
    ConnectParams, Decision, Encoding, Greeting, HandshakeStop, Hello, Limits, NicEstablished, NicListener,
    NicTransport, Role, StateTransfer, TransportConfig, accept, connect_to,
};

/// How far the clock goes in a round in which nothing moves.
pub(crate) const IDLE_ROUND_NS: u64 = 250_000;
/// When the harness's clock begins: until then, what polls an end before tells the time.
const HARNESS_BEGINS_NS: u64 = 1_000_000_000;

fn hello() -> Hello {
    Hello {
        service: "test.Test".into(),
        schema_hash: [1; 32],
        methods: methods(),
        limits: Limits::default(),
        caller: None,
    }
}

pub(crate) fn params(address: String) -> ConnectParams {
    ConnectParams {
        address,
        hello: hello(),
        descriptor_set: Arc::from([]),
        tls: None,
        deadline: Instant::now() + Duration::from_secs(60),
    }
}

fn end(established: NicEstablished) -> End {
    let config = TransportConfig {
        keepalive_interval_ns: 0,
        ..TransportConfig::default()
    };
    let link = Arc::new(ConnectionSignals::new());
    End {
        engine: Box::new(NicTransport::new(established, config, link.clone(), 0)),
        link,
    }
}

/// The client's end and the server's, of which the client uses the address that it is given for the server's.
fn established(through: impl FnOnce(SocketAddr) -> SocketAddr) -> (End, End) {
    let mut listener = NicListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = through(listener.address());
    let client = std::thread::spawn(move || {
        connect_to(
            &[address],
            &params(address.to_string()),
            &HandshakeStop::default(),
        )
    });
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
    let server = accept(caller, Instant::now() + Duration::from_secs(60), welcome).unwrap();
    let server = polled_until_end(end(server), &client);
    (end(client.join().unwrap().unwrap()), server)
}

/// Polls the server's end while its client connects: the last packet of the server's answer may have been lost, and its NIC has to be there to
/// send it again.
fn polled_until_end<T>(server: End, client: &JoinHandle<T>) -> End {
    let link = server.link.clone();
    let mut server = Node::new(server);
    let began = Instant::now();
    while !client.is_finished() {
        let elapsed_ns = began.elapsed().as_nanos() as u64;
        server.poll(elapsed_ns.min(HARNESS_BEGINS_NS));
        std::thread::yield_now();
    }
    End {
        engine: server.into_engine(),
        link,
    }
}

/// A pair whose client uses the address that it is given for the server's.
pub(crate) fn pair_through(through: impl FnOnce(SocketAddr) -> SocketAddr) -> Pair {
    let (client, server) = established(through);
    let successors = NicSuccessors {
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

/// Successors in the same process, which go on with their predecessors' boards.
struct NicSuccessors {
    links: [Arc<ConnectionSignals>; 2],
}

impl Successors for NicSuccessors {
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
        let successor = NicTransport::restore((), &saved.state, state_transfer)?;
        Ok(Box::new(successor))
    }
}

pub(crate) fn has_model() -> bool {
    let found = RtlModel::new("nic");
    if let Err(reason) = &found {
        provost_skip::missing("a model of the NIC", &reason.to_string());
    }
    found.is_ok()
}
