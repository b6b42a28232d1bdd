//! The sending half: which frame goes next, and which memory it consists of.
//!
//! Three queues feed the wire. *Control* frames (windows, cancellations, pings) go first. Then come steps that fit
//! one frame, in the order in which their calls became ready. Then *bulk*: messages of several chunks, one chunk a
//! turn, round robin. Each round of [`SendHalf::fill`] takes from all three, so a small step waits for one chunk at
//! most, and bulk gets its share whatever the small ones do. The order of steps within a call is kept.
//!
//! A large message begins with a `STEP` that has none of its bytes: so calls begin in the order in which the app
//! began them, and their numbers increase on the wire.

mod saved;

use std::collections::VecDeque;

use provost_compression::MessageEncoding;
use provost_datapath::{Body, Buffer, Context, ForeignBytes, Nanos, Step, message_offset};
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::frame::{FrameHeader, HEADER_BYTES, frame_kind};
use provost_wire::limits::{CHUNK_BYTES_MAX, METADATA_BYTES_MAX, STREAM_MESSAGE_COST_BYTES};
use zerocopy::IntoBytes;

use crate::Role;
use crate::calls::{NONE, OpenCall, OpenCalls, SendTurn};
use crate::legal::streams;

/// Steps that wait to be sent before the connection takes no more.
pub(crate) const STEPS_MAX: usize = 4096;
/// Bytes in private buffers that wait to be sent before the connection takes no more.
pub(crate) const PRIVATE_BYTES_MAX: usize = 64 << 20;
/// Steps that wait for the windows of their streams before no more of those are taken that would wait, too. (Who heeds the
/// windows has few that wait: those whose messages are longer in the encoding of the wire.)
pub(crate) const HELD_STEPS_MAX: usize = 16 << 10;
/// The same, as bytes in private buffers.
pub(crate) const HELD_PRIVATE_BYTES_MAX: usize = 64 << 20;
/// Control frames that wait to be sent before the connection reads no more.
pub(crate) const CONTROL_FRAMES_MAX: usize = 4096;
/// A body of at most this many bytes is copied behind its header; a longer one is gathered.
const STAGED_BODY_BYTES_MAX: usize = 2048;
/// Small frames of one round, in bytes, before a chunk gets its turn.
const ROUND_BYTES_MAX: usize = CHUNK_BYTES_MAX as usize;

/// Bytes of a long message in a chunk: less than it may have, so that it is one packet of segmentation offload (64 KiB with all
/// that stands before it). The rest would be a small packet of its own.
const SENT_CHUNK_BYTES: usize = CHUNK_BYTES_MAX as usize - 1024;

const ZEROS: [u8; 8] = [0; 8];

/// A range of memory to be sent.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    Private(&'a [u8]),
    /// `length` bytes from byte `from` of memory that an app can write.
    Foreign {
        range: &'a ForeignBytes,
        /// Bytes to skip.
        from: u32,
        /// Bytes to send.
        length: u32,
    },
}

/// How much may wait for the socket at once.
#[derive(Clone, Copy, Debug)]
pub struct SocketBacklog {
    /// Bytes of frames past which no further round is added.
    pub bytes_max: usize,
    /// Pieces of memory likewise.
    pub pieces_max: usize,
}

/// A body on its way out, whatever it was made of.
#[derive(Debug, Default)]
pub(crate) struct OutBody {
    /// None where there is neither metadata nor a message.
    buffer: Option<Buffer>,
    metadata_bytes: u32,
    message_bytes: u32,
    /// How the message is compressed.
    encoding: MessageEncoding,
    token: u64,
}

