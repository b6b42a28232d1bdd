//! The calls with streams of a channel: one SEND and one LISTEN at a time carry the frames of all of them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use provost::linked::{Arrival, Side, metadata_of, status_of};
use provost::{Code, Status};
use provost_datagram::{Address, Call, CallError, MsgBuf, SessionId};

use super::{Loop, Waiting, Way, reopen, wait};
use crate::error::RpcError;
use crate::pending::Completion;
use crate::stubs::format::{self, LARGE, LISTEN_CALL};
use crate::stubs::frames::{self, FrameHead, kind};
use crate::stubs::stream::{BATCH_BYTES, BatchBounds, Cell, STREAMS_MAX, batch_of};
use crate::stubs::{RESPONSE_BYTES_MAX, Stubs, gone, status_of_error};

/// The calls with streams of a channel, as long as it has its session.
#[derive(Default)]
pub(in crate::stubs) struct Streams {
    cells: HashMap<u64, Arc<Cell>>,
    /// Those that have something to send.
    waiting: VecDeque<Arc<Cell>>,
    /// What the session had no room for yet.
    unsent: Option<MsgBuf>,
    is_sending: bool,
    is_listening: bool,
}

impl Streams {
    pub(super) fn end(&mut self, status: &Status) {
        for (_, cell) in self.cells.drain() {
            cell.end(Err(status.clone()));
        }
        *self = Streams::default();
    }

    pub(super) fn is_listening(&self) -> bool {
        self.is_listening
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        for cell in self.cells.values() {
            cell.end(Err(gone()));
        }
    }
}

/// A client's end has something to send, if only that it is there.
pub(in crate::stubs) fn ready<A: Address + Send + Sync + 'static>(
    stubs: &mut Stubs<A>,
    context: &mut Loop<'_, A>,
    number: u64,
    cell: Arc<Cell>,
) {
    let Some(channel) = stubs.channels.get_mut(&number) else {
        return cell.end(Err(gone()));
    };
    match &mut channel.way {
        Way::Up { .. } => {
            let streams = &mut channel.streams;
            if !cell.is_over() && !streams.cells.contains_key(&cell.call) {
                if streams.cells.len() >= STREAMS_MAX {
                    let full = Status::resource_exhausted("the channel has as many streams as it can have");
                    return cell.end(Err(full));
                }
                streams.cells.insert(cell.call, cell.clone());
            }
            streams.waiting.push_back(cell);
        }
        Way::Opening { waiting, .. } => wait(waiting, Waiting::Stream(cell)),
        Way::Down if cell.is_over() => {}
        Way::Down => reopen(stubs, context, number, Waiting::Stream(cell)),
    }
}

/// Sends what there is to be sent, and listens for what comes back.
pub(in crate::stubs) fn flush<A: Address + Send + Sync + 'static>(
    stubs: &mut Stubs<A>,
    context: &mut Loop<'_, A>,
    number: u64,
) {
    let Some(channel) = stubs.channels.get_mut(&number) else {
        return;
    };
    let Way::Up { session, service } = channel.way else {
        return;
    };
    let streams = &mut channel.streams;
    if !streams.is_listening && !streams.cells.is_empty() && !listen(streams, context, (number, session)) {
        stubs.touched.push(number);
        stubs.ready.call();
    }
    if streams.is_sending {
        return;
    }
    let cells = &mut streams.cells;
    let bytes_max = context.request_bytes_max(session);
    let bounds = BatchBounds {
        together_bytes: BATCH_BYTES,
        bytes_max,
    };
    let written = streams.unsent.take().or_else(|| {
        batch_of(
            context,
            &mut streams.waiting,
            (service, bounds),
            |cell, written| {
                if let Err(status) = written {
                    cell.fail(status);
                } else if cell.is_over() {
                    cells.remove(&cell.call);
                }
            },
        )
    });
    if let Some(buffer) = written {
        send(stubs, context, (number, session), buffer);
    }
}

fn send<A: Address + Send + Sync + 'static>(
    stubs: &mut Stubs<A>,
    context: &mut Loop<'_, A>,
    (number, session): (u64, SessionId),
    request: MsgBuf,
) {
    let call = Call {
        method: format::SEND,
        tag: number,
        request,
        response: MsgBuf::default(),
    };
    let asked = context.enqueue_request(session, call, sent);
    let Some(channel) = stubs.channels.get_mut(&number) else {
        return;
    };
    match asked {
        Ok(()) => channel.streams.is_sending = true,
        Err(refused) if refused.error == RpcError::Call(CallError::BacklogFull) => {
            // Unary calls fill the session; this goes when some of them have ended.
            channel.streams.unsent = Some(refused.call.request);
            stubs.ready.call();
            stubs.touched.push(number);
        }
        Err(refused) => channel.streams.end(&status_of_error(refused.error)),
    }
}

