//! Calls that go well.

use provost_datapath::Step;
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::CHUNK_BYTES_MAX;
use provost_wire::metadata;

use super::{REQUEST, RESPONSE, begin, none, status};
use crate::harness::Bench;
use crate::{BIDI, CLIENT_STREAM, Content, Pair, SERVER_STREAM, UNARY, content, content_bytes};

fn with_metadata(mut content: Content, key: &str, value: &[u8]) -> Content {
    content.metadata.push((key.to_owned(), value.to_vec()));
    content
}

pub(super) fn unary(make_pair: &dyn Fn() -> Pair) {
    let mut bench = Bench::new(make_pair());
    let request = with_metadata(content(1, 64), "x-user", b"ann");
    let deadline = bench.now + 5_000_000_000;
    bench.client.send(
        Step {
            deadline,
            ..begin(1, UNARY, REQUEST)
        },
        &request,
    );
    let got = bench.server_next();
    assert_eq!(
        (got.parts, got.method, &got.message),
        (REQUEST, UNARY, &content_bytes(1, 64))
    );
    assert_eq!(got.metadata, request.metadata_block());
    assert!(
        got.deadline > bench.now && got.deadline <= deadline + 1_000_000_000,
        "the deadline travels"
    );
    let headers = with_metadata(none(), "x-initial", b"1");
    bench.server.send(Step::new(got.call, Parts::HEADERS), &headers);
    let response = with_metadata(content(2, 8), metadata::STATUS_MESSAGE, "gut".as_bytes());
    bench.server.send(status(got.call, RESPONSE, Code::Ok), &response);
    let got = bench.client_next();
    assert_eq!(
        (got.call, got.parts, got.metadata),
        (1, Parts::HEADERS, headers.metadata_block())
    );
    let got = bench.client_next();
    assert_eq!(
        (got.call, got.parts, got.status, &got.message),
        (1, RESPONSE, Code::Ok, &content_bytes(2, 8))
    );
    assert_eq!(got.status_message(), "gut");
    bench.check_nothing_is_left();
}

pub(super) fn streams(make_pair: &dyn Fn() -> Pair) {
    let mut bench = Bench::new(make_pair());
    for (call, method) in [(1, UNARY), (2, CLIENT_STREAM), (3, SERVER_STREAM), (4, BIDI)] {
        let up = if method == UNARY || method == SERVER_STREAM {
            1
        } else {
            20
        };
        let down = if method == UNARY || method == CLIENT_STREAM {
            1
        } else {
            20
        };
        bench.client.send(begin(call, method, Parts::BEGIN), &none());
        let server_call = bench.server_next().call;
        for at in 0..up {
            bench
                .client
                .send(Step::new(call, Parts::MESSAGE), &content(at, 100 + at as u32 * 7));
        }
        bench.client.send_bare(Step::new(call, Parts::END));
        for at in 0..up {
            let got = bench.server_next();
            let message = content_bytes(at, 100 + at as u32 * 7);
            assert_eq!(
                (got.call, got.parts, got.message),
                (server_call, Parts::MESSAGE, message)
            );
        }
        assert_eq!(bench.server_next().parts, Parts::END);
        for at in 0..down {
            bench.server.send(
                Step::new(server_call, Parts::MESSAGE),
                &content(at, 10 + at as u32),
            );
        }
        bench
            .server
            .send_bare(status(server_call, Parts::STATUS, Code::Ok));
        for at in 0..down {
            let got = bench.client_next();
            assert_eq!((got.call, got.message), (call, content_bytes(at, 10 + at as u32)));
        }
        assert_eq!(bench.client_next().parts, Parts::STATUS);
    }
    bench.check_nothing_is_left();
}

pub(super) fn statuses(make_pair: &dyn Fn() -> Pair) {
    let mut bench = Bench::new(make_pair());
    for (at, code) in Code::ALL.into_iter().enumerate() {
        let call = at as u64 + 1;
        bench.client.send(begin(call, UNARY, REQUEST), &content(call, 1));
        let server_call = bench.server_next().call;
        let why = with_metadata(none(), metadata::STATUS_MESSAGE, code.name().as_bytes());
        bench.server.send(status(server_call, Parts::STATUS, code), &why);
        let got = bench.client_next();
        assert_eq!((got.call, got.parts, got.status), (call, Parts::STATUS, code));
        assert_eq!(
            (got.status_message().as_str(), got.message.len()),
            (code.name(), 0)
        );
    }
    bench.client.send(begin(100, UNARY, REQUEST), &content(1, 1));
    let server_call = bench.server_next().call;
    bench
        .server
        .send_bare(status(server_call, Parts::STATUS, Code::NotFound));
    let got = bench.client_next();
    assert_eq!((got.status, got.metadata.len()), (Code::NotFound, 0));
    bench.check_nothing_is_left();
}

