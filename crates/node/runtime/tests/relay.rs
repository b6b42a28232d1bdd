//! The port of calls that another node passes on, between two connections that the test plays.

use std::sync::Arc;

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto,
    ServiceDescriptorProto,
};
use provost_datapath::{
    Body, Buffer, BufferPool, CompressedMessages, EncodedBody, Offsets, PrivateBytes, ReceivedBody,
    RestoreError, Step, message_offset,
};
use provost_frontend::MethodShape;
use provost_frontend_grpc::{KnownMethods, ServiceBinding, ServiceRefusal};
use provost_marshal::Tables;
use provost_runtime::{CallPort, RelayPort, RelayPortParts};
use provost_schema::Schema;
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::{STREAM_MESSAGE_COST_BYTES, STREAM_WINDOW_BYTES};
use provost_wire::metadata;

const SERVICE: &str = "test.Notes";
/// The connection that the port serves, and one on which it calls.
const SERVED: u32 = 3;
const SERVER: u32 = 9;
const UNARY: u16 = 0;
const CHAT: u16 = 1;
const MESSAGE_BYTES_MAX: u32 = 100_000;

/// Who has the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RelayProcesses {
    One,
    /// Another one takes over before each look at what it sends.
    Several,
}

/// Runs a test's body in one process, and with hot restarts in between.
fn in_one_process_and_in_several(body: impl Fn(RelayProcesses)) {
    body(RelayProcesses::One);
    body(RelayProcesses::Several);
}

fn parts(schema: &Schema, tables: &Arc<Tables>) -> RelayPortParts {
    RelayPortParts {
        service: SERVICE.to_owned(),
        tables: Arc::clone(tables),
        methods: MethodShape::of_service(schema.service(SERVICE).unwrap()),
        message_bytes_max: MESSAGE_BYTES_MAX,
        share: PrivateBytes::of_attachment(&PrivateBytes::of_node()),
        receive_heap_bytes: 64 << 20,
    }
}

/// A port, and the two frontends around it.
struct RelayRig {
    processes: RelayProcesses,
    port: RelayPort,
    tables: Arc<Tables>,
    schema: Schema,
    buffers: BufferPool,
    now: u64,
}

fn schema() -> Schema {
    let body = FieldDescriptorProto {
        name: Some("body".into()),
        number: Some(1),
        label: Some(Label::Optional.into()),
        r#type: Some(Type::Bytes.into()),
        ..FieldDescriptorProto::default()
    };
    let method = |name: &str, streams| MethodDescriptorProto {
        name: Some(name.into()),
        input_type: Some(".test.Note".into()),
        output_type: Some(".test.Note".into()),
        client_streaming: Some(streams),
        server_streaming: Some(streams),
        ..MethodDescriptorProto::default()
    };
    let file = FileDescriptorProto {
        name: Some("test.proto".into()),
        package: Some("test".into()),
        syntax: Some("proto3".into()),
        message_type: vec![DescriptorProto {
            name: Some("Note".into()),
            field: vec![body],
            ..DescriptorProto::default()
        }],
        service: vec![ServiceDescriptorProto {
            name: Some("Notes".into()),
            method: vec![method("Unary", false), method("Chat", true)],
            ..ServiceDescriptorProto::default()
        }],
        ..FileDescriptorProto::default()
    };
    let set = FileDescriptorSet { file: vec![file] };
    Schema::from_descriptor_set(&prost_types_bytes(&set)).unwrap()
}

fn prost_types_bytes(set: &FileDescriptorSet) -> Vec<u8> {
    prost::Message::encode_to_vec(set)
}

impl RelayRig {
    fn new(processes: RelayProcesses) -> RelayRig {
        let schema = schema();
        let tables = Arc::new(Tables::compile(&schema).unwrap());
        let mut port = RelayPort::new(parts(&schema, &tables), 1);
        port.accepted(SERVED);
        RelayRig {
            processes,
            port,
            tables,
            schema,
            buffers: BufferPool::new(),
            now: 1,
        }
    }

    /// A port whose server was reached.
    fn bound(processes: RelayProcesses) -> RelayRig {
        let mut rig = RelayRig::new(processes);
        rig.receive(
            SERVED,
            Step {
                method: UNARY,
                ..Step::new(1, Parts::BEGIN)
            },
        );
        rig.answer(Ok(SERVER));
        rig.sent();
        rig.receive(SERVED, Step::cancel(1, Code::Cancelled));
        rig.sent();
        rig
    }

