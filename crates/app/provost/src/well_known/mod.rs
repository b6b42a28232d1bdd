//! Google's well-known types: what schemas import as `google/protobuf/timestamp.proto` and so on. Code that `provost-build`
//! generates refers to them here.
//!
//! | type | is made from, and becomes |
//! |---|---|
//! | [`Timestamp`] | `SystemTime` |
//! | [`Duration`] | `std::time::Duration` |
//! | [`Any`] | any message: [`Any::pack`], [`Any::unpack`] |
//! | [`Value`], [`ListValue`], [`Struct`] | bools, numbers, texts; iterators of values, and of names with values |
//! | [`Int32Value`], [`StringValue`], … | the value |
//! | [`FieldMask`] | an iterator of paths |
//!
//! All of them have their own forms in JSON ([`MessageCodec`](crate::MessageCodec)). A field of message type takes what the message is
//! made from:
//!
//! ```
//! use std::time::{Duration, SystemTime};
//! use provost::shared::{Box, Optional};
//! use provost::well_known::{Int32Value, Timestamp};
//!
//! let later = SystemTime::UNIX_EPOCH + Duration::from_millis(1500);
//! let field: Optional<Box<Timestamp>> = later.into();
//! assert_eq!(field.as_deref().map(|stamp| (stamp.seconds, stamp.nanos)), Some((1, 500_000_000)));
//! assert_eq!(SystemTime::try_from(&Timestamp::from(later))?, later);
//! assert_eq!(i32::from(Int32Value::from(7)), 7);
//! # Ok::<(), std::boxed::Box<dyn std::error::Error>>(())
//! ```

mod any;
mod convert;

pub use convert::TimeError;

include!("generated.rs");
