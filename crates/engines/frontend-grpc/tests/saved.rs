//! A port that successors go on with at any moment does exactly what it does without them: the same steps for datapaths, and the
//! same events at the client.

mod kit;

use kit::{CHAT, NodeConnection, PortRig, UNARY, note};
use proptest::prelude::*;
use provost_conformance::fixtures::Fixtures;
use provost_datapath::{SavedState, Step};
use provost_frontend_grpc::PORT_STATE_VERSION;
use provost_grpc::{MessageForm, RequestHead};
use provost_http2::OUTPUT_STOPS_INPUT_BYTES;
use provost_random::SeededRandom;
use provost_wire::Code;
use provost_wire::descriptor::Parts;

/// Moves of a script.
const MOVES: usize = 150;

/// A client, and the test as the datapath behind its port.
struct PortScript {
    rig: PortRig,
    calls: Vec<u32>,
    /// Calls no longer wait for their service.
    is_bound: bool,
    /// Calls that the datapath has heard of, and not ended.
    begun: Vec<u64>,
    /// A reply that found no room.
    pending: Option<Step>,
    log: Vec<String>,
    script: SeededRandom,
    replacements: Option<SeededRandom>,
}

impl PortScript {
    fn new(seed: u64, replacements: Option<u64>) -> PortScript {
        PortScript {
            rig: PortRig::new(),
            calls: Vec::new(),
            is_bound: false,
            begun: Vec::new(),
            pending: None,
            log: Vec::new(),
            script: SeededRandom::new(seed),
            replacements: replacements.map(SeededRandom::new),
        }
    }

    /// Runs the script, and says all that the client and the datapath could notice.
    fn run(mut self) -> Vec<String> {
        for at in 0..MOVES {
            self.make_a_move();
            // Calls before that wait for their service.
            if at >= MOVES / 5 && !self.rig.wanted.is_empty() {
                self.rig.wanted.clear();
                self.rig.bind();
                self.is_bound = true;
            }
            self.maybe_replace();
        }
        self.rig.to_client.lock().unwrap().is_stopped = false;
        for _ in 0..20 {
            self.rig.exchange();
            self.take_steps();
            self.maybe_replace();
        }
        let open = self.rig.port.open_calls();
        self.log.push(format!("{open} calls are open"));
        self.note_events();
        self.log
    }

    fn maybe_replace(&mut self) {
        // A reply that found no room lies in a block of the port's heap, which no engine names here.
        if let Some(random) = &mut self.replacements
            && random.one_in(3)
            && self.pending.is_none()
        {
            self.rig.replace(NodeConnection::Carried);
        }
    }

    fn make_a_move(&mut self) {
        match self.script.below(16) {
            0 | 1 => self.begin(),
            2..=4 => self.send(),
            5 => self.half_close(),
            6 => self.cancel(),
            7..=9 => self.rig.exchange(),
            10 | 11 => self.take_steps(),
            12..=14 => self.reply(),
            _ => {
                let mut pipe = self.rig.to_client.lock().unwrap();
                pipe.is_stopped = !pipe.is_stopped;
            }
        }
        self.note_events();
    }

    fn any_call(&mut self) -> u32 {
        match self.calls[..] {
            [] => 1,
            ref calls => *self.script.pick(calls),
        }
    }

    fn begin(&mut self) {
        let path = *self.script.pick(&[UNARY, CHAT, CHAT]);
        let call = self.rig.begin(RequestHead::new(path));
        self.calls.push(call);
    }

    fn send(&mut self) {
        let call = self.any_call();
        let length = *self.script.pick(&[0, 20, 3_000, 60_000]);
        let message = note(&"x".repeat(length));
        let now = self.rig.now;
        let sent = self
            .rig
            .client
            .send_message(call, MessageForm::Plain, message.into(), now);
        self.log.push(format!("send {call} {}", sent.is_ok()));
    }

    fn half_close(&mut self) {
        let (call, now) = (self.any_call(), self.rig.now);
        let closed = self.rig.client.half_close(call, now);
        self.log.push(format!("close {call} {}", closed.is_ok()));
    }

