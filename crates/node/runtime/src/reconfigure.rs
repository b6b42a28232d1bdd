//! Changing the engines of datapaths while calls go on: at the control plane's command, or because one has failed.
//!
//! A round changes few datapaths, so that those of other apps are polled as ever; commands for more wait.

use std::sync::Arc;

use provost_datapath::{EngineStart, Nanos, Predecessor, RestoreError, SavedState, Stage};
use provost_marshal::copy_foreign;

use crate::engines::{EngineProbation, EngineTag, FittedEngine, StandIn};
use crate::events::RuntimeEvent;
use crate::ids::AppId;
use crate::mutation::Mutation;
use crate::orders::{
    DatapathDescription, DatapathListing, DescribeOrder, EngineFailed, FaultRemedy, NotReconfigured,
    PlannedEngine, ReconfigureOrder, ReconfigureReport, RetiredEngine,
};
use crate::platform::{RuntimePlatform, WatchedSource};
use crate::polled_datapath::{PolledDatapath, sync_watch};
use crate::worker::RuntimeWorker;

/// Datapaths that one round changes, at most.
const RECONFIGURATIONS_PER_ROUND: usize = 8;
/// A round changes no further one after so long, in nanoseconds.
const RECONFIGURING_NS_MAX: Nanos = 100_000;
/// Datapaths that one answer describes, at most.
const DESCRIBED_MAX: usize = 64;

impl PolledDatapath {
    /// Gives the datapath other engines.
    fn reconfigure(
        &mut self,
        number: u32,
        planned: Vec<PlannedEngine>,
        platform: &mut impl RuntimePlatform,
    ) -> Result<ReconfigureReport, NotReconfigured> {
        let began = platform.now_ns();
        let mut fitting = Vec::with_capacity(planned.len());
        let mut stages = Vec::with_capacity(planned.len());
        for engine in planned {
            let (stage, fit) = self
                .stage(engine)
                .ok_or_else(|| NotReconfigured::Stale { engines: self.tags() })?;
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
            platform.unwatch(WatchedSource::Socket(watched.socket));
        }
        let reconfigured = self.datapath.reconfigure(stages, copy_foreign);
        self.socket_ready = true;
        let outcome = match reconfigured {
            Ok(reconfigured) => {
                let tags = self.tags();
                let mut retired = Vec::with_capacity(reconfigured.retired.len());
                for gone in reconfigured.retired {
                    let (tag, saved) = (tags[gone.was], gone.saved);
                    retired.push(RetiredEngine {
                        tag,
                        saved,
                        engine: gone.engine,
                    });
                }
                self.refit(fitting, &retired, began);
                self.revision += 1;
                Ok(ReconfigureReport {
                    revision: self.revision,
                    pause_ns: 0,
                    steps_released: reconfigured.steps_released,
                    retired,
                })
            }
            Err(error) => {
                let tag = match &error {
                    provost_datapath::ReconfigureError::Start { stage, .. }
                    | provost_datapath::ReconfigureError::Descriptor { stage, .. } => fitting[*stage].tag(),
                    provost_datapath::ReconfigureError::Shape { .. } => EngineTag::FRONTEND,
                };
                let problem = error.to_string();
                Err(NotReconfigured::Failed { tag, problem })
            }
        };
        if Mutation::ForgottenDescriptor.is_active() && self.watched.is_none() {
            self.watched = self.datapath.interest();
        }
        sync_watch(platform, number, self);
        outcome.map(|done| ReconfigureReport {
            pause_ns: platform.now_ns().saturating_sub(began),
            ..done
        })
    }

    /// A planned engine as the datapath is told of it, and what is to be known of it; none if its place is unknown.
    fn stage(&self, planned: PlannedEngine) -> Option<(Stage, EngineFit)> {
        let place = |tag: EngineTag| self.fitted.iter().position(|fitted| fitted.tag == tag);
        Some(match planned {
            PlannedEngine::Keep(tag) => {
                let was = place(tag)?;
                (Stage::Keep { was }, EngineFit::Kept { was, tag })
            }
            PlannedEngine::Insert { tag, start, guard } => (
                Stage::Insert { start },
                EngineFit::New(FittedEngine::new(tag, guard), None),
            ),
            PlannedEngine::Replace {
                was,
                tag,
                start,
                guard,
            } => {
                let at = place(was)?;
                let start = if self.fitted[at].stands_in {
                    fresh(start)
                } else {
                    start
                };
                let stage = Stage::Replace { was: at, start };
                (stage, EngineFit::New(FittedEngine::new(tag, guard), Some(was)))
            }
        })
    }

