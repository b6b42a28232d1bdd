//! The policies of one datapath: getting engines ready for one that opens, or that comes from an earlier process.

use std::sync::Arc;

use provost_datapath::EngineStart;
use provost_engine::{AttachError, DatapathContext, Start};

use super::attachment::OnFault;
use super::closed;
use super::table::Instance;
use super::{ChangeError, Policies};
use crate::runtime::{EngineProbation, FallbackEngine, FaultPlan, FittedEngine, StandIn};
use crate::thread_pool::ThreadPool;

/// Policies whose engines are ready for one datapath, in order. It is to be used before the next time that the control
/// plane waits for something, so that no change comes in between.
pub(crate) struct Chain {
    pub(crate) engines: Vec<PreparedPolicy>,
    /// Attachments that apply to the datapath and that it goes without.
    pub(crate) left_out: Vec<Arc<Instance>>,
}

/// A policy whose engine is ready.
pub(crate) struct PreparedPolicy {
    pub(crate) instance: Arc<Instance>,
    pub(crate) engine: PolicyEngine,
}

/// An engine that is ready to start.
pub(crate) struct PolicyEngine {
    /// Starts it: fresh, or with what one of the same attachment has saved.
    pub(crate) start: EngineStart,
    /// What is known of it.
    pub(crate) fitted: FittedEngine,
}

/// Starts a policy's engine from what its predecessor has saved, if there is one.
pub(crate) fn started(start: Start) -> EngineStart {
    Box::new(|predecessor| start(predecessor.saved))
}

impl Policies {
    /// Gets the policies of a datapath ready. (Its number must be in the datapath context: exceptions go by it.) An attachment that
    /// does not fit is an error, unless its `on_fault` says otherwise.
    pub(crate) async fn chain(
        &self,
        context: &Arc<DatapathContext>,
        threads: &ThreadPool,
    ) -> Result<Chain, ChangeError> {
        loop {
            let generation = self.generation.get();
            let instances = self.table().chain(context);
            let lineages: Vec<_> = instances
                .iter()
                .map(|instance| self.history.unproved_lineage(instance.tag, context))
                .collect();
            let chain = if instances.is_empty() {
                Ok(Chain {
                    engines: Vec::new(),
                    left_out: Vec::new(),
                })
            } else {
                let context = Arc::clone(context);
                let prepare = move || prepare_chain(&instances, &lineages, &context);
                let prepared = threads.run(prepare).await;
                prepared.map_err(|_| ChangeError::Ending)?
            };
            if self.generation.get() == generation {
                return chain;
            }
        }
    }
}

/// An instance that came just before the datapath is as new to its calls as it would be to those of another that it
/// came to: it is on probation there too.
fn prepare_chain(
    instances: &[Arc<Instance>],
    lineages: &[Vec<Option<Arc<Instance>>>],
    context: &Arc<DatapathContext>,
) -> Result<Chain, ChangeError> {
    let (mut engines, mut left_out) = (Vec::with_capacity(instances.len()), Vec::new());
    for (instance, lineage) in instances.iter().zip(lineages) {
        match instance.prepare(context) {
            Ok(start) => engines.push(PreparedPolicy {
                engine: PolicyEngine {
                    start: started(start),
                    fitted: FittedEngine::new(
                        instance.tag,
                        FaultPlan {
                            probation: probation(lineage, context),
                            stand_in: stand_in(instance, context),
                        },
                    ),
                },
                instance: Arc::clone(instance),
            }),
            Err(error) if instance.on_fault() == OnFault::Pass => {
                tracing::warn!(
                    policy = %instance.name,
                    app = %context.app.name,
                    service = %context.service,
                    connection = context.connection,
                    %error,
                    "a connection goes without a policy that does not fit it"
                );
                left_out.push(Arc::clone(instance));
            }
            Err(error) => return Err(unfit(instance, context, error)),
        }
    }
    Ok(Chain { engines, left_out })
}

/// What was in an instance's place before it, and before that one, the last first, as far as each has not proved itself
/// yet; at the end, none stands for an attachment that was not there.
pub(crate) type Lineage = [Option<Arc<Instance>>];

/// A probation of an engine on a datapath against what was before it; none, if it has nothing to prove.
pub(crate) fn probation(lineage: &Lineage, context: &Arc<DatapathContext>) -> Option<EngineProbation> {
    let (before, earlier) = lineage.split_first()?;
    Some(EngineProbation::against(before.as_ref().and_then(|before| {
        // Where it was, it was prepared for this datapath before; should it not fit any more, there is none.
        let start = || Some(started(before.prepare(context).ok()?));
        Some(FallbackEngine {
            tag: before.tag,
            owner: Arc::clone(before) as _,
            starts: [start()?, start()?],
            guard: FaultPlan {
                probation: probation(earlier, context),
                stand_in: stand_in(before, context),
            },
        })
    })))
}

/// What takes the place of an engine of this policy when it fails.
pub(crate) fn stand_in(instance: &Instance, context: &DatapathContext) -> StandIn {
    match instance.on_fault() {
        OnFault::Pass => StandIn::Pass,
        OnFault::Deny => {
            let policy = Arc::clone(&instance.name);
            let context = Arc::new(instance.datapath_context(context));
            StandIn::Deny(Arc::new(move || closed::start(&policy, &context)))
        }
    }
}

pub(crate) fn unfit(instance: &Instance, context: &DatapathContext, error: AttachError) -> ChangeError {
    ChangeError::Unfit {
        policy: instance.name.to_string(),
        connection: context.connection,
        app: context.app.name.to_string(),
        service: context.service.to_string(),
        problem: error.problem,
    }
}
