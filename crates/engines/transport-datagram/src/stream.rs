//! A stream: segments of bytes, both ways, in order and exactly once, between two ends that may each be replaced.
//!
//! The datagram protocol below carries requests and their responses, in any order, and at most once within a session. A
//! stream puts a number on each segment, sends those of a client as requests and those of a server as responses, and puts
//! what arrives in order. A server can speak only in answer, so its client leaves requests with it for that; such a
//! request may carry a segment itself, and most do.
//!
//! ```text
//!   client                                                       server
//!     Detached ── Attach (stream, how far received) ─────────────►   Detached
//!        │      ◄────────────────────── how far received ──        │
//!     Attached: what the other end has not received is sent (again) from here on
//!        │      ── Carry (segment or none) ─────────────────────►   │ held, until there is something to answer
//!        │      ◄──────────────────────── segment or none ──        │
//!     the session ends ──► Detached, a new one is opened           the session ends ──► Detached, until the next Attach
//! ```
//!
//! A stream can be sealed: then all its sessions are, with one key, from which each makes keys of its own together with what
//! both ends draw for it (`docs/datagram.md`). So no nonce is used twice, whoever goes on with the stream.

mod client;
mod form;
mod poll;
mod pool;
mod saved;
mod server;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use provost_datagram::{
    Algorithm, Call, CallError, Cipher, Completion, Config, ConfigError, CongestionConfig, DctcpConfig,
    EndReason, Endpoint, Event, LossProof, Mark, MarkUse, MsgBuf, Payload, Refusal, RequestHandle,
    ResponseBuffers, Sealing, Security, SessionId,
};
use provost_datapath::Packets;
use provost_session::Role;
use provost_tls::KEY_BYTES;
use provost_udp::PacketBatches;
use zeroize::Zeroizing;

use crate::socket::Socket;

pub(crate) use form::SEGMENT_BYTES_SENT;
use form::{ATTACH_BYTES, Attach, BUSY, FINISHED, HEAD_BYTES, Head, MORE, SEGMENT_BYTES_MAX};

/// Requests of a client that are under way at once.
const SLOTS: u8 = 16;
/// Packets under way at once; the requests that a server holds keep one each. Each takes some 250 bytes of a connection at rest.
const CREDITS: u16 = 64;
/// Sessions of a stream: the one that goes on, and those of before.
const SESSIONS_MAX: usize = 8;
/// Sessions that a server keeps in which its client has not taken the stream up: the last one, unless an old packet has asked for that.
const ASKED_FOR_MAX: usize = 4;
/// Requests that a server keeps for what it has to say.
const HELD_MAX: usize = 8;
/// Requests without a segment that a client leaves with its server.
const POLLS_MAX: u32 = 8;
/// Bytes that came and that nobody has taken, from which on the peer is asked to wait.
const INCOMING_BYTES_MAX: usize = 1 << 20;
/// Bytes of a peer that does not heed that.
const INCOMING_BYTES_ABSURD: usize = 16 << 20;
/// Segments that came and that nobody has taken, from which on it is asked as well: each takes a buffer, however few bytes it has.
const INCOMING_SEGMENTS_MAX: usize = 1024;
/// Segments of a peer that does not heed that. A saved state has no more.
const INCOMING_SEGMENTS_ABSURD: usize = 4096;
/// Segments of which the peer has not said that it has them, and so those that can come before their turn.
const WINDOW_SEGMENTS: u64 = 48;
const AHEAD_MAX: usize = WINDOW_SEGMENTS as usize;
/// How long an end may be without a session, in nanoseconds.
const DETACHED_NS_MAX: u64 = 5_000_000_000;
/// How long it is believed that nobody listens at the peer's port, if nothing else is heard, in nanoseconds.
const REFUSED_NS_MAX: u64 = 2_500_000_000;
/// With so many refusals in so long, too.
const REFUSALS_MAX: u32 = 3;
const REFUSALS_NS_MIN: u64 = 300_000_000;
/// How soon the peer of a sealed stream that was refused is asked again whether it is there, in nanoseconds.
const ASK_NS: u64 = 500_000_000;
/// Packets taken in one poll.
const PACKETS_MAX: usize = 256;
/// How long after the last segment a server gives back memory that segments have left, in nanoseconds.
const REST_NS: u64 = 20_000_000;
/// The greatest pause between two looks whether an answer that is pending got lost, in nanoseconds.
const PROBE_NS_MAX: u64 = 1_000_000_000;

