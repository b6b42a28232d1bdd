//! A server of gRPC that sends every message back, and a client of it, over cleartext TCP: the protocol with the least carrier.
//!
//! `cargo run -p provost-grpc --example echo -- serve 127.0.0.1:5000` answers every method of every service; a call whose metadata
//! has `fail` ends with the status of that number. `… -- call 127.0.0.1:5000 /a.B/Echo TEXT` calls one, and prints what comes.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use provost_grpc::{
    CallFault, GrpcConfig, GrpcConnection, GrpcEvent, GrpcMessage, GrpcStatus, MessageForm, RequestHead,
    ResponseHead,
};
use provost_wire::Code;
use provost_wire::metadata;

type EchoConnection = GrpcConnection<Arc<[u8]>>;

/// Bytes that are read from the socket at a time.
const READ_BYTES: usize = 64 << 10;
/// How long a read waits before deadlines are looked at.
const READ_TIMEOUT: Duration = Duration::from_millis(50);

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", address] => serve(&TcpListener::bind(address)?),
        ["call", address, path, text] => call(TcpStream::connect(address)?, path, text),
        _ => Err(io::Error::other(
            "use `serve ADDRESS` or `call ADDRESS /package.Service/Method TEXT`",
        )),
    }
}

fn serve(listener: &TcpListener) -> io::Result<()> {
    println!("listening on {}", listener.local_addr()?);
    loop {
        let (socket, _) = listener.accept()?;
        std::thread::spawn(move || {
            let mut carrier = EchoCarrier::new(socket, EchoConnection::server(GrpcConfig::default(), 0))?;
            let mut calls = EchoCalls::default();
            while let Some(event) = carrier.next_event()? {
                let now_ns = carrier.now_ns();
                if let Err(fault) = calls.answer(&mut carrier.connection, event, now_ns) {
                    eprintln!("a call was not answered: {fault}");
                }
            }
            io::Result::Ok(())
        });
    }
}

fn call(socket: TcpStream, path: &str, text: &str) -> io::Result<()> {
    let mut carrier = EchoCarrier::new(socket, EchoConnection::client(GrpcConfig::default(), 0))?;
    let head = RequestHead {
        authority: Some("localhost".into()),
        timeout_ns: Some(5_000_000_000),
        ..RequestHead::new(path)
    };
    let connection = &mut carrier.connection;
    let call = connection.call(&head, 0).map_err(io::Error::other)?;
    connection
        .send_message(call, MessageForm::Plain, text.as_bytes().into(), 0)
        .map_err(|(fault, _)| io::Error::other(fault))?;
    connection.half_close(call, 0).map_err(io::Error::other)?;
    while let Some(event) = carrier.next_event()? {
        println!("{event:?}");
        if let GrpcEvent::Ended { .. } = event {
            return Ok(());
        }
    }
    Err(io::Error::other("the server closed the connection"))
}

/// A connection and the socket under it.
struct EchoCarrier {
    socket: TcpStream,
    connection: EchoConnection,
    began: Instant,
    /// What was read and not taken yet.
    input: Vec<u8>,
}

impl EchoCarrier {
    fn new(socket: TcpStream, connection: EchoConnection) -> io::Result<EchoCarrier> {
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(READ_TIMEOUT))?;
        Ok(EchoCarrier {
            socket,
            connection,
            began: Instant::now(),
            input: Vec::new(),
        })
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// The next event, sending and reading until there is one; None when the peer has closed the connection.
    fn next_event(&mut self) -> io::Result<Option<GrpcEvent>> {
        loop {
            let now_ns = self.now_ns();
            let received = self.connection.receive(&self.input, now_ns);
            let received = received.map_err(io::Error::other)?;
            self.input.drain(..received.consumed);
            if received.event.is_some() {
                return Ok(received.event);
            }
            self.connection.on_time(now_ns).map_err(io::Error::other)?;
            self.send(now_ns)?;
            if !self.read()? {
                return Ok(None);
            }
        }
    }

