//! The transport engine.

use std::cell::RefCell;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use provost_datapath::{
    Context, Engine, Interest, Link, Nanos, Ports, Progress, Restorer, SavedState, Saver, SocketHint,
};
use provost_session::{Config, Connection, ProtocolError, Role, Stage, Waiting};
use provost_wire::Code;

use crate::flight::Flight;
use crate::saved::{self, About};
use crate::socket::{Socket, Transfer};
use crate::{Established, PeerIdentity};

/// Bytes read at once. One such buffer serves all connections of a thread.
const SCRATCH_BYTES: usize = 64 << 10;
/// Bytes of it that are offered behind a direct read: room for what comes after, little enough that the rest of a
/// large message is not copied through it.
const BEHIND_DIRECT_BYTES: usize = 4 << 10;
/// Bytes that one poll reads at most before other datapaths get their turn.
const READ_BYTES_MAX: usize = 256 << 10;
/// Bytes that one poll writes at most.
const WRITE_BYTES_MAX: usize = 512 << 10;
/// How soon a connection that has enough on its way is looked at again.
const ENOUGH_RETRY_NS: Nanos = 50_000;

/// What version 2 has waiting for one write.
const COALESCED: Waiting = Waiting {
    bytes_max: 256 << 10,
    pieces_max: provost_net::GATHER_PIECES_MAX / 2,
};

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; SCRATCH_BYTES]);
}

/// How a transport behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportConfig {
    /// After how long without a byte from the peer it is asked whether it is there, in nanoseconds; 0 for never.
    pub keepalive_interval_ns: u64,
    /// How long it may take to answer, in nanoseconds.
    pub keepalive_timeout_ns: u64,
    /// How long an orderly end may take, in nanoseconds.
    pub linger_ns: u64,
    /// Which version of the code carries the connection.
    pub version: TcpVersion,
}

impl Default for TransportConfig {
    fn default() -> TransportConfig {
        TransportConfig {
            keepalive_interval_ns: 10_000_000_000,
            keepalive_timeout_ns: 10_000_000_000,
            linger_ns: 2_000_000_000,
            version: TcpVersion::default(),
        }
    }
}

/// A version of the transport's code. They keep the same state and speak the same protocol, so a connection can go from
/// any to any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TcpVersion {
    /// Writes one round of frames by one system call: a small step waits for one chunk of a large message at most.
    #[default]
    One,
    /// Writes several rounds of frames by one system call: a quarter of the calls for large messages, behind more of
    /// which a small step may stand. `cargo run --release -p provost-transport-tcp --example versions` compares them.
    Two,
}

impl TcpVersion {
    /// The version with this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<TcpVersion> {
        match number {
            1 => Some(TcpVersion::One),
            2 => Some(TcpVersion::Two),
            _ => None,
        }
    }

    /// Its number, as [`Engine::version`] gives it.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            TcpVersion::One => 1,
            TcpVersion::Two => 2,
        }
    }
}

/// What a successor is given beside the saved state.
pub struct Handover<'a> {
    /// Its predecessor's descriptors ([`Engine::descriptors`]), duplicated.
    pub descriptors: Vec<OwnedFd>,
    /// The connection's link: the same one, or one of the same state.
    pub link: Arc<Link>,
    /// Where blocks and foreign memory come from.
    pub restorer: &'a mut dyn Restorer,
}

/// The last engine of a datapath whose peer is reached over TCP.
pub struct TcpTransport {
    pub(crate) link: Arc<Link>,
    pub(crate) connection: Connection,
    pub(crate) socket: Socket,
    pub(crate) stage: Stage,
    pub(crate) input: Pending,
    pub(crate) output: Output,
    pub(crate) flight: Flight,
    pub(crate) write_failed: Option<String>,
    pub(crate) about: About,
}

/// Whether a direction of the socket is to be tried even though the runtime knows of nothing new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    /// The last try found nothing (more).
    No,
    /// The last try stopped for reasons of our own.
    Yes,
}

