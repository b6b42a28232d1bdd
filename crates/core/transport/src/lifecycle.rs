//! The engine of a connection.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use provost_datapath::{
    ConnectionEnd, ConnectionSignals, Context, Engine, Interest, Nanos, Ports, Progress, SavedState, Saver,
    SocketHint, TransportEngine,
};
use provost_session::{Config, Connection, PeerSilent, Stage};
use provost_wire::Code;

use crate::{Carrier, CarrierEnd, CarrierRead, Established, LingerProgress};

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

/// The last engine of a datapath whose peer speaks the native protocol over this carrier.
pub struct SessionTransport<C> {
    pub(crate) signals: Arc<ConnectionSignals>,
    pub(crate) connection: Connection,
    pub(crate) carrier: C,
    pub(crate) stage: Stage,
    pub(crate) input: InputState,
    pub(crate) config: TransportConfig,
    pub(crate) service: String,
}

/// Whether the carrier is to be read even though the runtime knows of nothing new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputState {
    /// The last try found nothing (more).
    Empty,
    /// The last try stopped for reasons of our own.
    LeftOver,
}

impl<C: Carrier> SessionTransport<C> {
    /// The engine of a connection on which both ends agree. `signals` carry what is not a step: draining, closing, why the
    /// connection ended.
    #[must_use]
    pub fn new(
        established: Established<C>,
        config: TransportConfig,
        signals: Arc<ConnectionSignals>,
        now: Nanos,
    ) -> SessionTransport<C> {
        let mut carrier = established.carrier;
        carrier.attach(&signals);
        let connection = Connection::new(
            Config {
                role: established.role,
                agreement: established.agreement,
                limits: established.limits,
                keepalive_interval_ns: config.keepalive_interval_ns,
                keepalive_timeout_ns: config.keepalive_timeout_ns,
            },
            now,
        );
        SessionTransport {
            signals,
            connection,
            carrier,
            stage: Stage::Open,
            // Something may have come behind the handshake.
            input: InputState::LeftOver,
            config,
            service: established.service,
        }
    }

    /// What carries its bytes.
    #[must_use]
    pub fn carrier(&self) -> &C {
        &self.carrier
    }

    fn work_open(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) -> Progress {
        self.connection.apply_signals(&self.signals, context.flow);
        let mut moved = self.connection.deliver(ports, context);
        moved |= self.connection.take_steps(ports, context);
        let reading = self.reading(context);
        moved |= self.carrier.write(&mut self.connection, reading, context);
        if self.carrier.is_lost() && self.connection.wants_output() {
            self.connection.abandon_output(context);
        }
        match self.read(reading, ports, context) {
            Ok(read) => moved |= read,
            Err(end) => return self.end(end, ports, context),
        }
        match self.judge_peer(context) {
            Ok(judged) => moved |= judged,
            Err(silent) => return self.lose(Code::Unavailable, &silent.to_string(), context),
        }
        if context.flow.is_limited() {
            let unsent_bytes = self.connection.unsent_bytes();
            context.flow.unsent_bytes = u32::try_from(unsent_bytes).unwrap_or(u32::MAX);
        }
        self.conclude(ports, context);
        progress(moved || self.stage != Stage::Open)
    }

    fn has_input_left(&self) -> bool {
        self.input == InputState::LeftOver || self.carrier.has_input_left()
    }

    fn reading(&self, context: &Context<'_>) -> SocketHint {
        if self.has_input_left() || self.connection.is_due(context.now) {
            SocketHint::Try
        } else {
            context.socket
        }
    }

    /// Does what is due because the peer did not say something in time; says whether anything was. What has come is read before: it may
    /// have waited while this process did not run.
    fn judge_peer(&mut self, context: &mut Context<'_>) -> Result<bool, PeerSilent> {
        let was_due = self.connection.is_due(context.now);
        self.connection.expire_arrivals(context);
        self.connection.tick(context.now)?;
        Ok(was_due)
    }

    /// Reads what has come, and hands it on, until nothing is there, the app is behind, or others want their turn.
    fn read(
        &mut self,
        reading: SocketHint,
        ports: &mut Ports<'_>,
        context: &mut Context<'_>,
    ) -> Result<bool, CarrierEnd> {
        let bytes_max = C::READ_BYTES_MAX.min(context.flow.turn_bytes as usize);
        let mut bytes = 0;
        self.input = InputState::Empty;
        while self.carrier.may_have_input(reading) {
            if !self.connection.accepts_input() || ports.rx_out.is_full() {
                self.input = InputState::LeftOver;
                if self.connection.has_steps() || ports.rx_out.is_full() {
                    // It is the app that is behind; the peer's silence means nothing while nobody listens.
                    self.connection.pause(context.now);
                }
                break;
            }
            if bytes >= bytes_max {
                self.input = InputState::LeftOver;
                break;
            }
            match self.carrier.read(&mut self.connection, context)? {
                CarrierRead::Bytes(read) => bytes += read,
                CarrierRead::Nothing => break,
            }
            self.connection.deliver(ports, context);
        }
        if self.input == InputState::Empty {
            self.connection.resume(context.now);
        }
        Ok(bytes > 0)
    }

