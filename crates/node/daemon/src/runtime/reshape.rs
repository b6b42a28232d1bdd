//! Changing the engines of datapaths while calls go on: at the control plane's command, or because one has failed.
//!
//! A round changes few datapaths, so that those of other apps are polled as ever; commands for more wait.

use std::sync::Arc;

use provost_datapath::{EngineDescription, EngineStart, Nanos, Predecessor, RestoreError, SavedState, Stage};
use provost_engine::{Engine, Site};
use provost_marshal::copy_foreign;
use provost_shm::{Poller, now_ns};
use tokio::sync::oneshot;

use super::command::{AppId, ConnectionId, RuntimeEvent};
use super::path::{Path, sync_watch};
use super::worker::Worker;
use crate::policies::{Instance, closed};

/// Datapaths that one round changes, at most.
const RESHAPES_PER_ROUND: usize = 8;
/// A round changes no further one after so long, in nanoseconds.
const RESHAPING_NS_MAX: Nanos = 100_000;
/// An engine is on trial until so many calls have begun on its datapath...
const TRIAL_CALLS: u64 = 64;
/// ...and so much time has passed since the change, in nanoseconds.
pub(crate) const TRIAL_NS: Nanos = 5_000_000_000;
/// Engines on trial, each against the next, that are kept for one that is on trial against the first of them.
pub(crate) const TRIALS_KEPT_MAX: usize = 4;
/// Datapaths that one answer describes, at most.
const DESCRIBED_MAX: usize = 64;

/// Which engine one is: its place, where every datapath has one there, else the policy's instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

impl Tag {
    /// The first engine.
    pub const FRONTEND: Tag = Tag(1);
    /// The last but one.
    pub const MARSHALLING: Tag = Tag(2);
    /// The last.
    pub const TRANSPORT: Tag = Tag(3);
    /// Policies have this one and those above.
    pub const FIRST_POLICY: Tag = Tag(16);
}

/// What a runtime knows of an engine, beside the engine.
pub struct Fitted {
    /// Which one it is.
    pub tag: Tag,
    /// What takes its place when it fails.
    pub guard: Guard,
    /// It took the place of one that failed, and is none of the policy's.
    stands_in: bool,
}

impl Fitted {
    /// An engine that does its own work.
    #[must_use]
    pub fn new(tag: Tag, guard: Guard) -> Fitted {
        Fitted {
            tag,
            guard,
            stands_in: false,
        }
    }

