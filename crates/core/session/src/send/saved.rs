//! The sending half as bytes.
//!
//! What is in frames already is saved as the bytes of those frames that were not sent, whatever memory they were to be
//! read from: there is a round of them at most. So nothing but those bytes refers to steps that are whole in frames;
//! the tokens of these are due to the app.

use provost_compression::MessageEncoding;
use provost_datapath::{Buffer, FieldReader, FieldWriter, RestoreError, Restorer, SavedField, Saver};
use provost_wire::descriptor::Parts;
use provost_wire::limits::CALLS_IN_FLIGHT_MAX;

use super::{
    CONTROL_FRAMES_MAX, ControlFrame, FramedMemory, OutBody, OutStep, Piece, SegmentCursor, SendHalf,
};
use crate::Role;
use crate::calls::{NONE, OpenCall, OpenCalls, SendTurn};
use crate::handshake::REASON_BYTES_MAX;

/// Bytes of frames that can wait for the socket, whatever the transport's version: several rounds.
const FRAME_BYTES_MAX: usize = 4 << 20;
/// Steps of one call that can wait, and tokens that can be due: those that the window allows are bounded by its bytes.
const STEPS_SAVED_MAX: usize = 1 << 24;
/// Control frames that can wait: those of one read come on top of the bound, and a cancellation for each call.
const CONTROL_SAVED_MAX: usize = 2 * (CONTROL_FRAMES_MAX + CALLS_IN_FLIGHT_MAX);
/// Entries of a ready queue, those of ended calls among them.
const READY_MAX: usize = 4 * CALLS_IN_FLIGHT_MAX;

/// Beside the parts of a step: its message is compressed, and how stands behind its body.
const COMPRESSED: u8 = 1 << 7;
const _: () = assert!(Parts::ALL.0 & COMPRESSED == 0);

mod control {
    pub(super) const WINDOW: u8 = 0;
    pub(super) const CANCEL: u8 = 1;
    pub(super) const PLAIN: u8 = 2;
}

impl SendHalf {
    pub(crate) fn save(&self, calls: &OpenCalls, saver: &mut dyn Saver, out: &mut FieldWriter) {
        out.nested(|out| self.save_frames(saver, out));
        self.save_tokens(out);
        out.count(self.control.len());
        for control in &self.control {
            control.save(saver, out);
        }
        for ready in [&self.single, &self.bulk] {
            out.count(ready.len());
            for (slot, wire) in ready {
                out.u32(*slot);
                out.u64(*wire);
            }
        }
        for slot in 0..calls.slots() {
            if let Some(call) = calls.get(slot) {
                self.save_steps(call, saver, out);
            }
        }
    }

    /// Whether a compressed message waits.
    pub(crate) fn has_compressed(&self) -> bool {
        self.steps.iter().flatten().any(OutStep::is_compressed)
    }

    /// The bytes of the frames that wait for the socket.
    fn save_frames(&self, saver: &mut dyn Saver, out: &mut FieldWriter) {
        for piece in self.pieces() {
            match piece {
                Piece::Private(bytes) => out.bytes.extend_from_slice(bytes),
                Piece::Foreign { range, from, length } => {
                    let end = out.bytes.len() + length as usize;
                    saver.foreign(&range.part(from, length), &mut out.bytes);
                    out.bytes.resize(end, 0);
                }
            }
        }
    }

    fn save_tokens(&self, out: &mut FieldWriter) {
        let done = self.segments.iter().filter_map(|segment| match segment {
            FramedMemory::Done { step } => self.step(*step).map(|step| step.body.token),
            _ => None,
        });
        let tokens: Vec<u64> = self
            .tokens_due
            .iter()
            .copied()
            .chain(done)
            .filter(|token| *token != 0)
            .collect();
        out.count(tokens.len());
        tokens.into_iter().for_each(|token| out.u64(token));
    }

    fn save_steps(&self, call: &OpenCall, saver: &mut dyn Saver, out: &mut FieldWriter) {
        out.u32(call.pending.steps);
        let mut at = call.pending.head;
        while let Some(step) = self.step(at) {
            step.save(saver, out);
            at = step.next;
        }
    }

