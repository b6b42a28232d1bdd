//! Calls between two devices of DPDK.
#![cfg(feature = "dpdk")]

use provost_wire_tests::{calls_go_over, dpdk_rings};

#[test]
fn calls_go_over_dpdk() {
    let (client, server) = dpdk_rings().unwrap();
    calls_go_over(client, server, 300);
}
