//! Changes of datapaths that the control plane orders, what came of them, and what it asks of datapaths.

use std::any::Any;
use std::sync::Arc;

use provost_datapath::{Engine, EngineDescription, EngineStart, Nanos, SavedState};

use crate::engines::{EngineTag, FaultPlan};
use crate::ids::{AppId, ConnectionId};
use crate::reply::Reply;

/// A change of one datapath's engines.
pub struct ReconfigureOrder {
    pub connection: ConnectionId,
    /// The engines that it is thought to have, in order. If it has others, nothing is changed.
    pub expected: Vec<EngineTag>,
    /// The engines that it is to have.
    pub planned: Vec<PlannedEngine>,
    /// Hears what came of it; nothing, if the connection or the runtime ends.
    pub done: Reply<Result<ReconfigureReport, NotReconfigured>>,
}

/// One engine of a new shape.
pub enum PlannedEngine {
    /// It is there already.
    Keep(EngineTag),
    /// It takes the place of one that is there.
    Replace {
        /// Which it takes the place of.
        was: EngineTag,
        /// Which one it is.
        tag: EngineTag,
        start: EngineStart,
        /// What takes its place when it fails.
        guard: FaultPlan,
    },
    /// It comes in between.
    Insert {
        /// Which one it is.
        tag: EngineTag,
        start: EngineStart,
        /// What takes its place when it fails.
        guard: FaultPlan,
    },
}

impl PlannedEngine {
    /// Which engine it is.
    #[must_use]
    pub fn tag(&self) -> EngineTag {
        match self {
            PlannedEngine::Keep(tag)
            | PlannedEngine::Replace { tag, .. }
            | PlannedEngine::Insert { tag, .. } => *tag,
        }
    }
}

/// A datapath has another shape.
pub struct ReconfigureReport {
    /// How often its engines were changed, with this time.
    pub revision: u64,
    /// How long it stood still, in nanoseconds.
    pub pause_ns: Nanos,
    /// Steps that engines gave back, to be judged by their successors.
    pub steps_released: usize,
    /// The engines that went: to be dropped by whoever has the time.
    pub retired: Vec<RetiredEngine>,
}

/// An engine that went.
pub struct RetiredEngine {
    /// Which one it was.
    pub tag: EngineTag,
    pub saved: SavedState,
    /// Only to be dropped.
    pub engine: Box<dyn Engine>,
}

/// A datapath has its old engines still.
#[derive(Debug)]
pub enum NotReconfigured {
    /// The runtime polls no such connection: it has ended, or comes still.
    Unknown,
    /// It has other engines than was thought.
    Stale { engines: Vec<EngineTag> },
    /// An engine did not take over.
    Failed { tag: EngineTag, problem: String },
}

/// A question for what the datapaths of a runtime are made of.
pub struct DescribeOrder {
    /// Where to go on, from the answer before; 0 to begin.
    pub from: u32,
    pub answer: Reply<DatapathListing>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatapathListing {
    /// What they are made of.
    pub datapaths: Vec<DatapathDescription>,
    /// Bytes of the receive heaps of the runtime's apps; in the first answer only.
    pub receive_heaps: Vec<(AppId, u64)>,
    /// Where to go on; none at the end.
    pub next: Option<u32>,
}

/// What a datapath is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatapathDescription {
    /// Its number at the control plane.
    pub id: ConnectionId,
    /// Its number at its app.
    pub connection: u32,
    /// Calls that began on it so far.
    pub calls_begun: u64,
    /// Calls under way on it.
    pub calls_in_flight: usize,
    /// Its engines, the app's first.
    pub engines: Vec<(EngineTag, EngineDescription)>,
}

/// An engine failed, and something else has taken its place.
#[derive(Debug)]
pub struct EngineFailed {
    pub connection: ConnectionId,
    /// How often the connection's engines were changed, with this time.
    pub revision: u64,
    pub app: AppId,
    pub tag: EngineTag,
    pub reason: String,
    pub remedy: FaultRemedy,
    /// [`FallbackEngine::owner`] of the engine that is back, if one is.
    ///
    /// [`FallbackEngine::owner`]: crate::FallbackEngine::owner
    pub fallback: Option<Arc<dyn Any + Send + Sync>>,
}

/// What was done about an engine that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultRemedy {
    /// It was on probation: the one before is back.
    WentBack,
    /// It was on probation, and there was none before.
    Withdrawn,
    /// Calls that it would judge are ended.
    Denies,
    Passes,
}
