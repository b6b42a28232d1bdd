//! Saved pairs of ends of every form, written by the code of their day, are gone on with by today's.

mod ends;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use ends::{Tls, mutual_tls, pair};
use provost_conformance::fixtures::{Fixtures, FromFixture, ToFixture};
use provost_conformance::{BIDI, End, Event, Node, UNARY, content};
use provost_datapath::{ConnectionSignals, Nanos, SavedState, Step};
use provost_transport_datagram::{DatagramTransport, StateTransfer};
use provost_wire::descriptor::Parts;

const ROUND_NS: Nanos = 250_000;
/// Rounds in which whatever was lost with the sockets of before is sent again: a second.
const ROUNDS: u64 = 4_000;
/// What the addresses of both ends begin with; their ports have five digits.
const ADDRESS: &[u8] = b"127.0.0.1:";
const PORT_DIGITS: usize = 5;

/// Both ends of a connection with calls both ways, of which some packets are in sockets that are lost.
fn busy(tls: Option<&Tls>) -> (SavedState, SavedState) {
    let pair = pair(1472, tls);
    let (mut client, mut server) = (Node::new(pair.client), Node::new(pair.server));
    let begin = |call, method| Step {
        method,
        ..Step::new(call, Parts::BEGIN | Parts::MESSAGE)
    };
    client.send(begin(1, BIDI), &content(1, 10_000));
    let mut now = 0;
    while server.events.is_empty() {
        now += ROUND_NS;
        client.poll(now);
        server.poll(now);
    }
    let call = server.events[0].call;
    server.send(Step::new(call, Parts::MESSAGE), &content(2, 30_000));
    server.poll(now);
    client.send(begin(2, UNARY), &content(3, 40_000));
    client.send(Step::new(1, Parts::MESSAGE), &content(4, 9_000));
    client.poll(now);
    (client.save(&mut ToFixture), server.save(&mut ToFixture))
}

/// Two sockets that are connected to each other.
fn sockets() -> [UdpSocket; 2] {
    let socket = || loop {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        if address_text(socket.local_addr().unwrap()).len() == ADDRESS.len() + PORT_DIGITS {
            socket.set_nonblocking(true).unwrap();
            return socket;
        }
    };
    let [one, other] = [socket(), socket()];
    one.connect(other.local_addr().unwrap()).unwrap();
    other.connect(one.local_addr().unwrap()).unwrap();
    [one, other]
}

fn address_text(address: SocketAddr) -> Vec<u8> {
    address.to_string().into_bytes()
}

/// The state with another address of its peer: that of its day is not free for ever.
fn with_peer(state: &SavedState, peer: SocketAddr) -> SavedState {
    let mut state = state.clone();
    let peer = address_text(peer);
    let places: Vec<usize> = state
        .bytes
        .windows(ADDRESS.len())
        .enumerate()
        .filter_map(|(at, bytes)| (bytes == ADDRESS).then_some(at))
        .collect();
    assert_eq!(places.len(), 1, "a state names its peer once");
    state.bytes[places[0]..][..peer.len()].copy_from_slice(&peer);
    state
}

fn restored(state: &SavedState, socket: UdpSocket) -> Node {
    let link = Arc::new(ConnectionSignals::new());
    let mut blocks = FromFixture::default();
    let state = with_peer(state, socket.peer_addr().unwrap());
    let state_transfer = StateTransfer {
        descriptors: vec![socket.into()],
        link: link.clone(),
        restorer: &mut blocks,
    };
    let engine = DatagramTransport::restore((), &state, state_transfer).unwrap();
    let mut node = Node::new(End {
        engine: Box::new(engine),
        link,
    });
    node.heap = blocks.heap;
    node
}

/// What both ends that were restored come to tell their apps.
fn go_on(client: &SavedState, server: &SavedState) -> String {
    let [client_socket, server_socket] = sockets();
    let (mut client, mut server) = (restored(client, client_socket), restored(server, server_socket));
    for round in 1..=ROUNDS {
        client.poll(round * ROUND_NS);
        server.poll(round * ROUND_NS);
    }
    facts("client", &mut client) + &facts("server", &mut server)
}

fn facts(who: &str, node: &mut Node) -> String {
    let sum = |event: &Event| {
        let bytes = event.message.iter();
        bytes.fold(0_u64, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
        })
    };
    let mut facts = String::new();
    // Windows are given back when packets arrive, which is another time on each machine.
    node.events.retain(|event| event.parts != Parts::WINDOW);
    node.events.sort_by_key(|event| event.call);
    for event in &node.events {
        let Event {
            call, parts, method, ..
        } = event;
        let length = event.message.len();
        facts += &format!(
            "{who} gets {call} {parts:?} {method} of {length} bytes, sum {}\n",
            sum(event)
        );
    }
    node.sent.sort_unstable();
    facts + &format!("{who} gets back {:?}\n", node.sent)
}

#[test]
fn fixtures_are_gone_on_with() {
    let fixtures = Fixtures::of(env!("CARGO_MANIFEST_DIR"));
    for (what, tls) in [("plain", None), ("sealed", Some(mutual_tls()))] {
        let (client, server) = busy(tls.as_ref());
        fixtures.add(&format!("{what}-client"), &client);
        fixtures.add(&format!("{what}-server"), &server);
    }
    let names = fixtures.names("v");
    for client in names.iter().filter(|name| name.ends_with("-client")) {
        let server = client.replace("-client", "-server");
        let facts = go_on(&fixtures.state(client), &fixtures.state(&server));
        fixtures.check(client, &facts);
    }
}