impl OutBody {
    /// Takes a step's body; what is wrong with one that cannot be sent is for the app's ears.
    pub(crate) fn new(body: Body, parts: Parts, context: &mut Context<'_>) -> Result<OutBody, &'static str> {
        let mut body = match body {
            Body::Empty => OutBody::default(),
            Body::Gathered(gathered) => OutBody {
                buffer: Some(gathered.buffer),
                metadata_bytes: gathered.metadata_bytes,
                message_bytes: gathered.message_bytes,
                encoding: MessageEncoding::Identity,
                token: gathered.token,
            },
            Body::Encoded(encoded) => OutBody {
                encoding: encoded.encoding(),
                buffer: Some(encoded.buffer),
                metadata_bytes: encoded.metadata_bytes,
                message_bytes: encoded.message_bytes,
                token: 0,
            },
            Body::Untrusted(_) | Body::Received(_) => {
                body.discard(context);
                return Err("a message in this form cannot be sent");
            }
        };
        match body.check(parts) {
            Ok(()) => Ok(body),
            Err(reason) => {
                body.release(context);
                Err(reason)
            }
        }
    }

    pub(crate) fn metadata_bytes(&self) -> u32 {
        self.metadata_bytes
    }

    pub(crate) fn message_bytes(&self) -> u32 {
        self.message_bytes
    }

    fn check(&mut self, parts: Parts) -> Result<(), &'static str> {
        if self.metadata_bytes > METADATA_BYTES_MAX {
            return Err("the metadata is too long");
        }
        if self.message_bytes > 0 && !parts.contains(Parts::MESSAGE) {
            return Err("a message in a step that carries none");
        }
        let offset = message_offset(self.metadata_bytes);
        if self.bytes().len() < offset {
            self.buffer.get_or_insert_default().bytes.resize(offset, 0);
        }
        match self.buffer.as_ref().map_or(0, Buffer::linear_bytes) {
            length if length == (offset + self.message_bytes as usize) as u64 => Ok(()),
            _ => Err("the parts of the message do not add up to its length"),
        }
    }

    fn bytes(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer.bytes)
    }

    fn foreign(&self) -> &[ForeignBytes] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer.foreign)
    }

    /// Gives everything back: the memory to its pool, the token to the app.
    pub(crate) fn release(self, context: &mut Context<'_>) {
        if let Some(buffer) = self.buffer {
            context.buffers.give(buffer);
        }
        if self.token != 0 {
            context.sent.push(self.token);
        }
    }
}

/// A step that waits, or is on its way.
#[derive(Debug)]
struct OutStep {
    parts: Parts,
    method: u16,
    status_or_window: u32,
    deadline: Nanos,
    app_cost: u32,
    wire_cost: u32,
    body: OutBody,
    /// Bytes of the body that are in frames already, and where that is in the foreign ranges.
    at: SegmentCursor,
    started: bool,
    /// Whether segments were made that refer to the body.
    gathered: bool,
    next: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct SegmentCursor {
    body: usize,
    range: u32,
    in_range: u32,
}

impl OutStep {
    fn body_bytes(&self) -> usize {
        message_offset(self.body.metadata_bytes) + self.body.message_bytes as usize
    }

    fn fits_one_frame(&self) -> bool {
        self.body.message_bytes <= CHUNK_BYTES_MAX
    }
}

/// A frame without a place in a call's order.
#[derive(Debug)]
enum ControlFrame {
    Window { slot: u32, wire: u64 },
    Cancel { wire: u64, status: Code, body: OutBody },
    Plain { kind: u8, status: Code, text: Vec<u8> },
}

/// Memory that is in frames already and not yet sent.
#[derive(Debug)]
enum FramedMemory {
    /// The next bytes of `staging`.
    Staged(u32),
    Bytes {
        step: u32,
        from: u32,
        length: u32,
    },
    Foreign {
        step: u32,
        range: u32,
        from: u32,
        length: u32,
    },
    Zeros(u32),
    /// Nothing before this needs the step's memory any more.
    Done {
        step: u32,
    },
}

impl FramedMemory {
    fn length(&self) -> usize {
        match self {
            FramedMemory::Staged(length) | FramedMemory::Zeros(length) => *length as usize,
            FramedMemory::Bytes { length, .. } | FramedMemory::Foreign { length, .. } => *length as usize,
            FramedMemory::Done { .. } => 0,
        }
    }
}

/// The sending half of a connection.
#[derive(Debug)]
pub(crate) struct SendHalf {
    role: Role,
    steps: Vec<Option<OutStep>>,
    free: Vec<u32>,
    control: VecDeque<ControlFrame>,
    single: VecDeque<(u32, u64)>,
    bulk: VecDeque<(u32, u64)>,
    /// Entries of `single` and `bulk` whose call has ended since.
    stale: usize,
    segments: VecDeque<FramedMemory>,
    /// Bytes of the first segment that are sent.
    front_sent: usize,
    staging: Vec<u8>,
    staging_sent: usize,
    waiting_steps: usize,
    waiting_private_bytes: usize,
    waiting_body_bytes: usize,
    /// Steps that wait for the windows of their streams, and their private bytes.
    held_steps: usize,
    held_private_bytes: usize,
    /// What a predecessor owes the app for memory that was read when it was saved.
    tokens_due: Vec<u64>,
}

impl SendHalf {
    pub(crate) fn new(role: Role) -> SendHalf {
        SendHalf {
            role,
            steps: Vec::new(),
            free: Vec::new(),
            control: VecDeque::new(),
            single: VecDeque::new(),
            bulk: VecDeque::new(),
            stale: 0,
            segments: VecDeque::new(),
            front_sent: 0,
            staging: Vec::new(),
            staging_sent: 0,
            waiting_steps: 0,
            waiting_private_bytes: 0,
            waiting_body_bytes: 0,
            held_steps: 0,
            held_private_bytes: 0,
            tokens_due: Vec::new(),
        }
    }