    /// What waits to be sent of these calls, which were restored before.
    pub(crate) fn restore(
        fields: &mut FieldReader<'_>,
        restorer: &mut dyn Restorer,
        role: Role,
        calls: &mut OpenCalls,
    ) -> Result<SendHalf, RestoreError> {
        let mut outgoing = SendHalf::new(role);
        outgoing.restore_frames(fields)?;
        for _ in 0..fields.count(STEPS_SAVED_MAX)? {
            outgoing.tokens_due.push(fields.u64()?);
        }
        for _ in 0..fields.count(CONTROL_SAVED_MAX)? {
            let control = ControlFrame::restore(fields, restorer, calls)?;
            outgoing.control.push_back(control);
        }
        outgoing.restore_ready(fields, calls)?;
        for slot in 0..calls.slots() {
            if let Some(call) = calls.get_mut(slot) {
                outgoing.restore_steps(fields, restorer, call)?;
            }
        }
        Ok(outgoing)
    }

    fn restore_frames(&mut self, fields: &mut FieldReader<'_>) -> Result<(), RestoreError> {
        let frames = fields.run()?;
        if frames.len() > FRAME_BYTES_MAX {
            return Err(fields.damaged(format!("{} bytes of frames wait", frames.len())));
        }
        if !frames.is_empty() {
            self.staging = frames.to_vec();
            self.segments.push_back(FramedMemory::Staged(frames.len() as u32));
        }
        Ok(())
    }

    /// Each call that is queued has one entry; further entries are of calls that have ended.
    fn restore_ready(
        &mut self,
        fields: &mut FieldReader<'_>,
        calls: &mut OpenCalls,
    ) -> Result<(), RestoreError> {
        let mut queued = vec![false; calls.slots() as usize];
        for ready in [&mut self.single, &mut self.bulk] {
            for _ in 0..fields.count(READY_MAX)? {
                let (slot, wire) = (fields.u32()?, fields.u64()?);
                ready.push_back((slot, wire));
                let Some(call) = calls.same_mut(slot, wire) else {
                    self.stale += 1;
                    continue;
                };
                let twice = std::mem::replace(&mut queued[slot as usize], true);
                if twice || call.pending.turn != SendTurn::Queued {
                    return Err(
                        fields.damaged(format!("call {} has a turn that it does not wait for", call.id))
                    );
                }
            }
        }
        let turns = (0..calls.slots())
            .filter_map(|slot| calls.get(slot))
            .filter(|call| call.pending.turn == SendTurn::Queued);
        if turns.count() == queued.iter().filter(|queued| **queued).count() {
            Ok(())
        } else {
            Err(fields.damaged("a call waits for a turn that does not come"))
        }
    }

    fn restore_steps(
        &mut self,
        fields: &mut FieldReader<'_>,
        restorer: &mut dyn Restorer,
        call: &mut OpenCall,
    ) -> Result<(), RestoreError> {
        let turn = std::mem::replace(&mut call.pending.turn, SendTurn::Idle);
        let count = fields.count(STEPS_SAVED_MAX)?;
        if (turn == SendTurn::Idle) != (count == 0) {
            return Err(fields.damaged(format!(
                "call {} waits for a turn without a step, or the opposite",
                call.id
            )));
        }
        for nth in 0..count {
            let step = OutStep::restore(fields, restorer)?;
            if step.started && nth > 0 {
                return Err(fields.damaged("a step has begun before the one in front of it has ended"));
            }
            self.append(call, step);
        }
        self.set_turn(call, turn);
        Ok(())
    }
}

impl OutStep {
    fn is_compressed(&self) -> bool {
        self.body.encoding != MessageEncoding::Identity
    }

    fn save(&self, saver: &mut dyn Saver, out: &mut FieldWriter) {
        let compressed = if self.is_compressed() { COMPRESSED } else { 0 };
        out.u8(self.parts.0 | compressed);
        out.u16(self.method);
        out.u32(self.status_or_window);
        out.u64(self.deadline);
        out.u32(self.app_cost);
        out.u32(self.wire_cost);
        out.flag(self.started);
        out.u32(self.at.body as u32);
        self.body.save(saver, out);
        if self.is_compressed() {
            self.body.encoding.save(out);
        }
    }

