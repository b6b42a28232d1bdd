//! What must hold of any bytes whatever, for fuzzers: each function panics if it does not.

use std::io::{self, IoSlice};
use std::os::fd::RawFd;
use std::sync::Arc;

use provost_datapath::{BufferPool, FieldReader, FieldWriter, PrivateBytes};
use provost_grpc::{GrpcConfig, GrpcConnection, MessageEncoding, MessageForm, RequestHead};

use crate::calls::ReplyBytes;
use crate::{ByteCarrier, GrpcPort, GrpcPortParts, NodeMethods, ServiceBinding};

/// Bytes of replies that have come in part, at most: so few that no input makes the heap large.
const HEAP_BYTES_MAX: u64 = 1 << 20;
/// Steps that are taken of a port.
const STEPS_MAX: usize = 100;

/// A connection whose client says this, and hears nothing.
struct RecordedClient {
    says: Vec<u8>,
}

impl ByteCarrier for RecordedClient {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.says.len().min(into.len());
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        into[..count].copy_from_slice(&self.says[..count]);
        self.says.drain(..count);
        Ok(count)
    }

    fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(pieces.iter().map(|piece| piece.len()).sum())
    }

    fn descriptor(&self) -> RawFd {
        -1
    }
}

fn parts(says: Vec<u8>) -> GrpcPortParts {
    GrpcPortParts {
        carrier: Box::new(RecordedClient { says }),
        config: GrpcConfig::default(),
        compression: MessageEncoding::Identity,
        counts: Arc::default(),
        share: PrivateBytes::of_attachment(&PrivateBytes::of_node()),
        receive_heap_bytes: HEAP_BYTES_MAX,
        node_methods: NodeMethods::default(),
    }
}

/// Takes any bytes as what was saved of a port behind its carrier. One that is accepted goes on with what its client says next.
pub fn saved(input: &[u8]) {
    let says = input[..input.len().min(2_000)].to_vec();
    let no_binding = |_: u32| -> Option<ServiceBinding> { None };
    let mut fields = FieldReader::new("port of a gRPC client", input);
    let Ok(mut port) = GrpcPort::restore(&mut fields, parts(says), &no_binding, 1) else {
        return;
    };
    port.end_claims();
    let mut buffers = BufferPool::new();
    for now in 2..6 {
        port.note_ready();
        port.poll(now);
        let steps = std::iter::from_fn(|| port.next_request(&mut buffers));
        let steps: Vec<_> = steps.take(STEPS_MAX).collect();
        for request in steps {
            port.discard(request.step, &mut buffers);
        }
        port.flush(now);
        while port.take_wanted().is_some() {}
    }
}

/// A state to start from: calls that wait for their service, with messages, and one that has come in part.
#[must_use]
pub fn saved_seeds() -> Vec<Vec<u8>> {
    let mut client = GrpcConnection::<ReplyBytes>::client(GrpcConfig::default(), 0);
    for path in ["/a.B/C", "/a.B/D", "/grpc.health.v1.Health/Check"] {
        if let Ok(call) = client.call(&RequestHead::new(path), 0) {
            let message = ReplyBytes::uncounted(vec![7; 3_000]);
            // A queue that is full ends the seed early.
            let _ = client.send_message(call, MessageForm::Plain, message, 0);
        }
    }
    client.fill(0);
    let mut says = client.copied_output();
    says.truncate(says.len() - 500);
    let mut port = GrpcPort::new(parts(says), 0);
    port.poll(1);
    let mut out = FieldWriter::new();
    port.save_behind_carrier(&[], &mut out);
    vec![out.bytes]
}