    /// Whether another step may be queued. Steps that wait for a stream's window do not count: one stream must not stop the
    /// others. They are bounded by [`SendHalf::holds_enough`].
    pub(crate) fn has_room(&self) -> bool {
        self.waiting_steps < STEPS_MAX && self.waiting_private_bytes < PRIVATE_BYTES_MAX
    }

    /// Whether so much waits for the windows of streams that nothing more may.
    pub(crate) fn holds_enough(&self) -> bool {
        self.held_steps >= HELD_STEPS_MAX || self.held_private_bytes >= HELD_PRIVATE_BYTES_MAX
    }

    /// Bytes of bodies of which some are not in frames yet; those that wait for a stream's window do not count.
    pub(crate) fn waiting_body_bytes(&self) -> usize {
        self.waiting_body_bytes
    }

    pub(crate) fn control_has_room(&self) -> bool {
        self.control.len() < CONTROL_FRAMES_MAX
    }

    /// Whether nothing waits and nothing is on its way.
    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty() && !self.has_frames()
    }

    /// Whether nothing is in frames that was not sent.
    pub(crate) fn is_between_frames(&self) -> bool {
        self.segments.is_empty()
    }

    /// Whether [`SendHalf::fill`] would find something.
    pub(crate) fn has_frames(&self) -> bool {
        !(self.control.is_empty() && self.single.is_empty() && self.bulk.is_empty())
    }

    /// Queues a step behind those of its call.
    pub(crate) fn push(&mut self, slot: u32, call: &mut OpenCall, step: &Step, body: OutBody) {
        let message = step.parts.contains(Parts::MESSAGE);
        let windowed = message && streams(self.role, call.kind);
        let wire_cost = if windowed {
            body.message_bytes.saturating_add(STREAM_MESSAGE_COST_BYTES)
        } else {
            0
        };
        let app_cost = if step.window_bytes == 0 {
            wire_cost
        } else {
            step.window_bytes
        };
        let out = OutStep {
            parts: step.parts,
            method: step.method,
            status_or_window: step.status.number(),
            deadline: step.deadline,
            app_cost,
            wire_cost,
            body,
            at: SegmentCursor::default(),
            started: false,
            gathered: false,
            next: NONE,
        };
        self.append(call, out);
        self.take_turn(slot, call);
    }

    /// Puts a step behind those of its call, and counts it.
    fn append(&mut self, call: &mut OpenCall, out: OutStep) {
        call.pending.cost_bytes += u64::from(out.wire_cost);
        call.pending.private_bytes += out.body.bytes().len();
        call.pending.body_bytes += out.body_bytes();
        call.pending.steps += 1;
        if call.pending.turn == SendTurn::Held {
            self.held_steps += 1;
            self.held_private_bytes += out.body.bytes().len();
        } else {
            self.waiting_steps += 1;
            self.waiting_private_bytes += out.body.bytes().len();
            self.waiting_body_bytes += out.body_bytes();
        }
        let at = self.store(out);
        match call.pending.tail {
            NONE => call.pending.head = at,
            tail => {
                if let Some(tail) = self.step_mut(tail) {
                    tail.next = at;
                }
            }
        }
        call.pending.tail = at;
    }

    /// Puts a call in the ready queue that its next step belongs in, or holds it if that step must wait.
    pub(crate) fn take_turn(&mut self, slot: u32, call: &mut OpenCall) {
        if call.pending.turn == SendTurn::Queued {
            return;
        }
        let Some(head) = self.step(call.pending.head) else {
            self.set_turn(call, SendTurn::Idle);
            return;
        };
        if head.wire_cost > 0 && !head.started && call.send_window.available <= 0 {
            self.set_turn(call, SendTurn::Held);
            return;
        }
        let bulk = head.started;
        self.set_turn(call, SendTurn::Queued);
        if bulk {
            self.bulk.push_back((slot, call.wire))
        } else {
            self.single.push_back((slot, call.wire))
        }
    }

