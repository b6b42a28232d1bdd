//! One end of a call with a stream: what has arrived and was not taken, what is to leave, and both windows.
//!
//! ```text
//!   client or handler ── send, poll ──► Cell ──► Ready ──► event loop ──► batch of frames
//!                     ◄─────────────── Cell ◄──────────── event loop ◄── batch of frames
//! ```
//!
//! Clients and handlers touch a cell from any thread; the event loop is told of it by [`Ready`], in which a cell is at
//! most once.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context as TaskContext, Poll, Waker};

use crossbeam_queue::SegQueue;
use provost::linked::{Answer, Arrival, CallOver, Codec, EgressEvent, Inbound, Side, StreamEnd, wake};
use provost::{Code, Status};
use provost_datagram::{Address, MsgBuf, SessionId};
use provost_wire::limits::{STREAM_MESSAGE_COST_BYTES, STREAM_WINDOW_BYTES};

use super::frames::{Batch, FrameHead, Leaving, Writing};
use super::gone;
use crate::context::Context;
use crate::mailbox::Bell;

/// Calls with streams that a session has at a time. A client refuses more; a server ends the session of one that has more.
pub(super) const STREAMS_MAX: usize = 1024;
/// What was read of a stream is told to its sender when it comes to this much, in bytes, or when nothing more has come
/// and it is at least [`PENDING_IDLE_BYTES`].
const PENDING_BYTES: u32 = 64 << 10;
const PENDING_IDLE_BYTES: u32 = 4 << 10;
/// Bytes of frames that go together; a message that is longer goes alone.
pub(super) const BATCH_BYTES: usize = 64 << 10;

/// Ends of streams that the event loop is to look at: each once, so no more than there are.
#[derive(Default)]
pub(super) struct Ready {
    cells: SegQueue<Arc<Cell>>,
    is_closed: AtomicBool,
    bell: OnceLock<Arc<Bell>>,
}

/// Which end this is, and where the other one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A client's, of this channel.
    Client(u64),
    /// A server's, of this session.
    Server(SessionId),
}

/// See the module's documentation.
pub(super) struct Cell {
    pub(super) call: u64,
    pub(super) place: Place,
    method: u16,
    codec: Arc<Codec>,
    ready: Arc<Ready>,
    /// It is in [`Ready`], or the event loop has it in mind.
    is_queued: AtomicBool,
    state: Mutex<State>,
}

struct State {
    /// With what each counts as in the window.
    arrivals: VecDeque<(Arrival, u32)>,
    egress_events: VecDeque<Leaving>,
    send_window: i64,
    receive_window: i64,
    /// What was read and is not told to the sender.
    pending_bytes: u32,
    /// Of that, what is to be told now.
    granted_bytes: u32,
    /// What arrives once at most has: the message beside a status.
    has_last: bool,
    /// What else arrives once at most has: metadata at a client, the end of requests at a server.
    has_single: bool,
    is_over: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl State {
    /// With all of both windows.
    fn new() -> State {
        State {
            arrivals: VecDeque::new(),
            egress_events: VecDeque::new(),
            send_window: STREAM_WINDOW_BYTES.into(),
            receive_window: STREAM_WINDOW_BYTES.into(),
            pending_bytes: 0,
            granted_bytes: 0,
            has_last: false,
            has_single: false,
            is_over: false,
            reader: None,
            writer: None,
        }
    }

    /// What was read becomes granted if it is as much as is worth telling; says whether it has.
    fn count_read(&mut self, cost_bytes: u32) -> bool {
        self.pending_bytes = self.pending_bytes.saturating_add(cost_bytes);
        let least_bytes = if self.arrivals.is_empty() {
            PENDING_IDLE_BYTES
        } else {
            PENDING_BYTES
        };
        if self.is_over || self.pending_bytes < least_bytes {
            return false;
        }
        // A peer may count a message as more than any window has.
        let read_bytes = std::mem::take(&mut self.pending_bytes);
        self.granted_bytes = self.granted_bytes.saturating_add(read_bytes);
        true
    }
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ready").field("ends", &self.cells.len()).finish()
    }
}