    /// An engine that took the place of a policy's that had failed.
    #[must_use]
    pub fn standing_in(tag: Tag, guard: Guard) -> Fitted {
        Fitted {
            stands_in: true,
            ..Fitted::new(tag, guard)
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
pub struct Guard {
    /// While it is on trial.
    pub trial: Option<Trial>,
    /// Later.
    pub stand_in: StandIn,
}

/// What an engine on trial gives way to.
pub struct Trial {
    /// The engine before; without one, there is none.
    before: Option<Box<Before>>,
    /// What it had saved when it went, and what the engine between had, if there was one.
    checkpoints: Vec<SavedState>,
    until: Nanos,
    until_calls: u64,
}

/// The engine before one that is on trial.
pub struct Before {
    /// Which policy it is of.
    pub(crate) instance: Arc<Instance>,
    /// Start it again: each once, should the state not do that the one before was given.
    pub starts: [EngineStart; 2],
    /// What takes its place when it fails in turn. (It may be on trial itself: that is put down when it goes.)
    pub guard: Guard,
}

impl Trial {
    /// A trial that begins when the engine starts.
    #[must_use]
    pub fn against(before: Option<Before>) -> Trial {
        Trial {
            before: before.map(Box::new),
            checkpoints: Vec::new(),
            until: 0,
            until_calls: 0,
        }
    }

    /// Begins it, against an engine that has saved this and had this guard. If that one was on trial itself, it stays so
    /// should it come back.
    fn begin(&mut self, saved: Option<&SavedState>, guard: Option<Guard>, now: Nanos, calls: u64) {
        self.set_end(now, calls);
        let unproved = guard
            .and_then(|guard| guard.trial)
            .filter(|trial| !trial.is_over(now, calls));
        if let Some(unproved) = unproved {
            if unproved.depth() >= TRIALS_KEPT_MAX {
                // The one between is passed over: what has proved itself is kept.
                self.before = unproved.before;
                self.checkpoints = unproved.checkpoints;
                self.checkpoints.truncate(1);
            } else if let Some(before) = &mut self.before {
                before.guard.trial = Some(unproved);
            }
        }
        self.checkpoints.extend(saved.cloned());
    }

    fn set_end(&mut self, now: Nanos, calls: u64) {
        self.until = now + TRIAL_NS;
        self.until_calls = calls + TRIAL_CALLS;
    }

    /// Begins it again, for an engine that has come back: it did not prove itself while it was away.
    fn begun_again(mut self, now: Nanos, calls: u64) -> Trial {
        self.set_end(now, calls);
        self
    }

    /// Engines on trial that would come back one after the other.
    fn depth(&self) -> usize {
        let before = self.before.as_ref();
        let next = before.and_then(|before| before.guard.trial.as_ref());
        1 + next.map_or(0, Trial::depth)
    }

    /// The trial that an engine is on that comes back in the place of the one that is on this trial.
    fn handed_back(self, to: Tag, now: Nanos, calls: u64) -> Option<Trial> {
        match self.is_against(to) {
            true => self
                .before?
                .guard
                .trial
                .map(|trial| trial.begun_again(now, calls)),
            false => Some(self),
        }
    }

    fn is_against(&self, tag: Tag) -> bool {
        let before = self.before.as_ref();
        before.is_some_and(|before| before.instance.tag == tag)
    }

    fn is_over(&self, now: Nanos, calls: u64) -> bool {
        now >= self.until && calls >= self.until_calls
    }
}

/// What takes the place of an engine that has failed and is not on trial.
#[derive(Clone, Default)]
pub enum StandIn {
    /// None: calls pass.
    #[default]
    Pass,
    /// An engine that ends the calls that the policy would judge.
    Deny {
        /// The policy's name.
        policy: Arc<str>,
        /// The datapath, with what the policy is for in it.
        site: Arc<Site>,
    },
}

/// A change of one datapath's engines.
pub struct Reshape {
    /// Which.
    pub connection: ConnectionId,
    /// The engines that it is thought to have, in order. If it has others, nothing is changed.
    pub expected: Vec<Tag>,
    /// The engines that it is to have.
    pub planned: Vec<Planned>,
    /// Hears what came of it; nothing, if the connection or the runtime ends.
    pub done: oneshot::Sender<Result<Done, NotReshaped>>,
}

/// One engine of a new shape.
pub enum Planned {
    /// It is there already.
    Keep(Tag),
    /// It takes the place of one that is there.
    Replace {
        /// Which it takes the place of.
        was: Tag,
        /// Which one it is.
        tag: Tag,
        /// Starts it.
        start: EngineStart,
        /// What takes its place when it fails.
        guard: Guard,
    },
    /// It comes in between.
    Insert {
        /// Which one it is.
        tag: Tag,
        /// Starts it.
        start: EngineStart,
        /// What takes its place when it fails.
        guard: Guard,
    },
}

impl Planned {
    /// Which engine it is.
    #[must_use]
    pub fn tag(&self) -> Tag {
        match self {
            Planned::Keep(tag) | Planned::Replace { tag, .. } | Planned::Insert { tag, .. } => *tag,
        }
    }
}

/// A datapath has another shape.
pub struct Done {
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
    pub tag: Tag,
    /// What it saved.
    pub saved: SavedState,
    /// Only to be dropped.
    pub engine: Box<dyn Engine>,
}

/// A datapath has its old engines still.
#[derive(Debug)]
pub enum NotReshaped {
    /// The runtime polls no such connection: it has ended, or comes still.
    Unknown,
    /// It has other engines than was thought.
    Stale {
        /// These.
        engines: Vec<Tag>,
    },
    /// An engine did not take over.
    Failed {
        /// Which.
        tag: Tag,
        /// Why.
        problem: String,
    },
}

/// A question for what the datapaths of a runtime are made of.
pub struct Describe {
    /// Where to go on, from the answer before; 0 to begin.
    pub from: u32,
    /// Hears the answer.
    pub answer: oneshot::Sender<Described>,
}

/// Some datapaths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Described {
    /// What they are made of.
    pub paths: Vec<PathDescription>,
    /// Bytes of the receive heaps of the runtime's apps; in the first answer only.
    pub receive_heaps: Vec<(AppId, u64)>,
    /// Where to go on; none at the end.
    pub next: Option<u32>,
}

/// What a datapath is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathDescription {
    /// Its number at the control plane.
    pub id: ConnectionId,
    /// Its number at its app.
    pub connection: u32,
    /// Calls that began on it so far.
    pub calls_begun: u64,
    /// Calls under way on it.
    pub calls_in_flight: usize,
    /// Its engines, the app's first.
    pub engines: Vec<(Tag, EngineDescription)>,
}

/// An engine failed, and something else has taken its place.
#[derive(Debug)]
pub struct EngineFailed {
    /// On which connection.
    pub connection: ConnectionId,
    /// How often the connection's engines were changed, with this time.
    pub revision: u64,
    /// Whose.
    pub app: AppId,
    /// Which engine.
    pub tag: Tag,
    /// What it said.
    pub reason: String,
    /// What was done.
    pub remedy: Remedy,
    /// The policy whose engine is there again.
    pub(crate) before: Option<Arc<Instance>>,
}

/// What was done about an engine that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// It was on trial: the one before is back.
    WentBack,
    /// It was on trial, and there was none before.
    Withdrawn,
    /// Calls that it would judge are ended.
    Denies,
    /// Calls pass.
    Passes,
}

