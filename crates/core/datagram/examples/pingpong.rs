//! What the protocol costs: calls over the wire within a process, both ends in one thread.
//!
//! ```text
//! cargo run --release -p provost-datagram --example pingpong [-- CALLS [SETUP [BATCH]]]
//! ```
//!
//! Times are of the processor, where the kernel tells them, so that other programs on the machine count little. With a
//! setup, only that is run, with so many calls at a time, by a clock that is read as the machine's is and whose time does
//! not depend on it: that is for counting instructions, by the difference of two runs, as
//! `tests/instructions.rs` does.

use std::io;
use std::time::Instant;

use provost_datagram::{
    Algorithm, ArrivedRequest, Call, Checking, Cipher, Clock, Completion, Config, CongestionConfig, Driver,
    Endpoint, Event, EventHandler, Monotonic, MsgBuf, Payload, Recovery, ResponseGiven, ResponseSlot,
    Sealing, Security, SessionId, ShortCut,
};
use provost_packets::{InProcess, Wire};
use provost_ticks::{Counting, Source};

/// Bytes of requests and responses.
const MESSAGE_BYTES: usize = 32;
const PACKET_BYTES: usize = 1500;
const RING_PACKETS: u32 = 4096;
/// Calls at a time: alone, and as in the paper's figure 4.
const BATCHES: [usize; 4] = [1, 3, 5, 11];

/// Sessions of an endpoint: few, and many.
const SESSIONS: [usize; 2] = [20, 20_000];
/// Calls at a time over them.
const SESSIONS_BATCH: usize = 60;
/// Packets that many sessions' credits have room for.
const SMALL_PACKET_BYTES: usize = 248;
/// How often few and many take turns.
const ROUNDS: usize = 20;

/// Nanoseconds that this program has been running on a core, or has been there at all.
fn spent_ns(start: &Instant) -> u64 {
    let told = std::fs::read_to_string("/proc/self/schedstat").ok();
    let running = told
        .as_deref()
        .and_then(|told| told.split(' ').next()?.parse().ok());
    running.unwrap_or_else(|| start.elapsed().as_nanos() as u64)
}

/// Time between two looks at a clock of [`Ticks`].
const LOOK_NS: u64 = 250;

/// A counter and a kernel whose time goes on by being looked at, so that the kernel is asked as often in each run: the
/// machine's clock asks it by the time that passes, which depends on what else runs.
#[derive(Default)]
struct LookCounter(u64);

impl Source for LookCounter {
    fn counting(&self) -> Counting {
        Counting::Steady
    }

    fn ticks(&mut self) -> u64 {
        self.0 += LOOK_NS;
        self.0
    }

    fn kernel_ns(&mut self) -> u64 {
        self.0
    }
}

/// The machine's clock over that counter.
#[derive(Default)]
struct Ticks(provost_ticks::Clock<LookCounter>);

impl Clock for Ticks {
    fn now_ns(&mut self) -> u64 {
        self.0.now_ns()
    }
}

/// Answers each request with what was sent.
struct EchoServer;

impl EventHandler<'_, u8> for EchoServer {
    fn handle(&mut self, endpoint: &mut Endpoint<u8>, now_ns: u64, event: Event<'_>) {
        if let Event::Request { handle, payload, .. } = event {
            // The session lives as long as this program.
            let _ = endpoint.respond_inline(now_ns, handle, 0, &payload);
            if let Payload::Owned(buffer) = payload {
                endpoint.recycle(buffer);
            }
        }
    }

    #[inline(always)]
    fn answer(&mut self, request: &ArrivedRequest<'_>, slot: ResponseSlot<'_>) -> Option<ResponseGiven> {
        slot.respond(0, request.bytes)
    }
}

/// Counts calls that have ended, and keeps their buffers for the next.
struct CountingCaller {
    done: u64,
    spare: Vec<(MsgBuf, MsgBuf)>,
}

impl EventHandler<'_, u8> for CountingCaller {
    fn handle(&mut self, endpoint: &mut Endpoint<u8>, now_ns: u64, event: Event<'_>) {
        if let Event::Completed(completion) = event {
            self.completed(endpoint, now_ns, completion);
        }
    }

    #[inline(always)]
    fn completed(&mut self, _: &mut Endpoint<u8>, _: u64, completion: Completion) {
        self.done += 1;
        self.spare.push((completion.request, completion.response));
    }
}

struct Pair<C> {
    client: Driver<InProcess, C>,
    server: Driver<InProcess, C>,
}

