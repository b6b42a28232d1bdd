//! Stacks of the proxy's own code, sampled by a timer: which part of its time goes to the codec, which to each filter.

mod code;
mod names;
mod owner;
mod sample;

pub(crate) use code::{UserCode, UserShares};
pub(crate) use sample::StackSample;
