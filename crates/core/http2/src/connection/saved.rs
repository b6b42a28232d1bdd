//! A connection as bytes, for the process that goes on with it.
//!
//! The state is a type of its own, with a version. Nothing in one is believed: [`Http2Connection::restore`] checks every length,
//! number and reference, and accepts only what a connection can be.

use std::collections::{BTreeSet, VecDeque};

use super::{DrainState, Http2Connection, KeepaliveState, OpenBlock, PendingEvent, ReadState};
use crate::config::{
    CLOSED_STREAMS_REMEMBERED, EndpointRole, Http2Config, SETTINGS_UNACKNOWLEDGED_MAX,
    SKIPPED_RANGES_REMEMBERED, STREAM_QUEUE_CHUNKS_MAX,
};
use crate::error::{ConnectionError, ErrorCode};
use crate::floods::FloodGuard;
use crate::frame::{FRAME_BYTES_MAX, FRAME_BYTES_MIN, FRAME_HEADER_BYTES, FrameKind, NUMBER_MAX, PREFACE};
use crate::hpack::saved::{SavedDecoder, SavedEncoder};
use crate::hpack::{HpackDecoder, HpackEncoder};
use crate::output::{DataChunk, OutputQueue};
use crate::settings::EndpointSettings;
use crate::state::{StateDamaged, StateField, state_struct};
use crate::stream_map::StreamMap;
use crate::streams::{ClosedStreams, HalfState, Http2Stream, QueueEnd};
use crate::windows::{ReceiveWindow, SendWindow};

/// The version of the form.
const STATE_VERSION: u32 = 1;

/// What a connection says of its failure once it was saved: the reason stands in its GOAWAY.
const FAILED_BEFORE: &str = "it ended before the process was replaced";

/// Why a state makes no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreFault {
    /// A newer program wrote it.
    #[error("a saved HTTP/2 connection has version {0}, and this program reads version {STATE_VERSION}")]
    Version(u32),
    /// The bytes end too early, go on too long, or stand for no value.
    #[error("the bytes of a saved HTTP/2 connection are damaged")]
    Bytes,
    /// The values contradict each other.
    #[error("a saved HTTP/2 connection cannot be: {0}")]
    Contradiction(&'static str),
}

/// Everything that a connection knows: both tables of HPACK, windows, settings, streams with what waits in their queues, the part
/// of a frame that has come, and what has not left yet. Times are of the host's monotonic clock, so they stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedConnection {
    role: EndpointRole,
    failed: Option<ErrorCode>,
    header_list_bytes_max: u32,
    read: ReadState,
    collected: Vec<u8>,
    open_block: Option<OpenBlock>,
    decoder: SavedDecoder,
    has_peer_settings: bool,
    events: VecDeque<PendingEvent>,
    local: EndpointSettings,
    unacknowledged: VecDeque<(EndpointSettings, u64)>,
    peer: EndpointSettings,
    encoder: SavedEncoder,
    receive_window: ReceiveWindow,
    send_window: SendWindow,
    streams: VecDeque<SavedStream>,
    closed: ClosedStreams,
    round: VecDeque<u32>,
    updates: VecDeque<u32>,
    highest_stream: u32,
    drain: DrainState,
    peer_goaway: Option<u32>,
    keepalive: KeepaliveState,
    floods: FloodGuard,
    output: Vec<u8>,
    output_ns: u64,
    streams_check_ns: u64,
    began_ns: u64,
}

state_struct!(SavedConnection {
    role,
    failed,
    header_list_bytes_max,
    read,
    collected,
    open_block,
    decoder,
    has_peer_settings,
    events,
    local,
    unacknowledged,
    peer,
    encoder,
    receive_window,
    send_window,
    streams,
    closed,
    round,
    updates,
    highest_stream,
    drain,
    peer_goaway,
    keepalive,
    floods,
    output,
    output_ns,
    streams_check_ns,
    began_ns,
});

