//! Reads, alone and mixed with scans, which run in workers or in the event loop, in one run; and beside them what decides
//! which of the two is better: how long a scan takes, and how long it takes to wake a worker.
//!
//! Server and client are threads of this process. Setups take turns, so that what else runs on the machine meets all of
//! them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use provost_datagram_rpc::{Completion, Context, Handlers, Rpc, RpcConfig, SessionId, Wire};
use provost_figures::{Cells, Latencies, Load, table};
use provost_ordered_kv::protocol::{DONE, GET, SCAN, span};
use provost_ordered_kv::server::{Scans, handlers};
use provost_ordered_kv::tree::Tree;
use provost_packets::InProcess;
use provost_udp::{PACKET_BYTES_ETHERNET, UdpWire};

use super::Outcome;

/// How many of a hundred requests are scans, as in eRPC's measurement (NSDI '19, section 7.2).
const SCANS_PER_CENT: u64 = 1;
/// As there, and as long as makes it worth a worker.
const SCAN_KEYS: [u32; 2] = [128, 4096];
/// How long a thread is left to fall asleep before it is woken.
const ASLEEP: Duration = Duration::from_micros(300);
const RING_PACKETS: usize = 4096;
const RESPONSE_BYTES: usize = 16;

/// What is measured.
#[derive(Args)]
pub(crate) struct BenchOptions {
    /// How long each setup is measured in each round, in seconds.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds, over which medians are taken.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Keys in the store.
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Requests at a time.
    #[arg(long, default_value_t = 8)]
    inflight: usize,
    /// Worker threads.
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Keys of a scan; more than one measures one after the other.
    #[arg(long, value_delimiter = ',', default_values_t = SCAN_KEYS)]
    scan_keys: Vec<u32>,
    /// Write the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// One short round over few keys, to see that everything works.
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy)]
struct Mix {
    scans_per_cent: u64,
    scan_keys: u32,
    scans: Scans,
}

impl Mix {
    /// Gets alone, then scans of each length in either place.
    fn all(scan_keys: &[u32]) -> Vec<Mix> {
        let gets_alone = Mix {
            scans_per_cent: 0,
            scan_keys: 0,
            scans: Scans::InWorkers,
        };
        let mixed = scan_keys.iter().flat_map(|keys| {
            [Scans::InWorkers, Scans::InDispatch].map(|scans| Mix {
                scans_per_cent: SCANS_PER_CENT,
                scan_keys: *keys,
                scans,
            })
        });
        std::iter::once(gets_alone).chain(mixed).collect()
    }

    fn name(&self) -> String {
        match (self.scans_per_cent, self.scans) {
            (0, _) => "gets alone".to_owned(),
            (_, Scans::InWorkers) => format!("scans of {} in workers", self.scan_keys),
            (_, Scans::InDispatch) => format!("scans of {} in dispatch", self.scan_keys),
        }
    }
}

pub(crate) fn run(options: &BenchOptions) -> Outcome {
    let (rounds, seconds, keys) = if options.quick {
        (1, 0.2, 10_000)
    } else {
        (options.rounds, options.seconds, options.keys.max(1))
    };
    let tree = Arc::new(Tree::default());
    for key in 0..keys {
        tree.put(key, key)?;
    }
    let mut cells = Cells::default();
    let length = Duration::from_secs_f64(seconds);
    for _ in 0..rounds {
        for keys_scanned in &options.scan_keys {
            scan_alone(&tree, (keys, *keys_scanned), length, &mut cells);
        }
        wake(length, &mut cells);
        for mix in Mix::all(&options.scan_keys) {
            let bench = RunningBench {
                tree: &tree,
                mix,
                keys,
                inflight: options.inflight.max(1),
                workers: options.workers,
                length,
            };
            let (near, far) = InProcess::pair(PACKET_BYTES_ETHERNET, RING_PACKETS);
            bench.measure("process", (near, far), &mut cells)?;
            let wire = || UdpWire::bind(SocketAddr::from(([127, 0, 0, 1], 0)), PACKET_BYTES_ETHERNET);
            bench.measure("udp", (wire()?, wire()?), &mut cells)?;
        }
    }
    let head = format!("{keys} keys, {rounds} rounds");
    table::print(&cells, &head, &[]);
    if let Some(path) = &options.json {
        cells.write(path)?;
    }
    Ok(())
}