/// When a packet counts as lost before a round trip was measured, in nanoseconds.
const FIRST_TIMEOUT_NS: u64 = 2_000_000;

const METHOD_ATTACH: u16 = 1;
const METHOD_CARRY: u16 = 2;
const STATUS_OK: u16 = 0;
const STATUS_UNKNOWN: u16 = 1;
const TAG_ATTACH: u64 = 1;
const TAG_CARRY: u64 = 2;

/// Which stream it is: what only its two ends know.
pub(crate) type ResumableStreamId = [u8; 16];

/// What seals a stream: only its two ends know it. There is one copy, however often it is told, and it is overwritten with the last use.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ResumableStreamKey(pub(crate) Arc<Zeroizing<[u8; KEY_BYTES]>>);

impl ResumableStreamKey {
    pub(crate) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl std::fmt::Debug for ResumableStreamKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("ResumableStreamKey")
    }
}

/// What an endpoint is made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    packet_bytes: u32,
    credits: u16,
    sessions_max: usize,
    silence_ns: u64,
    key: Option<ResumableStreamKey>,
}

impl Shape {
    pub(crate) fn of_listener() -> Shape {
        Shape {
            packet_bytes: crate::PACKET_BYTES_ETHERNET,
            credits: CREDITS,
            sessions_max: 1,
            silence_ns: DETACHED_NS_MAX,
            // Every connection begins without one.
            key: None,
        }
    }

    pub(crate) fn of_stream(socket: &Socket, terms: &Terms) -> Shape {
        let ring_packets = socket.ring_packets(terms.packet_bytes as usize);
        Shape {
            packet_bytes: terms.packet_bytes,
            credits: ring_packets.clamp(2, u32::from(CREDITS)) as u16,
            sessions_max: SESSIONS_MAX,
            silence_ns: terms.silence_ns,
            key: terms.key.clone(),
        }
    }
}

/// An endpoint of this shape.
pub(crate) fn endpoint(shape: Shape) -> io::Result<Endpoint<SocketAddr>> {
    let secret = [draw_u64()?, draw_u64()?];
    let config = Config {
        packet_bytes_max: shape.packet_bytes as usize,
        slots: SLOTS,
        credits: shape.credits,
        // Of a stream's sessions all but the last are over, whether or not this end knows it yet.
        receive_ring_packets: u32::from(shape.credits) * SESSIONS_MAX as u32,
        sessions_max: shape.sessions_max,
        backlog_calls_max: usize::from(SLOTS),
        message_bytes_max: (HEAD_BYTES + SEGMENT_BYTES_MAX) as u32,
        assembly_bytes_max: INCOMING_BYTES_ABSURD,
        inline_response_bytes: HEAD_BYTES,
        transmit_queue_packets: 2 * usize::from(CREDITS),
        responses: ResponseBuffers::Lent,
        timeout_ns_initial: FIRST_TIMEOUT_NS,
        timeout_ns_max: PROBE_NS_MAX,
        peer_timeout_ns: shape.silence_ns,
        secret,
        marks: MarkUse::Read,
        security: security(shape.key.as_ref())?,
        congestion: CongestionConfig {
            // A packet waits in the kernel's socket until its reader has the core: milliseconds where cores are shared. Algorithms that go
            // by delay take that for a queue of the network, and fall to their floors.
            algorithm: Algorithm::Dctcp(DctcpConfig::default()),
            ..CongestionConfig::default()
        },
        ..Config::default()
    };
    Endpoint::new(config).map_err(|error: ConfigError| io::Error::other(error))
}

fn security(key: Option<&ResumableStreamKey>) -> io::Result<Security> {
    Ok(match key {
        None => Security::Plain,
        Some(key) => Security::Sealed(Sealing {
            cipher: Cipher::Aes128Gcm,
            pre_shared_key: *key.bytes(),
            // Drawn anew for each endpoint: a successor makes other keys than its predecessor, of the same stream's key.
            seed: draw()?,
        }),
    })
}

fn draw<const BYTES: usize>() -> io::Result<[u8; BYTES]> {
    use ring::rand::SecureRandom;
    let mut bytes = [0; BYTES];
    let drawn = ring::rand::SystemRandom::new().fill(&mut bytes);
    drawn.map_err(|_| io::Error::other("the system gives no random numbers"))?;
    Ok(bytes)
}

