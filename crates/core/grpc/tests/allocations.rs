//! How often a call allocates, in both ends together: what is kept for the application, and little else.

use std::sync::Arc;

use provost_allocations::{CountingAllocator, made_by_thread};
use provost_grpc::{
    GrpcConfig, GrpcConnection, GrpcEvent, GrpcStatus, MessageForm, RequestHead, ResponseHead,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

type TestConnection = GrpcConnection<Arc<[u8]>>;

/// Calls that are under way together.
const BATCH: u64 = 16;
/// Batches before counting begins: tables and lists have grown by then.
const WARM_UP_BATCHES: u64 = 10;
/// Batches that are counted.
const BATCHES: u64 = 10;
/// Allocations of a call, at most. At the client: the state of its stream and its call, the response's head, message and trailers;
/// at the server the same of the request, and a stream's queue at each; the test's own two messages.
const ALLOCATIONS_MAX: u64 = 16;

struct CountedPair {
    client: TestConnection,
    server: TestConnection,
    wire: Vec<u8>,
    head: RequestHead,
    answered: u64,
}

/// Passes what waits at one end to the other, and each event to `on_event`.
fn pass(
    from: &mut TestConnection,
    to: &mut TestConnection,
    wire: &mut Vec<u8>,
    mut on_event: impl FnMut(&mut TestConnection, GrpcEvent),
) {
    from.fill(0);
    wire.clear();
    let mut slices = [std::io::IoSlice::new(&[]); 64];
    loop {
        let count = from.output(&mut slices);
        let bytes: usize = slices[..count].iter().map(|slice| slice.len()).sum();
        if bytes == 0 {
            break;
        }
        slices[..count]
            .iter()
            .for_each(|slice| wire.extend_from_slice(slice));
        slices = [std::io::IoSlice::new(&[]); 64];
        from.advance(bytes, 0);
        from.fill(0);
    }
    let mut taken = 0;
    loop {
        let received = to.receive(&wire[taken..], 0).expect("the peer keeps the rules");
        taken += received.consumed;
        match received.event {
            Some(event) => on_event(to, event),
            None => return,
        }
    }
}

impl CountedPair {
    fn new() -> CountedPair {
        let config = GrpcConfig::default();
        let mut pair = CountedPair {
            client: TestConnection::client(config, 0),
            server: TestConnection::server(config, 0),
            wire: Vec::with_capacity(1 << 20),
            head: RequestHead::new("/greeter.Greeter/Hello"),
            answered: 0,
        };
        pair.batch(0);
        pair
    }

    fn batch(&mut self, calls: u64) {
        for _ in 0..calls {
            let call = self.client.call(&self.head, 0).unwrap();
            let body = b"a request"[..].into();
            self.client
                .send_message(call, MessageForm::Plain, body, 0)
                .unwrap();
            self.client.half_close(call, 0).unwrap();
        }
        pass(
            &mut self.client,
            &mut self.server,
            &mut self.wire,
            |server, event| {
                if let GrpcEvent::HalfClosed { call } = event {
                    let body = b"a response"[..].into();
                    server.respond(call, &ResponseHead::default(), 0).unwrap();
                    server.send_message(call, MessageForm::Plain, body, 0).unwrap();
                    server.finish(call, &GrpcStatus::ok(), &[], 0).unwrap();
                }
            },
        );
        let answered = &mut self.answered;
        pass(
            &mut self.server,
            &mut self.client,
            &mut self.wire,
            |client, event| match event {
                GrpcEvent::Message { call, message } => client.consume(call, message.bytes.len()),
                GrpcEvent::Ended { .. } => *answered += 1,
                _ => {}
            },
        );
    }
}

#[test]
fn a_call_allocates_little() {
    let mut pair = CountedPair::new();
    (0..WARM_UP_BATCHES).for_each(|_| pair.batch(BATCH));
    let (before, answered) = (made_by_thread(), pair.answered);
    (0..BATCHES).for_each(|_| pair.batch(BATCH));
    let calls = pair.answered - answered;
    assert_eq!(calls, BATCHES * BATCH);
    let allocations = made_by_thread() - before;
    println!(
        "{:.2} allocations for each call",
        allocations as f64 / calls as f64
    );
    assert!(
        allocations <= ALLOCATIONS_MAX * calls,
        "{allocations} allocations in {calls} calls"
    );
}
