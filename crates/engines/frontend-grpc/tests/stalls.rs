//! For what a client is blamed, and for how long: what it leaves unread, and not what others, or this end, leave.

mod kit;

use kit::{CHAT, CONNECTION, KEEPALIVE, PortRig, UNARY, note};
use provost_datapath::{Body, NODE_PRIVATE_BYTES_MAX, Step};
use provost_grpc::RequestHead;
use provost_wire::Code;
use provost_wire::descriptor::Parts;

/// How long a client leaves its replies is not forgotten because another of its calls ends.
#[test]
fn ends_of_other_calls_do_not_excuse_a_client_that_does_not_read() {
    let mut rig = PortRig::bound();
    rig.begin(RequestHead::new(CHAT));
    rig.exchange();
    let chat = rig.take().unwrap().call;
    rig.call(UNARY, &note("a"));
    let unary = rig.take().unwrap().call;
    let _unread = rig.share.charge(128 << 20);
    let reply = rig.reply(chat, Parts::MESSAGE, &[], Some(&note("b")));
    rig.port.push_step(CONNECTION, reply).unwrap_err();
    let since = rig.port.blocked_since();
    assert_eq!(since, Some(rig.now));
    rig.now += 1_000;
    rig.exchange();
    rig.push(Step::new(unary, Parts::STATUS));
    assert_eq!(rig.port.blocked_since(), since);
}

/// Where others have taken all memory, a client that has read what it was sent waits, and is not blamed for that.
#[test]
fn a_client_is_not_blamed_for_what_others_leave_unread() {
    let mut rig = PortRig::bound();
    rig.begin(RequestHead::new(CHAT));
    rig.exchange();
    let chat = rig.take().unwrap().call;
    let others = rig.share.around().charge(NODE_PRIVATE_BYTES_MAX);
    let large = note(&"x".repeat(2 << 20));
    let mut refused = rig.reply(chat, Parts::MESSAGE, &[], Some(&large));
    for _ in 0..3 {
        rig.now += 1_000;
        rig.exchange();
        refused = rig.port.push_step(CONNECTION, refused).unwrap_err();
        assert_eq!(rig.port.blocked_since(), Some(rig.now));
    }
    // What was counted before it came is taken at once, and read.
    let mut counted = PortRig::encoded_reply(chat, Parts::MESSAGE, &[], &large);
    let Body::Encoded(body) = &mut counted.body else {
        panic!("{counted:?}");
    };
    body.buffer.charge = Some(rig.share.charge(2 << 20));
    rig.push(counted);
    assert!(rig.port.blocked_since().is_some());
    for _ in 0..100 {
        rig.exchange();
    }
    assert_eq!(rig.port.blocked_since(), None);
    // It leaves much unread itself.
    refused = rig.port.push_step(CONNECTION, refused).unwrap_err();
    let _unread = rig.share.charge(2 << 20);
    let since = rig.port.blocked_since();
    rig.now += 1_000;
    rig.exchange();
    refused = rig.port.push_step(CONNECTION, refused).unwrap_err();
    assert_eq!(rig.port.blocked_since(), since);
    drop(others);
    rig.push(refused);
    assert_eq!(rig.port.blocked_since(), None);
}

/// While so many steps wait for datapaths that nothing is read, an answer to a ping may have come.
#[test]
fn a_client_is_not_taken_for_silent_while_it_is_not_read() {
    let mut rig = PortRig::bound();
    // Cancellations, and calls that are to begin.
    let begun: Vec<u32> = (0..600).map(|_| rig.call(UNARY, &note("a"))).collect();
    assert_eq!(std::iter::from_fn(|| rig.take()).count(), begun.len());
    for call in &begun {
        rig.client.cancel(*call, Code::Cancelled, rig.now).unwrap();
    }
    let waiting: Vec<u32> = (0..500).map(|_| rig.call(UNARY, &note("a"))).collect();
    for _ in 0..3 {
        rig.now += KEEPALIVE.interval_ns.max(KEEPALIVE.timeout_ns);
        rig.exchange();
    }
    let steps: Vec<Step> = std::iter::from_fn(|| rig.take()).collect();
    let is_begun = |step: &&Step| step.parts.contains(Parts::BEGIN);
    rig.exchange();
    let more: Vec<Step> = std::iter::from_fn(|| rig.take()).collect();
    let taken = steps.iter().chain(&more).filter(is_begun).count();
    assert_eq!(taken, waiting.len());
    // One that says nothing though it is read is gone.
    for _ in 0..2 {
        rig.now += KEEPALIVE.interval_ns.max(KEEPALIVE.timeout_ns);
        rig.port.poll(rig.now);
        rig.port.flush(rig.now);
    }
    let cancelled = std::iter::from_fn(|| rig.take()).count();
    assert_eq!(cancelled, waiting.len());
    assert!(rig.port.ended().is_some_and(|reason| reason.contains("PING")));
}
