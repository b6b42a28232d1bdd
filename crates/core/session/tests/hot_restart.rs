//! A connection whose ends are saved and restored at any moments does exactly what it does without: the same steps to
//! both apps, the same bytes on the wire, every token and block given back once.

mod kit;

use std::collections::{BTreeMap, VecDeque};

use kit::{Got, Peer, Setup};
use proptest::prelude::*;
use provost_conformance::fixtures::{Fixtures, FromFixture, ToFixture};
use provost_conformance::{Content, Random, content, methods};
use provost_datapath::{FieldWriter, SavedState, Step, Successor};
use provost_session::handshake::{Encoding, Limits};
use provost_session::{Connection, Role};
use provost_wire::Code;
use provost_wire::descriptor::Parts;

const CALLS_MAX: usize = 12;
/// Moves of a script.
const MOVES: usize = 400;
/// Bytes that one move brings over the wire at most.
const WIRE_BYTES_MAX: u64 = 60_000;
const ROUNDS_MAX: usize = 10_000;

/// What a test knows of a call at one end.
#[derive(Clone, Copy, Default)]
struct Call {
    method: u16,
    server_begun: bool,
    /// Whether this end has said all that it has to say.
    client_done: bool,
    server_done: bool,
    over: bool,
    client_sent: bool,
    server_sent: bool,
    client_unread: u32,
    server_unread: u32,
}

struct World {
    client: Peer,
    server: Peer,
    /// Towards the server, towards the client.
    wires: [VecDeque<u8>; 2],
    calls: BTreeMap<u64, Call>,
    /// The server's number of each call, in order of their beginning: how it answers.
    server_calls: Vec<(u64, u64)>,
    begun: u64,
    tokens: u64,
    log: Vec<String>,
    script: Random,
    /// The longest message of the script.
    message_bytes_max: u64,
    /// When ends are replaced, if they are.
    hot_restarts: Option<Random>,
}

impl World {
    fn new(seed: u64, encoding: Encoding, hot_restarts: Option<u64>) -> World {
        let setup = Setup {
            encoding,
            limits: Limits {
                message_bytes_max: 1 << 20,
                stream_window_bytes: 30_000,
                calls_in_flight_max: CALLS_MAX as u32,
            },
            keepalive_ns: 1_000_000,
        };
        World {
            client: Peer::new(Role::Client, setup),
            server: Peer::new(Role::Server, setup),
            wires: [VecDeque::new(), VecDeque::new()],
            calls: BTreeMap::new(),
            server_calls: Vec::new(),
            begun: 0,
            tokens: 0,
            log: Vec::new(),
            script: Random::new(seed),
            message_bytes_max: u64::MAX,
            hot_restarts: hot_restarts.map(Random::new),
        }
    }

    /// Runs the script to its end, and says all that anyone could notice.
    fn run(mut self) -> Outcome {
        for _ in 0..MOVES {
            self.make_a_move();
            self.maybe_succeed();
        }
        for _ in 0..ROUNDS_MAX {
            let before = self.log.len();
            self.carry(0, usize::MAX);
            self.carry(1, usize::MAX);
            self.maybe_succeed();
            self.take_steps();
            if self.log.len() == before {
                break;
            }
        }
        self.client.end(Code::Unavailable, "over");
        self.maybe_succeed();
        self.server.end(Code::Unavailable, "over");
        self.maybe_succeed();
        self.take_steps();
        let mut tokens = [self.client.sent.clone(), self.server.sent.clone()].concat();
        tokens.sort_unstable();
        Outcome {
            log: self.log,
            tokens,
            tokens_given: self.tokens,
            blocks: [self.client.heap.live_blocks(), self.server.heap.live_blocks()],
        }
    }

    fn maybe_succeed(&mut self) {
        let Some(random) = &mut self.hot_restarts else {
            return;
        };
        for peer in [&mut self.client, &mut self.server] {
            if random.one_in(3) {
                let successor = if random.one_in(2) {
                    Successor::SameProcess
                } else {
                    Successor::OtherProcess
                };
                peer.succeed(successor);
            }
        }
    }

    fn make_a_move(&mut self) {
        match self.script.below(16) {
            0 | 1 if self.calls.values().filter(|call| !call.over).count() < CALLS_MAX => self.begin(),
            2 | 3 => self.client_says(),
            4..=6 => self.server_says(),
            7 => self.give_windows(),
            8 => self.pass_time(),
            9 | 10 => self.take_steps(),
            11 if self.script.one_in(40) => {
                self.log.push("drain".into());
                self.server.connection.drain();
            }
            _ => {
                let bytes = self.script.between(1, WIRE_BYTES_MAX) as usize;
                let direction = self.script.below(2) as usize;
                self.carry(direction, bytes);
            }
        }
    }

