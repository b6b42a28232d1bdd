//! What has to happen to one datapath for it to have what a change gives it: the policies and the transport of a table, or
//! another transport.

use std::sync::Arc;

use provost_datapath::EngineStart;
use provost_engine::{DatapathContext, SavedState, Start};

use crate::compose::{self, ConnectionSpec, PeerEndpoint};
use crate::connections::OpenConnection;
use crate::policies::chain::{probation, stand_in, started, unfit};
use crate::policies::{ATTACHMENTS_MAX, ChangeError, Instance, Table};
use crate::runtime::{ConnectionId, EngineTag, FaultPlan, PlannedEngine};
use crate::transport::{self, EstablishedPeer, TransportOptions, restoring};

/// The policies of a datapath, and the connection that it belongs to.
#[derive(Clone)]
pub(crate) struct DatapathShape {
    pub(crate) chain: Vec<Arc<Instance>>,
    pub(crate) spec: Arc<ConnectionSpec>,
}

impl DatapathShape {
    /// What a datapath has.
    pub(crate) fn of(connection: &OpenConnection) -> DatapathShape {
        DatapathShape {
            chain: connection.chain.clone(),
            spec: Arc::clone(&connection.spec),
        }
    }

    fn tags(&self) -> impl Iterator<Item = EngineTag> {
        self.chain.iter().map(|instance| instance.tag)
    }

    /// All engines of the datapath.
    pub(crate) fn engines(&self) -> Vec<EngineTag> {
        compose::tags(self.tags())
    }

    pub(crate) fn find(&self, tag: EngineTag) -> Option<&Arc<Instance>> {
        self.chain.iter().find(|instance| instance.tag == tag)
    }

    /// The instance in whose place another one of the same attachment comes.
    fn predecessor(&self, of: &Instance) -> Option<&Arc<Instance>> {
        let is_same =
            |instance: &&Arc<Instance>| instance.name == of.name && instance.kind.name() == of.kind.name();
        self.chain.iter().find(is_same)
    }

    /// Whether a datapath of this shape has the engines of the other one.
    fn has_engines_of(&self, other: &DatapathShape) -> bool {
        self.spec.transport == other.spec.transport
            && self.spec.transport_version == other.spec.transport_version
            && self.tags().eq(other.tags())
    }
}

/// A datapath as it is at one moment, for those who look at it on another thread.
pub(crate) struct DatapathSnapshot {
    context: Arc<DatapathContext>,
    shape: DatapathShape,
    /// What has failed there.
    without: Vec<EngineTag>,
}

impl DatapathSnapshot {
    pub(crate) fn of(connection: &OpenConnection) -> DatapathSnapshot {
        DatapathSnapshot {
            context: Arc::clone(&connection.context),
            shape: DatapathShape::of(connection),
            without: connection.without.clone(),
        }
    }

    /// What has to happen to it for it to have what a table gives it, if anything.
    pub(crate) fn change_to(
        self,
        table: &Table,
        purpose: impl FnOnce() -> ChangePurpose,
    ) -> Option<DatapathChange> {
        let to = self.wanted(table);
        (!self.shape.has_engines_of(&to)).then(|| DatapathChange {
            context: self.context,
            from: self.shape,
            to,
            purpose: purpose(),
        })
    }

    /// What has to happen to it for it to have again what it had, if anything.
    pub(crate) fn change_back(
        self,
        had: &DatapathShape,
        checkpoints: &EngineCheckpoints,
    ) -> Option<DatapathChange> {
        let to = DatapathShape {
            chain: self.without_failed(had.chain.clone()),
            spec: Arc::clone(&had.spec),
        };
        (!self.shape.has_engines_of(&to)).then(|| DatapathChange {
            context: self.context,
            from: self.shape,
            to,
            purpose: ChangePurpose::Undo(checkpoints.clone()),
        })
    }

