//! What the control plane refuses, what detaches an app, and how a node stops.

mod support;

use std::time::{Duration, Instant};

use prost::Message;
use provost_shm::Memfd;
use provost_wire::Code;
use provost_wire::control::{Attach, Connect, Failed, Request, reply, request};
use provost_wire::descriptor::{Batch, Parts, Submission, completion_kind, submission_kind};
use provostd::config::{RouteConfig, RouteTransport};
use provostd::hot_restart::{UpgradeError, UpgradeRequest};
use provostd::policies::ChangeError;
use provostd::{ReloadError, Shutdown, TransportKind};
use support::*;

fn attach_bare(node: &TestNode, attach: Attach, memfd: Option<&Memfd>) -> Failed {
    let request = Request {
        id: 9,
        body: Some(request::Body::Attach(attach)),
    };
    let reply = ask_bare(&node.socket, request, memfd).expect("a reply");
    assert_eq!(reply.id, 9);
    failed(reply.body.expect("a body"))
}

fn failed(body: reply::Body) -> Failed {
    match body {
        reply::Body::Failed(failed) => failed,
        other => panic!("not refused: {other:?}"),
    }
}

fn code(failed: &Failed) -> Code {
    Code::from_number(failed.code)
}

#[test]
fn a_bad_attach_is_refused_with_its_reason() {
    let node = TestNode::start();
    let heap = send_heap();
    let unsealed = Memfd::create("unsealed", SEND_BYTES).expect("a memfd");
    let good = attach_request();
    let version = Attach {
        version: 99,
        ..good.clone()
    };
    let slots = Attach {
        submission_slots: 100,
        ..good.clone()
    };
    let overlapping = Attach {
        receive_window: 4096,
        ..good.clone()
    };
    let beyond = Attach {
        receive_window_bytes: u64::MAX,
        ..good.clone()
    };
    let busy = Attach {
        busy_poll: true,
        ..good.clone()
    };
    let long = Attach {
        name: "x".repeat(1000),
        ..good.clone()
    };
    let cases = [
        (version, Some(&heap), Code::FailedPrecondition, "version"),
        (slots, Some(&heap), Code::InvalidArgument, "power of two"),
        (overlapping, Some(&heap), Code::InvalidArgument, "receive_window"),
        (beyond, Some(&heap), Code::InvalidArgument, "receive_window"),
        (busy, Some(&heap), Code::PermissionDenied, "allow_app_busy_poll"),
        (long, Some(&heap), Code::InvalidArgument, "name"),
        (good.clone(), Some(&unsealed), Code::InvalidArgument, "seals"),
        (good, None, Code::InvalidArgument, "send heap"),
    ];
    for (attach, memfd, expected, word) in cases {
        let failed = attach_bare(&node, attach, memfd);
        assert_eq!(code(&failed), expected, "{}", failed.message);
        assert!(failed.message.contains(word), "{}", failed.message);
    }
    TestApp::attach(&node);
}

#[test]
fn requests_before_attaching_and_garbage_are_refused() {
    let node = TestNode::start();
    let request = Request {
        id: 5,
        body: Some(request::Body::Connect(connect_request())),
    };
    let reply = ask_bare(&node.socket, request, None).expect("a reply");
    assert_eq!(
        code(&failed(reply.body.expect("a body"))),
        Code::FailedPrecondition
    );
    let app = TestApp::attach(&node);
    app.control.send(&[0xff; 30], &[]).expect("a packet");
    assert!(app.is_detached());
    TestApp::attach(&node);
}

