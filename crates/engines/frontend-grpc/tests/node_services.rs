//! Calls of services that the node answers itself, the test in the place of its control plane.

mod kit;

use std::sync::Arc;

use kit::{PortRig, UNARY, note};
use provost_frontend_grpc::{NodeAnswer, NodeAnswerEnd, NodeEvent, NodeMethod, NodeQuestion};
use provost_grpc::{GrpcStatus, RequestHead};
use provost_wire::Code;

const ASK: &str = "/node.Node/Ask";
const TALK: &str = "/node.Node/Talk";
const ASKED: u32 = 3;
const TALKED: u32 = 4;

fn rig() -> PortRig {
    let method = |path: &str, number, client_streaming| {
        let method = NodeMethod {
            number,
            client_streaming,
        };
        (path[1..].to_owned(), method)
    };
    let methods = [method(ASK, ASKED, false), method(TALK, TALKED, true)];
    PortRig::with(Arc::new(methods.into()))
}

fn asked(rig: &mut PortRig) -> NodeQuestion {
    match rig.port.take_node_event() {
        Some(NodeEvent::Asked(question)) => question,
        other => panic!("nothing was asked: {other:?}"),
    }
}

fn answer(rig: &mut PortRig, stream: u32, message: &[u8], then: NodeAnswerEnd) {
    let answer = NodeAnswer {
        stream,
        messages: vec![message.to_vec()],
        is_further: false,
        then,
    };
    rig.port.answer_node(answer, rig.now);
    rig.exchange();
}

fn ok() -> NodeAnswerEnd {
    NodeAnswerEnd::Ends(GrpcStatus::new(Code::Ok, ""))
}

#[test]
fn a_question_is_answered_without_a_datapath() {
    let mut rig = rig();
    let call = rig.call(ASK, b"who");
    let question = asked(&mut rig);
    assert_eq!((question.method, &*question.message), (ASKED, &b"who"[..]));
    assert!(rig.wanted.is_empty() && rig.take().is_none());
    answer(&mut rig, question.stream, b"me", ok());
    assert_eq!(rig.messages(), [b"me"]);
    assert_eq!(rig.ended(call).0.code, Code::Ok);
    assert_eq!(rig.port.open_calls(), 0);
    // Others go where all go.
    rig.call(UNARY, &note("a"));
    assert_eq!(rig.wanted, ["test.Notes"]);
}

#[test]
fn the_next_message_is_asked_about_when_the_one_before_is_answered() {
    let mut rig = rig();
    let call = rig.begin(RequestHead::new(TALK));
    for message in [b"1", b"2", b"3"] {
        rig.send(call, message);
    }
    rig.client.half_close(call, rig.now).unwrap();
    rig.exchange();
    for message in [b"1", b"2", b"3"] {
        let question = asked(&mut rig);
        assert_eq!(question.message, message);
        assert!(rig.port.take_node_event().is_none());
        answer(&mut rig, question.stream, message, NodeAnswerEnd::Next);
    }
    assert_eq!(rig.messages(), [b"1", b"2", b"3"]);
    assert_eq!(rig.ended(call).0.code, Code::Ok);
}

#[test]
fn a_watch_tells_until_its_client_gives_up_and_that_is_told() {
    let mut rig = rig();
    let call = rig.call(ASK, b"watch");
    let stream = asked(&mut rig).stream;
    answer(&mut rig, stream, b"up", NodeAnswerEnd::More);
    let further = |rig: &mut PortRig, message: &[u8]| {
        let answer = NodeAnswer {
            stream,
            messages: vec![message.to_vec()],
            is_further: true,
            then: NodeAnswerEnd::More,
        };
        rig.port.answer_node(answer, rig.now);
    };
    further(&mut rig, b"down");
    rig.exchange();
    assert_eq!(rig.messages(), [&b"up"[..], b"down"]);
    rig.client.cancel(call, Code::Cancelled, rig.now).unwrap();
    rig.exchange();
    assert_eq!(rig.port.take_node_event(), Some(NodeEvent::Ended { stream }));
    // What was on its way is not for anybody any more.
    further(&mut rig, b"up");
    assert_eq!(rig.port.take_node_event(), Some(NodeEvent::Ended { stream }));
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let mut rig = rig();
    let none = rig.begin(RequestHead::new(ASK));
    rig.client.half_close(none, rig.now).unwrap();
    let (status, _) = rig.ended(none);
    assert!(
        status.code == Code::Unimplemented && status.message.contains("no message"),
        "{status:?}"
    );
    let long = rig.call(ASK, &vec![0; 70_000]);
    let (status, _) = rig.ended(long);
    assert!(
        status.code == Code::ResourceExhausted && status.message.contains("65536"),
        "{status:?}"
    );
    let silent = rig.begin(RequestHead::new(TALK));
    rig.client.half_close(silent, rig.now).unwrap();
    assert_eq!(rig.ended(silent).0.code, Code::Ok);
    assert!(rig.port.take_node_event().is_none());
}

#[test]
fn a_client_asks_a_bounded_number_of_questions_at_a_time() {
    let mut rig = rig();
    let calls: Vec<u32> = (0..20).map(|_| rig.call(ASK, b"who")).collect();
    let taken: Vec<_> = std::iter::from_fn(|| rig.port.take_node_event()).collect();
    assert_eq!(taken.len(), 16);
    // One that is given up before it was asked is not asked.
    rig.client.cancel(calls[16], Code::Cancelled, rig.now).unwrap();
    rig.exchange();
    let NodeEvent::Asked(first) = &taken[0] else {
        panic!("{:?}", taken[0]);
    };
    answer(&mut rig, first.stream, b"me", ok());
    assert_eq!(asked(&mut rig).stream, calls[17]);
    assert!(rig.port.take_node_event().is_none());
}
