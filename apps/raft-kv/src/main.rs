//! Members and clients of the store, as programs.
#![forbid(unsafe_code)]

fn main() {}
