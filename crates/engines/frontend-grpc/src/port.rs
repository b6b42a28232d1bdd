//! The port: a connection, its calls, and where both are.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::sync::Arc;

use provost_datapath::{
    Body, BufferPool, CallHash, Interest, Nanos, PrivateBytes, PrivateCharge, ReceiveHeap, Step,
};
use provost_grpc::{CallCounts, GrpcConfig, GrpcConnection, MessageEncoding};
use provost_http2::StreamMap;

use crate::binding::{ServiceBinding, ServiceRefusal, ServiceTable, WantedService};
use crate::calls::{IncomingCost, PortCall, ReplyBytes};
use crate::carrier::ByteCarrier;
use crate::heap::PrivateHeap;
use crate::node_services::{NodeEvent, NodeMethods};

/// Bytes that are read at a time. One such buffer serves all connections of a thread.
const READ_BYTES: usize = 64 << 10;
/// Reads of one poll, at most.
const POLL_READS: usize = 4;
/// Bytes that one flush writes, at most.
const FLUSH_BYTES_MAX: usize = 1 << 20;
/// Pieces that one write names.
const WRITE_PIECES: usize = 64;
/// Calls with steps, and cancellations, that wait to be taken; past it the connection is not read.
pub(crate) const WAITING_MAX: usize = 1_024;
/// How soon room for a message is looked for again where others hold it.
pub(crate) const ROOM_RETRY_NS: Nanos = 1_000_000;

thread_local! {
    static READ: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// What a port is made of.
pub struct GrpcPortParts {
    /// What carries the connection's bytes.
    pub carrier: Box<dyn ByteCarrier>,
    /// The bounds of the connection.
    pub config: GrpcConfig,
    /// How replies are compressed of which the server says nothing, for clients that take it.
    pub compression: MessageEncoding,
    /// Where its calls are counted.
    pub counts: Arc<CallCounts>,
    /// The share of private memory that the client's messages take.
    pub share: Arc<PrivateBytes>,
    /// Bytes of replies that have come in part, at most.
    pub receive_heap_bytes: u64,
    /// What the node answers itself; what is not among it goes to datapaths.
    pub node_methods: NodeMethods,
}

/// A step of a call of the client.
#[derive(Debug)]
pub struct GrpcRequest {
    /// On which connection of the node.
    pub connection: u32,
    /// What is said of the call.
    pub step: Step,
}

/// Whether a poll did anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortProgress {
    /// Nothing has come or gone.
    Idle,
    /// Something came or went.
    Busy,
}

/// One connection of a gRPC client. It belongs to one runtime thread.
pub struct GrpcPort {
    pub(crate) carrier: Box<dyn ByteCarrier>,
    pub(crate) grpc: GrpcConnection<ReplyBytes>,
    /// What was read and not taken, because output has to leave first, or steps have to be taken.
    pub(crate) input: Vec<u8>,
    pub(crate) message_bytes_max: u32,
    pub(crate) compression: MessageEncoding,
    pub(crate) services: ServiceTable,
    /// Services that the control plane is to be asked for.
    pub(crate) wanted: VecDeque<WantedService>,
    pub(crate) node_methods: NodeMethods,
    /// What the control plane is to be told of calls that it answers: one message of each at most, and its end.
    pub(crate) node_events: VecDeque<NodeEvent>,
    /// Questions that the control plane has and has not answered.
    pub(crate) questions: usize,
    /// By the number of the stream.
    pub(crate) calls: StreamMap<PortCall>,
    /// What messages of all calls take that wait to be passed on.
    pub(crate) incoming: IncomingCost,
    /// Streams by connection and number of the call.
    pub(crate) streams: HashMap<(u32, u64), u32, CallHash>,
    /// Streams with steps to be taken.
    pub(crate) ready: VecDeque<u32>,
    pub(crate) cancels: VecDeque<GrpcRequest>,
    /// Streams whose replies wait for output to leave.
    pub(crate) waiting_for_output: VecDeque<u32>,
    pub(crate) heap: PrivateHeap,
    /// Tokens that nobody has asked for.
    sent: Vec<u64>,
    pub(crate) share: Arc<PrivateBytes>,
    /// What requests take that wait, whole or in part, of what the user and the node have. (The client's own share bounds what goes on:
    /// windows bound what it sends ahead, so that no call of a client alone fails for want of room.)
    pub(crate) requests_held: PrivateCharge,
    pub(crate) now: Nanos,
    /// When room for a message is looked for again.
    pub(crate) retry_at: Option<Nanos>,
    /// Since when replies find no room.
    pub(crate) blocked_since: Option<Nanos>,
    /// The protocol may have events that were not taken, as steps had to be taken first.
    pub(crate) has_untaken: bool,
    /// The carrier may have something to read.
    is_readable: bool,
    /// The carrier took all that it was given last.
    is_writable: bool,
    /// The carrier keeps nothing of what it took.
    pub(crate) is_flushed: bool,
    pub(crate) life: PortLife,
}

