//! What holds of a filter engine whatever its filter says and whatever comes: nothing is lost, duplicated or put out of order
//! within a call, every body is given back, and a call that is denied ends once toward whoever knows it.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use provost_datapath::{
    Body, BufferPool, Context, FlowHints, Gathered, HeapFull, InPlace, Offsets, ReceiveHeap, ReceivedBlock,
    ReceivedBody, SocketHint,
};
use provost_engine::{
    AppIdentity, CallState, Code, DatapathContext, Denial, Ended, Engine, Filter, FilterEngine,
    FilterEngineParts, MethodContext, Parts, PeerIdentity, Ports, Queue, Side, Step, StepView, Verdict,
    Watch,
};
use provost_marshal::Tables;
use provost_schema::{MessageId, Schema};

/// What the filter says of a step, in the order in which steps are judged.
#[derive(Clone, Copy, Debug)]
enum Says {
    Pass,
    Deny,
    Hold(u64),
    Fault,
}

/// What happens to the engine.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The client begins a call, with this many messages to come; 0: all in one step.
    Begin(u8),
    /// The next step of one of the calls, chosen by this number.
    Continue(u8),
    /// The client gives a call up.
    Cancel(u8),
    /// The server answers, and with the flag ends the call.
    Answer(u8, bool),
    Wait(u64),
    /// The engine is polled with so much room in its outputs.
    Poll(u8),
    /// Another engine takes its place.
    Replace,
}

fn says() -> impl Strategy<Value = Says> {
    prop_oneof![
        6 => Just(Says::Pass),
        2 => Just(Says::Deny),
        3 => (0..30_u64).prop_map(Says::Hold),
        1 => Just(Says::Fault),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..4_u8).prop_map(Event::Begin),
        6 => any::<u8>().prop_map(Event::Continue),
        1 => any::<u8>().prop_map(Event::Cancel),
        4 => (any::<u8>(), any::<bool>()).prop_map(|(call, ends)| Event::Answer(call, ends)),
        2 => (1..20_u64).prop_map(Event::Wait),
        8 => (0..6_u8).prop_map(Event::Poll),
        1 => Just(Event::Replace),
    ]
}

/// What the filters of one run share with the test.
#[derive(Default)]
struct Script {
    says: Vec<Says>,
    at: usize,
    /// Calls whose beginnings were judged, and how often each was told to be over.
    judged: HashSet<u64>,
    denied_at_beginning: HashSet<u64>,
    over: HashMap<u64, u32>,
}

struct Scripted {
    script: Arc<Mutex<Script>>,
    watch: Watch,
}

#[derive(Default)]
struct Known(u64);

impl CallState for Known {
    fn save(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_le_bytes());
    }

    fn load(saved: &[u8]) -> Option<Known> {
        Some(Known(u64::from_le_bytes(saved.try_into().ok()?)))
    }
}

impl Filter for Scripted {
    type Call = Known;

    fn watch(&self) -> Watch {
        self.watch
    }

    fn judge(&mut self, call: &mut Known, step: &mut StepView<'_>) -> Verdict {
        assert!(call.0 == 0 || call.0 == step.call(), "the state of another call");
        call.0 = step.call();
        let mut script = self.script.lock().unwrap();
        let begins = step.parts().contains(Parts::BEGIN);
        let cancels = step.parts().contains(Parts::CANCEL);
        if begins {
            script.judged.insert(step.call());
        }
        let at = script.at;
        script.at += 1;
        match script.says.get(at).copied().unwrap_or(Says::Pass) {
            Says::Pass => Verdict::Pass,
            Says::Deny => {
                if begins && !cancels {
                    script.denied_at_beginning.insert(step.call());
                }
                Verdict::Deny(Denial {
                    retry_pushback_ms: Some(5),
                    ..Denial::new(Code::PermissionDenied, "no")
                })
            }
            Says::Hold(time) => Verdict::Hold {
                until: step.now() + time,
            },
            Says::Fault => Verdict::Fault("told to".into()),
        }
    }

    fn ended(&mut self, call: Known, _end: &Ended) {
        *self.script.lock().unwrap().over.entry(call.0).or_default() += 1;
    }
}

/// A heap that counts.
#[derive(Default)]
struct Heap {
    blocks: HashSet<u32>,
    next: u32,
}

