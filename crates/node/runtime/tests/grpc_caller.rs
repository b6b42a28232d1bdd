//! A runtime with a gRPC client, over a real socket, and no server: what the control plane hears of it, and says to it.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use provost_datapath::{
    CompressedMessages, ConnectionEnd, ConnectionSignals, Context, Datapath, Engine, Ports, PrivateBytes,
    Progress, QUEUE_STEPS_MAX, SavedState, Saver,
};
use provost_frontend_grpc::{
    GrpcPort, GrpcPortParts, KnownMethods, MethodBinding, NodeMethods, ServiceBinding, ServiceRefusal,
    WantedService,
};
use provost_grpc::{GrpcConfig, GrpcConnection, GrpcEvent, MessageForm, RequestHead};
use provost_marshal::Tables;
use provost_runtime::{
    CallerEnding, DatapathWaker, EngineTag, EventRefused, EventSink, FaultPlan, FittedEngine, NewCaller,
    NewConnection, Reply, RuntimeCommand, RuntimeEvent, RuntimeHandle, RuntimeOptions, ServiceAnswer,
    WaitMode,
};
use provost_schema::{MessageId, Schema};
use provost_shm::now_ns;
use provost_wire::Code;

const CALLER: u64 = 5;
const TIMEOUT: Duration = Duration::from_secs(30);

struct TestSink(mpsc::SyncSender<RuntimeEvent>);

impl EventSink for TestSink {
    fn try_send(&mut self, event: RuntimeEvent) -> Result<(), EventRefused> {
        self.0.send(event).map_err(|_| EventRefused::Closed)
    }
}

struct TestClient {
    socket: UnixStream,
    grpc: GrpcConnection<Arc<[u8]>>,
    input: Vec<u8>,
}

impl TestClient {
    fn call(&mut self, path: &str) -> u32 {
        let call = self.grpc.call(&RequestHead::new(path), 0).unwrap();
        let sent = self
            .grpc
            .send_message(call, MessageForm::Plain, b""[..].into(), 0);
        assert!(sent.is_ok());
        self.grpc.half_close(call, 0).unwrap();
        self.send();
        call
    }

    fn send(&mut self) {
        self.grpc.fill(0);
        let output = self.grpc.copied_output();
        self.grpc.advance(output.len(), 0);
        // A peer that is gone is found out by reading.
        let _ = self.socket.write_all(&output);
    }

    /// The next event; none, once the connection has ended.
    fn event(&mut self) -> Option<GrpcEvent> {
        loop {
            let received = self.grpc.receive(&self.input, 0).unwrap();
            self.input.drain(..received.consumed);
            if received.event.is_some() {
                return received.event;
            }
            self.send();
            let mut bytes = [0; 4096];
            let count = match self.socket.read(&mut bytes) {
                // What this end sent last crossed the end of the other.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
                read => read.unwrap(),
            };
            if count == 0 {
                return None;
            }
            self.input.extend_from_slice(&bytes[..count]);
        }
    }

    fn status(&mut self, call: u32) -> (Code, String) {
        loop {
            match self.event().expect("the connection goes on") {
                GrpcEvent::Ended { call: of, status, .. } if of == call => {
                    return (status.code, status.message);
                }
                _ => {}
            }
        }
    }
}

fn attached() -> (RuntimeHandle, Receiver<RuntimeEvent>, TestClient) {
    let (events, heard) = mpsc::sync_channel(64);
    let options = RuntimeOptions {
        spin_ns: 50_000,
        waiting: WaitMode::Sleeps,
        time_slice: provost_shm::TimeSliceChoice::Kernel,
        completion_stall_ns: 1_000_000_000,
    };
    let runtime = RuntimeHandle::start("test", options, TestSink(events)).unwrap();
    let (socket, client) = UnixStream::pair().unwrap();
    socket.set_nonblocking(true).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    let port = GrpcPort::new(
        GrpcPortParts {
            compression: provost_grpc::MessageEncoding::Identity,
            counts: Arc::default(),
            carrier: Box::new(socket),
            config: GrpcConfig::default(),
            share: PrivateBytes::of_attachment(&PrivateBytes::of_node()),
            receive_heap_bytes: 1 << 20,
            node_methods: NodeMethods::default(),
        },
        now_ns(),
    );
    let port = Box::new(port);
    let caller = Box::new(NewCaller { app: CALLER, port });
    send(&runtime, RuntimeCommand::AttachCaller(caller));
    let client = TestClient {
        socket: client,
        grpc: GrpcConnection::client(GrpcConfig::default(), 0),
        input: Vec::new(),
    };
    (runtime, heard, client)
}

fn send(runtime: &RuntimeHandle, command: RuntimeCommand) {
    assert!(runtime.try_send(command).is_ok());
}

/// A transport to a server that is never called. It ends when it is drained.
struct IdleTransport(Arc<ConnectionSignals>);

