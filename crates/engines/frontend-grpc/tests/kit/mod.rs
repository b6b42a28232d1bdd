//! A port, the client that calls through it, and the test as the datapath behind it.

#![allow(dead_code, reason = "no test file uses all of it")]

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex};

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto,
    ServiceDescriptorProto,
};
use provost_datapath::{
    Body, Buffer, BufferPool, CompressedMessages, EncodedBody, FieldWriter, Offsets, PrivateBytes,
    ReceivedBody, Step, message_offset,
};
use provost_frontend_grpc::{
    ByteCarrier, GrpcPort, GrpcPortParts, GrpcRequest, KnownMethods, MethodBinding, NodeMethods,
    PLAIN_CARRIER, ServiceBinding, open_port_state,
};
use provost_grpc::{
    GrpcConfig, GrpcConnection, GrpcEvent, GrpcMessage, GrpcStatus, MessageEncoding, MessageForm, RequestHead,
};
use provost_http2::{Http2Config, KeepalivePolicy};
use provost_marshal::{Scratch, Tables};
use provost_schema::Schema;
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::STREAM_MESSAGE_COST_BYTES;

pub(crate) const CONNECTION: u32 = 7;
pub(crate) const MESSAGE_BYTES_MAX: u32 = 200_000;
pub(crate) const UNARY: &str = "/test.Notes/Unary";
pub(crate) const CHAT: &str = "/test.Notes/Chat";
/// Pings of a silent client.
pub(crate) const KEEPALIVE: KeepalivePolicy = KeepalivePolicy {
    interval_ns: 10_000_000_000,
    timeout_ns: 10_000_000_000,
};

/// One direction of a connection.
#[derive(Default)]
pub(crate) struct BytePipe {
    pub(crate) bytes: VecDeque<u8>,
    pub(crate) is_closed: bool,
    /// Whether the reader lets the writer write.
    pub(crate) is_stopped: bool,
    /// What was taken and leaves when it is flushed, if that is how the pipe takes bytes.
    pub(crate) kept: Option<Vec<u8>>,
}

pub(crate) type SharedPipe = Arc<Mutex<BytePipe>>;

pub(crate) struct PipeCarrier {
    from_client: SharedPipe,
    to_client: SharedPipe,
    socket: std::fs::File,
}

impl PipeCarrier {
    fn new(from_client: &SharedPipe, to_client: &SharedPipe) -> PipeCarrier {
        PipeCarrier {
            from_client: Arc::clone(from_client),
            to_client: Arc::clone(to_client),
            socket: std::fs::File::open("/dev/null").unwrap(),
        }
    }
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
        if let Some(kept) = &mut pipe.kept {
            let before = kept.len();
            pieces.iter().for_each(|piece| kept.extend_from_slice(piece));
            return Ok(kept.len() - before);
        }
        if pipe.is_stopped {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let before = pipe.bytes.len();
        pieces.iter().for_each(|piece| pipe.bytes.extend(&**piece));
        Ok(pipe.bytes.len() - before)
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut pipe = self.to_client.lock().unwrap();
        let has_kept = pipe.kept.as_ref().is_some_and(|kept| !kept.is_empty());
        if has_kept && pipe.is_stopped {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let kept = pipe.kept.as_mut().map(std::mem::take);
        pipe.bytes.extend(kept.unwrap_or_default());
        Ok(())
    }

    /// As within TLS: an end is read with the bytes before it.
    fn has_more(&self) -> bool {
        self.from_client.lock().unwrap().is_closed
    }

    fn descriptor(&self) -> RawFd {
        -1
    }

    /// Any: nobody reads it.
    fn carried_socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}

/// Whether the connection of the node that calls go over is there after a hot restart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeConnection {
    Carried,
    Gone,
}

/// A port, the client that calls through it, and the test as the datapath behind it.
pub(crate) struct PortRig {
    pub(crate) port: GrpcPort,
    pub(crate) client: GrpcConnection<Arc<[u8]>>,
    pub(crate) from_client: SharedPipe,
    pub(crate) to_client: SharedPipe,
    pub(crate) tables: Arc<Tables>,
    pub(crate) schema: Schema,
    pub(crate) share: Arc<PrivateBytes>,
    pub(crate) buffers: BufferPool,
    pub(crate) events: VecDeque<GrpcEvent>,
    pub(crate) wanted: Vec<String>,
    pub(crate) now: u64,
    /// What its connection does with compressed messages.
    pub(crate) compressed: CompressedMessages,
    /// What its connection takes of a message.
    pub(crate) message_bytes_max: u32,
}

