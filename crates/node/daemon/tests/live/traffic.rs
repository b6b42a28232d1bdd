//! Traffic between two apps, each on a thread of its own, that notices every call that fails, and every message that is
//! lost, doubled or out of order.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use provost_wire::Code;
use provost_wire::descriptor::{Batch, Completion, Parts, Submission, completion_kind, submission_kind};
use provost_wire::limits::SEND_WINDOW;

use crate::support::*;

/// Bytes of the send heap for each message under way.
const PLACE_BYTES: u64 = 64;
/// Messages of one app under way at once, at most.
const PLACES: u64 = 4096;
/// Unary calls and streams in flight.
const UNARY_MAX: usize = 24;
const STREAMS_MAX: usize = 4;
/// Messages of one stream that were sent and have not come back.
const UNANSWERED_MAX: u64 = 6;
/// Messages of a stream. (Within its window, so that nobody has to reopen it.)
const STREAM_MESSAGES: u64 = 3000;
/// Numbers of unary calls that the server remembers, at most: it forgets all then.
const UNARY_KEPT_MAX: usize = 1 << 16;
/// The first number of a unary call.
const UNARY_NUMBERS: u64 = 1 << 32;

/// What traffic has seen.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) unary: AtomicU64,
    pub(crate) messages: AtomicU64,
    pub(crate) streams: AtomicU64,
    /// The longest time between two completions, in microseconds.
    pub(crate) gap_us_max: AtomicU64,
    stop: AtomicBool,
}

/// A server and clients that keep each other busy.
pub(crate) struct Traffic {
    /// Of the first client.
    pub(crate) counts: Arc<Counts>,
    pub(crate) of_clients: Vec<Arc<Counts>>,
    clients: Vec<JoinHandle<TestApp>>,
    server: JoinHandle<()>,
    server_stop: Arc<AtomicBool>,
}

impl Traffic {
    /// Starts it. The apps are attached, the server's has bound.
    pub(crate) fn start(server: TestApp, client: TestApp, connections: Vec<u32>) -> Traffic {
        Traffic::of_clients(server, vec![(client, connections)])
    }

