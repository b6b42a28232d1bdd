//! Who may send how much, and whose turn it is.

use provost_datapath::Step;
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::{STREAM_MESSAGE_COST_BYTES, STREAM_WINDOW_BYTES};

use super::{REQUEST, RESPONSE, begin, none, status, window as give_back};
use crate::harness::{Bench, Reads};
use crate::{BIDI, CLIENT_STREAM, Pair, SERVER_STREAM, UNARY, content, content_bytes};

/// Whatever is begun beside a large message ends before it.
pub(super) fn fairness(make_pair: &dyn Fn() -> Pair) {
    const BYTES: u32 = 8 << 20;
    const SMALL: u64 = 50;
    let mut bench = Bench::new(make_pair());
    for call in 1..=2 {
        bench
            .client
            .send(begin(call, UNARY, REQUEST), &content(call, BYTES));
    }
    for call in 10..10 + SMALL {
        bench.client.send(begin(call, UNARY, REQUEST), &content(call, 64));
    }
    let (mut small, mut large) = (0, 0);
    for _ in 0..SMALL + 2 {
        let got = bench.server_next();
        match got.message.len() {
            64 => small += 1,
            _ => large += 1,
        }
        // A transport that carries a whole message in one step may be done with all of them at once, in order.
        let at_once = bench.rounds <= 4;
        assert!(
            large == 0 || small == SMALL || at_once,
            "a large message was done, {small} small ones were"
        );
        bench.server.send_bare(status(got.call, Parts::STATUS, Code::Ok));
    }
    bench.until("all calls end", |bench| {
        bench.client.events.len() as u64 == SMALL + 2
    });
    bench.client.events.clear();
    bench.check_nothing_is_left();
}

fn cost(bytes: u32) -> i64 {
    i64::from(bytes + STREAM_MESSAGE_COST_BYTES)
}

pub(super) fn window(make_pair: &dyn Fn() -> Pair) {
    const MESSAGES: u64 = 200;
    const BYTES: u32 = 50_000;
    let mut bench = Bench::new(make_pair());
    bench.client.send(begin(1, CLIENT_STREAM, Parts::BEGIN), &none());
    let server_call = bench.server_next().call;
    let (mut credit, mut sent, mut read, mut unread) = (i64::from(STREAM_WINDOW_BYTES), 0, 0, 0);
    bench.until("all messages are read", |bench| {
        while credit > 0 && sent < MESSAGES {
            bench
                .client
                .send(Step::new(1, Parts::MESSAGE), &content(sent, BYTES));
            (credit, sent) = (credit - cost(BYTES), sent + 1);
        }
        for got in bench.client.events.drain(..) {
            assert_eq!(got.parts, Parts::WINDOW, "{}", got.status_message());
            credit += i64::from(got.window_bytes);
            assert!(
                credit <= i64::from(STREAM_WINDOW_BYTES),
                "more is given back than was taken"
            );
        }
        for got in bench.server.events.drain(..) {
            assert!(got.message == content_bytes(read, BYTES), "message {read}");
            // A transport that leaves the cost to the frontend says 0.
            let told = i64::from(got.window_bytes);
            assert!(
                told == 0 || told == cost(BYTES),
                "the cost is told beside the message"
            );
            (read, unread) = (read + 1, unread + cost(BYTES) as u32);
            assert!(
                u64::from(unread) < u64::from(STREAM_WINDOW_BYTES) + cost(BYTES) as u64,
                "the window holds"
            );
        }
        // The reader is slow: it looks only now and then.
        if unread > 0 && bench.rounds.is_multiple_of(7) && bench.server.has_room() {
            bench.server.send_bare(give_back(server_call, unread));
            unread = 0;
        }
        read == MESSAGES
    });
    bench.client.send_bare(Step::new(1, Parts::END));
    assert_eq!(bench.server_next().parts, Parts::END);
    bench
        .server
        .send_bare(status(server_call, Parts::STATUS, Code::Ok));
    bench.until("the status arrives", |bench| {
        bench.client.events.retain(|got| got.parts != Parts::WINDOW);
        !bench.client.events.is_empty()
    });
    bench.client.events.clear();
    bench.check_nothing_is_left();
}

