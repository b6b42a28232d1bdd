//! Who owns a message's memory (eRPC, NSDI '19, section 4.2.2): when a call's completion is told, both of its buffers are
//! the application's, and nothing in the queue, the timing wheel or on the wire refers to them any more; until then
//! they are the endpoint's. Likewise a response that was lent, until it comes back.
//!
//! The application here knows the address of each of its buffers and whose it is. It fills what is its own with noise, looks at
//! where the memory of each packet that leaves lies, and watches the noise. Packets are lost, doubled, overtaken and held
//! back, wait to be sent, are paced, time out; nodes fail, and sessions end, at any moment.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::{Endpoint, Mark, Transmit};
use crate::checksum::Checking;
use crate::config::{Config, Recovery, ShortCut};
use crate::congestion::{Algorithm, CongestionConfig, SwiftConfig, TimelyConfig};
use crate::event::{Call, CallError, Completion, Event, Payload, RequestHandle, SessionId};
use crate::packet::{Body, Kind, Packet};
use crate::seal::{Cipher, Sealing, Security};
use crate::shared::Outgoing;
use crate::{DctcpConfig, MsgBuf};

const CLIENT: u8 = 0;
const SERVER: u8 = 1;
const US_NS: u64 = 1_000;
const PEER_TIMEOUT_NS: u64 = 4_000 * US_NS;
const IDLE_NS_MAX: u64 = 20_000 * US_NS;
/// What the application leaves in memory that is its own; no message has such a byte.
const NOISE: u8 = 0xee;
/// Bytes of the shortest request: the call's tag, the length of its response, how to answer.
const REQUEST_BYTES_MIN: usize = 16;
/// A packet carries this much of a message, or less, so that messages of a few of them are still small.
const PACKET_BYTES: usize = 160;
const MESSAGE_BYTES_MAX: usize = 1_500;
/// Cases to try, and things that happen in each at most.
const CASES: u32 = 256;
const STEPS_MAX: usize = 400;

#[derive(Clone, Copy, Debug)]
enum Step {
    Call {
        request_bytes: usize,
        response_bytes: usize,
        answer: Answer,
    },
    /// An end hands over packets, not necessarily all that it has.
    Send {
        end: u8,
        packets: usize,
    },
    /// One of the packets on the wire arrives.
    Arrive(usize),
    /// One arrives, and is still on the wire.
    Double(usize),
    Lose(usize),
    Pass {
        us: u64,
    },
    /// The server answers a request that it has kept.
    Respond(usize),
    /// Nothing arrives for so long that the client gives the server up.
    FallSilent,
    /// The server has lost its memory.
    Restart,
    Reset {
        end: u8,
    },
    Close,
}

/// How the server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Inline,
    Lent,
    /// Lent, when it comes to it.
    Later,
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = || prop_oneof![2 => 0..PACKET_BYTES, 1 => 0..MESSAGE_BYTES_MAX];
    let answer = prop_oneof![Just(Answer::Inline), Just(Answer::Lent), Just(Answer::Later)];
    let end = || prop_oneof![Just(CLIENT), Just(SERVER)];
    prop_oneof![
        36 => (bytes(), bytes(), answer).prop_map(|(request_bytes, response_bytes, answer)| Step::Call {
            request_bytes: request_bytes.max(REQUEST_BYTES_MIN), response_bytes, answer,
        }),
        90 => (end(), 1usize..12).prop_map(|(end, packets)| Step::Send { end, packets }),
        200 => (0usize..64).prop_map(Step::Arrive),
        130 => (0usize..64).prop_map(Step::Double),
        130 => (0usize..64).prop_map(Step::Lose),
        60 => (1u64..40).prop_map(|us| Step::Pass { us }),
        30 => (0usize..8).prop_map(Step::Respond),
        1 => Just(Step::FallSilent),
        1 => Just(Step::Restart),
        1 => end().prop_map(|end| Step::Reset { end }),
        1 => Just(Step::Close),
    ]
}