/// Whether the socket took what it was given last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Flows,
    /// It was full; the runtime says when it is worth another try.
    Blocked,
    /// As much is on its way as may be while others are to have their turn; nobody says when that has changed.
    Enough {
        since: Nanos,
    },
}

impl TcpTransport {
    /// Takes over a connection. `link` carries what is not a step: draining, closing, why the connection ended.
    #[must_use]
    pub fn new(
        established: Established,
        role: Role,
        config: TransportConfig,
        link: Arc<Link>,
        now: Nanos,
    ) -> TcpTransport {
        let about = About {
            config,
            service: established.service,
            peer: established.peer,
            peer_address: established.peer_address,
        };
        let connection = Connection::new(
            Config {
                role,
                agreement: established.agreement,
                limits: established.limits,
                keepalive_interval_ns: config.keepalive_interval_ns,
                keepalive_timeout_ns: config.keepalive_timeout_ns,
            },
            now,
        );
        TcpTransport {
            link,
            connection,
            socket: Socket::new(established.socket, established.tls, established.leftover),
            stage: Stage::Open,
            // Something may have come behind the handshake.
            input: Pending::Yes,
            output: Output::Flows,
            flight: Flight::default(),
            write_failed: None,
            about,
        }
    }

    /// Who the peer has proved to be.
    #[must_use]
    pub fn peer(&self) -> &PeerIdentity {
        &self.about.peer
    }

    fn work_open(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) -> Progress {
        self.connection.heed(&self.link);
        let mut moved = self.connection.deliver(ports, context);
        moved |= self.connection.take_steps(ports, context);
        if let Err(silent) = self.connection.tick(context.now) {
            return self.lose(Code::Unavailable, &silent.to_string(), context);
        }
        match self.write(context) {
            Ok(wrote) => moved |= wrote,
            Err(error) => self.write_failed = Some(error.to_string()),
        }
        match self.read(ports, context) {
            Ok(read) => moved |= read,
            Err(end) => return self.end(end, ports, context),
        }
        if self.link.turn_bytes() != u32::MAX {
            self.link.set_unsent_bytes(self.connection.unsent_bytes());
        }
        self.conclude(ports, context);
        match moved || self.stage != Stage::Open {
            true => Progress::Busy,
            false => Progress::Idle,
        }
    }

    fn write(&mut self, context: &mut Context<'_>) -> std::io::Result<bool> {
        let mut bytes = 0;
        let must_wait = self.output == Output::Blocked && context.socket == SocketHint::Skip;
        if must_wait || self.write_failed.is_some() {
            return Ok(false);
        }
        self.output = Output::Flows;
        let turn_bytes = self.link.turn_bytes() as usize;
        let room = self.room(context.now)?;
        loop {
            if bytes >= room {
                if self.connection.wants_output() || self.socket.wants_write() {
                    self.output = Output::Enough { since: context.now };
                }
                break;
            }
            match self.about.config.version {
                TcpVersion::Two if turn_bytes >= COALESCED.bytes_max => {
                    self.connection.fill_several(context, COALESCED);
                }
                TcpVersion::One | TcpVersion::Two => self.connection.fill(context),
            }
            match self
                .socket
                .write(&self.connection, room - bytes, context.buffers)?
            {
                Transfer::Bytes(sent) => {
                    self.connection.advance(sent, context);
                    bytes += sent;
                }
                Transfer::NotNow => {
                    self.output = Output::Blocked;
                    break;
                }
                Transfer::Done | Transfer::End => break,
            }
            if bytes >= WRITE_BYTES_MAX.min(turn_bytes) {
                break;
            }
        }
        Ok(bytes > 0)
    }

