//! The receiving half: a parser that takes bytes as they come, in whatever pieces.
//!
//! ```text
//!            ┌──────────── body of 0 bytes, or its last byte ───────────┐
//!            ▼                                                          │
//! ──►  Header (40 bytes) ──► Body (into the call's block) ──────────────┤
//!                       ├──► Skip (of a call that has ended) ───────────┤
//!                       └──► Text (of a GO_AWAY) ───────────────────────┘
//! ```
//!
//! The destination of a message is taken when its first header is in, so that the rest can be read straight into it
//! ([`Connection::direct`]). That of a long one grows as it comes ([`arrival`]).

mod arrival;
mod saved;

use provost_compression::MessageEncoding;
use provost_datapath::{
    Body, Context, EncodedBody, MessageCompression, Nanos, Offsets, PrivateBytes, PrivateCharge, ReceiveHeap,
    ReceivedBody, Step, message_offset,
};
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::frame::{FrameHeader, HEADER_BYTES, frame_kind};
use provost_wire::limits::{CHUNK_BYTES_MAX, METADATA_BYTES_MAX};
use provost_wire::metadata;
use zerocopy::{FromBytes, IntoBytes};

use crate::calls::{BodyTarget, PartialStep};
use crate::connection::Connection;
use crate::handshake::{Encoding, MethodKind, REASON_BYTES_MAX};
use crate::legal::streams;
use crate::{ProtocolError, Role};
pub(crate) use arrival::ListeningClock;
use arrival::{ArrivalProgress, HEAP_FULL, SHARE_TAKEN};

/// A rest of a body of at least this many bytes is worth a read of its own straight into its block.
const DIRECT_BYTES_MIN: u32 = 4096;
/// Bytes of messages that have begun to come in on one connection, in largest messages.
const RECEIVING_MESSAGES_MAX: u64 = 2;
/// Longest time that a call may have left, in nanoseconds (292 years): more is a mistake.
const TIMEOUT_NS_MAX: u64 = i64::MAX as u64;

/// Where the parser is.
#[derive(Debug)]
pub(crate) struct FrameParser {
    state: ParserState,
    header: [u8; HEADER_BYTES],
    header_filled: usize,
    /// The highest call that the peer has begun.
    highest: u64,
    /// Bytes of all steps that have come in part.
    pub(crate) receiving_bytes: u64,
    /// Bytes of memory that they hold, counted with those of the peer's other connections to the app.
    pub(crate) held: PrivateCharge,
    progress: ArrivalProgress,
    /// Bytes of messages that have come whole, as far as they count for the room of the next ones.
    proven_bytes: u64,
    /// When the first of them must have come whole, on the clock of [`ListeningClock`].
    pub(crate) next_expiry: Nanos,
    text: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum ParserState {
    Header,
    Body { slot: u32, wire: u64, left: u32 },
    Skip { left: u32 },
    Text { left: u32, status: u32 },
}

impl FrameParser {
    pub(crate) fn new() -> FrameParser {
        FrameParser {
            state: ParserState::Header,
            header: [0; HEADER_BYTES],
            header_filled: 0,
            highest: 0,
            receiving_bytes: 0,
            held: PrivateBytes::of_peer().charge(0),
            progress: ArrivalProgress::default(),
            proven_bytes: 0,
            next_expiry: Nanos::MAX,
            text: Vec::new(),
        }
    }

    /// Skips what is left of the current frame if it belongs to this call.
    pub(crate) fn skip_body_of(&mut self, slot: u32, wire: u64) {
        if let ParserState::Body {
            slot: at,
            wire: of,
            left,
        } = self.state
            && (at, of) == (slot, wire)
        {
            self.state = ParserState::Skip { left };
        }
    }
}

impl Connection {
    /// Whether the parser stands between two frames, so that an end of the stream tears nothing apart.
    #[must_use]
    pub fn is_between_frames(&self) -> bool {
        matches!(self.parser.state, ParserState::Header) && self.parser.header_filled == 0
    }