impl ReceiveHeap for Heap {
    fn allocate(&mut self, bytes: u32) -> Result<ReceivedBlock, HeapFull> {
        self.next += 1;
        self.blocks.insert(self.next);
        Ok(ReceivedBlock { at: self.next, bytes })
    }

    fn bytes_mut(&mut self, _block: &mut ReceivedBlock) -> &mut [u8] {
        &mut []
    }

    fn free(&mut self, block: ReceivedBlock) {
        assert!(self.blocks.remove(&block.at), "a block is freed twice");
    }
}

/// One side's view of a call.
#[derive(Default)]
struct Story {
    /// Numbers of the steps that were sent in this direction, and came out.
    sent: Vec<u32>,
    came: Vec<u32>,
    /// Cancellations that the engine itself made, in this direction.
    told: u32,
    /// Whether a step that ends the call came out.
    over: bool,
}

struct World {
    side: Side,
    datapath_context: DatapathContext,
    script: Arc<Mutex<Script>>,
    watch: Watch,
    engine: FilterEngine<Scripted>,
    queues: [Queue<Step>; 4],
    heap: Heap,
    buffers: BufferPool,
    sent_tokens: Vec<u64>,
    tokens: HashSet<u64>,
    now: u64,
    calls: Vec<Call>,
    stories: HashMap<(u64, Way), Story>,
    last_number: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Way {
    Request,
    Response,
}

struct Call {
    left: u8,
    client_done: bool,
    server_done: bool,
}

const UNBOUNDED: usize = 1 << 20;

impl World {
    fn new(side: Side, watch: Watch, says: Vec<Says>) -> World {
        let script = Arc::new(Mutex::new(Script {
            says,
            ..Script::default()
        }));
        let datapath_context = datapath_context(side);
        World {
            side,
            engine: FilterEngine::new(parts(&datapath_context, &script, watch)),
            datapath_context,
            script,
            watch,
            queues: std::array::from_fn(|_| Queue::with_bound(UNBOUNDED)),
            heap: Heap::default(),
            buffers: BufferPool::new(),
            sent_tokens: Vec::new(),
            tokens: HashSet::new(),
            now: 1,
            calls: Vec::new(),
            stories: HashMap::new(),
            last_number: 0,
        }
    }

    fn is_tx(&self, way: Way) -> bool {
        (self.side == Side::Client) == (way == Way::Request)
    }

    /// Sends a step of a call, with a body of the kind that goes that way.
    fn offer(&mut self, way: Way, call: u64, parts: Parts) {
        self.last_number += 1;
        let number = self.last_number;
        let tx = self.is_tx(way);
        let body = if tx {
            self.tokens.insert(u64::from(number));
            Body::Gathered(Gathered {
                buffer: self.buffers.take(),
                metadata_bytes: 0,
                message_bytes: 0,
                token: u64::from(number),
            })
        } else {
            Body::Received(ReceivedBody {
                added: None,
                block: self.heap.allocate(8).unwrap(),
                metadata_bytes: 0,
                message_bytes: 0,
                offsets: Offsets::Window,
            })
        };
        // The window's bytes are nobody's business here: they carry the step's number.
        let step = Step {
            window_bytes: number,
            body,
            ..Step::new(call, parts)
        };
        self.stories.entry((call, way)).or_default().sent.push(number);
        self.queues[if tx { 0 } else { 2 }].push(step).unwrap();
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Begin(messages) => {
                let id = self.calls.len() as u64 + 1;
                let end = if messages == 0 { Parts::END } else { Parts::NONE };
                self.offer(Way::Request, id, Parts::BEGIN | Parts::MESSAGE | end);
                self.calls.push(Call {
                    left: messages,
                    client_done: false,
                    server_done: false,
                });
            }
            Event::Continue(which) => {
                let Some(at) = self.choose(which) else { return };
                let call = &mut self.calls[at];
                if call.client_done || call.left == 0 {
                    return;
                }
                call.left -= 1;
                let end = if call.left == 0 { Parts::END } else { Parts::NONE };
                self.offer(Way::Request, at as u64 + 1, Parts::MESSAGE | end);
            }
            Event::Cancel(which) => {
                let Some(at) = self.choose(which) else { return };
                if !self.calls[at].client_done {
                    self.calls[at].client_done = true;
                    self.offer(Way::Request, at as u64 + 1, Parts::CANCEL);
                }
            }
            Event::Answer(which, ends) => {
                let Some(at) = self.choose(which) else { return };
                // The server can only answer what has reached it.
                let reached = self.stories.get(&(at as u64 + 1, Way::Request));
                let reached = reached.is_some_and(|story| !story.came.is_empty() && !story.over);
                if !reached || self.calls[at].server_done {
                    return;
                }
                self.calls[at].server_done = ends;
                let end = if ends { Parts::STATUS } else { Parts::NONE };
                self.offer(Way::Response, at as u64 + 1, Parts::MESSAGE | end);
            }
            Event::Wait(time) => self.now += time,
            Event::Poll(room) => self.poll(usize::from(room)),
            Event::Replace => self.replace(),
        }
    }

