//! A simulated transport: the native protocol over a byte pipe with its own clock, which splits, merges, delays,
//! stalls and breaks as a seed says.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use provost_datapath::{
    Context, Engine, FieldWriter, Link, LinkEnd, Nanos, Ports, Progress, RestoreError, Restorer, SavedState,
    Saver, SocketHint,
};
use provost_session::handshake::{Agreement, Encoding, Limits, MethodKind};
use provost_session::{Config, Connection, Piece, Role};
use provost_wire::Code;

use crate::{End, Heirs, Pair, Random, Saved, piece_bytes};

/// [`Engine::kind`] of this engine.
const KIND: &str = "transport-simulated";
/// Version of its saved state.
const VERSION: u32 = 1;

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
    lanes: [Lane; 2],
    broken: bool,
}

#[derive(Debug, Default)]
struct Lane {
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
            lanes: [Lane::default(), Lane::default()],
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

    /// Whether the pipe is broken, by hand or by an end that is gone.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.lock().broken
    }

    /// Stalls both directions until a time: a partition, if it is far away.
    pub fn stall_until(&self, until: Nanos) {
        for lane in &mut self.lock().lanes {
            lane.stalled_until = lane.stalled_until.max(until);
        }
    }

    /// When the next bytes arrive, if any are on their way.
    #[must_use]
    pub fn moves_at(&self) -> Option<Nanos> {
        let pipe = self.lock();
        let arrival = |lane: &Lane| {
            lane.travelling
                .front()
                .map(|(at, _)| (*at).max(lane.stalled_until))
        };
        pipe.lanes.iter().filter_map(arrival).min()
    }

    fn write(&self, towards: Role, bytes: &[u8], now: Nanos) -> Result<usize, ()> {
        let mut pipe = self.lock();
        let Pipe {
            random,
            weather,
            lanes,
            broken,
        } = &mut *pipe;
        let lane = &mut lanes[lane_of(towards)];
        if *broken {
            return Err(());
        }
        let room = weather.capacity_bytes.saturating_sub(lane.travelling_bytes);
        let taken = bytes
            .len()
            .min(room)
            .min(random.between(1, weather.piece_bytes_max) as usize);
        if taken == 0 {
            return Ok(0);
        }
        let mut piece = bytes[..taken].to_vec();
        if random.one_in(weather.flip_one_in) {
            let at = random.below(taken as u64) as usize;
            piece[at] ^= 1 << random.below(8);
        }
        if random.one_in(weather.stall_one_in) {
            lane.stalled_until = lane.stalled_until.max(now + random.below(weather.stall_ns_max));
        }
        // Bytes do not overtake each other.
        let arrival = now + random.between(weather.latency_ns.0, weather.latency_ns.1);
        lane.last_arrival = lane.last_arrival.max(arrival);
        lane.travelling.push_back((lane.last_arrival, piece));
        lane.travelling_bytes += taken;
        Ok(taken)
    }

    /// Reads into a slice: how many bytes (0 for none now), or that no more will ever come.
    fn read(&self, towards: Role, into: &mut [u8], now: Nanos) -> Result<usize, Gone> {
        let mut pipe = self.lock();
        let Pipe {
            random,
            weather,
            lanes,
            broken,
        } = &mut *pipe;
        let lane = &mut lanes[lane_of(towards)];
        if *broken {
            return Err(Gone::Broken);
        }
        let Some((arrival, piece)) = lane.travelling.front_mut() else {
            return if lane.closed { Err(Gone::Closed) } else { Ok(0) };
        };
        if *arrival > now || lane.stalled_until > now {
            return Ok(0);
        }
        let bytes = piece
            .len()
            .min(into.len())
            .min(random.between(1, weather.piece_bytes_max) as usize);
        into[..bytes].copy_from_slice(&piece[..bytes]);
        piece.drain(..bytes);
        if piece.is_empty() {
            lane.travelling.pop_front();
        }
        lane.travelling_bytes -= bytes;
        Ok(bytes)
    }

    fn close(&self, towards: Role) {
        self.lock().lanes[lane_of(towards)].closed = true;
    }
}

