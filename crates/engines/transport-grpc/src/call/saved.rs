//! A call as bytes, for the process that goes on with its link.

use std::sync::Arc;

use provost_datapath::{FieldReader, FieldWriter, PrivateBytes, RestoreError, SavedField};
use provost_grpc::{GrpcMessage, MessageEncoding};
use provost_wire::descriptor::Parts;
use provost_wire::metadata;

use super::{CallArrival, CallEnd, CallPlace, GrpcCall, OutMessage, RequestEnd, StreamPlace, UnreadMessage};
use crate::chunk::FormedChunk;
use crate::config::GrpcMethod;
use crate::engine::LINKS_MAX;

/// Messages of one call that are read: those that are held, were sent, or are unread.
const MESSAGES_MAX: usize = 1 << 22;

impl GrpcCall {
    /// Appends everything that a successor needs. The call stays as it is.
    pub(crate) fn save(&self, out: &mut FieldWriter) {
        out.u16(self.method);
        self.place.save(out);
        out.u64(self.deadline);
        out.run(&self.metadata);
        out.list(self.outgoing.iter());
        self.request_end.save(out);
        out.flag(self.replay.is_some());
        out.list(self.replay.iter().flatten().collect::<Vec<_>>().into_iter());
        out.flag(self.was_retried);
        out.u32(self.window_due);
        self.sent_encoding.save(out);
        self.encoding.save(out);
        out.flag(self.untold_head.is_some());
        out.run(self.untold_head.as_deref().unwrap_or_default());
        out.list(self.arrivals.iter());
        out.u64(self.messages_came);
        out.list(self.unread.iter());
        out.u64(self.given_back);
        self.end.save(out);
    }

    /// Has messages that another process has held count in a share.
    pub(crate) fn count_in(&mut self, share: &Arc<PrivateBytes>) {
        let outgoing = self.outgoing.iter_mut().map(|waiting| &mut waiting.message);
        let kept = self.replay.iter_mut().flatten();
        outgoing
            .chain(kept)
            .for_each(|message| message.chunk.count_in(share));
    }

    /// Reads what [`GrpcCall::save`] has appended, for a service with these methods.
    pub(crate) fn restore(
        fields: &mut FieldReader<'_>,
        methods: &[GrpcMethod],
    ) -> Result<GrpcCall, RestoreError> {
        let number = fields.u16()?;
        let method = methods
            .get(usize::from(number))
            .ok_or_else(|| fields.damaged(format!("the service has no method {number}")))?;
        let mut call = GrpcCall::new(number, method.client_streaming, method.server_streaming);
        call.place = CallPlace::restore(fields)?;
        call.deadline = fields.u64()?;
        call.metadata = restore_metadata(fields)?;
        call.outgoing = fields.list::<OutMessage>(MESSAGES_MAX)?.into();
        call.pending_cost = call
            .outgoing
            .iter()
            .map(|message| u64::from(message.app_cost))
            .sum();
        call.request_end = RequestEnd::restore(fields)?;
        call.restore_replay(fields)?;
        call.was_retried = fields.flag()?;
        call.window_due = fields.u32()?;
        call.sent_encoding = MessageEncoding::restore(fields)?;
        call.encoding = MessageEncoding::restore(fields)?;
        let has_head = fields.flag()?;
        let head = restore_metadata(fields)?;
        call.untold_head = has_head.then_some(head);
        for arrival in fields.list::<CallArrival>(MESSAGES_MAX)? {
            call.hold(arrival);
        }
        call.messages_came = fields.u64()?;
        call.unread = fields.list::<UnreadMessage>(MESSAGES_MAX)?.into();
        call.unread_cost = call.unread.iter().map(|unread| u64::from(unread.cost)).sum();
        call.given_back = fields.u64()?;
        if call.given_back > call.unread_cost {
            return Err(fields.damaged("more was given back than the app was given"));
        }
        call.end = Option::restore(fields)?;
        Ok(call)
    }