impl Ready {
    pub(super) fn set_bell(&self, bell: Arc<Bell>) {
        // It is set once, before the event loop starts.
        let _ = self.bell.set(bell);
    }

    /// Has the event loop look.
    pub(super) fn call(&self) {
        if let Some(bell) = self.bell.get() {
            bell.call();
        }
    }

    pub(super) fn pop(&self) -> Option<Arc<Cell>> {
        self.cells.pop()
    }

    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }

    /// There is no event loop any more: ends what is here, and what comes later.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        while let Some(cell) = self.cells.pop() {
            cell.end(Err(gone()));
        }
    }
}

/// A new end of a stream.
pub(super) struct NewCell {
    pub(super) call: u64,
    pub(super) place: Place,
    pub(super) method: u16,
    pub(super) codec: Arc<Codec>,
}

impl Cell {
    /// A new end, with all of its window.
    pub(super) fn new(ready: &Arc<Ready>, new: NewCell) -> Arc<Cell> {
        Arc::new(Cell {
            call: new.call,
            place: new.place,
            method: new.method,
            codec: new.codec,
            ready: ready.clone(),
            is_queued: AtomicBool::new(false),
            state: Mutex::new(State::new()),
        })
    }

    pub(super) fn is_over(&self) -> bool {
        self.lock().is_over
    }

    /// Has something leave after all that was to leave before, and the event loop look at it.
    pub(super) fn leave(self: &Arc<Self>, leaving: Leaving) {
        let mut state = self.lock();
        if state.is_over {
            return;
        }
        state.egress_events.push_back(leaving);
        drop(state);
        self.queue();
    }

    /// Says what the call came to. What is to leave before still leaves; what arrives is for nobody.
    pub(super) fn answer(self: &Arc<Self>, answer: Answer) {
        self.leave(Leaving::Answer(answer));
    }

    /// Has the event loop look at it.
    fn queue(self: &Arc<Self>) {
        if self.is_queued.swap(true, Ordering::SeqCst) {
            return;
        }
        self.ready.cells.push(self.clone());
        // Pairs with `Ready::close`: one of the two sees what the other did.
        if self.ready.is_closed.load(Ordering::SeqCst) {
            self.ready.close();
        }
        self.ready.call();
    }

    /// A message has arrived that counts as so much.
    ///
    /// # Errors
    /// If it is malformed, or more than the window lets pass.
    pub(super) fn message(&self, side: Side, head: &FrameHead, payload: &[u8]) -> Result<(), Status> {
        let is_last = side == Side::Response && head.value == 0;
        let least = STREAM_MESSAGE_COST_BYTES.saturating_add((payload.len() as u32).saturating_sub(8));
        if !is_last && head.value < least {
            return Err(Status::internal("the peer counts a message as less than it is"));
        }
        let mut state = self.lock();
        let has_room = if is_last {
            !std::mem::replace(&mut state.has_last, true)
        } else {
            state.receive_window > 0
        };
        state.receive_window -= i64::from(head.value);
        drop(state);
        if !has_room {
            return Err(Status::internal("the peer sends more than the stream's window"));
        }
        let message: Inbound = self.codec.read(self.method, side, payload)?;
        self.arrive(self.lock(), (Arrival::Message(message), head.value));
        Ok(())
    }

