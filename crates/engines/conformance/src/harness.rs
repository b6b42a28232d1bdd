//! Two nodes around a pair of engines: their queues, heaps, and what they have received.

use std::sync::Arc;

use provost_datapath::{
    Body, BufferPool, ConnectionSignals, Context, Engine, FlowHints, HeapFull, Interest, Nanos, Ports,
    PrivateBytes, Progress, Queue, ReceiveHeap, ReceivedBlock, SavedState, Saver, SocketHint, Step,
    bytes_for_parts, message_offset,
};
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::metadata;

use crate::{Content, HotRestarts, Successors};

/// Steps that a queue of the harness holds.
const QUEUE_STEPS: usize = 1024;
/// Rounds in which nothing moves before the harness says that a test hangs. Real sockets take their time.
const IDLE_ROUNDS_MAX: u64 = 2_000_000;
/// After how many such rounds the harness's clock goes on to the next timer.
const TIMER_ROUNDS: u64 = 10_000;
/// How far the harness's clock goes each round.
const ROUND_NS: u64 = 1_000;

/// One engine of a pair.
pub struct End {
    pub engine: Box<dyn Engine>,
    /// What it was made with.
    pub link: Arc<ConnectionSignals>,
}

/// Two connected engines, which have agreed on [`crate::methods`], default limits and the native encoding.
pub struct Pair {
    /// The end that calls.
    pub client: End,
    /// The end that serves.
    pub server: End,
    /// Lets whatever is between them move, at this time; says when something arrives next, if that is known.
    pub between: Box<dyn FnMut(Nanos) -> Option<Nanos>>,
    /// Makes successors of the engines.
    pub successors: Box<dyn Successors>,
    /// When it does so, if at all.
    pub hot_restarts: Option<HotRestarts>,
    /// How much an engine may move in a poll, if it is to leave others their turn.
    pub turn_bytes: Option<u32>,
}

/// A receive heap in ordinary memory, which counts its blocks.
#[derive(Debug)]
pub struct TestHeap {
    blocks: Vec<Option<Vec<u8>>>,
    free: Vec<usize>,
    used_bytes: u64,
    private_bytes: Arc<PrivateBytes>,
    /// How many bytes it has.
    pub bytes_max: u64,
}

impl Default for TestHeap {
    fn default() -> TestHeap {
        TestHeap {
            blocks: Vec::new(),
            free: Vec::new(),
            used_bytes: 0,
            private_bytes: PrivateBytes::of_messages_in_part(),
            bytes_max: u64::MAX,
        }
    }
}

impl TestHeap {
    /// Blocks that are taken.
    #[must_use]
    pub fn live_blocks(&self) -> usize {
        self.blocks.len() - self.free.len()
    }

    /// What messages in part have in private memory, as the heap was told.
    #[must_use]
    pub fn private_bytes(&self) -> u64 {
        self.private_bytes.held()
    }

    fn taken(&self, block: &ReceivedBlock) -> &[u8] {
        self.blocks[block.at as usize - 1]
            .as_deref()
            .expect("the block is taken")
    }
}

impl ReceiveHeap for TestHeap {
    fn allocate(&mut self, bytes: u32) -> Result<ReceivedBlock, HeapFull> {
        if self.used_bytes + u64::from(bytes) > self.bytes_max {
            return Err(HeapFull);
        }
        self.used_bytes += u64::from(bytes);
        let place = self.free.pop().unwrap_or_else(|| {
            self.blocks.push(None);
            self.blocks.len() - 1
        });
        // Not zero: what a transport does not write is noticed.
        self.blocks[place] = Some(vec![0xa5; bytes as usize]);
        Ok(ReceivedBlock {
            at: place as u32 + 1,
            bytes,
        })
    }

    fn bytes_mut(&mut self, block: &mut ReceivedBlock) -> &mut [u8] {
        self.blocks[block.at as usize - 1]
            .as_deref_mut()
            .expect("the block is taken")
    }

    fn room_in_part(&self) -> u64 {
        bytes_for_parts(self.bytes_max).saturating_sub(self.used_bytes + self.private_bytes.held())
    }

    fn private_share(&self) -> Option<&Arc<PrivateBytes>> {
        Some(&self.private_bytes)
    }

    fn free(&mut self, block: ReceivedBlock) {
        let place = block.at as usize - 1;
        let bytes = self.blocks[place].take().expect("a block is freed once");
        self.used_bytes -= bytes.len() as u64;
        self.free.push(place);
    }
}

/// A step as it came out of an engine, its body copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// See [`Step`].
    pub call: u64,
    /// See [`Step`].
    pub parts: Parts,
    /// See [`Step`].
    pub method: u16,
    /// See [`Step`].
    pub status: Code,
    /// See [`Step`].
    pub window_bytes: u32,
    /// See [`Step`].
    pub deadline: Nanos,
    pub metadata: Vec<u8>,
    pub message: Vec<u8>,
}

