//! The engine between two queues in each direction: what passes, what is refused, and that nothing is lost.

use std::num::NonZeroUsize;
use std::sync::Arc;

use prost::Message as _;
use provost_datapath::{
    ATTACHMENT_PRIVATE_BYTES_MAX, Body, BodyForm, Buffer, BufferPool, Context, EncodedBody, Engine,
    FlowHints, ForeignBytes, Gathered, HeapFull, InPlace, Keepalive, KeptMemory, Nanos, Offsets, Ports,
    PrivateBytes, PrivateCharge, Progress, Queue, ReceiveHeap, ReceivedBlock, ReceivedBody, SocketHint, Step,
    message_offset,
};
use provost_marshal::{Scratch, Tables};
use provost_marshalling::{Binding, Encoding, Marshalling, MethodTypes, Side};
use provost_schema::{MessageId, Schema};
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::MESSAGE_BYTES_MAX;
use provost_wire::metadata;

const PROTO: &str = "
    syntax = \"proto3\";
    message Ask { string name = 1; bytes data = 2; }
    message Answer { repeated string names = 1; }
    message Flags { repeated bool flags = 536870911 [packed = false]; }
    service Oracle { rpc Tell(Ask) returns (Answer); rpc Raise(Flags) returns (Answer); }
";
const BLOCK_AT: u32 = 4096;
const QUEUE_BOUND: usize = 4;
const TOKEN: u64 = 55;

/// A receive heap that keeps every block apart.
#[derive(Default)]
struct Heap {
    blocks: Vec<Option<Vec<u8>>>,
    full: bool,
}

impl Heap {
    fn held(&self) -> usize {
        self.blocks.iter().flatten().count()
    }
}

fn place(block: &ReceivedBlock) -> usize {
    ((block.at - BLOCK_AT) / 1024) as usize
}

impl ReceiveHeap for Heap {
    fn allocate(&mut self, bytes: u32) -> Result<ReceivedBlock, HeapFull> {
        if self.full {
            return Err(HeapFull);
        }
        self.blocks.push(Some(vec![0; bytes as usize]));
        Ok(ReceivedBlock {
            at: BLOCK_AT + (self.blocks.len() as u32 - 1) * 1024,
            bytes,
        })
    }

    fn bytes_mut(&mut self, block: &mut ReceivedBlock) -> &mut [u8] {
        self.blocks[place(block)].as_mut().expect("the block is held")
    }

    fn free(&mut self, block: ReceivedBlock) {
        assert!(
            self.blocks[place(&block)].take().is_some(),
            "a block is freed once"
        );
    }
}

/// An engine, the queues around it and what a runtime lends it.
struct Rig {
    engine: Box<Marshalling>,
    binding: Binding,
    tx_in: Queue<Step>,
    tx_out: Queue<Step>,
    rx_in: Queue<Step>,
    rx_out: Queue<Step>,
    heap: Heap,
    buffers: BufferPool,
    sent: Vec<u64>,
    now: Nanos,
}

impl Rig {
    fn new(side: Side, encoding: Encoding) -> Rig {
        Rig::with(binding(side, encoding))
    }

    /// Of an app whose messages are protobuf.
    fn of_protobuf(side: Side, encoding: Encoding) -> Rig {
        Rig::with(Binding {
            form: BodyForm::Protobuf,
            ..binding(side, encoding)
        })
    }

    fn with(binding: Binding) -> Rig {
        let queue = || Queue::with_bound(QUEUE_BOUND);
        Rig {
            engine: Box::new(Marshalling::new(binding.clone())),
            binding,
            tx_in: queue(),
            tx_out: queue(),
            rx_in: queue(),
            rx_out: queue(),
            heap: Heap::default(),
            buffers: BufferPool::new(),
            sent: Vec::new(),
            now: 0,
        }
    }

    fn work(&mut self) -> Progress {
        let ports = Ports {
            tx_in: &mut self.tx_in,
            tx_out: &mut self.tx_out,
            rx_in: &mut self.rx_in,
            rx_out: &mut self.rx_out,
        };
        let mut context = Context {
            socket: SocketHint::Skip,
            flow: FlowHints::default(),
            now: self.now,
            buffers: &mut self.buffers,
            receive: &mut self.heap,
            sent: &mut self.sent,
        };
        self.engine.do_work(ports, &mut context)
    }

