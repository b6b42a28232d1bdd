//! Peers at the port for gRPC that say nothing, something else, or never come to an end. Good clients there and good apps
//! are served meanwhile, and the service uses little.

#[allow(dead_code, reason = "these tests use a part of it")]
mod beside;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use beside::{ANSWERED_WITHIN, APPS_DECIDE, GoodPair, JudgedAttack, PeakBounds, node, watch};
use provost_e2e::{Node, World, eventually};
use provost_grpc::{GrpcConfig, GrpcConnection, GrpcEvent, MessageForm, RequestHead};
use provost_hostile::victim::Outcome;
use provost_random::SeededRandom;
use provost_wire::Code;

const LISTENER: &str = "[[grpc.listener]]\nname = \"web\"\naddress = \"127.0.0.1:0\"\napp = \"web\"\n";
/// What a client of HTTP/2 says first: the preface, and empty SETTINGS.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Descriptors beside those of clients that have called nothing, of which the service keeps 512.
const DESCRIPTORS_MAX: usize = 512 + 80;

/// What clients may have the service use that get nowhere.
const STRANGERS: PeakBounds = PeakBounds {
    descriptors: DESCRIPTORS_MAX,
    threads: 16,
    resident_bytes: 100 << 20,
    shared_bytes: APPS_DECIDE,
};

/// A node with a port for gRPC, good apps on it, and where the port is.
struct GrpcScene {
    world: World,
    node: Node,
    address: SocketAddr,
}

impl GrpcScene {
    fn new(tables: &str) -> GrpcScene {
        let (world, node) = node(&format!("{LISTENER}{tables}"));
        let log = node.program.log();
        let line = log.lines().find(|line| line.contains("serving gRPC clients"));
        let address = line.and_then(|line| line.split("address=").nth(1));
        let address = address.and_then(|address| address.trim().parse().ok());
        GrpcScene {
            world,
            address: address.expect("the listener's address"),
            node,
        }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).expect("a connection")
    }
}

/// A client that does nothing wrong.
struct HonestClient {
    socket: TcpStream,
    grpc: GrpcConnection<Arc<[u8]>>,
    input: Vec<u8>,
}

impl HonestClient {
    fn connect(scene: &GrpcScene) -> HonestClient {
        let socket = scene.connect();
        socket
            .set_read_timeout(Some(ANSWERED_WITHIN))
            .expect("a limit of time");
        HonestClient {
            socket,
            grpc: GrpcConnection::client(GrpcConfig::default(), 0),
            input: Vec::new(),
        }
    }

    fn begin(&mut self, path: &str) -> Option<u32> {
        let call = self.grpc.call(&RequestHead::new(path), 0).ok()?;
        let sent = self
            .grpc
            .send_message(call, MessageForm::Plain, b""[..].into(), 0);
        assert!(sent.is_ok());
        self.grpc.half_close(call, 0).expect("it ends");
        Some(call)
    }

    fn flush(&mut self) -> bool {
        self.grpc.fill(0);
        let output = self.grpc.copied_output();
        self.grpc.advance(output.len(), 0);
        self.socket.write_all(&output).is_ok()
    }

    /// The next event; none, once the connection has ended.
    fn event(&mut self) -> Option<GrpcEvent> {
        loop {
            let received = self.grpc.receive(&self.input, 0).expect("HTTP/2");
            self.input.drain(..received.consumed);
            if received.event.is_some() {
                return received.event;
            }
            self.flush();
            let mut bytes = [0; 4096];
            match self.socket.read(&mut bytes) {
                Ok(0) => return None,
                Ok(count) => self.input.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no answer: {error}"),
            }
        }
    }

    /// How a call ends.
    fn call(&mut self, path: &str) -> Code {
        let call = self.begin(path).expect("a call");
        loop {
            match self.event().expect("the connection goes on") {
                GrpcEvent::Ended { call: of, status, .. } if of == call => return status.code,
                _ => {}
            }
        }
    }
}

/// Asks the node for its health, again and again, and measures how long its answers take: no app has a part in them.
struct NodeAsker {
    stop: Arc<AtomicBool>,
    asking: JoinHandle<Vec<Duration>>,
}