    fn restore(fields: &mut FieldReader<'_>, restorer: &mut dyn Restorer) -> Result<OutStep, RestoreError> {
        let marked = fields.u8()?;
        let parts = Parts(marked & !COMPRESSED);
        let (method, status_or_window) = (fields.u16()?, fields.u32()?);
        let deadline = fields.u64()?;
        let (app_cost, wire_cost) = (fields.u32()?, fields.u32()?);
        let (started, body_at) = (fields.flag()?, fields.u32()? as usize);
        let mut body = OutBody::restore(fields, restorer, parts)?;
        if marked & COMPRESSED != 0 {
            body.encoding = MessageEncoding::restore(fields)?;
        }
        let mut step = OutStep {
            parts,
            method,
            status_or_window,
            deadline,
            app_cost,
            wire_cost,
            body,
            at: SegmentCursor::default(),
            started,
            gathered: false,
            next: NONE,
        };
        let in_place = if started {
            !step.fits_one_frame() && body_at < step.body_bytes()
        } else {
            body_at == 0
        };
        if !in_place {
            return Err(fields.damaged(format!(
                "a step of which {body_at} bytes were sent, which cannot be"
            )));
        }
        step.at = cursor_at(&step.body, body_at);
        Ok(step)
    }
}

/// The place that is `at` bytes behind the start of a body.
fn cursor_at(body: &OutBody, at: usize) -> SegmentCursor {
    let mut cursor = SegmentCursor {
        body: at,
        ..SegmentCursor::default()
    };
    let mut left = at.saturating_sub(body.bytes().len()) as u64;
    for range in body.foreign() {
        let padded = u64::from(range.len().next_multiple_of(8));
        if left < padded {
            break;
        }
        left -= padded;
        cursor.range += 1;
    }
    cursor.in_range = left as u32;
    cursor
}

impl OutBody {
    fn save(&self, saver: &mut dyn Saver, out: &mut FieldWriter) {
        out.u32(self.metadata_bytes);
        out.u32(self.message_bytes);
        out.u64(self.token);
        match &self.buffer {
            Some(buffer) => buffer.save(saver, out),
            None => Buffer::default().save(saver, out),
        }
    }

    fn restore(
        fields: &mut FieldReader<'_>,
        restorer: &mut dyn Restorer,
        parts: Parts,
    ) -> Result<OutBody, RestoreError> {
        let mut body = OutBody {
            metadata_bytes: fields.u32()?,
            message_bytes: fields.u32()?,
            token: fields.u64()?,
            buffer: Some(Buffer::restore(fields, restorer)?).filter(|buffer| buffer.linear_bytes() > 0),
            encoding: MessageEncoding::Identity,
        };
        body.check(parts).map_err(|reason| fields.damaged(reason))?;
        Ok(body)
    }
}

impl ControlFrame {
    fn save(&self, saver: &mut dyn Saver, out: &mut FieldWriter) {
        match self {
            ControlFrame::Window { slot, wire } => {
                out.u8(control::WINDOW);
                out.u32(*slot);
                out.u64(*wire);
            }
            ControlFrame::Cancel { wire, status, body } => {
                out.u8(control::CANCEL);
                out.u64(*wire);
                out.code(*status);
                body.save(saver, out);
            }
            ControlFrame::Plain { kind, status, text } => {
                out.u8(control::PLAIN);
                out.u8(*kind);
                out.code(*status);
                out.run(text);
            }
        }
    }

    fn restore(
        fields: &mut FieldReader<'_>,
        restorer: &mut dyn Restorer,
        calls: &OpenCalls,
    ) -> Result<ControlFrame, RestoreError> {
        match fields.u8()? {
            control::WINDOW => {
                let (slot, wire) = (fields.u32()?, fields.u64()?);
                let queued = calls
                    .get(slot)
                    .is_none_or(|call| call.wire != wire || call.window_queued);
                if queued {
                    Ok(ControlFrame::Window { slot, wire })
                } else {
                    Err(fields.damaged("a window waits to be given back that is not due"))
                }
            }
            control::CANCEL => Ok(ControlFrame::Cancel {
                wire: fields.u64()?,
                status: fields.code()?,
                body: OutBody::restore(fields, restorer, Parts::CANCEL)?,
            }),
            control::PLAIN => {
                let (kind, status, text) = (fields.u8()?, fields.code()?, fields.run()?);
                if text.len() <= REASON_BYTES_MAX {
                    Ok(ControlFrame::Plain {
                        kind,
                        status,
                        text: text.to_vec(),
                    })
                } else {
                    Err(fields.damaged("a reason is too long"))
                }
            }
            other => Err(fields.damaged(format!("a control frame of the unknown kind {other}"))),
        }
    }
}
