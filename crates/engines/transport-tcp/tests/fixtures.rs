//! Saved states of every form, written by the code of their day, are gone on with by today's: by each version of it.

#[path = "../../../core/tls/tests/certificates/mod.rs"]
mod certificates;
mod pairs;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use pairs::{established, mutual_tls};
use provost_conformance::fixtures::{Fixtures, FromFixture, ToFixture};
use provost_conformance::{BIDI, Node, content};
use provost_datapath::{ConnectionSignals, Engine, FieldWriter, Progress, SavedState, Step};
use provost_transport_tcp::{Established, StateTransfer, TcpTransport, TcpVersion, TransportConfig};
use provost_wire::descriptor::Parts;

const CONFIG: TransportConfig = TransportConfig {
    keepalive_interval_ns: 0,
    keepalive_timeout_ns: 0,
    linger_ns: 1_000,
};

/// A transport with work that its socket does not take, because it is full: streams, one with a message of which the
/// first chunk is in frames.
fn busy(established: Established) -> SavedState {
    let junk = [0; 64 << 10];
    while established.carrier.stream().write(&junk).is_ok() {}
    let link = Arc::new(ConnectionSignals::new());
    let engine = TcpTransport::new(established, CONFIG, link.clone(), 0);
    let mut node = Node::new(provost_conformance::End {
        engine: Box::new(engine),
        link,
    });
    for (call, bytes) in [(1, 66_000), (2, 100), (3, 9_000)] {
        let begin = Step {
            method: BIDI,
            ..Step::new(call, Parts::BEGIN)
        };
        node.send(begin, &content(0, 0));
        node.send(Step::new(call, Parts::MESSAGE), &content(call, bytes));
        node.poll(1);
    }
    node.save(&mut ToFixture)
}

/// A plain connection at rest, as form 1 had it.
fn form_1() -> SavedState {
    let mut out = FieldWriter::new();
    out.flag(true);
    out.flag(false);
    out.flag(false);
    [0, 0, 1_000].into_iter().for_each(|value| out.u64(value));
    for _ in 0..2 {
        [4 << 20, 1 << 20, 100]
            .into_iter()
            .for_each(|value| out.u32(value));
    }
    out.text("kv.Kv");
    out.u8(1);
    out.text("spiffe://mesh/client");
    out.text("127.0.0.1:9");
    out.count(2);
    out.u8(4 | 1);
    out.u16(3);
    out.u8(0);
    out.u16(0);
    SavedState {
        kind: "transport-tcp".into(),
        version: 1,
        bytes: out.bytes,
    }
}

fn socket_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    (near, far)
}

/// What a transport that was restored from this state sends, until nothing is left.
fn go_on(state: &SavedState, version: TcpVersion) -> (usize, u64, usize) {
    let (near, mut far) = socket_pair();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        far.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let link = Arc::new(ConnectionSignals::new());
    let mut blocks = FromFixture::default();
    let state_transfer = StateTransfer {
        descriptors: vec![near.into()],
        link: link.clone(),
        restorer: &mut blocks,
    };
    let engine = provost_transport_tcp::restore(version, state, state_transfer).unwrap();
    assert_eq!(engine.version(), version.number());
    let mut node = Node::new(provost_conformance::End {
        engine: Box::new(engine),
        link: link.clone(),
    });
    node.heap = blocks.heap;
    let mut idle = 0;
    while idle < 1_000 {
        match node.poll(1) {
            Progress::Busy => idle = 0,
            _ => (idle, _) = (idle + 1, std::thread::yield_now()),
        }
    }
    let tokens = node.sent.len();
    link.close();
    while node.poll(2) != Progress::Ended {
        node.poll(10_000);
    }
    drop(node);
    let bytes = reader.join().unwrap();
    let sum = bytes.iter().fold(0_u64, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
    });
    (bytes.len(), sum, tokens)
}

#[test]
fn fixtures_are_gone_on_with() {
    let fixtures = Fixtures::of(env!("CARGO_MANIFEST_DIR"));
    fixtures.add("at-rest", &form_1());
    fixtures.add("plain", &busy(established(None).0));
    fixtures.add("tls", &busy(established(Some(&mutual_tls())).0));
    for name in fixtures.names("v") {
        let state = fixtures.state(&name);
        for version in [TcpVersion::One, TcpVersion::Two] {
            let (bytes, sum, tokens) = go_on(&state, version);
            // TLS records are cut by versions as they write; what is in them is the same.
            let facts = if name.contains("tls") {
                format!("sends {} KiB, gives back {tokens} tokens\n", bytes >> 10)
            } else {
                format!("sends {bytes} bytes of sum {sum}, gives back {tokens} tokens\n")
            };
            fixtures.check(&name, &facts);
        }
    }
}