fn lane_of(towards: Role) -> usize {
    match towards {
        Role::Server => 0,
        Role::Client => 1,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gone {
    Closed,
    Broken,
}

/// How a simulated transport is set up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// In which form messages travel.
    pub encoding: Encoding,
    /// What both ends are ready to receive.
    pub limits: Limits,
    /// See [`Config::keepalive_interval_ns`].
    pub keepalive_interval_ns: u64,
    /// See [`Config::keepalive_timeout_ns`].
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
pub struct SimulatedTransport {
    connection: Connection,
    pipe: Arc<PipeEnd>,
    role: Role,
    link: Arc<Link>,
    state: State,
}

/// An end of a pipe. When the last engine that has it is gone, the peer reads what was sent and then finds the stream's
/// end, as when a process ends.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Ending,
    Ended,
}

/// Two connected simulated transports.
#[must_use]
pub fn pair(seed: u64, weather: Weather, setup: Setup) -> (Pair, PipeHandle) {
    let pipe = PipeHandle::new(seed, weather);
    let mut heirs = SimulatedHeirs { ends: Vec::new() };
    let mut end = |role| {
        let link = Arc::new(Link::new());
        let engine = SimulatedTransport::new(role, pipe.clone(), setup, link.clone(), 0);
        heirs.ends.push((engine.handle(), link.clone()));
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
            heirs: Box::new(heirs),
            successions: None,
        },
        pipe,
    )
}

/// The client's end and the server's.
struct SimulatedHeirs {
    ends: Vec<(EndHandle, Arc<Link>)>,
}

impl Heirs for SimulatedHeirs {
    fn one(
        &mut self,
        role: Role,
        saved: Saved,
        restorer: &mut dyn Restorer,
    ) -> Result<Box<dyn Engine>, RestoreError> {
        let (end, link) = &self.ends[lane_of(role.peer())];
        let heir = SimulatedTransport::restore(&saved.state, end, link.clone(), restorer)?;
        Ok(Box::new(heir))
    }
}

impl SimulatedTransport {
    /// One end of a pipe.
    #[must_use]
    pub fn new(
        role: Role,
        pipe: PipeHandle,
        setup: Setup,
        link: Arc<Link>,
        now: Nanos,
    ) -> SimulatedTransport {
        let methods: Vec<Option<(u16, MethodKind)>> = crate::methods()
            .iter()
            .enumerate()
            .map(|(at, method)| Some((at as u16, method.kind)))
            .collect();
        let agreement = Agreement {
            encoding: setup.encoding,
            peer_limits: setup.limits,
            methods,
        };
        SimulatedTransport::agreed(role, pipe, setup, agreement, link, now)
    }

    /// One end of a pipe on which the two ends have agreed on something of their own.
    #[must_use]
    pub fn agreed(
        role: Role,
        pipe: PipeHandle,
        setup: Setup,
        agreement: Agreement,
        link: Arc<Link>,
        now: Nanos,
    ) -> SimulatedTransport {
        let config = Config {
            role,
            agreement,
            limits: setup.limits,
            keepalive_interval_ns: setup.keepalive_interval_ns,
            keepalive_timeout_ns: setup.keepalive_timeout_ns,
        };
        SimulatedTransport {
            connection: Connection::new(config, now),
            pipe: Arc::new(PipeEnd { handle: pipe, role }),
            role,
            link,
            state: State::Open,
        }
    }

    /// By which a successor finds the pipe.
    #[must_use]
    pub fn handle(&self) -> EndHandle {
        EndHandle(Arc::downgrade(&self.pipe))
    }

    /// Goes on from what was saved, on the same end of the pipe.
    ///
    /// # Errors
    /// The state is not one of this engine, or its pipe is gone.
    pub fn restore(
        state: &SavedState,
        end: &EndHandle,
        link: Arc<Link>,
        restorer: &mut dyn Restorer,
    ) -> Result<SimulatedTransport, RestoreError> {
        let mut fields = state.open(KIND, VERSION)?;
        let open = match fields.u8()? {
            0 => State::Open,
            1 => State::Ending,
            2 => State::Ended,
            other => return Err(fields.damaged(format!("a transport in the unknown state {other}"))),
        };
        let connection = Connection::restore(&mut fields, restorer)?;
        let pipe = end
            .0
            .upgrade()
            .ok_or_else(|| fields.damaged("its pipe is gone"))?;
        fields.end()?;
        Ok(SimulatedTransport {
            connection,
            role: pipe.role,
            pipe,
            link,
            state: open,
        })
    }

    fn exchange(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) -> Result<bool, (Code, String)> {
        let mut moved = self.deliver(ports, context);
        while self.connection.accepts_steps()
            && let Some(step) = ports.tx_in.pop()
        {
            moved = true;
            self.connection.send(step, context);
        }
        self.connection
            .tick(context.now)
            .map_err(|silent| (Code::Unavailable, silent.to_string()))?;
        moved |= self.write(context);
        if context.socket == SocketHint::Try {
            moved |= self.read(ports, context)?;
        }
        Ok(moved)
    }

    fn deliver(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        while !ports.rx_out.is_full()
            && let Some(step) = self.connection.poll_step(context)
        {
            moved = true;
            let _ = ports.rx_out.push(step);
        }
        moved
    }

