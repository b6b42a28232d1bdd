//! What apps exchange, and what may befall it.

use provost_datapath::Step;
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::STREAM_MESSAGE_COST_BYTES;
use provost_wire::metadata;

use crate::note::NOTE_BYTES;

/// What may befall the calls of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallFate {
    pub(crate) memory: Memory,
    pub(crate) course: ConnectionCourse,
}

/// How much memory receive heaps have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Ample,
    /// So little that messages may not fit.
    Tight,
}

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ConnectionCourse {
    /// Nothing: what is sent arrives.
    Fair,
    /// It is going away, was cut, or stalls.
    Troubled,
    /// Bits are flipped under way.
    Damaged,
}

/// A step that an app sends.
pub(crate) struct OutgoingStep {
    pub(crate) step: Step,
    pub(crate) metadata: Vec<u8>,
    pub(crate) message: Option<(u64, Vec<u8>)>,
}

/// A step as an app reads it.
#[derive(Debug)]
pub(crate) struct ReceivedStep {
    pub(crate) call: u64,
    pub(crate) parts: Parts,
    pub(crate) method: u16,
    pub(crate) status: Code,
    pub(crate) window_bytes: u32,
    pub(crate) metadata: Vec<u8>,
    pub(crate) message: Option<(u64, Vec<u8>)>,
}

impl ReceivedStep {
    pub(crate) fn status_message(&self) -> String {
        let entry = metadata::entries(&self.metadata).find(|(key, _)| *key == metadata::STATUS_MESSAGE);
        entry
            .map(|(_, value)| String::from_utf8_lossy(value).into_owned())
            .unwrap_or_default()
    }
}

/// What a message costs of its stream's window as an app counts it.
pub(crate) fn app_cost(payload: &[u8]) -> u32 {
    (NOTE_BYTES + payload.len().next_multiple_of(8)) as u32 + STREAM_MESSAGE_COST_BYTES
}

impl CallFate {
    /// Something happened to it.
    pub(crate) fn worsen(&mut self) {
        self.course = self.course.max(ConnectionCourse::Troubled);
    }
}