    /// Puts down what is known of the engines of a new shape, and begins their probations.
    fn refit(&mut self, fitting: Vec<EngineFit>, retired: &[RetiredEngine], now: Nanos) {
        let mut old: Vec<Option<FittedEngine>> = self.fitted.drain(..).map(Some).collect();
        for fit in fitting {
            match fit {
                EngineFit::Kept { was, .. } => self.fitted.extend(old[was].take()),
                EngineFit::New(mut fitted, was) => {
                    let of_before = old.iter_mut().flatten().find(|old| Some(old.tag) == was);
                    let guard = of_before.map(|old| std::mem::take(&mut old.guard));
                    if let Some(probation) = &mut fitted.guard.probation {
                        let of_before = retired.iter().find(|gone| Some(gone.tag) == was);
                        let saved = of_before.map(|gone| &gone.saved);
                        probation.begin(saved, guard, now, self.calls_begun);
                    } else {
                        let probation = guard.and_then(|guard| guard.probation);
                        let calls = self.calls_begun;
                        fitted.guard.probation =
                            probation.and_then(|probation| probation.handed_back(fitted.tag, now, calls));
                    }
                    self.fitted.push(fitted);
                }
            }
        }
        self.note_probations();
    }

    /// Begins the probations of engines that the datapath has from its beginning.
    pub(crate) fn begin_probations(&mut self, now: Nanos) {
        let calls = self.calls_begun;
        for probation in self
            .fitted
            .iter_mut()
            .filter_map(|fitted| fitted.guard.probation.as_mut())
        {
            probation.set_end(now, calls);
        }
        self.note_probations();
    }

    fn note_probations(&mut self) {
        self.is_on_probation = self.fitted.iter().any(|fitted| fitted.guard.probation.is_some());
    }

    /// Ends the probations whose time is over.
    pub(crate) fn end_probations(&mut self, now: Nanos) {
        let calls = self.calls_begun;
        for fitted in &mut self.fitted {
            fitted
                .guard
                .probation
                .take_if(|probation| probation.is_over(now, calls));
        }
        self.note_probations();
    }

    /// Puts something else in the place of an engine that has failed, and says what.
    pub(crate) fn recover(&mut self, app: AppId, now: Nanos) -> Option<EngineFailed> {
        let (at, reason) = self.datapath.fault()?;
        let reason = reason.to_owned();
        let guard = std::mem::take(&mut self.fitted[at].guard);
        let tag = self.fitted[at].tag;
        let probation = guard
            .probation
            .filter(|probation| !probation.is_over(now, self.calls_begun));
        let fallback = probation
            .as_ref()
            .and_then(|probation| Some(Arc::clone(&probation.fallback.as_ref()?.owner)));
        let went_back = probation.and_then(|probation| self.go_back(at, probation, now));
        let remedy = went_back.unwrap_or_else(|| self.stand_in(at, guard.stand_in));
        self.note_probations();
        self.revision += 1;
        Some(EngineFailed {
            connection: self.id,
            revision: self.revision,
            app,
            tag,
            reason,
            remedy,
            fallback: fallback.filter(|_| remedy == FaultRemedy::WentBack),
        })
    }

    /// The engine before takes the failed one's place, with what it had saved; none, if there was none.
    fn go_back(&mut self, at: usize, probation: EngineProbation, now: Nanos) -> Option<FaultRemedy> {
        let Some(mut fallback) = probation.fallback else {
            self.swap(at, None).ok()?;
            return Some(FaultRemedy::Withdrawn);
        };
        // The newest state first: it knows most of the calls in flight.
        let mut checkpoints = probation.checkpoints.into_iter().rev();
        let mut starts = fallback.starts.into_iter();
        loop {
            let start = from_checkpoint(starts.next()?, checkpoints.next());
            if self.swap(at, Some(start)).is_ok() {
                break;
            }
        }
        let unproved = fallback.guard.probation.take();
        fallback.guard.probation = unproved.map(|probation| probation.begun_again(now, self.calls_begun));
        self.fitted[at] = FittedEngine::new(fallback.tag, fallback.guard);
        Some(FaultRemedy::WentBack)
    }

