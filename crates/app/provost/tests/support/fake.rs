//! A stand-in for the node's service: one thread that carries steps between the apps that attach to it.
//!
//! It knows one message type, [`super::Note`], whose fields it copies from the sender's heap to the receiver's segment.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use prost::Message as _;
use provost_heap::Heap;
use provost_shm::{
    Access, AsFd, Doorbell, Interest, Mapping, Memfd, MemfdLimits, PacketListener, PacketSocket, Poller,
    Ringer, SEALS_FIXED_SIZE, SEALS_READ_ONLY_FOR_OTHERS, ServiceRings, Wait,
};
use provost_wire::Code;
use provost_wire::control::{self, Reply, Request, reply, request};
use provost_wire::descriptor::{
    BATCH_MAX, Batch, Completion, Parts, Slot, Submission, completion_kind, submission_kind,
};
use provost_wire::limits::{CONTROL_MESSAGE_BYTES_MAX, REGION_BYTES_MAX, SEND_WINDOW};
use zerocopy::{FromBytes, IntoBytes};

const SEGMENT_BYTES: u64 = 64 << 20;
const SLOTS_DEFAULT: u32 = 256;

/// The name of a service to which connecting takes as long as it may.
pub const BLACK_HOLE: &str = "test.BlackHole";

/// A running service. Dropping it ends it as a kill would: sockets close, nothing is said.
pub struct FakeService {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    pub stats: Arc<Stats>,
    thread: Option<JoinHandle<()>>,
}

/// What tests look at and turn.
#[derive(Default)]
pub struct Stats {
    /// Received blocks that no app has given back.
    pub blocks_live: AtomicUsize,
    /// Steps that were carried.
    pub steps: AtomicUsize,
    /// Cancellations among them.
    pub cancels: AtomicUsize,
    /// While set, submissions stay where they are.
    pub is_stuck: AtomicBool,
    /// Schemas that were brought.
    pub schemas: AtomicUsize,
    /// Requests to take a service back.
    pub unbinds: AtomicUsize,
    /// How many calls the last server wants to have at a time.
    pub calls_in_flight_max: AtomicUsize,
    /// Connections that were made.
    pub connections: AtomicUsize,
    /// Connections that an app has closed.
    pub closed: AtomicUsize,
    /// While set, requests at the control sockets stay where they are.
    pub is_deaf: AtomicBool,
}

impl FakeService {
    pub fn start(path: &Path) -> FakeService {
        let listener = PacketListener::bind(path, 0o600).unwrap();
        let (stop, stats) = (Arc::new(AtomicBool::new(false)), Arc::new(Stats::default()));
        let node = Node {
            listener,
            apps: Vec::new(),
            schemas: HashSet::new(),
            stats: stats.clone(),
            next_connection: 1,
        };
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || node.run(&stopped));
        FakeService {
            path: path.to_owned(),
            stop,
            stats,
            thread: Some(thread),
        }
    }
}

impl Drop for FakeService {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap();
        let _ = std::fs::remove_file(&self.path);
    }
}

struct Node {
    listener: PacketListener,
    apps: Vec<Option<App>>,
    schemas: HashSet<Vec<u8>>,
    stats: Arc<Stats>,
    next_connection: u32,
}

/// An app and what it shares with the service. Nothing of it is trusted in the real one; here all is.
struct App {
    socket: PacketSocket,
    attached: Option<Attached>,
    binds: Vec<(String, u64)>,
    /// The other end of each connection.
    peers: HashMap<u32, (usize, u32)>,
}

struct Attached {
    rings: ServiceRings,
    app_bell: Ringer,
    doorbell: Doorbell,
    heap: Mapping,
    segment: Mapping,
    segment_at: u32,
    blocks: Heap,
    waiting: VecDeque<Slot>,
}

