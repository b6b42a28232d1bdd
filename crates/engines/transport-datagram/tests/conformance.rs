//! The datagram transport passes the suite of all transports, with UDP sockets below it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use provost_conformance::{End, Heirs, Pair, Saved, methods, run, run_with_successions};
use provost_datapath::{Engine, Link, RestoreError, Restorer};
use provost_transport_datagram::{
    ConnectParams, DatagramTransport, Decision, Encoding, Established, Handover, Hello, Limits, Listener,
    PacketOptions, Role, TransportConfig, accept, connect,
};

/// The client's end and the server's.
fn established(packets: PacketOptions) -> (Established, Established) {
    let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let params = ConnectParams {
        address: listener.address().to_string(),
        hello: Hello {
            service: "test.Test".into(),
            schema_hash: [1; 32],
            methods: methods(),
            limits: Limits::default(),
        },
        descriptor_set: Arc::from([]),
        packets,
        deadline,
    };
    let client = std::thread::spawn(move || connect(&params));
    let caller = loop {
        if let Some(caller) = listener.next_caller().unwrap() {
            break caller;
        }
        std::thread::yield_now();
    };
    let welcome = |_: &Hello, _: Option<&[u8]>| Decision::Welcome {
        encoding: Encoding::Native,
        methods: methods(),
        limits: Limits::default(),
    };
    let server = accept(caller, packets, deadline, welcome).unwrap();
    (client.join().unwrap().unwrap(), server)
}

fn pair(packet_bytes: u32) -> Pair {
    let config = TransportConfig {
        keepalive_interval_ns: 0,
        ..TransportConfig::default()
    };
    let end = |established| {
        let link = Arc::new(Link::new());
        End {
            engine: Box::new(DatagramTransport::new(established, config, link.clone(), 0)),
            link,
        }
    };
    let (client, server) = established(PacketOptions { packet_bytes });
    let (client, server) = (end(client), end(server));
    let heirs = DatagramHeirs {
        links: [client.link.clone(), server.link.clone()],
    };
    Pair {
        client,
        server,
        between: Box::new(|_| None),
        heirs: Box::new(heirs),
        successions: None,
    }
}

struct DatagramHeirs {
    links: [Arc<Link>; 2],
}

impl Heirs for DatagramHeirs {
    fn one(
        &mut self,
        role: Role,
        saved: Saved,
        restorer: &mut dyn Restorer,
    ) -> Result<Box<dyn Engine>, RestoreError> {
        let link = &self.links[usize::from(role == Role::Server)];
        let handover = Handover {
            descriptors: saved.descriptors,
            link: link.clone(),
            restorer,
        };
        let heir = DatagramTransport::restore(&saved.state, handover)?;
        Ok(Box::new(heir))
    }
}

#[test]
fn over_udp() {
    run(|| pair(1472));
}

#[test]
fn over_udp_with_large_packets() {
    run(|| pair(32 << 10));
}

#[test]
#[ignore = "takes minutes without optimization: cargo test --release -p provost-transport-datagram -- --ignored"]
fn over_udp_with_successions() {
    run_with_successions(3, || pair(1472));
}