    fn cancel(&mut self) {
        // What nobody waits for any more a successor asks for anew when the next call comes: a little later, and rightly so.
        if !self.is_bound {
            return;
        }
        let (call, now) = (self.any_call(), self.rig.now);
        let cancelled = self.rig.client.cancel(call, Code::Cancelled, now);
        self.log.push(format!("cancel {call} {}", cancelled.is_ok()));
    }

    fn take_steps(&mut self) {
        for _ in 0..self.script.between(1, 6) {
            let Some(step) = self.rig.take() else { return };
            let body = if step.parts.intersects(Parts::CANCEL | Parts::WINDOW) {
                None
            } else {
                self.rig.read(&step).1
            };
            let bytes = body.map(|body| body.len());
            let (call, parts, window) = (step.call, step.parts, step.window_bytes);
            self.log.push(format!("step {call} {parts:?} {window} {bytes:?}"));
            if parts.contains(Parts::BEGIN) {
                self.begun.push(call);
            }
            if parts.contains(Parts::CANCEL) {
                self.begun.retain(|begun| *begun != call);
            }
        }
    }

    fn reply(&mut self) {
        let step = match (self.pending.take(), &self.begun[..]) {
            (Some(step), _) => step,
            (None, []) => return,
            (None, begun) => {
                let call = *self.script.pick(begun);
                self.any_reply(call)
            }
        };
        let call = step.call;
        self.pending = self.rig.port.push_step(kit::CONNECTION, step).err();
        let is_taken = self.pending.is_none();
        self.log.push(format!("reply {call} {is_taken}"));
    }

    fn any_reply(&mut self, call: u64) -> Step {
        if self.script.one_in(4) {
            self.begun.retain(|begun| *begun != call);
            return self.rig.reply(call, Parts::STATUS, &[], None);
        }
        if self.script.one_in(4) {
            let window_bytes = 5_000;
            return Step {
                window_bytes,
                ..Step::new(call, Parts::WINDOW)
            };
        }
        let length = *self.script.pick(&[0, 20, 3_000, 60_000]);
        let message = note(&"y".repeat(length));
        self.rig.reply(call, Parts::MESSAGE, &[], Some(&message))
    }