    /// Something has arrived that arrives once at most, and counts as nothing.
    pub(super) fn arrived(&self, arrival: Arrival) {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.has_single, true) {
            self.arrive(state, (arrival, 0));
        }
    }

    fn arrive(&self, mut state: MutexGuard<'_, State>, arrival: (Arrival, u32)) {
        if state.is_over {
            drop(state);
            return drop(arrival);
        }
        state.arrivals.push_back(arrival);
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(wake);
    }

    /// The peer lets so much more pass.
    pub(super) fn widen(&self, bytes: u32) {
        let mut state = self.lock();
        // No peer has more to give than the window.
        state.send_window = (state.send_window + i64::from(bytes)).min(STREAM_WINDOW_BYTES.into());
        let writer = if state.send_window > 0 {
            state.writer.take()
        } else {
            // It goes on waiting: a message went beyond the window by more than this.
            None
        };
        drop(state);
        writer.into_iter().for_each(wake);
    }

    /// The call is over: what has arrived can be read, and then this; nothing leaves any more.
    pub(super) fn end(&self, result: Result<provost::MetadataMap, Status>) {
        self.finish(result, None);
    }

    /// As [`Cell::end`], and the server is told that nobody asks for the call any more.
    pub(super) fn fail(self: &Arc<Self>, status: Status) {
        let code = status.code();
        self.finish(Err(status), Some(code));
        self.queue();
    }

    fn finish(&self, result: Result<provost::MetadataMap, Status>, cancel: Option<Code>) {
        let mut state = self.lock();
        if state.is_over {
            return;
        }
        state.is_over = true;
        state.arrivals.push_back((Arrival::Ended(result), 0));
        let has_begun = !matches!(state.egress_events.front(), Some(Leaving::Begin { .. }));
        let unsent = std::mem::take(&mut state.egress_events);
        if let Some(code) = cancel.filter(|_| has_begun) {
            state.egress_events.push_back(Leaving::Cancel(code));
        }
        let wakers = [state.reader.take(), state.writer.take()];
        drop(state);
        drop(unsent);
        wakers.into_iter().flatten().for_each(wake);
    }

    /// Writes what leaves next, as far as there is room.
    pub(super) fn write(&self, batch: &mut Batch<'_>, service: u16) -> Written {
        self.is_queued.store(false, Ordering::SeqCst);
        let mut state = self.lock();
        let by = Writing {
            codec: &self.codec,
            method: self.method,
            side: match self.place {
                Place::Client(_) => Side::Request,
                Place::Server(_) => Side::Response,
            },
            service,
        };
        let granted_bytes = state.granted_bytes;
        if granted_bytes > 0 && !state.is_over {
            // A beginning comes before anything else of its call, and before it nothing was granted.
            if batch.room() < FrameHead::BYTES || batch.window(self.call, granted_bytes).is_err() {
                return self.more(FrameHead::BYTES);
            }
            state.receive_window += i64::from(granted_bytes);
            state.granted_bytes = 0;
        }
        let Some(leaving) = state.egress_events.pop_front() else {
            return Written::All;
        };
        let bytes_max = leaving.bytes_max();
        if let Err(status) = batch.check(bytes_max) {
            return Written::Failed(status);
        }
        if bytes_max > batch.room() {
            state.egress_events.push_front(leaving);
            return self.more(bytes_max);
        }
        let is_last = matches!(leaving, Leaving::Answer(_));
        let has_more = !state.egress_events.is_empty();
        let written = batch.write(self.call, &leaving, by);
        drop(state);
        match written {
            Err(status) => Written::Failed(status),
            Ok(()) if is_last => {
                self.end(Err(Status::cancelled("the call is over")));
                Written::All
            }
            Ok(()) if has_more => self.more(0),
            Ok(()) => Written::All,
        }
    }

    /// Says that there is more, which the event loop has in mind; unless others have put it in [`Ready`] meanwhile.
    fn more(&self, bytes: usize) -> Written {
        if self.is_queued.swap(true, Ordering::SeqCst) {
            Written::All
        } else {
            Written::More { bytes }
        }
    }

    /// What was read is told to the sender, now or later.
    fn owe(self: &Arc<Self>, mut state: MutexGuard<'_, State>, cost_bytes: u32) {
        let is_due = state.count_read(cost_bytes);
        drop(state);
        if is_due {
            self.queue();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What came of writing.
pub(super) enum Written {
    /// There is nothing more.
    All,
    /// There is more, which takes so much room.
    More { bytes: usize },
    /// A message cannot be sent.
    Failed(Status),
}

/// An end as its client or its handler has it.
pub(super) struct Held(pub(super) Arc<Cell>);

impl StreamEnd for Held {
    fn poll_arrival(&self, context: &mut TaskContext<'_>) -> Poll<Arrival> {
        let mut state = self.0.lock();
        match state.arrivals.pop_front() {
            Some((arrival, 0)) => Poll::Ready(arrival),
            Some((arrival, cost_bytes)) => {
                self.0.owe(state, cost_bytes);
                Poll::Ready(arrival)
            }
            None if state.is_over => Poll::Ready(Arrival::Ended(Err(Status::cancelled("the call is over")))),
            None => {
                let replaced = state.reader.replace(context.waker().clone());
                // Dropped without the lock: it may be the last owner of a task that has the other half.
                drop(state);
                drop(replaced);
                Poll::Pending
            }
        }
    }

    fn poll_window(&self, context: &mut TaskContext<'_>) -> Poll<Result<(), CallOver>> {
        let mut state = self.0.lock();
        if state.is_over {
            return Poll::Ready(Err(CallOver));
        }
        if state.send_window > 0 {
            return Poll::Ready(Ok(()));
        }
        let replaced = state.writer.replace(context.waker().clone());
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    fn send(&self, egress_event: EgressEvent) {
        let leaving = match egress_event {
            EgressEvent::Metadata(metadata) => Leaving::Metadata(metadata),
            EgressEvent::EndOfRequests => Leaving::EndOfRequests,
            EgressEvent::Message(message) => {
                let bytes = message.message_bytes_max().unwrap_or(0) as u32;
                let cost_bytes = bytes.saturating_add(STREAM_MESSAGE_COST_BYTES);
                self.0.lock().send_window -= i64::from(cost_bytes);
                Leaving::Message { message, cost_bytes }
            }
        };
        self.0.leave(leaving);
    }

    fn cancel(&self, code: Code) {
        let mut state = self.0.lock();
        let unread = std::mem::take(&mut state.arrivals);
        drop(state);
        drop(unread);
        self.0.fail(Status::new(code, "the client gave it up"));
    }
}

/// Writes what these ends have, each in turn, until there is no room for what comes next; says how much that takes.
pub(super) fn fill(
    waiting: &mut VecDeque<Arc<Cell>>,
    batch: &mut Batch<'_>,
    service: u16,
    mut on_written: impl FnMut(&Arc<Cell>, Result<(), Status>),
) -> usize {
    while let Some(cell) = waiting.pop_front() {
        match cell.write(batch, service) {
            Written::All => on_written(&cell, Ok(())),
            Written::More { bytes: 0 } => waiting.push_back(cell),
            Written::More { bytes } => {
                waiting.push_front(cell);
                return bytes;
            }
            Written::Failed(status) => on_written(&cell, Err(status)),
        }
    }
    0
}

/// How frames go together.
#[derive(Clone, Copy)]
pub(super) struct BatchBounds {
    /// Bytes that go together, if there are as many as [`BATCH_BYTES`].
    pub(super) together_bytes: usize,
    /// Bytes that any message of frames may have.
    pub(super) bytes_max: usize,
}

/// Takes a buffer with what these ends have; `None` if that is nothing.
pub(super) fn batch_of<A: Address, S>(
    context: &mut Context<'_, A, S>,
    waiting: &mut VecDeque<Arc<Cell>>,
    (service, bounds): (u16, BatchBounds),
    mut on_written: impl FnMut(&Arc<Cell>, Result<(), Status>),
) -> Option<MsgBuf> {
    let together = BATCH_BYTES.min(bounds.together_bytes).min(bounds.bytes_max);
    let mut room = together;
    while !waiting.is_empty() {
        let mut buffer = context.buffer(room);
        buffer.set_length(room);
        let mut batch = Batch::new(&mut buffer).up_to(bounds.bytes_max);
        let wanted = fill(waiting, &mut batch, service, &mut on_written);
        let length = batch.length();
        buffer.set_length(length);
        if length > 0 {
            return Some(buffer);
        }
        context.recycle(buffer);
        // What does not fit goes alone.
        room = wanted.max(together);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_counts_a_message_as_much_as_it_can_is_granted_as_much() {
        let mut state = State::new();
        assert!(state.count_read(PENDING_IDLE_BYTES));
        assert!(state.count_read(u32::MAX));
        assert_eq!(state.granted_bytes, u32::MAX);
    }
}
