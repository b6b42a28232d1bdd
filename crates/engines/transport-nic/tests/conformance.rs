//! The transport over simulated NICs passes the suite of all transports, with UDP sockets for their wire.

mod ends;

use ends::{has_model, pair_through, params};
use provost_conformance::{CASES, HotRestarts, Pair, Sides, run, run_case};
use provost_nic_model::RtlModel;
use provost_transport_nic::{HandshakeStop, connect_to};

#[test]
fn over_two_simulated_nics() {
    if has_model() {
        run(|| pair_through(|server| server));
    }
}

/// All cases while the engines of either end are upgraded: each is saved between two polls, and its successor goes on with its board. Some
/// of them fail, and the engine before goes on.
#[test]
fn while_engines_of_either_end_are_upgraded() {
    if !has_model() {
        return;
    }
    for (case, seed) in CASES.iter().zip(3..) {
        run_case(case, &|| Pair {
            hot_restarts: Some(HotRestarts::new(seed, Sides::Either)),
            ..pair_through(|server| server)
        });
    }
}

#[test]
fn who_finds_nobody_is_told_what_to_look_for() {
    if !has_model() {
        return;
    }
    // An address of its own, so that no other test's socket is there when this one is gone.
    let gone = std::net::UdpSocket::bind("127.41.7.9:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let error = connect_to(&[gone], &params(gone.to_string()), &HandshakeStop::default()).unwrap_err();
    assert!(
        error
            .message
            .contains("is there a listener with transport = \"nic\"?"),
        "{error}"
    );
}

#[test]
fn without_a_model_a_connection_fails_and_says_why() {
    if RtlModel::new("nic").is_ok() {
        return;
    }
    let address = "127.0.0.1:1".parse().unwrap();
    let error = connect_to(
        &[address],
        &params("127.0.0.1:1".into()),
        &HandshakeStop::default(),
    )
    .unwrap_err();
    assert!(error.message.contains("Verilator"), "{error}");
}
