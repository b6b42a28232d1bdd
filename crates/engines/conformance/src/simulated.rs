//! A simulated transport: the native protocol over a byte pipe with its own clock, which splits, merges, delays,
//! stalls and breaks as a seed says.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use provost_datapath::{
    ConnectionSignals, Context, Engine, FieldReader, FieldWriter, MissingMethods, Nanos, RestoreError,
    Restorer, SavedState, SocketHint,
};
use provost_session::handshake::{Agreement, Encoding, Limits, MethodKind};
use provost_session::{Connection, Piece, Role};
use provost_transport::{
    Carrier, CarrierEnd, CarrierRead, Established, LingerProgress, PeerIdentity, SessionTransport,
    StateTransfer, TransportConfig,
};

use crate::{End, LeftState, Pair, Random, Successors, piece_bytes};

/// How badly a pipe behaves. All of it follows from the seed.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Bytes that a direction holds before its writer must wait.
    pub capacity_bytes: usize,
    /// Largest piece in which bytes are taken from a writer or given to a reader.
    pub piece_bytes_max: u64,
    /// Least and most time that bytes travel.
    pub latency_ns: (u64, u64),
    /// Once in so many moves a direction stalls; 0 for never.
    pub stall_one_in: u64,
    /// How long at most.
    pub stall_ns_max: u64,
    /// Once in so many pieces a bit is flipped; 0 for never.
    pub flip_one_in: u64,
}

impl Weather {
    /// Large pieces, no delay, no faults.
    #[must_use]
    pub fn fair() -> Weather {
        Weather {
            capacity_bytes: 1 << 20,
            piece_bytes_max: 1 << 18,
            latency_ns: (0, 0),
            stall_one_in: 0,
            stall_ns_max: 0,
            flip_one_in: 0,
        }
    }

    /// Odd pieces, delays and stalls; nothing is lost.
    #[must_use]
    pub fn rough() -> Weather {
        Weather {
            capacity_bytes: 96 << 10,
            piece_bytes_max: 40 << 10,
            latency_ns: (1_000, 200_000),
            stall_one_in: 50,
            stall_ns_max: 3_000_000,
            flip_one_in: 0,
        }
    }
}

/// A pipe in both directions.
#[derive(Debug)]
pub struct Pipe {
    random: Random,
    weather: Weather,
    /// Towards the server, towards the client.
    directions: [SimulatedDirection; 2],
    broken: bool,
}

#[derive(Debug, Default)]
struct SimulatedDirection {
    /// What is on its way, and when it arrives.
    travelling: VecDeque<(Nanos, Vec<u8>)>,
    travelling_bytes: usize,
    stalled_until: Nanos,
    last_arrival: Nanos,
    closed: bool,
}

/// A handle on a pipe, shared by its two engines and whoever makes the weather.
#[derive(Clone, Debug)]
pub struct PipeHandle(Arc<Mutex<Pipe>>);

