//! What goes through the kernel, and how often it is called.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

use provost_packets::Wire;
use provost_udp::{Ecn, UdpOptions, UdpWire, Use};

const LOOKS_MAX: usize = 200;
const LOOK: Duration = Duration::from_millis(10);
/// Rounds of which the best is counted: others may be cut by what else the machine does.
const ROUNDS: usize = 50;
const BATCH: u64 = 64;

fn loopback() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

fn bind(options: &UdpOptions) -> UdpWire {
    UdpWire::bind_with(loopback(), options).unwrap()
}

fn with(segmentation: Use, coalescing: Use) -> UdpOptions {
    UdpOptions {
        segmentation,
        coalescing,
        ..UdpOptions::default()
    }
}

/// Takes so many packets, with their marks.
fn receive(wire: &mut UdpWire, packets: usize) -> Vec<(Vec<u8>, bool)> {
    let mut received = Vec::new();
    for _ in 0..LOOKS_MAX {
        wire.receive(packets - received.len(), |arrival| {
            received.push((arrival.bytes.to_vec(), arrival.congested));
        })
        .unwrap();
        if received.len() == packets {
            break;
        }
        wire.wait(Some(LOOK)).unwrap();
    }
    received
}

/// The fewest calls that sending and receiving a batch took.
fn calls_per_batch(options: &UdpOptions, packet_bytes: usize) -> (u64, u64) {
    let (mut one, mut other) = (bind(options), bind(options));
    let packet = vec![7; packet_bytes];
    let mut fewest = (u64::MAX, u64::MAX);
    for _ in 0..ROUNDS {
        let (sent, received) = (one.statistics(), other.statistics());
        for _ in 0..BATCH {
            one.transmit(other.address(), &packet, b"");
        }
        one.flush().unwrap();
        assert_eq!(receive(&mut other, BATCH as usize).len() as u64, BATCH);
        let (sent_then, received_then) = (one.statistics(), other.statistics());
        assert_eq!(sent_then.packets_sent - sent.packets_sent, BATCH);
        assert_eq!(received_then.packets_received - received.packets_received, BATCH);
        fewest.0 = fewest.0.min(sent_then.send_calls - sent.send_calls);
        fewest.1 = fewest.1.min(received_then.receive_calls - received.receive_calls);
    }
    fewest
}

#[test]
fn a_batch_takes_few_system_calls() {
    assert_eq!(calls_per_batch(&with(Use::Never, Use::Never), 100), (1, 2));
    assert_eq!(
        calls_per_batch(&with(Use::IfOffered, Use::IfOffered), 100),
        (1, 1),
        "of many packets in one message"
    );
}

#[test]
fn a_message_of_many_packets_is_taken_apart_also_by_who_does_not_ask_for_it() {
    for (segmentation, coalescing) in [(Use::IfOffered, Use::Never), (Use::Never, Use::IfOffered)] {
        let options = with(segmentation, coalescing);
        let (sends, receives) = calls_per_batch(&options, 1400);
        assert!(sends == 1 && receives <= 2, "{sends} and {receives} calls");
    }
}

#[test]
fn packets_of_any_sizes_arrive_as_they_were() {
    let (mut one, mut other) = (bind(&UdpOptions::default()), bind(&UdpOptions::default()));
    let sizes = [1472, 1472, 3, 1472, 900, 900, 900, 1, 1, 0, 0, 5, 64, 65, 64, 64];
    for (number, bytes) in sizes.into_iter().enumerate() {
        one.transmit(other.address(), &vec![number as u8; bytes], b"");
    }
    one.flush().unwrap();
    let received = receive(&mut other, sizes.len() - 2);
    let sent: Vec<_> = sizes
        .iter()
        .enumerate()
        .filter(|(_, bytes)| **bytes > 0)
        .collect();
    for ((bytes, _), (number, size)) in received.iter().zip(sent) {
        assert_eq!(*bytes, vec![number as u8; *size]);
    }
}

#[test]
fn packets_that_are_too_long_are_counted_and_dropped() {
    let small = UdpOptions {
        packet_bytes_max: 200,
        ..UdpOptions::default()
    };
    for coalescing in [Use::IfOffered, Use::Never] {
        let mut other = bind(&UdpOptions {
            coalescing,
            ..small.clone()
        });
        let mut one = bind(&UdpOptions::default());
        for bytes in [201, 201, 1400, 200] {
            one.transmit(other.address(), &vec![bytes as u8; bytes], b"");
        }
        one.flush().unwrap();
        assert_eq!(receive(&mut other, 1), [(vec![200; 200], false)]);
        assert_eq!(other.statistics().too_long, 3);
    }
}

