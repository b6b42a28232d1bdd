//! Bytes for the peer: heads at once, bodies in turns as the windows allow.

use std::cell::RefCell;

use super::{DrainState, HeadKind, Http2Connection, PendingEvent, StreamEnd};
use crate::config::{
    DATA_OUTPUT_BYTES_MAX, EndpointRole, HEAD_BYTES_MAX, OUTPUT_BYTES_MAX, SETTINGS_UNACKNOWLEDGED_MAX,
    STREAM_QUEUE_CHUNKS_MAX,
};
use crate::error::SendError;
use crate::fields::FieldList;
use crate::frame::{FRAME_BYTES_MIN, FRAME_HEADER_BYTES, FrameKind, NUMBER_MAX, flags};
use crate::output::DataChunk;
use crate::settings::EndpointSettings;
use crate::streams::{HalfState, Http2Stream, QueueEnd};
use crate::validate::{HeadFault, check_request, check_response, check_sent_values, check_trailers};

/// Bytes of one frame of DATA at most, however many the peer takes: streams have their turns.
const DATA_BYTES_MAX: u32 = FRAME_BYTES_MIN;
/// Room for a frame of DATA below which none is begun.
const DATA_ROOM_BYTES_MIN: usize = 1_024;
/// Lists that were sent and whose memory is kept, of all connections of a thread.
const SPARE_LISTS_MAX: usize = 64;
/// Memory of such a list, at most.
const SPARE_LIST_BYTES_MAX: usize = 1_024;

thread_local! {
    /// Lists without fields, for their memory: most connections send nothing just now.
    static SPARE_LISTS: RefCell<Vec<FieldList>> = const { RefCell::new(Vec::new()) };
}

impl<C: DataChunk> Http2Connection<C> {
    /// Opens a stream with a request.
    ///
    /// # Errors
    /// Nothing was opened, and the reason says whether it can be later.
    pub fn open(&mut self, head: &FieldList, end: StreamEnd, now_ns: u64) -> Result<u32, SendError> {
        check_sent_values(head)?;
        let facts = check_request(head)?;
        let id = if self.highest_stream == 0 {
            1
        } else {
            self.highest_stream + 2
        };
        let is_over = self.failed.is_some() || self.drain != DrainState::No || self.peer_goaway.is_some();
        if self.role == EndpointRole::Server || is_over || id > NUMBER_MAX {
            return Err(SendError::NoMoreStreams);
        }
        if self.streams.len() >= self.peer.streams_max.min(self.config.streams_max) as usize {
            return Err(SendError::TooManyStreams);
        }
        self.check_room(head)?;
        self.begin_output(now_ns);
        self.highest_stream = id;
        let mut stream = self.new_stream(id, now_ns);
        stream.is_head_method = facts.is_head_method;
        stream.local = after_head(end);
        self.streams.insert(id, stream);
        self.head_frames(id, head, end);
        Ok(id)
    }

    /// Sends the head of a response: any number of interim ones, of status 1xx, then the final one.
    ///
    /// # Errors
    /// Nothing was sent.
    pub fn respond(
        &mut self,
        id: u32,
        head: &FieldList,
        end: StreamEnd,
        now_ns: u64,
    ) -> Result<HeadKind, SendError> {
        check_sent_values(head)?;
        let facts = check_response(head)?;
        let is_interim = facts.status < 200;
        if is_interim && end == StreamEnd::Ends {
            return Err(HeadFault::Sequence.into());
        }
        let is_server = self.role == EndpointRole::Server;
        let stream = self.streams.get(id).ok_or(SendError::NoStream)?;
        if !is_server || stream.local != HalfState::Head {
            return Err(SendError::State("the response has begun already"));
        }
        self.check_room(head)?;
        self.begin_output(now_ns);
        self.head_frames(id, head, end);
        if is_interim {
            return Ok(HeadKind::Interim);
        }
        if let Some(stream) = self.streams.get_mut(id) {
            stream.local = after_head(end);
            stream.active_ns = now_ns;
        }
        self.close_if_ended(id);
        Ok(HeadKind::Response)
    }