/// A stream of a saved connection.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SavedStream {
    id: u32,
    local: HalfState,
    remote: HalfState,
    receive_window: ReceiveWindow,
    send_window: SendWindow,
    body_left: Option<u64>,
    is_head_method: bool,
    /// What is in no frame yet.
    queue: VecDeque<Vec<u8>>,
    queue_end: QueueEnd,
    wants_room: bool,
    active_ns: u64,
}

state_struct!(SavedStream {
    id,
    local,
    remote,
    receive_window,
    send_window,
    body_left,
    is_head_method,
    queue,
    queue_end,
    wants_room,
    active_ns,
});

impl SavedConnection {
    /// The state as bytes, which begin with the version.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        STATE_VERSION.write(&mut out);
        self.write(&mut out);
        out
    }

    /// Reads what [`SavedConnection::to_bytes`] wrote.
    ///
    /// # Errors
    /// The bytes are of another version, or damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<SavedConnection, RestoreFault> {
        let input = &mut &*bytes;
        let damaged = |_: StateDamaged| RestoreFault::Bytes;
        let version = u32::read(input).map_err(damaged)?;
        if version != STATE_VERSION {
            return Err(RestoreFault::Version(version));
        }
        let saved = SavedConnection::read(input).map_err(damaged)?;
        if input.is_empty() {
            return Ok(saved);
        }
        Err(RestoreFault::Bytes)
    }
}

impl<C: DataChunk> Http2Connection<C> {
    /// Everything that a successor needs. The connection stays as it is.
    #[must_use]
    pub fn save(&self) -> SavedConnection {
        SavedConnection {
            role: self.role,
            failed: self.failed.map(|error| error.code),
            header_list_bytes_max: self.config.header_list_bytes_max,
            read: self.read.clone(),
            collected: self.collected.clone(),
            open_block: self.open_block,
            decoder: self.decoder.save(),
            has_peer_settings: self.has_peer_settings,
            events: self.events.clone(),
            local: self.local,
            unacknowledged: self.unacknowledged.clone(),
            peer: self.peer,
            encoder: self.encoder.save(),
            receive_window: self.receive_window,
            send_window: self.send_window,
            streams: self.streams.values().map(Http2Stream::save).collect(),
            closed: self.closed.clone(),
            round: self.round.clone(),
            updates: self.updates.clone(),
            highest_stream: self.highest_stream,
            drain: self.drain,
            peer_goaway: self.peer_goaway,
            keepalive: self.keepalive,
            floods: self.floods.clone(),
            output: self.output.copied(),
            output_ns: self.output_ns,
            streams_check_ns: self.streams_check_ns,
            began_ns: self.began_ns,
        }
    }

    /// The connection goes on: it does with every byte what the saved one would have done. The configuration may be another; what
    /// the peer was told holds until it is told otherwise.
    ///
    /// # Errors
    /// The state is not one of a connection.
    pub fn restore(saved: SavedConnection, config: Http2Config) -> Result<Http2Connection<C>, RestoreFault> {
        Http2Connection::restore_with(saved, config, C::from_saved)
    }