impl Engine for IdleTransport {
    fn kind(&self) -> &'static str {
        "idle"
    }

    fn do_work(&mut self, _ports: Ports<'_>, _context: &mut Context<'_>) -> Progress {
        if !self.0.drain_requested() {
            return Progress::Idle;
        }
        self.0.set_ended(ConnectionEnd {
            code: Code::Ok,
            reason: "the connection was drained".to_owned(),
        });
        Progress::Ended
    }

    fn save(&self, _saver: &mut dyn Saver) -> SavedState {
        SavedState {
            kind: "idle".to_owned(),
            version: 1,
            bytes: Vec::new(),
        }
    }
}

fn wanted(heard: &Receiver<RuntimeEvent>) -> WantedService {
    loop {
        match heard.recv_timeout(TIMEOUT).unwrap() {
            RuntimeEvent::ServiceWanted { wanted, .. } => return wanted,
            RuntimeEvent::Closed { .. } => {}
            event => panic!("{event:?}"),
        }
    }
}

fn found(connection: u32) -> ServiceBinding {
    let method = MethodBinding {
        index: 0,
        output: MessageId(0),
        client_streaming: false,
        server_streaming: false,
    };
    ServiceBinding {
        connection,
        tables: Arc::new(Tables::compile(&Schema::default()).unwrap()),
        methods: Arc::new([("Call".to_owned(), method)].into()),
        methods_known: KnownMethods::All,
        message_bytes_max: 1 << 20,
        compressed: CompressedMessages::Decompressed,
    }
}

/// Opens a connection with this transport; its number at the client.
fn open(
    runtime: &RuntimeHandle,
    id: u64,
    transport: Box<dyn Engine>,
    (signals, waker): (&Arc<ConnectionSignals>, &Arc<DatapathWaker>),
) -> u32 {
    let (opened, number) = mpsc::sync_channel(1);
    let connection = NewConnection {
        id,
        app: CALLER,
        datapath: Datapath::new(vec![transport], Arc::clone(signals)),
        fitted: vec![FittedEngine::new(EngineTag::TRANSPORT, FaultPlan::default())],
        waker: Arc::clone(waker),
        permit: Box::new(()),
        accepted_for: None,
        opened: Reply::new(move |number| opened.send(number).unwrap_or_default()),
    };
    send(runtime, RuntimeCommand::Open(Box::new(connection)));
    number.recv_timeout(TIMEOUT).unwrap()
}

/// Tells the runtime what there is of a service.
fn answer(runtime: &RuntimeHandle, service: &str, found: Result<ServiceBinding, ServiceRefusal>) {
    let answer = ServiceAnswer {
        app: CALLER,
        service: service.to_owned(),
        found,
    };
    send(runtime, RuntimeCommand::AnswerService(Box::new(answer)));
}

/// A transport that takes every step, and says so.
struct TakingTransport(mpsc::SyncSender<u64>);

impl Engine for TakingTransport {
    fn kind(&self) -> &'static str {
        "taking"
    }

    fn do_work(&mut self, ports: Ports<'_>, _context: &mut Context<'_>) -> Progress {
        while let Some(step) = ports.tx_in.pop() {
            // The test takes one.
            let _ = self.0.try_send(step.call);
        }
        Progress::Idle
    }

    fn save(&self, _saver: &mut dyn Saver) -> SavedState {
        SavedState {
            kind: "taking".to_owned(),
            version: 1,
            bytes: Vec::new(),
        }
    }
}

#[test]
fn calls_to_a_server_that_takes_none_hold_up_no_calls_to_others() {
    let (runtime, heard, mut client) = attached();
    let connected = |id, transport: &dyn Fn(&Arc<ConnectionSignals>) -> Box<dyn Engine>| {
        let service = wanted(&heard).service;
        let (signals, waker) = (Arc::new(ConnectionSignals::new()), runtime.new_waker());
        let number = open(&runtime, id, transport(&signals), (&signals, &waker));
        answer(&runtime, &service, Ok(found(number)));
    };
    client.call("/test.Still/Call");
    connected(7, &|signals| Box::new(IdleTransport(Arc::clone(signals))));
    for _ in 0..QUEUE_STEPS_MAX + 8 {
        client.call("/test.Still/Call");
    }
    client.call("/test.Other/Call");
    let (takes, taken) = mpsc::sync_channel(1);
    connected(8, &|_| Box::new(TakingTransport(takes.clone())));
    assert!(
        taken.recv_timeout(TIMEOUT).is_ok(),
        "the call waits behind the others"
    );
}

