//! A rig for the tests of policies: one engine of a policy between queues that the test fills and empties, with a clock
//! that the test sets. (Feature `rig`.)
//!
//! ```text
//! test ─send─► tx_in ─► engine ─► tx_out ─to_wire─► test
//! test ◄─to_app─ rx_out ◄─ engine ◄─ rx_in ◄─receive─ test
//! ```

pub mod churn;

use std::sync::Arc;

pub use prost_reflect::Value;
use prost_reflect::prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage};
use provost_compression::MessageEncoding;
use provost_datapath::{
    Body, BufferPool, Context, EncodedBody, FlowHints, Gathered, HeapFull, InPlace, MessageCompression,
    PrivateBytes, QUEUE_STEPS_MAX, ReceiveHeap, ReceivedBlock, SocketHint, message_offset,
};
use provost_marshal::{Scratch, Tables};
use provost_schema::{MessageId, Schema};
use provost_wire::metadata;

use crate::{
    AppIdentity, Code, DatapathContext, EgressEvents, Engine, Environment, MethodContext, Nanos, NoEvents,
    Parts, PeerIdentity, Policy, Ports, Progress, Queue, RestoreError, SharedState, Side, Step,
};

/// Largest message of a test, in bytes.
const MESSAGE_BYTES_MAX: u32 = 64 << 20;
/// What the file of a test is called.
const SOURCE: &str = "test.proto";

/// What a node lends a policy in a test.
#[must_use]
pub fn environment() -> Environment {
    Environment {
        node: "node".into(),
        policy: "test".into(),
        place: "".into(),
        events: Arc::new(NoEvents),
    }
}

/// A configuration in TOML.
///
/// # Panics
/// If it is none: the test is wrong.
#[must_use]
pub fn config(text: &str) -> toml::Table {
    text.parse().expect("the test's configuration is TOML")
}

/// A service to make contexts and steps of.
pub struct Service {
    pool: DescriptorPool,
    schema: Arc<Schema>,
    tables: Arc<Tables>,
}

impl Service {
    /// A service from the text of a `.proto` file that has one. It may import Google's well-known types.
    ///
    /// # Panics
    /// If it does not compile: the test is wrong.
    #[must_use]
    pub fn from_source(proto: &str) -> Service {
        struct OneSource(protox::file::File);
        impl protox::file::FileResolver for OneSource {
            fn open_file(&self, name: &str) -> Result<protox::file::File, protox::Error> {
                match name {
                    SOURCE => Ok(self.0.clone()),
                    imported => protox::file::GoogleFileResolver::new().open_file(imported),
                }
            }
        }
        let file = protox::file::File::from_source(SOURCE, proto).expect("the source parses");
        let mut compiler = protox::Compiler::with_file_resolver(OneSource(file));
        compiler.include_imports(true);
        compiler.open_file(SOURCE).expect("the source compiles");
        let bytes = compiler.encode_file_descriptor_set();
        let schema = Schema::from_descriptor_set(&bytes).expect("the schema is one that the project takes");
        Service {
            pool: DescriptorPool::decode(&*bytes).expect("the schema is valid protobuf"),
            tables: Arc::new(Tables::compile(&schema).expect("the schema compiles")),
            schema: Arc::new(schema),
        }
    }

    /// Its descriptors, to make messages of that are fields of others.
    #[must_use]
    pub fn descriptors(&self) -> &DescriptorPool {
        &self.pool
    }

    /// A datapath context of the service, for an app named `app` whose peer is at `192.0.2.7:4000`.
    #[must_use]
    pub fn datapath_context(&self, side: Side) -> DatapathContext {
        let service = &self.schema.services[0];
        let methods = MethodContext::of_service(service);
        DatapathContext {
            node: "node".into(),
            app: Arc::new(AppIdentity {
                id: 1,
                name: "app".into(),
                pid: 100,
                uid: 1000,
                gid: 1000,
                user: "".into(),
                workload: "".into(),
            }),
            side,
            service: service.full_name.as_str().into(),
            scope: methods.iter().map(|_| true).collect(),
            methods,
            schema: Arc::clone(&self.schema),
            tables: Arc::clone(&self.tables),
            peer: PeerIdentity {
                identity: "".into(),
                address: "192.0.2.7:4000".into(),
                transport: "tcp",
                app: None,
                attested: None,
            },
            connection: 1,
            runtime: 0,
            verdicts: Arc::default(),
        }
    }

    /// The step that begins a call of a method, with one message and its end: what a unary call is.
    ///
    /// # Panics
    /// If the service has no such method or the message no such field.
    #[must_use]
    pub fn request(&self, call: u64, method: u16, fields: &[(&str, Value)]) -> Step {
        let message = self.schema.services[0].methods[usize::from(method)].input;
        Step {
            method,
            ..self.step(call, Parts::BEGIN | Parts::MESSAGE | Parts::END, message, fields)
        }
    }

