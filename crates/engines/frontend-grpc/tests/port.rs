//! A port between a client's protocol and a datapath that the test plays, all in memory.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto,
    ServiceDescriptorProto,
};
use provost_datapath::{Body, BufferPool, Offsets, PrivateBytes, ReceivedBody, Step, message_offset};
use provost_frontend_grpc::{
    ByteCarrier, GrpcPort, GrpcPortParts, GrpcRequest, MethodBinding, ServiceBinding, ServiceRefusal,
};
use provost_grpc::{
    CallFault, EndCause, GrpcConfig, GrpcConnection, GrpcEvent, GrpcStatus, MessageEncoding, MessageForm,
    RequestHead,
};
use provost_http2::SendError;
use provost_marshal::{Scratch, Tables};
use provost_schema::Schema;
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::{STREAM_MESSAGE_COST_BYTES, STREAM_WINDOW_BYTES};
use provost_wire::metadata;

const CONNECTION: u32 = 7;
const MESSAGE_BYTES_MAX: u32 = 200_000;
const UNARY: &str = "/test.Notes/Unary";
const CHAT: &str = "/test.Notes/Chat";

/// One direction of a connection.
#[derive(Default)]
struct BytePipe {
    bytes: VecDeque<u8>,
    is_closed: bool,
    /// Whether the reader lets the writer write.
    is_stopped: bool,
}

type SharedPipe = Arc<Mutex<BytePipe>>;

struct PipeCarrier {
    from_client: SharedPipe,
    to_client: SharedPipe,
}

impl ByteCarrier for PipeCarrier {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut pipe = self.from_client.lock().unwrap();
        let count = pipe.bytes.len().min(into.len());
        if count == 0 && !pipe.is_closed {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        for (place, byte) in into.iter_mut().zip(pipe.bytes.drain(..count)) {
            *place = byte;
        }
        Ok(count)
    }

    fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut pipe = self.to_client.lock().unwrap();
        if pipe.is_stopped {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let before = pipe.bytes.len();
        pieces.iter().for_each(|piece| pipe.bytes.extend(&**piece));
        Ok(pipe.bytes.len() - before)
    }

    fn descriptor(&self) -> RawFd {
        -1
    }
}

/// A port, the client that calls through it, and the test as the datapath behind it.
struct PortRig {
    port: GrpcPort,
    client: GrpcConnection<Arc<[u8]>>,
    from_client: SharedPipe,
    to_client: SharedPipe,
    tables: Arc<Tables>,
    schema: Schema,
    share: Arc<PrivateBytes>,
    buffers: BufferPool,
    events: VecDeque<GrpcEvent>,
    wanted: Vec<String>,
    now: u64,
}

