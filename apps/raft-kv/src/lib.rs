//! A key-value store on three members, or five, that agree by Raft. The Raft library is TiKV's, as it is; messages go
//! over the datagram transport. It is what eRPC's paper did with LibRaft (Kalia, Kaminsky, Andersen, NSDI '19, section
//! 7.1), with sessions, snapshots and a journal added.
//!
//! | module | what it is for |
//! |---|---|
//! | [`operation`] | What clients ask and are answered. |
//! | [`store`] | The state: keys, values, sessions. |
//! | [`journal`] | What survives a restart. |
//! | [`member`] | The Raft library with log and store; no I/O but to the journal. |
//! | [`replica`] | A member on an endpoint of the transport. |
//! | [`client`] | A client on an endpoint: finds the leader, sends again what was not answered. |
//! | [`process`] | Both in a thread of their own, on a UDP wire. |
//! | [`local`] | Three members on this machine, as processes. |
#![forbid(unsafe_code)]

pub mod client;
mod codec;
pub mod journal;
pub mod local;
mod log;
pub mod member;
pub mod operation;
mod peer_message;
pub mod process;
pub mod replica;
pub mod store;