    /// The step that answers a call of a method with one message and a status.
    ///
    /// # Panics
    /// If the service has no such method or the message no such field.
    #[must_use]
    pub fn response(&self, call: u64, method: u16, fields: &[(&str, Value)]) -> Step {
        let message = self.schema.services[0].methods[usize::from(method)].output;
        self.step(call, Parts::MESSAGE | Parts::STATUS, message, fields)
    }

    /// The request of a method in protobuf.
    ///
    /// # Panics
    /// If the service has no such method or the message no such field.
    #[must_use]
    pub fn protobuf(&self, method: u16, fields: &[(&str, Value)]) -> Vec<u8> {
        self.encode(self.schema.services[0].methods[usize::from(method)].input, fields)
    }

    fn encode(&self, message: MessageId, fields: &[(&str, Value)]) -> Vec<u8> {
        let name = &self.schema.message(message).full_name;
        let descriptor = self
            .pool
            .get_message_by_name(name)
            .expect("the pool has the schema's messages");
        let mut dynamic = DynamicMessage::new(descriptor);
        for (name, value) in fields {
            dynamic.set_field_by_name(name, value.clone());
        }
        dynamic.encode_to_vec()
    }

    fn step(&self, call: u64, parts: Parts, message: MessageId, fields: &[(&str, Value)]) -> Step {
        let mut bytes = Vec::new();
        let scratch = &mut Scratch::default();
        let message_bytes = self
            .tables
            .decode(
                message,
                &self.encode(message, fields),
                &mut bytes,
                MESSAGE_BYTES_MAX,
                scratch,
            )
            .expect("the message is one of the schema");
        let body = Body::Gathered(Gathered {
            buffer: provost_datapath::Buffer::from(bytes),
            metadata_bytes: 0,
            message_bytes,
            token: 0,
        });
        Step {
            body,
            ..Step::new(call, parts)
        }
    }
}

/// A step of a call with metadata in front of what it has.
///
/// # Panics
/// If the entries are not valid metadata, or the step has a received body.
#[must_use]
pub fn with_metadata(mut step: Step, entries: &[(&str, &str)]) -> Step {
    let mut block = Vec::new();
    for (key, value) in entries {
        metadata::append(&mut block, key, value.as_bytes()).expect("the test's metadata is valid");
    }
    let metadata_bytes = block.len() as u32;
    block.resize(message_offset(metadata_bytes), 0);
    if let Body::Empty = step.body {
        step.body = Body::Gathered(Gathered {
            buffer: provost_datapath::Buffer::default(),
            metadata_bytes: 0,
            message_bytes: 0,
            token: 0,
        });
    }
    let Body::Gathered(body) = &mut step.body else {
        panic!("the rig makes gathered bodies");
    };
    let old = message_offset(body.metadata_bytes);
    block.extend_from_slice(&body.buffer.bytes[old..]);
    body.buffer.bytes = block;
    body.metadata_bytes = metadata_bytes;
    step
}

/// A step whose message is these bytes, as protobuf that was not decoded: valid or not. Its metadata stays.
///
/// # Panics
/// If the step has a received body.
#[must_use]
pub fn with_protobuf(mut step: Step, protobuf: &[u8]) -> Step {
    let metadata = match &step.body {
        Body::Empty => Vec::new(),
        Body::Gathered(body) => body.buffer.bytes[..body.metadata_bytes as usize].to_vec(),
        Body::Encoded(body) => body.metadata().to_vec(),
        _ => panic!("the rig makes gathered bodies"),
    };
    let buffer = provost_datapath::Buffer::default();
    step.body = Body::Encoded(EncodedBody::of(&metadata, protobuf, buffer));
    step
}

/// The same message compressed, which counts in a share; it may become so many bytes.
#[must_use]
pub fn with_compressed(step: Step, protobuf: &[u8], plain_bytes_max: u32, share: &Arc<PrivateBytes>) -> Step {
    let encoding = MessageEncoding::Gzip;
    let mut step = with_protobuf(step, &encoding.compress(protobuf));
    if let Body::Encoded(body) = &mut step.body {
        body.compression = MessageCompression::new(encoding, plain_bytes_max);
        body.buffer.charge = Some(share.charge(body.buffer.bytes.capacity() as u64));
    }
    step
}

/// The message of a step, as the protobuf that it passes in; `None` of one that is not in that form.
#[must_use]
pub fn protobuf_of(step: &Step) -> Option<&[u8]> {
    match &step.body {
        Body::Encoded(body) => body.protobuf(),
        _ => None,
    }
}

