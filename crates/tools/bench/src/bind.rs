//! `bench bind`: how long a service takes to bind and to connect, for a schema that it has never seen and for one that it
//! knows. Speaks the control protocol itself, so that what is timed is the service alone.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto,
    ServiceDescriptorProto,
};
use provost_schema::Schema;
use provost_shm::{AsFd, BorrowedFd, Interest, Memfd, PacketSocket, SEALS_FIXED_SIZE, Wait, wait_for};
use provost_wire::control::{
    AddSchema, Attach, Bind, CONTROL_VERSION, Connect, Reply, Request, Unbind, reply, request,
};
use provost_wire::limits::{CONTROL_MESSAGE_BYTES_MAX, SEND_WINDOW};

use provost_figures::{Bound, Cell, Cells, Median, Pairs};

use crate::failure::{Doing, Failure};
use crate::machine::{self, free_port};
use crate::node::{Node, Policies, Reach, ServicePlace};
use crate::regime::{self, RunOptions};

/// Fields of the schema's messages, together.
const FIELDS: usize = 100;
/// The service that is bound.
const SERVICE: &str = "bench.bind.Wide";
/// Times that each thing is done.
const ROUNDS: u32 = 50;
const ROUNDS_QUICK: u32 = 10;
/// How long a node may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// Bytes of an app's send heap; nothing is sent through it.
const SEND_HEAP_BYTES: u64 = 1 << 20;

/// Targets, in milliseconds.
const COLD_MS_MAX: f64 = 5.0;
const CACHED_MS_MAX: f64 = 0.5;

/// What is timed: its name and its bound.
const STEPS: [(&str, Option<f64>); 5] = [
    ("attach", None),
    ("bind, cold", Some(COLD_MS_MAX)),
    ("connect, cold", Some(COLD_MS_MAX)),
    ("bind, cached", Some(CACHED_MS_MAX)),
    ("connect, cached", Some(CACHED_MS_MAX)),
];

/// Times everything in each regime, prints tables, and writes the file that was asked for.
pub(crate) fn run(options: &RunOptions) -> Result<(), Failure> {
    regime::measure_each(options, |regime, cores| {
        let times = measure(rounds(options))?;
        println!(
            "{}; cores {cores:?}, {}; {FIELDS} fields, {} rounds\n",
            machine::describe(),
            regime.description(),
            rounds(options)
        );
        print(&times);
        Ok(Cells::of(times.iter().map(StepTimes::cell).collect()))
    })
}

fn rounds(options: &RunOptions) -> u32 {
    if options.quick { ROUNDS_QUICK } else { ROUNDS }
}

/// One of [`STEPS`], and how long it took in each round, in milliseconds.
struct StepTimes {
    name: &'static str,
    target: Option<f64>,
    times_ms: Pairs,
}

impl StepTimes {
    fn cell(&self) -> Cell {
        let median = Median {
            p50_us: self.times_ms.median().map(|middle_ms| middle_ms * 1e3),
            ..Median::default()
        };
        Cell {
            setup: "provost".into(),
            what: self.name.into(),
            size: 0,
            conns: 0,
            inflight: 0,
            median,
            runs: Vec::new(),
        }
    }
}

fn measure(rounds: u32) -> Result<Vec<StepTimes>, Failure> {
    let folder = tempfile::tempdir().doing(|| "make a temporary folder".into())?;
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let server = Node::start(
        "ingress",
        Reach::listen(address),
        &Policies::nulls(1),
        folder.path(),
    )?;
    let client = Node::start(
        "egress",
        Reach::to(ServicePlace::Peer(address)),
        &Policies::nulls(1),
        folder.path(),
    )?;
    let mut times: [Vec<f64>; STEPS.len()] = Default::default();
    for round in 0..rounds {
        let took = one_round(&server.socket, &client.socket, &WideSchema::new(round)?)?;
        times
            .iter_mut()
            .zip(took)
            .for_each(|(times, took)| times.push(took.as_secs_f64() * 1e3));
    }
    let steps = STEPS.iter().zip(times);
    let steps = steps.map(|((name, target), times)| StepTimes {
        name,
        target: *target,
        times_ms: Pairs::new(times),
    });
    Ok(steps.collect())
}

