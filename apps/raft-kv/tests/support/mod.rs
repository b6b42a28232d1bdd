//! What the tests of a whole store need.
#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod cluster;
pub(crate) mod disk;
pub(crate) mod history;
