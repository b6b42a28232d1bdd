//! Calls between two apps, over TCP and on one node.

mod support;

use std::time::{Duration, Instant};

use provost_wire::Code;
use provost_wire::descriptor::{Completion, Parts, Submission, completion_kind, submission_kind};
use support::*;

/// A server's app and a client's, connected.
struct Pair {
    server: TestApp,
    client: TestApp,
    connection: u32,
    accepted: u32,
    _nodes: Vec<TestNode>,
}

fn over_tcp() -> Pair {
    let far = TestNode::start();
    let near = TestNode::start_routed_to(&far);
    let (server, client) = (TestApp::attach(&far), TestApp::attach(&near));
    pair(server, client, vec![near, far])
}

fn on_one_node() -> Pair {
    let node = TestNode::start_with(|config| config.runtime.threads = 2);
    let (server, client) = (TestApp::attach(&node), TestApp::attach(&node));
    pair(server, client, vec![node])
}

fn on_one_runtime() -> Pair {
    let node = TestNode::start_with(|config| config.policies = vec!["null".into()]);
    let (server, client) = (TestApp::attach(&node), TestApp::attach(&node));
    pair(server, client, vec![node])
}

fn pair(mut server: TestApp, mut client: TestApp, nodes: Vec<TestNode>) -> Pair {
    server.bind();
    let connection = client.connect();
    let accepted = server.next_of(completion_kind::ACCEPTED).connection;
    Pair {
        server,
        client,
        connection,
        accepted,
        _nodes: nodes,
    }
}

fn everywhere(test: impl Fn(Pair)) {
    for make in [over_tcp, on_one_node, on_one_runtime] {
        test(make());
    }
}

#[test]
fn a_unary_call_brings_the_request_over_and_the_answer_back() {
    everywhere(|mut pair| {
        for round in 0..50 {
            let text = format!("round {round}");
            let root = pair.client.write_note(0, round, &text, &[7; 100]);
            let call = pair.client.begin(pair.connection, root);
            let request = pair.server.next_step();
            assert_eq!(request.connection, pair.accepted);
            assert_eq!(request.parts, Parts::BEGIN | Parts::MESSAGE | Parts::END);
            assert_eq!(pair.server.read_note(&request), (round, text, vec![7; 100]));
            pair.server.reclaim(request.block);
            let answer = pair.server.write_note(1, round * 2, "fine", &[]);
            pair.server.answer(&request, answer);
            let response = pair.client.next_step();
            assert_eq!((response.call, status(&response)), (call, Code::Ok));
            assert_eq!(response.parts, Parts::MESSAGE | Parts::STATUS);
            assert_eq!(
                pair.client.read_note(&response),
                (round * 2, "fine".into(), vec![])
            );
            pair.client.reclaim(response.block);
        }
    });
}

#[test]
fn a_large_leaf_arrives_whole_and_its_sender_hears_that_it_was_read() {
    everywhere(|mut pair| {
        let data: Vec<u8> = (0..500_000u32).map(|at| (at % 251) as u8).collect();
        let root = pair.client.write_note(0, 1, "", &data);
        let call = pair.client.new_call();
        pair.client.submit(Submission {
            kind: submission_kind::STEP,
            parts: Parts::BEGIN | Parts::MESSAGE | Parts::END,
            connection: pair.connection,
            call,
            root,
            token: 4711,
            ..Submission::default()
        });
        let request = pair.server.next_step();
        assert!(pair.server.read_note(&request).2 == data);
        let sent = pair.client.next_of(completion_kind::SENT);
        let batch: provost_wire::descriptor::Batch = of_slot(&to_slot(&sent));
        assert_eq!((batch.count, batch.items[0]), (1, 4711));
    });
}

