//! Saved states of every form are read by today's code, and damaged ones are refused.

mod kit;

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use kit::sealed::SealedCarrier;
use kit::{
    CHAT, DOWNLOAD, SECOND_NS, SuccessorParts, ToSuccessor, TransportRig, UNARY, block, nobody, restored,
};
use provost_conformance::fixtures::{Fixtures, ToFixture};
use provost_datapath::{ConnectionSignals, Engine, PrivateBytes, RestoreError, SavedState, Saver};
use provost_transport_grpc::{GrpcTransport, GrpcTransportConfig};

fn busy(saver: &mut dyn Saver) -> SavedState {
    busy_link(TransportRig::allowing(1), saver)
}

/// The same over a link within TLS.
fn within_tls(saver: &mut dyn Saver) -> SavedState {
    let server = TransportRig::allowing(1).server_config;
    let rig = TransportRig::over(SealedCarrier::over, GrpcTransportConfig::default(), server);
    busy_link(rig, saver)
}

fn busy_link(mut rig: TransportRig, saver: &mut dyn Saver) -> SavedState {
    rig.call(5, UNARY, b"x");
    rig.open(6, CHAT);
    rig.send(6, b"y");
    rig.call(1 << 40, UNARY, b"z");
    rig.run();
    rig.engine.save(saver)
}

/// Two calls of which something has come, and one that the server has ended and the app does not know of.
fn answered() -> SavedState {
    let mut rig = TransportRig::new();
    rig.open(1, CHAT);
    rig.call(2, DOWNLOAD, b"x");
    rig.call(3, UNARY, b"x");
    rig.run();
    for _ in 0..2 {
        let (call, _) = rig.server.request();
        rig.server.respond(call, block(&[("key", b"value")]), rig.now);
        assert!(rig.server.send(call, &[7; 3], rig.now));
        assert!(rig.server.send(call, &[8; 4], rig.now));
    }
    let (call, _) = rig.server.request();
    rig.server.answer(call, &[9; 5], rig.now);
    rig.server.work(rig.now);
    // The app takes a part.
    rig.rx = provost_datapath::Queue::with_bound(2);
    rig.poll();
    rig.engine.save(&mut ToSuccessor)
}

/// The engine that is made of a state. Of a link's server nothing more is heard.
fn gone_on_with(state: &SavedState, signals: &Arc<ConnectionSignals>) -> Result<GrpcTransport, RestoreError> {
    let (client, _server) = UnixStream::pair().unwrap();
    client.set_nonblocking(true).unwrap();
    let parts = SuccessorParts {
        sockets: vec![client.into()],
        config: GrpcTransportConfig::default(),
        share: PrivateBytes::of_node(),
        signals: Arc::clone(signals),
        now: SECOND_NS,
    };
    restored(state, parts, nobody)
}

/// What the app is told when a state is gone on with.
fn told(state: &SavedState) -> String {
    let signals = Arc::new(ConnectionSignals::new());
    let mut rig = TransportRig::new();
    rig.engine = gone_on_with(state, &signals).unwrap();
    rig.run();
    let told = rig.told().into_iter();
    let mut told: Vec<String> = told
        .map(|told| match told.message.len() {
            0 => format!("{} {:?} {}", told.call, told.parts, told.status),
            bytes => format!("{} {:?} {} {bytes} bytes", told.call, told.parts, told.status),
        })
        .collect();
    told.sort();
    told.push(format!("{:?}\n", signals.ended().unwrap().code));
    told.join("\n")
}

#[test]
fn states_of_every_form_are_gone_on_with() {
    let fixtures = Fixtures::of(env!("CARGO_MANIFEST_DIR"));
    fixtures.add("busy", &busy(&mut ToFixture));
    fixtures.add("busy", &busy(&mut ToSuccessor));
    fixtures.add("answered", &answered());
    fixtures.add("within-tls", &within_tls(&mut ToSuccessor));
    for name in fixtures.names("v") {
        fixtures.check(&name, &told(&fixtures.state(&name)));
    }
}

#[test]
fn damaged_states_are_refused_or_read_and_do_no_harm() {
    let sealed = within_tls(&mut ToSuccessor);
    for whole in [busy(&mut ToFixture), busy(&mut ToSuccessor), answered(), sealed] {
        let mut rig = TransportRig::new();
        for bytes in 0..whole.bytes.len() {
            let mut cut = whole.clone();
            cut.bytes.truncate(bytes);
            assert!(gone_on_with(&cut, &Arc::default()).is_err(), "{bytes}");
        }
        for at in 0..whole.bytes.len() * 8 {
            let mut turned = whole.clone();
            turned.bytes[at / 8] ^= 1 << (at % 8);
            rig.signals = Arc::default();
            if let Ok(engine) = gone_on_with(&turned, &rig.signals) {
                rig.engine = engine;
                rig.poll();
                rig.told();
            }
        }
    }
}
