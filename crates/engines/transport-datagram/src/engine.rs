//! The transport engine.

use std::cell::RefCell;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use provost_datagram::MsgBuf;
use provost_datapath::{
    Context, Engine, ForeignBytes, Interest, Link, Nanos, Packets, Ports, Progress, Restorer, SavedState,
    Saver, SocketHint,
};
use provost_marshal::{copy_foreign, copy_foreign_to};
use provost_session::{Config, Connection, Piece, ProtocolError, Role, Stage, Waiting};
use provost_wire::Code;

use crate::Established;
use crate::lane::{Lane, Lost, Next, PARCEL_BYTES_MAX, Reading};
use crate::saved::{self, About};
use crate::socket::PACKET_BYTES_MAX;

/// What a parcel is filled from: frames of many calls, or pieces of large messages in turn.
const FILLED: Waiting = Waiting {
    bytes_max: PARCEL_BYTES_MAX,
    pieces_max: 256,
};
/// Bytes that one poll hands on at most before other datapaths get their turn.
const READ_BYTES_MAX: usize = 512 << 10;
/// Bytes that one poll takes from the connection at most.
const WRITE_BYTES_MAX: usize = 512 << 10;
/// Ranges of foreign memory that begin at a multiple of this are read straight into a parcel.
const FOREIGN_ALIGN: usize = 8;

thread_local! {
    /// Where packets are read. One buffer serves all connections of a thread.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; PACKET_BYTES_MAX as usize]);
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
}