fn print(steps: &[StepTimes]) {
    println!("{:16} {:>9} {:>9} {:>9}", "", "p50 ms", "most ms", "target");
    for step in steps {
        let most = step.times_ms.most().unwrap_or(f64::NAN);
        let middle = step.times_ms.median().unwrap_or(f64::NAN);
        let verdict = step.target.map_or(String::new(), |target| {
            let verdict = Bound::ValueAtMost(target).verdict(middle, &step.times_ms);
            format!("{target:>9.1}  {verdict}")
        });
        println!("{:16} {middle:>9.3} {most:>9.3} {verdict}", step.name);
    }
}

fn one_round(server: &Path, client: &Path, schema: &WideSchema) -> Result<[Duration; STEPS.len()], Failure> {
    let (mut server_app, attach) = timed(|| App::attach(server))?;
    let mut client_app = App::attach(client)?;
    let ((), bind_cold) = timed(|| server_app.bind(schema))?;
    let ((), connect_cold) = timed(|| client_app.connect(schema))?;
    server_app.unbind()?;
    let ((), bind_cached) = timed(|| server_app.bind(schema))?;
    let ((), connect_cached) = timed(|| client_app.connect(schema))?;
    server_app.unbind()?;
    Ok([attach, bind_cold, connect_cold, bind_cached, connect_cached])
}

fn timed<T>(step: impl FnOnce() -> Result<T, Failure>) -> Result<(T, Duration), Failure> {
    let began = Instant::now();
    Ok((step()?, began.elapsed()))
}

/// A schema that no node has seen: one of its fields bears a number of its own.
struct WideSchema {
    bytes: Vec<u8>,
    hash: Vec<u8>,
}

impl WideSchema {
    fn new(number: u32) -> Result<WideSchema, Failure> {
        let bytes = descriptor_set(number).encode_to_vec();
        let schema = Schema::from_descriptor_set(&bytes);
        let schema = schema.map_err(|error| Failure::role("bench", error.to_string()))?;
        let hash = schema
            .service_hash(SERVICE)
            .ok_or_else(|| Failure::role("bench", "the schema lost its service"))?;
        Ok(WideSchema {
            bytes,
            hash: hash.as_bytes().to_vec(),
        })
    }
}

fn descriptor_set(number: u32) -> FileDescriptorSet {
    let half = FIELDS / 2;
    let messages = [("WideRequest", number), ("WideReply", 0)].map(|(name, number)| DescriptorProto {
        name: Some(name.into()),
        field: (1..=half).map(|at| field(at, number)).collect(),
        ..DescriptorProto::default()
    });
    let method = MethodDescriptorProto {
        name: Some("Call".into()),
        input_type: Some(".bench.bind.WideRequest".into()),
        output_type: Some(".bench.bind.WideReply".into()),
        ..MethodDescriptorProto::default()
    };
    let service = ServiceDescriptorProto {
        name: Some("Wide".into()),
        method: vec![method],
        ..ServiceDescriptorProto::default()
    };
    let file = FileDescriptorProto {
        name: Some("wide.proto".into()),
        package: Some("bench.bind".into()),
        syntax: Some("proto3".into()),
        message_type: messages.into(),
        service: vec![service],
        ..FileDescriptorProto::default()
    };
    FileDescriptorSet { file: vec![file] }
}

/// Scalars of all kinds, lists, and messages.
fn field(at: usize, number: u32) -> FieldDescriptorProto {
    const KINDS: [Type; 8] = [
        Type::String,
        Type::Int64,
        Type::Bytes,
        Type::Bool,
        Type::Double,
        Type::Sint32,
        Type::Fixed64,
        Type::Message,
    ];
    let kind = KINDS[at % KINDS.len()];
    let label = if at.is_multiple_of(5) {
        Label::Repeated
    } else {
        Label::Optional
    };
    let suffix = if at == 1 {
        format!("_{number}")
    } else {
        String::new()
    };
    FieldDescriptorProto {
        name: Some(format!("field_{at}{suffix}")),
        number: Some(at as i32),
        r#type: Some(kind.into()),
        label: Some(label.into()),
        type_name: (kind == Type::Message).then(|| ".bench.bind.WideReply".into()),
        ..FieldDescriptorProto::default()
    }
}

/// An attached app that only speaks over its socket.
struct App {
    socket: PacketSocket,
    last_id: u64,
}