impl Path {
    /// Gives the datapath other engines.
    fn reshape(&mut self, number: u32, planned: Vec<Planned>, poller: &Poller) -> Result<Done, NotReshaped> {
        let began = now_ns();
        let mut fitting = Vec::with_capacity(planned.len());
        let mut stages = Vec::with_capacity(planned.len());
        for engine in planned {
            let (stage, fit) = self
                .stage(engine)
                .ok_or_else(|| NotReshaped::Stale { engines: self.tags() })?;
            stages.push(stage);
            fitting.push(fit);
        }
        let transport = self.fitted.len().saturating_sub(1);
        if stages
            .iter()
            .any(|stage| matches!(stage, Stage::Replace { was, .. } if *was == transport))
            && let Some(watched) = self.watched.take()
        {
            // The successor has a duplicate of the socket: what is watched would outlive the number.
            let _ = poller.remove_number(watched.socket);
        }
        let reshaped = self.datapath.reshape(stages, copy_foreign);
        self.socket_ready = true;
        let outcome = match reshaped {
            Ok(reshaped) => {
                let tags = self.tags();
                let mut retired = Vec::with_capacity(reshaped.retired.len());
                for gone in reshaped.retired {
                    let (tag, saved) = (tags[gone.was], gone.saved);
                    retired.push(RetiredEngine {
                        tag,
                        saved,
                        engine: gone.engine,
                    });
                }
                self.refit(fitting, &retired, began);
                self.revision += 1;
                Ok(Done {
                    revision: self.revision,
                    pause_ns: 0,
                    steps_released: reshaped.steps_released,
                    retired,
                })
            }
            Err(error) => {
                let tag = match &error {
                    provost_datapath::ReshapeError::Start { stage, .. }
                    | provost_datapath::ReshapeError::Descriptor { stage, .. } => fitting[*stage].tag(),
                    provost_datapath::ReshapeError::Shape { .. } => Tag::FRONTEND,
                };
                let problem = error.to_string();
                Err(NotReshaped::Failed { tag, problem })
            }
        };
        sync_watch(poller, number, self);
        outcome.map(|done| Done {
            pause_ns: now_ns().saturating_sub(began),
            ..done
        })
    }

    /// A planned engine as the datapath is told of it, and what is to be known of it; none if its place is unknown.
    fn stage(&self, planned: Planned) -> Option<(Stage, Fit)> {
        let place = |tag: Tag| self.fitted.iter().position(|fitted| fitted.tag == tag);
        Some(match planned {
            Planned::Keep(tag) => {
                let was = place(tag)?;
                (Stage::Keep { was }, Fit::Kept { was, tag })
            }
            Planned::Insert { tag, start, guard } => {
                (Stage::Insert { start }, Fit::New(Fitted::new(tag, guard), None))
            }
            Planned::Replace {
                was,
                tag,
                start,
                guard,
            } => {
                let at = place(was)?;
                let start = match self.fitted[at].stands_in {
                    true => fresh(start),
                    false => start,
                };
                let stage = Stage::Replace { was: at, start };
                (stage, Fit::New(Fitted::new(tag, guard), Some(was)))
            }
        })
    }

