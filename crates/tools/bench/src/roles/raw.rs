//! Raw TCP: what the sockets themselves cost. The first 8 bytes on a connection say how long each request is; each
//! response is 8 bytes.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use crate::failure::{Doing, Failure};
use crate::load::{Latencies, Run, measure};
use crate::process::say_ready;
use crate::report::{Load, Report};
use crate::roles::{RESPONSE, Waiting, payload};

/// Answers every connection on a thread of its own.
pub(crate) fn serve(waiting: Waiting) -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").doing(|| "listen".into())?;
    say_ready(listener.local_addr().doing(|| "name the listener".into())?);
    for stream in listener.incoming().flatten() {
        // A connection ends when its client goes; there is nobody to tell.
        std::thread::spawn(move || answer(Socket::new(stream, waiting)?));
    }
    Ok(())
}

fn answer(mut socket: Socket) -> std::io::Result<()> {
    let mut request_bytes = [0; 8];
    socket.read_all(&mut request_bytes)?;
    let mut request = vec![0; u64::from_le_bytes(request_bytes) as usize];
    loop {
        socket.read_all(&mut request)?;
        socket.write_all(RESPONSE)?;
    }
}

/// Makes load on a server.
pub(crate) fn load(address: &str, waiting: Waiting, load: &Load) -> Result<Report, Failure> {
    measure(load, |run| {
        let stream = TcpStream::connect(address).doing(|| format!("connect to {address}"))?;
        let mut socket = Socket::new(stream, waiting).doing(|| "set the socket up".into())?;
        let request = payload(load.size_bytes);
        socket
            .write_all(&(request.len() as u64).to_le_bytes())
            .doing(|| "say the size of a request".into())?;
        match load.calls_in_flight {
            1 => ping_pong(socket, run, &request),
            calls => pipelined(socket, run, &request, calls),
        }
        .doing(|| format!("call {address}"))
    })
}

/// One call at a time. `Err` is the system's.
fn ping_pong(mut socket: Socket, run: &Run, request: &[u8]) -> std::io::Result<Latencies> {
    let mut latencies = Latencies::default();
    let mut response = *RESPONSE;
    run.ready();
    while !run.is_stopped() {
        let began = Instant::now();
        socket.write_all(request)?;
        socket.read_all(&mut response)?;
        run.record(&mut latencies, began);
    }
    Ok(latencies)
}

/// One thread: it writes requests until enough are in flight, and reads whatever responses have come.
///
/// It may block as it writes, as a server takes a request whole before it answers, and answers fit into the socket.
fn pipelined(mut socket: Socket, run: &Run, request: &[u8], calls: usize) -> std::io::Result<Latencies> {
    let mut latencies = Latencies::default();
    let mut begun = VecDeque::with_capacity(calls);
    let mut responses = vec![0; calls * RESPONSE.len()];
    // Bytes of a response that has come in part.
    let mut partial = 0;
    run.ready();
    loop {
        while begun.len() < calls && !run.is_stopped() {
            begun.push_back(Instant::now());
            socket.write_all(request)?;
        }
        if begun.is_empty() {
            return Ok(latencies);
        }
        partial += socket.read_some(&mut responses)?;
        for began in begun.drain(..(partial / RESPONSE.len()).min(begun.len())) {
            run.record(&mut latencies, began);
        }
        partial %= RESPONSE.len();
    }
}

struct Socket(TcpStream);

impl Socket {
    fn new(stream: TcpStream, waiting: Waiting) -> std::io::Result<Socket> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(waiting == Waiting::Spinning)?;
        Ok(Socket(stream))
    }

    fn read_all(&mut self, mut to: &mut [u8]) -> std::io::Result<()> {
        while !to.is_empty() {
            let bytes = self.read_some(to)?;
            to = &mut to[bytes..];
        }
        Ok(())
    }

    /// Waits for some bytes, and returns how many there were.
    fn read_some(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.0.read(to) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                result => return result,
            }
        }
    }

    fn write_all(&mut self, mut from: &[u8]) -> std::io::Result<()> {
        while !from.is_empty() {
            match self.0.write(from) {
                Ok(bytes) => from = &from[bytes..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