    fn tx(&mut self, step: Step) {
        self.tx_in.push(step).unwrap();
        self.work();
    }

    fn rx(&mut self, step: Step) {
        self.rx_in.push(step).unwrap();
        self.work();
    }

    /// A step whose metadata and message were received into the heap.
    fn received(&mut self, call: u64, parts: Parts, metadata: &[u8], message: &[u8]) -> Step {
        let bytes = joined(metadata, message);
        let mut block = self.heap.allocate(bytes.len() as u32).unwrap();
        self.heap.bytes_mut(&mut block).copy_from_slice(&bytes);
        let body = Body::Received(ReceivedBody {
            added: None,
            block,
            metadata_bytes: metadata.len() as u32,
            message_bytes: message.len() as u32,
            offsets: Offsets::Message,
        });
        Step {
            body,
            ..Step::new(call, parts)
        }
    }

    /// Begins a call of the only method, as the client's app or as the peer of a server does.
    fn begin(&mut self, call: u64) {
        match self.binding.side {
            Side::Client => self.tx(Step::new(call, Parts::BEGIN)),
            Side::Server => self.rx(Step::new(call, Parts::BEGIN)),
        }
        assert!(self.tx_out.pop().or(self.rx_out.pop()).is_some());
    }

    fn upgrade(self) -> Rig {
        let state = self.engine.save(&mut InPlace::new(|_, _| {}));
        let engine = Marshalling::restore(&state, self.binding.clone(), &mut KeptMemory::default()).unwrap();
        Rig {
            engine: Box::new(engine),
            ..Rig::new(self.binding.side, self.binding.encoding)
        }
    }
}

fn binding(side: Side, encoding: Encoding) -> Binding {
    let (tables, methods) = service();
    Binding {
        tables,
        methods,
        side,
        form: BodyForm::Native,
        encoding,
        message_bytes_max: 1 << 20,
        share: PrivateBytes::of_connection(&PrivateBytes::of_attachment(&PrivateBytes::of_node())),
    }
}

fn service() -> (Arc<Tables>, Arc<[MethodTypes]>) {
    struct One(protox::file::File);
    impl protox::file::FileResolver for One {
        fn open_file(&self, _name: &str) -> Result<protox::file::File, protox::Error> {
            Ok(self.0.clone())
        }
    }
    let file = protox::file::File::from_source("oracle.proto", PROTO).unwrap();
    let mut compiler = protox::Compiler::with_file_resolver(One(file));
    compiler.open_file("oracle.proto").unwrap();
    let schema = Schema::from_descriptor_set(&compiler.file_descriptor_set().encode_to_vec()).unwrap();
    let methods = schema.services[0].methods.iter();
    let methods = methods.map(|method| MethodTypes {
        input: method.input,
        output: method.output,
    });
    (Arc::new(Tables::compile(&schema).unwrap()), methods.collect())
}

fn ask(binding: &Binding) -> MessageId {
    binding.methods[0].input
}

fn answer(binding: &Binding) -> MessageId {
    binding.methods[0].output
}

/// Protobuf of an `Ask` or, with more than one name, of an `Answer`.
fn names(names: &[&str]) -> Vec<u8> {
    names
        .iter()
        .flat_map(|name| [&[0x0a, name.len() as u8][..], name.as_bytes()].concat())
        .collect()
}

fn native(binding: &Binding, message: MessageId, protobuf: &[u8]) -> Vec<u8> {
    let mut out = vec![];
    binding
        .tables
        .decode(message, protobuf, &mut out, 1 << 20, &mut Scratch::default())
        .unwrap();
    out
}

fn joined(metadata: &[u8], message: &[u8]) -> Vec<u8> {
    let mut bytes = metadata.to_vec();
    bytes.resize(message_offset(metadata.len() as u32), 0);
    bytes.extend(message);
    bytes
}

fn gathered(metadata: &[u8], message: &[u8]) -> Body {
    Body::Gathered(Gathered {
        buffer: Buffer::from(joined(metadata, message)),
        metadata_bytes: metadata.len() as u32,
        message_bytes: message.len() as u32,
        token: TOKEN,
    })
}

fn user() -> Vec<u8> {
    let mut block = vec![];
    metadata::append(&mut block, "x-user", b"ann").unwrap();
    block
}