    fn any_content(&mut self) -> Content {
        let bytes = match self.script.below(4) {
            0 => self.script.between(1, 100),
            1 => self.script.between(100, 9_000),
            2 => self.script.between(8_000, 70_000),
            _ => self.script.between(60_000, 300_000),
        };
        let bytes = bytes.min(self.message_bytes_max);
        let mut content = content(self.script.number(), bytes as u32);
        if self.script.one_in(3) {
            content
                .metadata
                .push(("x".into(), vec![b'y'; bytes as usize % 50]));
        }
        content
    }

    fn begin(&mut self) {
        self.begun += 1;
        let (call, method) = (self.begun, self.script.below(4) as u16);
        let kind = methods()[usize::from(method)].kind;
        let whole = !kind.client_streaming && self.script.one_in(2);
        let parts = if whole {
            Parts::BEGIN | Parts::MESSAGE | Parts::END
        } else {
            Parts::BEGIN
        };
        let known = Call {
            method,
            client_done: whole,
            client_sent: whole,
            ..Call::default()
        };
        self.calls.insert(call, known);
        let content = if whole {
            self.any_content()
        } else {
            Content::default()
        };
        let deadline = if self.script.one_in(2) { 1_000_000 } else { 0 };
        let step = Step {
            method,
            deadline,
            ..Step::new(call, parts)
        };
        self.client_sends(step, &content);
    }

    fn client_sends(&mut self, step: Step, content: &Content) {
        if self.client.connection.accepts_steps() {
            self.tokens += 1;
            self.client.send(step, content, self.tokens);
        }
    }

    fn server_sends(&mut self, step: Step, content: &Content) {
        if self.server.connection.accepts_steps() {
            self.tokens += 1;
            self.server.send(step, content, self.tokens);
        }
    }

    fn pick(&mut self, fits: impl Fn(&Call) -> bool) -> Option<u64> {
        let open: Vec<u64> = self
            .calls
            .iter()
            .filter(|(_, call)| fits(call))
            .map(|(id, _)| *id)
            .collect();
        let at = self.script.below(open.len() as u64) as usize;
        open.get(at).copied()
    }

    fn client_says(&mut self) {
        let Some(id) = self.pick(|call| !call.over && !call.client_done) else {
            return;
        };
        let call = self.calls[&id];
        let streams = methods()[usize::from(call.method)].kind.client_streaming;
        let choice = self.script.below(8);
        if choice == 0 {
            self.calls.entry(id).and_modify(|call| call.over = true);
            return self.client_sends(
                Step {
                    status: Code::Cancelled,
                    ..Step::new(id, Parts::CANCEL)
                },
                &Content::default(),
            );
        }
        let (message, end) = if streams {
            (choice < 6, choice >= 5)
        } else {
            (!call.client_sent, call.client_sent || choice < 4)
        };
        let mut parts = Parts::NONE;
        let mut content = Content::default();
        if message {
            parts = parts | Parts::MESSAGE;
            content = Content {
                metadata: Vec::new(),
                ..self.any_content()
            };
        }
        if end {
            parts = parts | Parts::END;
        }
        self.calls.entry(id).and_modify(|call| {
            call.client_sent |= message;
            call.client_done |= end;
        });
        self.client_sends(Step::new(id, parts), &content);
    }

    fn server_says(&mut self) {
        let Some(id) = self.pick(|call| !call.over && call.server_begun && !call.server_done) else {
            return;
        };
        let call = self.calls[&id];
        let Some((_, number)) = self.server_calls.iter().find(|(of, _)| *of == id).copied() else {
            return;
        };
        let streams = methods()[usize::from(call.method)].kind.server_streaming;
        let choice = self.script.below(8);
        if choice == 0 {
            self.calls.entry(id).and_modify(|call| call.server_done = true);
            return self.server_sends(
                Step {
                    status: Code::Aborted,
                    ..Step::new(number, Parts::CANCEL)
                },
                &Content::default(),
            );
        }
        let (message, end) = if streams {
            (choice < 6, choice >= 5)
        } else {
            (!call.server_sent, call.server_sent || choice < 5)
        };
        let mut step = Step::new(number, Parts::NONE);
        let mut content = Content::default();
        if message {
            step.parts = step.parts | Parts::MESSAGE;
            content = self.any_content();
            content.metadata.retain(|_| end);
        }
        if end {
            step.parts = step.parts | Parts::STATUS;
            step.status = Code::DataLoss;
        }
        self.calls.entry(id).and_modify(|call| {
            call.server_sent |= message;
            call.server_done |= end;
        });
        self.server_sends(step, &content);
    }