impl Node {
    fn run(mut self, stop: &AtomicBool) {
        let mut poller = Poller::create().unwrap();
        poller.add(self.listener.as_fd(), 0, Interest::Readable).unwrap();
        let mut idle_rounds = 0;
        while !stop.load(Ordering::SeqCst) {
            let mut worked = self.accept(&poller);
            for index in 0..self.apps.len() {
                worked |= self.control(index, &poller);
                worked |= self.submissions(index);
            }
            self.publish();
            idle_rounds = if worked { 0 } else { idle_rounds + 1 };
            if idle_rounds > 50 {
                self.sleep(&mut poller);
            } else {
                provost_shm::yield_now();
            }
        }
    }

    fn attached(&mut self) -> impl Iterator<Item = &mut Attached> {
        self.apps
            .iter_mut()
            .flatten()
            .filter_map(|app| app.attached.as_mut())
    }

    fn sleep(&mut self, poller: &mut Poller) {
        let is_stuck = self.stats.is_stuck.load(Ordering::SeqCst);
        let mut is_idle = true;
        for app in self.attached() {
            app.rings.sleeper.arm();
            is_idle &= is_stuck || app.rings.submissions.is_empty().unwrap();
            is_idle &= app.waiting.is_empty();
        }
        if is_idle {
            let _ = poller.wait(Wait::AtMost(5_000_000)).unwrap().count();
        }
        for app in self.attached() {
            app.rings.sleeper.disarm();
            let _ = app.doorbell.drain();
        }
    }

    fn accept(&mut self, poller: &Poller) -> bool {
        let Ok(socket) = self.listener.accept() else {
            return false;
        };
        poller.add(socket.as_fd(), 1, Interest::Readable).unwrap();
        self.apps.push(Some(App {
            socket,
            attached: None,
            binds: Vec::new(),
            peers: HashMap::new(),
        }));
        true
    }

    fn control(&mut self, index: usize, poller: &Poller) -> bool {
        let is_deaf = self.stats.is_deaf.load(Ordering::SeqCst);
        let Some(app) = self.apps[index].as_ref().filter(|_| !is_deaf) else {
            return false;
        };
        let packet = match app.socket.receive(CONTROL_MESSAGE_BYTES_MAX) {
            Ok(Some(packet)) => packet,
            Ok(None) => {
                self.detach(index);
                return true;
            }
            Err(_) => return false,
        };
        let request = Request::decode(&packet.bytes[..]).unwrap();
        let id = request.id;
        let body = match request.body.unwrap() {
            request::Body::Attach(attach) => {
                let heap = packet.descriptors.into_iter().next().unwrap();
                self.attach(index, id, &attach, heap, poller);
                return true;
            }
            request::Body::AddSchema(add) => {
                self.stats.schemas.fetch_add(1, Ordering::SeqCst);
                self.schemas.insert(add.hash);
                reply::Body::Done(control::Done {})
            }
            request::Body::Bind(bind) if !self.schemas.contains(&bind.schema_hash) => unknown_schema(),
            request::Body::Bind(bind) if self.has_bound(index, &bind.service) => {
                reply::Body::Failed(control::Failed {
                    code: Code::AlreadyExists.number(),
                    message: format!("this app has bound {} already", bind.service),
                })
            }
            request::Body::Bind(bind) => {
                let calls_max = bind.calls_in_flight_max as usize;
                self.stats.calls_in_flight_max.store(calls_max, Ordering::SeqCst);
                self.apps[index].as_mut().unwrap().binds.push((bind.service, id));
                reply::Body::Done(control::Done {})
            }
            request::Body::Unbind(unbind) => {
                self.stats.unbinds.fetch_add(1, Ordering::SeqCst);
                self.apps[index]
                    .as_mut()
                    .unwrap()
                    .binds
                    .retain(|(service, _)| *service != unbind.service);
                reply::Body::Done(control::Done {})
            }
            request::Body::Connect(connect) if !self.schemas.contains(&connect.schema_hash) => {
                unknown_schema()
            }
            // Nobody answers there, not even by a refusal.
            request::Body::Connect(connect) if connect.service == BLACK_HOLE => return true,
            request::Body::Connect(connect) => self.connect(index, &connect.service),
            request::Body::RegionMapped(_) => reply::Body::Done(control::Done {}),
        };
        self.reply(index, id, body, &[]);
        true
    }