/// ```text
/// Open ──the peer, or an error, ends it──► Closing (what waits is sent) ──► Ended
/// ```
#[derive(Debug)]
pub(crate) enum PortLife {
    Open,
    Closing(String),
    Ended(String),
}

impl GrpcPort {
    /// A port for a connection that has just come.
    #[must_use]
    pub fn new(parts: GrpcPortParts, now: Nanos) -> GrpcPort {
        let mut grpc = GrpcConnection::server(parts.config, now);
        grpc.count_in(parts.counts);
        GrpcPort {
            carrier: parts.carrier,
            grpc,
            input: Vec::new(),
            message_bytes_max: parts.config.received_message_bytes_max,
            compression: parts.compression,
            services: ServiceTable::default(),
            wanted: VecDeque::new(),
            node_methods: parts.node_methods,
            node_events: VecDeque::new(),
            questions: 0,
            calls: StreamMap::new(),
            incoming: IncomingCost::default(),
            streams: HashMap::default(),
            ready: VecDeque::new(),
            cancels: VecDeque::new(),
            waiting_for_output: VecDeque::new(),
            heap: PrivateHeap::new(parts.receive_heap_bytes),
            sent: Vec::new(),
            requests_held: parts.share.around().charge(0),
            share: parts.share,
            now,
            retry_at: None,
            blocked_since: None,
            has_untaken: false,
            is_readable: true,
            is_writable: true,
            is_flushed: true,
            life: PortLife::Open,
        }
    }

    /// Reads what there is, and does what is due.
    pub fn poll(&mut self, now: Nanos) -> PortProgress {
        self.now = now;
        // Nobody waits for acknowledgements of private memory.
        self.sent.clear();
        if self.share.message_bytes_now() == u64::MAX || !self.leaves_much_unread() {
            // What was counted before it came is not offered again when the client has read.
            self.blocked_since = None;
        }
        if !matches!(self.life, PortLife::Open) {
            return PortProgress::Idle;
        }
        // What has come is read before the client is judged: it may have waited while this process did not run.
        self.is_readable |= self.is_due();
        let mut moved = self.take_kept_input();
        for _ in 0..POLL_READS {
            if !self.may_read() {
                break;
            }
            moved |= self.read();
        }
        if self.is_crowded() {
            // It is this end that does not read.
            self.grpc.note_unread(now);
        }
        moved |= self.keep_time();
        self.count_requests();
        self.pump_waiting();
        if moved || self.has_output() {
            PortProgress::Busy
        } else {
            PortProgress::Idle
        }
    }

    /// The poller says that there may be something to read, or room to write.
    pub fn note_ready(&mut self) {
        self.is_readable = true;
        self.is_writable = true;
    }

    /// The next service that the control plane is to be asked for ([`GrpcPort::answer_service`]).
    pub fn take_wanted(&mut self) -> Option<WantedService> {
        let wanted = self.wanted.pop_front();
        if wanted.is_some() && self.wanted.is_empty() {
            // Most clients call one service, once for all.
            self.wanted = VecDeque::new();
        }
        wanted
    }

    /// What the control plane found of a service: its calls go there, or are refused.
    pub fn answer_service(
        &mut self,
        service: &str,
        answer: Result<ServiceBinding, ServiceRefusal>,
        now: Nanos,
    ) {
        self.now = now;
        for stream in self.services.answer(service, &answer, now) {
            match &answer {
                Ok(_) => self.find_target(stream),
                Err(refusal) => self.refuse(stream, refusal),
            }
        }
    }

