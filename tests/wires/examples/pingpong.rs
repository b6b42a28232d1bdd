//! Round trips over wires between two hosts, which are network namespaces of this machine: of bare packets, and of calls of
//! the datagram transport. It needs root. With `--features dpdk` also over rings of DPDK, within the process.
//!
//! ```text
//! cargo run --release -p provost-wire-tests --example pingpong [-- ROUNDS]
//! ```

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use provost_datagram::{Call, Config, Driver, Event, MsgBuf, SessionId};
use provost_packets::Wire;
use provost_wire_tests::Cable;

/// Bytes of requests and responses, and of what the protocol puts before them.
const MESSAGE_BYTES: usize = 32;
const HEAD_BYTES: usize = 24;

fn main() -> io::Result<()> {
    let rounds: usize = std::env::args()
        .nth(1)
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(50_000);
    let cable = Cable::new()?;
    println!("{MESSAGE_BYTES} bytes there and back, {rounds} times; microseconds");
    println!("{:20} {:>8} {:>8} {:>8}", "", "p50", "p99", "least");
    print("bare udp", bare(cable.udp()?, rounds)?);
    print("provost udp", calls(cable.udp()?, rounds)?);
    print("bare xdp", bare(cable.xdp()?, rounds)?);
    print("provost xdp", calls(cable.xdp()?, rounds)?);
    #[cfg(feature = "dpdk")]
    {
        print(
            "bare dpdk rings",
            bare(provost_wire_tests::dpdk_rings()?, rounds)?,
        );
        print(
            "provost dpdk rings",
            calls(provost_wire_tests::dpdk_rings()?, rounds)?,
        );
    }
    Ok(())
}

fn print(name: &str, mut round_trips_ns: Vec<u64>) {
    round_trips_ns.sort_unstable();
    let at = |share: f64| {
        let index = (round_trips_ns.len() - 1) as f64 * share;
        round_trips_ns[index as usize] as f64 / 1000.0
    };
    println!("{name:20} {:8.2} {:8.2} {:8.2}", at(0.5), at(0.99), at(0.0));
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

/// Packets, without a protocol.
fn bare<W: Wire<Address: Send> + Send>(
    (mut client, mut server): (W, W),
    rounds: usize,
) -> io::Result<Vec<u64>> {
    let to = server.address();
    let packet = [7; HEAD_BYTES + MESSAGE_BYTES];
    let echo = |stop: &AtomicBool| {
        while !stop.load(Ordering::Relaxed) {
            let mut asked = None;
            server.receive(1, |arrival| asked = Some(arrival.from))?;
            if let Some(from) = asked {
                server.transmit(from, &packet[..HEAD_BYTES], &packet[HEAD_BYTES..]);
                server.flush()?;
            }
        }
        Ok(())
    };
    beside(echo, || {
        (0..rounds)
            .map(|_| {
                let begin = Instant::now();
                client.transmit(to, &packet[..HEAD_BYTES], &packet[HEAD_BYTES..]);
                client.flush()?;
                while client.receive(1, |_| {})? == 0 {}
                Ok(begin.elapsed().as_nanos() as u64)
            })
            .collect()
    })
}

/// Calls, one after the other.
fn calls<W: Wire<Address: Send> + Send>((client, server): (W, W), rounds: usize) -> io::Result<Vec<u64>> {
    let to = server.address();
    let driver = |wire| Driver::new(Config::default(), wire).map_err(io::Error::other);
    let (mut client, mut server) = (driver(client)?, driver(server)?);
    let serve = |stop: &AtomicBool| {
        while !stop.load(Ordering::Relaxed) {
            server.turn(|endpoint, now_ns, event| {
                if let Event::Request { handle, payload, .. } = event {
                    // The session lives as long as this program.
                    let _ = endpoint.respond_inline(now_ns, handle, 0, &payload);
                }
            })?;
        }
        Ok(())
    };
    beside(serve, || {
        let session = connect(&mut client, to)?;
        let mut buffers = Some((
            MsgBuf::from_slice(&[7; MESSAGE_BYTES]),
            MsgBuf::with_capacity(MESSAGE_BYTES),
        ));
        (0..rounds)
            .map(|_| {
                let begin = Instant::now();
                let (request, response) = buffers.take().ok_or_else(|| io::Error::other("no answer"))?;
                let (now_ns, endpoint) = client.endpoint();
                let call = Call {
                    method: 1,
                    tag: 0,
                    request,
                    response,
                };
                endpoint
                    .call(now_ns, session, call)
                    .map_err(|refused| io::Error::other(refused.error))?;
                while buffers.is_none() {
                    client.turn(|_, _, event| {
                        if let Event::Completed(completion) = event {
                            buffers = Some((completion.request, completion.response));
                        }
                    })?;
                }
                Ok(begin.elapsed().as_nanos() as u64)
            })
            .collect()
    })
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