    /// Takes bytes that have come.
    pub fn input(&mut self, mut bytes: &[u8], context: &mut Context<'_>) -> Result<(), ProtocolError> {
        self.peer_seen(context.now);
        self.listening.resume(context.now);
        // What comes after the end is of no call, and must begin none.
        while !bytes.is_empty() && !self.has_ended() {
            let used = match self.parser.state {
                ParserState::Header => self.take_header(bytes, context)?,
                ParserState::Body { slot, wire, left } => {
                    let used = bytes.len().min(left as usize);
                    self.copy_body(slot, wire, &bytes[..used], context);
                    self.body_came(used as u32, context)?;
                    used
                }
                ParserState::Skip { left } => {
                    let used = bytes.len().min(left as usize);
                    self.skipped(used as u32);
                    used
                }
                ParserState::Text { left, status } => {
                    let used = bytes.len().min(left as usize);
                    self.parser.text.extend_from_slice(&bytes[..used]);
                    self.text_came(left - used as u32, status)?;
                    used
                }
            };
            bytes = &bytes[used..];
        }
        self.hold_in_frame(context);
        Ok(())
    }

    /// Where the next bytes go, if they are so many that they are worth reading straight to their place. After a
    /// read, call [`Connection::direct_came`].
    pub fn direct<'a>(&'a mut self, receive: &'a mut dyn ReceiveHeap) -> Option<&'a mut [u8]> {
        let ParserState::Body { slot, wire, left } = self.parser.state else {
            return None;
        };
        if left < DIRECT_BYTES_MIN {
            return None;
        }
        let partial = self.calls.same_mut(slot, wire)?.partial.as_mut()?;
        let (from, end) = (partial.filled as usize, (partial.filled + left) as usize);
        match &mut partial.into {
            BodyTarget::Nowhere => None,
            BodyTarget::Block(block) => receive.bytes_mut(block).get_mut(from..end),
            BodyTarget::Private(buffer) => {
                if buffer.bytes.len() < end {
                    buffer.bytes.resize(end, 0);
                }
                buffer.bytes.get_mut(from..end)
            }
        }
    }

    /// Counts bytes that were read to where [`Connection::direct`] said.
    pub fn direct_came(&mut self, bytes: usize, context: &mut Context<'_>) -> Result<(), ProtocolError> {
        self.peer_seen(context.now);
        self.listening.resume(context.now);
        let ParserState::Body { slot, wire, left } = self.parser.state else {
            return Ok(());
        };
        let bytes = (bytes as u32).min(left);
        if let Some(partial) = self
            .calls
            .same_mut(slot, wire)
            .and_then(|call| call.partial.as_mut())
        {
            partial.filled += bytes;
        }
        self.body_came(bytes, context)
    }

    fn copy_body(&mut self, slot: u32, wire: u64, bytes: &[u8], context: &mut Context<'_>) {
        let Some(partial) = self
            .calls
            .same_mut(slot, wire)
            .and_then(|call| call.partial.as_mut())
        else {
            return;
        };
        let (from, end) = (partial.filled as usize, partial.filled as usize + bytes.len());
        partial.filled += bytes.len() as u32;
        match &mut partial.into {
            BodyTarget::Nowhere => {}
            BodyTarget::Block(block) => {
                if let Some(place) = context.receive.bytes_mut(block).get_mut(from..end) {
                    place.copy_from_slice(bytes);
                }
            }
            BodyTarget::Private(buffer) => {
                // A direct read that was cut short leaves room behind what has come.
                buffer.bytes.truncate(from);
                buffer.bytes.extend_from_slice(bytes);
            }
        }
    }

    fn body_came(&mut self, bytes: u32, context: &mut Context<'_>) -> Result<(), ProtocolError> {
        let ParserState::Body { slot, wire, left } = self.parser.state else {
            return Ok(());
        };
        self.parser.count_arrival(bytes);
        let left = left - bytes;
        if left > 0 {
            self.parser.state = ParserState::Body { slot, wire, left };
            return Ok(());
        }
        self.parser.state = ParserState::Header;
        let whole = |partial: &PartialStep| partial.filled == partial.total;
        if self
            .calls
            .same_mut(slot, wire)
            .and_then(|call| call.partial.as_ref())
            .is_some_and(whole)
        {
            self.complete(slot, context)
        } else {
            Ok(())
        }
    }