/// The value of a metadata key of a step; `None` without.
#[must_use]
pub fn metadata_of(step: &Step, key: &str) -> Option<String> {
    let (bytes, metadata_bytes) = match &step.body {
        Body::Gathered(body) => (&body.buffer.bytes, body.metadata_bytes),
        Body::Encoded(body) => (&body.buffer.bytes, body.metadata_bytes),
        _ => return None,
    };
    let block = &bytes[..metadata_bytes as usize];
    let place = metadata::find(block, key)?;
    Some(String::from_utf8_lossy(&block[place]).into_owned())
}

/// One engine of a policy, driven by hand.
pub struct Rig {
    /// Where it is.
    pub datapath_context: DatapathContext,
    /// The time that it is told.
    pub now: Nanos,
    /// Its queues; they can be made shorter.
    pub queues: RigQueues,
    /// Tokens that it gave back.
    pub sent: Vec<u64>,
    /// What the engine and its transport tell each other about the load.
    pub flow: FlowHints,
    engine: Option<Box<dyn Engine>>,
    buffers: BufferPool,
}

/// The queues around the engine.
#[derive(Debug)]
pub struct RigQueues {
    /// From the app's side.
    pub tx_in: Queue<Step>,
    /// To the wire's side.
    pub tx_out: Queue<Step>,
    /// From the wire's side.
    pub rx_in: Queue<Step>,
    /// To the app's side.
    pub rx_out: Queue<Step>,
}

impl RigQueues {
    /// Empty queues of this length.
    #[must_use]
    pub fn with_bound(bound: usize) -> RigQueues {
        RigQueues {
            tx_in: Queue::with_bound(bound),
            tx_out: Queue::with_bound(bound),
            rx_in: Queue::with_bound(bound),
            rx_out: Queue::with_bound(bound),
        }
    }

    fn ports(&mut self) -> Ports<'_> {
        Ports {
            tx_in: &mut self.tx_in,
            tx_out: &mut self.tx_out,
            rx_in: &mut self.rx_in,
            rx_out: &mut self.rx_out,
        }
    }
}

impl Rig {
    /// A rig without an engine: what goes in comes out.
    #[must_use]
    pub fn empty(datapath_context: DatapathContext) -> Rig {
        Rig {
            datapath_context,
            now: 1,
            queues: RigQueues::with_bound(QUEUE_STEPS_MAX),
            sent: Vec::new(),
            flow: FlowHints::default(),
            engine: None,
            buffers: BufferPool::new(),
        }
    }

    /// A rig with an engine of this policy.
    ///
    /// # Panics
    /// If the policy does not go onto the datapath context.
    #[must_use]
    pub fn new(datapath_context: DatapathContext, policy: &dyn Policy) -> Rig {
        let mut rig = Rig::empty(datapath_context);
        rig.replace(policy).expect("there is no state to restore");
        rig
    }

    /// Puts an engine of this policy in the place of the one that is there, as a live change does: it gets its saved
    /// state (if it is of the same kind) and the steps that it held.
    ///
    /// # Panics
    /// If the policy does not go onto the datapath context.
    pub fn replace(&mut self, policy: &dyn Policy) -> Result<(), RestoreError> {
        let start = policy
            .prepare(&self.datapath_context)
            .expect("the policy suits the datapath");
        let Some(old) = &mut self.engine else {
            self.engine = Some(start(None)?);
            return Ok(());
        };
        old.release(&mut self.queues.ports());
        let saved = old.save(&mut InPlace::new(|_, _| {}));
        let fresh = start(Some(&saved))?;
        self.engine = Some(fresh);
        Ok(())
    }

    /// Takes the engine away, as detaching its policy does.
    pub fn remove(&mut self) {
        if let Some(mut engine) = self.engine.take() {
            engine.release(&mut self.queues.ports());
        }
    }

    /// Polls the engine once; without one, moves everything.
    pub fn poll(&mut self) -> Progress {
        let mut heap = NoHeap;
        let mut context = Context {
            socket: SocketHint::Skip,
            flow: FlowHints {
                turn_bytes: u32::MAX,
                ..self.flow
            },
            now: self.now,
            buffers: &mut self.buffers,
            receive: &mut heap,
            sent: &mut self.sent,
        };
        let Some(engine) = &mut self.engine else {
            pass(&mut self.queues.tx_in, &mut self.queues.tx_out);
            pass(&mut self.queues.rx_in, &mut self.queues.rx_out);
            return Progress::Idle;
        };
        let progress = engine.do_work(self.queues.ports(), &mut context);
        self.flow = context.flow;
        progress
    }

