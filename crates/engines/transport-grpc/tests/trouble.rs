//! Servers that go away, connections that end, and calls that are begun again.

mod kit;

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use kit::{CHAT, DOWNLOAD, SECOND_NS, SuccessorParts, TransportRig, UNARY, UPLOAD, nobody, restored};
use provost_datapath::{Engine, ForeignBytes, Progress, ReceivedBlock, Saver, duplicate_descriptors};
use provost_grpc::{GrpcConfig, GrpcStatus};
use provost_transport_grpc::{ByteCarrier, GrpcTransportConfig, KEEPALIVE_INTERVAL_NS_MIN};
use provost_wire::Code;
use provost_wire::descriptor::Parts;

const REFUSED_STREAM: u32 = 7;

#[test]
fn calls_that_goaway_left_unprocessed_begin_again_on_another_link() {
    let mut rig = TransportRig::new();
    rig.call(1, UNARY, b"first");
    rig.call(2, UNARY, b"second");
    rig.open(3, UPLOAD);
    rig.send(3, b"a");
    rig.send(3, b"b");
    rig.run();
    let (first, _) = rig.server.request();
    rig.server.go_away(first);
    rig.run();
    assert!(rig.signals.peer_drains(), "the app is to connect anew");
    rig.send(3, b"c");
    rig.end(3);
    rig.run();
    let mut old = rig.next_server();
    rig.run();
    let (second, head) = rig.server.request();
    assert_eq!(head.path, "/greeter.Greeter/Unary");
    assert_eq!(rig.server.messages(second), [b"second"]);
    let (third, _) = rig.server.request();
    assert_eq!(rig.server.messages(third), [b"a", b"b", b"c"]);
    assert!(rig.server.is_half_closed(third));
    rig.server.answer(second, b"2", rig.now);
    rig.server.answer(third, b"3", rig.now);
    rig.run();
    let mut told: Vec<_> = rig.told().iter().map(|told| (told.call, told.status)).collect();
    told.sort_unstable_by_key(|(call, _)| *call);
    assert_eq!(told, [(2, Code::Ok), (3, Code::Ok)]);

    // The one that was begun goes on where it is.
    old.answer(first, b"1", rig.now);
    std::mem::swap(&mut rig.server, &mut old);
    rig.advance(SECOND_NS);
    assert_eq!(rig.told_once().call, 1);
    assert!(rig.dialled.lock().unwrap().is_empty());
}

/// A server may refuse what is over its limit, and a call is begun again once: so few begin before the limit is known.
#[test]
fn few_calls_begin_on_a_link_before_its_settings_have_come() {
    const CALLS: u64 = 150;
    let mut rig = TransportRig::new();
    for id in 0..CALLS {
        rig.call(id, UNARY, b"x");
    }
    rig.run();
    rig.server.go_away(0);
    rig.run();
    rig.next_server();
    rig.server.work(rig.now);
    assert_eq!(rig.server.grpc.open_calls(), 100);
    rig.run();
    assert_eq!(rig.server.grpc.open_calls(), CALLS as usize);
    assert!(rig.told().is_empty());
}

/// Two links, of which one is not watched: it is looked at often while something moves on it, and seldom while nothing does.
#[test]
fn a_link_that_is_not_watched_is_looked_at_seldom_while_it_rests() {
    let mut rig = TransportRig::new();
    rig.call(1, DOWNLOAD, b"x");
    rig.call(2, UNARY, b"x");
    rig.run();
    let (call, _) = rig.server.request();
    rig.server.respond(call, Vec::new(), rig.now);
    rig.run();
    rig.server.go_away(call);
    rig.run();
    let mut old = rig.next_server();
    rig.run();
    rig.told();

    let until = rig.now + SECOND_NS;
    let mut looks = 0;
    while let Some(due) = rig.engine.wake_at().filter(|due| *due < until) {
        rig.now = due;
        rig.run();
        looks += 1;
    }
    assert!((10..30).contains(&looks), "{looks}");

    assert!(old.send(call, b"at last", rig.now));
    std::mem::swap(&mut rig.server, &mut old);
    rig.now = until;
    rig.run();
    assert_eq!(rig.told_once().message, b"at last");
    let due = rig.engine.wake_at().expect("two links are left");
    assert!(due - rig.now <= 2_000_000, "{}", due - rig.now);
}

