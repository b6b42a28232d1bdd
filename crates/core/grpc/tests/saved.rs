//! A connection whose ends are replaced at any moment, in the middle of messages too, does exactly what it does without: the same
//! bytes both ways and the same events, byte for byte.

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;
use provost_datapath::{FieldReader, FieldWriter, RestoreError};
use provost_grpc::{
    GrpcConfig, GrpcConnection, GrpcEvent, GrpcStatus, MessageEncoding, MessageForm, RequestHead,
    ResponseHead,
};
use provost_http2::{EndpointRole, Http2Config};
use provost_random::SeededRandom;
use provost_wire::Code;

/// Moves of a script.
const MOVES: usize = 250;
/// Bytes that one move brings over the wire at most.
const WIRE_BYTES_MAX: u64 = 20_000;
const CLIENT: usize = 0;
const SERVER: usize = 1;

type TestConnection = GrpcConnection<Arc<[u8]>>;

/// A client, a server, and what is between them.
struct TwoEnds {
    ends: [TestConnection; 2],
    /// Towards the client, towards the server.
    wires: [VecDeque<u8>; 2],
    /// What each end has been given and has not taken.
    inputs: [Vec<u8>; 2],
    /// Messages that are not consumed yet: end, call, bytes.
    held: Vec<(usize, u32, usize)>,
    calls: Vec<u32>,
    now_ns: u64,
    log: Vec<String>,
    script: SeededRandom,
    replacements: Option<SeededRandom>,
}

/// Small bounds, so that all of them are met.
fn config() -> GrpcConfig {
    GrpcConfig {
        http2: Http2Config {
            streams_max: 12,
            stream_window_bytes: 30_000,
            connection_window_bytes: 120_000,
            stream_queue_bytes_max: 20_000,
            ..Http2Config::default()
        },
        received_message_bytes_max: 80_000,
        partial_bytes_max: 400_000,
        large_message_bytes_max: 50_000,
        ..GrpcConfig::default()
    }
}

fn role(end: usize) -> EndpointRole {
    match end {
        CLIENT => EndpointRole::Client,
        _ => EndpointRole::Server,
    }
}

fn save(end: &TestConnection) -> Vec<u8> {
    let mut out = FieldWriter::new();
    end.save(&mut out);
    out.bytes
}

fn restore(bytes: &[u8], role: EndpointRole) -> Result<TestConnection, RestoreError> {
    let mut fields = FieldReader::new("gRPC connection", bytes);
    let restored = GrpcConnection::restore(&mut fields, role, config(), Into::into)?;
    fields.end()?;
    Ok(restored)
}

impl TwoEnds {
    fn new(seed: u64, replacements: Option<u64>) -> TwoEnds {
        TwoEnds {
            ends: [
                TestConnection::client(config(), 0),
                TestConnection::server(config(), 0),
            ],
            wires: Default::default(),
            inputs: Default::default(),
            held: Vec::new(),
            calls: Vec::new(),
            now_ns: 0,
            log: Vec::new(),
            script: SeededRandom::new(seed),
            replacements: replacements.map(SeededRandom::new),
        }
    }

    /// Runs the script to its end, and says all that anybody could notice.
    fn run(mut self) -> Vec<String> {
        for _ in 0..MOVES {
            self.make_a_move();
            self.maybe_replace();
        }
        for _ in 0..100 {
            self.carry(CLIENT, usize::MAX);
            self.carry(SERVER, usize::MAX);
            self.consume_all();
            self.maybe_replace();
        }
        for end in [CLIENT, SERVER] {
            let open = self.ends[end].open_calls();
            self.log.push(format!("{end} has {open} calls"));
        }
        self.log
    }

    fn maybe_replace(&mut self) {
        let Some(random) = &mut self.replacements else {
            return;
        };
        for (at, end) in self.ends.iter_mut().enumerate() {
            if random.one_in(3) {
                let bytes = save(end);
                *end = restore(&bytes, role(at)).expect("a state is accepted");
                assert_eq!(save(end), bytes, "a connection is saved as another");
            }
        }
    }

    fn make_a_move(&mut self) {
        match self.script.below(24) {
            0..=3 => self.call(),
            4 | 5 => self.respond(),
            6..=11 => self.send(),
            12 => self.finish(),
            13 => self.half_close(),
            14 => self.cancel(),
            15 => self.pass_time(),
            16 => self.consume_all(),
            17 if self.script.one_in(30) => self.ends[SERVER].drain(self.now_ns),
            _ => {
                let bytes = match self.script.below(3) {
                    0 => self.script.between(1, 20),
                    _ => self.script.between(1, WIRE_BYTES_MAX),
                };
                let end = self.script.index(2);
                self.carry(end, bytes as usize);
            }
        }
    }

    fn note(&mut self, what: std::fmt::Arguments<'_>) {
        self.log.push(what.to_string());
    }

    fn any_call(&mut self) -> u32 {
        let recent = self.calls.len().saturating_sub(6);
        match self.calls[recent..] {
            [] => 1,
            ref calls => *self.script.pick(calls),
        }
    }

    fn call(&mut self) {
        let mut head = RequestHead::new(format!("/a.B/C{}", self.script.below(5)));
        head.encoding = *self.script.pick(&MessageEncoding::ALL);
        if self.script.one_in(3) {
            head.timeout_ns = Some(self.script.below(400_000_000));
        }
        let called = self.ends[CLIENT].call(&head, self.now_ns);
        self.note(format_args!("call {called:?}"));
        self.calls.extend(called.ok());
    }

