//! Calls in flight as bytes. What waits to be sent of them is the sending half's.

use provost_compression::MessageEncoding;
use provost_datapath::{
    BlockContent, Buffer, FieldReader, FieldWriter, ReceivedBlock, RestoreError, Restorer, SavedField, Saver,
    message_offset,
};
use provost_wire::descriptor::Parts;
use provost_wire::limits::{CALLS_IN_FLIGHT_MAX, MESSAGE_BYTES_MAX, METADATA_BYTES_MAX};

use super::{BodyTarget, OpenCall, OpenCalls, PartialStep, SLOT_BITS, SendTurn, SendWindow, fresh};
use crate::Role;
use crate::handshake::MethodKind;
use crate::legal::CallFlow;

/// What a window may come to in either direction, in bytes: more is damage, and sums must stay in range.
const WINDOW_BYTES_MAX: i64 = 1 << 40;

mod into {
    pub(super) const NOWHERE: u8 = 0;
    pub(super) const BLOCK: u8 = 1;
    pub(super) const PRIVATE: u8 = 2;
    /// As `PRIVATE`, with how the message is compressed in front.
    pub(super) const COMPRESSED: u8 = 3;
}

impl OpenCalls {
    pub(crate) fn save(&self, saver: &mut dyn Saver, out: &mut FieldWriter) {
        out.u64(self.begun);
        out.count(self.slots.len());
        out.count(self.free.len());
        self.free.iter().for_each(|slot| out.u32(*slot));
        for (slot, call) in self.slots.iter().enumerate() {
            if let Some(call) = call {
                out.u32(slot as u32);
                call.save(saver, out);
            }
        }
    }

    /// `highest` is the highest number that the peer has begun.
    pub(crate) fn restore(
        fields: &mut FieldReader<'_>,
        restorer: &mut dyn Restorer,
        role: Role,
        highest: u64,
    ) -> Result<OpenCalls, RestoreError> {
        let mut calls = OpenCalls::new();
        calls.begun = fields.u64()?;
        if calls.begun >= 1 << (64 - SLOT_BITS - 1) {
            return Err(fields.damaged("more calls have begun than there are numbers"));
        }
        let slots = fields.count(CALLS_IN_FLIGHT_MAX)?;
        let free = fields.count(slots)?;
        calls.slots.resize_with(slots, || None);
        let mut is_free = vec![false; slots];
        for _ in 0..free {
            let slot = fields.u32()?;
            match is_free.get_mut(slot as usize) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err(fields.damaged(format!("slot {slot} is free twice or is none"))),
            }
            calls.free.push(slot);
        }
        for _ in free..slots {
            let slot = fields.u32()?;
            let call = OpenCall::restore(fields, restorer)?;
            let taken = calls.slots.get(slot as usize).is_none_or(Option::is_some);
            if taken || is_free[slot as usize] || calls.index.contains_key(&call.id) {
                return Err(fields.damaged(format!("call {} or its slot {slot} is there twice", call.id)));
            }
            let known = match role {
                Role::Client => {
                    call.wire & ((1 << SLOT_BITS) - 1) == u64::from(slot) && calls.was_own(call.wire)
                }
                Role::Server => call.wire == call.id && (1..=highest).contains(&call.wire),
            };
            if !known {
                return Err(fields.damaged(format!("call {} has never begun", call.id)));
            }
            calls.insert_at(slot, call);
        }
        Ok(calls)
    }

    /// Whether a compressed message has come in part.
    pub(crate) fn has_compressed(&self) -> bool {
        let partials = self
            .slots
            .iter()
            .flatten()
            .filter_map(|call| call.partial.as_ref());
        partials
            .map(|partial| partial.encoding)
            .any(|encoding| encoding != MessageEncoding::Identity)
    }

    /// Bytes of all steps that have come in part, and bytes of memory that they hold.
    pub(crate) fn receiving_bytes(&self) -> (u64, u64) {
        let partials = self
            .slots
            .iter()
            .flatten()
            .filter_map(|call| call.partial.as_ref());
        partials.fold((0, 0), |(total, held), partial| {
            (
                total + u64::from(partial.total),
                held + u64::from(partial.held_bytes),
            )
        })
    }
}

impl OpenCall {
    fn save(&self, saver: &mut dyn Saver, out: &mut FieldWriter) {
        out.u64(self.id);
        out.u64(self.wire);
        self.kind.save(out);
        out.flag(self.announced);
        self.sent.save(out);
        self.received.save(out);
        out.flag(self.pending.begun);
        out.u8(match self.pending.turn {
            SendTurn::Idle => 0,
            SendTurn::Queued => 1,
            SendTurn::Held => 2,
        });
        out.i64(self.receive_window);
        out.u32(self.window_due);
        out.flag(self.window_queued);
        out.i64(self.send_window.available);
        out.u64(self.send_window.outstanding_wire);
        out.u64(self.send_window.outstanding_app);
        out.flag(self.partial.is_some());
        if let Some(partial) = &self.partial {
            partial.save(saver, out);
        }
    }