    fn choose(&self, which: u8) -> Option<usize> {
        usize::from(which).checked_rem(self.calls.len())
    }

    fn poll(&mut self, room: usize) {
        for output in [1, 3] {
            self.queues[output] = Queue::with_bound(room);
        }
        let [tx_in, tx_out, rx_in, rx_out] = &mut self.queues;
        let mut context = Context {
            socket: SocketHint::Skip,
            flow: FlowHints::default(),
            now: self.now,
            buffers: &mut self.buffers,
            receive: &mut self.heap,
            sent: &mut self.sent_tokens,
        };
        self.engine.do_work(
            Ports {
                tx_in,
                tx_out,
                rx_in,
                rx_out,
            },
            &mut context,
        );
        self.collect();
        if self.engine.fault().is_some() {
            self.replace();
        }
    }

    fn replace(&mut self) {
        let saved = self.engine.save(&mut InPlace::new(|_, _| {}));
        let [tx_in, tx_out, rx_in, rx_out] = &mut self.queues;
        self.engine.release(&mut Ports {
            tx_in,
            tx_out,
            rx_in,
            rx_out,
        });
        self.collect();
        let parts = parts(&self.datapath_context, &self.script, self.watch);
        self.engine = FilterEngine::start(parts, Some(&saved)).unwrap();
    }

    /// Takes what has come out.
    fn collect(&mut self) {
        for output in [1, 3] {
            while let Some(step) = self.queues[output].pop() {
                let way = if (output == 1) == (self.side == Side::Client) {
                    Way::Request
                } else {
                    Way::Response
                };
                self.came_out(way, step);
            }
        }
    }

    fn came_out(&mut self, way: Way, step: Step) {
        let story = self.stories.entry((step.call, way)).or_default();
        assert!(!story.over, "{step:?} comes after the end of its call");
        story.over = step.parts.intersects(Parts::STATUS | Parts::CANCEL);
        let by_engine = step.window_bytes == 0;
        if by_engine {
            story.told += 1;
            assert!(step.parts == Parts::CANCEL);
            let code = if way == Way::Response {
                Code::PermissionDenied
            } else {
                Code::Cancelled
            };
            assert_eq!(step.status, code);
        } else {
            story.came.push(step.window_bytes)
        }
        if by_engine && way == Way::Response {
            self.calls[step.call as usize - 1].client_done = true;
        }
        if by_engine && way == Way::Request {
            self.calls[step.call as usize - 1].server_done = true;
        }
        let mut context = Context {
            socket: SocketHint::Skip,
            flow: FlowHints::default(),
            now: self.now,
            buffers: &mut self.buffers,
            receive: &mut self.heap,
            sent: &mut self.sent_tokens,
        };
        step.body.discard(&mut context);
    }

    fn finish(&mut self) {
        for _ in 0..10_000 {
            self.now += 50;
            self.poll(8);
            // What it holds for want of room, cancellations of its own among it, it moves when it is polled after room was
            // made, whatever it says of waking.
            if self.queues.iter().all(Queue::is_empty) && self.engine.rests() {
                return;
            }
        }
        panic!("the engine never comes to rest");
    }

    fn check(&self) -> Result<(), TestCaseError> {
        prop_assert!(
            self.heap.blocks.is_empty(),
            "blocks are lost: {:?}",
            self.heap.blocks
        );
        let back: HashSet<u64> = self.sent_tokens.iter().copied().collect();
        prop_assert_eq!(back.len(), self.sent_tokens.len(), "a token is given back twice");
        prop_assert_eq!(&back, &self.tokens);
        let script = self.script.lock().unwrap();
        for (at, _) in self.calls.iter().enumerate() {
            self.check_call(at as u64 + 1, &script)?;
        }
        Ok(())
    }

