//! Several connections to one server: when another is opened, used, watched, and closed.

mod kit;

use std::io::Read;
use std::os::unix::net::UnixStream;

use kit::{SECOND_NS, TestServer, TransportRig, UNARY};
use provost_datapath::TransportEngine;
use provost_grpc::GrpcConfig;
use provost_http2::Http2Config;
use provost_transport_grpc::GrpcTransportConfig;
use provost_wire::Code;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

/// RFC 9113, section 3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const CONNECTIONS: usize = 3;
/// After so long a connection without calls is closed, and some more.
const IDLE_NS: u64 = 61 * SECOND_NS;

/// A server that allows one call at a time on each of its connections.
fn rig() -> TransportRig {
    let server = GrpcConfig {
        http2: Http2Config {
            streams_max: 1,
            ..Http2Config::default()
        },
        ..GrpcConfig::default()
    };
    let config = GrpcTransportConfig {
        connections_max: CONNECTIONS,
        ..GrpcTransportConfig::default()
    };
    TransportRig::with(config, server)
}

/// Calls 1 to the number of connections, each on one of its own: the server's ends of these.
fn one_call_on_each(rig: &mut TransportRig) -> Vec<TestServer> {
    let mut servers = Vec::new();
    for call in 1..=CONNECTIONS as u64 {
        rig.call(call, UNARY, b"x");
        rig.run();
        if call > 1 {
            servers.push(rig.next_server());
            rig.run();
        }
    }
    let (_, last) = UnixStream::pair().unwrap();
    let none = TestServer::new(last, rig.server_config, rig.now);
    servers.push(std::mem::replace(&mut rig.server, none));
    servers
}

/// Whether the runtime, which watches what the engine names, would poll it.
fn is_woken(rig: &TransportRig) -> bool {
    let interest = rig.engine.interest().expect("the engine has links");
    let this = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let watched = pidfd_getfd(this, interest.socket, PidfdGetfdFlags::empty()).unwrap();
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut polled = [PollFd::new(&watched, PollFlags::IN)];
    poll(&mut polled, Some(&now)).unwrap() > 0
}

/// Each connection by itself has the engine polled when its server says something.
fn each_wakes(rig: &mut TransportRig, servers: &mut [TestServer]) {
    for (server, id) in servers.iter_mut().zip(1..) {
        rig.run();
        assert!(!is_woken(rig), "nothing has happened");
        let (call, _) = server.request();
        server.answer(call, b"y", rig.now);
        server.work(rig.now);
        assert!(is_woken(rig), "of connection {id}");
        rig.run();
        let told = rig.told_once();
        assert_eq!((told.call, told.status), (id, Code::Ok));
    }
}

#[test]
fn the_runtime_is_woken_by_each_connection() {
    let mut rig = rig();
    let mut servers = one_call_on_each(&mut rig);
    each_wakes(&mut rig, &mut servers);
}

#[test]
fn the_runtime_of_a_successor_is_woken_by_each_connection() {
    let mut rig = rig();
    let mut servers = one_call_on_each(&mut rig);
    rig.restart();
    each_wakes(&mut rig, &mut servers);
}

/// Whether a call has been begun, by what a server has been sent so far.
fn has_request(mut sent: &[u8]) -> bool {
    sent = sent.strip_prefix(PREFACE).unwrap();
    while let [a, b, c, kind, ..] = sent {
        if *kind == HEADERS {
            return true;
        }
        let bytes = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        sent = &sent[9 + bytes..];
    }
    false
}

/// Calls 1, which is under way, and 2, for which a connection has been opened whose server has said nothing: its end, and what it was
/// sent.
fn opened_and_silent(rig: &mut TransportRig) -> (UnixStream, Vec<u8>) {
    rig.call(1, UNARY, b"x");
    rig.call(2, UNARY, b"x");
    rig.run();
    let mut silent = rig.dialled.lock().unwrap().pop().expect("one is opened");
    silent.set_nonblocking(true).unwrap();
    let mut sent = vec![0; 64 << 10];
    let bytes = silent.read(&mut sent).unwrap();
    sent.truncate(bytes);
    assert!(
        !has_request(&sent),
        "its server has not said how many calls it takes"
    );
    (silent, sent)
}

/// The server says its settings at last, and gets the call.
fn speaks(rig: &mut TransportRig, silent: UnixStream, sent: Vec<u8>) {
    let mut server = TestServer::new(silent, rig.server_config, rig.now);
    server.input = sent;
    let _first = std::mem::replace(&mut rig.server, server);
    rig.run();
    let (call, _) = rig.server.request();
    rig.server.answer(call, b"y", rig.now);
    rig.run();
    let told = rig.told_once();
    assert_eq!((told.call, told.status), (2, Code::Ok));
}

#[test]
fn no_call_begins_on_a_further_connection_before_its_server_has_said_its_settings() {
    let mut rig = rig();
    let (silent, sent) = opened_and_silent(&mut rig);
    speaks(&mut rig, silent, sent);
}

#[test]
fn no_call_begins_before_the_settings_when_a_successor_goes_on_either() {
    let mut rig = rig();
    let (mut silent, mut sent) = opened_and_silent(&mut rig);
    rig.restart();
    rig.run();
    let mut more = vec![0; 64 << 10];
    let bytes = silent.read(&mut more).unwrap_or(0);
    sent.extend_from_slice(&more[..bytes]);
    assert!(
        !has_request(&sent),
        "its server has not said how many calls it takes"
    );
    speaks(&mut rig, silent, sent);
}

#[test]
fn connections_beside_others_are_closed_when_they_have_had_no_call_for_a_minute() {
    let mut rig = rig();
    let mut servers = one_call_on_each(&mut rig);
    let mut last = servers.pop().unwrap();
    for server in &mut servers {
        let (call, _) = server.request();
        server.answer(call, b"y", rig.now);
        server.work(rig.now);
    }
    rig.run();
    assert_eq!(rig.told().len(), CONNECTIONS - 1);
    // One is enough for the call that is under way, and it stays however long that takes.
    rig.server = last;
    rig.advance(IDLE_NS);
    for server in &mut servers {
        server.work(rig.now);
        assert!(server.has_ended);
    }
    assert!(!rig.server.has_ended);
    // The last one stays without calls too, and takes the next.
    let (call, _) = rig.server.request();
    rig.server.answer(call, b"y", rig.now);
    rig.run();
    assert_eq!(rig.told_once().call, CONNECTIONS as u64);
    rig.advance(2 * IDLE_NS);
    assert!(!rig.server.has_ended);
    rig.call(10, UNARY, b"x");
    rig.run();
    let (call, _) = rig.server.request();
    rig.server.answer(call, b"y", rig.now);
    rig.run();
    assert_eq!(rig.told_once().call, 10);
    // And there is room for others again.
    rig.call(11, UNARY, b"x");
    rig.call(12, UNARY, b"x");
    rig.run();
    last = rig.next_server();
    rig.run();
    assert!(!last.has_ended);
    rig.server.request();
}
