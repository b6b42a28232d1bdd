//! The engine between a hostile app and a hostile peer, with nothing around it.

use std::collections::HashSet;
use std::sync::Arc;

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto,
    ServiceDescriptorProto,
};
use provost_datapath::{
    Body, BodyForm, Buffer, BufferPool, ConnectionEnd, ConnectionSignals, Context, EncodedBody, Engine,
    FlowHints, Nanos, Ports, Progress, Queue, ReceiveHeap, ReceivedBody, SocketHint, Step, Untrusted,
};
use provost_marshal::Tables;
use provost_schema::Schema;
use provost_shm::{Access, Mapping, Memfd};
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::{METADATA_BYTES_MAX, SEND_WINDOW, STREAM_WINDOW_BYTES};
use provost_wire::metadata::{self, STATUS_MESSAGE};

use crate::testing::MemfdSource;
use crate::{
    AppReceiveHeap, AppRole, CallQuota, Frontend, FrontendParts, MethodShape, ReceiveLimits, SendHeap,
};

pub(crate) const SEND_BYTES: u64 = 256 << 10;
pub(crate) const MESSAGE_BYTES_MAX: u32 = 100_000;
const UNARY: u16 = 0;
const CHAT: u16 = 1;
/// A struct of zeros is a good note, and the send heap is full of them.
const GOOD_ROOT: u32 = SEND_WINDOW + 16;

pub(crate) fn schema() -> Schema {
    let text = FieldDescriptorProto {
        name: Some("text".into()),
        number: Some(1),
        label: Some(Label::Optional.into()),
        r#type: Some(Type::String.into()),
        ..FieldDescriptorProto::default()
    };
    let list = FieldDescriptorProto {
        name: Some("list".into()),
        number: Some(2),
        label: Some(Label::Repeated.into()),
        ..text.clone()
    };
    let method = |name: &str, streaming| MethodDescriptorProto {
        name: Some(name.into()),
        input_type: Some(".test.Note".into()),
        output_type: Some(".test.Note".into()),
        client_streaming: Some(streaming),
        server_streaming: Some(streaming),
        ..MethodDescriptorProto::default()
    };
    let file = FileDescriptorProto {
        name: Some("test.proto".into()),
        package: Some("test".into()),
        syntax: Some("proto3".into()),
        message_type: vec![DescriptorProto {
            name: Some("Note".into()),
            field: vec![text, list],
            ..DescriptorProto::default()
        }],
        service: vec![ServiceDescriptorProto {
            name: Some("Echo".into()),
            method: vec![method("Unary", false), method("Chat", true)],
            ..ServiceDescriptorProto::default()
        }],
        ..FileDescriptorProto::default()
    };
    let set = FileDescriptorSet { file: vec![file] }.encode_to_vec();
    Schema::from_descriptor_set(&set).unwrap()
}

/// A frontend and what surrounds it.
pub(crate) struct Bench {
    pub(crate) role: AppRole,
    pub(crate) frontend: Frontend,
    pub(crate) tx_in: Queue<Step>,
    pub(crate) tx_out: Queue<Step>,
    pub(crate) rx_in: Queue<Step>,
    pub(crate) rx_out: Queue<Step>,
    pub(crate) buffers: BufferPool,
    pub(crate) heap: AppReceiveHeap,
    pub(crate) sent: Vec<u64>,
    pub(crate) now: Nanos,
    pub(crate) link: Arc<ConnectionSignals>,
    pub(crate) quota: Arc<CallQuota>,
    pub(crate) send_heap: Memfd,
}

