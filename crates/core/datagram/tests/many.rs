//! An endpoint that serves many sessions looks at packets before it takes them, to have their sessions fetched: whatever is in them,
//! nothing else comes of it.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use provost_datagram::{
    Call, Checking, Cipher, Config, Driver, Drops, Event, Monotonic, MsgBuf, Sealing, Security, SessionId,
};
use provost_packets::{Arrival, InProcess, Integrity, LOOK_BYTES, Wire};

const FEW: usize = 20;
const MANY: usize = 300;
const RING_PACKETS: usize = 4096;
const ANSWER_BYTES: usize = 32;

/// A wire that counts the packets that it has shown before they were taken, and sends strays between those of its endpoint.
struct LookedWire {
    wire: InProcess,
    shown: usize,
    strays: Rc<RefCell<Vec<Vec<u8>>>>,
}

impl Wire for LookedWire {
    type Address = u8;

    fn address(&self) -> u8 {
        self.wire.address()
    }

    fn packet_bytes_max(&self) -> usize {
        self.wire.packet_bytes_max()
    }

    fn receive_ring_packets(&self) -> usize {
        self.wire.receive_ring_packets()
    }

    fn integrity(&self) -> Integrity {
        Integrity::Unchecked
    }

    fn receive(&mut self, packets_max: usize, take: impl FnMut(Arrival<'_, u8>)) -> io::Result<usize> {
        self.wire.receive(packets_max, take)
    }

    fn look_ahead(&mut self, packets_max: usize, look: impl FnMut([u8; LOOK_BYTES])) -> usize {
        let shown = self.wire.look_ahead(packets_max, look);
        self.shown += shown;
        shown
    }

    fn transmit_room(&self) -> usize {
        self.wire.transmit_room()
    }

    fn transmit(&mut self, to: u8, head: &[u8], payload: &[u8]) {
        self.wire.transmit(to, head, payload);
    }

    fn flush(&mut self) -> io::Result<()> {
        let to = 1 - self.wire.address();
        for stray in self.strays.take() {
            self.wire.transmit(to, &stray, b"");
        }
        self.wire.flush()
    }

    fn wait(&mut self, at_most: Option<Duration>) -> io::Result<()> {
        self.wire.wait(at_most)
    }
}

struct ManyPair {
    client: Driver<LookedWire, Monotonic>,
    server: Driver<LookedWire, Monotonic>,
    sessions: Vec<SessionId>,
    answered: usize,
    /// What the client's wire sends beside the client's packets.
    strays: Rc<RefCell<Vec<Vec<u8>>>>,
}

impl ManyPair {
    fn connected(sessions: usize, checking: Checking, security: Security) -> ManyPair {
        let (one, other) = InProcess::pair(1500, RING_PACKETS);
        let driver = |wire, secret| {
            let config = Config {
                secret,
                credits: 8,
                receive_ring_packets: RING_PACKETS as u32,
                checking,
                security: security.clone(),
                ..Config::default()
            };
            let strays = Rc::<RefCell<_>>::default();
            let wire = LookedWire {
                wire,
                shown: 0,
                strays: Rc::clone(&strays),
            };
            let driver = Driver::with_clock(config, wire, Monotonic::default());
            (driver.expect("the options are in range"), strays)
        };
        let ((client, strays), (server, _)) = (driver(one, [1, 2]), driver(other, [3, 4]));
        let mut pair = ManyPair {
            client,
            server,
            sessions: Vec::new(),
            answered: 0,
            strays,
        };
        for number in 1..=sessions {
            let to = pair.server.wire().address();
            let (now_ns, endpoint) = pair.client.endpoint();
            endpoint.connect(now_ns, to).expect("there is room");
            while pair.sessions.len() < number {
                pair.turn();
            }
        }
        pair
    }

    /// Both ends' turns: the server answers with the beginning of what it was asked.
    fn turn(&mut self) {
        let (sessions, answered) = (&mut self.sessions, &mut self.answered);
        let client = self.client.turn(|_, _, event| match event {
            Event::Connected(session) => sessions.push(session),
            Event::Completed(completion) => {
                assert_eq!(completion.outcome, Ok(0));
                assert_eq!(*completion.response, completion.request[..ANSWER_BYTES]);
                *answered += 1;
            }
            _ => {}
        });
        client.expect("the wire is of use");
        let server = self.server.turn(|endpoint, now_ns, event| {
            if let Event::Request { handle, payload, .. } = event {
                endpoint
                    .respond_inline(now_ns, handle, 0, &payload[..ANSWER_BYTES])
                    .expect("the request waits for its response");
            }
        });
        server.expect("the wire is of use");
    }

    /// A call of each session, of so many bytes; takes turns until all are answered.
    fn call_all(&mut self, bytes: usize) {
        self.answered = 0;
        let (now_ns, endpoint) = self.client.endpoint();
        for (number, session) in self.sessions.iter().enumerate() {
            let call = Call {
                method: 1,
                tag: number as u64,
                request: MsgBuf::from_slice(&vec![number as u8; bytes]),
                response: MsgBuf::with_capacity(ANSWER_BYTES),
            };
            endpoint.call(now_ns, *session, call).expect("the call is taken");
        }
        while self.answered < self.sessions.len() {
            self.turn();
        }
    }

    fn shown(&self) -> [usize; 2] {
        [self.client.wire().shown, self.server.wire().shown]
    }
}

#[test]
fn only_who_serves_many_sessions_looks_ahead_and_every_call_is_answered() {
    let sealing = Security::Sealed(Sealing {
        cipher: Cipher::Aes128Gcm,
        pre_shared_key: [1; 32],
        seed: [2; 32],
    });
    let setups = [
        (Checking::Packets, Security::Plain),
        (Checking::Crc32c, Security::Plain),
        (Checking::Packets, sealing),
    ];
    for (checking, security) in setups {
        let mut few = ManyPair::connected(FEW, checking, security.clone());
        few.call_all(ANSWER_BYTES);
        assert_eq!(few.shown(), [0, 0], "{checking:?}");

        let mut many = ManyPair::connected(MANY, checking, security);
        many.call_all(ANSWER_BYTES);
        let [client, server] = many.shown();
        assert_eq!(
            client, 0,
            "a client's sessions are at hand when responses come ({checking:?})"
        );
        // Each is looked at for its session, and for its slot.
        assert!(
            server >= 2 * MANY,
            "{server} packets were seen ahead ({checking:?})"
        );
        many.call_all(4000);
    }
}

#[test]
fn packets_of_sessions_and_slots_that_there_are_not_are_looked_at_without_harm() {
    let mut pair = ManyPair::connected(MANY, Checking::Packets, Security::Plain);
    let before = pair.server.endpoint().1.statistics().dropped;
    let mut packets = 0;
    for session in [0, 1, MANY - 1, MANY, 1024, usize::from(u16::MAX)] {
        for slot in [0, 7, 8, 15, 16, u8::MAX] {
            let [low, high, ..] = session.to_le_bytes();
            for bytes in [0, 1, 7, 8, 9, 60] {
                let mut packet = vec![0xff; bytes];
                let place = [1, slot, low, high];
                let stated = bytes.min(place.len());
                packet[..stated].copy_from_slice(&place[..stated]);
                pair.strays.borrow_mut().push(packet);
                packets += 1;
            }
        }
        pair.turn();
    }
    let after = pair.server.endpoint().1.statistics().dropped;
    let dropped = |dropped: Drops| dropped.length + dropped.check + dropped.kind;
    assert_eq!(dropped(after) - dropped(before), packets);
    pair.call_all(ANSWER_BYTES);
}