#[test]
fn a_deadline_ends_the_call_on_both_sides() {
    everywhere(|mut pair| {
        let root = pair.client.write_note(0, 1, "slow", &[]);
        let call = pair.client.new_call();
        let begun = Instant::now();
        pair.client.submit(Submission {
            kind: submission_kind::STEP,
            parts: Parts::BEGIN | Parts::MESSAGE | Parts::END,
            connection: pair.connection,
            call,
            root,
            deadline_ns: deadline_in(Duration::from_millis(100)),
            ..Submission::default()
        });
        let request = pair.server.next_step();
        assert_ne!(request.deadline_ns, 0);
        let ended = pair.client.next_step();
        assert!(begun.elapsed() >= Duration::from_millis(100));
        assert_eq!((ended.call, ended.parts), (call, Parts::CANCEL));
        assert_eq!(status(&ended), Code::DeadlineExceeded);
        assert!(pair.client.status_message(&ended).contains("deadline"));
        let cancelled = pair.server.next_step();
        assert_eq!((cancelled.call, cancelled.parts), (request.call, Parts::CANCEL));
        // An answer that comes too late bothers nobody, and the connection lives on.
        let answer = pair.server.write_note(1, 2, "late", &[]);
        pair.server.answer(&request, answer);
        let next = pair.client.begin(pair.connection, root);
        let request = pair.server.next_step();
        pair.server.answer(&request, answer);
        assert_eq!(pair.client.next_step().call, next);
    });
}

#[test]
fn a_stream_obeys_its_window() {
    everywhere(|mut pair| {
        let root = pair.client.write_note(0, 1, "", &[1; 60_000]);
        let call = pair.client.new_call();
        let step = Submission {
            kind: submission_kind::STEP,
            method: CHAT,
            connection: pair.connection,
            call,
            root,
            ..Submission::default()
        };
        pair.client.submit(Submission {
            parts: Parts::BEGIN | Parts::MESSAGE,
            ..step
        });
        for _ in 0..16 {
            pair.client.submit(Submission {
                parts: Parts::MESSAGE,
                ..step
            });
        }
        // 17 messages of 60 KB: the next one is within the window, the one after it is not.
        let mut costs = 0;
        let mut served = 0;
        for _ in 0..17 {
            let message = pair.server.next_step();
            costs += message.window_cost;
            served = message.call;
            pair.server.reclaim(message.block);
            if message.parts.contains(Parts::BEGIN) {
                assert_eq!(message.window_cost, 60_024 + 64);
            }
        }
        pair.server.submit(Submission {
            kind: submission_kind::STEP,
            parts: Parts::WINDOW,
            connection: pair.accepted,
            call: served,
            status_or_window: costs,
            ..Submission::default()
        });
        let window = pair.client.next_step();
        assert_eq!((window.parts, window.status_or_window), (Parts::WINDOW, costs));
        let mut refused = None;
        for _ in 0..40 {
            pair.client.submit(Submission {
                parts: Parts::MESSAGE,
                ..step
            });
            if let Some(step) = pair.client.poll()
                && step.kind == completion_kind::STEP
            {
                refused = Some(step);
                break;
            }
        }
        let refused = refused.unwrap_or_else(|| pair.client.next_step());
        assert_eq!(
            (refused.call, refused.parts, status(&refused)),
            (call, Parts::CANCEL, Code::Internal)
        );
        assert!(pair.client.status_message(&refused).contains("window"));
    });
}

#[test]
fn cancelling_reaches_the_server_and_nothing_comes_back() {
    everywhere(|mut pair| {
        let root = pair.client.write_note(0, 1, "x", &[]);
        let call = pair.client.begin(pair.connection, root);
        let request = pair.server.next_step();
        pair.client.submit(Submission {
            kind: submission_kind::STEP,
            parts: Parts::CANCEL,
            connection: pair.connection,
            call,
            status_or_window: Code::Cancelled.number(),
            ..Submission::default()
        });
        let cancelled = pair.server.next_step();
        assert_eq!(
            (cancelled.call, cancelled.parts, status(&cancelled)),
            (request.call, Parts::CANCEL, Code::Cancelled)
        );
    });
}

