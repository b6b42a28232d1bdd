//! A stream that a successor goes on with: where it stands, and what has come and was not taken. What is on its way is the board's.

use std::collections::{BTreeMap, HashMap};
use std::net::UdpSocket;

use provost_datagram::SessionId;
use provost_datapath::{FieldReader, FieldWriter, RestoreError};
use provost_nic_host::{MessageBounds, RequestTag};
use provost_transport::Role;

use super::{CallUse, FinishState, HeldPoll, NicStream, POLL_CALLS, StreamState, UntakenSegment};
use crate::segment::IncomingSegment;
use crate::wired::WiredNic;

/// Segments of a saved stream that have come, at most: more than a session's slots can have brought.
const SEGMENTS_MAX: usize = 64;
/// Calls of a saved stream at most: the slots of a session.
const CALLS_MAX: usize = provost_nic::SLOTS_MAX as usize;

impl NicStream {
    pub(crate) fn save(&self, out: &mut FieldWriter) {
        out.flag(self.role == Role::Server);
        self.nic.save(out);
        save_state(&self.state, out);
        out.u8(match self.finish {
            FinishState::NotAsked => 0,
            FinishState::Waiting => 1,
            FinishState::Sent => 2,
        });
        out.flag(self.peer_finished);
        out.flag(self.offset_ns.is_some());
        out.u64(self.offset_ns.unwrap_or(0));
        for number in [self.now_ns, self.sent, self.received, self.calls_made] {
            out.u64(number);
        }
        out.count(self.ready.len() + self.ahead.len());
        self.ready.iter().for_each(|untaken| untaken.save(out));
        self.ahead.values().for_each(|untaken| untaken.save(out));
        let calls: BTreeMap<_, _> = self.calls.iter().collect();
        out.count(calls.len());
        for (tag, what) in calls {
            out.u64(*tag);
            out.flag(*what == CallUse::Poll);
        }
        out.count(self.held.len());
        for poll in &self.held {
            save_tag(poll.request, out);
            out.u32(poll.response_bytes_max as u32);
        }
    }

    /// Goes on with a stream of this process.
    pub(crate) fn restore(
        socket: UdpSocket,
        fields: &mut FieldReader<'_>,
    ) -> Result<NicStream, RestoreError> {
        let role = if fields.flag()? {
            Role::Server
        } else {
            Role::Client
        };
        let nic = WiredNic::restore(socket, fields)?;
        let mut stream = NicStream::of(role, nic);
        stream.state = restore_state(fields)?;
        stream.finish = match fields.u8()? {
            0 => FinishState::NotAsked,
            1 => FinishState::Waiting,
            2 => FinishState::Sent,
            _ => return Err(fields.damaged("the end of the stream is in no known state")),
        };
        stream.peer_finished = fields.flag()?;
        stream.offset_ns = if fields.flag()? {
            Some(fields.u64()?)
        } else {
            fields.u64()?;
            None
        };
        stream.now_ns = fields.u64()?;
        stream.sent = fields.u64()?;
        stream.received = fields.u64()?;
        stream.calls_made = fields.u64()?;
        for _ in 0..fields.count(SEGMENTS_MAX)? {
            let untaken = UntakenSegment::restore(fields)?;
            if untaken.segment.number <= stream.received {
                stream.ready.push_back(untaken);
            } else {
                stream.ahead.insert(untaken.segment.number, untaken);
            }
        }
        stream.calls = restore_calls(fields)?;
        for _ in 0..fields.count(POLL_CALLS)? {
            stream.held.push_back(HeldPoll {
                request: restore_tag(fields)?,
                response_bytes_max: fields.u32()? as usize,
            });
        }
        Ok(stream)
    }
}

fn save_state(state: &StreamState, out: &mut FieldWriter) {
    match state {
        StreamState::Opening => out.u8(0),
        StreamState::Open(session, bounds) => {
            out.u8(1);
            out.u64(session.to_bits());
            for bytes in [
                bounds.packet_bytes,
                bounds.request_bytes_max,
                bounds.response_bytes_max,
            ] {
                out.u32(bytes as u32);
            }
        }
        StreamState::Ended => out.u8(2),
    }
}

fn restore_state(fields: &mut FieldReader<'_>) -> Result<StreamState, RestoreError> {
    match fields.u8()? {
        0 => Ok(StreamState::Opening),
        1 => {
            let session = SessionId::from_bits(fields.u64()?);
            let bounds = MessageBounds {
                packet_bytes: fields.u32()? as usize,
                request_bytes_max: fields.u32()? as usize,
                response_bytes_max: fields.u32()? as usize,
            };
            Ok(StreamState::Open(session, bounds))
        }
        2 => Ok(StreamState::Ended),
        _ => Err(fields.damaged("the stream is in no known state")),
    }
}

fn restore_calls(fields: &mut FieldReader<'_>) -> Result<HashMap<u64, CallUse>, RestoreError> {
    let mut calls = HashMap::new();
    for _ in 0..fields.count(CALLS_MAX)? {
        let tag = fields.u64()?;
        let what = if fields.flag()? {
            CallUse::Poll
        } else {
            CallUse::Segment
        };
        calls.insert(tag, what);
    }
    Ok(calls)
}

impl UntakenSegment {
    fn save(&self, out: &mut FieldWriter) {
        out.u64(self.segment.number);
        out.flag(self.segment.finished);
        out.run(&self.segment.bytes);
        out.flag(self.request.is_some());
        if let Some(request) = self.request {
            save_tag(request, out);
        }
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<UntakenSegment, RestoreError> {
        let segment = IncomingSegment {
            number: fields.u64()?,
            finished: fields.flag()?,
            bytes: fields.run()?.to_vec(),
        };
        let request = if fields.flag()? {
            Some(restore_tag(fields)?)
        } else {
            None
        };
        Ok(UntakenSegment { segment, request })
    }
}

fn save_tag(request: RequestTag, out: &mut FieldWriter) {
    let (connection, tag) = request.to_parts();
    out.u16(connection);
    out.u64(tag);
}

fn restore_tag(fields: &mut FieldReader<'_>) -> Result<RequestTag, RestoreError> {
    Ok(RequestTag::from_parts((fields.u16()?, fields.u64()?)))
}