    fn set_turn(&mut self, call: &mut OpenCall, turn: SendTurn) {
        let (steps, bytes) = (call.pending.steps as usize, call.pending.private_bytes);
        let body_bytes = call.pending.body_bytes;
        match (call.pending.turn == SendTurn::Held, turn == SendTurn::Held) {
            (false, true) => {
                self.waiting_steps -= steps;
                self.waiting_private_bytes -= bytes;
                self.waiting_body_bytes -= body_bytes;
                self.held_steps += steps;
                self.held_private_bytes += bytes;
            }
            (true, false) => {
                self.held_steps -= steps;
                self.held_private_bytes -= bytes;
                self.waiting_steps += steps;
                self.waiting_private_bytes += bytes;
                self.waiting_body_bytes += body_bytes;
            }
            _ => {}
        }
        call.pending.turn = turn;
    }

    /// Forgets what waits of a call that has ended. What is in frames already is still sent.
    pub(crate) fn forget(&mut self, call: &mut OpenCall, context: &mut Context<'_>) {
        if call.pending.turn == SendTurn::Queued {
            self.stale += 1;
        }
        self.set_turn(call, SendTurn::Idle);
        while call.pending.head != NONE {
            let at = self.unlink_head(call);
            self.finish(at, context);
        }
    }

    /// Drops the entries of ended calls once they are most of the ready queues; so these stay bounded by the calls
    /// in flight even while nothing can be sent.
    pub(crate) fn sweep(&mut self, calls: &mut OpenCalls) {
        if self.stale > 64 && self.stale * 2 > self.single.len() + self.bulk.len() {
            self.single
                .retain(|(slot, wire)| calls.same_mut(*slot, *wire).is_some());
            self.bulk
                .retain(|(slot, wire)| calls.same_mut(*slot, *wire).is_some());
            self.stale = 0;
        }
    }

    /// Queues a `CANCEL` for the peer.
    pub(crate) fn cancel(&mut self, wire: u64, status: Code, body: OutBody) {
        self.control
            .push_back(ControlFrame::Cancel { wire, status, body });
    }

    /// Queues a `WINDOW` for the peer; all that becomes due until it is sent goes with it.
    pub(crate) fn window(&mut self, slot: u32, call: &mut OpenCall) {
        if !call.window_queued {
            call.window_queued = true;
            self.control.push_back(ControlFrame::Window {
                slot,
                wire: call.wire,
            });
        }
    }

    /// Queues a frame that belongs to no call.
    pub(crate) fn plain(&mut self, kind: u8, status: Code, text: Vec<u8>) {
        self.control.push_back(ControlFrame::Plain { kind, status, text });
    }

    /// Forgets all that waits and all that is on its way: the connection is gone.
    pub(crate) fn abandon(&mut self, context: &mut Context<'_>) {
        context.sent.append(&mut self.tokens_due);
        while let Some(control) = self.control.pop_front() {
            if let ControlFrame::Cancel { body, .. } = control {
                body.release(context);
            }
        }
        self.single.clear();
        self.bulk.clear();
        self.stale = 0;
        while let Some(segment) = self.segments.pop_front() {
            if let FramedMemory::Done { step } = segment {
                self.free_step(step, context);
            }
        }
        self.front_sent = 0;
        self.release_staging(context);
    }

    /// Puts the next frames in front of the socket, unless enough is there. Calls whose last step is in frames are
    /// named in `ended`.
    pub(crate) fn fill(&mut self, calls: &mut OpenCalls, context: &mut Context<'_>, ended: &mut Vec<u32>) {
        context.sent.append(&mut self.tokens_due);
        if self.segments.is_empty() && self.has_frames() {
            self.round(calls, context, ended);
        }
    }