/// The step is a cancellation; why.
fn reason(step: Option<Step>, call: u64, code: Code) -> String {
    let step = step.expect("there is a step");
    assert_eq!((step.call, step.parts, step.status), (call, Parts::CANCEL, code));
    let Body::Encoded(body) = step.body else {
        panic!("it says why")
    };
    let block = &body.buffer.bytes[..body.metadata_bytes as usize];
    let (key, value) = metadata::entries(block).next().expect("it says why");
    assert_eq!(key, metadata::STATUS_MESSAGE);
    String::from_utf8(value.to_vec()).unwrap()
}

#[test]
fn a_received_message_is_relocated_behind_its_metadata() {
    let mut rig = Rig::new(Side::Client, Encoding::Native);
    rig.begin(1);
    let message = native(&rig.binding, answer(&rig.binding), &names(&["one", "two"]));
    let step = rig.received(1, Parts::MESSAGE | Parts::STATUS, &user(), &message);
    rig.rx(step);
    let Some(Step {
        body: Body::Received(mut body),
        ..
    }) = rig.rx_out.pop()
    else {
        panic!("it passes")
    };
    let offset = message_offset(body.metadata_bytes);
    let mut expected = message.clone();
    let window_at = body.block.at + offset as u32 / 8;
    rig.binding
        .tables
        .validate_and_relocate(answer(&rig.binding), &mut expected, window_at)
        .unwrap();
    assert_ne!(expected, message);
    assert_eq!(rig.heap.bytes_mut(&mut body.block)[offset..], expected);
    assert!(rig.tx_out.is_empty());
}

#[test]
fn a_malformed_response_ends_the_call_on_both_sides() {
    for ends in [Parts::NONE, Parts::STATUS] {
        let mut rig = Rig::new(Side::Client, Encoding::Native);
        rig.begin(1);
        let step = rig.received(1, Parts::MESSAGE | ends, &[], &[1, 2, 3]);
        rig.rx(step);
        assert!(reason(rig.rx_out.pop(), 1, Code::Internal).contains("the peer's message is malformed"));
        // After its status the peer has nothing left to cancel.
        match ends {
            Parts::NONE => drop(reason(rig.tx_out.pop(), 1, Code::Cancelled)),
            _ => assert!(rig.tx_out.is_empty()),
        }
        assert_eq!(rig.heap.held(), 0);
        // What the peer sent meanwhile is dropped.
        let message = native(&rig.binding, answer(&rig.binding), &names(&["late"]));
        let step = rig.received(1, Parts::MESSAGE, &[], &message);
        rig.rx(step);
        assert!(rig.rx_out.is_empty());
        assert_eq!(rig.heap.held(), 0);
    }
}

#[test]
fn malformed_metadata_ends_the_call_too() {
    let mut rig = Rig::new(Side::Client, Encoding::Native);
    rig.begin(1);
    let message = native(&rig.binding, answer(&rig.binding), &[]);
    let step = rig.received(1, Parts::MESSAGE, &[0xff; 7], &message);
    rig.rx(step);
    assert!(reason(rig.rx_out.pop(), 1, Code::Internal).contains("metadata"));
    assert_eq!(rig.heap.held(), 0);
}

#[test]
fn a_server_app_never_hears_of_a_request_that_is_malformed() {
    for (method, code) in [(0, Code::Internal), (7, Code::Unimplemented)] {
        let mut rig = Rig::new(Side::Server, Encoding::Native);
        let step = rig.received(9, Parts::BEGIN | Parts::MESSAGE | Parts::END, &[], &[0; 3]);
        rig.rx(Step { method, ..step });
        reason(rig.tx_out.pop(), 9, code);
        assert!(rig.rx_out.is_empty());
        assert_eq!(rig.heap.held(), 0);
    }
}

#[test]
fn protobuf_goes_from_app_to_app() {
    let mut client = Rig::new(Side::Client, Encoding::Protobuf);
    let mut server = Rig::new(Side::Server, Encoding::Protobuf);
    let message = native(&client.binding, ask(&client.binding), &names(&["ann"]));
    let parts = Parts::BEGIN | Parts::MESSAGE | Parts::END;
    client.tx(Step {
        body: gathered(&user(), &message),
        ..Step::new(4, parts)
    });
    assert_eq!(client.sent, [TOKEN]);
    let step = client.tx_out.pop().unwrap();
    let Body::Encoded(body) = &step.body else {
        panic!("it is encoded")
    };
    assert_eq!(body.buffer.bytes, joined(&user(), &names(&["ann"])));
    server.rx(step);
    let Some(Step {
        body: Body::Received(mut body),
        ..
    }) = server.rx_out.pop()
    else {
        panic!("it passes")
    };
    let bytes = server.heap.bytes_mut(&mut body.block);
    assert_eq!(bytes[..user().len()], user());
    assert_eq!(bytes.len(), message_offset(body.metadata_bytes) + message.len());
}

