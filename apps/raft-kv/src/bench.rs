//! Replicated writes, beside what the same wire and the same transport cost without them, in one run.
//!
//! All parties are threads of this process, each with a wire of its own. Setups take turns, so that what else runs on the
//! machine meets all of them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use provost_datagram::{Call, Driver, Event, MsgBuf, Turn};
use provost_figures::{Bound, Cells, Figure, Latencies, Load, Report, TargetOutcome, table};
use provost_packets::Wire;
use provost_raft_kv::client::ReadRoute;
use provost_raft_kv::journal::{JournalFolder, JournalMedium, MemoryOnly};
use provost_raft_kv::member::{Member, MemberConfig, MemberOutbox, ReadRule};
use provost_raft_kv::operation::{Operation, Request, RequestAnswer};
use provost_raft_kv::process::{BlockingClient, IdleWait, PACKET_BYTES, WaitManner, serve, transport_config};
use provost_raft_kv::replica::{Replica, ReplicaConfig};
use provost_udp::UdpWire;

use super::{CommandOutcome, WaitArgument};

/// How much slower than the bare wire a replicated write may be.
const RATIO_MAX: f64 = 2.5;
const MEMBERS: u64 = 3;
/// Until a leader is there, and everything is warm.
const WARM_UP: Duration = Duration::from_secs(10);
const WARM_UP_CALLS: usize = 200;
/// As in eRPC's measurement (NSDI '19, section 7.1), in bytes.
const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 64;
const KEYS: u64 = 1_000_000;

/// What is measured.
#[derive(Args)]
pub(crate) struct BenchOptions {
    /// How long each setup is measured in each round, in seconds.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds, over which medians are taken.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// How threads wait.
    #[arg(long, value_enum, default_value = "spin-then-sleep")]
    wait: WaitArgument,
    /// Requests at a time in the measurement of the rate.
    #[arg(long, default_value_t = 32)]
    slots: usize,
    /// Also measure members that keep journals in this folder, which is to be on the disk in question.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Write the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// One short round, to see that everything works.
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(options: &BenchOptions) -> CommandOutcome {
    let (rounds, seconds) = if options.quick {
        (1, 0.3)
    } else {
        (options.rounds, options.seconds)
    };
    let (wait, length) = (options.wait.into(), Duration::from_secs_f64(seconds));
    let mut cells = Cells::default();
    for round in 0..rounds {
        cells.add(&load("bare udp", "round trip", 1), bare(wait, length)?);
        cells.add(&load("transport udp", "call", 1), transport(wait, length)?);
        cells.add(&load("members alone", "put", 1), alone(length)?);
        for slots in [1, options.slots] {
            let what = if slots == 1 { "put" } else { "put rate" };
            let run = replicated(wait, length, slots, |_| Ok(MemoryOnly))?;
            cells.add(&load("raft-kv udp, memory", what, slots), run);
            if let Some(folder) = &options.folder {
                let medium = |id| JournalFolder::open(&folder.join(format!("{round}-{slots}-{id}")));
                let run = replicated(wait, length, slots, medium)?;
                cells.add(&load("raft-kv udp, journal", what, slots), run);
            }
        }
    }
    const P50: Figure = |median| median.p50_us;
    let target = TargetOutcome::of_places(
        "p50 of a put to the bare round trip".into(),
        &cells,
        ("raft-kv udp, memory", "put", P50),
        ("bare udp", "round trip", P50),
        Bound::RatioAtMost(RATIO_MAX),
    );
    table::print(&cells, &format!("{rounds} rounds"), target.as_slice());
    if let Some(path) = &options.json {
        cells.write(path)?;
    }
    Ok(())
}

fn load(setup: &str, what: &str, inflight: usize) -> Load {
    Load {
        setup: setup.into(),
        what: what.into(),
        size: KEY_BYTES + VALUE_BYTES,
        conns: 1,
        inflight,
    }
}

fn wire() -> std::io::Result<UdpWire> {
    UdpWire::bind(SocketAddr::from(([127, 0, 0, 1], 0)), PACKET_BYTES)
}

/// Nothing was there: waits for what comes.
fn pause<W: Wire>(wire: &mut W, waiting: &mut IdleWait) -> std::io::Result<()> {
    if waiting.sleeps_after(Turn::Idle) {
        wire.wait(Some(Duration::from_millis(10)))?;
    }
    Ok(())
}

/// Ends the other threads however this one ends.
struct StopGuard<'a>(&'a AtomicBool);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A packet there and one back, over the wire alone.
fn bare(wait: WaitManner, length: Duration) -> CommandOutcome<Report> {
    let (mut here, mut there) = (wire()?, wire()?);
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let _stopping = StopGuard(&stop);
        let to = there.address();
        threads.spawn(|| -> std::io::Result<()> {
            let mut waiting = IdleWait::new(wait);
            while !stop.load(Ordering::Relaxed) {
                let mut from = None;
                there.receive(1, |arrival| from = Some(arrival.from))?;
                match from {
                    Some(from) => {
                        there.transmit(from, &[0; 24], &[0; KEY_BYTES + VALUE_BYTES]);
                        there.flush()?;
                        let _ = waiting.sleeps_after(Turn::Busy);
                    }
                    None => pause(&mut there, &mut waiting)?,
                }
            }
            Ok(())
        });
        let (mut latencies, began) = (Latencies::default(), Instant::now());
        let mut waiting = IdleWait::new(wait);
        while began.elapsed() < length {
            let sent = Instant::now();
            here.transmit(to, &[0; 24], &[0; KEY_BYTES + VALUE_BYTES]);
            here.flush()?;
            let _ = waiting.sleeps_after(Turn::Busy);
            // A lost packet is not waited for for ever.
            while here.receive(1, |_| {})? == 0 && sent.elapsed() < length {
                pause(&mut here, &mut waiting)?;
            }
            latencies.record(sent.elapsed());
        }
        Ok(latencies.report(began.elapsed().as_secs_f64(), 0))
    })
}

