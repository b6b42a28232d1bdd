//! Calls between two network namespaces, by sockets of AF_XDP and of UDP.

use provost_datagram::CongestionConfig;
use provost_wire_tests::{Cable, Routed, Traffic, calls_go_over, traffic_goes_over};

const CALLS: u64 = 300;
/// 30 of a thousand packets are lost on their way.
const LOST_PER_MILLE: u32 = 30;

/// What could be made, or says why not.
fn or_skip<T>(made: std::io::Result<T>) -> Option<T> {
    made.inspect_err(provost_skip::error).ok()
}

#[test]
fn calls_go_over_af_xdp() {
    let Some(cable) = or_skip(Cable::new()) else {
        return;
    };
    let (client, server) = cable.xdp().unwrap();
    calls_go_over(client, server, CALLS);
}

/// Requests and responses of some thousand packets each, several times what the rings hold.
#[test]
fn calls_of_8_megabytes_go_over_af_xdp() {
    let Some(cable) = or_skip(Cable::new()) else {
        return;
    };
    let (client, server) = cable.xdp().unwrap();
    let traffic = Traffic {
        calls: 1,
        bytes_of: |_| 8 << 20,
        congestion: CongestionConfig::default(),
    };
    traffic_goes_over(client, server, traffic);
}

#[test]
fn calls_go_over_udp() {
    let Some(cable) = or_skip(Cable::new()) else {
        return;
    };
    let (client, server) = cable.udp().unwrap();
    calls_go_over(client, server, CALLS);
}

#[test]
fn calls_go_over_af_xdp_by_a_router_that_loses_packets() {
    let Some(routed) = or_skip(Routed::new(LOST_PER_MILLE)) else {
        return;
    };
    let (client, server) = routed.xdp().unwrap();
    calls_go_over(client, server, CALLS);
    assert!(routed.packets_lost().unwrap() > 0, "of some thousand packets");
}