fn draw_u64() -> io::Result<u64> {
    draw().map(u64::from_le_bytes)
}

/// What an end keeps to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Bytes of the largest packet.
    pub(crate) packet_bytes: u32,
    /// Silence of a peer that owes an answer after which it counts as gone, in nanoseconds.
    pub(crate) silence_ns: u64,
    /// What the stream is sealed with, if it is.
    pub(crate) key: Option<ResumableStreamKey>,
}

/// One end of a stream.
#[derive(Debug)]
pub(crate) struct ResumableStream {
    role: Role,
    id: ResumableStreamId,
    terms: Terms,
    socket: Socket,
    endpoint: Endpoint<SocketAddr>,
    attachment: Attachment,
    /// What is added to the time that is told, so that it goes on from whoever told it before.
    clock: Clock,
    outgoing: Outgoing,
    incoming: Incoming,
    /// Responses that came back, and of which it is not known yet whether their session goes on.
    returned: Vec<MsgBuf>,
    /// A server's: requests to answer, the oldest first.
    held: VecDeque<HeldRequest>,
    /// A server's: the sessions that were asked for, the last one last. They go when they are over, except the one in which the stream was: that
    /// stays until the client takes the stream up in another.
    asked_for: Vec<SessionId>,
    /// A server's: that of its predecessor, until it has one of its own.
    inherited: Option<Inherited>,
    /// A client's: requests of which it has no answer.
    asked: u32,
    /// A client's: how many requests it leaves with its server at least; more with one that has much to say.
    polls: u32,
    /// What was told the peer last, and how often it was something else than before.
    told_busy: bool,
    told_changes: u32,
    peer_busy: bool,
    /// How often the peer had changed its mind when it said that.
    peer_changes: u32,
    refusals: Refusals,
    wake_ns: Option<u64>,
    /// A server's: when it gives memory back.
    rest: RestTime,
    /// When the socket had no more packets, the last time it was read.
    emptied_ns: u64,
}

/// A request that a server has not answered yet.
#[derive(Clone, Copy, Debug)]
struct HeldRequest {
    handle: RequestHandle,
    /// Its client keeps that until the request is answered.
    carries_segment: bool,
}

/// When the memory is given back that segments have left with either end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RestTime {
    /// It was given back already.
    Done,
    /// Then, unless more of them come.
    At { ns: u64 },
    /// Once the client has all that it was sent.
    Acknowledged,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attachment {
    /// There is no session, since then.
    Detached {
        since_ns: Option<u64>,
    },
    /// A client has asked for one, or for its stream to go on in it.
    Attaching {
        session: SessionId,
        since_ns: u64,
    },
    Attached {
        session: SessionId,
    },
    /// A server's predecessor had one.
    Inherited,
}

/// A session that a server's predecessor had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Inherited {
    session: SessionId,
    /// What its client has to be shown to believe that it is lost, if it was sealed.
    proof: Option<LossProof>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clock {
    /// Whoever tells the time has changed; it goes on from here.
    GoesOn {
        at_ns: u64,
    },
    Offset {
        ns: u64,
    },
}

#[derive(Debug, Default)]
struct Outgoing {
    /// The number of the last segment that was taken.
    last: u64,
    /// The peer has all up to this one.
    acknowledged: u64,
    /// Segments that wait to be sent (again), in order.
    unsent: VecDeque<MsgBuf>,
    finished: bool,
}

#[derive(Debug, Default)]
struct Incoming {
    /// All up to this one are here, or were.
    received: u64,
    /// Those that were overtaken by none.
    ready: VecDeque<Segment>,
    ahead: BTreeMap<u64, Segment>,
    bytes: usize,
    finished: bool,
}