#[test]
fn the_leaves_of_a_message_are_encoded_with_it() {
    struct Static;
    impl Keepalive for Static {}
    static LEAF: [u64; 512] = [0x6161_6161_6161_6161; 512];
    let mut rig = Rig::new(Side::Client, Encoding::Protobuf);
    let address = NonZeroUsize::new(LEAF.as_ptr().expose_provenance()).unwrap();
    let mut head = vec![0; 16];
    head[0] = 2;
    head[4..8].copy_from_slice(&4095u32.to_le_bytes());
    let mut buffer = Buffer::from(head);
    buffer.foreign = vec![ForeignBytes::new(address, 4095, Arc::new(Static))];
    let body = Gathered {
        buffer,
        metadata_bytes: 0,
        message_bytes: 16 + 4095,
        token: TOKEN,
    };
    rig.tx(Step {
        body: Body::Gathered(body),
        ..Step::new(4, Parts::BEGIN | Parts::MESSAGE)
    });
    let Some(Step {
        body: Body::Encoded(body),
        ..
    }) = rig.tx_out.pop()
    else {
        panic!("it passes")
    };
    assert_eq!(body.buffer.bytes[..3], [0x0a, 0xff, 0x1f]);
    assert_eq!(body.buffer.bytes[3..], [b'a'; 4095]);
    assert_eq!(body.message_bytes, 4098);
}

#[test]
fn a_malformed_message_of_the_app_is_told_to_the_app() {
    let mut rig = Rig::new(Side::Client, Encoding::Protobuf);
    rig.tx(Step {
        body: gathered(&[], &[9; 16]),
        ..Step::new(3, Parts::BEGIN | Parts::MESSAGE)
    });
    assert!(reason(rig.rx_out.pop(), 3, Code::Internal).contains("the app's message is malformed"));
    assert!(rig.tx_out.is_empty());
    assert_eq!(rig.sent, [TOKEN]);
    // In a call that the peer knows, the peer is told as well.
    rig.begin(5);
    rig.tx(Step {
        body: gathered(&[], &[9; 16]),
        ..Step::new(5, Parts::MESSAGE)
    });
    reason(rig.rx_out.pop(), 5, Code::Internal);
    assert_eq!(rig.tx_out.pop().unwrap().parts, Parts::CANCEL);
}

#[test]
fn malformed_and_empty_protobuf_are_told_apart() {
    let mut rig = Rig::new(Side::Client, Encoding::Protobuf);
    rig.begin(1);
    rig.rx(Step::new(1, Parts::MESSAGE));
    let Some(Step {
        body: Body::Received(body),
        ..
    }) = rig.rx_out.pop()
    else {
        panic!("it passes")
    };
    assert_eq!(body.message_bytes, 8);
    let body = EncodedBody::plain(Buffer::from(vec![0x0a, 9]), 0, 2);
    rig.rx(Step {
        body: Body::Encoded(body),
        ..Step::new(1, Parts::MESSAGE)
    });
    reason(rig.rx_out.pop(), 1, Code::Internal);
    reason(rig.tx_out.pop(), 1, Code::Cancelled);
}

#[test]
fn a_full_receive_heap_fails_the_call_as_such() {
    let mut rig = Rig::new(Side::Client, Encoding::Protobuf);
    rig.begin(1);
    rig.heap.full = true;
    rig.rx(Step::new(1, Parts::MESSAGE | Parts::STATUS));
    reason(rig.rx_out.pop(), 1, Code::ResourceExhausted);
}