    /// Does the same, and has chunks that waited in queues made by `chunk` of their bytes.
    ///
    /// # Errors
    /// The state is not one of a connection.
    pub fn restore_with(
        saved: SavedConnection,
        config: Http2Config,
        mut chunk: impl FnMut(Vec<u8>) -> C,
    ) -> Result<Http2Connection<C>, RestoreFault> {
        saved.check()?;
        let config = Http2Config {
            header_list_bytes_max: saved.header_list_bytes_max,
            ..config
        };
        let mut output = OutputQueue::new();
        output.put(&saved.output);
        let decoder = HpackDecoder::restore(saved.decoder, saved.header_list_bytes_max as usize);
        let mut connection = Http2Connection {
            role: saved.role,
            config,
            failed: saved.failed.map(|code| ConnectionError::new(code, FAILED_BEFORE)),
            read: saved.read,
            collected: saved.collected,
            open_block: saved.open_block,
            decoder: decoder.ok_or(RestoreFault::Contradiction("the decoder"))?,
            has_peer_settings: saved.has_peer_settings,
            goaway_debug: Vec::new(),
            events: saved.events,
            local: saved.local,
            unacknowledged: saved.unacknowledged,
            peer: saved.peer,
            encoder: HpackEncoder::restore(&saved.encoder)
                .ok_or(RestoreFault::Contradiction("the encoder"))?,
            receive_window: saved.receive_window,
            send_window: saved.send_window,
            streams: StreamMap::new(),
            closed: saved.closed,
            round: VecDeque::new(),
            updates: VecDeque::new(),
            highest_stream: saved.highest_stream,
            drain: saved.drain,
            peer_goaway: saved.peer_goaway,
            keepalive: saved.keepalive,
            floods: saved.floods,
            output,
            output_ns: saved.output_ns,
            streams_check_ns: saved.streams_check_ns,
            began_ns: saved.began_ns,
        };
        for stream in saved.streams {
            connection.streams.insert(stream.id, stream.restore(&mut chunk));
        }
        connection.restore_turns(saved.round, saved.updates)?;
        Ok(connection)
    }

    /// Each stream has one place in the round, and one among those whose window has to be told.
    fn restore_turns(&mut self, round: VecDeque<u32>, updates: VecDeque<u32>) -> Result<(), RestoreFault> {
        for id in &round {
            let stream = self.streams.get_mut(*id).filter(|stream| !stream.is_scheduled);
            stream
                .ok_or(RestoreFault::Contradiction("the turns of streams"))?
                .is_scheduled = true;
        }
        for id in &updates {
            let stream = self
                .streams
                .get_mut(*id)
                .filter(|stream| !stream.is_update_queued);
            stream
                .ok_or(RestoreFault::Contradiction("the updates of windows"))?
                .is_update_queued = true;
        }
        (self.round, self.updates) = (round, updates);
        Ok(())
    }
}

impl<C: DataChunk> Http2Stream<C> {
    fn save(&self) -> SavedStream {
        let mut start = self.queue_start;
        let rest = |chunk: &C| chunk.bytes()[std::mem::take(&mut start)..].to_vec();
        SavedStream {
            id: self.id,
            local: self.local,
            remote: self.remote,
            receive_window: self.receive_window,
            send_window: self.send_window,
            body_left: self.body_left,
            is_head_method: self.is_head_method,
            queue: self.queue.iter().map(rest).collect(),
            queue_end: self.queue_end.clone(),
            wants_room: self.wants_room,
            active_ns: self.active_ns,
        }
    }
}

impl SavedStream {
    fn restore<C: DataChunk>(self, chunk: &mut impl FnMut(Vec<u8>) -> C) -> Http2Stream<C> {
        let mut stream = Http2Stream::new(self.id, self.receive_window, self.send_window, self.active_ns);
        stream.local = self.local;
        stream.remote = self.remote;
        stream.body_left = self.body_left;
        stream.is_head_method = self.is_head_method;
        stream.queue_bytes = self.queue.iter().map(Vec::len).sum();
        stream.queue = self.queue.into_iter().map(chunk).collect();
        stream.queue_end = self.queue_end;
        stream.wants_room = self.wants_room;
        stream
    }

    /// Whether a stream of a connection can be so.
    fn is_plausible(&self, role: EndpointRole) -> bool {
        let opener_has_head = match role {
            EndpointRole::Client => self.local != HalfState::Head,
            EndpointRole::Server => self.remote != HalfState::Head,
        };
        let is_open = self.local != HalfState::Ended || self.remote != HalfState::Ended;
        let queue_is_empty = self.queue.is_empty() && self.queue_end == QueueEnd::Open;
        let queue_is_right = match self.local {
            HalfState::Head => queue_is_empty,
            HalfState::Body => true,
            HalfState::Ended => self.queue.is_empty(),
        };
        opener_has_head
            && is_open
            && queue_is_right
            && self.queue.len() <= STREAM_QUEUE_CHUNKS_MAX
            && self.queue.iter().all(|chunk| !chunk.is_empty())
            && self.receive_window.is_plausible()
            && self.send_window.is_plausible()
    }
}