    fn stand_in(&mut self, at: usize, stand_in: StandIn) -> FaultRemedy {
        if let StandIn::Deny(start) = stand_in
            && self.swap(at, Some(start())).is_ok()
        {
            self.fitted[at].stands_in = true;
            return FaultRemedy::Denies;
        }
        // It names engines that are there, and starts none: it cannot fail.
        let _ = self.swap(at, None);
        FaultRemedy::Passes
    }

    /// Another engine takes the place of one, or none does.
    fn swap(&mut self, at: usize, start: Option<EngineStart>) -> Result<(), RestoreError> {
        let goes = start.is_none();
        let mut start = start;
        let stages = (0..self.fitted.len()).filter_map(|was| {
            if was == at {
                start.take().map(|start| Stage::Replace { was, start })
            } else {
                Some(Stage::Keep { was })
            }
        });
        match self.datapath.reconfigure(stages.collect(), copy_foreign) {
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

    fn tags(&self) -> Vec<EngineTag> {
        self.fitted.iter().map(|fitted| fitted.tag).collect()
    }

    fn describe(&self) -> DatapathDescription {
        let tags = self.fitted.iter().map(|fitted| fitted.tag);
        DatapathDescription {
            id: self.id,
            connection: self.number,
            calls_begun: self.calls_begun,
            calls_in_flight: self.datapath.calls(),
            engines: tags.zip(self.datapath.describe()).collect(),
        }
    }
}

/// What is to be known of an engine of a new shape.
enum EngineFit {
    Kept {
        was: usize,
        tag: EngineTag,
    },
    /// And in whose place it comes.
    New(FittedEngine, Option<EngineTag>),
}

impl EngineFit {
    fn tag(&self) -> EngineTag {
        match self {
            EngineFit::Kept { tag, .. } => *tag,
            EngineFit::New(fitted, _) => fitted.tag,
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

impl<P: RuntimePlatform> RuntimeWorker<P> {
    /// Changes some of the datapaths that are to be changed, and says whether there were any.
    pub(crate) fn reconfigure_some(&mut self) -> bool {
        let began = self.reconfigurations.front().map(|_| self.platform.now_ns());
        let Some(began) = began else { return false };
        for _ in 0..RECONFIGURATIONS_PER_ROUND {
            let Some(reconfigure) = self.reconfigurations.pop_front() else {
                break;
            };
            self.reconfigure(reconfigure);
            if self.platform.now_ns().saturating_sub(began) >= RECONFIGURING_NS_MAX {
                break;
            }
        }
        true
    }

    fn reconfigure(&mut self, reconfigure: ReconfigureOrder) {
        let number = self.path_numbers.get(&reconfigure.connection).copied();
        let found = number.and_then(|number| Some((number, self.paths.get_mut(number)?)));
        let outcome = match found {
            None => Err(NotReconfigured::Unknown),
            Some((_, path)) if path.tags() != reconfigure.expected => {
                Err(NotReconfigured::Stale { engines: path.tags() })
            }
            Some((number, path)) => {
                path.heat(number, &mut self.hot_paths, self.now);
                path.reconfigure(number, reconfigure.planned, &mut self.platform)
            }
        };
        // Whoever asked may be gone; the datapath is as it was asked for.
        reconfigure.done.send(outcome);
    }

    /// Puts something else in the place of an engine that has failed, and tells the control plane.
    pub(crate) fn recover(&mut self, number: u32) -> bool {
        let Some(path) = self.paths.get_mut(number) else {
            return false;
        };
        let Some(app) = self.apps.get_mut(path.app) else {
            return false;
        };
        let Some(failed) = path.recover(app.id, self.now) else {
            return false;
        };
        self.events.send(RuntimeEvent::EngineFailed(Box::new(failed)));
        true
    }

    pub(crate) fn describe(&mut self, describe: DescribeOrder) {
        let mut described = DatapathListing::default();
        if describe.from == 0 {
            let apps = self.apps.iter();
            described.receive_heaps = apps
                .map(|(_, app)| (app.id, app.port.receive_heap_bytes()))
                .collect();
        }
        for number in describe.from..self.paths.bound() {
            if described.datapaths.len() == DESCRIBED_MAX {
                described.next = Some(number);
                break;
            }
            described
                .datapaths
                .extend(self.paths.get_mut(number).map(|path| path.describe()));
        }
        describe.answer.send(described);
    }
}