fn config() -> impl Strategy<Value = Config> {
    let recovery = prop_oneof![Just(Recovery::Selective), Just(Recovery::GoBackN)];
    let algorithm = prop_oneof![
        1 => Just(Algorithm::Off),
        1 => Just(Algorithm::Timely(TimelyConfig::default())),
        // Without a window, more waits in the timing wheel.
        2 => Just(Algorithm::Timely(TimelyConfig {
            window_packets_min: u32::MAX,
            ..TimelyConfig::default()
        })),
        1 => Just(Algorithm::Swift(SwiftConfig::default())),
        1 => Just(Algorithm::Dctcp(DctcpConfig::default())),
    ];
    let security = prop_oneof![
        3 => Just(Security::Plain),
        1 => Just(Security::Sealed(Sealing {
            cipher: Cipher::ChaCha20Poly1305,
            pre_shared_key: [1; 32],
            seed: [2; 32],
        })),
    ];
    let bypass = prop_oneof![Just(ShortCut::On), Just(ShortCut::Off)];
    // At such rates a packet takes 5 to 50 us, and waits for its turn in the timing wheel.
    let rate = 0.003..0.03;
    (recovery, algorithm, security, bypass, rate, 1u8..5, 1u16..24).prop_map(
        |(recovery, algorithm, security, pacing_bypass, link_rate, slots, credits)| Config {
            recovery,
            security,
            slots,
            credits,
            congestion: CongestionConfig {
                algorithm,
                link_rate,
                ..CongestionConfig::default()
            },
            pacing_bypass,
            packet_bytes_max: PACKET_BYTES,
            message_bytes_max: 2 * MESSAGE_BYTES_MAX as u32,
            inline_response_bytes: MESSAGE_BYTES_MAX,
            timeout_ns_initial: 60 * US_NS,
            timeout_ns_min: 20 * US_NS,
            timeout_ns_max: 500 * US_NS,
            peer_timeout_ns: PEER_TIMEOUT_NS,
            idle_ns_max: IDLE_NS_MAX,
            ..Config::default()
        },
    )
}

/// Whose a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Application,
    Endpoint(u8),
}

/// All buffers of the application, by where they begin.
#[derive(Debug, Default)]
struct Memory(BTreeMap<usize, (usize, Owner)>);

impl Memory {
    fn take(&mut self, bytes: usize) -> MsgBuf {
        let buffer = MsgBuf::with_capacity(bytes.max(1));
        let before = self
            .0
            .insert(buffer.as_ptr() as usize, (buffer.capacity(), Owner::Application));
        assert_eq!(before, None, "a buffer that is in use is given out again");
        buffer
    }

    fn pass(&mut self, buffer: &MsgBuf, from: Owner, to: Owner) {
        let (bytes, owner) = self
            .0
            .get_mut(&(buffer.as_ptr() as usize))
            .expect("a buffer of the application");
        assert_eq!((*bytes, *owner), (buffer.capacity(), from), "it is another's");
        *owner = to;
    }

    /// Frees a buffer of the application, in which nothing may have changed since it came back.
    fn free(&mut self, mut buffer: MsgBuf) {
        buffer.set_length(buffer.capacity());
        assert!(
            buffer.iter().all(|byte| *byte == NOISE),
            "memory of the application was written to"
        );
        let freed = self.0.remove(&(buffer.as_ptr() as usize));
        assert_eq!(freed, Some((buffer.capacity(), Owner::Application)));
    }

    /// What an endpoint had is gone with it.
    fn forget(&mut self, end: u8) {
        self.0.retain(|_, (_, owner)| *owner != Owner::Endpoint(end));
    }

    /// Whose the memory is that these bytes lie in; `None` if it is none of the application's buffers.
    fn owner(&self, bytes: &[u8]) -> Option<Owner> {
        let (first, end) = (bytes.as_ptr() as usize, bytes.as_ptr() as usize + bytes.len());
        let (at, (length, owner)) = self.0.range(..end).next_back()?;
        (first < at + length).then_some(*owner)
    }

    fn lent_to(&self, end: u8) -> usize {
        self.0
            .values()
            .filter(|(_, owner)| *owner == Owner::Endpoint(end))
            .count()
    }
}

/// A call in its slot, as its packets name it: session, token, slot, number.
type Name = (u16, u32, u8, u32);