    /// Starts it between a server and several clients.
    pub(crate) fn of_clients(server: TestApp, clients: Vec<(TestApp, Vec<u32>)>) -> Traffic {
        let server_stop = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&server_stop);
        let serving = std::thread::spawn(move || Echo::new(server).run(&stop));
        let call = |(client, connections)| {
            let counts = Arc::new(Counts::default());
            let counted = Arc::clone(&counts);
            let calling = std::thread::spawn(move || Caller::new(client, connections, counted).run());
            (counts, calling)
        };
        let (of_clients, clients): (Vec<_>, Vec<_>) = clients.into_iter().map(call).unzip();
        Traffic {
            counts: Arc::clone(&of_clients[0]),
            of_clients,
            clients,
            server: serving,
            server_stop,
        }
    }

    /// Waits until so many more unary calls of the first client have ended.
    pub(crate) fn let_calls_pass(&self, calls: u64) {
        let from = self.counts.unary.load(Ordering::Relaxed);
        let until = Instant::now() + WAIT_MAX;
        while self.counts.unary.load(Ordering::Relaxed) < from + calls {
            assert!(Instant::now() < until, "calls do not go on");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Lets every call end, and fails if one did not as it should.
    pub(crate) fn finish(self) -> Arc<Counts> {
        self.of_clients
            .iter()
            .for_each(|counts| counts.stop.store(true, Ordering::Relaxed));
        let joined = self.clients.into_iter().map(JoinHandle::join);
        // They stay attached until all have ended: nobody sees a connection close.
        let _apps: Vec<TestApp> = joined.map(|client| client.expect("no call failed")).collect();
        self.server_stop.store(true, Ordering::Relaxed);
        self.server
            .join()
            .expect("the server saw each call once and in order");
        self.counts
    }
}

/// An app with places for messages.
struct Sender {
    app: TestApp,
    free: Vec<u64>,
}

impl Sender {
    fn new(app: TestApp) -> Sender {
        let free = (0..PLACES).collect();
        Sender { app, free }
    }

    fn send(&mut self, step: Submission, number: u64) {
        let place = self
            .free
            .pop()
            .expect("a free place: fewer messages are under way");
        let at = place * PLACE_BYTES;
        let mut root = [0; NOTE_BYTES as usize];
        root[..8].copy_from_slice(&number.to_le_bytes());
        self.app.send_heap.write_at(at, &root).expect("room");
        self.app.submit(Submission {
            kind: submission_kind::STEP,
            root: SEND_WINDOW + (at / 8) as u32,
            token: place + 1,
            ..step
        });
    }

    /// The next step, if one is there. What was sent makes place for more.
    fn poll(&mut self) -> Option<Completion> {
        loop {
            let completion = self.app.poll()?;
            match completion.kind {
                completion_kind::STEP => return Some(completion),
                completion_kind::SENT => {
                    let batch: Batch = of_slot(&to_slot(&completion));
                    let tokens = &batch.items[..usize::from(batch.count)];
                    self.free.extend(tokens.iter().map(|token| token - 1));
                }
                // The calls of a connection that ends say so themselves.
                completion_kind::ACCEPTED | completion_kind::GOING_AWAY | completion_kind::CLOSED => {}
                other => panic!("a completion of kind {other} during traffic"),
            }
        }
    }

    fn number(&mut self, completion: &Completion) -> u64 {
        let root = self.app.read(completion.root, 8);
        u64::from_le_bytes(root.try_into().expect("8 bytes"))
    }
}

struct Echo {
    sender: Sender,
    /// The next number of each stream, by connection and call.
    streams: HashMap<(u32, u64), u64>,
    /// The numbers of unary calls that came, by connection: the last ones, as numbers only grow.
    unary: HashSet<(u32, u64)>,
}

impl Echo {
    fn new(app: TestApp) -> Echo {
        Echo {
            sender: Sender::new(app),
            streams: HashMap::new(),
            unary: HashSet::new(),
        }
    }

    fn run(mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            match self.sender.poll() {
                Some(step) => self.serve(&step),
                None => std::thread::sleep(Duration::from_micros(20)),
            }
        }
        assert!(
            self.streams.is_empty(),
            "streams are open that the client has ended"
        );
    }

    fn serve(&mut self, step: &Completion) {
        assert!(
            !step.parts.contains(Parts::CANCEL),
            "a call was cancelled: {step:?}"
        );
        let place = (step.connection, step.call);
        let answer = Submission {
            connection: step.connection,
            call: step.call,
            ..Submission::default()
        };
        if step.parts.contains(Parts::BEGIN) && step.method == CHAT {
            assert_eq!(self.streams.insert(place, 0), None);
        }
        if step.parts.contains(Parts::MESSAGE) {
            let number = self.sender.number(step);
            self.sender.app.reclaim(step.block);
            if number >= UNARY_NUMBERS {
                assert!(
                    self.unary.insert((step.connection, number)),
                    "call {number} came twice"
                );
                if self.unary.len() > UNARY_KEPT_MAX {
                    self.unary.clear();
                }
                let parts = Parts::MESSAGE | Parts::STATUS;
                self.sender.send(Submission { parts, ..answer }, number);
                return;
            }
            let next = self.streams.get_mut(&place).expect("a stream that has begun");
            assert_eq!(*next, number, "a stream keeps its order");
            *next += 1;
            let parts = Parts::MESSAGE;
            self.sender.send(Submission { parts, ..answer }, number);
        }
        if step.parts.contains(Parts::END) {
            assert!(self.streams.remove(&place).is_some());
            self.sender.app.submit(Submission {
                kind: submission_kind::STEP,
                parts: Parts::STATUS,
                ..answer
            });
        }
    }
}

struct Stream {
    connection: u32,
    sent: u64,
    back: u64,
    length: u64,
    has_ended: bool,
}

struct Caller {
    sender: Sender,
    connections: Vec<u32>,
    unary: HashMap<u64, u64>,
    streams: HashMap<u64, Stream>,
    next_number: u64,
    counts: Arc<Counts>,
}

impl Caller {
    fn new(app: TestApp, connections: Vec<u32>, counts: Arc<Counts>) -> Caller {
        Caller {
            sender: Sender::new(app),
            connections,
            unary: HashMap::new(),
            streams: HashMap::new(),
            next_number: 0,
            counts,
        }
    }

