//! Apps and peers that take all they can get. What counts is the most that the service uses while they do, and that others
//! are served meanwhile.

#[allow(dead_code, reason = "these tests use a part of it")]
mod beside;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use beside::{ANSWERED_WITHIN, GoodPair, node, watch};
use prost::Message;
use provost_e2e::peer::{Claim, Handshake};
use provost_e2e::{Node, eventually, scrape};
use provost_hostile::raw::{Gone, RawApp};
use provost_hostile::schema::{TARGETS, TargetSchema, bomb};
use provost_shm::{AsFd, Memfd, PacketSocket};
use provost_wire::control::{AddSchema, Connect, Request, request};

/// Another app can attach, bring its schema and offer a service.
fn honest_app_is_served(node: &Node, schema: &TargetSchema) {
    let begin = Instant::now();
    let mut app = RawApp::attach(&node.socket, "honest").expect("it attaches");
    app.bind(schema, TARGETS[0]).expect("it binds");
    assert!(begin.elapsed() < ANSWERED_WITHIN, "{:?}", begin.elapsed());
}

#[test]
fn a_schema_whose_services_all_reach_everything_costs_little() {
    const PEAK_BYTES_MAX: u64 = 300 << 20;
    let (mut world, node) = node("");
    let pair = GoodPair::start(&mut world, &node);
    let schema = TargetSchema::load().expect("the schema");
    let (before, peak) = watch(&node);
    let memory = Memfd::of_bytes("bomb", &bomb(500, 4, 4096)).expect("memory");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (node, memory) = (&node, &memory);
            scope.spawn(move || {
                for _ in 0..2 {
                    let mut app = RawApp::attach(&node.socket, "bomber").expect("it attaches");
                    let add = request::Body::AddSchema(AddSchema { hash: Vec::new() });
                    let refused = app.ask(add, &[memory.as_fd()]);
                    assert!(matches!(refused, Err(Gone::Refused { .. })), "{refused:?}");
                }
            });
        }
        std::thread::sleep(Duration::from_millis(100));
        honest_app_is_served(&node, &schema);
    });
    let peak = peak.stop();
    assert!(
        peak.resident_bytes < before.resident_bytes + PEAK_BYTES_MAX,
        "{before:?} became {peak:?}"
    );
    pair.was_served();
}

#[test]
fn attempts_to_reach_who_never_answers_hold_little_and_end_with_their_app() {
    const APPS: usize = 3;
    const ATTEMPTS: usize = 64;
    /// A socket and a second handle to it.
    const DESCRIPTORS_PER_ATTEMPT: usize = 2;
    const THREADS_PER_APP: usize = 8;
    const SLACK: usize = 40;
    let (mut world, node) = node("");
    let schema = TargetSchema::load().expect("the schema");
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = nobody.local_addr().expect("an address").to_string();
    honest_app_is_served(&node, &schema);
    let pair = GoodPair::start(&mut world, &node);
    let (before, peak) = watch(&node);
    let apps: Vec<_> = (0..APPS)
        .map(|_| {
            let mut app = RawApp::attach(&node.socket, "caller").expect("it attaches");
            app.bind(&schema, TARGETS[1]).expect("it binds");
            for id in 0..ATTEMPTS as u64 {
                let connect = request::Body::Connect(Connect {
                    service: TARGETS[1].to_owned(),
                    schema_hash: schema.hash(TARGETS[1]).0.to_vec(),
                    address: address.clone(),
                    timeout_ns: Duration::from_secs(3600).as_nanos() as u64,
                });
                let packet = Request {
                    id: 1000 + id,
                    body: Some(connect),
                };
                let beside = [app.heap.as_fd(); 8];
                let send = || app.socket.send(&packet.encode_to_vec(), &beside);
                eventually("the node reads requests", ANSWERED_WITHIN, || send().is_ok());
            }
            app
        })
        .collect();
    nobody.set_nonblocking(true).expect("a listener");
    let mut reached = Vec::new();
    eventually("no attempt waits for another one", ANSWERED_WITHIN, || {
        reached.extend(nobody.accept().ok());
        reached.len() == APPS * ATTEMPTS
    });
    honest_app_is_served(&node, &schema);
    let begin = Instant::now();
    drop(apps);
    eventually("attempts end with their apps", ANSWERED_WITHIN, || {
        let now = node.usage();
        now.descriptors <= before.descriptors + SLACK && now.threads <= before.threads + SLACK
    });
    println!("{:?} after the apps had gone", begin.elapsed());
    drop(reached);
    let peak = peak.stop();
    println!("{before:?} became {peak:?}");
    // The rings, bells and heap of an app are a dozen more.
    let descriptors = APPS * (ATTEMPTS * DESCRIPTORS_PER_ATTEMPT + 12) + SLACK;
    assert!(
        peak.descriptors <= before.descriptors + descriptors,
        "{before:?} became {peak:?}"
    );
    assert!(
        peak.threads <= before.threads + APPS * THREADS_PER_APP + 8,
        "{before:?} became {peak:?}"
    );
    pair.was_served();
}