#[test]
fn steps_that_their_call_does_not_allow_fail_it_alone() {
    everywhere(|mut pair| {
        let root = pair.client.write_note(0, 1, "x", &[]);
        let other = pair.client.begin(pair.connection, root);
        let other_request = pair.server.next_step();
        let step = |call, parts| Submission {
            kind: submission_kind::STEP,
            parts,
            connection: pair.connection,
            call,
            root,
            ..Submission::default()
        };
        let whole = Parts::BEGIN | Parts::MESSAGE | Parts::END;
        let mut cases = Vec::new();
        let outside = pair.client.new_call();
        cases.push((
            Submission {
                root: 1,
                ..step(outside, whole)
            },
            Code::Internal,
        ));
        let misfit = pair.client.new_call();
        cases.push((
            Submission {
                method: 9,
                ..step(misfit, whole)
            },
            Code::Unimplemented,
        ));
        let status_part = pair.client.new_call();
        cases.push((step(status_part, Parts::BEGIN | Parts::STATUS), Code::Internal));
        let nothing = pair.client.new_call();
        cases.push((step(nothing, Parts::NONE), Code::Internal));
        let empty = pair.client.new_call();
        cases.push((step(empty, Parts::BEGIN | Parts::END), Code::Internal));
        cases.push((step(u64::MAX, Parts::MESSAGE), Code::Internal));
        let long = pair.client.new_call();
        let metadata = Submission {
            metadata: root,
            metadata_bytes: 1 << 20,
            ..step(long, whole)
        };
        cases.push((metadata, Code::ResourceExhausted));
        let garbage = pair.client.new_call();
        let metadata = Submission {
            metadata: root,
            metadata_bytes: 24,
            ..step(garbage, whole)
        };
        cases.push((metadata, Code::InvalidArgument));
        for (submission, code) in cases {
            pair.client.submit(submission);
            let ended = pair.client.next_step();
            assert_eq!(
                (ended.call, ended.parts),
                (submission.call, Parts::CANCEL),
                "{submission:?}"
            );
            assert_eq!(status(&ended), code, "{submission:?}");
            assert!(!pair.client.status_message(&ended).is_empty());
            if ended.block != 0 {
                pair.client.reclaim(ended.block);
            }
        }
        let answer = pair.server.write_note(1, 2, "still here", &[]);
        pair.server.answer(&other_request, answer);
        let response = pair.client.next_step();
        assert_eq!((response.call, status(&response)), (other, Code::Ok));
    });
}

#[test]
fn an_app_that_goes_ends_its_calls_at_the_other_end() {
    everywhere(|pair| {
        let Pair {
            mut client,
            server,
            connection,
            _nodes,
            ..
        } = pair;
        let root = client.write_note(0, 1, "x", &[]);
        let call = client.begin(connection, root);
        std::thread::sleep(Duration::from_millis(20));
        drop(server);
        let ended = client.next_step();
        assert_eq!((ended.call, status(&ended)), (call, Code::Unavailable));
        let closed = client.next_of(completion_kind::CLOSED);
        assert_eq!(closed.connection, connection);
    });
}

#[test]
fn what_an_app_submitted_before_it_went_still_arrives() {
    everywhere(|pair| {
        let Pair {
            mut client,
            mut server,
            connection,
            _nodes,
            ..
        } = pair;
        let root = client.write_note(0, 1, "x", &[]);
        let call = client.begin(connection, root);
        let request = server.next_step();
        let answer = server.write_note(1, 2, "farewell", &[]);
        server.answer(&request, answer);
        drop(server);
        let response = client.next_step();
        assert_eq!((response.call, status(&response)), (call, Code::Ok));
        assert_eq!(client.read_note(&response).1, "farewell");
    });
}

#[test]
fn closing_a_connection_closes_it_at_both_ends() {
    everywhere(|mut pair| {
        pair.client.submit(Submission {
            kind: submission_kind::CLOSE,
            connection: pair.connection,
            ..Submission::default()
        });
        let closed = pair.client.next_of(completion_kind::CLOSED);
        assert_eq!((closed.connection, status(&closed)), (pair.connection, Code::Ok));
        let closed = pair.server.next_of(completion_kind::CLOSED);
        assert_eq!(closed.connection, pair.accepted);
    });
}

