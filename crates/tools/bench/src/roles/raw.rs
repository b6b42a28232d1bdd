//! Raw TCP: what the sockets themselves cost. The first 8 bytes on a connection say how long each request is; each
//! response is 8 bytes.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
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

/// This thread writes and another reads; the channel between them bounds the calls in flight.
fn pipelined(socket: Socket, run: &Run, request: &[u8], calls: usize) -> std::io::Result<Latencies> {
    let reader = socket.share()?;
    // One call is in the reader's hands besides those in the channel.
    let (begun, begins) = sync_channel(calls - 1);
    std::thread::scope(|scope| {
        let reading = scope.spawn(move || read_responses(reader, run, begins));
        run.ready();
        let written = write_requests(socket, run, request, begun);
        let latencies = reading
            .join()
            .map_err(|_| std::io::Error::other("the reader panicked"))?;
        written.and(latencies)
    })
}

fn write_requests(
    mut socket: Socket,
    run: &Run,
    request: &[u8],
    begun: SyncSender<Instant>,
) -> std::io::Result<()> {
    while !run.is_stopped() && begun.send(Instant::now()).is_ok() {
        socket.write_all(request)?;
    }
    Ok(())
}

fn read_responses(mut socket: Socket, run: &Run, begins: Receiver<Instant>) -> std::io::Result<Latencies> {
    let mut latencies = Latencies::default();
    let mut response = *RESPONSE;
    for began in begins {
        socket.read_all(&mut response)?;
        run.record(&mut latencies, began);
    }
    Ok(latencies)
}

struct Socket(TcpStream);

impl Socket {
    fn new(stream: TcpStream, waiting: Waiting) -> std::io::Result<Socket> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(waiting == Waiting::Spinning)?;
        Ok(Socket(stream))
    }

    fn share(&self) -> std::io::Result<Socket> {
        self.0.try_clone().map(Socket)
    }

    fn read_all(&mut self, mut to: &mut [u8]) -> std::io::Result<()> {
        while !to.is_empty() {
            match self.0.read(to) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => to = &mut to[bytes..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
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