    /// The control plane's answer to what the port asked for.
    fn answer(&mut self, found: Result<u32, Code>) {
        let wanted = self.port.take_wanted().map(|wanted| wanted.service);
        assert_eq!(wanted.as_deref(), Some(SERVICE));
        assert_eq!(self.port.take_wanted(), None, "it asks once");
        let found = found.map(|connection| ServiceBinding {
            connection,
            tables: Arc::clone(&self.tables),
            methods: Arc::default(),
            methods_known: KnownMethods::All,
            message_bytes_max: MESSAGE_BYTES_MAX,
            compressed: CompressedMessages::Decompressed,
        });
        let found = found.map_err(|code| ServiceRefusal {
            code,
            message: "not reached".to_owned(),
        });
        self.port.answer_service(SERVICE, found, self.now);
    }

    /// A message as its frontend hands it on.
    fn message(&mut self, call: u64, parts: Parts, metadata: &[u8], note: &[u8]) -> Step {
        let mut bytes = metadata.to_vec();
        bytes.resize(message_offset(metadata.len() as u32), 0);
        let offset = bytes.len();
        let mut protobuf = vec![0x0a];
        let mut length = note.len();
        while length > 127 {
            protobuf.push(length as u8 | 0x80);
            length >>= 7;
        }
        protobuf.push(length as u8);
        protobuf.extend_from_slice(note);
        let id = self.schema.services[0].methods[0].input;
        let decoded = self
            .tables
            .decode(id, &protobuf, &mut bytes, u32::MAX, &mut Default::default());
        decoded.unwrap();
        let (heap, _) = self.port.lend();
        let mut block = heap.allocate(bytes.len() as u32).unwrap();
        let window_at = block.at + (offset / 8) as u32;
        let place = heap.bytes_mut(&mut block);
        place.copy_from_slice(&bytes);
        let message_bytes = (bytes.len() - offset) as u32;
        self.tables
            .validate_and_relocate(id, &mut place[offset..], window_at)
            .unwrap();
        Step {
            window_bytes: message_bytes + STREAM_MESSAGE_COST_BYTES,
            body: Body::Received(ReceivedBody {
                added: None,
                block,
                metadata_bytes: metadata.len() as u32,
                message_bytes,
                offsets: Offsets::Window,
            }),
            ..Step::new(call, parts)
        }
    }

    fn receive(&mut self, connection: u32, step: Step) {
        self.port.push_step(connection, step).unwrap();
    }

    fn state(&self) -> Vec<u8> {
        self.port.save(&Vec::new()).unwrap().state
    }

    /// The port of another process that goes on with those connections.
    fn restored(&self, state: &[u8], has: &dyn Fn(u32) -> bool) -> Result<RelayPort, RestoreError> {
        RelayPort::restore(state, parts(&self.schema, &self.tables), has, self.now)
    }

    /// Another process takes over, with all connections.
    fn replace(&mut self) {
        let state = self.state();
        self.port = self.restored(&state, &|_| true).unwrap();
        self.port.end_claims();
        assert!(self.state() == state, "what is restored is saved as it was");
    }

    /// What the port sends now.
    fn sent(&mut self) -> Vec<(u32, Step)> {
        if self.processes == RelayProcesses::Several {
            self.replace();
        }
        self.port.poll(self.now);
        std::iter::from_fn(|| self.port.next_request(&mut self.buffers)).collect()
    }

    /// The metadata and the note of a step that was sent.
    fn content(&self, step: &Step) -> (Vec<u8>, Vec<u8>) {
        let Body::Gathered(body) = &step.body else {
            panic!("{step:?}");
        };
        let bytes = &body.buffer.bytes;
        let linear = &bytes[message_offset(body.metadata_bytes)..];
        assert_eq!(linear.len(), body.message_bytes as usize);
        let mut protobuf = Vec::new();
        let id = self.schema.services[0].methods[0].input;
        self.tables.validate(id, linear).unwrap();
        self.tables.encode(id, linear, &mut protobuf).unwrap();
        let head = protobuf
            .iter()
            .skip(1)
            .position(|byte| *byte < 128)
            .map_or(0, |at| at + 2);
        let metadata = bytes[..body.metadata_bytes as usize].to_vec();
        (metadata, protobuf[head..].to_vec())
    }