    /// Puts a part of a body into the stream's queue, from which it goes as the windows allow. An empty one, which only ends the
    /// stream, is always taken.
    ///
    /// # Errors
    /// The chunk comes back, with the reason. [`SendError::QueueFull`] is followed by a
    /// [`Http2Event::Writable`](crate::Http2Event::Writable).
    pub fn send_data(
        &mut self,
        id: u32,
        chunk: C,
        end: StreamEnd,
        now_ns: u64,
    ) -> Result<(), (SendError, C)> {
        self.send_chunks(id, [chunk], end, now_ns)
            .map_err(|(error, [chunk])| (error, chunk))
    }

    /// As [`Http2Connection::send_data`], with chunks that are taken all or none.
    ///
    /// # Errors
    /// All chunks come back, with the reason.
    pub fn send_chunks<const N: usize>(
        &mut self,
        id: u32,
        chunks: [C; N],
        end: StreamEnd,
        now_ns: u64,
    ) -> Result<(), (SendError, [C; N])> {
        let queue_bytes_max = self.config.stream_queue_bytes_max;
        let stream = match self.body_stream(id) {
            Ok(stream) => stream,
            Err(error) => return Err((error, chunks)),
        };
        let is_full = stream.queue_bytes >= queue_bytes_max || stream.queue.len() >= STREAM_QUEUE_CHUNKS_MAX;
        if is_full && chunks.iter().any(|chunk| !chunk.bytes().is_empty()) {
            stream.wants_room = true;
            return Err((SendError::QueueFull, chunks));
        }
        stream.active_ns = now_ns;
        for chunk in chunks {
            let bytes = chunk.bytes().len();
            if bytes > 0 {
                stream.queue_bytes += bytes;
                stream.queue.push_back(chunk);
            }
        }
        if end == StreamEnd::Ends {
            stream.queue_end = QueueEnd::Ends;
        }
        self.schedule(id);
        Ok(())
    }

    /// Ends the body with trailers, which go when all of it has gone.
    ///
    /// # Errors
    /// Nothing was changed.
    pub fn send_trailers(&mut self, id: u32, trailers: FieldList, now_ns: u64) -> Result<(), SendError> {
        check_sent_values(&trailers)?;
        check_trailers(&trailers)?;
        self.check_list(&trailers)?;
        let stream = self.body_stream(id)?;
        stream.queue_end = QueueEnd::Trailers(trailers);
        stream.active_ns = now_ns;
        self.schedule(id);
        Ok(())
    }

    /// A list of no fields for a head or for trailers, in the memory of one that was [given back](Http2Connection::keep_list) if
    /// there is any.
    #[must_use]
    pub fn spare_list(&mut self) -> FieldList {
        let spare = SPARE_LISTS.with_borrow_mut(Vec::pop);
        spare.unwrap_or_default()
    }

    /// Keeps the memory of a list that was sent, unless it is more than ordinary ones need. Trailers are given back when they leave.
    pub fn keep_list(&mut self, mut list: FieldList) {
        SPARE_LISTS.with_borrow_mut(|spare| {
            if spare.len() < SPARE_LISTS_MAX && list.memory_bytes() <= SPARE_LIST_BYTES_MAX {
                list.clear();
                spare.push(list);
            }
        });
    }

    /// Whether the peer takes a list of this length (RFC 9113, section 6.5.2).
    #[must_use]
    pub fn takes_list(&self, fields: &FieldList) -> bool {
        self.check_list(fields).is_ok()
    }

    /// Bytes that wait in a stream's queue; None if the stream ended.
    #[must_use]
    pub fn queued_bytes(&self, id: u32) -> Option<usize> {
        self.streams.get(id).map(|stream| stream.queue_bytes)
    }

    /// The reader of a stream is done with so many bytes of it: the peer may send as many more. Each byte of
    /// [`Http2Event::Data`](crate::Http2Event::Data) is released once, also when the stream has ended.
    pub fn release(&mut self, id: u32, bytes: u32) {
        self.release_connection(bytes);
        self.release_stream(id, bytes);
    }

    /// Does half of what [`Http2Connection::release`] does: other streams may send as many bytes more.
    pub fn release_connection(&mut self, bytes: u32) {
        self.receive_window.release(bytes);
    }

    /// Does the other half, once the connection has its part.
    pub fn release_stream(&mut self, id: u32, bytes: u32) {
        let Some(stream) = self.streams.get_mut(id) else {
            return;
        };
        stream.receive_window.release(bytes);
        if stream.owes_update() {
            stream.is_update_queued = true;
            self.updates.push_back(id);
        }
    }