    fn skipped(&mut self, bytes: u32) {
        self.parser.state = match self.parser.state {
            ParserState::Skip { left } if left > bytes => ParserState::Skip { left: left - bytes },
            _ => ParserState::Header,
        };
    }

    fn text_came(&mut self, left: u32, status: u32) -> Result<(), ProtocolError> {
        self.parser.state = ParserState::Text { left, status };
        if left > 0 {
            return Ok(());
        }
        self.parser.state = ParserState::Header;
        let text = std::mem::take(&mut self.parser.text);
        match Code::from_number(status) {
            Code::Ok => {
                self.peer_drains = true;
                Ok(())
            }
            _ => Err(ProtocolError::PeerClosed {
                reason: String::from_utf8_lossy(&text).into_owned(),
            }),
        }
    }

    fn take_header(&mut self, bytes: &[u8], context: &mut Context<'_>) -> Result<usize, ProtocolError> {
        if self.parser.header_filled == 0
            && let Ok((header, _)) = FrameHeader::read_from_prefix(bytes)
        {
            self.frame(&header, context)?;
            return Ok(HEADER_BYTES);
        }
        let from = self.parser.header_filled;
        let used = bytes.len().min(HEADER_BYTES - from);
        self.parser.header[from..from + used].copy_from_slice(&bytes[..used]);
        self.parser.header_filled += used;
        if self.parser.header_filled == HEADER_BYTES {
            self.parser.header_filled = 0;
            let header = FrameHeader::read_from_bytes(&self.parser.header).unwrap_or_default();
            self.frame(&header, context)?;
        }
        Ok(used)
    }

    fn frame(&mut self, header: &FrameHeader, context: &mut Context<'_>) -> Result<(), ProtocolError> {
        match header.kind {
            frame_kind::STEP => self.step(header, context),
            frame_kind::CHUNK => self.chunk(header, context),
            frame_kind::PING => {
                check_plain(header, 0)?;
                self.outgoing.plain(frame_kind::PONG, Code::Ok, Vec::new());
                Ok(())
            }
            frame_kind::PONG => check_plain(header, 0),
            frame_kind::GO_AWAY => {
                check_plain(header, REASON_BYTES_MAX as u32)?;
                self.text_came(header.body_bytes.get(), header.status_or_window.get())
            }
            kind => Err(ProtocolError::Kind { kind }),
        }
    }

    fn step(&mut self, header: &FrameHeader, context: &mut Context<'_>) -> Result<(), ProtocolError> {
        self.check_step_header(header)?;
        let wire = header.call.get();
        let parts = header.parts;
        self.parser.state = ParserState::Skip {
            left: header.body_bytes.get(),
        };
        let slot = if parts.contains(Parts::BEGIN) && self.role == Role::Server {
            self.begin(header, context)?
        } else {
            self.find(wire)?
        };
        let Some(slot) = slot else {
            self.skipped(0);
            return Ok(());
        };
        // What waits to be sent in front of the status may wait for the window.
        if parts != Parts::WINDOW && self.role == Role::Server && self.status_is_on_its_way(slot) {
            if parts == Parts::CANCEL {
                self.drop_call(slot, context);
            }
            self.skipped(0);
            return Ok(());
        }
        self.count_step(slot, header)?;
        if parts == Parts::WINDOW {
            self.parser.state = ParserState::Header;
            return self.window(slot, header.status_or_window.get());
        }
        self.begin_body(slot, header, context)
    }