impl NodeAsker {
    fn start(scene: &GrpcScene) -> NodeAsker {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let mut client = HonestClient::connect(scene);
        let asking = std::thread::spawn(move || {
            let mut took = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let begin = Instant::now();
                assert_eq!(client.call("/grpc.health.v1.Health/Check"), Code::Ok);
                took.push(begin.elapsed());
                std::thread::sleep(Duration::from_millis(2));
            }
            took
        });
        NodeAsker { stop, asking }
    }

    fn stop(self) -> Outcome {
        self.stop.store(true, Ordering::Relaxed);
        let mut took = self.asking.join().expect("all was answered");
        took.sort_unstable();
        let at = |part: usize| took.get(part).map_or(0, |took| took.as_micros() as u64);
        Outcome {
            calls: took.len() as u64,
            p99_us: at(took.len() * 99 / 100),
            slowest_us: at(took.len().saturating_sub(1)),
            ..Outcome::default()
        }
    }
}

/// A client that comes now is served.
fn honest_client_is_served(scene: &GrpcScene) {
    let begin = Instant::now();
    assert_eq!(HonestClient::connect(scene).call("/probe.Probe/Echo"), Code::Ok);
    assert!(begin.elapsed() < ANSWERED_WITHIN, "{:?}", begin.elapsed());
}

#[test]
fn who_connects_and_is_silent_keeps_nobody_out() {
    let mut scene = GrpcScene::new("");
    let pair = GoodPair::start(&mut scene.world, &scene.node);
    let mut before_all = HonestClient::connect(&scene);
    assert_eq!(before_all.call("/probe.Probe/Echo"), Code::Ok);
    let judged = JudgedAttack::begin(pair, [(&scene.node, STRANGERS)]);
    while judged.goes_on() {
        let _silent: Vec<_> = (0..1_200).map(|_| scene.connect()).collect();
        honest_client_is_served(&scene);
        // Those who have called keep their connections.
        assert_eq!(before_all.call("/probe.Probe/Echo"), Code::Ok);
    }
    judged.end().judge();
}

#[test]
fn heads_that_never_end_keep_nobody_out() {
    let mut scene = GrpcScene::new("");
    let pair = GoodPair::start(&mut scene.world, &scene.node);
    let judged = JudgedAttack::begin(pair, [(&scene.node, STRANGERS)]);
    // HEADERS of stream 1 without END_HEADERS; the block would go on in CONTINUATION frames.
    let head = [0, 0x40, 0, 1, 0, 0, 0, 0, 1];
    let mut slow: Vec<_> = (0..600).map(|_| scene.connect()).collect();
    let mut round = 0_u64;
    while round < 20 || judged.goes_on() {
        for socket in &mut slow {
            // Who has lost its place cannot go on.
            let _ = match round {
                0 => socket.write_all(PREFACE),
                1 => socket.write_all(&head),
                _ => socket.write_all(&[0x88]),
            };
        }
        honest_client_is_served(&scene);
        round += 1;
    }
    judged.end().judge();
}

#[test]
fn garbage_ends_with_its_connection() {
    let mut scene = GrpcScene::new("");
    let pair = GoodPair::start(&mut scene.world, &scene.node);
    let before = scene.node.usage();
    let judged = JudgedAttack::begin(pair, [(&scene.node, STRANGERS)]);
    let mut random = SeededRandom::new(7);
    let mut round = 0;
    while round < 300 || judged.goes_on() {
        let mut socket = scene.connect();
        let mut bytes = match round % 3 {
            0 => Vec::new(),
            1 => b"GET / HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n".to_vec(),
            _ => PREFACE.to_vec(),
        };
        bytes.extend(random.bytes(2_000));
        // It may be closed before it has been read whole.
        let _ = socket.write_all(&bytes);
        if round % 20 == 0 {
            honest_client_is_served(&scene);
        }
        round += 1;
    }
    judged.end().judge();
    eventually("its connections are closed", ANSWERED_WITHIN, || {
        scene.node.usage().descriptors <= before.descriptors + 10
    });
}

#[test]
fn who_calls_services_that_nobody_knows_disturbs_nobody() {
    const LOG_BYTES_MAX: usize = 1 << 20;
    let mut scene = GrpcScene::new("");
    let pair = GoodPair::start(&mut scene.world, &scene.node);
    let judged = JudgedAttack::begin(pair, [(&scene.node, STRANGERS)]);
    let mut caller = HonestClient::connect(&scene);
    let mut ended = 0;
    let mut round = 0;
    while round < 100 || judged.goes_on() {
        for number in 0..200 {
            // It opens no more than the service lets it.
            let _ = caller.begin(&format!("/nobody.Knows{round}x{number}/Call"));
        }
        assert!(caller.flush());
        while caller.grpc.open_calls() > 0 {
            if let GrpcEvent::Ended { status, .. } = caller.event().expect("the connection goes on") {
                assert!(status.code != Code::Ok);
                ended += 1;
            }
        }
        if round % 10 == 0 {
            honest_client_is_served(&scene);
        }
        round += 1;
    }
    let outcome = judged.end();
    println!("{ended} calls were refused");
    assert!(ended > 10_000);
    let log = scene.node.program.log();
    assert!(log.len() < LOG_BYTES_MAX, "{} bytes of log", log.len());
    outcome.judge();
}

