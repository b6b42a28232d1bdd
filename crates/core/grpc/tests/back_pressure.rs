//! A reader that does not consume stops its writer, and what either end keeps has bounds.

mod kit;

use kit::{ConnectedPair, RawPair, messages, respond, send};
use proptest::prelude::*;
use provost_grpc::{
    CallFault, EndCause, GrpcConfig, GrpcEvent, GrpcStatus, MessageForm, PROGRESS_BYTES_MIN, PROGRESS_NS,
    RequestHead,
};
use provost_http2::{Http2Config, SendError, StreamEnd};
use provost_wire::Code;

const WINDOW_BYTES: u32 = 100_000;
const MESSAGE_BYTES: usize = 10_000;

fn config() -> GrpcConfig {
    GrpcConfig {
        http2: Http2Config {
            stream_window_bytes: WINDOW_BYTES,
            connection_window_bytes: 4 * WINDOW_BYTES,
            stream_queue_bytes_max: 50_000,
            ..Http2Config::default()
        },
        ..GrpcConfig::default()
    }
}

/// Sends messages until no more are taken, and passes them; how many the server got.
fn push_until_full(pair: &mut ConnectedPair, call: u32) -> usize {
    let mut got = 0;
    loop {
        let sent = pair
            .client
            .send_message(call, MessageForm::Plain, vec![1; MESSAGE_BYTES].into(), 0);
        let is_full = match sent {
            Ok(()) => false,
            Err((CallFault::Http2(SendError::QueueFull), _)) => true,
            Err(other) => panic!("{other:?}"),
        };
        let received = messages(&pair.exchange().1).len();
        got += received;
        if is_full && received == 0 {
            return got;
        }
    }
}

#[test]
fn a_reader_that_does_not_consume_stops_its_writer() {
    let mut pair = ConnectedPair::new(config());
    let call = pair.call(&RequestHead::new("/a.B/C"));
    let other = pair.call(&RequestHead::new("/a.B/C"));
    let held = push_until_full(&mut pair, call);
    let bytes = held * MESSAGE_BYTES;
    assert!(bytes <= 2 * WINDOW_BYTES as usize, "{held} messages are held");

    // Another call of the connection goes on.
    send(&mut pair.client, other, b"passes", 0);
    assert_eq!(messages(&pair.exchange().1), [b"passes"]);

    for _ in 0..held {
        pair.server.consume(call, MESSAGE_BYTES);
    }
    let (at_client, at_server) = pair.exchange();
    assert!(at_client.contains(&GrpcEvent::Writable { call }));
    assert!(!messages(&at_server).is_empty());
}

/// A message far larger than both windows comes whole, though nothing is consumed before it has.
#[test]
fn messages_larger_than_the_windows() {
    let mut pair = ConnectedPair::new(config());
    let large: Vec<u8> = (0..3_000_000_u32).map(|at| at as u8).collect();
    let calls = [(); 4].map(|()| pair.call(&RequestHead::new("/a.B/C")));
    for call in calls {
        send(&mut pair.client, call, &large, 0);
    }
    let (_, at_server) = pair.exchange();
    assert_eq!(messages(&at_server), vec![large; 4]);
}

/// More large messages at a time than there is memory for come one after the other, and none fails.
#[test]
fn large_messages_wait_for_each_other() {
    const CALLS: usize = 20;
    const LARGE: usize = 1_500_000;
    let config = GrpcConfig {
        large_message_bytes_max: 2 * LARGE,
        partial_bytes_max: 2 * LARGE + CALLS * WINDOW_BYTES as usize,
        ..config()
    };
    let mut pair = ConnectedPair::new(config);
    let large = vec![7; LARGE];
    let calls = [(); CALLS].map(|()| pair.call(&RequestHead::new("/a.B/C")));
    for call in calls {
        send(&mut pair.client, call, &large, 0);
    }
    // One that is given up makes room, too.
    pair.client.cancel(calls[0], Code::Cancelled, 0).unwrap();
    all_come(&mut pair, &large, CALLS - 1);
    // All that was withheld of the windows is there again.
    for call in &calls[1..] {
        send(&mut pair.client, *call, &large, 0);
    }
    all_come(&mut pair, &large, CALLS - 1);
}

