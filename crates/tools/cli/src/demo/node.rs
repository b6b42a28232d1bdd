//! A node of the demonstration: `provostd` with a configuration of a few lines.

use std::path::PathBuf;

use super::wire::Event;
use super::worker::{self, WorkerError};

/// What a node is told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Its name; its socket is `<name>.sock`.
    #[arg(long)]
    name: String,
    /// Where its socket goes.
    #[arg(long)]
    directory: PathBuf,
    /// Where kv.Kv is; without it, the node listens for peers that call its own.
    #[arg(long)]
    peer: Option<String>,
}

/// Runs the node until it is told to stop.
pub(crate) fn run(options: Options) -> Result<(), WorkerError> {
    todo!()
}