#[test]
fn who_connects_anew_for_each_call_does_not_fill_the_log() {
    /// Without a bound each connection is told of in six lines of some 150 bytes.
    const CONNECTIONS: usize = 1_000;
    /// The events that may come at once of a user who calls by gRPC, of its apps and of its connections, and those in a second.
    const LOG_BYTES_MAX: usize = 160 << 10;
    const LOG_BYTES_PER_S: f64 = 24e3;
    let mut scene = GrpcScene::new("");
    let pair = GoodPair::start(&mut scene.world, &scene.node);
    let before = (scene.node.program.log().len(), Instant::now());
    let judged = JudgedAttack::begin(pair, [(&scene.node, STRANGERS)]);
    let mut connections = 0;
    while connections < CONNECTIONS || judged.goes_on() {
        let mut client = HonestClient::connect(&scene);
        client.call("/probe.Probe/Echo");
        connections += 1;
    }
    let outcome = judged.end();
    let (took, bytes) = (before.1.elapsed(), scene.node.program.log().len() - before.0);
    println!("{connections} connections in {took:?}, {bytes} bytes of log");
    let bytes_max = LOG_BYTES_MAX + (took.as_secs_f64() * LOG_BYTES_PER_S) as usize;
    assert!(bytes < bytes_max, "{bytes} bytes of log after {took:?}");
    outcome.judge();
}

#[test]
fn who_reads_no_replies_costs_its_share() {
    const CLIENTS: u64 = 2;
    const CALLS: usize = 900;
    const GROWTH_WATCHED: Duration = Duration::from_millis(500);
    const GROWTH_BYTES: u64 = 1 << 20;
    // The share of an attachment, for each of them and for the server.
    const PEAK_BYTES_MAX: u64 = (CLIENTS + 1) * (128 << 20) + (100 << 20);
    let mut scene = GrpcScene::new("[timeouts]\ncompletion_stall_ms = 500\n");
    let mut pair = GoodPair::start(&mut scene.world, &scene.node);
    let (before, peak) = watch(&scene.node);
    let asker = NodeAsker::start(&scene);
    pair.end_phase();
    let mut deaf: Vec<_> = (0..CLIENTS).map(|_| HonestClient::connect(&scene)).collect();
    // A million messages of 100 kB.
    let request: &[u8] = &[0x10, 0xc0, 0x84, 0x3d, 0x18, 0xa0, 0x8d, 0x06];
    for client in &mut deaf {
        for _ in 0..CALLS {
            let head = RequestHead::new("/probe.Probe/Pour");
            let call = client.grpc.call(&head, 0).expect("a call");
            let sent = client
                .grpc
                .send_message(call, MessageForm::Plain, request.into(), 0);
            assert!(sent.is_ok());
            client.grpc.half_close(call, 0).expect("it ends");
            client.flush();
        }
    }
    let mut resident_bytes = 0;
    eventually("the service takes no more", ANSWERED_WITHIN, || {
        honest_client_is_served(&scene);
        std::thread::sleep(GROWTH_WATCHED);
        let now = scene.node.usage().resident_bytes;
        std::mem::replace(&mut resident_bytes, now) + GROWTH_BYTES > now
    });
    let peak = peak.stop();
    // While the queues fill, the server that good apps call makes those messages, too: their calls wait for it, and that is
    // not the service's to judge. What the service answers itself waits for nothing but its own turns.
    let (calls, answers) = (pair.end_phase(), asker.stop());
    println!("{calls:?} while the queues filled, {answers:?} of the node itself");
    assert!(answers.calls > 20, "{answers:?}");
    assert_eq!(pair.complaint(&answers), None);
    println!("{before:?} became {peak:?}");
    assert!(
        peak.resident_bytes < before.resident_bytes + PEAK_BYTES_MAX,
        "{before:?} became {peak:?}"
    );
    // What nobody reads costs good apps nothing.
    let judged = JudgedAttack::begin(pair, [(&scene.node, STRANGERS)]);
    let outcome = judged.end();
    drop(deaf);
    honest_client_is_served(&scene);
    outcome.judge();
}