    /// Writes what waits, as far as there is room.
    pub fn flush(&mut self, now: Nanos) -> PortProgress {
        self.now = now;
        if matches!(self.life, PortLife::Ended(_)) {
            return PortProgress::Idle;
        }
        // Steps may have been taken since.
        self.count_requests();
        let mut written = 0;
        while self.is_writable && written < FLUSH_BYTES_MAX {
            self.grpc.fill(now);
            match self.write() {
                0 => break,
                bytes => written += bytes,
            }
            // Streams that have room again are among the events.
            self.take_input(&[]);
            self.pump_waiting();
        }
        self.flush_carrier();
        // What is left goes in the next round.
        self.grpc.fill(now);
        self.end_when_done();
        match written {
            0 => PortProgress::Idle,
            _ => PortProgress::Busy,
        }
    }

    /// No more calls are taken; those under way go on, and then the connection ends.
    pub fn drain(&mut self, now: Nanos) {
        self.now = now;
        self.grpc.drain(now);
    }

    /// All calls end with this, and then the connection.
    pub fn end(&mut self, refusal: &ServiceRefusal, now: Nanos) {
        self.drain(now);
        let streams: Vec<u32> = self.calls.keys().collect();
        for stream in streams {
            self.refuse(stream, refusal);
        }
    }

    /// What is to be watched; nothing, once it has ended.
    #[must_use]
    pub fn interest(&self) -> Option<Interest> {
        let is_over = matches!(self.life, PortLife::Ended(_));
        (!is_over).then(|| Interest {
            socket: self.carrier.descriptor(),
            write: !self.is_writable,
        })
    }

    /// Whether input is not to be looked for: steps are to be taken, or output to be read first.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        !self.input.is_empty()
    }

    /// When it wants to be polled though nothing comes.
    #[must_use]
    pub fn wake_at(&self) -> Option<Nanos> {
        let is_open = matches!(self.life, PortLife::Open);
        let timeout = self.grpc.next_timeout().filter(|_| is_open);
        [timeout, self.retry_at].into_iter().flatten().min()
    }

    /// Whether there is nothing to do before something comes.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let is_quiet = self.cancels.is_empty() && self.wanted.is_empty();
        let takes_none = self.ready.is_empty() || self.retry_at.is_some();
        let takes_events = self.has_untaken && !self.is_crowded() && !self.grpc.is_blocked();
        is_quiet && takes_none && !takes_events && !self.may_read() && !self.has_output()
    }

    /// Why the connection has ended, if it has, and all steps of its calls were taken.
    #[must_use]
    pub fn ended(&self) -> Option<&str> {
        match &self.life {
            PortLife::Ended(reason) if self.cancels.is_empty() => Some(reason),
            _ => None,
        }
    }

    /// Since when replies find no room, because the client does not read them.
    #[must_use]
    pub fn blocked_since(&self) -> Option<Nanos> {
        self.blocked_since
    }

    /// How many calls are under way.
    #[must_use]
    pub fn open_calls(&self) -> usize {
        self.calls.len()
    }

    /// Bytes of replies that have come in part.
    #[must_use]
    pub fn receive_heap_bytes(&self) -> u64 {
        self.heap.held_bytes()
    }

    /// What engines of this client's datapaths are lent.
    pub fn lend(&mut self) -> (&mut dyn ReceiveHeap, &mut Vec<u64>) {
        (&mut self.heap, &mut self.sent)
    }

    /// Gives back what a request holds that no datapath takes any more.
    pub fn discard(&mut self, step: Step, buffers: &mut BufferPool) {
        if let Body::Encoded(body) = step.body {
            buffers.give(body.buffer);
        }
    }
}

// Reading and writing.
impl GrpcPort {
    fn may_read(&self) -> bool {
        self.is_readable
            && self.input.is_empty()
            && !self.is_crowded()
            && !self.grpc.is_blocked()
            && matches!(self.life, PortLife::Open)
    }

    /// Steps are to be taken before more is read.
    pub(crate) fn is_crowded(&self) -> bool {
        self.cancels.len() + self.ready.len() + self.node_events.len() >= WAITING_MAX
    }

    fn has_output(&self) -> bool {
        self.is_writable && self.keeps_output()
    }

    /// Whether anything is still to be sent.
    fn keeps_output(&self) -> bool {
        self.grpc.output_bytes() > 0 || !self.is_flushed
    }

