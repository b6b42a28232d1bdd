//! Who notices damage, and what two ends do that have been told differently.

use provost_datagram::{Checking, Config, Driver, Event};
use provost_packets::{InProcess, Wire};

/// Turns in which both ends have sent all that they will at first.
const TURNS: usize = 20;

fn driver(wire: InProcess, checking: Checking) -> Driver<InProcess> {
    let config = Config {
        checking,
        secret: [1, 2],
        ..Config::default()
    };
    Driver::new(config, wire).unwrap()
}

/// Has a client ask a server for a session; gives whether it got one, and how many packets failed the server's check.
fn connect(of_client: Checking, of_server: Checking) -> (bool, u64) {
    let (client, server) = InProcess::pair(1472, 512);
    let (mut client, mut server) = (driver(client, of_client), driver(server, of_server));
    let to = server.wire().address();
    let (now_ns, endpoint) = client.endpoint();
    endpoint.connect(now_ns, to).unwrap();
    let mut connected = false;
    for _ in 0..TURNS {
        client
            .turn(|_, _, event| connected |= matches!(event, Event::Connected(_)))
            .unwrap();
        server.turn(|_, _, _| {}).unwrap();
    }
    (connected, server.endpoint().1.statistics().dropped.check)
}

#[test]
fn ends_that_check_alike_connect_and_others_count_what_they_drop() {
    let all = [Checking::Wire, Checking::Packets, Checking::Crc32c];
    for of_client in all {
        for of_server in all {
            let (connected, dropped) = connect(of_client, of_server);
            assert_eq!(connected, of_client == of_server, "{of_client:?} {of_server:?}");
            assert_eq!(dropped > 0, of_client != of_server, "{of_client:?} {of_server:?}");
        }
    }
}

#[test]
fn a_wire_that_notices_damage_does_not_take_a_crc_away_that_was_asked_for() {
    let payload_bytes = |checking| {
        let (wire, _other) = InProcess::pair(1472, 512);
        driver(wire, checking).endpoint().1.packet_payload_bytes()
    };
    assert_eq!(payload_bytes(Checking::Wire), 1472 - 24);
    assert_eq!(payload_bytes(Checking::Packets), 1472 - 24);
    assert_eq!(payload_bytes(Checking::Crc32c), 1472 - 28);
}

#[test]
fn a_packet_has_room_for_a_session_to_be_asked_for_with_a_crc() {
    let config = |packet_bytes_max| Config {
        packet_bytes_max,
        message_bytes_max: 1 << 20,
        checking: Checking::Crc32c,
        secret: [1, 2],
        ..Config::default()
    };
    assert_eq!(config(132).check(), Ok(()));
    let text = config(131).check().unwrap_err().to_string();
    assert_eq!(text, "packet_bytes_max is 131; it must be from 132 to 65535");
}