impl Bench {
    pub(crate) fn new(role: AppRole) -> Bench {
        let schema = schema();
        let send_heap = Memfd::create("test-send", SEND_BYTES).unwrap();
        let mapping = Mapping::new(&send_heap, Access::ReadOnly).unwrap();
        let link = Arc::new(ConnectionSignals::new());
        let quota = Arc::new(CallQuota::new(20));
        let limits = ReceiveLimits {
            window_at: 1 << 20,
            window_bytes: 1 << 30,
            bytes_max: 8 << 20,
        };
        Bench {
            role,
            frontend: Frontend::new(FrontendParts {
                role,
                form: BodyForm::Native,
                tables: Arc::new(Tables::compile(&schema).unwrap()),
                methods: MethodShape::of_service(&schema.services[0]),
                send_heap: SendHeap::new(mapping).unwrap(),
                message_bytes_max: MESSAGE_BYTES_MAX,
                calls_max: 30,
                quota: (role == AppRole::Server).then(|| Arc::clone(&quota)),
                link: Arc::clone(&link),
            }),
            tx_in: Queue::with_bound(16),
            tx_out: Queue::with_bound(16),
            rx_in: Queue::with_bound(16),
            rx_out: Queue::with_bound(16),
            buffers: BufferPool::new(),
            heap: AppReceiveHeap::new(Box::new(MemfdSource::default()), limits),
            sent: Vec::new(),
            now: 1000,
            link,
            quota,
            send_heap,
        }
    }

    /// What a successor of the frontend is made of.
    fn parts(&self) -> FrontendParts {
        let schema = schema();
        FrontendParts {
            role: self.role,
            form: BodyForm::Native,
            tables: Arc::new(Tables::compile(&schema).unwrap()),
            methods: MethodShape::of_service(&schema.services[0]),
            send_heap: SendHeap::new(Mapping::new(&self.send_heap, Access::ReadOnly).unwrap()).unwrap(),
            message_bytes_max: MESSAGE_BYTES_MAX,
            calls_max: 30,
            quota: (self.role == AppRole::Server).then(|| Arc::clone(&self.quota)),
            link: Arc::clone(&self.link),
        }
    }

    /// Saves the frontend and goes on with its successor.
    pub(crate) fn succeed(&mut self) {
        let mut saver = provost_datapath::InPlace::new(|_, _| {});
        let saved = self.frontend.save(&mut saver);
        self.frontend = Frontend::restore(self.parts(), &saved, &mut saver.into_restorer()).unwrap();
    }

    pub(crate) fn poll(&mut self) -> Progress {
        let mut context = Context {
            socket: SocketHint::Skip,
            flow: FlowHints::default(),
            now: self.now,
            buffers: &mut self.buffers,
            receive: &mut self.heap,
            sent: &mut self.sent,
        };
        let ports = Ports {
            tx_in: &mut self.tx_in,
            tx_out: &mut self.tx_out,
            rx_in: &mut self.rx_in,
            rx_out: &mut self.rx_out,
        };
        self.frontend.do_work(ports, &mut context)
    }

    pub(crate) fn discard(&mut self, step: Step) {
        let mut context = Context {
            socket: SocketHint::Skip,
            flow: FlowHints::default(),
            now: self.now,
            buffers: &mut self.buffers,
            receive: &mut self.heap,
            sent: &mut self.sent,
        };
        step.body.discard(&mut context);
    }

    /// Takes a step of the app, and polls.
    pub(crate) fn submit(&mut self, step: Step) {
        self.tx_in.push(step).unwrap();
        self.poll();
    }

    /// Takes a step of the peer, and polls.
    pub(crate) fn receive(&mut self, step: Step) {
        self.rx_in.push(step).unwrap();
        self.poll();
    }

    /// A body in the receive heap, as a transport makes it.
    fn received(&mut self, metadata: &[u8], message_bytes: u32) -> Body {
        let offset = metadata.len().next_multiple_of(8) as u32;
        let mut block = self.heap.allocate((offset + message_bytes).max(1)).unwrap();
        let bytes = self.heap.bytes_mut(&mut block);
        bytes.fill(0);
        bytes[..metadata.len()].copy_from_slice(metadata);
        Body::Received(ReceivedBody {
            added: None,
            block,
            metadata_bytes: metadata.len() as u32,
            message_bytes,
            offsets: provost_datapath::Offsets::Window,
        })
    }

    /// The reason in a step that the service made for the app.
    fn reason(&mut self, step: Step) -> String {
        let Body::Received(mut body) = step.body else {
            panic!("no reason: {step:?}");
        };
        let block = self.heap.bytes_mut(&mut body.block)[..body.metadata_bytes as usize].to_vec();
        self.heap.free(body.block);
        let mut entries = metadata::entries(&block);
        let (_, reason) = entries.find(|(key, _)| *key == STATUS_MESSAGE).unwrap();
        String::from_utf8(reason.to_vec()).unwrap()
    }
}