#[test]
fn a_call_that_the_server_began_is_not_begun_again() {
    let mut rig = TransportRig::new();
    rig.call(1, DOWNLOAD, b"x");
    rig.call(2, UNARY, b"x");
    rig.run();
    let ((first, _), (second, _)) = (rig.server.request(), rig.server.request());
    rig.server.respond(first, Vec::new(), rig.now);
    rig.run();
    rig.told();
    // It says that it did not begin the first, which is not so: its head has come.
    rig.server.reset(first, REFUSED_STREAM);
    rig.server.reset(second, 2);
    rig.run();
    let told = rig.told();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told.iter().all(|told| told.parts == Parts::CANCEL));
    assert_eq!(
        (told[0].status, told[1].status),
        (Code::Unavailable, Code::Internal)
    );
    assert_eq!(rig.server.grpc.open_calls(), 2, "nothing more came");
}

#[test]
fn a_refused_stream_is_begun_again_once() {
    let mut rig = TransportRig::new();
    rig.call(1, UNARY, b"x");
    rig.run();
    let (first, _) = rig.server.request();
    rig.server.reset(first, REFUSED_STREAM);
    rig.run();
    assert!(rig.told().is_empty());
    let (second, _) = rig.server.request();
    assert_eq!(rig.server.messages(second), [b"x"]);
    rig.server.reset(second, REFUSED_STREAM);
    rig.run();
    assert_eq!(rig.told_once().status, Code::Unavailable);
    assert!(rig.dialled.lock().unwrap().is_empty());
}

/// More streams than a server would take back from a client at once.
#[test]
fn a_server_may_reset_many_calls() {
    let mut rig = TransportRig::new();
    for round in 0..3 {
        for id in 0..500 {
            rig.call(500 * round + id, UNARY, b"x");
        }
        rig.run();
        for _ in 0..500 {
            let (call, _) = rig.server.request();
            rig.server.grpc.cancel(call, Code::Internal, rig.now).unwrap();
        }
        rig.run();
        let told = rig.told();
        assert_eq!(told.len(), 500);
        assert!(told.iter().all(|told| told.status == Code::Internal));
    }
}

#[test]
fn what_was_too_much_to_keep_is_not_sent_again() {
    let config = GrpcConfig {
        received_message_bytes_max: 16 << 20,
        ..GrpcConfig::default()
    };
    let mut rig = TransportRig::with(GrpcTransportConfig::default(), config);
    rig.call(1, UNARY, &vec![1; 2 << 20]);
    rig.run();
    let (first, _) = rig.server.request();
    rig.server.reset(first, REFUSED_STREAM);
    rig.run();
    assert_eq!(rig.told_once().status, Code::Unavailable);
}

/// Messages without bytes cost what keeping them takes.
#[test]
fn too_many_empty_messages_to_keep_are_not_sent_again() {
    let mut rig = TransportRig::new();
    rig.open(1, UPLOAD);
    rig.run();
    let (call, _) = rig.server.request();
    let mut come = 0;
    for _ in 0..10 {
        for _ in 0..1_000 {
            rig.send(1, b"");
        }
        rig.run();
        come += rig.server.read_messages(call).len();
    }
    assert_eq!(come, 10_000);
    rig.server.reset(call, REFUSED_STREAM);
    rig.run();
    let end = rig.told().pop().expect("the call has ended");
    assert_eq!((end.parts, end.status), (Parts::CANCEL, Code::Unavailable));
}