    fn has_bound(&self, index: usize, service: &str) -> bool {
        let app = self.apps[index].as_ref().unwrap();
        app.binds.iter().any(|(name, _)| name == service)
    }

    fn reply(&self, index: usize, id: u64, body: reply::Body, descriptors: &[provost_shm::BorrowedFd<'_>]) {
        let reply = Reply { id, body: Some(body) };
        let app = self.apps[index].as_ref().unwrap();
        let _ = app.socket.send(&reply.encode_to_vec(), descriptors);
    }

    fn attach(
        &mut self,
        index: usize,
        id: u64,
        attach: &control::Attach,
        heap: provost_shm::OwnedFd,
        poller: &Poller,
    ) {
        let slots = |asked: u32| if asked == 0 { SLOTS_DEFAULT } else { asked };
        let (submission_slots, completion_slots) =
            (slots(attach.submission_slots), slots(attach.completion_slots));
        let limits = MemfdLimits {
            bytes_min: 1,
            bytes_max: REGION_BYTES_MAX,
            seals: SEALS_FIXED_SIZE,
        };
        let heap = Mapping::new(&Memfd::verify_foreign(heap, limits).unwrap(), Access::ReadOnly).unwrap();
        let (rings, regions) = ServiceRings::create(submission_slots, completion_slots).unwrap();
        let (service_bell, doorbell) = Doorbell::create().unwrap();
        let (app_bell, app_doorbell) = Doorbell::create().unwrap();
        poller.add(doorbell.as_fd(), 2, Interest::Readable).unwrap();
        let memory = Memfd::create("fake-segment", SEGMENT_BYTES).unwrap();
        let segment = Mapping::new(&memory, Access::ReadWrite).unwrap();
        memory.seal(SEALS_READ_ONLY_FOR_OTHERS).unwrap();
        self.apps[index].as_mut().unwrap().attached = Some(Attached {
            rings,
            app_bell,
            doorbell,
            heap,
            segment,
            segment_at: attach.receive_window,
            blocks: Heap::new(SEGMENT_BYTES),
            waiting: VecDeque::new(),
        });
        let attached = reply::Body::Attached(control::Attached {
            submission_slots,
            completion_slots,
            app: index as u64,
            spin_ns: 0,
            message_bytes_max: 64 << 20,
        });
        let descriptors = [
            regions[0].as_fd(),
            regions[1].as_fd(),
            service_bell.as_fd(),
            app_doorbell.as_fd(),
        ];
        self.reply(index, id, attached, &descriptors);
        let added = reply::Body::SegmentAdded(control::SegmentAdded {
            segment: 7,
            at: attach.receive_window,
            bytes: SEGMENT_BYTES,
        });
        self.reply(index, 0, added, &[memory.as_fd()]);
    }

    fn connect(&mut self, client: usize, service: &str) -> reply::Body {
        let bound = self.apps.iter().enumerate().find_map(|(index, app)| {
            let bind = app.as_ref()?.binds.iter().find(|(name, _)| name == service)?;
            Some((index, bind.1))
        });
        let Some((server, bind)) = bound else {
            return reply::Body::Failed(control::Failed {
                code: Code::NotFound.number(),
                message: format!("nobody serves {service}"),
            });
        };
        self.stats.connections.fetch_add(1, Ordering::SeqCst);
        let (near, far) = (self.next_connection, self.next_connection + 1);
        self.next_connection += 2;
        self.apps[client]
            .as_mut()
            .unwrap()
            .peers
            .insert(near, (server, far));
        self.apps[server]
            .as_mut()
            .unwrap()
            .peers
            .insert(far, (client, near));
        self.notify(
            server,
            Completion {
                kind: completion_kind::ACCEPTED,
                connection: far,
                call: bind,
                ..Completion::default()
            },
        );
        reply::Body::Connected(control::Connected {
            connection: near,
            peer: String::new(),
        })
    }

    fn submissions(&mut self, index: usize) -> bool {
        if self.stats.is_stuck.load(Ordering::SeqCst) {
            return false;
        }
        let mut count = 0;
        while let Some(slot) = self.next_submission(index) {
            self.submission(index, &slot);
            count += 1;
        }
        if let Some(attached) = self.apps[index].as_mut().and_then(|app| app.attached.as_mut()) {
            attached.rings.submissions.release();
        }
        count > 0
    }

    fn next_submission(&mut self, index: usize) -> Option<Slot> {
        self.apps[index]
            .as_mut()?
            .attached
            .as_mut()?
            .rings
            .submissions
            .pop()
            .unwrap()
    }

    fn submission(&mut self, index: usize, slot: &Slot) {
        let submission = Submission::read_from_bytes(slot.as_bytes()).unwrap();
        match submission.kind {
            submission_kind::STEP => self.step(index, &submission),
            submission_kind::RECLAIM => {
                let batch = Batch::read_from_bytes(slot.as_bytes()).unwrap();
                let attached = self.apps[index].as_mut().unwrap().attached.as_mut().unwrap();
                for block in &batch.items[..usize::from(batch.count)] {
                    attached.blocks.free(*block as u32 - attached.segment_at).unwrap();
                    self.stats.blocks_live.fetch_sub(1, Ordering::SeqCst);
                }
            }
            submission_kind::CLOSE => {
                self.stats.closed.fetch_add(1, Ordering::SeqCst);
                self.close(index, submission.connection);
            }
            kind => panic!("a submission of kind {kind}"),
        }
    }

    fn step(&mut self, index: usize, step: &Submission) {
        self.stats.steps.fetch_add(1, Ordering::SeqCst);
        if step.parts.contains(Parts::CANCEL) {
            self.stats.cancels.fetch_add(1, Ordering::SeqCst);
        }
        let app = self.apps[index].as_ref().unwrap();
        let peer = app.peers.get(&step.connection).copied();
        let body = Copied::from_heap(app.attached.as_ref().unwrap(), step);
        if step.token != 0 {
            let mut batch = Batch {
                kind: completion_kind::SENT,
                count: 1,
                ..Batch::default()
            };
            batch.items = [0; BATCH_MAX];
            batch.items[0] = step.token;
            self.push(index, as_slot(&batch));
        }
        let Some((to, connection)) = peer else { return };
        let mut completion = Completion {
            kind: completion_kind::STEP,
            parts: step.parts,
            method: step.method,
            connection,
            call: step.call,
            status_or_window: step.status_or_window,
            deadline_ns: step.deadline_ns,
            ..Completion::default()
        };
        let is_windowed = !step
            .parts
            .intersects(Parts::STATUS | Parts::CANCEL | Parts::WINDOW);
        if is_windowed && step.parts.contains(Parts::MESSAGE) {
            completion.window_cost = step.status_or_window;
        }
        if !body.is_empty() {
            let attached = self.apps[to].as_mut().unwrap().attached.as_mut().unwrap();
            body.into_segment(attached, &mut completion);
            self.stats.blocks_live.fetch_add(1, Ordering::SeqCst);
        }
        self.notify(to, completion);
    }

    fn close(&mut self, index: usize, connection: u32) {
        let peer = self.apps[index]
            .as_mut()
            .and_then(|app| app.peers.remove(&connection));
        let Some((to, far)) = peer else { return };
        let Some(app) = self.apps[to].as_mut() else { return };
        app.peers.remove(&far);
        self.notify(
            to,
            Completion {
                kind: completion_kind::CLOSED,
                connection: far,
                status_or_window: Code::Unavailable.number(),
                ..Completion::default()
            },
        );
    }

    fn detach(&mut self, index: usize) {
        let connections: Vec<u32> = self.apps[index].as_ref().unwrap().peers.keys().copied().collect();
        connections
            .into_iter()
            .for_each(|connection| self.close(index, connection));
        self.apps[index] = None;
    }

    fn notify(&mut self, index: usize, completion: Completion) {
        self.push(index, as_slot(&completion));
    }

    fn push(&mut self, index: usize, slot: Slot) {
        if let Some(attached) = self.apps[index].as_mut().and_then(|app| app.attached.as_mut()) {
            attached.waiting.push_back(slot);
        }
    }

    fn publish(&mut self) {
        for app in self.attached() {
            while let Some(slot) = app.waiting.front() {
                if app.rings.completions.push(slot).is_err() {
                    break;
                }
                app.waiting.pop_front();
            }
            if app.rings.completions.publish() && app.rings.app.needed() {
                let _ = app.app_bell.ring();
            }
        }
    }
}

fn unknown_schema() -> reply::Body {
    reply::Body::SchemaUnknown(control::SchemaUnknown {})
}

/// A step's metadata and note, copied out of a send heap.
struct Copied {
    metadata: Vec<u8>,
    /// Number, text, data.
    note: Option<(u64, Vec<u8>, Vec<u8>)>,
}

impl Copied {
    fn from_heap(app: &Attached, step: &Submission) -> Copied {
        let note = step.parts.contains(Parts::MESSAGE).then(|| {
            let root = read(&app.heap, step.root, 24);
            let word = |at: usize| u32::from_le_bytes(root[at..at + 4].try_into().unwrap());
            let number = u64::from_le_bytes(root[..8].try_into().unwrap());
            (
                number,
                read(&app.heap, word(8), word(12)),
                read(&app.heap, word(16), word(20)),
            )
        });
        Copied {
            metadata: read(&app.heap, step.metadata, step.metadata_bytes),
            note,
        }
    }

