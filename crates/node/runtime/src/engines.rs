//! What a runtime knows of an engine beside the engine itself: which one it is, and what takes its place when it fails.
//!
//! ```text
//! started ──► on probation ──calls and time enough──► proved
//!                  │ fails                               │ fails
//!                  ▼                                     ▼
//!        its fallback comes back              its stand-in, or nothing
//! ```

use std::any::Any;
use std::sync::Arc;

use provost_datapath::{EngineStart, Nanos, SavedState};

/// An engine is on probation until so many calls have begun on its datapath...
const PROBATION_CALLS: u64 = 64;
/// ...and so much time has passed since the change, in nanoseconds.
pub const PROBATION_NS: Nanos = 5_000_000_000;
/// Engines on probation, each against the next, that are kept for one that is on probation against the first of them.
pub const PROBATIONS_KEPT_MAX: usize = 4;

/// Which engine one is: its place, where every datapath has one there, else the policy's instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineTag(pub u64);

impl EngineTag {
    pub const FRONTEND: EngineTag = EngineTag(1);
    /// The last but one.
    pub const MARSHALLING: EngineTag = EngineTag(2);
    pub const TRANSPORT: EngineTag = EngineTag(3);
    /// Policies have this one and those above.
    pub const FIRST_POLICY: EngineTag = EngineTag(16);
}

/// What a runtime knows of an engine, beside the engine.
pub struct FittedEngine {
    /// Which one it is.
    pub tag: EngineTag,
    /// What takes its place when it fails.
    pub guard: FaultPlan,
    /// It took the place of one that failed, and is none of the policy's.
    pub(crate) stands_in: bool,
}

impl FittedEngine {
    /// An engine that does its own work.
    #[must_use]
    pub fn new(tag: EngineTag, guard: FaultPlan) -> FittedEngine {
        FittedEngine {
            tag,
            guard,
            stands_in: false,
        }
    }

    /// An engine that took the place of a policy's that had failed.
    #[must_use]
    pub fn standing_in(tag: EngineTag, guard: FaultPlan) -> FittedEngine {
        FittedEngine {
            stands_in: true,
            ..FittedEngine::new(tag, guard)
        }
    }

    /// Whether it took the place of one that failed.
    #[must_use]
    pub fn stands_in(&self) -> bool {
        self.stands_in
    }
}

/// What takes an engine's place when it fails.
#[derive(Default)]
pub struct FaultPlan {
    /// While it is on probation.
    pub probation: Option<EngineProbation>,
    pub stand_in: StandIn,
}

/// What an engine on probation gives way to.
pub struct EngineProbation {
    /// The engine before; without one, there is none.
    pub(crate) fallback: Option<Box<FallbackEngine>>,
    /// What it had saved when it went, and what the engine between had, if there was one.
    pub(crate) checkpoints: Vec<SavedState>,
    until: Nanos,
    until_calls: u64,
}

/// The engine that comes back when one on probation fails.
pub struct FallbackEngine {
    /// Which one it is.
    pub tag: EngineTag,
    /// What the control plane is given back when the engine comes back ([`EngineFailed::fallback`]); the runtime does not look
    /// into it.
    ///
    /// [`EngineFailed::fallback`]: crate::EngineFailed::fallback
    pub owner: Arc<dyn Any + Send + Sync>,
    /// Start it again: each once, should the state not do that the one before was given.
    pub starts: [EngineStart; 2],
    /// What takes its place when it fails in turn. (It may be on probation itself: that is put down when it goes.)
    pub guard: FaultPlan,
}

impl EngineProbation {
    /// A probation that begins when the engine starts.
    #[must_use]
    pub fn against(fallback: Option<FallbackEngine>) -> EngineProbation {
        EngineProbation {
            fallback: fallback.map(Box::new),
            checkpoints: Vec::new(),
            until: 0,
            until_calls: 0,
        }
    }

    /// Begins it, against an engine that has saved this and had this guard. If that one was on probation itself, it stays so
    /// should it come back.
    pub(crate) fn begin(
        &mut self,
        saved: Option<&SavedState>,
        guard: Option<FaultPlan>,
        now: Nanos,
        calls: u64,
    ) {
        self.set_end(now, calls);
        let unproved = guard
            .and_then(|guard| guard.probation)
            .filter(|probation| !probation.is_over(now, calls));
        if let Some(unproved) = unproved {
            if unproved.depth() >= PROBATIONS_KEPT_MAX {
                // The one between is passed over: what has proved itself is kept.
                self.fallback = unproved.fallback;
                self.checkpoints = unproved.checkpoints;
                self.checkpoints.truncate(1);
            } else if let Some(fallback) = &mut self.fallback {
                fallback.guard.probation = Some(unproved);
            }
        }
        self.checkpoints.extend(saved.cloned());
    }

    pub(crate) fn set_end(&mut self, now: Nanos, calls: u64) {
        self.until = now + PROBATION_NS;
        self.until_calls = calls + PROBATION_CALLS;
    }

    /// Begins it again, for an engine that has come back: it did not prove itself while it was away.
    pub(crate) fn begun_again(mut self, now: Nanos, calls: u64) -> EngineProbation {
        self.set_end(now, calls);
        self
    }

    /// Engines on probation that would come back one after the other.
    fn depth(&self) -> usize {
        let fallback = self.fallback.as_ref();
        let next = fallback.and_then(|fallback| fallback.guard.probation.as_ref());
        1 + next.map_or(0, EngineProbation::depth)
    }

    /// The probation that an engine is on that comes back in the place of the one that is on this probation.
    pub(crate) fn handed_back(self, to: EngineTag, now: Nanos, calls: u64) -> Option<EngineProbation> {
        if self.is_against(to) {
            self.fallback?
                .guard
                .probation
                .map(|probation| probation.begun_again(now, calls))
        } else {
            Some(self)
        }
    }

    pub(crate) fn is_against(&self, tag: EngineTag) -> bool {
        let fallback = self.fallback.as_ref();
        fallback.is_some_and(|fallback| fallback.tag == tag)
    }

    pub(crate) fn is_over(&self, now: Nanos, calls: u64) -> bool {
        now >= self.until && calls >= self.until_calls
    }
}

/// What takes the place of an engine that has failed and is not on probation.
#[derive(Clone, Default)]
pub enum StandIn {
    #[default]
    Pass,
    /// An engine that ends the calls that the failed one would judge. It starts from what that one had saved.
    Deny(StartStandIn),
}

/// Makes the start function of a stand-in, each time that one is needed.
pub type StartStandIn = Arc<dyn Fn() -> EngineStart + Send + Sync>;