    /// How many bytes the socket may be given.
    fn room(&mut self, now: Nanos) -> std::io::Result<usize> {
        let turn_bytes = self.link.turn_bytes();
        match turn_bytes == u32::MAX || !self.connection.wants_output() {
            true => Ok(usize::MAX),
            false => self.flight.room(self.socket.tcp(), turn_bytes.into(), now),
        }
    }

    /// Reads what has come, and hands it on, until nothing is there, the app is behind, or others want their turn.
    fn read(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) -> Result<bool, End> {
        if context.socket == SocketHint::Skip && self.input == Pending::No {
            return Ok(false);
        }
        self.input = Pending::No;
        let turn_bytes = self.link.turn_bytes() as usize;
        let mut bytes = 0;
        loop {
            if !self.connection.accepts_input() || ports.rx_out.is_full() {
                self.input = Pending::Yes;
                if self.connection.has_steps() || ports.rx_out.is_full() {
                    // It is the app that is behind; the peer's silence means nothing while nobody listens.
                    self.connection.heard(context.now);
                }
                break;
            }
            if bytes >= READ_BYTES_MAX.min(turn_bytes) {
                self.input = Pending::Yes;
                break;
            }
            match SCRATCH.with_borrow_mut(|scratch| self.read_once(scratch, context))? {
                Transfer::Bytes(read) => bytes += read,
                // Before the connection is given up, all that has come is read.
                Transfer::Done if self.write_failed.is_some() => {}
                Transfer::Done => break,
                Transfer::NotNow => match self.write_failed.take() {
                    Some(error) => return Err(End::Lost(error)),
                    None => break,
                },
                Transfer::End => return Err(End::Closed),
            }
            self.connection.deliver(ports, context);
        }
        Ok(bytes > 0)
    }

    fn read_once(&mut self, scratch: &mut [u8], context: &mut Context<'_>) -> Result<Transfer, End> {
        let lost = |error: std::io::Error| End::Lost(error.to_string());
        let Some(direct) = self.connection.direct(context.receive) else {
            let read = self
                .socket
                .read(&mut [], scratch, context.buffers)
                .map_err(lost)?;
            if let Transfer::Bytes(bytes) = read {
                self.connection.input(&scratch[..bytes], context)?;
            }
            return Ok(read);
        };
        let room = direct.len();
        let read = self
            .socket
            .read(direct, &mut scratch[..BEHIND_DIRECT_BYTES], context.buffers)
            .map_err(lost)?;
        if let Transfer::Bytes(bytes) = read {
            self.connection.direct_came(bytes.min(room), context)?;
            self.connection
                .input(&scratch[..bytes.saturating_sub(room)], context)?;
        }
        Ok(read)
    }

    /// Ends the connection if it has been asked for and nothing is left to do.
    fn conclude(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) {
        if !ports.tx_in.is_empty() || self.connection.wants_output() || self.socket.wants_write() {
            return;
        }
        if self.link.close_requested() {
            self.finish(
                Code::Unavailable,
                "the connection was closed by this node",
                context,
            );
        } else if self.connection.is_drained() {
            self.finish(Code::Ok, "the connection was drained", context);
        }
    }

    fn finish(&mut self, code: Code, reason: &str, context: &mut Context<'_>) {
        self.connection
            .end_with_link(code, Code::Ok, reason, &self.link, context);
        self.socket.close_write(context.buffers);
        self.stage = Stage::Ending { orderly: true };
    }

    fn lose(&mut self, code: Code, reason: &str, context: &mut Context<'_>) -> Progress {
        self.connection
            .end_with_link(code, code, reason, &self.link, context);
        self.stage = Stage::Ending { orderly: false };
        Progress::Busy
    }