#[test]
fn nothing_stays_bound_by_an_app_that_is_gone_as_soon_as_it_has_asked() {
    let node = TestNode::start();
    let mut other = TestApp::attach(&node);
    other.add_schema();
    let request = Request {
        id: 7,
        body: Some(request::Body::Bind(bind_request())),
    };
    for _ in 0..32 {
        let app = TestApp::attach(&node);
        app.control.send(&request.encode_to_vec(), &[]).expect("a packet");
    }
    let until = Instant::now() + WAIT_MAX;
    loop {
        // Until they are all detached, it may be connected to one of them.
        let reply = other.ask(request::Body::Connect(connect_request()), None);
        if matches!(&reply, reply::Body::Failed(failed) if failed.message.contains("no app has bound")) {
            break;
        }
        assert!(Instant::now() < until, "{reply:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_app_whose_requests_keep_much_is_read_on_when_they_are_answered() {
    let node = TestNode::start_with(|config| config.control.allow_app_addresses = Some(true));
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let (mut other, mut app) = (TestApp::attach(&node), TestApp::attach(&node));
    app.add_schema();
    let connect = Connect {
        address: silent.local_addr().expect("an address").to_string(),
        timeout_ns: WAIT_MAX.as_nanos() as u64,
        ..connect_request()
    };
    // What a field of a later version might say.
    let later = Request {
        id: 7,
        body: Some(request::Body::Connect(connect)),
    };
    let mut long = later.encode_to_vec();
    long.extend([0x7a, 0xe0, 0xd4, 0x03]);
    long.extend([7; 60_000]);
    for _ in 0..3 {
        app.control.send(&long, &[]).expect("a packet");
    }
    // The second one is read, and waits for the first one's share before another is.
    let [first, _second] = [(); 2].map(|()| silent.accept().expect("an attempt"));
    let unbind = provost_wire::control::Unbind {
        service: SERVICE.into(),
    };
    for _ in 0..50 {
        let refused = failed(other.ask(request::Body::Unbind(unbind.clone()), None));
        assert_eq!(code(&refused), Code::NotFound);
    }
    silent.set_nonblocking(true).expect("a listener");
    assert!(silent.accept().is_err(), "the third request was read meanwhile");
    silent.set_nonblocking(false).expect("a listener");
    drop(first);
    silent.accept().expect("the third attempt");
}

#[test]
fn unknown_schemas_services_and_hashes_have_clear_answers() {
    let node = TestNode::start();
    let mut app = TestApp::attach(&node);
    let reply = app.ask(request::Body::Connect(connect_request()), None);
    assert!(matches!(reply, reply::Body::SchemaUnknown(_)), "{reply:?}");
    let reply = app.ask(request::Body::Bind(bind_request()), None);
    assert!(matches!(reply, reply::Body::SchemaUnknown(_)), "{reply:?}");
    let short = Connect {
        schema_hash: vec![1, 2, 3],
        ..connect_request()
    };
    let refused = failed(app.ask(request::Body::Connect(short), None));
    assert_eq!(code(&refused), Code::InvalidArgument);
    app.add_schema();
    let refused = failed(app.ask(request::Body::Connect(connect_request()), None));
    assert_eq!(code(&refused), Code::Unavailable);
    assert!(refused.message.contains("[[route]]"), "{}", refused.message);
    let garbage = Memfd::of_bytes("garbage", &[0xff; 100]).expect("a memfd");
    let add = provost_wire::control::AddSchema { hash: Vec::new() };
    let refused = failed(app.ask(request::Body::AddSchema(add), Some(&garbage)));
    assert_eq!(code(&refused), Code::InvalidArgument);
    let mut wrong_hash = schema_hash().0.to_vec();
    wrong_hash[0] ^= 1;
    let add = provost_wire::control::AddSchema { hash: wrong_hash };
    let schema = Memfd::of_bytes("schema", &descriptor_set()).expect("a memfd");
    let refused = failed(app.ask(request::Body::AddSchema(add), Some(&schema)));
    assert!(refused.message.contains("hash"), "{}", refused.message);
    app.bind();
    let refused = failed(app.ask(request::Body::Bind(bind_request()), None));
    assert_eq!(code(&refused), Code::AlreadyExists);
    app.unbind();
    let unbind = provost_wire::control::Unbind {
        service: SERVICE.into(),
    };
    let refused = failed(app.ask(request::Body::Unbind(unbind), None));
    assert_eq!(code(&refused), Code::NotFound);
}

#[test]
fn a_connection_that_cannot_be_made_says_why() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = nobody.local_addr().expect("an address").to_string();
    drop(nobody);
    let node = TestNode::start_with(|config| {
        config.control.allow_app_addresses = Some(false);
        config.routes.push(RouteConfig {
            service: SERVICE.into(),
            transport: RouteTransport::Over(TransportKind::Tcp),
            endpoints: vec![address],
            ..RouteConfig::default()
        });
    });
    let mut app = TestApp::attach(&node);
    app.add_schema();
    let refused = failed(app.ask(request::Body::Connect(connect_request()), None));
    assert_eq!(code(&refused), Code::Unavailable);
    let named = Connect {
        address: "127.0.0.1:1".into(),
        ..connect_request()
    };
    let refused = failed(app.ask(request::Body::Connect(named), None));
    assert_eq!(code(&refused), Code::PermissionDenied);
}

#[test]
fn a_service_that_nobody_serves_now_is_not_said_to_be_unknown() {
    let node = TestNode::start();
    let mut app = TestApp::attach(&node);
    app.add_schema();
    let refused = failed(app.ask(request::Body::Connect(connect_request()), None));
    assert_eq!(code(&refused), Code::Unavailable);
    let said = refused.message;
    assert!(
        said.contains("no app has bound") && said.ends_with("no service is served here now"),
        "{said}"
    );
}

#[test]
fn a_peer_that_serves_nothing_refuses_at_the_handshake() {
    let far = TestNode::start();
    let near = TestNode::start_routed_to(&far);
    let mut app = TestApp::attach(&near);
    app.add_schema();
    let refused = failed(app.ask(request::Body::Connect(connect_request()), None));
    assert_eq!(code(&refused), Code::Unavailable);
    assert!(refused.message.contains(SERVICE), "{}", refused.message);
}

/// It takes connections and says nothing, as the host of a process that stands still does.
#[test]
fn a_silent_endpoint_leaves_the_others_time() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let far = TestNode::start();
    let mut server = TestApp::attach(&far);
    server.bind();
    let silent_address = silent.local_addr().expect("an address");
    let endpoints = [silent_address, far.node.addresses()[0]];
    let near = TestNode::start_routed_to_all(endpoints.map(|endpoint| endpoint.to_string()).into());
    TestApp::attach(&near).connect();
}

