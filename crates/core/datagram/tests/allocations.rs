//! Once it is warm, an endpoint allocates nothing.

use provost_allocations::{CountingAllocator, made_by_thread};
use provost_datagram::{Call, Config, Endpoint, Event, Mark, MsgBuf, SessionId};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const PACKET_BYTES: usize = 512;
const CALLS: usize = 8;

/// Two endpoints, and a packet's worth of memory between them.
struct Pair {
    now_ns: u64,
    client: Endpoint<u8>,
    server: Endpoint<u8>,
    session: Option<SessionId>,
    spare: Vec<(MsgBuf, MsgBuf)>,
    responses: Vec<MsgBuf>,
    frame: [u8; PACKET_BYTES],
    done: u64,
}

fn put<'f>(frame: &'f mut [u8; PACKET_BYTES], head: &[u8], payload: &[u8]) -> &'f [u8] {
    let bytes = head.len() + payload.len();
    frame[..head.len()].copy_from_slice(head);
    frame[head.len()..bytes].copy_from_slice(payload);
    &frame[..bytes]
}

impl Pair {
    fn new() -> Pair {
        let config = Config {
            secret: [1, 2],
            packet_bytes_max: PACKET_BYTES,
            message_bytes_max: 1 << 20,
            ..Config::default()
        };
        let (client, server) = (
            Endpoint::new(config.clone()).unwrap(),
            Endpoint::new(config).unwrap(),
        );
        Pair {
            now_ns: 1,
            client,
            server,
            session: None,
            spare: Vec::new(),
            responses: Vec::new(),
            frame: [0; PACKET_BYTES],
            done: 0,
        }
    }

    fn served(&mut self, event: Event<'_>, bytes: usize) {
        match event {
            Event::Request { handle, payload, .. } if payload.len() <= 400 => {
                self.server
                    .respond_inline(self.now_ns, handle, 0, &payload)
                    .unwrap();
            }
            Event::Request { handle, payload, .. } => {
                let mut response = self
                    .responses
                    .pop()
                    .unwrap_or_else(|| MsgBuf::with_capacity(bytes));
                assert!(response.fill(&payload));
                self.server.respond(self.now_ns, handle, 0, response).unwrap();
                if let provost_datagram::Payload::Owned(buffer) = payload {
                    self.server.recycle(buffer);
                }
            }
            Event::ResponseReturned(buffer) => self.responses.push(buffer),
            _ => {}
        }
    }

    fn called(&mut self, event: Event<'_>) {
        match event {
            Event::Connected(session) => self.session = Some(session),
            Event::Completed(completion) => {
                assert_eq!(completion.outcome, Ok(0));
                self.done += 1;
                self.spare.push((completion.request, completion.response));
            }
            _ => {}
        }
    }

    /// Lets packets go back and forth until none is left.
    fn settle(&mut self, bytes: usize) {
        let mut quiet = 0;
        while quiet < 2 {
            self.now_ns += 10_000;
            quiet += 1;
            let mut frame = self.frame;
            while let Some(transmit) = self.client.poll_transmit(self.now_ns) {
                let packet = put(&mut frame, transmit.head.bytes(), transmit.payload);
                if let Some(event) = self.server.receive(self.now_ns, 0, Mark::None, packet) {
                    self.served(event, bytes);
                }
                quiet = 0;
            }
            while let Some(event) = self.server.poll_event() {
                self.served(event, bytes);
            }
            while let Some(transmit) = self.server.poll_transmit(self.now_ns) {
                let packet = put(&mut frame, transmit.head.bytes(), transmit.payload);
                if let Some(event) = self.client.receive(self.now_ns, 1, Mark::None, packet) {
                    self.called(event);
                }
                quiet = 0;
            }
            self.client.handle_timers(self.now_ns);
            self.server.handle_timers(self.now_ns);
            while let Some(event) = self.client.poll_event() {
                self.called(event);
            }
        }
    }

    fn round(&mut self, bytes: usize) {
        while let Some((request, response)) = self.spare.pop() {
            let session = self.session.unwrap();
            let call = Call {
                method: 0,
                tag: 0,
                request,
                response,
            };
            self.client.call(self.now_ns, session, call).unwrap();
        }
        self.settle(bytes);
    }
}

#[test]
fn calls_allocate_nothing_once_the_endpoints_are_warm() {
    for bytes in [32, 5_000] {
        let mut pair = Pair::new();
        pair.client.connect(pair.now_ns, 1).unwrap();
        pair.settle(bytes);
        pair.spare = (0..CALLS)
            .map(|_| (MsgBuf::from_slice(&vec![1; bytes]), MsgBuf::with_capacity(bytes)))
            .collect();
        for _ in 0..2_000 {
            pair.round(bytes);
        }
        let before = made_by_thread();
        for _ in 0..2_000 {
            pair.round(bytes);
        }
        assert_eq!(pair.done, 4_000 * CALLS as u64);
        assert_eq!(made_by_thread() - before, 0, "with {bytes} bytes");
    }
}
