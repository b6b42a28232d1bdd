//! Buffers that an endpoint lends for responses, and responses that a server's session has back before their slots are used again.

use provost_datagram::{
    Call, CallError, Completion, Config, Endpoint, Event, Mark, MsgBuf, RequestHandle, ResponseBuffers,
    SessionId, SpareMemory,
};

const HOP_NS: u64 = 10_000;
/// What a client takes of responses at once, and in one.
const LENT_BYTES: usize = 128 << 10;
const RESPONSE_BYTES_MAX: u32 = 100_000;

/// A client and a server with a cable between them.
struct LendingPair {
    now_ns: u64,
    client: Endpoint<u8>,
    server: Endpoint<u8>,
    session: SessionId,
    /// The server's name for it.
    served: SessionId,
    requests: Vec<RequestHandle>,
    completions: Vec<Completion>,
    returned: Vec<MsgBuf>,
    /// The packets to the server of the last hop.
    packets: Vec<Vec<u8>>,
}

impl LendingPair {
    fn new() -> LendingPair {
        let config = Config {
            secret: [1, 2],
            responses: ResponseBuffers::Lent,
            assembly_bytes_max: LENT_BYTES,
            message_bytes_max: RESPONSE_BYTES_MAX,
            ..Config::default()
        };
        let mut client = Endpoint::new(config.clone()).unwrap();
        let session = client.connect(1, 1).unwrap();
        let mut pair = LendingPair {
            now_ns: 1,
            client,
            server: Endpoint::new(config).unwrap(),
            session,
            served: session,
            requests: Vec::new(),
            completions: Vec::new(),
            returned: Vec::new(),
            packets: Vec::new(),
        };
        pair.hops(4);
        pair
    }

    /// Carries packets both ways so many times.
    fn hops(&mut self, hops: usize) {
        for _ in 0..hops {
            self.now_ns += HOP_NS;
            self.client.handle_timers(self.now_ns);
            self.packets.clear();
            while let Some(transmit) = self.client.poll_transmit(self.now_ns) {
                self.packets
                    .push([transmit.head.bytes(), transmit.payload].concat());
            }
            for packet in std::mem::take(&mut self.packets) {
                self.deliver_to_server(&packet);
                self.packets.push(packet);
            }
            self.now_ns += HOP_NS;
            self.server.handle_timers(self.now_ns);
            while let Some(transmit) = self.server.poll_transmit(self.now_ns) {
                let bytes = [transmit.head.bytes(), transmit.payload].concat();
                let event = self.client.receive(self.now_ns, 1, Mark::None, &bytes);
                if let Some(Event::Completed(completion)) = event {
                    self.completions.push(completion);
                }
            }
        }
    }

    fn deliver_to_server(&mut self, packet: &[u8]) {
        let event = self.server.receive(self.now_ns, 0, Mark::None, packet);
        let events: Vec<_> = std::iter::from_fn(|| self.server.poll_event()).collect();
        match event {
            Some(Event::Request { handle, .. }) => self.requests.push(handle),
            Some(Event::Accepted(session)) => self.served = session,
            _ => {}
        }
        for event in events {
            match event {
                Event::Accepted(session) => self.served = session,
                Event::ResponseReturned(buffer) => self.returned.push(buffer),
                _ => {}
            }
        }
    }

    fn call(&mut self, tag: u64) {
        let call = Call {
            method: 1,
            tag,
            request: MsgBuf::from_slice(b"request"),
            response: MsgBuf::default(),
        };
        self.client.call(self.now_ns, self.session, call).unwrap();
        self.hops(1);
    }

    fn respond(&mut self, bytes: usize) {
        let handle = self.requests.remove(0);
        let response = MsgBuf::from_slice(&vec![7; bytes]);
        self.server.respond(self.now_ns, handle, 0, response).unwrap();
    }

    /// The completion of the one call that has ended.
    fn completion(&mut self) -> Completion {
        self.hops(200);
        assert_eq!(self.completions.len(), 1);
        self.completions.remove(0)
    }
}

#[test]
fn calls_without_buffers_get_them_when_their_responses_come() {
    let mut pair = LendingPair::new();
    for bytes in [1, 1_000, 40_000, 100_000] {
        pair.call(1);
        pair.respond(bytes);
        let Completion {
            outcome, response, ..
        } = pair.completion();
        assert_eq!(outcome, Ok(0));
        assert_eq!(*response, vec![7; bytes]);
        pair.client.recycle(response);
    }
}

#[test]
fn a_response_that_finds_no_room_comes_when_there_is_some() {
    let mut pair = LendingPair::new();
    pair.call(1);
    pair.respond(100_000);
    let first = pair.completion();
    pair.call(2);
    pair.respond(40_000);
    pair.hops(20);
    assert!(pair.completions.is_empty(), "all that may be lent is out");
    assert!(pair.client.statistics().dropped.room > 0);
    pair.client.recycle(first.response);
    assert_eq!(pair.completion().outcome, Ok(0));
}

#[test]
fn a_response_that_is_larger_than_any_may_be_fails_its_call() {
    let mut pair = LendingPair::new();
    pair.call(1);
    pair.respond(RESPONSE_BYTES_MAX as usize + 1);
    assert_eq!(pair.completion().outcome, Err(CallError::ResponseTooLarge));
}

#[test]
fn a_response_that_its_client_has_comes_back_and_its_call_is_not_executed_again() {
    let mut pair = LendingPair::new();
    pair.call(1);
    let request = pair.packets.concat();
    pair.respond(40_000);
    let first = pair.completion();
    pair.server.return_responses(pair.served, |_| false);
    pair.deliver_to_server(&request);
    assert!(pair.returned.is_empty(), "nothing is known to have come");
    pair.server
        .return_responses(pair.served, |response| response.len() == 40_000);
    pair.deliver_to_server(&request);
    pair.hops(4);
    assert_eq!(pair.returned.len(), 1);
    assert_eq!(pair.returned[0].len(), 40_000);
    assert!(pair.requests.is_empty() && pair.completions.is_empty());
    pair.client.recycle(first.response);
    pair.call(2);
    pair.respond(10);
    assert_eq!(pair.completion().response.len(), 10, "the slot goes on");
}

#[test]
fn endpoints_take_turns_with_the_spares_of_their_thread() {
    let mut spares = SpareMemory::default();
    let mut pairs = [LendingPair::new(), LendingPair::new()];
    let mut addresses = Vec::new();
    for pair in &mut pairs {
        pair.client.exchange_spares(&mut spares);
        pair.call(1);
        pair.respond(40_000);
        let response = pair.completion().response;
        addresses.push(response.as_ptr());
        pair.client.recycle(response);
        pair.client.exchange_spares(&mut spares);
    }
    assert_eq!(
        addresses[0], addresses[1],
        "the second used what the first had left"
    );
}