#[test]
fn who_connects_to_the_control_socket_and_is_silent_keeps_nobody_out() {
    let (mut world, node) = node("");
    let schema = TargetSchema::load().expect("the schema");
    let pair = GoodPair::start(&mut world, &node);
    let (before, peak) = watch(&node);
    let mut silent = Vec::new();
    while silent.len() < 600 {
        match PacketSocket::connect(&node.socket) {
            Ok(socket) => silent.push(socket),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
    for _ in 0..10 {
        honest_app_is_served(&node, &schema);
    }
    let peak = peak.stop();
    assert!(
        peak.descriptors < before.descriptors + 900,
        "{before:?} became {peak:?}"
    );
    pair.was_served();
}

#[test]
fn who_connects_to_the_admin_socket_and_is_silent_keeps_nobody_out() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let (mut world, node) = node("");
    let pair = GoodPair::start(&mut world, &node);
    let (before, peak) = watch(&node);
    let connect = || UnixStream::connect(&node.admin_socket).expect("a connection");
    let _silent: Vec<_> = (0..128).map(|_| connect()).collect();
    let mut operator = connect();
    operator
        .set_read_timeout(Some(ANSWERED_WITHIN))
        .expect("a limit of time");
    operator.write_all(PREFACE).expect("it is read");
    let mut answer = [0; 9];
    operator.read_exact(&mut answer).expect("the admin API answers");
    assert_eq!(answer[3], 4, "SETTINGS come first");
    let peak = peak.stop();
    assert!(
        peak.descriptors < before.descriptors + 80,
        "{before:?} became {peak:?}"
    );
    pair.was_served();
}

#[test]
fn who_connects_to_the_metrics_and_is_silent_keeps_nobody_out() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("metrics.sock");
    let (mut world, node) = node(&format!("[observe]\nlisten = \"unix:{}\"\n", socket.display()));
    let pair = GoodPair::start(&mut world, &node);
    let (before, peak) = watch(&node);
    let connect = || UnixStream::connect(&socket).expect("a connection");
    let _silent: Vec<_> = (0..200).map(|_| connect()).collect();
    let scraper = connect();
    scraper
        .set_read_timeout(Some(Duration::from_secs(8)))
        .expect("a limit of time");
    let (status, _) = scrape::get(&scraper, "/healthz").expect("an answer");
    assert_eq!(status, 200);
    let peak = peak.stop();
    assert!(
        peak.descriptors < before.descriptors + 60,
        "{before:?} became {peak:?}"
    );
    pair.was_served();
}

#[test]
fn peers_that_say_nothing_keep_nobody_out() {
    let (mut world, node) = node("");
    let pair = GoodPair::start(&mut world, &node);
    let (before, peak) = watch(&node);
    let _silent: Vec<_> = (0..400)
        .map(|_| TcpStream::connect(node.address).expect("a connection"))
        .collect();
    let honest = Claim::honest(provost_e2e::server::descriptor()).shake_hands(node.address);
    assert!(matches!(honest, Handshake::Open(_)), "{honest:?}");
    let peak = peak.stop();
    assert!(peak.threads < before.threads + 16, "{before:?} became {peak:?}");
    pair.was_served();
}

#[test]
fn what_an_app_names_does_not_fill_the_log() {
    const LOG_BYTES_MAX: usize = 1 << 20;
    let (mut world, node) = node("");
    let pair = GoodPair::start(&mut world, &node);
    let schema = TargetSchema::load().expect("the schema");
    let mut app = RawApp::attach(&node.socket, "talkative").expect("it attaches");
    for _ in 0..1000 {
        let connect = request::Body::Connect(Connect {
            service: "x".repeat(60_000),
            schema_hash: schema.hash(TARGETS[0]).0.to_vec(),
            ..Connect::default()
        });
        let refused = app.ask(connect, &[]);
        assert!(matches!(refused, Err(Gone::Refused { .. })), "{refused:?}");
    }
    let log = node.program.log();
    assert!(log.len() < LOG_BYTES_MAX, "{} bytes of log", log.len());
    assert!(log.contains("talkative"), "{log}");
    pair.was_served();
}