    fn is_at_rest(&self) -> bool {
        self.port.open_calls() == 0 && self.port.receive_heap_bytes() == 0 && self.port.is_idle()
    }
}

fn status_of(step: &Step) -> (Code, String) {
    assert_eq!(step.parts, Parts::STATUS);
    let Body::Encoded(body) = &step.body else {
        panic!("{step:?}");
    };
    let block = &body.buffer.bytes[..body.metadata_bytes as usize];
    let reason = metadata::find(block, metadata::STATUS_MESSAGE).map(|range| block[range].to_vec());
    (
        step.status,
        String::from_utf8(reason.unwrap_or_default()).unwrap(),
    )
}

#[test]
fn a_call_waits_for_its_server_and_its_answer_comes_back() {
    in_one_process_and_in_several(|processes| {
        let mut rig = RelayRig::new(processes);
        let mut sent = Vec::new();
        metadata::append(&mut sent, "x-key", b"value").unwrap();
        let mut request = rig.message(40, Parts::BEGIN | Parts::MESSAGE | Parts::END, &sent, &[7; 5000]);
        request.deadline = 99;
        rig.receive(SERVED, request);
        assert!(rig.sent().is_empty());
        rig.answer(Ok(SERVER));
        let requests = rig.sent();
        let [(SERVER, request)] = &requests[..] else {
            panic!("{requests:?}");
        };
        assert_eq!((request.call, request.deadline), (1, 99));
        assert_eq!(request.parts, Parts::BEGIN | Parts::MESSAGE | Parts::END);
        assert_eq!(rig.content(request), (sent.clone(), vec![7; 5000]));
        let answer = rig.message(1, Parts::MESSAGE | Parts::STATUS, &sent, b"good");
        rig.receive(SERVER, answer);
        let answers = rig.sent();
        let [(SERVED, answer)] = &answers[..] else {
            panic!("{answers:?}");
        };
        assert_eq!((answer.call, answer.status), (40, Code::Ok));
        assert_eq!(rig.content(answer), (sent, b"good".to_vec()));
        assert!(rig.is_at_rest());
    });
}

#[test]
fn reserved_metadata_of_a_caller_goes_nowhere() {
    in_one_process_and_in_several(|processes| {
        let mut rig = RelayRig::bound(processes);
        let mut block = Vec::new();
        metadata::append(&mut block, metadata::STATUS_MESSAGE, b"mine").unwrap_or_default();
        let is_made = !block.is_empty();
        metadata::append(&mut block, "x-key", b"value").unwrap();
        let request = rig.message(2, Parts::BEGIN | Parts::MESSAGE | Parts::END, &block, b"note");
        rig.receive(SERVED, request);
        let sent = rig.sent();
        let (metadata_sent, note) = rig.content(&sent[0].1);
        assert!(is_made && metadata::find(&metadata_sent, metadata::STATUS_MESSAGE).is_none());
        assert!(metadata::find(&metadata_sent, "x-key").is_some());
        assert_eq!(note, b"note");
    });
}

#[test]
fn a_stream_goes_on_as_its_other_end_has_room() {
    in_one_process_and_in_several(|processes| {
        let mut rig = RelayRig::bound(processes);
        rig.receive(
            SERVED,
            Step {
                method: CHAT,
                ..Step::new(5, Parts::BEGIN)
            },
        );
        rig.sent();
        // The caller fills its window; what is passed on is what the server's has room for.
        let note = vec![1; 60_000];
        let (mut given, mut passed, mut returned) = (0_i64, 0_i64, 0_i64);
        while given < i64::from(STREAM_WINDOW_BYTES) {
            let step = rig.message(5, Parts::MESSAGE, &[], &note);
            given += i64::from(step.window_bytes);
            rig.receive(SERVED, step);
        }
        let more = rig.message(5, Parts::MESSAGE, &[], &note);
        given += i64::from(more.window_bytes);
        rig.receive(SERVED, more);
        let count = |rig: &mut RelayRig, passed: &mut i64, returned: &mut i64| {
            for (connection, step) in rig.sent() {
                match connection {
                    SERVER => *passed += i64::from(step.window_bytes),
                    _ => {
                        assert_eq!((step.call, step.parts), (5, Parts::WINDOW));
                        *returned += i64::from(step.window_bytes);
                    }
                }
            }
        };
        count(&mut rig, &mut passed, &mut returned);
        assert!(
            passed < given && passed >= i64::from(STREAM_WINDOW_BYTES),
            "{passed} of {given}"
        );
        assert_eq!(
            returned, passed,
            "the caller has its window back for what has gone on"
        );
        assert!(rig.port.receive_heap_bytes() > 0);
        rig.receive(
            SERVER,
            Step {
                window_bytes: passed as u32,
                ..Step::new(2, Parts::WINDOW)
            },
        );
        count(&mut rig, &mut passed, &mut returned);
        assert_eq!(
            (passed, returned, rig.port.receive_heap_bytes()),
            (given, given, 0)
        );
    });
}

