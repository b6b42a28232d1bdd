//! One end of a connection of gRPC that a test drives by hand, so that it sees every byte of a message.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Instant;

use provost_grpc::{GrpcConnection, GrpcEvent, GrpcMessage};

/// What carries HTTP/2: a socket, or TLS over one.
pub(crate) trait ByteStream: Read + Write + Send {}

impl<S: Read + Write + Send> ByteStream for S {}

/// One end of a connection, which blocks.
pub(crate) struct RawEnd {
    pub(crate) grpc: GrpcConnection<Arc<[u8]>>,
    stream: Box<dyn ByteStream>,
    input: Vec<u8>,
    began: Instant,
}

impl RawEnd {
    pub(crate) fn new(grpc: GrpcConnection<Arc<[u8]>>, stream: Box<dyn ByteStream>) -> RawEnd {
        RawEnd {
            grpc,
            stream,
            input: Vec::new(),
            began: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64 + 1
    }

    pub(crate) fn write(&mut self) {
        loop {
            self.grpc.fill(self.now());
            let bytes = self.grpc.copied_output();
            if bytes.is_empty() {
                return;
            }
            self.stream.write_all(&bytes).unwrap();
            self.grpc.advance(bytes.len(), self.now());
        }
    }

    /// What comes next; none when the peer is gone.
    pub(crate) fn next(&mut self) -> Option<GrpcEvent> {
        loop {
            self.write();
            let received = self.grpc.receive(&self.input, self.now()).ok()?;
            self.input.drain(..received.consumed);
            if let Some(event) = received.event {
                if let GrpcEvent::Message { call, message } = &event {
                    self.grpc.consume(*call, message.bytes.len());
                }
                return Some(event);
            }
            self.write();
            let mut bytes = [0; 16 << 10];
            match self.stream.read(&mut bytes) {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.input.extend_from_slice(&bytes[..count]),
            }
        }
    }

    pub(crate) fn send(&mut self, call: u32, message: &GrpcMessage) {
        let now = self.now();
        let sent = self
            .grpc
            .send_message(call, message.form, message.bytes[..].into(), now);
        sent.map_err(|(fault, _)| fault).unwrap();
    }
}