    /// Checks what a step's header says of itself.
    fn check_step_header(&self, header: &FrameHeader) -> Result<(), ProtocolError> {
        let call = header.call.get();
        let wrong = |what| Err(ProtocolError::Header { call, what });
        let (parts, message_bytes) = (header.parts, header.message_bytes.get());
        if header.compression.get() != 0 && !self.takes_compression(header) {
            return wrong("a compression that this end does not take, or without a message");
        }
        if !parts.contains(Parts::BEGIN) && (header.method.get() != 0 || header.timeout_ns.get() != 0) {
            return wrong("a method or timeout without BEGIN");
        }
        if header.timeout_ns.get() > TIMEOUT_NS_MAX {
            return wrong("a timeout of more than 292 years");
        }
        let with_status = Parts::STATUS | Parts::CANCEL | Parts::WINDOW;
        if !parts.intersects(with_status) && header.status_or_window.get() != 0 {
            return wrong("a status or window in a step that has none");
        }
        if header.metadata_bytes.get() > METADATA_BYTES_MAX {
            return wrong("the metadata is too long");
        }
        let bytes_max = self.limits.message_bytes_max;
        if message_bytes > bytes_max {
            return Err(ProtocolError::MessageTooLong {
                call,
                bytes: message_bytes,
                bytes_max,
            });
        }
        match parts.contains(Parts::MESSAGE) {
            false if message_bytes != 0 => return wrong("a message in a step that carries none"),
            true if message_bytes == 0 && self.encoding == Encoding::Native => {
                return wrong("a native message of no bytes");
            }
            _ => {}
        }
        let offset = message_offset(header.metadata_bytes.get()) as u32;
        let body_bytes = header.body_bytes.get();
        if body_bytes < offset || body_bytes > offset + message_bytes.min(CHUNK_BYTES_MAX) {
            return wrong("the body's length does not fit the metadata and the message");
        }
        Ok(())
    }

    /// Whether the message of a step may be compressed as its header says.
    fn takes_compression(&self, header: &FrameHeader) -> bool {
        self.limits.takes_compressed()
            && self.encoding == Encoding::Protobuf
            && header.parts.contains(Parts::MESSAGE)
            && MessageEncoding::of_number(header.compression.get()).is_some()
    }

    /// Makes a call that the client begins, or refuses it (the call, not the connection).
    fn begin(
        &mut self,
        header: &FrameHeader,
        context: &mut Context<'_>,
    ) -> Result<Option<u32>, ProtocolError> {
        let (call, highest) = (header.call.get(), self.parser.highest);
        if call <= highest {
            return Err(ProtocolError::CallOrder { call, highest });
        }
        self.parser.highest = call;
        let method = header.method.get();
        let Some(known) = self.methods.get(usize::from(method)).copied() else {
            return Err(ProtocolError::Method {
                call,
                method,
                methods: self.methods.len(),
            });
        };
        let Some((_, kind)) = known else {
            let reason = self.missing.reason(method);
            self.refuse(call, Code::Unimplemented, &reason, context);
            return Ok(None);
        };
        if self.draining {
            self.refuse(call, Code::Unavailable, "the server is shutting down", context);
            return Ok(None);
        }
        if self.calls.len() >= self.limits.calls_in_flight_max as usize {
            self.refuse(
                call,
                Code::ResourceExhausted,
                "too many calls in flight on this connection",
                context,
            );
            return Ok(None);
        }
        let (send, receive) = self.windows();
        Ok(Some(self.calls.insert_peers(call, kind, send, receive)))
    }

    /// Finds a call that has begun. Nothing: it has ended, and what still comes of it is skipped.
    fn find(&self, wire: u64) -> Result<Option<u32>, ProtocolError> {
        let (slot, known) = match self.role {
            Role::Client => (self.calls.find_own(wire), self.calls.was_own(wire)),
            Role::Server => (self.calls.find(wire), (1..=self.parser.highest).contains(&wire)),
        };
        if known {
            Ok(slot)
        } else {
            Err(ProtocolError::UnknownCall { call: wire })
        }
    }

