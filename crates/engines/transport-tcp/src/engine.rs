//! The transport engine.
//!
//! ```text
//! Open ──► Ending (calls are ended towards the app) ──► Lingering (the peer takes in the rest) ──► Ended
//! ```

use std::cell::RefCell;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use provost_datapath::{
    Context, Engine, Interest, Link, LinkEnd, Nanos, Ports, Progress, Restorer, SavedState, Saver, SocketHint,
};
use provost_session::{Config, Connection, ProtocolError, Role, Waiting};
use provost_wire::Code;

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
    pub(crate) state: State,
    pub(crate) input: Pending,
    pub(crate) output: Output,
    pub(crate) write_failed: Option<String>,
    pub(crate) about: About,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Open,
    Ending { orderly: bool },
    Lingering { until: Nanos },
    Ended,
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
            state: State::Open,
            // Something may have come behind the handshake.
            input: Pending::Yes,
            output: Output::Flows,
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
        self.heed_link();
        let mut moved = self.deliver(ports, context);
        moved |= self.take_steps(ports, context);
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
        self.conclude(ports, context);
        match moved || self.state != State::Open {
            true => Progress::Busy,
            false => Progress::Idle,
        }
    }

    fn heed_link(&mut self) {
        if self.link.drain_requested() {
            self.connection.drain();
        }
        if self.connection.peer_drains() {
            self.link.set_peer_drains();
        }
    }

    fn deliver(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        while !ports.rx_out.is_full()
            && let Some(step) = self.connection.poll_step(context)
        {
            moved = true;
            if ports.rx_out.push(step).is_err() {
                break;
            }
        }
        moved
    }

    fn take_steps(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        while self.connection.accepts_steps()
            && let Some(step) = ports.tx_in.pop()
        {
            moved = true;
            self.connection.send(step, context);
        }
        moved
    }

    fn write(&mut self, context: &mut Context<'_>) -> std::io::Result<bool> {
        let mut bytes = 0;
        let must_wait = self.output == Output::Blocked && context.socket == SocketHint::Skip;
        if must_wait || self.write_failed.is_some() {
            return Ok(false);
        }
        self.output = Output::Flows;
        let turn_bytes = self.link.turn_bytes() as usize;
        loop {
            match self.about.config.version {
                TcpVersion::Two if turn_bytes >= COALESCED.bytes_max => {
                    self.connection.fill_several(context, COALESCED);
                }
                TcpVersion::One | TcpVersion::Two => self.connection.fill(context),
            }
            match self.socket.write(&self.connection, context.buffers)? {
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
            self.deliver(ports, context);
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
        self.connection.end(code, reason, context);
        self.link.set_ended(LinkEnd {
            code: Code::Ok,
            reason: reason.to_owned(),
        });
        self.socket.close_write(context.buffers);
        self.state = State::Ending { orderly: true };
    }

    fn lose(&mut self, code: Code, reason: &str, context: &mut Context<'_>) -> Progress {
        self.connection.end(code, reason, context);
        self.link.set_ended(LinkEnd {
            code,
            reason: reason.to_owned(),
        });
        self.state = State::Ending { orderly: false };
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
                self.deliver(ports, context);
                let orderly = self.connection.is_between_frames() && self.connection.is_at_rest();
                let asked = self.connection.peer_drains() || self.link.drain_requested();
                match (orderly, asked) {
                    (true, true) => self.lose(Code::Ok, "the connection was drained", context),
                    (true, false) => self.lose(Code::Unavailable, "the peer closed the connection", context),
                    (false, _) => {
                        let reason = match self.connection.is_between_frames() {
                            true => "the peer closed the connection while calls were in flight",
                            false => "the peer closed the connection in the middle of a frame",
                        };
                        self.lose(Code::Unavailable, reason, context)
                    }
                }
            }
        }
    }

    /// Tells the app of the end of each of its calls, and refuses what it still begins.
    fn work_ending(&mut self, orderly: bool, ports: &mut Ports<'_>, context: &mut Context<'_>) -> Progress {
        let moved = self.decline_steps(ports, context);
        if self.connection.is_over() && ports.tx_in.is_empty() {
            self.state = match orderly {
                true => State::Lingering {
                    until: context.now.saturating_add(self.about.config.linger_ns),
                },
                false => State::Ended,
            };
            return Progress::Busy;
        }
        match moved {
            true => Progress::Busy,
            false => Progress::Idle,
        }
    }

    fn decline_steps(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) -> bool {
        let mut moved = self.deliver(ports, context);
        while !ports.rx_out.is_full()
            && let Some(step) = ports.tx_in.pop()
        {
            moved = true;
            self.connection.send(step, context);
            self.deliver(ports, context);
        }
        moved
    }

    /// Reads until the peer has closed too, so that what it has not read yet is not destroyed by a reset.
    fn work_lingering(&mut self, until: Nanos, ports: &mut Ports<'_>, context: &mut Context<'_>) -> Progress {
        self.decline_steps(ports, context);
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
            self.state = State::Ended;
        }
        match self.state {
            State::Ended => Progress::Ended,
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
        match self.state {
            State::Open => self.work_open(&mut ports, context),
            State::Ending { orderly } => self.work_ending(orderly, &mut ports, context),
            State::Lingering { until } => self.work_lingering(until, &mut ports, context),
            State::Ended => Progress::Ended,
        }
    }

    fn wake_at(&self) -> Option<Nanos> {
        match self.state {
            State::Open => self.connection.wake_at(),
            State::Lingering { until } => Some(until),
            State::Ending { .. } | State::Ended => None,
        }
    }

    fn interest(&self) -> Option<Interest> {
        let write = match self.state {
            State::Open => self.connection.wants_output() || self.socket.wants_write(),
            State::Ending { .. } | State::Ended => return None,
            State::Lingering { .. } => false,
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