fn sent<A: Address + Send + Sync + 'static>(
    stubs: &mut Stubs<A>,
    context: &mut Loop<'_, A>,
    completion: Completion,
) {
    let number = completion.tag;
    context.recycle(completion.request);
    let Some(streams) = streams_of(stubs, number, completion.session) else {
        return;
    };
    streams.is_sending = false;
    match completion.outcome {
        Ok(0) => {}
        Ok(code) => streams.end(&misunderstood(code)),
        Err(error) => streams.end(&status_of_error(error)),
    }
    flush(stubs, context, number);
}

fn misunderstood(code: u16) -> Status {
    let code = Code::from_number(code.into());
    Status::internal(format!(
        "the peer does not understand the frames of a stream: {code:?}"
    ))
}

/// The streams of a channel, if it still has this session.
fn streams_of<A: Address + Send + Sync + 'static>(
    stubs: &mut Stubs<A>,
    number: u64,
    of: SessionId,
) -> Option<&mut Streams> {
    let channel = stubs.channels.get_mut(&number)?;
    match channel.way {
        Way::Up { session, .. } if session == of => Some(&mut channel.streams),
        _ => None,
    }
}

/// Listens for frames; `false` if there is no room for that now.
fn listen<A: Address + Send + Sync + 'static>(
    streams: &mut Streams,
    context: &mut Loop<'_, A>,
    (number, session): (u64, SessionId),
) -> bool {
    let room = BATCH_BYTES.min(context.response_bytes_max());
    let call = context.call_of(format::LISTEN, &(room as u32).to_le_bytes(), room);
    let call = Call { tag: number, ..call };
    let Err(refused) = context.enqueue_request(session, call, listened) else {
        streams.is_listening = true;
        return true;
    };
    context.recycle(refused.call.request);
    context.recycle(refused.call.response);
    if refused.error == RpcError::Call(CallError::BacklogFull) {
        return false;
    }
    streams.end(&status_of_error(refused.error));
    true
}

fn listened<A: Address + Send + Sync + 'static>(
    stubs: &mut Stubs<A>,
    context: &mut Loop<'_, A>,
    completion: Completion,
) {
    let (number, session) = (completion.tag, completion.session);
    if completion.outcome == Ok(LARGE) && fetch(context, &completion) {
        return;
    }
    if let Some(channel) = stubs.channels.get_mut(&number)
        && matches!(channel.way, Way::Up { session: now, .. } if now == session)
    {
        let streams = &mut channel.streams;
        streams.is_listening = false;
        match completion.outcome {
            Ok(0) => take(streams, &completion.response),
            Ok(code) => streams.end(&misunderstood(code)),
            Err(error) => streams.end(&status_of_error(error)),
        }
    }
    context.recycle(completion.request);
    context.recycle(completion.response);
    flush(stubs, context, number);
}

/// Asks for frames that need a larger buffer. `false` if they cannot be had.
fn fetch<A: Address + Send + Sync + 'static>(context: &mut Loop<'_, A>, completion: &Completion) -> bool {
    let bytes = completion.response.first_chunk();
    let bytes = bytes.map(|bytes| u32::from_le_bytes(*bytes));
    let Some(bytes) = bytes.filter(|bytes| *bytes <= RESPONSE_BYTES_MAX) else {
        return false;
    };
    let call = context.call_of(format::FETCH, &LISTEN_CALL.to_le_bytes(), bytes as usize);
    let call = Call {
        tag: completion.tag,
        ..call
    };
    context
        .enqueue_request(completion.session, call, listened)
        .is_ok()
}

/// Takes the frames that a server has sent.
fn take(streams: &mut Streams, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let Some((head, payload, rest)) = frames::split(bytes) else {
            return streams.end(&Status::internal("the peer's frames are not whole"));
        };
        bytes = rest;
        // What comes late for a call that is over finds nobody.
        if let Some(cell) = streams.cells.get(&head.call)
            && take_one(cell, &head, payload)
        {
            streams.cells.remove(&head.call);
        }
    }
}

/// Takes a frame; says whether it was the last.
fn take_one(cell: &Arc<Cell>, head: &FrameHead, payload: &[u8]) -> bool {
    let taken = match head.kind {
        kind::METADATA => metadata_of(payload).map(|metadata| cell.arrived(Arrival::Metadata(metadata))),
        kind::MESSAGE => cell.message(Side::Response, head, payload),
        kind::WINDOW => {
            cell.widen(head.value);
            Ok(())
        }
        kind::STATUS => {
            let code = Code::from_number(head.value);
            cell.end(match code {
                Code::Ok => metadata_of(payload),
                code => Err(status_of(code, payload)),
            });
            return true;
        }
        _ => Err(Status::internal("the peer's frames are of an unknown kind")),
    };
    if let Err(status) = taken {
        cell.fail(status);
    }
    false
}
