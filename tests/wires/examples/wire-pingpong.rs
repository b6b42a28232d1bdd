//! Round trips over wires between two hosts, which are network namespaces of this machine: of bare packets, and of calls of
//! the datagram transport, one at a time and many. It needs root. With `--features dpdk` also over rings of DPDK, within the
//! process.
//!
//! ```text
//! cargo run --release -p provost-wire-tests --example wire-pingpong [-- ROUNDS [AT_A_TIME]]
//! ```

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use provost_datagram::{
    Algorithm, Call, Config, CongestionConfig, Driver, Endpoint, Event, MsgBuf, SessionId,
};
use provost_packets::Wire;
use provost_udp::{UdpOptions, Use};
use provost_wire_tests::Cable;

/// Bytes of requests and responses, and of what the protocol puts before them.
const MESSAGE_BYTES: usize = 32;
const HEAD_BYTES: usize = 24;
/// Bytes of a large request, and how many are sent, one at a time.
const LARGE_BYTES: usize = 8 << 20;
const LARGE_ROUNDS: usize = 20;
/// Calls of a session that are on their way at once.
const SLOTS: usize = 8;
const BATCH_PACKETS: usize = 32;

/// What is done over a wire.
#[derive(Clone, Copy)]
struct Load {
    rounds: usize,
    at_a_time: usize,
    request_bytes: usize,
}

/// How long each round trip took, and all of them together.
struct Outcome {
    round_trips_ns: Vec<u64>,
    seconds: f64,
    told: String,
}

fn main() -> io::Result<()> {
    let number = |at: usize, usual: usize| {
        let word = std::env::args().nth(at);
        word.and_then(|word| word.parse().ok()).unwrap_or(usual)
    };
    let (rounds, many) = (number(1, 50_000), number(2, 60));
    let cable = Cable::new()?;
    println!("{MESSAGE_BYTES} bytes there and back, {rounds} times; microseconds");
    for at_a_time in [1, many] {
        let load = Load {
            rounds,
            at_a_time,
            request_bytes: MESSAGE_BYTES,
        };
        println!(
            "{:20} {:>8} {:>8} {:>8} {:>10}",
            format!("{at_a_time} at a time"),
            "p50",
            "p99",
            "least",
            "a second"
        );
        print("bare udp", bare(cable.udp()?, load)?);
        print("provost udp", calls(cable.udp()?, load, &usual())?);
        print("udp by packet", bare(cable.udp_with(&by_packet())?, load)?);
        print("bare xdp", bare(cable.xdp()?, load)?);
        print("provost xdp", calls(cable.xdp()?, load, &usual())?);
        print("provost xdp, no CC", calls(cable.xdp()?, load, &uncontrolled())?);
        #[cfg(feature = "dpdk")]
        {
            print("bare dpdk rings", bare(provost_wire_tests::dpdk_rings()?, load)?);
            print(
                "provost dpdk rings",
                calls(provost_wire_tests::dpdk_rings()?, load, &usual())?,
            );
        }
    }
    let load = Load {
        rounds: LARGE_ROUNDS,
        at_a_time: 1,
        request_bytes: LARGE_BYTES,
    };
    println!("requests of {LARGE_BYTES} bytes, one at a time");
    print("provost udp", calls(cable.udp()?, load, &usual())?);
    print("provost xdp", calls(cable.xdp()?, load, &usual())?);
    print("provost xdp, no CC", calls(cable.xdp()?, load, &uncontrolled())?);
    Ok(())
}

/// Each packet on its own through the kernel, as over AF_XDP.
fn by_packet() -> UdpOptions {
    UdpOptions {
        segmentation: Use::Never,
        coalescing: Use::Never,
        ..UdpOptions::default()
    }
}

fn usual() -> Config {
    Config {
        secret: [1, 2],
        ..Config::default()
    }
}

fn uncontrolled() -> Config {
    Config {
        congestion: CongestionConfig {
            algorithm: Algorithm::Off,
            ..CongestionConfig::default()
        },
        ..usual()
    }
}

fn print(name: &str, mut outcome: Outcome) {
    let round_trips_ns = &mut outcome.round_trips_ns;
    round_trips_ns.sort_unstable();
    let at = |share: f64| {
        let index = (round_trips_ns.len() - 1) as f64 * share;
        round_trips_ns[index as usize] as f64 / 1000.0
    };
    println!(
        "{name:20} {:8.2} {:8.2} {:8.2} {:10.0}  {}",
        at(0.5),
        at(0.99),
        at(0.0),
        round_trips_ns.len() as f64 / outcome.seconds,
        outcome.told
    );
}

/// Runs `serve` in a thread of its own until `measure` is done.
fn beside<T>(
    serve: impl FnOnce(&AtomicBool) -> io::Result<()> + Send,
    measure: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&stop));
        let outcome = measure();
        stop.store(true, Ordering::Relaxed);
        server
            .join()
            .map_err(|_| io::Error::other("the server failed"))??;
        outcome
    })
}

