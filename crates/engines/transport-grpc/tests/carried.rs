//! What a hot restart finds half done goes on behind it: input that waits, messages in part, what the app or the server has not taken,
//! and what each end may still send.

mod kit;

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kit::{CHAT, DOWNLOAD, ToldStep, TransportRig, UPLOAD};
use provost_datapath::Queue;
use provost_grpc::{GrpcConfig, GrpcStatus};
use provost_http2::floods::{FloodLimit, FloodLimits};
use provost_http2::{Http2Config, OUTPUT_STOPS_INPUT_BYTES};
use provost_transport_grpc::{ByteCarrier, GrpcTransportConfig};
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::STREAM_WINDOW_BYTES;

/// A PING, which has to be answered.
const PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// So many are said at once.
const PINGS: usize = 500;
const MESSAGE_BYTES: usize = 10_000;

/// The socket of a link, into which nothing can be written for as long as it is stopped.
struct StoppedSocket {
    socket: UnixStream,
    is_stopped: Arc<AtomicBool>,
}

impl ByteCarrier for StoppedSocket {
    fn read_ready(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.read_ready(into)
    }

    fn write_ready(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.socket.write_ready(pieces)
    }

    fn flush_ready(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn carried_socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}

/// The numbers of the messages that the app was told, which each have one byte of it.
fn numbers(told: &[ToldStep]) -> Vec<u8> {
    let messages = told.iter().filter(|told| told.parts.contains(Parts::MESSAGE));
    messages.map(|told| told.message[0]).collect()
}

/// The same of call 1, whose app reads them.
fn read_numbers(rig: &mut TransportRig) -> Vec<u8> {
    let told = rig.told();
    let costs = told.iter().map(|told| told.window_bytes).sum();
    rig.give_back(1, costs);
    numbers(&told)
}

/// A stream of a call of this method, which the server has begun to answer.
fn answered_stream(rig: &mut TransportRig, method: u16) -> u32 {
    rig.open(1, method);
    if method == DOWNLOAD {
        rig.send(1, b"go");
        rig.end(1);
    }
    rig.run();
    let (call, _) = rig.server.request();
    rig.server.respond(call, Vec::new(), rig.now);
    rig.run();
    rig.told();
    call
}

/// What the server's end has to say and has not said.
fn output(rig: &mut TransportRig) -> Vec<u8> {
    rig.server.grpc.fill(rig.now);
    let output = rig.server.grpc.copied_output();
    rig.server.grpc.advance(output.len(), rig.now);
    output
}

/// A server for which many answers to PING are no flood.
fn server_that_is_answered() -> GrpcConfig {
    let floods = FloodLimits {
        ping: FloodLimit::new(u32::MAX, 0, 0),
        ..FloodLimits::default()
    };
    let http2 = Http2Config {
        floods,
        ..Http2Config::default()
    };
    GrpcConfig {
        http2,
        ..GrpcConfig::default()
    }
}

#[test]
fn input_that_waits_for_answers_to_leave_is_taken_by_the_successor() {
    let is_stopped = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&is_stopped);
    let around = |socket| {
        Box::new(StoppedSocket {
            socket,
            is_stopped: stopped,
        }) as Box<dyn ByteCarrier>
    };
    let mut rig = TransportRig::over(around, GrpcTransportConfig::default(), server_that_is_answered());
    let call = answered_stream(&mut rig, CHAT);
    is_stopped.store(true, Ordering::Relaxed);
    let (mut told, mut sent) = (Vec::new(), 0);
    // Answers to PING fill the output, until messages behind one are not looked at. Each message pays for a PING.
    while told.len() == sent {
        let answers = sent * PING.len();
        assert!(answers < 4 * OUTPUT_STOPS_INPUT_BYTES, "nothing stops the input");
        let mut said = Vec::new();
        for _ in 0..PINGS {
            assert!(rig.server.send(call, &[sent as u8], rig.now));
            sent += 1;
            said.extend(PING);
            said.extend(output(&mut rig));
        }
        rig.server.say(&said);
        rig.run();
        told.extend(read_numbers(&mut rig));
    }
    rig.restart();
    rig.run();
    told.extend(read_numbers(&mut rig));
    let expected: Vec<u8> = (0..sent).map(|number| number as u8).collect();
    assert!(told == expected, "{} of {sent} messages have come", told.len());
    assert_eq!(rig.signals.ended(), None);
}

