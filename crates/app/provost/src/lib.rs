//! Application library: typed calls between programs, through the services of their nodes.
//!
//! A program describes its messages and services in `.proto` files; `provost-build` makes Rust of them in a build
//! script. Messages are built in memory that the node's service, `provostd`, can read, and handed over without a copy;
//! what is received is read where it lies. The rest feels like tonic.
//!
//! ```ignore
//! provost::include_protos!();    // `package kv;` is the module `kv`
//!
//! let client = kv::kv_client::KvClient::connect("kv.Kv").await?;
//! let reply = client.get(kv::GetRequest { key: "ann".into() }).await?;
//! println!("{:?}", reply.get_ref().value);
//! ```
//!
//! | to | see |
//! |---|---|
//! | build and read messages | [`shared`], [`Received`] |
//! | write them to bytes and JSON, and read them | [`MessageCodec`], [`JsonFormat`] |
//! | use Google's well-known types | [`well_known`] |
//! | call | [`Channel`], [`Request`], [`Response`], [`Streaming`], [`stream`] |
//! | see all calls of a channel or a server | [`CallInterceptor`], [`ExtensionMap`] |
//! | wait before calls, and see what they come to | `layer` (feature `tower`) |
//! | bound calls, and mark them, all at once | [`CallDefaults`] |
//! | pass trace and deadline on to tasks | [`context`] |
//! | serve, and know who calls | [`Server`], [`Request::peer`] |
//! | say whether services take calls | [`health`] |
//! | test a service without a node | [`Channel::in_process`], [`InProcessServer`] |
//! | call or serve without an executor | [`blocking`], [`ServerBuilder::serve_blocking`] |
//! | say where the service is, and how to wait | [`App`] |
//! | fail, and tell why | [`Status`], [`Code`], [`error_details`] |
//!
//! # Waiting
//!
//! Futures of this library run on any executor. One that waits first *spins*: for 50 µs since the last completion it
//! wakes itself each time it is polled and gives its core away to whoever wants it, since waking a process that sleeps takes longer than
//! most calls. After that it sleeps, and takes no processor time: one thread of the library, shared by all, watches
//! the doorbells. See [`AppBuilder::spin`] and [`AppBuilder::busy_poll`].
//!
//! In a runtime of tokio (feature `tokio`, on by default), the thread that the call runs on is woken by the service, without that
//! thread of the library in between, while calls follow each other. The runtime must have its driver of descriptors for that
//! (`enable_io`, which `enable_all` and `#[tokio::main]` include). In one without, the first call that sleeps prints tokio's panic
//! message for that, and calls are woken by the library's thread.
//!
//! # Deadlines, cancellation, loss
//!
//! [`Request::set_timeout`] bounds a call; calls that a handler makes are bounded by its own caller's deadline. The
//! library ends a call at its deadline by itself, even if the service is stuck. Dropping a call's future, or a stream
//! of responses, cancels it. When the service goes away, open calls end as `UNAVAILABLE`, and [`App`] and [`Channel`]
//! come back by themselves.
//!
//! # Memory
//!
//! Messages need room in the send heap (`PROVOST_SEND_HEAP_BYTES`, 1 GiB by default, taken as it is used). Like
//! those of `Vec`, methods that make room panic when there is none; those that begin with `try_` return an error. Where the library itself needs room,
//! a call fails with `RESOURCE_EXHAUSTED`.
//!
//! # Forking
//!
//! A child of `fork` that does not `exec` cannot use what its parent has used of this library: it has none of the parent's
//! threads, and other memory in place of what the parent shares with the service. Its calls and attachments are refused with
//! `FAILED_PRECONDITION`, making a message panics (or fails, by a method that begins with `try_`), and messages that it has
//! from its parent are empty. The parent goes on as if nothing had been. Fork before the first use of the library, or run a
//! program by `exec`.
#![warn(missing_docs)]

// Generated code names this crate, in this crate too.
extern crate self as provost;

mod app;
mod attach;
pub mod blocking;
mod call;
mod call_limits;
mod channel;
mod client;
pub mod codec;
pub mod codegen;
pub mod context;
mod defaults;
mod descriptor;
pub mod error_details;
mod extensions;
mod fork;
pub mod health;
mod in_process;
mod intercept;
#[cfg(feature = "tower")]
pub mod layer;
mod limit;
mod link;
#[doc(hidden)]
pub mod linked;
mod macros;
mod message;
mod metadata;
#[doc(hidden)]
pub mod offered;
mod outgoing;
mod peer;
mod reactor;
mod received;
mod request;
mod server;
pub mod shared;
mod status;
mod streaming;
#[cfg(any(feature = "opentelemetry", feature = "tracing"))]
pub mod telemetry;
mod waker_list;
pub mod well_known;

pub use app::{App, AppBuilder};
pub use call_limits::Readiness;
pub use channel::{Channel, ChannelBuilder, ChannelState, Target};
pub use codec::{JsonFormat, MessageCodec};
pub use context::CallContext;
pub use defaults::CallDefaults;
pub use extensions::ExtensionMap;
pub use in_process::InProcessServer;
pub use intercept::{CallHead, CallInterceptor, CallPath};
pub use metadata::{MetadataError, MetadataMap};
pub use outgoing::{SentStream, StreamSender, stream};
pub use peer::{Peer, PeerApp};
pub use received::Received;
pub use request::{IntoRequest, IntoStreamingRequest, Payload, Request, Response};
pub use server::{InterceptedService, Server, ServerBuilder, ServerCounts, Spawn};
pub use status::{Code, Status};
pub use streaming::Streaming;