fn schema() -> Schema {
    let field = |name: &str, number, ty: Type| FieldDescriptorProto {
        name: Some(name.into()),
        number: Some(number),
        label: Some(Label::Optional.into()),
        r#type: Some(ty.into()),
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
            field: vec![field("text", 1, Type::String), field("number", 2, Type::Uint32)],
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
    Schema::from_descriptor_set(&set.encode_to_vec()).unwrap()
}

#[derive(Clone, PartialEq, prost::Message)]
struct TestNote {
    #[prost(string, tag = "1")]
    text: String,
    #[prost(uint32, tag = "2")]
    number: u32,
}

fn note(text: &str) -> Vec<u8> {
    let (text, number) = (text.to_owned(), 3);
    TestNote { text, number }.encode_to_vec()
}

fn config() -> GrpcConfig {
    GrpcConfig {
        received_message_bytes_max: MESSAGE_BYTES_MAX,
        ..GrpcConfig::default()
    }
}

impl PortRig {
    fn new() -> PortRig {
        let (from_client, to_client) = (SharedPipe::default(), SharedPipe::default());
        let carrier = PipeCarrier {
            from_client: Arc::clone(&from_client),
            to_client: Arc::clone(&to_client),
        };
        let share = PrivateBytes::of_attachment(&PrivateBytes::of_node());
        let parts = GrpcPortParts {
            carrier: Box::new(carrier),
            config: config(),
            share: Arc::clone(&share),
            receive_heap_bytes: 64 << 20,
        };
        let schema = schema();
        PortRig {
            port: GrpcPort::new(parts, 1),
            client: GrpcConnection::client(GrpcConfig::default(), 1),
            from_client,
            to_client,
            tables: Arc::new(Tables::compile(&schema).unwrap()),
            schema,
            share,
            buffers: BufferPool::new(),
            events: VecDeque::new(),
            wanted: Vec::new(),
            now: 1,
        }
    }

    /// One whose service is known.
    fn bound() -> PortRig {
        let mut rig = PortRig::new();
        let call = rig.begin(RequestHead::new(UNARY));
        rig.exchange();
        assert_eq!(rig.wanted, ["test.Notes"]);
        rig.bind();
        rig.client.cancel(call, Code::Cancelled, 1).unwrap();
        rig.exchange();
        assert!(rig.take().is_none());
        rig
    }

    fn bind(&mut self) {
        let service = self.schema.service("test.Notes").unwrap();
        let binding = ServiceBinding {
            connection: CONNECTION,
            tables: Arc::clone(&self.tables),
            methods: Arc::new(MethodBinding::of_service(service)),
            message_bytes_max: MESSAGE_BYTES_MAX,
        };
        self.port.answer_service("test.Notes", Ok(binding), self.now);
    }

    fn begin(&mut self, head: RequestHead) -> u32 {
        self.client.call(&head, self.now).unwrap()
    }

    fn send(&mut self, call: u32, message: &[u8]) {
        let sent = self
            .client
            .send_message(call, MessageForm::Plain, message.into(), self.now);
        sent.map_err(|(fault, _)| fault).unwrap();
    }

    fn call(&mut self, path: &str, message: &[u8]) -> u32 {
        let call = self.begin(RequestHead::new(path));
        self.send(call, message);
        self.client.half_close(call, self.now).unwrap();
        self.exchange();
        call
    }

    /// Moves bytes until none move.
    fn exchange(&mut self) {
        loop {
            let mut moved = self.client_writes();
            self.port.note_ready();
            self.port.poll(self.now);
            self.wanted.extend(std::iter::from_fn(|| self.port.take_wanted()));
            self.port.flush(self.now);
            moved |= self.client_reads();
            if !moved {
                return;
            }
        }
    }

    fn client_writes(&mut self) -> bool {
        self.client.fill(self.now);
        let output = self.client.copied_output();
        self.client.advance(output.len(), self.now);
        self.from_client.lock().unwrap().bytes.extend(&output);
        !output.is_empty()
    }

    fn client_reads(&mut self) -> bool {
        let mut pipe = self.to_client.lock().unwrap();
        if pipe.is_stopped {
            return false;
        }
        let bytes: Vec<u8> = pipe.bytes.drain(..).collect();
        drop(pipe);
        let mut rest = &bytes[..];
        while let Ok(received) = self.client.receive(rest, self.now) {
            rest = &rest[received.consumed..];
            let Some(event) = received.event else { break };
            if let GrpcEvent::Message { call, message } = &event {
                self.client.consume(*call, message.bytes.len());
            }
            self.events.push_back(event);
        }
        !bytes.is_empty()
    }

    fn take(&mut self) -> Option<Step> {
        let request = self.port.next_request(&mut self.buffers);
        request.map(|GrpcRequest { connection, step }| {
            assert_eq!(connection, CONNECTION);
            step
        })
    }

    /// Metadata and text of a step for the datapath, which must be a good native message.
    fn read(&mut self, step: &Step) -> (Vec<u8>, Option<Vec<u8>>) {
        let Body::Gathered(body) = &step.body else {
            assert!(matches!(step.body, Body::Empty) && !step.parts.contains(Parts::MESSAGE));
            return (Vec::new(), None);
        };
        let metadata = body.buffer.bytes[..body.metadata_bytes as usize].to_vec();
        if !step.parts.contains(Parts::MESSAGE) {
            return (metadata, None);
        }
        let native = &body.buffer.bytes[message_offset(body.metadata_bytes)..];
        assert_eq!(native.len(), body.message_bytes as usize);
        let id = self.schema.services[0].methods[0].input;
        self.tables.validate(id, native).unwrap();
        let mut protobuf = Vec::new();
        self.tables.encode(id, native, &mut protobuf).unwrap();
        (metadata, Some(protobuf))
    }

    /// A step of the datapath, its body in the port's heap as marshalling leaves it.
    fn reply(&mut self, call: u64, parts: Parts, metadata: &[u8], message: Option<&[u8]>) -> Step {
        let mut bytes = metadata.to_vec();
        bytes.resize(message_offset(metadata.len() as u32), 0);
        let offset = bytes.len();
        let id = self.schema.services[0].methods[0].output;
        if let Some(protobuf) = message {
            let mut scratch = Scratch::default();
            self.tables
                .decode(id, protobuf, &mut bytes, u32::MAX, &mut scratch)
                .unwrap();
        }
        let (heap, _) = self.port.lend();
        let mut block = heap.allocate(bytes.len() as u32).unwrap();
        let window_at = block.at + (offset / 8) as u32;
        let place = heap.bytes_mut(&mut block);
        place.copy_from_slice(&bytes);
        let message_bytes = (place.len() - offset) as u32;
        if message.is_some() {
            self.tables
                .validate_and_relocate(id, &mut place[offset..], window_at)
                .unwrap();
        }
        let mut step = Step::new(call, parts);
        step.body = Body::Received(ReceivedBody {
            block,
            metadata_bytes: metadata.len() as u32,
            message_bytes,
            offsets: Offsets::Window,
        });
        step.window_bytes = message_bytes + STREAM_MESSAGE_COST_BYTES;
        step
    }

    fn push(&mut self, step: Step) {
        self.port.push_step(CONNECTION, step).unwrap();
    }

    fn ended(&mut self, call: u32) -> (GrpcStatus, Vec<u8>) {
        self.exchange();
        let ended = self.events.iter().find_map(|event| match event {
            GrpcEvent::Ended {
                call: of,
                status,
                metadata,
                ..
            } if *of == call => Some((status.clone(), metadata.clone())),
            _ => None,
        });
        ended.unwrap_or_else(|| panic!("the call goes on: {:?}", self.events))
    }

    fn messages(&self) -> Vec<Vec<u8>> {
        let messages = self.events.iter().filter_map(|event| match event {
            GrpcEvent::Message { message, .. } => Some(message.bytes.clone()),
            _ => None,
        });
        messages.collect()
    }
}

fn block(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut block = Vec::new();
    for (key, value) in entries {
        metadata::append(&mut block, key, value).unwrap();
    }
    block
}

#[test]
fn a_unary_call_is_one_step_and_one_reply() {
    let mut rig = PortRig::bound();
    let sent = block(&[("color", b"blue"), ("raw-bin", &[0, 255])]);
    let call = rig.begin(RequestHead {
        metadata: sent.clone(),
        timeout_ns: Some(5_000_000_000),
        ..RequestHead::new(UNARY)
    });
    rig.send(call, &note("hello"));
    rig.exchange();
    assert!(rig.take().is_none(), "it has not ended its request");
    rig.client.half_close(call, 1).unwrap();
    rig.exchange();
    let step = rig.take().unwrap();
    assert_eq!(step.parts, Parts::BEGIN | Parts::MESSAGE | Parts::END);
    assert_eq!((step.method, step.deadline), (0, 5_000_000_001));
    assert_eq!(rig.read(&step), (sent, Some(note("hello"))));

    let head = block(&[("shape", b"round")]);
    let step_head = rig.reply(step.call, Parts::HEADERS, &head, None);
    rig.push(step_head);
    let trailers = block(&[("size", b"3"), (metadata::STATUS_MESSAGE, b"so")]);
    let mut last = rig.reply(
        step.call,
        Parts::MESSAGE | Parts::STATUS,
        &trailers,
        Some(&note("back")),
    );
    last.status = Code::DataLoss;
    rig.push(last);
    let (status, metadata) = rig.ended(call);
    assert_eq!(status, GrpcStatus::new(Code::DataLoss, "so"));
    assert_eq!(metadata, block(&[("size", b"3")]));
    assert_eq!(rig.messages(), [note("back")]);
    let got_head = rig
        .events
        .iter()
        .any(|event| matches!(event, GrpcEvent::Response { head: got, .. } if got.metadata == head));
    assert!(got_head, "{:?}", rig.events);
    // The datapath has ended it: there is nothing to tell it, and nothing is left.
    assert!(rig.take().is_none());
    assert_eq!((rig.port.open_calls(), rig.port.receive_heap_bytes()), (0, 0));
}

#[test]
fn streams_are_passed_message_by_message() {
    let mut rig = PortRig::bound();
    let call = rig.begin(RequestHead::new(CHAT));
    rig.exchange();
    let begin = rig.take().unwrap();
    assert_eq!((begin.parts, begin.method), (Parts::BEGIN, 1));
    let mut texts = Vec::new();
    for text in ["one", "two", "three"] {
        rig.send(call, &note(text));
        rig.exchange();
        let step = rig.take().unwrap();
        assert_eq!(step.parts, Parts::MESSAGE);
        texts.push(rig.read(&step).1.unwrap());
        let back = rig.reply(begin.call, Parts::MESSAGE, &[], Some(&note(text)));
        let cost = back.window_bytes;
        rig.push(back);
        rig.exchange();
        // What the client was sent is given back.
        let window = rig.take().unwrap();
        assert_eq!((window.parts, window.window_bytes), (Parts::WINDOW, cost));
    }
    assert_eq!(texts, rig.messages());
    rig.client.half_close(call, 1).unwrap();
    rig.exchange();
    assert_eq!(rig.take().unwrap().parts, Parts::END);
    let end = Step::new(begin.call, Parts::STATUS);
    rig.push(end);
    assert_eq!(rig.ended(call).0, GrpcStatus::ok());
}

#[test]
fn calls_wait_for_their_service_and_are_refused_by_name() {
    let mut rig = PortRig::new();
    let first = rig.call(UNARY, &note("a"));
    let second = rig.call(UNARY, &note("b"));
    let other = rig.call("/test.Other/Call", b"");
    assert_eq!(rig.wanted, ["test.Notes", "test.Other"]);
    assert!(rig.take().is_none());
    let refusal = ServiceRefusal {
        code: Code::Unimplemented,
        message: "nobody offers test.Other".into(),
    };
    rig.port
        .answer_service("test.Other", Err(refusal.clone()), rig.now);
    assert_eq!(
        rig.ended(other).0,
        GrpcStatus::new(Code::Unimplemented, &*refusal.message)
    );
    rig.bind();
    let numbers: Vec<u64> = std::iter::from_fn(|| rig.take()).map(|step| step.call).collect();
    assert_eq!(numbers, [1, 2]);
    for number in numbers {
        rig.push(Step::new(number, Parts::STATUS));
    }
    assert_eq!(rig.ended(first).0, rig.ended(second).0);

    // For a while, nobody is asked again.
    let again = rig.call("/test.Other/Call", b"");
    assert_eq!(
        (rig.ended(again).0.code, rig.wanted.len()),
        (Code::Unimplemented, 2)
    );
    rig.now += 2_000_000_000;
    rig.call("/test.Other/Call", b"");
    assert_eq!(rig.wanted.len(), 3);

    let missing = rig.call("/test.Notes/Missing", b"");
    let status = rig.ended(missing).0;
    assert_eq!(status.code, Code::Unimplemented);
    assert!(
        status.message.contains("test.Notes has no method Missing"),
        "{status:?}"
    );
    let pathless = rig.call("/nothing", b"");
    assert_eq!(rig.ended(pathless).0.code, Code::Unimplemented);
}

#[test]
fn services_of_a_connection_are_bounded() {
    let mut rig = PortRig::new();
    for number in 0..300 {
        let call = rig.call(&format!("/test.S{number}/Call"), b"");
        let refused = number >= 256;
        let is_told = |event: &GrpcEvent| matches!(event, GrpcEvent::Ended { call: of, status, .. } if *of == call && status.code == Code::ResourceExhausted);
        assert_eq!(rig.events.iter().any(is_told), refused, "{number}");
    }
    assert_eq!(rig.wanted.len(), 256);
}

#[test]
fn cancellations_and_deadlines_reach_the_datapath() {
    let mut rig = PortRig::bound();
    let cancelled = rig.call(UNARY, &note("a"));
    let number = rig.take().unwrap().call;
    rig.client.cancel(cancelled, Code::Cancelled, 1).unwrap();
    rig.exchange();
    let step = rig.take().unwrap();
    assert_eq!(
        (step.call, step.parts, step.status),
        (number, Parts::CANCEL, Code::Cancelled)
    );
    // What comes for it goes nowhere.
    let late = rig.reply(number, Parts::MESSAGE | Parts::STATUS, &[], Some(&note("late")));
    rig.push(late);
    assert_eq!(rig.port.receive_heap_bytes(), 0);

    let late = rig.begin(RequestHead {
        timeout_ns: Some(1_000),
        ..RequestHead::new(UNARY)
    });
    rig.send(late, &note("b"));
    rig.client.half_close(late, 1).unwrap();
    rig.exchange();
    let number = rig.take().unwrap().call;
    assert_eq!(rig.port.wake_at().map(|at| at <= rig.now + 1_000), Some(true));
    rig.now += 2_000;
    rig.port.poll(rig.now);
    let step = rig.take().unwrap();
    assert_eq!(
        (step.call, step.parts, step.status),
        (number, Parts::CANCEL, Code::DeadlineExceeded)
    );

    // One that its datapath has not heard of is just forgotten.
    let waiting = rig.begin(RequestHead::new(UNARY));
    rig.exchange();
    rig.client.cancel(waiting, Code::Cancelled, rig.now).unwrap();
    rig.exchange();
    assert!(rig.take().is_none());
    assert_eq!(rig.port.open_calls(), 0);
}

#[test]
fn requests_that_are_malformed_fail_alone() {
    let mut rig = PortRig::bound();
    let wrong = rig.call(UNARY, &[0xff, 0xff]);
    assert!(rig.take().is_none());
    assert_eq!(rig.ended(wrong).0.code, Code::Internal);

    let none = rig.begin(RequestHead::new(UNARY));
    rig.client.half_close(none, 1).unwrap();
    rig.exchange();
    assert!(rig.take().is_none());
    assert_eq!(rig.ended(none).0.code, Code::Internal);

    let two = rig.begin(RequestHead::new(UNARY));
    rig.send(two, &note("a"));
    rig.send(two, &note("b"));
    rig.exchange();
    assert!(rig.take().is_none());
    assert_eq!(rig.ended(two).0.code, Code::Internal);

    let long = rig.call(UNARY, &note(&"x".repeat(MESSAGE_BYTES_MAX as usize)));
    assert_eq!(rig.ended(long).0.code, Code::ResourceExhausted);
    let good = rig.call(UNARY, &note("good"));
    let number = rig.take().unwrap().call;
    rig.push(Step::new(number, Parts::STATUS));
    assert_eq!(rig.ended(good).0, GrpcStatus::ok());
}

#[test]
fn compressed_requests_are_decompressed_within_the_bound() {
    let mut rig = PortRig::bound();
    for (length, code) in [
        (1_000, Code::Ok),
        (MESSAGE_BYTES_MAX as usize + 1, Code::ResourceExhausted),
    ] {
        let message = note(&"x".repeat(length));
        let encoding = MessageEncoding::Gzip;
        let call = rig.begin(RequestHead {
            encoding,
            ..RequestHead::new(UNARY)
        });
        let compressed = encoding.compress(&message);
        assert!(compressed.len() < 2_000);
        let sent = rig
            .client
            .send_message(call, MessageForm::Compressed, compressed.into(), 1);
        sent.map_err(|(fault, _)| fault).unwrap();
        rig.client.half_close(call, 1).unwrap();
        rig.exchange();
        if let Some(step) = rig.take() {
            assert_eq!(rig.read(&step).1, Some(message));
            rig.push(Step::new(step.call, Parts::STATUS));
        }
        assert_eq!(rig.ended(call).0.code, code);
    }
}

#[test]
fn a_datapath_that_does_not_read_stops_the_client() {
    let mut rig = PortRig::bound();
    let call = rig.begin(RequestHead::new(CHAT));
    let message = note(&"x".repeat(50_000));
    let (mut sent, mut taken) = (0, 0);
    // Nothing gives the window back.
    for _ in 0..300 {
        let sending = rig
            .client
            .send_message(call, MessageForm::Plain, message.clone().into(), 1);
        sent += usize::from(sending.is_ok());
        rig.exchange();
        while let Some(step) = rig.take() {
            taken += usize::from(step.parts.contains(Parts::MESSAGE));
        }
    }
    let in_window = STREAM_WINDOW_BYTES as usize / 50_000;
    assert!(
        (in_window..=in_window + 1).contains(&taken),
        "{taken} messages went on"
    );
    assert!(sent < 60, "{sent} messages left the client");
    // The reader reads on: so does the client.
    let mut window = Step::new(2, Parts::WINDOW);
    window.window_bytes = STREAM_WINDOW_BYTES;
    rig.push(window);
    let more = std::iter::from_fn(|| rig.take()).count();
    assert!(more >= in_window - 1, "{more}");
}

#[test]
fn messages_that_wait_are_bounded_however_small_they_are() {
    let mut rig = PortRig::bound();
    let calls = [(); 3].map(|()| rig.begin(RequestHead::new(CHAT)));
    // The windows of two calls let in more than the connection has room for, beside what they count.
    for _ in 0..150_000 {
        for call in calls {
            let sending = rig
                .client
                .send_message(call, MessageForm::Plain, (*b"").into(), 1);
            if let Err((CallFault::Http2(SendError::QueueFull), _)) = sending {
                rig.exchange();
            }
        }
    }
    rig.exchange();
    let is_refused = |event: &&GrpcEvent| match event {
        GrpcEvent::Ended { status, .. } => {
            assert_eq!(status.code, Code::ResourceExhausted);
            assert!(status.message.contains("messages that wait"), "{status:?}");
            true
        }
        _ => false,
    };
    let refused = rig.events.iter().filter(is_refused).count();
    assert!((1..3).contains(&refused), "{refused} calls were refused");
    // Those that go on give back what they took.
    for call in calls {
        let _ = rig.client.cancel(call, Code::Cancelled, 1);
    }
    rig.exchange();
    let call = rig.call(UNARY, &note("room again"));
    let taken: Vec<Step> = std::iter::from_fn(|| rig.take()).collect();
    let number = taken.last().unwrap().call;
    rig.push(Step::new(number, Parts::STATUS));
    assert_eq!(rig.ended(call).0, GrpcStatus::ok());
}

#[test]
fn a_client_that_does_not_read_stops_the_datapath() {
    let mut rig = PortRig::bound();
    let call = rig.begin(RequestHead::new(CHAT));
    rig.exchange();
    let number = rig.take().unwrap().call;
    rig.to_client.lock().unwrap().is_stopped = true;
    let message = note(&"x".repeat(100_000));
    let (mut pushed, mut given_back) = (0, 0u64);
    let refused = loop {
        let step = rig.reply(number, Parts::MESSAGE, &[], Some(&message));
        if let Err(step) = rig.port.push_step(CONNECTION, step) {
            break step;
        }
        rig.exchange();
        given_back += rig.take().map_or(0, |step| u64::from(step.window_bytes));
        pushed += 1;
        assert!(pushed < 10_000, "the datapath is never stopped");
    };
    // An honest server stops long before that: its stream's window is not given back.
    assert!(given_back < 1 << 20, "{given_back}");
    assert!(rig.share.held() < (128 << 20) + (1 << 20), "{}", rig.share.held());
    assert!(rig.port.blocked_since().is_some());
    rig.to_client.lock().unwrap().is_stopped = false;
    rig.exchange();
    rig.push(refused);
    rig.push(Step::new(number, Parts::STATUS));
    assert_eq!(rig.ended(call).0, GrpcStatus::ok());
    assert_eq!(rig.messages().len(), pushed + 1);
    assert_eq!((rig.share.held(), rig.port.receive_heap_bytes()), (0, 0));
    assert!(rig.port.blocked_since().is_none());
}

#[test]
fn replies_count_until_the_socket_has_taken_them() {
    let mut rig = PortRig::bound();
    rig.begin(RequestHead::new(CHAT));
    rig.exchange();
    let number = rig.take().unwrap().call;
    rig.to_client.lock().unwrap().is_stopped = true;
    let reply = rig.reply(number, Parts::MESSAGE, &[], Some(&note(&"x".repeat(100_000))));
    rig.push(reply);
    rig.exchange();
    // It is in the queue of its stream.
    assert!(rig.share.held() >= 100_000, "{}", rig.share.held());
    rig.to_client.lock().unwrap().is_stopped = false;
    rig.exchange();
    assert_eq!((rig.messages().len(), rig.share.held()), (1, 0));
}

#[test]
fn replies_count_however_small_they_are() {
    const REPLIES: usize = 5_000;
    let mut rig = PortRig::bound();
    rig.begin(RequestHead::new(CHAT));
    rig.exchange();
    let number = rig.take().unwrap().call;
    rig.to_client.lock().unwrap().is_stopped = true;
    for _ in 0..REPLIES {
        let reply = rig.reply(number, Parts::MESSAGE, &[], Some(b""));
        rig.push(reply);
    }
    // Each takes an allocation and its places in queues.
    assert!(rig.share.held() >= 100 * REPLIES as u64, "{}", rig.share.held());
    // Others use the rest of the share.
    let others = rig.share.charge(128 << 20);
    let reply = rig.reply(number, Parts::MESSAGE, &[], Some(b""));
    let refused = rig.port.push_step(CONNECTION, reply).unwrap_err();
    assert!(rig.port.blocked_since().is_some());
    drop(others);
    rig.push(refused);
    rig.to_client.lock().unwrap().is_stopped = false;
    rig.exchange();
    assert_eq!((rig.messages().len(), rig.share.held()), (REPLIES + 1, 0));
}

#[test]
fn calls_of_a_lost_connection_are_cancelled() {
    let mut rig = PortRig::bound();
    rig.call(UNARY, &note("a"));
    rig.call(UNARY, &note("b"));
    let numbers = [rig.take().unwrap().call, rig.take().unwrap().call];
    rig.call(UNARY, &note("never begun"));
    rig.from_client.lock().unwrap().is_closed = true;
    rig.exchange();
    assert_eq!(rig.port.ended(), None, "cancellations are to be taken first");
    let cancelled = [rig.take().unwrap(), rig.take().unwrap()];
    assert_eq!(
        cancelled.map(|step| (step.call, step.parts)),
        numbers.map(|number| (number, Parts::CANCEL))
    );
    assert!(rig.take().is_none());
    assert!(rig.port.ended().unwrap().contains("closed"));
    assert!(rig.port.interest().is_none());
}

#[test]
fn a_client_that_speaks_no_http2_is_sent_off() {
    let mut rig = PortRig::new();
    rig.from_client
        .lock()
        .unwrap()
        .bytes
        .extend(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    rig.exchange();
    assert!(
        rig.port.ended().unwrap().contains("HTTP/2"),
        "{:?}",
        rig.port.ended()
    );
}

#[test]
fn a_drained_connection_ends_with_its_last_call() {
    let mut rig = PortRig::bound();
    let call = rig.call(UNARY, &note("a"));
    let number = rig.take().unwrap().call;
    rig.port.drain(rig.now);
    rig.exchange();
    assert!(rig.events.contains(&GrpcEvent::Draining));
    assert!(rig.port.ended().is_none());
    rig.push(Step::new(number, Parts::STATUS));
    assert_eq!(rig.ended(call).0, GrpcStatus::ok());
    rig.exchange();
    assert!(rig.port.ended().unwrap().contains("drained"));
}

#[test]
fn calls_of_a_connection_that_ended_fail_and_others_ask_anew() {
    let mut rig = PortRig::bound();
    let call = rig.call(UNARY, &note("a"));
    rig.take().unwrap();
    rig.port.going_away(CONNECTION);
    let next = rig.call(UNARY, &note("b"));
    assert_eq!(rig.wanted, ["test.Notes", "test.Notes"]);
    rig.port.closed(CONNECTION, Code::Ok);
    assert_eq!(rig.ended(call).0.code, Code::Unavailable);
    rig.bind();
    let number = rig.take().unwrap().call;
    rig.push(Step::new(number, Parts::STATUS));
    assert_eq!(rig.ended(next).0, GrpcStatus::ok());
    let lost = |event: &GrpcEvent| {
        matches!(
            event,
            GrpcEvent::Ended {
                cause: EndCause::Lost,
                ..
            }
        )
    };
    assert!(!rig.events.iter().any(lost));
}