    fn give_windows(&mut self) {
        for id in self.calls.keys().copied().collect::<Vec<_>>() {
            let call = self.calls[&id];
            if call.over {
                continue;
            }
            let number = self
                .server_calls
                .iter()
                .find(|(of, _)| *of == id)
                .map(|(_, number)| *number);
            if call.client_unread > 0 {
                let step = Step {
                    window_bytes: call.client_unread,
                    ..Step::new(id, Parts::WINDOW)
                };
                self.client.send_raw(step);
            }
            if let Some(number) = number.filter(|_| call.server_unread > 0 && !call.server_done) {
                let step = Step {
                    window_bytes: call.server_unread,
                    ..Step::new(number, Parts::WINDOW)
                };
                self.server.send_raw(step);
            }
            self.calls
                .entry(id)
                .and_modify(|call| (call.client_unread, call.server_unread) = (0, 0));
        }
    }

    fn pass_time(&mut self) {
        let passed = self.script.below(300_000);
        for peer in [&mut self.client, &mut self.server] {
            peer.now += passed;
            let due = peer.connection.wake_at();
            let silent = peer.connection.tick(peer.now);
            self.log.push(format!("tick {due:?} {silent:?}"));
        }
    }

    /// Takes bytes from one end to the other.
    fn carry(&mut self, direction: usize, bytes: usize) {
        let (from, to) = match direction {
            0 => (&mut self.client, &mut self.server),
            _ => (&mut self.server, &mut self.client),
        };
        let sent = from.output_part(bytes);
        if !sent.is_empty() {
            self.log.push(format!(
                "lane {direction}: {} bytes of sum {}",
                sent.len(),
                sum(&sent)
            ));
        }
        self.wires[direction].extend(sent);
        let wire = &mut self.wires[direction];
        // What arrives is cut elsewhere than what was sent.
        let mut arriving = bytes / 2 + 1;
        while arriving > 0 && !wire.is_empty() && to.connection.accepts_input() {
            let read = wire.make_contiguous();
            let count = read.len().min(arriving).min(30_000);
            let direct = to.input_direct(&read[..count]).expect("well-formed");
            if direct == 0 {
                to.input(&read[..count]).expect("well-formed");
            }
            let used = if direct == 0 { count } else { direct };
            wire.drain(..used);
            arriving -= used;
        }
    }

    fn take_steps(&mut self) {
        for got in self.server.steps() {
            if got.parts.contains(Parts::BEGIN) {
                // Calls begin on the wire in the order in which the client began them, but for those it gave up.
                let id = self.calls.iter().filter(|(id, call)| {
                    call.method == got.method && !self.server_calls.iter().any(|(of, _)| of == *id)
                });
                if let Some((id, _)) = id.map(|(id, call)| (*id, *call)).next() {
                    self.server_calls.push((id, got.call));
                    self.calls.entry(id).and_modify(|call| call.server_begun = true);
                }
            }
            if let Some((id, _)) = self.server_calls.iter().find(|(_, number)| *number == got.call) {
                self.calls.entry(*id).and_modify(|call| {
                    call.server_unread += got.window_bytes * u32::from(got.parts.contains(Parts::MESSAGE));
                    call.server_done |= got.parts.contains(Parts::CANCEL);
                });
            }
            self.log.push(describe("server", &got));
        }
        for got in self.client.steps() {
            self.calls.entry(got.call).and_modify(|call| {
                call.client_unread += got.window_bytes * u32::from(got.parts.contains(Parts::MESSAGE));
                call.over |= got.parts.intersects(Parts::STATUS | Parts::CANCEL);
            });
            self.log.push(describe("client", &got));
        }
    }
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum: u64, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
    })
}

fn describe(who: &str, got: &Got) -> String {
    format!(
        "{who} gets {} {:?} {} {:?} {} {:?} {} {}",
        got.call,
        got.parts,
        got.method,
        got.status,
        got.window_bytes,
        got.metadata,
        got.message.len(),
        sum(&got.message)
    )
}

#[derive(Debug, PartialEq)]
struct Outcome {
    log: Vec<String>,
    tokens: Vec<u64>,
    tokens_given: u64,
    blocks: [usize; 2],
}

