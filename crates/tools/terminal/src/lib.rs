//! What the programs of Provost's command line share: how a command fails, how tables and manual pages look, and how a node is
//! reached.
#![forbid(unsafe_code)]

pub mod admin;
pub mod failure;
pub mod numbers;
pub mod output;
pub mod pages;
pub mod table;
