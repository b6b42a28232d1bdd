use std::cell::Cell;
use std::sync::Arc;

use provost_conformance::{Bench, End, LeftState, Pair, Successors, content};
use provost_datapath::{ConnectionSignals, Engine, Restorer, Step};
use provost_wire::descriptor::Parts;
use provost_wire::limits::CHUNK_BYTES_MAX;

use super::*;
use crate::{Established, Role, TcpTransport, TransportConfig};

#[path = "../../../../core/tls/tests/certificates/mod.rs"]
mod certificates;
#[path = "../../tests/pairs/mod.rs"]
mod pairs;

thread_local! {
    static COPIED_BYTES: Cell<usize> = const { Cell::new(0) };
}

pub(super) fn count_copied(bytes: usize) {
    COPIED_BYTES.set(COPIED_BYTES.get() + bytes);
}

struct NoSuccessors;

impl Successors for NoSuccessors {
    fn one(&mut self, _: Role, _: LeftState, _: &mut dyn Restorer) -> Result<Box<dyn Engine>, RestoreError> {
        unreachable!("nothing is replaced here")
    }
}

/// Engines at these ends, of which each poll moves so many bytes.
fn bench((client, server): (Established, Established), turn_bytes: u32) -> Bench {
    let end = |established: Established| {
        let link = Arc::new(ConnectionSignals::new());
        let config = TransportConfig {
            keepalive_interval_ns: 0,
            ..TransportConfig::default()
        };
        End {
            engine: Box::new(TcpTransport::new(established, config, link.clone(), 0)),
            link,
        }
    };
    Bench::new(Pair {
        client: end(client),
        server: end(server),
        between: Box::new(|_| None),
        successors: Box::new(NoSuccessors),
        hot_restarts: None,
        turn_bytes: Some(turn_bytes),
    })
}

/// How many bytes of requests of this size were copied on their way into the heap, of how many.
fn copied(requests: u64, request_bytes: u32) -> (usize, usize) {
    // The reader keeps up with the writer, so that it stands before a header whenever it reads.
    let mut bench = bench(pairs::established_apart(), CHUNK_BYTES_MAX);
    COPIED_BYTES.set(0);
    let request = Parts::BEGIN.with(Parts::MESSAGE).with(Parts::END);
    for call in 1..=requests {
        bench
            .client
            .send(Step::new(call, request), &content(1, request_bytes));
        bench.until("a request has come", |bench| {
            bench.server.events.drain(..).count() > 0
        });
        bench.server.send_bare(Step::new(call, Parts::CANCEL));
    }
    (COPIED_BYTES.get(), requests as usize * request_bytes as usize)
}

/// Of each frame only the header, and what came with it, goes through the thread's buffer.
#[test]
fn bodies_of_large_messages_come_to_where_they_belong() {
    let (copied, bytes) = copied(20, 4 << 20);
    assert!(copied < bytes / 8, "{copied} of {bytes} bytes were copied");
}

#[test]
fn small_messages_are_read_many_at_once() {
    let (copied, bytes) = copied(100, 1_000);
    assert!(copied >= bytes, "{copied} of {bytes} bytes were copied");
}

/// A connection that is to leave others their turn waits for what is on its way where a network is between, and only for its
/// socket within a host.
#[test]
fn only_the_queues_of_a_network_are_kept_short() {
    for (ends, waits_for_the_wire) in [
        (pairs::established(None), false),
        (pairs::established_apart(), true),
    ] {
        let mut bench = bench(ends, CHUNK_BYTES_MAX);
        let request = Parts::BEGIN.with(Parts::MESSAGE).with(Parts::END);
        bench.client.send(Step::new(1, request), &content(1, 16 << 20));
        // The peer takes nothing.
        for _ in 0..1000 {
            bench.now += 1;
            bench.client.poll(bench.now);
        }
        assert_eq!(bench.client.wake_at().is_some(), waits_for_the_wire);
    }
}