    /// The same, but puts round after round there until so many bytes wait, or so many pieces. (What was put there is
    /// sent whole before more is: only then the memory of its headers is used again.)
    pub(crate) fn fill_several(
        &mut self,
        calls: &mut OpenCalls,
        context: &mut Context<'_>,
        ended: &mut Vec<u32>,
        waiting: SocketBacklog,
    ) {
        context.sent.append(&mut self.tokens_due);
        if !self.segments.is_empty() {
            return;
        }
        while self.has_frames()
            && self.segments.len() < waiting.pieces_max
            && self.waiting_frame_bytes() < waiting.bytes_max
        {
            self.round(calls, context, ended);
        }
    }

    /// Bytes of frames that wait for the socket.
    pub(crate) fn waiting_frame_bytes(&self) -> usize {
        self.segments.iter().map(FramedMemory::length).sum()
    }

    /// A round: control frames, steps that fit one frame, one chunk.
    fn round(&mut self, calls: &mut OpenCalls, context: &mut Context<'_>, ended: &mut Vec<u32>) {
        if self.staging.capacity() == 0 {
            self.staging = context.buffers.take_for_frames();
        }
        let mut bytes = 0;
        while bytes < ROUND_BYTES_MAX
            && let Some(control) = self.control.pop_front()
        {
            bytes += self.frame_control(control, calls, context);
        }
        while bytes < ROUND_BYTES_MAX
            && let Some((slot, wire)) = self.single.pop_front()
        {
            bytes += self.frame_step(calls, (slot, wire), context, ended);
        }
        if let Some((slot, wire)) = self.bulk.pop_front() {
            self.frame_step(calls, (slot, wire), context, ended);
        }
    }

    fn frame_control(
        &mut self,
        control: ControlFrame,
        calls: &mut OpenCalls,
        context: &mut Context<'_>,
    ) -> usize {
        let before = self.staging.len();
        match control {
            ControlFrame::Window { slot, wire } => {
                let Some(call) = calls.same_mut(slot, wire) else {
                    return 0;
                };
                call.window_queued = false;
                let header = FrameHeader {
                    kind: frame_kind::STEP,
                    parts: Parts::WINDOW,
                    call: wire.into(),
                    status_or_window: std::mem::take(&mut call.window_due).into(),
                    ..FrameHeader::default()
                };
                self.stage(header, &[]);
            }
            ControlFrame::Cancel { wire, status, body } => {
                let header = FrameHeader {
                    body_bytes: (body.bytes().len() as u32).into(),
                    kind: frame_kind::STEP,
                    parts: Parts::CANCEL,
                    call: wire.into(),
                    metadata_bytes: body.metadata_bytes.into(),
                    status_or_window: status.number().into(),
                    ..FrameHeader::default()
                };
                self.stage(header, body.bytes());
                body.release(context);
            }
            ControlFrame::Plain { kind, status, text } => {
                let header = FrameHeader {
                    body_bytes: (text.len() as u32).into(),
                    kind,
                    status_or_window: status.number().into(),
                    ..FrameHeader::default()
                };
                self.stage(header, &text);
            }
        }
        self.staging.len() - before
    }

    fn stage(&mut self, header: FrameHeader, body: &[u8]) {
        self.staging.extend_from_slice(header.as_bytes());
        self.staging.extend_from_slice(body);
        self.count_staged((HEADER_BYTES + body.len()) as u32);
    }

    fn count_staged(&mut self, length: u32) {
        match self.segments.back_mut() {
            Some(FramedMemory::Staged(staged)) => *staged += length,
            _ => self.segments.push_back(FramedMemory::Staged(length)),
        }
    }

    /// Makes one frame of a call's next step: the whole step, or its next chunk.
    fn frame_step(
        &mut self,
        calls: &mut OpenCalls,
        (slot, wire): (u32, u64),
        context: &mut Context<'_>,
        ended: &mut Vec<u32>,
    ) -> usize {
        let Some(call) = calls.same_mut(slot, wire) else {
            self.stale = self.stale.saturating_sub(1);
            return 0;
        };
        self.set_turn(call, SendTurn::Idle);
        let at = call.pending.head;
        let Some(step) = self.steps.get_mut(at as usize).and_then(Option::as_mut) else {
            return 0;
        };
        let (header, length) = if step.started {
            next_chunk(step, wire)
        } else {
            first_frame(step, wire, context.now)
        };
        if !step.started && step.wire_cost > 0 {
            call.send_window.take(step.wire_cost, step.app_cost);
        }
        step.started = true;
        call.pending.begun = true;
        let whole = step.at.body + length == step.body_bytes();
        let last = whole && call.sent.is_done() && step.next == NONE;
        let (role, parts) = (self.role, step.parts);
        self.put_body(at, header, length);
        if whole {
            self.unlink_head(call);
            self.finish(at, context);
        }
        self.take_turn(slot, call);
        if last && role == Role::Server && parts.contains(Parts::STATUS) {
            ended.push(slot);
        }
        HEADER_BYTES + length
    }

