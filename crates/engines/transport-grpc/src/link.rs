//! One connection to the server.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use provost_datapath::{FieldReader, FieldWriter, Nanos, PrivateBytes, RestoreError};
use provost_grpc::{GrpcConnection, GrpcEvent};
use provost_http2::EndpointRole;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::carrier::ByteCarrier;
use crate::chunk::MessageChunk;
use crate::config::{CALLS_BEFORE_SETTINGS_MAX, GrpcTransportConfig, WRITE_PIECES};

/// Bytes that a server may say before its settings: none has more to say.
const GREETING_BYTES_MAX: usize = 64 << 10;

/// A connection to a gRPC server.
pub struct GrpcLink {
    pub(crate) carrier: Box<dyn ByteCarrier>,
    pub(crate) grpc: GrpcConnection<MessageChunk>,
    /// What was read and not taken, because output has to leave first.
    pub(crate) input: Vec<u8>,
    /// The carrier may have something to read.
    pub(crate) is_readable: bool,
    /// The carrier took all that it was given last.
    pub(crate) is_writable: bool,
    /// The carrier keeps nothing of what it took.
    is_flushed: bool,
    /// The server has said how many calls it takes at a time.
    pub(crate) has_settings: bool,
    /// It was opened beside others, and takes calls once its server has said how many.
    pub(crate) awaits_settings: bool,
    /// Whether another call may be tried: none is until something changes, when the last one found no room.
    pub(crate) has_room: bool,
    /// The last one found that the server takes no more at a time.
    pub(crate) is_full: bool,
    /// No call begins on it any more.
    pub(crate) is_draining: bool,
    pub(crate) has_keepalive: bool,
    /// When calls first began since the server was heard last.
    silent_since: Option<Nanos>,
    /// When it was last seen with calls, or opened.
    pub(crate) used_at: Nanos,
    pub(crate) life: LinkLife,
}

/// ```text
/// Open ──an error, or its last call, ends it──► Closing (what waits is sent) ──► Ended
/// ```
#[derive(Debug)]
pub(crate) enum LinkLife {
    Open,
    Closing(String),
    Ended(String),
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum EstablishFault {
    /// It took too long.
    #[error("the server did not answer as HTTP/2 does in time")]
    Deadline,
    /// What the server said is not HTTP/2.
    #[error("the server does not speak HTTP/2 here: {0}")]
    Protocol(String),
    /// The server is there no more.
    #[error("the server closed the connection before it said its settings")]
    Closed,
    /// The system refused something.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl GrpcLink {
    /// A connection of which nothing is known yet.
    #[must_use]
    pub fn new(carrier: Box<dyn ByteCarrier>, config: &GrpcTransportConfig, now: Nanos) -> GrpcLink {
        GrpcLink {
            carrier,
            grpc: GrpcConnection::client(config.protocol(), now),
            input: Vec::new(),
            is_readable: true,
            is_writable: true,
            is_flushed: true,
            has_settings: false,
            awaits_settings: false,
            has_room: true,
            is_full: false,
            is_draining: false,
            has_keepalive: false,
            silent_since: None,
            used_at: now,
            life: LinkLife::Open,
        }
    }

    /// Waits until the server has said its settings, which shows that it is one (gRPC's connection back-off protocol). Blocks,
    /// over a carrier that does not.
    ///
    /// # Errors
    /// It is none, or not in time.
    pub fn establish(
        carrier: Box<dyn ByteCarrier>,
        config: &GrpcTransportConfig,
        deadline: Instant,
        now: impl Fn() -> Nanos,
    ) -> Result<GrpcLink, EstablishFault> {
        let mut link = GrpcLink::new(carrier, config, now());
        let mut greeted = 0;
        let mut bytes = [0; 4_096];
        loop {
            link.send_greeting(now())?;
            if link.has_settings && !link.keeps_output() {
                return Ok(link);
            }
            match link.carrier.read_ready(&mut bytes) {
                Ok(0) => return Err(EstablishFault::Closed),
                Ok(count) => {
                    greeted += count;
                    link.has_settings |= greet(&mut link.grpc, &bytes[..count], now())?;
                }
                Err(error) => wait_or_fail(error, &link, deadline)?,
            }
            if greeted > GREETING_BYTES_MAX {
                return Err(EstablishFault::Protocol(
                    "it says much and no settings".to_owned(),
                ));
            }
        }
    }

    /// Sends what there is room for.
    pub(crate) fn send_greeting(&mut self, now: Nanos) -> Result<(), EstablishFault> {
        loop {
            self.grpc.fill(now);
            let output = self.grpc.copied_output();
            let sent = if output.is_empty() {
                self.carrier.flush_ready().map(|()| 0)
            } else {
                self.carrier.write_ready(&[IoSlice::new(&output)])
            };
            match sent {
                Ok(0) => {
                    self.is_flushed = true;
                    return Ok(());
                }
                Ok(count) => {
                    self.is_flushed = false;
                    self.grpc.advance(count, now);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_flushed = false;
                    return Ok(());
                }
                Err(error) => return Err(of_carrier(error)),
            }
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.life, LinkLife::Open)
    }

    /// Why it has ended, if it has.
    pub(crate) fn ended(&self) -> Option<&str> {
        match &self.life {
            LinkLife::Ended(reason) => Some(reason),
            _ => None,
        }
    }

    /// Nothing more is taken, and what waits is sent.
    pub(crate) fn close(&mut self, reason: &str) {
        if self.is_open() {
            self.life = LinkLife::Closing(reason.to_owned());
        }
    }

    /// The carrier is gone, and nobody hears what waits. Its calls are told.
    pub(crate) fn lose(&mut self, reason: &str, now: Nanos) {
        if self.ended().is_none() {
            self.grpc.lose(now);
            self.life = LinkLife::Ended(reason.to_owned());
        }
    }

    /// Pings a silent server while calls are under way: most take pings only then.
    pub(crate) fn keep_alive(&mut self, config: &GrpcTransportConfig, now: Nanos) {
        let has_calls = self.grpc.open_calls() > 0;
        if has_calls {
            self.used_at = now;
        }
        if has_calls != self.has_keepalive {
            self.has_keepalive = has_calls;
            if has_calls {
                self.silent_since.get_or_insert(now);
            }
            let since = self.silent_since.unwrap_or(now);
            self.grpc
                .set_keepalive(config.keepalive().filter(|_| has_calls), since);
        }
    }

    /// Whether HTTP/2 waits for something no longer.
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        self.is_open() && self.grpc.next_timeout().is_some_and(|due| due <= now)
    }