impl Default for TransportConfig {
    fn default() -> TransportConfig {
        TransportConfig {
            keepalive_interval_ns: 10_000_000_000,
            keepalive_timeout_ns: 10_000_000_000,
            linger_ns: 2_000_000_000,
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

/// The last engine of a datapath whose peer is reached over the datagram transport.
pub struct DatagramTransport {
    pub(crate) link: Arc<Link>,
    pub(crate) connection: Connection,
    pub(crate) lane: Lane,
    pub(crate) stage: Stage,
    pub(crate) input: Pending,
    pub(crate) about: About,
    /// Packets of which the link knows.
    pub(crate) counted: Packets,
}

/// Whether the socket is to be tried even though the runtime knows of nothing new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    /// The last try found nothing (more).
    No,
    /// The last try stopped for reasons of our own.
    Yes,
}

impl DatagramTransport {
    /// Takes over a connection. `link` carries what is not a step: draining, closing, why the connection ended.
    #[must_use]
    pub fn new(
        established: Established,
        config: TransportConfig,
        link: Arc<Link>,
        now: Nanos,
    ) -> DatagramTransport {
        let about = About {
            config,
            service: established.service,
        };
        let connection = Connection::new(
            Config {
                role: established.lane.role(),
                agreement: established.agreement,
                limits: established.limits,
                keepalive_interval_ns: config.keepalive_interval_ns,
                keepalive_timeout_ns: config.keepalive_timeout_ns,
            },
            now,
        );
        DatagramTransport {
            link,
            connection,
            lane: established.lane,
            stage: Stage::Open,
            // Something may have come behind the handshake.
            input: Pending::Yes,
            about,
            counted: Packets::default(),
        }
    }

    fn work_open(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) -> Progress {
        self.connection.heed(&self.link);
        let mut moved = self.connection.deliver(ports, context);
        moved |= self.connection.take_steps(ports, context);
        if let Err(silent) = self.connection.tick(context.now) {
            return self.lose(Code::Unavailable, &silent.to_string(), context);
        }
        moved |= self.write(context);
        match self.poll_lane(context) {
            Ok(polled) => moved |= polled,
            Err(Lost(reason)) => {
                // What has come is handed on before the connection is given up.
                if let Err(end) = self.read(ports, context) {
                    return self.end(end, ports, context);
                }
                return self.lose(
                    Code::Unavailable,
                    &format!("the connection broke: {reason}"),
                    context,
                );
            }
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

    /// Puts frames into parcels, as long as these could go at once: frames that wait are sent together later.
    fn write(&mut self, context: &mut Context<'_>) -> bool {
        let bytes_max = WRITE_BYTES_MAX.min(self.link.turn_bytes() as usize);
        let mut bytes = 0;
        while bytes < bytes_max && self.lane.has_room() {
            self.connection.fill_several(context, FILLED);
            let filled = self.fill_parcel();
            if filled == 0 {
                break;
            }
            self.connection.advance(filled, context);
            bytes += filled;
        }
        bytes > 0
    }

    fn fill_parcel(&mut self) -> usize {
        let piece_bytes = |piece: Piece<'_>| match piece {
            Piece::Private(bytes) => bytes.len(),
            Piece::Foreign { length, .. } => length as usize,
        };
        let waiting: usize = self.connection.pieces().map(piece_bytes).sum();
        let bytes = waiting.min(PARCEL_BYTES_MAX);
        if bytes == 0 {
            return 0;
        }
        let mut parcel: MsgBuf = self.lane.parcel(bytes);
        let mut rest = Lane::content(&mut parcel);
        for piece in self.connection.pieces() {
            if rest.is_empty() {
                break;
            }
            let take = piece_bytes(piece).min(rest.len());
            let (place, behind) = std::mem::take(&mut rest).split_at_mut(take);
            copy_piece(piece, place);
            rest = behind;
        }
        self.lane.send(parcel);
        bytes
    }

    fn poll_lane(&mut self, context: &mut Context<'_>) -> Result<bool, Lost> {
        let reading = match context.socket == SocketHint::Try || self.input == Pending::Yes {
            true => Reading::Try,
            false => Reading::Skip,
        };
        let now = context.now;
        let polled = SCRATCH.with_borrow_mut(|scratch| self.lane.poll(now, reading, scratch))?;
        if polled.moved {
            self.count_packets();
        }
        if reading == Reading::Try {
            self.input = match polled.left_some {
                true => Pending::Yes,
                false => Pending::No,
            };
        }
        Ok(polled.moved)
    }

    fn count_packets(&mut self) {
        let (packets, counts) = (self.lane.packets(), self.link.packets());
        counts.add(packets - self.counted);
        if let Some(round_trip_ns) = self.lane.round_trip_ns() {
            counts.set_round_trip_ns(round_trip_ns);
        }
        self.counted = packets;
    }

    /// Hands on what has come, until nothing is there, the app is behind, or others want their turn.
    fn read(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) -> Result<bool, End> {
        let bytes_max = READ_BYTES_MAX.min(self.link.turn_bytes() as usize);
        let mut bytes = 0;
        loop {
            self.connection.deliver(ports, context);
            if !self.connection.accepts_input() || ports.rx_out.is_full() {
                if self.lane.has_next() {
                    self.input = Pending::Yes;
                }
                if self.connection.has_steps() || ports.rx_out.is_full() {
                    // It is the app that is behind; the peer's silence means nothing while nobody listens.
                    self.connection.heard(context.now);
                }
                break;
            }
            if bytes >= bytes_max {
                self.input = Pending::Yes;
                break;
            }
            match self.lane.next() {
                Next::Bytes(came) => {
                    bytes += came.len();
                    self.connection.input(came, context)?;
                }
                Next::Nothing => break,
                Next::Finished => {
                    self.lane.taken();
                    return Err(End::Closed);
                }
            }
            self.lane.taken();
        }
        Ok(bytes > 0)
    }

    /// Ends the connection if it has been asked for and nothing is left to do.
    fn conclude(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) {
        if !ports.tx_in.is_empty() || self.connection.wants_output() {
            return;
        }
        if self.link.close_requested() {
            let reason = "the connection was closed by this node";
            self.finish(Code::Unavailable, reason, context);
        } else if self.connection.is_drained() {
            self.finish(Code::Ok, "the connection was drained", context);
        }
    }

    fn finish(&mut self, code: Code, reason: &str, context: &mut Context<'_>) {
        self.connection
            .end_with_link(code, Code::Ok, reason, &self.link, context);
        self.lane.finish();
        self.stage = Stage::Ending { orderly: true };
    }

    fn lose(&mut self, code: Code, reason: &str, context: &mut Context<'_>) -> Progress {
        self.connection
            .end_with_link(code, code, reason, &self.link, context);
        // The peer is told once; should that get lost, it finds nobody there.
        self.lane.finish();
        let _ = self.poll_lane(context);
        self.stage = Stage::Ending { orderly: false };
        Progress::Busy
    }

    fn end(&mut self, end: End, ports: &mut Ports<'_>, context: &mut Context<'_>) -> Progress {
        match end {
            End::Protocol(error) => {
                let reason = format!("the peer broke the protocol: {error}");
                self.connection.end_and_tell(Code::Internal, &reason, context);
                self.write(context);
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
        let mut moved = self.connection.decline_steps(ports, context);
        if orderly {
            moved |= self.poll_lane(context).unwrap_or(false);
        }
        if self.connection.is_over() && ports.tx_in.is_empty() {
            self.stage = Stage::after_ending(orderly, context.now, self.about.config.linger_ns);
            return Progress::Busy;
        }
        match moved {
            true => Progress::Busy,
            false => Progress::Idle,
        }
    }

    /// Stays until the peer has everything and has ended too.
    fn work_lingering(&mut self, until: Nanos, ports: &mut Ports<'_>, context: &mut Context<'_>) -> Progress {
        self.connection.decline_steps(ports, context);
        let polled = self.poll_lane(context);
        while self.lane.has_next() {
            // What still comes is of calls that have ended, or says that the peer has ended too.
            self.lane.taken();
        }
        let done = self.lane.is_acknowledged() && self.lane.peer_finished();
        if done || polled.is_err() || context.now >= until {
            self.stage = Stage::Ended;
            return Progress::Ended;
        }
        match polled {
            Ok(true) => Progress::Busy,
            _ => Progress::Idle,
        }
    }
}

/// Copies the beginning of a piece, as much as there is place.
fn copy_piece(piece: Piece<'_>, place: &mut [u8]) {
    match piece {
        Piece::Private(bytes) => {
            let bytes = bytes.get(..place.len()).unwrap_or_default();
            place.copy_from_slice(bytes);
        }
        Piece::Foreign { range, from, .. } => {
            let part: ForeignBytes = range.part(from, place.len() as u32);
            if part.address().get().is_multiple_of(FOREIGN_ALIGN) {
                return copy_foreign_to(&part, place);
            }
            let mut bytes = Vec::with_capacity(place.len());
            copy_foreign(&part, &mut bytes);
            place.copy_from_slice(&bytes);
        }
    }
}

/// Why reading stopped for good.
enum End {
    Closed,
    Protocol(ProtocolError),
}

impl From<ProtocolError> for End {
    fn from(error: ProtocolError) -> End {
        End::Protocol(error)
    }
}

impl Engine for DatagramTransport {
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
        let (lane, own) = match self.stage {
            Stage::Open => (self.lane.wake_at(), self.connection.wake_at()),
            Stage::Lingering { until } => (self.lane.wake_at(), Some(until)),
            Stage::Ending { orderly: true } => (self.lane.wake_at(), None),
            Stage::Ending { orderly: false } | Stage::Ended => (None, None),
        };
        [lane, own].into_iter().flatten().min()
    }

    fn interest(&self) -> Option<Interest> {
        match self.stage {
            Stage::Open | Stage::Lingering { .. } => {}
            Stage::Ending { .. } | Stage::Ended => return None,
        }
        // While the app is behind, what the socket has does not matter.
        (self.input == Pending::No).then(|| Interest {
            socket: self.lane.socket().number(),
            write: false,
        })
    }

    fn save(&self, saver: &mut dyn Saver) -> SavedState {
        self.save_all(saver)
    }

    /// Its socket.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.lane.socket().descriptor()]
    }
}

/// Which end of its connection an engine is.
impl DatagramTransport {
    /// Its role.
    #[must_use]
    pub fn role(&self) -> Role {
        self.lane.role()
    }
}