#[test]
fn steps_without_messages_pass_unchanged_and_in_order() {
    let mut rig = Rig::new(Side::Server, Encoding::Native);
    rig.begin(1);
    for parts in [Parts::WINDOW, Parts::END, Parts::CANCEL] {
        let step = Step {
            window_bytes: 7,
            status: Code::Aborted,
            ..Step::new(1, parts)
        };
        rig.rx(step);
        let step = rig.rx_out.pop().unwrap();
        assert_eq!(
            (step.parts, step.window_bytes, step.status),
            (parts, 7, Code::Aborted)
        );
    }
    // The call has ended: a message of it goes nowhere, and its memory is given back.
    rig.tx(Step {
        body: gathered(&[], &[0; 8]),
        ..Step::new(1, Parts::MESSAGE)
    });
    assert!(rig.tx_out.is_empty());
    assert_eq!(rig.sent, [TOKEN]);
}

#[test]
fn a_full_queue_in_one_direction_does_not_stop_the_other() {
    let mut rig = Rig::new(Side::Client, Encoding::Native);
    (1..=2).for_each(|call| rig.begin(call));
    while !rig.tx_out.is_full() {
        rig.tx(Step::new(1, Parts::WINDOW));
    }
    let step = rig.received(1, Parts::MESSAGE, &[], &[0; 3]);
    rig.rx(step);
    reason(rig.rx_out.pop(), 1, Code::Internal);
    let message = native(&rig.binding, answer(&rig.binding), &names(&["on"]));
    let step = rig.received(2, Parts::MESSAGE, &[], &message);
    rig.rx(step);
    assert_eq!(rig.rx_out.pop().unwrap().call, 2);
    // The cancellation is still pending, through an upgrade too.
    let mut rig = rig.upgrade();
    assert_eq!(rig.work(), Progress::Busy);
    let step = rig.tx_out.pop().unwrap();
    assert_eq!(
        (step.call, step.parts, step.status),
        (1, Parts::CANCEL, Code::Cancelled)
    );
    assert_eq!(rig.work(), Progress::Idle);
}

#[test]
fn an_upgraded_engine_knows_the_calls_of_the_one_before() {
    let mut rig = Rig::new(Side::Client, Encoding::Native);
    rig.begin(6);
    let mut rig = rig.upgrade();
    let message = native(&rig.binding, answer(&rig.binding), &names(&["still", "here"]));
    let step = rig.received(6, Parts::MESSAGE | Parts::STATUS, &[], &message);
    rig.rx(step);
    assert!(matches!(
        rig.rx_out.pop(),
        Some(Step {
            body: Body::Received(_),
            ..
        })
    ));
}

#[test]
fn saved_state_of_another_kind_version_or_service_is_refused() {
    let mut rig = Rig::new(Side::Client, Encoding::Native);
    rig.begin(6);
    let binding = rig.binding.clone();
    let good = rig.engine.save(&mut InPlace::new(|_, _| {}));
    let restores = |change: &dyn Fn(&mut provost_datapath::SavedState)| {
        let mut state = good.clone();
        change(&mut state);
        Marshalling::restore(&state, binding.clone(), &mut KeptMemory::default()).is_ok()
    };
    assert!(restores(&|_| {}));
    assert!(!restores(&|state| state.kind.push('x')));
    assert!(!restores(&|state| state.version += 1));
    assert!(!restores(&|state| state.bytes.push(0)));
    assert!(!restores(&|state| state.bytes[13] = 1));
}

fn encoded(metadata: &[u8], protobuf: &[u8]) -> Body {
    Body::Encoded(EncodedBody::of(metadata, protobuf, Buffer::default()))
}

fn bytes_of(step: Option<Step>) -> Vec<u8> {
    let Some(Body::Encoded(body)) = step.map(|step| step.body) else {
        panic!("it passes as protobuf");
    };
    body.buffer.into_parts().bytes
}

/// No message of the schema: unknown fields, out of order, and a record that ends in its midst.
const OPAQUE: [u8; 9] = [0xf8, 0x06, 7, 0x12, 1, b'd', 0x0a, 9, b'a'];