#[test]
fn a_cancellation_reaches_the_server_once_and_frees_what_waits() {
    in_one_process_and_in_several(|processes| {
        let mut rig = RelayRig::bound(processes);
        rig.receive(
            SERVED,
            Step {
                method: CHAT,
                ..Step::new(5, Parts::BEGIN)
            },
        );
        rig.sent();
        let waiting = rig.message(5, Parts::MESSAGE, &[], b"waits");
        rig.receive(SERVED, waiting);
        rig.receive(SERVED, Step::cancel(5, Code::DeadlineExceeded));
        let sent = rig.sent();
        let [(SERVER, cancel)] = &sent[..] else {
            panic!("{sent:?}");
        };
        assert_eq!(
            (cancel.call, cancel.parts, cancel.status),
            (2, Parts::CANCEL, Code::DeadlineExceeded)
        );
        // What the server has sent meanwhile is dropped.
        let late = rig.message(2, Parts::MESSAGE | Parts::STATUS, &[], b"late");
        rig.receive(SERVER, late);
        assert!(rig.sent().is_empty() && rig.is_at_rest());
    });
}

#[test]
fn a_server_that_is_not_reached_refuses_calls_for_a_while() {
    in_one_process_and_in_several(|processes| {
        let mut rig = RelayRig::new(processes);
        let begin = |call| Step {
            method: UNARY,
            ..Step::new(call, Parts::BEGIN | Parts::END)
        };
        rig.receive(SERVED, begin(1));
        rig.answer(Err(Code::Unavailable));
        rig.receive(SERVED, begin(2));
        let refused = rig.sent();
        assert_eq!(refused.len(), 2);
        for (connection, step) in &refused {
            assert_eq!(
                (*connection, status_of(step)),
                (SERVED, (Code::Unavailable, "not reached".to_owned()))
            );
        }
        assert_eq!(rig.port.take_wanted(), None);
        rig.now += 2_000_000_000;
        rig.port.poll(rig.now);
        rig.receive(SERVED, begin(3));
        rig.answer(Ok(SERVER));
        assert!(matches!(&rig.sent()[..], [(SERVER, step)] if step.call == 1));
    });
}

#[test]
fn a_server_that_goes_away_is_asked_for_again_and_a_lost_one_ends_its_calls() {
    in_one_process_and_in_several(|processes| {
        let mut rig = RelayRig::bound(processes);
        let begin = |call| Step {
            method: CHAT,
            ..Step::new(call, Parts::BEGIN)
        };
        rig.receive(SERVED, begin(5));
        assert_eq!(rig.sent().len(), 1);
        rig.port.going_away(SERVER);
        rig.receive(SERVED, begin(6));
        rig.answer(Ok(SERVER + 1));
        assert!(
            matches!(&rig.sent()[..], [(connection, step)] if *connection == SERVER + 1 && step.call == 1)
        );
        // The call on the old one goes on until that has ended.
        let note = rig.message(2, Parts::MESSAGE, &[], b"still");
        rig.receive(SERVER, note);
        assert!(
            rig.sent()
                .iter()
                .any(|(connection, step)| *connection == SERVED && step.call == 5)
        );
        rig.port.closed(SERVER, Code::Ok);
        let ended = rig.sent();
        let [(SERVED, status)] = &ended[..] else {
            panic!("{ended:?}");
        };
        assert_eq!((status.call, status_of(status).0), (5, Code::Unavailable));
        assert_eq!(rig.port.open_calls(), 1);
    });
}