    /// Polls at this time.
    pub fn poll_at(&mut self, now: Nanos) -> Progress {
        self.now = now;
        self.poll()
    }

    /// The engine, if there is one.
    #[must_use]
    pub fn engine(&self) -> Option<&dyn Engine> {
        self.engine.as_deref()
    }

    /// Tells the engine what has left the service since it was told last, as a datapath does before it is polled.
    pub fn on_egress(&mut self, egress_events: &EgressEvents<'_>) {
        if let Some(engine) = &mut self.engine {
            engine.on_egress(egress_events);
        }
    }

    /// When the engine wants to be polled.
    #[must_use]
    pub fn wake_at(&self) -> Option<Nanos> {
        self.engine.as_ref().and_then(|engine| engine.wake_at())
    }

    /// Offers a step from the app's side.
    ///
    /// # Panics
    /// If the queue is full.
    pub fn send(&mut self, step: Step) {
        self.queues.tx_in.push(step).expect("the queue has room");
    }

    /// Offers a step from the wire's side.
    ///
    /// # Panics
    /// If the queue is full.
    pub fn receive(&mut self, step: Step) {
        self.queues.rx_in.push(step).expect("the queue has room");
    }

    /// What has come out towards the wire.
    pub fn to_wire(&mut self) -> Vec<Step> {
        std::iter::from_fn(|| self.queues.tx_out.pop()).collect()
    }

    /// What has come out towards the app.
    pub fn to_app(&mut self) -> Vec<Step> {
        std::iter::from_fn(|| self.queues.rx_out.pop()).collect()
    }
}

fn pass(from: &mut Queue<Step>, to: &mut Queue<Step>) {
    while !to.is_full()
        && let Some(step) = from.pop()
    {
        let _ = to.push(step);
    }
}

/// A policy made by a kind of the default environment, for a test.
pub fn policy(
    kind: &dyn crate::PolicyKind,
    text: &str,
    shared: Option<&SharedState>,
) -> Result<Arc<dyn Policy>, crate::ConfigError> {
    kind.configure(&config(text), &environment(), shared)
}

/// The numbers that a policy reports, as `name{label=value}` and value; of a histogram its count.
#[must_use]
pub fn metrics(policy: &dyn Policy) -> Vec<(String, f64)> {
    let mut seen = SeenStep(Vec::new());
    policy.metrics(&mut seen);
    seen.0
}

/// One number that a policy reports.
///
/// # Panics
/// If it reports none of that name.
#[must_use]
pub fn metric(policy: &dyn Policy, name: &str) -> f64 {
    let found = metrics(policy).into_iter().find(|(seen, _)| seen == name);
    found
        .unwrap_or_else(|| panic!("no metric {name}: {:?}", metrics(policy)))
        .1
}

struct SeenStep(Vec<(String, f64)>);

impl SeenStep {
    fn add(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<_> = labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let name = if labels.is_empty() {
            name.to_owned()
        } else {
            format!("{name}{{{}}}", labels.join(","))
        };
        self.0.push((name, value));
    }
}

impl crate::MetricSink for SeenStep {
    fn number(&mut self, metric: &'static crate::MetricDescription, labels: &[(&str, &str)], value: f64) {
        self.add(metric.name, labels, value);
    }

    fn histogram(
        &mut self,
        metric: &'static crate::MetricDescription,
        labels: &[(&str, &str)],
        _cumulative: &[(f64, u64)],
        _sum: f64,
        count: u64,
    ) {
        self.add(metric.name, labels, count as f64);
    }
}

/// The status of a step that ends a call; `None` of another one.
#[must_use]
pub fn end_of(step: &Step) -> Option<Code> {
    let ends = step.parts.intersects(Parts::STATUS | Parts::CANCEL);
    ends.then_some(step.status)
}

struct NoHeap;

impl ReceiveHeap for NoHeap {
    fn allocate(&mut self, _bytes: u32) -> Result<ReceivedBlock, HeapFull> {
        Err(HeapFull)
    }

    fn bytes_mut(&mut self, _block: &mut ReceivedBlock) -> &mut [u8] {
        &mut []
    }

    fn free(&mut self, _block: ReceivedBlock) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_may_import_what_everybody_imports() {
        let service = Service::from_source(
            "syntax = \"proto3\"; package t; import \"google/protobuf/timestamp.proto\";
             message M { google.protobuf.Timestamp at = 1; } service S { rpc Get(M) returns (M); }",
        );
        let context = service.datapath_context(Side::Client);
        let input = context.methods[0].input;
        assert!(context.tables.field_path(input, "at.seconds").is_ok());
    }
}
