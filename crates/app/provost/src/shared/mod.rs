//! Containers that live in memory shared with the node's service. They feel like the standard library's; a message
//! built of them is handed to the service without a copy, and one that was received is read where it lies.
//!
//! | here | standard library | in a schema |
//! |---|---|---|
//! | [`String`] | `String` | `string` |
//! | [`Bytes`] | `Vec<u8>` | `bytes` |
//! | [`List`] | `Vec` | `repeated` |
//! | [`Map`] | `BTreeMap` | `map` |
//! | [`Optional`] | `Option` | `optional`, and with [`Box`] a field of message type |
//! | [`Box`] | `Box` | a message in a oneof |
//!
//! All of them are references relative to one base address, the start of the process's *window*: a reserved range in
//! which the *send heap* and all received segments are mapped. What a program builds comes from the send heap. It is
//! one for each process, made when it is first used, and can hold [`PROVOST_SEND_HEAP_BYTES`](heap_bytes_max) bytes;
//! memory is taken from the system as it is used and given back when enough of it is free.
//!
//! What is received is a [`Received<T>`](crate::Received): it dereferences to `&T`, never to `&mut T`. `Clone` of any of these types
//! makes a deep copy in the send heap, which is how a received message, or part of one, is kept or changed. Only
//! bytes and texts of 4 KiB and more that are in the send heap already are shared, not copied, until one is written to.
//!
//! These containers hold nothing that another process can write: the service maps the send heap read-only, and an app
//! maps what it received read-only. A process that forks must not use its parent's messages in the child.

mod boxed;
mod bytes;
pub(crate) mod heap;
mod list;
mod map;
mod measure;
mod prepared;
pub(crate) mod window;

pub use boxed::{Box, Optional};
pub use bytes::{Bytes, String};
pub use heap::{HeapFull, heap_bytes_max, heap_bytes_used};
pub use list::{IntoIter, List};
pub use map::{IntoIter as MapIntoIter, Iter as MapIter, Map};
pub use measure::Measure;
pub use prepared::Prepared;

#[cfg(test)]
mod tests;
