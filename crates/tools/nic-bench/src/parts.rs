//! What cores do: a client's makes calls, a server's answers them with what they said.

use std::collections::{HashMap, VecDeque};

use provost_figures::Latencies;
use provost_nic::EntryKind;
use provost_nic_model::SimulatedNic;
use provost_random::{SeededRandom, fraction};

use crate::core::HostCore;
use crate::handlers::{HandlerModel, HandlerPool};
use crate::interface::CYCLE_NS;
use crate::store::{SlabStore, StoreKeys};

/// Calls of one session at a time.
pub(crate) const SESSION_CALLS: u8 = provost_nic::SLOTS_MAX;
/// Calls that may wait for their turn; with more, the load is one that cannot be carried.
const ARRIVALS_MAX: usize = 4096;

/// When a client begins calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum CallLoad {
    /// A batch begins when fewer calls than these would be on their way with it, or as many.
    Closed {
        /// Calls of one core.
        calls: usize,
    },
    /// At random times, so far apart in the mean; what waits goes at once, a batch at most.
    Open {
        /// Nanoseconds between two calls.
        mean_ns: f64,
    },
}

/// What calls say, and what is said to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallContent {
    /// So many bytes, which come back.
    Echo(usize),
    /// Operations of a store of these keys.
    Store(StoreKeys),
}

impl CallContent {
    /// Bytes of the longest request or response.
    pub(crate) fn bytes_max(self) -> usize {
        match self {
            CallContent::Echo(bytes) => bytes,
            CallContent::Store(keys) => keys.payload_bytes_max(),
        }
    }

    fn request(self, tag: u64) -> Vec<u8> {
        match self {
            CallContent::Echo(bytes) => payload(tag, bytes),
            CallContent::Store(keys) => keys.request(tag),
        }
    }

    fn response(self, tag: u64) -> Vec<u8> {
        match self {
            CallContent::Echo(bytes) => payload(tag, bytes),
            CallContent::Store(keys) => keys.response(tag),
        }
    }
}

/// A session, and its calls that could begin.
struct ClientSession {
    connection: u16,
    free: u8,
}

/// A core that makes calls.
pub(crate) struct ClientCore {
    core: HostCore,
    sessions: Vec<ClientSession>,
    load: CallLoad,
    content: CallContent,
    next_session: usize,
    next_tag: u64,
    /// By tag: the session, and when the call began.
    calls: HashMap<u64, (usize, f64)>,
    arrivals: VecDeque<f64>,
    next_arrival_ns: f64,
    /// Calls that have ended since others began.
    ended_in_turn: usize,
    random: SeededRandom,
    /// Of the calls that have ended.
    pub(crate) latencies: Latencies,
    /// Calls that were not carried.
    pub(crate) failed: u64,
}

impl ClientCore {
    pub(crate) fn new(
        core: HostCore,
        connections: impl Iterator<Item = u16>,
        load: CallLoad,
        content: CallContent,
        seed: u64,
    ) -> ClientCore {
        let session = |connection| ClientSession {
            connection,
            free: SESSION_CALLS,
        };
        ClientCore {
            core,
            sessions: connections.map(session).collect(),
            load,
            content,
            next_session: 0,
            next_tag: 0,
            calls: HashMap::new(),
            arrivals: VecDeque::new(),
            next_arrival_ns: 0.0,
            ended_in_turn: 0,
            random: SeededRandom::new(seed),
            latencies: Latencies::default(),
            failed: 0,
        }
    }

    /// Begins at this time.
    pub(crate) fn start(&mut self, now_ns: f64) {
        self.core.free_ns = now_ns;
        self.next_arrival_ns = now_ns;
    }

    /// Does what there is to do until this time.
    pub(crate) fn act(&mut self, nic: &mut SimulatedNic, now_ns: f64) {
        self.take_arrivals(now_ns);
        while self.core.free_ns <= now_ns {
            let ready = self.ready();
            if self.may_end_first() && self.end_one(nic) {
                self.ended_in_turn += 1;
            } else if ready > 0 {
                self.ended_in_turn = 0;
                self.begin(nic, ready);
            } else if !self.end_one(nic) {
                self.core.free_ns = now_ns + CYCLE_NS;
            }
        }
    }

    /// Calls that begin at random end by batches before others begin: else, with all slots taken, each end would begin a batch of one.
    fn may_end_first(&self) -> bool {
        matches!(self.load, CallLoad::Open { .. }) && self.ended_in_turn < self.core.batch()
    }

    fn take_arrivals(&mut self, now_ns: f64) {
        let CallLoad::Open { mean_ns } = self.load else {
            return;
        };
        while self.next_arrival_ns <= now_ns {
            if self.arrivals.len() < ARRIVALS_MAX {
                self.arrivals.push_back(self.next_arrival_ns);
            } else {
                self.failed += 1;
            }
            let drawn = fraction(self.random.number());
            self.next_arrival_ns -= mean_ns * (1.0 - drawn).ln();
        }
    }