/// A call whose messages nobody consumes keeps no other from sending large ones.
#[test]
fn calls_that_are_not_read_do_not_hold_large_messages_up() {
    const LARGE: usize = 1_500_000;
    let config = GrpcConfig {
        large_message_bytes_max: LARGE,
        ..config()
    };
    let mut pair = ConnectedPair::new(config);
    let large = vec![7; LARGE];
    let unread = pair.call(&RequestHead::new("/a.B/C"));
    send(&mut pair.client, unread, &large, 0);
    assert_eq!(messages(&pair.exchange().1).len(), 1);
    send(&mut pair.client, unread, &large, 0);
    assert_eq!(messages(&pair.exchange().1).len(), 0);
    let other = pair.call(&RequestHead::new("/a.B/C"));
    send(&mut pair.client, other, &large, 0);
    assert_eq!(messages(&pair.exchange().1).len(), 1, "of the other call");
    // It is read on: so it goes on.
    pair.server.consume(other, LARGE);
    pair.server.consume(unread, LARGE);
    assert_eq!(messages(&pair.exchange().1).len(), 1);
}

/// A message that waits gets no window for what its call consumes meanwhile.
#[test]
fn a_message_that_waits_has_one_window_at_most() {
    let mut http2 = config().http2;
    http2.stream_queue_bytes_max = 1_000_000;
    let config = GrpcConfig {
        http2,
        large_message_bytes_max: 1,
        ..config()
    };
    let mut pair = RawPair::server(config);
    let announce = |bytes: u32| provost_grpc::message_prefix(MessageForm::Plain, bytes).to_vec();
    // One that has its turn, and does not come whole for a while.
    pair.ask(&[], &announce(90_000), StreamEnd::Continues);
    let held = [announce(50_000), vec![0; 50_000]].concat();
    let body = [held, announce(300_000), vec![0; 300_000]].concat();
    let (told, _) = pair.ask(&[], &body, StreamEnd::Continues);
    assert_eq!(messages(&told).len(), 1);
    let queued = pair.raw.queued_bytes(3);
    pair.grpc.consume(3, 50_000);
    pair.exchange();
    assert_eq!(pair.raw.queued_bytes(3), queued);
    // Its turn comes.
    pair.raw
        .send_data(1, vec![0; 90_000].into(), StreamEnd::Continues, 0)
        .unwrap();
    let (told, _) = pair.exchange();
    assert_eq!(messages(&told).len(), 2);
}

/// A server of which a client has sent two messages of 400 KB in part.
fn with_messages_in_part() -> RawPair {
    let mut http2 = config().http2;
    (http2.stream_window_bytes, http2.connection_window_bytes) = (1 << 20, 8 << 20);
    http2.stream_queue_bytes_max = 8 << 20;
    let mut pair = RawPair::server(GrpcConfig { http2, ..config() });
    let prefix = provost_grpc::message_prefix(MessageForm::Plain, 3 << 20);
    for _ in 0..2 {
        let body = [&prefix[..], &vec![0; 400_000]].concat();
        let (told, _) = pair.ask(&[], &body, StreamEnd::Continues);
        assert_eq!(told.len(), 1, "{told:?}");
    }
    assert_eq!(pair.grpc.partial_bytes(), 800_000);
    pair
}

/// The calls that ended, with their codes.
fn ended(pair: &mut RawPair) -> Vec<(u32, Code)> {
    let (told, _) = pair.exchange();
    let of_event = |event| match event {
        GrpcEvent::Ended { call, status, .. } => Some((call, status.code)),
        _ => None,
    };
    told.into_iter().filter_map(of_event).collect()
}

/// Messages in part that hold much must go on coming, however many connections bring such.
#[test]
fn messages_that_stop_in_their_midst_end_their_calls() {
    let mut pair = with_messages_in_part();
    pair.grpc.watch_progress(true, 0);
    // One of the two goes on, and fast enough for both.
    let more = vec![0; PROGRESS_BYTES_MIN].into();
    pair.raw.send_data(3, more, StreamEnd::Continues, 0).unwrap();
    assert_eq!(ended(&mut pair), []);
    assert!(pair.grpc.next_timeout().is_some_and(|due| due <= PROGRESS_NS));
    pair.grpc.on_time(PROGRESS_NS).unwrap();
    assert_eq!(ended(&mut pair), []);
    // While this end does not read, none can.
    pair.grpc.watch_progress(false, 2 * PROGRESS_NS - 1);
    pair.grpc.on_time(2 * PROGRESS_NS).unwrap();
    assert_eq!(ended(&mut pair), []);
    // Nor while its process stands still.
    pair.grpc.on_time(5 * PROGRESS_NS).unwrap();
    assert_eq!(ended(&mut pair), []);
    pair.grpc.on_time(6 * PROGRESS_NS).unwrap();
    assert_eq!(ended(&mut pair), [(1, Code::Unavailable), (3, Code::Unavailable)]);
    assert_eq!(pair.grpc.partial_bytes(), 0);
    pair.grpc.watch_progress(true, 6 * PROGRESS_NS);
    pair.grpc.on_time(7 * PROGRESS_NS).unwrap();
    assert_eq!(ended(&mut pair), []);
}