    fn restore(fields: &mut FieldReader<'_>, restorer: &mut dyn Restorer) -> Result<OpenCall, RestoreError> {
        let (id, wire) = (fields.u64()?, fields.u64()?);
        let mut call = fresh(id, wire, MethodKind::restore(fields)?, 0, 0);
        call.announced = fields.flag()?;
        call.sent = CallFlow::restore(fields)?;
        call.received = CallFlow::restore(fields)?;
        call.pending.begun = fields.flag()?;
        call.pending.turn = match fields.u8()? {
            0 => SendTurn::Idle,
            1 => SendTurn::Queued,
            2 => SendTurn::Held,
            other => return Err(fields.damaged(format!("a turn of the unknown kind {other}"))),
        };
        call.receive_window = fields.i64()?;
        call.window_due = fields.u32()?;
        call.window_queued = fields.flag()?;
        call.send_window = SendWindow {
            available: fields.i64()?,
            outstanding_wire: fields.u64()?,
            outstanding_app: fields.u64()?,
        };
        let windows = [
            call.receive_window,
            call.send_window.available,
            i64::try_from(call.send_window.outstanding_wire).unwrap_or(i64::MAX),
            i64::try_from(call.send_window.outstanding_app).unwrap_or(i64::MAX),
        ];
        if windows
            .iter()
            .any(|bytes| bytes.saturating_abs() > WINDOW_BYTES_MAX)
        {
            return Err(fields.damaged(format!("a window of call {id} is out of range")));
        }
        if fields.flag()? {
            call.partial = Some(PartialStep::restore(fields, restorer)?);
        }
        Ok(call)
    }
}

impl PartialStep {
    fn save(&self, saver: &mut dyn Saver, out: &mut FieldWriter) {
        out.u8(self.parts.0);
        out.u16(self.method);
        out.code(self.status);
        out.u64(self.deadline);
        out.u32(self.window_cost);
        out.u32(self.metadata_bytes);
        out.u32(self.message_bytes);
        out.u32(self.filled);
        match &self.into {
            BodyTarget::Nowhere => out.u8(into::NOWHERE),
            BodyTarget::Block(block) => {
                out.u8(into::BLOCK);
                block.save(BlockContent::Movable { filled: self.filled }, saver, out);
            }
            BodyTarget::Private(buffer) => {
                if self.encoding == MessageEncoding::Identity {
                    out.u8(into::PRIVATE);
                } else {
                    out.u8(into::COMPRESSED);
                    self.encoding.save(out);
                }
                // A direct read that was cut short leaves room behind what has come.
                let came = buffer.bytes.get(..self.filled as usize);
                out.run(came.unwrap_or(&buffer.bytes));
            }
        }
    }

    fn restore(
        fields: &mut FieldReader<'_>,
        restorer: &mut dyn Restorer,
    ) -> Result<PartialStep, RestoreError> {
        let mut partial = PartialStep {
            parts: Parts(fields.u8()?),
            method: fields.u16()?,
            status: fields.code()?,
            deadline: fields.u64()?,
            window_cost: fields.u32()?,
            metadata_bytes: fields.u32()?,
            message_bytes: fields.u32()?,
            encoding: MessageEncoding::Identity,
            filled: fields.u32()?,
            total: 0,
            into: BodyTarget::Nowhere,
            held_bytes: 0,
            begun_at: 0,
            expires_at: 0,
        };
        if partial.metadata_bytes > METADATA_BYTES_MAX || partial.message_bytes > MESSAGE_BYTES_MAX {
            return Err(fields.damaged("a message that is coming in is longer than any"));
        }
        partial.total = message_offset(partial.metadata_bytes) as u32 + partial.message_bytes;
        let room = match fields.u8()? {
            into::NOWHERE => 0,
            into::BLOCK => {
                let block = ReceivedBlock::restore(fields, restorer)?;
                let bytes = block.bytes;
                partial.into = BodyTarget::Block(block);
                bytes
            }
            place @ (into::PRIVATE | into::COMPRESSED) => {
                if place == into::COMPRESSED {
                    partial.encoding = MessageEncoding::restore(fields)?;
                }
                let bytes = fields.run()?.to_vec();
                if bytes.len() != partial.filled as usize {
                    return Err(fields.damaged("a message that is coming in is not as long as it has come"));
                }
                partial.into = BodyTarget::Private(Buffer::from(bytes));
                partial.total
            }
            other => {
                return Err(fields.damaged(format!("a message that comes in to the unknown place {other}")));
            }
        };
        partial.held_bytes = match &partial.into {
            BodyTarget::Nowhere => 0,
            BodyTarget::Block(block) => block.bytes,
            BodyTarget::Private(_) => partial.filled,
        };
        // A block grows with what comes.
        if (partial.filled..=partial.total).contains(&room) {
            Ok(partial)
        } else {
            Err(fields.damaged("a message that is coming in does not fit its place"))
        }
    }
}

impl SavedField for MethodKind {
    fn save(&self, out: &mut FieldWriter) {
        out.u8(u8::from(self.client_streaming) | u8::from(self.server_streaming) << 1);
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<MethodKind, RestoreError> {
        let flags = fields.u8()?;
        if flags < 4 {
            Ok(MethodKind {
                client_streaming: flags & 1 != 0,
                server_streaming: flags & 2 != 0,
            })
        } else {
            Err(fields.damaged(format!("a method of the unknown kind {flags}")))
        }
    }
}