impl<C: Clock + Default> Pair<C> {
    fn new(config: &Config) -> Self {
        Pair::over(config, PACKET_BYTES, RING_PACKETS)
    }

    fn over(config: &Config, packet_bytes: usize, ring_packets: u32) -> Self {
        let (client, server) = InProcess::pair(packet_bytes, ring_packets as usize);
        let driver = |wire| {
            Driver::with_clock(config.clone(), wire, C::default())
                .expect("the configuration is one to work with")
        };
        Pair {
            client: driver(client),
            server: driver(server),
        }
    }

    #[inline(never)]
    fn serve(&mut self) -> io::Result<()> {
        self.server.turn_with(&mut EchoServer)?;
        Ok(())
    }

    fn connect(&mut self, sessions: usize) -> io::Result<Vec<SessionId>> {
        let to = self.server.wire().address();
        let mut connected = Vec::new();
        while connected.len() < sessions {
            let before = connected.len();
            let (now_ns, endpoint) = self.client.endpoint();
            endpoint.connect(now_ns, to).map_err(io::Error::other)?;
            while connected.len() == before {
                self.serve()?;
                self.client.turn(|_, _, event| {
                    if let Event::Connected(session) = event {
                        connected.push(session);
                    }
                })?;
            }
        }
        Ok(connected)
    }

    #[inline(never)]
    fn complete(&mut self, caller: &mut CountingCaller) -> io::Result<()> {
        self.client.turn_with(caller)?;
        Ok(())
    }

    /// Makes so many calls, `batch` of them at a time, each on the next of the sessions, and says how many nanoseconds each
    /// took.
    #[inline(never)]
    fn run(&mut self, sessions: &[SessionId], batch: usize, calls: u64) -> io::Result<f64> {
        let mut next = 0;
        let spare = (0..batch)
            .map(|_| {
                (
                    MsgBuf::from_slice(&[7; MESSAGE_BYTES]),
                    MsgBuf::with_capacity(MESSAGE_BYTES),
                )
            })
            .collect();
        let mut made = 0;
        let mut caller = CountingCaller { done: 0, spare };
        let start = Instant::now();
        let before_ns = spent_ns(&start);
        while caller.done < calls {
            let (now_ns, endpoint) = self.client.endpoint();
            while made < calls && !caller.spare.is_empty() {
                let session = sessions[next];
                let Some((request, response)) = caller.spare.pop() else {
                    break;
                };
                let call = Call {
                    method: 1,
                    tag: made,
                    request,
                    response,
                };
                next = if next + 1 < sessions.len() { next + 1 } else { 0 };
                endpoint
                    .call(now_ns, session, call)
                    .map_err(|refused| io::Error::other(refused.error))?;
                made += 1;
            }
            self.client.transmit()?;
            self.serve()?;
            self.complete(&mut caller)?;
        }
        Ok((spent_ns(&start) - before_ns) as f64 / calls as f64)
    }
}

/// The wire alone: what a packet costs there and back.
fn bare(batch: usize, calls: u64) -> io::Result<f64> {
    let (mut one, mut other) = InProcess::pair(PACKET_BYTES, RING_PACKETS as usize);
    let (to_one, to_other) = (one.address(), other.address());
    let packet = [7; MESSAGE_BYTES + 24];
    let start = Instant::now();
    let before_ns = spent_ns(&start);
    for _ in 0..calls / batch as u64 {
        for _ in 0..batch {
            one.transmit(to_other, &packet[..24], &packet[24..]);
        }
        one.flush()?;
        let packets = other.receive(batch, |_| {})?;
        for _ in 0..packets {
            other.transmit(to_one, &packet[..24], &packet[24..]);
        }
        other.flush()?;
        one.receive(batch, |_| {})?;
    }
    Ok((spent_ns(&start) - before_ns) as f64 / calls as f64)
}