#[test]
fn unbinding_tells_the_client_to_go_and_lets_its_call_finish() {
    everywhere(|mut pair| {
        let root = pair.client.write_note(0, 1, "x", &[]);
        let call = pair.client.begin(pair.connection, root);
        let request = pair.server.next_step();
        pair.server.unbind();
        let told = pair.client.next_of(completion_kind::GOING_AWAY);
        assert_eq!(told.connection, pair.connection);
        let answer = pair.server.write_note(1, 2, "done", &[]);
        pair.server.answer(&request, answer);
        let response = pair.client.next_step();
        assert_eq!((response.call, status(&response)), (call, Code::Ok));
        assert_eq!(
            pair.client.next_of(completion_kind::CLOSED).connection,
            pair.connection
        );
    });
}

#[test]
fn many_calls_in_flight_are_all_answered() {
    everywhere(|mut pair| {
        const CALLS: u64 = 3000;
        let root = pair.client.write_note(0, 1, "many", &[3; 40]);
        let answer = pair.server.write_note(1, 2, "one", &[]);
        let mut begun = 0;
        let mut answered = 0;
        let until = Instant::now() + WAIT_MAX;
        while answered < CALLS {
            assert!(Instant::now() < until, "{answered} of {begun} answered");
            while begun < CALLS && begun - answered < 500 {
                pair.client.begin(pair.connection, root);
                begun += 1;
                drain(&mut pair, answer, &mut answered);
            }
            drain(&mut pair, answer, &mut answered);
        }
    });
}

fn drain(pair: &mut Pair, answer: u32, answered: &mut u64) {
    let mut requests: Vec<Completion> = Vec::new();
    while let Some(completion) = pair.server.poll() {
        if completion.kind == completion_kind::STEP {
            pair.server.reclaim(completion.block);
            requests.push(completion);
        }
    }
    for request in requests {
        pair.server.answer(&request, answer);
    }
    while let Some(completion) = pair.client.poll() {
        if completion.kind == completion_kind::STEP {
            assert_eq!(status(&completion), Code::Ok);
            pair.client.reclaim(completion.block);
            *answered += 1;
        }
    }
}

#[test]
fn busy_polling_serves_as_well() {
    let node = TestNode::start_with(|config| config.runtime.busy_poll = true);
    let mut pair = pair(TestApp::attach(&node), TestApp::attach(&node), vec![node]);
    let root = pair.client.write_note(0, 1, "x", &[]);
    pair.client.begin(pair.connection, root);
    let request = pair.server.next_step();
    let answer = pair.server.write_note(1, 2, "", &[]);
    pair.server.answer(&request, answer);
    assert_eq!(status(&pair.client.next_step()), Code::Ok);

    let node = TestNode::start_with(|config| config.runtime.allow_app_busy_poll = true);
    let mut server = TestApp::attach(&node);
    server.bind();
    let mut attach = attach_request();
    attach.busy_poll = true;
    let mut client = TestApp::attach_as(&node, attach);
    let connection = client.connect();
    std::thread::sleep(Duration::from_millis(20));
    // The service has not gone to sleep: there is nobody to ring for.
    assert!(!client.rings.service.needed());
    let root = client.write_note(0, 1, "x", &[]);
    client.begin(connection, root);
    server.next_step();
}

#[test]
fn an_idle_service_asks_to_be_rung_and_wakes_up() {
    everywhere(|mut pair| {
        let root = pair.client.write_note(0, 1, "x", &[]);
        for _ in 0..5 {
            // Long past the time that the service polls.
            std::thread::sleep(Duration::from_millis(20));
            let call = pair.client.begin(pair.connection, root);
            let request = pair.server.next_step();
            std::thread::sleep(Duration::from_millis(20));
            let answer = pair.server.write_note(1, 2, "", &[]);
            pair.server.answer(&request, answer);
            assert_eq!(pair.client.next_step().call, call);
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(pair.client.rings.service.needed());
    });
}