    /// Puts down what is known of the engines of a new shape, and begins their trials.
    fn refit(&mut self, fitting: Vec<Fit>, retired: &[RetiredEngine], now: Nanos) {
        let mut old: Vec<Option<Fitted>> = self.fitted.drain(..).map(Some).collect();
        for fit in fitting {
            match fit {
                Fit::Kept { was, .. } => self.fitted.extend(old[was].take()),
                Fit::New(mut fitted, was) => {
                    let of_before = old.iter_mut().flatten().find(|old| Some(old.tag) == was);
                    let guard = of_before.map(|old| std::mem::take(&mut old.guard));
                    if let Some(trial) = &mut fitted.guard.trial {
                        let of_before = retired.iter().find(|gone| Some(gone.tag) == was);
                        let saved = of_before.map(|gone| &gone.saved);
                        trial.begin(saved, guard, now, self.calls_begun);
                    } else {
                        let trial = guard.and_then(|guard| guard.trial);
                        let calls = self.calls_begun;
                        fitted.guard.trial =
                            trial.and_then(|trial| trial.handed_back(fitted.tag, now, calls));
                    }
                    self.fitted.push(fitted);
                }
            }
        }
        self.note_trials();
    }

    /// Begins the trials of engines that the datapath has from its beginning.
    pub(super) fn begin_trials(&mut self, now: Nanos) {
        let calls = self.calls_begun;
        for trial in self
            .fitted
            .iter_mut()
            .filter_map(|fitted| fitted.guard.trial.as_mut())
        {
            trial.set_end(now, calls);
        }
        self.note_trials();
    }

    fn note_trials(&mut self) {
        self.is_on_trial = self.fitted.iter().any(|fitted| fitted.guard.trial.is_some());
    }

    /// Ends the trials whose time is over.
    pub(super) fn end_trials(&mut self, now: Nanos) {
        let calls = self.calls_begun;
        for fitted in &mut self.fitted {
            fitted.guard.trial.take_if(|trial| trial.is_over(now, calls));
        }
        self.note_trials();
    }

    /// Puts something else in the place of an engine that has failed, and says what.
    pub(super) fn mend(&mut self, app: AppId, now: Nanos) -> Option<EngineFailed> {
        let (at, reason) = self.datapath.fault()?;
        let reason = reason.to_owned();
        let guard = std::mem::take(&mut self.fitted[at].guard);
        let tag = self.fitted[at].tag;
        let trial = guard.trial.filter(|trial| !trial.is_over(now, self.calls_begun));
        let before = trial
            .as_ref()
            .and_then(|trial| Some(Arc::clone(&trial.before.as_ref()?.instance)));
        let went_back = trial.and_then(|trial| self.go_back(at, trial, now));
        let remedy = went_back.unwrap_or_else(|| self.stand_in(at, guard.stand_in));
        self.note_trials();
        self.revision += 1;
        Some(EngineFailed {
            connection: self.id,
            revision: self.revision,
            app,
            tag,
            reason,
            remedy,
            before: before.filter(|_| remedy == Remedy::WentBack),
        })
    }

    /// The engine before takes the failed one's place, with what it had saved; none, if there was none.
    fn go_back(&mut self, at: usize, trial: Trial, now: Nanos) -> Option<Remedy> {
        let Some(mut before) = trial.before else {
            self.swap(at, None).ok()?;
            return Some(Remedy::Withdrawn);
        };
        // The newest state first: it knows most of the calls in flight.
        let mut checkpoints = trial.checkpoints.into_iter().rev();
        let mut starts = before.starts.into_iter();
        loop {
            let start = from_checkpoint(starts.next()?, checkpoints.next());
            if self.swap(at, Some(start)).is_ok() {
                break;
            }
        }
        let unproved = before.guard.trial.take();
        before.guard.trial = unproved.map(|trial| trial.begun_again(now, self.calls_begun));
        self.fitted[at] = Fitted::new(before.instance.tag, before.guard);
        Some(Remedy::WentBack)
    }

    fn stand_in(&mut self, at: usize, stand_in: StandIn) -> Remedy {
        if let StandIn::Deny { policy, site } = stand_in {
            let start: EngineStart =
                Box::new(move |predecessor| Ok(closed::engine(&policy, &site, predecessor.saved)));
            if self.swap(at, Some(start)).is_ok() {
                self.fitted[at].stands_in = true;
                return Remedy::Denies;
            }
        }
        // It names engines that are there, and starts none: it cannot fail.
        let _ = self.swap(at, None);
        Remedy::Passes
    }