/// A call of the transport, answered at once.
fn transport(wait: WaitManner, length: Duration) -> CommandOutcome<Report> {
    let mut server = Driver::new(transport_config()?, wire()?)?;
    let mut client = Driver::new(transport_config()?, wire()?)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let _stopping = StopGuard(&stop);
        let to = server.wire().address();
        threads.spawn(|| -> std::io::Result<()> {
            let mut waiting = IdleWait::new(wait);
            while !stop.load(Ordering::Relaxed) {
                let turn = server.turn(|endpoint, now_ns, event| {
                    if let Event::Request { handle, .. } = event {
                        // The session is there as long as the client.
                        let _ = endpoint.respond_inline(now_ns, handle, 0, &[0]);
                    }
                })?;
                waiting.rest(&mut server, turn, None)?;
            }
            Ok(())
        });
        let (now_ns, endpoint) = client.endpoint();
        let session = endpoint.connect(now_ns, to)?;
        let mut buffers = Some((
            MsgBuf::from_slice(&[0; KEY_BYTES + VALUE_BYTES]),
            MsgBuf::with_capacity(64),
        ));
        let mut is_connected = false;
        let mut waiting = IdleWait::new(wait);
        let (mut latencies, began, mut sent) = (Latencies::default(), Instant::now(), Instant::now());
        let mut errors = 0;
        while began.elapsed() < length {
            if is_connected && let Some((request, response)) = buffers.take() {
                sent = Instant::now();
                let call = Call {
                    method: 1,
                    tag: 0,
                    request,
                    response,
                };
                let (now_ns, endpoint) = client.endpoint();
                endpoint
                    .call(now_ns, session, call)
                    .map_err(|refused| refused.error)?;
            }
            let turn = client.turn(|_, _, event| match event {
                Event::Connected(_) => is_connected = true,
                Event::Completed(completion) => {
                    latencies.record(sent.elapsed());
                    errors += u64::from(completion.outcome.is_err());
                    buffers = Some((completion.request, completion.response));
                }
                _ => {}
            })?;
            waiting.rest(&mut client, turn, None)?;
        }
        Ok(latencies.report(began.elapsed().as_secs_f64(), errors))
    })
}

/// Writes to three members in one thread, whose messages go from one to the other at once: what all three compute for a
/// write, without transport or wire.
fn alone(length: Duration) -> CommandOutcome<Report> {
    let ids: Vec<u64> = (1..=MEMBERS).collect();
    let mut members = (ids
        .iter()
        .map(|id| Member::new(member_config(*id, &ids), MemoryOnly)))
    .collect::<Result<Vec<_>, _>>()?;
    let mut outbox = MemberOutbox::default();
    while !members.iter().any(Member::is_leader) {
        members.iter_mut().for_each(Member::tick);
        exchange(&mut members, &mut outbox)?;
    }
    let leader = members.iter().position(Member::is_leader).unwrap_or(0);
    let submit = |members: &mut Vec<Member<MemoryOnly>>, sequence, operation| {
        let request = Request {
            // The first entry is the new leader's own, the second opened the session.
            session: 2,
            sequence,
            operation,
        };
        members[leader].submit(sequence, &request.encode());
    };
    submit(&mut members, 0, Operation::OpenSession);
    exchange(&mut members, &mut outbox)?;
    outbox.answers.clear();
    let (mut latencies, mut errors, mut puts) = (Latencies::default(), 0, 0);
    let began = Instant::now();
    while began.elapsed() < length {
        puts += 1;
        let sent = Instant::now();
        submit(&mut members, puts, put(puts));
        exchange(&mut members, &mut outbox)?;
        match outbox.answers.pop() {
            Some((_, RequestAnswer::Done)) => latencies.record(sent.elapsed()),
            _ => errors += 1,
        }
    }
    Ok(latencies.report(began.elapsed().as_secs_f64(), errors))
}