/// A sender that does not heed the window waits, its other calls go on, and what it gets back lets it go on.
pub(super) fn held(make_pair: &dyn Fn() -> Pair) {
    const MESSAGES: u64 = 15;
    const BYTES: u32 = 100_000;
    let mut bench = Bench::new(make_pair());
    bench.client.send(begin(1, BIDI, Parts::BEGIN), &none());
    let server_call = bench.server_next().call;
    for at in 0..MESSAGES {
        bench
            .client
            .send(Step::new(1, Parts::MESSAGE), &content(at, BYTES));
    }
    let most = u64::from(STREAM_WINDOW_BYTES) / cost(BYTES) as u64 + 1;
    for at in 0..most {
        assert!(bench.server_next().message == content_bytes(at, BYTES));
    }
    bench.works(2);
    bench.rounds(200);
    assert_eq!(
        bench.server.events.len(),
        0,
        "no message comes before the window opens"
    );
    for at in most..MESSAGES {
        bench
            .server
            .send_bare(give_back(server_call, cost(BYTES) as u32 * 4));
        bench.until("a held message comes", |bench| !bench.server.events.is_empty());
        assert!(bench.server.events.remove(0).message == content_bytes(at, BYTES));
    }
    bench.client.send_bare(status(1, Parts::CANCEL, Code::Cancelled));
    assert_eq!(bench.server_next().parts, Parts::CANCEL);
    bench.client.events.clear();
    bench.check_nothing_is_left();
}

/// The status of a stream comes behind its messages, also where these wait for the window after the last step was given.
pub(super) fn held_status(make_pair: &dyn Fn() -> Pair) {
    const MESSAGES: u64 = 15;
    const BYTES: u32 = 100_000;
    let mut bench = Bench::new(make_pair());
    bench
        .client
        .send(begin(1, SERVER_STREAM, REQUEST), &content(1, 8));
    let server_call = bench.server_next().call;
    for at in 0..MESSAGES {
        bench
            .server
            .send(Step::new(server_call, Parts::MESSAGE), &content(at, BYTES));
    }
    bench
        .server
        .send_bare(status(server_call, Parts::STATUS, Code::Ok));
    for at in 0..MESSAGES {
        assert!(bench.client_next().message == content_bytes(at, BYTES), "{at}");
        bench.client.send_bare(give_back(1, cost(BYTES) as u32));
    }
    assert_eq!(bench.client_next().parts, Parts::STATUS);
    bench.check_nothing_is_left();
}

pub(super) fn back_pressure(make_pair: &dyn Fn() -> Pair) {
    const BYTES: u32 = 4_000;
    let mut bench = Bench::new(make_pair());
    bench.server.reads = Reads::Never;
    let (mut begun, mut rounds_full) = (0, 0);
    bench.until("the client is stopped", |bench| {
        if bench.client.has_room() {
            begun += 1;
            rounds_full = 0;
            bench
                .client
                .send(begin(begun, UNARY, REQUEST), &content(begun, BYTES));
        } else {
            rounds_full += 1
        }
        // A window of 16 Ki calls in flight bounds those transports that have no socket to fill.
        rounds_full > 2_000 || begun == 12_000
    });
    bench.server.reads = Reads::Always;
    let mut arrived = 0;
    bench.until("all requests arrive and are answered", |bench| {
        while bench.server.has_room() && !bench.server.events.is_empty() {
            let got = bench.server.events.remove(0);
            arrived += 1;
            assert!(
                got.message == content_bytes(arrived, BYTES),
                "request {arrived} in its order"
            );
            bench
                .server
                .send(status(got.call, RESPONSE, Code::Ok), &content(1, 1));
        }
        arrived == begun && bench.client.events.len() as u64 == begun
    });
    bench.client.events.clear();
    bench.check_nothing_is_left();
}