/// Runs a script with and without hot restarts.
fn compare(seed: u64, encoding: Encoding) {
    let without = World::new(seed, encoding, None).run();
    let with = World::new(seed, encoding, Some(!seed)).run();
    for (at, (with, without)) in with.log.iter().zip(&without.log).enumerate() {
        assert_eq!(with, without, "event {at} of seed {seed}");
    }
    assert_eq!(with, without, "seed {seed}");
    assert_eq!(with.blocks, [0, 0], "blocks are leaked with seed {seed}");
    assert!(
        with.tokens.windows(2).all(|pair| pair[0] < pair[1]),
        "a token came back twice with seed {seed}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn hot_restarts_change_nothing(seed in any::<u64>(), protobuf in any::<bool>()) {
        compare(seed, if protobuf { Encoding::Protobuf } else { Encoding::Native });
    }
}

/// What versions of the past have saved is gone on with for ever: both ends in the midst of a script, with what was on
/// the wire between them.
#[test]
fn fixtures_are_gone_on_with() {
    let fixtures = Fixtures::of(env!("CARGO_MANIFEST_DIR"));
    let mut world = World::new(3, Encoding::Native, None);
    // A fixture is to be small, and to have all that there is: the longest have parts in foreign memory.
    world.message_bytes_max = 10_000;
    for _ in 0..MOVES / 4 {
        world.make_a_move();
    }
    fixtures.add("busy", &world.to_state());
    fixtures.add("lacking", &lacking().to_state());
    for name in fixtures.names("v") {
        let mut world = World::new(3, Encoding::Native, None);
        world.go_on_from(&fixtures.state(&name));
        for _ in 0..4 {
            world.carry(0, usize::MAX);
            world.carry(1, usize::MAX);
            world.take_steps();
        }
        fixtures.check(&name, &(world.log.join("\n") + "\n"));
        world.client.end(Code::Unavailable, "over");
        world.server.end(Code::Unavailable, "over");
        world.take_steps();
        assert!(world.client.connection.is_over() && world.server.connection.is_over());
    }
}

/// A call has been sent of a method that the server lacks.
fn lacking() -> World {
    let mut world = World::new(3, Encoding::Native, None);
    world.server = Peer::server_that_lacks(("a.B", "Unary"), Setup::default());
    let step = Step::new(1, Parts::BEGIN | Parts::MESSAGE | Parts::END);
    world.client.send(step, &content(1, 8), 0);
    world
}

#[test]
fn a_call_of_a_method_that_the_server_lacks_is_told_its_name_by_a_successor_as_well() {
    let World {
        mut client,
        mut server,
        ..
    } = lacking();
    server.succeed(Successor::OtherProcess);
    server.input(&client.output()).unwrap();
    assert_eq!(server.steps(), []);
    client.input(&server.output()).unwrap();
    let [end] = &client.steps()[..] else {
        panic!("an end of the call alone")
    };
    assert_eq!((end.parts, end.status), (Parts::CANCEL, Code::Unimplemented));
    let metadata = String::from_utf8_lossy(&end.metadata);
    assert!(
        metadata.contains("the service a.B has no method Unary"),
        "{metadata}"
    );
}

impl World {
    fn to_state(&self) -> SavedState {
        let mut out = FieldWriter::new();
        for peer in [&self.client, &self.server] {
            out.nested(|out| peer.connection.save(&mut ToFixture, out));
        }
        for wire in &self.wires {
            out.run(&wire.iter().copied().collect::<Vec<_>>());
        }
        SavedState {
            kind: "connections".into(),
            version: 1,
            bytes: out.bytes,
        }
    }

    fn go_on_from(&mut self, state: &SavedState) {
        let mut fields = state.open("connections", 1).unwrap();
        for peer in [&mut self.client, &mut self.server] {
            let mut connection = fields.nested().unwrap();
            let mut blocks = FromFixture::default();
            peer.connection = Connection::restore(&mut connection, &mut blocks).unwrap();
            connection.end().unwrap();
            peer.heap = blocks.heap;
        }
        for wire in &mut self.wires {
            *wire = fields.run().unwrap().to_vec().into();
        }
        fields.end().unwrap();
    }
}

#[test]
fn the_scripts_do_much() {
    let mut seen = String::new();
    for seed in 0..20 {
        let outcome = World::new(seed, Encoding::Native, None).run();
        seen.extend(outcome.log);
    }
    for what in [
        "STATUS",
        "CANCEL",
        "WINDOW",
        "BEGIN|MESSAGE|END",
        "BEGIN ",
        "lane 1",
    ] {
        assert!(seen.contains(what), "no script has {what}");
    }
}
