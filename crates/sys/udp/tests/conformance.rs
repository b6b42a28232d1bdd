//! UDP sockets are a wire as any other, with and without what a kernel may offer.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use provost_udp::{Ecn, PACKET_BYTES_ETHERNET, PACKET_BYTES_MAX, UdpOptions, UdpWire, Use};

fn pair(address: SocketAddr, options: &UdpOptions) -> (UdpWire, UdpWire) {
    let bind = || UdpWire::bind_with(address, options).unwrap();
    (bind(), bind())
}

fn plain() -> UdpOptions {
    UdpOptions {
        segmentation: Use::Never,
        coalescing: Use::Never,
        ecn: Ecn::Off,
        ..UdpOptions::default()
    }
}

#[test]
fn it_conforms() {
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    for packet_bytes_max in [PACKET_BYTES_ETHERNET, 9000, PACKET_BYTES_MAX] {
        let options = UdpOptions {
            packet_bytes_max,
            ..UdpOptions::default()
        };
        provost_packets::conformance::suite(|| pair(loopback, &options));
    }
}

#[test]
fn it_conforms_with_each_half_of_what_kernels_offer() {
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    provost_packets::conformance::suite(|| pair(loopback, &plain()));
    let segmentation = UdpOptions {
        segmentation: Use::IfOffered,
        ..plain()
    };
    provost_packets::conformance::suite(|| pair(loopback, &segmentation));
    let coalescing = UdpOptions {
        coalescing: Use::IfOffered,
        ..plain()
    };
    provost_packets::conformance::suite(|| pair(loopback, &coalescing));
}

#[test]
fn it_conforms_over_ipv6() {
    let loopback = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    // A machine may be without.
    if std::net::UdpSocket::bind(loopback).is_ok() {
        let options = UdpOptions {
            packet_bytes_max: 1452,
            ..UdpOptions::default()
        };
        provost_packets::conformance::suite(|| pair(loopback, &options));
    }
}

#[test]
fn it_conforms_while_polling_the_device() {
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let options = UdpOptions {
        busy_poll: Some(Duration::from_micros(50)),
        ..UdpOptions::default()
    };
    match UdpWire::bind_with(loopback, &options) {
        Ok(_) => provost_packets::conformance::suite(|| pair(loopback, &options)),
        Err(error) => {
            assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
            provost_skip::forbidden(error);
        }
    }
}
