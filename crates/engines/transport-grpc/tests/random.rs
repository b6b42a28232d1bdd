//! Whatever apps and servers do, and in whatever order: each call has one end, messages come in their order and none is lost or
//! doubled before it, and nothing is left behind.

mod kit;

use std::collections::BTreeMap;

use kit::{CHAT, TestServer, ToldStep, TransportRig};
use provost_grpc::{GrpcEvent, GrpcStatus, ResponseHead};
use provost_random::SeededRandom;
use provost_wire::Code;
use provost_wire::descriptor::Parts;

/// Steps of one run.
const STEPS: usize = 400;
const RUNS: u64 = 150;

/// A call as the app knows it.
#[derive(Debug, Default)]
struct AppCall {
    sent: u64,
    is_half_closed: bool,
    got: u64,
    unread_cost: u32,
    end: Option<Code>,
}

/// A call as a server knows it.
#[derive(Debug, Default)]
struct ServerCall {
    got: u64,
    sent: u64,
    has_begun: bool,
    is_over: bool,
}

struct RandomWorld {
    random: SeededRandom,
    rig: TransportRig,
    olds: Vec<TestServer>,
    calls: BTreeMap<u64, AppCall>,
    next_call: u64,
    /// By link and stream.
    served: BTreeMap<(usize, u32), ServerCall>,
}

/// A message says its number, and has some length.
fn message(number: u64, random: &mut SeededRandom) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(8 + random.below(9_000) as usize, 1);
    bytes
}

fn number_of(message: &[u8]) -> u64 {
    u64::from_le_bytes(message[..8].try_into().unwrap())
}

impl RandomWorld {
    fn new(seed: u64) -> RandomWorld {
        let mut random = SeededRandom::new(seed);
        let streams_max = [1, 3, 1_000][random.below(3) as usize];
        RandomWorld {
            random,
            rig: TransportRig::allowing(streams_max),
            olds: Vec::new(),
            calls: BTreeMap::new(),
            next_call: 1,
            served: BTreeMap::new(),
        }
    }

    fn any_call(&mut self) -> Option<u64> {
        let open: Vec<u64> = self
            .calls
            .iter()
            .filter(|(_, call)| call.end.is_none())
            .map(|(id, _)| *id)
            .collect();
        (!open.is_empty()).then(|| open[self.random.below(open.len() as u64) as usize])
    }

    fn app_step(&mut self) {
        let action = self.random.below(12);
        if action < 3 {
            if self.rig.signals.ended().is_some() {
                return;
            }
            let id = self.next_call;
            self.next_call += 1;
            self.calls.insert(id, AppCall::default());
            return self.rig.open(id, CHAT);
        }
        let Some(id) = self.any_call() else { return };
        let call = self.calls.get_mut(&id).unwrap();
        match action {
            3..=7 if !call.is_half_closed && call.sent < 50 => {
                let bytes = message(call.sent, &mut self.random);
                call.sent += 1;
                self.rig.send(id, &bytes);
            }
            8 if !call.is_half_closed => {
                call.is_half_closed = true;
                self.rig.end(id);
            }
            9 => {
                let cost = std::mem::take(&mut call.unread_cost);
                if cost > 0 {
                    self.rig.give_back(id, cost);
                }
            }
            10 => {
                self.calls.remove(&id);
                self.rig.cancel(id);
            }
            _ => {}
        }
    }

    fn server(&mut self, link: usize) -> &mut TestServer {
        let newest = self.olds.len();
        if link == newest {
            &mut self.rig.server
        } else {
            &mut self.olds[link]
        }
    }

    /// What a server has heard.
    fn on_event(&mut self, link: usize) {
        let events: Vec<GrpcEvent> = self.server(link).events.drain(..).collect();
        for event in events {
            match event {
                GrpcEvent::Request { call, .. } => {
                    self.served.insert((link, call), ServerCall::default());
                }
                GrpcEvent::Message { call, message } => {
                    let served = self.served.get_mut(&(link, call)).unwrap();
                    assert_eq!(number_of(&message.bytes), served.got, "in order, each once");
                    served.got += 1;
                    self.server(link).grpc.consume(call, message.bytes.len());
                }
                GrpcEvent::Ended { call, .. } => self.served.get_mut(&(link, call)).unwrap().is_over = true,
                _ => {}
            }
        }
    }

    fn server_step(&mut self) {
        let open: Vec<(usize, u32)> = self
            .served
            .iter()
            .filter(|(_, served)| !served.is_over)
            .map(|(place, _)| *place)
            .collect();
        if open.is_empty() {
            return;
        }
        let place = open[self.random.below(open.len() as u64) as usize];
        let action = self.random.below(100);
        self.serve(place, action);
    }