    /// What has failed there stays away: its fallback stays, or none does.
    fn without_failed(&self, chain: Vec<Arc<Instance>>) -> Vec<Arc<Instance>> {
        let chosen = |instance: Arc<Instance>| {
            if self.without.contains(&instance.tag) {
                self.shape.predecessor(&instance).cloned()
            } else {
                Some(instance)
            }
        };
        chain.into_iter().filter_map(chosen).collect()
    }

    /// What a table gives it.
    fn wanted(&self, table: &Table) -> DatapathShape {
        let spec = &self.shape.spec;
        let (app, connection) = (&self.context.app.name, spec.id);
        let version = table.transports.version(spec.transport, app, connection);
        let spec = match version {
            Some(transport_version) if transport_version != spec.transport_version => {
                Arc::new(ConnectionSpec {
                    transport_version,
                    ..(**spec).clone()
                })
            }
            _ => Arc::clone(spec),
        };
        DatapathShape {
            chain: self.without_failed(table.chain(&self.context)),
            spec,
        }
    }
}

/// What engines of one datapath had saved when they were retired, by which one it was: the first that each saved, of at
/// most one for each engine that a datapath can have.
#[derive(Clone, Default)]
pub(crate) struct EngineCheckpoints(Vec<(EngineTag, SavedState)>);

/// Checkpoints of one datapath, at most: of each policy, and of the transport.
const CHECKPOINTS_MAX: usize = ATTACHMENTS_MAX + 1;

impl EngineCheckpoints {
    pub(crate) fn keep_first(&mut self, tag: EngineTag, saved: SavedState) {
        if self.0.len() < CHECKPOINTS_MAX && self.get(tag).is_none() {
            self.0.push((tag, saved));
        }
    }

    fn get(&self, tag: EngineTag) -> Option<&SavedState> {
        self.0.iter().find(|(of, _)| *of == tag).map(|(_, saved)| saved)
    }
}

/// Why a datapath is changed.
pub(crate) enum ChangePurpose {
    /// Something new comes, and is on probation.
    Forward,
    /// It was changed and is changed back, with what its engines had saved before.
    Undo(EngineCheckpoints),
    /// An earlier state comes back, as these instances have failed.
    TakeBack(Arc<[EngineTag]>),
}

/// A datapath that is to be changed.
pub(crate) struct DatapathChange {
    context: Arc<DatapathContext>,
    from: DatapathShape,
    to: DatapathShape,
    purpose: ChangePurpose,
}

/// The same, with its new engines ready to start.
pub(crate) struct PreparedDatapath {
    pub(crate) context: Arc<DatapathContext>,
    pub(crate) from: DatapathShape,
    pub(crate) to: DatapathShape,
    pub(crate) planned: Vec<PlannedEngine>,
}

impl PreparedDatapath {
    pub(crate) fn connection(&self) -> ConnectionId {
        self.from.spec.id
    }
}

impl DatapathChange {
    pub(crate) fn connection(&self) -> ConnectionId {
        self.from.spec.id
    }

    /// Whether a policy gets an engine ready for it, which may be slow.
    pub(crate) fn prepares_policies(&self) -> bool {
        self.to.tags().any(|tag| self.from.find(tag).is_none())
    }

    /// Gets the new engines ready. May be slow.
    pub(crate) fn prepare(self) -> Result<PreparedDatapath, ChangeError> {
        let policies = self.to.chain.iter().map(|instance| self.plan(instance));
        let policies = policies.collect::<Result<Vec<_>, _>>()?;
        let planned = compose::planned(policies, self.plan_transport()?);
        Ok(PreparedDatapath {
            context: self.context,
            from: self.from,
            to: self.to,
            planned,
        })
    }

    fn plan_transport(&self) -> Result<PlannedEngine, ChangeError> {
        let (from, to) = (&self.from.spec, &self.to.spec);
        if from.transport_version == to.transport_version {
            return Ok(PlannedEngine::Keep(EngineTag::TRANSPORT));
        }
        let engine = to.transport.description().engine;
        let start = restoring(engine, to.transport_version);
        let start = start.ok_or_else(|| ChangeError::NothingToUpgrade {
            problem: format!("\"{engine}\" cannot be upgraded"),
        })?;
        Ok(replace_transport(start))
    }