pub(crate) fn step(call: u64, parts: Parts) -> Step {
    let mut step = Step::new(call, parts);
    step.body = Body::Untrusted(Untrusted {
        root: GOOD_ROOT,
        metadata: 0,
        metadata_bytes: 0,
        token: 0,
    });
    step
}

fn chat(call: u64, parts: Parts) -> Step {
    Step {
        method: CHAT,
        ..step(call, parts)
    }
}

pub(crate) fn refused(bench: &mut Bench, call: u64, code: Code, word: &str) {
    let step = bench.rx_out.pop().expect("a refusal");
    assert_eq!((step.call, step.parts, step.status), (call, Parts::CANCEL, code));
    let reason = bench.reason(step);
    assert!(reason.contains(word), "{reason}");
}

#[test]
fn a_stream_is_held_to_its_window_and_gets_back_what_was_read() {
    let mut bench = Bench::new(AppRole::Client);
    bench.submit(chat(1, Parts::BEGIN));
    let mut sent = 0;
    while sent < u64::from(STREAM_WINDOW_BYTES) {
        // The app may count more than the message has, and gets back what it counted.
        let counted = Step {
            window_bytes: 100_000,
            ..chat(1, Parts::MESSAGE)
        };
        bench.submit(counted);
        let step = bench.tx_out.pop().filter(|step| step.parts == Parts::MESSAGE);
        let step = step.or_else(|| bench.tx_out.pop()).expect("within the window");
        assert_eq!(step.window_bytes, 100_000);
        sent += 100_000;
    }
    let mut more = Step::new(1, Parts::WINDOW);
    more.window_bytes = 200_000;
    bench.receive(more);
    assert_eq!(bench.rx_out.pop().unwrap().window_bytes, 200_000);
    // 1 100 000 of 1 248 576 are used.
    bench.submit(Step {
        window_bytes: 200_000,
        ..chat(1, Parts::MESSAGE)
    });
    assert_eq!(bench.tx_out.pop().unwrap().parts, Parts::MESSAGE);
    bench.submit(chat(1, Parts::MESSAGE));
    refused(&mut bench, 1, Code::Internal, "window");
    assert_eq!(bench.tx_out.pop().unwrap().parts, Parts::CANCEL);
}

#[test]
fn a_peer_is_held_to_the_window_too_and_window_is_not_made_of_nothing() {
    let mut bench = Bench::new(AppRole::Client);
    bench.submit(chat(1, Parts::BEGIN));
    bench.tx_out.pop();
    let mut give_back = chat(1, Parts::WINDOW);
    give_back.window_bytes = 5;
    let mut received = 0;
    while received < u64::from(STREAM_WINDOW_BYTES) {
        let mut message = Step::new(1, Parts::MESSAGE);
        message.body = bench.received(&[], 300_000);
        bench.receive(message);
        let delivered = bench.rx_out.pop().expect("within the window");
        assert_eq!(delivered.window_bytes, 300_064);
        received += 300_064;
        bench.discard(delivered);
    }
    let mut message = Step::new(1, Parts::MESSAGE);
    message.body = bench.received(&[], 8);
    bench.receive(message);
    refused(&mut bench, 1, Code::Internal, "peer");
    bench.tx_out.pop();
    bench.submit(chat(2, Parts::BEGIN));
    bench.tx_out.pop();
    give_back.call = 2;
    bench.submit(give_back);
    refused(&mut bench, 2, Code::Internal, "unread");
}