#[test]
fn a_connection_that_is_drained_before_calls_know_of_it_is_asked_for_anew() {
    let (runtime, heard, mut client) = attached();
    let call = client.call("/test.Late/Call");
    let first = wanted(&heard);
    let (signals, waker) = (Arc::new(ConnectionSignals::new()), runtime.new_waker());
    let transport = Box::new(IdleTransport(Arc::clone(&signals)));
    let number = open(&runtime, 7, transport, (&signals, &waker));
    // The schema of the service comes just now: calls are to leave those connections that knew none.
    signals.drain();
    waker.wake();
    let ended = heard.recv_timeout(TIMEOUT).unwrap();
    assert!(matches!(ended, RuntimeEvent::Closed { id: 7, .. }), "{ended:?}");
    answer(&runtime, "test.Late", Ok(found(number)));
    assert_eq!(wanted(&heard), first, "the call waits for another connection");
    let message = "nobody serves it".to_owned();
    let code = Code::NotFound;
    answer(&runtime, "test.Late", Err(ServiceRefusal { code, message }));
    assert_eq!(client.status(call).0, Code::NotFound);
}

#[test]
fn a_service_is_asked_for_and_refused() {
    let (runtime, heard, mut client) = attached();
    let call = client.call("/test.Missing/Call");
    let event = heard.recv_timeout(TIMEOUT).unwrap();
    let RuntimeEvent::ServiceWanted {
        app: CALLER,
        wanted: WantedService { service, .. },
    } = event
    else {
        panic!("{event:?}");
    };
    // The runtime sleeps meanwhile, and is woken by the answer.
    std::thread::sleep(Duration::from_millis(20));
    let message = "nobody offers it".to_owned();
    let answer = ServiceAnswer {
        app: CALLER,
        service,
        found: Err(ServiceRefusal {
            code: Code::Unimplemented,
            message: message.clone(),
        }),
    };
    send(&runtime, RuntimeCommand::AnswerService(Box::new(answer)));
    assert_eq!(client.status(call), (Code::Unimplemented, message));

    drop(client);
    let event = heard.recv_timeout(TIMEOUT).unwrap();
    assert!(
        matches!(event, RuntimeEvent::CallerEnded { app: CALLER, .. }),
        "{event:?}"
    );
    let event = heard.recv_timeout(TIMEOUT).unwrap();
    assert!(
        matches!(event, RuntimeEvent::Detached { app: CALLER }),
        "{event:?}"
    );
}

#[test]
fn a_drained_client_ends_after_its_calls() {
    let (runtime, heard, mut client) = attached();
    let call = client.call("/test.Missing/Call");
    assert!(matches!(
        heard.recv_timeout(TIMEOUT).unwrap(),
        RuntimeEvent::ServiceWanted { .. }
    ));
    send(&runtime, RuntimeCommand::DrainCaller(CALLER));
    while client.event().expect("the connection goes on") != GrpcEvent::Draining {}
    let answer = ServiceAnswer {
        app: CALLER,
        service: "test.Missing".to_owned(),
        found: Err(ServiceRefusal {
            code: Code::Unavailable,
            message: String::new(),
        }),
    };
    send(&runtime, RuntimeCommand::AnswerService(Box::new(answer)));
    assert_eq!(client.status(call).0, Code::Unavailable);
    // Of the two steps in which it is told, the second.
    while let Some(event) = client.event() {
        assert_eq!(event, GrpcEvent::Draining);
    }
    assert!(matches!(
        heard.recv_timeout(TIMEOUT).unwrap(),
        RuntimeEvent::CallerEnded { .. }
    ));
}

#[test]
fn a_detached_client_is_disconnected() {
    let (runtime, heard, mut client) = attached();
    client.call("/test.Missing/Call");
    assert!(matches!(
        heard.recv_timeout(TIMEOUT).unwrap(),
        RuntimeEvent::ServiceWanted { .. }
    ));
    send(&runtime, RuntimeCommand::Detach(CALLER));
    while client.event().is_some() {}
    assert!(matches!(
        heard.recv_timeout(TIMEOUT).unwrap(),
        RuntimeEvent::Detached { .. }
    ));
}

#[test]
fn calls_of_a_client_that_is_ended_get_a_status() {
    let (runtime, heard, mut client) = attached();
    let call = client.call("/test.Missing/Call");
    assert!(matches!(
        heard.recv_timeout(TIMEOUT).unwrap(),
        RuntimeEvent::ServiceWanted { .. }
    ));
    let message = "being replaced".to_owned();
    let ending = CallerEnding {
        app: CALLER,
        refusal: ServiceRefusal {
            code: Code::Unavailable,
            message: message.clone(),
        },
    };
    send(&runtime, RuntimeCommand::EndCaller(Box::new(ending)));
    assert_eq!(client.status(call), (Code::Unavailable, message));
    while let Some(event) = client.event() {
        assert_eq!(event, GrpcEvent::Draining);
    }
    assert!(matches!(
        heard.recv_timeout(TIMEOUT).unwrap(),
        RuntimeEvent::CallerEnded { .. }
    ));
}