    fn end(&mut self, end: End, ports: &mut Ports<'_>, context: &mut Context<'_>) -> Progress {
        match end {
            End::Lost(error) => self.lose(
                Code::Unavailable,
                &format!("the connection broke: {error}"),
                context,
            ),
            End::Protocol(error) => {
                let reason = format!("the peer broke the protocol: {error}");
                self.connection.end_and_tell(Code::Internal, &reason, context);
                // The peer may not take it any more; then it learns from the end of the connection alone.
                let _ = self.write(context);
                self.socket.close_write(context.buffers);
                self.lose(Code::Internal, &reason, context)
            }
            End::Closed => {
                self.connection.deliver(ports, context);
                let (code, reason) = self.connection.closed_by_peer(&self.link);
                self.lose(code, reason, context)
            }
        }
    }

    /// Tells the app of the end of each of its calls, and refuses what it still begins.
    fn work_ending(&mut self, orderly: bool, ports: &mut Ports<'_>, context: &mut Context<'_>) -> Progress {
        let moved = self.connection.decline_steps(ports, context);
        if self.connection.is_over() && ports.tx_in.is_empty() {
            self.stage = Stage::after_ending(orderly, context.now, self.about.config.linger_ns);
            return Progress::Busy;
        }
        match moved {
            true => Progress::Busy,
            false => Progress::Idle,
        }
    }

    /// Reads until the peer has closed too, so that what it has not read yet is not destroyed by a reset.
    fn work_lingering(&mut self, until: Nanos, ports: &mut Ports<'_>, context: &mut Context<'_>) -> Progress {
        self.connection.decline_steps(ports, context);
        let closed = match context.socket {
            SocketHint::Skip => false,
            SocketHint::Try => SCRATCH.with_borrow_mut(|scratch| {
                !matches!(
                    self.socket.discard(scratch),
                    Ok(Transfer::Bytes(_) | Transfer::NotNow | Transfer::Done)
                )
            }),
        };
        if closed || context.now >= until {
            self.stage = Stage::Ended;
        }
        match self.stage {
            Stage::Ended => Progress::Ended,
            _ => Progress::Idle,
        }
    }
}

/// Why reading stopped for good.
enum End {
    Closed,
    Lost(String),
    Protocol(ProtocolError),
}

impl From<ProtocolError> for End {
    fn from(error: ProtocolError) -> End {
        End::Protocol(error)
    }
}

impl Engine for TcpTransport {
    fn kind(&self) -> &'static str {
        saved::KIND
    }

    fn do_work(&mut self, mut ports: Ports<'_>, context: &mut Context<'_>) -> Progress {
        match self.stage {
            Stage::Open => self.work_open(&mut ports, context),
            Stage::Ending { orderly } => self.work_ending(orderly, &mut ports, context),
            Stage::Lingering { until } => self.work_lingering(until, &mut ports, context),
            Stage::Ended => Progress::Ended,
        }
    }

    fn wake_at(&self) -> Option<Nanos> {
        match self.stage {
            Stage::Open => match self.output {
                Output::Enough { since } => {
                    let again_at = since + ENOUGH_RETRY_NS;
                    Some(self.connection.wake_at().map_or(again_at, |at| at.min(again_at)))
                }
                Output::Flows | Output::Blocked => self.connection.wake_at(),
            },
            Stage::Lingering { until } => Some(until),
            Stage::Ending { .. } | Stage::Ended => None,
        }
    }

    fn interest(&self) -> Option<Interest> {
        let write = match self.stage {
            // The socket has room while enough is on its way.
            Stage::Open if matches!(self.output, Output::Enough { .. }) => false,
            Stage::Open => self.connection.wants_output() || self.socket.wants_write(),
            Stage::Ending { .. } | Stage::Ended => return None,
            Stage::Lingering { .. } => false,
        };
        // While the app is behind, what the socket has does not matter.
        let read = self.input == Pending::No;
        (read || write).then(|| Interest {
            socket: self.socket.descriptor(),
            write,
        })
    }

    fn version(&self) -> u32 {
        self.about.config.version.number()
    }

    fn save(&self, saver: &mut dyn Saver) -> SavedState {
        self.save_all(saver)
    }

    /// Its socket.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.socket.stream()]
    }
}