    /// Why its calls ended with it.
    pub(crate) fn why_lost(&self) -> String {
        match (&self.life, self.grpc.failure()) {
            (LinkLife::Closing(reason) | LinkLife::Ended(reason), _) => reason.clone(),
            (LinkLife::Open, Some(failure)) => format!("the connection to the server failed: {failure}"),
            (LinkLife::Open, None) => "the connection to the server is gone".to_owned(),
        }
    }

    /// Whether another call may begin on it, by what is known of its server.
    pub(crate) fn may_call(&self) -> bool {
        self.has_settings || (!self.awaits_settings && self.grpc.open_calls() < CALLS_BEFORE_SETTINGS_MAX)
    }

    /// Whether calls begin on it, now or when there is room.
    pub(crate) fn takes_calls(&self) -> bool {
        !self.is_draining && self.is_open()
    }

    /// Something may have happened at the carrier.
    pub(crate) fn look(&mut self) {
        self.is_readable = true;
        self.is_writable = true;
    }

    /// Whether more is to be read from the carrier.
    pub(crate) fn may_read(&self) -> bool {
        self.is_readable && self.is_open() && self.input.is_empty() && !self.grpc.is_blocked()
    }

    /// Whether something waits for room in the socket. (A poller that looks for room finds it again and again where that is not
    /// what is waited for.)
    pub(crate) fn waits_for_room(&self) -> bool {
        let waits = self.keeps_output() && !self.is_writable && !self.carrier.waits_for_peer();
        self.ended().is_none() && waits
    }

    /// Whether anything is still to be sent.
    fn keeps_output(&self) -> bool {
        self.grpc.output_bytes() > 0 || !self.is_flushed
    }

    /// Reads some; none if nothing is there, or it has ended.
    pub(crate) fn read(&mut self, into: &mut [u8], now: Nanos) -> usize {
        if self.carrier.waits_for_peer() {
            // What is read may be what it waits for, and then it sends what it has kept.
            self.is_writable = true;
            self.is_flushed = false;
        }
        match self.carrier.read_ready(into) {
            Ok(0) => {
                self.lose("the server closed the connection", now);
                0
            }
            Ok(count) => {
                self.silent_since = None;
                // What was not filled is empty; more makes the socket ready anew.
                self.is_readable = count == into.len() || self.carrier.has_more();
                count
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.is_readable = false;
                0
            }
            Err(error) => {
                self.lose(&format!("the connection broke: {error}"), now);
                0
            }
        }
    }

    /// Writes some of what waits; how much.
    pub(crate) fn write(&mut self, now: Nanos) -> usize {
        self.grpc.fill(now);
        let mut slices = [IoSlice::new(&[]); WRITE_PIECES];
        let count = self.grpc.output(&mut slices);
        if count == 0 {
            self.flush(now);
            return 0;
        }
        match self.carrier.write_ready(&slices[..count]) {
            Ok(bytes) => {
                self.is_flushed = false;
                self.grpc.advance(bytes, now);
                bytes
            }
            Err(error) => {
                self.not_written(&error, now);
                0
            }
        }
    }

    /// Has the carrier send what it keeps.
    fn flush(&mut self, now: Nanos) {
        if self.is_flushed {
            return;
        }
        match self.carrier.flush_ready() {
            Ok(()) => self.is_flushed = true,
            Err(error) => self.not_written(&error, now),
        }
    }

