//! Who does not read stops who writes, and what waits has bounds.

mod kit;

use kit::{CHAT, DOWNLOAD, SECOND_NS, TransportRig, UNARY, UPLOAD, begin};
use provost_grpc::{GrpcConfig, GrpcStatus};
use provost_transport_grpc::{
    CALL_PENDING_BYTES_MAX, GrpcTransportConfig, KEEPALIVE_INTERVAL_NS_MIN, WAITING_CALLS_MAX,
};
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::STREAM_WINDOW_BYTES;

const MESSAGE_BYTES: usize = 10_000;
/// Bytes of a frame of empty messages, each of which is a prefix of five.
const EMPTY_MESSAGES_BYTES: usize = 16_380;

/// Has the server send until it finds no room; how many messages it sent.
fn pour(rig: &mut TransportRig, call: u32) -> usize {
    let mut sent = 0;
    loop {
        let mut more = 0;
        while rig.server.send(call, &[1; MESSAGE_BYTES], rig.now) {
            more += 1;
        }
        rig.run();
        if more == 0 {
            return sent;
        }
        sent += more;
    }
}

#[test]
fn an_app_that_does_not_read_stops_the_server() {
    let mut rig = TransportRig::new();
    rig.call(1, DOWNLOAD, b"go");
    rig.run();
    let (call, _) = rig.server.request();
    rig.server.respond(call, Vec::new(), rig.now);
    let sent = pour(&mut rig, call);
    let told = rig.told();
    let given: u64 = told.iter().map(|told| u64::from(told.window_bytes)).sum();
    let window = u64::from(STREAM_WINDOW_BYTES);
    let some = 2 * MESSAGE_BYTES as u64;
    assert!((window - some..window + some).contains(&given), "{given}");
    assert!(sent * MESSAGE_BYTES < 4 << 20, "{sent} messages left the server");

    // Another call goes on.
    rig.call(2, UNARY, b"x");
    rig.run();
    let (other, _) = rig.server.request();
    rig.server.answer(other, b"y", rig.now);
    rig.run();
    assert_eq!(rig.told_once().call, 2);

    // It reads, by and by, and gets everything.
    let mut got = told.iter().filter(|told| told.parts == Parts::MESSAGE).count();
    let mut costs: u32 = told.iter().map(|told| told.window_bytes).sum();
    let mut all = sent;
    while got < all || all < sent + 500 {
        assert!(
            costs > 0,
            "the app has read all {got} of {all}, and nothing comes"
        );
        rig.give_back(1, std::mem::take(&mut costs));
        rig.run();
        for told in rig.told() {
            assert_eq!(told.parts, Parts::MESSAGE);
            got += 1;
            costs += told.window_bytes;
        }
        while all < sent + 500 && rig.server.send(call, &[1; MESSAGE_BYTES], rig.now) {
            all += 1;
        }
        rig.run();
    }
    rig.server
        .grpc
        .finish(call, &GrpcStatus::ok(), &[], rig.now)
        .unwrap();
    rig.run();
    assert_eq!(rig.told_once().parts, Parts::STATUS);
}

/// Messages without bytes hardly fill the windows of HTTP/2; what holding them takes has its bound all the same.
#[test]
fn empty_messages_that_nobody_reads_end_their_call() {
    const CALLS: u64 = 9;
    let mut rig = TransportRig::new();
    for id in 1..=CALLS {
        rig.call(id, DOWNLOAD, b"go");
    }
    rig.run();
    let mut told = Vec::new();
    for _ in 1..=CALLS {
        let (call, _) = rig.server.request();
        rig.server.respond(call, Vec::new(), rig.now);
        rig.run();
        for _ in 0..STREAM_WINDOW_BYTES as usize / EMPTY_MESSAGES_BYTES {
            rig.server.say_empty_messages(call, EMPTY_MESSAGES_BYTES);
            rig.run();
            while !rig.rx.is_empty() {
                told.extend(rig.told());
                rig.run();
            }
        }
    }
    told.retain(|told| told.parts == Parts::CANCEL);
    assert_eq!(told.len(), 1, "{told:?}");
    // It is one of those that hold the most, and not the one whose messages came last.
    assert_eq!(
        (told[0].call, told[0].status),
        (CALLS - 1, Code::ResourceExhausted)
    );
}