#[test]
fn links_are_opened_so_often_and_no_more() {
    let mut rig = TransportRig::new();
    for round in 0..5 {
        rig.call(round, UNARY, b"x");
        rig.run();
        rig.server.go_away(0);
        rig.run();
        if rig.dialled.lock().unwrap().is_empty() {
            break;
        }
        rig.next_server();
        rig.run();
    }
    let told = rig.told();
    assert!(
        told.iter().any(|told| told.status == Code::Unavailable),
        "{told:?}"
    );
    assert!(rig.progress != Progress::Busy);
}

#[test]
fn a_server_that_is_gone_ends_the_calls_and_the_connection() {
    let mut rig = TransportRig::new();
    rig.call(1, UNARY, b"x");
    rig.open(2, CHAT);
    rig.run();
    rig.next_server_is_none();
    rig.run();
    let told = rig.told();
    assert_eq!(told.len(), 2, "{told:?}");
    for told in told {
        assert_eq!((told.parts, told.status), (Parts::CANCEL, Code::Unavailable));
        assert_eq!(told.reason(), "the server closed the connection");
    }
    assert_eq!(rig.progress, Progress::Ended);
    let end = rig.signals.ended().unwrap().clone();
    assert_eq!(
        (end.code, &*end.reason),
        (Code::Unavailable, "the server closed the connection")
    );
}

#[test]
fn a_server_that_breaks_the_protocol_ends_the_calls() {
    let mut rig = TransportRig::new();
    rig.call(1, UNARY, b"x");
    rig.run();
    rig.server
        .say(b"HTTP/1.1 400 Bad Request\r\n\r\nsome more words that are no frames at all");
    rig.run();
    let told = rig.told_once();
    assert_eq!(told.status, Code::Unavailable);
    assert!(told.reason().contains("HTTP/2"), "{}", told.reason());
    assert_eq!(rig.progress, Progress::Ended);
}

#[test]
fn a_drained_connection_ends_when_its_calls_have() {
    let mut rig = TransportRig::new();
    rig.call(1, UNARY, b"x");
    rig.run();
    rig.signals.drain();
    rig.calls = 1;
    rig.run();
    assert!(rig.signals.ended().is_none());
    let (call, _) = rig.server.request();
    rig.server.answer(call, b"y", rig.now);
    rig.run();
    assert_eq!(rig.told_once().status, Code::Ok);
    assert!(
        rig.signals.ended().is_none(),
        "an engine before this one may hold a call"
    );
    rig.calls = 0;
    rig.run();
    assert_eq!(rig.signals.ended().unwrap().code, Code::Ok);
    assert_eq!(rig.progress, Progress::Ended);
    assert!(rig.server.has_ended);
}

#[test]
fn a_closed_connection_ends_its_calls() {
    let mut rig = TransportRig::new();
    rig.open(1, CHAT);
    rig.run();
    let (call, _) = rig.server.request();
    rig.signals.close();
    rig.run();
    let told = rig.told_once();
    assert_eq!((told.parts, told.status), (Parts::CANCEL, Code::Unavailable));
    assert_eq!(rig.server.end_of(call), Some(Code::Cancelled));
    assert_eq!(rig.progress, Progress::Ended);
    rig.call(2, UNARY, b"late");
    rig.run();
}

#[test]
fn a_goaway_of_an_idle_connection_ends_it() {
    let mut rig = TransportRig::new();
    rig.server.go_away(0);
    rig.run();
    assert!(rig.signals.peer_drains());
    assert_eq!(rig.progress, Progress::Ended);
    assert_eq!(rig.signals.ended().unwrap().code, Code::Ok);
}