fn main() -> io::Result<()> {
    let calls = std::env::args()
        .nth(1)
        .and_then(|calls| calls.parse().ok())
        .unwrap_or(2_000_000);
    let only = std::env::args().nth(2);
    let batch = std::env::args()
        .nth(3)
        .and_then(|batch| batch.parse().ok())
        .unwrap_or(8);
    let congestion = |algorithm| CongestionConfig {
        algorithm,
        ..CongestionConfig::default()
    };
    let paced = CongestionConfig {
        bypass: ShortCut::Off,
        ..CongestionConfig::default()
    };
    let setups = [
        ("all short cuts", base(), ShortCut::On),
        (
            "no congestion control",
            Config {
                congestion: congestion(Algorithm::Off),
                ..base()
            },
            ShortCut::On,
        ),
        (
            "no congestion bypass",
            Config {
                congestion: paced,
                ..base()
            },
            ShortCut::On,
        ),
        (
            "no pacing bypass",
            Config {
                pacing_bypass: ShortCut::Off,
                ..base()
            },
            ShortCut::On,
        ),
        ("no batched clock", base(), ShortCut::Off),
        (
            "checked by packets",
            Config {
                checking: Checking::Packets,
                ..base()
            },
            ShortCut::On,
        ),
        (
            "checked by CRC32C",
            Config {
                checking: Checking::Crc32c,
                ..base()
            },
            ShortCut::On,
        ),
        ("sealed by AES-128-GCM", sealed(Cipher::Aes128Gcm), ShortCut::On),
        (
            "sealed by ChaCha20-Poly1305",
            sealed(Cipher::ChaCha20Poly1305),
            ShortCut::On,
        ),
        (
            "go-back-N",
            Config {
                recovery: Recovery::GoBackN,
                ..base()
            },
            ShortCut::On,
        ),
    ];
    if only.as_deref() == Some("sessions") {
        return many_sessions(calls);
    }
    if let Some(name) = only {
        let setup = setups.iter().find(|setup| setup.0 == name);
        let (_, config, _) = setup.ok_or_else(|| io::Error::other("there is no such setup"))?;
        let mut pair = Pair::<Ticks>::new(config);
        let session = pair.connect(1)?;
        pair.run(&session, batch, calls)?;
        return Ok(());
    }
    println!("{MESSAGE_BYTES}-byte calls, both ends in one thread; ns per call of both ends with their wire");
    println!(
        "{:28} {:>8} {:>8} {:>8} {:>8}",
        "calls at a time", BATCHES[0], BATCHES[1], BATCHES[2], BATCHES[3]
    );
    let row = |name: &str, mut cost: Box<dyn FnMut(usize) -> io::Result<f64>>| -> io::Result<()> {
        let mut line = format!("{name:28}");
        for batch in BATCHES {
            line += &format!(" {:8.1}", cost(batch)?);
        }
        println!("{line}");
        Ok(())
    };
    row("the wire alone", Box::new(move |batch| bare(batch, calls)))?;
    for (name, config, batched) in setups {
        let mut pair = Pair::<Monotonic>::new(&config);
        pair.client.set_batched_clock(batched);
        pair.server.set_batched_clock(batched);
        let session = pair.connect(1)?;
        pair.run(&session, 8, calls / 10)?;
        row(name, Box::new(move |batch| pair.run(&session, batch, calls)))?;
    }
    many_sessions(calls)
}

/// What it costs that calls are of many sessions: few and many take turns, with as many calls at a time.
fn many_sessions(calls: u64) -> io::Result<()> {
    let config = Config {
        credits: 2,
        receive_ring_packets: 65_536,
        sessions_max: SESSIONS[1],
        message_bytes_max: 1 << 20,
        ..base()
    };
    let mut pairs = Vec::new();
    for sessions in SESSIONS {
        let mut pair = Pair::<Monotonic>::over(&config, SMALL_PACKET_BYTES, config.receive_ring_packets);
        let sessions = pair.connect(sessions)?;
        pairs.push((pair, sessions));
    }
    let mut costs = [const { Vec::new() }; SESSIONS.len()];
    for _ in 0..ROUNDS {
        for ((pair, sessions), costs) in pairs.iter_mut().zip(&mut costs) {
            costs.push(pair.run(sessions, SESSIONS_BATCH, calls / ROUNDS as u64)?);
        }
    }
    for (sessions, costs) in SESSIONS.iter().zip(&mut costs) {
        costs.sort_by(f64::total_cmp);
        let middle = costs[costs.len() / 2];
        println!("{sessions:6} sessions, {SESSIONS_BATCH} calls at a time: {middle:8.1}");
    }
    Ok(())
}

/// The default configuration, with a secret that nobody has to guess.
fn base() -> Config {
    Config {
        secret: [1, 2],
        ..Config::default()
    }
}

/// That, with sealed sessions. Both ends may have one seed here: nobody listens.
fn sealed(cipher: Cipher) -> Config {
    Config {
        security: Security::Sealed(Sealing {
            cipher,
            pre_shared_key: [1; 32],
            seed: [2; 32],
        }),
        ..base()
    }
}