    /// Another engine takes the place of one, or none does.
    fn swap(&mut self, at: usize, start: Option<EngineStart>) -> Result<(), RestoreError> {
        let goes = start.is_none();
        let mut start = start;
        let stages = (0..self.fitted.len()).filter_map(|was| match was == at {
            false => Some(Stage::Keep { was }),
            true => start.take().map(|start| Stage::Replace { was, start }),
        });
        match self.datapath.reshape(stages.collect(), copy_foreign) {
            Ok(_) => {
                if goes {
                    self.fitted.remove(at);
                }
                Ok(())
            }
            Err(error) => Err(RestoreError::Damaged {
                kind: "engine",
                reason: error.to_string(),
            }),
        }
    }

    fn tags(&self) -> Vec<Tag> {
        self.fitted.iter().map(|fitted| fitted.tag).collect()
    }

    fn describe(&self) -> PathDescription {
        let tags = self.fitted.iter().map(|fitted| fitted.tag);
        PathDescription {
            id: self.id,
            connection: self.number,
            calls_begun: self.calls_begun,
            calls_in_flight: self.datapath.calls(),
            engines: tags.zip(self.datapath.describe()).collect(),
        }
    }
}

/// What is to be known of an engine of a new shape.
enum Fit {
    Kept {
        was: usize,
        tag: Tag,
    },
    /// And in whose place it comes.
    New(Fitted, Option<Tag>),
}

impl Fit {
    fn tag(&self) -> Tag {
        match self {
            Fit::Kept { tag, .. } => *tag,
            Fit::New(fitted, _) => fitted.tag,
        }
    }
}

/// Starts an engine from this state, whatever its predecessor has saved.
fn from_checkpoint(start: EngineStart, checkpoint: Option<SavedState>) -> EngineStart {
    Box::new(move |predecessor| {
        start(Predecessor {
            saved: checkpoint.as_ref(),
            descriptors: predecessor.descriptors,
            link: predecessor.link,
            restorer: predecessor.restorer,
        })
    })
}

/// Starts an engine without its predecessor's state: that was none of the policy's.
fn fresh(start: EngineStart) -> EngineStart {
    Box::new(|predecessor| {
        start(Predecessor {
            saved: None,
            ..predecessor
        })
    })
}

impl Worker {
    /// Changes some of the datapaths that are to be changed, and says whether there were any.
    pub(super) fn reshape_some(&mut self) -> bool {
        let began = self.reshapes.front().map(|_| now_ns());
        let Some(began) = began else { return false };
        for _ in 0..RESHAPES_PER_ROUND {
            let Some(reshape) = self.reshapes.pop_front() else {
                break;
            };
            self.reshape(reshape);
            if now_ns().saturating_sub(began) >= RESHAPING_NS_MAX {
                break;
            }
        }
        true
    }

    fn reshape(&mut self, reshape: Reshape) {
        let number = self.path_numbers.get(&reshape.connection).copied();
        let found = number.and_then(|number| Some((number, self.paths.get_mut(number)?)));
        let outcome = match found {
            None => Err(NotReshaped::Unknown),
            Some((_, path)) if path.tags() != reshape.expected => {
                Err(NotReshaped::Stale { engines: path.tags() })
            }
            Some((number, path)) => {
                path.heat(number, &mut self.hot_paths, self.now);
                path.reshape(number, reshape.planned, &self.poller)
            }
        };
        // Whoever asked may be gone; the datapath is as it was asked for.
        let _ = reshape.done.send(outcome);
    }

    /// Puts something else in the place of an engine that has failed, and tells the control plane.
    pub(super) fn mend(&mut self, number: u32) -> bool {
        let Some(path) = self.paths.get_mut(number) else {
            return false;
        };
        let Some(app) = self.apps.get_mut(path.app) else {
            return false;
        };
        let Some(failed) = path.mend(app.id, self.now) else {
            return false;
        };
        self.events.send(RuntimeEvent::EngineFailed(Box::new(failed)));
        true
    }

    pub(super) fn describe(&mut self, describe: Describe) {
        let mut described = Described::default();
        if describe.from == 0 {
            let apps = self.apps.iter();
            described.receive_heaps = apps
                .map(|(_, app)| (app.id, app.port.receive_heap_bytes()))
                .collect();
        }
        for number in describe.from..self.paths.bound() {
            if described.paths.len() == DESCRIBED_MAX {
                described.next = Some(number);
                break;
            }
            described
                .paths
                .extend(self.paths.get_mut(number).map(|path| path.describe()));
        }
        let _ = describe.answer.send(described);
    }
}
