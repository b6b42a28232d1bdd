//! A node in the test's process, and an app that speaks to it with bare rings: what the application library does, but
//! also what it never would.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test program uses its part"
)]

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto,
    ServiceDescriptorProto,
};
use provost_schema::{Schema, SchemaHash};
use provost_shm::{
    AppRings, Doorbell, Interest, Memfd, MemfdLimits, PacketSocket, Ringer, SEALS_FIXED_SIZE, Wait, now_ns,
    wait_for,
};
use provost_wire::control::{
    AddSchema, Attach, Attached, Bind, CONTROL_VERSION, Connect, Reply, Request, SegmentAdded, Unbind, reply,
    request,
};
use provost_wire::descriptor::{Batch, Completion, Parts, Submission, completion_kind, submission_kind};
use provost_wire::limits::{CONTROL_MESSAGE_BYTES_MAX, SEND_WINDOW};
use provost_wire::{Code, metadata};
use provostd::config::{ListenerConfig, RouteConfig, RouteTransport, Sources};
use provostd::policies::Registry;
use provostd::{Config, Node, NodeParts, TransportKind};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Longer than anything may take that is not broken.
pub const WAIT_MAX: Duration = Duration::from_secs(20);
/// Size of an app's send heap.
pub const SEND_BYTES: u64 = 1 << 20;
/// Where received segments go in the window, in units of 8 bytes.
pub const RECEIVE_WINDOW: u32 = 1 << 27;
/// The service of the tests.
pub const SERVICE: &str = "test.Echo";
pub const UNARY: u16 = 0;
/// Its method with streams both ways.
pub const CHAT: u16 = 1;
/// Size of the struct of `test.Note {uint64 number = 3; string text = 1; bytes data = 2;}`.
pub const NOTE_BYTES: u32 = 24;

/// A node that ends with the test.
pub struct TestNode {
    pub node: Node,
    pub socket: PathBuf,
    _directory: tempfile::TempDir,
}

impl TestNode {
    /// A node with a listener on loopback.
    pub fn start() -> TestNode {
        Self::start_with(|_| {})
    }

    /// A node whose configuration is changed from the defaults.
    pub fn start_with(change: impl FnOnce(&mut Config)) -> TestNode {
        Self::start_with_kinds(change, Registry::with_built_ins())
    }

    /// The same, with kinds of policies of the test's own.
    pub fn start_with_kinds(change: impl FnOnce(&mut Config), kinds: Registry) -> TestNode {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut config = Config::default();
        config.control.socket = directory.path().join("provostd.sock");
        config.listeners.push(ListenerConfig {
            transport: TransportKind::Tcp,
            address: "127.0.0.1:0".parse().expect("an address"),
        });
        change(&mut config);
        config.check("test").expect("a good configuration");
        let socket = config.control.socket.clone();
        let node = Node::start_with_kinds(config, kinds).expect("a node that starts");
        TestNode {
            node,
            socket,
            _directory: directory,
        }
    }

    /// A node with a configuration from files, and kinds of policies of the test's own.
    pub fn start_from(sources: Sources, kinds: Registry) -> TestNode {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let socket = directory.path().join("provostd.sock");
        let own_socket = socket.clone();
        let sources = Sources {
            adjust: Arc::new(move |config| config.control.socket.clone_from(&own_socket)),
            ..sources
        };
        let config = sources.read().expect("a good configuration");
        let parts = NodeParts {
            config,
            kinds,
            sources,
        };
        TestNode {
            node: Node::start_with(parts).expect("a node that starts"),
            socket,
            _directory: directory,
        }
    }

    /// A node whose apps find the service at another node.
    pub fn start_routed_to(other: &TestNode) -> TestNode {
        Self::start_routed_to_all(vec![other.node.addresses()[0].to_string()])
    }

    /// The same, with several endpoints.
    pub fn start_routed_to_all(endpoints: Vec<String>) -> TestNode {
        Self::start_with(|config| {
            config.routes.push(RouteConfig {
                service: SERVICE.to_owned(),
                transport: RouteTransport::Over(TransportKind::Tcp),
                endpoints,
                ..RouteConfig::default()
            });
        })
    }
}

/// The descriptor set of the tests' service.
pub fn descriptor_set() -> Vec<u8> {
    let field = |name: &str, number, ty: Type| FieldDescriptorProto {
        name: Some(name.into()),
        number: Some(number),
        label: Some(Label::Optional.into()),
        r#type: Some(ty.into()),
        ..FieldDescriptorProto::default()
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
            field: vec![
                field("text", 1, Type::String),
                field("data", 2, Type::Bytes),
                field("number", 3, Type::Uint64),
            ],
            ..DescriptorProto::default()
        }],
        service: vec![ServiceDescriptorProto {
            name: Some("Echo".into()),
            method: vec![method("Unary", false), method("Chat", true)],
            ..ServiceDescriptorProto::default()
        }],
        ..FileDescriptorProto::default()
    };
    FileDescriptorSet { file: vec![file] }.encode_to_vec()
}