#[test]
fn deadlines_come_in_order_and_a_stuck_wire_does_not_keep_them_from_the_app() {
    let mut bench = Bench::new(AppRole::Client);
    // The wire takes 16 steps and no more.
    for call in 1..=20 {
        let mut step = step(call, Parts::BEGIN | Parts::MESSAGE | Parts::END);
        step.deadline = 2000 + call;
        bench.submit(step);
    }
    assert!(bench.tx_out.is_full());
    assert_eq!(bench.frontend.wake_at(), Some(2001));
    bench.now = 2010;
    bench.poll();
    for call in 1..=10 {
        refused(&mut bench, call, Code::DeadlineExceeded, "deadline");
    }
    assert!(bench.rx_out.is_empty());
    assert_eq!(bench.frontend.wake_at(), Some(2011));
    bench.now = 5000;
    bench.poll();
    for call in 11..=20 {
        refused(&mut bench, call, Code::DeadlineExceeded, "deadline");
    }
    // The peer hears of the ends of those that it has heard of.
    let mut cancelled = HashSet::new();
    loop {
        bench.poll();
        match bench.tx_out.pop() {
            Some(step) if step.parts == Parts::CANCEL => assert!(cancelled.insert(step.call)),
            Some(step) => bench.discard(step),
            None => break,
        }
    }
    assert_eq!(cancelled, (1..=16).collect());
}

#[test]
fn a_call_whose_deadline_has_passed_is_not_begun() {
    let mut bench = Bench::new(AppRole::Client);
    let mut late = step(1, Parts::BEGIN | Parts::MESSAGE | Parts::END);
    late.deadline = bench.now;
    bench.submit(late);
    refused(&mut bench, 1, Code::DeadlineExceeded, "deadline");
    assert!(bench.tx_out.is_empty());
}

#[test]
fn a_full_queue_to_the_app_holds_the_peer_back_and_not_the_app() {
    let mut bench = Bench::new(AppRole::Client);
    bench.submit(chat(1, Parts::BEGIN));
    for _ in 0..16 {
        let mut message = Step::new(1, Parts::MESSAGE);
        message.body = bench.received(&[], 8);
        bench.receive(message);
    }
    assert!(bench.rx_out.is_full());
    let mut message = Step::new(1, Parts::MESSAGE);
    message.body = bench.received(&[], 8);
    bench.receive(message);
    assert_eq!(bench.rx_in.len(), 1);
    bench.submit(chat(2, Parts::BEGIN));
    assert_eq!(bench.tx_out.len(), 2);
    // Even failures wait their turn.
    bench.submit(step(3, Parts::BEGIN | Parts::STATUS));
    assert!(bench.rx_out.is_full());
    let first = bench.rx_out.pop().unwrap();
    bench.discard(first);
    bench.poll();
    assert_eq!(bench.rx_in.len(), 1);
}

#[test]
fn a_servers_quota_is_over_all_that_is_open_and_comes_back() {
    let mut bench = Bench::new(AppRole::Server);
    for call in 1..=21 {
        let mut request = Step::new(call, Parts::BEGIN | Parts::MESSAGE | Parts::END);
        request.body = bench.received(&[], 8);
        bench.receive(request);
        if let Some(step) = bench.rx_out.pop() {
            bench.discard(step);
        }
    }
    let refusal = bench.tx_out.pop().unwrap();
    assert_eq!((refusal.call, refusal.status), (21, Code::ResourceExhausted));
    assert_eq!(bench.quota.in_flight(), 20);
    bench.submit(step(1, Parts::MESSAGE | Parts::STATUS));
    assert_eq!(bench.quota.in_flight(), 19);
    let quota = Arc::clone(&bench.quota);
    drop(bench);
    assert_eq!(quota.in_flight(), 0);
}

#[test]
fn saved_state_continues_the_calls() {
    let mut bench = Bench::new(AppRole::Client);
    let mut begun = chat(5, Parts::BEGIN);
    begun.deadline = 4000;
    bench.submit(begun);
    bench.succeed();
    assert_eq!(bench.frontend.wake_at(), Some(4000));
    bench.submit(chat(5, Parts::BEGIN));
    refused(&mut bench, 5, Code::Internal, "number");
    bench.now = 4000;
    bench.submit(chat(6, Parts::BEGIN));
    assert_eq!(bench.frontend.wake_at(), None);
}