/// What one cell is of, without a client.
fn alone(setup: &str, what: &str) -> Load {
    Load {
        setup: setup.to_owned(),
        what: what.to_owned(),
        size: 0,
        conns: 1,
        inflight: 1,
    }
}

/// Scans of the tree, without transport.
fn scan_alone(tree: &Tree, (keys, scan_keys): (u64, u32), length: Duration, cells: &mut Cells) {
    let (mut latencies, began, mut key) = (Latencies::default(), Instant::now(), 1u64);
    while began.elapsed() < length / 4 {
        key = key.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let scan = Instant::now();
        std::hint::black_box(tree.scan((key >> 33) % keys, scan_keys as usize));
        latencies.record(scan.elapsed());
    }
    let run = latencies.report(began.elapsed().as_secs_f64(), 0);
    cells.add(&alone("tree alone", &format!("scan {scan_keys}")), run);
}

/// Wakes a thread that sleeps, as the event loop wakes a worker: what it takes of the event loop, and until the thread
/// runs.
fn wake(length: Duration, cells: &mut Cells) {
    let (began, stop) = (Instant::now(), AtomicBool::new(false));
    let ran_at_ns = AtomicU64::new(0);
    let (mut waking, mut until_it_runs) = (Latencies::default(), Latencies::default());
    std::thread::scope(|threads| {
        let sleeper = threads.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                std::thread::park();
                ran_at_ns.store(began.elapsed().as_nanos() as u64, Ordering::SeqCst);
            }
        });
        while began.elapsed() < length / 4 {
            std::thread::sleep(ASLEEP);
            ran_at_ns.store(0, Ordering::SeqCst);
            let at = began.elapsed();
            sleeper.thread().unpark();
            waking.record(began.elapsed() - at);
            while ran_at_ns.load(Ordering::SeqCst) == 0 {
                std::hint::spin_loop();
            }
            let ran_at = Duration::from_nanos(ran_at_ns.load(Ordering::SeqCst));
            until_it_runs.record(ran_at.saturating_sub(at));
        }
        stop.store(true, Ordering::SeqCst);
        sleeper.thread().unpark();
    });
    let seconds = began.elapsed().as_secs_f64();
    cells.add(
        &alone("a thread that sleeps", "to wake it"),
        waking.report(seconds, 0),
    );
    cells.add(
        &alone("a thread that sleeps", "until it runs"),
        until_it_runs.report(seconds, 0),
    );
}

struct RunningBench<'b> {
    tree: &'b Arc<Tree>,
    mix: Mix,
    keys: u64,
    inflight: usize,
    workers: usize,
    length: Duration,
}

/// What the client's continuations share.
struct ContinuationState {
    session: Option<SessionId>,
    sent: Vec<Instant>,
    gets: Latencies,
    scans: Latencies,
    errors: u64,
    chance: u64,
    keys: u64,
    mix: Mix,
    ends: Instant,
}

impl ContinuationState {
    fn below(&mut self, end: u64) -> u64 {
        self.chance = self
            .chance
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (self.chance >> 33) % end
    }
}

