//! A runtime with a gRPC client, over a real socket, and no datapath: what the control plane hears of it, and says to it.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use provost_datapath::PrivateBytes;
use provost_frontend_grpc::{GrpcPort, GrpcPortParts, NodeMethods, ServiceRefusal, WantedService};
use provost_grpc::{GrpcConfig, GrpcConnection, GrpcEvent, MessageForm, RequestHead};
use provost_runtime::{
    CallerEnding, EventRefused, EventSink, NewCaller, RuntimeCommand, RuntimeEvent, RuntimeHandle,
    RuntimeOptions, ServiceAnswer, WaitMode,
};
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