/// Those that this end keeps from coming, as another has its turn, have not stopped.
#[test]
fn messages_that_wait_for_their_turn_have_not_stopped() {
    let mut http2 = config().http2;
    (http2.stream_window_bytes, http2.connection_window_bytes) = (600_000, 8 << 20);
    http2.stream_queue_bytes_max = 8 << 20;
    let config = GrpcConfig {
        http2,
        large_message_bytes_max: 1,
        ..config()
    };
    let mut pair = RawPair::server(config);
    let prefix = provost_grpc::message_prefix(MessageForm::Plain, 3 << 20);
    for _ in 0..2 {
        let body = [&prefix[..], &vec![0; 400_000]].concat();
        pair.ask(&[], &body, StreamEnd::Continues);
    }
    pair.grpc.watch_progress(true, 0);
    pair.grpc.on_time(PROGRESS_NS).unwrap();
    assert_eq!(ended(&mut pair), [(1, Code::Unavailable)], "it had its turn");
}

/// Where memory is scarce, less may come in part.
#[test]
fn what_may_come_in_part_can_be_bounded() {
    let mut pair = with_messages_in_part();
    pair.grpc.bound_partial_bytes(900_000);
    let more = vec![0; 150_000].into();
    pair.raw.send_data(1, more, StreamEnd::Continues, 0).unwrap();
    assert_eq!(ended(&mut pair), [(1, Code::ResourceExhausted)]);
    pair.grpc.bound_partial_bytes(usize::MAX);
    let more = vec![0; 600_000].into();
    pair.raw.send_data(3, more, StreamEnd::Continues, 0).unwrap();
    assert_eq!(ended(&mut pair), []);
    assert_eq!(pair.grpc.partial_bytes(), 1_000_000);
}

/// Messages of one stream that follow each other without a pause have their turns as those of several streams do.
#[test]
fn large_messages_of_busy_streams_take_turns() {
    const LARGE: usize = 300_000;
    const COUNT: usize = 6;
    let config = GrpcConfig {
        large_message_bytes_max: LARGE,
        partial_bytes_max: LARGE + 4 * WINDOW_BYTES as usize,
        ..config()
    };
    let mut pair = ConnectedPair::new(config);
    let large = vec![7; LARGE];
    let calls = [(); 4].map(|()| pair.call(&RequestHead::new("/a.B/C")));
    let mut left = [COUNT; 4];
    let (mut came, mut last) = ([0; 4], Vec::new());
    for _ in 0..1_000 {
        for (call, left) in calls.iter().zip(&mut left) {
            // The queue takes a message while it has any room, so that several stand in it.
            while *left > 0
                && pair
                    .client
                    .send_message(*call, MessageForm::Plain, large.clone().into(), 0)
                    .is_ok()
            {
                *left -= 1;
            }
        }
        for event in &pair.exchange().1 {
            assert!(!matches!(event, GrpcEvent::Ended { .. }), "{event:?}");
            if let GrpcEvent::Message { call, message } = event {
                pair.server.consume(*call, message.bytes.len());
                let at = calls.iter().position(|one| one == call).unwrap();
                came[at] += 1;
                last.push(at);
            }
        }
    }
    assert_eq!(came, [COUNT; 4]);
    // No stream has all of its messages before another has its first.
    let first = |at| last.iter().position(|one| *one == at).unwrap();
    assert!((0..4).all(|at| first(at) < 4 * COUNT / 2), "{last:?}");
}

/// So many messages come, which are consumed as they do.
fn all_come(pair: &mut ConnectedPair, expected: &[u8], count: usize) {
    let mut came = 0;
    loop {
        let (_, at_server) = pair.exchange();
        for event in &at_server {
            let GrpcEvent::Message { call, message } = event else {
                assert!(
                    !matches!(
                        event,
                        GrpcEvent::Ended {
                            cause: EndCause::Local,
                            ..
                        }
                    ),
                    "{event:?}"
                );
                continue;
            };
            assert!(message.bytes == expected);
            pair.server.consume(*call, message.bytes.len());
            came += 1;
        }
        if at_server.is_empty() {
            return assert_eq!(came, count);
        }
    }
}