impl Event {
    /// The status message among the metadata; empty if there is none.
    #[must_use]
    pub fn status_message(&self) -> String {
        metadata::entries(&self.metadata)
            .find(|(key, _)| *key == metadata::STATUS_MESSAGE)
            .map(|(_, value)| String::from_utf8_lossy(value).into_owned())
            .unwrap_or_default()
    }
}

/// One end of a pair with all that a runtime would lend it.
pub struct Node {
    pub(crate) engine: Box<dyn Engine>,
    /// Whether successors of the engine can be made.
    pub(crate) has_successors: bool,
    pub link: Arc<ConnectionSignals>,
    tx: Queue<Step>,
    rx: Queue<Step>,
    unused: (Queue<Step>, Queue<Step>),
    pub buffers: BufferPool,
    pub heap: TestHeap,
    /// Tokens that came back.
    pub sent: Vec<u64>,
    /// Blocks of received messages that the "app" still holds, if it is told to hold any.
    pub held: Vec<ReceivedBlock>,
    /// Whether the "app" keeps what it receives.
    pub keeps_blocks: Keeps,
    /// Whether the "app" takes what is in its queue.
    pub reads: Reads,
    /// Everything received that no test has looked at yet.
    pub events: Vec<Event>,
    /// What the last poll said.
    pub progress: Progress,
    /// Calls under way, as the first engine of a datapath would count them.
    pub calls: usize,
    tokens: u64,
    turn_bytes: Option<u32>,
}

/// Whether an "app" keeps the blocks that it receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// It gives them back at once.
    Nothing,
    /// It keeps them all.
    All,
}

/// Whether an "app" takes what it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    Always,
    Never,
}

impl Node {
    /// A node around an engine.
    #[must_use]
    pub fn new(end: End) -> Node {
        Node {
            engine: end.engine,
            has_successors: true,
            link: end.link,
            tx: Queue::with_bound(QUEUE_STEPS),
            rx: Queue::with_bound(QUEUE_STEPS),
            unused: (Queue::with_bound(0), Queue::with_bound(0)),
            buffers: BufferPool::new(),
            heap: TestHeap::default(),
            sent: Vec::new(),
            held: Vec::new(),
            keeps_blocks: Keeps::Nothing,
            reads: Reads::Always,
            events: Vec::new(),
            progress: Progress::Idle,
            calls: 0,
            tokens: 0,
            turn_bytes: None,
        }
    }

    /// Whether the queue towards the engine has room.
    #[must_use]
    pub fn has_room(&self) -> bool {
        !self.tx.is_full()
    }

    /// Queues a step; its body is the content's, in private and foreign memory. Returns the token that it bears.
    pub fn send(&mut self, step: Step, content: &Content) -> u64 {
        self.tokens += 1;
        let body = content.gathered(self.tokens, &mut self.buffers);
        self.send_step(Step { body, ..step });
        self.tokens
    }

    /// Queues a step without a body.
    pub fn send_bare(&mut self, step: Step) {
        self.send_step(step);
    }

    fn send_step(&mut self, step: Step) {
        assert!(
            self.tx.push(step).is_ok(),
            "the harness's queue is full; the test must wait for room"
        );
    }

    /// How many tokens were given out.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Polls the engine once and takes what it has received.
    pub fn poll(&mut self, now: Nanos) -> Progress {
        let ports = Ports {
            tx_in: &mut self.tx,
            tx_out: &mut self.unused.0,
            rx_in: &mut self.unused.1,
            rx_out: &mut self.rx,
        };
        let mut context = Context {
            socket: SocketHint::Try,
            flow: FlowHints {
                turn_bytes: self.turn_bytes.unwrap_or(u32::MAX),
                calls: self.calls,
                ..FlowHints::default()
            },
            now,
            buffers: &mut self.buffers,
            receive: &mut self.heap,
            sent: &mut self.sent,
        };
        self.progress = self.engine.do_work(ports, &mut context);
        if self.reads == Reads::Always {
            while let Some(step) = self.rx.pop() {
                let event = self.take_in(step);
                self.events.push(event);
            }
        }
        self.progress
    }

    fn take_in(&mut self, step: Step) -> Event {
        let (metadata, message) = self.read_body(step.body);
        Event {
            call: step.call,
            parts: step.parts,
            method: step.method,
            status: step.status,
            window_bytes: step.window_bytes,
            deadline: step.deadline,
            metadata,
            message,
        }
    }