#[test]
fn a_connection_of_the_greatest_age_ends_with_its_last_call() {
    let config = GrpcTransportConfig {
        age_max_ns: 60 * SECOND_NS,
        ..GrpcTransportConfig::default()
    };
    let mut rig = TransportRig::with(config, GrpcConfig::default());
    rig.advance(50 * SECOND_NS);
    // A successor does not know how old it is.
    rig.restart();
    rig.call(1, UNARY, b"x");
    rig.advance(59 * SECOND_NS);
    assert!(!rig.signals.peer_drains());
    rig.advance(2 * SECOND_NS);
    assert!(rig.signals.peer_drains(), "the app is to connect anew");
    // What the app sends meanwhile goes on another link.
    rig.call(2, UNARY, b"y");
    rig.run();
    let mut old = rig.next_server();
    rig.run();
    let (second, _) = rig.server.request();
    assert_eq!(rig.server.messages(second), [b"y"]);
    rig.server.answer(second, b"2", rig.now);
    rig.run();
    let told = rig.told_once();
    assert_eq!((told.call, told.status), (2, Code::Ok));
    // What was under way ends where it is.
    std::mem::swap(&mut rig.server, &mut old);
    let (first, _) = rig.server.request();
    rig.server.answer(first, b"1", rig.now);
    rig.advance(SECOND_NS);
    let told = rig.told_once();
    assert_eq!((told.call, told.status), (1, Code::Ok));
    assert!(rig.dialled.lock().unwrap().is_empty(), "nobody needed a third");
}

#[test]
fn an_idle_connection_of_the_greatest_age_ends() {
    let config = GrpcTransportConfig {
        age_max_ns: 60 * SECOND_NS,
        ..GrpcTransportConfig::default()
    };
    let mut rig = TransportRig::with(config, GrpcConfig::default());
    rig.advance(61 * SECOND_NS);
    assert_eq!(rig.progress, Progress::Ended);
    assert_eq!(rig.signals.ended().unwrap().code, Code::Ok);
}

/// An engine before this one holds a call while the server goes away: it is sent on another link.
#[test]
fn a_call_that_was_held_back_goes_on_another_link() {
    let mut rig = TransportRig::new();
    rig.calls = 1;
    rig.server.go_away(0);
    rig.run();
    assert!(rig.signals.ended().is_none());
    rig.call(1, UNARY, b"held");
    rig.run();
    rig.next_server();
    rig.run();
    let (call, _) = rig.server.request();
    assert_eq!(rig.server.messages(call), [b"held"]);
    rig.server.answer(call, b"", rig.now);
    rig.run();
    assert_eq!(rig.told_once().status, Code::Ok);
    rig.calls = 0;
    rig.run();
    assert_eq!(rig.progress, Progress::Ended);
}

#[test]
fn a_server_that_drains_in_good_order_loses_no_call() {
    let mut rig = TransportRig::new();
    rig.call(1, UNARY, b"x");
    rig.run();
    rig.server.grpc.drain(rig.now);
    rig.run();
    let (call, _) = rig.server.request();
    rig.server.answer(call, b"y", rig.now);
    rig.run();
    assert_eq!(rig.told_once().status, Code::Ok);
    assert_eq!(rig.signals.ended().unwrap().code, Code::Ok);
}

#[test]
fn a_silent_server_is_pinged_while_calls_are_under_way() {
    let mut rig = TransportRig::new();
    rig.server.reads = false;
    rig.advance(3 * KEEPALIVE_INTERVAL_NS_MIN);
    assert!(rig.signals.ended().is_none(), "nobody waits for it");
    rig.call(1, UNARY, b"x");
    rig.run();
    rig.advance(KEEPALIVE_INTERVAL_NS_MIN - SECOND_NS);
    assert!(rig.told().is_empty());
    rig.advance(60 * SECOND_NS);
    let told = rig.told_once();
    assert_eq!(told.status, Code::Unavailable);
    assert!(told.reason().contains("PING"), "{}", told.reason());

    let mut rig = TransportRig::new();
    rig.call(1, UNARY, b"x");
    rig.run();
    rig.advance(5 * KEEPALIVE_INTERVAL_NS_MIN);
    assert!(rig.told().is_empty(), "it answers");
}