pub(super) fn sizes(make_pair: &dyn Fn() -> Pair) {
    let mut bench = Bench::new(make_pair());
    let chunk = CHUNK_BYTES_MAX;
    let edges = [
        1, 2, 7, 8, 9, 2047, 2048, 2049, 4095, 4096, 4097, 8191, 8192, 8193,
    ];
    let around = [
        chunk - 1,
        chunk,
        chunk + 1,
        2 * chunk - 1,
        2 * chunk,
        2 * chunk + 1,
        3 * chunk + 17,
    ];
    for (at, bytes) in edges.into_iter().chain(around).enumerate() {
        let call = at as u64 + 1;
        let request = match at % 2 {
            0 => content(call, bytes),
            _ => with_metadata(content(call, bytes), "key", &vec![b'v'; at]),
        };
        bench.client.send(begin(call, UNARY, REQUEST), &request);
        let got = bench.server_next();
        assert!(
            got.message == content_bytes(call, bytes),
            "a request of {bytes} bytes arrives as it was sent"
        );
        assert_eq!(got.metadata, request.metadata_block());
        bench
            .server
            .send(status(got.call, RESPONSE, Code::Ok), &content(!call, bytes));
        let got = bench.client_next();
        assert!(
            got.message == content_bytes(!call, bytes),
            "a response of {bytes} bytes arrives as it was sent"
        );
    }
    bench.check_nothing_is_left();
}

pub(super) fn large(make_pair: &dyn Fn() -> Pair) {
    const BYTES: u32 = 8 << 20;
    let mut bench = Bench::new(make_pair());
    for call in 1..=2 {
        bench
            .client
            .send(begin(call, UNARY, REQUEST), &content(call, BYTES));
    }
    for _ in 1..=2 {
        let got = bench.server_next();
        let seed = [1, 2]
            .into_iter()
            .find(|seed| content_bytes(*seed, BYTES) == got.message);
        let seed = seed.expect("a large request arrives as it was sent");
        bench
            .server
            .send(status(got.call, RESPONSE, Code::Ok), &content(seed + 10, BYTES));
    }
    for _ in 1..=2 {
        let got = bench.client_next();
        assert!(
            got.message == content_bytes(got.call + 10, BYTES),
            "a large response arrives as it was sent"
        );
    }
    bench.check_nothing_is_left();
}

pub(super) fn order(make_pair: &dyn Fn() -> Pair) {
    let mut bench = Bench::new(make_pair());
    let sizes = [1, 300_000, 5, 70_000, 20, 65_536, 4_000];
    bench.client.send(begin(1, BIDI, Parts::BEGIN), &none());
    for (at, bytes) in sizes.into_iter().enumerate() {
        bench
            .client
            .send(Step::new(1, Parts::MESSAGE), &content(at as u64, bytes));
    }
    bench.client.send_bare(Step::new(1, Parts::END));
    let server_call = bench.server_next().call;
    for (at, bytes) in sizes.into_iter().enumerate() {
        assert!(
            bench.server_next().message == content_bytes(at as u64, bytes),
            "message {at} comes in its order"
        );
    }
    assert_eq!(bench.server_next().parts, Parts::END);
    bench
        .server
        .send_bare(status(server_call, Parts::STATUS, Code::Ok));
    assert_eq!(bench.client_next().parts, Parts::STATUS);
    bench.check_nothing_is_left();
}

pub(super) fn ten_thousand(make_pair: &dyn Fn() -> Pair) {
    const CALLS: u64 = 10_000;
    let mut bench = Bench::new(make_pair());
    let mut begun = 0;
    let mut at_server = Vec::new();
    bench.until("all requests arrive", |bench| {
        while begun < CALLS && bench.client.has_room() {
            begun += 1;
            bench
                .client
                .send(begin(begun, UNARY, REQUEST), &content(begun, 16));
        }
        for got in bench.server.events.drain(..) {
            at_server.push((got.call, got.message));
        }
        at_server.len() as u64 == CALLS
    });
    let mut answered = std::collections::HashSet::new();
    bench.until("all responses arrive", |bench| {
        while bench.server.has_room()
            && let Some((call, message)) = at_server.pop()
        {
            let seed = u64::from_le_bytes(message[..8].try_into().expect("16 bytes"));
            bench
                .server
                .send(status(call, RESPONSE, Code::Ok), &content(seed, 8));
        }
        for got in bench.client.events.drain(..) {
            let request = content_bytes(got.call, 16);
            let seed = u64::from_le_bytes(request[..8].try_into().expect("16 bytes"));
            assert_eq!(
                got.message,
                content_bytes(seed, 8),
                "each call gets its own response"
            );
            assert!(answered.insert(got.call), "each call ends once");
        }
        answered.len() as u64 == CALLS
    });
    bench.check_nothing_is_left();
}