    fn send(&mut self, now_ns: u64) -> io::Result<()> {
        loop {
            self.connection.fill(now_ns);
            let output = self.connection.copied_output();
            if output.is_empty() {
                return Ok(());
            }
            self.socket.write_all(&output)?;
            self.connection.advance(output.len(), now_ns);
        }
    }

    /// Reads what there is, if it comes in time; whether the peer may send more.
    fn read(&mut self) -> io::Result<bool> {
        let before = self.input.len();
        self.input.resize(before + READ_BYTES, 0);
        let read = self.socket.read(&mut self.input[before..]);
        self.input.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(bytes) => Ok(bytes > 0),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }
}

/// What the server knows of calls, until each ends.
#[derive(Default)]
struct EchoCalls(std::collections::BTreeMap<u32, EchoCall>);

struct EchoCall {
    status: GrpcStatus,
    metadata: Vec<u8>,
    /// Messages that found no room yet.
    pending: std::collections::VecDeque<GrpcMessage>,
    is_half_closed: bool,
}

impl EchoCalls {
    fn answer(
        &mut self,
        connection: &mut EchoConnection,
        event: GrpcEvent,
        now_ns: u64,
    ) -> Result<(), CallFault> {
        let call = match event {
            GrpcEvent::Request { call, head } => return self.begin(connection, call, head, now_ns),
            GrpcEvent::Message { call, message } => {
                if let Some(known) = self.0.get_mut(&call) {
                    known.pending.push_back(message);
                }
                call
            }
            GrpcEvent::HalfClosed { call } => {
                if let Some(known) = self.0.get_mut(&call) {
                    known.is_half_closed = true;
                }
                call
            }
            GrpcEvent::Writable { call } => call,
            GrpcEvent::Ended { call, .. } => {
                self.0.remove(&call);
                return Ok(());
            }
            GrpcEvent::Response { .. } | GrpcEvent::PeerSettings | GrpcEvent::Draining => return Ok(()),
        };
        self.go_on(connection, call, now_ns)
    }

    fn begin(
        &mut self,
        connection: &mut EchoConnection,
        call: u32,
        head: RequestHead,
        now_ns: u64,
    ) -> Result<(), CallFault> {
        let fail = metadata::entries(&head.metadata).find(|(key, _)| *key == "fail");
        let number = fail.and_then(|(_, value)| std::str::from_utf8(value).ok()?.parse().ok());
        let status = number.map_or_else(GrpcStatus::ok, |number| {
            GrpcStatus::new(Code::from_number(number), "the caller asked for it: 100 %")
        });
        if status.code != Code::Ok {
            return connection.finish(call, &status, &head.metadata, now_ns);
        }
        // Messages go back as they came, so they are compressed as they were.
        let response = ResponseHead {
            encoding: head.encoding,
            metadata: head.metadata.clone(),
            ..ResponseHead::default()
        };
        connection.respond(call, &response, now_ns)?;
        let known = EchoCall {
            status,
            metadata: head.metadata,
            pending: std::collections::VecDeque::new(),
            is_half_closed: false,
        };
        self.0.insert(call, known);
        Ok(())
    }

    /// Sends back what there is room for. What there is none for is not consumed, so that the caller waits.
    fn go_on(&mut self, connection: &mut EchoConnection, call: u32, now_ns: u64) -> Result<(), CallFault> {
        let Some(known) = self.0.get_mut(&call) else {
            return Ok(());
        };
        while let Some(message) = known.pending.front() {
            let body = message.bytes.as_slice().into();
            if let Err((fault, _)) = connection.send_message(call, message.form, body, now_ns) {
                let is_full = matches!(fault, CallFault::Http2(provost_http2::SendError::QueueFull));
                return if is_full { Ok(()) } else { Err(fault) };
            }
            connection.consume(call, message.bytes.len());
            known.pending.pop_front();
        }
        if known.is_half_closed {
            connection.finish(call, &known.status, &known.metadata, now_ns)?;
            self.0.remove(&call);
        }
        Ok(())
    }
}
