//! How a link comes about, over TCP.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use provost_grpc::{GrpcConfig, GrpcConnection};
use provost_transport_grpc::{ByteCarrier, EstablishFault, GrpcLink, GrpcTransportConfig, dial};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// A listener, and what somebody does with the first connection.
fn listening(serve: impl FnOnce(TcpStream) + Send + 'static) -> (TcpStream, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let server = thread::spawn(move || serve(listener.accept().unwrap().0));
    (stream, server)
}

fn establish(stream: TcpStream, within: Duration) -> Result<GrpcLink, EstablishFault> {
    let config = GrpcTransportConfig::default();
    stream.set_nonblocking(true).unwrap();
    GrpcLink::establish(Box::new(stream), &config, Instant::now() + within, || 1)
}

/// Serves until the client closes.
fn serve(mut stream: TcpStream) {
    let mut grpc = GrpcConnection::<Arc<[u8]>>::server(GrpcConfig::default(), 1);
    let mut bytes = [0; 4_096];
    loop {
        grpc.fill(1);
        let output = grpc.copied_output();
        stream.write_all(&output).unwrap();
        grpc.advance(output.len(), 1);
        let count = stream.read(&mut bytes).unwrap_or(0);
        if count == 0 {
            return;
        }
        let mut taken = 0;
        while taken < count {
            taken += grpc.receive(&bytes[taken..count], 1).unwrap().consumed;
        }
    }
}

#[test]
fn a_server_shows_itself_by_its_settings() {
    let (stream, server) = listening(serve);
    drop(establish(stream, LONG).unwrap());
    server.join().unwrap();
}

/// Bytes that were written leave when they are flushed.
struct KeepingStream {
    stream: TcpStream,
    kept: Vec<u8>,
}

impl Read for KeepingStream {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.stream.read(into)
    }
}

impl Write for KeepingStream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.kept.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.write_all(&std::mem::take(&mut self.kept))
    }
}

impl AsFd for KeepingStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[test]
fn a_carrier_that_keeps_bytes_is_flushed() {
    let (stream, server) = listening(|stream| {
        // It says nothing before it has been greeted.
        stream.peek(&mut [0]).unwrap();
        serve(stream);
    });
    stream.set_nonblocking(true).unwrap();
    let kept = Vec::new();
    let config = GrpcTransportConfig::default();
    let carrier = Box::new(KeepingStream { stream, kept });
    let deadline = Instant::now() + LONG / 6;
    drop(GrpcLink::establish(carrier, &config, deadline, || 1).unwrap());
    server.join().unwrap();
}

#[test]
fn a_server_of_something_else_is_refused() {
    let (stream, server) = listening(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\nand something more");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let fault = establish(stream, LONG).unwrap_err();
    assert!(matches!(fault, EstablishFault::Protocol(_)), "{fault}");
    server.join().unwrap();
}

#[test]
fn a_server_that_closes_or_says_nothing_is_refused() {
    let (stream, server) = listening(drop);
    let fault = establish(stream, LONG).unwrap_err();
    assert!(matches!(fault, EstablishFault::Closed), "{fault}");
    server.join().unwrap();

    let (stream, server) = listening(|mut stream| drop(stream.read_to_end(&mut Vec::new())));
    let fault = establish(stream, Duration::from_millis(50)).unwrap_err();
    assert!(matches!(fault, EstablishFault::Deadline), "{fault}");
    server.join().unwrap();
}

#[test]
fn a_link_is_dialled_without_waiting() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut carrier = dial(address, |_| Ok(())).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    accepted.write_all(b"hello").unwrap();
    let mut bytes = [0; 16];
    let count = loop {
        match carrier.read_ready(&mut bytes) {
            Ok(count) => break count,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
    };
    assert_eq!(&bytes[..count], b"hello");
    drop(listener);

    // Where nobody listens, reading says so.
    let refused = dial(address, |_| Ok(())).and_then(|mut carrier| {
        loop {
            match carrier.read_ready(&mut bytes) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    });
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
}