    fn restore_replay(&mut self, fields: &mut FieldReader<'_>) -> Result<(), RestoreError> {
        let is_kept = fields.flag()?;
        let sent = fields.list::<FormedChunk>(MESSAGES_MAX)?;
        self.replay_cost = sent.iter().map(|message| message.chunk.kept_cost()).sum();
        self.replay = is_kept.then_some(sent);
        if self.replay.is_none() {
            self.replay_cost = 0;
        }
        Ok(())
    }
}

/// Reads a block of metadata, whose entries must be whole.
fn restore_metadata(fields: &mut FieldReader<'_>) -> Result<Vec<u8>, RestoreError> {
    let block = fields.run()?;
    metadata::check(block).map_err(|fault| fields.damaged(fault.to_string()))?;
    Ok(block.to_vec())
}

impl SavedField for CallPlace {
    fn save(&self, out: &mut FieldWriter) {
        match self {
            CallPlace::Waiting => out.u8(0),
            CallPlace::Open(place) => {
                out.u8(1);
                out.u8(place.link as u8);
                out.u32(place.stream);
            }
            CallPlace::Over => out.u8(2),
        }
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<CallPlace, RestoreError> {
        match fields.u8()? {
            0 => Ok(CallPlace::Waiting),
            1 => {
                let (link, stream) = (usize::from(fields.u8()?), fields.u32()?);
                if link >= LINKS_MAX {
                    return Err(fields.damaged(format!("a call is on link {link}")));
                }
                Ok(CallPlace::Open(StreamPlace { link, stream }))
            }
            2 => Ok(CallPlace::Over),
            other => Err(fields.damaged(format!("{other} is no place of a call"))),
        }
    }
}

impl SavedField for RequestEnd {
    fn save(&self, out: &mut FieldWriter) {
        out.u8(match self {
            RequestEnd::NotYet => 0,
            RequestEnd::Asked => 1,
            RequestEnd::Said => 2,
        });
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<RequestEnd, RestoreError> {
        match fields.u8()? {
            0 => Ok(RequestEnd::NotYet),
            1 => Ok(RequestEnd::Asked),
            2 => Ok(RequestEnd::Said),
            other => Err(fields.damaged(format!("{other} is no end of a request"))),
        }
    }
}

impl SavedField for OutMessage {
    fn save(&self, out: &mut FieldWriter) {
        self.message.save(out);
        out.u32(self.app_cost);
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<OutMessage, RestoreError> {
        let message = FormedChunk::restore(fields)?;
        let app_cost = fields.u32()?;
        Ok(OutMessage { message, app_cost })
    }
}

impl SavedField for CallArrival {
    fn save(&self, out: &mut FieldWriter) {
        match self {
            CallArrival::Head(block) => {
                out.flag(true);
                out.run(block);
            }
            CallArrival::Message(message) => {
                out.flag(false);
                message.save(out);
            }
        }
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<CallArrival, RestoreError> {
        let is_head = fields.flag()?;
        Ok(if is_head {
            CallArrival::Head(restore_metadata(fields)?)
        } else {
            CallArrival::Message(GrpcMessage::restore(fields)?)
        })
    }
}

impl SavedField for UnreadMessage {
    fn save(&self, out: &mut FieldWriter) {
        out.u32(self.came_bytes);
        out.u32(self.cost);
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<UnreadMessage, RestoreError> {
        let (came_bytes, cost) = (fields.u32()?, fields.u32()?);
        Ok(UnreadMessage { came_bytes, cost })
    }
}

impl SavedField for CallEnd {
    fn save(&self, out: &mut FieldWriter) {
        out.flag(self.parts == Parts::STATUS);
        out.code(self.status);
        out.run(&self.metadata);
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<CallEnd, RestoreError> {
        let is_the_servers = fields.flag()?;
        Ok(CallEnd {
            parts: if is_the_servers {
                Parts::STATUS
            } else {
                Parts::CANCEL
            },
            status: fields.code()?,
            metadata: restore_metadata(fields)?,
        })
    }
}
