//! Calls of one packet each way take the short way whatever their packets carry so that nobody changes them unnoticed: each is handed
//! to the handler as what its slot expected.

use provost_datagram::{
    ArrivedRequest, Call, Checking, Cipher, Clock, Completion, Config, Driver, Endpoint, Event, EventHandler,
    MsgBuf, ResponseGiven, ResponseSlot, Sealing, Security, SessionId,
};
use provost_packets::{InProcess, Wire};

const CALLS: u64 = 200;
const TURNS_MAX: usize = 2_000;

/// A clock that goes on by being looked at, so that nothing times out.
struct StepClock(u64);

impl Clock for StepClock {
    fn now_ns(&mut self) -> u64 {
        self.0 += 1_000;
        self.0
    }
}

fn sealed(cipher: Cipher) -> Security {
    Security::Sealed(Sealing {
        cipher,
        pre_shared_key: [1; 32],
        seed: [2; 32],
    })
}

/// How packets are guarded, every way that there is.
fn guards() -> Vec<(Checking, Security)> {
    let checks = [Checking::Wire, Checking::Packets, Checking::Crc32c];
    let securities = || {
        [
            Security::Plain,
            sealed(Cipher::Aes128Gcm),
            sealed(Cipher::ChaCha20Poly1305),
        ]
    };
    let all = checks
        .into_iter()
        .flat_map(|checking| securities().map(|security| (checking, security)));
    all.collect()
}

/// Answers each request with what was sent.
#[derive(Default)]
struct EchoServer {
    expected: u64,
    unexpected: u64,
}

impl EventHandler<'_, u8> for EchoServer {
    fn handle(&mut self, _: &mut Endpoint<u8>, _: u64, event: Event<'_>) {
        self.unexpected += u64::from(matches!(event, Event::Request { .. }));
    }

    fn request(&mut self, endpoint: &mut Endpoint<u8>, now_ns: u64, request: ArrivedRequest<'_>) {
        self.expected += 1;
        endpoint
            .respond_inline(now_ns, request.handle, 7, request.bytes)
            .unwrap();
    }
}

/// Answers shorter requests where their slots are at hand, and tries to do so with more than a packet carries.
#[derive(Default)]
struct PromptServer {
    at_hand: u64,
    asked: u64,
    given_too_much: u64,
}

/// Longer requests are not answered where their slots are at hand.
const PROMPT_BYTES_MAX: usize = 60;

impl EventHandler<'_, u8> for PromptServer {
    fn handle(&mut self, _: &mut Endpoint<u8>, _: u64, _: Event<'_>) {}

    fn answer(&mut self, request: &ArrivedRequest<'_>, slot: ResponseSlot<'_>) -> Option<ResponseGiven> {
        if request.bytes.len() > PROMPT_BYTES_MAX {
            let given = slot.respond(7, &[1; 1472]);
            self.given_too_much += u64::from(given.is_some());
            return given;
        }
        let given = slot.respond(7, request.bytes);
        self.at_hand += u64::from(given.is_some());
        given
    }

    fn request(&mut self, endpoint: &mut Endpoint<u8>, now_ns: u64, request: ArrivedRequest<'_>) {
        self.asked += 1;
        endpoint
            .respond_inline(now_ns, request.handle, 7, request.bytes)
            .unwrap();
    }
}

/// Makes one call after the other, each with another payload.
#[derive(Default)]
struct ChainCaller {
    session: Option<SessionId>,
    made: u64,
    expected: u64,
    unexpected: u64,
}

impl ChainCaller {
    fn payload(&self) -> Vec<u8> {
        (0..self.made % 90).map(|at| (self.made + at) as u8).collect()
    }

    fn call(&mut self, endpoint: &mut Endpoint<u8>, now_ns: u64) {
        self.made += 1;
        let call = Call {
            method: 1,
            tag: self.made,
            request: MsgBuf::from_slice(&self.payload()),
            response: MsgBuf::with_capacity(90),
        };
        endpoint.call(now_ns, self.session.unwrap(), call).unwrap();
    }
}

impl EventHandler<'_, u8> for ChainCaller {
    fn handle(&mut self, endpoint: &mut Endpoint<u8>, now_ns: u64, event: Event<'_>) {
        match event {
            Event::Connected(session) => {
                self.session = Some(session);
                self.call(endpoint, now_ns);
            }
            Event::Completed(_) => self.unexpected += 1,
            _ => {}
        }
    }

    fn completed(&mut self, endpoint: &mut Endpoint<u8>, now_ns: u64, completion: Completion) {
        assert_eq!((completion.tag, completion.outcome), (self.made, Ok(7)));
        assert_eq!(*completion.response, *self.payload());
        self.expected += 1;
        if self.made < CALLS {
            self.call(endpoint, now_ns);
        }
    }
}

/// Has all calls be made, with packets guarded so, and answered by this handler.
fn call_all(
    checking: Checking,
    security: &Security,
    handler: &mut impl for<'p> EventHandler<'p, u8>,
) -> ChainCaller {
    let (client, server) = InProcess::pair(1472, 512);
    let driver = |wire| {
        let config = Config {
            checking,
            security: security.clone(),
            secret: [1, 2],
            ..Config::default()
        };
        Driver::with_clock(config, wire, StepClock(0)).unwrap()
    };
    let (mut client, mut server) = (driver(client), driver(server));
    let mut caller = ChainCaller::default();
    let to = server.wire().address();
    let (now_ns, endpoint) = client.endpoint();
    endpoint.connect(now_ns, to).unwrap();
    for _ in 0..TURNS_MAX {
        client.turn_with(&mut caller).unwrap();
        server.turn_with(handler).unwrap();
    }
    caller
}

#[test]
fn small_calls_take_the_short_way_with_every_check_and_seal() {
    for (checking, security) in guards() {
        let mut echo = EchoServer::default();
        let caller = call_all(checking, &security, &mut echo);
        let counts = (caller.expected, caller.unexpected, echo.expected, echo.unexpected);
        assert_eq!(counts, (CALLS, 0, CALLS, 0), "{checking:?}, {security:?}");
    }
}

#[test]
fn requests_are_answered_at_hand_as_far_as_their_responses_fit_a_packet() {
    // All calls have one slot, whose buffer has no room before the first.
    let longer = |call: &u64| call % 90 > PROMPT_BYTES_MAX as u64;
    let asked = (1..=CALLS).filter(longer).count() as u64 + 1;
    for (checking, security) in guards() {
        let mut prompt = PromptServer::default();
        let caller = call_all(checking, &security, &mut prompt);
        let counts = (
            caller.expected,
            prompt.at_hand,
            prompt.asked,
            prompt.given_too_much,
        );
        assert_eq!(
            counts,
            (CALLS, CALLS - asked, asked, 0),
            "{checking:?}, {security:?}"
        );
    }
}