/// The hash of the tests' service.
pub fn schema_hash() -> SchemaHash {
    let schema = Schema::from_descriptor_set(&descriptor_set()).expect("a good schema");
    schema.service_hash(SERVICE).expect("the service")
}

/// An app that has attached.
pub struct TestApp {
    pub control: PacketSocket,
    pub rings: AppRings,
    pub attached: Attached,
    wakes_service: Ringer,
    _doorbell: Doorbell,
    pub send_heap: Memfd,
    segments: Vec<(SegmentAdded, Memfd)>,
    next_request: u64,
    next_call: u64,
}

/// A bare `Attach`.
pub fn attach_request() -> Attach {
    Attach {
        version: CONTROL_VERSION,
        name: "test".into(),
        submission_slots: 64,
        completion_slots: 64,
        receive_window: RECEIVE_WINDOW,
        receive_window_bytes: 1 << 30,
        busy_poll: false,
        takes_regions: true,
    }
}

/// A sealed send heap.
pub fn send_heap() -> Memfd {
    let memfd = Memfd::create("test-send", SEND_BYTES).expect("a memfd");
    memfd.seal(SEALS_FIXED_SIZE).expect("seals");
    memfd
}

/// Sends one request on a fresh socket and returns what comes back, if anything does.
pub fn ask_bare(socket: &Path, request: Request, memfd: Option<&Memfd>) -> Option<Reply> {
    let control = PacketSocket::connect(socket).expect("a control socket");
    let descriptors: Vec<_> = memfd.iter().map(|memfd| memfd.as_fd()).collect();
    control
        .send(&request.encode_to_vec(), &descriptors)
        .expect("a request that is sent");
    receive(&control).map(|(reply, _)| reply)
}

/// The next reply, or `None` when the service has closed the socket.
fn receive(control: &PacketSocket) -> Option<(Reply, Vec<provost_shm::OwnedFd>)> {
    let limit = Wait::AtMost(WAIT_MAX.as_nanos() as u64);
    assert!(
        wait_for(control, Interest::Readable, limit).expect("poll"),
        "the service did not answer"
    );
    let packet = control.receive(CONTROL_MESSAGE_BYTES_MAX).ok()??;
    let reply = Reply::decode(packet.bytes.as_slice()).expect("a reply");
    Some((reply, packet.descriptors))
}

impl TestApp {
    /// Attaches to a node.
    pub fn attach(node: &TestNode) -> TestApp {
        Self::attach_as(node, attach_request())
    }

    /// Attaches to a node with a request of the test's own.
    pub fn attach_as(node: &TestNode, attach: Attach) -> TestApp {
        Self::attach_at(&node.socket, attach)
    }

    /// Attaches at a control socket.
    pub fn attach_at(socket: &Path, attach: Attach) -> TestApp {
        let control = PacketSocket::connect(socket).expect("a control socket");
        let send_heap = send_heap();
        let request = Request {
            id: 1,
            body: Some(request::Body::Attach(attach)),
        };
        control
            .send(&request.encode_to_vec(), &[send_heap.as_fd()])
            .expect("a request that is sent");
        let (reply, descriptors) = receive(&control).expect("a reply");
        let Some(reply::Body::Attached(attached)) = reply.body else {
            panic!("not attached: {reply:?}");
        };
        let [submission, completion, wakes_service, doorbell] =
            <[_; 4]>::try_from(descriptors).expect("four descriptors");
        let rings = AppRings::from_descriptors(
            submission,
            attached.submission_slots,
            completion,
            attached.completion_slots,
        )
        .expect("rings");
        TestApp {
            control,
            rings,
            attached,
            wakes_service: wakes_service.into(),
            _doorbell: doorbell.into(),
            send_heap,
            segments: Vec::new(),
            next_request: 2,
            next_call: 1,
        }
    }

    /// Asks and waits for the answer.
    pub fn ask(&mut self, body: request::Body, memfd: Option<&Memfd>) -> reply::Body {
        let id = self.next_request;
        self.next_request += 1;
        let request = Request { id, body: Some(body) };
        let descriptors: Vec<_> = memfd.iter().map(|memfd| memfd.as_fd()).collect();
        self.control
            .send(&request.encode_to_vec(), &descriptors)
            .expect("a request that is sent");
        loop {
            let (reply, mut descriptors) = receive(&self.control).expect("a reply");
            match reply.body.expect("a body") {
                reply::Body::SegmentAdded(added) => self.keep_segment(added, descriptors.pop()),
                reply::Body::Peer(_) => {}
                body => {
                    assert_eq!(reply.id, id);
                    return body;
                }
            }
        }
    }