    /// Pings the peer; the answer comes as [`Http2Event::Pong`](crate::Http2Event::Pong).
    ///
    /// # Errors
    /// The output is full.
    pub fn ping(&mut self, payload: u64, now_ns: u64) -> Result<(), SendError> {
        if self.output.bytes() >= OUTPUT_BYTES_MAX {
            return Err(SendError::OutputFull);
        }
        self.begin_output(now_ns);
        self.output.frame(FrameKind::Ping, 0, 0, &payload.to_be_bytes());
        Ok(())
    }

    /// Tells the peer other settings: of the configuration, only those that SETTINGS have.
    ///
    /// # Errors
    /// Too many are not acknowledged yet.
    pub fn change_settings(&mut self, config: &super::Http2Config, now_ns: u64) -> Result<(), SendError> {
        if self.unacknowledged.len() >= SETTINGS_UNACKNOWLEDGED_MAX {
            return Err(SendError::State(
                "the peer has not acknowledged the settings before",
            ));
        }
        self.config.header_table_bytes = config.header_table_bytes;
        self.config.streams_max = config.streams_max;
        self.config.stream_window_bytes = config.stream_window_bytes;
        self.config.frame_bytes_max = config.frame_bytes_max;
        self.begin_output(now_ns);
        self.send_settings(self.config.settings(self.role), now_ns);
        Ok(())
    }

    /// Schedules what waits, as far as the windows and the output's bound allow. Call it before sending.
    pub fn fill(&mut self, now_ns: u64) {
        if self.failed.is_some() {
            return;
        }
        self.begin_output(now_ns);
        self.send_windows();
        let mut turns = self.round.len();
        while turns > 0 && self.output.bytes() + DATA_ROOM_BYTES_MIN <= DATA_OUTPUT_BYTES_MAX {
            turns -= 1;
            let Some(id) = self.round.pop_front() else { break };
            if self.turn(id, now_ns) {
                // It has more, and another turn once the others had theirs.
                turns = self.round.len();
            }
        }
    }

    /// The turn of one stream; whether anything was sent.
    fn turn(&mut self, id: u32, now_ns: u64) -> bool {
        let Some(stream) = self.streams.get_mut(id) else {
            return false;
        };
        let room = DATA_OUTPUT_BYTES_MAX.saturating_sub(self.output.bytes() + FRAME_HEADER_BYTES);
        let limit = room.min(self.peer.frame_bytes_max.min(DATA_BYTES_MAX) as usize);
        let window = stream.send_window.room().min(self.send_window.room());
        let bytes = stream.queue_bytes.min(limit).min(window);
        let mut is_sent = bytes > 0;
        if is_sent {
            stream.active_ns = now_ns;
            self.send_window.spend(bytes);
            self.floods.honest_frame(&self.config.floods);
            stream.put_data(bytes, &mut self.output);
        } else if stream.has_end() {
            is_sent = true;
            stream.put_end_of_data(&mut self.output);
        }
        if let Some(trailers) = stream.take_trailers() {
            self.head_frames(id, &trailers, StreamEnd::Ends);
            self.keep_list(trailers);
        }
        self.after_turn(id);
        is_sent
    }

    fn after_turn(&mut self, id: u32) {
        let queue_bytes_max = self.config.stream_queue_bytes_max;
        let Some(stream) = self.streams.get_mut(id) else {
            return;
        };
        let has_room = stream.queue_bytes < queue_bytes_max.div_ceil(2)
            && stream.queue.len() < STREAM_QUEUE_CHUNKS_MAX / 2;
        if stream.wants_room && has_room && stream.queue_end == QueueEnd::Open {
            stream.wants_room = false;
            self.events.push_back(PendingEvent::Writable(id));
        }
        stream.is_scheduled = stream.has_output();
        if stream.is_scheduled {
            self.round.push_back(id);
        }
        self.close_if_ended(id);
    }

    /// WINDOW_UPDATEs that are due, in one frame for each window.
    fn send_windows(&mut self) {
        if self.receive_window.is_update_due() {
            let increment = self.receive_window.update();
            self.window_update(0, increment);
        }
        while let Some(id) = self.updates.pop_front() {
            let Some(stream) = self.streams.get_mut(id) else {
                continue;
            };
            stream.is_update_queued = false;
            if stream.remote != HalfState::Ended {
                let increment = stream.receive_window.update();
                self.window_update(id, increment);
            }
        }
    }