impl PipeHandle {
    /// A pipe whose behaviour follows from the seed.
    #[must_use]
    pub fn new(seed: u64, weather: Weather) -> PipeHandle {
        PipeHandle(Arc::new(Mutex::new(Pipe {
            random: Random::new(seed),
            weather,
            directions: [SimulatedDirection::default(), SimulatedDirection::default()],
            broken: false,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Pipe> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Breaks the pipe: what is on its way is lost, and both ends get an error.
    pub fn break_now(&self) {
        self.lock().broken = true;
    }

    /// Stalls both directions until a time: a partition, if it is far away.
    pub fn stall_until(&self, until: Nanos) {
        for direction in &mut self.lock().directions {
            direction.stalled_until = direction.stalled_until.max(until);
        }
    }

    /// When the next bytes arrive, if any are on their way.
    #[must_use]
    pub fn moves_at(&self) -> Option<Nanos> {
        let pipe = self.lock();
        let arrival = |direction: &SimulatedDirection| {
            direction
                .travelling
                .front()
                .map(|(at, _)| (*at).max(direction.stalled_until))
        };
        pipe.directions.iter().filter_map(arrival).min()
    }

    /// When an end has something to read: bytes, the stream's end, or an error.
    #[must_use]
    pub fn readable_at(&self, end: Role) -> Option<Nanos> {
        let pipe = self.lock();
        let direction = &pipe.directions[direction_of(end)];
        match direction.travelling.front() {
            _ if pipe.broken => Some(0),
            Some((arrival, _)) => Some((*arrival).max(direction.stalled_until)),
            None => direction.closed.then_some(0),
        }
    }

    /// Whether an end would find room for what it writes, or an error.
    #[must_use]
    pub fn is_writable(&self, end: Role) -> bool {
        let pipe = self.lock();
        let direction = &pipe.directions[direction_of(end.peer())];
        pipe.broken || direction.travelling_bytes < pipe.weather.capacity_bytes
    }

    fn write(&self, towards: Role, piece: Piece<'_>, now: Nanos) -> Result<usize, ()> {
        let mut pipe = self.lock();
        let Pipe {
            random,
            weather,
            directions,
            broken,
        } = &mut *pipe;
        let direction = &mut directions[direction_of(towards)];
        if *broken {
            return Err(());
        }
        let room = weather.capacity_bytes.saturating_sub(direction.travelling_bytes);
        let taken = piece_length(&piece)
            .min(room)
            .min(random.between(1, weather.piece_bytes_max) as usize);
        if taken == 0 {
            return Ok(0);
        }
        let mut piece = piece_bytes(beginning(piece, taken));
        if random.one_in(weather.flip_one_in) {
            let at = random.below(taken as u64) as usize;
            piece[at] ^= 1 << random.below(8);
        }
        if random.one_in(weather.stall_one_in) {
            direction.stalled_until = direction
                .stalled_until
                .max(now + random.below(weather.stall_ns_max));
        }
        // Bytes do not overtake each other.
        let arrival = now + random.between(weather.latency_ns.0, weather.latency_ns.1);
        direction.last_arrival = direction.last_arrival.max(arrival);
        direction.travelling.push_back((direction.last_arrival, piece));
        direction.travelling_bytes += taken;
        Ok(taken)
    }

    /// Reads into a slice: how many bytes (0 for none now), or that no more will ever come.
    fn read(&self, towards: Role, into: &mut [u8], now: Nanos) -> Result<usize, CarrierEnd> {
        let mut pipe = self.lock();
        let Pipe {
            random,
            weather,
            directions,
            broken,
        } = &mut *pipe;
        let direction = &mut directions[direction_of(towards)];
        if *broken {
            return Err(CarrierEnd::Lost("the pipe is broken".to_owned()));
        }
        let Some((arrival, piece)) = direction.travelling.front_mut() else {
            return if direction.closed {
                Err(CarrierEnd::Closed)
            } else {
                Ok(0)
            };
        };
        if *arrival > now || direction.stalled_until > now {
            return Ok(0);
        }
        let bytes = piece
            .len()
            .min(into.len())
            .min(random.between(1, weather.piece_bytes_max) as usize);
        into[..bytes].copy_from_slice(&piece[..bytes]);
        piece.drain(..bytes);
        if piece.is_empty() {
            direction.travelling.pop_front();
        }
        direction.travelling_bytes -= bytes;
        Ok(bytes)
    }

    fn close(&self, towards: Role) {
        self.lock().directions[direction_of(towards)].closed = true;
    }
}

fn piece_length(piece: &Piece<'_>) -> usize {
    match piece {
        Piece::Private(bytes) => bytes.len(),
        Piece::Foreign { length, .. } => *length as usize,
    }
}

/// The first bytes of a piece: of a large one, no more than the pipe takes is copied.
fn beginning(piece: Piece<'_>, bytes: usize) -> Piece<'_> {
    match piece {
        Piece::Private(private) => Piece::Private(&private[..bytes]),
        Piece::Foreign { range, from, .. } => Piece::Foreign {
            range,
            from,
            length: bytes as u32,
        },
    }
}

fn direction_of(towards: Role) -> usize {
    match towards {
        Role::Server => 0,
        Role::Client => 1,
    }
}

/// How a simulated transport is set up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// In which form messages travel.
    pub encoding: Encoding,
    /// What both ends are ready to receive.
    pub limits: Limits,
    /// See [`TransportConfig::keepalive_interval_ns`].
    pub keepalive_interval_ns: u64,
    /// See [`TransportConfig::keepalive_timeout_ns`].
    pub keepalive_timeout_ns: u64,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            encoding: Encoding::Native,
            limits: Limits::default(),
            keepalive_interval_ns: 0,
            keepalive_timeout_ns: 0,
        }
    }
}

/// A transport engine over a [`PipeHandle`].
pub type SimulatedTransport = SessionTransport<PipeCarrier>;

/// One end of a pipe as the carrier of a connection.
#[derive(Debug)]
pub struct PipeCarrier(Arc<PipeEnd>);

/// An end of a pipe. When the last engine that has it is gone, the peer reads what was sent and then finds the stream's
/// end, as when a process ends.
#[derive(Debug)]
struct PipeEnd {
    handle: PipeHandle,
    role: Role,
}

impl std::ops::Deref for PipeEnd {
    type Target = PipeHandle;

    fn deref(&self) -> &PipeHandle {
        &self.handle
    }
}

impl Drop for PipeEnd {
    fn drop(&mut self) {
        self.handle.close(self.role.peer());
    }
}

/// By which a successor finds the end of the pipe, as a process gets a socket passed.
#[derive(Clone)]
pub struct EndHandle(Weak<PipeEnd>);

/// Two connected simulated transports.
#[must_use]
pub fn pair(seed: u64, weather: Weather, setup: Setup) -> (Pair, PipeHandle) {
    let pipe = PipeHandle::new(seed, weather);
    let mut successors = SimulatedSuccessors { ends: Vec::new() };
    let mut end = |role| {
        let link = Arc::new(ConnectionSignals::new());
        let engine = transport(role, pipe.clone(), setup, agreement(setup), link.clone(), 0);
        successors.ends.push((engine.carrier().handle(), link.clone()));
        End {
            engine: Box::new(engine),
            link,
        }
    };
    let (client, server) = (end(Role::Client), end(Role::Server));
    let between = {
        let pipe = pipe.clone();
        Box::new(move |_| pipe.moves_at())
    };
    (
        Pair {
            client,
            server,
            between,
            successors: Box::new(successors),
            hot_restarts: None,
            turn_bytes: None,
        },
        pipe,
    )
}

/// The client's end and the server's.
struct SimulatedSuccessors {
    ends: Vec<(EndHandle, Arc<ConnectionSignals>)>,
}

impl Successors for SimulatedSuccessors {
    fn one(
        &mut self,
        role: Role,
        saved: LeftState,
        restorer: &mut dyn Restorer,
    ) -> Result<Box<dyn Engine>, RestoreError> {
        let (end, link) = &self.ends[direction_of(role.peer())];
        let successor = restore(&saved.state, end, link.clone(), restorer)?;
        Ok(Box::new(successor))
    }
}

/// What two ends agree on that speak [`crate::methods`].
fn agreement(setup: Setup) -> Agreement {
    let methods: Vec<Option<(u16, MethodKind)>> = crate::methods()
        .iter()
        .enumerate()
        .map(|(at, method)| Some((at as u16, method.kind)))
        .collect();
    Agreement {
        encoding: setup.encoding,
        peer_limits: setup.limits,
        methods,
        missing: MissingMethods::default(),
    }
}

/// The engine of one end of a pipe on which the two ends have agreed on something.
#[must_use]
pub fn transport(
    role: Role,
    pipe: PipeHandle,
    setup: Setup,
    agreement: Agreement,
    link: Arc<ConnectionSignals>,
    now: Nanos,
) -> SimulatedTransport {
    let established = Established {
        carrier: PipeCarrier(Arc::new(PipeEnd { handle: pipe, role })),
        role,
        agreement,
        limits: setup.limits,
        service: "test.Test".to_owned(),
        peer: PeerIdentity::Anonymous,
        peer_address: SocketAddr::from(([0, 0, 0, 0], 0)),
    };
    let config = TransportConfig {
        keepalive_interval_ns: setup.keepalive_interval_ns,
        keepalive_timeout_ns: setup.keepalive_timeout_ns,
        // What was sent stays in the pipe when its writer is gone.
        linger_ns: 0,
    };
    SimulatedTransport::new(established, config, link, now)
}

/// Goes on from what was saved, on the same end of the pipe.
///
/// # Errors
/// The state is not one of this engine, or its pipe is gone.
pub fn restore(
    state: &SavedState,
    end: &EndHandle,
    link: Arc<ConnectionSignals>,
    restorer: &mut dyn Restorer,
) -> Result<SimulatedTransport, RestoreError> {
    let state_transfer = StateTransfer {
        descriptors: Vec::new(),
        link,
        restorer,
    };
    SimulatedTransport::restore(end.clone(), state, state_transfer)
}

impl PipeCarrier {
    /// By which a successor finds the pipe.
    #[must_use]
    pub fn handle(&self) -> EndHandle {
        EndHandle(Arc::downgrade(&self.0))
    }
}

impl Carrier for PipeCarrier {
    const KIND: &'static str = "transport-simulated";
    const FORM: u32 = 1;
    const READ_BYTES_MAX: usize = 256 << 10;
    type Peer = ();
    type Resume = EndHandle;

    fn write(
        &mut self,
        connection: &mut Connection,
        _reading: SocketHint,
        context: &mut Context<'_>,
    ) -> bool {
        let (towards, mut moved) = (self.0.role.peer(), false);
        loop {
            connection.fill(context);
            let Some(piece) = connection.pieces().next() else {
                return moved;
            };
            // A broken pipe is noticed by reading, after all that has arrived.
            match self.0.write(towards, piece, context.now) {
                Ok(bytes) if bytes > 0 => {
                    connection.advance(bytes, context);
                    moved = true;
                }
                _ => return moved,
            }
        }
    }

    fn may_have_input(&self, reading: SocketHint) -> bool {
        reading == SocketHint::Try
    }

    fn read(
        &mut self,
        connection: &mut Connection,
        context: &mut Context<'_>,
    ) -> Result<CarrierRead, CarrierEnd> {
        let mut scratch = [0; 4096];
        let (role, now) = (self.0.role, context.now);
        let bytes = if let Some(direct) = connection.direct(context.receive) {
            let bytes = self.0.read(role, direct, now)?;
            // No bytes are no sign of life.
            if bytes > 0 {
                connection.direct_came(bytes, context)?;
            }
            bytes
        } else {
            let bytes = self.0.read(role, &mut scratch, now)?;
            if bytes > 0 {
                connection.input(&scratch[..bytes], context)?;
            }
            bytes
        };
        Ok(match bytes {
            0 => CarrierRead::Nothing,
            bytes => CarrierRead::Bytes(bytes),
        })
    }

    fn close(&mut self, _context: &mut Context<'_>) {
        self.0.close(self.0.role.peer());
    }

    fn linger(&mut self, _context: &mut Context<'_>) -> LingerProgress {
        LingerProgress::Done
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn save(&self, _out: &mut FieldWriter) {}

    fn peer(&self) {}

    fn restore(
        end: EndHandle,
        (): (),
        _descriptors: Vec<OwnedFd>,
        fields: &mut FieldReader<'_>,
        _form: u32,
    ) -> Result<PipeCarrier, RestoreError> {
        let end = end.0.upgrade();
        end.map(PipeCarrier)
            .ok_or_else(|| fields.damaged("its pipe is gone"))
    }
}
