//! Sockets of one peer each, which take turns to use the same batches.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use provost_udp::{PacketBatches, PeerSocket, UdpOffer, UdpStatistics, Use};

const WAIT_MAX: Duration = Duration::from_secs(20);
const PACKET_BYTES_MAX: usize = 2_000;

/// Two sockets that are connected to each other.
fn pair(wanted: Use) -> [PeerSocket; 2] {
    let bind = || {
        let socket = UdpSocket::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let sockets = [bind(), bind()];
    let addresses = [0, 1].map(|at: usize| sockets[at].local_addr().unwrap());
    let [one, other] = sockets;
    one.connect(addresses[1]).unwrap();
    other.connect(addresses[0]).unwrap();
    [
        PeerSocket::new(one, addresses[1], wanted),
        PeerSocket::new(other, addresses[0], wanted),
    ]
}

fn batches() -> PacketBatches {
    PacketBatches::new(PACKET_BYTES_MAX)
}

fn send(socket: &mut PeerSocket, batches: &mut PacketBatches, packets: &[Vec<u8>]) {
    for packet in packets {
        let (head, payload) = packet.split_at(packet.len() / 3);
        socket.push(batches, head, payload);
    }
    socket.flush(batches).unwrap();
}

/// Takes packets until there are so many.
fn receive(socket: &mut PeerSocket, batches: &mut PacketBatches, packets: usize) -> Vec<Vec<u8>> {
    let (mut received, began) = (Vec::new(), Instant::now());
    while received.len() < packets && began.elapsed() < WAIT_MAX {
        socket.receive(batches).unwrap();
        while let Some(arrival) = batches.next(socket) {
            received.push(arrival.bytes.to_vec());
        }
    }
    received
}

/// Packets of these sizes, each full of its number.
fn packets(sizes: &[usize]) -> Vec<Vec<u8>> {
    let numbered = sizes.iter().zip(0_u8..);
    numbered.map(|(bytes, number)| vec![number; *bytes]).collect()
}

/// The calls of a message of 45 full packets and a short one, there.
fn calls(wanted: Use) -> (UdpStatistics, UdpStatistics) {
    let ([mut one, mut other], mut batches) = (pair(wanted), batches());
    let mut sizes = vec![1_472; 45];
    sizes.push(7);
    let sent = packets(&sizes);
    send(&mut one, &mut batches, &sent[..2]);
    assert_eq!(receive(&mut other, &mut batches, 2), sent[..2]);
    let before = (*one.statistics(), *other.statistics());
    send(&mut one, &mut batches, &sent);
    assert_eq!(receive(&mut other, &mut batches, sent.len()), sent);
    let since = |now: &UdpStatistics, before: UdpStatistics| UdpStatistics {
        send_calls: now.send_calls - before.send_calls,
        receive_calls: now.receive_calls - before.receive_calls,
        packets_sent: now.packets_sent - before.packets_sent,
        packets_received: now.packets_received - before.packets_received,
        ..*now
    };
    (
        since(one.statistics(), before.0),
        since(other.statistics(), before.1),
    )
}

#[test]
fn many_packets_and_a_short_last_one_take_one_call_each_way() {
    for wanted in [Use::Never, Use::IfOffered] {
        let (sender, receiver) = calls(wanted);
        println!(
            "{wanted:?}: {} calls send, {} receive 46 packets",
            sender.send_calls, receiver.receive_calls
        );
        assert_eq!((sender.packets_sent, receiver.packets_received), (46, 46));
        assert_eq!(sender.send_calls, 1);
        match wanted {
            Use::IfOffered => assert_eq!(receiver.receive_calls, 1),
            Use::Never => assert_eq!(receiver.receive_calls, 46_u64.div_ceil(8)),
        }
    }
}

#[test]
fn packets_of_mixed_sizes_arrive_as_they_were_and_in_their_order() {
    let ([mut one, mut other], mut batches) = (pair(Use::IfOffered), batches());
    let sent = packets(&[
        1_472, 1_472, 3, 1_472, 900, 900, 900, 1, 1, 5, 64, 65, 64, 64, 2_000, 2_000,
    ]);
    send(&mut one, &mut batches, &sent);
    assert_eq!(receive(&mut other, &mut batches, sent.len()), sent);
}

#[test]
fn sockets_that_take_turns_do_not_get_each_others_packets() {
    let (mut pairs, mut batches) = ([pair(Use::IfOffered), pair(Use::IfOffered)], batches());
    let sent = packets(&[300; 20]);
    for (pair, number) in pairs.iter_mut().zip(0..) {
        let own: Vec<_> = sent
            .iter()
            .map(|packet| [&[number], &packet[..]].concat())
            .collect();
        send(&mut pair[0], &mut batches, &own);
    }
    for (pair, number) in pairs.iter_mut().zip(0..) {
        let received = receive(&mut pair[1], &mut batches, sent.len());
        assert_eq!(received.len(), sent.len());
        assert!(received.iter().all(|packet| packet[0] == number));
    }
    // What one leaves in the batch, the next one to read does not get.
    for pair in &mut pairs {
        send(&mut pair[0], &mut batches, &packets(&[9; 3]));
    }
    let [[_, first], [_, second]] = &mut pairs;
    first.receive(&mut batches).unwrap();
    assert_eq!(batches.next(first).unwrap().bytes, [0; 9]);
    assert_eq!(receive(second, &mut batches, 3), packets(&[9; 3]));
}

#[test]
fn packets_of_others_and_packets_that_are_too_long_are_passed_over() {
    let (client, mut batches) = (UdpSocket::bind("127.0.0.1:0").unwrap(), batches());
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let address = socket.local_addr().unwrap();
    stranger.send_to(b"before it was connected", address).unwrap();
    client.send_to(b"from its peer", address).unwrap();
    socket.connect(client.local_addr().unwrap()).unwrap();
    client.send_to(&[1; PACKET_BYTES_MAX + 1], address).unwrap();
    client.send_to(&[2; PACKET_BYTES_MAX], address).unwrap();
    let mut socket = PeerSocket::new(socket, client.local_addr().unwrap(), Use::IfOffered);
    let received = receive(&mut socket, &mut batches, 2);
    assert_eq!(received, [b"from its peer".to_vec(), vec![2; PACKET_BYTES_MAX]]);
    assert_eq!(socket.statistics().too_long, 1);
}

/// A socket that is to send without checksums cannot have its messages cut up: the kernel says EINVAL.
#[test]
fn who_is_refused_a_message_of_many_packets_sends_them_one_by_one() {
    let ([mut one, mut other], mut batches) = (pair(Use::IfOffered), batches());
    set_integer(one.socket(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1);
    let sent = packets(&[400, 400, 400, 20]);
    for _ in 0..2 {
        send(&mut one, &mut batches, &sent);
        assert_eq!(receive(&mut other, &mut batches, sent.len()), sent);
    }
    let statistics = one.statistics();
    assert_eq!((statistics.segmentation_refused, statistics.not_sent), (1, 0));
    // It is the socket that remembers: another one over the same batches still sends many in one.
    let [mut one, mut other] = pair(Use::IfOffered);
    send(&mut one, &mut batches, &sent);
    assert_eq!(receive(&mut other, &mut batches, sent.len()), sent);
    assert_eq!(other.statistics().receive_calls, 1);
}

#[test]
fn who_is_told_that_nobody_listens_loses_nothing_of_what_it_sends_then() {
    let ([mut one, other], mut batches) = (pair(Use::IfOffered), batches());
    let address = one.peer();
    drop(other);
    send(&mut one, &mut batches, &packets(&[10]));
    let again = UdpSocket::bind(address).unwrap();
    send(&mut one, &mut batches, &packets(&[20, 20, 20]));
    assert_eq!((one.statistics().refused, one.statistics().not_sent), (1, 0));
    again.set_read_timeout(Some(WAIT_MAX)).unwrap();
    for packet in packets(&[20, 20, 20]) {
        let mut bytes = [0; 64];
        let (length, _) = again.recv_from(&mut bytes).unwrap();
        assert_eq!(bytes[..length], packet);
    }
}

#[test]
fn a_socket_that_is_left_plain_gives_one_packet_at_a_time_to_whoever_has_it_next() {
    let ([mut one, mut other], mut batches) = (pair(Use::IfOffered), batches());
    let sent = packets(&[100; 4]);
    other.receive(&mut batches).unwrap();
    other.leave_plain().unwrap();
    send(&mut one, &mut batches, &sent);
    let older = other.socket().try_clone().unwrap();
    older.set_nonblocking(false).unwrap();
    older.set_read_timeout(Some(WAIT_MAX)).unwrap();
    for packet in &sent {
        let mut bytes = [0; 1_000];
        let (length, _) = older.recv_from(&mut bytes).unwrap();
        assert_eq!(bytes[..length], *packet);
    }
    older.set_nonblocking(true).unwrap();
    // Whoever goes on with it here has them put together again.
    other.receive(&mut batches).unwrap();
    let calls = other.statistics().receive_calls;
    send(&mut one, &mut batches, &packets(&[100; 30]));
    assert_eq!(receive(&mut other, &mut batches, 30), packets(&[100; 30]));
    assert_eq!(other.statistics().receive_calls, calls + 1);
}

#[test]
fn the_kernel_says_what_it_offers_and_the_socket_stays_as_it_is() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let offer = UdpOffer::of(&socket);
    // Linux 5.0 and later, which every machine of ours has.
    assert!(offer.segmentation, "{offer:?}");
    assert_eq!(UdpOffer::of(&socket), offer);
}

fn set_integer(socket: &UdpSocket, level: i32, option: i32, value: i32) {
    let bytes = size_of::<i32>() as libc::socklen_t;
    let value = (&raw const value).cast();
    // SAFETY: the kernel reads one `int`.
    let outcome = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, bytes) };
    assert_eq!(outcome, 0);
}