    /// Whether HTTP/2 waits for something no longer.
    fn is_due(&self) -> bool {
        self.grpc.next_timeout().is_some_and(|at| at <= self.now)
    }

    fn keep_time(&mut self) -> bool {
        if !self.is_due() || !matches!(self.life, PortLife::Open) {
            return false;
        }
        if let Err(error) = self.grpc.on_time(self.now) {
            self.close(&error.to_string());
        }
        // What came of it is told by the next input, even by none.
        self.take_input(&[]);
        true
    }

    fn take_kept_input(&mut self) -> bool {
        let has_some = self.has_untaken || !self.input.is_empty();
        if !has_some || self.is_crowded() || self.grpc.is_blocked() {
            return false;
        }
        let input = std::mem::take(&mut self.input);
        let taken = self.take_input(&input);
        self.input = input;
        self.input.drain(..taken);
        self.input.shrink_to_fit();
        true
    }

    fn read(&mut self) -> bool {
        READ.with_borrow_mut(|bytes| match self.carrier.read(bytes) {
            Ok(0) => {
                self.lose("the client has closed the connection");
                true
            }
            Ok(count) => {
                self.is_readable = count == bytes.len() || self.carrier.has_more();
                let taken = self.take_input(&bytes[..count]);
                self.input.extend_from_slice(&bytes[taken..count]);
                self.count_requests();
                true
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.is_readable = false;
                false
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => true,
            Err(error) => {
                self.lose(&format!("the connection broke: {error}"));
                true
            }
        })
    }

    /// Takes bytes until no more are to be taken; how many.
    fn take_input(&mut self, input: &[u8]) -> usize {
        let mut taken = 0;
        loop {
            self.has_untaken = self.is_crowded();
            if self.has_untaken {
                return taken;
            }
            match self.grpc.receive(&input[taken..], self.now) {
                Ok(received) => {
                    taken += received.consumed;
                    match received.event {
                        Some(event) => self.on_event(event),
                        None => return taken,
                    }
                }
                Err(error) => {
                    self.close(&format!("the client broke a rule of HTTP/2: {error}"));
                    return input.len();
                }
            }
        }
    }

    fn write(&mut self) -> usize {
        let mut slices = [IoSlice::new(&[]); WRITE_PIECES];
        let count = self.grpc.output(&mut slices);
        if count == 0 {
            return 0;
        }
        match self.carrier.write(&slices[..count]) {
            Ok(bytes) => {
                self.grpc.advance(bytes, self.now);
                bytes
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => {
                self.is_writable = false;
                if error.kind() != io::ErrorKind::WouldBlock {
                    self.lose(&format!("the connection broke: {error}"));
                }
                0
            }
        }
    }

    /// Has the carrier send what it keeps.
    fn flush_carrier(&mut self) {
        if !self.is_writable || matches!(self.life, PortLife::Ended(_)) {
            return;
        }
        match self.carrier.flush() {
            Ok(()) => self.is_flushed = true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.is_flushed = false;
                self.is_writable = false;
            }
            Err(error) => self.lose(&format!("the connection broke: {error}")),
        }
    }

    /// Nothing more is taken, and what waits is sent.
    fn close(&mut self, reason: &str) {
        if matches!(self.life, PortLife::Open) {
            self.end_calls();
            self.life = PortLife::Closing(reason.to_owned());
        }
    }

    /// The carrier is gone, and nobody hears what waits.
    fn lose(&mut self, reason: &str) {
        if !matches!(self.life, PortLife::Ended(_)) {
            self.grpc.lose(self.now);
            self.end_calls();
            self.life = PortLife::Ended(reason.to_owned());
        }
    }

    fn end_calls(&mut self) {
        let streams: Vec<u32> = self.calls.keys().collect();
        for stream in streams {
            self.cancel(stream, provost_wire::Code::Cancelled);
        }
        self.input = Vec::new();
    }

    fn end_when_done(&mut self) {
        let has_output = self.keeps_output();
        match &self.life {
            PortLife::Closing(reason) if !has_output || !self.is_writable => {
                let reason = reason.clone();
                self.lose(&reason);
            }
            PortLife::Open if self.grpc.is_over() && !has_output => {
                self.lose("the connection was drained");
            }
            _ => {}
        }
    }
}