    /// Checks that the step may come now, and counts it.
    fn count_step(&mut self, slot: u32, header: &FrameHeader) -> Result<(), ProtocolError> {
        let (wire, parts) = (header.call.get(), header.parts);
        let sender = self.role.peer();
        let Some(call) = self.calls.get_mut(slot) else {
            return Ok(());
        };
        let wrong = |what| {
            Err(ProtocolError::Parts {
                call: wire,
                parts,
                what,
            })
        };
        if call.partial.is_some() && !parts.intersects(Parts::WINDOW | Parts::CANCEL) {
            return wrong("it comes in the midst of a message of the same call");
        }
        if let Err(what) = call
            .received
            .check(sender, call.kind, parts, header.metadata_bytes.get())
        {
            return wrong(what);
        }
        if parts.contains(Parts::MESSAGE) && streams(sender, call.kind) {
            let window_bytes = call.receive_window;
            if window_bytes <= 0 {
                let what = "a message though the stream's window is used up";
                return Err(ProtocolError::Window {
                    call: wire,
                    what,
                    window_bytes,
                });
            }
            call.receive_window -= i64::from(Connection::window_cost(header.message_bytes.get()));
        }
        Ok(())
    }

    /// The peer has read what this end had sent of a stream.
    fn window(&mut self, slot: u32, bytes: u32) -> Result<(), ProtocolError> {
        let role = self.role;
        let Some(call) = self.calls.get_mut(slot) else {
            return Ok(());
        };
        let (wire, window_bytes) = (call.wire, call.send_window.available);
        let wrong = |what| {
            Err(ProtocolError::Window {
                call: wire,
                what,
                window_bytes,
            })
        };
        if !streams(role, call.kind) {
            return wrong("a window for messages that are no stream");
        }
        if bytes == 0 {
            return wrong("a window of no bytes");
        }
        let Some(app_bytes) = call.send_window.give_back(bytes) else {
            return wrong("more window given back than was taken");
        };
        if app_bytes > 0 && !call.sent.is_done() {
            let id = call.id;
            self.inbox.push_back(Step {
                window_bytes: app_bytes,
                ..Step::new(id, Parts::WINDOW)
            });
        }
        self.outgoing.take_turn(slot, call);
        Ok(())
    }

    /// Finds a place for a step's body, and begins to fill it.
    fn begin_body(
        &mut self,
        slot: u32,
        header: &FrameHeader,
        context: &mut Context<'_>,
    ) -> Result<(), ProtocolError> {
        let (parts, left, wire) = (header.parts, header.body_bytes.get(), header.call.get());
        if parts == Parts::CANCEL {
            // The message that was coming is given up.
            self.drop_partial(slot, context);
        }
        let (metadata_bytes, message_bytes) = (header.metadata_bytes.get(), header.message_bytes.get());
        let total = message_offset(metadata_bytes) as u32 + message_bytes;
        let (into, held_bytes) = match self.destination(parts, (left, total), context) {
            Ok(place) => place,
            Err(reason) => {
                self.refuse_message(slot, left, reason, context);
                return Ok(());
            }
        };
        let (begun_at, expires_at) = self.times_of(left, total, context.now);
        let sender = self.role.peer();
        let Some(call) = self.calls.get_mut(slot) else {
            return Ok(());
        };
        let windowed = parts.contains(Parts::MESSAGE) && streams(sender, call.kind);
        let with_status = parts.intersects(Parts::STATUS | Parts::CANCEL);
        call.partial = Some(PartialStep {
            parts,
            method: own_method(&self.methods, header.method.get()),
            status: if with_status {
                Code::from_number(header.status_or_window.get())
            } else {
                Code::Ok
            },
            deadline: deadline(context.now, header.timeout_ns.get()),
            window_cost: if windowed {
                Connection::window_cost(message_bytes)
            } else {
                0
            },
            metadata_bytes,
            message_bytes,
            encoding: MessageEncoding::of_number(header.compression.get()).unwrap_or_default(),
            filled: 0,
            total,
            into,
            held_bytes,
            begun_at,
            expires_at,
        });
        self.parser.receiving_bytes += u64::from(total);
        self.parser.hold_more(held_bytes);
        self.parser.state = ParserState::Body { slot, wire, left };
        match left {
            0 => self.body_came(0, context),
            _ => Ok(()),
        }
    }