#[test]
fn a_process_that_stood_still_reads_what_has_come_before_it_judges_its_server() {
    let mut rig = TransportRig::new();
    rig.call(1, UNARY, b"x");
    rig.run();
    rig.now += KEEPALIVE_INTERVAL_NS_MIN;
    rig.poll();
    rig.poll();
    rig.server.work(rig.now);
    rig.now += 1000 * KEEPALIVE_INTERVAL_NS_MIN;
    rig.poll();
    assert!(rig.told().is_empty(), "the server has answered");
    assert!(rig.signals.ended().is_none());
}

/// Its silence counts over calls that come one after the other, each of which ends before it is answered.
#[test]
fn a_silent_server_is_left_though_every_call_ends() {
    let mut rig = TransportRig::new();
    rig.call(1, UNARY, b"x");
    rig.run();
    let (call, _) = rig.server.request();
    rig.server.answer(call, b"y", rig.now);
    rig.run();
    assert_eq!(rig.told_once().status, Code::Ok);
    rig.server.reads = false;
    let silent_since = rig.now;
    for id in 2.. {
        rig.call(id, UNARY, b"x");
        rig.advance(10 * SECOND_NS);
        rig.cancel(id);
        rig.advance(SECOND_NS / 100);
        let silent_ns = rig.now - silent_since;
        if let Some(told) = rig.told().pop() {
            assert_eq!(told.status, Code::Unavailable);
            assert!(told.reason().contains("PING"), "{}", told.reason());
            assert!(silent_ns > KEEPALIVE_INTERVAL_NS_MIN, "{silent_ns}");
            return;
        }
        assert!(silent_ns < 2 * KEEPALIVE_INTERVAL_NS_MIN, "calls go there still");
    }
}

/// For state that names neither blocks nor foreign memory.
struct NamesNothing;

impl Saver for NamesNothing {
    fn foreign(&mut self, _bytes: &ForeignBytes, _out: &mut Vec<u8>) {
        unreachable!("messages are private");
    }

    fn block(&mut self, _block: &ReceivedBlock, _content: provost_datapath::BlockContent) {
        unreachable!("messages are private");
    }
}

/// What a successor has that is given no links.
fn without_sockets(rig: &TransportRig) -> SuccessorParts {
    SuccessorParts {
        sockets: Vec::new(),
        config: rig.config,
        share: Arc::clone(&rig.share),
        signals: Arc::clone(&rig.signals),
        now: rig.now,
    }
}

/// Nothing is told, and nothing goes to the server, that would not be without a successor.
#[test]
fn a_successor_goes_on_with_the_links_and_their_calls() {
    let mut rig = TransportRig::allowing(2);
    rig.call(5, UNARY, b"x");
    rig.open(6, CHAT);
    rig.send(6, b"one");
    rig.call(7, UNARY, b"waits");
    rig.run();
    rig.restart();
    rig.send(6, b"two");
    rig.run();
    let ((first, _), (chat, _)) = (rig.server.request(), rig.server.request());
    assert_eq!(rig.server.read_messages(chat), [b"one", b"two"]);
    rig.server.answer(first, b"y", rig.now);
    rig.server.respond(chat, Vec::new(), rig.now);
    assert!(rig.server.send(chat, b"three", rig.now));
    rig.server.work(rig.now);
    rig.restart();
    rig.run();
    let told: Vec<_> = rig
        .told()
        .into_iter()
        .map(|told| (told.call, told.message))
        .collect();
    assert_eq!(
        told,
        [(6, Vec::new()), (5, b"y".to_vec()), (6, b"three".to_vec())]
    );
    let (late, _) = rig.server.request();
    assert_eq!(rig.server.messages(late), [b"waits"]);
    rig.restart();
    rig.cancel(6);
    rig.server.answer(late, b"z", rig.now);
    rig.run();
    assert_eq!(rig.told_once().message, b"z");
    assert_eq!(rig.server.end_of(chat), Some(Code::Cancelled));
    assert_eq!(rig.server.grpc.open_calls(), 0);
    assert!(rig.dialled.lock().unwrap().is_empty(), "one link was enough");
}