#[test]
fn a_status_waits_behind_messages_that_were_not_read() {
    let mut rig = TransportRig::new();
    rig.call(1, DOWNLOAD, b"go");
    rig.run();
    let (call, _) = rig.server.request();
    rig.server.respond(call, Vec::new(), rig.now);
    assert!(
        rig.server
            .send(call, &vec![1; STREAM_WINDOW_BYTES as usize], rig.now)
    );
    rig.run();
    assert!(rig.server.send(call, b"last", rig.now));
    rig.server
        .grpc
        .finish(call, &GrpcStatus::ok(), &[], rig.now)
        .unwrap();
    rig.run();
    let told = rig.told();
    assert_eq!(told.len(), 2, "the head and a message: {told:?}");
    rig.give_back(1, told[1].window_bytes);
    rig.run();
    let told = rig.told();
    let parts: Vec<_> = told.iter().map(|told| told.parts).collect();
    assert_eq!(parts, [Parts::MESSAGE, Parts::STATUS]);
}

#[test]
fn a_server_that_does_not_read_stops_the_app() {
    let mut rig = TransportRig::new();
    rig.open(1, UPLOAD);
    rig.run();
    let (call, _) = rig.server.request();
    // As the app's library does: it sends while it has window.
    let mut window = i64::from(STREAM_WINDOW_BYTES);
    let mut sent = 0;
    let mut come = 0;
    let mut step = |rig: &mut TransportRig| {
        let mut moved = false;
        while window > 0 && sent < 1_000 {
            rig.send(1, &[2; MESSAGE_BYTES]);
            window -= MESSAGE_BYTES as i64 + 64;
            sent += 1;
            moved = true;
        }
        rig.run();
        for told in rig.told() {
            assert_eq!(told.parts, Parts::WINDOW);
            window += i64::from(told.window_bytes);
            moved = true;
        }
        (moved, sent)
    };
    let stopped_at = loop {
        let (moved, sent) = step(&mut rig);
        if !moved {
            break sent;
        }
    };
    assert!(
        stopped_at * MESSAGE_BYTES < 4 << 20,
        "{stopped_at} messages left the app"
    );

    // The server reads, and everything comes.
    for _ in 0..1_000 {
        come += rig.server.read_messages(call).len();
        if come == 1_000 {
            break;
        }
        step(&mut rig);
    }
    assert_eq!(come, 1_000);
}

#[test]
fn an_app_that_exceeds_its_window_ends_its_call_alone() {
    let mut rig = TransportRig::new();
    rig.open(1, UPLOAD);
    rig.run();
    rig.server.request();
    let chunk = vec![0; 100_000];
    for _ in 0..2 * CALL_PENDING_BYTES_MAX / 100_000 {
        rig.send(1, &chunk);
    }
    rig.run();
    let told = rig.told();
    let end = told.last().unwrap();
    assert_eq!((end.parts, end.status), (Parts::CANCEL, Code::ResourceExhausted));
    rig.call(2, UNARY, b"x");
    rig.run();
    rig.server.request();
}

#[test]
fn large_messages_go_both_ways() {
    let large: Vec<u8> = (0..8_u32 << 20).map(|at| (at / 7) as u8).collect();
    let config = GrpcConfig {
        received_message_bytes_max: 16 << 20,
        ..GrpcConfig::default()
    };
    let mut rig = TransportRig::with(GrpcTransportConfig::default(), config);
    rig.call(1, UNARY, &large);
    rig.run();
    let (call, _) = rig.server.request();
    assert!(rig.server.messages(call) == [&large[..]]);
    rig.server.answer(call, &large, rig.now);
    rig.run();
    assert!(rig.told_once().message == large);
}

/// A stream's window lets a message go that is larger than itself.
#[test]
fn a_stream_sends_messages_that_are_larger_than_what_may_wait() {
    let config = GrpcConfig {
        received_message_bytes_max: 16 << 20,
        ..GrpcConfig::default()
    };
    let mut rig = TransportRig::with(GrpcTransportConfig::default(), config);
    let large = vec![7; 2 * CALL_PENDING_BYTES_MAX as usize];
    rig.open(1, UPLOAD);
    rig.send(1, &large);
    rig.end(1);
    rig.run();
    let (call, _) = rig.server.request();
    assert!(rig.server.messages(call) == [&large[..]]);
    rig.server.answer(call, b"", rig.now);
    rig.run();
    assert_eq!(rig.told().pop().map(|told| told.status), Some(Code::Ok));
}