#[test]
fn steps_that_wait_for_room_are_continued_and_the_quota_is_taken_once() {
    let mut bench = Bench::new(AppRole::Server);
    for call in 1..=12 {
        bench.receive(Step {
            method: CHAT,
            ..Step::new(call, Parts::BEGIN)
        });
    }
    while let Some(step) = bench.rx_out.pop() {
        bench.discard(step);
    }
    // More than the output takes: what the app says waits, and what the service owes the peer.
    for call in 1..=12 {
        bench.submit(chat(call, Parts::HEADERS));
        bench.submit(chat(call, Parts::STATUS));
    }
    assert!(bench.tx_out.is_full());
    let open = bench.quota.in_flight();
    assert!(open > 0);
    for _ in 0..3 {
        bench.succeed();
        assert_eq!(bench.quota.in_flight(), open);
    }
    let mut out = Vec::new();
    while out.len() < 24 {
        let Some(step) = bench.tx_out.pop() else {
            bench.succeed();
            bench.poll();
            assert!(
                !bench.tx_out.is_empty(),
                "steps were lost: {} of 24 came",
                out.len()
            );
            continue;
        };
        out.push((step.call, step.parts));
    }
    let expected: Vec<_> = (1..=12)
        .flat_map(|call| [(call, Parts::HEADERS), (call, Parts::STATUS)])
        .collect();
    assert_eq!(out, expected);
    assert_eq!(bench.quota.in_flight(), 0);
}

#[test]
fn a_restore_that_fails_leaves_the_quota_as_it_was() {
    let mut bench = Bench::new(AppRole::Server);
    for call in 1..=3 {
        bench.receive(Step {
            method: CHAT,
            ..Step::new(call, Parts::BEGIN)
        });
    }
    let mut saver = provost_datapath::InPlace::new(|_, _| {});
    let mut saved = bench.frontend.save(&mut saver);
    // The second call gets the first one's number.
    saved.bytes.copy_within(12..20, 12 + 40);
    let parts = bench.parts();
    assert!(Frontend::restore(parts, &saved, &mut saver.into_restorer()).is_err());
    assert_eq!(bench.quota.in_flight(), 3);
}

/// A small generator of pseudo-random numbers (xorshift64), so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn parts(&mut self) -> Parts {
        const LIKELY: [Parts; 8] = [
            Parts::BEGIN.with(Parts::MESSAGE).with(Parts::END),
            Parts::BEGIN,
            Parts::MESSAGE,
            Parts::END,
            Parts::MESSAGE.with(Parts::STATUS),
            Parts::CANCEL,
            Parts::WINDOW,
            Parts::HEADERS,
        ];
        match self.below(4) {
            0 => Parts(self.below(256) as u8),
            _ => LIKELY[self.below(8) as usize],
        }
    }

    fn place(&mut self) -> u32 {
        match self.below(4) {
            0 => self.below(1 << 32) as u32,
            1 => SEND_WINDOW + (SEND_BYTES / 8) as u32 - self.below(4) as u32,
            _ => SEND_WINDOW + self.below(SEND_BYTES / 8) as u32,
        }
    }
}

fn random_app_step(random: &mut Random, tokens: &mut HashSet<u64>, now: Nanos) -> Step {
    let token = match random.below(3) {
        0 => 0,
        _ => tokens.len() as u64 + 1,
    };
    if token != 0 {
        tokens.insert(token);
    }
    let metadata_bytes = match random.below(6) {
        0 => random.below(200) as u32,
        1 => random.below(u64::from(2 * METADATA_BYTES_MAX)) as u32,
        2 => u32::MAX,
        _ => 0,
    };
    Step {
        method: random.below(4) as u16,
        status: Code::from_number(random.below(20) as u32),
        window_bytes: match random.below(3) {
            0 => 0,
            1 => random.below(1 << 20) as u32,
            _ => u32::MAX,
        },
        deadline: random.below(3) * (now / 2 + random.below(300)),
        body: Body::Untrusted(Untrusted {
            root: random.place(),
            metadata: random.place(),
            metadata_bytes,
            token,
        }),
        ..Step::new(random.below(60), random.parts())
    }
}