    /// Ends a call whose message has no place, and skips what comes of it.
    fn refuse_message(&mut self, slot: u32, left: u32, reason: &str, context: &mut Context<'_>) {
        self.break_call(slot, Code::ResourceExhausted, reason, context);
        self.parser.state = ParserState::Skip { left };
        self.skipped(0);
    }

    /// A place for a body of which `left` bytes are in its first frame and `total` in all, and what it holds while it has come
    /// in part; or why there is none.
    fn destination(
        &mut self,
        parts: Parts,
        (left, total): (u32, u32),
        context: &mut Context<'_>,
    ) -> Result<(BodyTarget, u32), &'static str> {
        let bytes_max =
            RECEIVING_MESSAGES_MAX * u64::from(self.limits.message_bytes_max.max(METADATA_BYTES_MAX));
        if total == 0 {
            return Ok((BodyTarget::Nowhere, 0));
        }
        // That of a CANCEL, which comes in one frame, must not fail for want of memory.
        let is_cancel = parts == Parts::CANCEL;
        let receiving_bytes = self.parser.receiving_bytes + u64::from(total);
        if !is_cancel && receiving_bytes > bytes_max + u64::from(METADATA_BYTES_MAX) {
            return Err(SHARE_TAKEN);
        }
        // Metadata is the same in either encoding.
        let is_encoded = self.encoding == Encoding::Protobuf && parts.contains(Parts::MESSAGE);
        let is_private = is_cancel || is_encoded;
        let bytes = if is_private {
            left
        } else {
            self.parser.first_bytes(left, total, context.receive)
        };
        let held_bytes = if left == total { 0 } else { bytes };
        if held_bytes > 0 && !self.parser.share_has_room(held_bytes, context.receive) {
            return Err(SHARE_TAKEN);
        }
        if is_private {
            let mut buffer = context.buffers.take();
            arrival::charge(&mut buffer, held_bytes, context.receive);
            return Ok((BodyTarget::Private(buffer), held_bytes));
        }
        let block = context.receive.allocate(bytes).map_err(|_| HEAP_FULL)?;
        Ok((BodyTarget::Block(block), held_bytes))
    }

    fn chunk(&mut self, header: &FrameHeader, context: &mut Context<'_>) -> Result<(), ProtocolError> {
        let (call, left) = (header.call.get(), header.body_bytes.get());
        let plain = FrameHeader {
            body_bytes: header.body_bytes,
            kind: header.kind,
            call: header.call,
            ..FrameHeader::default()
        };
        if header.as_bytes() != plain.as_bytes() {
            return Err(ProtocolError::Header {
                call,
                what: "a field that has no meaning in a chunk is not zero",
            });
        }
        if left == 0 || left > CHUNK_BYTES_MAX {
            return Err(ProtocolError::Chunk {
                call,
                what: "it is empty or too long",
            });
        }
        let Some(slot) = self.find(call)? else {
            self.parser.state = ParserState::Skip { left };
            return Ok(());
        };
        let over = self.role == Role::Server && self.status_is_on_its_way(slot);
        match self.calls.get(slot).and_then(|call| call.partial.as_ref()) {
            Some(partial) if partial.total - partial.filled >= left => {
                match self.make_room(slot, left, context) {
                    Ok(()) => {
                        self.parser.state = ParserState::Body {
                            slot,
                            wire: call,
                            left,
                        }
                    }
                    Err(reason) => self.refuse_message(slot, left, reason, context),
                }
                Ok(())
            }
            None if over => {
                self.parser.state = ParserState::Skip { left };
                Ok(())
            }
            Some(_) => Err(ProtocolError::Chunk {
                call,
                what: "it goes past the end of the message",
            }),
            None => Err(ProtocolError::Chunk {
                call,
                what: "no message of the call is incomplete",
            }),
        }
    }