#[test]
fn limits_on_connections_and_apps_hold() {
    let node = TestNode::start_with(|config| {
        config.limits.connections_per_app = 2;
        config.limits.apps = 2;
    });
    let mut server = TestApp::attach(&node);
    server.bind();
    let mut client = TestApp::attach(&node);
    let first = client.connect();
    client.connect();
    let refused = failed(client.ask(request::Body::Connect(connect_request()), None));
    assert_eq!(code(&refused), Code::ResourceExhausted);
    let refused = attach_bare(&node, attach_request(), Some(&send_heap()));
    assert_eq!(code(&refused), Code::ResourceExhausted);
    client.submit(Submission {
        kind: submission_kind::CLOSE,
        connection: first,
        ..Submission::default()
    });
    client.next_of(completion_kind::CLOSED);
    // The place is free once both ends are gone.
    let until = Instant::now() + WAIT_MAX;
    while let reply::Body::Failed(_) = client.ask(request::Body::Connect(connect_request()), None) {
        assert!(Instant::now() < until, "the connection's place is not given back");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn only_a_broken_library_is_detached_and_others_go_on() {
    let node = TestNode::start();
    let mut server = TestApp::attach(&node);
    server.bind();
    let mut client = TestApp::attach(&node);
    let connection = client.connect();
    let mut reclaim = Batch {
        kind: submission_kind::RECLAIM,
        count: 1,
        ..Batch::default()
    };
    reclaim.items[0] = u64::from(RECEIVE_WINDOW) + 5;
    let long = Batch {
        kind: submission_kind::RECLAIM,
        count: 200,
        ..Batch::default()
    };
    let unknown = Submission {
        kind: 99,
        ..Submission::default()
    };
    for slot in [to_slot(&reclaim), to_slot(&long), to_slot(&unknown)] {
        let mut hostile = TestApp::attach(&node);
        hostile.connect();
        hostile.push(slot);
        assert!(hostile.is_detached(), "{slot:?}");
    }
    // Giving back a block twice is a fault, too.
    let root = client.write_note(0, 1, "x", &[]);
    client.begin(connection, root);
    let request = server.next_step();
    server.reclaim(request.block);
    server.reclaim(request.block);
    assert!(server.is_detached());
    assert_eq!(status(&client.next_step()), Code::Unavailable);
}

#[test]
fn an_app_that_never_reads_its_completions_is_detached_and_its_peer_lives_on() {
    let node = TestNode::start_with(|config| config.timeouts.completion_stall_ms = 100);
    let mut server = TestApp::attach(&node);
    server.bind();
    let mut client = TestApp::attach(&node);
    let connection = client.connect();
    let root = client.write_note(0, 1, "x", &[]);
    // The server's ring has 64 slots, and it reads none of them.
    for _ in 0..100 {
        client.begin(connection, root);
    }
    assert!(server.is_detached());
    for _ in 0..100 {
        assert_eq!(status(&client.next_step()), Code::Unavailable);
    }
}

#[test]
fn a_server_takes_no_more_calls_than_it_said() {
    let node = TestNode::start();
    let mut server = TestApp::attach(&node);
    server.add_schema();
    let mut bind = bind_request();
    bind.calls_in_flight_max = 3;
    server.ask(request::Body::Bind(bind), None);
    let mut client = TestApp::attach(&node);
    let connection = client.connect();
    let root = client.write_note(0, 1, "x", &[]);
    let calls: Vec<u64> = (0..4).map(|_| client.begin(connection, root)).collect();
    let refused = client.next_step();
    assert_eq!(
        (refused.call, status(&refused)),
        (calls[3], Code::ResourceExhausted)
    );
    let request = server.next_step();
    let answer = server.write_note(1, 2, "", &[]);
    server.answer(&request, answer);
    assert_eq!(client.next_step().call, calls[0]);
    client.begin(connection, root);
    for _ in 0..3 {
        let request = server.next_step();
        server.answer(&request, answer);
    }
    for _ in 0..3 {
        assert_eq!(status(&client.next_step()), Code::Ok);
    }
}

#[test]
fn draining_lets_a_call_finish_and_then_stops() {
    let far = TestNode::start_with(|config| config.timeouts.drain_ms = 600_000);
    let near = TestNode::start_routed_to(&far);
    let mut server = TestApp::attach(&far);
    server.bind();
    let mut client = TestApp::attach(&near);
    let connection = client.connect();
    let root = client.write_note(0, 1, "x", &[]);
    let call = client.begin(connection, root);
    let request = server.next_step();
    far.node.shut_down(Shutdown::Drain);
    assert_eq!(client.next_of(completion_kind::GOING_AWAY).connection, connection);
    let mut refused = far.node.begin_upgrade(UpgradeRequest::default());
    let until = Instant::now() + WAIT_MAX;
    let refused = loop {
        if let Ok(refused) = refused.try_recv() {
            break refused;
        }
        assert!(Instant::now() < until, "it is answered when the drain has ended");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(matches!(refused, Err(UpgradeError::ShuttingDown)), "{refused:?}");
    let refused = far.node.reload();
    let is_ending = matches!(refused, Err(ReloadError::Policy(ChangeError::Ending)));
    assert!(is_ending, "{refused:?}");
    assert!(!far.node.has_ended());
    let answer = server.write_note(1, 2, "last", &[]);
    server.answer(&request, answer);
    let response = client.next_step();
    assert_eq!((response.call, status(&response)), (call, Code::Ok));
    let until = Instant::now() + WAIT_MAX;
    while !far.node.has_ended() {
        assert!(Instant::now() < until, "the node does not stop");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(client.next_of(completion_kind::CLOSED).connection, connection);
    assert!(server.is_detached());
}

#[test]
fn a_drain_that_lasts_too_long_is_cut_short() {
    let node = TestNode::start_with(|config| config.timeouts.drain_ms = 100);
    let mut server = TestApp::attach(&node);
    server.bind();
    let mut client = TestApp::attach(&node);
    let connection = client.connect();
    let root = client.write_note(0, 1, "x", &[]);
    client.begin(connection, root);
    server.next_step();
    let begun = Instant::now();
    node.node.shut_down(Shutdown::Drain);
    while !node.node.has_ended() {
        assert!(begun.elapsed() < WAIT_MAX, "the node does not stop");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(begun.elapsed() >= Duration::from_millis(100));
}

#[test]
fn a_second_service_does_not_take_a_socket_that_answers() {
    let node = TestNode::start();
    let mut config = provostd::Config::default();
    config.control.socket = node.socket.clone();
    let error = provostd::Node::start(config).err().expect("refused");
    assert!(error.to_string().contains("another service"), "{error}");
    TestApp::attach(&node);
}

#[test]
fn a_message_over_the_limit_fails_its_call_alone() {
    let node = TestNode::start_with(|config| config.limits.message_bytes = 10_000);
    let mut server = TestApp::attach(&node);
    server.bind();
    let mut client = TestApp::attach(&node);
    assert_eq!(client.attached.message_bytes_max, 10_000);
    let connection = client.connect();
    let large = client.write_note(0, 1, "", &[1; 20_000]);
    let call = client.begin(connection, large);
    let refused = client.next_step();
    assert_eq!((refused.call, status(&refused)), (call, Code::ResourceExhausted));
    let small = client.write_note(1, 1, "", &[1; 5_000]);
    client.begin(connection, small);
    assert!(server.next_step().parts.contains(Parts::BEGIN));
}
