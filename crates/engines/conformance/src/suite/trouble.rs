//! Calls and connections that end badly, as they should.

use std::collections::HashSet;

use provost_datapath::{Progress, Step};
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::MESSAGE_BYTES_MAX;

use super::{REQUEST, RESPONSE, begin, none, status};
use crate::harness::{Bench, Keeps};
use crate::{BIDI, Pair, SERVER_STREAM, UNARY, content, content_bytes};

const MOMENTS: u64 = 24;

/// Large enough that a socket does not take it at once.
const LARGE_BYTES: u32 = 3 << 20;

pub(super) fn cancelled_by_client(make_pair: &dyn Fn() -> Pair) {
    let mut bench = Bench::new(make_pair());
    for moment in 0..MOMENTS {
        let call = moment + 1;
        bench.client.send(
            begin(call, BIDI, Parts::BEGIN | Parts::MESSAGE),
            &content(call, LARGE_BYTES),
        );
        bench
            .client
            .send(Step::new(call, Parts::MESSAGE), &content(call, 10));
        bench.rounds(moment);
        if let Some(got) = bench.server.events.first() {
            let server_call = got.call;
            bench
                .server
                .send(Step::new(server_call, Parts::MESSAGE), &content(call, 300_000));
            bench.rounds(moment % 5);
        }
        bench.client.events.clear();
        bench
            .client
            .send_bare(status(call, Parts::CANCEL, Code::Cancelled));
        bench.rounds(1);
        bench.client.events.clear();
        // A call after it passes everything of the one that was cancelled.
        let probe = 1000 + moment;
        bench
            .client
            .send(begin(probe, UNARY, REQUEST), &content(probe, 5));
        bench.until("the next call arrives", |bench| {
            bench
                .server
                .events
                .iter()
                .any(|got| got.message == content_bytes(probe, 5))
        });
        bench.until("the cancellation arrives", |bench| {
            let events = bench
                .server
                .events
                .iter()
                .filter(|got| got.message != content_bytes(probe, 5));
            let parts: Vec<Parts> = events.map(|got| got.parts).collect();
            parts.is_empty() || parts.last() == Some(&Parts::CANCEL)
        });
        let events = std::mem::take(&mut bench.server.events);
        let cancels = events.iter().filter(|got| got.parts == Parts::CANCEL).count();
        assert!(cancels <= 1, "the server learns once that a call was cancelled");
        assert!(
            events
                .iter()
                .all(|got| got.parts != Parts::CANCEL || got.status == Code::Cancelled)
        );
        let probe_call = events
            .iter()
            .find(|got| got.message == content_bytes(probe, 5))
            .expect("it arrived")
            .call;
        bench
            .server
            .send(status(probe_call, RESPONSE, Code::Ok), &content(1, 1));
        // What was under way of the call that was cancelled may still come; a frontend drops it.
        bench.until("the next call ends", |bench| {
            bench.client.events.retain(|got| got.call != call);
            !bench.client.events.is_empty()
        });
        let got = bench.client_next();
        assert_eq!((got.call, got.parts), (probe, RESPONSE));
    }
    bench.check_nothing_is_left();
}

pub(super) fn cancelled_by_server(make_pair: &dyn Fn() -> Pair) {
    let mut bench = Bench::new(make_pair());
    for moment in 0..MOMENTS {
        let call = moment + 1;
        bench
            .client
            .send(begin(call, SERVER_STREAM, REQUEST), &content(call, 10));
        let server_call = bench.server_next().call;
        bench
            .server
            .send(Step::new(server_call, Parts::MESSAGE), &content(call, 900_000));
        bench.rounds(moment);
        bench
            .server
            .send_bare(status(server_call, Parts::CANCEL, Code::Aborted));
        bench.until("the client learns of it", |bench| {
            bench
                .client
                .events
                .last()
                .is_some_and(|got| got.parts == Parts::CANCEL)
        });
        let events = bench.client.take(call);
        assert!(events.len() <= 2 && events.last().map(|got| got.status) == Some(Code::Aborted));
        assert!(
            events[..events.len() - 1]
                .iter()
                .all(|got| got.message == content_bytes(call, 900_000))
        );
        // What the client still says of the call goes nowhere.
        bench
            .client
            .send_bare(status(call, Parts::CANCEL, Code::Cancelled));
        bench.works(1000 + moment * 2);
    }
    bench.check_nothing_is_left();
}