    fn run(mut self) -> TestApp {
        let mut last = Instant::now();
        loop {
            let stops = self.counts.stop.load(Ordering::Relaxed);
            if stops && self.unary.is_empty() && self.streams.is_empty() {
                return self.sender.app;
            }
            if !stops {
                self.begin();
            }
            self.send_streams(stops);
            match self.sender.poll() {
                Some(step) => {
                    self.on_step(&step);
                    let gap_us = last.elapsed().as_micros() as u64;
                    self.counts.gap_us_max.fetch_max(gap_us, Ordering::Relaxed);
                    last = Instant::now();
                }
                None => {
                    assert!(
                        last.elapsed() < WAIT_MAX,
                        "calls hang: {} {}",
                        self.unary.len(),
                        self.streams.len()
                    );
                    std::thread::sleep(Duration::from_micros(20));
                }
            }
        }
    }

    fn connection(&self) -> u32 {
        self.connections[self.next_number as usize % self.connections.len()]
    }

    fn begin(&mut self) {
        while self.unary.len() < UNARY_MAX {
            let call = self.sender.app.new_call();
            let number = UNARY_NUMBERS + self.next_number;
            let step = Submission {
                parts: Parts::BEGIN | Parts::MESSAGE | Parts::END,
                method: UNARY,
                connection: self.connection(),
                call,
                ..Submission::default()
            };
            self.sender.send(step, number);
            self.unary.insert(call, number);
            self.next_number += 1;
        }
        while self.streams.len() < STREAMS_MAX {
            let call = self.sender.app.new_call();
            let connection = self.connection();
            self.next_number += 1;
            self.sender.app.submit(Submission {
                kind: submission_kind::STEP,
                parts: Parts::BEGIN,
                method: CHAT,
                connection,
                call,
                ..Submission::default()
            });
            let stream = Stream {
                connection,
                sent: 0,
                back: 0,
                length: 1 + self.next_number * 7919 % STREAM_MESSAGES,
                has_ended: false,
            };
            self.streams.insert(call, stream);
        }
    }

    fn send_streams(&mut self, stops: bool) {
        for (call, stream) in &mut self.streams {
            if stops {
                stream.length = stream.length.min(stream.sent);
            }
            let step = Submission {
                connection: stream.connection,
                call: *call,
                ..Submission::default()
            };
            while stream.sent < stream.length && stream.sent - stream.back < UNANSWERED_MAX {
                let parts = Parts::MESSAGE;
                self.sender.send(Submission { parts, ..step }, stream.sent);
                stream.sent += 1;
            }
            if stream.sent == stream.length && !stream.has_ended {
                stream.has_ended = true;
                self.sender.app.submit(Submission {
                    kind: submission_kind::STEP,
                    parts: Parts::END,
                    ..step
                });
            }
        }
    }

    fn on_step(&mut self, step: &Completion) {
        if step.parts.contains(Parts::CANCEL) {
            let reason = self.sender.app.status_message(step);
            panic!("a call failed: {} {reason:?} {step:?}", status(step));
        }
        if step.parts.contains(Parts::MESSAGE) {
            let number = self.sender.number(step);
            self.sender.app.reclaim(step.block);
            if let Some(expected) = self.unary.remove(&step.call) {
                assert_eq!(number, expected, "an answer is another call's");
                assert!(step.parts.contains(Parts::STATUS) && status(step) == Code::Ok);
                self.counts.unary.fetch_add(1, Ordering::Relaxed);
                return;
            }
            let stream = self.streams.get_mut(&step.call).expect("a call that is open");
            assert_eq!(number, stream.back, "a stream comes back in order");
            stream.back += 1;
            self.counts.messages.fetch_add(1, Ordering::Relaxed);
        }
        if step.parts.contains(Parts::STATUS) {
            let stream = self.streams.remove(&step.call).expect("a call that is open");
            assert_eq!((stream.back, status(step)), (stream.length, Code::Ok));
            self.counts.streams.fetch_add(1, Ordering::Relaxed);
        }
    }
}
