//! What a thousand connections to one listener take, in memory and in descriptors.

mod ends;

use ends::{Tls, listener, mutual_tls, pair, pair_at};
use provost_allocations::{CountingAllocator, live_bytes_of_process};
use provost_conformance::{Bench, UNARY, content};
use provost_datapath::Step;
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const CONNECTIONS: usize = 1_000;
const PACKET_BYTES: u32 = 1472;
/// These take their time to begin.
const CONNECTIONS_SEALED: usize = 100;
/// Each idle round takes a quarter of a millisecond: a server's end gives back what a call left with it meanwhile.
const ROUNDS_OF_REST: u64 = 200;
/// Bytes of an end at rest.
const END_BYTES_MAX: i64 = 32 << 10;
/// Descriptors of an end: its socket.
const END_DESCRIPTORS_MAX: usize = 1;
/// Bytes of a connection that has ended: what the listener remembers of it for a while, in a queue that doubles.
const LEFT_BYTES_MAX: i64 = 128;
/// Descriptors that the program has beside those of connections.
const OTHER_DESCRIPTORS: u64 = 64;

fn live_bytes() -> i64 {
    live_bytes_of_process() + provost_registered::usage().lent_bytes as i64
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Whether this process may have as many descriptors as are needed.
fn raise_limit() -> bool {
    let limit = getrlimit(Resource::Nofile);
    let wanted = (2 * CONNECTIONS * END_DESCRIPTORS_MAX) as u64 + OTHER_DESCRIPTORS;
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).is_ok() && limit.maximum.is_none_or(|most| most >= wanted)
}

/// A small call there and back.
fn call(bench: &mut Bench) {
    let request = Step {
        method: UNARY,
        ..Step::new(1, Parts::BEGIN | Parts::MESSAGE | Parts::END)
    };
    bench.client.send(request, &content(1, 100));
    bench.until("the call is answered", |bench| {
        for got in std::mem::take(&mut bench.server.events) {
            let response = Step {
                status: Code::Ok,
                ..Step::new(got.call, Parts::MESSAGE | Parts::STATUS)
            };
            bench.server.send(response, &content(2, 100));
        }
        !std::mem::take(&mut bench.client.events).is_empty()
    });
}

/// Bytes of an end, and descriptors of all ends, of so many connections at one listener.
fn taken(connections: usize, tls: Option<&Tls>) -> (i64, usize) {
    let mut listener = listener();
    // What the first takes for all that follow is not counted.
    call(&mut Bench::new(pair(PACKET_BYTES, tls)));
    let (bytes_before, descriptors_before) = (live_bytes(), descriptors());
    let mut ends = Vec::with_capacity(2 * connections);
    for _ in 0..connections {
        let mut bench = Bench::new(pair_at(&mut listener, PACKET_BYTES, tls));
        call(&mut bench);
        bench.rounds(ROUNDS_OF_REST);
        ends.extend([bench.client.into_engine(), bench.server.into_engine()]);
    }
    let bytes = (live_bytes() - bytes_before) / (2 * connections) as i64;
    let taken = descriptors() - descriptors_before;
    drop(ends);
    assert_eq!(descriptors(), descriptors_before, "all are given back");
    let left = live_bytes() - bytes_before;
    assert!(
        left <= connections as i64 * LEFT_BYTES_MAX,
        "{left} bytes are left"
    );
    (bytes, taken)
}

/// All in one test: what others allocate meanwhile would be counted.
#[test]
fn a_thousand_connections_take_no_more_than_so_many_times_one() {
    if !raise_limit() {
        return provost_skip::forbidden("descriptors for a thousand connections");
    }
    let tls = mutual_tls();
    for (what, connections, tls) in [
        ("plain", CONNECTIONS, None),
        ("sealed", CONNECTIONS_SEALED, Some(&tls)),
    ] {
        let (bytes, taken) = taken(connections, tls);
        println!("{connections} connections, {what}: {bytes} bytes of an end, {taken} descriptors of all");
        assert!((1..=END_BYTES_MAX).contains(&bytes), "{bytes} bytes of an end");
        assert!(
            taken <= 2 * connections * END_DESCRIPTORS_MAX,
            "{taken} descriptors"
        );
    }
}
