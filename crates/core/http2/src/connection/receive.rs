//! Bytes from the peer: frames, one by one.

use std::ops::Range;

use super::{
    DRAIN_PING, DataProgress, DrainState, Http2Connection, Http2Event, KEEPALIVE_PING, OpenBlock,
    PendingEvent, ReadState, ReceivedInput, ResetCause, StreamEnd,
};
use crate::config::{EndpointRole, GOAWAY_DEBUG_BYTES_MAX};
use crate::connection::heads::CompletedHead;
use crate::error::{ConnectionError, ErrorCode};
use crate::floods::{FloodKind, RAPID_RESET_NS};
use crate::frame::{FRAME_HEADER_BYTES, FrameBody, FrameHeader, FrameKind, PADDING_TOO_LONG, PREFACE, flags};
use crate::hpack::HpackError;
use crate::output::DataChunk;
use crate::settings::{setting, setting_bytes};
use crate::streams::{HalfState, StreamEnding};

/// Memory for a frame in parts that is kept between frames.
const COLLECTED_BYTES_KEPT: usize = 1_024;

/// An event that names places, so that it borrows nothing yet.
pub(super) enum FoundEvent {
    Head(CompletedHead),
    Data {
        stream: u32,
        /// The place of the bytes in the input.
        data: Range<usize>,
        end: StreamEnd,
    },
    Pending(PendingEvent),
}

/// How far one step came.
struct InputStep {
    used: usize,
    event: Option<FoundEvent>,
}

impl InputStep {
    fn quiet(used: usize) -> InputStep {
        InputStep { used, event: None }
    }
}

/// What is done with a frame's payload.
enum PayloadUse {
    Collect,
    Data(DataProgress),
    Skip,
}

