//! What memory a connection takes at each end, to the byte: what the program has from its allocator, and blocks of the regions
//! for messages. (The kernel's part, a socket with what waits in it, is not counted.)

mod ends;

use ends::{Tls, mutual_tls, pair};
use provost_allocations::{CountingAllocator, live_bytes_of_process};
use provost_conformance::{Bench, Pair, UNARY, content, content_bytes};
use provost_datapath::Step;
use provost_wire::Code;
use provost_wire::descriptor::Parts;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// What a connection may take at rest.
const REST_BYTES_MAX: i64 = 32 << 10;
/// Calls at once, and bytes of each request and response: together, more than either end holds of a connection at once.
const CALLS: u64 = 24;
const LARGE_BYTES: u32 = 300_000;
const PACKET_BYTES: u32 = 1472;
/// Each idle round takes a quarter of a millisecond: so a second goes by.
const ROUNDS_OF_REST: u64 = 4_000;

const REQUEST: Parts = Parts(Parts::BEGIN.0 | Parts::MESSAGE.0 | Parts::END.0);
const RESPONSE: Parts = Parts(Parts::MESSAGE.0 | Parts::STATUS.0);

fn live_bytes() -> i64 {
    live_bytes_of_process() + provost_registered::usage().lent_bytes as i64
}

/// What goes when the engine of each end is dropped: the client's, and the server's.
fn taken(bench: Bench) -> [i64; 2] {
    let (client, server) = (bench.client.into_engine(), bench.server.into_engine());
    [client, server].map(|engine| {
        let before = live_bytes();
        drop(engine);
        before - live_bytes()
    })
}

fn call(bench: &mut Bench, calls: std::ops::Range<u64>, bytes: u32) {
    for call in calls.clone() {
        let request = Step {
            method: UNARY,
            ..Step::new(call, REQUEST)
        };
        bench.client.send(request, &content(call, bytes));
    }
    let mut answered = 0;
    bench.until("all calls are served", |bench| {
        for got in std::mem::take(&mut bench.server.events) {
            let response = Step {
                status: Code::Ok,
                ..Step::new(got.call, RESPONSE)
            };
            let number = calls.start + answered;
            answered += 1;
            bench.server.send(response, &content(number, bytes));
        }
        bench.client.events.len() as u64 == calls.end - calls.start
    });
    for event in bench.client.events.drain(..) {
        let seeds = calls.clone();
        assert!(
            seeds
                .map(|seed| content_bytes(seed, bytes))
                .any(|sent| sent == event.message),
            "a response arrives whole"
        );
    }
}

fn check(what: &str, taken: [i64; 2]) {
    println!(
        "{what}: {} bytes at the client, {} at the server",
        taken[0], taken[1]
    );
    for bytes in taken {
        assert!((1..=REST_BYTES_MAX).contains(&bytes), "{what}: {bytes} bytes");
    }
}

fn check_of(what: &str, make_pair: &dyn Fn() -> Pair) {
    check(&format!("{what}, new"), taken(Bench::new(make_pair())));
    let mut bench = Bench::new(make_pair());
    call(&mut bench, 1..2, 100);
    bench.rounds(ROUNDS_OF_REST);
    check(&format!("{what}, after a small call"), taken(bench));
    let mut bench = Bench::new(make_pair());
    call(&mut bench, 1..CALLS, LARGE_BYTES);
    call(&mut bench, CALLS..2 * CALLS, LARGE_BYTES);
    bench.rounds(ROUNDS_OF_REST);
    check(&format!("{what}, after large calls"), taken(bench));
}

/// All in one test: what others allocate meanwhile would be counted.
#[test]
fn a_connection_at_rest_takes_less_than_32_kib_at_each_end() {
    check_of("plain", &|| pair(PACKET_BYTES, None));
    let tls: Tls = mutual_tls();
    check_of("sealed", &|| pair(PACKET_BYTES, Some(&tls)));
}