impl RunningBench<'_> {
    fn measure<W: Wire + Send>(&self, name: &str, (near, far): (W, W), cells: &mut Cells) -> Outcome
    where
        W::Address: 'static,
    {
        let stop = AtomicBool::new(false);
        let to = far.address();
        let config = RpcConfig {
            workers: self.workers,
            ..RpcConfig::default()
        };
        let handlers = handlers::<W>(self.tree, self.mix.scans);
        std::thread::scope(|threads| {
            let _stopping = StopGuard(&stop);
            threads.spawn(|| -> Result<(), String> {
                let told = |error: &dyn std::error::Error| error.to_string();
                let mut rpc = Rpc::new(config, far, (), handlers).map_err(|error| told(&error))?;
                while !stop.load(Ordering::Relaxed) {
                    rpc.turn_and_rest(Duration::from_millis(10))
                        .map_err(|error| told(&error))?;
                }
                Ok(())
            });
            self.drive(name, near, to, cells)
        })
    }

    fn drive<W: Wire>(&self, name: &str, wire: W, to: W::Address, cells: &mut Cells) -> Outcome
    where
        W::Address: 'static,
    {
        let now = Instant::now();
        let client = ContinuationState {
            session: None,
            sent: vec![now; self.inflight],
            gets: Latencies::default(),
            scans: Latencies::default(),
            errors: 0,
            chance: 1,
            keys: self.keys,
            mix: self.mix,
            ends: now + self.length,
        };
        let mut rpc = Rpc::new(RpcConfig::default(), wire, client, Handlers::new())?;
        let (client, mut context) = rpc.parts();
        client.session = Some(context.connect(to)?);
        for lane in 0..self.inflight {
            ask(client, &mut context, lane as u64);
        }
        let began = Instant::now();
        while began.elapsed() < self.length {
            rpc.turn_and_rest(Duration::from_millis(10))?;
        }
        let (seconds, client) = (began.elapsed().as_secs_f64(), rpc.state());
        let load = |what: &str, size| Load {
            setup: format!("{}, {name}", self.mix.name()),
            what: what.into(),
            size,
            conns: 1,
            inflight: self.inflight,
        };
        cells.add(&load("get", 8), client.gets.report(seconds, client.errors));
        if client.scans.count() > 0 {
            cells.add(&load("scan", 12), client.scans.report(seconds, 0));
        }
        Ok(())
    }
}

/// Asks for a random key, or a scan from one on; when it is answered, asks again.
fn ask<A: Copy + Eq + std::hash::Hash + std::fmt::Debug + 'static>(
    client: &mut ContinuationState,
    context: &mut Context<'_, A, ContinuationState>,
    lane: u64,
) {
    let (key, is_scan) = (
        client.below(client.keys),
        client.below(100) < client.mix.scans_per_cent,
    );
    let mut call = if is_scan {
        context.call_of(SCAN, &span(key, client.mix.scan_keys), RESPONSE_BYTES)
    } else {
        context.call_of(GET, &key.to_le_bytes(), RESPONSE_BYTES)
    };
    call.tag = lane << 1 | u64::from(is_scan);
    let Some(session) = client.session else {
        return;
    };
    if let Some(sent) = client.sent.get_mut(lane as usize) {
        *sent = Instant::now();
    }
    if context.enqueue_request(session, call, go_on).is_err() {
        client.errors += 1;
    }
}

fn go_on<A: Copy + Eq + std::hash::Hash + std::fmt::Debug + 'static>(
    client: &mut ContinuationState,
    context: &mut Context<'_, A, ContinuationState>,
    completion: Completion,
) {
    let (lane, is_scan) = (completion.tag >> 1, completion.tag & 1 == 1);
    let took = client.sent.get(lane as usize).map(Instant::elapsed);
    match (completion.outcome, took) {
        (Ok(DONE), Some(took)) if is_scan => client.scans.record(took),
        (Ok(DONE), Some(took)) => client.gets.record(took),
        _ => client.errors += 1,
    }
    context.recycle(completion.request);
    context.recycle(completion.response);
    if Instant::now() < client.ends {
        ask(client, context, lane);
    }
}

/// Ends the server however the client ends.
struct StopGuard<'a>(&'a AtomicBool);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