    /// Gives a stream its place in the round, if it has anything to send.
    pub(super) fn schedule(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(id) else {
            return;
        };
        if !stream.is_scheduled && stream.has_output() {
            stream.is_scheduled = true;
            self.round.push_back(id);
        }
    }

    pub(super) fn schedule_all(&mut self) {
        let ids: Vec<u32> = self.streams.keys().collect();
        ids.into_iter().for_each(|id| self.schedule(id));
    }

    pub(super) fn send_settings(&mut self, settings: EndpointSettings, now_ns: u64) {
        let last = self
            .unacknowledged
            .back()
            .map_or(self.local, |(settings, _)| *settings);
        let entries = settings.changes(&last);
        self.output
            .frame(FrameKind::Settings, 0, 0, entries.as_flattened());
        self.decoder.announce_table_bytes(settings.header_table_bytes);
        self.unacknowledged.push_back((settings, now_ns));
    }

    /// Writes a head as HEADERS and CONTINUATIONs.
    pub(super) fn head_frames(&mut self, id: u32, fields: &FieldList, end: StreamEnd) {
        let frame_bytes_max = self.peer.frame_bytes_max as usize;
        let encoder = &mut self.encoder;
        self.output
            .block(end.flag(), id, frame_bytes_max, |out| encoder.encode(fields, out));
    }

    /// A stream whose body this end may go on with.
    fn body_stream(&mut self, id: u32) -> Result<&mut Http2Stream<C>, SendError> {
        let stream = self.streams.get_mut(id).ok_or(SendError::NoStream)?;
        match stream.local {
            HalfState::Head => Err(SendError::State("a head comes first")),
            HalfState::Body if stream.queue_end == QueueEnd::Open => Ok(stream),
            HalfState::Body | HalfState::Ended => Err(SendError::State("this end has ended the stream")),
        }
    }

    fn check_room(&self, fields: &FieldList) -> Result<(), SendError> {
        self.check_list(fields)?;
        if self.output.bytes() >= OUTPUT_BYTES_MAX {
            return Err(SendError::OutputFull);
        }
        Ok(())
    }

    fn check_list(&self, fields: &FieldList) -> Result<(), SendError> {
        let list_bytes_max = self.peer.header_list_bytes_max.min(HEAD_BYTES_MAX as u32);
        let list_bytes = fields.list_bytes();
        if list_bytes > list_bytes_max as usize {
            return Err(SendError::ListTooLarge {
                list_bytes,
                list_bytes_max,
            });
        }
        Ok(())
    }
}

fn after_head(end: StreamEnd) -> HalfState {
    match end {
        StreamEnd::Continues => HalfState::Body,
        StreamEnd::Ends => HalfState::Ended,
    }
}

impl<C: DataChunk> Http2Stream<C> {
    /// One frame of DATA of so many bytes, which the queue has; with END_STREAM if they are its last.
    fn put_data(&mut self, bytes: usize, output: &mut crate::output::OutputQueue<C>) {
        self.send_window.spend(bytes);
        let is_last = bytes == self.queue_bytes && self.queue_end == QueueEnd::Ends;
        let flags = if is_last { flags::END_STREAM } else { 0 };
        output.frame_header(FrameKind::Data, flags, self.id, bytes);
        if is_last {
            self.local = HalfState::Ended;
        }
        let mut left = bytes;
        while left > 0 {
            let Some(chunk) = self.queue.front() else { break };
            let start = self.queue_start;
            let end = chunk.bytes().len().min(start + left);
            output.put_chunk(chunk, start, end);
            left -= end - start;
            self.queue_start = end;
            if end == chunk.bytes().len() {
                self.queue.pop_front();
                self.queue_start = 0;
            }
        }
        self.queue_bytes -= bytes;
    }

    /// The trailers, when all that goes before them has gone. They end this half of the stream.
    fn take_trailers(&mut self) -> Option<FieldList> {
        if !self.has_end() {
            return None;
        }
        let QueueEnd::Trailers(trailers) = &mut self.queue_end else {
            return None;
        };
        self.local = HalfState::Ended;
        Some(std::mem::take(trailers))
    }

    /// An empty frame of DATA with END_STREAM, if that is how the queue ends.
    fn put_end_of_data(&mut self, output: &mut crate::output::OutputQueue<C>) {
        if self.queue_end == QueueEnd::Ends {
            output.frame(FrameKind::Data, flags::END_STREAM, self.id, &[]);
            self.local = HalfState::Ended;
        }
    }
}