/// A call that the server left is begun again by a successor, with the messages that had been sent.
#[test]
fn a_successor_begins_calls_again_that_a_goaway_left() {
    let mut rig = TransportRig::new();
    rig.open(1, CHAT);
    rig.send(1, b"one");
    rig.run();
    rig.restart();
    rig.server.go_away(0);
    rig.run();
    let mut old = rig.next_server();
    rig.restart();
    rig.send(1, b"two");
    rig.run();
    old.work(rig.now);
    let (call, _) = rig.server.request();
    assert_eq!(rig.server.messages(call), [b"one", b"two"]);
    rig.server.answer(call, b"", rig.now);
    rig.run();
    assert_eq!(rig.told().pop().unwrap().status, Code::Ok);
}

/// What cannot be carried is not: its calls end.
#[test]
fn a_link_of_which_the_carrier_cannot_be_saved_ends_with_its_process() {
    struct FixedCarrier(UnixStream);
    impl ByteCarrier for FixedCarrier {
        fn read_ready(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.0.read_ready(into)
        }

        fn write_ready(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
            self.0.write_ready(pieces)
        }

        fn flush_ready(&mut self) -> io::Result<()> {
            Ok(())
        }

        fn socket(&self) -> BorrowedFd<'_> {
            self.0.socket()
        }
    }
    let fixed = |socket| Box::new(FixedCarrier(socket)) as Box<dyn ByteCarrier>;
    let mut rig = TransportRig::over(fixed, GrpcTransportConfig::default(), GrpcConfig::default());
    rig.call(5, UNARY, b"x");
    rig.run();
    assert!(duplicate_descriptors(&rig.engine).unwrap().is_empty());
    rig.restart();
    rig.run();
    assert_eq!(rig.told_once().status, Code::Unavailable);
}

#[test]
fn a_successor_of_an_older_version_ends_the_calls_and_says_why() {
    let mut rig = TransportRig::allowing(1);
    rig.call(5, UNARY, b"x");
    rig.open(6, CHAT);
    rig.run();
    let saved = rig.engine.save(&mut NamesNothing);
    rig.signals = Arc::default();
    rig.engine = restored(&saved, without_sockets(&rig), nobody).unwrap();
    rig.send(6, b"more");
    rig.call(7, UNARY, b"x");
    rig.run();
    let mut told: Vec<_> = rig.told();
    told.sort_unstable_by_key(|told| told.call);
    let calls: Vec<_> = told.iter().map(|told| told.call).collect();
    assert_eq!(calls, [5, 6, 7]);
    for told in &told {
        assert_eq!((told.parts, told.status), (Parts::CANCEL, Code::Unavailable));
        assert!(told.reason().contains("was replaced"), "{}", told.reason());
    }
    assert_eq!(rig.progress, Progress::Ended);
    assert_eq!(rig.signals.ended().unwrap().code, Code::Unavailable);

    let mut short = saved.clone();
    short.bytes.pop();
    assert!(restored(&short, without_sockets(&rig), nobody).is_err());
}

#[test]
fn statuses_of_begun_calls_come_before_the_end() {
    let mut rig = TransportRig::new();
    rig.call(1, DOWNLOAD, b"x");
    rig.run();
    let (call, _) = rig.server.request();
    rig.server.respond(call, Vec::new(), rig.now);
    assert!(rig.server.send(call, b"one", rig.now));
    let status = GrpcStatus::new(Code::DataLoss, "half");
    rig.server.grpc.finish(call, &status, &[], rig.now).unwrap();
    rig.serve_and_leave();
    rig.run();
    let told = rig.told();
    let parts: Vec<_> = told.iter().map(|told| (told.parts, told.status)).collect();
    let expected = [
        (Parts::HEADERS, Code::Ok),
        (Parts::MESSAGE, Code::Ok),
        (Parts::STATUS, Code::DataLoss),
    ];
    assert_eq!(parts, expected);
}