    /// Ends the connection if it has been asked for and nothing is left to do.
    fn conclude(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) {
        if !ports.tx_in.is_empty() || self.connection.wants_output() || self.carrier.holds_output() {
            return;
        }
        let (code, reason) = if self.signals.close_requested() {
            (Code::Unavailable, "the connection was closed by this node")
        } else if self.connection.is_drained_of(context.flow) {
            (Code::Ok, "the connection was drained")
        } else {
            return;
        };
        self.finish(code, Code::Ok, reason, context);
        self.stage = Stage::Ending { orderly: true };
    }

    fn lose(&mut self, code: Code, reason: &str, context: &mut Context<'_>) -> Progress {
        self.finish(code, code, reason, context);
        self.stage = Stage::Ending { orderly: false };
        Progress::Busy
    }

    /// Ends all calls with a code, and the connection itself with another.
    fn finish(&mut self, code: Code, own_code: Code, reason: &str, context: &mut Context<'_>) {
        self.connection.end(code, reason, context);
        self.signals.set_ended(ConnectionEnd {
            code: own_code,
            reason: reason.to_owned(),
        });
        self.carrier.close(context);
    }

    fn end(&mut self, end: CarrierEnd, ports: &mut Ports<'_>, context: &mut Context<'_>) -> Progress {
        match end {
            CarrierEnd::Lost(error) => {
                let reason = format!("the connection broke: {error}");
                self.lose(Code::Unavailable, &reason, context)
            }
            CarrierEnd::Protocol(error) => {
                let reason = format!("the peer broke the protocol: {error}");
                self.connection.end_with_notice(Code::Internal, &reason, context);
                // The peer may not take it any more; then it learns from the end of the connection alone.
                self.carrier
                    .write(&mut self.connection, SocketHint::Skip, context);
                self.lose(Code::Internal, &reason, context)
            }
            CarrierEnd::Closed => {
                self.connection.deliver(ports, context);
                let (code, reason) = self.connection.closed_by_peer(&self.signals);
                self.lose(code, reason, context)
            }
        }
    }

    /// Tells the app of the end of each of its calls, and refuses what it still begins.
    fn work_ending(&mut self, orderly: bool, ports: &mut Ports<'_>, context: &mut Context<'_>) -> Progress {
        let mut moved = self.connection.decline_steps(ports, context);
        if orderly {
            moved |= self.carrier.flush(context);
        }
        if self.connection.is_over() && ports.tx_in.is_empty() {
            self.stage = Stage::after_ending(orderly, context.now, self.config.linger_ns);
            return Progress::Busy;
        }
        progress(moved)
    }

    /// Stays until the peer has closed too, so that what it has not read yet is not lost.
    fn work_lingering(&mut self, until: Nanos, ports: &mut Ports<'_>, context: &mut Context<'_>) -> Progress {
        self.connection.decline_steps(ports, context);
        let lingered = self.carrier.linger(context);
        if lingered == LingerProgress::Done || context.now >= until {
            self.stage = Stage::Ended;
            return Progress::Ended;
        }
        progress(lingered == LingerProgress::Moved)
    }
}

fn progress(moved: bool) -> Progress {
    if moved { Progress::Busy } else { Progress::Idle }
}

impl<C: Carrier> Engine for SessionTransport<C> {
    fn kind(&self) -> &'static str {
        C::KIND
    }

    fn do_work(&mut self, mut ports: Ports<'_>, context: &mut Context<'_>) -> Progress {
        match self.stage {
            Stage::Open => self.work_open(&mut ports, context),
            Stage::Ending { orderly } => self.work_ending(orderly, &mut ports, context),
            Stage::Lingering { until } => self.work_lingering(until, &mut ports, context),
            Stage::Ended => {
                // Whoever still polls it may still give it calls.
                self.connection.decline_steps(&mut ports, context);
                Progress::Ended
            }
        }
    }

    fn wake_at(&self) -> Option<Nanos> {
        let (carrier, own) = match self.stage {
            Stage::Open => (self.carrier.wake_at(), self.connection.wake_at()),
            Stage::Lingering { until } => (self.carrier.wake_at(), Some(until)),
            Stage::Ending { orderly: true } => (self.carrier.wake_at(), None),
            Stage::Ending { orderly: false } | Stage::Ended => (None, None),
        };
        [carrier, own].into_iter().flatten().min()
    }

    fn version(&self) -> u32 {
        self.carrier.version()
    }

    fn save(&self, saver: &mut dyn Saver) -> SavedState {
        self.saved(saver)
    }

    fn as_transport(&self) -> Option<&dyn TransportEngine> {
        Some(self)
    }
}

impl<C: Carrier> TransportEngine for SessionTransport<C> {
    fn interest(&self) -> Option<Interest> {
        let write = match self.stage {
            Stage::Open => self.carrier.waits_for_room(&self.connection),
            Stage::Lingering { .. } => false,
            Stage::Ending { .. } | Stage::Ended => return None,
        };
        // While the app is behind, what the socket has does not matter.
        let read = !self.has_input_left();
        let socket = self.carrier.socket().filter(|_| read || write)?;
        Some(Interest {
            socket: socket.as_raw_fd(),
            write,
        })
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.carrier.socket().into_iter().collect()
    }
}
