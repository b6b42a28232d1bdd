//! Changing the engines of a live datapath, between two polls.
//!
//! A new shape lists the engines anew, each kept, put in the place of an old one, or added; who is not listed goes.
//! Engines that go, are replaced or change places among those that stay first give back the steps that they hold. Then
//! each new engine starts, from what its predecessor has saved. If one does not, the old engines stay, and go on with
//! the steps that they gave back.
//!
//! A step that waits between two engines has passed those on one side of it. It waits in the new shape before the first
//! engine, of those that were there, that it has not passed, and so
//!
//! - passes no engine unjudged that was there when it came. (It may pass one again that now comes behind another.)
//! - may or may not meet an added engine: it came before that engine was.
//! - stays behind the steps that it was behind: what has passed more engines never waits before what has passed fewer.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::{Datapath, QUEUE_STEPS_MAX};
use crate::{
    ConnectionSignals, Engine, ForeignBytes, InPlace, KeptMemory, Queue, RestoreError, Restorer, SavedState,
    Saver, Step, duplicate_descriptors,
};

/// Starts an engine: in the place of another, or fresh.
pub type EngineStart = Box<dyn FnOnce(Predecessor<'_>) -> Result<Box<dyn Engine>, RestoreError> + Send>;

/// What is left of the engine before.
pub struct Predecessor<'a> {
    /// Its saved state; none where the new engine has no predecessor.
    pub saved: Option<&'a SavedState>,
    /// Duplicates of its descriptors ([`crate::TransportEngine::descriptors`]).
    pub descriptors: Vec<OwnedFd>,
    pub link: Arc<ConnectionSignals>,
    /// Where blocks and foreign memory come from that the state names.
    pub restorer: &'a mut dyn Restorer,
}

/// One engine of a new shape.
pub enum Stage {
    /// One that is there goes on.
    Keep {
        /// Its place so far.
        was: usize,
    },
    /// A new one takes the place of one that is there.
    Replace {
        /// The old one's place so far.
        was: usize,
        /// Starts the new one.
        start: EngineStart,
    },
    /// A new one comes in between.
    Insert { start: EngineStart },
}

impl Stage {
    /// The place so far of the engine or of its predecessor.
    fn was(&self) -> Option<usize> {
        match self {
            Stage::Keep { was } | Stage::Replace { was, .. } => Some(*was),
            Stage::Insert { .. } => None,
        }
    }
}

/// What came of a new shape.
pub struct Reconfigured {
    /// The engines that went. To drop one may take its time.
    pub retired: Vec<Retired>,
    /// Steps that engines gave back.
    pub steps_released: usize,
}

/// An engine that went.
pub struct Retired {
    /// Its place so far.
    pub was: usize,
    pub saved: SavedState,
    /// The engine itself: to be dropped, nothing else.
    pub engine: Box<dyn Engine>,
}

/// Why the datapath has its old engines still.
#[derive(Debug, thiserror::Error)]
pub enum ReconfigureError {
    /// The new shape names an engine that is not there, or names one twice.
    #[error("the new shape names engine {was}, which is not there, or is named twice")]
    Shape { was: usize },
    /// A new engine did not start.
    #[error("{error}")]
    Start {
        /// Its place in the new shape.
        stage: usize,
        error: RestoreError,
    },
    /// A descriptor could not be duplicated for a successor.
    #[error("a descriptor of the engine before could not be duplicated: {error}")]
    Descriptor {
        /// The successor's place in the new shape.
        stage: usize,
        /// What the system said.
        error: std::io::Error,
    },
}

/// Copies foreign memory, for those who may read it: `provost_marshal::copy_foreign`.
pub type CopyForeign = fn(&ForeignBytes, &mut Vec<u8>);

impl Datapath {
    /// Gives the datapath another shape. On failure its engines are those that it had.
    pub fn reconfigure(
        &mut self,
        stages: Vec<Stage>,
        copy: CopyForeign,
    ) -> Result<Reconfigured, ReconfigureError> {
        let places: Vec<Option<usize>> = stages.iter().map(Stage::was).collect();
        check(&places, self.engines.len())?;
        let waiting = self.steps_waiting();
        self.release_moving(&stages);
        let steps_released = self.steps_waiting() - waiting;
        let (started, mut saved) = self.start(stages, copy)?;

        let mut old: Vec<Option<Box<dyn Engine>>> = self.engines.drain(..).map(Some).collect();
        for (engine, was) in started.into_iter().zip(&places) {
            let kept = was.and_then(|was| old[was].take_if(|_| engine.is_none()));
            self.engines.extend(engine.or(kept));
        }
        self.resting = vec![false; self.engines.len()];
        self.tx = moved(&mut self.tx, &places, SwapDirection::Tx);
        self.rx = moved(&mut self.rx, &places, SwapDirection::Rx);

        let mut retired = Vec::new();
        for (was, engine) in old.into_iter().enumerate() {
            let Some(engine) = engine else { continue };
            let saved = saved[was]
                .take()
                .unwrap_or_else(|| engine.save(&mut InPlace::new(copy)));
            retired.push(Retired { was, saved, engine });
        }
        Ok(Reconfigured {
            retired,
            steps_released,
        })
    }

