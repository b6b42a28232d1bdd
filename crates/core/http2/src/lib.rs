//! HTTP/2 (RFC 9113) with HPACK (RFC 7541), without I/O: bytes and a time go in, events and bytes come out. Client and server.
//!
//! ```text
//!  application                                                   carrier
//!    open / respond / send_data / send_trailers ──► queues ──► fill() ─► output() ─► writev ─► advance(n)
//!    events ◄──────────────────────────────── receive(bytes) ◄──────────────────────── read
//! ```
//!
//! Payloads are not copied: DATA comes as slices of the input, and goes as [chunks](DataChunk) that the carrier reads where they
//! are. A connection's whole state [saves](Http2Connection::save) and [restores](Http2Connection::restore), in the middle of a frame
//! too. Every buffer has a named bound ([`config`]), and floods have named limits ([`floods`]).
//! `docs/http2.md` maps the sections of both RFCs to tests.
//!
//! ```
//! use std::sync::Arc;
//! use provost_http2::{FieldList, HeadKind, Http2Config, Http2Connection, Http2Event, StreamEnd};
//!
//! let mut client: Http2Connection<Arc<[u8]>> = Http2Connection::client(Http2Config::default(), 0);
//! let mut server: Http2Connection<Arc<[u8]>> = Http2Connection::server(Http2Config::default(), 0);
//!
//! let head = [(":method", "POST"), (":scheme", "http"), (":path", "/echo")];
//! let stream = client.open(&head.into_iter().collect(), StreamEnd::Continues, 0)?;
//! client.send_data(stream, b"hello"[..].into(), StreamEnd::Ends, 0).map_err(|(error, _)| error)?;
//! client.fill(0);
//! let bytes = client.copied_output();
//! client.advance(bytes.len(), 0);
//!
//! let (mut rest, mut body) = (&bytes[..], Vec::new());
//! loop {
//!     let received = server.receive(rest, 0)?;
//!     rest = &rest[received.consumed..];
//!     let (stream, taken) = match received.event {
//!         Some(Http2Event::Data { stream, data, .. }) => {
//!             body.extend_from_slice(data);
//!             (stream, data.len())
//!         }
//!         Some(Http2Event::Head { kind, .. }) => {
//!             assert_eq!(kind, HeadKind::Request);
//!             continue;
//!         }
//!         Some(_) => continue,
//!         None => break,
//!     };
//!     server.release(stream, taken as u32);
//! }
//! assert_eq!(body, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod config;
mod connection;
mod error;
mod fields;
pub mod floods;
pub mod frame;
pub mod fuzzing;
pub mod hpack;
mod output;
mod settings;
mod state;
mod stream_map;
mod streams;
mod validate;
mod windows;

pub use config::{EndpointRole, Http2Config, KeepalivePolicy, TimeLimits};
pub use connection::{
    HeadKind, Http2Connection, Http2Event, OUTPUT_STOPS_INPUT_BYTES, ReceivedInput, ResetCause, RestoreFault,
    SavedConnection, StreamEnd,
};
pub use error::{ConnectionError, ErrorCode, SendError};
pub use fields::{FieldIndexing, FieldList, FieldRef};
pub use output::{COPIED_BYTES_MAX, DataChunk, FewBytes};
pub use settings::{EndpointSettings, WINDOW_BYTES_INITIAL, setting, setting_bytes};
pub use stream_map::StreamMap;
pub use validate::{HeadFacts, HeadFault, check_request, check_response, check_trailers};