#[test]
fn messages_in_part_have_a_bound() {
    let config = GrpcConfig {
        partial_bytes_max: 50_000,
        ..config()
    };
    let mut pair = ConnectedPair::new(config);
    let call = pair.call(&RequestHead::new("/a.B/C"));
    send(&mut pair.client, call, &vec![0; 70_000], 0);
    let (at_client, at_server) = pair.exchange();
    for (events, cause) in [(at_client, EndCause::Answered), (at_server, EndCause::Local)] {
        let is_exhausted = |event: &GrpcEvent| matches!(event, GrpcEvent::Ended { status, cause: got, .. } if status.code == Code::ResourceExhausted && *got == cause);
        assert!(events.iter().any(is_exhausted), "{events:?}");
    }
}

/// The windows of the connection get back all bytes of calls that ended with messages that nobody consumed.
#[test]
fn calls_that_end_give_their_bytes_back() {
    let mut pair = ConnectedPair::new(config());
    for turn in 0..50 {
        let call = pair.call(&RequestHead::new("/a.B/C"));
        push_until_full(&mut pair, call);
        if turn % 2 == 0 {
            pair.client.cancel(call, Code::Cancelled, 0).unwrap();
        } else {
            let status = GrpcStatus::new(Code::Aborted, "enough");
            pair.server.finish(call, &status, &[], 0).unwrap();
        }
        pair.exchange();
    }
    assert_eq!((pair.client.open_calls(), pair.server.open_calls()), (0, 0));
}

#[test]
fn messages_that_are_too_large_are_not_sent() {
    let config = GrpcConfig {
        sent_message_bytes_max: 10,
        ..config()
    };
    let mut pair = ConnectedPair::new(config);
    let call = pair.call(&RequestHead::new("/a.B/C"));
    let refused = pair
        .client
        .send_message(call, MessageForm::Plain, vec![0; 11].into(), 0);
    let expected = CallFault::TooLarge {
        bytes: 11,
        bytes_max: 10,
    };
    assert_eq!(refused.unwrap_err().0, expected);
}

/// What a test does next to one of its calls.
#[derive(Clone, Copy, Debug)]
enum CallStep {
    Send(usize),
    ConsumeAll,
    Exchange,
}

fn call_step() -> impl Strategy<Value = CallStep> {
    prop_oneof![
        4 => (0_usize..40_000).prop_map(CallStep::Send),
        1 => Just(CallStep::ConsumeAll),
        3 => Just(CallStep::Exchange),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is sent and consumed when, every message that was taken comes, in its order and once.
    #[test]
    fn all_messages_come(steps in proptest::collection::vec((0_usize..3, call_step()), 1..80)) {
        let mut pair = ConnectedPair::new(config());
        let calls = [(); 3].map(|()| pair.call(&RequestHead::new("/a.B/C")));
        let (mut sent, mut got) = (vec![Vec::new(); 3], vec![Vec::new(); 3]);
        let mut held = vec![Vec::new(); 3];
        for (at, step) in steps {
            match step {
                CallStep::Send(bytes) => {
                    let body = vec![sent[at].len() as u8; bytes];
                    if pair.client.send_message(calls[at], MessageForm::Plain, body.into(), 0).is_ok() {
                        sent[at].push(bytes);
                    }
                }
                CallStep::ConsumeAll => consume_all(&mut pair, &calls, &mut held),
                CallStep::Exchange => take_in(&mut pair, &calls, &mut got, &mut held),
            }
        }
        for call in calls {
            respond(&mut pair.server, call);
            pair.client.half_close(call, 0).unwrap();
        }
        while got != sent {
            let before = got.clone();
            take_in(&mut pair, &calls, &mut got, &mut held);
            let is_consumed = held.iter().any(|held| !held.is_empty());
            prop_assert!(got != before || is_consumed, "the calls stand still");
            consume_all(&mut pair, &calls, &mut held);
        }
    }
}

fn consume_all(pair: &mut ConnectedPair, calls: &[u32; 3], held: &mut [Vec<usize>]) {
    for (call, held) in calls.iter().zip(held) {
        held.drain(..).for_each(|bytes| pair.server.consume(*call, bytes));
    }
}

fn take_in(pair: &mut ConnectedPair, calls: &[u32; 3], got: &mut [Vec<usize>], held: &mut [Vec<usize>]) {
    for event in pair.exchange().1 {
        let GrpcEvent::Message { call, message } = event else {
            continue;
        };
        let at = calls.iter().position(|known| *known == call).unwrap();
        assert!(message.bytes.iter().all(|byte| *byte == got[at].len() as u8));
        got[at].push(message.bytes.len());
        held[at].push(message.bytes.len());
    }
}