/// What came of a case.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    answered: u64,
    failed: u64,
    /// Packets that waited in the queue, and in the timing wheel, when their call ended.
    queued: usize,
    paced: usize,
}

struct World {
    now_ns: u64,
    config: Config,
    ends: [Endpoint<u8>; 2],
    session: Option<SessionId>,
    /// Packets on their way, and where to.
    wire: Vec<(u8, Vec<u8>)>,
    memory: Memory,
    /// The application's own, since they came back.
    spare: Vec<MsgBuf>,
    tags: u64,
    /// Calls that have not ended, and what their requests' packets call them.
    open: BTreeMap<u64, Option<Name>>,
    /// Names of calls that have ended.
    over: BTreeSet<Name>,
    kept: Vec<(RequestHandle, u64, usize)>,
    outcome: Outcome,
}

impl World {
    fn new(config: &Config) -> World {
        let ends = [endpoint(config, CLIENT, 0), endpoint(config, SERVER, 0)];
        World {
            now_ns: 1_000_000,
            config: config.clone(),
            ends,
            session: None,
            wire: Vec::new(),
            memory: Memory::default(),
            spare: Vec::new(),
            tags: 0,
            open: BTreeMap::new(),
            over: BTreeSet::new(),
            kept: Vec::new(),
            outcome: Outcome::default(),
        }
    }

    fn happen(&mut self, step: Step) {
        match step {
            Step::Call {
                request_bytes,
                response_bytes,
                answer,
            } => {
                self.call(request_bytes, response_bytes, answer);
            }
            Step::Send { end, packets } => self.send(end, packets),
            Step::Arrive(pick) if !self.wire.is_empty() => {
                let (to, bytes) = self.wire.swap_remove(pick % self.wire.len());
                self.arrive(to, &bytes);
            }
            Step::Double(pick) if !self.wire.is_empty() => {
                let (to, bytes) = self.wire[pick % self.wire.len()].clone();
                self.arrive(to, &bytes);
            }
            Step::Lose(pick) if !self.wire.is_empty() => {
                self.wire.swap_remove(pick % self.wire.len());
            }
            Step::Pass { us } => self.pass(us * US_NS),
            Step::Respond(pick) if !self.kept.is_empty() => {
                let (handle, tag, bytes) = self.kept.swap_remove(pick % self.kept.len());
                self.respond_lent(handle, tag, bytes);
            }
            Step::FallSilent => self.fall_silent(),
            Step::Restart => self.restart(),
            Step::Reset { end } => self.reset(end),
            Step::Close => {
                if let Some(session) = self.session {
                    self.ends[0].disconnect(self.now_ns, session);
                }
            }
            _ => {}
        }
        self.events();
    }

    fn call(&mut self, request_bytes: usize, response_bytes: usize, answer: Answer) {
        let session = match self.session {
            Some(session) => session,
            None => {
                let session = self.ends[0].connect(self.now_ns, SERVER).expect("few sessions");
                *self.session.insert(session)
            }
        };
        self.tags += 1;
        let tag = self.tags;
        self.spare.drain(..).for_each(|buffer| self.memory.free(buffer));
        let (mut request, mut response) = (self.memory.take(request_bytes), self.memory.take(response_bytes));
        write_request(&mut request, tag, request_bytes, response_bytes, answer);
        response.set_length(0);
        for buffer in [&request, &response] {
            self.memory
                .pass(buffer, Owner::Application, Owner::Endpoint(CLIENT));
        }
        self.open.insert(tag, None);
        let call = Call {
            method: 1,
            tag,
            request,
            response,
        };
        if let Err(refused) = self.ends[0].call(self.now_ns, session, call) {
            let Call {
                tag,
                request,
                response,
                ..
            } = refused.call;
            let outcome = Err(refused.error);
            self.completed(Completion {
                session,
                tag,
                outcome,
                request,
                response,
            });
        }
    }