    /// A step is whole: checks what could not be checked before, and hands it over.
    fn complete(&mut self, slot: u32, context: &mut Context<'_>) -> Result<(), ProtocolError> {
        let Some(call) = self.calls.get_mut(slot) else {
            return Ok(());
        };
        let Some(partial) = &mut call.partial else {
            return Ok(());
        };
        check_metadata(call.wire, partial, context)?;
        self.parser.end_whole(partial);
        let ends = partial.parts.intersects(Parts::STATUS | Parts::CANCEL);
        let tell = partial.parts != Parts::CANCEL || call.announced;
        let step = take_step(call.id, partial, self.limits.message_bytes_max);
        call.partial = None;
        call.announced = true;
        if tell {
            self.inbox.push_back(step);
        } else if let Body::Encoded(body) = step.body {
            // The call had not come in whole, so the app has never heard of it.
            context.buffers.give(body.buffer);
        }
        if ends {
            self.drop_call(slot, context);
        }
        Ok(())
    }
}

fn check_plain(header: &FrameHeader, body_bytes_max: u32) -> Result<(), ProtocolError> {
    let plain = FrameHeader {
        body_bytes: header.body_bytes,
        kind: header.kind,
        status_or_window: if body_bytes_max > 0 {
            header.status_or_window
        } else {
            0.into()
        },
        ..FrameHeader::default()
    };
    if header.as_bytes() != plain.as_bytes() || header.body_bytes.get() > body_bytes_max {
        let what = "a field that has no meaning in a frame of this kind is not zero";
        return Err(ProtocolError::Header {
            call: header.call.get(),
            what,
        });
    }
    Ok(())
}

fn own_method(methods: &[Option<(u16, MethodKind)>], method: u16) -> u16 {
    methods
        .get(usize::from(method))
        .copied()
        .flatten()
        .map_or(0, |(own, _)| own)
}

fn deadline(now: Nanos, timeout_ns: u64) -> Nanos {
    match timeout_ns {
        0 => 0,
        _ => now.saturating_add(timeout_ns),
    }
}

fn check_metadata(
    call: u64,
    partial: &mut PartialStep,
    context: &mut Context<'_>,
) -> Result<(), ProtocolError> {
    let length = partial.metadata_bytes as usize;
    if length == 0 {
        return Ok(());
    }
    let bytes: &[u8] = match &mut partial.into {
        BodyTarget::Nowhere => &[],
        BodyTarget::Block(block) => context.receive.bytes_mut(block),
        BodyTarget::Private(buffer) => &buffer.bytes,
    };
    let block = bytes.get(..length).unwrap_or_default();
    let padding = bytes
        .get(length..message_offset(length as u32))
        .unwrap_or_default();
    if padding.iter().any(|byte| *byte != 0) {
        return Err(ProtocolError::Header {
            call,
            what: "the padding behind the metadata is not zero",
        });
    }
    metadata::check(block).map_err(|error| ProtocolError::Metadata { call, error })
}

/// Makes a step of what has come, whose place goes with it. What it brings compressed may have so many bytes without that.
fn take_step(id: u64, partial: &mut PartialStep, plain_bytes_max: u32) -> Step {
    let PartialStep {
        metadata_bytes,
        message_bytes,
        encoding,
        ..
    } = *partial;
    let body = match std::mem::replace(&mut partial.into, BodyTarget::Nowhere) {
        BodyTarget::Nowhere => Body::Empty,
        BodyTarget::Block(block) => Body::Received(ReceivedBody {
            added: None,
            block,
            metadata_bytes,
            message_bytes,
            offsets: Offsets::Message,
        }),
        BodyTarget::Private(buffer) => Body::Encoded(EncodedBody {
            buffer,
            metadata_bytes,
            message_bytes,
            compression: MessageCompression::new(encoding, plain_bytes_max),
        }),
    };
    Step {
        call: id,
        parts: partial.parts,
        method: partial.method,
        status: partial.status,
        window_bytes: partial.window_cost,
        deadline: partial.deadline,
        taken_at: 0,
        body,
    }
}