    fn check_call(&self, id: u64, script: &Script) -> Result<(), TestCaseError> {
        let empty = Story::default();
        let story = |way| self.stories.get(&(id, way)).unwrap_or(&empty);
        let (request, response) = (story(Way::Request), story(Way::Response));
        // What came out is a beginning of what went in, in order; or, if someone gave the call up, of what was before.
        for story in [request, response] {
            let ended_early = request.told + response.told > 0 || self.calls[id as usize - 1].client_done;
            let is_prefix = story.sent.starts_with(&story.came);
            let last = story.came.last();
            let cancelled_past_held = ended_early && last == story.sent.last();
            prop_assert!(
                is_prefix || cancelled_past_held,
                "{:?} of {:?}",
                story.came,
                story.sent
            );
            prop_assert!(
                ended_early || self.calls[id as usize - 1].server_done || story.came == story.sent,
                "lost: {:?} of {:?}",
                story.came,
                story.sent
            );
        }
        prop_assert!(request.told <= 1 && response.told <= 1);
        // (A request that came whole and was denied leaves nothing behind, so a cancellation after it goes on, to end where
        // nobody knows of the call. Nothing else of a call goes on without its beginning.)
        let whole = script.denied_at_beginning.contains(&id) && request.sent.len() == 2;
        let knows = request.came.is_empty() && request.told == 0
            || request.came.first() == request.sent.first()
            || whole && self.calls[id as usize - 1].client_done && request.came == request.sent[1..];
        prop_assert!(knows, "the server is told of a call that it never heard of");
        // A denied beginning: the client is told, the server never hears of the call.
        if script.denied_at_beginning.contains(&id) && request.came.is_empty() {
            prop_assert_eq!((response.told, request.told), (1, 0));
            prop_assert!(!script.over.contains_key(&id));
        }
        let over = script.over.get(&id).copied().unwrap_or_default();
        prop_assert!(over <= 1, "call {id} was over {over} times");
        if self.watch.calls && script.judged.contains(&id) && (request.over || response.over) {
            let told = over == 1 || script.denied_at_beginning.contains(&id);
            prop_assert!(told, "nobody said that call {id} is over");
        }
        Ok(())
    }
}

fn parts(
    datapath_context: &DatapathContext,
    script: &Arc<Mutex<Script>>,
    watch: Watch,
) -> FilterEngineParts<Scripted> {
    FilterEngineParts {
        kind: "scripted",
        version: 1,
        datapath_context: datapath_context.clone(),
        filter: Scripted {
            script: Arc::clone(script),
            watch,
        },
    }
}

fn datapath_context(side: Side) -> DatapathContext {
    let schema = Schema::default();
    let method = MethodContext {
        name: "Get".into(),
        path: "/t.S/Get".into(),
        input: MessageId(0),
        output: MessageId(0),
        client_streaming: true,
        server_streaming: true,
    };
    DatapathContext {
        node: "node".into(),
        app: Arc::new(AppIdentity {
            id: 1,
            name: "app".into(),
            pid: 1,
            uid: 1,
            gid: 1,
            user: "".into(),
            workload: "".into(),
        }),
        side,
        service: "t.S".into(),
        methods: [method].into(),
        scope: [true].into(),
        tables: Arc::new(Tables::compile(&schema).unwrap()),
        schema: Arc::new(schema),
        peer: PeerIdentity {
            identity: "".into(),
            address: "".into(),
            transport: "local",
            app: None,
            attested: None,
        },
        connection: 1,
        runtime: 0,
        verdicts: Arc::default(),
    }
}

fn watch() -> impl Strategy<Value = Watch> {
    let requests = Watch {
        requests: Parts::ALL,
        responses: Parts::NONE,
        calls: false,
    };
    prop_oneof![Just(Watch::ALL), Just(Watch::BEGINNINGS), Just(requests)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_and_denied_calls_end_once(
        client in any::<bool>(),
        watch in watch(),
        says in prop::collection::vec(says(), 0..60),
        events in prop::collection::vec(event(), 0..120),
    ) {
        let side = if client { Side::Client } else { Side::Server };
        let mut world = World::new(side, watch, says);
        for event in events {
            world.happen(event);
        }
        world.finish();
        world.check()?;
    }
}