    fn put_body(&mut self, at: u32, header: FrameHeader, length: usize) {
        let Some(step) = self.steps.get_mut(at as usize).and_then(Option::as_mut) else {
            return;
        };
        let from = step.at.body;
        let private = step.body.bytes().len();
        if length <= STAGED_BODY_BYTES_MAX && from + length <= private {
            step.at.body += length;
            self.staging.extend_from_slice(header.as_bytes());
            self.staging
                .extend_from_slice(&step.body.bytes()[from..from + length]);
            return self.count_staged((HEADER_BYTES + length) as u32);
        }
        let mut cursor = step.at;
        let end = from + length;
        self.stage(header, &[]);
        while cursor.body < end {
            let Some(step) = self.steps.get(at as usize).and_then(Option::as_ref) else {
                return;
            };
            let segment = next_segment(step, at, &mut cursor, end);
            self.segments.push_back(segment);
        }
        if let Some(step) = self.step_mut(at) {
            step.at = cursor;
            step.gathered = true;
        }
    }

    /// Takes the first step out of a call's list.
    fn unlink_head(&mut self, call: &mut OpenCall) -> u32 {
        let at = call.pending.head;
        let Some(step) = self.steps.get(at as usize).and_then(Option::as_ref) else {
            call.pending.head = NONE;
            return at;
        };
        let (bytes, body_bytes) = (step.body.bytes().len(), step.body_bytes());
        call.pending.head = step.next;
        if step.next == NONE {
            call.pending.tail = NONE;
        }
        call.pending.steps -= 1;
        call.pending.private_bytes -= bytes;
        call.pending.body_bytes -= body_bytes;
        call.pending.cost_bytes -= u64::from(step.wire_cost);
        if call.pending.turn == SendTurn::Held {
            self.held_steps -= 1;
            self.held_private_bytes -= bytes;
        } else {
            self.waiting_steps -= 1;
            self.waiting_private_bytes -= bytes;
            self.waiting_body_bytes -= body_bytes;
        }
        at
    }

    /// Frees a step as soon as no segment refers to its memory.
    fn finish(&mut self, at: u32, context: &mut Context<'_>) {
        let gathered = self.step(at).is_some_and(|step| step.gathered);
        if gathered && !self.segments.is_empty() {
            self.segments.push_back(FramedMemory::Done { step: at });
        } else {
            self.free_step(at, context);
        }
    }

    fn free_step(&mut self, at: u32, context: &mut Context<'_>) {
        if let Some(step) = self.steps.get_mut(at as usize).and_then(Option::take) {
            step.body.release(context);
            self.free.push(at);
        }
    }

    fn store(&mut self, step: OutStep) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.steps[at as usize] = Some(step);
                at
            }
            None => {
                self.steps.push(Some(step));
                self.steps.len() as u32 - 1
            }
        }
    }

    fn step(&self, at: u32) -> Option<&OutStep> {
        self.steps.get(at as usize)?.as_ref()
    }

    fn step_mut(&mut self, at: u32) -> Option<&mut OutStep> {
        self.steps.get_mut(at as usize)?.as_mut()
    }

    /// The memory that is to be sent next, in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let mut staged_at = self.staging_sent;
        let mut skip = self.front_sent;
        self.segments.iter().filter_map(move |segment| {
            let skipped = std::mem::take(&mut skip);
            if let FramedMemory::Staged(length) = segment {
                let from = staged_at;
                // The front's sent bytes are in `staging_sent` already.
                staged_at += *length as usize - skipped;
                return self.staging.get(from..staged_at).map(Piece::Private);
            }
            self.piece(segment, skipped)
        })
    }

    fn piece(&self, segment: &FramedMemory, skipped: usize) -> Option<Piece<'_>> {
        match segment {
            FramedMemory::Staged(_) | FramedMemory::Done { .. } => None,
            FramedMemory::Zeros(length) => ZEROS.get(skipped..*length as usize).map(Piece::Private),
            FramedMemory::Bytes { step, from, length } => {
                let (from, end) = (*from as usize + skipped, (*from + *length) as usize);
                let bytes = self.step(*step)?.body.bytes();
                bytes.get(from..end).map(Piece::Private)
            }
            FramedMemory::Foreign {
                step,
                range,
                from,
                length,
            } => Some(Piece::Foreign {
                range: self.step(*step)?.body.foreign().get(*range as usize)?,
                from: from + skipped as u32,
                length: length - skipped as u32,
            }),
        }
    }

    /// Counts bytes that were sent, and gives back the memory that is not needed any more.
    pub(crate) fn advance(&mut self, bytes: usize, context: &mut Context<'_>) {
        let mut left = bytes;
        while let Some(front) = self.segments.front() {
            let rest = front.length() - self.front_sent;
            let sent = rest.min(left);
            if let FramedMemory::Staged(_) = front {
                self.staging_sent += sent;
            }
            left -= sent;
            if sent < rest {
                self.front_sent += sent;
                return;
            }
            self.front_sent = 0;
            if let Some(FramedMemory::Done { step }) = self.segments.pop_front() {
                self.free_step(step, context);
            }
        }
        self.release_staging(context);
    }

    fn release_staging(&mut self, context: &mut Context<'_>) {
        self.staging_sent = 0;
        if self.staging.capacity() > 0 {
            context.buffers.give_for_frames(std::mem::take(&mut self.staging));
        }
    }
}