    fn note_events(&mut self) {
        for event in self.rig.events.drain(..) {
            let text = format!("{event:?}");
            self.log.push(format!("{} {text:.80}", text.len()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.div_ceil(8),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn successors_do_what_the_port_would_have_done(seed in any::<u64>(), replacements in any::<u64>()) {
        let without = PortScript::new(seed, None).run();
        let with = PortScript::new(seed, Some(replacements)).run();
        prop_assert_eq!(without, with);
    }
}

#[test]
fn seeds_of_the_fuzz_target_and_their_beginnings() {
    for seed in provost_frontend_grpc::fuzzing::saved_seeds() {
        for cut in (0..seed.len()).step_by(seed.len() / 300 + 1) {
            provost_frontend_grpc::fuzzing::saved(&seed[..cut]);
            let mut changed = seed.clone();
            changed[cut] ^= 1 << (cut % 8);
            provost_frontend_grpc::fuzzing::saved(&changed);
        }
        provost_frontend_grpc::fuzzing::saved(&seed);
    }
}

/// Messages that the datapath has taken since.
fn messages_taken(rig: &mut PortRig) -> usize {
    let (mut taken, mut costs) = (0, 0);
    let mut call = 0;
    while let Some(step) = rig.take() {
        taken += usize::from(step.parts.contains(Parts::MESSAGE));
        costs += step.window_bytes;
        call = step.call;
    }
    if costs > 0 {
        rig.push(Step {
            window_bytes: costs,
            ..Step::new(call, Parts::WINDOW)
        });
    }
    taken
}

/// A port whose client reads no answers takes no more input at some point. Its successor goes on with what was kept.
#[test]
fn input_that_waits_for_answers_to_leave_is_taken_by_the_successor() {
    const PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut rig = PortRig::bound();
    let chat = rig.begin(RequestHead::new(CHAT));
    rig.exchange();
    assert_eq!(messages_taken(&mut rig), 0);
    rig.to_client.lock().unwrap().is_stopped = true;
    let (mut sent, mut taken) = (0, 0);
    while !rig.port.is_stopped() {
        let answers = sent * PING.len();
        assert!(answers < 4 * OUTPUT_STOPS_INPUT_BYTES, "nothing stops the input");
        // Each message pays for a PING.
        for _ in 0..500 {
            rig.send(chat, &note("x"));
            sent += 1;
            rig.from_client.lock().unwrap().bytes.extend(PING);
            rig.client_writes();
        }
        rig.exchange();
        taken += messages_taken(&mut rig);
    }
    assert!(taken < sent);
    rig.to_client.lock().unwrap().is_stopped = false;
    for _ in 0..4 {
        rig.replace(NodeConnection::Carried);
        rig.exchange();
        taken += messages_taken(&mut rig);
    }
    assert_eq!(taken, sent);
}

/// Replies that their client has not read, the largest of them in part, come after a restart.
#[test]
fn replies_that_were_not_read_come_after_the_restart() {
    let mut rig = PortRig::bound();
    let chat = rig.begin(RequestHead::new(CHAT));
    rig.send(chat, &note("go"));
    rig.exchange();
    let begun = rig.take().map(|step| step.call);
    rig.to_client.lock().unwrap().is_stopped = true;
    for length in [20, 60_000, 3] {
        let message = note(&"y".repeat(length));
        let reply = rig.reply(begun.unwrap(), Parts::MESSAGE, &[], Some(&message));
        rig.push(reply);
        rig.exchange();
        rig.replace(NodeConnection::Carried);
    }
    rig.to_client.lock().unwrap().is_stopped = false;
    for _ in 0..4 {
        rig.exchange();
        rig.replace(NodeConnection::Carried);
    }
    let lengths: Vec<usize> = rig.messages().iter().map(Vec::len).collect();
    let expected = [20, 60_000, 3].map(|length| note(&"y".repeat(length)).len());
    assert_eq!(lengths, expected);
}

#[test]
fn calls_whose_connection_is_gone_end_with_the_reason() {
    let mut rig = PortRig::bound();
    let call = rig.call(UNARY, &note("a"));
    assert!(rig.take().is_some());
    rig.replace(NodeConnection::Gone);
    let (status, _) = rig.ended(call);
    assert_eq!(status.code, Code::Unavailable);
    assert!(status.message.contains("not carried over"), "{status:?}");
    // The client goes on, and what it calls now is looked for anew.
    rig.wanted.clear();
    rig.call(UNARY, &note("b"));
    assert_eq!(rig.wanted, ["test.Notes"]);
}

/// What versions of the past have saved is read for ever.
#[test]
fn fixtures_are_read() {
    let fixtures = Fixtures::of(env!("CARGO_MANIFEST_DIR"));
    let mut rig = PortRig::bound();
    rig.call(UNARY, &note("whole"));
    let chat = rig.begin(RequestHead::new(CHAT));
    for text in ["one", "two"] {
        rig.send(chat, &note(text));
    }
    rig.exchange();
    let begun = [rig.take(), rig.take()].map(|step| step.map(|step| step.call));
    assert_eq!(begun, [Some(1), Some(2)]);
    // A message of which a part has come, and a reply that its client has not read.
    rig.to_client.lock().unwrap().is_stopped = true;
    rig.send(chat, &note(&"long".repeat(5_000)));
    rig.client_writes();
    rig.from_client.lock().unwrap().bytes.truncate(1_000);
    rig.exchange();
    let reply = rig.reply(2, Parts::MESSAGE, &[], Some(&note("answer")));
    rig.push(reply);
    let state = SavedState {
        kind: "port of a gRPC client".to_owned(),
        version: PORT_STATE_VERSION,
        bytes: rig.state(),
    };
    fixtures.add("calls-and-streams", &state);
    for name in fixtures.names("v") {
        let mut rig = PortRig::new();
        rig.resume(&fixtures.state(&name).bytes, NodeConnection::Carried);
        let mut facts = format!("{} calls\n", rig.port.open_calls());
        rig.port.flush(1);
        let sent = rig.to_client.lock().unwrap().bytes.len();
        facts += &format!("{sent} bytes for the client\n");
        while let Some(step) = rig.take() {
            let body = if step.parts.contains(Parts::MESSAGE) {
                rig.read(&step).1
            } else {
                None
            };
            facts += &format!("step {} {:?} {body:?}\n", step.call, step.parts);
        }
        fixtures.check(&name, &facts);
    }
}
