//! The datagram transport as a library that a program links (`docs/datagram-library.md`).
//!
//! An [`Rpc`] is owned by one thread. It joins a [`Wire`] to the program: requests that arrive go to the handlers
//! that were registered for their type, and calls that were made go on in a continuation when their response is there.
//!
//! ```text
//!   enqueue_request ──► session ──► wire ═══► wire ──► dispatch handler ──► respond
//!   continuation ◄───── session ◄── wire ◄═══ wire ◄──┐      │ (declared as a worker's)
//!                                                     └─ worker thread
//! ```
//!
//! ```
//! use provost_datagram_rpc::{Handlers, Rpc, RpcConfig};
//! use provost_packets::{InProcess, Wire};
//!
//! const DOUBLE: u16 = 1;
//! let (near, far) = InProcess::pair(1500, 256);
//! let address = far.address();
//!
//! let server = std::thread::spawn(move || {
//!     let mut handlers = Handlers::new();
//!     handlers.dispatch(DOUBLE, |calls: &mut u32, context, request| {
//!         *calls += 1;
//!         let doubled: Vec<u8> = request.bytes().iter().map(|byte| byte * 2).collect();
//!         let _ = context.respond(request.handle(), 0, &doubled);
//!     });
//!     let mut rpc = Rpc::new(RpcConfig::default(), far, 0, handlers).expect("fine options");
//!     rpc.run_until(|calls| *calls == 1).expect("a wire that works");
//!     rpc.run_for(std::time::Duration::from_millis(20)).expect("a wire that works");
//! });
//!
//! let mut rpc = Rpc::new(RpcConfig::default(), near, Vec::new(), Handlers::new())?;
//! let (_, mut context) = rpc.parts();
//! let session = context.connect(address)?;
//! let call = context.call_of(DOUBLE, &[1, 2, 3], 16);
//! context
//!     .enqueue_request(session, call, |answers, _, completion| answers.push(completion.response.to_vec()))
//!     .map_err(|refused| refused.error)?;
//! rpc.run_until(|answers| !answers.is_empty())?;
//! assert_eq!(rpc.state(), &[vec![2, 4, 6]]);
//! # server.join().unwrap();
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! What is promised:
//!
//! - A continuation runs exactly once, whatever happens to the peer, the session or the [`Rpc`].
//! - It is handed both message buffers. Until then the program does not have them, and from then on nothing else does.
//! - A request is executed at most once.
//! - A dispatch handler takes no lock and, if it answers with few bytes, no memory.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod buffers;
mod carrier;
mod config;
mod context;
mod error;
mod future;
mod handlers;
mod mailbox;
mod oneshot;
mod pending;
mod rpc;
mod stubs;
mod workers;

pub use carrier::{CallCarrier, CarrierRef, EventSink, RpcDriver};
pub use config::{ConfigRefused, RpcConfig};
pub use context::{Context, Refused};
pub use error::RpcError;
pub use future::{Calling, Connecting, Reply};
pub use handlers::{Handlers, OwnedRequest, Request, SessionEvent};
pub use mailbox::{MailboxFull, Remote};
pub use pending::Completion;
pub use rpc::{Rpc, RpcLoop};
#[doc(hidden)]
pub use stubs::fuzzing;
pub use stubs::{RpcThread, RpcThreadBuilder, StartError};
pub use workers::Work;

pub use provost_datagram::{
    Address, Algorithm, Call, CallError, ConnectError, EndReason, MsgBuf, Refusal, RequestHandle, SessionId,
    Turn,
};
pub use provost_packets::Wire;
