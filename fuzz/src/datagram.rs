//! The target of `provost-datagram`: whatever arrives in the middle of a session.

use provost_datagram::{Call, Config, Endpoint, Event, Mark, MsgBuf, SessionId};

const CLIENT: usize = 0;
const SERVER: usize = 1;
/// Calls that are under way when the input begins.
const CALLS: u64 = 4;
/// Turns that it takes to open a session, and to spare.
const TURNS: usize = 8;
const STEP_NS: u64 = 10_000;
/// Bytes that one packet of the input has at most: its length is one byte.
const PACKET_BYTES_MAX: usize = 256;

/// Two endpoints whose every secret is known, so that inputs can be packets that fit.
struct Pair {
    now_ns: u64,
    ends: [Endpoint<u8>; 2],
    session: Option<SessionId>,
    completed: u64,
    sent: Vec<Vec<u8>>,
}

impl Pair {
    /// A session with calls under way; `None` if there can be none.
    fn calling() -> Option<Pair> {
        let end = |secret| {
            let config = Config {
                secret,
                packet_bytes_max: PACKET_BYTES_MAX,
                message_bytes_max: 1 << 16,
                ..Config::default()
            };
            Endpoint::new(config).ok()
        };
        let mut pair = Pair {
            now_ns: 1_000_000,
            ends: [end([1, 2])?, end([3, 4])?],
            session: None,
            completed: 0,
            sent: Vec::new(),
        };
        let session = pair.ends[CLIENT].connect(pair.now_ns, SERVER as u8).ok()?;
        (0..TURNS).for_each(|_| pair.turn());
        for tag in 0..CALLS {
            let call = Call {
                method: 1,
                tag,
                request: MsgBuf::from_slice(&vec![5; 300 * tag as usize]),
                response: MsgBuf::with_capacity(2_000),
            };
            pair.ends[CLIENT].call(pair.now_ns, session, call).ok()?;
        }
        (pair.session == Some(session)).then_some(pair)
    }

    /// Everything that either end has to send arrives.
    fn turn(&mut self) {
        self.now_ns += STEP_NS;
        for from in [CLIENT, SERVER] {
            while let Some(transmit) = self.ends[from].poll_transmit(self.now_ns) {
                let bytes = [transmit.head.bytes(), transmit.payload].concat();
                self.arrive(1 - from, &bytes);
                self.sent.push(bytes);
            }
            self.ends[from].handle_timers(self.now_ns);
        }
    }

    fn arrive(&mut self, to: usize, bytes: &[u8]) {
        let end = &mut self.ends[to];
        let from = 1 - to as u8;
        match end.receive(self.now_ns, from, Mark::None, bytes) {
            Some(Event::Request { handle, payload, .. }) => {
                // A session that a packet of the input has ended takes no response.
                let _ = end.respond(self.now_ns, handle, 0, MsgBuf::from_slice(&payload));
            }
            Some(Event::Connected(session)) => self.session = Some(session),
            Some(Event::Completed(_)) => self.completed += 1,
            _ => {}
        }
        while let Some(event) = self.ends[to].poll_event() {
            self.completed += u64::from(matches!(event, Event::Completed(_)));
        }
    }
}

/// Both ends take any packets. Whatever came, each call ends once.
pub(crate) fn packets(input: &[u8]) {
    let Some(mut pair) = Pair::calling() else {
        return;
    };
    let mut rest = input;
    while let Some((length, after)) = rest.split_first() {
        let (packet, after) = after.split_at(after.len().min(usize::from(*length)));
        rest = after;
        pair.arrive(packet.len() % 2, packet);
        pair.arrive(1 - packet.len() % 2, packet);
        pair.turn();
    }
    if let Some(session) = pair.session {
        pair.ends[CLIENT].reset(pair.now_ns, session);
    }
    pair.arrive(CLIENT, &[]);
    assert_eq!(pair.completed, CALLS, "a call ended twice, or never");
}

pub(crate) fn packets_seeds() -> Vec<Vec<u8>> {
    let Some(mut pair) = Pair::calling() else {
        return Vec::new();
    };
    (0..TURNS).for_each(|_| pair.turn());
    let with_length = |bytes: &Vec<u8>| {
        let length = u8::try_from(bytes.len()).ok()?;
        Some([&[length], bytes.as_slice()].concat())
    };
    let all: Vec<Vec<u8>> = pair.sent.iter().filter_map(with_length).collect();
    [vec![all.concat()], all].concat()
}