#[test]
fn messages_over_the_limit_end_their_calls() {
    let config = GrpcTransportConfig {
        message_bytes_max: 1_000,
        ..GrpcTransportConfig::default()
    };
    let mut rig = TransportRig::with(config, GrpcConfig::default());
    rig.call(1, UNARY, &[0; 1_001]);
    rig.call(2, UNARY, &[0; 1_000]);
    rig.run();
    let told = rig.told_once();
    assert_eq!((told.call, told.status), (1, Code::ResourceExhausted));
    let (cancelled, _) = rig.server.request();
    assert_eq!(rig.server.end_of(cancelled), Some(Code::Cancelled));
    let (call, _) = rig.server.request();
    rig.server.answer(call, &[0; 1_001], rig.now);
    rig.run();
    assert_eq!(rig.told_once().status, Code::ResourceExhausted);
}

#[test]
fn calls_beyond_what_the_server_allows_wait_in_their_order() {
    let mut rig = TransportRig::allowing(2);
    for id in 1..=5 {
        rig.call(id, UNARY, &[id as u8]);
    }
    rig.run();
    for expected in 1..=5_u8 {
        assert!(rig.server.grpc.open_calls() <= 2);
        let (call, _) = rig.server.request();
        assert_eq!(rig.server.messages(call), [[expected]]);
        rig.server.answer(call, b"", rig.now);
        rig.run();
        assert_eq!(rig.told_once().call, u64::from(expected));
    }
}

#[test]
fn calls_that_wait_can_end_there() {
    let mut rig = TransportRig::allowing(1);
    rig.call(1, UNARY, b"1");
    rig.run();
    rig.call(2, UNARY, b"2");
    let mut third = begin(3, UNARY, Parts::MESSAGE | Parts::END, &[], Some(b"3"));
    third.deadline = rig.now + SECOND_NS;
    rig.push(third);
    rig.call(4, UNARY, b"4");
    rig.run();
    rig.cancel(2);
    rig.advance(2 * SECOND_NS);
    let told = rig.told_once();
    assert_eq!((told.call, told.status), (3, Code::DeadlineExceeded));
    let (call, _) = rig.server.request();
    rig.server.answer(call, b"", rig.now);
    rig.run();
    assert_eq!(rig.told_once().call, 1);
    let (call, _) = rig.server.request();
    assert_eq!(rig.server.messages(call), [b"4"]);
}

#[test]
fn no_more_calls_wait_than_may() {
    let mut rig = TransportRig::allowing(1);
    rig.call(1, UNARY, b"");
    rig.run();
    for id in 0..WAITING_CALLS_MAX as u64 + 3 {
        rig.call(2 + id, UNARY, b"");
    }
    rig.run();
    let told = rig.told();
    assert_eq!(told.len(), 3);
    assert!(told.iter().all(|told| told.status == Code::ResourceExhausted));
}

#[test]
fn no_more_calls_are_in_flight_than_may() {
    let config = GrpcTransportConfig {
        calls_max: 3,
        ..GrpcTransportConfig::default()
    };
    let mut rig = TransportRig::with(config, GrpcConfig::default());
    for id in 1..=4 {
        rig.open(id, CHAT);
    }
    rig.run();
    let told = rig.told_once();
    assert_eq!((told.call, told.status), (4, Code::ResourceExhausted));
    rig.cancel(1);
    rig.open(5, CHAT);
    rig.run();
    assert!(rig.told().is_empty());
}

/// While the app's queue is full, the socket is not watched, and what comes later is not lost.
#[test]
fn an_app_whose_queue_is_full_is_waited_for() {
    let mut rig = TransportRig::new();
    rig.call(1, DOWNLOAD, b"go");
    rig.run();
    let (call, _) = rig.server.request();
    rig.server.respond(call, Vec::new(), rig.now);
    let mut sent = 0;
    while !rig.rx.is_full() {
        sent += usize::from(rig.server.send(call, b"little", rig.now));
        rig.run();
    }
    for _ in 0..100 {
        sent += usize::from(rig.server.send(call, b"little", rig.now));
    }
    rig.run();
    assert!(!rig.watches());
    // The server is not taken for silent meanwhile.
    rig.advance(3 * KEEPALIVE_INTERVAL_NS_MIN);
    let mut got = 0;
    while got < sent {
        let told = rig.told();
        assert!(!told.is_empty());
        let costs = told.iter().map(|told| told.window_bytes).sum();
        got += told.iter().filter(|told| told.parts == Parts::MESSAGE).count();
        rig.give_back(1, costs);
        rig.run();
    }
    assert!(rig.watches());
}
