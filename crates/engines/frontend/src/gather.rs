//! From what an app claims to checked private copies, within shares of memory and of the runtime's time.
//!
//! A message may name the same bytes many times, so that a short one is copied for long and takes much: what counts is
//! what is copied and held. Where a share is used up, the app's steps wait in their order; its cancellations do not.

use std::cell::RefCell;
use std::sync::Arc;

use provost_datapath::{
    Body, Buffer, Context, ForeignBytes, Gathered, Nanos, Step, UNCOUNTED_BYTES_MAX, Untrusted,
};
use provost_marshal::{GatherError, Leaf, MessageError};
use provost_schema::MessageId;
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::{
    GATHER_SEGMENTS_MAX, MESSAGE_BYTES_MAX, METADATA_BYTES_MAX, STREAM_MESSAGE_COST_BYTES,
};

use crate::Frontend;
use crate::engine::{CallFailure, Directions, MessageDirection, message_bytes, return_token};
use crate::legal;

thread_local! {
    /// Of the message that is gathered; room for as many as there may be once there was one. It serves all connections of a thread.
    static LEAVES: RefCell<Vec<Leaf>> = const { RefCell::new(Vec::new()) };
}

/// Bytes that one poll copies before it ends, whether or not anything came of them. (The message that goes past it is
/// copied whole.)
pub(crate) const POLL_COPY_BYTES_MAX: u64 = 1 << 20;
/// The longest message that is copied in a round of the runtime that has copied enough, in bytes.
const SMALL_COPY_BYTES_MAX: u64 = 64 << 10;
/// How soon room is looked for again where others hold it.
const ROOM_RETRY_NS: Nanos = 1_000_000;

/// What one poll copies.
pub(crate) struct CopyTurn {
    copied_bytes: u64,
    /// The longest message that may be copied now.
    message_bytes_max: u32,
    shortage: CopyShortage,
}

/// What the app's next step waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyShortage {
    Nothing,
    /// Messages on their way, of this app or of others, hold the memory.
    Memory,
    /// The round has copied enough.
    Time,
}

impl CopyTurn {
    /// Whether the poll has copied as much as it may.
    pub(crate) fn is_over(&self) -> bool {
        self.copied_bytes >= POLL_COPY_BYTES_MAX
    }

    /// Whether the first step that waits, waits for a share.
    pub(crate) fn is_short(&self) -> bool {
        self.shortage != CopyShortage::Nothing
    }
}

/// Why a message was not gathered.
enum NotGathered {
    /// The call that it belongs to fails.
    Failed(CallFailure),
    /// It is longer than what may be copied now, and waits.
    LongerThanNow,
}

impl Frontend {
    /// Begins a poll's copying.
    pub(crate) fn begin_copying(&mut self, context: &Context<'_>) -> CopyTurn {
        self.retry_at = None;
        CopyTurn {
            copied_bytes: 0,
            message_bytes_max: self.message_bytes_now(context),
            shortage: CopyShortage::Nothing,
        }
    }

    /// Ends it; whether the datapath is to be polled again soon.
    pub(crate) fn end_copying(&mut self, copying: &CopyTurn, context: &mut Context<'_>) -> bool {
        context.buffers.note_copied(copying.copied_bytes, context.now);
        match copying.shortage {
            CopyShortage::Nothing => copying.is_over(),
            CopyShortage::Time => true,
            CopyShortage::Memory => {
                self.retry_at = Some(context.now + ROOM_RETRY_NS);
                false
            }
        }
    }

    /// How long a message may be that is copied now, as far as memory and the runtime's round allow.
    fn message_bytes_now(&self, context: &Context<'_>) -> u32 {
        let by_memory = self.share.message_bytes_now();
        let by_time = if context.buffers.has_copied_enough(context.now) {
            SMALL_COPY_BYTES_MAX
        } else {
            u64::MAX
        };
        // No more than the limit, which is a u32.
        u64::from(self.message_bytes_limit()).min(by_memory).min(by_time) as u32
    }

    /// How long a message may be at all.
    fn message_bytes_limit(&self) -> u32 {
        self.parts.message_bytes_max.min(MESSAGE_BYTES_MAX)
    }

    /// What a step waits for whose message is longer than what may be copied now.
    fn shortage(&self) -> CopyShortage {
        if self.share.message_bytes_now() > u64::from(self.front_longer_than) {
            CopyShortage::Time
        } else {
            CopyShortage::Memory
        }
    }

    /// Copies what the step claims, checks it, and sends it on; or puts it back in front of those that wait. Says whether
    /// anything moved. There is room in `tx_out`.
    pub(crate) fn gather(
        &mut self,
        mut step: Step,
        copying: &mut CopyTurn,
        directions: &mut Directions<'_>,
        context: &mut Context<'_>,
    ) -> bool {
        let Some(call) = self.calls.get_mut(step.call) else {
            return_token(&step.body, context);
            self.front_longer_than = 0;
            return true;
        };
        step.method = call.method;
        let shape = self.parts.methods[usize::from(call.method)];
        let method = MessageDirection::of_app(self.parts.role, shape);
        if let Err(violation) = legal::check_app_step(call, method.streaming, &step) {
            self.refuse(step, violation.into(), directions, context);
            return true;
        }
        match self.gather_body(&mut step, method.message, copying, context) {
            Ok(()) => {}
            Err(NotGathered::Failed(failure)) => {
                return_token(&step.body, context);
                self.front_longer_than = 0;
                self.fail(step.call, &failure, directions, context);
                return true;
            }
            Err(NotGathered::LongerThanNow) => {
                copying.shortage = self.shortage();
                self.waiting.push_front(step);
                return false;
            }
        }
        self.front_longer_than = 0;
        self.account(&mut step, method.streaming);
        if step.parts.contains(Parts::STATUS) {
            self.remove(step.call);
        }
        // Cannot be refused: `outbound` saw the room.
        let _ = directions.tx_out.push(step);
        true
    }