    /// Steps that wait between engines.
    #[must_use]
    pub fn steps_waiting(&self) -> usize {
        self.tx.iter().chain(&self.rx).map(Queue::len).sum()
    }

    /// Lets the engines that go, are replaced, or change places give back what they hold.
    fn release_moving(&mut self, stages: &[Stage]) {
        let order: Vec<usize> = stages.iter().filter_map(Stage::was).collect();
        let is_kept = |was: usize| {
            let mut kept = stages.iter();
            kept.any(|stage| matches!(stage, Stage::Keep { was: other } if *other == was))
        };
        for was in 0..self.engines.len() {
            if is_kept(was) && !changes_places(was, &order) {
                continue;
            }
            if let Some((engine, mut ports)) = self.engine_at(was) {
                engine.release(&mut ports);
            }
        }
    }

    /// Starts the new engines; those that are kept are `None`. Beside them what the replaced ones saved, by place.
    fn start(&self, stages: Vec<Stage>, copy: CopyForeign) -> Result<Started, ReconfigureError> {
        let mut started = Vec::with_capacity(stages.len());
        let mut saved: Vec<Option<SavedState>> = self.engines.iter().map(|_| None).collect();
        for (stage, source) in stages.into_iter().enumerate() {
            let engine = match source {
                Stage::Keep { .. } => None,
                Stage::Insert { start } => {
                    let predecessor = Predecessor {
                        saved: None,
                        descriptors: Vec::new(),
                        link: Arc::clone(&self.link),
                        restorer: &mut KeptMemory::default(),
                    };
                    Some(start(predecessor).map_err(|error| ReconfigureError::Start { stage, error })?)
                }
                Stage::Replace { was, start } => {
                    let old = &self.engines[was];
                    let mut saver = InPlace::new(copy);
                    let state = old.save(&mut saver as &mut dyn Saver);
                    let descriptors = duplicate_descriptors(&**old)
                        .map_err(|error| ReconfigureError::Descriptor { stage, error })?;
                    let predecessor = Predecessor {
                        saved: Some(&state),
                        descriptors,
                        link: Arc::clone(&self.link),
                        restorer: &mut saver.into_restorer(),
                    };
                    let engine =
                        start(predecessor).map_err(|error| ReconfigureError::Start { stage, error })?;
                    saved[was] = Some(state);
                    Some(engine)
                }
            };
            started.push(engine);
        }
        Ok((started, saved))
    }
}

type Started = (Vec<Option<Box<dyn Engine>>>, Vec<Option<SavedState>>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum SwapDirection {
    Tx,
    Rx,
}

fn check(places: &[Option<usize>], engines: usize) -> Result<(), ReconfigureError> {
    let mut is_named = vec![false; engines];
    for was in places.iter().flatten().copied() {
        match is_named.get_mut(was) {
            Some(named @ false) => *named = true,
            _ => return Err(ReconfigureError::Shape { was }),
        }
    }
    Ok(())
}

/// Whether an engine comes before one now that it came behind, or the other way round.
fn changes_places(was: usize, order: &[usize]) -> bool {
    let Some(at) = order.iter().position(|other| *other == was) else {
        return false;
    };
    let (before, behind) = order.split_at(at);
    before.iter().any(|other| *other > was) || behind.iter().any(|other| *other < was)
}

/// The queues of the new shape with the steps of the old one. `places` has for each engine of the new shape its place
/// so far.
fn moved(old: &mut [Queue<Step>], places: &[Option<usize>], direction: SwapDirection) -> Vec<Queue<Step>> {
    let mut new: Vec<Queue<Step>> = (0..=places.len())
        .map(|_| Queue::with_bound(QUEUE_STEPS_MAX))
        .collect();
    let gaps = old.len();
    for turn in 0..gaps {
        // What has passed the most is the oldest, and goes first.
        let gap = match direction {
            SwapDirection::Tx => gaps - 1 - turn,
            SwapDirection::Rx => turn,
        };
        let to = match direction {
            SwapDirection::Tx => gap_before_unpassed(gap, places),
            SwapDirection::Rx => gap_behind_unpassed(gap, places),
        };
        if new[to].is_empty() {
            std::mem::swap(&mut new[to], &mut old[gap]);
            continue;
        }
        while let Some(step) = old[gap].pop() {
            new[to].push_past_bound(step);
        }
    }
    new
}

/// Outbound: before the first engine that a step in this gap has not passed, and before those added right there.
fn gap_before_unpassed(gap: usize, places: &[Option<usize>]) -> usize {
    let is_unpassed = |was: &Option<usize>| was.is_some_and(|was| was >= gap);
    let mut to = places.iter().position(is_unpassed).unwrap_or(places.len());
    while to > 0 && places[to - 1].is_none() {
        to -= 1;
    }
    to
}

/// Inbound: the same, seen from the wire.
fn gap_behind_unpassed(gap: usize, places: &[Option<usize>]) -> usize {
    let is_unpassed = |was: &Option<usize>| was.is_some_and(|was| was < gap);
    let mut to = places.iter().rposition(is_unpassed).map_or(0, |at| at + 1);
    while to < places.len() && places[to].is_none() {
        to += 1;
    }
    to
}
