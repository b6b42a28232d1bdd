//! Changes of engines under way: policies that come and go, upgrades of every engine, engines that do not start, and
//! engines that fail on probation and after it.

use std::sync::Arc;

use provost_conformance::Random;
use provost_datapath::{EngineStart, Nanos, RestoreError};
use provost_policies::NullPolicy;
use provost_runtime::{
    ConnectionId, EngineProbation, EngineTag, FallbackEngine, FaultPlan, NotReconfigured, PlannedEngine,
    ReconfigureOrder, ReconfigureReport, RuntimeCommand,
};

use super::NodesWorld;
use crate::compose::{EndSpec, LEDGER, TransportHandle, TransportSource};
use crate::policy::{self, LedgerJudging};
use crate::restart::Answer;

/// Tags of policies that come and go.
const FIRST_PASSING: u64 = 1_000;
/// Engines of one datapath, at most.
const ENGINES_MAX: usize = 8;
/// One change in so many is a transport migration, where the connection can migrate.
const MIGRATION_ONE_IN: u64 = 5;
/// A runtime has this long for an answer, in simulated nanoseconds; it gives none if it has left.
const ANSWER_NS_MAX: Nanos = 50_000_000;

/// The source of changes.
pub(super) struct ChangeSource {
    random: Random,
    /// Which of them are migrations; apart, so that worlds without one are as they were.
    migrations: Random,
    next_at: Nanos,
    every_ns: u64,
    next_tag: u64,
    asked: Vec<AskedChange>,
}

/// A change whose outcome is not known yet.
struct AskedChange {
    node: usize,
    connection: ConnectionId,
    planned: Vec<EngineTag>,
    kind: ChangeKind,
    given_up_at: Nanos,
    answer: Answer<Result<ReconfigureReport, NotReconfigured>>,
}

impl ChangeSource {
    pub(super) fn new(seed: u64, now: Nanos) -> ChangeSource {
        let mut random = Random::new(seed);
        let every_ns = [0, 20_000_000, 5_000_000, 1_000_000][random.below(4) as usize];
        let mut changes = ChangeSource {
            migrations: Random::new(!seed),
            random,
            next_at: now,
            every_ns,
            next_tag: FIRST_PASSING,
            asked: Vec::new(),
        };
        changes.schedule(now);
        changes
    }

    pub(super) fn next_at(&self) -> Nanos {
        self.next_at
    }

    fn schedule(&mut self, now: Nanos) {
        self.next_at = match self.every_ns {
            0 => Nanos::MAX,
            every => now + 1 + self.random.below(2 * every),
        };
    }
}

/// The new engines of a datapath.
pub(super) struct PlannedShape {
    pub(super) engines: Vec<PlannedEngine>,
    pub(super) kind: ChangeKind,
}

/// What is to come of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeKind {
    /// All of its engines start.
    Starts,
    /// One of its engines does not start.
    Fails,
    /// A transport starts beside the one before, unless there are too many already.
    Migrates,
}

impl NodesWorld {
    /// Asks for one more change, and hears what came of those before.
    pub(super) fn change(&mut self) -> Result<(), String> {
        let now = self.clock.now();
        self.changes.schedule(now);
        self.on_changes(now)?;
        let node = self.changes.random.below(self.nodes.len() as u64) as usize;
        if self.restarts[node].is_some() || self.nodes[node].ends.is_empty() {
            return Ok(());
        }
        let at = self.changes.random.below(self.nodes[node].ends.len() as u64) as usize;
        let Some((id, end)) = self.nodes[node].ends.iter().nth(at) else {
            return Ok(());
        };
        let id = *id;
        let shape = if self.changes.migrations.one_in(MIGRATION_ONE_IN) {
            self.migration(node, id)?
        } else {
            shape(&mut self.changes, &end.tags, &end.spec, &end.transport)
        };
        match shape {
            Some(shape) => self.ask(node, id, shape),
            None => Ok(()),
        }
    }

    /// Asks the runtime of an end for new engines.
    fn ask(&mut self, node: usize, id: ConnectionId, shape: PlannedShape) -> Result<(), String> {
        let now = self.clock.now();
        let Some(end) = self.nodes[node].ends.get(&id) else {
            return Ok(());
        };
        let (answer, done) = Answer::new();
        let app = end.app;
        self.changes.asked.push(AskedChange {
            node,
            connection: id,
            planned: shape.engines.iter().map(PlannedEngine::tag).collect(),
            kind: shape.kind,
            given_up_at: now + ANSWER_NS_MAX,
            answer,
        });
        let order = ReconfigureOrder {
            connection: id,
            expected: end.tags.clone(),
            planned: shape.engines,
            done,
        };
        self.trace.note(&[8, now, id]);
        let command = RuntimeCommand::Reconfigure(Box::new(order));
        self.nodes[node].send_to_app(app, command, now)
    }