#[test]
fn the_end_of_the_served_connection_ends_the_port() {
    in_one_process_and_in_several(|processes| {
        let mut rig = RelayRig::bound(processes);
        rig.receive(
            SERVED,
            Step {
                method: CHAT,
                ..Step::new(5, Parts::BEGIN)
            },
        );
        rig.sent();
        rig.port.closed(SERVED, Code::Ok);
        assert_eq!(rig.port.ended(), None, "the server is to be told first");
        assert!(matches!(&rig.sent()[..], [(SERVER, step)] if step.parts == Parts::CANCEL));
        assert!(rig.port.ended().is_some() && rig.is_at_rest());
    });
}

#[test]
fn a_message_that_the_caller_cannot_take_ends_its_call() {
    in_one_process_and_in_several(|processes| {
        let mut rig = RelayRig::bound(processes);
        let request = rig.message(2, Parts::BEGIN | Parts::MESSAGE | Parts::END, &[], b"ask");
        rig.receive(SERVED, request);
        rig.sent();
        let long = rig.message(
            2,
            Parts::MESSAGE | Parts::STATUS,
            &[],
            &vec![1; MESSAGE_BYTES_MAX as usize],
        );
        rig.receive(SERVER, long);
        // Its status comes behind what others have to send.
        assert!(rig.sent().is_empty() && !rig.port.is_idle());
        let sent = rig.sent();
        let [(SERVED, status)] = &sent[..] else {
            panic!("{sent:?}");
        };
        assert_eq!(status_of(status).0, Code::ResourceExhausted);
        assert!(rig.is_at_rest());
    });
}

#[test]
fn protobuf_is_passed_on_byte_for_byte_and_not_read() {
    in_one_process_and_in_several(|processes| {
        // No message of the schema.
        const OPAQUE: &[u8] = &[0xf8, 0x06, 7, 0x0a, 99];
        let mut rig = RelayRig::bound(processes);
        let mut given = Vec::new();
        metadata::append(&mut given, "x-key", b"value").unwrap();
        let step = |call, parts, block: &[u8], message: &[u8]| Step {
            body: Body::Encoded(EncodedBody::of(block, message, Buffer::default())),
            ..Step::new(call, parts)
        };
        let begins = Parts::BEGIN | Parts::MESSAGE | Parts::END;
        rig.receive(
            SERVED,
            Step {
                method: UNARY,
                ..step(5, begins, &given, OPAQUE)
            },
        );
        let requests = rig.sent();
        let [(SERVER, request)] = &requests[..] else {
            panic!("{requests:?}");
        };
        let passed = |step: &Step| match &step.body {
            Body::Encoded(body) => (body.metadata().to_vec(), body.protobuf().map(<[u8]>::to_vec)),
            _ => panic!("{step:?}"),
        };
        assert_eq!(passed(request), (given.clone(), Some(OPAQUE.to_vec())));
        // Reserved keys say what a status is, and come with nothing else.
        let mut reserved = Vec::new();
        metadata::append(&mut reserved, metadata::STATUS_MESSAGE, b"no").unwrap();
        let long = vec![7; MESSAGE_BYTES_MAX as usize + 1];
        rig.receive(
            SERVER,
            step(request.call, Parts::MESSAGE | Parts::STATUS, &reserved, OPAQUE),
        );
        let answers = rig.sent();
        assert_eq!(passed(&answers[0].1), (reserved, Some(OPAQUE.to_vec())));
        rig.receive(
            SERVED,
            Step {
                method: UNARY,
                ..step(6, begins, &[], &[])
            },
        );
        let number = rig.sent()[0].1.call;
        rig.receive(SERVER, step(number, Parts::MESSAGE | Parts::STATUS, &[], &long));
        let (_, refused) = rig.sent().into_iter().chain(rig.sent()).last().unwrap();
        assert_eq!(status_of(&refused).0, Code::ResourceExhausted);
        assert!(rig.is_at_rest());
    });
}

