//! The datagram transport passes the suite of all transports, with UDP sockets below it.

mod ends;

use ends::{Tls, mutual_tls, pair};
use provost_conformance::{CASES, HotRestarts, Pair, Sides, run, run_case};

#[test]
fn over_udp() {
    run(|| pair(1472, None));
}

#[test]
fn over_udp_with_large_packets() {
    run(|| pair(32 << 10, None));
}

/// All cases while these sides are replaced. Each set of sides is a test of its own: they take their time.
fn with_hot_restarts(sides: Sides, tls: Option<&Tls>) {
    for (case, seed) in CASES.iter().zip(3..) {
        run_case(case, &|| Pair {
            hot_restarts: Some(HotRestarts::new(seed, sides)),
            ..pair(1472, tls)
        });
    }
}

#[test]
fn while_clients_are_replaced() {
    with_hot_restarts(Sides::Client, None);
}

#[test]
fn while_servers_are_replaced() {
    with_hot_restarts(Sides::Server, None);
}

#[test]
fn while_either_end_is_replaced() {
    with_hot_restarts(Sides::Either, None);
}

#[test]
fn while_both_ends_are_replaced() {
    with_hot_restarts(Sides::Both, None);
}

#[test]
fn sealed_while_either_end_is_replaced() {
    with_hot_restarts(Sides::Either, Some(&mutual_tls()));
}