    fn not_written(&mut self, error: &io::Error, now: Nanos) {
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => self.is_writable = false,
            _ => {
                self.is_writable = false;
                self.lose(&format!("the connection broke: {error}"), now);
            }
        }
    }

    /// Has it end when nothing is left to do on it.
    pub(crate) fn conclude(&mut self, now: Nanos) {
        let has_output = self.keeps_output();
        match &self.life {
            LinkLife::Closing(reason) if !has_output || !self.is_writable => {
                let reason = reason.clone();
                self.lose(&reason, now);
            }
            LinkLife::Open if self.is_draining && self.grpc.open_calls() == 0 && !has_output => {
                self.lose("the connection was drained", now);
            }
            _ => {}
        }
    }
}

// A hot restart.
impl GrpcLink {
    /// The socket, of which a successor gets a duplicate; none if no successor can go on with the link.
    pub(crate) fn carried_socket(&self) -> Option<BorrowedFd<'_>> {
        self.carrier.carried_socket().filter(|_| self.ended().is_none())
    }

    /// Appends what a successor needs beside the socket. The link stays as it is.
    pub(crate) fn save(&self, out: &mut FieldWriter) {
        self.carrier.save(out);
        out.flag(self.has_settings);
        out.flag(self.is_draining);
        match &self.life {
            LinkLife::Open => out.text(""),
            LinkLife::Closing(reason) | LinkLife::Ended(reason) => out.text(reason),
        }
        out.run(&self.input);
        self.grpc.save(out);
    }

    /// Goes on with the link of another process. Nothing that the server can see is done.
    pub(crate) fn restore(
        carrier: Box<dyn ByteCarrier>,
        config: &GrpcTransportConfig,
        share: &Arc<PrivateBytes>,
        now: Nanos,
        fields: &mut FieldReader<'_>,
    ) -> Result<GrpcLink, RestoreError> {
        let (has_settings, is_draining) = (fields.flag()?, fields.flag()?);
        let life = match fields.text()? {
            "" => LinkLife::Open,
            reason => LinkLife::Closing(reason.to_owned()),
        };
        let input = fields.run()?.to_vec();
        let config = config.protocol();
        let chunk = |bytes| MessageChunk::counted_in(share, bytes);
        let grpc = GrpcConnection::restore(fields, EndpointRole::Client, config, chunk)?;
        Ok(GrpcLink {
            carrier,
            grpc,
            input,
            is_readable: true,
            is_writable: true,
            is_flushed: false,
            has_settings,
            awaits_settings: false,
            has_room: true,
            is_full: false,
            is_draining,
            // It is set anew with the first poll.
            has_keepalive: false,
            silent_since: None,
            used_at: now,
            life,
        })
    }
}

impl std::fmt::Debug for GrpcLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut fields = f.debug_struct("GrpcLink");
        fields.field("calls", &self.grpc.open_calls());
        fields.field("life", &self.life).finish_non_exhaustive()
    }
}

/// Takes what a server says first; whether its settings were among it.
fn greet(grpc: &mut GrpcConnection<MessageChunk>, input: &[u8], now: Nanos) -> Result<bool, EstablishFault> {
    let (mut taken, mut has_settings) = (0, false);
    loop {
        let received = grpc.receive(&input[taken..], now);
        let received = received.map_err(|error| EstablishFault::Protocol(error.to_string()))?;
        taken += received.consumed;
        match received.event {
            Some(GrpcEvent::PeerSettings) => has_settings = true,
            Some(GrpcEvent::Draining) => {
                return Err(EstablishFault::Protocol("it takes no calls".to_owned()));
            }
            Some(_) => {}
            None if taken == input.len() => return Ok(has_settings),
            None => return Err(EstablishFault::Protocol("it asks more than it reads".to_owned())),
        }
    }
}

/// Waits until the carrier has something, or room for what waits.
pub(crate) fn wait_or_fail(
    error: io::Error,
    link: &GrpcLink,
    deadline: Instant,
) -> Result<(), EstablishFault> {
    match error.kind() {
        io::ErrorKind::WouldBlock => {}
        io::ErrorKind::Interrupted => return Ok(()),
        _ => return Err(of_carrier(error)),
    }
    let left = deadline.saturating_duration_since(Instant::now());
    let mut events = PollFlags::IN;
    events.set(PollFlags::OUT, link.keeps_output());
    let socket = link.carrier.socket();
    let mut polled = [PollFd::from_borrowed_fd(socket, events)];
    // It fits: nobody waits for hundreds of years.
    let timeout = Timespec::try_from(left).ok();
    match rustix::event::poll(&mut polled, timeout.as_ref()) {
        Ok(0) => Err(EstablishFault::Deadline),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(EstablishFault::Io(error.into())),
    }
}

fn of_carrier(error: io::Error) -> EstablishFault {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe if error.get_ref().is_none() => {
            EstablishFault::Closed
        }
        _ => EstablishFault::Io(error),
    }
}
