//! The floor: a bare call through four processes in Provost's shape, app – service – service – app, over shared memory
//! and loopback TCP, without marshalling, checks or policy. And between two processes over shared memory alone.
//!
//! Every process waits as Provost's do: it spins for a bounded time, yielding its core, and sleeps after that. Which way of
//! waiting is the best one depends on what else runs, so there are two more: all sleep at once, on all cores or on one.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};

use crate::failure::{Doing, Failure};
use crate::load::{Latencies, Run, measure};
use crate::machine;
use crate::mailbox::{Descriptors, MESSAGE_WORDS, Mailboxes, Message, still_spinning};
use crate::process::{Process, say_ready};
use crate::report::{Load, Report};
use crate::roles::{Role, SPIN_NS};

/// Bytes on the wire of a request: 64 of payload and a header of 32.
const REQUEST_BYTES: usize = 96;
/// Bytes on the wire of a response: 8 of payload and a header of 32.
const RESPONSE_BYTES: usize = 40;

/// The mailboxes on the way of a call.
const CALL: usize = 0;
const REPLY: usize = 1;
const DELIVERED: usize = 2;
const ANSWERED: usize = 3;

/// One of the processes that the client starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum FloorPart {
    ServerService {
        mailboxes: Descriptors,
        spin_ns: u64,
    },
    ClientService {
        mailboxes: Descriptors,
        address: String,
        spin_ns: u64,
    },
    Server {
        mailboxes: Descriptors,
        calls: usize,
        answers: usize,
        spin_ns: u64,
    },
}

/// Plays a part until the client ends it.
pub(crate) fn play(part: &FloorPart) -> Result<(), Failure> {
    match part {
        FloorPart::ServerService { mailboxes, spin_ns } => {
            server_service(&Mailboxes::inherit(*mailboxes)?, *spin_ns)
        }
        FloorPart::ClientService {
            mailboxes,
            address,
            spin_ns,
        } => client_service(&Mailboxes::inherit(*mailboxes)?, address, *spin_ns),
        FloorPart::Server {
            mailboxes,
            calls,
            answers,
            spin_ns,
        } => {
            let mailboxes = Mailboxes::inherit(*mailboxes)?;
            say_ready("");
            for sequence in sequences() {
                let message = mailboxes.receive(*calls, sequence, *spin_ns)?;
                mailboxes.post(*answers, sequence, &message)?;
            }
            Ok(())
        }
    }
}

/// Makes load through four processes, this one included, on the load's cores; each spins for so long before it sleeps.
pub(crate) fn load_four(mut load: Load, spin_ns: u64) -> Result<Report, Failure> {
    machine::pin(&load.cores)?;
    let mailboxes = Mailboxes::create()?;
    let start = |name: &str, part| Process::start_ready(name, &Role::Floor { part });
    let descriptors = mailboxes.descriptors();
    let server = FloorPart::Server {
        mailboxes: descriptors,
        calls: DELIVERED,
        answers: ANSWERED,
        spin_ns,
    };
    let (server, _) = start("server", server)?;
    let (ingress, address) = start(
        "ingress",
        FloorPart::ServerService {
            mailboxes: descriptors,
            spin_ns,
        },
    )?;
    let (egress, _) = start(
        "egress",
        FloorPart::ClientService {
            mailboxes: descriptors,
            address,
            spin_ns,
        },
    )?;
    load.watched = [&server, &ingress, &egress].map(Process::watched).into();
    ping_pong(&mailboxes, &load, spin_ns)
}

/// Makes load between this process and another, on the load's cores.
pub(crate) fn load_two(mut load: Load) -> Result<Report, Failure> {
    machine::pin(&load.cores)?;
    let mailboxes = Mailboxes::create()?;
    let part = FloorPart::Server {
        mailboxes: mailboxes.descriptors(),
        calls: CALL,
        answers: REPLY,
        spin_ns: SPIN_NS,
    };
    let (server, _) = Process::start_ready("server", &Role::Floor { part })?;
    load.watched = vec![server.watched()];
    ping_pong(&mailboxes, &load, SPIN_NS)
}