    fn is_empty(&self) -> bool {
        self.metadata.is_empty() && self.note.is_none()
    }

    fn into_segment(self, app: &mut Attached, completion: &mut Completion) {
        let mut bytes = self.metadata;
        completion.metadata_bytes = bytes.len() as u32;
        pad(&mut bytes);
        let root = bytes.len();
        let block_bytes = match &self.note {
            Some((_, text, data)) => root + 24 + text.len() + data.len() + 16,
            None => root.max(1),
        };
        let offset = app
            .blocks
            .allocate(block_bytes as u32)
            .expect("the fake segment is full");
        let block = app.segment_at + offset;
        if let Some((number, text, data)) = self.note {
            let text_at = root + 24;
            let data_at = (text_at + text.len()).next_multiple_of(8);
            let place = |at: usize, len: usize| if len == 0 { 0 } else { block + (at / 8) as u32 };
            bytes.extend(number.to_le_bytes());
            for word in [
                place(text_at, text.len()),
                text.len() as u32,
                place(data_at, data.len()),
                data.len() as u32,
            ] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend(text);
            pad(&mut bytes);
            bytes.extend(data);
            completion.root = block + (root / 8) as u32;
        }
        completion.block = block;
        completion.metadata = if completion.metadata_bytes > 0 { block } else { 0 };
        // SAFETY: the heap has given out a block of this size inside of the mapped segment.
        unsafe {
            let to = app.segment.address().add(offset as usize * 8);
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }
}

fn as_slot<T: IntoBytes + zerocopy::Immutable>(descriptor: &T) -> Slot {
    Slot::read_from_bytes(descriptor.as_bytes()).unwrap()
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(8), 0);
}

fn read(heap: &Mapping, at: u32, bytes: u32) -> Vec<u8> {
    if bytes == 0 {
        return Vec::new();
    }
    let offset = (at - SEND_WINDOW) as usize * 8;
    assert!(
        offset + bytes as usize <= heap.bytes(),
        "an offset outside of the send heap"
    );
    // SAFETY: the range lies in the mapping, and the app leaves it alone until it gets its token back.
    unsafe { std::slice::from_raw_parts(heap.address().add(offset), bytes as usize) }.to_vec()
}