    fn serve(&mut self, place: (usize, u32), action: u64) {
        let (link, call) = place;
        let now = self.rig.now;
        let mut served = self.served.remove(&place).unwrap();
        let bytes = message(served.sent, &mut self.random);
        let server = self.server(link);
        if !served.has_begun && action < 90 {
            served.has_begun = true;
            server.grpc.respond(call, &ResponseHead::default(), now).unwrap();
        }
        match action {
            0..=79 => served.sent += u64::from(server.send(call, &bytes, now)),
            80..=92 => {
                served.is_over = true;
                server.grpc.finish(call, &GrpcStatus::ok(), &[], now).unwrap();
            }
            _ => {
                served.is_over = true;
                let code = if served.has_begun {
                    Code::Cancelled
                } else {
                    Code::Unavailable
                };
                server.grpc.cancel(call, code, now).unwrap();
            }
        }
        self.served.insert(place, served);
    }

    /// Lets everything move, and looks at what the app was told.
    fn settle(&mut self) {
        self.rig.calls = self.calls.values().filter(|call| call.end.is_none()).count();
        for _ in 0..2 {
            self.rig.run();
            self.rig.now += 5_000_000;
            for old in &mut self.olds {
                old.work(self.rig.now);
            }
            self.rig.run();
        }
        if !self.rig.dialled.lock().unwrap().is_empty() {
            let old = self.rig.next_server();
            self.olds.push(old);
            self.rig.run();
        }
        for link in 0..=self.olds.len() {
            self.on_event(link);
        }
        for told in self.rig.told() {
            self.look_at(&told);
        }
    }

    fn look_at(&mut self, told: &ToldStep) {
        // Of a call that was cancelled meanwhile, something may have been said already.
        let Some(call) = self.calls.get_mut(&told.call) else {
            return;
        };
        assert_eq!(call.end, None, "after the end: {told:?}");
        if told.parts.contains(Parts::MESSAGE) {
            assert_eq!(number_of(&told.message), call.got, "in order, each once");
            call.got += 1;
            call.unread_cost += told.window_bytes;
        }
        if told.parts.intersects(Parts::STATUS | Parts::CANCEL) {
            call.end = Some(told.status);
        }
    }

    /// Everything ends: the app reads all, and servers finish what is open.
    fn conclude(&mut self) {
        for _ in 0..200 {
            let open: Vec<u64> = self
                .calls
                .iter()
                .filter(|(_, call)| call.end.is_none())
                .map(|(id, _)| *id)
                .collect();
            for id in open {
                let cost = std::mem::take(&mut self.calls.get_mut(&id).unwrap().unread_cost);
                if cost > 0 {
                    self.rig.give_back(id, cost);
                }
            }
            let served: Vec<_> = self
                .served
                .iter()
                .filter(|(_, served)| !served.is_over)
                .map(|(place, _)| *place)
                .collect();
            served.into_iter().for_each(|place| self.serve(place, 85));
            self.settle();
            if self.calls.values().all(|call| call.end.is_some()) {
                return;
            }
        }
        panic!(
            "calls do not end; served {:?}, {} old links, {:?}, {:?}",
            self.served,
            self.olds.len(),
            self.rig.signals,
            self.rig.progress
        );
    }
}

/// How often another process goes on with the engine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RestartFrequency {
    Never,
    OneStepInTwenty,
}

#[test]
fn calls_keep_their_order_and_end_once() {
    run_all(RestartFrequency::Never);
}

#[test]
fn calls_keep_their_order_and_end_once_over_hot_restarts() {
    run_all(RestartFrequency::OneStepInTwenty);
}

fn run_all(restarts: RestartFrequency) {
    let mut ends = BTreeMap::new();
    for seed in 0..RUNS {
        let mut world = RandomWorld::new(seed);
        for _ in 0..STEPS {
            let is_open = world.rig.signals.ended().is_none();
            if is_open && restarts == RestartFrequency::OneStepInTwenty && world.random.below(20) == 0 {
                world.rig.restart();
            }
            if world.random.below(3) == 0 {
                world.server_step();
            } else {
                world.app_step();
            }
            if world.random.below(4) == 0 {
                world.settle();
            }
            if world.random.below(150) == 0 && world.olds.len() < 2 {
                let now = world.rig.now;
                world.rig.server.grpc.drain(now);
            }
        }
        world.conclude();
        for call in world.calls.values() {
            *ends.entry(call.end.unwrap().number()).or_insert(0) += 1;
        }
        world.rig.signals.drain();
        world.settle();
        assert!(world.rig.signals.ended().is_some(), "seed {seed}");
    }
    assert!(ends[&Code::Ok.number()] > 1_000, "{ends:?}");
}