    /// Hands over packets in one of the two ways that there are, as drivers do.
    fn send(&mut self, end: u8, packets: usize) {
        let (now_ns, memory) = (self.now_ns, &self.memory);
        let mut leaving = Vec::new();
        let mut send_packet = |to, head: &[u8], payload: &[u8]| {
            // Of a sealed session, what leaves is the endpoint's own copy.
            let owner = memory.owner(payload);
            assert!(
                owner.is_none_or(|owner| owner == Owner::Endpoint(end)),
                "a packet leaves from memory that is another's: {owner:?}"
            );
            assert!(owner.is_none() || !payload.contains(&NOISE), "noise leaves");
            leaving.push((to, [head, payload].concat()));
        };
        let from = &mut self.ends[usize::from(end)];
        if packets.is_multiple_of(2) {
            from.transmit(now_ns, packets, send_packet);
        } else {
            for _ in 0..packets {
                let Some(Transmit { to, head, payload }) = from.poll_transmit(now_ns) else {
                    break;
                };
                send_packet(to, head.bytes(), payload);
            }
        }
        for (to, bytes) in leaving {
            if end == CLIENT {
                self.left_for_server(&bytes);
            }
            self.wire.push((to, bytes));
        }
    }

    /// What the client sends names no call that has ended.
    fn left_for_server(&mut self, bytes: &[u8]) {
        let sealed = matches!(self.config.security, Security::Sealed(_));
        let header = match Packet::parse(bytes, Checking::Wire) {
            Ok(packet) if !sealed => packet.header,
            _ => return,
        };
        if !matches!(header.kind, Kind::Request | Kind::RequestForResponse) {
            return;
        }
        let name = (header.session, header.token, header.slot, header.call);
        assert!(
            !self.over.contains(&name),
            "a packet of a call that has ended leaves: {header:?}"
        );
        if let (
            Kind::Request,
            0,
            Ok(Packet {
                body: Body::Data(_, payload),
                ..
            }),
        ) = (header.kind, header.packet, Packet::parse(bytes, Checking::Wire))
        {
            let (tag, ..) = read_request(payload);
            let known = self.open.get_mut(&tag).expect("it has not ended");
            assert!(
                known.is_none_or(|known| known == name),
                "two calls share a request"
            );
            *known = Some(name);
        }
    }

    fn arrive(&mut self, to: u8, bytes: &[u8]) {
        let (from, end) = (1 - to, &mut self.ends[usize::from(to)]);
        match end.receive(self.now_ns, from, Mark::None, bytes) {
            Some(Event::Request { handle, payload, .. }) => self.execute(handle, payload),
            Some(Event::Completed(completion)) => self.completed(completion),
            Some(Event::Ended(session, _)) => self.ended(to, session),
            Some(Event::ResponseReturned(buffer)) => self.returned(buffer),
            Some(Event::Connected(_) | Event::Accepted(_)) | None => {}
        }
    }

    fn events(&mut self) {
        for end in [CLIENT, SERVER] {
            while let Some(event) = self.ends[usize::from(end)].poll_event() {
                match event {
                    Event::Completed(completion) => self.completed(completion),
                    Event::ResponseReturned(buffer) => self.returned(buffer),
                    Event::Ended(session, _) => self.ended(end, session),
                    _ => {}
                }
            }
        }
    }

    fn execute(&mut self, handle: RequestHandle, payload: Payload<'_>) {
        let (tag, bytes, answer) = read_request(&payload);
        assert_pattern(&payload[REQUEST_BYTES_MIN..], tag);
        if let Payload::Owned(buffer) = payload {
            self.ends[1].recycle(buffer);
        }
        match answer {
            Answer::Later => self.kept.push((handle, tag, bytes)),
            Answer::Lent => self.respond_lent(handle, tag, bytes),
            Answer::Inline => {
                let mut response = vec![0; bytes];
                write_pattern(&mut response, tag);
                // Nobody waits for it where the session is over by now.
                let _ = self.ends[1].respond_inline(self.now_ns, handle, 0, &response);
            }
        }
    }

    fn respond_lent(&mut self, handle: RequestHandle, tag: u64, bytes: usize) {
        let mut response = self.memory.take(bytes);
        response.set_length(bytes);
        write_pattern(&mut response, tag);
        self.memory
            .pass(&response, Owner::Application, Owner::Endpoint(SERVER));
        if let Err(refused) = self.ends[1].respond(self.now_ns, handle, 0, response) {
            self.returned(refused.response);
        }
    }

