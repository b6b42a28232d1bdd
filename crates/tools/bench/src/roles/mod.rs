//! What a process of a setup does. A role travels to its process as JSON, in a hidden subcommand.

mod floor;
mod provost;
mod raw;
mod raw_udp;
mod timeline;
mod tonic;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::datagram;
use crate::failure::Failure;
use crate::foreign::{self, ForeignClient};
use crate::link::Host;
use crate::peers::{self, NodelessPeer};
use crate::plan::NodeWaiting;
use crate::process;
use crate::report::Load;

pub(crate) use floor::FloorPart;
pub(crate) use provost::Served;

/// Bytes of a response's payload, whatever the request's.
const RESPONSE: &[u8; 8] = b"8 bytes.";
/// How long whoever waits with a bound spins, yielding its core, before it sleeps.
pub(crate) const SPIN_NS: u64 = 50_000;

/// How a socket's reader waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Waiting {
    /// Asleep in the kernel.
    Blocking,
    /// Asking again without pause.
    Spinning,
}

/// What a process does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Becomes another program, on this host, whose output goes into `log`.
    Program {
        host: Host,
        program: PathBuf,
        arguments: Vec<String>,
        log: PathBuf,
    },
    /// Answers raw requests over TCP.
    RawServer {
        waiting: Waiting,
    },
    /// Makes load on a [`Role::RawServer`].
    RawClient {
        address: String,
        waiting: Waiting,
        load: Load,
    },
    /// Answers raw requests over UDP.
    RawUdpServer,
    /// Makes load on a [`Role::RawUdpServer`].
    RawUdpClient {
        address: String,
        load: Load,
    },
    /// Starts the other processes of the floor and makes load on them; all spin for so long before they sleep.
    FloorClient {
        load: Load,
        spin_ns: u64,
    },
    /// One of those other processes.
    Floor {
        part: FloorPart,
    },
    /// Starts a process and makes load on it over shared memory.
    SharedMemoryClient {
        load: Load,
    },
    TonicServer,
    /// Makes load on a [`Role::TonicServer`].
    TonicClient {
        address: String,
        load: Load,
    },
    /// Has a program of others make load on a [`Role::TonicServer`].
    ForeignClient {
        client: ForeignClient,
        program: PathBuf,
        address: String,
        load: Load,
    },
    /// Has a program of others make load over shared memory of theirs.
    PeerClient {
        peer: NodelessPeer,
        program: PathBuf,
        address: String,
        load: Load,
    },
    /// Answers calls that come through its node's service.
    ProvostServer {
        served: Served,
        waiting: NodeWaiting,
    },
    /// Makes load on a [`Role::ProvostServer`] through its own node's service.
    ProvostClient {
        load: Load,
        waiting: NodeWaiting,
    },
    /// Makes load and keeps every completion, in the file at `path`.
    ProvostTimeline {
        load: Load,
        path: PathBuf,
    },
    /// Has made calls and makes no more.
    ProvostIdle,
    /// Answers over a wire.
    DatagramServer {
        part: datagram::Part,
    },
    /// Makes load on a [`Role::DatagramServer`].
    DatagramClient {
        part: datagram::Part,
        load: Load,
    },
}

/// Plays a role to its end.
pub(crate) fn play(role: Role) -> Result<(), Failure> {
    process::die_with_parent()?;
    match role {
        Role::Program {
            host,
            program,
            arguments,
            log,
        } => {
            host.enter()?;
            process::become_program(&program, &arguments, &log)
        }
        Role::RawServer { waiting } => raw::serve(waiting),
        Role::RawClient {
            address,
            waiting,
            load,
        } => print(&raw::load(&address, waiting, &load)?),
        Role::RawUdpServer => raw_udp::serve(),
        Role::RawUdpClient { address, load } => print(&raw_udp::load(&address, &load)?),
        Role::FloorClient { load, spin_ns } => print(&floor::load_four(load, spin_ns)?),
        Role::SharedMemoryClient { load } => print(&floor::load_two(load)?),
        Role::Floor { part } => floor::play(&part),
        Role::TonicServer => tonic::serve(),
        Role::TonicClient { address, load } => print(&tonic::load(&address, &load)?),
        Role::ForeignClient {
            client,
            program,
            address,
            load,
        } => print(&foreign::load(client, &program, &address, &load)?),
        Role::PeerClient {
            peer,
            program,
            address,
            load,
        } => print(&peers::load(peer, &program, &address, &load)?),
        Role::ProvostServer { served, waiting } => provost::serve(served, waiting),
        Role::ProvostClient { load, waiting } => print(&provost::load(&load, waiting)?),
        Role::ProvostTimeline { load, path } => print(&timeline::run(&load, &path)?),
        Role::ProvostIdle => provost::idle(),
        Role::DatagramServer { part } => datagram::serve(&part),
        Role::DatagramClient { part, load } => print(&datagram::load(&part, &load)?),
    }
}

fn print(report: &impl Serialize) -> Result<(), Failure> {
    let line = serde_json::to_string(report).map_err(|error| Failure::role("client", error.to_string()))?;
    println!("{line}");
    Ok(())
}

fn payload(size_bytes: usize) -> Vec<u8> {
    vec![b'x'; size_bytes]
}