pub(crate) fn schema() -> Schema {
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
pub(crate) struct TestNote {
    #[prost(string, tag = "1")]
    text: String,
    #[prost(uint32, tag = "2")]
    number: u32,
}

pub(crate) fn note(text: &str) -> Vec<u8> {
    let (text, number) = (text.to_owned(), 3);
    TestNote { text, number }.encode_to_vec()
}

pub(crate) fn config() -> GrpcConfig {
    GrpcConfig {
        http2: Http2Config {
            keepalive: Some(KEEPALIVE),
            ..Http2Config::default()
        },
        received_message_bytes_max: MESSAGE_BYTES_MAX,
        ..GrpcConfig::default()
    }
}

impl PortRig {
    pub(crate) fn new() -> PortRig {
        PortRig::with(NodeMethods::default())
    }

    /// One whose node answers calls of these methods.
    pub(crate) fn with(node_methods: NodeMethods) -> PortRig {
        PortRig::compressing(MessageEncoding::Identity, node_methods)
    }

    /// One whose listener compresses replies.
    pub(crate) fn compressing(compression: MessageEncoding, node_methods: NodeMethods) -> PortRig {
        let (from_client, to_client) = (SharedPipe::default(), SharedPipe::default());
        let carrier = PipeCarrier::new(&from_client, &to_client);
        let share = PrivateBytes::of_attachment(&PrivateBytes::of_node());
        let parts = GrpcPortParts {
            carrier: Box::new(carrier),
            config: config(),
            compression,
            counts: Arc::default(),
            share: Arc::clone(&share),
            receive_heap_bytes: 64 << 20,
            node_methods,
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
            compressed: CompressedMessages::Decompressed,
            message_bytes_max: MESSAGE_BYTES_MAX,
            now: 1,
        }
    }

    /// One whose service is known.
    pub(crate) fn bound() -> PortRig {
        PortRig::new().with_its_service()
    }

    pub(crate) fn with_its_service(self) -> PortRig {
        let mut rig = self;
        let call = rig.begin(RequestHead::new(UNARY));
        rig.exchange();
        assert_eq!(rig.wanted, ["test.Notes"]);
        rig.bind();
        rig.client.cancel(call, Code::Cancelled, 1).unwrap();
        rig.exchange();
        assert!(rig.take().is_none());
        rig
    }

    pub(crate) fn bind(&mut self) {
        let binding = self.binding();
        self.port.answer_service("test.Notes", Ok(binding), self.now);
    }

    /// The service is at a connection of this number, and of its methods these are known, as they were called.
    pub(crate) fn bind_opaque(&mut self, connection: u32, methods: &[&str]) {
        let mut binding = self.binding();
        let known = binding.methods.iter();
        let known = known.filter(|(name, _)| methods.contains(&name.as_str()));
        let known = known.map(|(name, method)| (name.clone(), *method)).collect();
        binding.methods = Arc::new(known);
        binding.methods_known = KnownMethods::ThoseCalled;
        binding.connection = connection;
        self.port.answer_service("test.Notes", Ok(binding), self.now);
    }

    fn binding(&self) -> ServiceBinding {
        let service = self.schema.service("test.Notes").unwrap();
        ServiceBinding {
            connection: CONNECTION,
            tables: Arc::clone(&self.tables),
            methods: Arc::new(MethodBinding::of_service(service)),
            methods_known: KnownMethods::All,
            message_bytes_max: self.message_bytes_max,
            compressed: self.compressed,
        }
    }

    /// A successor goes on in the port's place. With `carried`, its connection of the node was carried as well.
    pub(crate) fn replace(&mut self, carried: NodeConnection) {
        let state = self.state();
        self.resume(&state, carried);
    }

    /// What a successor is given of the port.
    pub(crate) fn state(&self) -> Vec<u8> {
        let mut out = FieldWriter::new();
        self.port.save(&[], &mut out).unwrap();
        out.bytes
    }

    /// Goes on with the port of this state.
    pub(crate) fn resume(&mut self, state: &[u8], carried: NodeConnection) {
        let mut fields = open_port_state(state).unwrap();
        assert_eq!(fields.u8(), Ok(PLAIN_CARRIER));
        let parts = GrpcPortParts {
            carrier: Box::new(PipeCarrier::new(&self.from_client, &self.to_client)),
            config: config(),
            compression: MessageEncoding::Identity,
            counts: Arc::default(),
            share: Arc::clone(&self.share),
            receive_heap_bytes: 64 << 20,
            node_methods: NodeMethods::default(),
        };
        let is_there = |number| carried == NodeConnection::Carried && number == CONNECTION;
        let binding_of = |number| is_there(number).then(|| self.binding());
        let mut port = GrpcPort::restore(&mut fields, parts, &binding_of, self.now).unwrap();
        fields.end().unwrap();
        port.end_claims();
        self.port = port;
    }

    pub(crate) fn begin(&mut self, head: RequestHead) -> u32 {
        self.client.call(&head, self.now).unwrap()
    }

    pub(crate) fn send(&mut self, call: u32, message: &[u8]) {
        let sent = self
            .client
            .send_message(call, MessageForm::Plain, message.into(), self.now);
        sent.map_err(|(fault, _)| fault).unwrap();
    }

    pub(crate) fn call(&mut self, path: &str, message: &[u8]) -> u32 {
        let call = self.begin(RequestHead::new(path));
        self.send(call, message);
        self.client.half_close(call, self.now).unwrap();
        self.exchange();
        call
    }

    /// Moves bytes until none move.
    pub(crate) fn exchange(&mut self) {
        loop {
            let mut moved = self.client_writes();
            self.port.note_ready();
            self.port.poll(self.now);
            let wanted = std::iter::from_fn(|| self.port.take_wanted());
            self.wanted.extend(wanted.map(|wanted| wanted.service));
            self.port.flush(self.now);
            moved |= self.client_reads();
            if !moved {
                return;
            }
        }
    }

    pub(crate) fn client_writes(&mut self) -> bool {
        self.client.fill(self.now);
        let output = self.client.copied_output();
        self.client.advance(output.len(), self.now);
        self.from_client.lock().unwrap().bytes.extend(&output);
        !output.is_empty()
    }

    pub(crate) fn client_reads(&mut self) -> bool {
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

    pub(crate) fn take(&mut self) -> Option<Step> {
        let request = self.port.next_request(&mut self.buffers);
        request.map(|GrpcRequest { connection, step }| {
            assert_eq!(connection, CONNECTION);
            step
        })
    }

    /// Metadata and message of a step for the datapath.
    pub(crate) fn read(&mut self, step: &Step) -> (Vec<u8>, Option<Vec<u8>>) {
        let Body::Encoded(body) = &step.body else {
            assert!(matches!(step.body, Body::Empty) && !step.parts.contains(Parts::MESSAGE));
            return (Vec::new(), None);
        };
        let has_message = step.parts.contains(Parts::MESSAGE);
        let message = body.protobuf().unwrap().to_vec();
        (body.metadata().to_vec(), has_message.then_some(message))
    }

    /// A step of the datapath whose message is protobuf.
    pub(crate) fn encoded_reply(call: u64, parts: Parts, metadata: &[u8], message: &[u8]) -> Step {
        let body = EncodedBody::of(metadata, message, Buffer::default());
        Step {
            body: Body::Encoded(body),
            window_bytes: message.len() as u32 + STREAM_MESSAGE_COST_BYTES,
            ..Step::new(call, parts)
        }
    }

    /// A step of the datapath, its body in the port's heap as marshalling leaves it.
    pub(crate) fn reply(&mut self, call: u64, parts: Parts, metadata: &[u8], message: Option<&[u8]>) -> Step {
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
            added: None,
            block,
            metadata_bytes: metadata.len() as u32,
            message_bytes,
            offsets: Offsets::Window,
        });
        step.window_bytes = message_bytes + STREAM_MESSAGE_COST_BYTES;
        step
    }

    pub(crate) fn push(&mut self, step: Step) {
        self.port.push_step(CONNECTION, step).unwrap();
    }

    /// How the response of a call is compressed, and its messages as they came.
    pub(crate) fn response(&mut self, of: u32) -> (MessageEncoding, Vec<GrpcMessage>) {
        self.exchange();
        let mut encoding = MessageEncoding::Identity;
        let mut messages = Vec::new();
        for event in &self.events {
            match event {
                GrpcEvent::Response { call, head } if *call == of => encoding = head.encoding,
                GrpcEvent::Message { call, message } if *call == of => messages.push(message.clone()),
                _ => {}
            }
        }
        (encoding, messages)
    }

    pub(crate) fn ended(&mut self, call: u32) -> (GrpcStatus, Vec<u8>) {
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

    pub(crate) fn messages(&self) -> Vec<Vec<u8>> {
        let messages = self.events.iter().filter_map(|event| match event {
            GrpcEvent::Message { message, .. } => Some(message.bytes.clone()),
            _ => None,
        });
        messages.collect()
    }
}