fn ping_pong(mailboxes: &Mailboxes, load: &Load, spin_ns: u64) -> Result<Report, Failure> {
    measure(load, |run| call(mailboxes, spin_ns, run))
}

fn call(mailboxes: &Mailboxes, spin_ns: u64, run: &Run) -> Result<Latencies, Failure> {
    let mut latencies = Latencies::default();
    run.ready();
    for sequence in sequences() {
        if run.is_stopped() {
            break;
        }
        let began = Instant::now();
        mailboxes.post(CALL, sequence, &[u64::from(sequence); MESSAGE_WORDS])?;
        mailboxes.receive(REPLY, sequence, spin_ns)?;
        run.record(&mut latencies, began);
    }
    Ok(latencies)
}

fn client_service(mailboxes: &Mailboxes, address: &str, spin_ns: u64) -> Result<(), Failure> {
    let mut stream = TcpStream::connect(address).doing(|| format!("connect to {address}"))?;
    set_up(&stream)?;
    say_ready("");
    for sequence in sequences() {
        let message = mailboxes.receive(CALL, sequence, spin_ns)?;
        send::<REQUEST_BYTES>(&mut stream, &message)?;
        let Some(response) = receive::<RESPONSE_BYTES>(&mut stream, spin_ns)? else {
            break;
        };
        mailboxes.post(REPLY, sequence, &response)?;
    }
    Ok(())
}

fn server_service(mailboxes: &Mailboxes, spin_ns: u64) -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").doing(|| "listen".into())?;
    say_ready(listener.local_addr().doing(|| "name the listener".into())?);
    let (mut stream, _) = listener.accept().doing(|| "accept".into())?;
    set_up(&stream)?;
    for sequence in sequences() {
        let Some(request) = receive::<REQUEST_BYTES>(&mut stream, spin_ns)? else {
            break;
        };
        mailboxes.post(DELIVERED, sequence, &request)?;
        let answer = mailboxes.receive(ANSWERED, sequence, spin_ns)?;
        send::<RESPONSE_BYTES>(&mut stream, &answer)?;
    }
    Ok(())
}

fn set_up(stream: &TcpStream) -> Result<(), Failure> {
    stream
        .set_nodelay(true)
        .and_then(|()| stream.set_nonblocking(true))
        .doing(|| "set the socket up".into())
}

/// Sends a frame of `BYTES` with as much of the message as it has room for. One is in flight, so it always fits.
fn send<const BYTES: usize>(stream: &mut TcpStream, message: &Message) -> Result<(), Failure> {
    let mut frame = [0; BYTES];
    for (field, word) in frame.chunks_exact_mut(8).zip(message) {
        field.copy_from_slice(&word.to_le_bytes());
    }
    stream.write_all(&frame).doing(|| "send".into())
}

/// The next frame; none when the other service has ended.
fn receive<const BYTES: usize>(stream: &mut TcpStream, spin_ns: u64) -> Result<Option<Message>, Failure> {
    let mut frame = [0; BYTES];
    let (mut filled, since) = (0, Instant::now());
    while filled < BYTES {
        match stream.read(&mut frame[filled..]) {
            Ok(0) => return Ok(None),
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if !still_spinning(since, spin_ns) {
                    let mut sockets = [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)];
                    poll(&mut sockets, None).doing(|| "sleep".into())?;
                }
            }
            Err(error) => return Err(error).doing(|| "receive".into()),
        }
    }
    let mut words = frame.chunks_exact(8).map(|field| {
        field
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u64::from(*byte))
    });
    Ok(Some(std::array::from_fn(|_| words.next().unwrap_or(0))))
}

/// Numbers of messages: 0 is what an empty mailbox says.
fn sequences() -> impl Iterator<Item = u32> {
    1..=u32::MAX
}
