//! The floor: a packet there and a packet back, with nothing but the wire, or a TCP socket.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use provost_packets::Wire;

use super::part::Pause;
use super::plan::SMALL_BYTES;
use crate::failure::{Doing, Failure};
use crate::load::{Latencies, Run};
use crate::process::say_ready;

/// What goes before the payload of a call in the transport's packets (`docs/datagram.md`).
const HEAD_BYTES: usize = 24;

/// Packets that are taken from a wire at once.
const BATCH_PACKETS: usize = 32;

/// Sends every packet back until the wire is of no use any more.
pub(crate) fn echo<W: Wire>(mut wire: W, pause: Pause) -> Result<(), Failure> {
    let mut bytes = Vec::with_capacity(BATCH_PACKETS * wire.packet_bytes_max());
    let mut packets = Vec::with_capacity(BATCH_PACKETS);
    loop {
        let received = wire.receive(BATCH_PACKETS, |arrival| {
            packets.push((arrival.from, arrival.bytes.len()));
            bytes.extend_from_slice(arrival.bytes);
        });
        match received {
            // The client has ended.
            Err(_) => return Ok(()),
            Ok(0) => pause.take(),
            Ok(_) => {
                let mut rest = &bytes[..];
                for (from, length) in packets.drain(..) {
                    let (packet, others) = rest.split_at(length);
                    wire.transmit(from, packet, b"");
                    rest = others;
                }
                bytes.clear();
                wire.flush().doing(|| "send packets back".into())?;
            }
        }
    }
}

/// Keeps so many packets on their way. Each carries the time at which it left.
pub(crate) fn ping<W: Wire>(
    mut wire: W,
    to: W::Address,
    packets: usize,
    pause: Pause,
    run: &Run,
) -> Result<Latencies, Failure> {
    let mut latencies = Latencies::default();
    let began = Instant::now();
    let now_ns = || u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let (mut head, payload) = ([0; HEAD_BYTES], [7; SMALL_BYTES]);
    let mut out = 0;
    run.ready();
    while !run.is_stopped() {
        if out < packets {
            head[..size_of::<u64>()].copy_from_slice(&now_ns().to_le_bytes());
            for _ in out..packets {
                wire.transmit(to, &head, &payload);
            }
            out = packets;
            wire.flush().doing(|| "send packets".into())?;
        }
        let received = wire.receive(BATCH_PACKETS, |arrival| {
            let left_ns = arrival
                .bytes
                .first_chunk()
                .map_or(0, |bytes| u64::from_le_bytes(*bytes));
            run.record_batch(&mut latencies, now_ns().saturating_sub(left_ns), 1);
        });
        match received.doing(|| "receive packets".into())? {
            0 => pause.take(),
            received => out = out.saturating_sub(received),
        }
    }
    Ok(latencies)
}

/// As [`echo`], over TCP.
pub(crate) fn echo_tcp(pause: Pause) -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").doing(|| "listen".into())?;
    say_ready(listener.local_addr().doing(|| "name the listener".into())?);
    let (stream, _) = listener.accept().doing(|| "accept".into())?;
    let mut stream = set_up(stream)?;
    let mut message = [0; SMALL_BYTES];
    while read_all(&mut stream, &mut message, pause, || false).is_ok() {
        if stream.write_all(&message).is_err() {
            break;
        }
    }
    Ok(())
}

/// As [`ping`], over TCP.
pub(crate) fn ping_tcp(address: &str, pause: Pause, run: &Run) -> Result<Latencies, Failure> {
    let mut latencies = Latencies::default();
    let mut stream = set_up(TcpStream::connect(address).doing(|| format!("connect to {address}"))?)?;
    let mut message = [7; SMALL_BYTES];
    run.ready();
    while !run.is_stopped() {
        let began = Instant::now();
        stream.write_all(&message).doing(|| "send".into())?;
        match read_all(&mut stream, &mut message, pause, || run.is_stopped()) {
            Ok(()) => run.record(&mut latencies, began),
            Err(_) if run.is_stopped() => {}
            Err(error) => return Err(error).doing(|| "receive".into()),
        }
    }
    Ok(latencies)
}

fn set_up(stream: TcpStream) -> Result<TcpStream, Failure> {
    stream
        .set_nodelay(true)
        .and_then(|()| stream.set_nonblocking(true))
        .doing(|| "set the socket up".into())?;
    Ok(stream)
}

fn read_all(
    stream: &mut TcpStream,
    message: &mut [u8],
    pause: Pause,
    is_enough: impl Fn() -> bool,
) -> io::Result<()> {
    let mut filled = 0;
    while filled < message.len() {
        match stream.read(&mut message[filled..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock && !is_enough() => pause.take(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