    /// Brings the schema of the tests.
    pub fn add_schema(&mut self) {
        let memfd = Memfd::of_bytes("test-schema", &descriptor_set()).expect("a memfd");
        let add = AddSchema {
            hash: schema_hash().0.to_vec(),
        };
        let reply = self.ask(request::Body::AddSchema(add), Some(&memfd));
        assert!(matches!(reply, reply::Body::Done(_)), "{reply:?}");
    }

    pub fn bind(&mut self) {
        self.add_schema();
        let reply = self.ask(request::Body::Bind(bind_request()), None);
        assert!(matches!(reply, reply::Body::Done(_)), "{reply:?}");
    }

    /// Takes the service back.
    pub fn unbind(&mut self) {
        let unbind = Unbind {
            service: SERVICE.into(),
        };
        let reply = self.ask(request::Body::Unbind(unbind), None);
        assert!(matches!(reply, reply::Body::Done(_)), "{reply:?}");
    }

    /// Connects to the service as the node's configuration says.
    pub fn connect(&mut self) -> u32 {
        self.add_schema();
        match self.ask(request::Body::Connect(connect_request()), None) {
            reply::Body::Connected(connected) => connected.connection,
            other => panic!("not connected: {other:?}"),
        }
    }

    /// Writes a note into the send heap, and says where its struct is in the window. `place` tells notes apart.
    pub fn write_note(&self, place: u32, number: u64, text: &str, data: &[u8]) -> u32 {
        let at = u64::from(place) * 0x1_0000;
        let text_at = at + 64;
        let data_at = (text_at + text.len() as u64).next_multiple_of(8);
        let off8 = |byte: u64, empty: bool| if empty { 0 } else { SEND_WINDOW + (byte / 8) as u32 };
        let mut root = Vec::new();
        root.extend_from_slice(&number.to_le_bytes());
        root.extend_from_slice(&off8(text_at, text.is_empty()).to_le_bytes());
        root.extend_from_slice(&(text.len() as u32).to_le_bytes());
        root.extend_from_slice(&off8(data_at, data.is_empty()).to_le_bytes());
        root.extend_from_slice(&(data.len() as u32).to_le_bytes());
        self.send_heap.write_at(at, &root).expect("room");
        self.send_heap.write_at(text_at, text.as_bytes()).expect("room");
        self.send_heap.write_at(data_at, data).expect("room");
        off8(at, false)
    }

    /// A call number that was not used before.
    pub fn new_call(&mut self) -> u64 {
        self.next_call += 1;
        self.next_call
    }

    /// Submits a descriptor and wakes the service if it sleeps.
    pub fn submit(&mut self, submission: Submission) {
        self.push(to_slot(&submission));
    }

    /// Submits the bytes of a slot.
    pub fn push(&mut self, slot: [u64; 8]) {
        let until = Instant::now() + WAIT_MAX;
        while self.rings.submissions.push(&slot).is_err() {
            assert!(Instant::now() < until, "the service does not read its ring");
            std::thread::sleep(Duration::from_micros(100));
        }
        self.rings.submissions.publish();
        if self.rings.service.needed() {
            self.wakes_service.ring().expect("a service that listens");
        }
    }

    /// Begins a unary call.
    pub fn begin(&mut self, connection: u32, root: u32) -> u64 {
        let call = self.new_call();
        self.submit(Submission {
            kind: submission_kind::STEP,
            parts: Parts::BEGIN | Parts::MESSAGE | Parts::END,
            method: UNARY,
            connection,
            call,
            root,
            ..Submission::default()
        });
        call
    }

    /// Answers a unary call with a message.
    pub fn answer(&mut self, request: &Completion, root: u32) {
        self.submit(Submission {
            kind: submission_kind::STEP,
            parts: Parts::MESSAGE | Parts::STATUS,
            connection: request.connection,
            call: request.call,
            root,
            token: 77,
            ..Submission::default()
        });
    }

    /// The next completion, if one is there.
    pub fn poll(&mut self) -> Option<Completion> {
        let slot = self.rings.completions.pop().expect("indices in range")?;
        self.rings.completions.release();
        Some(of_slot(&slot))
    }