fn random_peer_step(random: &mut Random, bench: &mut Bench) -> Step {
    let mut step = Step::new(random.below(60), random.parts());
    step.method = random.below(4) as u16;
    step.window_bytes = random.below(1 << 21) as u32;
    step.deadline = random.below(2) * (bench.now + random.below(1000));
    step.body = match random.below(4) {
        0 => Body::Empty,
        1 => {
            let mut buffer = bench.buffers.take();
            let metadata_bytes = random.below(40) as u32;
            buffer
                .bytes
                .resize(metadata_bytes as usize, random.below(256) as u8);
            Body::Encoded(EncodedBody::plain(
                buffer,
                metadata_bytes,
                random.below(2) as u32 * 8,
            ))
        }
        _ => {
            let mut metadata = Vec::new();
            if random.below(2) == 0 {
                metadata.resize(random.below(40) as usize, random.below(256) as u8);
            } else {
                metadata::append(&mut metadata, "key", b"value").unwrap();
            }
            bench.received(&metadata, random.below(300) as u32)
        }
    };
    step
}

fn round(random: &mut Random, bench: &mut Bench, tokens: &mut HashSet<u64>) {
    bench.now += random.below(100);
    if random.below(2) == 0 && bench.tx_in.room() > 0 {
        let step = random_app_step(random, tokens, bench.now);
        bench.tx_in.push(step).unwrap();
    }
    if random.below(2) == 0 && bench.rx_in.room() > 0 {
        let step = random_peer_step(random, bench);
        bench.rx_in.push(step).unwrap();
    }
    bench.poll();
    for _ in 0..random.below(4) {
        if let Some(step) = bench.tx_out.pop() {
            assert!(!matches!(step.body, Body::Untrusted(_) | Body::Received(_)));
            bench.discard(step);
        }
        if let Some(step) = bench.rx_out.pop() {
            assert!(matches!(step.body, Body::Empty | Body::Received(_)));
            bench.discard(step);
        }
    }
}

#[test]
fn whatever_an_app_and_a_peer_say_all_memory_comes_back_and_the_end_is_reached() {
    for seed in 1..=60 {
        for role in [AppRole::Client, AppRole::Server] {
            let mut random = Random(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed));
            let mut bench = Bench::new(role);
            let junk: Vec<u8> = (0..4096).map(|_| random.below(256) as u8).collect();
            bench
                .send_heap
                .write_at(random.below(SEND_BYTES - 4096), &junk)
                .unwrap();
            let mut tokens = HashSet::new();
            for _ in 0..2000 {
                round(&mut random, &mut bench, &mut tokens);
                if random.below(50) == 0 {
                    bench.succeed();
                }
            }
            bench.link.set_ended(ConnectionEnd {
                code: Code::Unavailable,
                reason: "gone".into(),
            });
            bench.link.set_delivered();
            for left in (0..10_000).rev() {
                let progress = bench.poll();
                while let Some(step) = bench.tx_out.pop() {
                    bench.discard(step);
                }
                while let Some(step) = bench.rx_out.pop() {
                    bench.discard(step);
                }
                if progress == Progress::Ended {
                    break;
                }
                assert!(left > 0, "seed {seed}, {role:?}: no end");
            }
            let returned: HashSet<u64> = bench.sent.iter().copied().collect();
            assert_eq!(
                returned.len(),
                bench.sent.len(),
                "seed {seed}, {role:?}: a token twice"
            );
            assert_eq!(returned, tokens, "seed {seed}, {role:?}");
            assert!(bench.heap.is_empty(), "seed {seed}, {role:?}: blocks are left");
            assert_eq!(bench.quota.in_flight(), 0, "seed {seed}, {role:?}");
        }
    }
}

#[test]
fn methods_of_the_service_are_found() {
    let mut bench = Bench::new(AppRole::Client);
    let mut unknown = step(1, Parts::BEGIN | Parts::MESSAGE | Parts::END);
    unknown.method = CHAT + 1;
    bench.submit(unknown);
    refused(&mut bench, 1, Code::Unimplemented, "method");
    let mut known = step(2, Parts::BEGIN | Parts::MESSAGE | Parts::END);
    known.method = UNARY;
    bench.submit(known);
    assert_eq!(bench.tx_out.pop().unwrap().call, 2);
}

