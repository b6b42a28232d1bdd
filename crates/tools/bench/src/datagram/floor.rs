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

/// Sends every packet back until the wire is of no use any more.
pub(crate) fn echo<W: Wire>(mut wire: W, pause: Pause) -> Result<(), Failure> {
    let mut packet = Vec::with_capacity(wire.packet_bytes_max());
    loop {
        let mut from = None;
        let received = wire.receive(1, |arrival| {
            packet.clear();
            packet.extend_from_slice(arrival.bytes);
            from = Some(arrival.from);
        });
        match (received, from) {
            // The client has ended.
            (Err(_), _) => return Ok(()),
            (Ok(_), Some(from)) => {
                wire.transmit(from, &packet, b"");
                wire.flush().doing(|| "send a packet back".into())?;
            }
            (Ok(_), None) => pause.take(),
        }
    }
}

/// Sends a packet and waits for it, again and again.
pub(crate) fn ping<W: Wire>(
    mut wire: W,
    to: W::Address,
    pause: Pause,
    run: &Run,
) -> Result<Latencies, Failure> {
    let mut latencies = Latencies::new()?;
    let (head, payload) = ([0; HEAD_BYTES], [7; SMALL_BYTES]);
    run.ready();
    while !run.is_stopped() {
        let began = Instant::now();
        wire.transmit(to, &head, &payload);
        wire.flush().doing(|| "send a packet".into())?;
        while wire.receive(1, |_| {}).doing(|| "receive a packet".into())? == 0 {
            if run.is_stopped() {
                return Ok(latencies);
            }
            pause.take();
        }
        run.record(&mut latencies, began);
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
    let mut latencies = Latencies::new()?;
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