/// Packets, without a protocol: each carries the time at which it left. Those that are lost are not made good.
fn bare<W: Wire<Address: Send> + Send>((mut client, mut server): (W, W), load: Load) -> io::Result<Outcome> {
    let to = server.address();
    let echo = |stop: &AtomicBool| {
        let mut asked = Vec::with_capacity(BATCH_PACKETS);
        while !stop.load(Ordering::Relaxed) {
            server.receive(BATCH_PACKETS, |arrival| {
                let mut packet = [0; HEAD_BYTES + MESSAGE_BYTES];
                packet.copy_from_slice(arrival.bytes);
                asked.push((arrival.from, packet));
            })?;
            for (from, packet) in asked.drain(..) {
                server.transmit(from, &packet[..HEAD_BYTES], &packet[HEAD_BYTES..]);
            }
            server.flush()?;
        }
        Ok(())
    };
    beside(echo, || {
        let began = Instant::now();
        let now_ns = || began.elapsed().as_nanos() as u64;
        let (mut sent, mut round_trips_ns) = (0, Vec::with_capacity(load.rounds));
        while round_trips_ns.len() < load.rounds {
            let mut head = [7; HEAD_BYTES];
            let left_ns = now_ns();
            head[..8].copy_from_slice(&left_ns.to_le_bytes());
            while sent < load.rounds && sent - round_trips_ns.len() < load.at_a_time {
                client.transmit(to, &head, &[7; MESSAGE_BYTES]);
                sent += 1;
            }
            client.flush()?;
            while client.receive(BATCH_PACKETS, |arrival| {
                let left_ns = arrival
                    .bytes
                    .first_chunk()
                    .map_or(0, |first| u64::from_le_bytes(*first));
                round_trips_ns.push(now_ns() - left_ns);
            })? == 0
            {}
        }
        Ok(Outcome {
            round_trips_ns,
            seconds: began.elapsed().as_secs_f64(),
            told: String::new(),
        })
    })
}

/// Calls, so many of them on their way.
fn calls<W: Wire<Address: Send> + Send>(
    (client, server): (W, W),
    load: Load,
    config: &Config,
) -> io::Result<Outcome> {
    let to = server.address();
    let driver = |wire| Driver::new(config.clone(), wire).map_err(io::Error::other);
    let (mut client, mut server) = (driver(client)?, driver(server)?);
    let serve = |stop: &AtomicBool| {
        while !stop.load(Ordering::Relaxed) {
            server.turn(|endpoint, now_ns, event| {
                if let Event::Request { handle, payload, .. } = event {
                    // The session lives as long as this program.
                    let _ = endpoint.respond_inline(now_ns, handle, 0, &payload[..MESSAGE_BYTES]);
                }
            })?;
        }
        Ok(())
    };
    beside(serve, || {
        let sessions: io::Result<Vec<_>> = (0..load.at_a_time.div_ceil(SLOTS))
            .map(|_| connect(&mut client, to))
            .collect();
        let sessions = sessions?;
        let mut caller = Caller {
            sessions,
            began: Instant::now(),
            left_ns: vec![0; load.at_a_time],
            unmade: load.rounds,
            round_trips_ns: Vec::with_capacity(load.rounds),
        };
        for place in 0..load.at_a_time {
            let (now_ns, endpoint) = client.endpoint();
            let request = MsgBuf::from_slice(&vec![7; load.request_bytes]);
            let response = MsgBuf::with_capacity(MESSAGE_BYTES);
            caller.call(endpoint, now_ns, place, (request, response));
        }
        while caller.round_trips_ns.len() < load.rounds {
            client.turn(|endpoint, now_ns, event| {
                if let Event::Completed(completion) = event {
                    let place = completion.tag as usize;
                    caller.ended(place);
                    caller.call(endpoint, now_ns, place, (completion.request, completion.response));
                }
            })?;
        }
        let told = client.endpoint().1.statistics();
        Ok(Outcome {
            round_trips_ns: caller.round_trips_ns,
            seconds: caller.began.elapsed().as_secs_f64(),
            told: format!("{} sent again, {} time-outs", told.packets_resent, told.timeouts),
        })
    })
}

struct Caller {
    sessions: Vec<SessionId>,
    began: Instant,
    /// When the call of each place was made.
    left_ns: Vec<u64>,
    unmade: usize,
    round_trips_ns: Vec<u64>,
}

impl Caller {
    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn call<A: provost_datagram::Address>(
        &mut self,
        endpoint: &mut Endpoint<A>,
        now_ns: u64,
        place: usize,
        (request, response): (MsgBuf, MsgBuf),
    ) {
        if self.unmade == 0 {
            return;
        }
        self.unmade -= 1;
        self.left_ns[place] = self.now_ns();
        let call = Call {
            method: 1,
            tag: place as u64,
            request,
            response,
        };
        let session = self.sessions[place % self.sessions.len()];
        endpoint
            .call(now_ns, session, call)
            .expect("the session lives as long as this program");
    }

    fn ended(&mut self, place: usize) {
        let took_ns = self.now_ns() - self.left_ns[place];
        self.round_trips_ns.push(took_ns);
    }
}

fn connect<W: Wire>(client: &mut Driver<W>, to: W::Address) -> io::Result<SessionId> {
    let (now_ns, endpoint) = client.endpoint();
    let session = endpoint.connect(now_ns, to).map_err(io::Error::other)?;
    let mut connected = false;
    while !connected {
        client.turn(|_, _, event| connected |= matches!(event, Event::Connected(_)))?;
    }
    Ok(session)
}