    fn read_body(&mut self, body: Body) -> (Vec<u8>, Vec<u8>) {
        match body {
            Body::Empty => (Vec::new(), Vec::new()),
            Body::Received(body) => {
                let split = split(
                    self.heap.taken(&body.block),
                    body.metadata_bytes,
                    body.message_bytes,
                );
                match self.keeps_blocks {
                    Keeps::Nothing => self.heap.free(body.block),
                    Keeps::All => self.held.push(body.block),
                }
                split
            }
            Body::Encoded(body) => {
                let split = split(&body.buffer.bytes, body.metadata_bytes, body.message_bytes);
                self.buffers.give(body.buffer);
                split
            }
            other => panic!("a transport delivered {other:?}"),
        }
    }

    pub fn save(&self, saver: &mut dyn Saver) -> SavedState {
        self.engine.save(saver)
    }

    /// Puts another engine in the place of this one, which is dropped.
    pub(crate) fn replace_engine(&mut self, engine: Box<dyn Engine>) {
        self.engine = engine;
        self.has_successors = false;
    }

    /// The engine, without the rest of its node.
    #[must_use]
    pub fn into_engine(self) -> Box<dyn Engine> {
        self.engine
    }

    /// Gives back all blocks that the "app" holds.
    pub fn release(&mut self) {
        for block in self.held.drain(..) {
            self.heap.free(block);
        }
    }

    /// When the engine wants to be polled.
    #[must_use]
    pub fn wake_at(&self) -> Option<Nanos> {
        self.engine.wake_at()
    }

    /// What the engine waits for.
    #[must_use]
    pub fn interest(&self) -> Option<Interest> {
        self.engine.as_transport()?.interest()
    }

    /// Events of one call, taken out.
    pub fn take(&mut self, call: u64) -> Vec<Event> {
        let (taken, left) = std::mem::take(&mut self.events)
            .into_iter()
            .partition(|event| event.call == call);
        self.events = left;
        taken
    }
}

fn split(bytes: &[u8], metadata_bytes: u32, message_bytes: u32) -> (Vec<u8>, Vec<u8>) {
    let offset = message_offset(metadata_bytes);
    let message = match message_bytes {
        0 => Vec::new(),
        bytes_of => bytes[offset..offset + bytes_of as usize].to_vec(),
    };
    (bytes[..metadata_bytes as usize].to_vec(), message)
}

/// A pair at work.
pub struct Bench {
    pub client: Node,
    pub server: Node,
    between: Box<dyn FnMut(Nanos) -> Option<Nanos>>,
    successors: Box<dyn Successors>,
    hot_restarts: Option<HotRestarts>,
    pub now: Nanos,
    pub rounds: u64,
    idle_rounds: u64,
}

impl Bench {
    /// Two nodes around a pair.
    #[must_use]
    pub fn new(pair: Pair) -> Bench {
        let node = |end| Node {
            turn_bytes: pair.turn_bytes,
            ..Node::new(end)
        };
        Bench {
            client: node(pair.client),
            server: node(pair.server),
            between: pair.between,
            successors: pair.successors,
            hot_restarts: pair.hot_restarts,
            now: 1_000_000_000,
            rounds: 0,
            idle_rounds: 0,
        }
    }

    /// Polls both ends once. When nothing moves, time passes until something may.
    pub fn round(&mut self) {
        self.rounds += 1;
        self.now += ROUND_NS;
        if let Some(hot_restarts) = &mut self.hot_restarts {
            hot_restarts.round(&mut *self.successors, &mut self.client, &mut self.server);
        }
        let client = self.client.poll(self.now);
        let moves_at = (self.between)(self.now);
        let server = self.server.poll(self.now);
        let idle = client != Progress::Busy && server != Progress::Busy;
        if !idle {
            self.idle_rounds = 0;
            return;
        }
        self.idle_rounds += 1;
        let wake_at = [self.client.wake_at(), self.server.wake_at()]
            .into_iter()
            .flatten()
            .min();
        match (moves_at, wake_at) {
            // A simulated wire says when it moves; a real one needs real time, and only then may a timer run.
            (Some(at), _) => self.now = self.now.max(at),
            (None, Some(at)) if self.idle_rounds.is_multiple_of(TIMER_ROUNDS) => self.now = self.now.max(at),
            _ => std::thread::yield_now(),
        }
    }

    /// Polls until a condition holds; panics if nothing moves for very long.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Bench) -> bool) {
        self.idle_rounds = 0;
        while !done(self) {
            assert!(
                self.idle_rounds < IDLE_ROUNDS_MAX,
                "hangs: {what}; {}",
                self.describe()
            );
            self.round();
        }
    }

    /// Polls for a number of rounds.
    pub fn rounds(&mut self, rounds: u64) {
        for _ in 0..rounds {
            self.round();
        }
    }

    fn describe(&self) -> String {
        format!(
            "client {:?} with {} events, server {:?} with {} events, after {} rounds; ended: {:?}, {:?}",
            self.client.progress,
            self.client.events.len(),
            self.server.progress,
            self.server.events.len(),
            self.rounds,
            self.client.link.ended(),
            self.server.link.ended(),
        )
    }
}