    pub fn next(&mut self) -> Completion {
        let until = Instant::now() + WAIT_MAX;
        loop {
            if let Some(completion) = self.poll() {
                return completion;
            }
            assert!(Instant::now() < until, "no completion came");
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// The next completion that is a step; others are passed over.
    pub fn next_step(&mut self) -> Completion {
        self.next_of(completion_kind::STEP)
    }

    /// The next completion of a kind; others are passed over.
    pub fn next_of(&mut self, kind: u8) -> Completion {
        loop {
            let completion = self.next();
            if completion.kind == kind {
                return completion;
            }
        }
    }

    /// The number, text and data of a received note.
    pub fn read_note(&mut self, completion: &Completion) -> (u64, String, Vec<u8>) {
        assert_ne!(completion.root, 0, "no message: {completion:?}");
        let root = self.read(completion.root, NOTE_BYTES);
        let number = u64::from_le_bytes(root[..8].try_into().expect("8 bytes"));
        let word = |at: usize| u32::from_le_bytes(root[at..at + 4].try_into().expect("4 bytes"));
        let text = self.read(word(8), word(12));
        let data = self.read(word(16), word(20));
        (number, String::from_utf8(text).expect("UTF-8"), data)
    }

    /// The message of a status that the service or the server gave.
    pub fn status_message(&mut self, completion: &Completion) -> String {
        let block = self.read(completion.metadata, completion.metadata_bytes);
        let mut entries = metadata::entries(&block);
        let message = entries.find(|(key, _)| *key == metadata::STATUS_MESSAGE);
        message.map_or(String::new(), |(_, value)| {
            String::from_utf8_lossy(value).into_owned()
        })
    }

    /// Bytes of a received segment.
    pub fn read(&mut self, at: u32, bytes: u32) -> Vec<u8> {
        if bytes == 0 {
            return Vec::new();
        }
        while self.segment_of(at).is_none() {
            let (reply, mut descriptors) = receive(&self.control).expect("a segment");
            match reply.body {
                Some(reply::Body::SegmentAdded(added)) => self.keep_segment(added, descriptors.pop()),
                Some(reply::Body::Peer(_)) => {}
                other => panic!("expected a segment, got {other:?}"),
            }
        }
        let (added, memfd) = self.segment_of(at).expect("a segment that was announced");
        let mut read = vec![0; bytes as usize];
        let from = u64::from(at - added.at) * 8;
        assert_eq!(memfd.read_at(from, &mut read).expect("a segment"), bytes as usize);
        read
    }

    /// Gives a block back.
    pub fn reclaim(&mut self, block: u32) {
        let mut batch = Batch {
            kind: submission_kind::RECLAIM,
            count: 1,
            ..Batch::default()
        };
        batch.items[0] = u64::from(block);
        self.push(to_slot(&batch));
    }

    /// Whether the service closes the control socket: it has given the app up.
    pub fn is_detached(&self) -> bool {
        loop {
            match receive(&self.control) {
                None => return true,
                Some((
                    Reply {
                        body: Some(reply::Body::SegmentAdded(_) | reply::Body::Peer(_)),
                        ..
                    },
                    _,
                )) => {}
                Some(_) => return false,
            }
        }
    }

    fn segment_of(&self, at: u32) -> Option<&(SegmentAdded, Memfd)> {
        let inside = |added: &SegmentAdded| at >= added.at && u64::from(at - added.at) * 8 < added.bytes;
        self.segments.iter().find(|(added, _)| inside(added))
    }

    fn keep_segment(&mut self, added: SegmentAdded, descriptor: Option<provost_shm::OwnedFd>) {
        let limits = MemfdLimits {
            bytes_min: added.bytes,
            bytes_max: added.bytes,
            seals: SEALS_FIXED_SIZE,
        };
        let memfd = Memfd::verify_foreign(descriptor.expect("a segment"), limits).expect("a memfd");
        self.segments.push((added, memfd));
    }
}

/// A slot as a descriptor.
pub fn of_slot<T: FromBytes>(slot: &[u64; 8]) -> T {
    T::read_from_bytes(slot.as_bytes()).expect("a descriptor fills a slot")
}

/// A descriptor as a slot.
pub fn to_slot<T: IntoBytes + Immutable>(descriptor: &T) -> [u64; 8] {
    <[u64; 8]>::read_from_bytes(descriptor.as_bytes()).expect("a descriptor fills a slot")
}

/// A bare `Bind`.
pub fn bind_request() -> Bind {
    Bind {
        service: SERVICE.into(),
        schema_hash: schema_hash().0.to_vec(),
        calls_in_flight_max: 0,
    }
}

/// A bare `Connect`.
pub fn connect_request() -> Connect {
    Connect {
        service: SERVICE.into(),
        schema_hash: schema_hash().0.to_vec(),
        ..Connect::default()
    }
}

/// The status of a completion.
pub fn status(completion: &Completion) -> Code {
    Code::from_number(completion.status_or_window)
}

/// A deadline that has some time left.
pub fn deadline_in(time: Duration) -> u64 {
    now_ns() + time.as_nanos() as u64
}