#[test]
fn a_port_of_protobuf_is_given_private_memory_as_it_came() {
    let mut good = Vec::new();
    metadata::append(&mut good, "key", b"value").unwrap();
    let body = |block: &[u8]| Body::Encoded(EncodedBody::of(block, b"\xffmessage", Buffer::default()));
    let response = |call, block: &[u8]| Step {
        body: body(block),
        ..Step::new(call, Parts::MESSAGE | Parts::STATUS)
    };
    for form in [BodyForm::Protobuf, BodyForm::Native] {
        let mut bench = Bench::new(AppRole::Client);
        bench.frontend.parts.form = form;
        for call in [1, 2] {
            bench.submit(Step {
                body: body(&good),
                ..Step::new(call, Parts::BEGIN | Parts::MESSAGE | Parts::END)
            });
            let sent = bench.tx_out.pop().unwrap();
            let is_as_it_came = matches!(&sent.body, Body::Encoded(body) if body.metadata() == good);
            assert!(is_as_it_came, "{sent:?}");
        }
        bench.receive(response(1, &good));
        bench.receive(response(2, b"no metadata"));
        let told = [(); 2].map(|()| bench.rx_out.pop().unwrap());
        let is_given = |step: &Step| match &step.body {
            Body::Encoded(body) => body.protobuf() == Some(&b"\xffmessage"[..]),
            _ => false,
        };
        assert_eq!(is_given(&told[0]), form == BodyForm::Protobuf, "{told:?}");
        assert_eq!(told[1].status, Code::Internal);
        told.into_iter().for_each(|step| bench.discard(step));
    }
}

/// Metadata of these entries.
fn block_of(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (key, value) in entries {
        metadata::append(&mut block, key, value.as_bytes()).unwrap();
    }
    block
}

impl Bench {
    /// A unary call that comes in with one entry of metadata, to which an engine has added another.
    fn begin_with_added(&mut self) -> (Step, Vec<u8>) {
        let mut step = Step::new(1, Parts::BEGIN | Parts::MESSAGE | Parts::END);
        step.deadline = 9_000;
        step.body = self.received(&block_of(&[("a", "1")]), 64);
        let all = block_of(&[("a", "1"), ("traceparent", "added")]);
        if let Body::Received(body) = &mut step.body {
            let mut buffer = self.buffers.take();
            buffer.bytes.extend_from_slice(&all);
            body.added = Some(buffer);
        }
        (step, all)
    }
}

#[test]
fn added_metadata_begins_the_call_and_the_message_follows() {
    let mut bench = Bench::new(AppRole::Server);
    let (step, all) = bench.begin_with_added();
    bench.receive(step);
    let [begin, rest] = [(); 2].map(|()| bench.rx_out.pop().unwrap());
    assert_eq!(
        (begin.parts, begin.deadline, begin.method),
        (Parts::BEGIN, 9_000, UNARY)
    );
    let Body::Received(body) = &begin.body else {
        panic!("no metadata: {begin:?}");
    };
    assert_eq!(bench.heap.bytes(&body.block)[..body.metadata_bytes as usize], all);
    assert_eq!(body.message_bytes, 0);
    assert_eq!((rest.parts, rest.deadline), (Parts::MESSAGE | Parts::END, 0));
    let Body::Received(body) = &rest.body else {
        panic!("no message: {rest:?}");
    };
    assert_eq!((body.message_bytes, body.added.is_none()), (64, true));
    bench.discard(begin);
    bench.discard(rest);
    assert!(bench.heap.is_empty());
}

#[test]
fn a_stream_that_begins_with_added_metadata_alone_stays_one_step() {
    let mut bench = Bench::new(AppRole::Server);
    let (mut step, all) = bench.begin_with_added();
    (step.parts, step.method) = (Parts::BEGIN, CHAT);
    bench.receive(step);
    let begin = bench.rx_out.pop().unwrap();
    assert!(bench.rx_out.is_empty());
    assert_eq!((begin.parts, begin.method), (Parts::BEGIN, CHAT));
    assert!(matches!(&begin.body, Body::Received(body) if body.metadata_bytes as usize == all.len()));
    bench.discard(begin);
    assert!(bench.heap.is_empty());
}