#[test]
fn protobuf_of_both_ends_passes_byte_for_byte_and_is_not_read() {
    let mut rig = Rig::of_protobuf(Side::Client, Encoding::Protobuf);
    let begins = Parts::BEGIN | Parts::MESSAGE | Parts::END;
    rig.tx(Step {
        body: encoded(&user(), &OPAQUE),
        ..Step::new(1, begins)
    });
    assert_eq!(bytes_of(rig.tx_out.pop()), joined(&user(), &OPAQUE));
    // From a transport that has private memory, and from one that receives into the heap.
    let private = Step {
        body: encoded(&[], &OPAQUE),
        ..Step::new(1, Parts::MESSAGE)
    };
    let received = rig.received(1, Parts::MESSAGE | Parts::STATUS, &user(), &OPAQUE);
    rig.rx(private);
    rig.rx(received);
    assert_eq!(bytes_of(rig.rx_out.pop()), OPAQUE);
    assert_eq!(bytes_of(rig.rx_out.pop()), joined(&user(), &OPAQUE));
    assert_eq!(rig.heap.held(), 0);
    // Lengths that do not add up are the transport's mistake.
    rig.begin(2);
    let mut cut = EncodedBody::of(&[], &OPAQUE, Buffer::default());
    cut.buffer.bytes.truncate(3);
    rig.rx(Step {
        body: Body::Encoded(cut),
        ..Step::new(2, Parts::MESSAGE)
    });
    assert!(reason(rig.rx_out.pop(), 2, Code::Internal).contains("lengths"));
}

#[test]
fn protobuf_for_a_native_peer_is_decoded_once_and_malformed_ends_the_call() {
    let mut rig = Rig::of_protobuf(Side::Client, Encoding::Native);
    let begins = Parts::BEGIN | Parts::MESSAGE | Parts::END;
    let request = |call, protobuf: &[u8]| Step {
        body: encoded(&user(), protobuf),
        ..Step::new(call, begins)
    };
    rig.tx(request(1, &names(&["ann"])));
    let Some(Body::Gathered(body)) = rig.tx_out.pop().map(|step| step.body) else {
        panic!("it goes natively");
    };
    let input = rig.binding.methods[0].input;
    let expected = native(&rig.binding, input, &names(&["ann"]));
    assert_eq!(body.buffer.bytes, joined(&user(), &expected));
    assert_eq!((body.message_bytes as usize, body.token), (expected.len(), 0));
    rig.tx(request(2, &OPAQUE));
    assert!(rig.tx_out.is_empty(), "the peer hears nothing of it");
    let told = reason(rig.rx_out.pop(), 2, Code::Internal);
    assert!(told.contains("the request's message is malformed"), "{told}");
    // A message of defaults has no bytes, and needs no body.
    rig.tx(Step::new(3, begins));
    let sent = rig.tx_out.pop().map(|step| step.body);
    assert!(matches!(sent, Some(Body::Gathered(body)) if body.message_bytes > 0));
    // What is native comes natively: its port encodes it.
    let answer = native(&rig.binding, answer(&rig.binding), &names(&["one"]));
    let step = rig.received(1, Parts::MESSAGE | Parts::STATUS, &[], &answer);
    rig.rx(step);
    assert!(matches!(
        rig.rx_out.pop().map(|step| step.body),
        Some(Body::Received(_))
    ));
}

#[test]
fn what_is_decoded_counts_in_its_share_and_waits_for_room() {
    let mut rig = Rig::of_protobuf(Side::Client, Encoding::Native);
    let share = Arc::clone(&rig.binding.share);
    // A name of 3,000 bytes.
    let long = [&[0x0a, 0xb8, 0x17][..], &[b'x'; 3_000]].concat();
    let request = |call| Step {
        body: encoded(&[], &long),
        ..Step::new(call, Parts::BEGIN | Parts::MESSAGE | Parts::END)
    };
    let others = share.charge(ATTACHMENT_PRIVATE_BYTES_MAX);
    rig.tx(request(1));
    assert!(rig.tx_out.is_empty() && rig.tx_in.len() == 1);
    assert!(rig.engine.wake_at().is_some());
    drop(others);
    rig.work();
    let sent = rig.tx_out.pop().unwrap();
    assert!(share.held() > 2_000, "{}", share.held());
    drop(sent);
    assert_eq!((share.held(), rig.engine.wake_at()), (0, None));
    // What comes as protobuf and stays that, likewise; what has no message does not wait.
    let mut rig = Rig::of_protobuf(Side::Client, Encoding::Protobuf);
    let share = Arc::clone(&rig.binding.share);
    rig.begin(1);
    let others = share.charge(ATTACHMENT_PRIVATE_BYTES_MAX);
    rig.rx(Step::new(1, Parts::HEADERS));
    rig.rx(Step {
        body: encoded(&[], &long),
        ..Step::new(1, Parts::MESSAGE | Parts::STATUS)
    });
    assert_eq!((rig.rx_out.len(), rig.rx_in.len()), (1, 1));
    assert!(rig.engine.wake_at().is_some());
    drop(others);
    rig.work();
    assert_eq!((rig.rx_out.len(), rig.rx_in.len()), (2, 0));
    assert!(share.held() >= 3_000, "{}", share.held());
}