    fn completed(&mut self, completion: Completion) {
        let name = self.open.remove(&completion.tag).expect("a call ends once");
        self.over.extend(name);
        self.count_waiting(completion.session, name);
        match completion.outcome {
            Ok(_) => assert_pattern(&completion.response, completion.tag),
            Err(CallError::ResponseTooLarge | CallError::RequestTooLarge) => panic!("they have room"),
            Err(_) => self.outcome.failed += 1,
        }
        self.outcome.answered += u64::from(completion.outcome.is_ok());
        assert_pattern(&completion.request[REQUEST_BYTES_MIN..], completion.tag);
        for buffer in [completion.request, completion.response] {
            self.back(buffer, CLIENT);
        }
    }

    /// What the endpoint still means to send for a call that has ended.
    fn count_waiting(&mut self, session: SessionId, name: Option<Name>) {
        let Some((_, _, slot, call)) = name else {
            return;
        };
        let is_of_it = |outgoing: &&Outgoing| {
            (outgoing.session, outgoing.slot, outgoing.call) == (session.number, slot, call)
        };
        let shared = &self.ends[0].shared;
        self.outcome.queued += shared.outgoing.iter().filter(is_of_it).count();
        self.outcome.paced += shared.pacing.iter().filter(is_of_it).count();
    }

    fn returned(&mut self, response: MsgBuf) {
        self.back(response, SERVER);
    }

    /// A buffer is the application's again: from now on it is noise.
    fn back(&mut self, mut buffer: MsgBuf, from: u8) {
        self.memory
            .pass(&buffer, Owner::Endpoint(from), Owner::Application);
        buffer.set_length(buffer.capacity());
        buffer.fill_with_noise();
        self.spare.push(buffer);
    }

    fn ended(&mut self, end: u8, session: SessionId) {
        if end == CLIENT && self.session == Some(session) {
            self.session = None;
        }
    }

    /// Time passes, and each end looks at its timers.
    fn pass(&mut self, ns: u64) {
        self.now_ns += ns;
        for end in &mut self.ends {
            end.handle_timers(self.now_ns);
        }
        self.events();
    }

    fn fall_silent(&mut self) {
        let until_ns = self.now_ns + 2 * PEER_TIMEOUT_NS;
        while self.now_ns < until_ns {
            self.pass(100 * US_NS);
            self.send(CLIENT, usize::MAX);
            self.send(SERVER, usize::MAX);
            self.wire.clear();
        }
        assert_eq!(self.open.len(), 0, "a call outlives its server");
    }

    fn restart(&mut self) {
        self.ends[1] = endpoint(&self.config, SERVER, self.now_ns);
        self.memory.forget(SERVER);
        self.kept.clear();
    }

    fn reset(&mut self, end: u8) {
        let of_server = self.kept.first().map(|(handle, ..)| handle.session());
        let session = if end == CLIENT { self.session } else { of_server };
        if let Some(session) = session {
            self.ends[usize::from(end)].reset(self.now_ns, session);
        }
    }

    /// Everything arrives, and is answered, until nothing is left; then the session ends.
    fn settle(mut self) -> Outcome {
        let until_ns = self.now_ns + 1_000_000 * US_NS;
        while !self.open.is_empty() {
            self.exchange();
            assert!(self.now_ns < until_ns, "calls never end: {:?}", self.open);
        }
        if let Some(session) = self.session {
            self.ends[0].disconnect(self.now_ns, session);
        }
        let until_ns = self.now_ns + 2 * IDLE_NS_MAX;
        while self.now_ns < until_ns {
            self.exchange();
        }
        assert_eq!(
            self.memory.lent_to(CLIENT),
            0,
            "a buffer of the client never came back"
        );
        assert_eq!(self.memory.lent_to(SERVER), 0, "a response never came back");
        self.spare.drain(..).for_each(|buffer| self.memory.free(buffer));
        self.outcome
    }