    /// Calls that begin now.
    fn ready(&self) -> usize {
        let slots = self.sessions.len() * usize::from(SESSION_CALLS) - self.calls.len();
        let batch = self.core.batch();
        match self.load {
            CallLoad::Closed { calls } if self.calls.len() + batch <= calls && slots >= batch => batch,
            CallLoad::Closed { .. } => 0,
            CallLoad::Open { .. } => self.arrivals.len().min(batch).min(slots),
        }
    }

    fn begin(&mut self, nic: &mut SimulatedNic, calls: usize) {
        for _ in 0..calls {
            let began_ns = self.arrivals.pop_front().unwrap_or(self.core.free_ns);
            while self.sessions[self.next_session].free == 0 {
                self.next_session = (self.next_session + 1) % self.sessions.len();
            }
            let at = self.next_session;
            self.next_session = (at + 1) % self.sessions.len();
            self.sessions[at].free -= 1;
            let tag = self.next_tag;
            self.next_tag += 1;
            self.calls.insert(tag, (at, began_ns));
            let connection = self.sessions[at].connection;
            let payload = self.content.request(tag);
            self.core
                .send(nic, (EntryKind::Request, connection, tag), &payload);
        }
        self.core.hand_over(nic);
    }

    /// Takes a response, if one has come.
    fn end_one(&mut self, nic: &mut SimulatedNic) -> bool {
        let Some(received) = self.core.receive(nic) else {
            return false;
        };
        let call = self.calls.remove(&received.head.tag);
        let (session, began_ns) = call.expect("a call ends once");
        self.sessions[session].free += 1;
        if received.head.kind == EntryKind::Response {
            let expected = self.content.response(received.head.tag);
            assert_eq!(
                received.payload, expected,
                "the response to call {}",
                received.head.tag
            );
            let latency_ns = (self.core.free_ns - began_ns).max(0.0) as u64;
            self.latencies.record_ns(latency_ns, 1);
        } else {
            self.failed += 1;
        }
        true
    }
}

/// What a call says: bytes that follow from its number.
pub(crate) fn payload(tag: u64, bytes: usize) -> Vec<u8> {
    let tag = tag.to_le_bytes();
    (0..bytes)
        .map(|at| tag[at % tag.len()] ^ (at / tag.len()) as u8)
        .collect()
}

/// A request that was taken: its response, and when that can be sent.
struct RunningCall {
    done_ns: f64,
    connection: u16,
    tag: u64,
    payload: Vec<u8>,
}

/// A core that answers calls.
pub(crate) struct ServerCore {
    core: HostCore,
    handlers: HandlerPool,
    /// What answers requests; without it, they come back as they are.
    store: Option<SlabStore>,
    /// Without workers, a batch at most.
    running: Vec<RunningCall>,
}

impl ServerCore {
    pub(crate) fn new(core: HostCore, handlers: HandlerModel, content: CallContent) -> ServerCore {
        let store = match content {
            CallContent::Echo(_) => None,
            CallContent::Store(keys) => Some(SlabStore::filled(keys)),
        };
        ServerCore {
            core,
            store,
            handlers: HandlerPool::new(handlers),
            running: Vec::new(),
        }
    }

    /// Begins at this time.
    pub(crate) fn start(&mut self, now_ns: f64) {
        self.core.free_ns = now_ns;
    }

    /// Does what there is to do until this time.
    pub(crate) fn act(&mut self, nic: &mut SimulatedNic, now_ns: f64) {
        while self.core.free_ns <= now_ns {
            if !self.take_one(nic) && !self.answer(nic) {
                self.core.free_ns = now_ns + CYCLE_NS;
            }
        }
    }

    fn done(&self) -> usize {
        let now_ns = self.core.free_ns;
        self.running.iter().filter(|call| call.done_ns <= now_ns).count()
    }

    /// Takes a request, unless a batch of responses is to go first.
    fn take_one(&mut self, nic: &mut SimulatedNic) -> bool {
        let before = if self.handlers.has_workers() {
            self.done()
        } else {
            self.running.len()
        };
        if before >= self.core.batch() {
            return false;
        }
        let Some(received) = self.core.receive(nic) else {
            return false;
        };
        if received.head.kind == EntryKind::Request {
            let head = received.head;
            let handled = self.handlers.handle(head.tag, self.core.free_ns);
            self.core.free_ns = handled.polling_free_ns;
            self.running.push(RunningCall {
                done_ns: handled.done_ns,
                connection: head.connection,
                tag: head.tag,
                payload: match &mut self.store {
                    Some(store) => store.serve(&received.payload),
                    None => received.payload,
                },
            });
        }
        true
    }

    /// Answers what is done, a batch at most; says whether there was anything.
    fn answer(&mut self, nic: &mut SimulatedNic) -> bool {
        let (now_ns, batch) = (self.core.free_ns, self.core.batch());
        let mut answered = 0;
        let mut left = Vec::with_capacity(self.running.len());
        for call in std::mem::take(&mut self.running) {
            if answered < batch && call.done_ns <= now_ns {
                let entry = (EntryKind::Response, call.connection, call.tag);
                self.core.send(nic, entry, &call.payload);
                answered += 1;
            } else {
                left.push(call);
            }
        }
        self.running = left;
        if answered > 0 {
            self.core.hand_over(nic);
        }
        answered > 0
    }
}
