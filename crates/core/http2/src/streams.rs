//! Streams (RFC 9113, section 5.1): those that are open, and what is remembered of those that are not.

use std::collections::VecDeque;

use crate::config::{CLOSED_STREAMS_REMEMBERED, SKIPPED_RANGES_REMEMBERED};
use crate::fields::FieldList;
use crate::windows::{ReceiveWindow, SendWindow};

/// One half of a stream: what one end sends.
///
/// ```text
///                 open          local half    remote half
///  idle ──HEADERS──► open ─────────── Open ────── Open
///                     │ END_STREAM of one end
///                     ▼
///            half closed (local) ──── Ended ───── Open
///            half closed (remote) ─── Open ────── Ended
///                     │ END_STREAM of the other, or RST_STREAM of either
///                     ▼
///                  closed             no longer kept
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HalfState {
    /// Its final head has not come.
    Head,
    /// Its head came; DATA or trailers follow.
    Body,
    /// Its END_STREAM came, or went.
    Ended,
}

/// How the queue of a stream ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum QueueEnd {
    /// More chunks may be put into it.
    Open,
    /// The last DATA has END_STREAM.
    Ends,
    /// Trailers follow the last DATA.
    Trailers(FieldList),
}

#[derive(Clone, Debug)]
pub(crate) struct Http2Stream<C> {
    pub(crate) id: u32,
    pub(crate) local: HalfState,
    pub(crate) remote: HalfState,
    pub(crate) receive_window: ReceiveWindow,
    pub(crate) send_window: SendWindow,
    /// Bytes of the body that content-length announced and that have not come.
    pub(crate) body_left: Option<u64>,
    /// The request was HEAD: the response has no body, whatever its length says.
    pub(crate) is_head_method: bool,
    pub(crate) queue: VecDeque<C>,
    /// Bytes of the first chunk that are in frames already.
    pub(crate) queue_start: usize,
    pub(crate) queue_bytes: usize,
    pub(crate) queue_end: QueueEnd,
    /// It stands in the round of streams that have something to send.
    pub(crate) is_scheduled: bool,
    /// It stands among those whose window has to be told.
    pub(crate) is_update_queued: bool,
    /// Somebody was refused, and is told when there is room.
    pub(crate) wants_room: bool,
    /// When it last sent or received.
    pub(crate) active_ns: u64,
}

impl<C> Http2Stream<C> {
    pub(crate) fn new(
        id: u32,
        receive_window: ReceiveWindow,
        send_window: SendWindow,
        now_ns: u64,
    ) -> Http2Stream<C> {
        Http2Stream {
            id,
            local: HalfState::Head,
            remote: HalfState::Head,
            receive_window,
            send_window,
            body_left: None,
            is_head_method: false,
            queue: VecDeque::new(),
            queue_start: 0,
            queue_bytes: 0,
            queue_end: QueueEnd::Open,
            is_scheduled: false,
            is_update_queued: false,
            wants_room: false,
            active_ns: now_ns,
        }
    }

    /// Whether both ends have ended it.
    pub(crate) fn is_closed(&self) -> bool {
        self.local == HalfState::Ended && self.remote == HalfState::Ended
    }

    /// Whether its window has to be told, and is not queued for that.
    pub(crate) fn owes_update(&self) -> bool {
        self.remote != HalfState::Ended && !self.is_update_queued && self.receive_window.is_update_due()
    }

    /// Whether something could be sent if the connection's window were open.
    pub(crate) fn has_output(&self) -> bool {
        if self.queue_bytes > 0 {
            return self.send_window.room() > 0;
        }
        self.has_end()
    }

    /// Whether the queue has come to its end, which is not sent yet.
    pub(crate) fn has_end(&self) -> bool {
        self.queue_bytes == 0 && self.queue_end != QueueEnd::Open && self.local != HalfState::Ended
    }
}

/// How a stream that is no longer kept came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnding {
    /// Both ends sent END_STREAM.
    Ended,
    /// RST_STREAM from the peer.
    ResetByPeer,
    /// RST_STREAM from this end: frames that the peer had sent before it knew may still come.
    ResetByUs,
    /// It was never opened, and a higher number was (RFC 9113, section 5.1.1).
    Skipped,
    /// It ended so long ago that nobody knows how.
    Forgotten,
}

/// What is remembered of streams that ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClosedStreams {
    /// The latest, oldest first.
    pub(crate) endings: VecDeque<(u32, StreamEnding)>,
    /// First and last number of ranges that were never opened.
    pub(crate) skipped: VecDeque<(u32, u32)>,
}

impl ClosedStreams {
    pub(crate) fn remember(&mut self, id: u32, ending: StreamEnding) {
        if self.endings.len() == CLOSED_STREAMS_REMEMBERED {
            self.endings.pop_front();
        }
        self.endings.push_back((id, ending));
    }

    /// A stream is opened although one of a lower number never was.
    pub(crate) fn skip(&mut self, first: u32, last: u32) {
        if self.skipped.len() == SKIPPED_RANGES_REMEMBERED {
            self.skipped.pop_front();
        }
        self.skipped.push_back((first, last));
    }

    /// How a stream ended that is no longer open, and not idle.
    pub(crate) fn ending(&self, id: u32) -> StreamEnding {
        let remembered = self.endings.iter().rev().find(|(ended, _)| *ended == id);
        if let Some((_, ending)) = remembered {
            return *ending;
        }
        let is_skipped = |(first, last): &(u32, u32)| (*first..=*last).contains(&id);
        if self.skipped.iter().any(is_skipped) {
            return StreamEnding::Skipped;
        }
        StreamEnding::Forgotten
    }
}