/// What has come, in a buffer with its head.
#[derive(Debug)]
struct Segment {
    buffer: MsgBuf,
    /// Whether the buffer is the endpoint's.
    is_lent: bool,
    is_last: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Refusals {
    count: u32,
    /// How often somebody has said that a sealed session is lost, and could not prove it.
    unproven: u64,
    first_ns: u64,
    last_ns: u64,
    /// When the peer was asked last whether it is there.
    asked_ns: u64,
}

/// What a stream gives whoever reads it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<'a> {
    Bytes(&'a [u8]),
    Nothing,
    /// The peer has said that nothing more comes.
    Finished,
}

/// A stream that cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Lost(pub(crate) String);

impl From<Lost> for provost_transport::EstablishError {
    fn from(Lost(reason): Lost) -> provost_transport::EstablishError {
        provost_transport::EstablishError::Lost(reason)
    }
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Lost {
        Lost(error.to_string())
    }
}

/// Whether the socket is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    Try,
    Skip,
}

/// What a poll came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Polled {
    pub(crate) moved: bool,
    /// Packets may have been left in the socket.
    pub(crate) left_some: bool,
}

impl ResumableStream {
    /// A stream of a client's, to whoever is at the other end of the socket.
    pub(crate) fn open(socket: Socket, terms: Terms) -> io::Result<ResumableStream> {
        ResumableStream::new(Role::Client, draw()?, socket, terms)
    }

    /// A stream of a server's, whose client asks for a session by this packet.
    pub(crate) fn serve(
        socket: Socket,
        terms: Terms,
        opening: &[u8],
        now_ns: u64,
    ) -> io::Result<ResumableStream> {
        let mut stream = ResumableStream::new(Role::Server, [0; 16], socket, terms)?;
        let peer = stream.socket.peer();
        stream.endpoint.welcome(now_ns, peer, opening);
        Ok(stream)
    }

    fn new(role: Role, id: ResumableStreamId, socket: Socket, terms: Terms) -> io::Result<ResumableStream> {
        Ok(ResumableStream {
            role,
            id,
            endpoint: endpoint(Shape::of_stream(&socket, &terms))?,
            terms,
            socket,
            attachment: Attachment::Detached { since_ns: None },
            clock: Clock::Offset { ns: 0 },
            outgoing: Outgoing::default(),
            incoming: Incoming::default(),
            returned: Vec::new(),
            held: VecDeque::new(),
            asked_for: Vec::new(),
            inherited: None,
            asked: 0,
            polls: 1,
            told_busy: false,
            told_changes: 0,
            peer_busy: false,
            peer_changes: 0,
            refusals: Refusals::default(),
            wake_ns: None,
            rest: RestTime::Done,
            emptied_ns: 0,
        })
    }

    /// A stream in the place of this one, sealed with this key. Nothing that was said in this one is part of it: anybody on
    /// the path may have said it.
    pub(crate) fn sealed(&self, key: ResumableStreamKey) -> io::Result<ResumableStream> {
        let id = match self.role {
            Role::Client => draw()?,
            Role::Server => ResumableStreamId::default(),
        };
        let key = Some(key);
        let terms = Terms {
            key,
            ..self.terms.clone()
        };
        ResumableStream::new(self.role, id, self.socket.duplicate()?, terms)
    }

    /// Whether a packet asks for a session, and shows that its sender has the stream's key.
    pub(crate) fn is_asked_for_by(&self, packet: &[u8]) -> bool {
        self.endpoint.vouches(packet)
    }