pub(super) fn heap_full(make_pair: &dyn Fn() -> Pair) {
    let mut bench = Bench::new(make_pair());
    bench.server.heap.bytes_max = 10_000;
    bench.client.heap.bytes_max = 10_000;
    for (call, bytes) in [(1, 20_000), (2, 1 << 20)] {
        bench
            .client
            .send(begin(call, UNARY, REQUEST), &content(call, bytes));
        let got = bench.client_next();
        assert_eq!(
            (got.call, got.parts, got.status),
            (call, Parts::CANCEL, Code::ResourceExhausted)
        );
        assert!(!got.status_message().is_empty(), "the end says why");
    }
    bench.works(3);
    for (call, bytes) in [(5, 20_000), (6, 1 << 20)] {
        bench.client.send(begin(call, UNARY, REQUEST), &content(call, 8));
        let server_call = bench.server_next().call;
        bench
            .server
            .send(status(server_call, RESPONSE, Code::Ok), &content(call, bytes));
        let got = bench.client_next();
        assert_eq!(
            (got.call, got.parts, got.status),
            (call, Parts::CANCEL, Code::ResourceExhausted)
        );
    }
    // A server that was told nothing yet of a call in the middle of which its heap is full is told.
    bench.client.send(begin(8, BIDI, Parts::BEGIN), &none());
    let server_call = bench.server_next().call;
    bench.server.keeps_blocks = Keeps::All;
    for at in 0..12 {
        bench
            .client
            .send(Step::new(8, Parts::MESSAGE), &content(at, 1_000));
    }
    bench.until("both ends learn of it", |bench| {
        let last = |node: &crate::Node| node.events.last().map(|got| (got.parts, got.status));
        let full = Some((Parts::CANCEL, Code::ResourceExhausted));
        last(&bench.client) == full && last(&bench.server) == full
    });
    assert!(
        bench.server.take(server_call).len() > 1,
        "what fitted was delivered"
    );
    bench.client.events.clear();
    bench.server.keeps_blocks = Keeps::Nothing;
    bench.server.release();
    bench.works(20);
    bench.check_nothing_is_left();
}

/// Replaces an end's engine by nothing, as when its process dies.
fn kill(node: &mut crate::Node) {
    node.replace_engine(Box::new(Nothing));
}

struct Nothing;

impl provost_datapath::Engine for Nothing {
    fn kind(&self) -> &'static str {
        "nothing"
    }

    fn do_work(
        &mut self,
        ports: provost_datapath::Ports<'_>,
        context: &mut provost_datapath::Context<'_>,
    ) -> Progress {
        while let Some(step) = ports.tx_in.pop() {
            if let provost_datapath::Body::Gathered(body) = step.body {
                context.sent.push(body.token);
            }
        }
        Progress::Ended
    }

    fn save(&self, _saver: &mut dyn provost_datapath::Saver) -> provost_datapath::SavedState {
        provost_datapath::SavedState {
            kind: "nothing".to_owned(),
            version: 1,
            bytes: Vec::new(),
        }
    }
}

pub(super) fn server_gone(make_pair: &dyn Fn() -> Pair) {
    for moment in [0, 1, 2, 3, 5, 8, 13, 40] {
        let mut bench = Bench::new(make_pair());
        bench.client.send(begin(1, UNARY, REQUEST), &content(1, 8));
        let done = bench.server_next().call;
        bench
            .server
            .send(status(done, RESPONSE, Code::Ok), &content(1, 1));
        assert_eq!(bench.client_next().parts, RESPONSE);
        for call in 2..=40 {
            let bytes = if call % 10 == 0 { LARGE_BYTES } else { 100 };
            bench.client.send(
                begin(call, BIDI, Parts::BEGIN | Parts::MESSAGE),
                &content(call, bytes),
            );
        }
        bench.rounds(moment);
        kill(&mut bench.server);
        bench.until("the client's engine ends", |bench| {
            bench.client.progress == Progress::Ended
        });
        let mut ended = HashSet::new();
        for got in std::mem::take(&mut bench.client.events) {
            assert_eq!((got.parts, got.status), (Parts::CANCEL, Code::Unavailable));
            assert!(!got.status_message().is_empty(), "the end says why");
            assert!(ended.insert(got.call), "each call ends once");
        }
        assert_eq!(ended.len(), 39, "each open call ends");
        let end = bench.client.link.ended().expect("the link says why");
        assert_eq!(end.code, Code::Unavailable, "{end:?}");
        check_client_is_clean(bench);
    }
}

fn check_client_is_clean(bench: Bench) {
    assert_eq!(bench.client.heap.live_blocks(), 0, "blocks are leaked");
    assert_eq!(
        bench.client.sent.len() as u64,
        bench.client.tokens(),
        "tokens are leaked"
    );
}