#[test]
fn messages_that_the_app_was_not_given_come_after_the_restart() {
    let mut rig = TransportRig::new();
    let call = answered_stream(&mut rig, DOWNLOAD);
    for number in 0..5 {
        assert!(rig.server.send(call, &[number], rig.now));
    }
    let finished = rig.server.grpc.finish(call, &GrpcStatus::ok(), &[], rig.now);
    finished.unwrap();
    rig.server.work(rig.now);
    rig.rx = Queue::with_bound(2);
    rig.poll();
    let mut told = rig.told();
    assert_eq!(numbers(&told), [0, 1]);
    rig.restart();
    rig.rx = Queue::with_bound(100);
    rig.run();
    told.extend(rig.told());
    assert_eq!(numbers(&told), [0, 1, 2, 3, 4]);
    let last = told.last().unwrap();
    assert_eq!((last.parts, last.status), (Parts::STATUS, Code::Ok));
}

#[test]
fn messages_that_have_come_in_part_are_completed_after_the_restart() {
    let mut rig = TransportRig::new();
    let call = answered_stream(&mut rig, DOWNLOAD);
    assert!(rig.server.send(call, &[7; MESSAGE_BYTES], rig.now));
    let said = output(&mut rig);
    // Within the head of a frame, the prefix of a message, and the message.
    let cuts = [4, 12, 500, said.len() / 2];
    let mut from = 0;
    for cut in cuts.into_iter().chain([said.len()]) {
        assert!(rig.told().is_empty());
        rig.server.say(&said[from..cut]);
        from = cut;
        rig.run();
        rig.restart();
    }
    rig.run();
    assert_eq!(rig.told_once().message, [7; MESSAGE_BYTES]);
}

#[test]
fn messages_that_the_server_has_not_taken_go_after_the_restart() {
    const MESSAGES: usize = 200;
    let mut rig = TransportRig::new();
    rig.open(1, UPLOAD);
    for number in 0..MESSAGES {
        rig.send(1, &[number as u8; MESSAGE_BYTES]);
    }
    rig.end(1);
    rig.run();
    let (call, _) = rig.server.request();
    let mut got = rig.server.messages(call);
    assert!(got.len() < MESSAGES, "the window is larger than the messages");
    rig.restart();
    let before: usize = got.iter().map(Vec::len).sum();
    rig.server.grpc.consume(call, before);
    for _ in 0..MESSAGES {
        rig.run();
        got.extend(rig.server.read_messages(call));
        rig.restart();
    }
    let numbers: Vec<usize> = got.iter().map(|message| usize::from(message[0])).collect();
    assert_eq!(numbers, (0..MESSAGES).collect::<Vec<usize>>());
    assert!(rig.server.is_half_closed(call));
}

#[test]
fn what_the_app_reads_after_the_restart_opens_the_servers_window() {
    let mut rig = TransportRig::new();
    let call = answered_stream(&mut rig, DOWNLOAD);
    let mut told = Vec::new();
    // Until neither end has room.
    loop {
        let mut sent = 0;
        while rig.server.send(call, &[1; MESSAGE_BYTES], rig.now) {
            sent += 1;
        }
        rig.run();
        told.extend(rig.told());
        if sent == 0 {
            break;
        }
    }
    rig.restart();
    rig.run();
    assert!(rig.told().is_empty(), "the app has no window");
    for told in &told {
        rig.give_back(1, told.window_bytes);
        rig.restart();
    }
    rig.run();
    rig.told();
    // All that has come was read: the server has its window back.
    assert!(rig.server.send(call, &[1; MESSAGE_BYTES], rig.now));
}

#[test]
fn what_the_server_has_taken_before_the_restart_opens_the_apps_window() {
    const MESSAGES: usize = 100;
    let mut rig = TransportRig::new();
    rig.open(1, UPLOAD);
    rig.run();
    let (call, _) = rig.server.request();
    let mut opened = 0;
    for _ in 0..MESSAGES {
        rig.send(1, &[0; MESSAGE_BYTES]);
        rig.run();
        rig.server.read_messages(call);
        opened += rig
            .told()
            .iter()
            .map(|told| told.window_bytes as usize)
            .sum::<usize>();
        rig.restart();
    }
    let sent = MESSAGES * MESSAGE_BYTES;
    assert!(
        opened + STREAM_WINDOW_BYTES as usize / 2 > sent,
        "of {sent} bytes, {opened} were given back"
    );
}