/// The `STEP` frame of a step, and how much of its body goes with it.
fn first_frame(step: &OutStep, wire: u64, now: Nanos) -> (FrameHeader, usize) {
    let begins = step.parts.contains(Parts::BEGIN);
    let length = if step.fits_one_frame() {
        step.body_bytes()
    } else {
        message_offset(step.body.metadata_bytes)
    };
    let header = FrameHeader {
        body_bytes: (length as u32).into(),
        kind: frame_kind::STEP,
        parts: step.parts,
        method: if begins { step.method } else { 0 }.into(),
        call: wire.into(),
        metadata_bytes: step.body.metadata_bytes.into(),
        message_bytes: step.body.message_bytes.into(),
        compression: step.body.encoding.number().into(),
        status_or_window: if step.parts.contains(Parts::STATUS) {
            step.status_or_window
        } else {
            0
        }
        .into(),
        timeout_ns: match step.deadline {
            // The frame's timeouts end at 292 years; an app may name a later deadline.
            deadline if begins && deadline != 0 => deadline.saturating_sub(now).clamp(1, i64::MAX as u64),
            _ => 0,
        }
        .into(),
    };
    (header, length)
}

fn next_chunk(step: &OutStep, wire: u64) -> (FrameHeader, usize) {
    let length = (step.body_bytes() - step.at.body).min(SENT_CHUNK_BYTES);
    let header = FrameHeader {
        body_bytes: (length as u32).into(),
        kind: frame_kind::CHUNK,
        call: wire.into(),
        ..FrameHeader::default()
    };
    (header, length)
}

/// The next run of a step's body that lies in one place, up to byte `end` of the body.
fn next_segment(step: &OutStep, at: u32, cursor: &mut SegmentCursor, end: usize) -> FramedMemory {
    let wanted = end - cursor.body;
    let private = step.body.bytes().len();
    if cursor.body < private {
        let length = wanted.min(private - cursor.body);
        let segment = FramedMemory::Bytes {
            step: at,
            from: cursor.body as u32,
            length: length as u32,
        };
        cursor.body += length;
        return segment;
    }
    let Some(range) = step.body.foreign().get(cursor.range as usize) else {
        // Not reached: the lengths were checked. Zeros keep the frame whole.
        cursor.body = end;
        return FramedMemory::Zeros(wanted.min(ZEROS.len()) as u32);
    };
    let padded = range.len().next_multiple_of(8);
    let (from, limit) = (
        cursor.in_range,
        if cursor.in_range < range.len() {
            range.len()
        } else {
            padded
        },
    );
    let length = wanted.min((limit - from) as usize) as u32;
    cursor.body += length as usize;
    cursor.in_range += length;
    let segment = if limit == range.len() && from < limit {
        FramedMemory::Foreign {
            step: at,
            range: cursor.range,
            from,
            length,
        }
    } else {
        FramedMemory::Zeros(length)
    };
    if cursor.in_range == padded {
        cursor.range += 1;
        cursor.in_range = 0;
    }
    segment
}
