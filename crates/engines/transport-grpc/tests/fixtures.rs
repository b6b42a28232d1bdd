//! Saved states of every form are read by today's code, and damaged ones are refused.

mod kit;

use std::sync::Arc;

use kit::{CHAT, TransportRig, UNARY};
use provost_conformance::fixtures::{Fixtures, ToFixture};
use provost_datapath::{ConnectionSignals, Engine, SavedState};
use provost_transport_grpc::GrpcTransport;

fn busy() -> SavedState {
    let mut rig = TransportRig::allowing(1);
    rig.call(5, UNARY, b"x");
    rig.open(6, CHAT);
    rig.send(6, b"y");
    rig.call(1 << 40, UNARY, b"z");
    rig.run();
    rig.engine.save(&mut ToFixture)
}

/// What the app is told when a state is gone on with.
fn told(state: &SavedState) -> String {
    let signals = Arc::new(ConnectionSignals::new());
    let mut rig = TransportRig::new();
    rig.engine = GrpcTransport::restore(state, Arc::clone(&signals)).unwrap();
    rig.run();
    let told = rig.told().into_iter();
    let mut told: Vec<String> = told
        .map(|told| format!("{} {:?} {}", told.call, told.parts, told.status))
        .collect();
    told.sort();
    told.push(format!("{:?}\n", signals.ended().unwrap().code));
    told.join("\n")
}

#[test]
fn states_of_every_form_are_gone_on_with() {
    let fixtures = Fixtures::of(env!("CARGO_MANIFEST_DIR"));
    fixtures.add("busy", &busy());
    for name in fixtures.names("v") {
        fixtures.check(&name, &told(&fixtures.state(&name)));
    }
}

#[test]
fn damaged_states_are_refused_or_read_and_do_no_harm() {
    let whole = busy();
    let restore = |state: &SavedState| GrpcTransport::restore(state, Arc::new(ConnectionSignals::new()));
    for bytes in 0..whole.bytes.len() {
        let mut cut = whole.clone();
        cut.bytes.truncate(bytes);
        assert!(restore(&cut).is_err(), "{bytes}");
    }
    for at in 0..whole.bytes.len() * 8 {
        let mut turned = whole.clone();
        turned.bytes[at / 8] ^= 1 << (at % 8);
        let _ = restore(&turned);
    }
}