    fn respond(&mut self) {
        let call = self.any_call();
        let head = ResponseHead {
            encoding: *self.script.pick(&MessageEncoding::ALL),
            ..ResponseHead::default()
        };
        let responded = self.ends[SERVER].respond(call, &head, self.now_ns);
        self.note(format_args!("respond {call} {responded:?}"));
    }

    fn send(&mut self) {
        let (end, call) = (self.script.index(2), self.any_call());
        let bytes = match self.script.below(4) {
            0 => 0,
            1 => self.script.below(50),
            2 => self.script.below(5_000),
            _ => self.script.below(90_000),
        };
        let form = *self.script.pick(&[MessageForm::Plain, MessageForm::Compressed]);
        let body = self.script.bytes(bytes as usize);
        let sent = self.ends[end].send_message(call, form, body.into(), self.now_ns);
        let sent = sent.map_err(|(fault, _)| fault);
        self.note(format_args!("{end} sends {bytes} on {call} {sent:?}"));
    }

    fn finish(&mut self) {
        let call = self.any_call();
        let status = GrpcStatus {
            code: *self.script.pick(&[Code::Ok, Code::Aborted]),
            message: "so".to_owned(),
            details: self.script.one_in(2).then(|| vec![1, 2]),
        };
        let finished = self.ends[SERVER].finish(call, &status, &[], self.now_ns);
        self.note(format_args!("finish {call} {finished:?}"));
    }

    fn half_close(&mut self) {
        let call = self.any_call();
        let closed = self.ends[CLIENT].half_close(call, self.now_ns);
        self.note(format_args!("close {call} {closed:?}"));
    }

    fn cancel(&mut self) {
        let (end, call) = (self.script.index(2), self.any_call());
        let cancelled = self.ends[end].cancel(call, Code::Cancelled, self.now_ns);
        self.note(format_args!("{end} cancels {call} {cancelled:?}"));
    }

    fn pass_time(&mut self) {
        self.now_ns += self.script.below(100_000_000);
        for end in [CLIENT, SERVER] {
            let due = self.ends[end].next_timeout();
            let done = self.ends[end].on_time(self.now_ns);
            let line = format!("{end} at {} due {due:?} {}", self.now_ns, done.is_ok());
            self.log.push(line);
        }
    }

    fn consume_all(&mut self) {
        for (end, call, bytes) in std::mem::take(&mut self.held) {
            self.ends[end].consume(call, bytes);
        }
    }

    /// Brings bytes to an end, from the other one.
    fn carry(&mut self, to: usize, bytes: usize) {
        let from = 1 - to;
        self.ends[from].fill(self.now_ns);
        let out = self.ends[from].copied_output();
        let sent = out.len().min(bytes);
        self.ends[from].advance(sent, self.now_ns);
        self.wires[to].extend(&out[..sent]);
        self.note(format_args!("{from} sent {:?}", hash(&out[..sent])));
        let arrived = self.wires[to].len().min(bytes);
        let arrived: Vec<u8> = self.wires[to].drain(..arrived).collect();
        self.inputs[to].extend(arrived);
        self.take(to);
    }

    fn take(&mut self, end: usize) {
        let input = std::mem::take(&mut self.inputs[end]);
        let mut rest = &input[..];
        loop {
            let piece = &rest[..rest.len().min(5_000)];
            let received = match self.ends[end].receive(piece, self.now_ns) {
                Ok(received) => received,
                Err(error) => return self.note(format_args!("{end} fails {:?}", error.code)),
            };
            let is_at_rest = received.consumed == 0 && received.event.is_none();
            rest = &rest[received.consumed..];
            if let Some(event) = received.event {
                if let GrpcEvent::Message { call, message } = &event {
                    self.held.push((end, *call, message.bytes.len()));
                }
                let whole = format!("{event:?}");
                self.note(format_args!("{end} {:?} {whole:.100}", hash(whole.as_bytes())));
            }
            self.maybe_replace();
            if is_at_rest {
                break;
            }
        }
        self.inputs[end] = rest.to_vec();
    }
}

/// Tells runs of bytes apart.
fn hash(bytes: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.div_ceil(4),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn replaced_ends_do_what_they_would_have_done(seed in any::<u64>(), replacements in any::<u64>()) {
        let without = TwoEnds::new(seed, None).run();
        let with = TwoEnds::new(seed, Some(replacements)).run();
        prop_assert_eq!(without, with);
    }

    /// A state whose bytes were changed is refused, or makes a connection that does not panic.
    #[test]
    fn damaged_states_do_no_harm(seed in any::<u64>(), place in any::<prop::sample::Index>(), bit in 0_u32..8) {
        let mut world = TwoEnds::new(seed, None);
        for _ in 0..80 {
            world.make_a_move();
        }
        for end in &world.ends {
            let mut bytes = save(end);
            let place = place.index(bytes.len());
            bytes[place] ^= 1_u8 << bit;
            provost_grpc::fuzzing::saved(&bytes);
        }
    }
}

#[test]
fn states_of_the_other_end_and_of_other_versions_are_refused() {
    let saved = save(&TestConnection::server(config(), 0));
    let refused = restore(&saved, EndpointRole::Client).expect_err("refused");
    assert!(refused.to_string().contains("other end"), "{refused}");
    let mut newer = saved.clone();
    newer[0] += 1;
    assert!(matches!(
        restore(&newer, EndpointRole::Server),
        Err(RestoreError::Version { .. })
    ));
    for cut in 0..saved.len() {
        assert!(restore(&saved[..cut], EndpointRole::Server).is_err(), "{cut}");
    }
}