    /// Counts a step that the app may take.
    fn account(&mut self, step: &mut Step, streaming: bool) {
        let Some(call) = self.calls.get_mut(step.call) else {
            return;
        };
        call.on_wire = true;
        if step.parts.contains(Parts::WINDOW) {
            call.unread_bytes = call.unread_bytes.saturating_sub(u64::from(step.window_bytes));
        }
        if step.parts.contains(Parts::MESSAGE) {
            call.app_messages = 1;
            if streaming {
                // The app may count its messages as larger than they are, not as smaller.
                let cost = message_bytes(&step.body).saturating_add(STREAM_MESSAGE_COST_BYTES);
                step.window_bytes = step.window_bytes.max(cost);
                call.send_window -= i64::from(step.window_bytes);
            } else {
                step.window_bytes = 0;
            }
        }
        call.app_ended |= step.parts.contains(Parts::END);
    }

    /// Puts what the step claims in the claim's place; if that is not to be, the claim stays.
    fn gather_body(
        &mut self,
        step: &mut Step,
        message: MessageId,
        copying: &mut CopyTurn,
        context: &mut Context<'_>,
    ) -> Result<(), NotGathered> {
        let Body::Untrusted(untrusted) = step.body else {
            return Ok(());
        };
        if untrusted.metadata_bytes == 0 && !step.parts.contains(Parts::MESSAGE) {
            return_token(&step.body, context);
            step.body = Body::Empty;
            return Ok(());
        }
        if copying.message_bytes_max <= self.front_longer_than {
            return Err(NotGathered::LongerThanNow);
        }
        let mut buffer = context.buffers.take();
        let message_bytes = match self.gather_into(untrusted, step.parts, message, copying, &mut buffer) {
            Ok(message_bytes) => message_bytes,
            Err(not_gathered) => {
                context.buffers.give(buffer);
                return Err(not_gathered);
            }
        };
        if self.charge(&mut buffer, message_bytes) {
            copying.message_bytes_max = self.message_bytes_now(context);
        }
        let mut token = untrusted.token;
        if buffer.foreign.is_empty() && token != 0 {
            // All of it was copied: the app has its memory back already.
            context.sent.push(token);
            token = 0;
        }
        step.body = Body::Gathered(Gathered {
            buffer,
            metadata_bytes: untrusted.metadata_bytes,
            message_bytes,
            token,
        });
        Ok(())
    }

    /// Counts a buffer in the connection's share, unless it is small; says whether it did. What the buffer names of the
    /// app's memory counts too, since engines may copy it.
    fn charge(&self, buffer: &mut Buffer, message_bytes: u32) -> bool {
        let named = if buffer.foreign.is_empty() {
            0
        } else {
            u64::from(message_bytes)
        };
        let held = buffer.bytes.capacity() as u64 + named;
        if held > UNCOUNTED_BYTES_MAX {
            buffer.charge = Some(self.share.charge(held));
        }
        buffer.charge.is_some()
    }

    fn gather_into(
        &mut self,
        untrusted: Untrusted,
        parts: Parts,
        message: MessageId,
        copying: &mut CopyTurn,
        buffer: &mut Buffer,
    ) -> Result<u32, NotGathered> {
        let failed = |failure: CallFailure| Err(NotGathered::Failed(failure));
        let source = self.parts.send_heap.region();
        if untrusted.metadata_bytes != 0 {
            if untrusted.metadata_bytes > METADATA_BYTES_MAX {
                let reason = format!(
                    "metadata of {} bytes is over the limit of {METADATA_BYTES_MAX}",
                    untrusted.metadata_bytes
                );
                return failed(CallFailure::new(Code::ResourceExhausted, reason));
            }
            copying.copied_bytes += u64::from(untrusted.metadata_bytes);
            let copied = source.copy(untrusted.metadata, untrusted.metadata_bytes, &mut buffer.bytes);
            copied.map_err(|error| NotGathered::Failed(error.into()))?;
            if let Err(error) = legal::check_app_metadata(&buffer.bytes, parts) {
                return failed(CallFailure::new(Code::InvalidArgument, error.to_string()));
            }
        }
        if !parts.contains(Parts::MESSAGE) {
            return Ok(0);
        }
        let gathering = LEAVES.with_borrow_mut(|leaves| {
            leaves.clear();
            leaves.reserve_exact(GATHER_SEGMENTS_MAX);
            let gathering = self.parts.tables.gather_counted(
                message,
                untrusted.root,
                source,
                &mut buffer.bytes,
                leaves,
                copying.message_bytes_max,
            );
            if gathering.outcome.is_ok() {
                let keepalive = self.parts.send_heap.keepalive();
                let foreign = leaves
                    .iter()
                    .map(|leaf| ForeignBytes::new(leaf.address, leaf.bytes, Arc::clone(keepalive)));
                buffer.foreign.extend(foreign);
            }
            gathering
        });
        copying.copied_bytes += gathering.copied_bytes;
        match gathering.outcome {
            Ok(message_bytes) => Ok(message_bytes),
            Err(GatherError::Message(MessageError::TooLong { max })) if max < self.message_bytes_limit() => {
                self.front_longer_than = max;
                Err(NotGathered::LongerThanNow)
            }
            Err(error) => failed(error.into()),
        }
    }
}