    fn write(&mut self, context: &mut Context<'_>) -> bool {
        let mut total = 0;
        loop {
            self.connection.fill(context);
            let Some(piece) = self.connection.pieces().next() else {
                return total > 0;
            };
            let written = match piece {
                Piece::Private(bytes) => self.pipe.write(self.role.peer(), bytes, context.now),
                foreign => self
                    .pipe
                    .write(self.role.peer(), &piece_bytes(foreign), context.now),
            };
            // A broken pipe is noticed by reading, after all that has arrived.
            match written {
                Ok(bytes) if bytes > 0 => {
                    total += bytes;
                    self.connection.advance(bytes, context);
                }
                _ => return total > 0,
            }
        }
    }

    fn read(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) -> Result<bool, (Code, String)> {
        let mut scratch = [0; 4096];
        let mut moved = false;
        for _ in 0..64 {
            if !self.connection.accepts_input() || ports.rx_out.is_full() {
                if self.connection.has_steps() || ports.rx_out.is_full() {
                    self.connection.heard(context.now);
                }
                break;
            }
            match self.read_once(&mut scratch, context)? {
                0 => break,
                _ => moved = true,
            }
            self.deliver(ports, context);
        }
        Ok(moved)
    }

    fn read_once(&mut self, scratch: &mut [u8], context: &mut Context<'_>) -> Result<usize, (Code, String)> {
        let broke = |error| (Code::Internal, format!("the peer broke the protocol: {error}"));
        let (role, now) = (self.role, context.now);
        let read = match self.connection.direct(context.receive) {
            Some(direct) => {
                let read = self.pipe.read(role, direct, now);
                if let Ok(bytes) = read {
                    self.connection.direct_came(bytes, context).map_err(broke)?;
                }
                read
            }
            None => {
                let read = self.pipe.read(role, scratch, now);
                if let Ok(bytes) = read {
                    self.connection.input(&scratch[..bytes], context).map_err(broke)?;
                }
                read
            }
        };
        read.map_err(|gone| match gone {
            Gone::Broken => (Code::Unavailable, "the connection broke".to_owned()),
            Gone::Closed if self.connection.peer_drains() && self.connection.is_at_rest() => {
                (Code::Ok, "the connection was drained".to_owned())
            }
            Gone::Closed => (Code::Unavailable, "the peer closed the connection".to_owned()),
        })
    }

    fn conclude(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) {
        if !ports.tx_in.is_empty() || self.connection.wants_output() {
            return;
        }
        if self.link.close_requested() {
            self.connection.end(
                Code::Unavailable,
                "the connection was closed by this node",
                context,
            );
            self.end(Code::Ok, "closed");
        } else if self.connection.is_drained() {
            self.connection
                .end(Code::Ok, "the connection was drained", context);
            self.end(Code::Ok, "drained");
        }
    }

    fn end(&mut self, code: Code, reason: &str) {
        self.link.set_ended(LinkEnd {
            code,
            reason: reason.to_owned(),
        });
        self.pipe.close(self.role.peer());
        self.state = State::Ending;
    }

    fn work_ending(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) -> Progress {
        let mut moved = self.deliver(ports, context);
        while !ports.rx_out.is_full()
            && let Some(step) = ports.tx_in.pop()
        {
            moved = true;
            self.connection.send(step, context);
            self.deliver(ports, context);
        }
        if self.connection.is_over() && ports.tx_in.is_empty() {
            self.state = State::Ended;
            return Progress::Busy;
        }
        if moved { Progress::Busy } else { Progress::Idle }
    }
}

impl Engine for SimulatedTransport {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn do_work(&mut self, mut ports: Ports<'_>, context: &mut Context<'_>) -> Progress {
        match self.state {
            State::Ended => return Progress::Ended,
            State::Ending => return self.work_ending(&mut ports, context),
            State::Open => {}
        }
        if self.link.drain_requested() {
            self.connection.drain();
        }
        let moved = match self.exchange(&mut ports, context) {
            Ok(moved) => moved,
            Err((code, reason)) => {
                self.deliver(&mut ports, context);
                self.connection.end(code, &reason, context);
                self.end(code, &reason);
                true
            }
        };
        if self.connection.peer_drains() {
            self.link.set_peer_drains();
        }
        if self.state == State::Open {
            self.conclude(&mut ports, context);
        }
        match moved || self.state != State::Open {
            true => Progress::Busy,
            false => Progress::Idle,
        }
    }

    fn wake_at(&self) -> Option<Nanos> {
        self.connection.wake_at()
    }

    fn save(&self, saver: &mut dyn Saver) -> SavedState {
        let mut out = FieldWriter::new();
        out.u8(match self.state {
            State::Open => 0,
            State::Ending => 1,
            State::Ended => 2,
        });
        self.connection.save(saver, &mut out);
        SavedState {
            kind: KIND.to_owned(),
            version: VERSION,
            bytes: out.bytes,
        }
    }
}