    fn plan(&self, instance: &Arc<Instance>) -> Result<PlannedEngine, ChangeError> {
        let tag = instance.tag;
        if self.from.find(tag).is_some() {
            return Ok(PlannedEngine::Keep(tag));
        }
        let context = &self.context;
        let prepare = || {
            let prepared = instance.prepare(context);
            prepared.map_err(|error| unfit(instance, context, error))
        };
        let predecessor = self.from.predecessor(instance);
        let start = match &self.purpose {
            ChangePurpose::Forward | ChangePurpose::TakeBack(_) => started(prepare()?),
            ChangePurpose::Undo(checkpoints) => {
                resumed([prepare()?, prepare()?], checkpoints.get(tag).cloned())
            }
        };
        let guard = FaultPlan {
            probation: match &self.purpose {
                ChangePurpose::Forward => probation(&[predecessor.cloned()], context),
                // What comes back may not have been on probation here: it has nothing to fear but what has failed.
                ChangePurpose::TakeBack(failed) => predecessor
                    .filter(|fallback| !failed.contains(&fallback.tag))
                    .and_then(|fallback| probation(&[Some(Arc::clone(fallback))], context)),
                ChangePurpose::Undo(_) => None,
            },
            stand_in: stand_in(instance, context),
        };
        Ok(match predecessor {
            Some(predecessor) => PlannedEngine::Replace {
                was: predecessor.tag,
                tag,
                start,
                guard,
            },
            None => PlannedEngine::Insert { tag, start, guard },
        })
    }
}

/// Gets a datapath ready for another transport beside the one that it has: each policy anew, from what it has saved, as
/// something else is known of the connection now. May be slow.
pub(crate) fn prepare_migration(
    from: DatapathShape,
    peer: EstablishedPeer,
    transport_version: u32,
    options: TransportOptions,
) -> Result<PreparedDatapath, ChangeError> {
    let spec = ConnectionSpec {
        peer: PeerEndpoint {
            identity: peer.identity.as_str().into(),
            address: peer.address.to_string().into(),
            app: None,
            attested: None,
        },
        transport: peer.kind,
        transport_version,
        ..(*from.spec).clone()
    };
    let context = spec.context();
    let renew = |instance: &Arc<Instance>| {
        let prepared = instance.prepare(&context);
        Ok(PlannedEngine::Replace {
            was: instance.tag,
            tag: instance.tag,
            start: started(prepared.map_err(|error| unfit(instance, &context, error))?),
            guard: FaultPlan {
                probation: None,
                stand_in: stand_in(instance, &context),
            },
        })
    };
    let policies = from
        .chain
        .iter()
        .map(renew)
        .collect::<Result<Vec<_>, ChangeError>>()?;
    let new = peer.start(transport_version, options);
    let beside = transport::beside(new, from.spec.transport_version, restoring);
    Ok(PreparedDatapath {
        to: DatapathShape {
            chain: from.chain.clone(),
            spec: Arc::new(spec),
        },
        planned: compose::planned(policies, replace_transport(beside)),
        context,
        from,
    })
}

fn replace_transport(start: EngineStart) -> PlannedEngine {
    PlannedEngine::Replace {
        was: EngineTag::TRANSPORT,
        tag: EngineTag::TRANSPORT,
        start,
        guard: FaultPlan::default(),
    }
}

/// Starts a policy's engine again: from what its successor has saved, if it reads that, else from what it had saved
/// itself when it was retired.
fn resumed([first, second]: [Start; 2], checkpoint: Option<SavedState>) -> EngineStart {
    Box::new(move |predecessor| {
        let Some(saved) = predecessor.saved else {
            return first(checkpoint.as_ref());
        };
        first(Some(saved)).or_else(|_| second(checkpoint.as_ref()))
    })
}