    /// Its name; zeros at a server whose client has not told it yet.
    pub(crate) fn id(&self) -> ResumableStreamId {
        self.id
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// The packets since it was made here: those of a predecessor are not counted.
    pub(crate) fn packets(&self) -> Packets {
        let statistics = self.endpoint.statistics();
        let dropped = &statistics.dropped;
        Packets {
            sent: statistics.packets_sent,
            received: statistics.packets_received,
            resent: statistics.packets_resent,
            probes: statistics.probes_sent,
            duplicates: statistics.packets_duplicate,
            unproven: dropped.token + dropped.cookie + dropped.forged + dropped.unproven,
            path_fallbacks: statistics.fallbacks,
        }
    }

    /// The packets that were dropped, by reason.
    #[cfg(test)]
    pub(crate) fn dropped(&self) -> provost_datagram::Drops {
        self.endpoint.statistics().dropped
    }

    /// A client's: how often it heard that packets were marked.
    #[cfg(test)]
    pub(crate) fn marks(&self) -> u64 {
        self.endpoint.statistics().marks
    }

    /// A client's: how long a packet and its answer take, in nanoseconds, once that was measured in this session.
    pub(crate) fn round_trip_ns(&self) -> Option<u64> {
        let measured = self.endpoint.round_trip_ns(self.session()?);
        measured.filter(|round_trip_ns| *round_trip_ns > 0)
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Lets somebody else tell the time from now on.
    pub(crate) fn change_clock(&mut self, now_ns: u64) {
        self.clock = Clock::GoesOn { at_ns: now_ns };
    }

    /// When it wants to be polled, in the time of whoever polls it.
    pub(crate) fn wake_at(&self) -> Option<u64> {
        match self.clock {
            Clock::Offset { ns } => self.wake_ns.map(|at_ns| at_ns.wrapping_sub(ns)),
            Clock::GoesOn { .. } => Some(0),
        }
    }

    /// Whether both ends have the stream in a session.
    pub(crate) fn is_attached(&self) -> bool {
        matches!(self.attachment, Attachment::Attached { .. })
    }

    /// Whether a segment can be taken that could go at once. While not, what is to be said waits and grows.
    pub(crate) fn has_room(&self) -> bool {
        let places = match self.role {
            Role::Client => usize::from(SLOTS).saturating_sub(self.asked as usize),
            Role::Server => self.held.len(),
        };
        let under_way = self.outgoing.last - self.outgoing.acknowledged;
        let has_window = !self.peer_busy && under_way < WINDOW_SEGMENTS;
        self.is_attached() && has_window && self.outgoing.unsent.len() < places && !self.outgoing.finished
    }

    /// A buffer for a segment of so many bytes, and where they go.
    pub(crate) fn segment(&mut self, bytes: usize) -> MsgBuf {
        let mut buffer = pool::take(HEAD_BYTES + bytes);
        buffer.set_length(HEAD_BYTES + bytes);
        buffer
    }

    /// Where the bytes of a segment go.
    pub(crate) fn content(segment: &mut MsgBuf) -> &mut [u8] {
        segment.get_mut(HEAD_BYTES..).unwrap_or_default()
    }

    /// Takes a segment. It goes with the next poll.
    pub(crate) fn send(&mut self, segment: MsgBuf) {
        self.push(segment, 0);
    }

    /// Says that nothing more is sent.
    pub(crate) fn finish(&mut self) {
        if !self.outgoing.finished {
            let segment = self.segment(0);
            self.push(segment, FINISHED);
            self.outgoing.finished = true;
        }
    }

    fn push(&mut self, mut segment: MsgBuf, flags: u8) {
        self.outgoing.last += 1;
        // The rest is said when it goes.
        let head = Head {
            number: self.outgoing.last,
            flags,
            ..Head::default()
        };
        head.write(&mut segment);
        self.outgoing.unsent.push_back(segment);
    }

    /// Whether the peer has all that was sent.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.outgoing.acknowledged >= self.outgoing.last
    }

    /// Whether the peer has said that nothing more comes, and all before was taken.
    pub(crate) fn peer_finished(&self) -> bool {
        self.incoming.finished
    }

    /// Whether something waits for [`ResumableStream::next`].
    pub(crate) fn has_next(&self) -> bool {
        !self.incoming.ready.is_empty()
    }

    /// What has come next. Then [`ResumableStream::taken`] tells that it was taken.
    pub(crate) fn next(&mut self) -> Next<'_> {
        match self.incoming.ready.front() {
            None => Next::Nothing,
            Some(segment) if segment.is_last => Next::Finished,
            Some(segment) => Next::Bytes(segment.buffer.get(HEAD_BYTES..).unwrap_or_default()),
        }
    }

    pub(crate) fn taken(&mut self) {
        let Some(segment) = self.incoming.ready.pop_front() else {
            return;
        };
        self.incoming.bytes -= segment.buffer.len();
        self.incoming.finished |= segment.is_last;
        // Its memory is the thread's, as when it was lent.
        pool::with_spares(self, |stream| stream.give_back(segment));
    }

    /// Puts bytes before those that come.
    pub(crate) fn put_back(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let buffer = MsgBuf::from_slice(&[&[0; HEAD_BYTES], bytes].concat());
        self.incoming.bytes += buffer.len();
        self.incoming.ready.push_front(Segment {
            buffer,
            is_lent: false,
            is_last: false,
        });
    }

    fn give_back(&mut self, segment: Segment) {
        if segment.is_lent {
            self.endpoint.recycle(segment.buffer)
        } else {
            pool::give(segment.buffer)
        }
    }
}
