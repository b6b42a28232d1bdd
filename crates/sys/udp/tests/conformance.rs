//! UDP sockets are a wire as any other.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use provost_udp::{PACKET_BYTES_ETHERNET, UdpWire};

fn pair(address: SocketAddr, packet_bytes_max: usize) -> (UdpWire, UdpWire) {
    let bind = || UdpWire::bind(address, packet_bytes_max).unwrap();
    (bind(), bind())
}

#[test]
fn it_conforms() {
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    provost_packets::conformance::suite(|| pair(loopback, PACKET_BYTES_ETHERNET));
    provost_packets::conformance::suite(|| pair(loopback, 9000));
}

#[test]
fn it_conforms_over_ipv6() {
    let loopback = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    // A machine may be without.
    if std::net::UdpSocket::bind(loopback).is_ok() {
        provost_packets::conformance::suite(|| pair(loopback, 1452));
    }
}
