//! Calls and streams that go on while a test does something to the node, and a proxy that counts the connections they need.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use provost_e2e::driver::WAIT_MAX;
use provost_e2e::eventually;
use tokio::task::JoinHandle;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;

use super::{DripMessage, EchoMessage, GrpcProbe, HoldReply, HoldRequest, PourRequest, run, spawn};

/// Callers that make unary calls, one after the other.
const CALLERS: u64 = 3;
/// Bytes of a message of the large calls: many frames, so that connections are carried in the midst of them.
const LARGE_BYTES: usize = 700_000;

/// What passes TCP connections on, and counts them.
pub(crate) struct CountingProxy {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl CountingProxy {
    /// In front of a place such as `http://127.0.0.1:1`.
    pub(crate) fn to(place: &str) -> CountingProxy {
        let target: SocketAddr = place.trim_start_matches("http://").parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = CountingProxy {
            address: listener.local_addr().unwrap(),
            connections: Arc::default(),
        };
        let connections = Arc::clone(&proxy.connections);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(target).unwrap());
                connections.fetch_add(1, Ordering::Relaxed);
                pass_on(client.try_clone().unwrap(), server.try_clone().unwrap());
                pass_on(server, client);
            }
        });
        proxy
    }

    /// Where clients find it.
    pub(crate) fn place(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many have come.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        let mut bytes = vec![0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        // It fails where that one has ended already.
        let _ = to.shutdown(Shutdown::Write);
    });
}

/// Calls of all kinds that go on until they are ended, and of which none may fail, be lost, or come twice.
pub(crate) struct SteadyTraffic {
    probe: GrpcProbe,
    key: String,
    is_over: Arc<AtomicBool>,
    progress: Arc<AtomicU64>,
    callers: Vec<JoinHandle<u64>>,
    others: Vec<JoinHandle<()>>,
}

impl SteadyTraffic {
    /// Begins it, and waits until all of it is under way. The server counts calls under the key.
    pub(crate) fn begin(probe: &GrpcProbe, key: &str) -> SteadyTraffic {
        let (is_over, progress) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let flow = || TrafficFlow {
            probe: probe.clone(),
            key: key.to_owned(),
            is_over: Arc::clone(&is_over),
            progress: Arc::clone(&progress),
        };
        let traffic = SteadyTraffic {
            probe: probe.clone(),
            key: key.to_owned(),
            callers: (0..CALLERS).map(|_| spawn(flow().call())).collect(),
            others: vec![
                spawn(flow().call_with_much()),
                spawn(flow().pour()),
                spawn(flow().chat()),
            ],
            is_over: Arc::clone(&is_over),
            progress: Arc::clone(&progress),
        };
        traffic.go_on();
        traffic
    }

    /// Waits until much more of it has gone through.
    pub(crate) fn go_on(&self) {
        let before = self.progress.load(Ordering::Relaxed);
        eventually("calls and streams go on", WAIT_MAX, || {
            self.progress.load(Ordering::Relaxed) > before + 100
        });
    }

    /// Ends it: everything was carried out once.
    pub(crate) fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        run(async {
            let mut carried_out = 0;
            for caller in self.callers {
                carried_out += caller.await.unwrap();
            }
            for other in self.others {
                other.await.unwrap();
            }
            let counts = self.probe.counts(&self.key).await;
            assert_eq!((counts.begun, counts.finished), (carried_out, carried_out));
        });
    }
}

/// One that calls, or a stream.
struct TrafficFlow {
    probe: GrpcProbe,
    key: String,
    is_over: Arc<AtomicBool>,
    progress: Arc<AtomicU64>,
}

impl TrafficFlow {
    fn goes_on(&self) -> bool {
        self.progress.fetch_add(1, Ordering::Relaxed);
        !self.is_over.load(Ordering::Relaxed)
    }

    async fn call(self) -> u64 {
        let mut carried_out = 0;
        while self.goes_on() {
            let request = HoldRequest {
                key: self.key.clone(),
                milliseconds: 0,
            };
            let held = self.probe.unary::<_, HoldReply>("Hold", request).await;
            held.expect("no call fails");
            carried_out += 1;
        }
        carried_out
    }

    async fn call_with_much(self) {
        let message = EchoMessage {
            payload: (0..=250).cycle().take(LARGE_BYTES).collect(),
            ..EchoMessage::default()
        };
        while self.goes_on() {
            let reply = self.probe.unary::<_, EchoMessage>("Echo", message.clone()).await;
            assert!(reply.expect("no large call fails") == message);
        }
    }

    async fn pour(self) {
        let request = PourRequest {
            key: format!("{}-pour", self.key),
            count: u32::MAX,
            bytes: 3_000,
            pause_milliseconds: 1,
            ..PourRequest::default()
        };
        let pour = self.probe.server_streaming::<_, DripMessage>("Pour", request);
        let mut pour = pour.await.expect("the stream begins");
        let mut number = 0;
        while self.goes_on() {
            let drip = pour.message().await.expect("the stream goes on");
            number += 1;
            assert_eq!(drip.map(|drip| drip.number), Some(number));
        }
    }

    async fn chat(self) {
        let (says, said) = tokio::sync::mpsc::channel(4);
        let chat = self
            .probe
            .streaming::<_, DripMessage>("Chat", ReceiverStream::new(said));
        let mut chat = chat.await.expect("the stream begins");
        let mut number = 0;
        while self.goes_on() {
            number += 1;
            let drip = DripMessage {
                number,
                payload: vec![7; 2_000],
            };
            says.send(drip.clone()).await.expect("the stream is open");
            assert_eq!(chat.message().await.expect("the stream goes on"), Some(drip));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(says);
        assert_eq!(chat.message().await.expect("the stream ends well"), None);
    }
}