#[test]
fn an_empty_batch_needs_no_call_and_what_cannot_be_sent_is_counted() {
    let mut wire = bind(&UdpOptions::default());
    wire.flush().unwrap();
    assert_eq!(wire.statistics().send_calls, 0);
    wire.transmit("[::1]:9".parse().unwrap(), b"wrong family", b"");
    wire.transmit("127.0.0.1:0".parse().unwrap(), b"no port", b"");
    wire.transmit(wire.address(), b"to itself", b"");
    wire.flush().unwrap();
    assert_eq!(receive(&mut wire, 1), [(b"to itself".to_vec(), false)]);
    assert_eq!(wire.statistics().not_sent, 2);
}

#[test]
fn marks_of_congestion_are_seen() {
    let mut wire = bind(&UdpOptions::default());
    let sender = UdpSocket::bind(loopback()).unwrap();
    for (class, marked) in [(0, false), (1, false), (2, false), (3, true), (0xff, true)] {
        set(&sender, libc::IP_TOS, class);
        sender.send_to(&[class as u8], wire.address()).unwrap();
        assert_eq!(receive(&mut wire, 1), [(vec![class as u8], marked)]);
    }
}

#[test]
fn packets_say_that_their_sender_understands_marks() {
    for (ecn, expected) in [(Ecn::Capable, 2), (Ecn::Off, 0)] {
        let mut wire = bind(&UdpOptions {
            ecn,
            ..UdpOptions::default()
        });
        let receiver = UdpSocket::bind(loopback()).unwrap();
        receiver.set_read_timeout(Some(LOOK * LOOKS_MAX as u32)).unwrap();
        set(&receiver, libc::IP_RECVTOS, 1);
        wire.transmit(receiver.local_addr().unwrap(), b"x", b"");
        wire.flush().unwrap();
        assert_eq!(class_of_next(&receiver), Some(expected));
    }
}

fn set(socket: &UdpSocket, option: i32, value: i32) {
    let bytes = size_of::<i32>() as libc::socklen_t;
    let value = (&raw const value).cast();
    // SAFETY: the kernel reads one `int`.
    let outcome = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, option, value, bytes) };
    assert_eq!(outcome, 0);
}

/// The class of the next packet's IP header, both bits of ECN among it.
fn class_of_next(socket: &UdpSocket) -> Option<u8> {
    let (mut bytes, mut control) = ([0_u8; 16], [0_u64; 8]);
    let mut piece = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: the header points to the arrays above, with their lengths, and the control message is read as the kernel
    // wrote it.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_iov = &raw mut piece;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control);
        assert!(libc::recvmsg(socket.as_raw_fd(), &raw mut header, 0) > 0);
        let control = libc::CMSG_FIRSTHDR(&raw const header).as_ref()?;
        (control.cmsg_type == libc::IP_TOS).then(|| *libc::CMSG_DATA(control))
    }
}

#[test]
fn another_thread_ends_a_wait() {
    let mut wire = bind(&UdpOptions::default());
    let waker = wire.waker().unwrap();
    waker.wake_by_ref();
    // Without a limit: these return only if they are ended.
    wire.wait(None).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| waker.wake_by_ref());
        wire.wait(None).unwrap();
    });
}

/// Packets larger than the route's cannot be part of a message of many: they are sent one by one, in fragments.
#[test]
fn what_the_kernel_does_not_take_as_one_message_is_sent_packet_by_packet() {
    // A thread of its own, so that only it moves into the other network namespace.
    let test = std::thread::spawn(|| {
        // SAFETY: the namespace is the thread's own, and the thread ends with this closure.
        if let Err(error) = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) } {
            return provost_skip::forbidden(format!("a network namespace needs root ({error})"));
        }
        let up = Command::new("ip")
            .args(["link", "set", "lo", "mtu", "1500", "up"])
            .status();
        if !up.is_ok_and(|status| status.success()) {
            return provost_skip::missing("a working `ip`", "Debian package iproute2");
        }
        let options = UdpOptions {
            packet_bytes_max: 4000,
            ..UdpOptions::default()
        };
        let (mut one, mut other) = (bind(&options), bind(&options));
        for round in 0..2_u8 {
            for number in 0..8 {
                one.transmit(other.address(), &[round, number], &[9; 3000]);
            }
            one.flush().unwrap();
            let received = receive(&mut other, 8);
            let numbers: Vec<u8> = received.iter().map(|(bytes, _)| bytes[1]).collect();
            assert_eq!(numbers, (0..8).collect::<Vec<u8>>());
        }
        let statistics = one.statistics();
        assert_eq!((statistics.segmentation_refused, statistics.not_sent), (1, 0));
        assert_eq!(statistics.packets_sent, 16);
    });
    test.join().unwrap();
}
