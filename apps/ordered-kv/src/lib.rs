//! An ordered key-value store: 64-bit keys with 64-bit values, in `crossbeam-skiplist`'s map as it is, served over the
//! datagram transport. It is what eRPC's paper did with Masstree (Kalia, Kaminsky, Andersen, NSDI '19, section 7.2):
//! reads of one key run in the event loop, scans in worker threads, so that a scan holds up no read.
//!
//! ```
//! use provost_datagram_rpc::{Rpc, RpcConfig};
//! use provost_ordered_kv::client::Client;
//! use provost_ordered_kv::server::{Scans, handlers};
//! use provost_ordered_kv::tree::Tree;
//! use provost_packets::{InProcess, Wire};
//! use std::sync::Arc;
//!
//! let (near, far) = InProcess::pair(1500, 256);
//! let address = far.address();
//! let tree = Arc::new(Tree::default());
//! let server = std::thread::spawn(move || {
//!     let mut rpc = Rpc::new(RpcConfig::default(), far, (), handlers::<InProcess>(&tree, Scans::InWorkers)).unwrap();
//!     rpc.run_for(std::time::Duration::from_millis(500)).unwrap();
//! });
//! let mut client = Client::connect(near, address)?;
//! client.put(7, 70)?;
//! client.put(9, 90)?;
//! assert_eq!(client.get(7)?, Some(70));
//! assert_eq!(client.range(8, 10)?, [(9, 90)]);
//! assert_eq!(client.scan(0, 10)?.sum, 160);
//! # server.join().unwrap();
//! # Ok::<(), provost_ordered_kv::client::ClientError>(())
//! ```
#![forbid(unsafe_code)]

pub mod client;
pub mod protocol;
pub mod server;
pub mod tree;