/// Has messages go to and fro until there are no more.
fn exchange(members: &mut [Member<MemoryOnly>], outbox: &mut MemberOutbox) -> CommandOutcome {
    loop {
        for member in members.iter_mut() {
            member.advance(outbox)?;
            while member.is_sync_due() {
                member.sync(outbox)?;
            }
        }
        if outbox.messages.is_empty() {
            return Ok(());
        }
        for message in std::mem::take(&mut outbox.messages) {
            if let Some(member) = members.iter_mut().find(|member| member.id() == message.to) {
                member.step(message);
            }
        }
    }
}

fn member_config(id: u64, members: &[u64]) -> MemberConfig {
    MemberConfig {
        id,
        members: members.to_vec(),
        reads: ReadRule::Linearizable,
        snapshot_entries: 1_000_000,
        seed: id,
    }
}

/// Writes to three members, so many at a time.
fn replicated<M: JournalMedium>(
    wait: WaitManner,
    length: Duration,
    slots: usize,
    medium: impl Fn(u64) -> std::io::Result<M> + Sync,
) -> CommandOutcome<Report> {
    let wires = (0..MEMBERS).map(|_| wire()).collect::<Result<Vec<_>, _>>()?;
    let addresses = wires.iter().map(Wire::address);
    let members: Vec<(u64, SocketAddr)> = (1..).zip(addresses).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let _stopping = StopGuard(&stop);
        for (id, wire) in (1..).zip(wires) {
            let (members, stop, medium) = (&members, &stop, &medium);
            threads.spawn(move || {
                if let Err(error) = run_member(id, wire, medium, members, wait, stop) {
                    eprintln!("member {id}: {error}");
                }
            });
        }
        let mut client = BlockingClient::connect(members.clone(), slots, ReadRoute::Leader, wait)?;
        for at in 0..WARM_UP_CALLS {
            client.call(put(at as u64), WARM_UP)?;
        }
        measure(&mut client, slots, length)
    })
}

fn run_member<M: JournalMedium>(
    id: u64,
    wire: UdpWire,
    medium: &impl Fn(u64) -> std::io::Result<M>,
    members: &[(u64, SocketAddr)],
    wait: WaitManner,
    stop: &AtomicBool,
) -> Result<(), Box<dyn std::error::Error>> {
    let ids: Vec<u64> = members.iter().map(|(id, _)| *id).collect();
    let config = member_config(id, &ids);
    let others = members.iter().filter(|(other, _)| *other != id);
    let replica_config = ReplicaConfig {
        peers: others.copied().collect(),
        key: [0; 16],
        tick_ns: 20_000_000,
    };
    let replica = Replica::new(Member::new(config, medium(id)?)?, replica_config);
    let mut driver = Driver::new(transport_config()?, wire)?;
    Ok(serve(&mut driver, replica, wait, stop)?)
}

fn put(at: u64) -> Operation {
    let mut key = vec![0; KEY_BYTES];
    key[..8].copy_from_slice(&(at.wrapping_mul(0x9e37_79b9_7f4a_7c15) % KEYS).to_le_bytes());
    Operation::Put {
        key,
        value: vec![7; VALUE_BYTES],
    }
}

fn measure(client: &mut BlockingClient<UdpWire>, slots: usize, length: Duration) -> CommandOutcome<Report> {
    let began = Instant::now();
    let mut sent = vec![began; slots];
    let mut puts = 0;
    for (slot, sent) in sent.iter_mut().enumerate() {
        *sent = Instant::now();
        client.submit(slot, put(slot as u64));
        puts += 1;
    }
    let (mut latencies, mut errors) = (Latencies::default(), 0);
    while began.elapsed() < length {
        if let Some((slot, answer)) = client.turn()? {
            if answer == RequestAnswer::Done {
                latencies.record(sent[slot].elapsed());
            } else {
                errors += 1;
            }
            sent[slot] = Instant::now();
            client.submit(slot, put(puts));
            puts += 1;
        }
    }
    Ok(latencies.report(began.elapsed().as_secs_f64(), errors))
}
