//! The built-in load: echo servers, and a client that calls them through a proxy or without it.

mod calls;
mod client;
mod echo;
mod slice;
mod timer;

pub use client::{LoadClient, LoadPace, LoadShape};
pub use echo::{EchoServer, ServiceCalls};
pub use slice::LoadSlice;

/// The path of the one method that is called.
pub(crate) const ECHO_PATH: &str = "/provost.insight.Echo/Echo";
/// What gRPC puts before a message: whether it is compressed, and its length.
pub(crate) const GRPC_PREFIX_BYTES: usize = 5;
/// What a message over plain TCP begins with: its whole length.
pub(crate) const TCP_PREFIX_BYTES: usize = 4;
/// No message is longer.
pub(crate) const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// A message of so many bytes of payload, with what its protocol puts before it.
pub(crate) fn message(protocol: provost_insight::profile::Protocol, size_bytes: usize) -> bytes::Bytes {
    use provost_insight::profile::Protocol;
    let payload = (0..size_bytes).map(|at| b'a' + (at % 23) as u8);
    match protocol {
        Protocol::Tcp => {
            let whole = size_bytes.max(TCP_PREFIX_BYTES);
            let prefix = (whole as u32).to_be_bytes();
            prefix.into_iter().chain(payload.skip(TCP_PREFIX_BYTES)).collect()
        }
        Protocol::Grpc => {
            let length = (size_bytes as u32).to_be_bytes();
            [0].into_iter().chain(length).chain(payload).collect()
        }
        Protocol::Http1 | Protocol::Http2 | Protocol::Provost => payload.collect(),
    }
}
