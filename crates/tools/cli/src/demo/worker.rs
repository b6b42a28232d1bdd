//! What all programs of the demonstration have in common: they die with it, take commands from their standard input
//! and tell events on their standard output.

use std::io::{self, BufRead, Write};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, set_parent_process_death_signal};

use super::wire::{Command, Event};

/// Why a program of the demonstration gives up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkerError {
    #[error("the demonstration that started this program is gone")]
    Orphan,
    #[error("cannot ask the kernel to end this program with its parent: {0}")]
    DeathSignal(rustix::io::Errno),
    #[error("standard input or output: {0}")]
    Pipe(io::Error),
    #[error("a command on standard input is not understood: {0}")]
    Command(serde_json::Error),
    #[error("this program does not know what to do with {0:?}")]
    NotMine(Command),
    #[error("socket: {0}")]
    Socket(io::Error),
    #[error("the node's service: {0}")]
    Service(String),
    #[error("call failed: {0}")]
    Call(String),
    #[error(transparent)]
    Data(#[from] provost_kv::data::DataError),
    #[error("{0}")]
    Wrong(String),
}

/// Has the kernel kill this process when the one that started it dies, however that happens.
pub(crate) fn die_with_parent(parent: i32) -> Result<(), WorkerError> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(WorkerError::DeathSignal)?;
    // The parent may have died before the request was in place; then no signal comes.
    if getppid().map(Pid::as_raw_pid) == Some(parent) {
        Ok(())
    } else {
        Err(WorkerError::Orphan)
    }
}

/// Ends this process when another one, which is not its parent, ends.
pub(crate) fn die_with(pid: i32) -> Result<(), WorkerError> {
    let pid = Pid::from_raw(pid).ok_or(WorkerError::Orphan)?;
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|_| WorkerError::Orphan)?;
    std::thread::spawn(move || {
        // Readable once the process has ended.
        let mut watched = [PollFd::new(&process, PollFlags::IN)];
        while let Ok(0) | Err(rustix::io::Errno::INTR) = poll(&mut watched, None) {}
        std::process::exit(1);
    });
    Ok(())
}

pub(crate) fn send_event(event: &Event) -> Result<(), WorkerError> {
    let mut line = serde_json::to_string(event).map_err(WorkerError::Command)?;
    line.push('\n');
    let mut output = io::stdout().lock();
    output
        .write_all(line.as_bytes())
        .and_then(|()| output.flush())
        .map_err(WorkerError::Pipe)
}

/// Carries out commands until the input ends, and tells what each came to.
pub(crate) fn each_command(
    mut carry_out: impl FnMut(Command) -> Result<Event, WorkerError>,
) -> Result<(), WorkerError> {
    for line in io::stdin().lock().lines() {
        let line = line.map_err(WorkerError::Pipe)?;
        let command = serde_json::from_str(&line).map_err(WorkerError::Command)?;
        send_event(&carry_out(command)?)?;
    }
    Ok(())
}

/// Returns when whoever holds the other end of the input closes it.
pub(crate) fn until_input_ends() {
    let mut input = io::stdin().lock();
    // An error on the input means as much as its end.
    let _ = io::copy(&mut input, &mut io::sink());
}

/// Is ready when whoever holds the other end of the input closes it.
pub(crate) async fn input_end() {
    let (open, end) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        until_input_ends();
        drop(open);
    });
    // The sender sends nothing: the only news is that it is gone.
    let _ = end.await;
}
