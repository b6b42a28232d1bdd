//! A call that goes over to small packets in its middle: copies of full-size ones that come late are not taken for small ones, also
//! where they are as long.

use provost_datagram::packet::{Flags, Kind, Packet};
use provost_datagram::{Call, Checking, Config, Endpoint, Event, Mark, MsgBuf, SessionId};

const CLIENT: u8 = 0;
const SERVER: u8 = 1;
/// Larger packets vanish on the way.
const NARROW_BYTES: usize = 1_300;
const STEP_NS: u64 = 50_000;
const STEPS_MAX: usize = 10_000;
/// Three full-size packets, of which the last is as long as small ones.
const MESSAGE_BYTES: usize = 2 * 1_448 + 1_176;
const TINY_BYTES: usize = 16;

/// Both ends, and what lies between them.
struct NarrowPair {
    now_ns: u64,
    ends: [Endpoint<u8>; 2],
    /// Whether full-size packets vanish.
    is_narrow: bool,
    /// The last full-size packet of a message that is kept, and arrives again after each packet once packets are small.
    kind_kept: Kind,
    kept: Option<Vec<u8>>,
    response_bytes: usize,
    requests: Vec<Vec<u8>>,
    response: Option<Vec<u8>>,
    session: Option<SessionId>,
}

/// What a message of so many bytes consists of: no two of its pieces are alike.
fn message(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 7) as u8 ^ (at % 251) as u8).collect()
}

impl NarrowPair {
    fn new(kind_kept: Kind, response_bytes: usize) -> NarrowPair {
        let end = |number: u64| {
            let config = Config {
                secret: [number, 7],
                inline_response_bytes: 8 << 10,
                ..Config::default()
            };
            Endpoint::new(config).unwrap()
        };
        NarrowPair {
            now_ns: 1_000_000,
            ends: [end(1), end(2)],
            is_narrow: false,
            kind_kept,
            kept: None,
            response_bytes,
            requests: Vec::new(),
            response: None,
            session: None,
        }
    }

    fn step(&mut self) {
        self.now_ns += STEP_NS;
        for from in [CLIENT, SERVER] {
            self.ends[usize::from(from)].handle_timers(self.now_ns);
            while let Some(event) = self.ends[usize::from(from)].poll_event() {
                self.happen(from, event);
            }
            self.carry(from);
        }
    }

    /// Has what an end sends arrive, or vanish.
    fn carry(&mut self, from: u8) {
        let mut leaving = Vec::new();
        while let Some(transmit) = self.ends[usize::from(from)].poll_transmit(self.now_ns) {
            leaving.push([transmit.head.bytes(), transmit.payload].concat());
        }
        for bytes in leaving {
            self.keep(&bytes);
            if !self.is_narrow || bytes.len() <= NARROW_BYTES {
                self.arrive(1 - from, &bytes);
                self.arrive_late(1 - from);
            }
        }
    }

    /// Has what was kept arrive again, once packets are small.
    fn arrive_late(&mut self, to: u8) {
        let of_kind = if self.kind_kept == Kind::Request {
            SERVER
        } else {
            CLIENT
        };
        if to == of_kind
            && self.ends[0].statistics().fallbacks > 0
            && let Some(late) = self.kept.clone()
        {
            self.arrive(to, &late);
        }
    }

    /// The way is narrow from the second full-size packet of the message on; the third is kept.
    fn keep(&mut self, bytes: &[u8]) {
        let header = Packet::parse(bytes, Checking::Wire).unwrap().header;
        if header.kind == self.kind_kept && header.packet == 1 && bytes.len() > NARROW_BYTES {
            self.is_narrow = true;
        }
        if header.kind == self.kind_kept && header.packet == 2 && self.kept.is_none() {
            assert!(!header.flags.has(Flags::SMALL_REQUEST) && !header.flags.has(Flags::SMALL_ANSWER));
            assert_eq!(bytes.len(), 1_200, "it is as long as a small one");
            self.kept = Some(bytes.to_vec());
        }
    }

    fn arrive(&mut self, to: u8, bytes: &[u8]) {
        let event = self.ends[usize::from(to)].receive(self.now_ns, 1 - to, Mark::None, bytes);
        let event = event.map(|event| match event {
            Event::Request { handle, payload, .. } => {
                self.requests.push(payload.to_vec());
                let response = message(self.response_bytes);
                self.ends[usize::from(to)]
                    .respond_inline(self.now_ns, handle, 0, &response)
                    .unwrap();
                None
            }
            Event::Connected(session) => {
                self.session = Some(session);
                None
            }
            Event::Completed(completion) => {
                assert_eq!(completion.outcome, Ok(0));
                self.response = Some(completion.response.to_vec());
                None
            }
            other => Some(format!("{other:?}")),
        });
        if let Some(Some(other)) = event {
            assert!(other.starts_with("Accepted"), "{other}");
        }
    }

    fn happen(&mut self, end: u8, event: Event<'_>) {
        panic!("end {end}: {event:?}");
    }
}

fn a_late_copy_does_no_harm(kind_kept: Kind, request_bytes: usize, response_bytes: usize) {
    let mut pair = NarrowPair::new(kind_kept, response_bytes);
    pair.ends[0].connect(pair.now_ns, SERVER).unwrap();
    while pair.session.is_none() {
        pair.step();
    }
    let call = Call {
        method: 1,
        tag: 0,
        request: MsgBuf::from_slice(&message(request_bytes)),
        response: MsgBuf::with_capacity(response_bytes),
    };
    pair.ends[0]
        .call(pair.now_ns, pair.session.unwrap(), call)
        .unwrap();
    let steps = (0..STEPS_MAX).find(|_| {
        pair.step();
        pair.response.is_some()
    });
    let counted = pair.ends[0].statistics();
    assert!(
        steps.is_some() && counted.fallbacks == 1 && pair.kept.is_some(),
        "{counted:?}"
    );
    assert!(
        pair.requests == [message(request_bytes)],
        "the request is executed once, as it was"
    );
    assert!(
        pair.response == Some(message(response_bytes)),
        "the response is as it was"
    );
}

#[test]
fn a_late_full_size_piece_of_a_request_is_not_taken_for_a_small_one() {
    a_late_copy_does_no_harm(Kind::Request, MESSAGE_BYTES, TINY_BYTES);
}

#[test]
fn a_late_full_size_piece_of_a_response_is_not_taken_for_a_small_one() {
    a_late_copy_does_no_harm(Kind::Response, TINY_BYTES, MESSAGE_BYTES);
}