/// A call with so many flags, each of which takes one byte natively and six as protobuf.
fn raise(call: u64, flags: u32, charge: Option<PrivateCharge>) -> Step {
    let message = [
        &1u32.to_le_bytes()[..],
        &flags.to_le_bytes(),
        &vec![1; flags as usize],
    ]
    .concat();
    let mut body = gathered(&[], &message);
    if let Body::Gathered(body) = &mut body {
        body.buffer.charge = charge;
    }
    Step {
        method: 1,
        body,
        ..Step::new(call, Parts::BEGIN | Parts::MESSAGE | Parts::END)
    }
}

#[test]
fn what_is_encoded_counts_as_what_it_has_become() {
    let mut rig = Rig::new(Side::Client, Encoding::Protobuf);
    let share = Arc::clone(&rig.binding.share);
    // One that was counted as it was gathered, and one that was too small to be.
    for (call, flags, charge) in [(1, 100_000, Some(share.charge(100_000))), (2, 1_000, None)] {
        rig.tx(raise(call, flags, charge));
        let Some(Body::Encoded(body)) = rig.tx_out.pop().map(|step| step.body) else {
            panic!("it passes")
        };
        assert_eq!(body.message_bytes, 6 * flags);
        assert_eq!(share.held(), body.buffer.bytes.capacity() as u64);
        drop(body);
        assert_eq!(share.held(), 0);
    }
    // What is small stays uncounted.
    let mut rig = Rig::new(Side::Client, Encoding::Protobuf);
    let share = Arc::clone(&rig.binding.share);
    rig.tx(raise(3, 10, None));
    assert_eq!((rig.tx_out.len(), share.held()), (1, 0));
}

#[test]
fn in_a_round_that_has_copied_enough_long_messages_wait_for_the_next_one() {
    let mut rig = Rig::new(Side::Client, Encoding::Protobuf);
    // What was copied before counts, whoever has done it.
    rig.tx(raise(1, 600_000, None));
    assert!(rig.tx_out.pop().is_some());
    rig.buffers.note_copied((4 << 20) - 600_000, rig.now);
    rig.tx_in.push(raise(2, 100_000, None)).unwrap();
    rig.tx_in.push(raise(3, 100_000, None)).unwrap();
    assert_eq!(rig.work(), Progress::Busy, "it is to be polled again at once");
    let passed = std::iter::from_fn(|| rig.tx_out.pop()).map(|step| step.call);
    assert!(passed.eq([2]), "the first one of a poll passes in any case");
    rig.now += 1;
    rig.work();
    assert_eq!(rig.tx_out.pop().map(|step| step.call), Some(3));
    rig.buffers.note_copied(4 << 20, rig.now);
    rig.tx(raise(4, 1_000, None));
    assert_eq!(
        rig.tx_out.pop().map(|step| step.call),
        Some(4),
        "a short one has its turn"
    );
    // What passes as it is, takes no time.
    let mut rig = Rig::new(Side::Client, Encoding::Native);
    rig.buffers.note_copied(4 << 20, rig.now);
    rig.tx(raise(1, 100_000, None));
    assert_eq!(rig.tx_out.pop().map(|step| step.call), Some(1));
}

#[test]
fn a_message_that_is_too_long_as_protobuf_is_no_bug() {
    let mut rig = Rig::new(Side::Client, Encoding::Protobuf);
    rig.tx(raise(1, MESSAGE_BYTES_MAX / 6 + 1, None));
    let told = reason(rig.rx_out.pop(), 1, Code::ResourceExhausted);
    assert!(
        told.contains("longer than") && !told.contains("malformed"),
        "{told}"
    );
    // A long text that is none is what a short one is.
    let mut ask = native(&rig.binding, ask(&rig.binding), &names(&["ann"]));
    let at = ask.len() - 3;
    ask[at] = 0xff;
    rig.tx(Step {
        body: gathered(&[], &ask),
        ..Step::new(2, Parts::BEGIN | Parts::MESSAGE)
    });
    assert!(reason(rig.rx_out.pop(), 2, Code::InvalidArgument).contains("UTF-8"));
}