/// Refuses what does not hold.
fn must(holds: bool, what: &'static str) -> Result<(), RestoreFault> {
    if holds {
        return Ok(());
    }
    Err(RestoreFault::Contradiction(what))
}

impl SavedConnection {
    fn check(&self) -> Result<(), RestoreFault> {
        must(self.read_is_plausible(), "the place in the peer's bytes")?;
        let is_within_block = self.decoder.is_within_block();
        // A block that cannot be decoded ends the connection within it.
        let may_be_within = self.open_block.is_some() || self.failed.is_some();
        must(may_be_within || !is_within_block, "the field block")?;
        let settings = self.unacknowledged.iter().map(|(settings, _)| settings);
        let mut settings = settings.chain([&self.local, &self.peer]);
        must(settings.all(EndpointSettings::is_plausible), "the settings")?;
        let unacknowledged = self.unacknowledged.len();
        must(unacknowledged <= SETTINGS_UNACKNOWLEDGED_MAX, "the settings")?;
        let windows = self.receive_window.is_plausible() && self.send_window.is_plausible();
        must(windows, "the windows")?;
        must(self.streams_are_plausible(), "the streams")?;
        let remembered = self.closed.endings.len() <= CLOSED_STREAMS_REMEMBERED
            && self.closed.skipped.len() <= SKIPPED_RANGES_REMEMBERED;
        must(remembered, "the streams that ended")
    }

    fn streams_are_plausible(&self) -> bool {
        let ids: BTreeSet<u32> = self.streams.iter().map(|stream| stream.id).collect();
        let is_highest = |id: u32| id <= NUMBER_MAX && (id == 0 || id % 2 == 1);
        let target = self.local.stream_window_bytes;
        self.streams.iter().is_sorted_by_key(|stream| stream.id)
            && ids.len() == self.streams.len()
            && ids.iter().all(|id| id % 2 == 1)
            && ids.last().is_none_or(|last| *last <= self.highest_stream)
            && is_highest(self.highest_stream)
            && self.streams.iter().all(|stream| stream.is_plausible(self.role))
            && self
                .streams
                .iter()
                .all(|stream| stream.receive_window.target == target)
    }

    fn read_is_plausible(&self) -> bool {
        let collected = self.collected.len();
        match &self.read {
            ReadState::Preface(have) => {
                *have < PREFACE.len() && self.role == EndpointRole::Server && collected == 0
            }
            ReadState::Header { have, .. } => *have < FRAME_HEADER_BYTES && collected == 0,
            ReadState::Skip(left) => *left > 0 && *left <= FRAME_BYTES_MAX && collected == 0,
            ReadState::Payload(header) => {
                let is_collected = !matches!(
                    header.kind,
                    FrameKind::Data | FrameKind::Priority | FrameKind::PushPromise | FrameKind::Unknown(_)
                );
                is_collected && header.check().is_ok() && collected < header.length as usize
            }
            ReadState::Data(progress) => {
                let length = u64::from(progress.data_left) + u64::from(progress.padding_left);
                let is_known = progress.stream % 2 == 1 && progress.stream <= self.highest_stream;
                let padding_is_right = !progress.needs_padding_length || progress.padding_left == 0;
                let has_length = !progress.needs_padding_length || progress.data_left > 0;
                is_known
                    && padding_is_right
                    && has_length
                    && (1..=u64::from(FRAME_BYTES_MAX)).contains(&length)
                    && progress.padding_left <= 255
                    && collected == 0
            }
        }
    }
}

impl EndpointSettings {
    fn is_plausible(&self) -> bool {
        self.enable_push <= 1
            && self.stream_window_bytes <= NUMBER_MAX
            && (FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&self.frame_bytes_max)
    }
}