impl<C: DataChunk> Http2Connection<C> {
    /// Takes bytes of the peer up to the next event. Call it again with the rest until there is neither an event nor progress.
    ///
    /// # Errors
    /// The connection is over: send what is in the output and close the carrier. Every further call says the same.
    pub fn receive<'a>(
        &'a mut self,
        input: &'a [u8],
        now_ns: u64,
    ) -> Result<ReceivedInput<'a>, ConnectionError> {
        let mut consumed = 0;
        let found = loop {
            if let Some(event) = self.events.pop_front() {
                break Some(FoundEvent::Pending(event));
            }
            if let Some(error) = self.failed {
                return Err(error);
            }
            if consumed == input.len() || self.is_blocked() {
                break None;
            }
            self.begin_output(now_ns);
            self.keepalive.heard_ns = now_ns;
            match self.step(&input[consumed..], now_ns) {
                Ok(step) => {
                    let event = step.event.map(|event| event.behind(consumed));
                    consumed += step.used;
                    if event.is_some() {
                        break event;
                    }
                }
                Err(error) => {
                    self.fail(error, now_ns);
                    return Err(error);
                }
            }
        };
        let event = found.map(|found| self.event(found, input));
        Ok(ReceivedInput { consumed, event })
    }

    fn event<'a>(&'a self, found: FoundEvent, input: &'a [u8]) -> Http2Event<'a> {
        match found {
            FoundEvent::Head(head) => Http2Event::Head {
                stream: head.stream,
                kind: head.kind,
                fields: self.decoder.fields(),
                end: head.end,
            },
            FoundEvent::Data { stream, data, end } => Http2Event::Data {
                stream,
                data: &input[data],
                end,
            },
            FoundEvent::Pending(event) => match event {
                PendingEvent::Reset { stream, code, cause } => Http2Event::Reset { stream, code, cause },
                PendingEvent::Writable(stream) => Http2Event::Writable { stream },
                PendingEvent::PeerSettings => Http2Event::PeerSettings,
                PendingEvent::Pong(payload) => Http2Event::Pong { payload },
                PendingEvent::GoAway { last_stream, code } => Http2Event::GoAway {
                    last_stream,
                    code,
                    debug: &self.goaway_debug,
                },
            },
        }
    }

    /// Takes some bytes, at least one.
    fn step(&mut self, input: &[u8], now_ns: u64) -> Result<InputStep, ConnectionError> {
        match &mut self.read {
            ReadState::Preface(have) => {
                let have = *have;
                self.preface(have, input)
            }
            ReadState::Header { bytes, have } => {
                let used = input.len().min(FRAME_HEADER_BYTES - *have);
                bytes[*have..*have + used].copy_from_slice(&input[..used]);
                *have += used;
                if *have < FRAME_HEADER_BYTES {
                    return Ok(InputStep::quiet(used));
                }
                let header = FrameHeader::read(*bytes);
                self.read = ReadState::START;
                self.frame(header, used, input, now_ns)
            }
            ReadState::Payload(header) => {
                let header = *header;
                self.collect(header, input, now_ns)
            }
            ReadState::Data(progress) => {
                let progress = *progress;
                self.data(progress, 0, input, now_ns)
            }
            ReadState::Skip(left) => {
                let used = input.len().min(*left as usize);
                *left -= used as u32;
                if *left == 0 {
                    self.read = ReadState::START;
                }
                Ok(InputStep::quiet(used))
            }
        }
    }

    /// RFC 9113, section 3.4.
    fn preface(&mut self, have: usize, input: &[u8]) -> Result<InputStep, ConnectionError> {
        let used = input.len().min(PREFACE.len() - have);
        if PREFACE[have..have + used] != input[..used] {
            let reason = match have {
                0 => other_protocol(input),
                _ => OTHER_PREFACE,
            };
            return Err(ConnectionError::protocol(reason));
        }
        self.read = if have + used == PREFACE.len() {
            ReadState::START
        } else {
            ReadState::Preface(have + used)
        };
        Ok(InputStep::quiet(used))
    }

    /// A header is complete, after `used` bytes of the input; the payload begins behind them.
    fn frame(
        &mut self,
        header: FrameHeader,
        used: usize,
        input: &[u8],
        now_ns: u64,
    ) -> Result<InputStep, ConnectionError> {
        match self.payload_use(header, now_ns)? {
            PayloadUse::Data(progress) => self.data(progress, used, input, now_ns),
            PayloadUse::Skip => {
                if header.length > 0 {
                    self.read = ReadState::Skip(header.length);
                }
                Ok(InputStep::quiet(used))
            }
            PayloadUse::Collect => {
                let end = used + header.length as usize;
                if let Some(payload) = input.get(used..end) {
                    let event = self.payload(header, payload, now_ns)?;
                    return Ok(InputStep { used: end, event });
                }
                self.read = ReadState::Payload(header);
                Ok(InputStep::quiet(used))
            }
        }
    }

    fn collect(
        &mut self,
        header: FrameHeader,
        input: &[u8],
        now_ns: u64,
    ) -> Result<InputStep, ConnectionError> {
        let used = input.len().min(header.length as usize - self.collected.len());
        self.collected.extend_from_slice(&input[..used]);
        if self.collected.len() < header.length as usize {
            return Ok(InputStep::quiet(used));
        }
        self.read = ReadState::START;
        let mut payload = std::mem::take(&mut self.collected);
        let event = self.payload(header, &payload, now_ns)?;
        payload.clear();
        payload.shrink_to(COLLECTED_BYTES_KEPT);
        self.collected = payload;
        Ok(InputStep { used, event })
    }

    /// What the header alone says: errors of the connection, and what is done with the payload.
    fn payload_use(&mut self, header: FrameHeader, now_ns: u64) -> Result<PayloadUse, ConnectionError> {
        self.check_frame_size(header)?;
        self.check_order(header)?;
        header.check()?;
        match header.kind {
            FrameKind::Data => self.begin_data(header, now_ns).map(PayloadUse::Data),
            FrameKind::PushPromise => Err(ConnectionError::protocol("nobody may push to this end")),
            FrameKind::Unknown(_) => {
                self.charge(FloodKind::Other, now_ns)?;
                Ok(PayloadUse::Skip)
            }
            FrameKind::Priority => {
                self.charge(FloodKind::Other, now_ns)?;
                if header.length != 5 {
                    self.fault(header.stream, ErrorCode::FRAME_SIZE_ERROR, now_ns)?;
                }
                Ok(PayloadUse::Skip)
            }
            _ => Ok(PayloadUse::Collect),
        }
    }

    /// RFC 9113, section 4.2. An error of a stream may be one of the connection (section 5.4.1), and this one is.
    fn check_frame_size(&self, header: FrameHeader) -> Result<(), ConnectionError> {
        let sent = self
            .unacknowledged
            .iter()
            .map(|(settings, _)| settings.frame_bytes_max);
        let limit = sent.fold(self.local.frame_bytes_max, u32::max);
        if header.length > limit {
            let reason = "a frame is larger than SETTINGS_MAX_FRAME_SIZE";
            return Err(ConnectionError::new(ErrorCode::FRAME_SIZE_ERROR, reason));
        }
        Ok(())
    }

    /// What comes first (RFC 9113, section 3.4), and what nothing may come between (section 4.3).
    fn check_order(&self, header: FrameHeader) -> Result<(), ConnectionError> {
        let is_settings = header.kind == FrameKind::Settings && !header.has(flags::ACK);
        if !self.has_peer_settings && !is_settings {
            return Err(ConnectionError::protocol("the first frame is not SETTINGS"));
        }
        let is_continuation = header.kind == FrameKind::Continuation;
        match self.open_block {
            Some(block) if !is_continuation || block.stream != header.stream => Err(
                ConnectionError::protocol("a field block is interrupted by another frame"),
            ),
            None if is_continuation => Err(ConnectionError::protocol("CONTINUATION follows no field block")),
            _ => Ok(()),
        }
    }

    /// A frame is whole.
    fn payload(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        now_ns: u64,
    ) -> Result<Option<FoundEvent>, ConnectionError> {
        match FrameBody::read(header, payload)? {
            FrameBody::Headers(fragment) => {
                let block = OpenBlock {
                    stream: header.stream,
                    is_end: header.has(flags::END_STREAM),
                    continuations: 0,
                    since_ns: now_ns,
                };
                self.fragment(block, header, fragment, now_ns)
            }
            FrameBody::Continuation(fragment) => {
                let open = self.open_block.take();
                let mut block =
                    open.ok_or(ConnectionError::protocol("CONTINUATION follows no field block"))?;
                block.continuations = block.continuations.saturating_add(1);
                if block.continuations > crate::config::CONTINUATION_FRAMES_MAX {
                    return Err(ConnectionError::calm("a field block has too many CONTINUATIONs"));
                }
                self.fragment(block, header, fragment, now_ns)
            }
            FrameBody::ResetStream(code) => self.peer_reset(header.stream, code, now_ns),
            FrameBody::Settings(entries) => self.settings(header, entries, now_ns),
            FrameBody::Ping(ping) => self.ping_frame(header, ping, now_ns),
            FrameBody::GoAway {
                last_stream,
                code,
                debug,
            } => self.goaway(last_stream, code, debug, now_ns),
            FrameBody::WindowUpdate(increment) => self.peer_window(header.stream, increment, now_ns),
            FrameBody::Data(_)
            | FrameBody::Priority(_)
            | FrameBody::PushPromise { .. }
            | FrameBody::Unknown => Ok(None),
        }
    }

    fn fragment(
        &mut self,
        block: OpenBlock,
        header: FrameHeader,
        fragment: &[u8],
        now_ns: u64,
    ) -> Result<Option<FoundEvent>, ConnectionError> {
        if fragment.is_empty() {
            self.charge(FloodKind::Empty, now_ns)?;
        }
        self.decoder.fragment(fragment).map_err(block_error)?;
        if !header.has(flags::END_HEADERS) {
            self.open_block = Some(block);
            return Ok(None);
        }
        self.open_block = None;
        let decoded = self.decoder.end().map_err(block_error)?;
        let head = self.block(block, decoded, now_ns)?;
        if head.is_none() {
            self.decoder.forget_fields();
        }
        Ok(head.map(FoundEvent::Head))
    }

    /// RFC 9113, section 6.1, and both levels of section 6.9, before the payload has come.
    fn begin_data(&mut self, header: FrameHeader, now_ns: u64) -> Result<DataProgress, ConnectionError> {
        let (stream, length) = (header.stream, header.length);
        if self.is_idle(stream) {
            return Err(ConnectionError::protocol("DATA on an idle stream"));
        }
        if self.receive_window.take(length).is_err() {
            let reason = "DATA exceeds the connection's window";
            return Err(ConnectionError::new(ErrorCode::FLOW_CONTROL_ERROR, reason));
        }
        let needs_padding_length = header.has(flags::PADDED);
        if needs_padding_length && length == 0 {
            let reason = "a padded frame has no length of its padding";
            return Err(ConnectionError::new(ErrorCode::FRAME_SIZE_ERROR, reason));
        }
        let is_end = header.has(flags::END_STREAM);
        let is_wanted = self.data_is_wanted(stream, length, now_ns)?;
        let progress = DataProgress {
            stream,
            data_left: length,
            padding_left: 0,
            needs_padding_length,
            is_end,
            is_discarded: !is_wanted,
        };
        if !needs_padding_length {
            self.judge_data(&progress, now_ns)?;
        }
        Ok(progress)
    }

    /// Whether a frame of DATA is of use, once it is known what of it is padding.
    fn judge_data(&mut self, progress: &DataProgress, now_ns: u64) -> Result<(), ConnectionError> {
        if progress.data_left == 0 && !progress.is_end {
            return self.charge(FloodKind::Empty, now_ns);
        }
        if !progress.is_discarded {
            self.floods.honest_frame(&self.config.floods);
        }
        Ok(())
    }

    /// Whether a frame of DATA is for a stream that takes it.
    fn data_is_wanted(&mut self, id: u32, length: u32, now_ns: u64) -> Result<bool, ConnectionError> {
        let Some(stream) = self.streams.get_mut(id) else {
            return self.late_data(id, now_ns).map(|()| false);
        };
        // What comes after a complete response does not keep the stream.
        if self.role == EndpointRole::Client || stream.local != HalfState::Ended {
            stream.active_ns = now_ns;
        }
        let fault = match stream.remote {
            HalfState::Head => Some(ErrorCode::PROTOCOL_ERROR),
            HalfState::Ended => Some(ErrorCode::STREAM_CLOSED),
            HalfState::Body => {
                let exceeded = stream.receive_window.take(length).is_err();
                exceeded.then_some(ErrorCode::FLOW_CONTROL_ERROR)
            }
        };
        let Some(code) = fault else {
            return Ok(true);
        };
        self.fault(id, code, now_ns)?;
        Ok(false)
    }

    /// DATA on a stream that ended (RFC 9113, section 5.1).
    fn late_data(&mut self, id: u32, now_ns: u64) -> Result<(), ConnectionError> {
        let ending = self.closed.ending(id);
        if self.excuses_late(ending) {
            self.answer_late(id, ending);
            return Ok(());
        }
        self.charge(FloodKind::Other, now_ns)?;
        match ending {
            StreamEnding::ResetByUs => Ok(()),
            StreamEnding::Ended => Err(ConnectionError::new(
                ErrorCode::STREAM_CLOSED,
                "DATA on a stream that both ends have ended",
            )),
            StreamEnding::Skipped => Err(ConnectionError::protocol(
                "DATA on a stream that was never opened",
            )),
            StreamEnding::ResetByPeer | StreamEnding::Forgotten => {
                self.fault(id, ErrorCode::STREAM_CLOSED, now_ns)
            }
        }
    }

    /// Goes on with a payload of DATA, which begins at `at` of the input.
    fn data(
        &mut self,
        mut progress: DataProgress,
        at: usize,
        input: &[u8],
        now_ns: u64,
    ) -> Result<InputStep, ConnectionError> {
        let mut used = at;
        if progress.needs_padding_length {
            let Some(padding) = input.get(used) else {
                self.read = ReadState::Data(progress);
                return Ok(InputStep::quiet(used));
            };
            used += 1;
            progress.needs_padding_length = false;
            progress.padding_left = u32::from(*padding);
            let data = (progress.data_left - 1).checked_sub(progress.padding_left);
            progress.data_left = data.ok_or(ConnectionError::protocol(PADDING_TOO_LONG))?;
            self.judge_data(&progress, now_ns)?;
            self.give_back(progress.stream, 1 + progress.padding_left);
        }
        let had_data = progress.data_left > 0;
        let data = used..used + (input.len() - used).min(progress.data_left as usize);
        progress.data_left -= data.len() as u32;
        used = data.end;
        let padding = (input.len() - used).min(progress.padding_left as usize);
        if progress.data_left == 0 {
            used += padding;
            progress.padding_left -= padding as u32;
        }
        let is_complete = progress.data_left == 0 && progress.padding_left == 0;
        self.read = if is_complete {
            ReadState::START
        } else {
            ReadState::Data(progress)
        };
        let is_end = is_complete && progress.is_end;
        if data.is_empty() && (had_data || !is_end) {
            return Ok(InputStep::quiet(used));
        }
        let event = self.body_part(&progress, data, StreamEnd::of(is_end), now_ns)?;
        Ok(InputStep { used, event })
    }

    /// A part of a body came, or its end.
    fn body_part(
        &mut self,
        progress: &DataProgress,
        data: Range<usize>,
        end: StreamEnd,
        now_ns: u64,
    ) -> Result<Option<FoundEvent>, ConnectionError> {
        let (id, bytes) = (progress.stream, data.len() as u32);
        let stream = self.streams.get_mut(id).filter(|_| !progress.is_discarded);
        let Some(stream) = stream else {
            self.give_back(id, bytes);
            return Ok(None);
        };
        if let Some(left) = &mut stream.body_left {
            let is_right =
                *left >= u64::from(bytes) && (end == StreamEnd::Continues || *left == u64::from(bytes));
            *left = left.saturating_sub(u64::from(bytes));
            if !is_right {
                // RFC 9113, section 8.1.1: content-length is not the length of the content.
                self.give_back(id, bytes);
                self.fault(id, ErrorCode::PROTOCOL_ERROR, now_ns)?;
                return Ok(None);
            }
        }
        if end == StreamEnd::Ends {
            stream.remote = HalfState::Ended;
            self.close_if_ended(id);
        }
        let event = FoundEvent::Data {
            stream: id,
            data,
            end,
        };
        Ok(Some(event))
    }

    /// Bytes that no reader gets (padding, late DATA) go back to the windows at once.
    fn give_back(&mut self, stream: u32, bytes: u32) {
        self.release(stream, bytes);
    }

    /// RFC 9113, section 6.5.
    fn settings(
        &mut self,
        header: FrameHeader,
        entries: &[[u8; 6]],
        now_ns: u64,
    ) -> Result<Option<FoundEvent>, ConnectionError> {
        self.charge(FloodKind::Settings, now_ns)?;
        if header.has(flags::ACK) {
            self.settings_acknowledged();
            return Ok(None);
        }
        let mut settings = self.peer;
        for entry in entries {
            settings.apply(*entry)?;
            if self.role == EndpointRole::Client && *entry == setting_bytes(setting::ENABLE_PUSH, 1) {
                return Err(ConnectionError::protocol("a server may not enable push"));
            }
            self.apply_table_size(settings.header_table_bytes);
        }
        self.apply_peer_window(settings.stream_window_bytes)?;
        self.peer = settings;
        self.has_peer_settings = true;
        self.output.frame(FrameKind::Settings, flags::ACK, 0, &[]);
        Ok(Some(FoundEvent::Pending(PendingEvent::PeerSettings)))
    }

    /// Each value counts, for the decoder wants to hear of the smallest (RFC 7541, section 4.2).
    fn apply_table_size(&mut self, bytes: u32) {
        if bytes != self.encoder.peer_table_bytes() {
            self.encoder.set_peer_table_bytes(bytes);
        }
    }

    /// RFC 9113, section 6.9.2: a change of the setting changes the windows of all streams.
    fn apply_peer_window(&mut self, bytes: u32) -> Result<(), ConnectionError> {
        let change = i64::from(bytes) - i64::from(self.peer.stream_window_bytes);
        if change == 0 {
            return Ok(());
        }
        for stream in self.streams.values_mut() {
            let grown = stream.send_window.grow(change);
            grown.map_err(|_| {
                let reason = "SETTINGS_INITIAL_WINDOW_SIZE makes a window overflow";
                ConnectionError::new(ErrorCode::FLOW_CONTROL_ERROR, reason)
            })?;
        }
        self.schedule_all();
        Ok(())
    }

    fn settings_acknowledged(&mut self) {
        // One that nothing was sent for is read over.
        let Some((settings, _)) = self.unacknowledged.pop_front() else {
            return;
        };
        if settings.header_table_bytes != self.local.header_table_bytes {
            self.decoder.acknowledge_table_bytes(settings.header_table_bytes);
        }
        let mut owing = Vec::new();
        for stream in self.streams.values_mut() {
            stream.receive_window.retarget(settings.stream_window_bytes);
            if stream.owes_update() {
                stream.is_update_queued = true;
                owing.push(stream.id);
            }
        }
        // By number: where a stream is kept is not the same once a connection was restored.
        owing.sort_unstable();
        self.updates.extend(owing);
        self.local = settings;
    }

    /// RFC 9113, section 6.7.
    fn ping_frame(
        &mut self,
        header: FrameHeader,
        payload: [u8; 8],
        now_ns: u64,
    ) -> Result<Option<FoundEvent>, ConnectionError> {
        self.charge(FloodKind::Ping, now_ns)?;
        if !header.has(flags::ACK) {
            self.output.frame(FrameKind::Ping, flags::ACK, 0, &payload);
            return Ok(None);
        }
        let payload = u64::from_be_bytes(payload);
        match payload {
            KEEPALIVE_PING => self.keepalive.pinged_ns = None,
            DRAIN_PING => self.drain_finally(),
            payload => return Ok(Some(FoundEvent::Pending(PendingEvent::Pong(payload)))),
        }
        Ok(None)
    }

    /// RFC 9113, section 6.8.
    fn goaway(
        &mut self,
        last_stream: u32,
        code: ErrorCode,
        debug: &[u8],
        now_ns: u64,
    ) -> Result<Option<FoundEvent>, ConnectionError> {
        self.charge(FloodKind::Other, now_ns)?;
        if self.peer_goaway.is_some_and(|before| last_stream > before) {
            return Err(ConnectionError::protocol(
                "a second GOAWAY takes more streams than the first",
            ));
        }
        self.peer_goaway = Some(last_stream);
        let kept = debug.len().min(GOAWAY_DEBUG_BYTES_MAX);
        self.goaway_debug.clear();
        self.goaway_debug.extend_from_slice(&debug[..kept]);
        if self.role == EndpointRole::Client {
            self.abandon_above(last_stream);
        }
        Ok(Some(FoundEvent::Pending(PendingEvent::GoAway {
            last_stream,
            code,
        })))
    }

    /// The peer did not process these, and never will.
    fn abandon_above(&mut self, last_stream: u32) {
        let above: Vec<u32> = self.streams.keys().filter(|id| *id > last_stream).collect();
        for stream in above {
            self.forget(stream, StreamEnding::ResetByUs);
            self.events.push_back(PendingEvent::Reset {
                stream,
                code: ErrorCode::REFUSED_STREAM,
                cause: ResetCause::GoAway,
            });
        }
    }

    /// RFC 9113, section 6.4.
    fn peer_reset(
        &mut self,
        stream: u32,
        code: ErrorCode,
        now_ns: u64,
    ) -> Result<Option<FoundEvent>, ConnectionError> {
        if self.is_idle(stream) {
            return Err(ConnectionError::protocol("RST_STREAM on an idle stream"));
        }
        let Some(open) = self.streams.get(stream) else {
            if !self.excuses_late(self.closed.ending(stream)) {
                self.charge(FloodKind::Reset, now_ns)?;
            }
            return Ok(None);
        };
        let has_rested = now_ns.saturating_sub(open.active_ns) >= RAPID_RESET_NS;
        if self.role == EndpointRole::Server && open.local == HalfState::Ended {
            // The client has its whole response, and need not send the rest of its request (section 8.1).
            self.floods.honest_stream(&self.config.floods);
        } else if !has_rested {
            self.charge(FloodKind::Reset, now_ns)?;
        }
        self.forget(stream, StreamEnding::ResetByPeer);
        let cause = ResetCause::Peer;
        let event = PendingEvent::Reset { stream, code, cause };
        Ok(Some(FoundEvent::Pending(event)))
    }

    /// RFC 9113, section 6.9.
    fn peer_window(
        &mut self,
        id: u32,
        increment: u32,
        now_ns: u64,
    ) -> Result<Option<FoundEvent>, ConnectionError> {
        self.charge(FloodKind::Window, now_ns)?;
        if id == 0 {
            self.peer_connection_window(increment)?;
            return Ok(None);
        }
        if self.is_idle(id) {
            return Err(ConnectionError::protocol("WINDOW_UPDATE on an idle stream"));
        }
        // On a stream that ended it is late, not wrong (section 5.1).
        let Some(stream) = self.streams.get_mut(id) else {
            return Ok(None);
        };
        let code = match increment {
            0 => Some(ErrorCode::PROTOCOL_ERROR),
            _ => {
                let grown = stream.send_window.grow(i64::from(increment));
                grown.err().map(|_| ErrorCode::FLOW_CONTROL_ERROR)
            }
        };
        match code {
            Some(code) => self.fault(id, code, now_ns)?,
            None => self.schedule(id),
        }
        Ok(None)
    }

    fn peer_connection_window(&mut self, increment: u32) -> Result<(), ConnectionError> {
        if increment == 0 {
            return Err(ConnectionError::protocol(
                "WINDOW_UPDATE grows the connection's window by nothing",
            ));
        }
        let grown = self.send_window.grow(i64::from(increment));
        grown.map_err(|_| {
            let reason = "WINDOW_UPDATE makes the connection's window overflow";
            ConnectionError::new(ErrorCode::FLOW_CONTROL_ERROR, reason)
        })
    }

    /// Whether no stream of this number was opened, nor one of a higher number (RFC 9113, section 5.1.1).
    pub(super) fn is_idle(&self, stream: u32) -> bool {
        !Self::is_stream_number(stream) || stream > self.highest_stream
    }

    /// Whether the peer still gets streams that it opens.
    pub(super) fn takes_stream(&self, id: u32) -> bool {
        match self.drain {
            DrainState::Final { last_stream } => id <= last_stream,
            DrainState::No | DrainState::Announced { .. } => true,
        }
    }
}

