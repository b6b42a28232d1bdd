//! gRPC over HTTP/2 (gRPC's PROTOCOL-HTTP2), without I/O: bytes and a time go in, events and bytes come out. Client and server.
//!
//! ```text
//!  application                                                              carrier
//!    call / respond / send_message / half_close / finish ─► HTTP/2 ─► fill() ─► output() ─► writev ─► advance(n)
//!    events, consume(bytes) ◄──────────────── receive(bytes) ◄──────────────────────────── read
//! ```
//!
//! The bodies of messages are opaque: they pass as they came, compressed too, and [`GrpcMessage::into_plain`] decompresses one within
//! bounds for whoever needs it. Every buffer has a named bound ([`GrpcConfig`]), and a reader that does not
//! [consume](GrpcConnection::consume) messages stops its peer by the windows of HTTP/2. `docs/grpc.md` maps what the protocol asks for to
//! tests.
//!
//! ```
//! use std::sync::Arc;
//! use provost_grpc::{GrpcConfig, GrpcConnection, GrpcEvent, GrpcStatus, MessageForm, RequestHead, ResponseHead};
//!
//! type Connection = GrpcConnection<Arc<[u8]>>;
//! let mut client = Connection::client(GrpcConfig::default(), 0);
//! let mut server = Connection::server(GrpcConfig::default(), 0);
//! let pass = |from: &mut Connection, to: &mut Connection| -> Vec<GrpcEvent> {
//!     from.fill(0);
//!     let (bytes, mut events) = (from.copied_output(), Vec::new());
//!     from.advance(bytes.len(), 0);
//!     let mut rest = &bytes[..];
//!     loop {
//!         let received = to.receive(rest, 0).expect("the peer keeps the rules");
//!         rest = &rest[received.consumed..];
//!         let Some(event) = received.event else { return events };
//!         events.push(event);
//!     }
//! };
//!
//! let call = client.call(&RequestHead::new("/greeter.Greeter/Hello"), 0)?;
//! client.send_message(call, MessageForm::Plain, b"ann"[..].into(), 0).map_err(|(fault, _)| fault)?;
//! client.half_close(call, 0)?;
//! let events = pass(&mut client, &mut server);
//! let Some(GrpcEvent::Message { message, .. }) = events.get(2) else { panic!("{events:?}") };
//! assert_eq!(message.bytes, b"ann");
//!
//! server.respond(call, &ResponseHead::default(), 0)?;
//! server.send_message(call, MessageForm::Plain, b"hello ann"[..].into(), 0).map_err(|(fault, _)| fault)?;
//! server.finish(call, &GrpcStatus::ok(), &[], 0)?;
//! let events = pass(&mut server, &mut client);
//! assert!(matches!(events.last(), Some(GrpcEvent::Ended { status, .. }) if *status == GrpcStatus::ok()));
//! # Ok::<(), provost_grpc::CallFault>(())
//! ```
#![forbid(unsafe_code)]

mod call_counts;
mod calls;
mod compression_request;
mod connection;
mod encoding_set;
mod framing;
pub mod fuzzing;
mod head;
mod large_messages;
mod metadata;
mod progress;
mod saved;
mod status;
mod timeout;

pub use call_counts::{CallCounts, CountedCalls};
pub use calls::{EndCause, GrpcEvent};
pub use compression_request::{COMPRESSION_REQUEST, ask_compression, take_compression_request};
pub use connection::{
    CallFault, GrpcConfig, GrpcConnection, LARGE_MESSAGE_BYTES_MAX_DEFAULT, PARTIAL_BYTES_MAX_DEFAULT,
    RECEIVED_MESSAGE_BYTES_MAX_DEFAULT, ReceivedCalls,
};
pub use encoding_set::EncodingSet;
pub use framing::{FramingFault, GrpcMessage, MessageForm, MessageReader, PREFIX_BYTES, message_prefix};
pub use head::{HeadRefusal, MessageCodec, RequestHead, ResponseHead, UriScheme};
pub use metadata::{MetadataFault, read_metadata, write_metadata};
pub use progress::{PROGRESS_BYTES_MIN, PROGRESS_NS, RESTING_PARTIAL_BYTES_MAX};
pub use provost_compression::{CompressionFault, MessageEncoding};
pub use status::{
    GrpcStatus, code_of_http_status, code_of_reset, decode_percent, encode_percent, http_status_of_code,
    reset_of_code,
};
pub use timeout::{read_timeout, write_timeout};