/// A port with something of everything that a state has: calls with messages that wait, that the server has ended, that were not
/// begun, and a cancellation.
fn busy_rig() -> RelayRig {
    let mut rig = RelayRig::bound(RelayProcesses::One);
    for call in [5, 6, 7] {
        let begin = Step {
            method: CHAT,
            ..Step::new(call, Parts::BEGIN)
        };
        rig.receive(SERVED, begin);
    }
    rig.sent();
    for _ in 0..3 {
        let note = rig.message(5, Parts::MESSAGE, &[], &[1; 3_000]);
        rig.receive(SERVED, note);
    }
    let answer = rig.message(3, Parts::MESSAGE | Parts::STATUS, &[], b"over");
    rig.receive(SERVER, answer);
    rig.receive(SERVED, Step::cancel(7, Code::Cancelled));
    let encoded = EncodedBody::of(&[], &[0x0a, 1, 7], Buffer::default());
    rig.receive(
        SERVED,
        Step {
            method: UNARY,
            body: Body::Encoded(encoded),
            ..Step::new(8, Parts::BEGIN | Parts::MESSAGE | Parts::END)
        },
    );
    rig
}

/// What an end gets, but for window that it gets back.
fn gets(steps: &[(u32, Step)], end: u32) -> Vec<(u64, Parts)> {
    let steps = steps.iter().filter(|(connection, _)| *connection == end);
    let steps = steps.filter(|(_, step)| step.parts != Parts::WINDOW);
    steps.map(|(_, step)| (step.call, step.parts)).collect()
}

#[test]
fn another_process_sends_what_this_one_would_have_sent() {
    let (mut here, mut there) = (busy_rig(), busy_rig());
    there.replace();
    let (here_sent, there_sent) = (here.sent(), there.sent());
    for end in [SERVED, SERVER] {
        let (mut this, mut other) = (gets(&here_sent, end), gets(&there_sent, end));
        this.sort_by_key(|(call, _)| *call);
        other.sort_by_key(|(call, _)| *call);
        assert_eq!(this, other, "connection {end}");
    }
    assert_eq!(there.port.receive_heap_bytes(), here.port.receive_heap_bytes());
}

#[test]
fn calls_whose_connection_is_gone_end_with_a_status_by_which_clients_call_again() {
    let mut rig = busy_rig();
    let state = rig.state();
    rig.port = rig.restored(&state, &|connection| connection == SERVED).unwrap();
    rig.port.end_claims();
    let sent = rig.sent();
    assert!(
        sent.iter().all(|(connection, _)| *connection == SERVED),
        "{sent:?}"
    );
    let ended = |call: u64| {
        sent.iter()
            .find(|(_, step)| step.call == call && step.parts == Parts::STATUS)
    };
    let (_, status) = ended(5).expect("the call that was begun has ended");
    assert_eq!(status_of(status).0, Code::Unavailable);
    assert!(
        ended(8).is_none(),
        "the one that was not begun waits for another server"
    );
    rig.answer(Ok(SERVER + 1));
    assert_eq!(gets(&rig.sent(), SERVER + 1).len(), 1);
    // Without the node that calls, nobody is to go on.
    let alone = rig.restored(&state, &|connection| connection == SERVER).unwrap();
    assert_eq!(alone.open_calls(), 0);
}

/// The state of a port by the form that this version writes, kept for later ones: `BLESS=1` writes it.
#[test]
fn a_state_that_was_kept_is_gone_on_with() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/relay-port-1.bin");
    let mut rig = busy_rig();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, rig.state()).unwrap();
    }
    let kept = std::fs::read(path).unwrap();
    rig.port = rig.restored(&kept, &|_| true).unwrap();
    rig.port.end_claims();
    let sent = rig.sent();
    assert_eq!(gets(&sent, SERVED).len(), 1, "{sent:?}");
    assert!(rig.port.open_calls() > 0);
}

#[test]
fn a_damaged_state_is_refused_and_breaks_nothing() {
    let rig = busy_rig();
    let state = rig.state();
    for length in 0..state.len().min(4096) {
        assert!(
            rig.restored(&state[..length], &|_| true).is_err(),
            "{length} bytes"
        );
    }
    let mut random = provost_random::SeededRandom::new(1);
    for _ in 0..2000 {
        let mut damaged = state.clone();
        // What is around the messages says the most.
        let at = match random.below(2) {
            0 => random.below(state.len() as u64) as usize,
            _ => state.len() - 1 - random.below(400) as usize,
        };
        damaged[at] ^= 1 << random.below(8);
        if let Ok(mut port) = rig.restored(&damaged, &|_| true) {
            port.end_claims();
            let mut buffers = BufferPool::new();
            for _ in 0..100 {
                port.poll(rig.now);
                if port.next_request(&mut buffers).is_none() {
                    break;
                }
            }
        }
    }
}