pub(super) fn client_gone(make_pair: &dyn Fn() -> Pair) {
    for moment in [0, 1, 2, 3, 5, 8, 13, 40] {
        let mut bench = Bench::new(make_pair());
        for call in 1..=40 {
            let bytes = if call % 10 == 0 { LARGE_BYTES } else { 100 };
            bench.client.send(
                begin(call, BIDI, Parts::BEGIN | Parts::MESSAGE),
                &content(call, bytes),
            );
        }
        bench.rounds(moment);
        kill(&mut bench.client);
        bench.until("the server's engine ends", |bench| {
            bench.server.progress == Progress::Ended
        });
        let (mut begun, mut ended) = (HashSet::new(), HashSet::new());
        for got in std::mem::take(&mut bench.server.events) {
            match got.parts {
                Parts::CANCEL => {
                    assert_eq!(got.status, Code::Cancelled);
                    assert!(ended.insert(got.call), "each call ends once");
                }
                _ => assert!(begun.insert(got.call)),
            }
        }
        assert_eq!(begun, ended, "each call that the server knows of ends");
        assert_eq!(bench.server.heap.live_blocks(), 0, "blocks are leaked");
    }
}

pub(super) fn server_drains(make_pair: &dyn Fn() -> Pair) {
    let mut bench = Bench::new(make_pair());
    bench
        .client
        .send(begin(1, UNARY, REQUEST), &content(1, LARGE_BYTES));
    let server_call = bench.server_next().call;
    bench.server.link.drain();
    bench.until("the client is told", |bench| bench.client.link.peer_drains());
    bench.client.send(begin(2, UNARY, REQUEST), &content(2, 8));
    let got = bench.client_next();
    assert_eq!(
        (got.call, got.parts, got.status),
        (2, Parts::CANCEL, Code::Unavailable),
        "no new call begins"
    );
    bench
        .server
        .send(status(server_call, RESPONSE, Code::Ok), &content(3, LARGE_BYTES));
    let got = bench.client_next();
    assert!(
        got.call == 1 && got.message == content_bytes(3, LARGE_BYTES),
        "calls in flight are finished"
    );
    bench.until("both ends end", |bench| {
        (bench.client.progress, bench.server.progress) == (Progress::Ended, Progress::Ended)
    });
    for node in [&bench.client, &bench.server] {
        assert_eq!(
            node.link.ended().map(|end| end.code),
            Some(Code::Ok),
            "{:?}",
            node.link.ended()
        );
    }
    bench.client.send(begin(3, UNARY, REQUEST), &content(3, 8));
    bench.client.poll(bench.now);
    let got = bench.client_next();
    assert_eq!(
        (got.call, got.parts, got.status),
        (3, Parts::CANCEL, Code::Unavailable),
        "no call is left without an end"
    );
    bench.check_nothing_is_left();
}

pub(super) fn closed(make_pair: &dyn Fn() -> Pair) {
    let mut bench = Bench::new(make_pair());
    bench.client.send(begin(1, BIDI, Parts::BEGIN), &none());
    let server_call = bench.server_next().call;
    bench
        .client
        .send(Step::new(1, Parts::MESSAGE), &content(1, LARGE_BYTES));
    bench.client.link.close();
    bench.until("both ends end", |bench| {
        (bench.client.progress, bench.server.progress) == (Progress::Ended, Progress::Ended)
    });
    let events = bench.server.take(server_call);
    assert!(
        events[0].message == content_bytes(1, LARGE_BYTES),
        "what was given before the close arrives"
    );
    assert_eq!(
        events.iter().map(|got| got.parts).collect::<Vec<_>>(),
        [Parts::MESSAGE, Parts::CANCEL]
    );
    let got = bench.client.take(1);
    assert_eq!(
        got.iter().map(|got| got.parts).collect::<Vec<_>>(),
        [Parts::CANCEL]
    );
    bench.check_nothing_is_left();
}

pub(super) fn senseless_step(make_pair: &dyn Fn() -> Pair) {
    let mut bench = Bench::new(make_pair());
    bench.client.send(begin(1, UNARY, Parts::BEGIN), &none());
    let server_call = bench.server_next().call;
    bench.client.send_bare(Step::new(1, Parts::END));
    let got = bench.client_next();
    assert_eq!(
        (got.call, got.parts, got.status),
        (1, Parts::CANCEL, Code::Internal),
        "an end without a message"
    );
    let got = bench.server_next();
    assert_eq!((got.call, got.parts), (server_call, Parts::CANCEL));
    bench.works(2);
    bench.check_nothing_is_left();
}

pub(super) fn over_the_limit(make_pair: &dyn Fn() -> Pair) {
    let mut bench = Bench::new(make_pair());
    bench
        .client
        .send(begin(1, UNARY, REQUEST), &content(1, MESSAGE_BYTES_MAX + 1));
    let got = bench.client_next();
    assert_eq!(
        (got.call, got.parts, got.status),
        (1, Parts::CANCEL, Code::ResourceExhausted)
    );
    bench.works(2);
    bench.check_nothing_is_left();
}