    fn exchange(&mut self) {
        self.send(CLIENT, usize::MAX);
        self.send(SERVER, usize::MAX);
        for (to, bytes) in std::mem::take(&mut self.wire) {
            self.arrive(to, &bytes);
        }
        while !self.kept.is_empty() {
            self.happen(Step::Respond(0));
        }
        self.pass(20 * US_NS);
    }
}

fn endpoint(config: &Config, end: u8, now_ns: u64) -> Endpoint<u8> {
    let mut config = config.clone();
    config.secret = [u64::from(end) + 1, now_ns];
    if let Security::Sealed(sealing) = &mut config.security {
        sealing.seed[..8].copy_from_slice(&now_ns.to_le_bytes());
        sealing.seed[8] = end;
    }
    Endpoint::new(config).expect("the configuration is one to work with")
}

trait Noise {
    fn fill_with_noise(&mut self);
}

impl Noise for MsgBuf {
    fn fill_with_noise(&mut self) {
        self.iter_mut().for_each(|byte| *byte = NOISE);
    }
}

fn write_request(request: &mut MsgBuf, tag: u64, bytes: usize, response_bytes: usize, answer: Answer) {
    request.set_length(bytes);
    let answer = [Answer::Inline, Answer::Lent, Answer::Later]
        .iter()
        .position(|other| *other == answer);
    let words = [
        tag as u32,
        (tag >> 32) as u32,
        response_bytes as u32,
        answer.unwrap_or(0) as u32,
    ];
    // Seven bits to a byte, which is never noise.
    for (byte, at) in request.iter_mut().zip(0..REQUEST_BYTES_MIN) {
        *byte = (words[at / 4] >> (7 * (at % 4))) as u8 & 0x7f;
    }
    write_pattern(&mut request[REQUEST_BYTES_MIN..], tag);
}

fn read_request(request: &[u8]) -> (u64, usize, Answer) {
    let word = |word: usize| {
        let bytes = request[4 * word..4 * word + 4].iter().enumerate();
        bytes.fold(0, |all, (at, byte)| all | u32::from(*byte) << (7 * at))
    };
    let answer = [Answer::Inline, Answer::Lent, Answer::Later][word(3) as usize];
    (
        u64::from(word(0)) | u64::from(word(1)) << 32,
        word(2) as usize,
        answer,
    )
}

/// What a message of a call has at a place: it is never noise.
fn pattern(tag: u64, at: usize) -> u8 {
    ((tag as usize * 31 + at * 7) % 127) as u8
}

fn write_pattern(bytes: &mut [u8], tag: u64) {
    bytes
        .iter_mut()
        .enumerate()
        .for_each(|(at, byte)| *byte = pattern(tag, at));
}

fn assert_pattern(bytes: &[u8], tag: u64) {
    let wrong = bytes
        .iter()
        .enumerate()
        .find(|(at, byte)| **byte != pattern(tag, *at));
    assert_eq!(wrong, None, "a wrong byte in a message of call {tag}");
}

#[test]
fn memory_is_the_applications_when_its_call_has_ended_and_the_endpoints_until_then() {
    let config_of_run = ProptestConfig {
        cases: CASES,
        ..ProptestConfig::with_source_file(file!())
    };
    let total = std::cell::Cell::new(Outcome::default());
    let case = (config(), prop::collection::vec(step(), 1..STEPS_MAX));
    let checked = TestRunner::new(config_of_run).run(&case, |(config, steps)| {
        let mut world = World::new(&config);
        steps.into_iter().for_each(|step| world.happen(step));
        let (outcome, so_far) = (world.settle(), total.get());
        total.set(Outcome {
            answered: so_far.answered + outcome.answered,
            failed: so_far.failed + outcome.failed,
            queued: so_far.queued + outcome.queued,
            paced: so_far.paced + outcome.paced,
        });
        Ok(())
    });
    if let Err(error) = checked {
        panic!("{error}");
    }
    // What is dangerous has happened, and often: else all this would show little.
    let total = total.get();
    println!("{total:?}");
    assert!(total.answered > 500 && total.failed > 100, "{total:?}");
    assert!(total.queued > 0 && total.paced > 0, "{total:?}");
}