    /// Takes the answers to changes that were asked for, and drops the engines that went.
    pub(super) fn on_changes(&mut self, now: Nanos) -> Result<(), String> {
        for asked in std::mem::take(&mut self.changes.asked) {
            let Some(outcome) = asked.answer.take() else {
                if asked.given_up_at > now {
                    self.changes.asked.push(asked);
                }
                continue;
            };
            let end = self.nodes[asked.node].ends.get_mut(&asked.connection);
            match (outcome, asked.kind) {
                (Ok(_), ChangeKind::Fails) => {
                    return Err("an engine that does not start was started".to_owned());
                }
                (Ok(_), kind) => {
                    self.report.changes += 1;
                    self.report.migrations += u64::from(kind == ChangeKind::Migrates);
                    if let Some(end) = end {
                        end.tags = asked.planned;
                    }
                }
                (Err(NotReconfigured::Stale { engines }), _) => {
                    self.report.changes_refused += 1;
                    if let Some(end) = end {
                        end.tags = engines;
                    }
                }
                (Err(NotReconfigured::Failed { tag, problem }), kind) if !kind.allows(&problem) => {
                    return Err(format!("engine {} did not start: {problem}", tag.0));
                }
                (Err(_), _) => self.report.changes_refused += 1,
            }
        }
        Ok(())
    }
}

impl ChangeKind {
    /// Whether an engine may fail to start for this reason.
    fn allows(self, problem: &str) -> bool {
        match self {
            ChangeKind::Starts => false,
            ChangeKind::Fails => true,
            ChangeKind::Migrates => problem.contains("try again later"),
        }
    }
}

fn shape(
    changes: &mut ChangeSource,
    tags: &[EngineTag],
    spec: &EndSpec,
    transport: &TransportHandle,
) -> Option<PlannedShape> {
    let random = &mut changes.random;
    let mut engines: Vec<PlannedEngine> = tags.iter().map(|tag| PlannedEngine::Keep(*tag)).collect();
    let last = tags.len().checked_sub(1)?;
    let mut kind = ChangeKind::Starts;
    match random.below(10) {
        0 | 1 if tags.len() < ENGINES_MAX => {
            changes.next_tag += 1;
            let at = random.between(1, last as u64 - 1) as usize;
            engines.insert(at, passing(changes.next_tag, spec, random));
        }
        2 => {
            let at = tags.iter().position(|tag| tag.0 >= FIRST_PASSING)?;
            engines.remove(at);
        }
        3 | 4 => {
            let at = tags.iter().position(|tag| *tag == LEDGER)?;
            engines[at] = ledger(spec, LedgerJudging::Done, random.one_in(2));
        }
        5 => {
            let at = tags.iter().position(|tag| *tag == LEDGER)?;
            let fails = LedgerJudging::FailsAfter(random.below(20) as u32);
            // Without a probation, calls are denied from then on: seldom.
            let is_on_probation = !random.one_in(6);
            engines[at] = ledger(spec, fails, is_on_probation);
        }
        6 => {
            let at = random.below(tags.len() as u64) as usize;
            let start: EngineStart = Box::new(|_| {
                Err(RestoreError::Damaged {
                    kind: "engine",
                    reason: "it was made not to start".to_owned(),
                })
            });
            engines[at] = replaced(tags[at], start, spec);
            kind = ChangeKind::Fails;
        }
        7 => {
            engines[0] = replaced(
                tags[0],
                spec.successor("frontend", LedgerJudging::Done, None).ok()?,
                spec,
            )
        }
        8 => {
            let start = spec.successor("marshalling", LedgerJudging::Done, None).ok()?;
            engines[last - 1] = replaced(tags[last - 1], start, spec);
        }
        _ => {
            let source = TransportSource::Saved(transport.clone());
            let start = spec
                .successor("transport", LedgerJudging::Done, Some(source))
                .ok()?;
            engines[last] = replaced(tags[last], start, spec);
        }
    }
    Some(PlannedShape { engines, kind })
}

pub(super) fn replaced(tag: EngineTag, start: EngineStart, spec: &EndSpec) -> PlannedEngine {
    PlannedEngine::Replace {
        was: tag,
        tag,
        start,
        guard: spec.fault_plan(tag),
    }
}

/// A policy that lets everything pass, or does so for a while and then fails.
fn passing(tag: u64, spec: &EndSpec, random: &mut Random) -> PlannedEngine {
    let context = spec.context();
    let passes = random.below(30) as u32;
    let start: EngineStart = if random.one_in(2) {
        Box::new(|_| Ok(Box::new(NullPolicy)))
    } else {
        Box::new(move |predecessor| policy::failing(passes, &context, predecessor.saved))
    };
    PlannedEngine::Insert {
        tag: EngineTag(tag),
        start,
        guard: FaultPlan {
            probation: random.one_in(2).then(|| EngineProbation::against(None)),
            ..FaultPlan::default()
        },
    }
}

/// A new version of the ledger, perhaps on probation against the one before.
fn ledger(spec: &EndSpec, judging: LedgerJudging, is_on_probation: bool) -> PlannedEngine {
    let start = |judging: LedgerJudging| -> EngineStart {
        let (context, calls) = (spec.context(), spec.ledger.clone());
        Box::new(move |predecessor| policy::ledger(&calls, judging, 3, &context, predecessor.saved))
    };
    let fallback = || FallbackEngine {
        tag: LEDGER,
        owner: Arc::new(()),
        starts: [start(LedgerJudging::Done), start(LedgerJudging::Done)],
        guard: spec.fault_plan(LEDGER),
    };
    PlannedEngine::Replace {
        was: LEDGER,
        tag: LEDGER,
        start: start(judging),
        guard: FaultPlan {
            probation: is_on_probation.then(|| EngineProbation::against(Some(fallback()))),
            ..spec.fault_plan(LEDGER)
        },
    }
}