impl App {
    fn attach(path: &Path) -> Result<App, Failure> {
        let socket = PacketSocket::connect(path).doing(|| format!("connect to {}", path.display()))?;
        let heap = send_heap()?;
        let mut app = App { socket, last_id: 0 };
        let attach = Attach {
            version: CONTROL_VERSION,
            name: "bench".into(),
            receive_window: SEND_WINDOW + (SEND_HEAP_BYTES / 8) as u32,
            receive_window_bytes: 1 << 30,
            ..Attach::default()
        };
        match app.ask(request::Body::Attach(attach), &[heap.as_fd()])? {
            reply::Body::Attached(_) => Ok(app),
            other => Err(unexpected(&other)),
        }
    }

    fn bind(&mut self, schema: &WideSchema) -> Result<(), Failure> {
        let bind = Bind {
            service: SERVICE.into(),
            schema_hash: schema.hash.clone(),
            calls_in_flight_max: 0,
        };
        match self.ask_with_schema(&request::Body::Bind(bind), schema)? {
            reply::Body::Done(_) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn unbind(&mut self) -> Result<(), Failure> {
        match self.ask(
            request::Body::Unbind(Unbind {
                service: SERVICE.into(),
            }),
            &[],
        )? {
            reply::Body::Done(_) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn connect(&mut self, schema: &WideSchema) -> Result<(), Failure> {
        let connect = Connect {
            service: SERVICE.into(),
            schema_hash: schema.hash.clone(),
            ..Connect::default()
        };
        match self.ask_with_schema(&request::Body::Connect(connect), schema)? {
            reply::Body::Connected(_) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks; brings the schema and asks again where the node does not know it.
    fn ask_with_schema(&mut self, body: &request::Body, schema: &WideSchema) -> Result<reply::Body, Failure> {
        let first = self.ask(body.clone(), &[])?;
        if !matches!(first, reply::Body::SchemaUnknown(_)) {
            return Ok(first);
        }
        let file = Memfd::of_bytes("bench-schema", &schema.bytes);
        let file = file.map_err(|error| Failure::role("bench", error.to_string()))?;
        let add = AddSchema {
            hash: schema.hash.clone(),
        };
        match self.ask(request::Body::AddSchema(add), &[file.as_fd()])? {
            reply::Body::Done(_) => self.ask(body.clone(), &[]),
            other => Ok(other),
        }
    }

    fn ask(&mut self, body: request::Body, descriptors: &[BorrowedFd<'_>]) -> Result<reply::Body, Failure> {
        self.last_id += 1;
        let request = Request {
            id: self.last_id,
            body: Some(body),
        };
        self.socket
            .send(&request.encode_to_vec(), descriptors)
            .doing(|| "ask the node".into())?;
        loop {
            let reply = self.receive()?;
            // What the node says on its own account (a new segment) is not for us.
            if let (true, Some(body)) = (reply.id == self.last_id, reply.body) {
                return Ok(body);
            }
        }
    }

    fn receive(&self) -> Result<Reply, Failure> {
        let limit = Wait::AtMost(ANSWER_TIME_MAX.as_nanos() as u64);
        let came = wait_for(&self.socket, Interest::Readable, limit).doing(|| "wait for the node".into())?;
        if !came {
            return Err(Failure::role("node", "did not answer"));
        }
        let packet = self
            .socket
            .receive(CONTROL_MESSAGE_BYTES_MAX)
            .doing(|| "hear the node".into())?;
        let packet = packet.ok_or_else(|| Failure::role("node", "has hung up"))?;
        Reply::decode(&*packet.bytes).map_err(|error| Failure::role("node", error.to_string()))
    }
}

fn send_heap() -> Result<Memfd, Failure> {
    let made = Memfd::create("bench-send-heap", SEND_HEAP_BYTES);
    let sealed = made.and_then(|memfd| memfd.seal(SEALS_FIXED_SIZE).map(|()| memfd));
    sealed.map_err(|error| Failure::role("bench", error.to_string()))
}

fn unexpected(body: &reply::Body) -> Failure {
    Failure::role("node", format!("answered {body:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_of_different_numbers_are_different_and_have_the_fields_that_the_target_is_about() {
        let (first, second) = (WideSchema::new(1).unwrap(), WideSchema::new(2).unwrap());
        assert_ne!(first.hash, second.hash);
        let schema = Schema::from_descriptor_set(&first.bytes).unwrap();
        let fields: usize = schema
            .messages
            .iter()
            .map(|message| message.fields().count())
            .sum();
        assert_eq!(fields, FIELDS);
    }
}