impl FoundEvent {
    /// The same event with places of the input that begins so many bytes before.
    fn behind(self, bytes: usize) -> FoundEvent {
        match self {
            FoundEvent::Data { stream, data, end } => FoundEvent::Data {
                stream,
                data: data.start + bytes..data.end + bytes,
                end,
            },
            other => other,
        }
    }
}

/// RFC 9113, section 4.3: what cannot be decoded ends the connection.
/// What is said of a client that begins otherwise than HTTP/2 does.
const OTHER_PREFACE: &str = "the client's preface is another";

/// What a client speaks that begins so, where that is known.
fn other_protocol(input: &[u8]) -> &'static str {
    match input {
        // A record of a handshake (RFC 8446, section 5.1).
        [22, 3, ..] | [22] => "the client speaks TLS, and here nobody does: cleartext HTTP/2 is awaited",
        [b'A'..=b'Z', ..] if input.windows(8).any(|part| part == b" HTTP/1.") => {
            "the client speaks HTTP/1, and gRPC needs HTTP/2"
        }
        _ => OTHER_PREFACE,
    }
}

fn block_error(error: HpackError) -> ConnectionError {
    let code = match error {
        HpackError::TooLong => ErrorCode::ENHANCE_YOUR_CALM,
        _ => ErrorCode::COMPRESSION_ERROR,
    };
    let reason = match error {
        HpackError::TooLong => "a field block is too long",
        _ => "a field block cannot be decoded",
    };
    ConnectionError::new(code, reason)
}
